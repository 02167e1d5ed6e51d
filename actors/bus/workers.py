"""Workers, which run a lane's transactions one by one, and how drivers are opened and closed.

A worker takes one callable at a time and answers through a slot. It keeps no time and decides no order. There is one
for coroutines (a shielded child task), and one for an INLINE driver while control loops call it too (a thread, so that
Trio never waits for a loop: see `loop_thread`). A driver that blocks has the bus's threads instead (`threads`); it is
opened and closed in a thread of its own, and never while a call is inside it.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from inspect import iscoroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import outcome
import trio

from hearth._util.threads import Background
from hearth.actors.mailbox import Slot
from hearth.drivers.base import Driver, Style, finish_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("hearth.bus")

CLOSE_LIMIT = 2.0
"""Seconds of real time that the end of the runtime waits for a blocking driver to be closed."""


class Worker(Protocol):
    """The part of one lane that runs its transactions."""

    def submit(self, call: Callable[[], Any]) -> Slot[Any]:
        """Begin a call; the slot carries its value or its exception."""
        ...

    def close(self) -> None:
        """Take no more calls; does not wait for the one that is running."""

    def abandon(self) -> None:
        """Give up the call that is still running, because the process is ending and cannot wait."""

    def join(self) -> None:
        """Wait until this lane no longer uses the driver; called in another thread, after `close`."""


class Joined(Protocol):
    """A user of a driver that can be waited for, in another thread."""

    def join(self) -> None:
        """Wait until it no longer uses the driver."""


class TaskWorker:
    """A worker for operations that are coroutines: each runs in a child task that no cancellation reaches."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scope = trio.CancelScope(shield=True)

    def submit(self, call: Callable[[], Any]) -> Slot[Any]:
        """Begin the coroutine in a task of its own."""
        slot: Slot[Any] = Slot()
        # A lane has one call at a time, so this is the scope of the one that runs: `abandon` cancels it.
        self._scope = trio.CancelScope(shield=True)
        # The child belongs to the bus's nursery, not to the lane: a lane that is cancelled does not end it.
        self._nursery.start_soon(self._run, call, slot, self._scope)
        return slot

    async def _run(self, call: Callable[[], Any], slot: Slot[Any], scope: trio.CancelScope) -> None:
        async def whole() -> Any:
            value = call()
            return await value if iscoroutine(value) else value

        with scope:
            result = await outcome.acapture(whole)
            if not scope.cancel_called:
                # Nothing waits for a call that was abandoned.
                _answer(slot, result)

    def close(self) -> None:
        """Do nothing: the nursery outlives the lane's last transaction."""

    def abandon(self) -> None:
        """Cancel the coroutine, because the process is ending."""
        self._scope.cancel()

    def join(self) -> None:
        """Return at once: the nursery has ended."""


class ThreadWorker:
    """A worker for operations that take turns with control loops: they run in a thread of its own.

    It is a daemon thread: one that is stuck in the kernel for ever must not keep the process from ending.
    """

    def __init__(self) -> None:
        self._turns = threading.Lock()
        """Held while a call runs."""
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Slot[Any]] | None] = SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._loop, name="hearth-bus", daemon=True)
        self._thread.start()

    def share(self) -> threading.Lock:
        """Return the lock that is held while a call runs, for another caller of the driver (a control loop)."""
        return self._turns

    def submit(self, call: Callable[[], Any]) -> Slot[Any]:
        """Pass the call to the thread."""
        slot: Slot[Any] = Slot()
        self._jobs.put((call, slot))
        return slot

    def close(self) -> None:
        """Let the thread end after the call that it is running."""
        self._jobs.put(None)

    def abandon(self) -> None:
        """Do nothing: the thread cannot be stopped, and ends with the process."""

    def join(self) -> None:
        """Wait for the thread to end; it may be inside a call that was given up."""
        self._thread.join()

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, slot = job
            with self._turns:
                result = outcome.capture(_whole, call)
            # A slot may be filled in the Trio thread only. After the end of the run there is no task to answer.
            try:
                self._token.run_sync_soon(_answer, slot, result)
            except trio.RunFinishedError:
                return


def _whole(call: Callable[[], Any]) -> Any:
    value = call()
    # A thread has no event loop: a coroutine may only be one that never waits (a simulated device).
    return finish_now(value) if iscoroutine(value) else value


def _answer(slot: Slot[Any], result: outcome.Outcome[Any]) -> None:
    if isinstance(result, outcome.Value):
        slot.fill(result.value)
    else:
        slot.fail(result.error)  # type: ignore[attr-defined]


async def open_driver(driver: Driver) -> None:
    """Open a driver, in a thread if it may block. Raises what its `open` raises."""
    if driver.style is not Style.THREAD and not driver.opens_in_thread:
        driver.open()
        return
    opening = Background(driver.open, "hearth-open")
    try:
        await opening.wait()
    except trio.Cancelled:
        # A device that hangs while it is opened must not keep the process from ending. If the process goes on, the
        # device must not be left open either.
        Background(partial(_close_once_open, opening, driver), "hearth-close")
        raise


async def close_driver(bus_id: str, driver: Driver, workers: Sequence[Joined], *, wait: bool) -> None:
    """Close a driver whose lanes have ended. Raises what its `close` raises.

    The bus waits for the close, because the driver cannot be opened again before it. When the runtime ends, the wait is
    at most `CLOSE_LIMIT` seconds; without `wait` there is none.
    """
    if driver.style is not Style.THREAD and not driver.opens_in_thread:
        driver.close()
        return
    closing = Background(partial(_close_after, workers, driver), "hearth-close")
    try:
        # Only the wait can be cancelled. The close goes on in its thread, which may outlive the runtime.
        await closing.wait()
    except trio.Cancelled:
        if wait:
            with trio.CancelScope(shield=True):
                try:
                    await closing.wait_at_most(CLOSE_LIMIT)
                except TimeoutError:
                    log.warning("bus %s: not closed within %g s; abandoning it", bus_id, CLOSE_LIMIT)
        raise


def _close_once_open(opening: Background[None], driver: Driver) -> None:
    """Close a driver whose opening was given up, as soon as `open` returns."""
    if opening.join():
        driver.close()


def _close_after(workers: Sequence[Joined], driver: Driver) -> None:
    """Close a driver once no thread is inside a call to it; a call that was given up may still return."""
    for worker in workers:
        worker.join()
    driver.close()
