"""What a server offers comes from providers: each lists some tools, resources or prompts, and serves those.

The base class offers nothing, so a provider overrides what it has. This module knows no particular one; `server`
puts them together in a fixed order, and refuses two tools of one name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mcp_types as types

    from hearth.actors.bridges.mcp.clients import Client, Context


@frozen
class Ask:
    """One request of one client."""

    ctx: Context
    client: Client


class Provider:
    """Something that a server offers."""

    async def tools(self, ask: Ask) -> Sequence[types.Tool]:
        """The tools this client may call, in a fixed order."""
        del ask
        return ()

    async def call(
        self, ask: Ask, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | None:
        """Call a tool; None for one that is not this provider's. Raises MCPError for what is no execution failure."""
        del ask, params
        return None

    async def resources(self, ask: Ask) -> Sequence[types.Resource]:
        """What can be read."""
        del ask
        return ()

    async def templates(self, ask: Ask) -> Sequence[types.ResourceTemplate]:
        """What can be read under a URI that somebody fills in."""
        del ask
        return ()

    async def read(
        self, ask: Ask, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult | None:
        """Read a resource; None for a URI that is not this provider's."""
        del ask, params
        return None
