"""The tool catalogue: the answers to tool.list, the capability flags, and the same for MCP.

Everything here follows from the tool registry and a grant, and is built once per policy entry. It decides nothing:
`admission` checks each submission against the grant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from hearth._version import __version__
from hearth.mcp.card_tools import CARD_DEFINITIONS, usable
from hearth.mcp.names import EXTENSIONS, PROTOCOL_VERSIONS, by_mcp_name
from hearth.mcp.plan_tool import HALT_DEFINITION, PLAN_DEFINITION
from hearth.mcp.tools import ToolView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.policy.rules import Grant
    from hearth.tools import ToolRegistry


class ToolCatalogue:
    """The tool lists of every grant. Raises ConfigError if two tools have the same MCP name."""

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        abilities: Callable[[], list[str]],
        mcp_endpoints: Callable[[], list[dict[str, Any]]],
        agent_card: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        # A client that means one tool must not get the other, whichever of them its policy lets it see.
        by_mcp_name(registry)
        self._registry = registry
        self._abilities = abilities
        self._mcp_endpoints = mcp_endpoints
        self._agent_card = agent_card
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
        card = self._agent_card()
        return {
            "server": {"name": "hearth", "version": __version__},
            "protocol_versions": list(PROTOCOL_VERSIONS),
            "endpoints": self._mcp_endpoints(),
            "tools": self._mcp(grant)[0],
            "extensions": list(EXTENSIONS),
            "card_tools": usable(grant),
            "agent_card": None if card is None else dict(card),
        }

    def _mcp(self, grant: Grant) -> tuple[int, bytes]:
        known = self._mcp_tools.get(grant.policy)
        if known is None:
            names = usable(grant)
            cards = [definition for definition in CARD_DEFINITIONS if definition["name"] in names]
            tools = [HALT_DEFINITION, *ToolView(self._entries(grant)).definitions(), PLAN_DEFINITION, *cards]
            known = self._mcp_tools[grant.policy] = (len(tools), orjson.dumps({"tools": tools}))
        return known

    def _entries(self, grant: Grant) -> list[dict[str, Any]]:
        return [tool.to_wire() for tool in self._registry.values() if tool.name in grant.allowed]
