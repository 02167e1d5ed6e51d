"""Addresses of daemons: their text form, their parser, and one frozen class for each carrier.

This module opens no connection and reads no file. There are five carriers (draft §2.2, §10): `unix:/path` or a bare
path, `tls://host[:7117]`, `ws://host[:80][/path]`, `wss://host[:443][/path]`, and
`ssh://[user@]host[:port][/path/of/socket]`. Credentials are in files, which the query names as in libpq's URIs:
`?ca=FILE&cert=FILE&key=FILE`. An address holds no secret, so that it can be logged. Text that seems to hold a secret is
refused, and the error does not repeat the secret.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias
from urllib.parse import quote, unquote

from attrs import field, frozen

from hearth._util.text import nearest, suggest
from hearth.config.model import default_socket
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


# --- addresses as values --------------------------------------------------------------------------------------------

TLS_PORT: Final = 7117


@frozen
class UnixAddress:
    """A Unix domain socket on this machine."""

    path: Path
    guessed: bool = field(default=False, eq=False)
    """True for the default address, which no setting named: the listener must then be root or the same user."""
    scheme: ClassVar[str] = "unix"
    takes_token: ClassVar[bool] = False

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        return str(self.path)

    def __str__(self) -> str:
        return f"unix:{quote(str(self.path), errors='surrogateescape')}"


@frozen
class TlsAddress:
    """TCP and mutual TLS. `ca` None means the system's CAs; `cert` and `key` are given together, or neither."""

    host: str
    port: int = TLS_PORT
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    scheme: ClassVar[str] = "tls"
    takes_token: ClassVar[bool] = False

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        return f"tls://{_bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        return self.place + _query(ca=self.ca, cert=self.cert, key=self.key)


@frozen
class WebSocketAddress:
    """A WebSocket: `secure` is wss. `path` is the request's target, which matters only for a proxy on the way."""

    host: str
    port: int
    secure: bool = False
    path: str = "/"
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None
    takes_token: ClassVar[bool] = True

    @property
    def scheme(self) -> str:
        """The scheme: "ws" or "wss"."""
        return "wss" if self.secure else "ws"

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}{'' if self.path == '/' else self.path}"

    def __str__(self) -> str:
        return self.place + _query(ca=self.ca, cert=self.cert, key=self.key, token_file=self.token_file)


@frozen
class SshAddress:
    """The stdio of a `hearth connect` on another machine, started by the system's ssh.

    `socket` is the daemon's socket there (None: the default). `hearth` is the command there (None: `hearth` on PATH).
    """

    host: str
    user: str | None = None
    port: int | None = None
    socket: str | None = None
    hearth: str | None = None
    scheme: ClassVar[str] = "ssh"
    takes_token: ClassVar[bool] = False

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        user = "" if self.user is None else f"{quote(self.user)}@"
        port = "" if self.port is None else f":{self.port}"
        return f"ssh://{user}{_bracketed(self.host)}{port}{quote(self.socket or '')}"

    def __str__(self) -> str:
        return self.place + _query(hearth=self.hearth)


Address: TypeAlias = "UnixAddress | TlsAddress | WebSocketAddress | SshAddress"


def _bracketed(host: str) -> str:
    return f"[{host.replace('%', '%25')}]" if ":" in host else host


def _query(**values: Path | str | None) -> str:
    named = [(name, str(value)) for name, value in values.items() if value]
    given = [f"{name}={quote(value, safe='/', errors='surrogateescape')}" for name, value in named]
    return f"?{'&'.join(given)}" if given else ""


EXAMPLES: Final = {
    "unix": "unix:/run/hearth/hearth.sock",
    "tls": "tls://arm.local:7117?ca=ca.pem&cert=client.pem&key=client.key",
    "ws": "ws://127.0.0.1:7118",
    "wss": "wss://arm.local:7118?ca=ca.pem&token_file=token",
    "ssh": "ssh://pi@arm.local",
}
"""Scheme -> an example for error messages."""

SERVICE_SOCKET: Final = Path("/run/hearth/hearth.sock")
"""The socket of the machine's service, as in the package's socket unit."""

_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "unix": (),
    "tls": ("ca", "cert", "key"),
    "ws": ("token_file",),
    "wss": ("ca", "cert", "key", "token_file"),
    "ssh": ("hearth",),
}
_ALIASES: Final = {"http": "ws", "https": "wss", "tcp": "tls", "ssl": "tls", "mtls": "tls", "file": "unix"}
"""Other names of the carriers that people write -> scheme."""
_SECRETS: Final = frozenset(("token", "password", "bearer", "access_token", "secret"))
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST_AND_PORT = re.compile(r"[\w.-]+:[0-9]{1,5}\Z")
_HOST = re.compile(r"\w[\w.-]*\Z")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_FOR_SSH = frozenset("'`\"\\$;&<>|(){}*?#~!")
"""Characters that OpenSSH itself refuses in a user name: its configuration may pass it to a shell (%r in
ProxyCommand)."""


def parse(text: str | os.PathLike[str] | Address) -> Address:
    """Return the address that `text` means; a path object is always a Unix socket, and an address returns unchanged.

    Text without a scheme is a path. Raises ConfigError, which names the fault and shows a right address.
    """
    if isinstance(text, (UnixAddress, TlsAddress, WebSocketAddress, SshAddress)):
        return text
    if isinstance(text, os.PathLike):
        return UnixAddress(_socket_path(os.fspath(text), os.fspath(text)))
    if text.lower().startswith("unix:"):
        return _unix(text)
    match = _SCHEME.match(text)
    if match is None:
        return _bare(text)
    scheme = match[1].lower()
    if scheme not in _PARAMETERS:
        raise _wrong(text, f"{match[1]}:// is no carrier", _like(scheme))
    return _url(text, scheme, text[match.end() :])


NamedBy: TypeAlias = Literal["--to", "--socket", "HEARTH_ADDRESS", "HEARTH_SOCKET", "--config", "default"]
"""The setting that names the daemon's address."""


def looked_up(environ: Mapping[str, str], uid: int) -> tuple[str, NamedBy]:
    """Return the address for a client without an address of its own, and the setting it is from; for `named`.

    The order is HEARTH_ADDRESS, HEARTH_SOCKET, the default socket (draft §10.1), and, if that does not exist, the
    service's socket.
    """
    names: tuple[NamedBy, ...] = ("HEARTH_ADDRESS", "HEARTH_SOCKET")
    for name in names:
        if environ.get(name):
            return environ[name], name
    own = default_socket(environ, uid)
    if not environ.get("RUNTIME_DIRECTORY") and not own.exists() and SERVICE_SOCKET.exists():
        # A user's own daemon comes first; without one, use the machine's.
        own = SERVICE_SOCKET
    return str(own), "default"


def named(text: str, by: NamedBy) -> Address:
    """Return the address that a setting names. Raises ConfigError, naming the setting.

    --socket and HEARTH_SOCKET are older than the other carriers and take only a socket's path.
    """
    if by in ("--config", "default"):
        return UnixAddress(Path(text), guessed=by == "default")
    try:
        address = parse(text)
    except ConfigError as error:
        raise ConfigError(f"{by}: {error}") from None
    if by in ("--socket", "HEARTH_SOCKET") and not isinstance(address, UnixAddress):
        other = "--to" if by == "--socket" else "HEARTH_ADDRESS"
        raise ConfigError(f"{by} takes the path of a socket; {address} goes with {other}")
    return address


# --- reading --------------------------------------------------------------------------------------------------------


def _bare(text: str) -> UnixAddress:
    scheme = text.partition(":")[0].lower()
    if scheme != text.lower() and scheme in _PARAMETERS and "/" not in scheme:
        raise _wrong(text, f"after {scheme}: come two slashes", scheme)
    if _HOST_AND_PORT.match(text):
        raise _wrong(text, f"which carrier? Write tls://{text} or ws://{text}; a socket of that name is ./{text}", None)
    return UnixAddress(_socket_path(text, text))


def _unix(text: str) -> UnixAddress:
    path, mark, _ = text[len("unix:") :].partition("?")
    if mark:
        raise _wrong(text, "a unix: address takes no parameters; a question mark in a path is written %3F", "unix")
    if path.startswith("//") and not path.startswith("///"):
        raise _wrong(text, "a unix: address has no host; after unix: comes the path", "unix")
    path = _decoded(text, path.removeprefix("//"), "unix")
    return UnixAddress(_socket_path(text, path))


def _socket_path(text: str, path: str) -> Path:
    if not path:
        raise _wrong(text, "the path of the socket is missing", "unix")
    if "\0" in path:
        raise _wrong(text, "no path contains a NUL", "unix")
    return Path(f"/{path.lstrip('/')}" if path.startswith("/") else path)


def _url(text: str, scheme: str, rest: str) -> Address:
    if "#" in rest:
        raise _wrong(text, "an address has no fragment; # is written %23", scheme)
    before, mark, query = rest.partition("?")
    where, slash, path = before.partition("/")
    given = _parameters(text, scheme, query if mark else "")
    user, at, where = where.rpartition("@")
    host, port = _host_and_port(text, scheme, where)
    if scheme == "ssh":
        socket = _decoded(text, slash + path, scheme)
        named = None if socket.strip("/") == "" else socket
        return SshAddress(host, _ssh_user(text, user) if at else None, port, named, given.get("hearth"))
    if at:
        raise _wrong(text, "it takes no user: a certificate or token authenticates the caller", scheme)
    files = {name: Path(value) for name, value in given.items()}
    if ("cert" in files) != ("key" in files):
        raise _wrong(text, "cert and key go together", scheme)
    if scheme == "tls":
        if path:
            raise _wrong(text, "nothing comes after the port but ?parameters", scheme)
        return TlsAddress(host, TLS_PORT if port is None else port, **files)
    target = f"/{path}"
    if not re.fullmatch(r"[!-~]+", target):
        raise _wrong(text, "the path must be percent-encoded", scheme)
    secure = scheme == "wss"
    return WebSocketAddress(host, (443 if secure else 80) if port is None else port, secure, target, **files)


def _host_and_port(text: str, scheme: str, where: str) -> tuple[str, int | None]:
    if where.startswith("["):
        inner, bracket, after = where[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise _wrong(text, "after [ comes an IPv6 address and ], then : and the port", scheme)
        host, colon, port = _ipv6(text, scheme, _decoded(text, inner, scheme)), after[:1], after[1:]
    else:
        host, colon, port = where.partition(":")
        if ":" in port:
            raise _wrong(text, "put an IPv6 address in brackets, as in [::1]", scheme)
        host = _decoded(text, host, scheme)
        if not host:
            raise _wrong(text, "the host is missing", scheme)
        if host.startswith("-"):
            raise _wrong(text, "no host begins with -: a program could take it for an option", scheme)
        if not _HOST.match(host):
            raise _wrong(text, f"{host!r} is no host; names have letters, digits, dots and hyphens", scheme)
    if not colon:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _wrong(text, "after the host and : comes a port, a number from 1 to 65535", scheme)
    return host, int(port)


def _ipv6(text: str, scheme: str, host: str) -> str:
    from ipaddress import IPv6Address

    try:
        address = IPv6Address(host)
    except ValueError:
        raise _wrong(text, f"[{host}] is no IPv6 address", scheme) from None
    if address.scope_id is not None and not _HOST.match(address.scope_id):
        raise _wrong(text, f"{address.scope_id!r} is no network interface", scheme)
    return host


def _ssh_user(text: str, user: str) -> str:
    if ":" in user:
        raise _wrong(text, "it takes no password; ssh uses its keys, or asks for a password", "ssh")
    user = _decoded(text, user, "ssh")
    if not user:
        raise _wrong(text, "the user before @ is missing", "ssh")
    if user.startswith("-"):
        raise _wrong(text, "no user begins with -: ssh could take it for an option", "ssh")
    if not user.isprintable() or " " in user or _NOT_FOR_SSH & set(user):
        raise _wrong(text, f"{user!r} is no user's name", "ssh")
    return user


def _parameters(text: str, scheme: str, query: str) -> dict[str, str]:
    known, given = _PARAMETERS[scheme], dict[str, str]()
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        name = _decoded(text, name, scheme)
        if name in _SECRETS:
            cure = "put it into a file of yours (chmod 600) and name that: token_file=FILE"
            raise _wrong(text, f"every reader of the address would see the value of {name}=; {cure}", scheme)
        if name not in known:
            raise _wrong(text, f"there is no parameter {name!r} in {scheme}:// addresses{_near(name, known)}", scheme)
        if name in given:
            raise _wrong(text, f"{name} is given twice", scheme)
        if not equals or not value:
            raise _wrong(text, f"{name} has no value", scheme)
        given[name] = _decoded(text, value, scheme)
    return given


def _decoded(text: str, part: str, scheme: str) -> str:
    if _PERCENT.search(part):
        raise _wrong(text, "after % come two hexadecimal digits; a percent sign itself is written %25", scheme)
    decoded = unquote(part, errors="surrogateescape")
    if "\0" in decoded or "\n" in decoded:
        raise _wrong(text, "it contains a NUL or a line end", scheme)
    return decoded


# --- error messages -------------------------------------------------------------------------------------------------


def _wrong(text: str, what: str, scheme: str | None) -> ConfigError:
    example = "" if scheme is None else f"; for example {EXAMPLES[scheme]}"
    return ConfigError(f"address {_shown(text)}: {what}{example}")


def _shown(text: str) -> str:
    """Return the text for an error message, without parts that may be a password or a token."""
    text = re.sub(r"//[^?]*:[^?]*@", "//…@", text)
    secrets = "|".join(sorted(_SECRETS))
    return repr(re.sub(rf"(?i)\b({secrets})=[^&]*", r"\1=…", text))


def _like(scheme: str) -> str:
    """Return the carrier that was probably meant."""
    return _ALIASES.get(scheme) or next(iter(nearest(scheme, _PARAMETERS)), "tls")


def _near(name: str, known: tuple[str, ...]) -> str:
    return f" ({suggest(name, known) or 'there are ' + ', '.join(known)})" if known else ""
