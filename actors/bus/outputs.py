"""The driven outputs of a bus that are not yet in their safe state, and the sessions that hold them.

`DrivenOutputs` owns that fact for one bus, in memory. It remembers each session whose outputs must still be made safe
until that has succeeded, and it records the outcome when no task waits for it. Only drivers know what an output is and
which level is safe; the bus decides when to make outputs safe. The outputs file (`bus.outputs_file`) lists them.

Theory of operation. Each driven output has a list of holders: the live sessions that set it, in the order of their last
set. The last one set the level that is there now.

- A *set* puts its session at the end of the list (`claim`). One with a deadman that is in the list stays there too.
- A *borrow* (a pulse) leaves the list alone where the output has a holder; an output that has none is claimed.
- What was set or borrowed is *given back* to the session that held it before (`may_give_back`, `give_back`), if that
  session is still in the list. If it has left the list, the level to restore belongs to no live session, and the output
  goes to its safe state instead. If another session has set the output since, that level stays: nothing is done.
- When a session ends, the outputs that it set last go to their safe state, and with a deadman also those that other
  sessions have set since: a controller that dies leaves a robot that stops. A safe output has no holders. A session
  may end in good order and hand those others over.

So no ended session is the last holder of a level, except of one that the device refused to make safe: `_ended` has it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hearth.actors.bus.queue import GiveBack, Requester
from hearth.errors import InternalError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from hearth.actors.bus.outputs_file import OutputsFile
    from hearth.errors import RpcError

log = logging.getLogger("hearth.outputs")

EARLIER_RUN: Final = "an earlier run"
"""Used in place of a session id for outputs that an earlier run drove; the audit log names the sessions."""
HALT: Final = "a halt"
"""Used in place of a session id for outputs that a halt brings to their safe state."""


class DrivenOutputs:
    """The driven outputs of one bus: the holders of each, and the sessions whose safe state is still pending.

    `audit(event, **fields)` records an outcome for which no task waits. `kept` has the outputs that the profile keeps.
    """

    __slots__ = ("_audit", "_bus", "_ended", "_holders", "_kept", "_outputs_file", "pending")

    def __init__(
        self, bus: str, outputs_file: OutputsFile, audit: Callable[..., None], kept: Iterable[Hashable] = ()
    ) -> None:
        self._audit = audit
        self._bus = bus
        self._outputs_file = outputs_file
        # The outputs of an earlier run have a holder that has ended already: the first opening of the bus makes them
        # safe. If that fails, a session that sets one takes it over.
        earlier = Requester(EARLIER_RUN, "", "")
        self._holders: dict[Hashable, list[Requester]] = {
            output: [earlier] for output in outputs_file.found.outputs.get(bus, ())
        }
        # An earlier run may have left any of them driven: no file lists those.
        self._kept: set[Hashable] = set(kept)
        """Outputs that may be at the level at which a session has left them, because the profile keeps them."""
        self.pending: set[str] = {EARLIER_RUN} if self._holders else set()
        """Ids of sessions that have ended, and whose outputs are to be made safe when the bus can do it."""
        self._ended: set[str] = {*self.pending}
        """Ids of sessions that have ended and still hold an output: pending, or given up after a driver's bug."""

    @property
    def traces(self) -> tuple[Collection[object], ...]:
        """The collections that are empty while no session has left a trace here; they stay the same."""
        return self._holders, self.pending, self._ended

    # --- driving --------------------------------------------------------------------------------------------------

    def claim(self, output: Hashable, requester: Requester, *, insist: bool) -> str:
        """Enter a session as the one that sets an output; return the session that an undo gives the output back to.

        That is the session that set it before, or this session if none did. Raises AuditUnavailable, with effect
        "none", if the outputs file cannot be written; with `insist` it does not.
        """
        holders = self._holders.get(output)
        if holders is None:
            # Written down before the output is driven, and before the holder is entered: if that fails, nothing has
            # changed.
            self._outputs_file.add(self._bus, output, insist=insist)
            self._holders[output] = [requester]
            return requester.session_id
        former = holders[-1].session_id
        if former != requester.session_id:
            # Ended holders leave the list here, because the level that they left is about to be replaced.
            kept: list[Requester] = []
            for holder in holders:
                mine = holder.session_id == requester.session_id
                # With a deadman its first place stays: it outlives the rollback of this set.
                replaced = mine and (not requester.deadman or _holds(requester.session_id, kept))
                if holder.session_id not in self._ended and not replaced:
                    kept.append(holder)
            self._holders[output] = [*kept, requester]
        return former

    async def announce(self, output: Hashable) -> bool:
        """Have an output in the file, and keep it there until `retract`; return False if it is held, and so is there.

        Raises AuditUnavailable, with effect "none", if it is not written within LIST_LIMIT_S.
        """
        if output in self._holders:
            return False
        await self._outputs_file.announce(self._bus, output)
        return True

    def retract(self, output: Hashable) -> None:
        """End what `announce` began."""
        self._outputs_file.retract(self._bus, output)

    def holders(self, output: Hashable) -> tuple[Requester, ...]:
        """Return the holders of an output, for `unclaim`."""
        return tuple(self._holders.get(output, ()))

    def unclaim(self, output: Hashable, requester: Requester, former: Sequence[Requester]) -> None:
        """Return an output to its `former` holders: what was to drive it had no effect.

        It stays with the requester if the session that had set it has gone since: the level must have a holder. An
        output that no session held is held by none again, or the next undo would give it back to one that never set it.
        """
        holders = self._holders.get(output, [])
        if not holders or holders[-1].session_id != requester.session_id:
            # Made safe or halted since.
            return
        if not former and requester.session_id not in self._ended:
            del self._holders[output]
            self._outputs_file.strike(self._bus, [output])
            return

        def stays(holder: Requester) -> bool:
            ended = holder.session_id in self._ended
            return holder in holders or ended != (holder.session_id == requester.session_id)

        if former and stays(former[-1]):
            holders[:] = filter(stays, former)

    def borrow(self, output: Hashable, requester: Requester, *, insist: bool) -> str:
        """Note that a session drives an output for a while; return the session to give it back to."""
        holders = self._live_holders(output)
        if holders:
            # The list stays as it is: when the borrow ends, this session still holds the level that is restored.
            return holders[-1].session_id
        self.claim(output, requester, insist=insist)
        return requester.session_id

    def may_give_back(self, output: Hashable, back: GiveBack) -> bool:
        """Return True if an output may have its former level back; False if it must go to its safe state.

        Raises ResourceBusy, with effect "none", if another session has set the output since.
        """
        holders = self._live_holders(output)
        if holders and holders[-1].session_id != back.taken_by(output):
            text = f"output {output} of bus {self._bus} has been set by another session since: it is left as it is"
            raise ResourceBusy(text, data={"bus": self._bus, "reason": "set since", "effect": "none"})
        return _holds(back.held_by(output), holders)

    def give_back(self, output: Hashable, back: GiveBack) -> None:
        """Remove the session that had set an output from its holders: its former level is about to be restored.

        Called before the transaction: should the former holder end while it runs, that end makes the output safe. A
        transaction that fails claims the output again.
        """
        if back.taken_by(output) != back.held_by(output):
            holders = self._holders[output]
            places = [place for place, holder in enumerate(holders) if holder.session_id == back.taken_by(output)]
            # Only its last place: with a deadman it may have set the output before, which still counts.
            del holders[places[-1]]

    def holder(self, output: Hashable) -> str | None:
        """Return the session that has set an output last and has not ended; None if there is none."""
        holders = self._live_holders(output)
        return holders[-1].session_id if holders else None

    def owners(self) -> dict[Hashable, str]:
        """Return the holder of each output that has one."""
        return {output: found for output in self._holders if (found := self.holder(output)) is not None}

    def _live_holders(self, output: Hashable) -> list[Requester]:
        return [holder for holder in self._holders.get(output, ()) if holder.session_id not in self._ended]

    # --- halt -----------------------------------------------------------------------------------------------------

    def halt(self, also: Iterable[Hashable]) -> bool:
        """Take all outputs, and those of `also`, from the sessions that hold them; return True if there are any."""
        requester = Requester(HALT, "", "")
        for output in (*also, *self._kept):
            self.claim(output, requester, insist=True)
        self._kept.clear()
        for holders in self._holders.values():
            holders[:] = [requester]
        if self._holders:
            self.pending.add(HALT)
            self._ended.add(HALT)
        return bool(self._holders)

    # --- safe states ----------------------------------------------------------------------------------------------

    def leave(self, session_id: str, *, hands_over: bool = False) -> bool:
        """Note that a session has ended; return True if outputs of it must be made safe.

        Outputs that another session has set since are left to that session. A session that `hands_over` has ended in
        good order, and its deadman does not apply.
        """
        due = False
        for holders in self._holders.values():
            if holders[-1].session_id == session_id or (not hands_over and _answers_for(session_id, holders)):
                # It stays in the list until the output is safe: `of` finds the output by it.
                due = True
            else:
                holders[:] = [holder for holder in holders if holder.session_id != session_id]
        if due:
            # In both: `pending` until the safe state was reached or given up, `_ended` as long as it holds an output.
            self.pending.add(session_id)
            self._ended.add(session_id)
        else:
            self._clear(session_id)
        return due

    def _clear(self, session_id: str) -> None:
        self.pending.discard(session_id)
        self._ended.discard(session_id)

    def of(self, session_id: str) -> list[Hashable]:
        """Return the outputs that go to their safe state when a session ends."""
        return [output for output, holders in self._holders.items() if _answers_for(session_id, holders)]

    def is_safe(self, outputs: list[Hashable], reports: Any) -> None:
        """Forget outputs that have reached their safe state, or are kept as they are by the profile.

        A kept output has no report of the driver. Only a halt brings it to its safe state, so it is noted for that.
        """
        named = {reported_output(report) for report in reports or () if isinstance(report, Mapping)}
        self._kept.update(output for output in outputs if output in self._holders and output not in named)
        known = [output for output in outputs if self._holders.pop(output, None) is not None]
        self._outputs_file.strike(self._bus, known)

    def settle(
        self, session_id: str, outputs: list[Hashable], reports: Any, error: RpcError | None, *, report: bool
    ) -> None:
        """Note the outcome of making a session's outputs safe: the driver's `reports`, or `error`.

        Forgets the outputs that are safe, or kept by the profile. With `report` no task waits for the outcome: it is
        written to the audit log and to the operator's log here.
        """
        if error is None and not has_error(reports):
            # Only what the session still holds: an output that another session has set by now is no longer its to
            # forget.
            self.is_safe([output for output in outputs if _holds(session_id, self._holders.get(output, ()))], reports)
            self._clear(session_id)
        elif isinstance(error, InternalError):
            # A bug in the driver: a retry at each opening would crash the bus for ever. The next run tries again.
            self.pending.discard(session_id)
        # Any other error leaves the session pending: the next opening of the bus tries again.
        if report:
            self._report(session_id, outputs or self.of(session_id), reports, error)

    def _report(self, session_id: str, outputs: list[Hashable], reports: Any, error: RpcError | None) -> None:
        if not outputs:
            return
        whose = {"reason": HALT} if session_id == HALT else {"session_id": session_id}
        if session_id == EARLIER_RUN:
            whose = {}
        outcome = {"safe": reports} if error is None else {"error": error.message}
        self._audit("outputs.safe", bus=self._bus, **whose, outputs=outputs, **outcome)
        holder = f"session {session_id}" if "session_id" in whose else session_id
        safe = "; ".join(map(_words, reports or ()))
        log.warning(
            "bus %s: %soutputs %s%s %s",
            self._bus,
            "halted: " if session_id == HALT else "",
            ", ".join(map(str, outputs)),
            "" if session_id == HALT else f", driven by {holder},",
            f"were brought to their safe state: {safe}" if error is None else f"are not safe: {error.message}",
            extra={"bus": self._bus, **({"session": session_id} if "session_id" in whose else {})},
        )


def _words(report: Any) -> str:
    """Return a report of `make_safe` for a person: a mapping as `name=value` words."""
    if not isinstance(report, Mapping):
        return str(report)
    return " ".join(f"{name}={value}" for name, value in report.items())


def _holds(session_id: str, holders: Iterable[Requester]) -> bool:
    return any(holder.session_id == session_id for holder in holders)


def _answers_for(session_id: str, holders: list[Requester]) -> bool:
    """Return True if the end of a session brings an output with these holders to its safe state."""
    last = holders[-1]
    return last.session_id == session_id or any(h.deadman and h.session_id == session_id for h in holders)


def reported_output(report: Mapping[str, Any]) -> Any:
    """Return the output that a report of `make_safe` is about; a vendor's names a line or a channel, if anything."""
    output = getattr(report, "output", None)
    return report.get("line", report.get("channel")) if output is None else output


def has_error(reports: Any) -> bool:
    """Return True if `make_safe` reports an output that is not safe."""
    return any(isinstance(report, Mapping) and "error" in report for report in reports or ())
