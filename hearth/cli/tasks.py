"""`hearth submit`, `get`, `cancel` and `watch`: tasks of several steps, and those that outlive the command.

It owns what a plan file must be for the daemon to be asked at all; every other check is the daemon's.
"""

from __future__ import annotations

import sys
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
import trio
from attrs import frozen

from hearth._version import __version__
from hearth.cli import render, taskview
from hearth.cli.common import DONE, Options, connected, interruptible, session, standard
from hearth.errors import InvalidParams
from hearth.facade import TaskEvents
from hearth.protocol.known import require_known

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hearth.api import TaskEvent
    from hearth.client import Client


# --- tasks that are followed ----------------------------------------------------------------------------------------
#
# A task followed from the command line to its end: silently, in lines, as JSON, or as a live table on a terminal.
#
# It owns the references SESSION/TASK by which a later command finds a task. It submits nothing and ends no session.

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


async def show_events(client: Client, task: Reference, plan: Mapping[str, Any] | None, *, as_json: bool) -> None:
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


@click.command()
@click.argument("plan")
@click.option("--watch", "live", is_flag=True, help="Show what happens as it happens.")
@click.option("--detach", is_flag=True, help="Do not wait: print SESSION/TASK and leave the session open.")
@click.option("--hold", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep the session afterwards.")
@standard
def submit(options: Options, plan: str, live: bool, detach: bool, seconds: float | None) -> int:
    """Submit PLAN, a JSON file (- for stdin), and wait for it.

    A plan is the task object of HACP: intent, steps, and if wanted constraints and idempotency_key. Exits with 1 if
    the task ends FAILED or CANCELLED.

    With --detach the task goes on when the command has ended. Its session stays open until nobody has asked for it for
    the daemon's idle time (300 s unless configured); get, cancel and watch take the SESSION/TASK that is printed.
    """
    if detach and (live or seconds is not None):
        raise click.UsageError("--detach does not wait, so there is nothing to watch or hold; use `hearth watch` later")
    task = read_plan(plan)
    if detach:
        return interruptible(lambda: _detach(options, task))
    return interruptible(lambda: _submit(options, task, live=live, seconds=seconds))


def read_plan(name: str) -> dict[str, Any]:
    """The plan in a file or on stdin ("-"). Raises click.UsageError: what is not a plan, and what one is."""
    where = "stdin" if name == "-" else name
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        plan = orjson.loads(content)
    except OSError as error:
        raise click.UsageError(f"{render.clean(where)}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"{render.clean(where)}: not JSON: {error}") from None
    if isinstance(plan, dict) and "steps" not in plan and isinstance(plan.get("task"), dict):
        raise click.UsageError(f'{render.clean(where)}: this is the request around a plan; keep what is under "task"')
    if not isinstance(plan, dict) or not isinstance(plan.get("steps"), list):
        example = '{"intent": "why", "steps": [{"tool": "gpio.get", "args": {"line": 17}}]}'
        raise click.UsageError(f"{render.clean(where)}: a plan is an object such as {example}")
    require_known_task(plan, f"{render.clean(where)}: ")
    return plan


def require_known_task(task: Mapping[str, Any], where: str, within: str = "") -> None:
    """Refuse a task with a member that nobody would understand. Raises click.UsageError with its place and a cure."""
    try:
        require_known("task.submit", {"task": task})
    except InvalidParams as error:
        data = error.data or {}
        place = data["path"].removeprefix(f"/task{within}")
        raise click.UsageError(f"{where}{render.clean(place)}: {render.clean(data['reason'])}") from None


async def _submit(options: Options, plan: Mapping[str, Any], *, live: bool, seconds: float | None) -> int:
    async with session(options) as (client, opened):
        task = await _submitted(client, opened.session_id, plan)
        if live:
            await show_events(client, task, plan, as_json=options.json)
        else:
            async with follow(client, task) as events:
                async for _event in events:
                    pass
        done = await _show(client, task, options, steps=not live)
        if seconds is not None:
            await hold(client, task, seconds)
    return taskview.exit_code(done)


async def _detach(options: Options, plan: Mapping[str, Any]) -> int:
    async with connected(options) as client:
        opening = {"client_name": "hearth", "client_version": __version__, "protocol_version": "0.1.0"}
        session_id = (await client.call("session.open", opening))["session_id"]
        submitted = False
        try:
            task = await _submitted(client, session_id, plan)
            submitted = True
        finally:
            if not submitted:
                await client.attach(session_id).close()
    click.echo(render.compact({**task.params, "reference": str(task)}) if options.json else str(task))
    return DONE


async def _submitted(client: Client, session_id: str, plan: Mapping[str, Any]) -> Reference:
    answer = await client.call("task.submit", {"session_id": session_id, "task": plan, "strict": True})
    return Reference(session_id, answer["task_id"])


async def _show(client: Client, task: Reference, options: Options, *, steps: bool = True) -> Mapping[str, Any]:
    """Print the task as it stands, and return it."""
    done = await get_task(client, task)
    click.echo(render.compact(done) if options.json else "\n".join(taskview.task_lines(done, str(task), steps=steps)))
    return done


@click.command()
@click.argument("task", type=ReferenceType())
@standard
async def get(options: Options, task: Reference) -> None:
    """Show the TASK as it stands; exits with 0 whatever its status is.

    TASK is SESSION/TASK as `hearth submit --detach` prints it. Asking keeps its session open for another idle time.
    """
    async with connected(options) as client:
        await _show(client, task, options)


@click.command()
@click.argument("task", type=ReferenceType())
@standard
async def cancel(options: Options, task: Reference) -> None:
    """Ask the TASK to stop, and print CANCELLING, or how it has ended already.

    What has begun on a bus finishes; what waits never begins. `hearth watch` waits for the end.
    """
    async with connected(options) as client:
        answer = await client.call("task.cancel", task.params)
    click.echo(render.compact(answer) if options.json else render.status(answer["status"]))


@click.command()
@click.argument("task", type=ReferenceType())
@standard
async def watch(options: Options, task: Reference) -> int:
    """Follow the TASK from its first event to its end; exits with 1 if that is FAILED or CANCELLED.

    Ctrl-C stops the watching, not the task.
    """
    async with connected(options) as client:
        await show_events(client, task, None, as_json=options.json)
        return taskview.exit_code(await _show(client, task, options, steps=False))
