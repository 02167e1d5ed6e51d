"""The bus actor: the only caller of one driver. It runs each transaction whole.

A transaction runs in the bus's own task or thread, never in the requester's, so that cancelling a requester cannot
reach it. (An INLINE transaction may run in place in the requester's turn, where no checkpoint lets a cancellation in.)
The bus takes one ticket at a time (a pool: `width` at a time), runs it whole, and answers it. It does not know what a
transaction means. See `queue` for the contract of tickets, and `threads` for the one of drivers that block.

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

import math
import time
from collections.abc import Mapping
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

import trio

from hearth._util.exceptions import sole
from hearth.actors.bus.face import Grip
from hearth.actors.bus.guard import BusGuard, keep_lines, retry_after
from hearth.actors.bus.outputs import HALT, DrivenOutputs, has_error
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.actors.bus.ownership import Ownership
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
from hearth.actors.bus.threads import BusThreads, Returned, ThreadLanes
from hearth.actors.bus.workers import CLOSE_LIMIT, TaskWorker, ThreadWorker, Worker, close_driver, open_driver
from hearth.drivers.base import BaseDriver, Style
from hearth.errors import (
    DeviceError,
    HearthError,
    InternalError,
    InvalidParams,
    LimitViolated,
    ResourceBusy,
    RpcError,
    TimedOut,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from hearth.actors.bus.limit import Limit
    from hearth.actors.bus.loop_thread import LoopThread
    from hearth.actors.bus.workers import Joined
    from hearth.actors.mailbox import Slot
    from hearth.drivers.base import Driver
    from hearth.drivers.signals import SignalLevel
    from hearth.errors import Effect

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
        # What transactions get instead of the driver.
        self._face = self.guard.face
        self._reader = self.guard.reader
        self.state: BusState = "opening"
        self.reason: str | None = None
        self._halt_flag = halt_flag or HaltFlag()
        self.guard.halt = self._check_halt
        self._held: ResourceBusy | None = None
        """Set while the bus is down because another process holds its device."""
        self._queue = TicketQueue(queue_bound, self._unprepare)
        self._audit = audit
        # Lanes that wait for a ticket. `_wake` reschedules one of them, which then takes the next ticket itself.
        self._idle: list[trio.lowlevel.Task] = []
        # The tickets that lanes run; of a bus with threads, those within their reach too, until they are answered.
        self._current: list[Ticket] = []
        self._inline = driver.style is Style.INLINE
        # Set by a transaction that ran in place: the bus crashes on it in its own turn, not in the requester's.
        self._crash: Exception | None = None
        self._outputs_file = outputs_file or OutputsFile()
        self._driven = DrivenOutputs(bus_id, self._outputs_file, audit, self.guard.kept)
        self._ownership = Ownership(self._driven, self.guard, self._halt_flag, partial(self._given_up_error, "none"))
        self.guard.owner = self._ownership
        self._counted = 0
        """The number of transactions that have begun, without those that are under way in threads."""
        self.waited = 0.0
        """Seconds that tickets and leases waited for their turn, in total."""
        self.worked = 0.0
        """Seconds that transactions took, in total."""
        self._overdue = 0
        self._waits: set[trio.CancelScope] = set()
        self._workers: list[Worker] = []
        # The lanes of a driver that blocks.
        self._lanes = self._thread_lanes() if driver.style is Style.THREAD else None
        self._abandoned = False
        self._loops: list[LoopThread] = []
        # The worker of an INLINE driver while loops use it too.
        self._beside: ThreadWorker | None = None
        # The waits of `take_back`, which `abandon` ends.
        self._pauses: set[trio.CancelScope] = set()
        self._given_up = False

    # --- called by requesters: the outputs file

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

    # --- called by requesters, synchronous: admission, leases, safe states, health

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
        if self._inline and self._queue.would_begin(ticket) and self.state == "ready" and self._crash is None:
            # It begins and ends within this call, so nothing can interrupt it or overlap with it.
            self._run_in_place(ticket)
            return ticket
        ticket.asked_at = trio.current_time()
        try:
            self._queue.put(ticket)
        except ResourceBusy as error:
            raise self._explain(error.message, "queue full", ticket.requester) from None
        self._wake()
        return ticket

    @trio.lowlevel.enable_ki_protection
    def _run_in_place(self, ticket: Ticket) -> None:
        """Run a transaction of an INLINE driver at once, in the requester's turn, which saves two turns of the loop.

        The guarantee is the same as in the bus's own turn: a plain call has no checkpoint, so no cancellation can reach
        it and no other task runs during it (docs/decisions/0002). Nor can a Ctrl-C interrupt it in an embedding
        program.
        """
        op = ticket.op
        if op is None:
            ticket.asked_at = trio.current_time()
            self._grant(ticket)
            return
        ticket.state = State.BEGUN
        self._counted += 1
        begun = time.perf_counter()
        try:
            value = self._run_op(ticket, self._ownership.enter(ticket, op))
            if type(value) is WentSafe:
                value = self._went_safe(ticket, value)
        except RpcError as error:
            self._finish(ticket, error=error)
        except Exception as error:  # noqa: BLE001  a bug in the driver: the bus must crash on it, not its requester
            self._finish(ticket, error=self._crash_error(error))
            self._crash = error
            self._wake()
        else:
            # The short form of `_finish`, on the hot path: there is no error, and safe states never run in place.
            ticket.state = State.DONE
            if self.guard.clamped:
                self._note_clamped(ticket)
            if self.guard.remembered:
                self._keep_levels()
            ticket.fill(value)
        finally:
            self.worked += time.perf_counter() - begun

    def in_place(self, requester: Requester) -> bool:
        """Return True if an ordinary transaction of `requester`, requested now, would run within `request`."""
        return self._inline and self.state == "ready" and self._crash is None and self._queue.would_begin_for(requester)

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
        self._wake()

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
        self._recall()
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
            self._finish(ticket, error=self.unavailable(requester))
            return ticket
        self._queue.put(ticket)
        self._wake()
        return ticket

    def halt(self, apart: frozenset[Hashable] = frozenset(), also: Iterable[Hashable] = ()) -> None:
        """Queue the transaction that brings every driven output, and those of `also`, to its safe state, for a halt.

        The outputs belong to the halt from now on: neither the end of a session nor an undo moves them. Those that are
        `apart` are left for a later call. A bus that is wedged, or not there, makes them safe as soon as it can.
        """
        self._recall()
        if self._driven.halt(also) and self.state != "closed":
            ticket = HaltTicket(Requester(HALT, "", ""), limit=SAFE_STATE_LIMIT, apart=apart)
            ticket.asked_at = trio.current_time()
            self._queue.put(ticket)
            self._wake()

    def drive(self, output: Hashable, level: object, requester: Requester, *, risk: int = 0) -> Ticket:
        """Queue a transaction that drives an output and that no guard refuses, for a stop sequence; return its ticket.

        The output is one of the board's signals, and goes to its level in one step.
        """

        def op(_face: Any) -> Any:
            return self._face.force(output, level)

        return self.request(Ticket(op, requester, limit=SAFE_STATE_LIMIT, risk=risk, drives=output, must_run=not risk))

    def _check_halt(self, _output: Hashable, _level: object) -> None:
        """Refuse, for the guard, an effect while halted, and one of a transaction that is older than a reset.

        Raises Halted.
        """
        flag, ticket = self._halt_flag, self.guard.ticket
        if flag.since is not None or (ticket is not None and ticket.risk and ticket.requester.halts != flag.count):
            raise flag.error()

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
        if self.driver.style is Style.INLINE and self._beside is None:
            # No transaction runs now: it would have this thread.
            self._beside, self._inline = ThreadWorker(), False
        sharing = self._beside or self._lanes
        assert sharing is not None, "a driver that is not ASYNC"
        loop.turn = sharing.share()
        self._loops.append(loop)

    def reclaim(self, loop: LoopThread) -> None:
        """End what `lend` began; no call of the loop is inside the driver. Idempotent."""
        if loop in self._loops:
            self._loops.remove(loop)
            self._end_sharing()

    def _end_sharing(self) -> None:
        """Let an INLINE driver be called in place again, once neither a loop nor a worker calls it."""
        if self._beside is not None and not self._loops and not self._current:
            self._beside.close()
            self._beside, self._inline = None, True

    def _end_loops(self) -> None:
        """End the loops before the driver is closed, and wait until none of them is inside it."""
        for loop in self._loops:
            loop.bar(f"bus {self.bus_id} is {self.state}: {self.reason}")
        if self._beside is not None:
            # An INLINE call takes microseconds. That of another driver is waited for where the driver is closed.
            turn = self._beside.share()
            if turn.acquire(timeout=CLOSE_LIMIT):
                turn.release()

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
        return self._counted + (0 if self._lanes is None else self._lanes.begun)

    def health(self) -> Mapping[str, Any]:
        """Return state, queue length and number of transactions, as a JSON object for operators."""
        health: dict[str, Any] = {"state": self.state, "queued": self._queue.depth, "transactions": self.transactions}
        if self.reason is not None:
            health["reason"] = self.reason
        if self._queue.lease is not None:
            health["leased"] = True
        return health

    def levels(self) -> Mapping[int, SignalLevel]:
        """Return the levels of the lines or signals of a chip that are known, for observers; disturbs nothing.

        Lines that the driver holds are read where that takes a plain call, unless a task has the bus for itself; of
        others the level is the one that was last driven.
        """
        # Copied in one step: threads of the bus may change it.
        known: dict[int, SignalLevel] = {
            output: level
            for output, level in self.guard.levels.copy().items()
            if type(output) is int and level != "input"
        }
        held = getattr(self.driver, "held", None)
        if held is None or not self._inline or self.state != "ready" or self._crash or self._queue.lease is not None:
            return known
        try:
            for line in held():
                try:
                    known[line] = self.driver.get(line)  # type: ignore[attr-defined]
                except RpcError:
                    known.pop(line, None)
        except Exception as error:  # noqa: BLE001  a bug in the driver: the bus must crash on it, not its observer
            self._crash = error
            self._wake()
        return known

    def holder(self, output: Hashable) -> str | None:
        """Return the id of the session that set an output last and has not ended, or None."""
        return self._driven.holder(output)

    # --- used by requesters and by the lanes --------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """The number of tickets that wait, without the `must_run` ones."""
        return self._queue.depth

    def _grant(self, ticket: Ticket) -> None:
        ticket.begun_at = trio.current_time()
        self.waited += ticket.begun_at - ticket.asked_at
        ticket.state = State.BEGUN
        self._queue.grant(ticket)
        ticket.fill(None)

    def _wake(self) -> None:
        """Let an idle lane look at the queue; call it after each change there."""
        if self._lanes is not None:
            self._lanes.wake()
        elif self._idle:
            # The lane leaves the list here and not when it runs, so it is never rescheduled twice. Lanes that are busy
            # need no wake-up: they look at the queue when they have finished.
            trio.lowlevel.reschedule(self._idle.pop())

    def _face_for(self, ticket: Ticket) -> Any:
        """Return the guarded driver for a transaction; a step of risk 0 gets the one that only reads."""
        whole = ticket.risk or (ticket.must_run and not ticket.only_reads)
        return self._face if whole else self._reader

    def _run_op(self, ticket: Ticket, op: Callable[[Any], Any]) -> Any:
        """Run the operation of a transaction, whose ticket the guard knows until its end: it may be a coroutine's.

        In the transaction's own turn, so that a control loop's thread never meets a ticket that still waits for one.
        """
        guard, face = self.guard, self._face_for(ticket)
        if guard.outputs is None:
            return op(face)
        guard.ticket, value, grip = ticket, None, Grip(face)
        try:
            value = op(grip)
        finally:
            if type(value) is not CoroutineType:
                guard.ticket = None
                grip.end()
        return self._awaited(value, grip) if type(value) is CoroutineType else value

    async def _awaited(self, value: CoroutineType[Any, Any, Any], grip: Grip) -> Any:
        try:
            return await value
        finally:
            self.guard.ticket = None
            grip.end()

    def _went_safe(self, ticket: Ticket, outcome: WentSafe) -> Any:
        """Record that a transaction brought an output to its safe state. Raises DeviceError if it did not."""
        output = ticket.drives if outcome.output is None else outcome.output
        if has_error(outcome.reports):
            text = f"bus {self.bus_id}: output {output} is not safe: {outcome.reports}"
            raise DeviceError(text, effect="unknown", data={"bus": self.bus_id})
        self._driven.is_safe([output], outcome.reports)
        if outcome.reports:
            self._audit(outcome.event, bus=self.bus_id, outputs=[output], safe=outcome.reports, **outcome.fields)
        return outcome.value

    def _note_clamped(self, ticket: Ticket) -> None:
        """Record the values that a transaction has written in place of others."""
        if self.guard.clamped:
            ticket.clamped, self.guard.clamped = self.guard.clamped, []
        whose = ticket.requester
        ids = {"session_id": whose.session_id, "task_id": whose.task_id}
        self._audit("limit.clamped", bus=self.bus_id, **ids, clamped=ticket.clamped)

    def _keep_levels(self) -> None:
        """Have the outputs file take over changed levels, and record the first drives that no level came before."""
        self._outputs_file.touch()
        firsts = self.guard.firsts
        while firsts:
            whose, output = firsts.pop(0)
            ids = {} if whose is None else {"session_id": whose.session_id, "task_id": whose.task_id}
            self._audit("limit.first", bus=self.bus_id, **ids, first=output)

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
            return WentSafe(self._face.halt([line]), None, line, "limit.max_on", fields)

        ticket = Ticket(op, Requester("", "", ""), limit=SAFE_STATE_LIMIT, must_run=True)
        ticket.asked_at = trio.current_time()
        self._queue.put(ticket)
        self._wake()
        return ticket

    def _crash_error(self, error: BaseException) -> InternalError:
        text = f"the transaction ended in {type(error).__name__}; bus {self.bus_id} is reopened"
        return InternalError(text, data={"effect": "unknown", "bus": self.bus_id})

    def _finish(self, ticket: Ticket, value: Any = None, *, error: RpcError | None = None) -> None:
        ticket.state = State.DONE
        if error is not None and self._ownership.failed(ticket, error) and self._halt_flag.halted:
            self.halt()
        if isinstance(ticket, SafeStateTicket):
            # A halt whose outputs all wait for their turn in the stop sequence has nothing to report.
            report = ticket.unattended and (error is not None or bool(ticket.outputs))
            self._driven.settle(ticket.requester.session_id, ticket.outputs, value, error, report=report)
        if self.guard.clamped or ticket.clamped:
            self._note_clamped(ticket)
        if self.guard.remembered:
            self._keep_levels()
        if error is None:
            ticket.fill(value)
        else:
            ticket.fail(error)

    # --- the actor: lanes, transactions, opening and closing

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the driver and serve until cancelled; a transaction in flight then finishes first.

        Raises what the driver raised: HearthError when the device cannot be opened, anything else for a bug.
        Whatever way this ends, no ticket is left without an answer.
        """
        self._ownership.token = trio.lowlevel.current_trio_token()
        try:
            if isinstance(self.driver, BaseDriver):
                self.driver.halted = self._halt_flag.halted
            await open_driver(self.driver)
            users: list[Joined] = []
            try:
                async with trio.open_nursery() as nursery:
                    # A pump that raises, because the device has gone, cancels the lanes and so brings the bus down. A
                    # transaction in flight still finishes first: its lane waits shielded.
                    nursery.start_soon(self.driver.pump)
                    if self._lanes is not None:
                        threads = BusThreads(
                            self.driver.width, self._queue.ahead, self._run_in_thread, device=self.driver.shares
                        )
                        users.append(threads)
                        nursery.start_soon(self._lanes.attend, threads)
                        nursery.start_soon(self._lanes.hand_over)
                    for _ in range(self.driver.width if self._lanes is None else 0):
                        nursery.start_soon(self._serve, None if self._inline else TaskWorker(nursery))
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
        self._crash = None
        self._refuse_queued(for_good=self.state == "closed")

    def _refuse_queued(self, *, for_good: bool = False) -> None:
        self._recall()
        for ticket in self._queue.refuse_all(for_good=for_good):
            self._finish(ticket, error=self.unavailable(ticket.requester))

    def abandon(self) -> None:
        """Stop waiting for transactions that have not returned, because the process must end; their effect is unknown.

        Nothing begins on this bus any more: a transaction that has not returned may still be moving the hardware, or
        the device is not there and `must_run` tickets would wait for ever. A ready bus without a running transaction is
        left as it is: it may still have to bring outputs to their safe state.
        """
        self._given_up = True
        for pause in self._pauses:
            pause.cancel()
        self._recall()
        if self._current if self._lanes is None else self._lanes.running:
            self.reason = "the runtime ended before its last transaction returned"
        elif self.state == "ready":
            return
        # Set before anything is cancelled: the lanes that wake up must see it, and answer with effect "unknown".
        self._abandoned = True
        self.state, self.reason = "closed", self.reason or "the runtime ended before it was open"
        self._refuse_queued(for_good=True)
        for scope in self._waits:
            scope.cancel()
        for worker in self._workers:
            worker.abandon()
        if self._lanes is not None:
            self._lanes.give_up(self._given_up_error)

    @trio.lowlevel.enable_ki_protection
    async def _serve(self, worker: Worker | None) -> None:
        """One lane: take the next ticket, run it whole, answer it."""
        take = self._queue.take
        if worker is not None:
            self._workers.append(worker)
        try:
            while True:
                if self._crash is not None:
                    # A transaction that ran in place has crashed. Raised here, it ends this bus and not its requester.
                    error, self._crash = self._crash, None
                    raise error
                if worker is not None or self._beside is not None:
                    # The wait for a transaction is shielded, so a busy bus notices its own cancellation only here.
                    await trio.lowlevel.checkpoint_if_cancelled()
                ticket = take()
                if ticket is None:
                    await self._wait_for_ticket()
                    continue
                if ticket.op is None:
                    self._grant(ticket)
                    continue
                await self._transaction(worker or self._beside, ticket, ticket.op)
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

    async def _transaction(self, worker: Worker | None, ticket: Ticket, op: Callable[[Any], Any]) -> None:
        """Run one transaction and answer its ticket, whatever happens."""
        ticket.state = State.BEGUN
        ticket.begun_at = trio.current_time()
        self.waited += ticket.begun_at - ticket.asked_at
        self._counted += 1
        self._current.append(ticket)
        try:
            if isinstance(ticket, SafeStateTicket):
                op = ticket.begin(self._driven.of(ticket.requester.session_id))
            else:
                op = self._ownership.enter(ticket, op)
            if worker is None:
                value = self._run_op(ticket, op)
            else:
                value = await self._watched(worker, ticket, op)
            if type(value) is WentSafe:
                value = self._went_safe(ticket, value)
        except RpcError as error:
            self._finish(ticket, error=error)
        except BaseException as error:
            # A bug in a driver or tool, which the supervisor will contain. The requester must not wait for ever.
            self._finish(ticket, error=self._crash_error(error))
            raise
        else:
            self._finish(ticket, value)
        finally:
            self._current.remove(ticket)
            self.worked += trio.current_time() - ticket.begun_at
            if self._beside is not None:
                self._end_sharing()

    async def _watched(self, worker: Worker, ticket: Ticket, op: Callable[[Any], Any]) -> Any:
        """Return the outcome of a transaction that takes time. Nothing interrupts it, not even this actor's end.

        Raises TimedOut, with effect "done" and the result, for a transaction that returned after its limit.
        """
        # The worker has its own thread or shielded task; this lane only waits for the slot.
        outcome: Slot[Any] = worker.submit(partial(self._run_op, ticket, op))
        if await self._returned(outcome, deadline=ticket.begun_at + ticket.limit):
            return await outcome.get()
        self._is_overdue(ticket)
        try:
            if not await self._returned(outcome):
                raise self._given_up_error()
            value = await outcome.get()
        finally:
            self._is_back()
        if (late := self._too_late(ticket, value)) is not None:
            raise late
        return value

    async def _returned(self, outcome: Slot[Any], *, deadline: float = math.inf) -> bool:
        """Wait for a transaction, shielded from this task's own cancellation; False if the deadline came first."""
        if self._abandoned:
            return outcome.filled
        # `abandon` cancels these scopes; nothing else ends the wait before the deadline.
        with trio.CancelScope(shield=True, deadline=deadline) as scope:
            self._waits.add(scope)
            try:
                await outcome.wait()
            finally:
                self._waits.discard(scope)
        return outcome.filled

    # --- transactions past their limit

    def _is_overdue(self, ticket: Ticket) -> None:
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

    def _is_back(self) -> None:
        """Note that an overdue transaction has returned or was given up: a pool, or a bus of one lane, serves again."""
        self._overdue -= 1
        if self.state == "wedged" and not self._abandoned:
            self.state, self.reason = "ready", None
            self._audit("bus.reopened", bus=self.bus_id, reason="the overdue transaction returned")

    def _too_late(self, ticket: Ticket, value: Any) -> TimedOut | None:
        """Return the error of a transaction that returned after its limit, with the result."""
        if isinstance(ticket, SafeStateTicket):
            return None  # outputs that are safe late are safe, and the requester must learn which ones they are
        # The effect has happened. The requester gets an error all the same, because it asked for a limit.
        took = round((trio.current_time() - ticket.begun_at) * 1000, 3)
        return TimedOut(
            f"the transaction on {self.bus_id} took {took:.0f} ms, its limit is {ticket.limit * 1000:.0f} ms",
            effect="done",
            data={"bus": self.bus_id, "took_ms": took, "limit_ms": ticket.limit * 1000, "result": _json(value)},
        )

    def _given_up_error(self, effect: Effect = "unknown") -> DeviceError:
        text = f"the runtime ended before the transaction on {self.bus_id} returned"
        return DeviceError(text, effect=effect, data={"bus": self.bus_id})

    # --- a bus with threads

    def _thread_lanes(self) -> ThreadLanes:
        return ThreadLanes(
            self._queue,
            self.driver.width,
            self._current,
            held=lambda output: bool(self._driven.holders(output)),
            prepare=self._prepare,
            grant=self._grant,
            answer=self._answer,
            overdue=self._is_overdue,
            back=self._is_back,
        )

    def _recall(self) -> None:
        """Take all tickets back that wait within reach of a thread and have not begun."""
        if self._lanes is not None:
            self._lanes.recall()

    def _prepare(self, ticket: Ticket) -> bool:
        """Do what comes before a transaction in a thread; return False if that has refused the ticket."""
        assert ticket.op is not None, "a lease is granted"
        try:
            if isinstance(ticket, SafeStateTicket):
                ticket.begin(self._driven.of(ticket.requester.session_id))
            else:
                ticket.op = self._ownership.enter(ticket, ticket.op)
        except RpcError as error:
            self._finish(ticket, error=error)
            return False
        except BaseException as error:
            self._finish(ticket, error=self._crash_error(error))
            raise
        return True

    def _unprepare(self, ticket: Ticket) -> None:
        """Undo `_prepare` for a plain ticket that is taken back."""
        self._current.remove(ticket)
        self._ownership.disown(ticket)

    def _run_in_thread(self, ticket: Ticket) -> Any:
        """Run a transaction, in a thread; return its value, or a coroutine. Raises what it raises."""
        # The halt may have come since `_prepare`. Tickets that are not plain begin as soon as they are prepared.
        if ticket.risk and ticket.plain and (refusal := self._halt_flag.refusal(ticket.requester)) is not None:
            raise refusal
        assert ticket.op is not None, "a lease is granted"
        try:
            return self._run_op(ticket, ticket.op)
        finally:
            if self.guard.clamped:
                # Before the next transaction begins.
                ticket.clamped, self.guard.clamped = self.guard.clamped, []

    def _answer(self, returned: Returned) -> BaseException | None:
        """Answer a ticket whose transaction has ended in a thread, or is given up; return a bug that it has shown."""
        ticket, value, error = returned.ticket, returned.value, returned.error
        self._counted += 1
        self.waited += ticket.begun_at - ticket.asked_at
        self.worked += returned.ended_at - ticket.begun_at
        if returned.late and error is None:
            error = self._too_late(ticket, value)
        try:
            if error is None and type(value) is WentSafe:
                value = self._went_safe(ticket, value)
        except RpcError as unsafe:
            error = unsafe
        if error is None or isinstance(error, RpcError):
            self._finish(ticket, value, error=error)
            return None
        # A bug in a driver or tool, which the supervisor will contain. The requester must not wait for ever.
        self._finish(ticket, error=self._crash_error(error))
        return error


async def make_safe(
    buses: Iterable[Bus], session_id: str, until: float, *, unattended: bool, hands_over: bool
) -> list[Any]:
    """Bring the outputs that a session drove, on all buses, to their safe state; return the reports, for the audit log.

    Waits no longer than `until` (Trio time) for a bus that is busy, or whose device is not there: the ticket then stays
    queued, and the bus records its outcome. With `unattended` the buses record the outcome in any case.
    """
    done: list[Any] = []
    asked = (bus.make_safe(session_id, unattended=unattended, hands_over=hands_over) for bus in buses)
    tickets = [ticket for ticket in asked if ticket is not None]
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


def _json(value: Any) -> Any:
    """Return the result of an overdue transaction if it is a JSON object, else None."""
    return dict(value) if isinstance(value, Mapping) else None
