"""What a tool is called over MCP, and the keys under which hearth adds to MCP objects.

A name is decided from the HACP name alone: it is the same for every principal, whichever tools that one may see, and
whatever else is registered. Two tools never share one. What a name may be called with is not known here.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from hearth.errors import ConfigError
from hearth.suggestions import suggest

if TYPE_CHECKING:
    from collections.abc import Iterable

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
