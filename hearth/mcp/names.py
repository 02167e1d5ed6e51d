"""Names of MCP: versions and endpoints of the protocol, names of tools, and keys of hearth's members in MCP objects.

`mcp.info` reports versions and endpoints, and the bridge negotiates the version. An MCP name follows from the HACP name
alone. It is the same for every principal, whatever tools the principal may see and whatever else is registered. Two
tools never share one. This module does not know the tools' arguments.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from hearth._util.text import suggest
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
