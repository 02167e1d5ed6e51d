"""`hearth mcp`: MCP on stdin and stdout, for a program that starts it; and the lines that make a program do so.

It owns the command line alone: the bridge is a process of its own that takes this one's place, so that this package
needs neither the actors nor the MCP SDK.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from attrs import evolve

from hearth._util.python import python_module
from hearth.cli import common
from hearth.cli.common import DONE, Options, standard
from hearth.errors import ConfigError
from hearth.mcp.client_config import CLIENTS, TOKEN_ENV, Program, Server, Url, snippet
from hearth.mcp.names import PATH

if TYPE_CHECKING:
    from collections.abc import Sequence

BRIDGE = "hearth.actors.bridges.mcp.stdio"
SDK = "mcp"
LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@click.command()
@click.option(
    "--print-config", "client", type=click.Choice(list(CLIENTS)), help="Print the lines to paste into this client."
)
@click.option("--url", metavar="URL", help="With --print-config: a daemon that serves MCP over HTTP.")
@click.option("--token-env", metavar="NAME", help=f"With --url: the variable with the token (else {TOKEN_ENV}).")
@standard
def mcp(options: Options, client: str | None, url: str | None, token_env: str | None) -> int:
    """Serve MCP on stdin and stdout: any MCP client that starts this has the daemon's tools.

    With --print-config nothing is served: it prints the lines that make a client start this, or, with --url, ask a
    daemon that serves MCP over HTTP. Where they go is said on stderr.
    """
    if client is None and (url is not None or token_env is not None):
        raise click.UsageError("--url and --token-env go with --print-config")
    if client is None:
        return serve(options)
    if url is not None:
        return show(options, client, over_http(url, token_env))
    if token_env is not None:
        raise click.UsageError("--token-env goes with --url")
    return show(options, client, program(options))


def serve(options: Options) -> int:
    """Become the bridge. Raises ConfigError: the SDK is not installed, or the address is none."""
    need_sdk()
    words = python_module(BRIDGE, *where(options))
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo("hearth mcp speaks MCP here, to a program; for the lines to give one: hearth mcp --help", err=True)
    os.execv(words[0], words)


def need_sdk() -> None:
    """Raise ConfigError if there is no bridge to start."""
    if find_spec(SDK) is None:
        raise ConfigError("the MCP SDK is not installed; install it with: pip install 'hearth[mcp]'")


def show(options: Options, client: str, server: Server) -> int:
    """Print what to paste on stdout, and where on stderr."""
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


def program(options: Options) -> Program:
    """This command as a client starts it: from any directory, and with none of our environment.

    The daemon is named if anything named it for us. Raises ConfigError.
    """
    need_sdk()
    command, *args = executable()
    return Program(command, (*args, "mcp", *where(options)))


def where(options: Options) -> Sequence[str]:
    """The daemon's address as options that hold in any directory; none for the default one.

    Who looks there by itself knows that it is a guess, and whom to trust there. Raises ConfigError.
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
    """How to start `hearth`, whatever the PATH is there."""
    called = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name == "hearth" else None
    installed = Path(sysconfig.get_path("scripts")) / "hearth"
    if called is not None:
        return [str(Path.cwd() / called)]
    if os.access(installed, os.X_OK):
        return [str(installed)]
    return python_module("hearth.cli.main")


def over_http(url: str, token_env: str | None) -> Url:
    """A daemon's HTTP endpoint. On this machine the kernel says who calls, so no token is needed unless one is named.

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
