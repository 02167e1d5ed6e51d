"""The bus actor: the only caller of one driver. It runs each transaction whole.

A transaction runs in the bus's own task or thread, never in the requester's, so that cancelling a requester cannot
reach it. (An INLINE transaction may run in place in the requester's turn, where no checkpoint lets a cancellation in.)
The bus takes one ticket at a time (a pool: `width` at a time), runs it whole, and answers it. It does not know what a
transaction means. `queue` has the order and the contract of tickets, `lanes` and `threads` how a transaction is called,
and `transactions` what comes before it and with its outcome.

States of a bus:

    opening -> ready <-> wedged      wedged: a transaction is past its limit on every lane; ready again when one returns
       |         |          |
       +---------+----------+---> down       the driver failed; the supervisor opens it again: down -> ready
       +---------+----------+---> closed     for good: the runtime has ended

- Nothing may stop a transaction that has begun. One that is past its limit marks the bus wedged; the bus waits for it
  and rejects new requests with the reason. `abandon` alone ends that wait, when the process must end.
- Only a ready bus begins ordinary transactions. An opening, down or wedged bus still queues tickets that must run.
- When a session has ended, its bus brings the outputs that the session drove to their safe state. If the device is not
  there, it does so as soon as the bus is open again.
- A bus that is lent to control loops (`lend`) shares its driver with their threads, one call or transaction at a time.
  A driver of style INLINE is then called in a worker's thread, so that the Trio thread never waits for a loop.
- Whatever way `run` ends, no ticket is left without an answer, except the `must_run` ones of a bus that will be opened
  again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import trio

from hearth._util.exceptions import sole
from hearth._util.foreign import Raised, called
from hearth.actors.bus.guard import BusGuard, keep_lines, retry_after
from hearth.actors.bus.lanes import TaskLanes
from hearth.actors.bus.outputs import HALT, DrivenOutputs
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.actors.bus.queue import (
    HaltFlag,
    HaltTicket,
    Requester,
    SafeStateTicket,
    State,
    Ticket,
    TicketQueue,
    WentSafe,
)
from hearth.actors.bus.threads import ThreadLanes
from hearth.actors.bus.transactions import Transactions
from hearth.actors.bus.workers import CLOSE_LIMIT, close_driver, open_driver
from hearth.drivers.base import BaseDriver, Style
from hearth.errors import DeviceError, HearthError, InvalidParams, LimitViolated, ResourceBusy, RpcError
from hearth.tools import KnownOutputs, OutputState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from hearth.actors.bus.lanes import Lanes
    from hearth.actors.bus.limit import Limit
    from hearth.actors.bus.loop_thread import LoopThread
    from hearth.actors.bus.workers import Joined
    from hearth.drivers.base import Driver
    from hearth.drivers.signals import SignalLevel

BusState = Literal["opening", "ready", "wedged", "down", "closed"]

SAFE_STATE_LIMIT = 5.0
"""Seconds that bringing a session's outputs to their safe state may take before the bus counts as wedged."""


class Bus:
    """One hardware bus, or a pool of them.

    `audit(event, **fields)` records bus.wedged, bus.reopened and outputs.safe. `outputs_file` lists the outputs that an
    earlier run left driven: they are made safe as soon as the bus is open, before anything else. `guard` stands before
    the driver in every transaction; without one nothing is limited.
    """

    def __init__(
        self,
        bus_id: str,
        driver: Driver,
        *,
        queue_bound: int = 128,
        audit: Callable[..., None] = lambda _event, **_fields: None,
        outputs_file: OutputsFile | None = None,
        guard: BusGuard | None = None,
        halt_flag: HaltFlag | None = None,
    ) -> None:
        self.bus_id = bus_id
        self.driver = driver
        self.guard = guard or BusGuard(bus_id, driver)
        self.state: BusState = "opening"
        self.reason: str | None = None
        self._halt_flag = halt_flag or HaltFlag()
        self._held: ResourceBusy | None = None
        """Set while the bus is down because another process holds its device."""
        self._queue = TicketQueue(queue_bound, self._unprepare)
        self._audit = audit
        # The tickets that lanes run; of a bus with threads, those within their reach too, until they are answered.
        self._current: list[Ticket] = []
        self._outputs_file = outputs_file or OutputsFile()
        self._driven = DrivenOutputs(bus_id, self._outputs_file, audit, self.guard.kept)
        self._transactions = Transactions(
            bus_id,
            self.guard,
            self._driven,
            self._queue,
            halt_flag=self._halt_flag,
            outputs_file=self._outputs_file,
            audit=audit,
            halt=self.halt,
        )
        self.traces: Sequence[Collection[object]] = (*self._driven.traces, self._queue.ahead)
        """The collections that are empty while `make_safe` has nothing to do, for any session."""
        self._overdue = 0
        parts = (self._queue, driver, self._current, self._transactions, self)
        threads = driver.style is Style.THREAD
        self._lanes: Lanes = ThreadLanes(*parts, held=self._driven.holders) if threads else TaskLanes(*parts)
        self._abandoned = self._given_up = False
        self._loops: list[LoopThread] = []
        # The waits of `take_back`, which `abandon` ends.
        self._pauses: set[trio.CancelScope] = set()

    # --- called by requesters: outputs file, admission, leases, safe states, health

    async def list_output(self, ticket: Ticket) -> None:
        """Have the output that a ticket drives written down; call it before `request`, and `unlist_output` at the end.

        So no queue waits for a disk: only the requester does, unless the ticket must run. Raises AuditUnavailable.
        """
        if ticket.drives is not None and not callable(ticket.drives) and not ticket.must_run:
            ticket.listed = await self._driven.announce(ticket.drives)

    def unlist_output(self, ticket: Ticket) -> None:
        """End what `list_output` began: an output that nothing has driven leaves the file again."""
        if ticket.listed:
            ticket.listed = False
            self._driven.retract(ticket.drives)

    def request(self, ticket: Ticket, *, no_wait: bool = False) -> Ticket:
        """Queue a ticket; its requester then awaits `ticket.get()`.

        With `no_wait` the bus rejects a ticket that cannot begin at once. Raises ResourceBusy (queue full, wedged, or
        with `no_wait` leased or in use) and DeviceError (the device is not there).
        """
        # A `must_run` ticket waits for a bus that is opening, wedged or down: it takes back an effect that has started.
        if self.state != "ready" and (self.state == "closed" or not ticket.must_run):
            raise self.unavailable(ticket.requester)
        if no_wait:
            busy = self.busy(ticket.requester)
            if busy is not None:
                raise busy
        if self._lanes.inline and self.state == "ready" and self._queue.would_begin(ticket):
            # It begins and ends within this call, so nothing can interrupt it or overlap with it.
            if ticket.op is None:
                ticket.asked_at = trio.current_time()
                self._transactions.grant(ticket)
            elif (bug := self._transactions.in_place(ticket, ticket.op)) is not None:
                self._lanes.fail(bug)
            return ticket
        ticket.asked_at = trio.current_time()
        try:
            self._queue.put(ticket)
        except ResourceBusy as error:
            raise self._explain(error.message, "queue full", ticket.requester) from None
        self._lanes.wake()
        return ticket

    def in_place(self, requester: Requester) -> bool:
        """Return True if an ordinary transaction of `requester`, requested now, would run within `request`."""
        return self._lanes.inline and self.state == "ready" and self._queue.would_begin_for(requester)

    def busy(self, requester: Requester) -> ResourceBusy | None:
        """Return the reason why a ticket of `requester` could not begin at once, or None."""
        lease = self._queue.lease
        if lease is not None and lease.requester is not requester:
            return self._explain("is leased", "leased", requester)
        # The holder of the lease goes before all tickets that wait for its end.
        if len(self._current) >= self.driver.width or (lease is None and self._queue.depth):
            return self._explain("is in use", "in use", requester)
        return None

    def known_busy(self, requester: Requester) -> RpcError | None:
        """Return the reason, known at submission, why a task that does not wait cannot run: leased, wedged, full."""
        if self.state != "ready":
            return self.unavailable(requester)
        lease = self._queue.lease
        if lease is not None:
            return self._explain("is leased", "leased", requester)
        return self._explain("has a full queue", "queue full", requester) if self._queue.full else None

    def unavailable(self, requester: Requester) -> RpcError:
        """Return the error for a request to a bus that is not ready."""
        if self.state == "wedged":
            return self._explain(f"is wedged: {self.reason}", "wedged", requester)
        text = f"bus {self.bus_id} is {self.state}: {self.reason or 'not open yet'}"
        data = {"bus": self.bus_id, "state": self.state}
        if self._held is not None and self.state == "down":
            return ResourceBusy(text, data={"effect": "none", **(self._held.data or {}), **data})
        return DeviceError(text, effect="none", data=data)

    def _explain(self, what: str, reason: str, requester: Requester) -> ResourceBusy:
        data: dict[str, Any] = {"bus": self.bus_id, "reason": reason, "effect": "none"}
        holder = self._queue.lease or (self._current[0] if self._current else None)
        if holder is not None:
            data["held_ms"] = round((trio.current_time() - holder.begun_at) * 1000, 3)
            if holder.requester.principal == requester.principal:
                data["holder_task"] = holder.requester.task_id
        if reason == "wedged":
            data["detail"] = self.reason
        return ResourceBusy(f"bus {self.bus_id} {what}", data=data)

    def release(self, lease: Ticket) -> None:
        """End a lease, granted or not."""
        if lease.state is State.QUEUED:
            # Not granted yet. Without this a lane would grant it later, to a task that has ended and never releases it.
            lease.abort()
        self._queue.release(lease)
        # Tickets of other requesters may begin now.
        self._lanes.wake()

    def make_safe(
        self, session_id: str, *, unattended: bool = False, hands_over: bool = False
    ) -> SafeStateTicket | None:
        """Queue the transaction that brings the outputs a session drove to their safe state; None if it drove none.

        Outputs that another session has set since are left to that session, unless the one that ended has a deadman and
        does not end in good order (`hands_over`).
        Outputs are forgotten only when they are safe: until then each opening of the bus, and the next run, tries
        again. A requester that does not wait for the ticket sets `unattended`; the bus then records the outcome itself.
        """
        # The outputs of tickets within reach of a thread are not driven yet.
        self._lanes.recall()
        if not self._driven.leave(session_id, hands_over=hands_over):
            return None
        waiting = self._queue.safe_state_ticket(session_id)
        if waiting is not None:
            # When its turn comes it takes all outputs that the session holds then, these included.
            waiting.unattended = unattended
            return waiting
        requester = Requester(session_id, "", "")
        ticket = SafeStateTicket(requester, limit=SAFE_STATE_LIMIT, unattended=unattended)
        ticket.asked_at = trio.current_time()
        if self.state == "closed":
            # No lane takes it any more. The outputs stay in the outputs file, so the next run makes them safe.
            self._transactions.finish(ticket, error=self.unavailable(requester))
            return ticket
        self._queue.put(ticket)
        self._lanes.wake()
        return ticket

    def halt(self, apart: frozenset[Hashable] = frozenset(), also: Iterable[Hashable] = ()) -> None:
        """Queue the transaction that brings every driven output, and those of `also`, to its safe state, for a halt.

        The outputs belong to the halt from now on: neither the end of a session nor an undo moves them. Those that are
        `apart` are left for a later call. A bus that is wedged, or not there, makes them safe as soon as it can.
        """
        self._lanes.recall()
        if self._driven.halt(also) and self.state != "closed":
            ticket = HaltTicket(Requester(HALT, "", ""), limit=SAFE_STATE_LIMIT, apart=apart)
            ticket.asked_at = trio.current_time()
            self._queue.put(ticket)
            self._lanes.wake()

    def drive(self, output: Hashable, level: object, requester: Requester, *, risk: int = 0) -> Ticket:
        """Queue a transaction that drives an output and that no guard refuses, for a stop sequence; return its ticket.

        The output is one of the board's signals, and goes to its level in one step.
        """

        def op(_face: Any) -> Any:
            return self.guard.face.force(output, level)

        return self.request(Ticket(op, requester, limit=SAFE_STATE_LIMIT, risk=risk, drives=output, must_run=not risk))

    @property
    def halted(self) -> bool:
        """True while the daemon is halted; in any thread."""
        return self._halt_flag.halted

    @property
    def unsafe(self) -> list[Hashable]:
        """The outputs that a halt has still to bring to their safe state."""
        return self._driven.of(HALT)

    @property
    def left(self) -> list[Hashable]:
        """The outputs that were driven and have no safe state: a halt leaves them as they are."""
        return list(self.guard.left)

    async def take_back(self, ask: Callable[[], Ticket]) -> Any:
        """Run a transaction that takes an effect back, as soon as the limits of its output permit it.

        `ask` makes its ticket, which must run; the wait is beside the bus. Raises the RpcError of the transaction.
        """
        while True:
            ticket = self.request(ask())
            try:
                return await ticket.get()
            except LimitViolated as refusal:
                wait = retry_after(refusal)
                if wait is None or self._given_up:
                    raise
            with trio.CancelScope(deadline=trio.current_time() + wait) as scope:
                # `abandon` ends the wait; the bus then refuses the ticket, or runs it a last time.
                self._pauses.add(scope)
                try:
                    await trio.sleep_forever()
                finally:
                    self._pauses.discard(scope)

    def lend(self, loop: LoopThread) -> None:
        """Let a control loop's thread call the driver too, in its `turn`, until `reclaim`.

        A transaction that runs already does not hold that lock, so the loop begins after one of its own. Raises
        ResourceBusy and DeviceError (the bus is not ready), and InvalidParams (a driver that only Trio can call).
        """
        if self.state != "ready":
            raise self.unavailable(Requester("", "", ""))
        if self.driver.style is Style.ASYNC or self.driver.width != 1:
            raise InvalidParams(f"the driver of bus {self.bus_id} cannot be called from the thread of a control loop")
        loop.turn = self._lanes.share()
        self._loops.append(loop)

    def reclaim(self, loop: LoopThread) -> None:
        """End what `lend` began; no call of the loop is inside the driver. Idempotent."""
        if loop in self._loops:
            self._loops.remove(loop)
            if not self._loops:
                self._lanes.unshare()

    def _end_loops(self) -> None:
        """End the loops before the driver is closed, and wait until none of them is inside it."""
        for loop in self._loops:
            loop.bar(f"bus {self.bus_id} is {self.state}: {self.reason}")
            # An INLINE call takes microseconds. That of another driver is waited for where the driver is closed.
            if self.driver.style is Style.INLINE and loop.turn.acquire(timeout=CLOSE_LIMIT):
                loop.turn.release()

    async def settle(self) -> None:
        """Wait until every queued `must_run` ticket has run; return at once if none waits and no transaction runs."""
        while self.state != "closed" and (self._current or self._queue.must_wait):
            # `must_run` tickets begin in their order: on a bus of one lane, all earlier ones have run before this one.
            # A bus that was reopened meanwhile has queued its safe states again, behind this one.
            last = Ticket(lambda _driver: None, Requester("", "", ""), limit=SAFE_STATE_LIMIT, must_run=True)
            await self.request(last).wait()

    @property
    def transactions(self) -> int:
        """The number of transactions that have begun."""
        return self._transactions.counted + self._lanes.begun

    @property
    def waited(self) -> float:
        """Seconds that tickets and leases waited for their turn, in total."""
        return self._transactions.waited

    @property
    def worked(self) -> float:
        """Seconds that transactions took, in total."""
        return self._transactions.worked

    def health(self) -> Mapping[str, Any]:
        """Return state, queue length and number of transactions, as a JSON object for operators."""
        health: dict[str, Any] = {"state": self.state, "queued": self._queue.depth, "transactions": self.transactions}
        if self.reason is not None:
            health["reason"] = self.reason
        if self._queue.lease is not None:
            health["leased"] = True
        if advice := getattr(self.driver, "advice", ()):
            health["advice"] = [{"finding": finding, "cure": cure} for finding, cure in advice]
        return health

    def known(self, owner: Callable[[str], Any] = str) -> KnownOutputs:
        """Return the known states of the outputs, for observers and lists; disturbs nothing.

        Lines that the driver holds are read where that takes a plain call, unless a task has the bus for itself; of
        others the level is the one that was last driven or read. `owner` gets the session that has set an output.
        """
        if self.state not in ("ready", "wedged"):
            return KnownOutputs(f"bus {self.bus_id} is {self.state}: {self.reason or 'not open yet'}")
        # Copied in one step: threads of the bus may change them.
        levels = {**self.guard.levels.copy(), **self.guard.seen.copy()}
        levels = {output: level for output, level in levels.items() if level != "input"}
        asked, failed = self._ask_held()
        owners = self._driven.owners()
        left = self.guard.left.copy()
        return KnownOutputs(
            None,
            {
                output: OutputState(
                    None if output in failed else asked.get(output, levels.get(output)),
                    owner(owners[output]) if output in owners else None,
                    output in left,
                    output in asked,
                    failed.get(output),
                )
                for output in {*levels, *asked, *failed, *owners, *left}
            },
        )

    def _ask_held(self) -> tuple[dict[Hashable, SignalLevel], dict[Hashable, str]]:
        """Return the levels of the lines that the driver holds, and why some could not be read."""
        levels: dict[Hashable, SignalLevel] = {}
        failed: dict[Hashable, str] = {}
        held = getattr(self.driver, "held", None)
        if held is None or not self._lanes.inline or self.state != "ready" or self._queue.lease is not None:
            return levels, failed
        try:
            for line in called(lambda: [*held()]):
                try:
                    levels[line] = called(self.driver.get, line)  # type: ignore[attr-defined]
                except Raised as raised:
                    if not isinstance(raised.error, RpcError):
                        raise
                    failed[line] = raised.error.message
        except Raised as raised:  # a bug in the driver: the bus must crash on it, not its observer
            self._lanes.fail(raised.error)
        return levels, failed

    @property
    def queued(self) -> int:
        """The number of tickets that wait, without the `must_run` ones."""
        return self._queue.depth

    def _end_in_time(self, limit: Limit) -> Ticket:
        """Queue the transaction that brings a line to its safe state because it was on for long enough; record that.

        The line has no holder then: the end of a pulse, or an undo, leaves it safe.
        """
        now, line, times = trio.lowlevel.current_clock().current_time, limit.signal.output, limit.times
        assert times is not None, "it is overdue"
        holder = self._driven.holder(line)
        fields = {"reason": times.why(limit.signal.bounds), **({} if holder is None else {"session_id": holder})}

        def op(_face: Any) -> Any:
            # It may have gone off while the ticket waited.
            if times.due > now():
                return None
            # Also a line with `hold = "keep"`.
            return WentSafe(self.guard.face.halt([line]), None, line, "limit.max_on", fields)

        ticket = Ticket(op, Requester("", "", ""), limit=SAFE_STATE_LIMIT, must_run=True)
        ticket.asked_at = trio.current_time()
        self._queue.put(ticket)
        self._lanes.wake()
        return ticket

    # --- the actor: lanes, transactions, opening and closing

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the driver and serve until cancelled; a transaction in flight then finishes first.

        Raises what the driver raised: HearthError when the device cannot be opened, anything else for a bug.
        Whatever way this ends, no ticket is left without an answer.
        """
        self._transactions.ownership.token = trio.lowlevel.current_trio_token()
        try:
            if isinstance(self.driver, BaseDriver):
                self.driver.halted = self._halt_flag.halted
            await open_driver(self.driver)
            users: Sequence[Joined] = ()
            try:
                async with trio.open_nursery() as nursery:
                    # A pump that raises, because the device has gone, cancels the lanes and so brings the bus down. A
                    # transaction in flight still finishes first: its lane waits shielded.
                    nursery.start_soon(self.driver.pump)
                    users = self._lanes.start(nursery)
                    self.guard.opened()
                    # Queue safe states before the bus is ready, so that they run before any new request.
                    self._retry_safe_states()
                    if self.guard.timed:
                        for limit in self.guard.overdue(trio.current_time()):
                            self._end_in_time(limit)
                        nursery.start_soon(keep_lines, self.guard, self._end_in_time)
                    if not self._abandoned:
                        self.state, self.reason = "ready", None
                    task_status.started()
            except BaseException as error:
                # Before the driver is closed: closing may take long, and no requester has to wait for it.
                self._down(error)
                raise
            finally:
                self._end_loops()
                await close_driver(self.bus_id, self.driver, [*users, *self._loops], wait=not self._abandoned)
        except BaseException as error:
            # For a failure of `open` or `close` too, which the handler inside has not seen.
            self._down(error)
            raise
        self.state = "closed"

    def _retry_safe_states(self) -> None:
        """Queue the safe states of sessions that ended while the device was not there, and of an earlier run."""
        if self._halt_flag.halted or HALT in self._driven.pending:
            self.halt()
        for session_id in sorted(self._driven.pending - {HALT}):
            if self._queue.safe_state_ticket(session_id) is None:
                self.make_safe(session_id, unattended=True)

    def _down(self, error: BaseException) -> None:
        """Refuse everything: until the bus is reopened after a failure, for good after a cancellation."""
        if isinstance(error, Exception) and self.state != "closed":
            # A failure: the supervisor opens the bus again, and `must_run` tickets stay queued until then.
            cause = sole(error)
            self.state = "down"
            self._held = cause if isinstance(cause, ResourceBusy) else None
            self.reason = str(cause) if isinstance(cause, HearthError) else f"it crashed: {type(cause).__name__}"
        else:
            self.state, self.reason = "closed", self.reason or "the runtime is ending"
        self._refuse_queued(for_good=self.state == "closed")

    def _refuse_queued(self, *, for_good: bool = False) -> None:
        self._lanes.recall()
        for ticket in self._queue.refuse_all(for_good=for_good):
            self._transactions.finish(ticket, error=self.unavailable(ticket.requester))

    def abandon(self) -> None:
        """Stop waiting for transactions that have not returned, because the process must end; their effect is unknown.

        Nothing begins on this bus any more: a transaction that has not returned may still be moving the hardware, or
        the device is not there and `must_run` tickets would wait for ever. A ready bus without a running transaction is
        left as it is: it may still have to bring outputs to their safe state.
        """
        self._given_up = True
        for pause in self._pauses:
            pause.cancel()
        self._lanes.recall()
        if self._lanes.running:
            self.reason = "the runtime ended before its last transaction returned"
        elif self.state == "ready":
            return
        # Set before anything is cancelled: the lanes that wake up must see it, and answer with effect "unknown".
        self._abandoned = True
        self.state, self.reason = "closed", self.reason or "the runtime ended before it was open"
        self._refuse_queued(for_good=True)
        self._lanes.give_up()

    def overdue(self, ticket: Ticket) -> None:
        """Note that a transaction is past its limit. A pool serves on while one of its lanes is free."""
        self._overdue += 1
        if self._overdue < self.driver.width or self._abandoned:
            return
        self.state = "wedged"
        self.reason = f"a transaction has not returned within its limit of {ticket.limit * 1000:.0f} ms"
        self._audit(
            "bus.wedged",
            bus=self.bus_id,
            reason=self.reason,
            session_id=ticket.requester.session_id,
            task_id=ticket.requester.task_id,
        )
        self._refuse_queued()

    def back(self) -> None:
        """Note that an overdue transaction has returned or was given up: a pool, or a bus of one lane, serves again."""
        self._overdue -= 1
        if self.state == "wedged" and not self._abandoned:
            self.state, self.reason = "ready", None
            self._audit("bus.reopened", bus=self.bus_id, reason="the overdue transaction returned")

    def _unprepare(self, ticket: Ticket) -> None:
        """Undo `_prepare` for a plain ticket that is taken back."""
        self._current.remove(ticket)
        self._transactions.ownership.disown(ticket)


async def make_safe(
    buses: Iterable[Bus], session_id: str, until: float, *, unattended: bool, hands_over: bool
) -> list[Any]:
    """Bring the outputs that a session drove, on all buses, to their safe state; return the reports, for the audit log.

    Waits no longer than `until` (Trio time) for a bus that is busy, or whose device is not there: the ticket then stays
    queued, and the bus records its outcome. With `unattended` the buses record the outcome in any case.
    """
    done: list[Any] = []
    tickets: list[SafeStateTicket] = []
    for bus in buses:
        # Each session ends twice, and drives few of the buses, or none.
        if any(bus.traces):
            ticket = bus.make_safe(session_id, unattended=unattended, hands_over=hands_over)
            if ticket is not None:
                tickets.append(ticket)
    if not tickets:
        return done
    # All tickets are queued before the first wait, so the buses work at the same time.
    with trio.move_on_at(until):
        for ticket in tickets:
            await ticket.wait()
    for ticket in tickets:
        if not ticket.filled:
            # It has not run in time. No task waits for it from here on, so the bus records its outcome.
            ticket.unattended = True
            continue
        try:
            done.extend(await ticket.get())
        except RpcError as error:
            done.append({"error": error.message})
    return done
