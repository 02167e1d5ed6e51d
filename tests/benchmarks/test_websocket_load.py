"""The WebSocket load sees every message and nothing else, and no server that fails to answer is given a figure."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from benchmarks import idle, load, subscribers, websocket
from benchmarks.__main__ import MEASURES, QUICK, measured
from benchmarks.servers import Server
from benchmarks.subscribers import Subscribers, count, epoch
from benchmarks.websocket import CLOSE, PING, PONG, TEXT, WebSocketClient, frames, masked
from benchmarks.websocket_floors import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Conversation = Callable[[socket.socket], None]

SIZES = (0, 1, 125, 126, 127, 65535, 65536)
"""On either side of where a frame's header becomes longer."""

NO_TIME = 1e-6
"""Seconds: a round of one exchange."""


def frame(first: int, payload: bytes) -> bytes:
    """What a server sends."""
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 65536:
        return bytes((first, 126)) + size.to_bytes(2) + payload
    return bytes((first, 127)) + size.to_bytes(8) + payload


def unmasked(data: bytes) -> tuple[int, bytes]:
    """What a server reads of a short or medium frame."""
    size, at = data[1] & 127, 2
    if size == 126:
        size, at = int.from_bytes(data[2:4]), 4
    mask, payload = data[at : at + 4], data[at + 4 : at + 4 + size]
    return data[0], bytes(one ^ mask[index % 4] for index, one in enumerate(payload))


@contextmanager
def server(*conversations: Conversation) -> Iterator[str]:
    """A server that shakes hands with each client and then has one of the conversations; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        thread = threading.Thread(target=_converse, args=(listening, conversations))
        thread.start()
        try:
            yield "ws://127.0.0.1:{1}".format(*listening.getsockname())
        finally:
            thread.join(60)
            assert not thread.is_alive()


def _converse(listening: socket.socket, conversations: tuple[Conversation, ...]) -> None:
    connected = [_shaken(listening) for _ in conversations]
    for one, conversation in zip(connected, conversations, strict=True):
        with one:
            conversation(one)


def _shaken(listening: socket.socket) -> socket.socket:
    connected, _ = listening.accept()
    connected.settimeout(60)
    request = b""
    while b"\r\n\r\n" not in request:
        request += connected.recv(1 << 16)
    key = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
    assert key is not None
    assert b"Sec-WebSocket-Protocol: hacp.v0" in request
    accept = base64.b64encode(hashlib.sha1(key[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    connected.sendall(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
    return connected


def until_closed(connected: socket.socket) -> None:
    """Read and say nothing."""
    try:
        while connected.recv(1 << 16):
            pass
    except ConnectionResetError:
        return


def saying(*parts: bytes) -> Conversation:
    """Answer the first request with something, then nothing more."""

    def converse(connected: socket.socket) -> None:
        connected.recv(1 << 16)
        for part in parts:
            connected.sendall(part)
        until_closed(connected)

    return converse


def hanging_up_after(part: bytes) -> Conversation:
    def converse(connected: socket.socket) -> None:
        connected.recv(1 << 16)
        connected.sendall(part)

    return converse


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (load, websocket, subscribers):
        monkeypatch.setattr(module, "PATIENCE", 1)


# --- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_a_message_is_found_whole_whatever_its_length(size: int) -> None:
    whole = frame(TEXT, b"x" * size)
    assert frames(whole + whole[:1]) == ([b"x" * size], whole[:1], [])
    assert frames(whole[:-1]) == ([], whole[:-1], [])


def test_messages_are_counted_wherever_the_stream_is_cut() -> None:
    data = b"".join(frame(TEXT, b"x" * size) for size in (1, 125, 126, 300))
    for cut in range(len(data)):
        first, rest = count(data[:cut], pytest.fail)
        second, rest = count(rest + data[cut:], pytest.fail)
        assert (first + second, rest) == (4, b"")


def test_a_ping_is_no_message_and_is_handed_over() -> None:
    pings: list[bytes] = []
    data = frame(TEXT, b"one") + frame(PING, b"?") + frame(TEXT, b"two")
    assert count(data, pings.append) == (2, b"")
    assert pings == [frame(PING, b"?")]
    assert frames(data) == ([b"one", b"two"], b"", pings)


@pytest.mark.parametrize("size", [0, 5, 125, 126, 400])
def test_a_request_is_masked_and_reads_back(size: int) -> None:
    payload = bytes(index % 251 for index in range(size))
    data = masked(TEXT, payload)
    assert data[1] & 0x80
    assert size == 0 or payload not in data
    assert unmasked(data) == (TEXT, payload)


def test_a_time_stamp_is_read_to_its_millisecond() -> None:
    assert epoch("2026-11-22T05:55:17.529Z") == pytest.approx(1795326917.529, abs=1e-6)


def test_the_floors_events_read_like_those_of_a_task() -> None:
    told = [json.loads(message)["params"] for message in events(2)]
    assert [one["phase"] for one in told] == ["start", "finish", "start", "finish", "task_finish"]
    assert [one["seq"] for one in told] == [1, 2, 3, 4, 5]


# --- round trips ----------------------------------------------------------------------------------------------------


def answer(connected: socket.socket, *before: bytes) -> dict[str, Any]:
    """Take one request and answer it."""
    asked: dict[str, Any] = json.loads(unmasked(connected.recv(1 << 16))[1])
    reply = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"status": "SUCCESS"}}).encode()
    connected.sendall(b"".join(before) + frame(TEXT, reply))
    return asked


@pytest.mark.slow
def test_a_round_trip_is_counted_when_the_answer_is_whole() -> None:
    asked = []

    def converse(connected: socket.socket) -> None:
        while data := connected.recv(1 << 16):
            asked.append(json.loads(unmasked(data)[1])["method"])
            whole = frame(TEXT, b'{"jsonrpc":"2.0","id":1,"result":{"status":"SUCCESS"}}')
            connected.sendall(whole[:9])
            connected.sendall(whole[9:])

    with server(converse) as address:
        driven = websocket.floor(address, 1)
        done = driven.run(0.05)
        driven.close()
    assert len(done.latencies) == len(asked) > 0
    assert set(asked) == {"task.get"}


def test_a_ping_before_an_answer_is_answered_and_not_taken_for_it() -> None:
    pongs = []

    def converse(connected: socket.socket) -> None:
        answer(connected, frame(PING, b"still there?"))
        pongs.append(unmasked(connected.recv(1 << 16)))
        until_closed(connected)

    with server(converse) as address:
        driven = websocket.floor(address, 1)
        done = driven.run(NO_TIME)
        driven.close()
    assert len(done.latencies) == 1
    assert pongs == [(PONG, b"still there?")]


@pytest.mark.proof
@pytest.mark.parametrize("clients", [1, 2])
def test_a_server_that_does_not_answer_has_no_figure(clients: int) -> None:
    with server(*[until_closed] * clients) as address:
        driven = websocket.floor(address, clients)
        with pytest.raises(RuntimeError, match="no complete answer within 1 s"):
            driven.run(0.05)
        driven.close()


@pytest.mark.parametrize("part", [b"", frame(TEXT, b'{"result":1}')[:5]])
@pytest.mark.parametrize("clients", [1, 2])
def test_a_server_that_hangs_up_has_no_figure(part: bytes, clients: int) -> None:
    with server(*[hanging_up_after(part)] * clients) as address:
        driven = websocket.floor(address, clients)
        with pytest.raises((RuntimeError, ConnectionResetError), match=r"hung up|reset"):
            driven.run(0.05)
        driven.close()


def test_an_answer_that_is_an_error_has_no_figure() -> None:
    error = frame(TEXT, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}')
    with server(saying(error)) as address:
        driven = websocket.floor(address, 1)
        with pytest.raises(RuntimeError, match="not a good answer"):
            driven.run(NO_TIME)
        driven.close()


def test_idle_connections_answer_pings_while_others_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "GROUP", 1)
    answers: list[tuple[int, bytes]] = []

    def converse(listening: socket.socket) -> None:
        with _shaken(listening) as first:
            # Else the ping waits in the kernel until the client has acknowledged what came before it.
            first.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first.recv(1 << 16)
            first.sendall(frame(TEXT, b"{}"))
            with _shaken(listening) as second:
                first.sendall(frame(PING, b"there?"))
                second.recv(1 << 16)
                second.sendall(frame(TEXT, b"{}"))
                answers.append(unmasked(first.recv(1 << 16)))
                assert added.wait(60)

    added = threading.Event()
    clients = idle.IdleClients()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        thread = threading.Thread(target=converse, args=(listening,))
        thread.start()
        clients.add("ws://127.0.0.1:{1}".format(*listening.getsockname()), 2)
        added.set()
        thread.join(60)
    clients.close()
    assert answers == [(PONG, b"there?")]
    assert (len(clients), clients.answered) == (2, 1)


def test_a_server_that_closes_the_websocket_has_no_figure() -> None:
    with server(saying(frame(CLOSE, b"\x03\xe9"))) as address:
        driven = websocket.floor(address, 1)
        with pytest.raises(RuntimeError, match="not a message and not a ping"):
            driven.run(0.05)
        driven.close()


def test_a_refused_handshake_has_no_figure() -> None:
    def refuse() -> None:
        connected, _ = listening.accept()
        with connected:
            connected.recv(1 << 16)
            connected.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(RuntimeError, match=r"refused a handshake.*401"):
            WebSocketClient("ws://127.0.0.1:{1}".format(*listening.getsockname()))
        thread.join(60)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that shakes hands with everybody and says nothing more."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    stack.enter_context(_shaken(listening))

        thread = threading.Thread(target=serve)
        thread.start()
        yield "ws://127.0.0.1:{1}".format(*listening.getsockname())
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.proof
@pytest.mark.parametrize("name", ["ws-get-1", "fanout-100", "fanout-stalled"])
def test_a_daemon_that_does_not_answer_makes_a_row_that_failed(name: str, silent: str) -> None:
    (row,) = measured(MEASURES[name], cast("Any", OneServer(silent)), QUICK)
    assert (row.name, row.figure) == (name, None)
    assert row.note.startswith("RuntimeError: ")
    assert "within 1 s" in row.note


@pytest.mark.parametrize("name", ["ws-get-16", "fanout-1000", "fanout-stalled"])
def test_a_daemon_that_does_not_listen_makes_a_row_that_failed(name: str) -> None:
    (row,) = measured(MEASURES[name], cast("Any", OneServer("")), QUICK)
    assert (row.name, row.figure) == (name, None)
    assert row.note == "RuntimeError: the server did not say that it listens on a ws:// address"


class OneServer:
    """The same server, whichever is asked for."""

    def __init__(self, websocket: str) -> None:
        self._server = Server("", cast("Any", None), websocket)

    def floor(self, _name: str) -> Server:
        return self._server

    def hearthd(self, _name: str, **_: Any) -> Server:
        return self._server


# --- fan-out --------------------------------------------------------------------------------------------------------


STEPS = subscribers.LEAST_STEPS
"""What the shortest round asks for."""


def task_events(steps: int) -> bytes:
    return b"".join(frame(TEXT, message.encode()) for message in events(steps))


def watching(address: str) -> Subscribers:
    """Two subscribers and somebody who makes things happen, who connects first."""
    actor = WebSocketClient(address)
    clients = [WebSocketClient(address) for _ in range(2)]
    return Subscribers(clients, actor, lambda steps: actor.request("happen", {"steps": steps}))


@pytest.fixture
def telling() -> Callable[[bytes, bytes], Iterator[str]]:
    """A server that tells its two subscribers something when it is asked to."""

    @contextmanager
    def make(first: bytes, second: bytes, *, leave: bool = False) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(60)
            done = threading.Event()

            def serve() -> None:
                actor, *told = [_shaken(listening) for _ in range(3)]
                with actor, told[0], told[1]:
                    actor.recv(1 << 16)
                    for one, data in zip(told, (first, second), strict=True):
                        one.sendall(data[:500])
                        one.sendall(data[500:])
                    actor.sendall(frame(TEXT, b'{"jsonrpc":"2.0","id":1,"result":{}}'))
                    assert leave or done.wait(60)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield "ws://127.0.0.1:{1}".format(*listening.getsockname())
            finally:
                done.set()
                thread.join(60)
                assert not thread.is_alive()

    return make


def test_every_message_to_every_subscriber_is_counted_once_with_its_lag(telling: Any) -> None:
    with telling(task_events(STEPS), task_events(STEPS)) as address:
        everybody = watching(address)
        done = everybody.run(NO_TIME)
        everybody.close()
    assert len(done.latencies) == 2 * (2 * STEPS + 1)
    assert all(0 <= lag < 10 for lag in done.latencies)
    assert done.rate > 0


@pytest.mark.proof
@pytest.mark.parametrize("missing", [1, 60])
def test_a_subscriber_who_is_not_told_everything_is_no_figure(telling: Any, missing: int) -> None:
    whole = task_events(STEPS)
    with telling(whole, whole[:-missing]) as address:
        everybody = watching(address)
        with pytest.raises(RuntimeError, match="1 subscribers were not told of everything within 1 s"):
            everybody.run(NO_TIME)
        everybody.close()


def test_a_subscriber_who_is_cut_off_is_no_figure(telling: Any) -> None:
    with telling(task_events(STEPS), task_events(STEPS - 1), leave=True) as address:
        everybody = watching(address)
        with pytest.raises((RuntimeError, ConnectionResetError), match=r"hung up|reset"):
            everybody.run(NO_TIME)
        everybody.close()


def test_other_events_than_those_expected_are_no_figure(telling: Any) -> None:
    wrong = task_events(STEPS).replace(b'"SUCCESS"', b'"FAILED!"')
    with telling(wrong, wrong) as address:
        everybody = watching(address)
        with pytest.raises(RuntimeError, match="not the events of one good task"):
            everybody.run(NO_TIME)
        everybody.close()
