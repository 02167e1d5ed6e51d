"""Where other agents reach this one: the endpoint of the card, from where the daemon listens (draft §2.5).

This module owns the choice among several ways; it binds nothing and asks no network. What is bound to all addresses has
no address of its own, and a host's name is nobody's business (§8.6): only names that the operator wrote down are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.mcp.protocol import COMMAND, PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hearth.config_card import CardConfig
    from hearth.config_listen import HttpConfig


@frozen
class Place:
    """An endpoint: `protocol` and `auth` as the draft has them, `url` a URI."""

    protocol: str
    url: str
    auth: str

    def to_json(self) -> dict[str, Any]:
        """The card's endpoint."""
        return {"protocol": self.protocol, "url": self.url, "auth": {"scheme": self.auth}}


STDIO = Place("stdio", f"stdio:{'%20'.join(COMMAND)}", "none")
"""Without an HTTP listener: the command that speaks MCP on its standard streams, wherever the daemon can be reached."""


def choose_place(card: CardConfig, http: HttpConfig, listeners: Iterable[str], *, mcp: bool, tokens: bool) -> Place:
    """The endpoint, from the `[card]` and `[http]` sections and the addresses that are listened at.

    Of `listeners` those that are HTTP URLs count; `mcp` says that they have /mcp, `tokens` that a `[[policy]]` entry
    names a token.
    """
    place = _listening(http, listeners, mcp=mcp, tokens=tokens)
    if card.protocol is not None and card.url is not None:
        place = Place(card.protocol, card.url, place.auth if card.protocol != "stdio" else "none")
    return place if card.auth is None else Place(place.protocol, place.url, card.auth)


def _listening(http: HttpConfig, listeners: Iterable[str], *, mcp: bool, tokens: bool) -> Place:
    base = next((url for url in listeners if url.startswith(("http://", "https://"))), None)
    if base is None:
        return STDIO
    url = _reachable(base.rstrip("/"), http.hosts)
    auth = auth_scheme(http, tokens=tokens)
    # The draft's `mcp` says what is spoken there; the URL's scheme still says over what, which §8.5 compares.
    return Place("mcp", url + PATH, auth) if mcp else Place(url.partition(":")[0], f"{url}/", auth)


def auth_scheme(http: HttpConfig, *, tokens: bool) -> str:
    """What a caller must bring: on loopback the kernel says who it is, elsewhere it must prove it."""
    if http.listen is not None and http.listen.is_loopback and not http.plaintext:
        return "none"
    return "mtls" if http.client_ca is not None and not tokens else "bearer"


def _reachable(url: str, hosts: Sequence[str]) -> str:
    """A URL that leads somewhere: one of all addresses gets the first of the names that the operator gave."""
    scheme, _, authority = url.partition("://")
    host, colon, port = authority.rpartition(":")
    if host not in _ALL_ADDRESSES:
        return url
    return f"{scheme}://{hosts[0] if hosts else 'localhost'}{colon}{port}"


_ALL_ADDRESSES = ("0.0.0.0", "[::]")
