"""A program with the official Python client: it runs plans, and tells on stdout what it sees, a JSON line each.

A line of its stdin is a JSON object: whom to connect to (`server`: a URL, or a command), how to find the era (`mode`:
legacy or auto), the plan `whole`, which runs to its end, and the plan `cut`, which is cancelled when step `at` begins.
When all is told of one line it takes the next.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

BOUND = 30
"""Seconds that one line may take."""


def tell(kind: str, **what: Any) -> None:
    """Say something."""
    print(json.dumps({"kind": kind, **what}), flush=True)


async def run(client: Client, plan: dict[str, Any], cancel_at: int | None = None) -> None:
    """Run a plan, and tell of its progress and of its result, or that it was cancelled."""
    with trio.CancelScope() as scope:

        async def take(progress: float, total: float | None, message: str | None) -> None:
            tell("progress", progress=progress, total=total, message=message)
            if cancel_at is not None and progress >= cancel_at:
                scope.cancel()

        result = await client.call_tool("hacp_plan", plan, progress_callback=take)
        tell("result", is_error=result.is_error, structured=result.structured_content)
    tell("over", cancelled=scope.cancelled_caught)


async def serve(order: dict[str, Any]) -> None:
    """Connect, run the plans, and show that the connection is as good as before."""
    server: Any = order["server"]
    if isinstance(server, list):
        server = stdio_client(StdioServerParameters(command=server[0], args=server[1:]))
    with trio.fail_after(BOUND):
        async with Client(server, mode=order["mode"]) as client:
            tell("connected", version=client.protocol_version)
            await run(client, order["whole"])
            await run(client, order["cut"], order["at"])
            after = await client.call_tool("hw_board")
            tell("after", is_error=after.is_error, board=(after.structured_content or {}).get("name"))


if __name__ == "__main__":
    for line in sys.stdin:
        trio.run(serve, json.loads(line))
