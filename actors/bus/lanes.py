"""The lanes of a bus whose driver Trio calls itself: each takes the next ticket, runs it whole, and has it answered.

A lane calls a driver of style INLINE in its own turn, and one of coroutine functions in a shielded child task
(`workers.TaskWorker`). While control loops use an INLINE driver too, its calls run in a thread (`workers.ThreadWorker`)
that takes turns with theirs. A driver that blocks has `threads.ThreadLanes` instead; both are `Lanes` to the bus.

- A lane waits for its transaction shielded: nothing but `give_up`, when the process must end, ends that wait early.
- A lane that has nothing to do is in `_idle`; `wake` takes one out and reschedules it, so a request costs one turn.
- A bug that a transaction in place has shown (`fail`) is raised in a lane: it ends the bus, and not its requester.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio
from outcome import Error, acapture

from hearth.actors.bus.queue import State
from hearth.actors.bus.transactions import Returned
from hearth.actors.bus.workers import TaskWorker, ThreadWorker
from hearth.drivers.base import Style

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from hearth.actors.bus.queue import Ticket, TicketQueue
    from hearth.actors.bus.transactions import Transactions
    from hearth.actors.bus.workers import Joined, Worker
    from hearth.actors.mailbox import Slot
    from hearth.drivers.base import Driver


class Lanes(Protocol):
    """How the transactions of a bus are called."""

    inline: bool
    """True while a transaction may run in the turn of its requester."""

    @property
    def begun(self) -> int:
        """The number of transactions that have begun and are not answered yet."""
        ...

    @property
    def running(self) -> int:
        """The number of transactions that have not ended, with tickets within reach of a thread."""
        ...

    def start(self, nursery: trio.Nursery) -> Sequence[Joined]:
        """Begin to take tickets; return what must have ended before the driver may be closed."""
        ...

    def wake(self) -> None:
        """Look at the queue; called after each change there."""
        ...

    def recall(self) -> None:
        """Take back all tickets that wait within reach of a thread and have not begun."""
        ...

    def fail(self, bug: BaseException) -> None:
        """End the bus by a bug that a call in place has shown."""
        ...

    def share(self) -> threading.Lock:
        """Return the lock that is held during each call from now on, for another caller of the driver."""
        ...

    def unshare(self) -> None:
        """End what `share` began, once no transaction runs beside other callers."""
        ...

    def give_up(self) -> None:
        """Answer what has not ended with an error, because the process must end, and begin nothing more."""
        ...


class Watch(Protocol):
    """What is told of transactions that are past their limit: the bus, which may be wedged."""

    def overdue(self, ticket: Ticket) -> None:
        """Note that a transaction is past its limit."""

    def back(self) -> None:
        """Note that an overdue transaction has returned or was given up."""


class TaskLanes:
    """The lanes of a driver that Trio calls, `width` of them. `current` is the bus's list of what they run."""

    def __init__(
        self, queue: TicketQueue, driver: Driver, current: list[Ticket], transactions: Transactions, watch: Watch
    ) -> None:
        self._queue = queue
        self._driver = driver
        self._current = current
        self._transactions = transactions
        self._watch = watch
        self.inline = driver.style is Style.INLINE
        self._idle: list[trio.lowlevel.Task] = []
        self._bug: BaseException | None = None
        # The waits of lanes, and their workers, which `give_up` ends.
        self._waits: set[trio.CancelScope] = set()
        self._workers: list[Worker] = []
        self._given_up = False
        # The worker of an INLINE driver while loops use it too.
        self._beside: ThreadWorker | None = None
        self._shared = False

    @property
    def begun(self) -> int:
        """See Lanes."""
        return len(self._current)

    @property
    def running(self) -> int:
        """See Lanes."""
        return len(self._current)

    def start(self, nursery: trio.Nursery) -> Sequence[Joined]:
        """See Lanes."""
        inline = self._driver.style is Style.INLINE
        self._bug, self.inline = None, inline and self._beside is None
        for _ in range(self._driver.width):
            nursery.start_soon(self._serve, None if inline else TaskWorker(nursery))
        return ()

    def wake(self) -> None:
        """See Lanes."""
        if self._idle:
            # The lane leaves the list here and not when it runs, so it is never rescheduled twice. Lanes that are busy
            # need no wake-up: they look at the queue when they have finished.
            trio.lowlevel.reschedule(self._idle.pop())

    def recall(self) -> None:
        """Do nothing: what is taken here begins in the same turn."""

    def fail(self, bug: BaseException) -> None:
        """See Lanes."""
        self._bug, self.inline = bug, False
        self.wake()

    def share(self) -> threading.Lock:
        """See Lanes; for a driver of style INLINE, whose calls run in a thread from now on."""
        if self._beside is None:
            # No transaction runs now: it would have this thread.
            self._beside, self.inline = ThreadWorker(), False
        self._shared = True
        return self._beside.share()

    def unshare(self) -> None:
        """See Lanes: calls run in place again."""
        self._shared = False
        self._end_sharing()

    def _end_sharing(self) -> None:
        if self._beside is not None and not self._shared and not self._current:
            self._beside.close()
            self._beside, self.inline = None, self._bug is None

    def give_up(self) -> None:
        """See Lanes."""
        self._given_up = True
        for scope in self._waits:
            scope.cancel()
        for worker in self._workers:
            worker.abandon()

    @trio.lowlevel.enable_ki_protection
    async def _serve(self, worker: Worker | None) -> None:
        take = self._queue.take
        if worker is not None:
            self._workers.append(worker)
        try:
            while True:
                if self._bug is not None:
                    raise self._bug
                if worker is not None or self._beside is not None:
                    # The wait for a transaction is shielded, so a busy bus notices its own cancellation only here.
                    await trio.lowlevel.checkpoint_if_cancelled()
                ticket = take()
                if ticket is None:
                    await self._wait_for_ticket()
                elif ticket.op is None:
                    self._transactions.grant(ticket)
                else:
                    await self._transaction(worker or self._beside, ticket)
        finally:
            if worker is not None:
                self._workers.remove(worker)
                worker.close()

    async def _wait_for_ticket(self) -> None:
        # No checkpoint between `take` and this line, so a ticket that is put cannot be missed.
        task = trio.lowlevel.current_task()
        self._idle.append(task)

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _transaction(self, worker: Worker | None, ticket: Ticket) -> None:
        """Run one transaction and have its ticket answered, whatever happens. Raises a bug that it has shown."""
        ticket.state = State.BEGUN
        ticket.begun_at = trio.current_time()
        self._current.append(ticket)
        try:
            if not self._transactions.prepare(ticket):
                return
            returned = Returned(ticket, 0.0)
            outcome = await acapture(self._outcome, worker, returned)
            if isinstance(outcome, Error):
                returned.error = outcome.error
            returned.ended_at = trio.current_time()
            bug = self._transactions.answer(returned)
            if bug is not None:
                raise bug
        finally:
            self._current.remove(ticket)
            self._end_sharing()

    async def _outcome(self, worker: Worker | None, returned: Returned) -> None:
        ticket = returned.ticket
        assert ticket.op is not None, "it is prepared"
        if worker is None:
            returned.value = self._transactions.run(ticket, ticket.op)
        else:
            await self._watched(worker, returned)

    async def _watched(self, worker: Worker, returned: Returned) -> None:
        """Wait for a transaction that takes time. Nothing interrupts it, not even the end of the bus."""
        # The worker has its own thread or shielded task; this lane only waits for the slot.
        ticket = returned.ticket
        assert ticket.op is not None, "it is prepared"
        outcome: Slot[Any] = worker.submit(partial(self._transactions.run, ticket, ticket.op))
        if await self._ended(outcome, deadline=ticket.begun_at + ticket.limit):
            returned.value = await outcome.get()
            return
        self._watch.overdue(ticket)
        try:
            if not await self._ended(outcome):
                raise self._transactions.given_up()
            returned.value = await outcome.get()
            returned.late = True
        finally:
            self._watch.back()

    async def _ended(self, outcome: Slot[Any], *, deadline: float = math.inf) -> bool:
        """Wait for a transaction, shielded from this task's own cancellation; False if the deadline came first."""
        if self._given_up:
            return outcome.filled
        # `give_up` cancels these scopes; nothing else ends the wait before the deadline.
        with trio.CancelScope(shield=True, deadline=deadline) as scope:
            self._waits.add(scope)
            try:
                await outcome.wait()
            finally:
                self._waits.discard(scope)
        return outcome.filled
