"""The tool catalogue: the answers to tool.list, the capability flags, and the same for the extra MCP.

Everything here follows from the tool registry and a grant, and is built once per policy entry. It decides nothing:
`admission` checks each submission against the grant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.policy.rules import Grant
    from hearth.tools import ToolRegistry


class ToolCatalogue:
    """The tool lists of every grant."""

    def __init__(self, registry: ToolRegistry, *, abilities: Callable[[], list[str]], mcp: Callable[[], Any]) -> None:
        self._registry = registry
        self._abilities = abilities
        self._mcp_service = mcp
        self._tool_lists: dict[str, bytes] = {}
        self._mcp_tools: dict[str, tuple[int, bytes]] = {}

    def forget(self) -> None:
        """Build the lists anew, because policy entries have changed."""
        self._tool_lists.clear()
        self._mcp_tools.clear()

    def tool_list(self, grant: Grant) -> bytes:
        """Return the tool.list result, as JSON."""
        known = self._tool_lists.get(grant.policy)
        if known is None:
            known = self._tool_lists[grant.policy] = orjson.dumps({"tools": self._entries(grant)})
        return known

    def capabilities(self, grant: Grant) -> list[str]:
        """Return the capability flags of what a session may do, sorted."""
        usable = [
            tool
            for tool in self._registry.values()
            if tool.name in grant.allowed and tool.least_risk <= grant.max_risk_ceiling
        ]
        flags = {tool.capability for tool in usable}
        flags.update(self._abilities())
        if any(tool.supports_rollback for tool in usable):
            flags.add("CAP_ROLLBACK")
        return sorted(flags)

    def mcp_tools(self, grant: Grant) -> bytes:
        """Return the mcp.tools result, as JSON."""
        return self._mcp(grant)[1]

    def mcp_info(self, grant: Grant) -> dict[str, Any]:
        """Return the mcp.info result."""
        info: dict[str, Any] = self._mcp_service().info(grant, self._mcp(grant)[0])
        return info

    def _mcp(self, grant: Grant) -> tuple[int, bytes]:
        known = self._mcp_tools.get(grant.policy)
        if known is None:
            known = self._mcp_tools[grant.policy] = self._mcp_service().tools(self._entries(grant), grant)
        return known

    def _entries(self, grant: Grant) -> list[dict[str, Any]]:
        return [tool.to_wire() for tool in self._registry.values() if tool.name in grant.allowed]
