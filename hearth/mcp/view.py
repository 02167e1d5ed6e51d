"""The tools of a session as an MCP client is shown them: definitions by the name they are called by there.

This module owns the two directions of the name and what a definition says; it refuses to know who asks, and the SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ToolView:
    """What `tool.list` gave, by MCP name and in its order."""

    def __init__(self, manifest: Iterable[Mapping[str, Any]]) -> None:
        self._entries = {entry["name"].replace(".", "_"): entry for entry in manifest}

    def hacp(self, mcp_name: str) -> Mapping[str, Any] | None:
        """The `tool.list` entry that is called by this name over MCP, if there is one."""
        return self._entries.get(mcp_name)

    def definitions(self) -> list[dict[str, Any]]:
        """An MCP Tool object for each."""
        return [
            {
                "name": name,
                "title": entry["name"],
                "description": entry["description"],
                "inputSchema": entry["params_schema"],
                "outputSchema": entry["result_schema"],
            }
            for name, entry in self._entries.items()
        ]
