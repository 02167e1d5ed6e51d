"""The tools of a session as an MCP client is shown them: definitions by the name they are called by there.

This module owns the two directions of the name and what a definition says; it refuses to know who asks, and the SDK.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hearth.mcp.icons import icon
from hearth.mcp.names import META_TOOL, PLAN, by_mcp_name, mcp_name
from hearth.tools import CARD_NAMESPACE, RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


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


# --- What the risk level and the rollback of a tool mean to an MCP client: annotations, and the same in words
#
# MCP's annotations are hints for people and clients; what a session may do is decided by the daemon's policy alone.

_CLOSED = frozenset(("file", "gpio", "hw", "i2c", "sys"))
"""Families whose whole world is listed: this board's lines, buses and sensors, this machine, the folders it shares.

At the other end of a serial port there may be anybody, and a program may reach anything; of a vendor's tool we know
nothing, and MCP's default for that is the open world.
"""


def family(name: str) -> str:
    """The first segment of a tool's name."""
    return name.partition(".")[0]


def risk_name(level: int) -> str:
    """The name of a risk level (draft §3.3, Table 4); of one that a later protocol may add, that of the highest."""
    return RISK_NAMES[min(level, len(RISK_NAMES) - 1)]


def hints(entry: Mapping[str, Any]) -> dict[str, bool]:
    """All four of MCP's ToolAnnotations for a tool.list entry.

    Destructive is what cannot be taken back: risk 3, and risk 2 without rollback. What has no effect has none the
    second time either; of all others only those are idempotent that say so (`idempotent` in the entry).
    """
    risk, undoable = entry["risk_level"], entry.get("supports_rollback") is True
    return {
        "readOnlyHint": risk == 0,
        "destructiveHint": risk >= 3 or (risk == 2 and not undoable),
        "idempotentHint": risk == 0 or entry.get("idempotent") is True,
        "openWorldHint": family(entry["name"]) not in _CLOSED,
    }


def _least(entry: Mapping[str, Any]) -> str:
    least = entry.get("least_risk")
    return "" if least is None else f" at most, and {least} for some arguments"


def in_words(entry: Mapping[str, Any]) -> str:
    """The description, and what a model has to know of risk and rollback before it calls the tool."""
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


# --- A tool's JSON Schema in the words that more MCP clients understand, with exactly the same meaning
#
# Many clients hand schemas to models whose dialect has one `type` per schema. What is there twice is said once; no
# value is accepted that was not, and none refused.

_MAPS = ("properties", "patternProperties", "$defs", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = (
    "items",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)


def portable(schema: Mapping[str, Any], named: Callable[[str], str] = str) -> dict[str, Any]:
    """The schema of an object: its root says so, as MCP asks, since args and results are objects in HACP anyway.

    `named` rewrites what descriptions say.
    """
    return {**_rewritten(schema, named), "type": "object"}


def _rewritten(schema: Any, named: Callable[[str], str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in _MAPS:
        if isinstance(made.get(name), dict):
            made[name] = {key: _rewritten(value, named) for key, value in made[name].items()}
    for name in _LISTS:
        if isinstance(made.get(name), list):
            made[name] = [_rewritten(value, named) for value in made[name]]
    for name in _ONE:
        if name in made:
            made[name] = _rewritten(made[name], named)
    if isinstance(made.get("description"), str):
        made["description"] = named(made["description"])
    kinds = made.get("type")
    if isinstance(kinds, list):
        del made["type"]
        either = [{"type": kind} for kind in kinds]
        if "anyOf" in made:
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": either}]
        else:
            made["anyOf"] = either
    return made
