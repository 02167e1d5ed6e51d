"""hearth's HTTP listener over a runtime in this process, and a client that can misbehave.

`served` opens what hearthd opens, on a real port, and ends it in hearthd's order. `Raw` sends exactly what it is told
and reads answers by hand; it shares no code with the libraries beneath the listener.
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager, closing, nullcontext
from typing import NamedTuple

import trio
from support import waiting
from support.users import ordinary_user
from support.world import Listening, listening, running, simulated

from hearth.actors.bridges.http.app import Hosts
from hearth.actors.bridges.http.listener import HttpListener
from hearth.actors.listeners import tcp
from hearth.actors.listeners.accept import ConnectionLimiter
from hearth.config.listen import Endpoint, HttpConfig
from hearth.config.model import PolicyConfig
from hearth.policy.principal import from_token

TOKENS = {"alice": "hearth_alice-of-the-tests", "bob": "hearth_bob-of-the-tests", "eve": "hearth_eve-of-nobody"}
"""Eve's is in no policy."""
POLICY = (
    PolicyConfig(name="alice", match={"token_sha256": from_token(TOKENS["alice"]).token_sha256}),
    PolicyConfig(name="bob", match={"token_sha256": from_token(TOKENS["bob"]).token_sha256}),
    PolicyConfig(name="arm", match={"cert_subject": "CN=bench-client,O=hearth tests"}),
    PolicyConfig(name="us", match={"uid": os.geteuid()}, max_risk_ceiling=3),
)
LISTEN = Endpoint("127.0.0.1", 0)
BOUND = 60
"""Seconds after which any wait is a failure."""

JSON = "application/json"
BOTH = "application/json, text/event-stream"
OLD, NEW = "2025-11-25", "2026-07-28"


class Answer(NamedTuple):
    """A response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def detail(self):
        """What a problem document says."""
        assert self.headers["content-type"] == "application/problem+json", self
        told = self.json
        assert told["status"] == self.status
        assert told["title"]
        return told["detail"]


class Raw:
    """One connection to an HTTP listener."""

    def __init__(self, stream, port):
        self.stream = stream
        self.port = port
        self.rest = b""
        self.reset = False

    @classmethod
    async def connect(cls, port, *, tls=None, as_nobody=False, receive_buffer=None):
        """The kernel notes whose a socket is when it is made."""
        with ordinary_user() if as_nobody else nullcontext():
            connecting = trio.socket.socket()
        if receive_buffer is not None:
            connecting.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
        await connecting.connect(("127.0.0.1", port))
        stream = trio.SocketStream(connecting)
        if tls is not None:
            stream = trio.SSLStream(stream, tls, server_hostname="localhost", https_compatible=True)
            await stream.do_handshake()
        return cls(stream, port)

    def request(self, method, path, body=None, **headers):
        """A request's bytes; a header of None is left out, `_` stands for `-` in names."""
        given = {"Host": f"127.0.0.1:{self.port}"}
        if body is not None:
            given["Content-Length"] = str(len(body))
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + (body or b"")

    async def send(self, data):
        with trio.fail_after(BOUND):
            await self.stream.send_all(data)

    async def ask(self, method, path, body=None, **headers):
        """Send a request and read its answer."""
        await self.send(self.request(method, path, body, **headers))
        return await self.answer(head=method == "HEAD")

    async def more(self):
        """Read on; False at the end."""
        try:
            with trio.fail_after(BOUND):
                data = await self.stream.receive_some(1 << 16)
        except trio.BrokenResourceError:
            self.reset = True
            return False
        self.rest += data
        return bool(data)

    async def head(self):
        """An answer's status and headers; None where there is none before the end."""
        while b"\r\n\r\n" not in self.rest:
            if not await self.more():
                assert not self.rest, self.rest
                return None
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        assert "server" not in headers
        return Answer(int(first.split()[1]), headers, b"")

    async def answer(self, *, head=False):
        """The next answer, whole; None where there is none before the end."""
        answer = await self.head()
        while answer is not None and answer.status == 100:
            answer = await self.head()
        if answer is None:
            return None
        body = b""
        if head or answer.status in (204, 304):
            pass
        elif "content-length" in answer.headers:
            length = int(answer.headers["content-length"])
            while len(self.rest) < length:
                assert await self.more(), f"the body ended after {len(self.rest)} of {length} bytes"
            body, self.rest = self.rest[:length], self.rest[length:]
        elif answer.headers.get("transfer-encoding") == "chunked":
            while (piece := await self.chunk()) is not None:
                body += piece
        else:
            while await self.more():
                pass
            body, self.rest = self.rest, b""
        return answer._replace(body=body)

    async def chunk(self):
        """The next chunk of a body; None after the last."""
        line = await self._line()
        size = int(line, 16)
        while len(self.rest) < size + 2:
            assert await self.more(), "the answer was cut off"
        data, self.rest = self.rest[:size], self.rest[size + 2 :]
        return data if size else None

    async def _line(self):
        while b"\r\n" not in self.rest:
            assert await self.more(), "the answer was cut off"
        line, self.rest = self.rest.split(b"\r\n", 1)
        return line

    async def event(self):
        """The next SSE event with data, as JSON; the stream is chunked, one event or comment a chunk."""
        while True:
            piece = await self.chunk()
            assert piece is not None, "the stream ended"
            data = [line[6:] for line in piece.decode().splitlines() if line.startswith("data: ")]
            if data and data[0]:
                return json.loads("\n".join(data))

    async def ended(self):
        """Read on until the other side closes; what came until then."""
        while await self.more():
            pass
        return self.rest

    async def aclose(self):
        """Gone without a word."""
        await trio.aclose_forcefully(self.stream)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.aclose()


def message(method, params=None, id_=1):
    """A JSON-RPC request's bytes, or a notification's where `id_` is None."""
    document = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    if id_ is not None:
        document["id"] = id_
    return json.dumps(document).encode()


def initialize(name="tests"):
    """The first request of the old era."""
    client = {"name": name, "version": "1"}
    return message("initialize", {"protocolVersion": OLD, "capabilities": {}, "clientInfo": client})


def envelope(client="tests", **params):
    """Params of the new era."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": NEW,
        "io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {**params, "_meta": meta}


def modern(method, name=None, **more):
    """Headers of a request of the new era."""
    found = {"Content_Type": JSON, "Accept": BOTH, "Mcp_Protocol_Version": NEW, "Mcp_Method": method}
    return {**found, **({"Mcp_Name": name} if name else {}), **more}


class HttpServer(Listening):
    """hearthd's HTTP listener over a world on the simulated board."""

    @property
    def listener(self):
        return self.opened[-1]

    @property
    def url(self):
        return self.listener.address

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def connect(self, **how):
        """See Raw.connect."""
        return Raw.connect(self.port, **how)

    async def ask(self, method, path, body=None, *, how=None, **headers):
        """One request on a connection of its own."""
        async with await self.connect(**(how or {})) as raw:
            return await raw.ask(method, path, body, **headers)

    @property
    def unauthenticated(self):
        """How many connections have not proved who they are yet."""
        return len(self.limiter.unknown_peers)

    @property
    def authenticated(self):
        """How many connections belong to a known principal."""
        return self.limiter._inside

    @property
    def open_connections(self):
        """How many connections there are."""
        return len(self.listener._connections)

    async def recorded(self, **like):
        """Wait for an audit record with these members, and return the first."""
        await passes(lambda: self.world.records(**like))
        return self.world.records(**like)[0]


@asynccontextmanager
async def served(directory, http=None, *, policy=POLICY, **limits):
    """The daemon's own HTTP listener over a runtime on the simulated board; ended as the daemon ends it."""
    http = http or HttpConfig(listen=LISTEN)
    world = simulated(directory, default_policy=(), http=http, policy=policy, limits=limits)
    async with running(world), listening(world, directory, HttpServer) as server:
        server.open(world.config)
        yield server


def listener_of(app, *, certificates=None, handshake_timeout=30, send_timeout=30):
    """hearth's HTTP listener on a port of its own, with this ASGI application for all requests."""

    @asynccontextmanager
    async def opened():
        yield app

    return HttpListener(
        tcp.bind("http", LISTEN),
        certificates,
        opened,
        handshake_timeout=handshake_timeout,
        send_timeout=send_timeout,
        report=lambda *_: None,
        count=nullcontext,
        hosts=Hosts((), (), encrypted=certificates is not None),
    )


@asynccontextmanager
async def hosting(app, **how):
    """`listener_of` while it accepts; it ends once its connections have."""
    with closing(listener_of(app, **how)) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept_all, nursery, ConnectionLimiter(100), None)
            yield listener
            await passes(lambda: not listener._connections)
            nursery.cancel_scope.cancel()


def port_of(listener):
    """The port that a listener is bound to."""
    return int(listener.address.rpartition(":")[2])


async def passes(ready):
    """Look again as time passes."""
    with trio.fail_after(BOUND):
        await waiting.passes(ready)


def descriptors():
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))
