"""The AgentCard tools as the policy knows them: names for its patterns, risk levels and rates.

The bridge serves these tools itself, beside the session, and asks the session before each use (`mcp.use`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from attrs import frozen

from hearth.errors import PermissionDenied, ToolNotFound
from hearth.mcp.names import CARD_TOOLS
from hearth.tools import DEFAULT_RATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.policy.rules import Grant, RateLimits


@frozen
class CardTool:
    """One of them, by the name that `tools` and `rate` of a policy entry have for it."""

    name: str
    risk_level: Literal[0, 1]

    @property
    def rate(self) -> str:
        """How often one principal may use it where the policy does not say."""
        return DEFAULT_RATES[self.risk_level]


def policy_name(mcp_name: str) -> str:
    """`agentcard_list` is `agentcard.list` to the policy."""
    return mcp_name.replace("_", ".", 1)


BY_NAME: Final[Mapping[str, CardTool]] = {
    # To declare a card writes a file; the others only look.
    name: CardTool(name, 1 if name == "agentcard.declare" else 0)
    for name in map(policy_name, CARD_TOOLS)
}


def usable(grant: Grant) -> list[str]:
    """The MCP names of those that a session of this grant may use."""
    return [
        mcp_name
        for mcp_name, tool in zip(CARD_TOOLS, BY_NAME.values(), strict=True)
        if tool.name in grant.allowed and tool.risk_level <= grant.max_risk
    ]


def check_use(name: str, grant: Grant, rates: RateLimits, now: float) -> CardTool:
    """Permit one use, and take its token. Raises ToolNotFound, PermissionDenied or RateLimited."""
    tool = BY_NAME.get(name)
    if tool is None:
        raise ToolNotFound(f"Tool not found: {name[:100]}", data={"tool": name[:100]})
    reason = None
    if name not in grant.allowed:
        reason = f"not in the allowlist of policy {grant.policy!r}"
    elif tool.risk_level > grant.max_risk:
        reason = f"max_risk_level={grant.max_risk} < tool={tool.risk_level}"
    if reason is not None:
        raise PermissionDenied(f"Permission denied: {name}: {reason}", data={"tool": name, "reason": reason})
    refused = rates.check({name: 1}, now)
    if refused is not None:
        raise rates.refusal(*refused)
    return tool
