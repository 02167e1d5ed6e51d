"""What signals ask of the daemon, from its first moment to its last.

SIGTERM and SIGINT ask it to end: before the event loop runs at once, for nothing has begun; while it runs by being
waited for; afterwards by nothing, because it is over and the exit status says how. SIGHUP asks it to read its
certificates again, unless the terminal that it was started from has gone: then it asks it to end as the others do,
since somebody who closes a terminal must not leave outputs driven. A SIGHUP that was ignored at the start (nohup)
stays ignored. It decides nothing else about how the daemon ends.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from types import FrameType

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
