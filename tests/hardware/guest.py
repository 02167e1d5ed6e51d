"""Run a command under a Linux kernel that has simulated hardware, on this host's own files.

    python tests/hardware/guest.py [--timeout S] [--append WORD]... [--out DIR] [--kernel PATH] [--mem MB] -- COMMAND...

The guest is user-mode Linux: a kernel that runs as an ordinary process, without hypervisor or privileges. It sees the
host's root read-only beneath a layer in memory, so the host's Python and venv run in it, in the current directory;
only what it writes to --out DIR stays. The exit status is the command's own, or

    124  the time limit was reached, and the guest killed
    125  the guest ended without a report
    126  no guest can run here; the reason and the cure were printed

Owns one boot from beginning to end. Which kernel it is, `kernel.py` says; what the guest starts from, `initramfs.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

if __name__ == "__main__":  # as a script: the siblings are found where pytest's `pythonpath` has them
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hardware import initramfs, kernel
from support import virtio_spi

TIMED_OUT, NO_REPORT, CANNOT_RUN = 124, 125, 126

_OWN = ("/dev", "/proc", "/run", "/sys")
"""What the guest has of its own, and therefore does not see of the host's."""

_PASSED_ON = ("COVERAGE_", "HYPOTHESIS_", "PYTEST_")
"""What of the host's environment the guest inherits, beside PATH."""


@frozen
class Boot:
    """What to boot, and how. `mem` in MiB, `timeout` in seconds."""

    command: Sequence[str]
    timeout: float = 300
    append: Sequence[str] = ()
    out: Path | None = None
    kernel: Path | None = None
    mem: int = 1024
    interactive: bool = False


def run(boot: Boot) -> int:
    """Boot, run the command, and return the exit status, which this module's docstring explains. Raises `Missing`."""
    kernel.check_host()
    linux = kernel.find(boot.kernel)
    busybox = kernel.busybox()
    modules = {name: (linux.module(name), options) for name, options in kernel.MODULES.items()}
    cwd = Path.cwd()
    out = None if boot.out is None else boot.out.resolve()
    for path in (cwd, linux.modules):
        _check_seen(path)
    with tempfile.TemporaryDirectory(prefix="hearth-guest-") as name:
        work = Path(name).resolve()
        control = work / "control"
        control.mkdir()
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        for path in filter(None, (control, out)):
            _check_mountable(path)
        environment = _environment(linux, out, interactive=boot.interactive)
        (control / "command").write_text(_script(boot.command, cwd, environment))
        archive = initramfs.image(busybox, modules, control, out=out, interactive=boot.interactive)
        (work / "initrd").write_bytes(archive)
        started = time.monotonic()
        late = _power(boot, linux, work)
        status = control / "status"
        code = TIMED_OUT if late else int(status.read_text()) if status.exists() else NO_REPORT
        _tell(f"{_verdict(code, late=late, reported=status.exists())} after {time.monotonic() - started:.1f} s")
        return code


def _power(boot: Boot, linux: kernel.Kernel, work: Path) -> bool:
    """Run the kernel until it powers off; whether it had to be killed at the time limit."""
    modem, far_modem = socket.socketpair()
    port, instrument = socket.socketpair()
    ports = (modem, far_modem, port)  # ttyS1 and ttyS2 are a null modem; ttyS3 has the instrument at its other end
    argv = [
        str(linux.path),
        "seccomp=auto",
        f"mem={boot.mem}M",
        f"initrd={work}/initrd",
        f"uml_dir={work}/",
        "umid=guest",
        "con=null",
        "con0=fd:0,fd:1" if boot.interactive else "con0=null,fd:1",
        *(f"ssl{number}=fd:{end.fileno()}" for number, end in enumerate(ports, 1)),
        "quiet",
        "loglevel=2",  # a command's output is its own: what drivers complain of is in dmesg
        "panic=-1",
        # Boards are tried on a machine whose other chips and controllers they need not name: "dtb=none".
        *(() if linux.device_tree is None or "dtb=none" in boot.append else (f"dtb={linux.device_tree}",)),
        *(word for word in boot.append if word != "dtb=none"),
    ]
    env = {"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": str(kernel.scratch(boot.mem))}
    _allow_descriptors()
    with _ended_by_sigterm(), _terminal_restored(boot.interactive), contextlib.ExitStack() as stack:
        for end in ports:
            stack.enter_context(end)
        stack.enter_context(instrument)
        # The device tree names the socket without a folder: it is looked for in the kernel's own.
        stack.callback(virtio_spi.start(work / "virtio-spi", work / "control"))
        process = subprocess.Popen(
            argv,
            stdin=None if boot.interactive else subprocess.DEVNULL,
            pass_fds=[end.fileno() for end in ports],
            env=env,
            cwd=work,
            process_group=0,
        )
        with _ended_with_us(process):
            threading.Thread(target=_answer, args=(instrument,), daemon=True).start()
            with os.fdopen(os.pidfd_open(process.pid)) as alive:
                ended, _, _ = select.select([alive], [], [], boot.timeout)
    return not ended


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the guest at the end, and even if this runner is killed itself.

    The guest is a group of processes: its kernel, and one for each address space in it, which may outlive the kernel. A
    shell watches over it whose input ends when nobody is left to hold the other end of its pipe. The group is killed
    before its leader is waited for, so that its number cannot be another's by then.
    """
    watch = ["sh", "-c", 'read _; kill -s KILL -- "-$1"', "sh", str(process.pid)]
    null = subprocess.DEVNULL
    guard = subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        guard.kill()
        guard.communicate()
        process.wait()


def _allow_descriptors() -> None:
    """Let the kernel have as many as it may: it holds one for every file of the host that the guest remembers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _answer(instrument: socket.socket) -> None:
    """The far end of ttyS3: answers each line in upper case, until the guest is gone."""
    with contextlib.suppress(OSError), instrument.makefile("rb") as lines:
        for line in lines:
            instrument.sendall(line.upper())


def _environment(linux: kernel.Kernel, out: Path | None, *, interactive: bool) -> dict[str, str]:
    """The command's whole environment, which does not depend on who runs it or from where."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    shown = sys.stdout.isatty() or interactive
    screen = {"TERM": os.environ.get("TERM", "linux")} if shown else {"TERM": "dumb", "NO_COLOR": "1"}
    with contextlib.suppress(OSError):
        screen["COLUMNS"] = str(os.get_terminal_size(sys.stdout.fileno()).columns if shown else 120)
    return {
        **passed,
        **screen,
        "HEARTH_GUEST": "1",
        "HEARTH_GUEST_MODULES": str(linux.modules),
        **({} if out is None else {"HEARTH_GUEST_OUT": str(out)}),
        "HOME": "/run/home",
        "LANG": "C.UTF-8",
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": "/run/tmp",
    }


def _script(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> str:
    """What the guest's shell runs."""
    assignments = shlex.join(f"{name}={value}" for name, value in environment.items())
    return f"cd {shlex.quote(str(cwd))} || exit {NO_REPORT}\nexec env -i {assignments} {shlex.join(command)}\n"


def _check_seen(path: Path) -> None:
    if any(path.is_relative_to(own) for own in _OWN):
        raise kernel.Missing(f"{path} cannot be seen in the guest, which has {', '.join(_OWN)} of its own", "move it")


def _check_mountable(path: Path) -> None:
    if "," in str(path):
        raise kernel.Missing(f"{path} has a comma in it, which mount options cannot have", "use another folder")


def _verdict(code: int, *, late: bool, reported: bool) -> str:
    if late:
        return "killed at the time limit"
    return f"exit status {code}" if reported else "ended without a report (its kernel's last words are above)"


def _tell(text: str) -> None:
    print(f"guest: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that nothing is left behind."""

    def stop(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextlib.contextmanager
def _terminal_restored(interactive: bool) -> Iterator[None]:
    """The guest's console makes the terminal raw, and a killed guest would leave it so."""
    if not interactive:
        yield
        return
    former = termios.tcgetattr(sys.stdin.fileno())
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, former)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="guest.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="guest.py [options] -- COMMAND...",
    )
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds until it is killed (300)")
    parser.add_argument("--append", action="append", default=[], metavar="WORD", help="one more word for the kernel")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a folder the guest writes to, at the same path")
    parser.add_argument("--kernel", type=Path, metavar="PATH", help="this kernel, not the one that is found")
    parser.add_argument("--mem", type=int, default=1024, metavar="MB", help="the guest's memory (1024)")
    parser.add_argument("--interactive", action="store_true", help="the command has this terminal: `-- bash`")
    parser.add_argument("--check", action="store_true", help="only say whether a guest can run here")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="what to run, in the current directory")
    parsed = parser.parse_args(arguments)
    if not parsed.command and not parsed.check:
        parser.error("no COMMAND")
    if parsed.interactive and not sys.stdin.isatty():
        parser.error("--interactive needs a terminal")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parsed = _parsed(arguments)
    try:
        if parsed.check:
            print(kernel.check(parsed.kernel, parsed.mem))
            return 0
        boot = Boot(
            parsed.command,
            timeout=parsed.timeout,
            append=parsed.append,
            out=parsed.out,
            kernel=parsed.kernel and parsed.kernel.resolve(),
            mem=parsed.mem,
            interactive=parsed.interactive,
        )
        return run(boot)
    except kernel.Missing as missing:
        _tell(f"cannot run: {missing}")
        return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
