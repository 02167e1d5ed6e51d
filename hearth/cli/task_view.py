"""Tasks and their events as text. Pure: JSON objects as on the wire in, text out, which passes `common.clean`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hearth.api import TERMINAL
from hearth.cli import common

if TYPE_CHECKING:
    from hearth.api import TaskEvent


Row = dict[str, Any]
"""The known facts of one step: the members of task.get's `steps`, and `progress`, the newest progress data."""

HEADERS = ("#", "tool", "status", "ms", "result")
_TIME_OF_DAY = slice(11, 23)


def planned_rows(plan: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a plan before its first step."""
    return [{"tool": step.get("tool")} for step in plan["steps"]]


def enter(rows: list[Row], event: TaskEvent) -> None:
    """Enter an event into the rows; add rows for steps that are not in the plan."""
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
    """Return the cells under `HEADERS` for each row."""
    return [
        (str(index), row.get("tool") or "", row.get("status") or "", _milliseconds(row), outcome(row))
        for index, row in enumerate(rows)
    ]


def _milliseconds(row: Mapping[str, Any]) -> str:
    took = row.get("latency_ms")
    return "" if took is None else f"{took:.1f}"


def outcome(row: Mapping[str, Any]) -> str:
    """Return the outcome of a step so far, in one line."""
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
    if row.get("seen"):
        words.append(f"(seen: {brief(row['seen'])})")
    if row.get("rolled_back") is not None:
        words.append("(rolled back)" if row["rolled_back"] else "(could not be rolled back)")
    return " ".join(words)


_FORMS = frozenset(("data", "hex", "text"))
_SHOWN_TEXT = 80


def brief(value: Any) -> str:
    """Return an object as `name=value` words, and any other value as text."""
    if isinstance(value, Mapping):
        if forms := common.forms_of_bytes(value):
            # On one line the shortest form is enough.
            name, form = ("text", _one_line(forms["text"])) if "text" in forms else ("hex", forms["hex"])
            value = {name: form, **{other: member for other, member in value.items() if other not in _FORMS}}
        return " ".join(f"{name}={common.scalar(member)}" for name, member in value.items())
    return common.scalar(value)


def _one_line(text: str) -> str:
    shown = text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…"
    return shown.replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def event_line(event: TaskEvent) -> str:
    """Return an event as one line: time of day (UTC), phase, step, tool, outcome."""
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
    return common.clean("  ".join(word for word in words if word))


def task_lines(done: Mapping[str, Any], reference: str, *, steps: bool = True) -> list[str]:
    """Return the lines of a task.get answer: a table of the steps, and a line with the task's status."""
    shown = done.get("steps") if steps else None
    lines = common.table(HEADERS, cells(shown)) if shown else []
    name = click.style(reference, dim=True)
    lines.append(f"{common.status(done['status'])}  {common.clean(done.get('intent') or '')}  {name}")
    if done.get("error"):
        lines.append(f"  {common.clean(done['error'])}")
    return lines


def exit_code(done: Mapping[str, Any]) -> int:
    """Return 1 for a task that ended FAILED or CANCELLED, 0 for one that succeeded or is under way."""
    return int(done["status"] in TERMINAL and done["status"] != "SUCCESS")
