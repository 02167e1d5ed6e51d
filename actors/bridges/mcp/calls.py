"""A task on behalf of one MCP request: submitted, followed, cancelled with it, and told as its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as types
import orjson
from mcp.shared.exceptions import MCPError

from hearth.api import Step
from hearth.errors import InvalidParams, RpcError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.actors.bridges.mcp.providers import Ask


async def run_step(ask: Ask, entry: Mapping[str, Any], arguments: Mapping[str, Any]) -> types.CallToolResult:
    """Run one tool, by its tool.list entry. Raises MCPError for arguments that the tool's schema refuses."""
    session = await ask.client.session()
    try:
        result = await session.run(Step(entry["name"], arguments).tool, **arguments)
    except InvalidParams as error:
        raise MCPError(code=types.INVALID_PARAMS, message=error.message, data=error.data) from None
    except RpcError as error:
        return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=orjson.dumps(result).decode())], structured_content=dict(result)
    )
