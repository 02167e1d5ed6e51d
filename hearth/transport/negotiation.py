"""The Accept header: which media types a request can be answered in (RFC 9110 §12.5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def ranges_of(accept: Iterable[str]) -> list[str]:
    """Return the media ranges of an Accept header, given as its lines."""
    return [part.strip() for line in accept for part in line.split(",") if part.strip()]


def weight_of(offered: str, ranges: Iterable[str]) -> float:
    """Return a media type's weight, by the most specific range that includes it."""
    best = (-1, 0.0)
    for each in ranges:
        wanted, *parameters = (part.strip().lower() for part in each.split(";"))
        precision = {offered: 2, f"{offered.partition('/')[0]}/*": 1, "*/*": 0}.get(wanted)
        if precision is None or precision < best[0]:
            continue
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                quality = _quality(parameter[2:])
        best = (precision, quality)
    return best[1]


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= 1 else 0.0
