"""Suggestions of the nearest known names, for messages about an unknown name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def nearest(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to `most` known names that are as close to `name` as `cutoff` (0 to 1) asks, the nearest first."""
    from difflib import get_close_matches  # 5 ms, and only when something is misspelt

    return get_close_matches(name, list(known), most, cutoff)


def suggest(name: str, known: Iterable[str], *, most: int = 1, show: Callable[[str], str] = str) -> str:
    """Return "did you mean NAME?", with up to `most` near names, each as `show` writes it; "" where none is near."""
    near = nearest(name, known, most)
    return f"did you mean {', '.join(map(show, near))}?" if near else ""
