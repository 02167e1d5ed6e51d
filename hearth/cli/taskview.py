"""Tasks and their events as lines and cells. Pure: JSON objects as the wire has them in, text out.

Everything from the wire is shown through `render.clean`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hearth.api import TERMINAL
from hearth.cli import render

if TYPE_CHECKING:
    from hearth.api import TaskEvent

Row = dict[str, Any]
"""One step as far as it is known: the members of task.get's `steps`, and `progress`, the newest there was."""

HEADERS = ("#", "tool", "status", "ms", "result")
_TIME_OF_DAY = slice(11, 23)


def planned_rows(plan: Mapping[str, Any]) -> list[Row]:
    """The rows of a plan of which nothing has begun."""
    return [{"tool": step.get("tool")} for step in plan["steps"]]


def enter(rows: list[Row], event: TaskEvent) -> None:
    """Enter an event into the rows; those that a plan did not announce are added."""
    index = event.step_index
    if index is None:
        for row in rows:
            row.setdefault("status", "CANCELLED")
        return
    rows.extend({} for _ in range(index + 1 - len(rows)))
    if event.phase == "start":
        rows[index].update(event.data, status="RUNNING")
    elif event.phase == "progress":
        rows[index]["progress"] = event.data.get("data", event.data)
    else:
        rows[index].update(event.data)


def cells(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str, str]]:
    """The cells under `HEADERS` for each row."""
    return [
        (str(index), row.get("tool") or "", row.get("status") or "", _milliseconds(row), outcome(row))
        for index, row in enumerate(rows)
    ]


def _milliseconds(row: Mapping[str, Any]) -> str:
    took = row.get("latency_ms")
    return "" if took is None else f"{took:.1f}"


def outcome(row: Mapping[str, Any]) -> str:
    """What came of a step so far, in one line."""
    words = []
    if row.get("error") is not None:
        words.append(row["error"])
        effect = (row.get("error_data") or {}).get("effect")
        if effect is not None:
            words.append(f"(effect: {effect})")
    elif row.get("result") is not None:
        words.append(brief(row["result"]))
    elif row.get("status") == "RUNNING" and row.get("progress") is not None:
        words.append(brief(row["progress"]))
    if row.get("rolled_back") is not None:
        words.append("(rolled back)" if row["rolled_back"] else "(could not be rolled back)")
    return " ".join(words)


def brief(value: Any) -> str:
    """An object as `name=value` words, anything else as it is."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={render.scalar(member)}" for name, member in value.items())
    return render.scalar(value)


def event_line(event: TaskEvent) -> str:
    """An event in one line: time of day (UTC), phase, step, tool, how it went."""
    data = event.data
    words = [event.ts[_TIME_OF_DAY], event.phase.ljust(11)]
    if event.step_index is not None:
        words.append(f"step {event.step_index}")
    words += [data[name] for name in ("tool", "status") if data.get(name) is not None]
    if event.phase == "progress":
        words.append(brief(data.get("data", data)))
    elif event.phase == "finish":
        words += [f"{_milliseconds(data)} ms", outcome(data)]
    else:
        words += [data[name] for name in ("reason", "error") if data.get(name) is not None]
    return render.clean("  ".join(word for word in words if word))


def task_lines(done: Mapping[str, Any], reference: str, *, steps: bool = True) -> list[str]:
    """A task as task.get tells it: a table of its steps, and a line that says how it stands."""
    shown = done.get("steps") if steps else None
    lines = render.table(HEADERS, cells(shown)) if shown else []
    name = click.style(reference, dim=True)
    lines.append(f"{render.status(done['status'])}  {render.clean(done.get('intent') or '')}  {name}")
    if done.get("error"):
        lines.append(f"  {render.clean(done['error'])}")
    return lines


def exit_code(done: Mapping[str, Any]) -> int:
    """1 for a task that ended FAILED or CANCELLED, 0 for one that succeeded or is under way."""
    return int(done["status"] in TERMINAL and done["status"] != "SUCCESS")
