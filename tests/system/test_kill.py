"""kill -9 at random moments under load: what the log says is what happened (design §7)."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hearth.audit.verify import verify

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]

ROUNDS = 12


class Load(threading.Thread):
    """One client that submits tasks as fast as it can, and remembers what it was told."""

    def __init__(self, peer: Any, seed: int) -> None:
        super().__init__(daemon=True)
        self._peer = peer
        self.line = seed % 16
        self.acknowledged: set[str] = set()
        self.finished: dict[str, str] = {}
        self.started: Counter[str] = Counter()

    def run(self) -> None:
        with contextlib.suppress(OSError, AssertionError, json.JSONDecodeError):
            session = self._peer.open()
            value = 0
            while True:
                value ^= 1
                self._peer.start(
                    "task.submit",
                    {
                        "session_id": session,
                        "subscribe": True,
                        "task": {
                            "intent": "load",
                            "steps": [
                                {"tool": "gpio.set", "args": {"line": self.line, "value": value}},
                                {"tool": "i2c.read", "args": {"bus": 1, "addr": "0x48", "reg": 0, "len": 2}},
                            ],
                        },
                    },
                )
                while (said := self._peer.line()) is not None:
                    if "result" in said:
                        self.acknowledged.add(said["result"]["task_id"])
                        continue
                    event = said["params"]
                    if event["phase"] == "start":
                        self.started[event["task_id"]] += 1
                    if event["phase"] == "task_finish":
                        self.finished[event["task_id"]] = event["status"]
                        break
                else:
                    return


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_after_kill_9_no_acknowledged_task_is_missing_and_nothing_ran_unrecorded(hearthd, durability: str) -> None:
    rng = random.Random(9)
    running = hearthd("[limits]\nmax_sessions_per_principal = 1000\n")
    config = running.config.read_text().replace("[audit]\n", f'[audit]\ndurability = "{durability}"\n')
    running.config.write_text(config)
    told: list[Load] = []
    debts: list[list[int]] = []
    for _ in range(ROUNDS):
        running.start()
        clients = [Load(running.peer(), seed) for seed in range(4)]
        for client in clients:
            client.start()
        # Killed after a random number of acknowledged tasks, not after a time: the machine's speed does not matter.
        enough = rng.randrange(1, 60)
        while sum(len(client.finished) for client in clients) < enough:
            assert any(client.is_alive() for client in clients)
            clients[0].join(0.001)
        running.kill()
        for client in clients:
            client.join(60)
            assert not client.is_alive()
        told += clients
        left = json.loads(Path(f"{running.audit}.outputs").read_text())["outputs"]["gpio:sim"]
        assert {client.line for client in clients if client.finished} <= set(left), "an output was driven unrecorded"
        debts.append(left)
    running.start()
    assert running.stop() == 0

    report = verify([running.audit])
    assert report.ok, report.first_bad
    records = running.records()
    submitted = {r["task_id"] for r in records if r["event"] == "task.submit"}
    starts = Counter(r["task_id"] for r in records if r["event"] == "task.step.start")
    ends = {r["task_id"]: r["status"] for r in records if r["event"] == "task.finish"}
    recovered = {
        task["task_id"] if isinstance(task, dict) else task
        for r in records
        if r["event"] == "daemon.recover"
        for task in r.get("in_flight", [])
    }
    for client in told:
        assert client.acknowledged <= submitted, "an acknowledged task is missing from the log"
        assert all(starts[task] >= count for task, count in client.started.items()), "a step ran unrecorded"
        assert all(ends.get(task) == status for task, status in client.finished.items())
    assert [r["outputs"] for r in records if r["event"] == "outputs.safe"] == debts
    assert submitted - set(ends) <= recovered, "a task that was in flight is not named by daemon.recover"
