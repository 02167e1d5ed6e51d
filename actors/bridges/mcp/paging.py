"""Pages of a list, and the cursors between them: opaque to a client, and refused if they are not ours."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError

if TYPE_CHECKING:
    from pydantic import BaseModel

    Item = TypeVar("Item", bound=BaseModel)

PAGE: Final = 100
"""Entries of one page of a list; a board's own tools fit on the first one, for clients that never ask for a second."""


def page(items: list[Item], params: types.PaginatedRequestParams, kind: str) -> tuple[list[Item], str | None]:
    """One page, and the cursor of the next. Raises MCPError for a cursor that is not one of ours."""
    start = 0
    if params.cursor is not None:
        try:
            start = int(base64.urlsafe_b64decode(params.cursor).decode("ascii").removeprefix(f"{kind}:"))
        except (binascii.Error, ValueError):
            start = 0
        if params.cursor != _cursor(kind, start) or not 0 < start < len(items):
            raise MCPError(code=types.INVALID_PARAMS, message="Unknown cursor; begin the list again without one")
    end = start + PAGE
    return items[start:end], _cursor(kind, end) if end < len(items) else None


def _cursor(kind: str, start: int) -> str:
    return base64.urlsafe_b64encode(f"{kind}:{start}".encode()).decode()
