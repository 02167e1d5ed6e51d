"""Programs that the operator has described, run to their end: their output and their exit status.

This module bounds the output and makes the tool's result; the launcher starts and ends programs, and keeps time.
`LauncherClient` is the daemon's side of the launcher: started once, it starts programs on request, each of which is
then a `Run`. It owns the launcher's process and the daemon's end of its socket. See the head of `launcher` for the
protocol. It blocks, and may be used by several threads.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hearth._util.python import python_module
from hearth.drivers.base import BaseDriver
from hearth.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.config.exec import ExecTemplate
    from hearth.drivers.launcher import Settings
    from hearth.drivers.sandbox.cage import Cage
    from hearth.drivers.sandbox.identity import ProcessIdentity


class Capture:
    """The beginning of a stream; the rest is counted and dropped, so that the writer never blocks."""

    def __init__(self, limit: int) -> None:
        self._limit, self._kept, self.total = limit, bytearray(), 0

    def feed(self, data: bytes) -> None:
        """Add bytes that were read."""
        self.total += len(data)
        self._kept += data[: self._limit - len(self._kept)]

    def to_json(self) -> dict[str, Any]:
        """Return `text` where the bytes are UTF-8, else `base64`; `bytes` in all, and `truncated`."""
        truncated = self.total > len(self._kept)
        counts = {"bytes": self.total, "truncated": truncated}
        try:
            # A cut may be inside a character: then that character is dropped too.
            return {"text": codecs.utf_8_decode(self._kept, "strict", not truncated)[0], **counts}
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(self._kept).decode(), **counts}


class Stopping:
    """A request from another thread to end a program, before or after it began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._asked = False

    def ask(self) -> None:
        """Ask for the end of the program, now or as soon as it runs."""
        with self._lock:
            self._asked = True
            if self._run is not None:
                self._run.stop()

    def watch(self, run: Run | None) -> None:
        """Set the program to stop; None once it has ended."""
        with self._lock:
            self._run = run
            if run is not None and self._asked:
                run.stop()


class ProgramDriver(BaseDriver):
    """Runs programs, two at a time. `clock` gives seconds, monotonic."""

    width = 2

    def __init__(self, launcher: LauncherClient | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._launcher, self._clock = launcher, clock

    def describe(self) -> Mapping[str, Any]:
        """Return the description of this bus, for health."""
        return {"kind": "programs"}

    def open(self) -> None:
        """Wait for the launcher, and start it where the daemon has not. Raises DeviceError."""
        if self._launcher is not None:
            self._launcher.start()
            self._launcher.wait_until_ready()

    def execute(
        self, name: str, template: ExecTemplate, params: Mapping[str, Any], stopping: Stopping | None = None
    ) -> dict[str, Any]:
        """Run a template's program to its end and return its result, whatever its exit code.

        When its time runs out, or by `stopping`, its group of processes gets SIGTERM and after its grace SIGKILL; when
        it has ended, the processes that it started are killed. Raises InvalidParams for parameters that the template
        refuses, and DeviceError with effect "none" when the program cannot be started.
        """
        argv = template.fill(params)
        if self._launcher is None:
            raise DeviceError("no launcher was made: proc.exec is not enabled", effect="none", data={"template": name})
        stopping = stopping or Stopping()
        begun = self._clock()
        run = self._launcher.run(name, params)
        try:
            stdout, stderr = Capture(template.max_output_bytes), Capture(template.max_output_bytes)
            stopping.watch(run)
            run.wait({run.stdout: stdout, run.stderr: stderr})
            outcome = run.outcome()
        finally:
            stopping.watch(None)
            run.close()
        if "failed" in outcome:
            reason = f"{argv[0]} cannot be started: {outcome['failed']}; look at [tools.exec] {name}"
            raise DeviceError(reason, effect="none", data={"template": name})
        return {
            "template": name,
            "pid": run.pid,
            "exit_code": outcome["exit_code"],
            "signal": None if outcome["signal"] is None else _signal_name(outcome["signal"]),
            "timed_out": outcome["timed_out"],
            "cancelled": outcome["stopped"],
            "duration_ms": round((self._clock() - begun) * 1000, 3),
            "stdout": stdout.to_json(),
            "stderr": stderr.to_json(),
        }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


MOST_ANSWER_BYTES: Final = 200_000
"""Bytes of a message of the launcher: the text of an error is the longest."""
ANSWER_TIMEOUT: Final = 10.0
"""Seconds within which the launcher answers; it never waits."""
END_TIMEOUT: Final = 3.0
"""Seconds that its end is waited for, in which it kills the programs that still run."""
_HANDED_ON: Final = ("LANG", "LD_LIBRARY_PATH", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")


class LauncherClient:
    """The process that starts programs. It exists between `start` and `close`."""

    def __init__(self, templates: Mapping[str, ExecTemplate], cages: Mapping[str, Cage] | None, record: Path) -> None:
        """Set it up. Without `cages` programs are never confined; `record` is the file of running programs."""
        self._templates, self._cages, self._record = templates, cages, record
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False

    def start(self, *, user: ProcessIdentity | None = None, confined: bool = True) -> None:
        """Start it, if it was not started, and end the remaining programs of an earlier run. Raises ConfigError.

        `user` is the user to become. Where programs are not `confined`, they have that user's rights.
        """
        with self._lock:
            if self._process is not None:
                return
            # Imported here, with all that confines programs: most runtimes start none.
            from hearth.drivers.launcher import Settings, end_survivors, open_record

            record = open_record(self._record, make=True)
            assert record is not None, "it has been made"
            try:
                end_survivors(record)
                self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    settings = Settings(
                        templates=dict(self._templates),
                        cages=dict(self._cages) if confined and self._cages is not None else None,
                        user=user,
                        socket=theirs.fileno(),
                        record=record,
                    )
                    self._process = _started(settings)
            finally:
                os.close(record)
            self._line.settimeout(ANSWER_TIMEOUT)

    def wait_until_ready(self) -> None:
        """Wait until it accepts requests. Raises DeviceError."""
        with self._lock:
            if not self._ready:
                self._answer()
                self._ready = True

    def run(self, name: str, params: Mapping[str, object]) -> Run:
        """Start a template's program. Raises DeviceError with effect "none" where that fails."""
        asked = {"run": name, "params": {key: params[key] for key in self._templates[name].params}}
        answer, descriptors = self._ask(asked)
        if "error" in answer:
            raise DeviceError(f"{answer['error']}; look at [tools.exec] {name}", effect="none", data={"template": name})
        control, stdout, stderr = descriptors
        return Run(answer["pid"], socket.socket(fileno=control), stdout, stderr)

    def signal(self, pid: int, name: str) -> bool:
        """Send a signal to a program that runs; False where there is none of that process id."""
        return bool(self._ask({"signal": name, "pid": pid})[0]["sent"])

    def _ask(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            if self._line is None:
                raise _gone()
            try:
                self._line.send(json.dumps(request).encode())
            except OSError:
                raise _gone() from None
            return self._answer()

    def _answer(self) -> tuple[dict[str, Any], list[int]]:
        if self._line is None:
            raise _gone()
        message, descriptors = b"", list[int]()
        with contextlib.suppress(OSError):  # it has ended, or answers too late
            message, descriptors, _, _ = socket.recv_fds(self._line, MOST_ANSWER_BYTES, 3)
        if not message:
            # A later message would be taken for the answer to another request.
            self._line.close()
            self._line = None
            raise _gone()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return json.loads(message), list(descriptors)

    def close(self) -> None:
        """End it, with all that it started, and wait for that. Blocking; idempotent."""
        with self._lock:
            if self._line is not None:
                self._line.close()
                self._line = None
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_TIMEOUT)


def _gone() -> DeviceError:
    reason = "the process that starts programs is not there: it has ended, or was never started; restart hearthd"
    return DeviceError(reason, effect="none")


def _started(settings: Settings) -> subprocess.Popen[bytes]:
    command = python_module("hearth.drivers.launcher")
    environ = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=environ,
            pass_fds=(settings.socket, settings.record),
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"proc.exec: {command[0]} cannot be started: {error.strerror}") from None
    assert process.stdin is not None, "it is a pipe"
    _put_apart(process.pid)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(pickle.dumps(settings))
        process.stdin.close()
    return process


def _put_apart(pid: int) -> None:
    """Move a process that has no children yet to the cgroup `programs` below the daemon's, if that one is delegated.

    systemd marks a delegated cgroup by an attribute (systemd.resource-control(5), Delegate=). Without the mark the tree
    of cgroups is another's to change.
    """
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text("utf-8").splitlines())
    root = next((place for _, place, kind, *_ in mounts if kind == "cgroup2"), None)
    mine = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), None)
    # Not delegated, or not writable: the programs stay where the daemon is.
    with contextlib.suppress(OSError):
        if root is not None and mine is not None and os.getxattr(f"{root}{mine}", "user.delegate") == b"1":
            programs = Path(f"{root}{mine}", "programs")
            programs.mkdir(exist_ok=True)
            (programs / "cgroup.procs").write_text(str(pid))


class Run:
    """A running program: its output, and its end. Used by one thread, but for `stop`."""

    def __init__(self, pid: int, control: socket.socket, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.stdout, self.stderr = stdout, stderr
        self._control = control

    def stop(self) -> None:
        """Ask for its end, which comes as any other: SIGTERM to its group, and SIGKILL after its grace."""
        with contextlib.suppress(OSError):
            self._control.send(b"stop")

    def outcome(self) -> dict[str, Any]:
        """Return its exit status, after `wait`. Raises DeviceError where the launcher has ended before it."""
        try:
            message = self._control.recv(MOST_ANSWER_BYTES)
        except OSError:
            message = b""
        if not message:
            raise DeviceError(
                "the process that starts programs has ended, and its programs with it; restart hearthd",
                effect="unknown",
            )
        found: dict[str, Any] = json.loads(message)
        return found

    def wait(self, streams: Mapping[int, Any]) -> None:
        """Feed the streams until the program has ended with all that it started, and then the rest of the output."""
        poll = select.poll()
        for descriptor in (self._control.fileno(), *streams):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._control.fileno() in ready:
                break
            for descriptor in ready:
                if not _read(descriptor, streams[descriptor]):
                    poll.unregister(descriptor)
        for descriptor, capture in streams.items():
            os.set_blocking(descriptor, False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(LEFT_OVER):
                    if not _read(descriptor, capture):
                        break

    def close(self) -> None:
        """Close its descriptors; a program that still runs is ended."""
        self._control.close()
        os.close(self.stdout)
        os.close(self.stderr)


_CHUNK: Final = 65_536
LEFT_OVER: Final = 16
"""Chunks read from each stream after the program's end: a pipe holds no more, unless another process writes on."""


def _read(descriptor: int, capture: Any) -> bool:
    data = os.read(descriptor, _CHUNK)
    capture.feed(data)
    return bool(data)
