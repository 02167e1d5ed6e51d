"""Which MCP is spoken, and where: what `mcp.info` tells, and the bridge negotiates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
"""Oldest first. The last begins an era of its own: every request stands alone, and nothing is negotiated."""

TASKS = "io.modelcontextprotocol/tasks"
EXTENSIONS = (TASKS,)
"""Of the protocol's official extensions, those that are spoken."""

PATH = "/mcp"
"""Where on an HTTP listener MCP is."""

COMMAND = ("hearth", "mcp")
"""What speaks MCP on its stdin and stdout, on any machine that reaches the daemon."""


def endpoints(listeners: Iterable[str], *, over_http: bool) -> list[dict[str, Any]]:
    """Where an MCP client may connect: the command that is everywhere, and HTTP listeners if they have /mcp."""
    urls = [address for address in listeners if over_http and address.startswith(("http://", "https://"))]
    return [
        *({"transport": "streamable-http", "url": f"{url.rstrip('/')}{PATH}"} for url in urls),
        {"transport": "stdio", "command": list(COMMAND)},
    ]
