"""Who asks for a WebSocket, from what its request says and what the carrier below knows (RFC 6455 §4.2.2).

It judges one request and refuses with one HTTP status, from which a stranger learns nothing else. It sends nothing; and
a token that was offered appears in no exception, log or record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hearth.actors.listeners import callers
from hearth.actors.listeners.callers import Refused, values
from hearth.policy.principal import from_loopback

if TYPE_CHECKING:
    import socket
    from collections.abc import Set as AbstractSet

    from trio_websocket import WebSocketRequest

    from hearth.actors.listeners.callers import Certificate
    from hearth.policy.principal import Principal
    from hearth.policy.tokens import Tokens

SUBPROTOCOL = "hacp.v0"
BEARER = "bearer."
"""What a subprotocol entry begins with that is a token: a page's script can set no header."""
PATH = "/"
_SHOWN = 100
"""Characters of what a peer sent that a reason repeats."""


def examine(request: WebSocketRequest, origins: AbstractSet[str]) -> str | None:
    """The subprotocol to answer with, if any was offered. Raises Refused: path, Origin and subprotocol, in this order.

    The Host header is not looked at. What it could tell is a page of another site whose name was made to point at this
    machine (DNS rebinding); but a browser sends the Origin of that page with every WebSocket, which a script cannot
    change, and which is not among those that are allowed. Whoever is no browser can send any Host there is.
    """
    # The path may hold somebody's secret (a token in a query), so it is not repeated.
    if request.path != PATH:
        raise Refused(404, f"it asked for a path other than {PATH}")
    given = values(request.headers, b"origin")
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
    """Who is calling: see `callers.caller`. A token may come as a subprotocol, too. Raises Refused."""
    return callers.caller(
        request.headers,
        tokens,
        certificate,
        partial(from_loopback, connected),
        offered=[entry[len(BEARER) :] for entry in request.proposed_subprotocols if entry.startswith(BEARER)],
        behind_proxy=behind_proxy,
    )
