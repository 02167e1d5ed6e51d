"""Families of tools, the first segments of their names: icons, words that lead to them, and if their world is closed.

The icons are small pictures for clients that show them: SVG in a data URI, so nothing is fetched. `families.json` has
the strokes, and the rest of what clients are told of a family.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
