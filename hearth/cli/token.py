"""`hearth admin token`: make a bearer token, in a file that no other user may read, and the `[[policy]]` entry for it.

No command changes a configuration: the operator adds the entry that is printed, and decides what the bearer may do.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from hearth._util.toml import dump_string
from hearth.cli import common
from hearth.cli.common import DONE, Options, standard
from hearth.errors import ConfigError
from hearth.fields import FieldErrors, Text
from hearth.policy.principal import MAX_TOKEN, PREFIX, from_token, new_token
from hearth.policy.rules import owner_entry
from hearth.transport.tls import checked, readable

if TYPE_CHECKING:
    from collections.abc import Iterator

_USES = {
    "dashboard": (
        "max_risk = 2",
        'rights = ["observe", "approve", "reset_halt"]  # "admin" would cancel tasks of others, and reload',
    ),
    "agent": ("max_risk = 2", "approval = [{ from_risk = 2 }]  # a person approves what drives outputs"),
}
_GUESSABLE = 22
"""Length in characters below which base64 has fewer than 128 bits."""


@click.group()
def token() -> None:
    """Make a bearer token, or print the digest of one.

    WebSocket clients show a token to say who they are. The daemon's hearth.toml has its SHA-256 only.
    """


@token.command()
@click.option("--name", metavar="NAME", help="What the policy entry, log and refusals call its bearer.")
@click.option("--file", "path", metavar="FILE", help="Write the token there, for you alone, and do not show it.")
@click.option("--for", "use", type=click.Choice(tuple(_USES)), help="Print an entry with the rights that this takes.")
@standard
def new(options: Options, name: str | None, path: str | None, use: str | None) -> int:
    """Make a token and print the [[policy]] entry for it. Nothing keeps the token but what you keep it in.

    Without --for its bearer may only read. An entry with a `match` for yourself belongs beside it.

    With --file what is printed holds no secret, and is TOML: `hearth admin token new --file FILE >> hearth.toml` works.
    """
    made = new_token()
    digest = _digest(made)
    entry = _entry(_name(name, digest), digest, use)
    kept = None if path is None else Path(path).absolute()
    if kept is not None and "\n" in str(kept):
        raise ConfigError("--file: no address can name a file with a line end in its path; name another one")
    if kept is not None:
        _write(kept, made)
    if options.json:
        secret = {"token": made} if kept is None else {"file": os.fsencode(kept).decode("utf-8", "backslashreplace")}
        click.echo(common.compact({**secret, "token_sha256": digest, "policy": "\n".join(entry) + "\n"}))
    else:
        click.echo("\n".join([*([made, ""] if kept is None else _file_lines(kept)), *entry]))
    return DONE


@token.command()
@click.argument("path", default="-", metavar="[FILE|-]")
@standard
def digest(options: Options, path: str) -> int:
    """Print the SHA-256 of the token in FILE or on stdin, for token_sha256 in a [[policy]] entry."""
    if path == "-":
        where, text = "stdin", _from_stdin()
    else:
        where, text = path, _from_file(Path(path))
    given = checked(text.strip(), where)
    if not given.startswith(PREFIX) and len(given) < _GUESSABLE:
        click.echo(
            "hearth: a token this short can be guessed; `hearth admin token new` makes one that cannot", err=True
        )
    click.echo(common.compact({"token_sha256": _digest(given)}) if options.json else _digest(given))
    return DONE


def _digest(text: str) -> str:
    return from_token(text).token_sha256 or ""


def _name(given: str | None, digest: str) -> str:
    if given is None:
        return f"token-{digest[:8]}"  # no two entries may share a name
    try:
        return Text().read(given)
    except FieldErrors as mismatch:
        raise ConfigError(f"--name: {mismatch}") from None


def _entry(name: str, digest: str, use: str | None) -> list[str]:
    return [
        "# The first entry replaces the built-in one for the daemon's user and the socket's group.",
        "# Keep one for yourself:",
        *(f"#   {line}" for line in owner_entry(os.getuid())),
        "[[policy]]",
        f"name = {dump_string(name)}",
        f'match = {{ token_sha256 = "{digest}" }}',
        *_USES.get(use or "", ("max_risk = 0  # it may only read; with 2 it may also drive outputs",)),
    ]


def _file_lines(path: Path) -> Iterator[str]:
    address = f"ws://127.0.0.1:7118?token_file={quote(os.fsencode(path))}"
    yield f"# The token is in {str(path)!r}, which only you may read. Its bearer calls so:"
    yield f"#   hearth tools --to {shlex.quote(address)}"
    yield ""


def _write(path: Path, text: str) -> None:
    # Create the file with its final mode, so that other users can never open it, and never overwrite a file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path}: is there already, and its token may be in use; name another file") from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
    except OSError as error:
        path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def _from_stdin() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Token", hide_input=True, err=True))
    return sys.stdin.buffer.read(MAX_TOKEN + 2).decode("ascii", "replace")


def _from_file(path: Path) -> str:
    with readable(path, "token file", private=True).open("rb") as file:
        return file.read(MAX_TOKEN + 2).decode("ascii", "replace")
