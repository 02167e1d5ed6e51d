"""Addresses as frozen values, a class for each carrier, and as text. How text is read is `hearth.address`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias
from urllib.parse import quote

from attrs import field, frozen

if TYPE_CHECKING:
    from pathlib import Path

TLS_PORT: Final = 7117


@frozen
class UnixAddress:
    """A Unix domain socket on this machine."""

    path: Path
    guessed: bool = field(default=False, eq=False)
    """True where nobody named it: it is the default, and who answers there has to be somebody to trust."""
    scheme: ClassVar[str] = "unix"

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        return str(self.path)

    def __str__(self) -> str:
        return f"unix:{quote(str(self.path), errors='surrogateescape')}"


@frozen
class TlsAddress:
    """TCP and mutual TLS. `ca` None means the system's; `cert` and `key` are given together, or neither."""

    host: str
    port: int = TLS_PORT
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    scheme: ClassVar[str] = "tls"

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        return f"tls://{_bracketed(self.host)}:{self.port}"

    def __str__(self) -> str:
        return self.place + _query(ca=self.ca, cert=self.cert, key=self.key)


@frozen
class WebSocketAddress:
    """A WebSocket: `secure` is wss. `path` is the request's target, which matters only where a proxy stands between."""

    host: str
    port: int
    secure: bool = False
    path: str = "/"
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None

    @property
    def scheme(self) -> str:
        """Which of the two."""
        return "wss" if self.secure else "ws"

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}{'' if self.path == '/' else self.path}"

    def __str__(self) -> str:
        return self.place + _query(ca=self.ca, cert=self.cert, key=self.key, token_file=self.token_file)


@frozen
class SshAddress:
    """stdio of a `hearth connect` on another machine, by the system's ssh.

    `socket` is the daemon's there (None: its default), `hearth` the command there if it is not `hearth` on the PATH.
    """

    host: str
    user: str | None = None
    port: int | None = None
    socket: str | None = None
    hearth: str | None = None
    scheme: ClassVar[str] = "ssh"

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
