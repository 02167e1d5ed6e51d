"""The threads of a bus whose driver blocks: each takes its next ticket itself, and wakes Trio once for all that ended.

A wake-up of another thread costs more than most transactions: a futex, the hand-over of the interpreter lock, and both
back again. So a thread that has finished one transaction does not wait until Trio has passed it the next one: some
tickets are already within its reach. `BusThreads` has the threads and the two ways between them and Trio. `ThreadLanes`
decides which tickets are within reach. `queue.TicketQueue` keeps their order, and `Transactions` answers them.

Theory of operation:

    ThreadLanes, in the Trio thread                                       a thread of BusThreads
    -------------------------------                                       ----------------------
    take, prepare, `hand`     -->  TicketQueue.ahead, a deque        -->  popleft: the ticket is BEGUN
    `ring`                    -->  bell, at least one for each       -->  wait here while there is nothing to begin
    answer, then hand more    <--  returned, a deque                 <--  append, in the order of the returns
    `wait`                    <--  an eventfd, once for all of them  <--  write, unless one was written since `wait`

Tickets are handed over in a turn of the loop of its own, not in that of the request: all tickets of one turn share one
wake-up of a thread, and the thread does not ask for the interpreter lock while that turn still needs it.

The claim. A ticket belongs to the side that removes it from `ahead`. Removing is one call of a deque, which no other
thread can divide, so a ticket is begun by one thread or taken back by Trio, and never both. After the removal the
thread sets BEGUN. A cancelled requester whose ticket is not in `ahead` any more waits for its outcome, although the
ticket may still say HANDED for a moment.

What keeps the bus contract:

- A ticket within reach has not begun: cancelling its requester withdraws it, and it counts as queued.
- Order. Trio alone fills `ahead`, at its end, in the order of the queue. When a ticket comes that goes before one that
  is within reach (a higher priority, a safe state, a halt), `wake` takes all of them back within that request, and
  `ahead` is filled again. A thread may have begun one until then: it came first.
- What the bus does before a transaction (it enters the session that holds the output) is done when a ticket comes
  within reach, and undone when it is taken back. That is exact only while no two of them touch the same output, so a
  ticket that drives an output comes within reach when all others that drive it have been answered. Some tickets cannot
  be taken back: those that take an effect back or make outputs safe (not `Ticket.plain`), and those that are the first
  to drive an output, because that is written to the outputs file. They come within reach when a thread is free, as
  BEGUN; and nothing waits behind one that is not plain.
- A halt is checked when a ticket comes within reach, and once more by the thread that begins it.
- The limit of a transaction is counted from the moment at which the thread has begun it. One deadline is kept, which is
  never later than that of any ticket within reach or running; when it has passed, the overdue ones are looked for.
- After a bug in a driver (an exception that is no RpcError) the threads begin nothing more; the bus crashes on it.
- When the bus ends, all that has not begun is taken back, and what has begun is waited for, shielded.

No wake-up is lost. Trio rings after it has appended, and there are then as many bells as tickets: a thread that has
taken a bell looks into `ahead` once. A thread appends to `returned` before it looks whether Trio has been woken, and
Trio forgets that it has been woken before it looks into `returned`. A bell or a wake-up too many costs one look.

The threads are daemon threads: one that is stuck in the kernel for ever must not keep the process from ending. The
eventfd is closed by `join`, after the last thread has ended; one that is stuck keeps it.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from contextlib import nullcontext
from inspect import iscoroutine
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import trio
from outcome import Value, capture

from hearth.actors.bus.queue import State
from hearth.actors.bus.transactions import Returned
from hearth.drivers.base import finish_now
from hearth.errors import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from hearth.actors.bus.lanes import Watch
    from hearth.actors.bus.queue import Ticket, TicketQueue
    from hearth.actors.bus.transactions import Transactions
    from hearth.actors.bus.workers import Joined
    from hearth.drivers.base import Driver

AHEAD = 16
"""Tickets within reach of a bus's threads beyond those that they run. More would save little: the wake-up of a thread
is shared by this many, and each of them is prepared again when a ticket comes that goes before it."""


# Weak: the threads of a device hold its lock, and it goes with the last of them.
_turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


class BusThreads:
    """The threads of one opening of a bus. They take tickets from `ahead` and call `run` for each: a whole transaction.

    Buses whose drivers name the same `device` take turns: one call at a time.
    """

    def __init__(
        self, width: int, ahead: deque[Ticket], run: Callable[[Ticket], Any], *, device: str | None = None
    ) -> None:
        self._ahead = ahead
        self._run = run
        self._turns = None if device is None else _turns.setdefault(device, threading.Lock())
        """Held while a call runs, if another bus uses the same device, or a control loop the same driver."""
        self._clock = trio.lowlevel.current_clock().current_time
        self._bell: SimpleQueue[bool] = SimpleQueue()
        self._returned: deque[Returned] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False
        self.broken = False
        """True after a bug in the driver: nothing more begins."""
        self._threads = [threading.Thread(target=self._loop, name="hearth-bus", daemon=True) for _ in range(width)]
        for thread in self._threads:
            thread.start()

    # --- in the Trio thread

    def share(self) -> threading.Lock:
        """Return the lock that is held while a call runs, for another caller of the driver (a control loop).

        If there was none, a call that runs already does not hold it; all later ones do.
        """
        if self._turns is None:
            self._turns = threading.Lock()
        return self._turns

    def ring(self) -> None:
        """Wake the threads for the tickets that have been put within their reach."""
        bell, ahead = self._bell, self._ahead
        # No more bells than tickets, else those for tickets that were taken back would pile up behind a long call.
        while bell.qsize() < len(ahead):
            bell.put(True)

    async def wait(self) -> None:
        """Wait until a transaction has ended since the last `wait`; it may have been taken by `returned` already."""
        await trio.lowlevel.wait_readable(self._wakeup)
        os.eventfd_read(self._wakeup)
        self._woken = False

    @property
    def answers(self) -> int:
        """The number of transactions that have ended and are not yet taken by `returned`."""
        return len(self._returned)

    def returned(self) -> Iterator[Returned]:
        """Take the transactions that have ended, one by one, until none is left."""
        while self._returned:
            yield self._returned.popleft()

    def close(self) -> None:
        """Let each thread end after the call that it is running; nothing is within reach any more."""
        for _ in self._threads:
            self._bell.put(False)

    def join(self) -> None:
        """Wait for the threads to end, also those inside a call that was given up; called in another thread."""
        for thread in self._threads:
            thread.join()
        os.close(self._wakeup)

    # --- in each thread

    def _loop(self) -> None:
        while self._bell.get():
            if not self.broken:
                self._begin_next()

    def _begin_next(self) -> None:
        try:
            ticket = self._ahead.popleft()
        except IndexError:
            # It was taken back.
            return
        ticket.begun_at = self._clock()
        ticket.state = State.BEGUN
        self._returned.append(self._whole(ticket))
        if not self._woken:
            self._woken = True
            os.eventfd_write(self._wakeup, 1)

    def _whole(self, ticket: Ticket) -> Returned:
        # For one call only, so that the buses of a device take turns. A call that hangs holds up all of them, since the
        # device hangs.
        with self._turns or nullcontext():
            outcome = capture(self._value, ticket)
        if isinstance(outcome, Value):
            return Returned(ticket, self._clock(), outcome.value)
        # The bus raises a bug again, in its own task.
        self.broken = not isinstance(outcome.error, RpcError)
        return Returned(ticket, self._clock(), error=outcome.error)

    def _value(self, ticket: Ticket) -> Any:
        value = self._run(ticket)
        # A thread has no event loop: a coroutine may only be one that never waits (a simulated device).
        return finish_now(value) if iscoroutine(value) else value


class ThreadLanes:
    """The lanes of a bus with threads, in the Trio thread: they hand tickets over, and have them answered.

    `current` is the bus's list of the tickets that its lanes have; `held` says of an output whether a session has
    driven it.
    """

    inline = False

    def __init__(
        self,
        queue: TicketQueue,
        driver: Driver,
        current: list[Ticket],
        transactions: Transactions,
        watch: Watch,
        *,
        held: Callable[[Hashable], object],
    ) -> None:
        self._queue = queue
        self._driver = driver
        self._width = driver.width
        self._current = current
        self._transactions = transactions
        self._bus = watch
        self._held = held
        self._threads: BusThreads | None = None
        # The task of `hand_over` while it waits.
        self._idle: trio.lowlevel.Task | None = None
        self._late: set[Ticket] = set()
        self._given_up = False
        # Around the wait for the threads: its deadline is never later than that of a ticket in `current`.
        self._watch = trio.CancelScope()

    @property
    def begun(self) -> int:
        """The number of tickets in `current` that a thread has taken; they are not answered yet."""
        return len(self._current) - len(self._queue.ahead)

    @property
    def running(self) -> int:
        """The number of tickets in `current` whose transaction has not ended."""
        return len(self._current) - (0 if self._threads is None else self._threads.answers)

    def start(self, nursery: trio.Nursery) -> Sequence[Joined]:
        """See Lanes."""
        run = self._transactions.run_in_thread
        threads = BusThreads(self._width, self._queue.ahead, run, device=self._driver.shares)
        nursery.start_soon(self.attend, threads)
        nursery.start_soon(self.hand_over)
        return [threads]

    def share(self) -> threading.Lock:
        """See BusThreads. The bus is open."""
        assert self._threads is not None
        return self._threads.share()

    def unshare(self) -> None:
        """Do nothing: the lock stays."""

    def fail(self, bug: BaseException) -> None:
        """Raise a bug at once: nothing runs in place here."""
        raise bug

    def wake(self) -> None:
        """Hand over what may begin now; call it after each change of the queue."""
        if self._queue.outranks:
            self.recall()
        elif self._idle is not None:
            task, self._idle = self._idle, None
            trio.lowlevel.reschedule(task)

    @trio.lowlevel.enable_ki_protection
    def recall(self) -> None:
        """Take back all tickets that have not begun; they are in the queue again."""
        if not self._queue.ahead:
            return
        self._queue.take_back_all()
        if self._threads is not None:
            # For those that stay: a thread may have looked for one while it was not there.
            self._threads.ring()
        if self._idle is not None:
            task, self._idle = self._idle, None
            trio.lowlevel.reschedule(task)

    def give_up(self) -> None:
        """Answer the tickets whose transactions have not ended with an error, and hand over nothing more."""
        self._given_up = True
        self._watch.cancel()

    @trio.lowlevel.enable_ki_protection
    async def hand_over(self) -> None:
        """Hand over tickets when some have come, in a turn of the loop of its own."""

        def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
            self._idle = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._fill()
            self._idle = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _fill(self) -> None:
        """Put tickets within reach of the threads, as many as may be there, in their order."""
        threads, queue, current = self._threads, self._queue, self._current
        if threads is None:
            return
        now = trio.current_time()
        while len(current) < self._width + AHEAD:
            ticket = queue.take()
            if ticket is None:
                break
            if len(current) >= self._width and not self._may_wait_ahead(ticket):
                queue.put_back(ticket)
                break
            if ticket.op is None:
                self._transactions.grant(ticket)
                continue
            if self._transactions.prepare(ticket):
                returnable = ticket.plain and ticket.former_holders != ()
                ticket.state = State.HANDED if returnable else State.BEGUN
                ticket.begun_at = now
                self._watch.deadline = min(self._watch.deadline, now + ticket.limit)
                current.append(ticket)
                queue.hand(ticket)
        threads.ring()

    def _may_wait_ahead(self, ticket: Ticket) -> bool:
        """Return True if a ticket may be prepared before all those that are within reach have been answered."""
        output = ticket.drives
        if ticket.op is None or not ticket.plain or not (output is None or self._held(output)):
            return False
        return all(other.plain and (output is None or other.drives != output) for other in self._current)

    @trio.lowlevel.enable_ki_protection
    async def attend(self, threads: BusThreads) -> None:
        """Have transactions answered that end, and watch over their limits. Raises what a bug in the driver raised.

        Nothing that has begun is interrupted: a cancellation, or a bug, waits for the others to end.
        """
        self._threads = threads
        try:
            await self._attend(threads, until=lambda: self._given_up)
        finally:
            self._threads = None
            self.recall()
            try:
                await self._attend(threads, until=lambda: not self._current, shield=True)
            finally:
                threads.close()

    async def _attend(self, threads: BusThreads, *, until: Callable[[], bool], shield: bool = False) -> None:
        while True:
            self._take_returned(threads)
            if self._given_up:
                for ticket in self._current[:]:
                    self._ended(Returned(ticket, trio.current_time(), error=self._transactions.given_up()))
            if until():
                return
            self._fill()
            with trio.CancelScope(shield=shield, deadline=self._next_deadline()) as self._watch:
                while not until():
                    await threads.wait()
                    self._take_returned(threads)
                    self._fill()

    def _next_deadline(self) -> float:
        """Find the transactions that are past their limit; return when the next one may be."""
        now = trio.current_time()
        deadline = math.inf
        for ticket in self._current[:]:
            if ticket in self._late:
                continue
            if ticket.state is not State.BEGUN:
                deadline = min(deadline, now + ticket.limit)
            elif ticket.begun_at + ticket.limit > now:
                deadline = min(deadline, ticket.begun_at + ticket.limit)
            else:
                self._late.add(ticket)
                self._bus.overdue(ticket)
        return deadline

    def _take_returned(self, threads: BusThreads) -> None:
        bug: BaseException | None = None
        for returned in threads.returned():
            bug = bug or self._ended(returned)
        if bug is not None:
            # Now that those which ended beside it have been answered.
            raise bug

    def _ended(self, returned: Returned) -> BaseException | None:
        ticket = returned.ticket
        try:
            self._current.remove(ticket)
        except ValueError:
            # It was given up before.
            return None
        if ticket in self._late:
            self._late.discard(ticket)
            returned.late = True
            self._bus.back()
        return self._transactions.answer(returned)
