"""WebSocket clients over raw sockets, as cheap as Python allows: what `load` is for lines.

A server's frames come unmasked, so that they are found and counted by their headers alone, and a client's requests are
masked beforehand (RFC 6455 §5). Pings are answered; any other control frame, or a message in pieces, is an error.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks import load
from benchmarks.load import PATIENCE, RECEIVE_SIZE, Client, encode

if TYPE_CHECKING:
    from collections.abc import Callable

SUBPROTOCOL = "hacp.v0"

TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A
"""A first byte: the whole of a text message, a close, a ping, a pong."""
_MASK = bytes.fromhex("5a3c96e1")
_SHORT, _16_BITS, _64_BITS = 126, 126, 127


class WebSocketClient(Client):
    """One WebSocket connection; `address` is a ws:// URL, whose path is asked for."""

    def __init__(self, address: str, receive_buffer: int | None = None) -> None:
        where = urlsplit(address)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE, 0))
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect((where.hostname, where.port))
            self.ports = self.socket.getsockname()[1], self.socket.getpeername()[1]
            """Ours and the server's, also when the connection is no more."""
            self._rest = self._shake_hands(where.netloc, where.path or "/")
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, host: str, path: str) -> bytes:
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            try:
                more = self.socket.recv(RECEIVE_SIZE)
            except BlockingIOError:
                raise RuntimeError(f"no answer to a handshake within {PATIENCE} s, only {answer!r}") from None
            if not more:
                raise RuntimeError(f"the server hung up on a handshake after {answer!r}")
            answer += more
        head, rest = answer.split(b"\r\n\r\n", 1)
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RuntimeError(f"the server refused a handshake: {answer!r}")
        return rest

    def request(self, method: str, params: dict[str, Any]) -> bytes:
        """See Client: a masked frame."""
        return masked(TEXT, encode(method, params)[:-1])

    def documents(self, data: bytes) -> list[bytes]:
        """See Client: the text messages among the frames that came."""
        return frames(data)[0]

    def whole(self, mark: bytes) -> Callable[[bytes], bool]:
        """See Client. The answer is one message, so its header says all about it."""

        def whole(data: bytes) -> bool:
            if data[0] != TEXT:
                data = self._past_pings(data)
            if len(data) < 4:
                return False
            size = data[1]
            if size < _SHORT:
                return len(data) >= 2 + size
            if size == _16_BITS:
                return len(data) >= 4 + (data[2] << 8 | data[3])
            return bool(frames(data)[0])

        return whole

    def _past_pings(self, data: bytes) -> bytes:
        """Answer the pings that `data` begins with; what comes after them."""
        while data and data[0] != TEXT:
            end = frame_end(data, 0)
            if end is None:
                return b""
            self.pong(data[:end])
            data = data[end:]
        return data

    def pong(self, ping: bytes) -> None:
        """Answer a ping. Raises RuntimeError for any other frame."""
        if ping[0] != PING:
            raise RuntimeError(f"not a message and not a ping: {ping!r}")
        self.socket.sendall(masked(PONG, ping[2:]))

    def lines(self, count: int) -> list[bytes]:
        """See Client: receive so many text messages."""
        found: list[bytes] = []
        while True:
            documents, self._rest, pings = frames(self._rest)
            for ping in pings:
                self.pong(ping)
            found += documents
            if len(found) >= count:
                return found
            try:
                more = self.socket.recv(RECEIVE_SIZE)
            except BlockingIOError:
                raise RuntimeError(f"only {found!r} within {PATIENCE} s") from None
            if not more:
                raise RuntimeError(f"the server hung up after {found!r}")
            self._rest += more

    def exchange(self, request: bytes, mark: bytes) -> bytes:
        """See Client: the messages are returned as lines. A `mark` of LF is in the first."""
        self.socket.sendall(request)
        answer = b""
        while not answer or mark not in answer:
            for document in self.lines(1):
                if b'"error":{"code"' in document:
                    raise RuntimeError(f"{request[:200]!r} was answered {document!r}")
                answer += document.rstrip(b"\n") + b"\n"
        return answer


def masked(first: int, payload: bytes) -> bytes:
    """A client's frame. The mask is always the same: it costs the server what any other does."""
    size = len(payload)
    if size < _SHORT:
        head = bytes((first, 0x80 | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | _16_BITS, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | _64_BITS, size)
    mask = (_MASK * (size // 4 + 1))[:size]
    return head + _MASK + bytes(one ^ other for one, other in zip(payload, mask, strict=True))


def frame_end(data: bytes, at: int) -> int | None:
    """Where the frame ends that begins at `at`; None if that is not known yet, or has not come."""
    left = len(data) - at
    if left < 2:
        return None
    size, head = data[at + 1], 2
    if size >= _SHORT:
        head = 4 if size == _16_BITS else 10
        if left < head:
            return None
        size = int.from_bytes(data[at + 2 : at + head])
    end = at + head + size
    return end if end <= len(data) else None


def payload(frame: bytes) -> bytes:
    """What a whole frame carries."""
    return frame[2 if frame[1] < _SHORT else 4 if frame[1] == _16_BITS else 10 :]


def frames(data: bytes) -> tuple[list[bytes], bytes, list[bytes]]:
    """The text messages in `data`, the rest after its last whole frame, and the frames that are no text messages."""
    messages, others = [], []
    at = 0
    while (end := frame_end(data, at)) is not None:
        frame = data[at:end]
        if frame[0] == TEXT:
            messages.append(payload(frame))
        else:
            others.append(frame)
        at = end
    return messages, data[at:], others


answers = partial(load.answers, connect=WebSocketClient)
floor = partial(load.floor, connect=WebSocketClient)
