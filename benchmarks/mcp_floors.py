"""The bare MCP servers: what the official SDK costs with one trivial tool. `python -m benchmarks.mcp_floors HOW`.

The tool is hearth's `gpio_set` as its clients see it (name, both schemas, an answer of the same form), with the same
validation of its arguments, and sets a number in a dictionary. The server object is the SDK's own, over the SDK's own
stdio streams, or its own streamable HTTP. Nothing here is hearth's but the words of the tool, and the HTTP server under
the SDK's application: so the difference between the two is MCP's alone.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import mcp_types as types
import trio
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.routing import Route

from hearth.actors.bridges.http.app import Hosts
from hearth.actors.bridges.http.listener import HttpListener
from hearth.actors.listeners import tcp
from hearth.actors.listeners.accept import ConnectionLimiter
from hearth.config.listen import Endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

TOOL = "gpio_set"
_ARGUMENTS = {
    "type": "object",
    "properties": {
        "line": {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 1023},
                {"type": "string", "minLength": 1, "maxLength": 64},
            ],
        },
        "chip": {"type": "string", "minLength": 1, "maxLength": 64},
        "value": {"type": "integer", "minimum": 0, "maximum": 1},
    },
    "required": ["line", "value"],
}
"""Of hearth's schemas all but what is said to people, which costs nothing when the tool is called."""


def bare_server() -> Server[Any]:
    """One tool, and no more."""
    valid = jsonschema_rs.Draft202012Validator(_ARGUMENTS).is_valid
    levels: dict[Any, int] = {}

    async def list_tools(_ctx: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name=TOOL, input_schema=_ARGUMENTS, output_schema=_ARGUMENTS)])

    async def call_tool(_ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        if params.name != TOOL or not valid(arguments):
            raise MCPError(code=types.INVALID_PARAMS, message="Invalid params")
        await trio.lowlevel.checkpoint()
        levels[arguments["line"]] = arguments["value"]
        result = {"line": arguments["line"], "value": arguments["value"]}
        text = json.dumps(result, separators=(",", ":"))
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=result)

    return Server("bare", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def _stdio() -> None:
    server = bare_server()
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _http() -> None:
    sessions = StreamableHTTPSessionManager(bare_server())

    class Mcp:
        """An instance, so that Starlette takes it for an application."""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await sessions.handle_request(scope, receive, send)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Starlette]:
        async with sessions.run():
            yield Starlette(routes=[Route("/mcp", Mcp(), methods=["GET", "POST", "DELETE"])])

    listener = HttpListener(
        tcp.bind("http", Endpoint("127.0.0.1", 0)),
        None,
        opened,
        handshake_timeout=math.inf,
        send_timeout=30,
        report=lambda *_: None,
        count=lambda _carrier: nullcontext(),
        hosts=Hosts((), (), encrypted=False),
    )

    async def no_session(*_: object, **__: object) -> None:
        raise AssertionError("no WebSocket is offered")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept_all, nursery, ConnectionLimiter(100), no_session)
        sys.stderr.write(f"floor: listening on {listener.address}\nfloor: ready on {listener.address}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    trio.run({"stdio": _stdio, "http": _http}[sys.argv[1]])
