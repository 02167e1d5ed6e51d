"""The bus actor: sole caller of one driver, and the place where transactions are indivisible.

A transaction runs in the bus's own task (or thread), never in the asker's, so that cancelling an asker cannot reach
it. The bus takes one ticket at a time (a pool: `width` at a time), runs it whole, and answers it. It keeps time over
each transaction: one that is past its limit marks the bus wedged, and since nothing may kill it, the bus waits for it
and turns new requests away with the reason. It brings the outputs that a session drove to their safe state when that
session has ended, and if the device is not there then, as soon as it is. What a transaction means, it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from hearth.actors.busfront import BusFront
from hearth.actors.ledger import Ledger
from hearth.actors.tickets import StandingTicket, State, Ticket, WentSafe
from hearth.actors.workers import Worker, close_driver, open_driver, open_worker
from hearth.errors import DeviceError, HearthError, ResourceBusy, RpcError, TimedOut
from hearth.groups import sole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hearth.actors.mailbox import Slot
    from hearth.drivers.base import Driver


class Bus(BusFront):
    """One hardware bus, or a pool of them.

    `audit(event, **fields)` records what operators must know (bus.wedged, bus.reopened, outputs.safe). `ledger` knows
    which outputs an earlier run left driven: they are made safe as soon as the bus is open, before anything else.
    """

    def __init__(
        self,
        bus_id: str,
        driver: Driver,
        *,
        queue_bound: int = 128,
        audit: Callable[..., None] = lambda _event, **_fields: None,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__(bus_id, driver, queue_bound, audit, ledger or Ledger())
        self._overdue = 0
        self._waits: set[trio.CancelScope] = set()
        self._workers: list[Worker] = []
        self._abandoned = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the driver and serve until cancelled; a transaction in flight then finishes first.

        Raises what the driver raised: HearthError when the device cannot be opened, anything else for a bug.
        Whatever way this ends, no ticket is left without an answer.
        """
        try:
            await open_driver(self.driver)
            workers: list[Worker] = []
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.driver.pump)
                    for _ in range(self.driver.width):
                        worker = open_worker(self.driver, nursery)
                        if worker is not None:
                            workers.append(worker)
                        nursery.start_soon(self._serve, worker)
                    self._pay_debts()
                    self.state, self.reason = "ready", None
                    task_status.started()
            except BaseException as error:
                # Before the driver is closed: that may take its time, and nobody has to wait for it.
                self._down(error)
                raise
            finally:
                await close_driver(self.bus_id, self.driver, workers, wait=not self._abandoned)
        except BaseException as error:
            self._down(error)
            raise
        self.state = "closed"

    def _pay_debts(self) -> None:
        """Ask once more for the outputs of sessions that ended while the device was not there, or of an earlier run."""
        for session_id in sorted(self._driven.owed):
            if self._queue.standing(session_id) is None:
                self.make_safe(session_id, alone=True)

    def _down(self, error: BaseException) -> None:
        """Refuse everything: until the bus is reopened after a failure, for good after a cancellation."""
        if isinstance(error, Exception) and self.state != "closed":
            cause = sole(error)
            self.state = "down"
            self._held = cause if isinstance(cause, ResourceBusy) else None
            self.reason = str(cause) if isinstance(cause, HearthError) else f"it crashed: {type(cause).__name__}"
        else:
            self.state, self.reason = "closed", self.reason or "the runtime is ending"
        self._crash = None
        self._refuse_queued(for_good=self.state == "closed")

    def _refuse_queued(self, *, for_good: bool = False) -> None:
        for ticket in self._queue.refuse_all(for_good=for_good):
            self._finish(ticket, error=self.unavailable(ticket.asker))

    def abandon(self) -> None:
        """The process must end now: stop waiting for transactions that have not returned; their effect is unknown.

        Nothing begins on this bus any more, because what has not returned may still be moving the hardware, or because
        the device is not there, and what must run would wait for it for ever. A bus that serves and on which nothing is
        under way is left alone: it still has outputs to bring to their safe state.
        """
        if self._current:
            self.reason = "the runtime ended before its last transaction returned"
        elif self.state == "ready":
            return
        self._abandoned = True
        self.state, self.reason = "closed", self.reason or "the runtime ended before it was open"
        self._refuse_queued(for_good=True)
        for scope in self._waits:
            scope.cancel()
        for worker in self._workers:
            worker.abandon()

    @trio.lowlevel.enable_ki_protection
    async def _serve(self, worker: Worker | None) -> None:
        """One lane: take the next ticket, run it whole, answer it."""
        take = self._queue.take
        if worker is not None:
            self._workers.append(worker)
        try:
            while True:
                if self._crash is not None:
                    error, self._crash = self._crash, None
                    raise error
                if worker is not None:
                    # Waiting for a transaction is shielded, so this is where the end of a busy bus arrives.
                    await trio.lowlevel.checkpoint_if_cancelled()
                ticket = take()
                if ticket is None:
                    await self._wait_for_ticket()
                    continue
                if ticket.op is None:
                    self._grant(ticket)
                    continue
                await self._transaction(worker, ticket, ticket.op)
        finally:
            if worker is not None:
                self._workers.remove(worker)
                worker.close()

    async def _wait_for_ticket(self) -> None:
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
        self.transactions += 1
        self._current.append(ticket)
        try:
            if type(ticket) is StandingTicket:
                op = ticket.begin(self._driven.of(ticket.asker.session_id))
            else:
                op = self._enter_output(ticket, op)
            if worker is None:
                value = op(self.driver)
            else:
                value = await self._watched(worker, ticket, op)
            if type(value) is WentSafe:
                value = self._went_safe(ticket, value)
        except RpcError as error:
            self._finish(ticket, error=error)
        except BaseException as error:
            # A bug in a driver or tool, which the supervisor will contain: its asker must not wait for ever.
            self._finish(ticket, error=self._crash_error(error))
            raise
        else:
            self._finish(ticket, value)
        finally:
            self._current.remove(ticket)
            self.worked += trio.current_time() - ticket.begun_at

    async def _watched(self, worker: Worker, ticket: Ticket, op: Callable[[Any], Any]) -> Any:
        """The outcome of a transaction that takes time. Nothing interrupts it, not even the end of this actor."""
        outcome: Slot[Any] = worker.submit(partial(op, self.driver))
        if await self._returned(outcome, deadline=ticket.begun_at + ticket.limit):
            return await outcome.get()
        self._overdue += 1
        if self._overdue >= self.driver.width and not self._abandoned:
            self._wedge(ticket)
        try:
            if not await self._returned(outcome):
                raise DeviceError(
                    f"the runtime ended before the transaction on {self.bus_id} returned",
                    effect="unknown",
                    data={"bus": self.bus_id},
                )
            value = await outcome.get()
        finally:
            self._overdue -= 1
            if self.state == "wedged" and not self._abandoned:
                self.state, self.reason = "ready", None
                self._audit("bus.reopened", bus=self.bus_id, reason="the overdue transaction returned")
        if type(ticket) is StandingTicket:
            return value  # what is safe late is safe, and who waits must learn which outputs are
        took = round((trio.current_time() - ticket.begun_at) * 1000, 3)
        raise TimedOut(
            f"the transaction on {self.bus_id} took {took:.0f} ms, its limit is {ticket.limit * 1000:.0f} ms",
            effect="done",
            data={"bus": self.bus_id, "took_ms": took, "limit_ms": ticket.limit * 1000, "result": _json(value)},
        )

    async def _returned(self, outcome: Slot[Any], *, deadline: float = math.inf) -> bool:
        """Wait for a transaction, shielded from this task's own cancellation; False if the deadline came first."""
        if self._abandoned:
            return outcome.filled
        with trio.CancelScope(shield=True, deadline=deadline) as scope:
            self._waits.add(scope)
            try:
                await outcome.wait()
            finally:
                self._waits.discard(scope)
        return outcome.filled

    def _wedge(self, ticket: Ticket) -> None:
        self.state = "wedged"
        self.reason = f"a transaction has not returned within its limit of {ticket.limit * 1000:.0f} ms"
        self._audit(
            "bus.wedged",
            bus=self.bus_id,
            reason=self.reason,
            session_id=ticket.asker.session_id,
            task_id=ticket.asker.task_id,
        )
        self._refuse_queued()

async def make_safe(
    buses: Iterable[Bus], session_id: str, until: float, *, alone: bool, hands_over: bool
) -> list[Any]:
    """Bring the outputs that a session drove, on all buses, to their safe state; returns what was done, for the record.

    Waits no longer than `until` for a bus that does not come free, or whose device is not there: its turn then comes
    when it does, and the bus tells of it. With `alone` the buses tell in any case.
    """
    done: list[Any] = []
    asked = (bus.make_safe(session_id, alone=alone, hands_over=hands_over) for bus in buses)
    tickets = [ticket for ticket in asked if ticket is not None]
    with trio.move_on_at(until):
        for ticket in tickets:
            await ticket.wait()
    for ticket in tickets:
        if not ticket.filled:
            ticket.alone = True
            continue
        try:
            done.extend(await ticket.get())
        except RpcError as error:
            done.append({"error": error.message})
    return done


def _json(value: Any) -> Any:
    """The result of an overdue transaction as far as it is JSON: a plain object or nothing."""
    return dict(value) if isinstance(value, Mapping) else None
