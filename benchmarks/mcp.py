"""MCP's `tools/call` of `gpio_set` through hearth's bridge, against a bare SDK server over the same transport.

Both sides are driven by the same closed loop, which sends what was encoded beforehand and looks into answers no more
than it must: a client of the SDK's own would take longer than what is measured. Both eras of the protocol, over stdio
(hearth's side is two processes: the bridge, and the daemon behind its socket) and over streamable HTTP.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from attrs import define, field, frozen

from benchmarks.load import PATIENCE, RECEIVE_SIZE, Round
from benchmarks.rates import Side, by_turns, ratios
from benchmarks.report import Row
from benchmarks.servers import ENDED_WITHIN, ROOT, Server
from hearth._util.python import python_module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

Era: TypeAlias = Literal["2025-11-25", "2026-07-28"]

CLIENT = {"name": "benchmarks", "version": "1"}
CALL = {"name": "gpio_set", "arguments": {"line": 17, "value": 1}}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
GOAL, HTTP_GOAL = 1.25, 1.15


class Link(Protocol):
    """A way to an MCP server."""

    def send(self, document: bytes, method: str) -> None:
        """Send a message."""

    def receive(self) -> bytes:
        """The next whole answer, as its JSON with or without what is around it. Raises RuntimeError."""
        ...

    def close(self) -> None:
        """Hang up."""


class Pipes:
    """A server's stdin and stdout."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)

    def send(self, document: bytes, method: str) -> None:
        """See Link."""
        del method
        os.write(self._to, document + b"\n")

    def receive(self) -> bytes:
        """See Link."""
        data = b""
        while not data.endswith(b"\n"):
            if not self._poll.poll(PATIENCE * 1000):
                raise RuntimeError(f"no complete answer within {PATIENCE} s; there is {data!r}")
            more = os.read(self._from, RECEIVE_SIZE)
            if not more:
                raise RuntimeError(f"the server has ended after {data!r}")
            data += more
        return data

    def close(self) -> None:
        """See Link: the process ends with its stdin, and is waited for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(ENDED_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Http:
    """One connection to a streamable HTTP endpoint, kept for as long as the server keeps it."""

    def __init__(self, address: str, era: Era) -> None:
        host, _, port = address.removeprefix("http://").partition(":")
        self._place = (host, int(port))
        self._socket = self._connected()
        self._era = era
        self._start = (
            f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: {era}\r\n"
        )
        self._heads: dict[str, bytes] = {}
        self._session = ""

    def _connected(self) -> socket.socket:
        connected = socket.create_connection(self._place)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE, 0))
        return connected

    def send(self, document: bytes, method: str) -> None:
        """See Link."""
        head = self._heads.get(method)
        if head is None:
            more = f"Mcp-Session-Id: {self._session}\r\n" if self._session else ""
            if self._era == "2026-07-28":
                more = f"Mcp-Method: {method}\r\n" + ("Mcp-Name: gpio_set\r\n" if method == "tools/call" else "")
            head = self._heads[method] = f"{self._start}{more}Content-Length: ".encode()
        if self._has_ended():
            self._socket.close()
            self._socket = self._connected()
        self._socket.sendall(b"%s%d\r\n\r\n%s" % (head, len(document), document))

    def _has_ended(self) -> bool:
        """Whether the server has closed the connection meanwhile, as it does after a time without a request."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def receive(self) -> bytes:
        """See Link."""
        data = b""
        while not _is_whole(data):
            try:
                more = self._socket.recv(RECEIVE_SIZE)
            except BlockingIOError:
                raise RuntimeError(f"no complete answer within {PATIENCE} s; there is {data!r}") from None
            if not more:
                raise RuntimeError(f"the server hung up after {data!r}")
            data += more
        if not self._session:
            # The first answer of the old era names the session that is to be named from then on.
            lines = data.partition(b"\r\n\r\n")[0].decode().splitlines()
            found = [line.partition(": ")[2] for line in lines if line.lower().startswith("mcp-session-id: ")]
            self._session = found[0] if found else ""
        if b"onnection: close\r\n" in data[: data.index(b"\r\n\r\n") + 2]:
            self._socket.close()
            self._socket = self._connected()
        return data

    def close(self) -> None:
        """See Link."""
        self._socket.close()


def _is_whole(data: bytes) -> bool:
    head, ended, body = data.partition(b"\r\n\r\n")
    if not ended:
        return False
    at = head.lower().find(b"content-length: ")
    if at < 0:
        return head.startswith(b"HTTP/1.1 202") or body.endswith(b"0\r\n\r\n")
    return len(body) >= int(head[at + 16 :].split(b"\r\n", 1)[0])


@define
class Calls:
    """One client in a closed loop of calls. It is used like a `Load`."""

    link: Link
    era: Era
    _number: int = 0
    _before: bytes = field(init=False)
    _after: bytes = field(init=False)

    def __attrs_post_init__(self) -> None:
        params: dict[str, Any] = {**CALL, "_meta": ENVELOPE} if self.era == "2026-07-28" else CALL
        call = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": params}, separators=(",", ":"))
        self._before, found, self._after = call.encode().partition(b'"id":0,')
        assert found

    def greet(self) -> None:
        """Shake hands, where the era has that. Raises RuntimeError."""
        if self.era == "2025-11-25":
            params = {"protocolVersion": self.era, "capabilities": {}, "clientInfo": CLIENT}
            document = {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params}
            self.link.send(json.dumps(document).encode(), "initialize")
            answer = self.link.receive()
            if b'"protocolVersion":"2025-11-25"' not in answer:
                raise RuntimeError(f"initialize was answered {answer!r}")
            self.link.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', "notifications/initialized")
            if isinstance(self.link, Http):
                self.link.receive()

    def run(self, seconds: float) -> Round:
        """Call for so long, one call at a time."""
        send, receive, clock = self.link.send, self.link.receive, time.perf_counter
        latencies: list[float] = []
        answer, number = b"", self._number
        gc.collect()
        gc.disable()
        try:
            begun = now = clock()
            until = begun + seconds
            while now < until:
                number += 1
                send(b'%s"id":%d,%s' % (self._before, number, self._after), "tools/call")
                answer = receive()
                then = clock()
                latencies.append(then - now)
                now = then
        finally:
            gc.enable()
        self._number = number
        expected = (b'"id":%d' % number, b'"structuredContent":{', b'"line":17', b'"value":1')
        if b'"isError":true' in answer or not all(part in answer for part in expected):
            raise RuntimeError(f"a call was answered {answer!r}")
        return Round(now - begun, latencies)

    def close(self) -> None:
        """Hang up."""
        self.link.close()


@frozen
class Bridge(Server):
    """The process that speaks MCP, and the daemon behind it."""

    daemon: Server | None = None

    def cpu_seconds(self) -> float:
        """Of both."""
        return super().cpu_seconds() + (0 if self.daemon is None else self.daemon.cpu_seconds())


@frozen
class McpCall:
    """The time of a call, over that of the bare server's."""

    name: str
    what: str
    era: Era
    over: Literal["stdio", "http"]

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        with ExitStack() as stack:
            bare, bridged = (self._side(servers, stack, hearth=hearth) for hearth in (False, True))
            stack.pop_all()  # from here on the loads are closed by whoever runs them
        others = by_turns([bare, bridged], effort)
        found = ratios(bare, bridged)
        yield Row(
            self.name,
            self.what,
            median(found),
            "x bare",
            HTTP_GOAL if self.over == "http" else GOAL,
            "at most",
            spread=(min(found), max(found)),
            others=others,
            note=f"{1e6 / bridged.rate:,.0f} us; bare {1e6 / bare.rate:,.0f} us; "
            f"CPU {bridged.cpu_us:,.0f} us, bare {bare.cpu_us:,.0f} us",
            detail={
                "ratios": found,
                "p50_us": bridged.percentile_us(50),
                "p99_us": bridged.percentile_us(99),
                "bare_p50_us": bare.percentile_us(50),
                "bare_p99_us": bare.percentile_us(99),
                "cpu_us": bridged.cpu_us,
                "bare_cpu_us": bare.cpu_us,
            },
        )

    def _side(self, servers: Servers, stack: ExitStack, *, hearth: bool) -> Side:
        server, link = (self._stdio if self.over == "stdio" else self._http)(servers, hearth=hearth)
        calls = Calls(link, self.era)
        stack.callback(calls.close)
        calls.greet()
        return Side(server, calls)

    def _stdio(self, servers: Servers, *, hearth: bool) -> tuple[Server, Link]:
        daemon = servers.hearthd() if hearth else None
        command = (
            [sys.executable, "-m", "benchmarks.mcp_floors", "stdio"]
            if daemon is None
            else python_module("hearth.cli.mcp_bridge", "--to", f"unix:{daemon.address}")
        )
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return Bridge("", process, daemon=daemon), Pipes(process)

    def _http(self, servers: Servers, *, hearth: bool) -> tuple[Server, Link]:
        server = servers.hearthd("os-http", http=True) if hearth else servers.floor("mcp-http")
        return server, Http(server.over_http(), self.era)


MCP = [
    McpCall("mcp-stdio-old", "tools/call over stdio, 2025-11-25", "2025-11-25", "stdio"),
    McpCall("mcp-stdio-new", "tools/call over stdio, 2026-07-28", "2026-07-28", "stdio"),
    McpCall("mcp-http-old", "tools/call over HTTP, 2025-11-25", "2025-11-25", "http"),
    McpCall("mcp-http-new", "tools/call over HTTP, 2026-07-28", "2026-07-28", "http"),
]
