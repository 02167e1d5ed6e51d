"""The process of `hearth mcp`: one MCP client on stdin and stdout, until stdin ends, stdout is closed, or a signal.

`hearth.cli.mcp` runs it. Only the protocol goes to stdout; messages for people go to stderr.

The tools are those of a daemon, or, with `--board`, of a runtime in this process. That runtime has the policy of
`hearth.open_runtime`, and an audit log that stays: beneath the user's state directory, one for each board.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from contextlib import asynccontextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hearth.cli.common import Options, interruptible, standard
from hearth.cli.connect import standard_streams
from hearth.errors import ConfigError
from hearth.policy.principal import Principal, embedded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from trio.abc import ReceiveStream, SendStream

    from hearth.actors.bridges.mcp.provider import Provider, SessionFactory
    from hearth.actors.bridges.mcp.stdio import DaemonConnection


async def bridge(daemon: DaemonConnection, offers: Sequence[Provider]) -> None:
    """Serve a daemon's tools on stdin and stdout. Raises CarrierError if the daemon cannot be reached now."""
    async with standard_streams() as (stdin, stdout), daemon.reached():
        await _speak(daemon, stdin, stdout, offers)


async def embed(board: str, directory: Path, offers: Sequence[Provider]) -> None:
    """Serve a board's tools from a runtime in this process. Raises ConfigError before anything runs.

    However it ends, the lines that were driven go to their safe state first, and the audit log is complete.
    """
    async with standard_streams() as (stdin, stdout), _runtime(board, directory) as runtime:
        await _speak(runtime, stdin, stdout, offers)


@asynccontextmanager
async def _runtime(board: str, directory: Path) -> AsyncIterator[SessionFactory]:
    from hearth.actors.embedded import open_runtime
    from hearth.config.hcp import HcpConfig
    from hearth.config.model import AuditConfig, Config

    log = directory / "audit.log"
    # A client of MCP cannot delegate jobs.
    config = Config(audit=AuditConfig(path=log), hcp=HcpConfig(serve=False))
    try:
        async with open_runtime(board=board, config=config) as runtime:
            yield runtime
    except ConfigError as error:
        if "another process is writing it" not in str(error):
            raise
        raise ConfigError(
            f"board {board}: another `hearth mcp --board` serves it ({log}); end that one, or start hearthd, which "
            "serves several clients, and leave --board out"
        ) from None


async def _speak(
    sessions: SessionFactory, stdin: ReceiveStream, stdout: SendStream, offers: Sequence[Provider]
) -> None:
    from hearth.actors.bridges.mcp.stdio import serve as serve_streams

    # Imported modules stay, and are most of the memory: collecting them again and again costs each call a tenth.
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()
    await serve_streams(sessions, stdin, stdout, offers)


def defer_package(name: str) -> None:
    """Import a package without running its `__init__` now: that runs when one of its names is first asked for.

    The SDK's packages import its clients, their HTTP library and its other servers, which the bridge does not use, and
    which take a third of the time of the import. Modules of the package are imported as ever.
    """
    if name in sys.modules or (spec := find_spec(name)) is None:
        return
    package = module_from_spec(spec)

    def run(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        del package.__getattr__
        assert spec.loader is not None
        spec.loader.exec_module(package)
        return getattr(package, attribute)

    package.__getattr__ = run  # type: ignore[method-assign]
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of a bridge's files: the user's own state directory (XDG Base Directory)."""
    named = environ.get("XDG_STATE_HOME", "")
    # The specification says to ignore a relative one.
    base = Path(named) if named.startswith("/") else Path.home() / ".local" / "state"
    return base / "hearth"


def board_directory(state: Path, board: str) -> Path:
    """Return the directory of one board's audit log. `board` is a profile's name, or the absolute path of one."""
    return state / "boards" / re.sub(r"[^A-Za-z0-9._-]+", "_", board).strip("_.")


def serve(options: Options, board: str | None = None, *, compact: bool = False) -> int:
    """Serve MCP on stdin and stdout until its end; return the exit code. Raises ConfigError or CarrierError.

    `board`: serve this board, without a daemon. `compact`: list few tools in few words.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise ConfigError("stdin or stdout is closed; `hearth mcp` speaks MCP over them, to the program that starts it")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="hearth mcp: %(message)s")
    # The SDK's modules make many objects that stay: a collection during their import costs time and frees nothing.
    gc.disable()
    for package in ("mcp", "mcp.server"):
        defer_package(package)
    from hearth.actors.bridges.mcp.server import all_offers

    state = state_directory(os.environ)
    if board is not None:
        key = embedded().key
        directory = board_directory(state, board)
        offers = all_offers(state, principal=lambda _ask: key, compact=compact)
        return interruptible(lambda: embed(board, directory, offers))
    from hearth.actors.bridges.mcp.stdio import DaemonConnection

    whose = Principal(kind="unix", uid=os.geteuid(), gid=os.getegid()).key
    daemon = DaemonConnection(options.address)
    offers = all_offers(state, principal=lambda _ask: whose, own_card=lambda: daemon.card, compact=compact)
    return interruptible(lambda: bridge(daemon, offers))


@click.command("mcp")
@click.option("--board")
@click.option("--compact", is_flag=True)
@standard
def main(options: Options, board: str | None, compact: bool) -> int:
    """Serve MCP on stdin and stdout, over a connection to the daemon, or from a board of its own."""
    return serve(options, board, compact=compact)


if __name__ == "__main__":
    main(prog_name="hearth mcp")
