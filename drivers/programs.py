"""Programs that the operator has described, run to their end: what was printed, and how it ended.

Owns the bounds of output and what a run comes to for the tool; the launcher starts and ends programs, and keeps time.
"""

from __future__ import annotations

import base64
import codecs
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from hearth.drivers.base import BaseDriver
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.config.exec import ExecTemplate
    from hearth.drivers.launching import Launcher, Run


class Capture:
    """The beginning of a stream; the rest is counted and dropped, so that the writer never blocks."""

    def __init__(self, limit: int) -> None:
        self._limit, self._kept, self.total = limit, bytearray(), 0

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        self.total += len(data)
        self._kept += data[: self._limit - len(self._kept)]

    def to_json(self) -> dict[str, Any]:
        """`text` where the bytes are UTF-8, else `base64`; `bytes` written in all, and whether some were dropped."""
        truncated = self.total > len(self._kept)
        told = {"bytes": self.total, "truncated": truncated}
        try:
            # A cut may fall inside a character: then that character is dropped too.
            return {"text": codecs.utf_8_decode(self._kept, "strict", not truncated)[0], **told}
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(self._kept).decode(), **told}


class Stopping:
    """How a program is asked to end by another thread than the one that waits for it, before or after it began."""

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
        """Set whom to stop; None once it has ended."""
        with self._lock:
            self._run = run
            if run is not None and self._asked:
                run.stop()


class ProgramDriver(BaseDriver):
    """Runs programs, two at a time. `clock` gives seconds, monotonic."""

    width = 2

    def __init__(self, launcher: Launcher | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._launcher, self._clock = launcher, clock

    def describe(self) -> Mapping[str, Any]:
        """What this bus is, for health."""
        return {"kind": "programs"}

    def open(self) -> None:
        """Wait for the launcher, and start it where the daemon has not. Raises DeviceError."""
        if self._launcher is not None:
            self._launcher.start()
            self._launcher.wait_until_ready()

    def execute(
        self, name: str, template: ExecTemplate, params: Mapping[str, Any], stopping: Stopping | None = None
    ) -> dict[str, Any]:
        """Run a template's program to its end and tell how it went, whatever its exit code.

        When its time runs out, or by `stopping`, its group of processes gets SIGTERM and after its grace SIGKILL; when
        it has ended, what it started is killed. Raises InvalidParams for parameters that the template refuses, and
        DeviceError with effect "none" when the program cannot be started.
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
