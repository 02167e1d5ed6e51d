"""Names of tools over MCP, and the keys of hearth's members in MCP objects.

An MCP name follows from the HACP name alone. It is the same for every principal, whatever tools the principal may see
and whatever else is registered. Two tools never share one. This module does not know the tools' arguments.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hearth._util.text import suggest
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# --- protocol ---------------------------------------------------------------------------------------------------------
# Versions and endpoints of MCP: `mcp.info` reports them, and the bridge negotiates the version.

PROTOCOL_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
"""Oldest first. The last differs from the others: every request is independent, and no version is negotiated."""

TASKS = "io.modelcontextprotocol/tasks"
EXTENSIONS = (TASKS,)
"""The supported official extensions of the protocol."""

PATH = "/mcp"
"""The path of MCP on an HTTP listener."""

COMMAND = ("hearth", "mcp")
"""The command that speaks MCP on stdin and stdout, on any machine that reaches the daemon."""


def endpoints(listeners: Iterable[str], *, over_http: bool) -> list[dict[str, Any]]:
    """Return the endpoints for MCP clients: HTTP listeners, if they serve /mcp (`over_http`), and the command."""
    urls = [address for address in listeners if over_http and address.startswith(("http://", "https://"))]
    return [
        *({"transport": "streamable-http", "url": f"{url.rstrip('/')}{PATH}"} for url in urls),
        {"transport": "stdio", "command": list(COMMAND)},
    ]


# --- icons ------------------------------------------------------------------------------------------------------------
# A small picture for each family of tools, for clients that show one: SVG in a data URI, so nothing is fetched.
# `families.json` has the strokes, and the rest of what clients are told of a family.

_FAMILIES: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_name("families.json").read_bytes())
MEANS: Final[Mapping[str, Sequence[str]]] = _FAMILIES["means"]
"""A word of other programs and libraries -> words in the names of tools."""
CLOSED: Final = frozenset(_FAMILIES["closed"])
"""Families with a known, closed set of targets: what this board has, this machine, shared folders.

A serial port may lead to any device, and a program may reach anything. A vendor's tool is unknown, for which MCP's
default is the open world.
"""
_OTHER = "M14 6a4 4 0 0 0-5 5l-5 5 3 3 5-5a4 4 0 0 0 5-5l-3 2-2-2z"
_COLOUR = "#d9480f"
"""Orange, which is visible on a light and on a dark background."""


@cache
def icon(family: str) -> dict[str, object]:
    """Return the MCP Icon of a family (the first segment of a tool's name), or a common one for an unknown family."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" '
        f'stroke="{_COLOUR}" stroke-width="2"><path d="{_FAMILIES["strokes"].get(family, _OTHER)}"/></svg>'
    )
    data = base64.b64encode(svg.encode()).decode()
    return {"src": f"data:image/svg+xml;base64,{data}", "mimeType": "image/svg+xml", "sizes": ["any"]}


# --- names ------------------------------------------------------------------------------------------------------------

LONGEST = 64
"""Length of a name that every client accepts, with the characters A-Z, a-z, 0-9, "_" and "-"."""

LONGEST_SHOWN = 100
"""Limit of an unknown name in a message, in characters."""

PLAN = "hacp_plan"
HALT = "hacp_halt"
CARD_TOOLS = ("agentcard_declare", "agentcard_resolve", "agentcard_validate", "agentcard_list")
RESERVED = (PLAN, HALT, *CARD_TOOLS)
"""The bridge's own tools."""

META = "dev.hearth"
"""The prefix of hearth's keys in `_meta`, in reverse DNS notation as MCP requires."""
META_TOOL = f"{META}/tool"
"""The members of a tool.list entry for which MCP has no member of its own."""
META_TASK = f"{META}/task"
"""The HACP task that a result comes from."""
META_EXPECT = "hearth/expect"
"""The key in a call's `_meta` of the effect that it must have: the member `expect` of a step (task.submit)."""
META_KEY = "hearth/idempotency_key"
"""The key in a call's `_meta` of its idempotency key: a repeated call returns the first one's result."""
META_ERROR = f"{META}/error"
"""The HACP error of a failure: code, symbol, message and data, as in docs/reference/errors.md."""

_PLAIN = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*\Z")
_OURS = ("hacp.", "agentcard.")
"""Families that are reserved for the bridge's own tools, those of later releases included."""
_DIGITS = 10
_TO_MCP = str.maketrans("._", "_-")


def mcp_name(name: str) -> str:
    """Return the MCP name of a HACP tool: `gpio.set` is `gpio_set`, `com.acme.read_all` is `com_acme_read-all`.

    A dot becomes "_", and "_" becomes "-", which no HACP name has, so that two names that fit stay different. A name
    that does not fit (too long, a character that HACP names do not have, or a family of the bridge's own tools) is cut
    and gets a digest of the whole name in capitals, which names that fit never have.
    """
    if len(name) <= LONGEST and _PLAIN.match(name) and not name.startswith(_OURS):
        return name.translate(_TO_MCP)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS].upper()
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower().translate(_TO_MCP))
    # "X" because a hexadecimal digest may have no letter, and so no capital.
    return f"{plain[: LONGEST - _DIGITS - 2]}-X{digest}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the most similar known name after "; ", or ";" alone."""
    return f"; {suggest(name[:LONGEST_SHOWN], known)}".rstrip()


def by_mcp_name(names: Iterable[str]) -> dict[str, str]:
    """Return MCP name -> HACP name, in the order given. Raises ConfigError for two tools with the same MCP name.

    This takes two equal digests, or one name given twice. A client that names one tool must not get the other.
    """
    known: dict[str, str] = {}
    for name in names:
        first = known.setdefault(mcp_name(name), name)
        if first != name:
            raise ConfigError(f"tools {first!r} and {name!r} have one MCP name, {mcp_name(name)}; rename one of them")
    return known
