"""The form of the lists of sentences: "section | level | text", a row going on in indented lines."""

from __future__ import annotations

from typing import NamedTuple


class Sentence(NamedTuple):
    """One thing to prove."""

    section: str
    level: str
    text: str


def read(table: str) -> list[Sentence]:
    """The rows "section | level | text": a row goes on in the indented lines after it; "#" begins a heading."""
    rows: list[str] = []
    for line in table.strip().splitlines():
        if line.startswith("    "):
            rows[-1] += " " + line.strip()
        elif line and not line.startswith("#"):
            rows.append(line)
    return [Sentence(*row.split(" | ", 2)) for row in rows]
