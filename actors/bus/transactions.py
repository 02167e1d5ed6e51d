"""What happens around each transaction of a bus, whichever lane runs it: before, during and after its operation.

`queue` decides when a transaction begins, and a lane (`lanes`, `threads`) how its operation is called. Here is what all
lanes have in common:

    prepare    the session that is about to drive an output becomes its holder, or the halt refuses it (`ownership`)
    run        the operation gets the guarded driver; a step of risk 0 gets one that only reads
    answer     the ticket is answered, exactly once; clamped values, first levels and safe states are recorded

`in_place` is all three for a driver of style INLINE, in the turn of its requester.

An RpcError is the outcome of a transaction. Any other exception is a bug in a driver or a tool: the ticket is answered
with InternalError, so that its requester does not wait for ever, and the bug is returned to the lane, which ends the
bus by it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import trio
from attrs import define

from hearth._util.foreign import Raised, called
from hearth.actors.bus.face import Grip
from hearth.actors.bus.outputs import has_error
from hearth.actors.bus.ownership import Ownership
from hearth.actors.bus.queue import SafeStateTicket, State, WentSafe
from hearth.errors import DeviceError, InternalError, RpcError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from hearth.actors.bus.guard import BusGuard
    from hearth.actors.bus.outputs import DrivenOutputs
    from hearth.actors.bus.outputs_file import OutputsFile
    from hearth.actors.bus.queue import HaltFlag, Ticket, TicketQueue
    from hearth.errors import Effect


@define(eq=False)
class Returned:
    """A transaction that has ended in a lane: its value, or its error."""

    ticket: Ticket
    ended_at: float
    """Trio time."""
    value: Any = None
    error: BaseException | None = None
    late: bool = False
    """True if it was past its limit."""


class Transactions:
    """The transactions of one bus. `audit(event, **fields)` records; `halt` queues the outputs' halt again."""

    def __init__(
        self,
        bus_id: str,
        guard: BusGuard,
        driven: DrivenOutputs,
        queue: TicketQueue,
        *,
        halt_flag: HaltFlag,
        outputs_file: OutputsFile,
        audit: Callable[..., None],
        halt: Callable[[], None],
    ) -> None:
        self._bus_id = bus_id
        self._guard = guard
        self._driven = driven
        self._queue = queue
        self._halt_flag = halt_flag
        self._outputs_file = outputs_file
        self._audit = audit
        self._halt = halt
        self.ownership = Ownership(driven, guard, halt_flag, partial(self.given_up, "none"))
        guard.owner, guard.halt = self.ownership, self._check_halt
        self.counted = 0
        """The number of transactions that have ended."""
        self.waited = 0.0
        """Seconds that tickets and leases waited for their turn, in total."""
        self.worked = 0.0
        """Seconds that transactions took, in total."""

    def _check_halt(self, _output: Hashable, _level: object) -> None:
        """Refuse, for the guard, an effect while halted, and one of a transaction that is older than a reset.

        Raises Halted.
        """
        flag, ticket = self._halt_flag, self._guard.ticket
        if flag.since is not None or (ticket is not None and ticket.risk and ticket.requester.halts != flag.count):
            raise flag.error()

    # --- a driver of style INLINE, in the turn of the requester

    @trio.lowlevel.enable_ki_protection
    def in_place(self, ticket: Ticket, op: Callable[[Any], Any]) -> BaseException | None:
        """Run a transaction of an INLINE driver at once, which saves two turns of the loop; return a bug it has shown.

        The guarantee is the same as in the bus's own turn: a plain call has no checkpoint, so no cancellation can reach
        it and no other task runs during it (docs/decisions/0002). Nor can a Ctrl-C interrupt it in an embedding
        program.
        """
        ticket.state = State.BEGUN
        self.counted += 1
        begun = time.perf_counter()
        try:
            value = called(self.run, ticket, self.ownership.enter(ticket, op))
            if type(value) is WentSafe:
                value = self._went_safe(ticket, value)
        except RpcError as error:
            self.finish(ticket, error=error)
        except Raised as raised:
            if not isinstance(raised.error, RpcError):
                # A bug in the driver: the bus must crash on it, not its requester.
                self.finish(ticket, error=self._crashed(raised.error))
                return raised.error
            self.finish(ticket, error=raised.error)
        else:
            # The short form of `finish`, on the hot path: there is no error, and safe states never run in place.
            ticket.state = State.DONE
            if self._guard.clamped:
                self._note_clamped(ticket)
            if self._guard.remembered:
                self._keep_levels()
            ticket.fill(value)
        finally:
            self.worked += time.perf_counter() - begun
        return None

    # --- called by lanes

    def grant(self, ticket: Ticket) -> None:
        """Grant a lease."""
        ticket.begun_at = trio.current_time()
        self.waited += ticket.begun_at - ticket.asked_at
        ticket.state = State.BEGUN
        self._queue.grant(ticket)
        ticket.fill(None)

    def prepare(self, ticket: Ticket) -> bool:
        """Do what comes before a transaction; return False if that has refused the ticket, which is then answered.

        Raises what a bug raises.
        """
        assert ticket.op is not None, "a lease is granted"
        try:
            if isinstance(ticket, SafeStateTicket):
                ticket.begin(self._driven.of(ticket.requester.session_id))
            else:
                ticket.op = self.ownership.enter(ticket, ticket.op)
        except RpcError as error:
            self.finish(ticket, error=error)
            return False
        except BaseException as error:
            self.finish(ticket, error=self._crashed(error))
            raise
        return True

    def run(self, ticket: Ticket, op: Callable[[Any], Any]) -> Any:
        """Run the operation of a transaction, whose ticket the guard knows until its end: it may be a coroutine's.

        In the transaction's own turn, so that a control loop's thread never meets a ticket that still waits for one.
        """
        guard = self._guard
        whole = ticket.risk or (ticket.must_run and not ticket.only_reads)
        face = guard.face if whole else guard.reader
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
            self._guard.ticket = None
            grip.end()

    def run_in_thread(self, ticket: Ticket) -> Any:
        """Run a prepared transaction, in a thread; return its value, or a coroutine. Raises what it raises."""
        # The halt may have come since `prepare`. Tickets that are not plain begin as soon as they are prepared.
        if ticket.risk and ticket.plain and (refusal := self._halt_flag.refusal(ticket.requester)) is not None:
            raise refusal
        assert ticket.op is not None, "a lease is granted"
        try:
            return self.run(ticket, ticket.op)
        finally:
            if self._guard.clamped:
                # Before the next transaction begins.
                ticket.clamped, self._guard.clamped = self._guard.clamped, []

    def answer(self, returned: Returned) -> BaseException | None:
        """Answer a ticket whose transaction has ended in a lane, or is given up; return a bug that it has shown."""
        ticket, value, error = returned.ticket, returned.value, returned.error
        self.counted += 1
        self.waited += ticket.begun_at - ticket.asked_at
        self.worked += returned.ended_at - ticket.begun_at
        if returned.late and error is None:
            error = self._too_late(returned)
        try:
            if error is None and type(value) is WentSafe:
                value = self._went_safe(ticket, value)
        except RpcError as unsafe:
            error = unsafe
        if error is None or isinstance(error, RpcError):
            self.finish(ticket, value, error=error)
            return None
        self.finish(ticket, error=self._crashed(error))
        return error

    def finish(self, ticket: Ticket, value: Any = None, *, error: RpcError | None = None) -> None:
        """Answer a ticket, after all that its outcome brings has been recorded."""
        ticket.state = State.DONE
        if error is not None and self.ownership.failed(ticket, error) and self._halt_flag.halted:
            self._halt()
        if isinstance(ticket, SafeStateTicket):
            # A halt whose outputs all wait for their turn in the stop sequence has nothing to report.
            report = ticket.unattended and (error is not None or bool(ticket.outputs))
            self._driven.settle(ticket.requester.session_id, ticket.outputs, value, error, report=report)
        if self._guard.clamped or ticket.clamped:
            self._note_clamped(ticket)
        if self._guard.remembered:
            self._keep_levels()
        if error is None:
            ticket.fill(value)
        else:
            ticket.fail(error)

    # --- outcomes

    def _went_safe(self, ticket: Ticket, outcome: WentSafe) -> Any:
        """Record that a transaction brought an output to its safe state. Raises DeviceError if it did not."""
        output = ticket.drives if outcome.output is None else outcome.output
        if has_error(outcome.reports):
            text = f"bus {self._bus_id}: output {output} is not safe: {outcome.reports}"
            raise DeviceError(text, effect="unknown", data={"bus": self._bus_id})
        self._driven.is_safe([output], outcome.reports)
        if outcome.reports:
            self._audit(outcome.event, bus=self._bus_id, outputs=[output], safe=outcome.reports, **outcome.fields)
        return outcome.value

    def _note_clamped(self, ticket: Ticket) -> None:
        """Record the values that a transaction has written in place of others."""
        if self._guard.clamped:
            ticket.clamped, self._guard.clamped = self._guard.clamped, []
        whose = ticket.requester
        ids = {"session_id": whose.session_id, "task_id": whose.task_id}
        self._audit("limit.clamped", bus=self._bus_id, **ids, clamped=ticket.clamped)

    def _keep_levels(self) -> None:
        """Have the outputs file take over changed levels, and record the first drives that no level came before."""
        self._outputs_file.touch()
        firsts = self._guard.firsts
        while firsts:
            whose, output = firsts.pop(0)
            ids = {} if whose is None else {"session_id": whose.session_id, "task_id": whose.task_id}
            self._audit("limit.first", bus=self._bus_id, **ids, first=output)

    def _too_late(self, returned: Returned) -> TimedOut | None:
        """Return the error of a transaction that returned after its limit, with the result."""
        ticket, value = returned.ticket, returned.value
        if isinstance(ticket, SafeStateTicket):
            return None  # outputs that are safe late are safe, and the requester must learn which ones they are
        # The effect has happened. The requester gets an error all the same, because it asked for a limit.
        took, limit = round((trio.current_time() - ticket.begun_at) * 1000, 3), ticket.limit * 1000
        result = dict(value) if isinstance(value, Mapping) else None
        return TimedOut(
            f"the transaction on {self._bus_id} took {took:.0f} ms, its limit is {limit:.0f} ms",
            effect="done",
            data={"bus": self._bus_id, "took_ms": took, "limit_ms": limit, "result": result},
        )

    def given_up(self, effect: Effect = "unknown") -> DeviceError:
        """Return the error of a transaction for which the end of the runtime does not wait."""
        text = f"the runtime ended before the transaction on {self._bus_id} returned"
        return DeviceError(text, effect=effect, data={"bus": self._bus_id})

    def _crashed(self, error: BaseException) -> InternalError:
        text = f"the transaction ended in {type(error).__name__}; bus {self._bus_id} is reopened"
        return InternalError(text, data={"effect": "unknown", "bus": self._bus_id})
