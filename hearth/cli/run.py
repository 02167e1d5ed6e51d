"""`hearth run TOOL key=value…`: one step, its progress as it comes, its result.

It owns how a word on the command line becomes a JSON value. Whether the args are right is the daemon's to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import orjson

from hearth.cli import render, taskview
from hearth.cli.common import DONE, Options, interruptible, report, session, standard
from hearth.cli.tasks import Reference, follow, get_task, hold, require_known_task
from hearth.errors import HearthError, TaskFailed, from_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.facade import SessionFace

_MAX_SAFE = (1 << 53) - 1
DRIVES = frozenset(("gpio.set",))
"""Tools whose effect lasts only as long as the session, which surprises whoever meets it first."""


@click.command()
@click.argument("tool")
@click.argument("args", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-c", "--constraint", "constraints", multiple=True, metavar="KEY=VALUE", help="Such as dry_run=true.")
@click.option("--hold", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep the session afterwards.")
@standard
def run(options: Options, tool: str, args: Sequence[str], constraints: Sequence[str], seconds: float | None) -> int:
    """Run one TOOL and print its result.

    A VALUE that is JSON is taken as JSON (17, true, null, [1,2], {"a":1}, "text"); anything else is a string (0x48,
    /etc/hosts). To have a string that looks like JSON, quote it as JSON: name='"17"'.

    The session ends with the command, and outputs it drove go to their safe state; --hold keeps them (inf: until
    Ctrl-C).
    """
    values, limits = parse_pairs(args), parse_pairs(constraints)
    require_known_task({"constraints": limits}, "-c ", "/constraints/")
    return interruptible(lambda: _run(options, tool, values, limits, seconds))


def parse_pairs(words: Sequence[str]) -> dict[str, Any]:
    """The words `key=value` as an object. Raises click.UsageError for other words and for a repeated key."""
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise click.UsageError(f"expected KEY=VALUE, got {render.clean(word)!r}; for example line=17")
        if key in values:
            raise click.UsageError(f"{render.clean(key)} is given twice; a list is written {render.clean(key)}='[1,2]'")
        values[key] = parse_value(text)
    return values


def parse_value(text: str) -> Any:
    """The JSON value that `text` is, else `text` itself.

    A number that a double cannot hold exactly (draft §2.4) is left as it was typed: it is somebody's serial number.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if isinstance(value, (int, float)) and abs(value) > _MAX_SAFE:
        return text
    return value


async def _run(
    options: Options, tool: str, args: Mapping[str, Any], constraints: Mapping[str, Any], seconds: float | None
) -> int:
    async with session(options) as (client, opened):
        submission: dict[str, Any] = {"intent": f"hearth run {tool}", "steps": [{"tool": tool, "args": args}]}
        if constraints:
            submission["constraints"] = constraints
        # A misspelt argument is refused: without it something else might happen than was meant.
        params = {"session_id": opened.session_id, "task": submission, "strict": True}
        answer = await client.call("task.submit", params)
        task = Reference(opened.session_id, answer["task_id"])
        async with follow(client, task) as events:
            async for event in events:
                if event.phase == "progress" and not options.json:
                    # Beside the result, not in it: stdout is for whoever wants to use that.
                    click.echo(taskview.event_line(event), err=True)
        done = await get_task(client, task)
        error = _error(done)
        if error is not None:
            return report(options, error)
        result = _step(done).get("result") or {}
        if options.json:
            click.echo(render.compact(result))
        else:
            click.echo("\n".join(render.fields(result, binary=await _binary(opened, tool))))
        if seconds is not None:
            await hold(client, task, seconds)
        elif tool in DRIVES and not options.json and not result.get("dry_run"):
            click.echo("note: the session ends here, and what it drove goes to its safe state; see --hold", err=True)
    return DONE


def _error(done: Mapping[str, Any]) -> HearthError | None:
    """What the task failed with, as the exception it stands for; None if it did not."""
    if done["status"] == "SUCCESS":
        return None
    step = _step(done)
    for of in (done, step):
        if of.get("error_code") is not None:
            return from_wire({"code": of["error_code"], "message": of.get("error"), "data": of.get("error_data")})
    return TaskFailed(f"the task ended {done['status']}: {done.get('error') or step.get('error') or 'no reason given'}")


def _step(done: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is shown of the one step."""
    step: Mapping[str, Any] = done["steps"][0] if done.get("steps") else {}
    return step


async def _binary(opened: SessionFace, tool: str) -> frozenset[str]:
    """The members of the tool's result that are base64, by its schema."""
    entry = next((entry for entry in await opened.tools() if entry["name"] == tool), {})
    properties = entry.get("result_schema", {}).get("properties", {})
    return frozenset(name for name, schema in properties.items() if schema.get("contentEncoding") == "base64")
