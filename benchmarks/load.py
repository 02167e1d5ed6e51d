"""The load: clients in closed loops over raw sockets, as cheap as Python allows and the same for every server.

Each client sends a request that was encoded beforehand and sends the next one when the answer is complete: when what
came ends in a line feed and contains the mark of a complete answer. Nothing is parsed in between; the last answer of
every round is, and must be what it should.
"""

from __future__ import annotations

import gc
import itertools
import json
import select
import socket
import struct
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RECEIVE_SIZE = 1 << 18
PATIENCE = 20
"""Seconds without an answer after which a measurement is given up."""
AT_ONCE = 50
"""Requests of one connection under way in preparations: below the server's bounds on them and on a bus's queue."""
_LF = 10
_ids = itertools.count(1)


class Client:
    """One connection, with the slow, certain way to call a method, for preparations."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The kernel's own time limit: Python's would add a system call to every receive.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE, 0))
        try:
            self.socket.connect(address)
        except OSError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def request(self, method: str, params: dict[str, Any]) -> bytes:
        """A request as it goes over this connection."""
        return encode(method, params)

    def documents(self, data: bytes) -> list[bytes]:
        """The documents in what came."""
        return data.splitlines()

    def whole(self, mark: bytes) -> Callable[[bytes], bool]:
        """What says of what came, which is never nothing, whether it is a complete answer: one that contains `mark`."""
        return lambda data: data[-1] == _LF and mark in data

    def call(self, method: str, **params: Any) -> Any:
        """Call a method; returns its result. Raises RuntimeError for an error."""
        return _result(self.exchange(self.request(method, params), b"\n").splitlines()[0])

    def call_many(self, requests: Sequence[bytes]) -> list[Any]:
        """Send many requests, a few at a time; returns their results. Raises RuntimeError for an error."""
        results: list[Any] = []
        for start in range(0, len(requests), AT_ONCE):
            some = requests[start : start + AT_ONCE]
            self.socket.sendall(b"".join(some))
            results += map(_result, self.lines(len(some)))
        return results

    def lines(self, count: int) -> list[bytes]:
        """Receive so many lines."""
        received = b""
        while received.count(b"\n") < count:
            more = self.socket.recv(RECEIVE_SIZE)
            if not more:
                raise RuntimeError(f"the server hung up after {received!r}")
            received += more
        return received.splitlines()

    def exchange(self, request: bytes, mark: bytes) -> bytes:
        """Send a request and return the whole answer, the first bytes in which `mark` is complete."""
        self.socket.sendall(request)
        answer = b""
        while mark not in answer or answer[-1] != _LF:
            try:
                received = self.socket.recv(RECEIVE_SIZE)
            except BlockingIOError:
                raise RuntimeError(f"{request[:200]!r} had only {answer!r} after {PATIENCE} s") from None
            if not received or b'"error":{"code"' in received:
                raise RuntimeError(f"{request[:200]!r} was answered {(answer + received)!r}")
            answer += received
        return answer


def round_trip_ms(client: Client, session_id: str, times: int = 200) -> float:
    """Milliseconds of a request that needs its session and has no effect, the median of many."""
    found = []
    for _ in range(times):
        began = time.perf_counter_ns()
        client.call("halt.status", session_id=session_id)
        found.append(time.perf_counter_ns() - began)
    return median(found) / 1e6


ClientT = TypeVar("ClientT", bound=Client)


@contextmanager
def to_keep(*clients: Client) -> Iterator[None]:
    """The clients stay open if the body ends well, and are closed if it does not."""
    try:
        yield
    except BaseException:
        for client in clients:
            client.close()
        raise


def connected(connect: Callable[[str], ClientT], address: str, count: int) -> list[ClientT]:
    """So many connections, or none."""
    clients: list[ClientT] = []
    try:
        for _ in range(count):
            clients.append(connect(address))  # noqa: PERF401 - what there is must be closed if the next one fails
    except BaseException:
        for client in clients:
            client.close()
        raise
    return clients


def encode(method: str, params: dict[str, Any]) -> bytes:
    """A request with an id of its own, as one line."""
    return json.dumps({"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": params}).encode() + b"\n"


def _result(line: bytes) -> Any:
    answer = json.loads(line)
    if "result" not in answer:
        raise RuntimeError(f"expected a result, got {answer}")
    return answer["result"]


@frozen
class Round:
    """What one round saw."""

    seconds: float
    latencies: list[float]
    """Seconds, of the exchanges that were complete in time."""

    @property
    def rate(self) -> float:
        """Complete exchanges per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """A latency in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@define
class Load:
    """Clients of one server, each with the requests that it sends in turn; `mark` completes an answer."""

    clients: Sequence[Client]
    requests: Sequence[Sequence[bytes]]
    mark: bytes
    _turns: list[Iterator[bytes]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._turns = [itertools.cycle(mine) for mine in self.requests]

    def run(self, seconds: float) -> Round:
        """Keep every client busy for so long, one exchange at a time each."""
        gc.collect()
        gc.disable()
        try:
            return self._one(seconds) if len(self.clients) == 1 else self._many(seconds)
        except BlockingIOError:
            raise RuntimeError(f"no complete answer within {PATIENCE} s") from None
        finally:
            gc.enable()

    def _one(self, seconds: float) -> Round:
        connected, turn, whole = self.clients[0].socket, self._turns[0], self.clients[0].whole(self.mark)
        send, recv, clock = connected.send, connected.recv, time.perf_counter
        latencies: list[float] = []
        data = b""
        begun = now = clock()
        until = begun + seconds
        while now < until:
            send(next(turn))
            data = more = recv(RECEIVE_SIZE)
            while not more or not whole(data):
                if not more:
                    raise RuntimeError(f"the server hung up after {data!r}")
                more = recv(RECEIVE_SIZE)
                data += more
            then = clock()
            latencies.append(then - now)
            now = then
        self._check(data)
        return Round(now - begun, latencies)

    def _many(self, seconds: float) -> Round:
        clock = time.perf_counter
        wholes = {client.socket.fileno(): client.whole(self.mark) for client in self.clients}
        sends = {client.socket.fileno(): client.socket.send for client in self.clients}
        recvs = {client.socket.fileno(): client.socket.recv for client in self.clients}
        turns = dict(zip(sends, self._turns, strict=True))
        sent: dict[int, float] = {}
        parts = dict.fromkeys(sends, b"")
        latencies: list[float] = []
        with select.epoll() as epoll:
            for number in sends:
                epoll.register(number, select.EPOLLIN)
            begun = last = clock()
            until = begun + seconds
            for number, send in sends.items():
                sent[number] = clock()
                send(next(turns[number]))
            busy = len(sends)
            data = b""
            while busy:
                ready = epoll.poll(PATIENCE, 64)
                if not ready:
                    raise RuntimeError(f"{busy} clients got no complete answer within {PATIENCE} s")
                for number, _ in ready:
                    more = recvs[number](RECEIVE_SIZE)
                    if not more:
                        raise RuntimeError(f"the server hung up after {parts[number]!r}")
                    data = parts[number] + more
                    if not wholes[number](data):
                        parts[number] = data
                        continue
                    now = clock()
                    if parts[number]:
                        parts[number] = b""
                    if now < until or not latencies:
                        last = now
                        latencies.append(now - sent[number])
                        sent[number] = now
                        sends[number](next(turns[number]))
                    else:
                        busy -= 1
        self._check(data)
        # A round in which nothing was complete in time lasts until something is.
        return Round(max(seconds, last - begun), latencies)

    def _check(self, data: bytes) -> None:
        """The last answer must be a good one, to its end."""
        for line in self.clients[0].documents(data):
            document = json.loads(line)
            end = document.get("params", document.get("result", {}))
            if "error" in document or end.get("status") == "FAILED":
                raise RuntimeError(f"not a good answer: {line!r}")

    def close(self) -> None:
        """Hang up."""
        for client in self.clients:
            client.close()


TASK_END = b'"task_finish"'
ANSWER = b'"result"'
SWITCHED = [line for line in range(32) if line not in (23, 24, 25)]
"""The lines of the simulated board that a task may drive at any rate: not its pump, its door and its e-stop button."""


def answers(address: str, count: int, connect: Callable[[str], Client] = Client) -> Load:
    """Clients that ask for a task that has finished, each in a session of its own."""
    clients = connected(connect, address, count)
    with to_keep(*clients):
        return Load(clients, [[_asking(client)] for client in clients], ANSWER)


def _asking(client: Client) -> bytes:
    """Have a task of one step done; returns the request for it."""
    session_id = _open(client)
    asked = client.request("task.submit", _task(session_id, "gpio.get", {"line": 17}))
    submitted = client.exchange(asked, TASK_END)
    request = {"session_id": session_id, "task_id": _result(submitted.splitlines()[0])["task_id"]}
    if client.call("task.get", **request)["status"] != "SUCCESS":
        raise RuntimeError(f"the task did not succeed: {client.call('task.get', **request)}")
    return client.request("task.get", request)


def tasks(address: str, count: int) -> Load:
    """Clients that run whole tasks, reading and driving a line by turns, each in a session of its own."""
    clients = [Client(address) for _ in range(count)]
    requests = []
    for index, client in enumerate(clients):
        session_id = _open(client)
        line = SWITCHED[index % len(SWITCHED)]
        mine = [
            _submit(session_id, "gpio.set", {"line": line, "value": 1}),
            _submit(session_id, "gpio.get", {"line": line}),
            _submit(session_id, "gpio.set", {"line": line, "value": 0}),
            _submit(session_id, "gpio.get", {"line": line}),
        ]
        _check_whole(client.exchange(mine[0], TASK_END))
        requests.append(mine)
    return Load(clients, requests, TASK_END)


def _open(client: Client) -> str:
    """Open a session that ends with its connection, so that measures leave nothing to one another."""
    session_id: str = client.call("session.open", client_name="bench", on_disconnect="close")["session_id"]
    return session_id


def floor(address: str, count: int, connect: Callable[[str], Client] = Client) -> Load:
    """Clients of a floor: they send it what `answers` sends to hearth."""
    params = {"session_id": "01KA6XJ5R2V8M3Q9T7Z4N0B1CD", "task_id": "01KA6XJ5R2V8M3Q9T7Z4N0B1CE"}
    clients = connected(connect, address, count)
    return Load(clients, [[client.request("task.get", params)] for client in clients], ANSWER)


def _submit(session_id: str, tool: str, args: dict[str, Any]) -> bytes:
    return encode("task.submit", _task(session_id, tool, args))


def _task(session_id: str, tool: str, args: dict[str, Any]) -> dict[str, Any]:
    task = {"intent": "benchmark", "steps": [{"tool": tool, "args": args}]}
    return {"session_id": session_id, "task": task, "subscribe": True}


def _check_whole(answer: bytes) -> None:
    """A whole task is four lines: the reply, then start, finish and task_finish."""
    reply, *events = map(json.loads, answer.splitlines())
    phases = [event["params"]["phase"] for event in events]
    if "result" not in reply or phases != ["start", "finish", "task_finish"]:
        raise RuntimeError(f"not a whole task: {answer!r}")
    if events[-1]["params"]["status"] != "SUCCESS":
        raise RuntimeError(f"the task did not succeed: {answer!r}")
