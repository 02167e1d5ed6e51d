"""The launcher: a process of its own that starts the programs of `proc.exec`, and ends them.

Theory of operation. hearthd starts the launcher before it confines itself, and can never start another one, because a
confined daemon cannot execute a program. The launcher has two descriptors of the daemon's: a socket, and the record of
running programs. From the daemon it accepts only a template's name and parameters, which it checks again itself, so
that a daemon that was taken over starts no more than its operator listed.

Messages are JSON, one packet each. On the socket, each request is answered in turn:

    {"run": TEMPLATE, "params": {…}}     {"pid": N} with three descriptors: control, stdout, stderr; or {"error": WHY}
    {"signal": NAME, "pid": N}           {"sent": true}, or false where N is no program that runs

On a program's control socket the launcher sends one message, when all is over: {"failed": WHY} where it was not
executed, else {"exit_code", "signal", "timed_out", "stopped"}. Any message of the daemon's there, and its end of file,
asks for the end.

A program goes through these states:

    RUNNING ──(time out, asked, daemon gone)──> ENDING: SIGTERM to its group, SIGKILL after its grace
       └──────────────(leader ended)───────────────┴──> SWEEPING: SIGKILL to its group ──(none left)──> reported

The leader is reaped only after its group was killed, so that the group's number cannot be another's. A confined program
cannot leave its group. An unconfined one can; its orphans become the launcher's children (PR_SET_CHILD_SUBREAPER), and
a child that belongs to no running program is killed.

When the daemon has ended, in any way, the launcher's socket is at its end of file: it kills all programs and ends. When
the launcher is killed itself, the kernel kills each leader (PR_SET_PDEATHSIG), and the next start kills what these had
started, by the record. The loop waits in one place only, so no program can delay another.

The record is a file that outlives the daemon. Each program notes its process id and start time there before it executes
anything, in a slot of its own. A whole slot is one write, so a killed process leaves a slot whole or untouched. The
file is locked for as long as its launcher lives: only the holder of the lock may end the programs it names. The next
start ends the group of processes that the program leads, which a confined program cannot leave. The process id may be
another's by then. So a leader must have the noted start time, and, where there is no leader any more, a member must
have a mark that it cannot remove: no_new_privs, or the environment that it was started with.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import pickle
import select
import signal
import socket
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth._util.foreign import Raised, called
from hearth._util.ids import boot_id
from hearth.drivers.sandbox import cage, identity
from hearth.drivers.sandbox.plan import PATH
from hearth.errors import ConfigError, InvalidParams

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import NoReturn

    from hearth.config.exec import ExecTemplate
    from hearth.drivers.sandbox.cage import Cage, Guard
    from hearth.drivers.sandbox.identity import ProcessIdentity

log = logging.getLogger("hearth.programs")

MARK: Final = "HEARTH_EXEC"
"""Environment variable of every program: the launcher's process id, a slash, and the template's name."""
SLOT: Final = 96
"""Bytes of a slot: a boot's id, a process id, a start time, and room."""
_END_TIMEOUT: Final = 5.0
"""Seconds for the launcher of a killed daemon to end."""
_PROC: Final = Path("/proc")


def open_record(path: Path, *, make: bool) -> int | None:
    """Open and lock the record; None where there is none and none is to be made. Blocking. Raises ConfigError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0)
    try:
        record = os.open(path, flags, 0o600)
    except FileNotFoundError:
        if make:
            raise ConfigError(f"{path}: No such file or directory; see [audit] path") from None
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; remove it") from None
    try:
        if not stat.S_ISREG(os.fstat(record).st_mode):
            raise ConfigError(f"{path}: not a regular file; remove it")
        _lock(record, path)
    except BaseException:
        os.close(record)
        raise
    return record


def _lock(record: int, path: Path) -> None:
    until = time.monotonic() + _END_TIMEOUT
    while True:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise ConfigError(f"{path}: another hearthd runs programs with this audit log; stop it first") from None
            time.sleep(0.02)  # flock has no time limit of its own
        else:
            return


def note(record: int, slot: int, pid: int) -> None:
    """Record a running program; the program does so itself before it executes anything. Raises OSError."""
    started = _stat(pid)[19]
    _write(record, slot, f"{boot_id()} {pid} {started}")


def clear(record: int, slot: int) -> None:
    """Record that a slot's program has ended, with all that it started. Raises OSError."""
    _write(record, slot, "")


def _write(record: int, slot: int, text: str) -> None:
    os.pwrite(record, text.ljust(SLOT - 1).encode() + b"\n", slot * SLOT)


def end_survivors(record: int) -> list[int]:
    """Kill the remaining programs of an earlier run, and empty the record; return the leaders' process ids."""
    ended = []
    for line in os.pread(record, 1 << 16, 0).decode("utf-8", "replace").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == boot_id() and words[1].isdecimal():
            group = int(words[1])
            if _is_left(group, words[2]):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
                    ended.append(group)
                    log.warning("processes %d: a program of an earlier run, killed", group)
    os.ftruncate(record, 0)
    return ended


def _is_left(group: int, started: str) -> bool:
    """Return True if the group of processes is the one whose leader started then."""
    try:
        return _stat(group)[19] == started
    except (OSError, IndexError):
        return any(_is_marked(pid) for pid in _members(group))


def _members(group: int) -> Iterator[int]:
    for pid in pids():
        with contextlib.suppress(OSError, IndexError):
            if int(_stat(pid)[2]) == group:
                yield pid


def _is_marked(pid: int) -> bool:
    with contextlib.suppress(OSError):
        if "\nNoNewPrivs:\t1\n" in (_PROC / str(pid) / "status").read_text("utf-8", "replace"):
            return True
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        return any(variable.startswith(f"{MARK}=".encode()) for variable in variables)
    return False


def pids() -> Iterator[int]:
    """Yield all processes that can be seen."""
    return (int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal())


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: 1 parent, 2 group, 17 threads, 19 start. Raises OSError."""
    text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    return text.rpartition(")")[2].split()


def tasks_of(uid: int) -> int:
    """Return the number of a user's processes and threads, as the kernel counts them for RLIMIT_NPROC."""
    count = 0
    for pid in pids():
        with contextlib.suppress(OSError, IndexError):
            if (_PROC / str(pid)).stat().st_uid == uid:
                count += int(_stat(pid)[17])
    return count


MOST_MESSAGE_BYTES: Final = 200_000
"""Bytes of a message: a template's parameters are bounded, and each of them."""
SWEEP_S: Final = 1.0
"""Seconds for a program's remaining processes to die of SIGKILL, before its end is reported all the same."""
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 15, 4, 36
_NOT_STARTED: Final = 127


@frozen(kw_only=True)
class Settings:
    """The launcher's settings, as hearthd read them from its configuration.

    They come as a pickle, once, on stdin: from the process that starts the launcher, which serves no client yet.
    """

    templates: Mapping[str, ExecTemplate]
    cages: Mapping[str, Cage] | None
    """None where programs are not confined."""
    user: ProcessIdentity | None
    """The user to become."""
    socket: int
    record: int


class LaunchedProgram:
    """A running program, from fork to the end of the last process of its group."""

    def __init__(self, slot: int, pid: int, template: ExecTemplate, control: socket.socket, failure: int) -> None:
        self.slot, self.pid, self.control = slot, pid, control
        self.failure = failure
        """A pipe: the reason why it was not executed; empty, and at its end of file, once it was."""
        self.grace = template.grace_ms / 1000
        self.deadline: float | None = time.monotonic() + template.timeout_ms / 1000
        """The time of the next action."""
        self.ending = self.timed_out = self.stopped = False
        self.outcome: dict[str, Any] | None = None
        """The leader's exit status; set while the rest of its group is killed."""

    def end(self) -> None:
        """Ask the whole group to end; it is killed after the grace."""
        if not self.ending:
            self.ending = True
            self.deadline = time.monotonic() + self.grace
            self.kill(signal.SIGTERM)

    def kill(self, number: int) -> None:
        """Send a signal to the whole group, which is the program's for as long as its leader is not reaped."""
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                # It has just been forked, and leads no group yet.
                os.kill(self.pid, number)

    def gone(self) -> bool:
        """Return True if no process of the group is left."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


class Launcher:
    """One loop around one poll that starts programs and ends them."""

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self._settings, self._guard = settings, guard
        self._line = socket.socket(fileno=settings.socket)
        self._wakeup, woken = os.pipe()
        for end in (self._wakeup, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._programs: dict[int, LaunchedProgram] = {}
        """Running programs, by the leader's process id."""
        self._reported: dict[int, socket.socket] = {}
        """Control sockets, by descriptor, on which the end was reported. Closed at once they could lose it."""

    def run(self) -> None:
        """Answer requests until the daemon is gone, then end everything."""
        self._line.send(b'{"ready": true}')
        try:
            while self._turn():
                pass
        finally:
            self._end_all()

    def _turn(self) -> bool:
        poll = select.poll()
        waited: dict[int, LaunchedProgram] = {}
        for descriptor in (self._line.fileno(), self._wakeup):
            poll.register(descriptor, select.POLLIN)
        for program in self._programs.values():
            if not program.ending:
                poll.register(program.control.fileno(), select.POLLIN)
                waited[program.control.fileno()] = program
        for descriptor in self._reported:
            poll.register(descriptor, select.POLLIN)
        deadlines = [program.deadline for program in self._programs.values() if program.deadline is not None]
        left = None if not deadlines else max(0.0, min(deadlines) - time.monotonic()) * 1000 + 1
        ready = {descriptor for descriptor, _ in poll.poll(left)}
        if self._line.fileno() in ready and not self._serve():
            return False
        for descriptor in ready & waited.keys():
            waited[descriptor].stopped = True
            waited[descriptor].end()
        for descriptor in ready & self._reported.keys():
            if not _received(self._reported[descriptor]):
                self._reported.pop(descriptor).close()
        self._woken()
        self._reap()
        for program in list(self._programs.values()):
            self._attend(program)
        return True

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)

    def _serve(self) -> bool:
        """Answer one request; return False at the end of the requests."""
        message = _received(self._line)
        if not message:
            return False
        descriptors: list[int] = []
        asked = json.loads(message)
        if "run" in asked:
            answer = self._start(asked["run"], asked["params"], descriptors)
        else:
            answer = {"sent": self._signal(asked["pid"], asked["signal"])}
        try:
            socket.send_fds(self._line, [json.dumps(answer).encode()], descriptors)
        except OSError:
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _signal(self, pid: int, name: str) -> bool:
        program = self._programs.get(pid)
        if program is None or program.outcome is not None:
            return False
        # It has not been reaped, so the process id is still its own.
        os.kill(pid, signal.Signals[name])
        return True

    def _start(self, name: str, params: Mapping[str, object], given: list[int]) -> dict[str, Any]:
        """Fork a program; add the descriptors for the requester to `given`."""
        template = self._settings.templates.get(name)
        if template is None:
            return {"error": f"there is no [tools.exec] {name}"}
        opened: list[int] = []
        try:
            argv = template.fill(params)
            for _ in range(3):
                opened += os.pipe()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stdout, stdout_in, stderr, stderr_in, failure, failing = opened
            used = {program.slot for program in self._programs.values()}
            slot = next(number for number in range(len(used) + 1) if number not in used)
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                theirs.close()
                raise
            if pid == 0:
                self._become(name, template, argv, slot, (stdout_in, stderr_in, failing))
        except InvalidParams as error:
            return {"error": error.message}
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            return {"error": f"{template.argv[0]} cannot be started: {error.strerror}"}
        for descriptor in (stdout_in, stderr_in, failing):
            os.close(descriptor)
        given += [theirs.detach(), stdout, stderr]
        self._programs[pid] = LaunchedProgram(slot, pid, template, ours, failure)
        return {"pid": pid}

    def _become(
        self, name: str, template: ExecTemplate, argv: list[str], slot: int, descriptors: tuple[int, int, int]
    ) -> NoReturn:
        """Run the program, or write why it cannot be run and end this process: nothing may return from a fork."""
        *output, failing = descriptors
        try:
            called(self._execute, name, template, argv, slot, output)
        except Raised as raised:
            error = raised.error
            why = str(error) or type(error).__name__
            if isinstance(error, OSError):
                why = f"{error.strerror}: {os.fsdecode(error.filename)}" if error.filename else str(error.strerror)
            os.write(failing, why.encode())
        finally:
            os._exit(_NOT_STARTED)

    def _execute(self, name: str, template: ExecTemplate, argv: list[str], slot: int, output: list[int]) -> None:
        """Do what is between fork and exec. There are no threads here, so it may be Python."""
        launcher = os.getppid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        note(self._settings.record, slot, os.getpid())
        for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), *output)):
            os.dup2(source, target)
        os.chdir(template.cwd)
        environ = {"PATH": PATH, "LANG": "C.UTF-8", **template.env, MARK: f"{launcher}/{name}"}
        if self._settings.cages is not None:
            own = self._settings.cages[name]
            _prctl(_PR_SET_DUMPABLE, 1)  # else what /proc has of it is root's
            cage.limit(own, tasks_of(os.getuid()))
            self._guard.enforce(own)
        if launcher == os.getppid():
            os.execve(argv[0], argv, environ)

    def _reap(self) -> None:
        """Reap all children that have ended: a leader only once its group was killed."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            program = self._programs.get(ended.si_pid)
            if program is not None:
                program.kill(signal.SIGKILL)
                program.outcome = self._outcome(program, ended.si_code, ended.si_status)
                program.ending, program.deadline = True, time.monotonic() + SWEEP_S
            os.waitpid(ended.si_pid, 0)
            self._kill_orphans()

    def _outcome(self, program: LaunchedProgram, code: int, status: int) -> dict[str, Any]:
        # It has ended, so nothing more can be written there.
        if failed := os.read(program.failure, 4096):
            return {"failed": failed.decode("utf-8", "replace")}
        exited = code == os.CLD_EXITED
        return {
            "exit_code": status if exited else None,
            "signal": None if exited else status,
            "timed_out": program.timed_out,
            "stopped": program.stopped,
        }

    def _kill_orphans(self) -> None:
        """Kill children that belong to no running program: they have left the group of an ended one."""
        for pid in pids():
            with contextlib.suppress(OSError, IndexError):
                parent, group = map(int, _stat(pid)[1:3])
                # A leader that has just been forked has not made its group yet.
                if parent == os.getpid() and not {pid, group} & self._programs.keys():
                    os.kill(pid, signal.SIGKILL)

    def _attend(self, program: LaunchedProgram) -> None:
        """Act on a program's deadline, and report its end when no process of it is left."""
        over = program.deadline is not None and time.monotonic() >= program.deadline
        if program.outcome is not None:
            if over or program.gone():
                self._forget(program)
        elif over and not program.ending:
            program.timed_out = True
            program.end()
        elif over:
            program.kill(signal.SIGKILL)
            program.deadline = None

    def _forget(self, program: LaunchedProgram) -> None:
        del self._programs[program.pid]
        clear(self._settings.record, program.slot)
        with contextlib.suppress(OSError):
            program.control.send(json.dumps(program.outcome).encode())
        self._reported[program.control.fileno()] = program.control
        os.close(program.failure)

    def _end_all(self) -> None:
        """Kill every program at once: the daemon that waited for them is gone."""
        for program in self._programs.values():
            program.kill(signal.SIGKILL)
        until = time.monotonic() + SWEEP_S
        while self._programs and time.monotonic() < until:
            select.select([self._wakeup], [], [], until - time.monotonic())
            self._woken()
            self._reap()
            for program in list(self._programs.values()):
                if program.outcome is not None and program.gone():
                    self._forget(program)


def _received(line: socket.socket) -> bytes:
    """Return one message; an empty one where the other end was closed."""
    try:
        return line.recv(MOST_MESSAGE_BYTES)
    except ConnectionResetError:
        return b""


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Run the launcher of the daemon that has written the settings to stdin."""
    with open(0, "rb") as stdin:
        settings: Settings = pickle.load(stdin)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The signal is meant for the daemon, which stops programs in its own order; the daemon's end ends the launcher.
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_NAME, b"hearth-launcher")
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = cage.Guard()
    if settings.user is not None:
        identity.become(settings.user)
    if settings.cages is not None:
        identity.keep_capabilities(())
        identity.no_new_privs()
    _prctl(_PR_SET_DUMPABLE, 0)
    for descriptor in (settings.socket, settings.record):
        os.set_inheritable(descriptor, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    Launcher(settings, guard).run()


if __name__ == "__main__":
    # By its own name, which its settings were pickled under.
    from hearth.drivers.launcher import main as run

    run()
