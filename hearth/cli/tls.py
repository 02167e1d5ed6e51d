"""`hearth admin tls`: make and show certificates for a test bench.

`hearth.transport.certificates` makes and describes the certificates, `certificate_files` keeps them. No command changes
a configuration: the operator adds the `[[policy]]` entry that is printed, and decides what the bearer may do.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hearth._util.toml import dump_string, dump_value
from hearth.cli import common
from hearth.cli.certificate_files import about, authority_in, read, replace, write_all
from hearth.cli.common import Options, standard
from hearth.errors import ConfigError
from hearth.policy.rules import owner_entry
from hearth.transport import certificates
from hearth.transport.address import TLS_PORT, TlsAddress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CLIENT = "client"
"""The name of the first client's files; its subject has the name BENCH_CLIENT."""
BENCH_CLIENT = "bench-client"
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
NOT_FOR = (
    "For a test bench only. A reader of ca.key, which is not encrypted, can take any client's name. Nothing here\n"
    "revokes a stolen certificate: take its name out of the policy, or make a new set. For anything else take\n"
    "certificates from a CA that is kept elsewhere; `hearth admin tls show` prints what the policy sees of them."
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
    """Renew every certificate in DIR except the CA's; names and keys stay.

    A running daemon takes the new ones when it gets SIGHUP.
    """
    folder, now = Path(directory).absolute(), dt.datetime.now(dt.UTC)
    authority = authority_in(folder, now)
    leaves = [path for path in sorted(folder.glob("*.pem")) if path.name != "ca.pem"]
    if not leaves:
        raise ConfigError(
            f"{folder}: there is no certificate to renew; `hearth admin tls client {folder} NAME` makes one"
        )
    renewed = {}
    for path in leaves:
        with about(path):
            renewed[path] = certificates.renew(authority, read(path), now, days)
    for path, cert in renewed.items():
        replace(path, cert)
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
    with about(path):
        found = certificates.describe(read(path))
    if options.json:
        click.echo(common.compact({"certificates": [_as_json(each) for each in found]}))
        return
    now = dt.datetime.now(dt.UTC)
    click.echo("\n\n".join("\n".join(_shown(each, now)) for each in found))


def _own_name() -> Iterator[str]:
    """Yield this machine's name, if a certificate can have it."""
    name = socket.gethostname()
    with contextlib.suppress(ConfigError):
        certificates.general_name(name)
        yield name


def _host_of(folder: Path) -> str:
    """Return a host name of the server in `folder`, for clients on other machines."""
    with contextlib.suppress(OSError, ConfigError):
        return _dialled([san.partition(":")[2] for san in certificates.describe(read(folder / "server.pem"))[0].sans])
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
        ("ca.key", "the CA's key, for `hearth admin tls client` and `renew`; it belongs on no other machine"),
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
