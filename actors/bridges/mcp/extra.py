"""MCP as an extra: what `mcp.info` and `mcp.tools` tell a bridge, which may run on another machine.

It needs no package of MCP: the bridge does. A daemon without it loads this with the first of these calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from hearth._version import __version__
from hearth.actors.agentcard import card_of
from hearth.actors.service import Service
from hearth.mcp.card_tools import CARD_DEFINITIONS, usable
from hearth.mcp.names import EXTENSIONS, PROTOCOL_VERSIONS, by_mcp_name, endpoints
from hearth.mcp.plan_tool import HALT_DEFINITION, PLAN_DEFINITION
from hearth.mcp.tools import ToolView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hearth.actors.runtime import RuntimeParts
    from hearth.config.model import Config
    from hearth.policy.rules import Grant


class McpService(Service):
    """MCP of one runtime. Raises ConfigError if two tools have the same MCP name."""

    over_http = False
    """True if the HTTP listeners have /mcp."""

    def __init__(self, _config: Config | None, parts: RuntimeParts) -> None:
        # A client that means one tool must not get the other, whichever of them its policy lets it see.
        by_mcp_name(parts.registry)

    def tools(self, entries: Sequence[dict[str, Any]], grant: Grant) -> tuple[int, bytes]:
        """Return the mcp.tools result for the entries of tool.list, as JSON, and the number of tools in it."""
        names = usable(grant)
        cards = [definition for definition in CARD_DEFINITIONS if definition["name"] in names]
        tools = [HALT_DEFINITION, *ToolView(entries).definitions(), PLAN_DEFINITION, *cards]
        return len(tools), orjson.dumps({"tools": tools})

    def info(self, grant: Grant, tools: int) -> dict[str, Any]:
        """Return the mcp.info result."""
        card = card_of(self.runtime)
        return {
            "server": {"name": "hearth", "version": __version__},
            "protocol_versions": list(PROTOCOL_VERSIONS),
            "endpoints": endpoints(self.runtime.listeners, over_http=self.over_http),
            "tools": tools,
            "extensions": list(EXTENSIONS),
            "card_tools": usable(grant),
            "agent_card": None if card is None else dict(card),
        }


def check(_name: str, _config: Config, parts: RuntimeParts) -> Iterator[tuple[str, str]]:
    """Check that no two tools have one MCP name. See Extra."""
    by_mcp_name(parts.registry)
    yield from ()
