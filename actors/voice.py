"""What the daemon says on stderr, written by a thread of its own.

A terminal that is stopped, a pipe that nobody reads or a logging service that hangs takes what is written to it when it
likes, and until then holds up whoever writes. Here that is a thread which does nothing else; lines that find the queue
full are dropped and counted. It decides nothing about what is said.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from contextlib import suppress
from queue import Full, Queue
from typing import Final

STDERR: Final = 2
MOST_LINES: Final = 1000
"""Messages that may wait to be written."""
PATIENCE: Final = 1.0
"""Seconds that the end of the process waits for what has been said to be written."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Voice(logging.Handler):
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
