"""Which names a request may be sent to, and which pages may send one: the one owner of that rule.

A page of another site can have its name point at this machine (DNS rebinding), and its browser then sends what the page
asks for; but it says that name in Host, and the page in Origin, and no script can change either. Names that nobody
gave us are therefore refused before anything else is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.actors.bridges.http.problems import Problem
from hearth.actors.listeners.callers import values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hearth.actors.listeners.callers import Headers

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""The names of loopback: nobody else's name server can give them away."""
_SHOWN = 100
"""Characters of what a peer sent that an answer repeats."""
_METHODS = b"GET, HEAD, POST, DELETE"
_REQUEST_HEADERS = (
    b"Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"
)
_ANSWER_HEADERS = b"Mcp-Session-Id, WWW-Authenticate"
_DAY = b"86400"


class Hosts:
    """The names and pages that are accepted: `hosts` without ports, `origins` as a browser says them."""

    def __init__(
        self, hosts: Iterable[str], origins: Iterable[str], *, encrypted: bool, behind_proxy: bool = False
    ) -> None:
        self._hosts = frozenset((*LOOPBACK, *hosts))
        self._origins = frozenset(origins)
        self._schemes = ("http", "https") if behind_proxy else ("https",) if encrypted else ("http",)
        """Of our own pages: which of both a proxy in front speaks is not known here."""

    def check(self, headers: Headers, address: str) -> str:
        """The Host of a request that came to `address`, with its port. Raises Problem: 400 or 421."""
        given = values(headers, b"host")
        if len(given) != 1:
            raise Problem(400, "a request has exactly one Host header")
        host = given[0].lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts and name != _in_a_url(address):
            cure = "ask under this machine's address, or list the name in [http] hosts"
            raise Problem(421, f"Host {name[:_SHOWN]!r} is no name of this daemon; {cure}")
        return host

    def origin(self, headers: Headers, host: str) -> str | None:
        """The page that sends a request, if it is one of another place. Raises Problem: 403.

        A page under our own Host was served by us, or by the proxy in front that speaks for us.
        """
        given = values(headers, b"origin")
        if not given:
            return None
        origin = given[0].lower()
        if len(given) > 1 or not (origin in self._origins or self._own(origin, host)):
            shown = ", ".join(given)[:_SHOWN]
            raise Problem(403, f"Origin {shown!r} is not in [http] origins; list the page's origin there")
        return origin if origin in self._origins else None

    def _own(self, origin: str, host: str) -> bool:
        scheme, _, place = origin.partition("://")
        return scheme in self._schemes and place == host


def _in_a_url(address: str) -> str:
    """A socket's address as it stands in a URL: an IPv4 address without its IPv6 clothes, an IPv6 one in brackets."""
    if "." in address:
        return address.removeprefix("::ffff:")
    return f"[{address.partition('%')[0]}]"


def allowing(origin: str | None) -> Sequence[tuple[bytes, bytes]]:
    """The headers by which a browser lets a page of `origin` read an answer."""
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-expose-headers", _ANSWER_HEADERS),
        (b"vary", b"Origin"),
    )


def preflight(origin: str) -> Sequence[tuple[bytes, bytes]]:
    """The headers by which a browser lets a page of `origin` send a request that is no plain one."""
    return (
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", _REQUEST_HEADERS),
        (b"access-control-max-age", _DAY),
        (b"vary", b"Origin"),
    )
