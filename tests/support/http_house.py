"""hearth's HTTP listener over a runtime in this process, and a client that can misbehave.

`served` opens what hearthd opens, on a real port, and ends it in hearthd's order. `Raw` sends exactly what it is told
and reads answers by hand; it shares no code with the libraries beneath the listener.
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager, nullcontext
from typing import NamedTuple

import trio
from attrs import evolve
from support.users import ordinary_user

from hearth.actors.build import build_parts
from hearth.actors.daemon.listen import open_listeners
from hearth.actors.listeners import unix
from hearth.actors.listeners.accept import ConnectionLimiter
from hearth.actors.runtime import Runtime
from hearth.config.listen import Endpoint, HttpConfig
from hearth.config.model import AuditConfig, Config, LimitsConfig, PolicyConfig
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
FLUSH = 20
"""What hearthd gives connections to take what is due to them."""

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


class Served:
    """A listener that is open."""

    def __init__(self, runtime, listener, limiter, config):
        self.runtime = runtime
        self.listener = listener
        self.limiter = limiter
        self.config = config
        self.url = listener.address
        self.port = int(listener.address.rpartition(":")[2])
        self.cut = None

    def connect(self, **how):
        """See Raw.connect."""
        return Raw.connect(self.port, **how)

    async def ask(self, method, path, body=None, *, how=None, **headers):
        """One request on a connection of its own."""
        async with await self.connect(**(how or {})) as raw:
            return await raw.ask(method, path, body, **headers)

    @property
    def strangers(self):
        """How many wait at the door."""
        return self.limiter._unknown_peers.total()

    @property
    def inside(self):
        """How many connections have been let in."""
        return self.limiter._inside

    @property
    def visits(self):
        """How many connections there are."""
        return len(self.listener._connections)

    def level(self, line):
        """What a line is driven to, past every actor."""
        return self.runtime.parts.board.drivers["gpio:sim"].level(line)

    async def records(self, **like):
        """The audit records with these members so far."""
        text = self.runtime.parts.journal.settings.path.read_text()
        records = [json.loads(line) for line in text.splitlines() if line]
        return [record for record in records if like.items() <= record.items()]


def configured(folder, http=None, policy=POLICY, **limits):
    """A configuration whose daemon listens on HTTP."""
    section = http or HttpConfig(listen=LISTEN)
    audit = AuditConfig(path=folder / "audit.log")
    return Config(http=section, policy=policy, audit=audit, limits=evolve(LimitsConfig(), **limits))


@asynccontextmanager
async def served(folder, http=None, *, policy=POLICY, **limits):
    """The daemon's own HTTP listener over a runtime on the simulated board; ended as the daemon ends it."""
    config = configured(folder, http, policy, **limits)
    parts = build_parts(config, default_policy=())
    parts.open_records()
    path = folder / "hearth.sock"
    runtime = Runtime(parts)
    listeners = open_listeners(config, parts.policy, unix.bind(path), path, runtime.refused, lambda: runtime)
    limiter = ConnectionLimiter(config.limits.max_connections)
    runtime.listeners = [each.address for each in listeners]
    here = Served(runtime, listeners[-1], limiter, config)
    async with runtime.serve(), trio.open_nursery() as connections:
        try:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(listener.accept_all, connections, limiter, _no_welcome)
                yield here
                accepting.cancel_scope.cancel()
            await runtime.end_sessions()
            for listener in listeners:
                listener.finish()
            connections.cancel_scope.deadline = trio.current_time() + FLUSH
        except BaseException:
            connections.cancel_scope.cancel()
            raise
        finally:
            for listener in listeners:
                listener.close()
    here.cut = connections.cancel_scope.cancelled_caught


async def passes(ready):
    """Look again as time passes."""
    with trio.fail_after(BOUND):
        while not ready():  # noqa: ASYNC110 - what is looked at has no event of its own
            await trio.sleep(0.005)


async def recorded(house, **like):
    """Wait for an audit record with these members, and return the first."""
    with trio.fail_after(BOUND):
        while not (found := await house.records(**like)):  # noqa: ASYNC110 - a file
            await trio.sleep(0.005)
    return found[0]


async def _no_welcome(_carrier, _principal):
    raise AssertionError("what comes over HTTP is served by the listener itself")


def descriptors():
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))
