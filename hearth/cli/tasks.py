"""`hearth submit`, `get`, `cancel` and `watch`: tasks of several steps, and those that outlive the command.

It owns what a plan file must be for the daemon to be asked at all; every other check is the daemon's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from hearth._version import __version__
from hearth.cli import render, taskview
from hearth.cli.common import DONE, Options, connected, interruptible, session, standard
from hearth.cli.following import Reference, ReferenceType, follow, get_task, hold, watch as show_events
from hearth.errors import InvalidParams
from hearth.protocol.known import require_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.client import Client


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
