"""Commands for credentials: `hearth tls` makes and shows certificates for a test bench, `hearth token` bearer tokens.

This module owns the files, with modes that never let other users read a key or a token, and the printed text.
`hearth.transport.certificates` makes and describes the certificates. No command changes a configuration: the operator
adds the `[[policy]]` entry that is printed, and decides what the bearer may do.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shlex
import socket
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from hearth._util.files import write_new
from hearth._util.toml import dump_string, dump_value
from hearth.cli import common
from hearth.cli.common import DONE, Options, standard
from hearth.errors import ConfigError
from hearth.fields import FieldErrors, Text
from hearth.policy.principal import MAX_TOKEN, PREFIX, from_token, new_token
from hearth.policy.rules import owner_entry
from hearth.transport import certificates
from hearth.transport.address import TLS_PORT, TlsAddress
from hearth.transport.tls import checked, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOOPBACK = ("localhost", "127.0.0.1", "::1")
LARGEST = 1 << 20
CLIENT = "client"
"""The name of the first client's files; its subject has the name BENCH_CLIENT."""
BENCH_CLIENT = "bench-client"
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
NOT_FOR = (
    "For a test bench only. A reader of ca.key, which is not encrypted, can take any client's name. Nothing here\n"
    "revokes a stolen certificate: take its name out of the policy, or make a new set. For anything else take\n"
    "certificates from a CA that is kept elsewhere; `hearth tls show` prints what the policy sees of them."
)

lifetime = click.option(
    "--days",
    type=click.IntRange(1, certificates.LEAF_DAYS),
    default=certificates.LEAF_DAYS,
    show_default=True,
    help="Lifetime.",
)


@click.group()
def tls() -> None:
    """Make and show certificates for a test bench.

    The daemon and its clients on other machines prove to each other who they are with certificates; see [tls] in the
    configuration.
    """


@tls.command()
@click.argument("directory", metavar="DIR")
@click.option("--host", "hosts", multiple=True, metavar="NAME|IP", help="What the daemon is called by; repeatable.")
@lifetime
@standard
def init(options: Options, directory: str, hosts: Sequence[str], days: int) -> None:
    """Make a CA, a server and a client in DIR, which work together: for a test bench, and nothing else.

    The server is certified for each --host besides localhost, 127.0.0.1, ::1 and this machine's name.
    """
    now = dt.datetime.now(dt.UTC)
    hosts = list(dict.fromkeys((*hosts, *LOOPBACK, *_own_name())))
    authority = certificates.new_authority(now)
    try:
        server = certificates.issue_server(authority, hosts, now, days)
    except ConfigError as error:
        raise ConfigError(f"--host: {error}") from None
    client = certificates.issue_client(authority, BENCH_CLIENT, now, days)
    folder = Path(directory).absolute()
    write_all(folder, {"ca": authority, "server": server, CLIENT: client})
    told = _settings(folder, CLIENT, BENCH_CLIENT, client, _dialled(hosts))
    if options.json:
        click.echo(common.compact({"directory": str(folder), "hosts": hosts, **told}))
    else:
        click.echo("\n".join(_init_lines(folder, hosts, told)))


@tls.command()
@click.argument("directory", metavar="DIR")
@click.argument("name")
@lifetime
@standard
def client(options: Options, directory: str, name: str, days: int) -> None:
    """Make another client's certificate with the CA in DIR: NAME.pem and NAME.key."""
    if not _FILE.match(name):
        raise ConfigError(f"{name!r} cannot be a client's name here: take letters, digits and . _ - (at most 64)")
    folder, now = Path(directory).absolute(), dt.datetime.now(dt.UTC)
    made = certificates.issue_client(authority_in(folder, now), name, now, days)
    write_all(folder, {name: made})
    told = _settings(folder, name, name, made, _host_of(folder))
    if options.json:
        click.echo(common.compact({"directory": str(folder), **told}))
    else:
        made_here = f"Made {name}.pem and {name}.key in {folder}, valid until {told['expires']}. For the daemon:"
        click.echo("\n".join([made_here, "", *_client_lines(told)]))


@tls.command()
@click.argument("directory", metavar="DIR")
@lifetime
@standard
def renew(options: Options, directory: str, days: int) -> None:
    """Give every certificate in DIR but the CA's a new life; names and keys stay.

    A running daemon takes the new ones when it gets SIGHUP.
    """
    folder, now = Path(directory).absolute(), dt.datetime.now(dt.UTC)
    authority = authority_in(folder, now)
    leaves = [path for path in sorted(folder.glob("*.pem")) if path.name != "ca.pem"]
    if not leaves:
        raise ConfigError(f"{folder}: there is no certificate to renew; `hearth tls client {folder} NAME` makes one")
    renewed = {}
    for path in leaves:
        with _about(path):
            renewed[path] = certificates.renew(authority, _read(path), now, days)
    for path, cert in renewed.items():
        _replace(path, cert)
    if options.json:
        told = {str(path): _as_json(certificates.describe(cert)[0]) for path, cert in renewed.items()}
        click.echo(common.compact({"renewed": told}))
        return
    for path, cert in renewed.items():
        click.echo(f"renewed {path}, valid until {certificates.describe(cert)[0].end:%Y-%m-%d}")
    click.echo("A running daemon takes them at SIGHUP; clients read theirs at the next connection.")


@tls.command()
@click.argument("file")
@standard
def show(options: Options, file: str) -> None:
    """Print what a certificate says, its names as [[policy]] match wants them."""
    path = Path(file)
    with _about(path):
        found = certificates.describe(_read(path))
    if options.json:
        click.echo(common.compact({"certificates": [_as_json(each) for each in found]}))
        return
    now = dt.datetime.now(dt.UTC)
    click.echo("\n\n".join("\n".join(_shown(each, now)) for each in found))


# --- files ----------------------------------------------------------------------------------------------------------


def write_all(folder: Path, identities: Mapping[str, certificates.CertificateIdentity]) -> None:
    """Write NAME.pem and NAME.key of each identity, all or none; never overwrite a file. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        _check_folder(folder)
    contents = {}
    for name, identity in identities.items():
        # The key first: a certificate without its key would be noticed only at its use.
        contents[folder / f"{name}.key"] = (identity.key, 0o600)
        contents[folder / f"{name}.pem"] = (identity.cert, 0o644)
    there = [path for path in contents if os.path.lexists(path)]
    if there:
        raise ConfigError(
            f"{there[0]} is there already and is not overwritten; name another directory or client, or move it away"
        )
    with contextlib.ExitStack() as undo:
        for path, (content, mode) in contents.items():
            write_new(path, content, mode)
            undo.callback(path.unlink)
        undo.pop_all()


def _check_folder(folder: Path) -> None:
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{folder} is not a directory; name another one")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{folder} belongs to uid {status.st_uid}; name a directory of your own")
    if status.st_mode & 0o022:
        # A user who can write there can replace the CA by another one.
        raise ConfigError(f"others can write into {folder}; chmod 700 {folder}")


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(content)
        draft.chmod(stat.S_IMODE(path.stat().st_mode))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ConfigError("it is far too large for a certificate")
    return content


def authority_in(folder: Path, now: dt.datetime) -> certificates.CertificateIdentity:
    """Return the CA in a folder that `hearth tls init` has made. Raises ConfigError."""
    try:
        with _about(folder / "ca.pem"):
            authority = certificates.CertificateIdentity(_read(folder / "ca.pem"), _read(folder / "ca.key"))
            certificates.check_authority(authority, now)
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename} is not there; `hearth tls init {folder}` makes a CA first") from None
    return authority


@contextlib.contextmanager
def _about(path: Path) -> Iterator[None]:
    """Put the file's name in front of a ConfigError of the block."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


# --- printed text ---------------------------------------------------------------------------------------------------


def _own_name() -> Iterator[str]:
    """Yield this machine's name, if a certificate can have it."""
    name = socket.gethostname()
    with contextlib.suppress(ConfigError):
        certificates.general_name(name)
        yield name


def _host_of(folder: Path) -> str:
    """Return a host name of the server in `folder`, for clients on other machines."""
    with contextlib.suppress(OSError, ConfigError):
        return _dialled([san.partition(":")[2] for san in certificates.describe(_read(folder / "server.pem"))[0].sans])
    return LOOPBACK[0]


def _dialled(hosts: Sequence[str]) -> str:
    """Return the host for the address: the first that other machines can use, else localhost."""
    return next((host for host in hosts if host not in LOOPBACK and "*" not in host), LOOPBACK[0])


def _settings(folder: Path, file: str, name: str, made: certificates.CertificateIdentity, host: str) -> dict[str, Any]:
    """Return the settings for the daemon and a client, as JSON members."""
    description = certificates.describe(made.cert)[0]
    ca, cert, key = folder / "ca.pem", folder / f"{file}.pem", folder / f"{file}.key"
    return {
        "tls": {
            "listen": f"0.0.0.0:{TLS_PORT}",
            "cert": str(folder / "server.pem"),
            "key": str(folder / "server.key"),
            "client_ca": str(ca),
        },
        "policy": {"name": name, "match": {"cert_subject": description.subject}},
        "client": {"ca": str(ca), "cert": str(cert), "key": str(key)},
        "address": str(TlsAddress(host, TLS_PORT, ca, cert, key)),
        "expires": f"{description.end:%Y-%m-%d}",
        "not_for": NOT_FOR.replace("\n", " "),
    }


def _init_lines(folder: Path, hosts: Sequence[str], told: Mapping[str, Any]) -> list[str]:
    files = [
        ("ca.pem", "the CA: the daemon knows its clients by it, and they know the daemon"),
        ("ca.key", "the CA's key, for `hearth tls client` and `renew`; it belongs on no other machine"),
        ("server.pem, server.key", f"the daemon, as {', '.join(hosts)}"),
        (f"{CLIENT}.pem, {CLIENT}.key", f"a client, {told['policy']['match']['cert_subject']}"),
    ]
    widest = max(len(names) for names, _ in files)
    return [
        f"Made in {folder}, valid until {told['expires']}:",
        "",
        *(f"  {names.ljust(widest)}  {text}" for names, text in files),
        "",
        "In the daemon's configuration:",
        "",
        "  [tls]",
        *(f"  {key} = {dump_string(value)}" for key, value in told["tls"].items()),
        "",
        "  # Adding any [[policy]] entry removes the built-in one for local users; keep this one.",
        *(f"  {line}" for line in owner_entry(os.getuid())),
        "",
        *_client_lines(told),
        "",
        NOT_FOR,
    ]


def _client_lines(told: Mapping[str, Any]) -> list[str]:
    return [
        *_policy_lines(told["policy"]["name"], told["policy"]["match"]),
        "",
        "The client's address; on another machine with the paths of its copies there:",
        "",
        f"  {told['address']}",
    ]


def _policy_lines(name: str, match: Mapping[str, object]) -> list[str]:
    return ["  [[policy]]", f"  name = {dump_string(name)}", f"  match = {dump_value(match)}"]


def _shown(each: certificates.Description, now: dt.datetime) -> list[str]:
    values: dict[str, str] = {"subject": each.subject or "none", "names": ", ".join(each.sans) or "none"}
    values["issuer"] = each.issuer or "none"
    values["valid"] = f"{each.start:%Y-%m-%d %H:%M} to {each.end:%Y-%m-%d %H:%M} UTC, {_age(each, now)}"
    values |= {"purpose": ", ".join(each.purposes), "key": each.key, "sha256": each.sha256}
    match = _match(each)
    if match is not None:
        values["policy"] = f"match = {dump_value(match)}"
    return [f"{click.style(name.ljust(7), bold=True)}  {common.clean(value)}" for name, value in values.items()]


def _match(each: certificates.Description) -> Mapping[str, str] | None:
    """Return a [[policy]] match that this certificate fulfils; None if it cannot be a client's certificate."""
    if "CA" in each.purposes or not {"TLS client", "any"} & set(each.purposes):
        return None
    if each.subject is not None:
        return {"cert_subject": each.subject}
    return {"cert_san": each.sans[0]} if each.sans else None


def _age(each: certificates.Description, now: dt.datetime) -> str:
    if now < each.start:
        return "not valid yet"
    if each.end < now:
        return "expired"
    days = (each.end - now).days
    return f"{days} day{'' if days == 1 else 's'} left"


def _as_json(each: certificates.Description) -> dict[str, Any]:
    return {
        "subject": each.subject,
        "sans": each.sans,
        "issuer": each.issuer,
        "not_before": each.start.isoformat(),
        "not_after": each.end.isoformat(),
        "purposes": each.purposes,
        "key": each.key,
        "sha256": each.sha256,
        "match": _match(each),
    }


# --- tokens -----------------------------------------------------------------------------------------------------------

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

    With --file what is printed holds no secret, and is TOML: `hearth token new --file FILE >> hearth.toml` will do.
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
        click.echo("hearth: a token this short can be guessed; `hearth token new` makes one that cannot", err=True)
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
