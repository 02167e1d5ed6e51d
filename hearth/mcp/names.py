"""What a tool is called over MCP, and the keys under which hearth adds to MCP objects.

A name is decided from the HACP name alone: it is the same for every principal, whichever tools that one may see, and
whatever else is registered. Two tools never share one. What a name may be called with is not known here.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from hearth._util.text import suggest
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

# --- protocol ---------------------------------------------------------------------------------------------------------
# Which MCP is spoken, and where: what `mcp.info` tells, and the bridge negotiates.

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


# --- icons ------------------------------------------------------------------------------------------------------------
# A small picture for each family of tools, for clients that show one: SVG in a data URI, so nothing is fetched.

_STROKES = {
    "gpio": "M4 16h4V8h6v8h6",
    "i2c": "M4 9h16M4 15h16M8 9v10M16 15V5",
    "uart": "M4 8h13m-3-3 3 3-3 3M20 16H7m3-3-3 3 3 3",
    "file": "M7 3h7l4 4v14H7zM14 3v4h4",
    "sys": "M4 17a8 8 0 1 1 16 0M12 17l4-6",
    "hw": "M7 7h10v10H7zM9 4v3m6-3v3M9 17v3m6-3v3M4 9h3m-3 6h3m10-6h3m-3 6h3",
    "proc": "M4 5h16v14H4zM7 9l3 3-3 3m5 0h4",
}
_OTHER = "M14 6a4 4 0 0 0-5 5l-5 5 3 3 5-5a4 4 0 0 0 5-5l-3 2-2-2z"
_COLOUR = "#d9480f"
"""Of embers: it can be told from a light background as well as from a dark one."""


@cache
def icon(family: str) -> dict[str, object]:
    """The MCP Icon of a family (the first segment of a tool's name); one that is unknown gets a common one."""
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" '
        f'stroke="{_COLOUR}" stroke-width="2"><path d="{_STROKES.get(family, _OTHER)}"/></svg>'
    )
    data = base64.b64encode(svg.encode()).decode()
    return {"src": f"data:image/svg+xml;base64,{data}", "mimeType": "image/svg+xml", "sizes": ["any"]}


# --- names ------------------------------------------------------------------------------------------------------------

LONGEST = 64
"""Characters of a name that every client takes, each of A-Z, a-z, 0-9, "_" and "-"."""

LONGEST_SHOWN = 100
"""Characters of a name that nobody has, in what is said of it."""

PLAN = "hacp_plan"
CARD_TOOLS = ("agentcard_declare", "agentcard_resolve", "agentcard_validate", "agentcard_list")
RESERVED = (PLAN, *CARD_TOOLS)
"""The bridge's own tools."""

META = "dev.hearth"
"""The prefix of our keys in `_meta`, in reverse DNS as MCP asks of it."""
META_TOOL = f"{META}/tool"
"""What tool.list says of a tool beyond what MCP has a place for."""
META_TASK = f"{META}/task"
"""Which HACP task a result comes from."""
META_ERROR = f"{META}/error"
"""The HACP error behind a failure: code, symbol, message and data, as docs/reference/errors.md has them."""

_PLAIN = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*\Z")
_OURS = ("hacp.", "agentcard.")
"""Families that the bridge keeps for tools of its own, those of later releases included."""
_DIGITS = 10
_TO_MCP = str.maketrans("._", "_-")


def mcp_name(name: str) -> str:
    """The MCP name of a HACP tool: `gpio.set` is `gpio_set`, `com.acme.read_all` is `com_acme_read-all`.

    A dot becomes "_", and so "_" becomes "-", which no HACP name has: two names that fit stay two. What does not fit
    (too long, a character that HACP names do not have, or a name that could be the bridge's own) is cut, and gets a
    digest of the whole in capitals, which the others never have.
    """
    if len(name) <= LONGEST and _PLAIN.match(name) and not name.startswith(_OURS):
        return name.translate(_TO_MCP)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS].upper()
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower().translate(_TO_MCP))
    # "X" because the digits of a digest could happen to be no letters at all.
    return f"{plain[: LONGEST - _DIGITS - 2]}-X{digest}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say behind a name that is not known, with the known name that is most like it, if any is."""
    return f"; {suggest(name[:LONGEST_SHOWN], known)}".rstrip()


def by_mcp_name(names: Iterable[str]) -> dict[str, str]:
    """MCP name -> HACP name, in the order given. Raises ConfigError for two tools of one MCP name.

    That would take two digests that agree, or one tool given twice; a client that means one must not get the other.
    """
    known: dict[str, str] = {}
    for name in names:
        first = known.setdefault(mcp_name(name), name)
        if first != name:
            raise ConfigError(f"tools {first!r} and {name!r} have one MCP name, {mcp_name(name)}; rename one of them")
    return known
