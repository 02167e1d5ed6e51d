"""The tools of a session as an MCP client is shown them: definitions by the name they are called by there.

This module owns the two directions of the name and what a definition says; it refuses to know who asks, and the SDK.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hearth.mcp.hints import family, hints, in_words, risk_name
from hearth.mcp.icons import icon
from hearth.mcp.names import META_TOOL, by_mcp_name, mcp_name
from hearth.mcp.portable import portable
from hearth.tools import CARD_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ToolView:
    """What `tool.list` gave, by MCP name and in its order. Raises ConfigError for two tools of one MCP name."""

    def __init__(self, manifest: Iterable[Mapping[str, Any]]) -> None:
        self._by_hacp = entries = {entry["name"]: entry for entry in manifest}
        self._entries = {mcp: entries[name] for mcp, name in by_mcp_name(entries).items()}
        self._definitions: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> Mapping[str, Any] | None:
        """The `tool.list` entry that a client means: by its MCP name, its HACP name, or its id in the AgentCard.

        No two tools are meant by one name: an MCP name has no dot, and no HACP name of ours begins as an id does.
        """
        if "." not in name:
            return self._entries.get(name)
        return self._by_hacp.get(name) or self._by_hacp.get(name.removeprefix(CARD_NAMESPACE))

    def names(self) -> list[str]:
        """Every name that a client may use, but for the ids of the AgentCard."""
        return [*self._entries, *self._by_hacp]

    def definitions(self) -> list[dict[str, Any]]:
        """An MCP Tool object for each, made once; not to be changed."""
        if self._definitions is None:
            named = Naming(entry["name"] for entry in self._entries.values())
            self._definitions = [_definition(entry, named) for entry in self._entries.values()]
        return self._definitions


class Naming:
    """Text about tools, in which they are called as an MCP client calls them."""

    def __init__(self, names: Iterable[str]) -> None:
        # The longest first: "gpio.set.v2" is not "gpio.set" with something after it.
        known = sorted(names, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, known))})(?![\w]|\.\w)")

    def __call__(self, text: str) -> str:
        """The text with MCP names for HACP ones; what is no tool of the session is left as it is."""
        return self._pattern.sub(lambda found: mcp_name(found[1]), text)


_TOLD_ELSEWHERE = frozenset(("description", "params_schema", "result_schema"))
"""Members of an entry that have a place of their own in an MCP Tool. All others, unknown ones too, go along (§3.3)."""


def _definition(entry: Mapping[str, Any], named: Naming) -> dict[str, Any]:
    """The MCP Tool object of one `tool.list` entry, in the terms of MCP 2025-11-25 and 2026-07-28 alike.

    Of an entry no more is taken for granted than the draft has (§3.3): another server's may have less than ours.
    """
    name = entry["name"]
    made = {
        "name": mcp_name(name),
        "title": name,
        "description": named(in_words(entry)),
        "inputSchema": portable(entry["params_schema"], named),
    }
    if "result_schema" in entry:
        made["outputSchema"] = portable(entry["result_schema"], named)
    told = {member: value for member, value in entry.items() if member not in _TOLD_ELSEWHERE}
    return {
        **made,
        "annotations": hints(entry),
        "icons": [icon(family(name))],
        "_meta": {META_TOOL: {**told, "risk": risk_name(entry["risk_level"])}},
    }
