"""What idle sessions, idle connections and live tasks cost: anonymous memory of a fresh daemon, before and after many.

A tenth as many come first, so that what grows once is not counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import frozen

from benchmarks.load import PATIENCE, Client, encode
from benchmarks.report import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

    Add: TypeAlias = Callable[[str, list[Client], int], None]

TASKS_PER_SESSION = 50
LINES = 32


@frozen
class Memory:
    """KiB of one more of something; `add` makes a number of them and is sure that they are there."""

    name: str
    what: str
    goal: float | None
    add: Add

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        server = servers.hearthd(self.name)
        clients = [Client(server.address)]
        try:
            self.add(server.address, clients, max(TASKS_PER_SESSION, effort.many // 10))
            before = server.memory()
            self.add(server.address, clients, effort.many)
            grown = server.memory() - before
        finally:
            for client in clients:
                client.close()
        yield Row(
            self.name,
            self.what,
            grown / effort.many / 1024,
            "KiB",
            self.goal,
            "at most",
            note=f"{effort.many:,} of them; the daemon before: {before / 2**20:.0f} MiB",
        )


def _sessions(_address: str, clients: list[Client], count: int) -> None:
    clients[0].call_many([encode("session.open", {"client_name": "idle"}) for _ in range(count)])


def _connections(address: str, clients: list[Client], count: int) -> None:
    unknown = b'{"jsonrpc":"2.0","id":1,"method":"nothing"}\n'
    for _ in range(count):
        client = Client(address)
        clients.append(client)
        client.socket.sendall(unknown)
        client.lines(1)


def _submitted(client: Client, number: int, tool: str, status: str, **args: Any) -> None:
    """Submit tasks, some to each of new sessions, and wait until the last one has this status."""
    sessions = -(-number // TASKS_PER_SESSION)
    opened = client.call_many([encode("session.open", {"client_name": "tasks"}) for _ in range(sessions)])
    requests = []
    for index in range(number):
        task = {"intent": tool, "steps": [{"tool": tool, "args": {"line": index % LINES, **args}}]}
        session_id = opened[index // TASKS_PER_SESSION]["session_id"]
        requests.append(encode("task.submit", {"session_id": session_id, "task": task}))
    submitted = client.call_many(requests)
    last = {"session_id": opened[-1]["session_id"], "task_id": submitted[-1]["task_id"]}
    until = time.monotonic() + PATIENCE
    while (found := client.call("task.get", **last)["status"]) != status:
        if time.monotonic() > until or found not in ("QUEUED", "RUNNING"):
            raise RuntimeError(f"a {tool} task is {found}, not {status}")
        time.sleep(0.01)


def _live(_address: str, clients: list[Client], count: int) -> None:
    _submitted(clients[0], count, "gpio.watch", "RUNNING", edge="both", count=1, timeout_ms=600_000)


def _finished(_address: str, clients: list[Client], count: int) -> None:
    _submitted(clients[0], count, "gpio.get", "SUCCESS")


MEMORY = [
    Memory("memory-session", "an idle session", 12, _sessions),
    Memory("memory-connection", "an idle connection", 24, _connections),
    Memory("memory-task", "a live task (gpio.watch)", 16, _live),
    Memory("memory-history", "a finished task that a session remembers", None, _finished),
]
