"""`hearth run`: one tool, whose args are words of the command line; the daemon validates the values."""

from __future__ import annotations

from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
import orjson

from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, interruptible, report, session, standard
from hearth.cli.tools import entry_of, require_known_args
from hearth.errors import HearthError, TaskFailed, from_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.client.connection import Client
    from hearth.client.session import ClientSession
from hearth.cli.submit import require_known_task
from hearth.cli.task_view import event_line
from hearth.cli.tasks import Reference, hold

_MAX_SAFE = (1 << 53) - 1
DRIVES = ".set"
"""The end of the names of tools whose effect lasts only as long as the session: a note says so to new users."""


@click.command()
@click.argument("tool")
@click.argument("args", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-c", "--constraint", "constraints", multiple=True, metavar="KEY=VALUE", help="Such as dry_run=true.")
@click.option("--hold", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep the session afterwards.")
@standard
def run(options: Options, tool: str, args: Sequence[str], constraints: Sequence[str], seconds: float | None) -> int:
    r"""Run one TOOL and print its result.

    A VALUE that is JSON is taken as JSON (17, true, null, [1,2], {"a":1}, "text"); anything else is a string (0x48,
    /etc/hosts, and every VALUE for an arg of type string). To have a string that looks like JSON, or one with
    line ends, quote it as JSON: line='"17"' or text='"hello\n"'.

    The session ends with the command, and outputs it drove go to their safe state; --hold keeps them (inf: until
    Ctrl-C).
    """
    limits = parse_pairs(constraints)
    require_known_task({"constraints": limits}, "-c ", "/constraints/")
    parse_pairs(args)  # before a daemon is asked what the tool takes
    return interruptible(lambda: _run(options, tool, args, limits, seconds))


def parse_pairs(words: Sequence[str], schema: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the words `key=value` as an object. Raises click.UsageError for other words and for a repeated key.

    Values that must be strings by `schema`, that of the object, are not read as numbers.
    """
    properties = schema.get("properties", {})
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise click.UsageError(f"expected KEY=VALUE, got {common.clean(word)!r}; for example line=17")
        if key in values:
            raise click.UsageError(f"{common.clean(key)} is given twice; a list is written {common.clean(key)}='[1,2]'")
        values[key] = parse_value(text, only_string=properties.get(key, {}).get("type") == "string")
    return values


def parse_value(text: str, *, only_string: bool = False) -> Any:
    """Return the JSON value of `text`, else `text` itself; with `only_string` the value of a JSON string, else `text`.

    A number that a double cannot hold exactly (draft §2.4) stays text: it is probably a serial number.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if only_string and not isinstance(value, str):
        return text
    if isinstance(value, (int, float)) and abs(value) > _MAX_SAFE:
        return text
    return value


async def _run(
    options: Options, tool: str, words: Sequence[str], constraints: Mapping[str, Any], seconds: float | None
) -> int:
    async with session(options) as (client, opened):
        # Without an entry the daemon says whether there is no such tool or its policy does not allow it.
        entry = entry_of(await opened.tools(), tool) or {}
        args = parse_pairs(words, entry.get("params_schema", {}))
        require_known_args(entry, args, "")
        return await run_tool(options, client, opened, tool, args, constraints, seconds=seconds, binary=_binary(entry))


async def run_tool(
    options: Options,
    client: Client,
    opened: ClientSession,
    tool: str,
    args: Mapping[str, Any],
    constraints: Mapping[str, Any] = MappingProxyType({}),
    *,
    seconds: float | None,
    binary: frozenset[str] = frozenset(),
) -> int:
    """Run a tool, print its progress and its result, and keep the session for `seconds`; return the exit code."""
    submission: dict[str, Any] = {"intent": f"hearth run {tool}", "steps": [{"tool": tool, "args": args}]}
    if constraints:
        submission["constraints"] = constraints
    task = await opened.submit_task(submission)
    async with aclosing(task.events()) as events:
        async for event in events:
            if event.phase == "progress" and not options.json:
                # On stderr, because stdout has the result alone.
                click.echo(event_line(event), err=True)
    done = await task.show()
    error = _error(done)
    if error is not None:
        report(options, error)
        return FAILED
    result = _step(done).get("result") or {}
    if options.json:
        click.echo(common.compact(result))
    else:
        click.echo("\n".join(common.fields(result, binary=binary)))
    if seconds is not None:
        await hold(client, Reference(opened.session_id, task.task_id), seconds)
    elif tool.endswith(DRIVES) and "duration_ms" not in args and not options.json and not result.get("dry_run"):
        click.echo("note: the session ends here, and what it drove goes to its safe state; see --hold", err=True)
    return DONE


def _error(done: Mapping[str, Any]) -> HearthError | None:
    """Return the task's error as an exception; None if the task succeeded."""
    if done["status"] == "SUCCESS":
        return None
    step = _step(done)
    for of in (done, step):
        if of.get("error_code") is not None:
            return from_wire({"code": of["error_code"], "message": of.get("error"), "data": of.get("error_data")})
    return TaskFailed(f"the task ended {done['status']}: {done.get('error') or step.get('error') or 'no reason given'}")


def _step(done: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the task's only step, as in task.get; {} if it is not shown."""
    step: Mapping[str, Any] = done["steps"][0] if done.get("steps") else {}
    return step


def _binary(entry: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the members of the tool's result that are base64, by its schema."""
    properties = entry.get("result_schema", {}).get("properties", {})
    return frozenset(name for name, schema in properties.items() if schema.get("contentEncoding") == "base64")
