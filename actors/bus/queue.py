"""Who may use a bus next: tickets, and the bounded queue with priorities and leases that holds them.

It decides order and admission, and nothing else: it runs no driver, keeps no time and never waits. A ticket is a slot
whose `abort` is the bus contract in one method: cancelled while it queues, it leaves and never begins; begun, it
cannot be withdrawn, and whoever asked stays until the outcome is there.
"""

from __future__ import annotations

import enum
from collections import deque
from functools import partial
from heapq import heapify, heappop, heappush
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.actors.mailbox import Slot
from hearth.errors import ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping

    from hearth.drivers.base import Driver


@frozen(eq=False)
class Requester:
    """On whose behalf a bus is used: what a colleague who finds it busy may be told, and who owns driven outputs.

    With a `deadman` (a heartbeat, or `on_disconnect: "close"`) the session goes on holding an output that another one
    sets: the end of either brings it to its safe state.
    """

    session_id: str
    task_id: str
    principal: str
    deadman: bool = False


@frozen(eq=False)
class GiveBack:
    """What a transaction that takes an effect back says of the output.

    `output` may be a callable, asked when the turn has come; None then: another transaction takes the effect back.
    `held` has the sessions that held the outputs of this step before it. With `borrowed` the step has not set the
    output. Where the former holder has ended, the bus calls `instead` in place of the transaction's own operation, and
    brings the output to its safe state.
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
        """Return the session that must still be the last to have set an output: a later set has the say."""
        return self.held_by(output) if self.borrowed else self.session_id


class State(enum.Enum):
    """Where a ticket is in its life; it only moves down this list."""

    QUEUED = 0
    BEGUN = 1
    WITHDRAWN = 2
    DONE = 3


class Ticket(Slot[Any]):
    """One transaction asked of a bus (or, with `op` None, a lease on it)."""

    __slots__ = (
        "asked_at",
        "begun_at",
        "borrows",
        "drives",
        "gives_back",
        "held_by",
        "limit",
        "must_run",
        "on_cancel",
        "op",
        "order",
        "priority",
        "queue",
        "requester",
        "state",
    )

    def __init__(
        self,
        op: Callable[[Any], Any] | None,
        requester: Requester,
        *,
        limit: float,
        priority: int = 1,
        drives: Hashable | Callable[[], Hashable | None] | None = None,
        borrows: bool = False,
        gives_back: GiveBack | None = None,
        must_run: bool = False,
        on_cancel: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.op = op
        self.requester = requester
        self.limit = limit
        self.priority = priority
        self.drives = drives
        self.borrows = borrows
        self.gives_back = gives_back
        self.held_by: str | None = None
        """The session to which the output that this drives goes back, if its effect is taken back."""
        self.must_run = must_run
        self.on_cancel = on_cancel
        """Asks a transaction that has begun to end early; it returns what became of it all the same."""
        self.state = State.QUEUED
        self.order = 0
        self.asked_at = 0.0
        """When it was asked for; not set for a transaction that ran there and then."""
        self.begun_at = 0.0
        self.queue: TicketQueue | None = None

    def __lt__(self, other: Ticket) -> bool:
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.order < other.order

    def abort(self) -> bool:
        """The asker is cancelled: a ticket that queues is withdrawn, one that has begun keeps its asker."""
        if self.state is not State.QUEUED:
            if self.on_cancel is not None:
                self.on_cancel()
            return False
        self.state = State.WITHDRAWN
        if self.queue is not None:
            self.queue.withdrawn(self)
        return True


class SafeStateTicket(Ticket):
    """A ticket that keeps its place though nobody waits for it any more: outputs must reach their safe state."""

    __slots__ = ("alone", "outputs")

    def __init__(self, requester: Requester, *, limit: float, alone: bool) -> None:
        super().__init__(partial(_make_safe, []), requester, limit=limit, must_run=True)
        self.alone = alone
        """True when nobody waits for the outcome, so that the bus itself must tell of it."""
        self.outputs: list[Hashable] = []

    def begin(self, outputs: list[Hashable]) -> Callable[[Driver], Any]:
        """The ticket's turn has come, and these are the outputs; returns the operation."""
        self.outputs = outputs
        self.op = partial(_make_safe, outputs)
        return self.op

    def abort(self) -> bool:
        """Let the asker go; the ticket stays."""
        return True


def _make_safe(outputs: list[Hashable], driver: Driver) -> Any:
    return driver.make_safe(outputs)


@frozen(eq=False)
class WentSafe:
    """The outcome of `make_safe_instead`: what the driver reports; nothing for an output that the profile keeps."""

    reports: Any
    value: Any = None


def make_safe_instead(
    op: Callable[[Any], Any], instead: Callable[[], None] | None, output: Hashable, driver: Driver
) -> Any:
    """Bring an output to its safe state in place of taking an effect back by `op`; a transaction.

    An output with `hold = "keep"` has no safe state: its level outlives the session that set it, and is restored.
    """
    reports = driver.make_safe([output])
    if iscoroutine(reports):
        return _make_safe_instead(op, instead, reports, driver)
    if not reports:
        return WentSafe(reports, op(driver))
    if instead is not None:
        instead()
    return WentSafe(reports)


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
    """The tickets that wait for one bus.

    Order: `must_run` tickets first (they take a started effect back, so neither bound nor lease holds them up); then,
    while the bus is leased, only its holder's, which the bound does not hold up either: those who wait for the end of
    the lease must not keep its holder out; else by priority, then first come.
    """

    __slots__ = ("_bound", "_heap", "_holders", "_must", "_order", "depth", "lease")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._heap: list[Ticket] = []
        self._holders: deque[Ticket] = deque()
        self._must: deque[Ticket] = deque()
        self._order = 0
        self.depth = 0
        self.lease: Ticket | None = None
        """The ticket whose asker holds the bus exclusively."""

    @property
    def full(self) -> bool:
        """True when another ticket would be one too many."""
        return self.depth >= self._bound

    def put(self, ticket: Ticket) -> None:
        """Let a ticket wait. Raises ResourceBusy at once when the queue is full."""
        if ticket.must_run:
            self._must.append(ticket)
        else:
            holds = self.lease is not None and self.lease.requester is ticket.requester
            if self.depth >= self._bound and not holds:
                raise ResourceBusy("the bus's queue is full", data={"reason": "queue full", "queued": self.depth})
            self._order += 1
            ticket.order = self._order
            if holds:
                self._holders.append(ticket)
            else:
                if len(self._heap) > 2 * self._bound:
                    # Withdrawn tickets are passed over when their turn comes, which behind a long lease is never.
                    self._heap = [waiting for waiting in self._heap if waiting.state is State.QUEUED]
                    heapify(self._heap)
                heappush(self._heap, ticket)
            self.depth += 1
        ticket.queue = self

    @property
    def must_wait(self) -> bool:
        """True while a ticket waits that must run."""
        return bool(self._must)

    def standing(self, session_id: str) -> SafeStateTicket | None:
        """The ticket that waits for the safe state of a session's outputs, if there is one."""
        for ticket in self._must:
            if type(ticket) is SafeStateTicket and ticket.requester.session_id == session_id:
                return ticket
        return None

    def would_begin(self, ticket: Ticket) -> bool:
        """True when nothing is in the way of a ticket: nobody waits, and the bus is not somebody else's."""
        if self._heap or self._must or self._holders:
            return False
        return self.lease is None or ticket.must_run or self.lease.requester is ticket.requester

    def withdrawn(self, ticket: Ticket) -> None:
        """A ticket's asker has gone; its place is free at once."""
        if not ticket.must_run:
            self.depth -= 1

    def take(self) -> Ticket | None:
        """The next ticket to begin, or None. A lease that is taken is granted by the caller through `grant`."""
        while self._must:
            ticket = self._must.popleft()
            if ticket.state is State.QUEUED:
                return ticket
        while self._holders:
            ticket = self._holders.popleft()
            if ticket.state is State.QUEUED:
                self.depth -= 1
                return ticket
        if self.lease is not None:
            return None
        while self._heap:
            ticket = heappop(self._heap)
            if ticket.state is State.QUEUED:
                self.depth -= 1
                return ticket
        return None

    def grant(self, ticket: Ticket) -> None:
        """The bus is `ticket.requester`'s alone until `release`."""
        self.lease = ticket

    def release(self, ticket: Ticket) -> None:
        """End the lease; idempotent."""
        if self.lease is ticket:
            self.lease = None

    def refuse_all(self, *, for_good: bool = False) -> list[Ticket]:
        """Take out every ticket, in order, for a bus that cannot serve it; those that must run only `for_good`."""
        refused = sorted(t for t in (*self._holders, *self._heap) if t.state is State.QUEUED)
        self._holders.clear()
        self._heap.clear()
        self.depth = 0
        if for_good:
            refused = [*(t for t in self._must if t.state is State.QUEUED), *refused]
            self._must.clear()
        return refused
