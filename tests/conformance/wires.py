"""Clients over a network that are not ours: the stdlib's TLS, and a WebSocket made by hand from RFC 6455."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from conformance.daemon import Peer
from support.hearthd import BOUND

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FINAL = 0x80
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def dial(port: int, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Connect to this machine, with TLS if there is a context. Raises OSError, of which SSLError is one."""
    connected = socket.create_connection(("127.0.0.1", port), timeout=BOUND)
    if tls is None:
        return connected
    try:
        return tls.wrap_socket(connected, server_hostname="localhost")
    except OSError:
        connected.close()
        raise


class NetworkPeer(Peer):
    """A client of lines over TCP."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = dial(port, tls)
        self._lines = self.socket.makefile("rb")
        self._last_id = 0
        self.notifications: list[dict[str, Any]] = []


class Turned(Exception):
    """The handshake was answered with something else than 101."""

    def __init__(self, status: int, head: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.head = head


class WebSocketPeer(NetworkPeer):
    """A client of messages: what is sent as a line is sent as one message, and each message that comes is a line."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None, **headers: str) -> None:
        """`headers` are added to the request, "_" standing for "-". Raises Turned."""
        super().__init__(port, tls)
        nonce = base64.b64encode(os.urandom(16))
        asked = {"Sec_WebSocket_Protocol": "hacp.v0", **headers}
        lines = [
            b"GET / HTTP/1.1", b"Host: localhost:%d" % port, b"Upgrade: websocket", b"Connection: Upgrade",
            b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: " + nonce,
            *(f"{name.replace('_', '-')}: {value}".encode() for name, value in asked.items()),
        ]  # fmt: skip
        self.socket.sendall(b"\r\n".join([*lines, b"", b""]))
        status = self._lines.readline()
        head = b"".join(iter(self._lines.readline, b"\r\n"))
        if b" 101 " not in status:
            self.close()
            raise Turned(int(status.split()[1]), status + head)
        pairs = (line.decode().split(": ", 1) for line in head.splitlines())
        self.headers = {name.lower(): value for name, value in pairs}
        accepted = base64.b64encode(hashlib.sha1(nonce + _GUID).digest())
        assert self.headers["sec-websocket-accept"] == accepted.decode()

    def send(self, *documents: bytes) -> None:
        for document in documents:
            self.frame(FINAL | TEXT, document.removesuffix(b"\n"))

    def frame(self, first: int, payload: bytes = b"") -> None:
        """Send one frame; `first` is FINAL or not, and the kind, which is 0 for a continuation."""
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
        if size > 0xFFFF:
            length = b"\xff" + struct.pack("!Q", size)
        mask = os.urandom(4)
        self.socket.sendall(bytes([first]) + length + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload)))

    def read(self) -> tuple[int, bytes]:
        """The next frame's kind and payload. A server masks nothing, and this one splits nothing."""
        first, size = self._lines.read(2)
        assert first & FINAL
        if size == 126:
            (size,) = struct.unpack("!H", self._lines.read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._lines.read(8))
        return first & 0x0F, self._lines.read(size)

    def raw(self) -> bytes:
        """The next message and an LF; b"" when the server has closed. Pings are answered."""
        while True:
            kind, payload = self.read()
            if kind == TEXT:
                return payload + b"\n"
            if kind == CLOSE:
                return b""
            if kind == PING:
                self.frame(FINAL | PONG, payload)


@contextlib.contextmanager
def wiretap(port: int, change: Callable[[bytes], bytes] = bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Somebody on the way to a port: a port to connect to instead, and all that passed, both ways.

    `change` is done to what goes to the server.
    """
    seen: list[bytes] = []
    with contextlib.ExitStack() as open_sockets, socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(BOUND)

        def pass_on(source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes]) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    seen.append(data)
                    sink.sendall(change(data))
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        def serve() -> None:
            near = open_sockets.enter_context(listening.accept()[0])
            far = open_sockets.enter_context(dial(port))
            back = threading.Thread(target=pass_on, args=[far, near, bytes])
            back.start()
            pass_on(near, far, change)
            back.join(BOUND)

        serving = threading.Thread(target=serve)
        serving.start()
        yield listening.getsockname()[1], seen
        serving.join(BOUND)
        assert not serving.is_alive()
