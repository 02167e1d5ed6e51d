"""The MCP server object: both eras of the protocol (2025-11-25 and 2026-07-28) over whatever its providers offer.

It owns the order of what is listed, its pages, the collision check of names, and the one place where an exception
becomes an MCP error. How a tool works is its provider's; which carrier the messages come over is unknown here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from hearth._version import __version__
from hearth.actors.bridges.mcp.providers import Ask, Provider

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from hearth.actors.bridges.mcp.clients import Clients, Context

INSTRUCTIONS = "Tools of a board's real hardware."


def make_server(providers: Sequence[Provider], clients: AbstractAsyncContextManager[Clients]) -> Server[Clients]:
    """A server over these providers; entering `clients` is the server's lifespan."""
    offers = Offers(providers)

    def lifespan(_server: Server[Any]) -> AbstractAsyncContextManager[Clients]:
        return clients

    return Server(
        "hearth",
        version=__version__,
        title="hearth",
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        get_tool_input_schema=lambda _name: None,
        on_list_tools=offers.list_tools,
        on_call_tool=offers.call_tool,
    )


class Offers:
    """The handlers."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers

    async def _ask(self, ctx: Context) -> Ask:
        return Ask(ctx, await ctx.lifespan_context.of(ctx))

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """tools/list."""
        del params
        ask = await self._ask(ctx)
        return types.ListToolsResult(tools=[tool for provider in self._providers for tool in await provider.tools(ask)])

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """tools/call."""
        ask = await self._ask(ctx)
        for provider in self._providers:
            result = await provider.call(ask, params)
            if result is not None:
                return result
        raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
