"""The JSON examples of HCP's pages, letter by letter (pages/), and ways to change a copy of one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hearth.protocol.jsonrpc import load

PAGES = Path(__file__).parent / "pages"
NAMES = sorted(path.stem for path in PAGES.glob("*.json"))
GONE = object()
"""For `changed`: the member is taken out."""


def example(name: str) -> dict[str, Any]:
    """A fresh copy of one, read as a connection reads it."""
    document: dict[str, Any] = load((PAGES / f"{name}.json").read_bytes())
    return document


def changed(document: dict[str, Any], pointer: str, value: Any) -> dict[str, Any]:
    """A copy in which the member at a pointer is this value."""
    document = copy.deepcopy(document)
    *way, last = pointer.removeprefix("/").split("/")
    place: Any = document
    for name in way:
        place = place[int(name) if isinstance(place, list) else name]
    last_key: Any = int(last) if isinstance(place, list) else last
    if value is GONE:
        del place[last_key]
    else:
        place[last_key] = value
    return document


def at(document: Any, pointer: str) -> Any:
    """The value at a pointer (RFC 6901). Raises LookupError, or TypeError, where there is none."""
    for name in pointer.split("/")[1:]:
        document = document[int(name) if isinstance(document, list) else name.replace("~1", "/").replace("~0", "~")]
    return document
