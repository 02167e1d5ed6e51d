"""A task followed from the command line to its end: silently, in lines, as JSON, or as a live table on a terminal.

It owns the references SESSION/TASK by which a later command finds a task. It submits nothing and ends no session.
"""

from __future__ import annotations

import sys
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
import trio
from attrs import frozen

from hearth.cli import render, taskview
from hearth.facade import TaskEvents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hearth.api import TaskEvent
    from hearth.client import Client

SIGN_OF_LIFE = 2.0
"""Seconds between two requests while a session is held: well below any sensible idle time-to-live."""
_FRAMES_PER_SECOND = 8


@frozen
class Reference:
    """A task and the session it belongs to. Ids are of [0-9a-zA-Z_-] (draft §2.3), so a slash can stand between."""

    session_id: str
    task_id: str

    def __str__(self) -> str:
        return f"{self.session_id}/{self.task_id}"

    @property
    def params(self) -> dict[str, Any]:
        """What task.get, task.cancel and the subscriptions take."""
        return {"session_id": self.session_id, "task_id": self.task_id}


if TYPE_CHECKING:
    _ParamType = click.ParamType[Reference]
else:
    _ParamType = click.ParamType  # which is generic to type checkers only, in the older releases we support


class ReferenceType(_ParamType):
    """SESSION/TASK as `hearth submit --detach` prints it."""

    name = "SESSION/TASK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Reference:
        """See click.ParamType."""
        session_id, _, task_id = value.partition("/")
        if not session_id or not task_id or "/" in task_id:
            self.fail(f"{render.clean(value)!r} is not SESSION/TASK as `hearth submit --detach` prints it", param, ctx)
        return Reference(session_id, task_id)


async def get_task(client: Client, task: Reference) -> Mapping[str, Any]:
    """task.get as the daemon answers it, unknown members included."""
    return await client.call("task.get", task.params)


@asynccontextmanager
async def follow(client: Client, task: Reference) -> AsyncIterator[AsyncIterator[TaskEvent]]:
    """The task's events from its beginning to its end."""
    async with aclosing(TaskEvents(client.follow(task.session_id, task.task_id, 1))) as events:
        yield events


async def watch(client: Client, task: Reference, plan: Mapping[str, Any] | None, *, as_json: bool) -> None:
    """Show the task's events as they come, in the form that suits stdout, until it has ended."""
    async with follow(client, task) as events:
        if sys.stdout.isatty() and not as_json:
            await _watch_live(events, plan)
            return
        async for event in events:
            click.echo(render.compact(event_json(event)) if as_json else taskview.event_line(event))


def event_json(event: TaskEvent) -> dict[str, Any]:
    """The params of the task.event notification that `event` was made of (draft §8)."""
    members: dict[str, Any] = {"task_id": event.task_id, "seq": event.seq, "phase": event.phase, "ts": event.ts}
    if event.step_index is not None:
        members["step_index"] = event.step_index
    return {**members, **event.data}


async def _watch_live(events: AsyncIterator[TaskEvent], plan: Mapping[str, Any] | None) -> None:
    # Only now: rich takes 100 ms to import, and only who watches on a terminal needs it.
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    rows = [] if plan is None else taskview.planned_rows(plan)
    spinner = Spinner("dots", style="cyan")

    def shown() -> Table:
        grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for header in taskview.HEADERS:
            grid.add_column(header, overflow="fold")
        for number, tool, word, took, outcome in taskview.cells(rows):
            mark = Text(word, render.STATUS_COLOURS.get(word, ""))
            state = Table.grid(padding=(0, 1))
            state.add_row(*((spinner, mark) if word == "RUNNING" else (mark,)))
            grid.add_row(number, Text(render.clean(tool)), state, took, Text(render.clean(outcome)))
        return grid

    with Live(shown(), refresh_per_second=_FRAMES_PER_SECOND) as live:
        async for event in events:
            taskview.enter(rows, event)
            live.update(shown())


async def hold(client: Client, task: Reference, seconds: float) -> None:
    """Keep a session, and so the outputs it drives, for that long."""
    click.echo(f"note: the session is held for {seconds:g} s; Ctrl-C ends it", err=True)
    with trio.move_on_after(seconds):
        while True:
            await trio.sleep(SIGN_OF_LIFE)
            await get_task(client, task)
