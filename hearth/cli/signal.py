"""`hearth signal list|read|set|watch`: every value that the board names, by its name, whatever bus it is on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from hearth.cli import common
from hearth.cli.common import Options, session, standard
from hearth.cli.run import parse_value, run_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("name", "kind", "access", "value", "unit", "safe", "limit")
_MS = {"ms": 1, "s": 1_000, "m": 60_000}


@click.group()
def signal() -> None:
    """List, read, set and watch signals: every value that the board names, whatever bus it is on.

    A full name, such as gpio:sim:PUMP, always works; PUMP alone works where no other signal of the board has that name.
    """


def _milliseconds(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,9})(ms|s|m)", text or "")
    if text is not None and found is None:
        raise click.BadParameter("expected a time such as 500ms, 2s or 1m")
    return int(found[1]) * _MS[found[2]] if found else None


def _given(**args: Any) -> dict[str, Any]:
    return {name: value for name, value in args.items() if value is not None}


async def _run(options: Options, tool: str, seconds: float | None = None, **args: Any) -> int:
    async with session(options) as (client, opened):
        return await run_tool(options, client, opened, tool, _given(**args), seconds=seconds)


@signal.command(name="list")
@click.argument("pattern", required=False)
@click.option("--kind", metavar="KIND", help="Only signals on buses of this kind: gpio, modbus, …")
@standard
async def listed(options: Options, pattern: str | None, kind: str | None) -> None:
    """List the signals, or those whose name fits PATTERN ("TANK*").

    The values are those that are known without asking the hardware; an output that can be set has a "w" in its access.
    """
    async with session(options) as (_client, opened):
        result = await opened.run("signal.list", **_given(name=pattern, kind=kind))
    if options.json:
        click.echo(common.compact(result))
        return
    rows = [[common.scalar(_limited(row)[column]) for column in COLUMNS] for row in result["signals"]]
    click.echo("\n".join(common.table(COLUMNS, rows)) if rows else "there is none")
    if result["truncated"]:
        click.echo("note: there are more; give a PATTERN or a --kind", err=True)


def _limited(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without an empty limit; a signal that is reserved says so there."""
    return {**row, "limit": f"reserved: {row['reserved']}" if row["reserved"] else row["limit"] or None}


@signal.command()
@click.argument("name")
@standard
async def read(options: Options, name: str) -> int:
    """Read the signal NAME; where it has no value, `quality` and `why` say so."""
    return await _run(options, "signal.read", name=name)


@signal.command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value")
@click.option("--for", "duration_ms", metavar="TIME", callback=_milliseconds, help="Go back after: 500ms, 2s, 1m.")
@click.option("--hold", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep the session afterwards.")
@standard
async def write(options: Options, name: str, value: str, duration_ms: int | None, seconds: float | None) -> int:
    """Bring the output NAME to VALUE.

    VALUE is a number in its unit, with the unit if that is to be checked ("3.3 V"), 0 or 1 for a line, or off for a
    channel that can be off. The session ends with the command, and the output goes to its safe state; --hold keeps it
    (inf: until Ctrl-C).
    """
    return await _run(options, "signal.set", seconds, name=name, value=parse_value(value), duration_ms=duration_ms)


@signal.command()
@click.argument("name")
@click.option("--count", type=int, metavar="N", help="How many changes to wait for; one by default.")
@click.option("--min-change", type=float, metavar="X", help="A smaller change does not count.")
@click.option(
    "--timeout", "timeout_ms", metavar="TIME", callback=_milliseconds, help="The longest wait; 10s by default."
)
@standard
async def watch(
    options: Options, name: str, count: int | None, min_change: float | None, timeout_ms: int | None
) -> int:
    """Wait until the signal NAME changes.

    Prints the changes, and exits with 0 also if there are fewer than --count when the time is over.
    """
    return await _run(options, "signal.watch", name=name, count=count, min_change=min_change, timeout_ms=timeout_ms)
