"""How long an approval takes to release a plan: from one client's request to the answer that another one waits for.

The agent has prepared a plan that the policy lets run only when approved, and waits in `plan.execute`. A person
approves it over a connection of their own. The time runs from that request to the answer that the agent's task is
accepted, with the approval on record. Both are clients of one process, so they read the same clock.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks.load import Client, round_trip_ms
from benchmarks.report import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

GOAL_MS = 100.0
WAIT_MS = 20_000


@frozen
class Approval:
    """The time from an approval to the plan's release, over many."""

    name: str
    what: str

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        server = servers.hearthd(self.name, more="approval = [{ from_risk = 2 }]\n")
        agent, person = Client(server.address), Client(server.address)
        try:
            theirs, mine = (client.call("session.open")["session_id"] for client in (agent, person))
            found = [_released_ms(agent, theirs, person, mine) for _ in range(max(20, effort.many // 10))]
            trip = round_trip_ms(person, mine)
        finally:
            agent.close()
            person.close()
        p99 = sorted(found)[round(0.99 * (len(found) - 1))]
        yield Row(
            self.name,
            self.what,
            p99,
            "ms",
            GOAL_MS,
            "at most",
            spread=(min(found), max(found)),
            note=f"p50 {median(found):.2f} ms, {median(found) / trip:.1f} x a request without effect ({trip:.2f} ms)",
            detail={"released_ms": found, "round_trip_ms": trip},
        )


def _released_ms(agent: Client, theirs: str, person: Client, mine: str) -> float:
    """Prepare a plan, wait for its approval, approve it, and return the milliseconds to the answer of the wait."""
    task = {"intent": "light", "steps": [{"tool": "gpio.set", "args": {"line": 17, "value": 1}}]}
    plan = agent.call("plan.prepare", session_id=theirs, task=task)
    wait = {"session_id": theirs, "plan_id": plan["plan_id"], "wait_ms": WAIT_MS}
    # The session takes its requests in their order: when the second one is answered, the first one waits.
    agent.socket.sendall(agent.request("plan.execute", wait))
    agent.call("halt.status", session_id=theirs)
    asked = time.monotonic_ns()
    person.call("plan.approve", session_id=mine, plan_id=plan["plan_id"], hash=plan["hash"])
    (answer,) = agent.lines(1)
    released = time.monotonic_ns()
    if b'"task_id"' not in answer:
        raise RuntimeError(f"the plan was not released: {answer!r}")
    # Until it is done: the next plan shows what this one has changed.
    task_id = json.loads(answer)["result"]["task_id"]
    while agent.call("task.get", session_id=theirs, task_id=task_id)["status"] in ("QUEUED", "RUNNING"):
        pass
    return (released - asked) / 1e6


APPROVALS = [Approval("approval", "from an approval to the plan of another client, p99")]
