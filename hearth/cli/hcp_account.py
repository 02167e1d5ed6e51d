"""The account of a job (`hearth hcp account`): the request, the decision, what was done, and the outcome."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from hearth.cli import common
from hearth.cli.hcp_view import STATE_COLOURS, accepted_facts, artifact_rows, failure_facts, said, summary_facts
from hearth.hcp.messages import Event, TaskAccepted, TaskCompleted, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from rich.console import RenderableType
    from rich.table import Table

    from hearth.hcp.api import JobResult
    from hearth.hcp.messages import Message


SHOWN_FIRST, SHOWN_LAST = 40, 10
"""Number of the first and last events that are shown of a long job."""
WIDTH = 100
"""Columns of the output without a terminal."""
_COLOURS = {"warning": "yellow", "error": "red", "failed": "red", "completed": "green", "checkpoint": "dim"}


def show(
    entry: Mapping[str, Any],
    messages: Sequence[Message],
    result: JobResult | None,
    *,
    file: TextIO | None = None,
    width: int = WIDTH,
) -> None:
    """Print the account to `file`, else to stdout. `result` is None for a job that has not ended."""
    # The imports of rich are in the functions: they take 100 ms, and only this needs them.
    from rich.console import Console, Group

    where: TextIO = file or sys.stdout
    console = Console(file=where, width=None if where.isatty() else width, highlight=False)
    console.print(Group(*_sections(entry, messages, result)))


def _sections(
    entry: Mapping[str, Any], messages: Sequence[Message], result: JobResult | None
) -> Iterator[RenderableType]:
    from rich.text import Text

    state = result.state if result is not None else str(entry.get("state", ""))
    title = Text(common.clean(f"{entry.get('capability', 'job')} {entry.get('capability_version', '')}"), "bold")
    title.append("  ").append(common.clean(state), f"bold {STATE_COLOURS.get(state, '')}")
    yield title
    yield Text(common.clean(str(entry.get("intent") or "")), "italic")
    asked = {
        "session": entry.get("session_id"),
        "message": entry.get("message_id"),
        "caller": entry.get("caller_id"),
        "accepted": entry.get("created_at"),
    }
    yield from _section("Asked", _facts({name: value for name, value in asked.items() if value is not None}))
    for message in messages:
        if isinstance(message.payload, TaskAccepted):
            yield from _section("Decided", _facts(accepted_facts(message.payload)))
    yield from _section("Done", _done(messages))
    if result is None:
        yield from _section("Outcome", Text("it is under way; `hearth hcp watch` follows it"))
    else:
        yield from _outcome(result)


def _section(title: str, *content: RenderableType) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.rule import Rule

    yield Rule(title, align="left", style="dim")
    for each in content:
        yield Padding(each, (0, 0, 0, 2))


def _facts(facts: Mapping[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        shown = common.pretty(value) if isinstance(value, dict | list) and value else common.scalar(value)
        grid.add_row(common.clean(name), Text(common.clean(shown)))
    return grid


def _done(messages: Sequence[Message]) -> Table:
    """Return the table of the events: the seconds since the acceptance, the kind, the words."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    told = [message for message in messages if _notable(message)]
    began = next((message.timestamp for message in messages if message.timestamp is not None), None)
    left_out = len(told) - SHOWN_FIRST - SHOWN_LAST
    for number, message in enumerate(told):
        if left_out > 0 and SHOWN_FIRST <= number < SHOWN_FIRST + left_out:
            if number == SHOWN_FIRST:
                grid.add_row("", "…", f"{left_out} more; --json has them all")
            continue
        kind, words = said(message)
        # Every checkpoint's id begins with the session's id, which is printed above.
        words = [word.replace(f"ckpt-{message.session_id}-", "…-") for word in words]
        style = _COLOURS.get(kind, "")
        grid.add_row(
            _since(began, message), Text(common.clean(kind), style), Text(common.clean("  ".join(words)), style)
        )
    return grid


def _notable(message: Message) -> bool:
    """Return False for messages of the other sections (acceptance and outcome), and for progress."""
    if isinstance(message.payload, TaskAccepted | TaskCompleted | TaskFailed):
        return False
    return not (isinstance(message.payload, Event) and message.payload.event_type == "progress")


def _since(began: datetime | None, message: Message) -> str:
    if began is None or message.timestamp is None:
        return ""
    return f"+{(message.timestamp - began).total_seconds():.3f} s"


def _outcome(result: JobResult) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    if result.completed:
        yield from _section("Outputs", _facts(result.outputs))
    else:
        why: dict[str, Any] = {"error": result.error_code, "message": result.error_message, "reason": result.reason}
        facts = {**{name: value for name, value in why.items() if value}, **failure_facts(result)}
        yield from _section("Why not", _facts(facts))
        if result.outputs:
            yield from _section("Outputs so far", _facts(result.outputs))
    if result.artifacts:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for header in ("name", "type", "bytes", "uri"):
            table.add_column(header, overflow="fold")
        for row in artifact_rows(result.artifacts):
            table.add_row(*(Text(common.clean(cell)) for cell in row))
        checksums = {each.name: each.checksum for each in result.artifacts if each.checksum is not None}
        yield from _section("Artifacts", table, _facts(checksums))
    if result.summary is not None:
        yield from _section("Summary", _facts(summary_facts(result.summary)))
