"""`hearth tasks`: the tasks under way, and one of them shown, followed or cancelled.

A task is followed silently, in lines, as JSON, or as a live table on a terminal. A later command finds a task by its
reference SESSION/TASK.
"""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click
import trio
from attrs import frozen

from hearth.cli import common
from hearth.cli.common import Options, connected, standard
from hearth.client.events import EventIterator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hearth.api import TaskEvent
    from hearth.client.connection import Client
from hearth.cli.status import observed
from hearth.cli.task_view import HEADERS, brief, cells, enter, event_line, exit_code, planned_rows, task_lines

STEPS = ("#", "tool", "args", "status")
KEEP_ALIVE = 2.0
"""Seconds between two requests while a session is held: well below any sensible idle time-to-live."""
_FRAMES_PER_SECOND = 8


@frozen
class Reference:
    """A task and its session. Ids consist of [0-9a-zA-Z_-] (draft §2.3), so a slash can separate them."""

    session_id: str
    task_id: str

    def __str__(self) -> str:
        return f"{self.session_id}/{self.task_id}"

    @property
    def params(self) -> dict[str, Any]:
        """The params of task.get, task.cancel and the subscriptions."""
        return {"session_id": self.session_id, "task_id": self.task_id}


if TYPE_CHECKING:
    _ParamType = click.ParamType[Reference]
else:
    _ParamType = click.ParamType  # which is generic to type checkers only, in the older releases we support


class ReferenceType(_ParamType):
    """SESSION/TASK as `hearth plan submit --detach` prints it."""

    name = "SESSION/TASK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Reference:
        """See click.ParamType."""
        session_id, _, task_id = value.partition("/")
        if not session_id or not task_id or "/" in task_id:
            cure = "as `hearth plan submit --detach` and `hearth tasks list` print it"
            self.fail(f"{common.clean(value)!r} is not SESSION/TASK {cure}", param, ctx)
        return Reference(session_id, task_id)


async def get_task(client: Client, task: Reference) -> Mapping[str, Any]:
    """Return the daemon's answer to task.get, unknown members included."""
    return await client.call("task.get", task.params)


async def show_events(following: EventIterator[TaskEvent], plan: Mapping[str, Any] | None, *, as_json: bool) -> None:
    """Show a task's events as they come, until it has ended: live on a terminal, else as lines or JSON."""
    async with aclosing(following) as events:
        if sys.stdout.isatty() and not as_json:
            await _watch_live(events, plan)
            return
        async for event in events:
            click.echo(common.compact(event_json(event)) if as_json else event_line(event))


def event_json(event: TaskEvent) -> dict[str, Any]:
    """Return the params of the task.event notification that `event` was made from (draft §8)."""
    members: dict[str, Any] = {"task_id": event.task_id, "seq": event.seq, "phase": event.phase, "ts": event.ts}
    if event.step_index is not None:
        members["step_index"] = event.step_index
    return {**members, **event.data}


async def _watch_live(events: AsyncIterator[TaskEvent], plan: Mapping[str, Any] | None) -> None:
    # Imported here: rich takes 100 ms, and only watching on a terminal needs it.
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    rows = [] if plan is None else planned_rows(plan)
    spinner = Spinner("dots", style="cyan")

    def shown() -> Table:
        grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for header in HEADERS:
            grid.add_column(header, overflow="fold")
        for number, tool, word, took, outcome in cells(rows):
            mark = Text(word, common.STATUS_COLOURS.get(word, ""))
            state = Table.grid(padding=(0, 1))
            state.add_row(*((spinner, mark) if word == "RUNNING" else (mark,)))
            grid.add_row(number, Text(common.clean(tool)), state, took, Text(common.clean(outcome)))
        return grid

    with Live(shown(), refresh_per_second=_FRAMES_PER_SECOND) as live:
        async for event in events:
            enter(rows, event)
            live.update(shown())


async def hold(client: Client, task: Reference, seconds: float) -> None:
    """Keep a session open for `seconds`, and so the outputs that it drives."""
    click.echo(f"note: the session is held for {seconds:g} s; Ctrl-C ends it", err=True)
    with trio.move_on_after(seconds):
        while True:
            await trio.sleep(KEEP_ALIVE)
            await get_task(client, task)


@click.group()
def tasks() -> None:
    """List the tasks under way; show, watch or cancel one.

    TASK is SESSION/TASK as `hearth plan submit --detach` and `hearth tasks list` print it.
    """


def echo_task(done: Mapping[str, Any], task: Reference, options: Options, *, steps: bool = True) -> None:
    """Print a task as task.get shows it."""
    click.echo(common.compact(done) if options.json else "\n".join(task_lines(done, str(task), steps=steps)))


@tasks.command(name="list")
@standard
async def listed(options: Options) -> None:
    """List the tasks of all sessions that wait or run, each with its steps and their audited args."""
    state = await observed(options)
    if options.json:
        click.echo(common.compact(state["tasks"]))
        return
    lines = []
    for task in state["tasks"]:
        where = click.style(common.clean(f"{task['session_id']}/{task['task_id']}"), dim=True)
        words = f"{common.clean(task['intent'])}  {common.clean(task['principal'])}"
        lines.append(f"{common.status(task['status'])}  {words}  {where}")
        steps = enumerate(task["steps"])
        rows = [(str(n), step["tool"], brief(step["args"]), step["status"] or "") for n, step in steps]
        lines += [*common.table(STEPS, rows, indent="  "), ""]
    click.echo("\n".join(lines[:-1]) if lines else "there is none")


@tasks.command()
@click.argument("task", type=ReferenceType())
@standard
async def show(options: Options, task: Reference) -> None:
    """Show the TASK as it stands; exits with 0 whatever its status is.

    Asking keeps its session open for another idle time.
    """
    async with connected(options) as client:
        echo_task(await get_task(client, task), task, options)


@tasks.command()
@click.argument("task", type=ReferenceType())
@standard
async def cancel(options: Options, task: Reference) -> None:
    """Ask the TASK to stop, and print CANCELLING, or how it has ended already.

    What has begun on a bus finishes; what waits never begins. `hearth tasks watch` waits for the end.
    """
    async with connected(options) as client:
        answer = await client.call("task.cancel", task.params)
    click.echo(common.compact(answer) if options.json else common.status(answer["status"]))


@tasks.command()
@click.argument("task", type=ReferenceType())
@standard
async def watch(options: Options, task: Reference) -> int:
    """Follow the TASK from its first event to its end; exits with 1 if that is FAILED or CANCELLED.

    Ctrl-C stops the watching, not the task.
    """
    async with connected(options) as client:
        await show_events(EventIterator(client.follow(task.session_id, task.task_id, 1)), None, as_json=options.json)
        done = await get_task(client, task)
        echo_task(done, task, options, steps=False)
        return exit_code(done)
