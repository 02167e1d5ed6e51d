"""Who asks for a WebSocket, from what its request says and what the carrier below knows (RFC 6455 §4.2.2).

It judges one request and refuses with one HTTP status, from which a stranger learns nothing else. It sends nothing; and
a token that was offered appears in no exception, log or record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hearth.actors.listeners.accepting import Stranger
from hearth.errors import PermissionDenied
from hearth.policy.principal import from_loopback

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence, Set as AbstractSet

    from trio_websocket import WebSocketRequest

    from hearth.policy.principal import Principal
    from hearth.policy.tokens import Tokens

Certificate: TypeAlias = "Callable[[], Principal | None]"
"""Whom the peer's verified certificate names, if it showed one. Raises Stranger."""

SUBPROTOCOL = "hacp.v0"
BEARER = "bearer."
"""What a subprotocol entry begins with that is a token: a page's script can set no header."""
PATH = "/"
_PROXIED = (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")
"""Headers by which a proxy says that it speaks for somebody else."""
_SHOWN = 100
"""Characters of what a peer sent that a reason repeats."""


class Refused(Stranger):
    """The request is answered with this HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the answer says beside its status."""
        challenge = [(b"WWW-Authenticate", b"Bearer")] if self.status == 401 else []
        return [*challenge, (b"Connection", b"close")]


def nobody() -> Principal | None:
    """The holder of the certificate where there is no TLS."""
    return None


def examine(request: WebSocketRequest, origins: AbstractSet[str]) -> str | None:
    """The subprotocol to answer with, if any was offered. Raises Refused: path, Origin and subprotocol, in this order.

    The Host header is not looked at. What it could tell is a page of another site whose name was made to point at this
    machine (DNS rebinding); but a browser sends the Origin of that page with every WebSocket, which a script cannot
    change, and which is not among those that are allowed. Whoever is no browser can send any Host there is.
    """
    # The path may hold somebody's secret (a token in a query), so it is not repeated.
    if request.path != PATH:
        raise Refused(404, f"it asked for a path other than {PATH}")
    given = _values(request, b"origin")
    if given and (len(given) > 1 or given[0] not in origins):
        shown = ", ".join(given)[:_SHOWN]
        raise Refused(403, f"origin {shown!r} is not in [websocket] origins")
    offered = request.proposed_subprotocols
    if offered and SUBPROTOCOL not in offered:
        raise Refused(400, f"it offers subprotocols, and {SUBPROTOCOL} is not among them")
    return SUBPROTOCOL if offered else None


def caller(
    request: WebSocketRequest,
    tokens: Tokens,
    certificate: Certificate,
    connected: socket.socket,
    *,
    behind_proxy: bool = False,
) -> Principal:
    """Who is calling: the bearer of a token, else the holder of a certificate, else a user of this machine.

    The last not where the operator says that a proxy stands in front, or the request says that it came through one.
    Raises Refused. Whoever offers a token or a certificate is judged by that alone: see docs/decisions/0045.
    """
    offered = _offered(request)
    if len(offered) > 1:
        raise Refused(400, "it offers two different tokens")
    if offered:
        known = tokens.bearer(offered.pop())
        if known is None:
            raise Refused(401, "its bearer token is unknown")
        return known
    try:
        holder = certificate()
    except Stranger as stranger:
        raise Refused(401, str(stranger)) from None
    if holder is not None:
        return holder
    if behind_proxy or any(name in _PROXIED for name, _ in request.headers):
        # The kernel would name the user that the proxy runs as, whoever has come through it.
        raise Refused(401, "it comes through a proxy and offers no bearer token")
    try:
        return from_loopback(connected)
    except PermissionDenied as error:
        reason = (error.data or {}).get("reason", error.message)
        raise Refused(401, f"it offers no bearer token, and {reason}") from None


def _offered(request: WebSocketRequest) -> set[str]:
    """The bearer tokens in a request."""
    found = {entry[len(BEARER) :] for entry in request.proposed_subprotocols if entry.startswith(BEARER)}
    for value in _values(request, b"authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise Refused(401, "its Authorization is not of the Bearer scheme")
        found.add(token.strip())
    return found


def _values(request: WebSocketRequest, name: bytes) -> Sequence[str]:
    return [value.decode("ascii", "replace") for key, value in request.headers if key == name]
