"""ws:// and wss://: the opening handshake, who we say we are in it, and what a refusal means, in words.

What is done with the open WebSocket is `websocket_stream`'s.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, Request
from wsproto.utilities import RemoteProtocolError

from hearth.dial.companion import accompanied
from hearth.dial.credentials import find_token
from hearth.dial.tcp import in_time, open_tcp
from hearth.dial.tls import TlsStream, context_for, secure
from hearth.dial.websocket_stream import RECEIVE_SIZE, WebSocketStream
from hearth.errors import CarrierError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hearth.address import WebSocketAddress

SUBPROTOCOL = "hacp.v0"
_HTTP = b"HTTP/1."


@asynccontextmanager
async def open_websocket(address: WebSocketAddress, token: str | None) -> AsyncIterator[WebSocketStream]:
    """Raises CarrierError when nobody answers, or refuses us, and ConfigError for credentials that cannot be used."""
    offered = find_token(address, token, os.environ)
    context = context_for(address) if address.secure else None
    with in_time(address):
        transport: trio.abc.Stream = await open_tcp(address)
        if context is not None:
            assert isinstance(transport, trio.SocketStream)
            transport = TlsStream(await secure(transport, address, context, https=True), address)
        try:
            protocol = await _shake_hands(transport, address, offered)
        except BaseException:
            await trio.aclose_forcefully(transport)
            raise
    stream = WebSocketStream(transport, protocol, address.place)
    async with accompanied(stream, stream.answer):
        stream.read()  # what came together with the server's consent
        yield stream


async def _shake_hands(
    transport: trio.abc.Stream, address: WebSocketAddress, offered: tuple[str, str] | None
) -> WSConnection:
    host = f"[{address.host.partition('%')[0]}]" if ":" in address.host else address.host
    headers = [] if offered is None else [(b"Authorization", f"Bearer {offered[0]}".encode())]
    protocol = WSConnection(ConnectionType.CLIENT)
    request = Request(
        host=f"{host}:{address.port}", target=address.path, subprotocols=[SUBPROTOCOL], extra_headers=headers
    )
    failed = f"cannot connect to {address.place}"
    try:
        await transport.send_all(protocol.send(request))
        answer = await _answer_to_handshake(transport, protocol)
    except RemoteProtocolError as error:
        raise CarrierError(f"{failed}: what listens there is no WebSocket ({error}); {_other(address)}") from None
    except trio.BrokenResourceError as error:
        why = f"{error}".removeprefix(f"{address.place}: ") or "the connection ended"
        raise CarrierError(f"{failed}: {why}") from None
    if answer is None:
        raise CarrierError(f"{failed}: it closed the connection instead of answering; {_other(address)}")
    if isinstance(answer, RejectConnection):
        raise CarrierError(f"{failed}: {_refusal(answer, address, offered)}")
    if answer.subprotocol != SUBPROTOCOL:
        cure = "is it hearthd that listens there?"
        raise CarrierError(f"{failed}: it is a WebSocket, but does not speak {SUBPROTOCOL}; {cure}")
    return protocol


async def _answer_to_handshake(
    transport: trio.abc.Stream, protocol: WSConnection
) -> AcceptConnection | RejectConnection | None:
    """What the server says to it; None if it closes. What comes behind it stays in the protocol."""
    first = b""
    while data := bytes(await transport.receive_some(RECEIVE_SIZE)):
        first = (first + data)[: len(_HTTP)]
        if not _HTTP.startswith(first):
            # Else a line would be waited for, for ever, of a server that waits for us.
            raise RemoteProtocolError(f"it says {first!r}")
        protocol.receive_data(data)
        for event in protocol.events():
            if isinstance(event, (AcceptConnection, RejectConnection)):
                return event
    return None


def _other(address: WebSocketAddress) -> str:
    other = "ws" if address.secure else "wss"
    return f"is the port right, and should it be {other}:// ?"


def _refusal(answer: RejectConnection, address: WebSocketAddress, offered: tuple[str, str] | None) -> str:
    status = answer.status_code
    if status == 401:
        if offered is not None:
            return f"it does not know the token {offered[1]} (HTTP 401); its digest must be in a [[policy]] entry there"
        return "it does not know who calls (HTTP 401); give ?token_file=FILE, see `hearth token new`"
    if status == 403:
        return "it does not let us in (HTTP 403); if a proxy stands before it, look there"
    if status == 404:
        return f"there is no WebSocket at {address.path} (HTTP 404); hearthd's own is at /"
    if status in (502, 503, 504):
        return f"the daemon is not to be reached, or has too much to do (HTTP {status}); try again later"
    if 300 <= status < 400:
        target = dict(answer.headers).get(b"location", b"elsewhere").decode("ascii", "replace")
        where = "".join(filter(str.isprintable, target))
        return f"it sends us to {where} (HTTP {status}); write that address as ws:// or wss://"
    return f"it refuses a WebSocket (HTTP {status}); is it hearthd that listens there?"
