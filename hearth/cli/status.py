"""`hearth status` and `hearth admin sessions`: the whole runtime, for principals with the right `observe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, session, standard
from hearth.cli.status_view import (
    APPROVALS,
    BUSES,
    LINES,
    SESSIONS,
    SIGNALS,
    TASKS,
    approval_rows,
    bus_rows,
    faults,
    halted_words,
    line_rows,
    session_rows,
    signal_rows,
    task_rows,
    uplink_words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


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


async def observed(options: Options) -> Mapping[str, Any]:
    """Return the state of the daemon, without the session that asked for it."""
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
    state = await observed(options)
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
    state = await observed(options)
    if options.json:
        click.echo(common.compact(state["sessions"]))
    elif rows := session_rows(state):
        click.echo("\n".join(common.table(SESSIONS, rows)))
    else:
        click.echo("there is none")
