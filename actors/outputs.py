"""Which outputs of a bus have been driven and not yet brought to their safe state, by which session, and what is owed.

The one owner of that fact, for one bus and in memory; the `Ledger` holds the part of it that must outlive the process.
It remembers who is owed a safe state until that has succeeded, whoever asked for it and how often, and tells of the
outcome where nobody waits for it any more. What an output is, and what is safe for it, only drivers know; when a bus
pays its debts is the bus's business.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hearth.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from hearth.actors.ledger import Ledger
    from hearth.errors import RpcError

log = logging.getLogger("hearth.outputs")

EARLIER_RUN: Final = "an earlier run"
"""Stands where the id of the session would: whose outputs they were is on record in the audit log."""


class Driven:
    """The driven outputs of one bus: whose each one is, and who must be asked for again when the bus is back.

    `audit(event, **fields)` records what became of them where nobody else will.
    """

    __slots__ = ("_audit", "_bus", "_by", "_ledger", "owed")

    def __init__(self, bus: str, ledger: Ledger, audit: Callable[..., None]) -> None:
        self._audit = audit
        self._bus = bus
        self._ledger = ledger
        self._by: dict[Hashable, str] = dict.fromkeys(ledger.found.outputs.get(bus, ()), EARLIER_RUN)
        self.owed: set[str] = {EARLIER_RUN} if self._by else set()
        """Sessions that have ended, as far as this bus knows, and whose outputs are not all safe yet."""

    def drive(self, output: Hashable, session_id: str, *, insist: bool) -> None:
        """A session is about to drive an output, which is its own from now on. Raises AuditUnavailable as `Ledger`."""
        if output not in self._by:
            self._ledger.add(self._bus, output, insist=insist)
        self._by[output] = session_id

    def of(self, session_id: str) -> list[Hashable]:
        """The outputs that a session drove last."""
        return [output for output, owner in self._by.items() if owner == session_id]

    def settle(
        self, session_id: str, outputs: list[Hashable], reports: Any, error: RpcError | None, *, tell: bool
    ) -> None:
        """What became of a session's outputs that were to be made safe: the driver's `reports`, or `error`.

        Forgets those that are safe, or kept by the profile. With `tell` nobody waits for the outcome: it is put on
        record, and in the operator's log, here.
        """
        if error is None and not _has_error(reports):
            done = [output for output in outputs if self._by.get(output) == session_id]
            for output in done:
                del self._by[output]
            self._ledger.strike(self._bus, done)
            self.owed.discard(session_id)
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


def _has_error(reports: Any) -> bool:
    """True if `make_safe` reports an output that is not safe."""
    return any(isinstance(report, Mapping) and "error" in report for report in reports or ())
