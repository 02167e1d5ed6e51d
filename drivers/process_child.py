"""A child process being run to its end: its output bounded, its time bounded, its process group gone afterwards.

It owns the loop that reads, waits and kills, and knows neither templates nor tools. It blocks, and polls
nothing: the kernel wakes it for output, for the end (a pidfd), or for a deadline.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_CHUNK = 65_536
_LEFT_OVER = 16
"""Chunks read from each stream once the process has ended: a pipe holds no more, unless somebody goes on writing."""


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


class Child:
    """A process that leads its own group, with pipes as stdout and stderr. `clock` gives seconds, monotonic."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int, clock: Callable[[], float]) -> None:
        assert process.stdout is not None, "the pipes are ours to read"
        assert process.stderr is not None, "the pipes are ours to read"
        self._process, self._clock = process, clock
        self.stdout, self.stderr = Capture(limit), Capture(limit)
        self._streams = {process.stdout.fileno(): self.stdout, process.stderr.fileno(): self.stderr}

    def run(self, timeout: float, grace: float) -> bool:
        """Block until the process has ended; True if it had to be ended after `timeout` seconds.

        Only a process that the kernel cannot kill (stuck in a driver) makes this longer than `timeout` + `grace`.
        Raises OSError when there is no descriptor left to watch it with; it has been killed then.
        """
        with self._process:  # at the end closes the pipes and reaps
            try:
                timed_out = self._wait(timeout, grace)
            finally:
                # Until it is reaped the leader's id stays taken, so this cannot reach another group.
                self._kill_group(signal.SIGKILL)
            for fd in self._streams:
                self._drain(fd)
        return timed_out

    def _wait(self, timeout: float, grace: float) -> bool:
        pinned = os.pidfd_open(self._process.pid)
        try:
            return self._attend(pinned, timeout, grace)
        finally:
            os.close(pinned)

    def _attend(self, pinned: int, timeout: float, grace: float) -> bool:
        poll = select.poll()
        for fd in (pinned, *self._streams):
            poll.register(fd, select.POLLIN)
        deadlines = [(timeout, signal.SIGTERM), (timeout + grace, signal.SIGKILL)]
        begun, timed_out = self._clock(), False
        while True:
            left = None if not deadlines else max(0, begun + deadlines[0][0] - self._clock())
            ready = {fd for fd, _ in poll.poll(None if left is None else left * 1000)}
            if pinned in ready:
                return timed_out
            for fd in ready:
                if not self._read(fd):
                    poll.unregister(fd)
            if deadlines and self._clock() - begun >= deadlines[0][0]:
                self._kill_group(deadlines.pop(0)[1])
                timed_out = True

    def _read(self, fd: int) -> bool:
        data = os.read(fd, _CHUNK)
        self._streams[fd].feed(data)
        return bool(data)

    def _drain(self, fd: int) -> None:
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(_LEFT_OVER):
                if not self._read(fd):
                    return

    def _kill_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
