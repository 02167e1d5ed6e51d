"""The longest turn of a daemon's loop under the worst documents of `max_document_bytes`, at every door.

A turn is one round of Trio's loop, from one look at what has come in to the next: for as long as it takes, no deadline
is kept and nobody else is served. It is measured inside the daemon, in CPU time of the thread that runs the loop, which
others on the machine change least. Beside it stands what orjson alone takes to parse the same bytes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import orjson
from attrs import frozen

from benchmarks.load import Client
from benchmarks.mcp import Calls, Http, Link, Pipes
from benchmarks.profiling import _await
from benchmarks.report import Row
from benchmarks.servers import RESULTS, ROOT
from benchmarks.websocket import TEXT, WebSocketClient, masked
from hearth._util.python import python_module

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.rates import Effort
    from benchmarks.servers import Server, Servers

GOAL_MS = 20.0
FLOORS = 3.0
"""The goal is the greater of the two: so many milliseconds, or so many times what orjson takes."""
WHOLE = 1 << 20
MANY = 19_900
"""Values, within the bound of 20,000 with what is around them."""
PATIENCE_S = 240.0

Send: TypeAlias = "Callable[[bytes], None]"
"""Sends a document and returns when all of it is answered."""


# --- documents ------------------------------------------------------------------------------------------------------


def filled(item: bytes) -> bytes:
    """An array of the same item, as long as a document may be with what is around it."""
    return b"[" + b",".join([item] * ((WHOLE - 600) // (len(item) + 1))) + b"]"


def many(item: bytes) -> bytes:
    """An array of as many items as a document may have, one MiB at most."""
    return b"[" + b",".join([item] * min(MANY, (WHOLE - 600) // (len(item) + 1))) + b"]"


def members(value: str, prefix: str = "") -> bytes:
    """An object of as many members as a document may have, its names as long as they can be."""
    room = (WHOLE - 800) // MANY - len(value) - 10 - len(prefix.encode())
    names = (f"{prefix if n % 2 else chr(0xE000)}{n * 7919 % MANY:x}{'x' * max(room, 0)}" for n in range(MANY))
    return ("{" + ",".join(f'"{name}":{value}' for name in names) + "}").encode()


NUMBERS = many(b"1.2345678901234567e+17")
ZEROS = b",".join([b"0"] * 60_000)
TEXT_OF_A = b"A" * 900_000
KEYS = members("1e-6", "\U00010000")


def call(method: str, params: bytes) -> bytes:
    """A request."""
    return b'{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}' % (method.encode(), params)


def submit(session: str, tool: str, args: bytes, *, more: bytes = b"") -> bytes:
    """A submission of one step."""
    step = b'{"tool":"%s","args":%s}' % (tool.encode(), args)
    task = b'{"intent":"x","steps":[%s]%s}' % (step, more)
    return call("task.submit", b'{"session_id":"%s","task":%s}' % (session.encode(), task))


def hacp(session: str) -> dict[str, bytes]:
    """Documents of HACP, by what they try."""
    line, read = b'{"line":17,"more":%s}', b'{"bus":1,"addr":%s,"len":1}'
    batch = [submit(session, "gpio.get", line % (b"[" + b",".join([b"1e-6"] * 290) + b"]")) for _ in range(64)]
    return {
        "array of 500,000 zeros": filled(b"0"),
        "array of 350,000 objects": filled(b"{}"),
        "string of 1 MiB in escapes": b'["' + b"\\\\" * ((WHOLE - 10) // 2) + b'"]',
        "refused by the schema: 60,000 zeros": submit(session, "i2c.scan", b'{"bus":1,"include":[%s]}' % ZEROS),
        "refused by the schema: a list": submit(session, "i2c.read", read % many(b"0.1234567")),
        "refused by the schema: an object": submit(session, "i2c.read", read % KEYS),
        "refused by the schema: a text": submit(session, "i2c.write", b'{"bus":1,"addr":72,"data":"%s"}' % TEXT_OF_A),
        "refused for its risk": submit(
            session, "gpio.set", b'{"line":17,"value":1,"more":%s}' % KEYS, more=b',"constraints":{"max_risk_level":0}'
        ),
        "refused by the rate": submit(session, "hw.board", b'{"more":%s}' % KEYS),
        "as many numbers as fit": submit(session, "gpio.get", line % filled(b"1e-7")),
        "accepted: numbers": submit(session, "gpio.get", line % NUMBERS),
        "accepted: names": submit(session, "gpio.get", line % KEYS),
        "accepted once and repeated": submit(session, "gpio.get", line % KEYS, more=b',"idempotency_key":"k"'),
        "batch of 64 submissions": b"[" + b",".join(numbered(batch)) + b"]",
        "a client's name of 1 MiB": call("session.open", b'{"client_name":"%s"}' % (b"x" * (WHOLE - 200))),
        "unknown names": call("session.open", KEYS),
    }


def numbered(requests: list[bytes]) -> Iterator[bytes]:
    """The requests, each with an id of its own."""
    return (request.replace(b'"id":1,', b'"id":%d,' % n, 1) for n, request in enumerate(requests))


def job(payload: bytes, type_: str = "task_submit") -> bytes:
    """A message of HCP."""
    session = b'"none"' if type_ != "task_submit" else b"null"
    head = f'{{"hcp_version":"1.0","message_id":"{uuid4()}","type":"{type_}","timestamp":"...","session_id":'
    return head.encode() + session + b',"payload":' + payload + b"}"


def hcp() -> dict[str, bytes]:
    """Documents of HCP."""
    who = b'{"capability":"bench-climate-survey","caller_id":"c","intent":"x","inputs":%s,"expected_output":%s}'
    patterns = b'{"allOf":[%s]}' % b",".join([b'{"pattern":"^[a-z]{1,9}%d$"}' % n for n in range(1000)])
    return {
        "unknown inputs": job(who % (KEYS, b"{}")),
        "numbers": job(who % (b'{"samples":%s}' % NUMBERS, b"{}")),
        "as many numbers as fit": job(who % (b'{"samples":%s}' % filled(b"1e-7"), b"{}")),
        "required_fields": job(who % (b"{}", b'{"required_fields":%s}' % many(b'"x"'))),
        "a schema of 1,000 patterns": job(who % (b"{}", b'{"schema":%s}' % patterns)),
        "no capability": job(members("0")),
        "a callee's message": job(b'{"outputs":{},"artifacts":%s}' % many(b'{"name":1}'), "task_completed"),
        "abort": job(b'{"more":%s}' % NUMBERS, "abort"),
    }


def mcp() -> dict[str, bytes]:
    """Messages of MCP."""
    called = b'{"name":"%s","arguments":%s}'
    card = orjson.dumps(orjson.dumps({"capabilities": [{}] * 9000}).decode())
    return {
        "refused: a list": call("tools/call", called % (b"gpio_set", b'{"line":%s,"value":1}' % many(b"0"))),
        "refused: an object": call("tools/call", called % (b"gpio_set", b'{"line":%s,"value":1}' % KEYS)),
        "60,000 zeros": call("tools/call", called % (b"gpio_get", b'{"line":17,"more":[%s]}' % ZEROS)),
        "accepted: numbers": call("tools/call", called % (b"gpio_get", b'{"line":17,"more":%s}' % NUMBERS)),
        "accepted: names": call("tools/call", called % (b"gpio_get", b'{"line":17,"more":%s}' % KEYS)),
        "a plan": call("tools/call", called % (b"hacp_plan", b'{"intent":"x","steps":%s}' % many(b"0"))),
        "a card": call("tools/call", called % (b"agentcard_validate", b'{"card_json":%s}' % card)),
    }


# --- doors ----------------------------------------------------------------------------------------------------------


def over_unix(client: Client) -> Send:
    """One document, one line of answer."""

    def send(document: bytes) -> None:
        client.socket.settimeout(PATIENCE_S)
        client.socket.sendall(document + b"\n")
        _received(client.socket, b"\n", 1)

    return send


def over_websocket(client: WebSocketClient) -> Send:
    """One document, one message."""

    def send(document: bytes) -> None:
        client.socket.settimeout(PATIENCE_S)
        client.socket.sendall(masked(TEXT, document))
        client.lines(1)

    return send


def over_mcp(link: Link) -> Send:
    """One message, one answer, whatever it says."""

    def send(document: bytes) -> None:
        link.send(document, "tools/call")
        link.receive()

    return send


def _received(connected: socket.socket, mark: bytes, count: int) -> None:
    while count > 0:
        more = connected.recv(1 << 20)
        if not more:
            raise RuntimeError("the server hung up")
        count -= more.count(mark)


@frozen
class LongestTurn:
    """The longest turn of the loop, and one row for each document."""

    name: str = "longest-turn"
    what: str = "longest turn of the loop"

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        repeats = min(effort.rounds, 3)
        path = RESULTS / f"turns-{os.getpid()}.json"
        options = ["--profile", str(path), "--how", "turns"]
        server = servers.hearthd("turns", options=options, websocket=True, http=True)
        session: str = Client(server.address).call("session.open")["session_id"]
        documents = hacp(session)
        for door, send in (
            ("HACP", over_unix(Client(server.address))),
            ("WebSocket", over_websocket(WebSocketClient(server.over_websocket()))),
        ):
            for title, document in documents.items():
                yield row(server, path, f"{door}, {title}", document, send, repeats)
        client = Client(server.address)
        for title, data, answers in (
            ("documents of one byte", b"1\n" * (1 << 17), 1 << 17),
            ("blank lines", b"\n" * WHOLE + b"1\n", 1),
        ):
            yield row(server, path, f"HACP, {title}", data, _stream(client, answers), repeats, floor=b"[]")
        stranger = servers.hearthd("stranger", options=options, uid=os.geteuid() + 1)
        for door, place in (("HCP", server), ("HCP without a policy entry", stranger)):
            # The first message of all imports what jobs need.
            over_unix(Client(place.address))(job(b"{}", "abort"))
            for title in hcp():
                send = over_unix(Client(place.address))
                # A message_id of its own each time: what has been answered is answered the same.
                found = [row(place, path, f"{door}, {title}", hcp()[title], send, 1) for _ in range(repeats)]
                yield min(found, key=lambda one: one.figure or 0.0)
        for door, link in (("HTTP", Http(server.over_http(), "2025-11-25")), ("stdio", piped(server))):
            Calls(link, "2025-11-25").greet()
            for title, document in mcp().items():
                yield row(server, path, f"MCP over {door}, {title}", document, over_mcp(link), repeats)
            link.close()


def piped(server: Server) -> Link:
    """The bridge over pipes, before this daemon."""
    command = python_module("hearth.cli.mcp_bridge", "--to", f"unix:{server.address}")
    return Pipes(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE))


def _stream(client: Client, answers: int) -> Send:
    def send(data: bytes) -> None:
        client.socket.setblocking(False)
        rest = memoryview(data)
        left = answers
        until = time.monotonic() + PATIENCE_S
        while left > 0 and time.monotonic() < until:
            with suppress(BlockingIOError):
                rest = rest[client.socket.send(rest[: 1 << 16]) :] if rest else rest
            with suppress(BlockingIOError):
                left -= client.socket.recv(1 << 20).count(b"\n")
        client.socket.setblocking(True)

    return send


def row(
    server: Server, path: Path, what: str, document: bytes, send: Send, repeats: int, *, floor: bytes | None = None
) -> Row:
    """Send a document some times; the shortest of the longest turns, since what else a machine does only adds."""
    found = [turn(server, path, document, send) for _ in range(repeats)]
    parsed = min(_parse(document if floor is None else floor) for _ in range(5))
    longest = min(found, key=lambda one: one["cpu"])
    goal = max(GOAL_MS, FLOORS * parsed)
    note = f"orjson alone {parsed:.2f} ms; {len(document):,} bytes; longest step: {longest['step'][0] * 1000:.1f} ms"
    return Row(
        f"longest-turn-{_slug(what)}", f"longest turn: {what}", longest["cpu"], "ms", goal, "at most",
        spread=(longest["cpu"], max(one["cpu"] for one in found)), note=note,
        detail={"turns": found, "floor_ms": parsed, "bytes": len(document)},
    )  # fmt: skip


def turn(server: Server, path: Path, document: bytes, send: Send) -> dict[str, Any]:
    """The longest turn, in milliseconds, from before a document is sent until what it caused is over."""
    path.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGUSR1)
    other = Client(server.address)
    ask = b'{"jsonrpc":"2.0","id":1,"method":"no.such"}\n'
    try:
        _ask(other, ask)
        send(document)
        for _ in range(3):
            _ask(other, ask)
    finally:
        other.close()
    os.kill(server.pid, signal.SIGUSR2)
    _await(path)
    seen: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return seen


def _ask(client: Client, ask: bytes) -> None:
    client.socket.settimeout(PATIENCE_S)
    client.socket.sendall(ask)
    _received(client.socket, b"\n", 1)


def _parse(document: bytes) -> float:
    begun = time.thread_time()
    with suppress(orjson.JSONDecodeError):
        orjson.loads(document)
    return (time.thread_time() - begun) * 1000


def _slug(what: str) -> str:
    return "-".join("".join(char if char.isalnum() else " " for char in what.lower()).split())


TURNS = [LongestTurn()]
