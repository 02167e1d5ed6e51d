"""A WebSocket client that can misbehave: its frames are made by hand, and it does only what it is told to.

It shares no code with the libraries below hearth's listener. `served` is that listener, on a real port.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import struct
from contextlib import asynccontextmanager, nullcontext
from typing import NamedTuple

import trio
from support.users import ordinary_user

from hearth.actors.listeners import tcp
from hearth.actors.listeners.accept import ConnectionLimiter
from hearth.actors.listeners.websocket import WebSocketHandshake
from hearth.config.listen import Endpoint
from hearth.policy.principal import Tokens

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = base64.b64encode(bytes(range(16))).decode()
ACCEPT = base64.b64encode(hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
MASK = b"\x5a\x3c\x96\xe1"
HANDSHAKE = {
    "Host": "here",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}


def request(*more, path="/", **replaced):
    """An opening handshake. `more` are header lines; keywords (`sec_websocket_version`) replace one, None omits it."""
    headers = dict(HANDSHAKE)
    for name, value in replaced.items():
        found = next(known for known in HANDSHAKE if known.lower() == name.replace("_", "-"))
        headers[found] = value
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, *more, "", ""]).encode("latin-1")


def frame(opcode, payload=b"", *, fin=True, masked=True, reserved=0, announced=None):
    """A frame's bytes; `announced` is a length that it claims to have."""
    size = len(payload) if announced is None else announced
    mask_bit = 0x80 if masked else 0
    if size < 126:
        length = struct.pack("!B", mask_bit | size)
    elif size < 65536:
        length = struct.pack("!BH", mask_bit | 126, size)
    else:
        length = struct.pack("!BQ", mask_bit | 127, size)
    head = bytes(((0x80 if fin else 0) | reserved << 4 | opcode,)) + length
    return head + MASK + mask(payload) if masked else head + payload


def mask(payload):
    """XOR with MASK (RFC 6455 §5.3)."""
    whole = MASK * (len(payload) // 4 + 1)
    number = int.from_bytes(payload, "big") ^ int.from_bytes(whole[: len(payload)], "big")
    return number.to_bytes(len(payload), "big")


def close(code=1000):
    return frame(CLOSE, struct.pack("!H", code))


class Answer(NamedTuple):
    """An HTTP response's status and headers, whose names are in lower case."""

    status: int
    headers: dict[str, str]


class RawWebSocket:
    """One connection. What it receives is not answered by itself: no pong, no close, nothing."""

    def __init__(self, stream, connected):
        self.stream = stream
        self.socket = connected
        self.reset = False
        """Whether the connection was lost rather than ended."""
        self._rest = b""
        self._ids = 0

    @classmethod
    async def connect(cls, port, *, as_nobody=False, receive_buffer=None, tls=None):
        """TCP, or TLS with this context; no handshake yet. The kernel notes whose a socket is when it is made."""
        with ordinary_user() if as_nobody else nullcontext():
            connecting = trio.socket.socket()
        if receive_buffer is not None:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await connecting.connect(("127.0.0.1", port))
        stream = trio.SocketStream(connecting)
        if tls is not None:
            stream = trio.SSLStream(stream, tls, server_hostname="localhost")
            await stream.do_handshake()
        return cls(stream, connecting)

    @classmethod
    async def open(cls, port, *more, receive_buffer=None, tls=None, **how):
        """Connected and let in."""
        raw = await cls.connect(port, receive_buffer=receive_buffer, tls=tls)
        answer = await raw.handshake(*more, **how)
        assert answer.status == 101, answer
        assert answer.headers["sec-websocket-accept"] == ACCEPT
        return raw

    async def handshake(self, *more, **how):
        """Ask for a WebSocket as `request` does; returns the Answer."""
        await self.send(request(*more, **how))
        return await self.answer()

    async def answer(self):
        """The next HTTP answer's status and headers; None when there is none before the end."""
        while b"\r\n\r\n" not in self._rest:
            if not await self._more():
                assert not self._rest, self._rest
                return None
        head, self._rest = self._rest.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), {name.lower(): value for name, value in pairs})

    # --- frames -------------------------------------------------------------------------------------------------

    async def send(self, *pieces):
        await self.stream.send_all(b"".join(pieces))

    async def text(self, text, **how):
        await self.send(frame(TEXT, text.encode(), **how))

    async def _more(self):
        try:
            data = await self.stream.receive_some(1 << 16)
        except trio.BrokenResourceError:
            self.reset = True
            return False
        self._rest += data
        return bool(data)

    async def receive(self):
        """The next frame as (opcode, payload); None at the end. A server's frames are whole and not masked."""
        while (found := self._frame()) is None:
            if not await self._more():
                return None
        return found

    def _frame(self):
        data = self._rest
        if len(data) < 2:
            return None
        assert data[0] & 0xF0 == 0x80, data[:2]
        size, start = data[1], 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        if len(data) < start + size:
            return None
        self._rest = data[start + size :]
        return data[0] & 0x0F, data[start : start + size]

    async def message(self):
        """The next text message; whatever else comes is a failure."""
        found = await self.receive()
        assert found is not None, "the connection ended"
        opcode, payload = found
        assert opcode == TEXT, found
        return payload.decode()

    async def close_code(self):
        """Receive to the end; the code of the close frame, which is the last there is, or None without one."""
        code = None
        while (found := await self.receive()) is not None:
            assert code is None, f"{found} after the close frame"
            if found[0] == CLOSE:
                code = int.from_bytes(found[1][:2], "big")
        return code

    async def ask(self, method, **params):
        """A JSON-RPC request; its answer, past events."""
        self._ids += 1
        await self.text(json.dumps({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}))
        while True:
            answer = json.loads(await self.message())
            if answer.get("id") == self._ids:
                return answer

    async def aclose(self):
        """Gone without a word."""
        await trio.aclose_forcefully(self.stream)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.aclose()


class Served:
    """A WebSocket listener that is open."""

    def __init__(self, listener):
        self.listener = listener
        self.port = int(listener.address.rpartition(":")[2])
        self.refused = []
        """Why peers were refused."""

    def connect(self, **how):
        """See RawWebSocket.connect."""
        return RawWebSocket.connect(self.port, **how)

    def open(self, *more, **how):
        """See RawWebSocket.open."""
        return RawWebSocket.open(self.port, *more, **how)


@asynccontextmanager
async def served(welcome, *, send_timeout=60.0, max_connections=1000, **options):
    """The daemon's own TCP listener and WebSocket handshake, which serves with `welcome` while the body runs."""
    settings = {
        "certificates": None,
        "origins": frozenset(),
        "tokens": Tokens(()),
        "max_document_bytes": 1 << 16,
        "handshake_timeout": 60.0,
        "ping_interval": 1000.0,
        "ping_timeout": 1000.0,
        **options,
    }
    handshake = WebSocketHandshake(send_timeout=send_timeout, **settings)

    def report(carrier, peer, reason):
        assert (carrier, peer[:4]) == (handshake.scheme, "127.")
        here.refused.append(reason)

    listening = tcp.bind("websocket", Endpoint("127.0.0.1", 0))
    listener = tcp.TcpListener(listening, handshake, settings["certificates"], send_timeout=send_timeout, report=report)
    here = Served(listener)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept_all, nursery, ConnectionLimiter(max_connections), welcome)
            yield here
            nursery.cancel_scope.cancel()
    finally:
        listener.close()


def descriptors():
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))
