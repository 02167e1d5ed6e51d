"""Blocking connections to a hearthd process over every carrier: what `support.hearthd.Wire` sends and reads lines on.

None of it is hearth's client: TLS is the standard library's, the WebSocket is wsproto's, and both can be left at any
moment of their handshake.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from support.carriers import BIN, TOKENS, USUAL
from support.hearthd import BOUND, Hearthd, Peer, unix_socket
from support.users import ordinary_user
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Message,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from hearth.policy.principal import from_token

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

    from support.carriers import Papers


class Refused(Exception):
    """A WebSocket's handshake was refused: the status, and what came with it."""

    def __init__(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = {name.lower().decode(): value.decode() for name, value in headers}
        self.body = body


def place(address: str) -> tuple[str, int]:
    """The host and port of an address as hearthd prints it."""
    host, _, port = address.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


def tcp(address: str, *, nobody: bool = False) -> socket.socket:
    """A connected TCP socket, before any handshake; as the user nobody's, which root can make."""
    host, port = place(address)
    with ordinary_user() if nobody else nullcontext():
        # A socket belongs to whoever makes it.
        connected = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    connected.settimeout(BOUND)
    connected.connect((host, port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def tls(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A TLS connection; an end that the server did not announce raises SSLEOFError where it is read."""
    connected = tcp(address)
    try:
        return context.wrap_socket(connected, server_hostname=place(address)[0], suppress_ragged_eofs=False)
    except BaseException:
        connected.close()
        raise


def web_socket(
    address: str, context: ssl.SSLContext | None = None, *, token: str | None = None, origin: str | None = None
) -> Messages:
    """A WebSocket, ws or wss as the address says. Raises Refused."""
    connected = tls(address, context) if context is not None else tcp(address)
    headers = [] if token is None else [(b"Authorization", b"Bearer " + token.encode())]
    if origin is not None:
        headers.append((b"Origin", origin.encode()))
    try:
        return Messages(connected, address, headers)
    except BaseException:
        connected.close()
        raise


class Messages:
    """A WebSocket with the methods of a socket and its file that `Wire` uses: each line is a message, and back."""

    def __init__(self, connected: socket.socket, address: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.socket = connected
        self.close_code: int | None = None
        """How the server ended it; None as long as it has not."""
        self._wire = WSConnection(ConnectionType.CLIENT)
        self._lines: list[bytes] = []
        self._text = ""
        host, port = place(address)
        asked = Request(host=f"{host}:{port}", target="/", subprotocols=["hacp.v0"], extra_headers=list(headers))
        connected.sendall(self._wire.send(asked))
        self._accepted = False
        while not self._accepted:
            assert self._receive(), "the server closed without an answer to the handshake"

    def _receive(self) -> bool:
        data = self.socket.recv(1 << 16)
        self._wire.receive_data(data or None)
        refused, body = None, b""
        for event in self._wire.events():
            if isinstance(event, AcceptConnection):
                assert event.subprotocol == "hacp.v0"
                self._accepted = True
            elif isinstance(event, RejectConnection):
                refused = event
            elif isinstance(event, RejectData):
                body += event.data
            elif isinstance(event, Ping):
                self.socket.sendall(self._wire.send(event.response()))
            elif isinstance(event, CloseConnection):
                self.close_code = int(event.code)
            else:
                assert isinstance(event, TextMessage), f"unforeseen: {event}"
                self._text += event.data
                if event.message_finished:
                    assert "\n" not in self._text, "a document on a WebSocket has no line end"
                    self._lines.append(self._text.encode() + b"\n")
                    self._text = ""
        if refused is not None:
            raise Refused(refused.status_code, list(refused.headers), body)
        return bool(data)

    def sendall(self, data: bytes) -> None:
        """Each line as a message."""
        messages = [Message(data=line.decode()) for line in data.split(b"\n") if line]
        self.socket.sendall(b"".join(self._wire.send(message) for message in messages))

    def readline(self) -> bytes:
        """The next message; b"" when the server has said that it ends the connection."""
        while not self._lines:
            if self.close_code is not None:
                return b""
            if not self._receive():
                raise ConnectionResetError("the server ended the connection without a close frame")
        return self._lines.pop(0)

    def makefile(self, mode: str) -> Messages:
        """Itself: it reads lines already."""
        assert mode == "rb"
        return self

    def settimeout(self, seconds: float | None) -> None:
        """As a socket's."""
        self.socket.settimeout(seconds)

    def close(self) -> None:
        """Without goodbye."""
        self.socket.close()

    def goodbye(self) -> int | None:
        """Close as the protocol asks for; returns the code that the server answered with."""
        self.socket.sendall(self._wire.send(CloseConnection(code=1000)))
        while self.close_code is None and self._receive():
            pass
        self.socket.close()
        return self.close_code


class Piped:
    """`hearth connect` as a child on pipes, with the same methods."""

    def __init__(self, *arguments: str) -> None:
        command = [str(BIN / "hearth"), "connect", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._rest = b""

    def sendall(self, data: bytes) -> None:
        """To its standard input."""
        assert self.process.stdin is not None
        while data:
            data = data[self.process.stdin.write(data) or 0 :]

    def makefile(self, mode: str) -> Piped:
        """Itself, for what it writes."""
        assert mode == "rb"
        return self

    def readline(self) -> bytes:
        """The next line; b"" when it has ended."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], BOUND)[0], "nothing has come"
            part = self.process.stdout.read(1 << 16)
            if not part:
                assert not self._rest, "it ended in the middle of a line"
                return b""
            self._rest += part
        line, end, self._rest = self._rest.partition(b"\n")
        return line + end

    def settimeout(self, seconds: float | None) -> None:
        """There is always BOUND."""

    def close(self) -> int:
        """Close both its ends and wait for it; returns its exit status."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            return self.process.wait(BOUND)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()


class OpenHearthd(Hearthd):
    """A daemon that listens on every carrier, on loopback.

    `secure` says that its WebSocket is wss, and `websocket` is more of that table; `config` is more of hearth.toml.
    """

    def __init__(
        self, directory: Path, papers: Papers, config: str = "", *, secure: bool = False, websocket: str = ""
    ) -> None:
        super().__init__(directory, f"{listeners(papers, secure=secure)}{websocket}\n{POLICY}\n{config}")
        self.papers = papers

    def dial(self, kind: str, proof: str | None = None) -> Any:
        """A connection over this carrier, with this proof of who calls (see support.carriers.USUAL)."""
        what, _, who = (proof or USUAL[kind]).partition(":")
        if kind == "unix":
            return unix_socket(self.socket)
        if kind == "stdio":
            return Piped("--to", f"unix:{self.socket}")
        pair = self.papers.clients[who] if what == "cert" else None
        context = self.papers.client_context(pair, anonymous=pair is None)
        if kind == "tls":
            return tls(self.listening["tls"], context)
        token = TOKENS[who] if what == "token" else None
        return web_socket(self.listening[kind], context if kind == "wss" else None, token=token)

    def address(self, kind: str, proof: str | None = None) -> str:
        """What `hearth --to` takes."""
        if kind == "unix":
            return f"unix:{self.socket}"
        if kind == "stdio":
            return f"ssh://here{self.socket}"
        return self.listening[kind] + self.papers.query(kind, proof)

    def over(self, kind: str, proof: str | None = None) -> Peer:
        """A client over this carrier; closed at the end."""
        return self.peer(self.dial(kind, proof))


POLICY = "\n".join(
    f"[[policy]]\nname = {json.dumps(name)}\nmatch = {match}\n"
    for name, match in [
        *((who, f'{{ token_sha256 = "{from_token(token).token_sha256}" }}') for who, token in TOKENS.items()),
        ("everybody", "{ any = true }"),
    ]
)


def listeners(papers: Papers, *, secure: bool = False, host: str = "127.0.0.1") -> str:
    """[tls] and [websocket], in this order, each on a port that the kernel chooses."""
    files = f'cert = "{papers.server_cert}"\nkey = "{papers.server_key}"\nclient_ca = "{papers.ca}"\n'
    listen = f'listen = "{host}:0"\n'
    return f"[tls]\n{listen}{files}[websocket]\n{listen}{files if secure else ''}"
