"""What signals ask of the daemon, from its first moment to its last.

SIGTERM and SIGINT ask it to end: before the event loop runs at once, for nothing has begun; while it runs by being
waited for; afterwards by nothing, because it is over and the exit status says how. SIGHUP asks it to read its
certificates again, unless the terminal that it was started from has gone: then it asks it to end as the others do,
since somebody who closes a terminal must not leave outputs driven. A SIGHUP that was ignored at the start (nohup)
stays ignored. It decides nothing else about how the daemon ends.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections import deque
from contextlib import suppress
from queue import Full, Queue
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from types import FrameType

# --- voice ------------------------------------------------------------------------------------------------------------
# What the daemon says on stderr, written by a thread of its own.
#
# A terminal that is stopped, a pipe that nobody reads or a logging service that hangs takes what is written to it when
# it likes, and until then holds up whoever writes. Here that is a thread which does nothing else; lines that find the
# queue full are dropped and counted. It decides nothing about what is said.

STDERR: Final = 2
MOST_LINES: Final = 1000
"""Messages that may wait to be written."""
PATIENCE: Final = 1.0
"""Seconds that the end of the process waits for what has been said to be written."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class NonBlockingLogHandler(logging.Handler):
    """A logging handler that never waits; `say` takes a line as it is. What is said before `start` waits until then."""

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: Queue[bytes | None] = Queue(MOST_LINES)
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; not before the process is confined, or the thread would not be. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="hearth-voice", daemon=True)
            self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler. What a client had a hand in may try to look like another message, or paint screens."""
        record.msg, record.args = _CONTROL.sub(lambda found: repr(found[0])[1:-1], record.getMessage()), None
        self.say(self.format(record))

    def say(self, text: str) -> None:
        """Write a line, soon."""
        if self._dropped:
            text = f"({self._dropped} messages were dropped here: nobody took them)\n{text}"
        try:
            self._lines.put_nowait(text.encode(errors="backslashreplace") + b"\n")
        except Full:
            self._dropped += 1
        else:
            self._dropped = 0

    def end(self) -> None:
        """Wait a little until all is written."""
        self.start()
        with suppress(Full):
            self._lines.put_nowait(None)
            if self._thread is not None:
                self._thread.join(PATIENCE)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            rest = memoryview(line)
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:
                    # Somebody has made the open file non-blocking, which all who share it then are subject to.
                    os.set_blocking(self._descriptor, True)
                except OSError:
                    # Nobody is there any more. The next line is tried again: a terminal may come back.
                    break


def keep_standard_descriptors() -> None:
    """Open what is closed of stdin, stdout and stderr, so that no device or log gets the number that messages go to."""
    for descriptor in range(STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


# --- signals ----------------------------------------------------------------------------------------------------------

RELOAD = "reload"
"""What `next` returns for a signal that asks for certificates to be read again."""


class Signals:
    """The signals of this process, taken over for good; made in the main thread."""

    def __init__(self) -> None:
        self._arrived: deque[str] = deque()
        self._had_terminal = _has_terminal()
        self._starting, self._over = True, False
        self._token: trio.lowlevel.TrioToken | None = None
        self._changed = trio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        asked = signal.Signals(number).name
        if number == signal.SIGHUP and not (self._had_terminal and not _has_terminal()):
            asked = RELOAD
        if self._starting:
            if asked is RELOAD:
                # Nothing has been read yet that could be out of date.
                return
            raise SystemExit(0)
        if not self._over:
            self._arrived.append(asked)
            if self._token is not None:
                self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        self._changed.set()

    def started(self) -> None:
        """The event loop is about to run: from now on signals are kept for `next`."""
        self._starting = False

    async def next(self) -> str:
        """Wait for a signal and return its name, or RELOAD; those that came meanwhile come first."""
        self._token = trio.lowlevel.current_trio_token()
        while not self._arrived:
            self._changed = trio.Event()
            if not self._arrived:
                await self._changed.wait()
        return self._arrived.popleft()

    async def end(self) -> str:
        """Wait for a signal that asks to end, and return its name."""
        while (name := await self.next()) is RELOAD:
            pass
        return name

    def over(self) -> None:
        """The daemon has ended: signals no longer mean anything."""
        self._over = True


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal at this moment."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
