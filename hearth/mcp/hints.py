"""What the risk level and the rollback of a tool mean to an MCP client: annotations, and the same in words.

MCP's annotations are hints for people and clients; what a session may do is decided by the daemon's policy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.mcp.names import PLAN
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

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
