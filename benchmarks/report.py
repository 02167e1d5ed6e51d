"""Figures and their goals, as a table for people and as JSON for programs. It measures nothing and decides nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import asdict, field, fields as attrs_fields, frozen

if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen
class Row:
    """One figure. `goal` None: it is there to be known, not to be met."""

    name: str
    what: str
    figure: float | None
    """None: it could not be measured; `note` says why."""
    unit: str = ""
    goal: float | None = None
    sense: Literal["at least", "at most"] = "at least"
    spread: tuple[float, float] | None = None
    """The lowest and the highest over the rounds; `figure` is the median."""
    others: float | None = None
    """How many CPUs others used meanwhile: the more, the less the figure says."""
    note: str = ""
    detail: dict[str, Any] = field(factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal or without a figure."""
        if self.goal is None or self.figure is None:
            return None
        return self.figure >= self.goal if self.sense == "at least" else self.figure <= self.goal


HEADINGS = ("measure", "", "goal", "figure", "spread", "", "others", "note")


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of aligned text."""
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def markdown(rows: Sequence[Row], about: dict[str, Any] | None = None) -> str:
    """The rows as a table for a document, and what they were measured on (see `machine`; by default: here)."""
    about = about or machine()
    where = f"{about['system']}, {about['cpus']} CPUs, Python {about['python']}, trio {about['trio']}"
    lines = [
        f"Measured {time.strftime('%Y-%m-%d', time.gmtime())} on {where}, orjson {about['orjson']}.",
        "",
        "| measure | goal | figure | spread | others | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        _, what, goal, figure, spread, verdict, others, note = _cells(row)
        judged = f"**{verdict}**" if verdict == "missed" else verdict
        last = "; ".join(filter(None, (judged, note)))
        lines.append(f"| {what} | {goal} | {figure} | {spread} | {others} | {last} |")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    goal = "" if row.goal is None else f"{'>=' if row.sense == 'at least' else '<='} {_number(row.goal, row.unit)}"
    figure = "-" if row.figure is None else _number(row.figure, row.unit)
    spread = "" if row.spread is None else f"{_number(row.spread[0])} to {_number(row.spread[1])}"
    verdict = "failed" if row.figure is None else {None: "", True: "met", False: "missed"}[row.met]
    others = "" if row.others is None else f"{row.others:.2f}"
    return row.name, row.what, goal, figure, spread, verdict, others, row.note


def _number(value: float, unit: str = "") -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{text} {unit}".rstrip()


def write(path: Path, rows: Sequence[Row], options: dict[str, Any]) -> None:
    """Save the rows and what they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "options": options,
        "rows": [{**asdict(row), "met": row.met} for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """The rows that `write` saved, and what they were measured on."""
    content = json.loads(path.read_text())
    fields = {each.name for each in attrs_fields(Row)}
    return [Row(**{k: v for k, v in row.items() if k in fields}) for row in content["rows"]], content["machine"]


def rewrite(page: Path, begin: str, end: str, text: str) -> None:
    """Put a text between two marks of a page. Raises ValueError if they are not there."""
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} lacks the marks {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import orjson
    import trio

    return {
        "revision": _revision(),
        "python": sys.version.split()[0],
        "trio": trio.__version__,
        "orjson": orjson.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }


def _revision() -> str | None:
    """What was measured, if git knows: the commit, with a + for changes on top of it."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()
