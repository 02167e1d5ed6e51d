"""Tells the service manager that the daemon is alive, for as long as it is (systemd's WatchdogSec=).

By sd_watchdog_enabled(3). It owns when a sign of life is due and what it stands for: this task ran, so the event loop
turns, and the journal's actor answered, so records are still taken. It refuses to vouch for anything else: a wedged bus
or a full disk is told by health, and starting the daemon anew would mend neither.
"""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from hearth.actors.service import Notifier

ALIVE: Final = "WATCHDOG=1"
SHARE: Final = 3
"""Signs of life in one of the manager's periods: one that comes late is not the last."""

log = logging.getLogger("hearth.watchdog")


def period(environ: Mapping[str, str], pid: int) -> float | None:
    """Seconds within which the service manager wants a sign of life of this process, or None if it wants none."""
    text = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid) or not environ.get("NOTIFY_SOCKET"):
        return None
    microseconds = int(text) if text.isascii() and text.isdecimal() else 0
    return microseconds / 1_000_000 or None


@asynccontextmanager
async def watched(
    environ: Mapping[str, str], notifier: Notifier, answers: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """While the body runs, tell the service manager so each time that `answers` returns, if it wants to be told."""
    seconds = period(environ, os.getpid())
    if seconds is None:
        yield
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell, notifier, seconds, answers)
        yield
        nursery.cancel_scope.cancel()


async def _tell(notifier: Notifier, seconds: float, answers: Callable[[], Awaitable[None]]) -> None:
    while True:
        with trio.move_on_after(seconds) as waiting:
            await answers()
        if waiting.cancelled_caught:
            log.error("the journal has not answered for %g s, so the service manager gets no sign of life", seconds)
            continue
        # One that does not receive it must not hold the event loop, and gets the next one.
        notifier.tell(ALIVE, patience=0)
        await trio.sleep(seconds / SHARE)
