"""Whose an output is that a transaction drives: entered before the effect, and set right when that fails.

The driver is called only when the session that answers for the output is its holder (`outputs`): of what a ticket has
announced, from the beginning of its transaction (`enter`); of anything else, from the moment at which the guard is
about to let it be driven (`own`). What had no effect goes back to its former holders.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from hearth.actors.bus.queue import give_back_or_make_safe, left_to_halt, make_safe_instead
from hearth.errors import LimitViolated, effect_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from hearth.actors.bus.guard import BusGuard
    from hearth.actors.bus.outputs import DrivenOutputs
    from hearth.actors.bus.queue import GiveBack, HaltFlag, Ticket
    from hearth.errors import DeviceError, RpcError


class Ownership:
    """Enters the sessions of a bus's tickets as the holders of what they drive.

    `given_up` returns the error for a thread that asks when Trio has ended.
    """

    def __init__(
        self, driven: DrivenOutputs, guard: BusGuard, halt_flag: HaltFlag, given_up: Callable[[], DeviceError]
    ) -> None:
        self._driven = driven
        self._guard = guard
        self._halt_flag = halt_flag
        self._given_up = given_up
        self.token: trio.lowlevel.TrioToken | None = None
        """Of the run in which the bus is open: its threads reach Trio by it."""

    def enter(self, ticket: Ticket, op: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Enter the session that holds the output which a transaction is about to drive; return the operation to run.

        Called before the effect: an output whose driving fails half-way must still go to its safe state. Raises Halted
        for any effect that a halt forbids; all tickets but those of safe states come through here.
        """
        back = ticket.gives_back
        if ticket.risk and (refusal := self._halt_flag.refusal(ticket.requester)) is not None:
            if back is None or not back.borrowed:
                raise refusal
            # The end of a pulse: its step has no error, and does not restore the line.
            return partial(left_to_halt, back.instead)
        if back is not None:
            return self._give_back(ticket, back, op)
        if ticket.drives is not None:
            output = ticket.drives = ticket.drives() if callable(ticket.drives) else ticket.drives
            if output is not None:
                # A ticket that must run takes an effect back: it may drive the output although that cannot be written
                # down.
                ticket.former_holders = self._driven.holders(output)
                enter = self._driven.borrow if ticket.borrows else self._driven.claim
                ticket.held_by = enter(output, ticket.requester, insist=ticket.must_run)
        return op

    def _give_back(self, ticket: Ticket, back: GiveBack, op: Callable[[Any], Any]) -> Callable[[Any], Any]:
        output = back.output() if callable(back.output) else back.output
        if output is None:
            return op
        if self._driven.may_give_back(output, back):
            self._driven.give_back(output, back)
            op = partial(give_back_or_make_safe, op, back.instead, output)
        else:
            # No session has ended just now, so there is time to wait for what a limit asks for.
            self._guard.check_rest(output)
            # The output is this session's until it is safe: if that fails now, the end of the session tries again.
            self._driven.claim(output, ticket.requester, insist=True)
            op = partial(make_safe_instead, op, back.instead, output)
        ticket.drives = output
        return op

    def disown(self, ticket: Ticket) -> None:
        """Return outputs to their former holders: what was to drive them had no effect."""
        if ticket.former_holders is not None:
            self._driven.unclaim(ticket.drives, ticket.requester, ticket.former_holders)
            ticket.former_holders = ticket.held_by = None
        while ticket.owned:
            self._driven.unclaim(*((owned := ticket.owned.pop())[0], ticket.requester, owned[1]))

    def failed(self, ticket: Ticket, error: RpcError) -> bool:
        """Name the effect of a transaction that failed; return True if its session holds an output again for it."""
        # Every error of a transaction names its effect; the driver's value goes before the error class's default.
        data = error.data = dict(error.data or {})
        effect = data.setdefault("effect", effect_of(error))
        back = ticket.gives_back
        if effect == "none":
            self.disown(ticket)
        # A pulse that a limit does not let end yet has changed neither the level nor its holders.
        too_early = back is not None and back.borrowed and isinstance(error, LimitViolated)
        if back is None or ticket.drives is None or effect == "done" or too_early:
            return False
        # The level that was to be taken back may still be there: this session holds it.
        self._driven.claim(ticket.drives, ticket.requester, insist=True)
        return True

    # --- what the guard asks for: outputs that a ticket drives without having announced them

    def own(self, output: Hashable) -> None:
        """See `guard.OutputOwner`. In a thread of the bus, Trio does it, and this waits: within LIST_LIMIT_S."""
        ticket = self._guard.ticket
        if ticket is None or self._owns(ticket, output):
            return
        if self.token is None or trio.lowlevel.in_trio_run():
            self._own_now(ticket, output)
            return
        try:
            trio.from_thread.run(self._own_listed, ticket, output, trio_token=self.token)
        except trio.RunFinishedError:
            raise self._given_up() from None

    async def own_later(self, output: Hashable) -> None:
        """See `guard.OutputOwner`."""
        ticket = self._guard.ticket
        if ticket is not None and not self._owns(ticket, output):
            await self._own_listed(ticket, output)

    def _owns(self, ticket: Ticket, output: Hashable) -> bool:
        mine = ticket.requester.session_id
        return not mine or self._driven.holder(output) == mine

    async def _own_listed(self, ticket: Ticket, output: Hashable) -> None:
        listed = False if ticket.must_run else await self._driven.announce(output)
        try:
            self._own_now(ticket, output)
        finally:
            if listed:
                self._driven.retract(output)

    def _own_now(self, ticket: Ticket, output: Hashable) -> None:
        former = self._driven.holders(output)
        self._driven.claim(output, ticket.requester, insist=ticket.must_run)
        ticket.owned.append((output, former))
