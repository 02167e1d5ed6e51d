"""A small picture for each family of tools, for clients that show one: SVG in a data URI, so nothing is fetched."""

from __future__ import annotations

import base64
from functools import cache

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
