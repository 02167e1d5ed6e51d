"""Uses of tools that an extra serves itself, beside a session: the bridge asks the session before each (`mcp.use`).

`hearth.extras` names these tools and their risks. A use is no task: it runs nothing here, and so takes no approval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, cast

from attrs import frozen

from hearth.errors import PermissionDenied, ToolNotFound
from hearth.extras import TOOLS
from hearth.tools import DEFAULT_RATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.policy.rules import Grant, RateLimits


@frozen
class ServedTool:
    """A tool of an extra, by its name in `tools` and `rate` of a policy entry."""

    name: str
    risk_level: Literal[0, 1]
    resolves_to: frozenset[str] = frozenset()
    default_rate: None = None

    @property
    def rate(self) -> str:
        """The rate limit of one principal, used if the policy sets none."""
        return DEFAULT_RATES[self.risk_level]


BY_NAME: Final[Mapping[str, ServedTool]] = {
    name: ServedTool(name, cast("Literal[0, 1]", risk)) for name, risk in TOOLS.items()
}


def refusal(tool: ServedTool, grant: Grant) -> str | None:
    """Return the reason for which a grant does not permit a tool, or None."""
    if tool.name not in grant.allowed:
        return f"not in the allowlist of policy {grant.policy!r}"
    if tool.risk_level > grant.max_risk:
        return f"max_risk_level={grant.max_risk} < tool={tool.risk_level}"
    rule = grant.approval_for(tool.risk_level)
    if rule is not None:
        # A use is no task, and so no plan that a person could approve.
        return f"policy {grant.policy!r} asks for an approval from risk {rule.from_risk} on, and this takes none"
    return None


def check_use(name: str, grant: Grant, rates: RateLimits, now: float) -> ServedTool:
    """Permit one use, and take a token of its rate limit. Raises ToolNotFound, PermissionDenied or RateLimited."""
    tool = BY_NAME.get(name)
    if tool is None:
        raise ToolNotFound(f"Tool not found: {name[:100]}", data={"tool": name[:100]})
    reason = refusal(tool, grant)
    if reason is not None:
        raise PermissionDenied(f"Permission denied: {name}: {reason}", data={"tool": name, "reason": reason})
    refused = rates.check({name: 1}, now)
    if refused is not None:
        raise rates.refusal(*refused)
    return tool
