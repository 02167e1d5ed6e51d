"""What hearth raises, as MCP says it. HACP's codes stay in the data, for MCP means something else by some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from hearth.errors import CarrierError, HearthError, PermissionDenied, RpcError
from hearth.mcp.outcome import WORLD, ProtocolError, advice, of_error

if TYPE_CHECKING:
    from hearth.actors.bridges.mcp.providers import Ask


def no_resource(ask: Ask, uri: str, why: str = "") -> MCPError:
    """The error for a URI that nobody has, or behind which there is nothing, and why."""
    # 2026-07-28 has given up the code of its own.
    code = types.INVALID_PARAMS if ask.modern else -32002
    return MCPError(
        code=code, message=f"Resource not found: {why}" if why else "Resource not found", data={"uri": uri[:1000]}
    )


def as_mcp(error: HearthError) -> MCPError:
    """An error of whatever is not a tool's call."""
    outcome = of_error(error)
    if isinstance(outcome, ProtocolError):
        return MCPError(code=outcome.code, message=outcome.message, data=outcome.data)
    code = types.INVALID_REQUEST if isinstance(error, PermissionDenied) else types.INTERNAL_ERROR
    return MCPError(code=code, message=outcome["content"][0]["text"], data=outcome.get("_meta") or None)


def no_session(error: RpcError | CarrierError) -> dict[str, Any]:
    """The CallToolResult of a call for which there is no session to be had: nothing of it has been submitted.

    Raises MCPError where the call itself is wrong.
    """
    if isinstance(error, CarrierError):
        text = f"{str(error).rstrip('.')}. {WORLD['none']} {advice(error)}"
        return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
    outcome = of_error(error)
    if isinstance(outcome, ProtocolError):
        raise as_mcp(error)
    return {**outcome, "resultType": "complete"}
