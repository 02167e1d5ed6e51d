"""How long a crowd of one principal delays its own halt and its own deadman: the harder case, since it shares a turn.

The crowd is a process of its own: SESSIONS connections, each with a session, each of which always has more requests in
the socket than the daemon has read. A watch on the driven line tells when it fell, in CLOCK_MONOTONIC. The floor is the
same without the crowd, in the same run.
"""

from __future__ import annotations

import re
import selectors
import subprocess
import sys
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from attrs import frozen

from benchmarks.load import RECEIVE_SIZE, Client, encode
from benchmarks.report import Row
from benchmarks.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

SESSIONS = 64
HEARTBEAT_MS = 500
GOAL_MS = 100.0
OPEN, BUSY = b"open", b"busy"
AHEAD = 1 << 16
"""Bytes of requests that each connection sends at once."""
FLOODS: dict[str, tuple[str, dict[str, Any]]] = {
    "short requests": ("task.get", {"task_id": "0"}),
    "tasks": ("task.submit", {"task": {"intent": "x", "steps": [{"tool": "gpio.get", "args": {"line": 5}}]}}),
    "long answers": ("tool.list", {}),
}
"""By name, what each session asks for, again and again."""


@frozen
class Fairness:
    """The delay of a halt and of a deadman beside a crowd."""

    name: str
    what: str

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        server = servers.hearthd(self.name)
        times = max(3, effort.rounds)
        for title, act in (("halt", halt), ("deadman", deadman)):
            floor = median(_delay(server.address, act, None) for _ in range(times))
            for flood in FLOODS:
                found = [_delay(server.address, act, flood) for _ in range(times)]
                middle = median(found)
                yield Row(
                    f"{self.name}-{title}-{flood.replace(' ', '-')}",
                    f"delay of a {title} beside {SESSIONS} pipelining sessions of its principal: {flood}",
                    max(found),
                    "ms",
                    floor + GOAL_MS,
                    "at most",
                    spread=(min(found), max(found)),
                    note=f"median {middle:.1f} ms, {middle / floor:.1f} x without the crowd ({floor:.1f} ms)",
                    detail={"ms": found, "alone_ms": floor},
                )


@contextmanager
def crowded(address: str, flood: str | None) -> Iterator[Callable[[], None]]:
    """Keep SESSIONS sessions open while the body runs, and busy from when it calls what it is given."""
    if flood is None:
        yield lambda: None
        return
    command = [sys.executable, "-m", "benchmarks.fairness", address, flood]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def told(what: bytes) -> None:
            if stdout.readline().strip() != what:
                raise RuntimeError(f"the crowd is not {what.decode()}")

        def begin() -> None:
            stdin.write(b"go\n")
            stdin.flush()
            told(BUSY)

        try:
            told(OPEN)
            yield begin
        finally:
            process.kill()


def halt(address: str) -> int:
    """Halt by one line over a connection of its own; return the time at which that was asked for.

    Without a session: the crowd may have spent the memory that one takes.
    """
    other = Client(address)
    asked = time.monotonic_ns()
    other.call("halt", reason="a measurement")
    other.close()
    return asked


def deadman(_address: str) -> int:
    """Send nothing more; return the time at which the deadman is due."""
    return time.monotonic_ns() + HEARTBEAT_MS * 1_000_000


def _delay(address: str, act: Callable[[str], int], flood: str | None) -> float:
    """Drive a line, begin the flood, act; return the milliseconds until the line falls from when it should."""
    watcher, client = Client(address), Client(address)
    try:
        watching = watcher.call("session.open", on_disconnect="close")["session_id"]
        watch = {"line": "LED", "edge": "falling", "count": 1, "timeout_ms": 60_000}
        _submit(watcher, watching, "gpio.watch", watch, subscribe=True)
        with crowded(address, flood) as begin:
            opening = {"heartbeat_ms": HEARTBEAT_MS} if act is deadman else {}
            session = client.call("session.open", on_disconnect="close", **opening)["session_id"]
            _ended(client, session, _submit(client, session, "gpio.set", {"line": "LED", "value": 1}))
            if act is deadman:
                due = act(address)
                begin()
            else:
                begin()
                due = act(address)
            fell_at = _edge(watcher)
        if act is halt:
            while client.call("halt.status", session_id=session)["stopping"]:
                time.sleep(0.01)  # the stop sequence goes on after the line
            client.call("halt.reset", session_id=session)
        return (fell_at - due) / 1e6
    finally:
        watcher.close()
        client.close()


def _edge(watcher: Client) -> int:
    """Return the time of the edge, from the events of the task that watches."""
    received = b""
    while (found := re.search(rb'"timestamp_ns":(\d+)', received)) is None:
        received += watcher.socket.recv(RECEIVE_SIZE)
    return int(found[1])


def _submit(client: Client, session: str, tool: str, args: dict[str, Any], **more: Any) -> str:
    task = {"intent": "fairness", "steps": [{"tool": tool, "args": args}]}
    task_id: str = client.call("task.submit", session_id=session, task=task, **more)["task_id"]
    return task_id


def _ended(client: Client, session: str, task_id: str) -> Any:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        shown = client.call("task.get", session_id=session, task_id=task_id)
        if shown["status"] not in ("QUEUED", "RUNNING"):
            return shown
    raise RuntimeError(f"task {task_id} did not end")


def crowd(address: str, flood: str) -> None:
    """Keep the sessions busy until killed."""
    method, params = FLOODS[flood]
    waiting = selectors.DefaultSelector()
    for _ in range(SESSIONS):
        client = Client(address)
        # What its tasks have left in memory goes with it: the next crowd has the memory of its principal to itself.
        session = client.call("session.open", on_disconnect="close")["session_id"]
        line = encode(method, {"session_id": session, **params})
        data = line * (AHEAD // len(line))
        client.socket.setblocking(False)
        waiting.register(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, [data, b""])
    print(OPEN.decode(), flush=True)
    sys.stdin.readline()
    print(BUSY.decode(), flush=True)
    while True:
        for key, events in waiting.select():
            connected, state = key.fileobj, key.data
            assert not isinstance(connected, int)
            if events & selectors.EVENT_READ:
                connected.recv(1 << 20)  # type: ignore[attr-defined]
            if events & selectors.EVENT_WRITE:
                rest = state[1] or state[0]
                state[1] = rest[connected.send(rest) :]  # type: ignore[attr-defined]


FAIRNESS = [Fairness("fairness", "delay of a halt and a deadman beside a crowd of one principal")]

if __name__ == "__main__":
    crowd(*sys.argv[1:])
