"""placeholder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def source_warnings(_function: Callable[..., Any]) -> list[str]:
    """None yet."""
    return []
