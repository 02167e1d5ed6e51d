"""A broker's URL, for a client.

    amqps://HOST[:5671][/VHOST]?ca=FILE&cert=FILE&key=FILE
    amqp://USER@HOST[:5672][/VHOST]?password_file=FILE

amqps logs in by the client's certificate (SASL EXTERNAL) and needs one. amqp logs in with a password (SASL PLAIN),
which crosses the wire in the clear: it is for loopback alone. An address holds no secret, so that it can be logged;
text that holds a password is refused, and the error does not repeat it. As in RabbitMQ's URI specification, no path is
the virtual host `/`, and a slash within a virtual host is %2F. This module opens no connection and reads no file.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from attrs import frozen

from hearth._util.text import suggest
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLES: Final = {
    "amqps": "amqps://broker.example:5671/?ca=ca.pem&cert=arm.pem&key=arm.key",
    "amqp": "amqp://arm@127.0.0.1:5672/?password_file=password",
}
"""Scheme -> an example for error messages."""
_PORTS: Final = {"amqps": 5671, "amqp": 5672}
_PARAMETERS: Final = {"amqps": ("ca", "cert", "key"), "amqp": ("password_file",)}
_URL: Final = re.compile(r"(?P<scheme>[a-z]+)://(?:(?P<user>[^@/?#]*)@)?(?P<host>\[[^]/?#@]*\]|[^:/?#@\[\]]*)(?::(?P<port>[^/?#]*))?"
    r"(?:/(?P<vhost>[^?#]*))?(?:\?(?P<query>[^#]*))?\Z", re.IGNORECASE)  # fmt: skip
_HOST: Final = re.compile(r"\w[\w.-]*\Z")
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


@frozen
class BrokerAddress:
    """A broker. `secure` is amqps: then `cert` and `key` are set, else `user` and `password_file`.

    Raises ConfigError for a password that would leave this machine.
    """

    host: str
    port: int
    secure: bool
    vhost: str = "/"
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None

    def __attrs_post_init__(self) -> None:
        if not self.secure and not is_loopback(self.host):
            raise ConfigError(
                f"{self.place}: a password would cross the network in the clear, so amqp:// is for loopback alone; "
                f"write {EXAMPLES['amqps']}"
            )

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.vhost == "/" else f"/{quote(self.vhost, safe='')}"
        return f"amqp{'s' if self.secure else ''}://{host}:{self.port}{vhost}"


def is_loopback(host: str) -> bool:
    """Return True for an address of loopback, and for the name localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_broker(text: str) -> BrokerAddress:
    """Return the address that `text` means. Raises ConfigError, which names the fault and shows a right address."""
    match = _URL.match(text)
    scheme = text.partition("://")[0].lower()
    if scheme not in _PORTS:
        raise _wrong(text, "a broker's address begins with amqps:// or amqp://", "amqps")
    if match is None:
        raise _wrong(text, "it is not HOST, :PORT, /VHOST and ?parameters in this order", scheme)
    secure = scheme == "amqps"
    given = _parameters(text, scheme, match["query"] or "")
    user = _decoded(text, match["user"] or "", scheme)
    if (fault := _login_fault(secure, user, given)) is not None:
        raise _wrong(text, fault, scheme)
    vhost = _decoded(text, match["vhost"], scheme) if match["vhost"] else "/"
    port = _port(text, scheme, match["port"])
    host = _host(text, scheme, match["host"])
    return BrokerAddress(host, port, secure, vhost, user=user or None, **given)


def _login_fault(secure: bool, user: str, given: Mapping[str, Path]) -> str | None:
    """Return why an address has no log-in: by the certificate with amqps, by user and password with amqp."""
    if ":" in user:
        return "a password does not belong in an address; write it to a file, for ?password_file=FILE"
    if not secure:
        return None if user and "password_file" in given else "USER@ and password_file are its log-in"
    if user:
        return "it takes no user: the certificate's is meant"
    there = {"cert", "key"} <= given.keys()
    return None if there else "the client's certificate is missing: cert and key are its log-in"


def _host(text: str, scheme: str, host: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise _wrong(text, f"{host} is no IPv6 address", scheme) from None
    if not _HOST.match(host):
        raise _wrong(text, f"{host!r} is no host" if host else "the host is missing", scheme)
    return host


def _port(text: str, scheme: str, port: str | None) -> int:
    if port is None:
        return _PORTS[scheme]
    if ":" in port:
        raise _wrong(text, "put an IPv6 address in brackets, as in [::1]", scheme)
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _wrong(text, "after the host and : comes a port, a number from 1 to 65535", scheme)
    return int(port)


def _parameters(text: str, scheme: str, query: str) -> dict[str, Path]:
    given: dict[str, Path] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in _PARAMETERS[scheme]:
            near = suggest(name, _PARAMETERS[scheme])
            known = f"it takes {', '.join(_PARAMETERS[scheme])}"
            raise _wrong(text, f"there is no parameter of this name; {near or known}", scheme)
        if name in given or not value:
            raise _wrong(text, f"{name} is given twice or has no value", scheme)
        given[name] = Path(_decoded(text, value, scheme))
    return given


def _decoded(text: str, part: str, scheme: str) -> str:
    decoded = unquote(part, errors="surrogateescape")
    if _PERCENT.search(part) or "\0" in decoded or not decoded.isprintable():
        raise _wrong(text, "a % is written %25, and control characters are not allowed", scheme)
    return decoded


def _wrong(text: str, fault: str, scheme: str) -> ConfigError:
    # A user part or a query may hold a secret, which no message repeats.
    shown = re.sub(r"//[^/]*@", "//…@", text.partition("?")[0])[:100]
    return ConfigError(f"broker {shown!r}: {fault}; such as {EXAMPLES[scheme]}")
