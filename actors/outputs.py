"""Which outputs of a bus have been driven and not yet brought to their safe state, by which sessions, and what is owed.

The one owner of that fact, for one bus and in memory; the `Ledger` holds the part of it that must outlive the process.
It remembers who is owed a safe state until that has succeeded, whoever asked for it and how often, and tells of the
outcome where nobody waits for it any more. What an output is, and what is safe for it, only drivers know; when a bus
pays its debts is the bus's business.

Theory of operation. Each driven output has a list of holders: the live sessions that set it, in the order of their last
set. The last one set the level that is there now.

- A *set* puts its session at the end of the list (`claim`).
- A *borrow* (a pulse) leaves the list alone where the output has a holder; an output that has none is claimed.
- What was set or borrowed is *given back* to the session that held it before (`may_give_back`, `give_back`), if that
  session is still in the list. If it has left the list, the level to restore belongs to no live session, and the output
  goes to its safe state instead. If another session has set the output since, its set has the say: nothing is done.
- When a session ends, the outputs that it set last go to their safe state, and with a deadman also those that other
  sessions have set since: a controller that dies leaves a robot that stops. A safe output has no holders. A session
  may end in good order and hand those others over.

So no ended session is the last holder of a level, except of one that the device refused to make safe: `_ended` has it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hearth.actors.tickets import Asker, GiveBack
from hearth.errors import InternalError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from hearth.actors.ledger import Ledger
    from hearth.errors import RpcError

log = logging.getLogger("hearth.outputs")

EARLIER_RUN: Final = "an earlier run"
"""Stands where the id of the session would: whose outputs they were is on record in the audit log."""


class Driven:
    """The driven outputs of one bus: who holds each one, and who must be asked for again when the bus is back.

    `audit(event, **fields)` records what became of them where nobody else will.
    """

    __slots__ = ("_audit", "_bus", "_ended", "_holders", "_ledger", "owed")

    def __init__(self, bus: str, ledger: Ledger, audit: Callable[..., None]) -> None:
        self._audit = audit
        self._bus = bus
        self._ledger = ledger
        earlier = Asker(EARLIER_RUN, "", "")
        self._holders: dict[Hashable, list[Asker]] = {
            output: [earlier] for output in ledger.found.outputs.get(bus, ())
        }
        self.owed: set[str] = {EARLIER_RUN} if self._holders else set()
        """Sessions that have ended, and whose outputs are to be made safe when the bus can do it."""
        self._ended: set[str] = {*self.owed}
        """Sessions that have ended, as far as this bus knows, and still hold an output; `owed` and those given up."""

    # --- driving --------------------------------------------------------------------------------------------------

    def claim(self, output: Hashable, asker: Asker, *, insist: bool) -> str:
        """Enter a session as the one that sets an output; returns the session that an undo gives it back to.

        That is the session that set it before, or this one itself where none did. Raises AuditUnavailable as `Ledger`.
        """
        holders = self._holders.get(output)
        if holders is None:
            self._ledger.add(self._bus, output, insist=insist)
            self._holders[output] = [asker]
            return asker.session_id
        former = holders[-1].session_id
        if former != asker.session_id:
            kept = [h for h in holders if h.session_id != asker.session_id and h.session_id not in self._ended]
            self._holders[output] = [*kept, asker]
        return former

    def borrow(self, output: Hashable, asker: Asker, *, insist: bool) -> str:
        """Note that a session drives an output for a while; returns the session to give it back to."""
        holders = self._living(output)
        if holders:
            return holders[-1].session_id
        self.claim(output, asker, insist=insist)
        return asker.session_id

    def may_give_back(self, output: Hashable, back: GiveBack) -> bool:
        """Tell whether an output may have its former level back; if not, it must go to its safe state.

        Raises ResourceBusy, with effect "none", if another session has set it since.
        """
        holders = self._living(output)
        if holders and holders[-1].session_id != back.taken_by(output):
            text = f"output {output} of bus {self._bus} has been set by another session since: it is left as it is"
            raise ResourceBusy(text, data={"bus": self._bus, "reason": "set since", "effect": "none"})
        return _holds(back.held_by(output), holders)

    def give_back(self, output: Hashable, back: GiveBack) -> None:
        """Let the session that had set an output go: its former level is about to be restored.

        Before and not after: should the former holder end while the transaction runs, the output is its own to make
        safe. A transaction that fails claims the output again.
        """
        if (taken_by := back.taken_by(output)) != back.held_by(output):
            holders = self._holders[output]
            holders[:] = [holder for holder in holders if holder.session_id != taken_by]

    def _living(self, output: Hashable) -> list[Asker]:
        return [holder for holder in self._holders.get(output, ()) if holder.session_id not in self._ended]

    # --- safe states ----------------------------------------------------------------------------------------------

    def leave(self, session_id: str, *, hands_over: bool = False) -> bool:
        """Note that a session has ended; True if it owes a safe state. Other outputs are left to who set them since.

        One that `hands_over` has ended in good order, and its deadman with it.
        """
        owes = False
        for holders in self._holders.values():
            if holders[-1].session_id == session_id or (not hands_over and _answers_for(session_id, holders)):
                owes = True
            else:
                holders[:] = [holder for holder in holders if holder.session_id != session_id]
        if owes:
            self.owed.add(session_id)
            self._ended.add(session_id)
        else:
            self._paid(session_id)
        return owes

    def _paid(self, session_id: str) -> None:
        self.owed.discard(session_id)
        self._ended.discard(session_id)

    def of(self, session_id: str) -> list[Hashable]:
        """The outputs that go to their safe state when a session ends."""
        return [output for output, holders in self._holders.items() if _answers_for(session_id, holders)]

    def is_safe(self, outputs: list[Hashable]) -> None:
        """Forget outputs that have reached their safe state, or are kept as they are by the profile."""
        known = [output for output in outputs if self._holders.pop(output, None) is not None]
        self._ledger.strike(self._bus, known)

    def settle(
        self, session_id: str, outputs: list[Hashable], reports: Any, error: RpcError | None, *, tell: bool
    ) -> None:
        """What became of a session's outputs that were to be made safe: the driver's `reports`, or `error`.

        Forgets those that are safe, or kept by the profile. With `tell` nobody waits for the outcome: it is put on
        record, and in the operator's log, here.
        """
        if error is None and not has_error(reports):
            self.is_safe([output for output in outputs if _holds(session_id, self._holders.get(output, ()))])
            self._paid(session_id)
        elif isinstance(error, InternalError):
            # A bug in the driver: asked again at each opening it would crash the bus for ever. The next run asks again.
            self.owed.discard(session_id)
        if tell:
            self._tell(session_id, outputs or self.of(session_id), reports, error)

    def _tell(self, session_id: str, outputs: list[Hashable], reports: Any, error: RpcError | None) -> None:
        if not outputs:
            return
        whose = {} if session_id == EARLIER_RUN else {"session_id": session_id}
        outcome = {"safe": reports} if error is None else {"error": error.message}
        self._audit("outputs.safe", bus=self._bus, **whose, outputs=outputs, **outcome)
        log.warning(
            "bus %s: outputs %s, driven by %s, %s",
            self._bus,
            ", ".join(map(str, outputs)),
            f"session {session_id}" if whose else session_id,
            f"were brought to their safe state: {reports}" if error is None else f"are not safe: {error.message}",
        )


def _holds(session_id: str, holders: Iterable[Asker]) -> bool:
    return any(holder.session_id == session_id for holder in holders)


def _answers_for(session_id: str, holders: list[Asker]) -> bool:
    """True if the end of a session brings an output with these holders to its safe state."""
    last = holders[-1]
    return last.session_id == session_id or any(h.deadman and h.session_id == session_id for h in holders)


def has_error(reports: Any) -> bool:
    """True if `make_safe` reports an output that is not safe."""
    return any(isinstance(report, Mapping) and "error" in report for report in reports or ())
