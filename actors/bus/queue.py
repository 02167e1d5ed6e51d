"""Tickets, and the bounded queue with priorities and leases that decides which ticket a bus begins next.

This module decides order and admission only. It runs no driver, keeps no time and never waits; `actor.Bus` does that.

Theory of operation. A ticket is one transaction that a task asks of a bus, or one lease on the bus. It is also a
`Slot`: the requester waits in `ticket.get()`, and the bus fills the slot. Its states, which only move forward
(but for a HANDED one that is taken back):

    QUEUED ------------> BEGUN ----> DONE    begun by the bus, answered by the bus
       |  ^               ^
       |  +--> HANDED ----+                  within reach of the bus's threads (see `threads`); one of them begins it
       |
       +-------> WITHDRAWN                   by `Ticket.abort`, when the requester is cancelled
       +-------> DONE                        refused by the bus, which is wedged, down or closed: it never begins

A lease is a ticket without an operation: it is answered when it begins and stays BEGUN; `release` ends it.


The bus contract is `Ticket.abort`, which Trio calls when the task that waits in `get()` is cancelled:

- QUEUED: the ticket is withdrawn and never begins. The requester's wait ends at once. The hardware is untouched.
- HANDED: the ticket is in `TicketQueue.ahead`, from which a thread may be taking it at this moment. A ticket belongs to
  the side that has removed it from that deque, and a deque removes an item once. If `abort` has removed it, no thread
  can begin it: it is withdrawn. If `abort` does not find it, a thread has taken it: it is BEGUN.
- BEGUN: the ticket cannot be withdrawn. `abort` returns False, so the cancelled task keeps waiting until the bus has
  filled the slot. It then has the true outcome, and no transaction is ever torn: a requester never ends while its
  operation still moves the hardware. `on_cancel` may ask a long operation to end early.
- A `SafeStateTicket` lets its requester go and stays in the queue: the outputs must reach their safe state anyway.

Who calls what. Everything here runs in the Trio thread, and no method has a checkpoint, so each call is atomic for
other tasks. Requesters create tickets and pass them to `Bus.request`. Only the bus calls the methods of the queue, and
only the bus sets BEGUN and DONE. Only `abort` sets WITHDRAWN. The threads of a bus touch nothing here but the left end
of `ahead`, and the tickets that they take from there.

What is guaranteed:

- Every ticket that was put is filled or failed exactly once, or withdrawn. The bus answers even when it crashes.
- Order: tickets that must run; then, under a lease, those of its holder; else by priority, then first come, first
  served.
- A withdrawn ticket frees its place (`depth`) at once. Its entry stays in the heap until `take` passes over it, or
  until `put` sweeps a heap that has grown to twice the bound.
- Neither the bound nor a lease holds up a `must_run` ticket: it takes back an effect that has started.
"""

from __future__ import annotations

import enum
from collections import deque
from functools import partial
from heapq import heapify, heappop, heappush
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from hearth.actors.mailbox import Slot
from hearth.errors import Halted, InterlockOpen, ResourceBusy
from hearth.shown import prose

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence

    from hearth.drivers.base import Driver


@frozen(eq=False)
class Requester:
    """The session and task that use a bus: named in the refusal of another task, and as holder of driven outputs.

    With a `deadman` (a heartbeat, or `on_disconnect: "close"`) the session goes on holding an output that another
    session sets: the end of either session brings the output to its safe state.
    """

    session_id: str
    task_id: str
    principal: str
    deadman: bool = False
    halts: int = 0
    """The number of halts when the request for its task came; see `HaltFlag`."""


class HaltFlag:
    """The halt, as buses and admission see it. Only `halt` sets it, in the Trio thread; any thread may read it.

    This is the epoch of the design. Whatever can act later, or be approved, keeps the number of the last halt at the
    time when it came: a request and its task, a plan, an approval, a question, a job with its session. `stops` compares
    it. What is older than a halt drives nothing after it, even if the halt has been reset by then.
    """

    __slots__ = ("count", "on_reset", "reason", "since")

    def __init__(self) -> None:
        self.count = 0
        """The number of the last halt. It begins at the seconds since 1970: numbers grow over restarts too."""
        self.since: str | None = None
        """The time of the halt; None while the daemon is not halted."""
        self.reason = ""
        self.on_reset: list[Callable[[], None]] = []
        """Called in the turn in which a reset ends the halt."""

    @property
    def halted(self) -> bool:
        """True from the moment of a halt to its reset."""
        return self.since is not None

    def error(self) -> Halted:
        """Return the refusal of anything that has an effect; the reason, another one's words, is quoted as data."""
        data = {"since": self.since, "reason": self.reason, "quotes": ["reason"], "effect": "none"}
        reason = prose(self.reason)
        if self.since is None:
            text = f"this was accepted before the daemon was halted ({reason}), and was not run: submit it again"
            return Halted(f"Halted: {text}", data=data)
        cure = "reads go on; a person resets the halt when the cause is gone (`hearth halt reset`)"
        return Halted(f"Halted since {self.since}: {reason}; nothing was done; {cure}", data=data)

    def ended(self) -> Halted:
        """Return the error of a task that is cancelled because of the halt."""
        data = {"since": self.since, "reason": self.reason, "quotes": ["reason"], "effect": "unknown"}
        text = f"the daemon was halted: {prose(self.reason)}; the task ends, and outputs go to their safe states"
        return Halted(f"Halted: {text}", data=data)

    def stops(self, halts: int) -> bool:
        """Return True while halted, and for what came before the last halt, when that had the number `halts`."""
        return self.since is not None or halts != self.count

    def refusal(self, requester: Requester) -> Halted | None:
        """Return the refusal of a transaction with an effect, or None."""
        return self.error() if self.stops(requester.halts) else None


@frozen(eq=False)
class GiveBack:
    """The output that a transaction gives back when it takes an effect back, and the session that gets it.

    `output` may be a callable, which the bus calls when the transaction begins; if it returns None, another transaction
    takes the effect back. `held` maps each output of this step to the session that held it before the step. With
    `borrowed` the step has not set the output. If the former holder has ended, the bus brings the output to its safe
    state and calls `instead`, in place of the transaction's own operation.
    """

    output: Hashable | Callable[[], Hashable | None]
    session_id: str
    held: Mapping[Hashable, str]
    borrowed: bool = False
    instead: Callable[[], None] | None = None

    def held_by(self, output: Hashable) -> str:
        """Return the session that an output goes back to."""
        return self.held.get(output, self.session_id)

    def taken_by(self, output: Hashable) -> str:
        """Return the session that must still be the last to have set an output: a later set by another one wins."""
        return self.held_by(output) if self.borrowed else self.session_id


class State(enum.Enum):
    """The states of a ticket; see the module's theory of operation."""

    # Between QUEUED and BEGUN there is no checkpoint, so a ticket is never withdrawn while it begins.
    QUEUED = 0
    HANDED = 1
    BEGUN = 2
    WITHDRAWN = 3
    DONE = 4


@define(eq=False)
class Ticket(Slot[Any]):
    """One transaction asked of a bus (or, with `op` None, a lease on it)."""

    op: Callable[[Any], Any] | None
    requester: Requester
    limit: float = field(kw_only=True)
    priority: int = field(default=1, kw_only=True)
    risk: int = field(default=0, kw_only=True)
    """The effective risk of its step; from 1 on it does not begin while the daemon is halted."""
    drives: Hashable | Callable[[], Hashable | None] | None = field(default=None, kw_only=True)
    borrows: bool = field(default=False, kw_only=True)
    gives_back: GiveBack | None = field(default=None, kw_only=True)
    must_run: bool = field(default=False, kw_only=True)
    only_reads: bool = field(default=False, kw_only=True)
    """True for what a step of risk 0 does: it gets a driver that refuses every effect, also where it must run."""
    on_cancel: Callable[[], None] | None = field(default=None, kw_only=True)
    """Asks a transaction that has begun to end early. The transaction still returns its outcome."""
    held_by: str | None = field(default=None, init=False)
    """The session to which the output that this drives goes back, if its effect is taken back."""
    former_holders: Sequence[Requester] | None = field(default=None, init=False)
    """The holders of the output that this drives, before; None until it has begun."""
    owned: list[tuple[Hashable, Sequence[Requester]]] = field(factory=list, init=False)
    """The outputs that it has driven without having announced them, with their holders before."""
    listed: bool = field(default=False, init=False)
    """True while its requester keeps the output that this drives in the outputs file; see `Bus.list_output`."""
    clamped: Sequence[Mapping[str, Any]] = field(default=(), init=False)
    """What was written in place of values beyond a limit."""
    state: State = field(default=State.QUEUED, init=False)
    # Set by `put`: the order of arrival, which decides between tickets of the same priority.
    order: int = field(default=0, init=False)
    asked_at: float = field(default=0.0, init=False)
    """The Trio time of the request; not set for a transaction that ran in place."""
    begun_at: float = field(default=0.0, init=False)
    queue: TicketQueue | None = field(default=None, init=False)

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def __lt__(self, other: Ticket) -> bool:
        # The order of the heap: the higher priority first, then the one that came first.
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.order < other.order

    @property
    def plain(self) -> bool:
        """True if what the bus does before it begins can be taken back: it may wait within reach of a thread."""
        return self.gives_back is None and not self.must_run and not callable(self.drives)

    def abort(self) -> bool:
        """Withdraw a ticket that is queued; return False for one that has begun, so that its requester keeps waiting.

        Called when the requester is cancelled.
        """
        if self.state is State.HANDED and self.queue is not None:
            self.queue.take_back(self)
        if self.state is not State.QUEUED:
            # It may be moving the hardware now. Ending the wait here would leave the requester without its outcome.
            if self.on_cancel is not None:
                self.on_cancel()
            return False
        # It stays in its heap or deque, where `take` passes over it: removing it would cost O(n) per cancellation.
        self.state = State.WITHDRAWN
        if self.queue is not None:
            self.queue.withdrawn(self)
        return True


class SafeStateTicket(Ticket):
    """A ticket that keeps its place after its requester has stopped waiting: outputs must reach their safe state."""

    __slots__ = ("outputs", "unattended")

    def __init__(self, requester: Requester, *, limit: float, unattended: bool) -> None:
        super().__init__(partial(_make_safe, []), requester, limit=limit, must_run=True)
        self.unattended = unattended
        """True when no task waits for the outcome, so that the bus itself must record it."""
        self.outputs: list[Hashable] = []

    def begin(self, outputs: list[Hashable]) -> Callable[[Driver], Any]:
        """Note the outputs that are due now that the ticket begins; return the operation."""
        self.outputs = outputs
        self.op = partial(_make_safe, outputs)
        return self.op

    def abort(self) -> bool:
        """Let the requester go; the ticket stays in the queue."""
        return True


def _make_safe(outputs: list[Hashable], driver: Driver) -> Any:
    return driver.make_safe(outputs)


class HaltTicket(SafeStateTicket):
    """The ticket that brings the outputs of a bus to their safe state for a halt, but those that are `apart`."""

    __slots__ = ("apart",)

    def __init__(self, requester: Requester, *, limit: float, apart: frozenset[Hashable]) -> None:
        super().__init__(requester, limit=limit, unattended=True)
        self.apart = apart

    def begin(self, outputs: list[Hashable]) -> Callable[[Driver], Any]:
        """Note the outputs that are due now that the ticket begins; return the operation."""
        self.outputs = [output for output in outputs if output not in self.apart]
        self.op = partial(_halt, self.outputs)
        return self.op


def _halt(outputs: list[Hashable], driver: Driver) -> Any:
    return driver.halt(outputs)


def left_to_halt(instead: Callable[[], None] | None, _driver: Driver) -> None:
    """Forget an effect that is not taken back: the halt brings the output to its safe state, in the declared order."""
    if instead is not None:
        instead()


@frozen(eq=False)
class WentSafe:
    """The outcome of a transaction that brought an output to its safe state: the driver's reports, and a value.

    There are no reports for an output that the profile keeps. The bus forgets the output's holders and records `event`
    with `fields`. `output` is None for the one that the ticket drives.
    """

    reports: Any
    value: Any = None
    output: Hashable | None = None
    event: str = "outputs.safe"
    fields: Mapping[str, Any] = field(factory=lambda: {"reason": "the session that held it has ended"})


def make_safe_instead(
    op: Callable[[Any], Any], instead: Callable[[], None] | None, output: Hashable, driver: Driver
) -> Any:
    """Bring an output to its safe state instead of taking an effect back by `op`; the operation of a transaction.

    An output with `hold = "keep"` has no safe state: its level outlives the session that set it, so `op` restores it.
    """
    reports = driver.make_safe([output])
    # A driver of style ASYNC returns a coroutine, and then so must this operation: both parts are one transaction.
    if iscoroutine(reports):
        return _make_safe_instead(op, instead, reports, driver)
    if not reports:
        return WentSafe(reports, op(driver))
    if instead is not None:
        instead()
    return WentSafe(reports)


def give_back_or_make_safe(
    op: Callable[[Any], Any], instead: Callable[[], None] | None, output: Hashable, driver: Driver
) -> Any:
    """Take an effect back by `op`; where an interlock forbids the former level, bring the output to its safe state.

    Raises InterlockOpen for an output with `hold = "keep"`, which has no safe state. A halt that comes within the
    transaction makes the output safe itself: a pulse then ends as in `left_to_halt`, and an undo raises Halted. A
    refusal that time ends (LimitViolated) is raised too: the requester waits beside the bus, and tries again.
    """
    try:
        return op(driver)
    except Halted:
        if instead is None:
            raise
        return left_to_halt(instead, driver)
    except InterlockOpen as error:
        reports = driver.make_safe([output])
        if not reports:
            raise
        if instead is not None:
            instead()
        return WentSafe(reports, fields={"reason": error.message})


async def _make_safe_instead(
    op: Callable[[Any], Any], instead: Callable[[], None] | None, making: Coroutine[Any, Any, Any], driver: Driver
) -> WentSafe:
    reports = await making
    if not reports:
        value = op(driver)
        return WentSafe(reports, await value if iscoroutine(value) else value)
    if instead is not None:
        instead()
    return WentSafe(reports)


class TicketQueue:
    """The tickets that wait for one bus, and those that its threads may begin.

    Order: `must_run` tickets first, which neither bound nor lease holds up, because they take a started effect back.
    Then, while the bus is leased, only those of the lease's holder. The bound does not hold these up either: tickets
    that wait for the end of the lease must not keep its holder out. Else by priority, then first come, first served.
    """

    __slots__ = ("_bound", "_heap", "_holders", "_must", "_order", "_taken_back", "_waiting", "ahead", "lease")

    def __init__(self, bound: int, taken_back: Callable[[Ticket], None] = lambda _ticket: None) -> None:
        self._bound = bound
        # Called with each ticket that is taken back from the reach of threads, before it is queued or withdrawn.
        self._taken_back = taken_back
        self.ahead: deque[Ticket] = deque()
        """The tickets within reach of the bus's threads, in order. A thread begins the leftmost one by removing it."""
        # Three queues, in the order in which `take` empties them: `_must`, `_holders`, `_heap`.
        self._heap: list[Ticket] = []
        self._holders: deque[Ticket] = deque()
        self._must: deque[Ticket] = deque()
        self._order = 0
        # The live tickets in `_heap` and `_holders`; withdrawn ones, and those that must run, do not count.
        self._waiting = 0
        self.lease: Ticket | None = None
        """The ticket whose requester holds the bus exclusively."""

    @property
    def depth(self) -> int:
        """The number of tickets that have not begun, without those that must run."""
        return self._waiting + len(self.ahead)

    @property
    def full(self) -> bool:
        """True when the bound leaves no room for another ticket."""
        return self.depth >= self._bound

    def put(self, ticket: Ticket) -> None:
        """Add a ticket. Raises ResourceBusy at once when the queue is full."""
        if ticket.must_run:
            # No bound: one that is refused would leave an effect in place.
            self._must.append(ticket)
        else:
            # Identity, not equality: two tasks of one session are different requesters.
            holds = self.lease is not None and self.lease.requester is ticket.requester
            if self.depth >= self._bound and not holds:
                raise ResourceBusy("the bus's queue is full", data={"reason": "queue full", "queued": self.depth})
            self._order += 1
            ticket.order = self._order
            if holds:
                self._holders.append(ticket)
            else:
                if len(self._heap) > 2 * self._bound:
                    # `take` passes over withdrawn tickets, but behind a long lease it never reaches the heap.
                    self._heap = [waiting for waiting in self._heap if waiting.state is State.QUEUED]
                    heapify(self._heap)
                heappush(self._heap, ticket)
            self._waiting += 1
        # Last: a ticket that was refused above has no place that `abort` would free.
        ticket.queue = self

    @property
    def must_wait(self) -> bool:
        """True while a `must_run` ticket waits."""
        return bool(self._must)

    def safe_state_ticket(self, session_id: str) -> SafeStateTicket | None:
        """Return the queued ticket that brings a session's outputs to their safe state, or None."""
        for ticket in self._must:
            if type(ticket) is SafeStateTicket and ticket.requester.session_id == session_id:
                return ticket
        return None

    def would_begin(self, ticket: Ticket) -> bool:
        """Return True if no ticket waits, and no other requester has leased the bus."""
        # A withdrawn ticket that still stands in the heap counts here. Then this one is queued, and an idle lane takes
        # it: a little slower, and in the right order.
        if self._heap or self._must or self._holders:
            return False
        return self.lease is None or ticket.must_run or self.lease.requester is ticket.requester

    def would_begin_for(self, requester: Requester) -> bool:
        """Return the same for an ordinary ticket of a requester, before there is one."""
        if self._heap or self._must or self._holders:
            return False
        return self.lease is None or self.lease.requester is requester

    def withdrawn(self, ticket: Ticket) -> None:
        """Free the place of a ticket that was withdrawn."""
        # Tickets that must run were never counted: no bound holds them up.
        if not ticket.must_run:
            self._waiting -= 1

    def take(self) -> Ticket | None:
        """Remove and return the next ticket to begin, or None. The caller passes a lease (`op` None) to `grant`."""
        while self._must:
            ticket = self._must.popleft()
            if ticket.state is State.QUEUED:
                return ticket
        # Before the heap also when the lease has just ended: these were accepted while no ticket there could begin.
        while self._holders:
            ticket = self._holders.popleft()
            # A withdrawn one is dropped: `withdrawn` has freed its place.
            if ticket.state is State.QUEUED:
                self._waiting -= 1
                return ticket
        # Under a lease the other tickets wait in the heap until its end.
        if self.lease is not None:
            return None
        while self._heap:
            ticket = heappop(self._heap)
            if ticket.state is State.QUEUED:
                self._waiting -= 1
                return ticket
        return None

    def put_back(self, ticket: Ticket) -> None:
        """Return a ticket that was taken and has not begun to its place, before those that would come after it."""
        if ticket.must_run:
            self._must.appendleft(ticket)
            return
        self._waiting += 1
        if self.lease is not None and self.lease.requester is ticket.requester:
            self._holders.appendleft(ticket)
        else:
            heappush(self._heap, ticket)

    @property
    def outranks(self) -> bool:
        """True if a ticket waits that goes before one within reach of the threads."""
        try:
            last = self.ahead[-1]
        except IndexError:
            return False
        if last.state is not State.HANDED:
            return False
        return bool(self._must) or (self.lease is None and bool(self._heap) and self._heap[0] < last)

    def hand(self, ticket: Ticket) -> None:
        """Put a ticket that was taken within reach of the threads: HANDED, or BEGUN if it is not to be taken back."""
        self.ahead.append(ticket)

    def take_back(self, ticket: Ticket) -> bool:
        """Take a HANDED ticket out of the reach of the threads; return False if one of them has begun it."""
        try:
            # Tickets are compared by identity, in C: nothing else runs between the search and the removal.
            self.ahead.remove(ticket)
        except ValueError:
            return False
        ticket.state = State.QUEUED
        self._waiting += 1
        self._taken_back(ticket)
        return True

    def take_back_all(self) -> None:
        """Queue all HANDED tickets again, each at its place."""
        begun: list[Ticket] = []
        # From the end, so that a thread which takes one at the same time takes the one whose turn it is.
        while self.ahead:
            try:
                ticket = self.ahead.pop()
            except IndexError:
                break
            if ticket.state is State.HANDED:
                ticket.state = State.QUEUED
                self._taken_back(ticket)
                self.put_back(ticket)
            else:
                begun.append(ticket)
        self.ahead.extend(reversed(begun))

    def grant(self, ticket: Ticket) -> None:
        """Give the bus to `ticket.requester` alone, until `release`."""
        self.lease = ticket

    def release(self, ticket: Ticket) -> None:
        """End the lease; idempotent."""
        if self.lease is ticket:
            self.lease = None

    def refuse_all(self, *, for_good: bool = False) -> list[Ticket]:
        """Remove and return every ticket, in order, for a bus that cannot serve it; `must_run` ones only `for_good`."""
        # A list of the heap is not in order: sort, so that requesters get their errors in the order of service.
        refused = sorted(t for t in (*self._holders, *self._heap) if t.state is State.QUEUED)
        self._holders.clear()
        self._heap.clear()
        self._waiting = 0
        if for_good:
            refused = [*(t for t in self._must if t.state is State.QUEUED), *refused]
            self._must.clear()
        return refused
