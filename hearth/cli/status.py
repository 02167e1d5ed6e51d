"""`hearth status`, `sessions` and `tasks`: what an observer sees of the whole runtime.

All of it comes from observe.state and its events, so a caller needs the right `observe`. The rows and lines are made
here, for these commands and for `hearth top`, with the stream of events that it follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hearth._version import __version__
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, session, standard
from hearth.cli.tasks import brief
from hearth.errors import CarrierError, SessionInvalid
from hearth.tools import NOT_ASKED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from hearth.aio import Session
    from hearth.transport.address import Address

Row = tuple[str, ...]
LINES = ("line", "name", "value", "owner or role", "session")
SIGNALS = ("signal", "bus", "value", "quality", "safe", "limit", "owner", "left")
BUSES = ("bus", "state", "queued", "transactions", "reason")
SESSIONS = ("principal", "policy", "client", "lines", "tasks", "opened", "session")
TASKS = ("status", "principal", "step", "intent", "session", "task")
STEPS = ("#", "tool", "args", "status")
APPROVALS = ("id", "kind", "by", "needs", "approved by", "expires")


def line_rows(state: Mapping[str, Any], *, driven: bool = False) -> list[Row]:
    """Return the cells under `LINES`; with `driven` only of the lines that a session drives."""
    return [
        (
            f"{line['bus']} {line['line']}",
            line["name"] or "",
            common.scalar(line["value"]),
            _owner(line) or line["role"] or line["reserved"] or "",
            line["owner"]["session_id"] or "" if line["owner"] else "",
        )
        for line in state["lines"]
        if line["owner"] or not driven
    ]


def _owner(line: Mapping[str, Any]) -> str:
    """Return the principal that drives a line; a stop sequence is no principal's."""
    return (line["owner"]["principal"] or "the daemon") if line["owner"] else ""


def signal_rows(state: Mapping[str, Any], *, known: bool = False) -> list[Row]:
    """Return the cells under `SIGNALS`; with `known` only of the signals that were driven or read.

    A daemon of an earlier release tells none.
    """
    return [
        (
            each["name"],
            each["bus"],
            _in_unit(each, "value"),
            each["quality"] + (f" ({each['why']})" if each["why"] else ""),
            _in_unit(each, "safe"),
            brief(each["limit"]),
            _owner(each),
            "left by a halt" if each["left"] else "",
        )
        for each in state.get("named", ())
        if not known or each["owner"] or each["left"] or each["quality"] == "stale" or _was_none(each)
    ]


def _was_none(signal: Mapping[str, Any]) -> bool:
    """Return True for a signal that was read, and had no value."""
    return signal["quality"] == "none" and signal["why"] != NOT_ASKED


def _in_unit(signal: Mapping[str, Any], member: str) -> str:
    value, unit = signal[member], signal["unit"]
    return f"{value} {unit}" if unit and isinstance(value, (int, float)) else common.scalar(value)


def bus_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `BUSES`."""
    return [
        (name, bus["state"], str(bus["queued"]), str(bus["transactions"]), bus.get("reason") or "")
        for name, bus in state["buses"].items()
    ]


def session_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `SESSIONS`."""
    return [
        (
            each["principal"],
            each["policy"] or "",
            each["client_name"] or "",
            str(sum(1 for line in state["lines"] if _belongs(line["owner"], each))),
            str(sum(1 for task in state["tasks"] if _belongs(task, each))),
            each["opened_at"],
            each["session_id"],
        )
        for each in state["sessions"]
    ]


def _belongs(what: Mapping[str, Any] | None, to: Mapping[str, Any]) -> bool:
    return what is not None and what["session_id"] == to["session_id"]


def task_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `TASKS`."""
    return [
        (
            task["status"] + (" (dry run)" if task.get("dry_run") else ""),
            task["principal"],
            _present_step(task["steps"]),
            task["intent"],
            task["session_id"],
            task["task_id"],
        )
        for task in state["tasks"]
    ]


def _present_step(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the step that runs, or that is next, with its number."""
    for number, step in enumerate(steps, 1):
        if step["status"] in (None, "RUNNING"):
            return f"{number}/{len(steps)} {step['tool']} {brief(step['args'])}".rstrip()
    return f"{len(steps)}/{len(steps)}"


def approval_rows(state: Mapping[str, Any]) -> list[Row]:
    """Return the cells under `APPROVALS`."""
    return [
        (
            each["approval_id"],
            each["kind"],
            each["principal"],
            f"{each['needs']['persons']} with {each['needs']['right']!r}",
            ", ".join(each["approved_by"]) or "-",
            each["expires_at"],
        )
        for each in state["approvals"]
    ]


def faults(state: Mapping[str, Any]) -> list[str]:
    """Return what is wrong, in words: a halt, and whatever makes the daemon's health not ok; [] if all is well."""
    halt, health = state["halt"], state["health"]
    found = [halted_words(halt)] if halt["halted"] else []
    found += [
        f"bus {name} is {bus['state']}: {bus.get('reason') or 'no reason given'}"
        for name, bus in state["buses"].items()
        if bus["state"] != "ready"
    ]
    for name, what in (("audit", "the audit log cannot be written"), ("outputs", "the list of outputs")):
        member = health.get(name) or {"ok": True}
        if not member["ok"]:
            found.append(f"{what}: {member.get('reason') or 'no reason given'}")
    return found if found or health["ok"] else ["the daemon reports that it is not healthy"]


def halted_words(halt: Mapping[str, Any]) -> str:
    """Return a halt in one line."""
    by = halt.get("by") or {}
    who = by if isinstance(by, str) else by.get("principal")
    named = f" by {who}" if who else ""
    return f"halted since {halt.get('since')}{named}: {halt.get('reason') or 'no reason given'}"


def status_lines(state: Mapping[str, Any], place: str) -> list[str]:
    """Return the screen of `hearth status`."""
    wrong = faults(state)
    word = "halted" if state["halt"]["halted"] else "unhealthy" if wrong else "healthy"
    head = click.style(word, fg="red" if wrong else "green", bold=True)
    health, audit = state["health"], state["health"]["audit"]
    sandbox = health.get("sandbox") or {"state": "not in force"}
    facts: dict[str, Any] = {
        "daemon": f"hearth {state['version']} on {place}; board {state['board']['name']}",
        "halt": halted_words(state["halt"]) if state["halt"]["halted"] else "none",
        "audit": f"record {audit.get('seq', '-')}, head {audit.get('head', '-')}, durability {audit['durability']}"
        + (f"; {audit['warning']}" if "warning" in audit else ""),
        "sandbox": "; ".join([sandbox["state"], *sandbox.get("notes", ())]),
        **({"broker": uplink_words(health["amqp"])} if "amqp" in health else {}),
        "you": f"{state['you']['principal']}, policy {state['you']['policy']!r}: {', '.join(state['you']['rights'])}",
    }  # fmt: skip
    warned = "no bus and no halt needs attention, but the audit log has a warning"
    well = warned if "warning" in audit else "no bus, no log and no halt needs attention"
    lines = [f"{head}  {common.clean(wrong[0]) if wrong else well}"]
    lines += [f"  {common.clean(fault)}" for fault in wrong[1:]]
    lines += common.fields(facts, indent="  ")
    sections = (
        ("buses", BUSES, bus_rows(state)),
        ("driven lines", LINES, line_rows(state, driven=True)),
        ("known signals", SIGNALS, signal_rows(state, known=True)),
        ("sessions", SESSIONS, session_rows(state)),
        ("tasks", TASKS, task_rows(state)),
        ("waiting approvals", APPROVALS, approval_rows(state)),
    )
    for title, headers, rows in sections:
        shown = common.table(headers, rows, indent="  ") if rows else []
        lines += ["", click.style(title if rows else f"{title}: none", bold=True), *shown]
    return lines


def uplink_words(uplink: Mapping[str, Any]) -> str:
    """Return the state of the uplink to a broker, in words."""
    state = "connected" if uplink["connected"] else f"not connected ({uplink.get('reason', 'connecting')})"
    return f"{state}: {uplink['id']} at {uplink['broker']}; {uplink['outbox']} messages wait to be published"


async def _state(options: Options) -> Mapping[str, Any]:
    async with session(options) as (_client, opened):
        found = dict(await opened.observe_state())
    # The session of this command is closed by now.
    found["sessions"] = [each for each in found["sessions"] if each["session_id"] != opened.session_id]
    return found


@click.command()
@standard
async def status(options: Options) -> int:
    """Show the daemon on one screen: health, halt, buses, lines, signals, sessions, tasks, approvals, log, sandbox.

    Exits with 0 if it is healthy, with 1 if it is unhealthy or halted, and with 3 if it cannot be reached.
    """
    state = await _state(options)
    wrong = faults(state)
    if options.json:
        click.echo(common.compact({"healthy": not wrong, "faults": wrong, **state}))
    else:
        click.echo("\n".join(status_lines(state, options.address.place)))
    return FAILED if wrong else DONE


@click.command()
@standard
async def sessions(options: Options) -> None:
    """List all open sessions, but for that of this command: principal, policy entry, driven lines, tasks."""
    state = await _state(options)
    if options.json:
        click.echo(common.compact(state["sessions"]))
    elif rows := session_rows(state):
        click.echo("\n".join(common.table(SESSIONS, rows)))
    else:
        click.echo("there is none")


@click.command()
@standard
async def tasks(options: Options) -> None:
    """List the tasks of all sessions that wait or run, each with its steps and their audited args."""
    state = await _state(options)
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


# --- hearth top -----------------------------------------------------------------------------------------------------

SILENCE = 5.0
"""Seconds without an event after which the daemon is asked whether the session is still there."""
RETRY = 1.0
"""Seconds between two attempts to reach a daemon whose connection has ended."""


async def follow(
    address: Address, connected: Callable[[Session | None, str], None]
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the events of the daemon, over connections that are made anew; call `connected` at each change.

    `connected` gets the session, or None with the reason. Raises CarrierError if the first attempt fails, and RpcError.
    """
    import asyncio

    from hearth import aio

    last: dict[str, Any] = {}
    first = True
    while True:
        try:
            async with aio.connect(address) as client:
                opened = await client.open_session(client_name="hearth top", client_version=__version__)
                first = False
                connected(opened, f"connected to {address.place}")
                events = opened.observe(**last)
                while True:
                    try:
                        async with asyncio.timeout(SILENCE):
                            event = await anext(events)
                    except TimeoutError:
                        # A session that the daemon has closed gets no more events, and is not told.
                        await opened.observe_state()
                        continue
                    yield event
                    last = {"stream": event["stream"], "from_seq": event["seq"] + 1}
        except SessionInvalid:
            reason = "the daemon has closed the session"
        except CarrierError as error:
            if first:
                raise
            reason = str(error)
        connected(None, reason)
        await asyncio.sleep(RETRY)


def event_lines(event: Mapping[str, Any]) -> list[str]:
    """Return an event of the stream as lines of time of day (UTC), kind and words: one for each record and reading."""
    kind = event["kind"]
    if kind == "records":
        return [_line(record["ts"], record["event"], _record_words(record)) for record in event["records"]]
    if kind == "readings":
        return [_line(one["ts"], "reading", _reading_words(one)) for one in event["readings"]]
    return [_line(event["ts"], kind, _WORDS[kind](event) if kind in _WORDS else "")]


def _line(ts: str, kind: str, words: str) -> str:
    return common.clean(f"{ts[11:23]}  {kind.ljust(16)}  {words}".rstrip()).replace("\n", " ")


def _snapshot_words(event: Mapping[str, Any]) -> str:
    state, missed = event["state"], event["missed"]
    counts = ", ".join(f"{len(state[name])} {name}" for name in ("lines", "buses", "sessions", "tasks", "approvals"))
    return counts + (f"; {missed} events were missed" if missed else "")


def _reading_words(reading: Mapping[str, Any]) -> str:
    return f"{reading['tool']} {brief(reading['args'])}: {brief(reading['values'])}"


def _record_words(record: Mapping[str, Any]) -> str:
    record = {name: value for name, value in record.items() if name not in ("event", "ts")}
    steps = record.pop("steps", ())
    if steps and isinstance(steps[0], dict):
        record["steps"] = "; ".join(f"{step['tool']} {brief(step.get('args') or {})}".rstrip() for step in steps)
    elif steps:
        record["steps"] = steps
    return brief({name: value for name, value in record.items() if not name.endswith("_hash")})


def _signals_words(event: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{one['bus']} {one['channel']}={common.scalar(one['value'])}" + (f" ({_owner(one)})" if one["owner"] else "")
        for one in event["signals"]
    )


def _named_words(event: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{one['name']}={common.scalar(one['value'])} ({one['why'] or one['quality']})" for one in event["named"]
    )


def _lines_words(event: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{line['bus']} {line['line']}={common.scalar(line['value'])}" + (f" ({_owner(line)})" if line["owner"] else "")
        for line in event["lines"]
    )


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "snapshot": _snapshot_words,
    "lines": _lines_words,
    "signals": _signals_words,
    "named": _named_words,
    "buses": lambda event: "; ".join(f"{name} {brief(bus)}" for name, bus in event["buses"].items()),
    "halt": lambda event: halted_words(event["halt"]) if event["halt"]["halted"] else "not halted",
    "approvals": lambda event: ", ".join(each["approval_id"] for each in event["approvals"]) or "none waits",
    "health": lambda event: "ok" if event["health"]["ok"] else "not ok",
}
