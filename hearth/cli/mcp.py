"""`hearth mcp`: MCP on stdin and stdout for a client that starts it, and configuration snippets for such clients.

It imports the bridge (`hearth.cli.mcp_bridge`) to serve only, so that a snippet needs neither the actors nor the MCP
SDK. It prints snippets, and writes no file.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from attrs import evolve

from hearth._util.python import python_module
from hearth.cli import common
from hearth.cli.common import DONE, Options, standard
from hearth.cli.mcp_clients import CLIENTS, TOKEN_ENV, Program, Server, Url, snippet
from hearth.errors import ConfigError
from hearth.mcp.names import PATH

if TYPE_CHECKING:
    from collections.abc import Sequence


BRIDGE = "hearth.cli.mcp_bridge"
SDK = "mcp"
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@click.command()
@click.option(
    "--print-config", "client", type=click.Choice(list(CLIENTS)), help="Print the lines to paste into this client."
)
@click.option("--board", metavar="BOARD", help="Serve this board without a daemon: sim, rpi4, rpi5, or a profile.")
@click.option("--compact", is_flag=True, help="List the tools in few words: for small contexts.")
@click.option("--url", metavar="URL", help="With --print-config: a daemon that serves MCP over HTTP.")
@click.option("--token-env", metavar="NAME", help=f"With --url: the variable with the token (else {TOKEN_ENV}).")
@standard
def mcp(
    options: Options, client: str | None, board: str | None, compact: bool, url: str | None, token_env: str | None
) -> int:
    """Serve MCP on stdin and stdout: any MCP client that starts this has the daemon's tools.

    With --board it needs no daemon: it runs the board itself for as long as the client is there.

    With --print-config nothing is served: it prints the lines that make a client start this, or, with --url, ask a
    daemon that serves MCP over HTTP. stderr names the file to paste them into.
    """
    if client is None and (url is not None or token_env is not None):
        raise click.UsageError("--url and --token-env go with --print-config")
    if board is not None and (url is not None or options.named_by in ("--to", "--socket")):
        raise click.UsageError("--board serves a board without a daemon: leave out --to, --socket and --url")
    if compact and url is not None:
        raise click.UsageError("--compact goes with a program that the client starts: leave out --url")
    board = None if board is None else board_argument(board)
    if client is None:
        return serve(options, board, compact=compact)
    how = [*(() if board is None else ("--board", board)), *(("--compact",) if compact else ())]
    if url is not None:
        return show(options, client, over_http(url, token_env))
    if token_env is not None:
        raise click.UsageError("--token-env goes with --url")
    return show(options, client, program(options, how))


def board_argument(board: str) -> str:
    """Return a board as an argument that is valid in any directory: the path of a profile's file becomes absolute."""
    return str(Path.cwd() / board) if "/" in board or board.endswith(".toml") else board


def serve(options: Options, board: str | None, *, compact: bool) -> int:
    """Serve MCP here. Raises ConfigError if the SDK is not installed or the address is wrong."""
    need_sdk()
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo("hearth mcp speaks MCP here, to a program; for the lines to give one: hearth mcp --help", err=True)
    served: int = import_module(BRIDGE).serve(options, board, compact=compact)
    return served


def need_sdk() -> None:
    """Raise ConfigError if the MCP SDK is not installed."""
    if find_spec(SDK) is None:
        raise ConfigError("the MCP SDK is not installed; install it with: pip install 'hearthd[mcp]'")


def show(options: Options, client: str, server: Server) -> int:
    """Print the lines to paste on stdout, and the file for them on stderr."""
    found = snippet(client, server)
    title = CLIENTS[client].title
    if options.json:
        told = {"client": client, "file": found.file, "format": found.format, "text": found.text}
        click.echo(common.compact({**told, "notes": list(found.notes)}))
        return DONE
    click.echo(f"{title}: paste this into {found.file}", err=True)
    click.echo(found.text, nl=False)
    for note in found.notes:
        click.echo(note, err=True)
    return DONE


def program(options: Options, how: Sequence[str] = ()) -> Program:
    """Return this command for a client, which starts it in any directory and with another environment.

    `how`: further arguments. The daemon's address is an option, unless it is the default one. Raises ConfigError.
    """
    need_sdk()
    command, *args = executable()
    return Program(command, (*args, "mcp", *(() if "--board" in how else where(options)), *how))


def where(options: Options) -> Sequence[str]:
    """Return the daemon's address as options that are valid in any directory; none for the default address.

    The started command then finds the default itself, and checks the owner of that socket. Raises ConfigError.
    """
    address = options.address
    if options.named_by == "default":
        return []
    paths: dict[str, Any] = {
        name: Path.cwd() / value
        for name in ("path", "ca", "cert", "key", "token_file")
        if isinstance(value := getattr(address, name, None), Path)
    }
    return ["--to", str(evolve(address, **paths))]


def executable() -> Sequence[str]:
    """Return the argv that starts `hearth` whatever the PATH is."""
    called = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "hearth" else None
    installed = Path(sysconfig.get_path("scripts")) / "hearth"
    if called is not None:
        return [str(Path.cwd() / called)]
    if os.access(installed, os.X_OK):
        return [str(installed)]
    return python_module("hearth.cli.main")


def over_http(url: str, token_env: str | None) -> Url:
    """Return a daemon's HTTP endpoint. On loopback the kernel identifies the caller, so a token is optional.

    Raises ConfigError.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"--url: {url!r}: {error}; expected such as https://pi.local:7119{PATH}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"--url: expected such as https://pi.local:7119{PATH}, got {url!r}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(f"--url: {PATH} takes no user, query or fragment; a token goes with --token-env")
    if parts.path in ("", "/"):
        url = f"{parts.scheme}://{parts.netloc}{PATH}"
    if token_env is None and host not in LOOPBACK:
        token_env = TOKEN_ENV
    return Url(url, token_env)
