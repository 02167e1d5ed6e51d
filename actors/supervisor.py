"""The supervisor: contains the crash of an actor, so that the other actors go on.

Two rules: a session or task that crashes ends alone (`contain`), and a bus that crashes or cannot be opened is opened
again after growing pauses (`keep_open`). Only this module catches every exception. Each one is logged with its
traceback and reported to the actor's owner. Cancellation is never contained.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from hearth._util.exceptions import sole
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hearth.actors.bus.actor import Bus

log = logging.getLogger("hearth.supervisor")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0
STABLE_AFTER = 60.0
"""A bus that served this many seconds starts again with the first pause."""


async def contain(name: str, actor: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]) -> None:
    """Run an actor; if it raises, log the exception, call `on_crash` with it, and return.

    Cancellation passes through. An actor that crashes while it is being cancelled has both done: `on_crash` and raise.
    """
    try:
        await actor()
    except Exception as error:
        log.error("%s crashed", name, exc_info=error, extra=_about(name))
        on_crash(sole(error))
    except BaseExceptionGroup as group:
        crash, rest = group.split(Exception)
        if crash is not None:
            log.error("%s crashed", name, exc_info=crash, extra=_about(name))
            on_crash(sole(crash))
        raise rest or group from None  # it crashed while it was being cancelled: the cancellation is not contained


def contain_now(name: str, actor: Callable[[], None], on_crash: Callable[[BaseException], None]) -> None:
    """Do the same for work of an actor that does not wait, and is done in the turn of another one."""
    try:
        actor()
    except Exception as error:
        log.error("%s crashed", name, exc_info=error, extra=_about(name))
        on_crash(sole(error))


async def keep_open(bus: Bus, audit: Callable[..., None], started: Callable[[], None]) -> None:
    """Run a bus for as long as the runtime lives, opening it again after each failure.

    `started` is called when the bus is open, or when its first attempt has failed: a machine with one dead adapter must
    still serve the others. It may be called again and must be idempotent.
    """
    pause = FIRST_PAUSE
    failures = 0
    last = ""
    about = {"bus": bus.bus_id}
    while True:
        opened_at = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(bus.run)
                opened_at = trio.current_time()
                last = ""
                if failures:
                    log.info("bus %s: is open again after %d attempts", bus.bus_id, failures, extra=about)
                    audit("bus.reopened", bus=bus.bus_id, attempts=failures)
                started()
        except Exception as error:
            what = _describe(error)
            # A device that is missing for a day must not fill the operator's log with one line.
            level = logging.DEBUG if what == last else logging.ERROR
            log.log(level, "bus %s: %s", bus.bus_id, what, exc_info=_traced(error), extra=about)
            last = what
        except BaseExceptionGroup as group:
            crash, rest = group.split(Exception)
            if crash is not None:
                log.error("bus %s: %s", bus.bus_id, _describe(crash), exc_info=_traced(crash), extra=about)
            raise rest or group from None  # as in `contain`
        else:
            return
        started()
        if trio.current_time() - opened_at > STABLE_AFTER:
            pause, failures = FIRST_PAUSE, 0
        failures += 1
        await trio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _about(name: str) -> dict[str, str]:
    """Return what a message about an actor of this name is about: "session 01M8…", "task 01M8…"."""
    kind, _, its_id = name.partition(" ")
    return {kind: its_id} if kind in ("session", "task") else {}


def _traced(error: BaseException) -> BaseException | None:
    """Return the error to log with its traceback, or None: a device that cannot be used is not a crash."""
    return None if isinstance(sole(error), HearthError) else error


def _describe(error: BaseException) -> str:
    """Return one line for the log."""
    error = sole(error)
    return f"cannot be used: {error}" if isinstance(error, HearthError) else f"crashed: {error!r}"
