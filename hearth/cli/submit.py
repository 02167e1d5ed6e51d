"""`hearth plan submit`: a plan from a file, checked, run as a task, followed or detached.

Names that the daemon would ignore are refused before a task is submitted: unknown constraints and members of a plan
before a daemon is contacted, unknown args by the daemon's tool.list. Every other check is the daemon's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from hearth._version import __version__
from hearth.cli import common
from hearth.cli.common import DONE, Options, connected, interruptible, session, standard
from hearth.cli.task_view import exit_code
from hearth.cli.tasks import Reference, echo_task, hold, show_events
from hearth.cli.tools import entry_of, require_known_args
from hearth.errors import InvalidParams
from hearth.protocol.known import require_known

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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

    With --detach the task goes on when the command has ended. Its session stays open until no request has come for it
    for the daemon's idle time (300 s unless configured); `hearth tasks show`, `watch` and
    `cancel` take the SESSION/TASK that is printed.
    """
    if detach and (live or seconds is not None):
        raise click.UsageError(
            "--detach does not wait, so there is nothing to watch or hold; use `hearth tasks watch` later"
        )
    task = read_plan(plan)
    where = f"{_named(plan)}: "
    if detach:
        return interruptible(lambda: _detach(options, task, where))
    return interruptible(lambda: _submit(options, task, where, live=live, seconds=seconds))


def _named(plan: str) -> str:
    return "stdin" if plan == "-" else common.clean(plan)


def read_plan(name: str) -> dict[str, Any]:
    """Return the plan in a file or on stdin ("-"). Raises click.UsageError, with an example, if it is not a plan."""
    where = _named(name)
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        plan = orjson.loads(content)
    except OSError as error:
        raise click.UsageError(f"{where}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"{where}: not JSON: {error}") from None
    if isinstance(plan, dict) and "steps" not in plan and isinstance(plan.get("task"), dict):
        raise click.UsageError(f'{where}: this is the request around a plan; keep what is under "task"')
    if not isinstance(plan, dict) or not isinstance(plan.get("steps"), list):
        example = '{"intent": "why", "steps": [{"tool": "gpio.get", "args": {"line": 17}}]}'
        raise click.UsageError(f"{where}: a plan is an object such as {example}")
    require_known_task(plan, f"{where}: ")
    return plan


def require_known_task(task: Mapping[str, Any], where: str, within: str = "") -> None:
    """Raise click.UsageError, with the place and a cure, for a task with an unknown member."""
    try:
        require_known("task.submit", {"task": task})
    except InvalidParams as error:
        data = error.data or {}
        place = data["path"].removeprefix(f"/task{within}")
        raise click.UsageError(f"{where}{common.clean(place)}: {common.clean(data['reason'])}") from None


def require_known_steps(plan: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raise click.UsageError for a step with an unknown arg.

    Unknown tools are left to the daemon, which can tell them from those that its policy does not allow.
    """
    for index, step in enumerate(plan["steps"]):
        entry = entry_of(entries, step.get("tool")) if isinstance(step, dict) else None
        if entry is not None:
            require_known_args(entry, step.get("args"), f"{where}/steps/{index}/args")


async def _submit(options: Options, plan: Mapping[str, Any], where: str, *, live: bool, seconds: float | None) -> int:
    async with session(options) as (client, opened):
        require_known_steps(plan, await opened.tools(), where)
        submitted = await opened.submit_task(plan)
        if live:
            await show_events(submitted.events(), plan, as_json=options.json)
        task = Reference(opened.session_id, submitted.task_id)
        done = await submitted.show()
        echo_task(done, task, options, steps=not live)
        if seconds is not None:
            await hold(client, task, seconds)
    return exit_code(done)


async def _detach(options: Options, plan: Mapping[str, Any], where: str) -> int:
    async with connected(options) as client:
        opening = {"client_name": "hearth", "client_version": __version__, "protocol_version": "0.1.0"}
        session_id = (await client.call("session.open", opening))["session_id"]
        submitted = False
        try:
            require_known_steps(plan, await client.attach(session_id).tools(), where)
            answer = await client.call("task.submit", {"session_id": session_id, "task": plan, "strict": True})
            task = Reference(session_id, answer["task_id"])
            submitted = True
        finally:
            if not submitted:
                await client.attach(session_id).close()
    click.echo(common.compact({**task.params, "reference": str(task)}) if options.json else str(task))
    return DONE
