"""The sections [tls], [websocket] and [http]: TCP listeners, and the credentials that each requires of clients.

This module owns the three sections with their field types, and refuses a listener that could not authenticate its
clients. It reads no certificate and binds no socket.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from attrs import frozen

from hearth._util.toml import show
from hearth.errors import ConfigError
from hearth.extras import Section
from hearth.fields import AbsolutePath, FieldType, Flag, ListOf, Number, Text, checked

if TYPE_CHECKING:
    from hearth.config.model import Config

_PORT = re.compile(r"[0-9]{1,5}\Z")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?\Z")
_HOST = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)\Z")
_USUAL_PORTS = {"http": 80, "https": 443}


@frozen
class Endpoint:
    """The address of a TCP listener: an IP address in its shortest form, and a port; 0 lets the kernel choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only programs on this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def overlaps(self, other: "Endpoint") -> bool:
        """Return True if two listeners cannot be bound to both addresses."""
        if self.port != other.port or self.port == 0:
            return False
        one, two = ipaddress.ip_address(self.host), ipaddress.ip_address(other.host)
        return one == two or (one.version == two.version and (one.is_unspecified or two.is_unspecified))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ListenAddress(FieldType):
    """ADDRESS:PORT, without host names except localhost: the address of a name can change, and move a listener."""

    expected = 'an address and port such as "127.0.0.1:7118"'

    def read(self, raw: object) -> Endpoint:
        """Return the endpoint; an IPv4-mapped IPv6 address becomes the IPv4 address."""
        if not isinstance(raw, str):
            raise self.wrong(raw)
        host, colon, port = raw.rpartition(":")
        if not colon or raw.endswith("]"):
            raise self.broken(raw, "the port is missing")
        bracketed = host.startswith("[") and host.endswith("]")
        if ":" in host and not bracketed:
            raise self.broken(raw, 'put an IPv6 address in brackets, as in "[::1]:7118"')
        if not _PORT.match(port) or int(port) > 0xFFFF:
            raise self.broken(raw, "a port is a number from 0 (any free one) to 65535")
        return Endpoint(self._host(host[1:-1] if bracketed else host, raw, bracketed=bracketed), int(port))

    def _host(self, text: str, raw: str, *, bracketed: bool) -> str:
        if text.lower() == "localhost":
            return "127.0.0.1"
        if "%" in text:
            raise self.broken(raw, "an address with a zone such as %eth0 is not supported")
        try:
            address = ipaddress.IPv6Address(text) if bracketed else ipaddress.IPv4Address(text)
        except ValueError:
            why = 'names are not looked up, since what they lead to changes ("0.0.0.0" and "[::]" mean all addresses)'
            raise self.broken(raw, why) from None
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)

    def dump(self, value: object) -> object:
        """Return the endpoint as text; any other value passes unchanged."""
        return str(value) if isinstance(value, Endpoint) else value


class Origin(Text):
    """An origin, scheme://host[:port], as browsers send it: in lower case, without a path and the usual port."""

    def __init__(self) -> None:
        super().__init__('an origin such as "https://panel.example:8000"')

    def read(self, raw: object) -> str:
        """Return the origin in lower case, without ":80" for http and ":443" for https."""
        text = super().read(raw).lower()
        if "*" in text:
            raise self.broken(raw, '"*" would let any page that a user visits call as that user; list each origin')
        if text == "null":
            raise self.broken(raw, '"null" is the origin of sandboxed frames and files; serve the page over http')
        if not text.isascii():
            raise self.broken(raw, "a browser sends such a name in its xn--… form; write that")
        found = _ORIGIN.match(text)
        if found is None or int(found[3] or 0) > 0xFFFF:
            raise self.broken(raw, "it has a scheme, a host and perhaps a port, but no path and no trailing slash")
        scheme, host = found.group(1, 2)
        port = _USUAL_PORTS.get(scheme) if found[3] is None else int(found[3])
        if scheme in ("ws", "wss"):
            raise self.broken(raw, "an origin is the page's address, which begins with http:// or https://")
        return f"{scheme}://{host}" if port == _USUAL_PORTS.get(scheme) else f"{scheme}://{host}:{port}"


class HostName(Text):
    """A name or an address as in a Host header, without the port: the port does not identify the host."""

    def __init__(self) -> None:
        super().__init__('a host such as "board.example"')

    def read(self, raw: object) -> str:
        """Return the host in lower case, an IPv6 address in brackets."""
        text = super().read(raw).lower()
        if "*" in text:
            raise self.broken(raw, '"*" would take the name of any page that a user visits; list each host')
        if not text.isascii():
            raise self.broken(raw, "a browser sends such a name in its xn--… form; write that")
        if not _HOST.match(text):
            raise self.broken(raw, "it has neither a scheme nor a port; put an IPv6 address in brackets")
        return text


class ListenerSection(Section):
    """A section of a listener, whose keys are `listen` and the files of its certificates."""

    __slots__ = ()
    NAME: ClassVar[str]
    listen: Any
    client_ca: Any

    def asks(self, _name: str) -> tuple[bool | None, str]:
        """See Section."""
        return self.listen is not None, "listen"

    def files(self) -> Iterator[tuple[str, Path]]:
        """See Section."""
        for key in ("key", "cert", "client_ca"):
            if (path := getattr(self, key)) is not None:
                yield f"[{self.NAME}] {key}", path

    def reads(self) -> Iterator[tuple[Path, str, bool]]:
        """See Section."""
        if self.listen is not None:
            yield from ((path, what, True) for what, path in self.files())

    def faults(self, config: "Config") -> Iterator[str]:
        """See Section."""
        listen = self.listen
        if listen is None:
            return
        if not listen.is_loopback and self.client_ca is None and not config.names_tokens:
            yield (
                f"[{self.NAME}]: {listen} is reached from other machines, whose users could not authenticate; set "
                "client_ca (with cert and key), or token_sha256 in the match of a [[policy]] "
                "(`hearth admin token new` makes one)"
            )
        for theirs in config.extras.values():
            if theirs is self:
                return
            if isinstance(theirs, ListenerSection) and theirs.listen is not None and listen.overlaps(theirs.listen):
                yield (
                    f"[{self.NAME}]: {listen} is taken by [{theirs.NAME}] listen = {show(str(theirs.listen))}; "
                    "give one of them another port"
                )

    def sockets(self, _config: "Config") -> Iterator[tuple[str, str, int | None]]:
        """See Section."""
        if self.listen is not None and self.NAME != "tls":
            yield "netlink:sock_diag", "the user at the other end of a loopback connection", None

    def credentials(self) -> Iterator[str]:
        """See Section."""
        if self.listen is not None:
            yield from ("certificates",) if self.client_ca is not None else ()
            yield from ("tokens",) if self.NAME != "tls" else ()


@frozen(field_transformer=checked)
class TlsConfig(ListenerSection):
    """[tls]: HACP lines over TCP with TLS; every client needs a certificate (draft §10.3). All four keys or none."""

    NAME: ClassVar = "tls"

    listen: Annotated[Endpoint | None, ListenAddress()] = None
    cert: Annotated[Path | None, AbsolutePath()] = None
    key: Annotated[Path | None, AbsolutePath()] = None
    client_ca: Annotated[Path | None, AbsolutePath()] = None

    def __attrs_post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("listen", "cert", "key", "client_ca")}
        missing = [name for name, value in given.items() if value is None]
        if missing and len(missing) < len(given):
            cure = "set them, or none of the four" if len(missing) > 1 else "set it, or none of the four"
            raise ConfigError(
                f"{_listed(missing)} not set: clients authenticate by certificate, so TLS needs listen, cert, "
                f"key and client_ca; {cure} (`hearth admin tls init DIR` makes a set for a test bench)"
            )


@frozen(field_transformer=checked)
class WebSocketConfig(ListenerSection):
    """[websocket]: one JSON document per message (draft §2.2), over TLS if `cert` and `key` are set.

    A listener that other machines can reach needs TLS, or `plaintext` and a proxy in front that ends TLS.
    """

    NAME: ClassVar = "websocket"

    listen: Annotated[Endpoint | None, ListenAddress()] = None
    cert: Annotated[Path | None, AbsolutePath()] = None
    key: Annotated[Path | None, AbsolutePath()] = None
    client_ca: Annotated[Path | None, AbsolutePath()] = None
    """The CA of client certificates. They are then requested but not required: a token is enough, too."""
    origins: Annotated[tuple[str, ...], ListOf(Origin())] = ()
    """Origins of pages whose browsers may connect; programs send no Origin and need not be listed."""
    plaintext: Annotated[bool, Flag()] = False
    ping_interval_s: Annotated[float, Number(gt=0)] = 20
    ping_timeout_s: Annotated[float, Number(gt=0)] = 20

    def __attrs_post_init__(self) -> None:
        _check_section(self)


@frozen(field_transformer=checked)
class HttpConfig(ListenerSection):
    """[http]: the dashboard at /ui, MCP at /mcp, the AgentCard, /healthz and /metrics, over TLS with `cert` and `key`.

    As with [websocket], a listener that other machines can reach needs TLS, or a proxy in front and `plaintext`.
    """

    NAME: ClassVar = "http"

    listen: Annotated[Endpoint | None, ListenAddress()] = None
    cert: Annotated[Path | None, AbsolutePath()] = None
    key: Annotated[Path | None, AbsolutePath()] = None
    client_ca: Annotated[Path | None, AbsolutePath()] = None
    """The CA of client certificates. They are then requested but not required: a token is enough, too."""
    origins: Annotated[tuple[str, ...], ListOf(Origin())] = ()
    """Origins of other pages whose browsers may call; programs send no Origin and need not be listed."""
    hosts: Annotated[tuple[str, ...], ListOf(HostName())] = ()
    """Names of this machine, beside its address and the names of loopback."""
    plaintext: Annotated[bool, Flag()] = False
    mcp: Annotated[bool | None, Flag()] = None
    """True if /mcp is served; None: if the MCP SDK is installed."""
    ui: Annotated[bool, Flag()] = True
    """True if the dashboard is served, with HACP over a WebSocket for it."""

    def asks(self, name: str) -> tuple[bool | None, str]:
        """See Section: `mcp` asks for MCP."""
        return (self.mcp, "mcp") if name == "mcp" and self.listen is not None else (self.listen is not None, "listen")

    def __attrs_post_init__(self) -> None:
        _check_section(self)


def _check_section(section: WebSocketConfig | HttpConfig) -> None:
    """Raise ConfigError if data would cross the network in the clear, or the section's keys contradict each other."""
    if (section.cert is None) != (section.key is None):
        lacking, there = ("cert", "key") if section.cert is None else ("key", "cert")
        raise ConfigError(f"{lacking} not set: {there} alone makes no TLS; set {lacking}, or take {there} out")
    if section.client_ca is not None and section.cert is None:
        raise ConfigError("cert and key not set: only TLS has client certificates; set them, or take client_ca out")
    if section.plaintext and section.cert is not None:
        raise ConfigError("plaintext = true declares that a proxy ends TLS; remove it, or remove cert and key")
    listen = section.listen
    if listen is not None and not listen.is_loopback and section.cert is None and not section.plaintext:
        raise ConfigError(
            f"cert and key not set: {listen} is reached from other machines, and tokens would cross the "
            "network in the clear; set cert and key, or plaintext = true if a proxy in front ends TLS"
        )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
