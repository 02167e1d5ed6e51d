"""The command `hearth top`: its application (`top`, which needs Textual) in a terminal, or the events as lines."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from typing import TYPE_CHECKING

import click

from hearth.cli import common, observing
from hearth.cli.common import DONE, Options, standard
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from hearth.aio import Session
    from hearth.errors import HearthError

MISSING = "the view needs Textual: pip install 'hearthd[tui]'; or use `hearth top --plain`"


@click.command()
@click.option("--plain", is_flag=True, help="Print one line for each event instead; needs no Textual.")
@standard
def top(options: Options, plain: bool) -> int:
    """Watch the daemon live: lines, buses, tasks, sessions, approvals, halt. Key h halts at once, q quits.

    It is a client like any other, and reconnects when the daemon restarts. With --plain or --json it prints each event
    as one line, with --json whole.
    """
    if plain or options.json:
        asyncio.run(_print_events(options))
        return DONE
    try:
        # Only now, because it needs Textual.
        from hearth.cli.top import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise ConfigError(MISSING) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("there is no terminal for the view: use `hearth top --plain`")
    app = Top(options.address)
    failed: HearthError | None = app.run()
    if failed is not None:
        raise failed
    code: int = app.return_code or DONE
    return code


async def _print_events(options: Options) -> None:
    """Print the events. Raises BrokenPipeError as soon as the reader of a pipe is gone: the next event may be far."""
    loop, printing = asyncio.get_running_loop(), asyncio.current_task()
    assert printing is not None
    broken = False

    def hung_up() -> None:
        nonlocal broken
        broken = loop.remove_reader(1)
        printing.cancel()

    if stat.S_ISFIFO(os.fstat(1).st_mode):
        # A pipe's end for writing is never readable; it reports an error once there is no reader.
        loop.add_reader(1, hung_up)
    try:
        await _print_all(options)
    except asyncio.CancelledError:
        if broken:
            raise BrokenPipeError from None
        raise


async def _print_all(options: Options) -> None:
    def connected(opened: Session | None, words: str) -> None:
        note = words if opened is not None else f"connection lost: {words}; trying again"
        click.echo(f"hearth: {common.clean(note)}", err=True)

    async for event in observing.follow(options.address, connected):
        click.echo(common.compact(event) if options.json else "\n".join(observing.event_lines(event)))
