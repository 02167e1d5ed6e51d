"""How long a halt takes: from the request, as the client sends it, to the last of 64 driven lines in its safe state.

The daemon is a process of its own on a simulated chip of 64 lines. A watch on each line tells when it fell, in
CLOCK_MONOTONIC, which is the client's clock too. What the disk adds is in the answer, which waits for the latch; the
lines do not. `benchmarks.fairness` measures a halt beside a crowd of its principal.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from attrs import frozen

from benchmarks.load import Client, round_trip_ms
from benchmarks.report import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

LINES = 64
GOAL_MS = 20.0
PATIENCE_S = 20.0


def board() -> str:
    """A profile with one simulated chip, all of whose lines are safe at 0."""
    names = [f"L{number}" for number in range(LINES)]
    safe = "".join(f"[gpio.lines.{name}]\nsafe = 0\n" for name in names)
    chip = f'[[gpio]]\nlabel = "sim"\ndriver = "sim"\nnames = {json.dumps(names)}\n'
    return f'name = "lines"\ndescription = "{LINES} lines"\n{chip}{safe}'


@frozen
class HaltTime:
    """The time of a halt, over many."""

    name: str
    what: str

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        profile = servers.folder("board") / "lines.toml"
        profile.write_text(board())
        server = servers.hearthd(self.name, more=f'[board]\nprofile = "{profile}"\n')
        client, door = Client(server.address), Client(f"{server.address}.halt")
        try:
            session = client.call("session.open")["session_id"]
            trip = round_trip_ms(client, session)
            found = [_halt(client, door, session) for _ in range(max(20, effort.many // 10))]
        finally:
            client.close()
            door.close()
        safe, answered = zip(*found, strict=True)
        p99 = sorted(safe)[round(0.99 * (len(safe) - 1))]
        yield Row(
            self.name,
            self.what,
            p99,
            "ms",
            GOAL_MS,
            "at most",
            spread=(min(safe), max(safe)),
            note=f"p50 {median(safe):.2f} ms, {median(safe) / trip:.1f} x a request without effect ({trip:.2f} ms); "
            f"the answer, with the latch on the disk, {median(answered):.2f} ms",
            detail={"safe_ms": list(safe), "answered_ms": list(answered), "round_trip_ms": trip},
        )


def _halt(client: Client, door: Client, session: str) -> tuple[float, float]:
    """Drive every line, halt at the halt socket, and reset; return the ms to the last safe line, and to the answer."""
    _ended(client, session, [{"tool": "gpio.set", "args": {"line": line, "value": 1}} for line in range(LINES)])
    watch = {"edge": "falling", "count": 1, "timeout_ms": 60_000}
    watches = [
        client.request("task.submit", _task(session, [{"tool": "gpio.watch", "args": {"line": line, **watch}}]))
        for line in range(LINES)
    ]
    tasks = [answer["task_id"] for answer in client.call_many(watches)]
    # Its turn comes after theirs: they watch when it has ended.
    _ended(client, session, [{"tool": "gpio.get", "args": {"line": 0}}])
    asked = time.monotonic_ns()
    door.call("halt", reason="a measurement")
    answered = time.monotonic_ns()
    edges = [_settled(client, session, task)["steps"][0]["result"]["edges"] for task in tasks]
    client.call("halt.reset", session_id=session)
    last = max(edge[0]["timestamp_ns"] for edge in edges)
    return (last - asked) / 1e6, (answered - asked) / 1e6


def _task(session: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"session_id": session, "task": {"intent": "halt", "steps": steps}}


def _ended(client: Client, session: str, steps: list[dict[str, Any]]) -> None:
    """Run a task to its end. Raises RuntimeError if it does not succeed."""
    task_id = client.call("task.submit", **_task(session, steps))["task_id"]
    if (done := _settled(client, session, task_id))["status"] != "SUCCESS":
        raise RuntimeError(f"expected SUCCESS, got {done}")


def _settled(client: Client, session: str, task_id: str) -> Any:
    """Return a task as task.get shows it when it has ended. Raises RuntimeError if it does not."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        shown = client.call("task.get", session_id=session, task_id=task_id)
        if shown["status"] not in ("QUEUED", "RUNNING"):
            return shown
    raise RuntimeError(f"task {task_id} did not end within {PATIENCE_S:g} s")


HALTS = [
    HaltTime("halt", f"from a halt to {LINES} safe lines, p99"),
]
