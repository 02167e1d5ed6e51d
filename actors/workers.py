"""Where a bus's transactions run: in its task, in its own thread, or in a shielded child task (see `Style`).

A worker takes one callable at a time and answers through a slot. It keeps no time and decides nothing. A thread belongs
to one bus lane for the bus's whole life, so that a driver is always called from the same thread and a blocked one holds
up nobody else.
"""

from __future__ import annotations

import threading
from inspect import iscoroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import outcome
import trio

from hearth.actors.mailbox import Slot
from hearth.drivers.base import Driver, Style, finish_now

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker(Protocol):
    """One lane's way to run a transaction."""

    def submit(self, call: Callable[[], Any]) -> Slot[Any]:
        """Begin; the slot carries the value or the exception."""
        ...

    def close(self) -> None:
        """Take no more; does not wait for what is running."""

    def abandon(self) -> None:
        """The process is ending and cannot wait: give up what is still running."""


def open_worker(driver: Driver, nursery: trio.Nursery) -> Worker | None:
    """The worker that the driver's style asks for; None: operations are bounded to microseconds, call them in place."""
    if driver.style is Style.INLINE:
        return None
    if driver.style is Style.ASYNC:
        return TaskWorker(nursery)
    return ThreadWorker()


class TaskWorker:
    """Operations are coroutines: each runs in a child task that no cancellation reaches."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scope = trio.CancelScope(shield=True)

    def submit(self, call: Callable[[], Any]) -> Slot[Any]:
        """Begin the coroutine in a task of its own."""
        slot: Slot[Any] = Slot()
        self._scope = trio.CancelScope(shield=True)
        self._nursery.start_soon(self._run, call, slot, self._scope)
        return slot

    async def _run(self, call: Callable[[], Any], slot: Slot[Any], scope: trio.CancelScope) -> None:
        async def whole() -> Any:
            value = call()
            return await value if iscoroutine(value) else value

        with scope:
            result = await outcome.acapture(whole)
            if not scope.cancel_called:
                # What was abandoned is not answered: nobody waits for it any more.
                _answer(slot, result)

    def close(self) -> None:
        """The nursery outlives the lane's last transaction."""

    def abandon(self) -> None:
        """Break off the coroutine: its process is ending."""
        self._scope.cancel()


class ThreadWorker:
    """Operations block: they run in a thread of this lane's own.

    The thread is a daemon thread: one that is stuck in the kernel for ever must not keep the process from ending.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Slot[Any]] | None] = SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        threading.Thread(target=self._loop, name="hearth-bus", daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Slot[Any]:
        """Hand the call to the thread."""
        slot: Slot[Any] = Slot()
        self._jobs.put((call, slot))
        return slot

    def close(self) -> None:
        """The thread ends after what it is running."""
        self._jobs.put(None)

    def abandon(self) -> None:
        """The thread cannot be stopped; it ends with the process."""

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, slot = job
            result = outcome.capture(_whole, call)
            try:
                self._token.run_sync_soon(_answer, slot, result)
            except trio.RunFinishedError:
                return


def _whole(call: Callable[[], Any]) -> Any:
    value = call()
    return finish_now(value) if iscoroutine(value) else value


def _answer(slot: Slot[Any], result: outcome.Outcome[Any]) -> None:
    if isinstance(result, outcome.Value):
        slot.fill(result.value)
    else:
        slot.fail(result.error)  # type: ignore[attr-defined]
