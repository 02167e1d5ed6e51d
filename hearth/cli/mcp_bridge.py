"""The process of `hearth mcp`: one MCP client on stdin and stdout, until stdin ends, stdout is closed, or a signal.

`hearth.cli.mcp` replaces itself with this program. Only the protocol goes to stdout; messages for people go to stderr.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hearth.actors.bridges.mcp.server import all_offers
from hearth.actors.bridges.mcp.stdio import DaemonConnection, serve
from hearth.cli.common import Options, interruptible, standard
from hearth.cli.connect import standard_streams
from hearth.errors import ConfigError
from hearth.policy.principal import Principal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import Provider


async def bridge(daemon: DaemonConnection, offers: Sequence[Provider]) -> None:
    """Serve MCP on stdin and stdout. Raises CarrierError if the daemon cannot be reached now."""
    # Imported modules stay, and are most of the memory: collecting them again and again costs each call a tenth.
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    async with standard_streams() as (stdin, stdout), daemon.reached():
        await serve(daemon, stdin, stdout, offers)


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of a bridge's files: the user's own state directory (XDG Base Directory)."""
    named = environ.get("XDG_STATE_HOME", "")
    # The specification says to ignore a relative one.
    base = Path(named) if named.startswith("/") else Path.home() / ".local" / "state"
    return base / "hearth"


@click.command("mcp")
@standard
def main(options: Options) -> int:
    """Serve MCP on stdin and stdout, over a connection to the daemon."""
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise ConfigError("stdin or stdout is closed; `hearth mcp` speaks MCP over them, to the program that starts it")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="hearth mcp: %(message)s")
    whose = Principal(kind="unix", uid=os.geteuid(), gid=os.getegid()).key
    daemon = DaemonConnection(options.address)
    offers = all_offers(state_directory(os.environ), principal=lambda _ask: whose, own_card=lambda: daemon.card)
    return interruptible(lambda: bridge(daemon, offers))


if __name__ == "__main__":
    main(prog_name="hearth mcp")
