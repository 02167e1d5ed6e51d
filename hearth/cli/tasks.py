"""`hearth run`, `submit`, `get`, `cancel` and `watch`: tasks of one step or several, followed or detached.

Names that the daemon would ignore are refused before a task is submitted: unknown constraints and members of a plan
before a daemon is contacted, unknown args by the daemon's tool.list. Every other check is the daemon's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
import orjson
import trio
from attrs import frozen

from hearth._version import __version__
from hearth.api import TERMINAL
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, connected, interruptible, report, session, standard
from hearth.cli.tools import entry_of, require_known_args
from hearth.client.events import EventIterator
from hearth.errors import HearthError, InvalidParams, TaskFailed, from_wire
from hearth.protocol.known import require_known

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hearth.api import TaskEvent
    from hearth.client.connection import Client
    from hearth.client.session import ClientSession


# --- tasks and events as text ---------------------------------------------------------------------------------------
#
# These functions are pure: JSON objects as on the wire in, text out. All text from the wire passes `common.clean`.

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


# --- tasks that are followed ----------------------------------------------------------------------------------------
#
# A task is followed silently, in lines, as JSON, or as a live table on a terminal. A later command finds a task by its
# reference SESSION/TASK.

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
    """SESSION/TASK as `hearth submit --detach` prints it."""

    name = "SESSION/TASK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Reference:
        """See click.ParamType."""
        session_id, _, task_id = value.partition("/")
        if not session_id or not task_id or "/" in task_id:
            self.fail(f"{common.clean(value)!r} is not SESSION/TASK as `hearth submit --detach` prints it", param, ctx)
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


# --- the commands submit, get, cancel and watch ---------------------------------------------------------------------


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
    for the daemon's idle time (300 s unless configured); get, cancel and watch take the SESSION/TASK that is printed.
    """
    if detach and (live or seconds is not None):
        raise click.UsageError("--detach does not wait, so there is nothing to watch or hold; use `hearth watch` later")
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
        _echo(done, task, options, steps=not live)
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


def _echo(done: Mapping[str, Any], task: Reference, options: Options, *, steps: bool = True) -> None:
    """Print a task as task.get shows it."""
    click.echo(common.compact(done) if options.json else "\n".join(task_lines(done, str(task), steps=steps)))


@click.command()
@click.argument("task", type=ReferenceType())
@standard
async def get(options: Options, task: Reference) -> None:
    """Show the TASK as it stands; exits with 0 whatever its status is.

    TASK is SESSION/TASK as `hearth submit --detach` prints it. Asking keeps its session open for another idle time.
    """
    async with connected(options) as client:
        _echo(await get_task(client, task), task, options)


@click.command()
@click.argument("task", type=ReferenceType())
@standard
async def cancel(options: Options, task: Reference) -> None:
    """Ask the TASK to stop, and print CANCELLING, or how it has ended already.

    What has begun on a bus finishes; what waits never begins. `hearth watch` waits for the end.
    """
    async with connected(options) as client:
        answer = await client.call("task.cancel", task.params)
    click.echo(common.compact(answer) if options.json else common.status(answer["status"]))


@click.command()
@click.argument("task", type=ReferenceType())
@standard
async def watch(options: Options, task: Reference) -> int:
    """Follow the TASK from its first event to its end; exits with 1 if that is FAILED or CANCELLED.

    Ctrl-C stops the watching, not the task.
    """
    async with connected(options) as client:
        await show_events(EventIterator(client.follow(task.session_id, task.task_id, 1)), None, as_json=options.json)
        done = await get_task(client, task)
        _echo(done, task, options, steps=False)
        return exit_code(done)


@click.command()
@click.option("--yes", is_flag=True, help="Also if something was removed and by that principals may do more.")
@standard
async def reload(options: Options, yes: bool) -> int:
    """Have the daemon read policy, tokens and certificates again; it needs the right `admin`.

    Sessions whose principal keeps a policy entry go on; the others are closed. A configuration with a fault changes
    nothing, and neither does a policy in which something was removed or changed so that principals may do more, unless
    you say --yes. Exits with 1 if a listener keeps the certificates it had.
    """
    async with session(options) as (_client, opened):
        try:
            answer = await opened.call("policy.reload", **({"yes": True} if yes else {}))
        except InvalidParams as error:
            # The fault is in the daemon's file, not in what was typed here.
            raise HearthError(error.message) from None
    if options.json:
        click.echo(common.compact(dict(answer)))
    else:
        sessions = "1 session" if answer["closed"] == 1 else f"{answer['closed']} sessions"
        click.echo(f"policy entries: {', '.join(answer['entries'])}; {sessions} closed")
        for line in answer.get("allows", ()):
            click.echo(common.clean(f"newly allowed: {line}"))
        for warning in answer.get("warnings", ()):
            click.echo(common.clean(f"warning: {warning}"))
        for section in answer["restart"]:
            click.echo(f"[{section}] has changed, which takes a restart")
        for address in answer.get("certificates_kept", ()):
            click.echo(f"{address} keeps the certificates it had; the daemon's log says why")
    return FAILED if answer.get("certificates_kept") else DONE


# --- the command run ------------------------------------------------------------------------------------------------
#
# Words of the command line become JSON values here; the daemon validates them.

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
    /etc/hosts, and any VALUE of an arg that is always a string). To have a string that looks like JSON, or one with
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
