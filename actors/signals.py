"""What signals ask of the daemon, from its first moment to its last.

SIGTERM, SIGINT and SIGHUP all ask it to end: before the event loop runs at once, for nothing has begun; while it runs
by being waited for; afterwards by nothing, because it is over and the exit status says how. SIGHUP is among them since
a terminal that closes must not leave outputs driven, and there is nothing to reload; a SIGHUP that was ignored at the
start (nohup) stays ignored. It decides nothing else about how the daemon ends.
"""

from __future__ import annotations

import signal
from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from types import FrameType


class Signals:
    """The signals of this process, taken over for good; made in the main thread."""

    def __init__(self) -> None:
        self._arrived: deque[int] = deque()
        self._starting, self._over = True, False
        self._token: trio.lowlevel.TrioToken | None = None
        self._changed = trio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._starting:
            raise SystemExit(0)
        if not self._over:
            self._arrived.append(number)
            if self._token is not None:
                self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        self._changed.set()

    def started(self) -> None:
        """The event loop is about to run: from now on signals are kept for `next`."""
        self._starting = False

    async def next(self) -> str:
        """Wait for a signal and return its name; those that came meanwhile come first."""
        self._token = trio.lowlevel.current_trio_token()
        while not self._arrived:
            self._changed = trio.Event()
            if not self._arrived:
                await self._changed.wait()
        return signal.Signals(self._arrived.popleft()).name

    def over(self) -> None:
        """The daemon has ended: signals no longer mean anything."""
        self._over = True
