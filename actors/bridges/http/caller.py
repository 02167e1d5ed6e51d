"""Who calls, decided anew for each request, and whether the policy lets that one in.

The rules of proof are `listeners.callers`'; here stands what an HTTP listener makes of them: which status, what is
audited, and what routes find in `request.state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.actors.bridges.http.problems import Problem
from hearth.actors.listeners.callers import Refused, caller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hearth.actors.bridges.http.visit import Visit
    from hearth.actors.listeners.callers import Headers
    from hearth.policy.principal import Principal
    from hearth.policy.rules import PolicyEntry
    from hearth.policy.tokens import Tokens

CURES = {
    400: "send one token",
    401: "send `Authorization: Bearer TOKEN`, or show a client certificate that [http] client_ca signed",
}


class Callers:
    """What `Door` asks of each request. `report` is told of who could not prove who it is: peer, reason."""

    def __init__(
        self,
        policy: Sequence[PolicyEntry],
        tokens: Tokens,
        report: Callable[[str, str], None],
        *,
        behind_proxy: bool,
    ) -> None:
        self._policy = policy
        self._tokens = tokens
        self._report = report
        self._behind_proxy = behind_proxy

    def of(self, headers: Headers, visit: Visit) -> Principal | Refused:
        """Who sends a request on this connection, or why nobody knows."""
        try:
            return caller(headers, self._tokens, visit.certificate, visit.local, behind_proxy=self._behind_proxy)
        except Refused as refused:
            return refused

    def admits(self, principal: Principal) -> bool:
        """Whether some policy entry is for this principal: what it may do there is the session's to decide."""
        return any(match.holds(principal) for entry in self._policy for match in entry.match)

    def refusal(self, who: Principal | Refused, visit: Visit) -> Problem:
        """What somebody whom the policy does not let in is answered with, where only such are served; audited."""
        if not isinstance(who, Refused):
            reason = f"no policy entry matches {who.key}"
            self._report(visit.peer, reason)
            return Problem(403, f"{reason}; write a [[policy]] entry for it")
        self._report(visit.peer, str(who))
        headers = {"WWW-Authenticate": "Bearer"} if who.status == 401 else {}
        return Problem(who.status, f"nobody knows who you are: {who}; {CURES[who.status]}", headers)
