"""MCP Tool definitions of a session's tools: names in both directions, descriptions, annotations.

MCP's annotations are hints for people and clients. Only the daemon's policy decides what a session may do. This module
does not know the caller, and not the SDK.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hearth.mcp.arguments import Arguments
from hearth.mcp.families import CLOSED, icon
from hearth.mcp.names import META_TOOL, PLAN, by_mcp_name, mcp_name
from hearth.mcp.schemas import flat, plain, portable
from hearth.tools import CARD_NAMESPACE, RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ToolView:
    """The entries of `tool.list`, by MCP name and in their order. Raises ConfigError for two with one MCP name."""

    def __init__(self, manifest: Iterable[Mapping[str, Any]]) -> None:
        self._by_hacp = entries = {entry["name"]: entry for entry in manifest}
        self._entries = {mcp: entries[name] for mcp, name in by_mcp_name(entries).items()}
        self._definitions: list[dict[str, Any]] | None = None
        self._arguments: dict[str, Arguments] = {}
        self._named = Naming(self._by_hacp)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> Mapping[str, Any] | None:
        """Return the `tool.list` entry for an MCP name, a HACP name or an id in the AgentCard; None if it is unknown.

        A name never means two tools: an MCP name has no dot, and no HACP name begins with the prefix of an id.
        """
        if "." not in name:
            return self._entries.get(name)
        return self._by_hacp.get(name) or self._by_hacp.get(name.removeprefix(CARD_NAMESPACE))

    def names(self) -> list[str]:
        """Return every name that a client may use, except the ids of the AgentCard."""
        return [*self._entries, *self._by_hacp]

    def arguments(self, entry: Mapping[str, Any]) -> Arguments:
        """Return the check of the arguments of an entry's tool."""
        name = entry["name"]
        if name not in self._arguments:
            # By the tool's own schema, not by the published one, which accepts more.
            self._arguments[name] = Arguments(portable(flat(entry["params_schema"]), self._named))
        return self._arguments[name]

    def definitions(self) -> list[dict[str, Any]]:
        """Return an MCP Tool object for each entry; they are made once, so do not change them."""
        if self._definitions is None:
            self._definitions = [_definition(entry, self._named) for entry in self._entries.values()]
        return self._definitions


class Naming:
    """A rewriter of text about tools: it replaces HACP names by MCP names."""

    def __init__(self, names: Iterable[str]) -> None:
        # The longest name first: "gpio.set.v2" must not match as "gpio.set".
        known = sorted(names, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, known))})(?![\w]|\.\w)")

    def __call__(self, text: str) -> str:
        """Return the text with MCP names for HACP names; names that are not tools of the session stay."""
        return self._pattern.sub(lambda found: mcp_name(found[1]), text)


_OWN_MEMBERS = frozenset(("description", "params_schema", "result_schema"))
"""Members of an entry that have a member of their own in an MCP Tool. All others, unknown ones too, go to _meta (draft
§3.3)."""


def _definition(entry: Mapping[str, Any], named: Naming) -> dict[str, Any]:
    """Return the MCP Tool object of one `tool.list` entry; it is valid in MCP 2025-11-25 and in 2026-07-28.

    Only the members that the draft requires (§3.3) are expected in the entry: another server may send no more.
    """
    name = entry["name"]
    made = {
        "name": mcp_name(name),
        "title": name,
        "description": named(in_words(entry)),
        "inputSchema": plain(portable(flat(entry["params_schema"]), named)),
    }
    if "result_schema" in entry:
        made["outputSchema"] = plain(portable(entry["result_schema"], named))
    told = {member: value for member, value in entry.items() if member not in _OWN_MEMBERS}
    return {
        **made,
        "annotations": hints(entry),
        "icons": [icon(family(name))],
        "_meta": {META_TOOL: {**told, "risk": risk_name(entry["risk_level"])}},
    }


def family(name: str) -> str:
    """Return the first segment of a tool's name."""
    return name.partition(".")[0]


def risk_name(level: int) -> str:
    """Return the name of a risk level (draft §3.3, Table 4); a level of a later protocol gets the highest name."""
    return RISK_NAMES[min(level, len(RISK_NAMES) - 1)]


def hints(entry: Mapping[str, Any]) -> dict[str, bool]:
    """Return all four of MCP's ToolAnnotations for a tool.list entry.

    A tool is destructive if it cannot be undone: risk 3, and risk 2 without rollback. It is idempotent if it has no
    effect (risk 0), or its entry says so (`idempotent`).
    """
    risk, undoable = entry["risk_level"], entry.get("supports_rollback") is True
    return {
        "readOnlyHint": risk == 0,
        "destructiveHint": risk >= 3 or (risk == 2 and not undoable),
        "idempotentHint": risk == 0 or entry.get("idempotent") is True,
        "openWorldHint": family(entry["name"]) not in CLOSED,
    }


def _least(entry: Mapping[str, Any]) -> str:
    least = entry.get("least_risk")
    return "" if least is None else f" at most, and {least} for some arguments"


def in_words(entry: Mapping[str, Any]) -> str:
    """Return the description, with the risk and the rollback in words for a model."""
    risk = entry["risk_level"]
    undoable = entry.get("supports_rollback") is True
    said = str(entry.get("description") or entry["name"]).rstrip()
    said = said if said.endswith((".", "!", "?")) else f"{said}."
    level = f"Risk {risk} ({risk_name(risk)})"
    if risk == 0:
        return f"{said} {level}: only reads."
    level += _least(entry)
    what = {1: "may change something, which is easily put right", 2: "acts on the real world"}.get(
        risk, "cannot be taken back: a person is asked first"
    )
    back = f"; within {PLAN} it can be rolled back" if undoable else "; there is no rollback"
    return f"{said} {level}: {what}{back if risk < 3 or undoable else ''}."
