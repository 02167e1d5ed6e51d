"""A mixed crowd with accidents, bounded by counts: afterwards nothing is left, and the log says all of it."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from support.hearthd import Peer, request, submission

from hearth.audit.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

CLIENTS = 20
ROUNDS = 40
STEPS = [
    ("gpio.set", {"line": 17, "value": 1}),
    ("gpio.set", {"line": 18, "value": 0}),
    ("gpio.get", {"line": 27}),
    ("gpio.pulse", {"line": 5, "value": 1, "duration_ms": 3}),
    ("gpio.watch", {"line": 27, "timeout_ms": 20, "count": 3}),
    ("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2}),
    ("i2c.write", {"bus": 1, "addr": "0x50", "reg": 16, "data": "AAECAwQFBgc="}),
    ("i2c.read", {"bus": 1, "addr": "0x33", "len": 1}),
    ("uart.exchange", {"port": "uart0", "data": "aGkK", "until": "\n", "timeout_ms": 50}),
    ("hw.sensor.read", {"sensor": "temperature"}),
    ("sys.load", {}),
    ("hw.board", {}),
    ("proc.list", {}),
]


class Client(threading.Thread):
    """One of the crowd: a sequence of well-behaved and badly-behaved visits, drawn from its seed."""

    def __init__(self, running, seed: int) -> None:
        super().__init__(name=f"client {seed}", daemon=True)
        self.running = running
        self.rng = random.Random(seed)
        self.statuses: Counter[str] = Counter()
        self.visits: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(ROUNDS):
                visit = self.rng.choice(
                    [self.work, self.work, self.work, self.vanish, self.babble, self.mute, self.hurry, self.half]
                )
                self.visits[visit.__name__] += 1
                peer = Peer(self.running.socket)
                try:
                    visit(peer)
                finally:
                    peer.close()
        except BaseException as error:  # noqa: BLE001  raised again by the test
            self.error = error

    def steps(self) -> list:
        return self.rng.choices(STEPS, k=self.rng.randrange(1, 6))

    def constraints(self) -> dict:
        rng = self.rng
        return {
            "abort_on_step_failure": rng.random() < 0.5,
            "rollback_on_failure": rng.random() < 0.3,
            "exclusive": rng.random() < 0.1,
            "priority": rng.choice(["low", "normal", "high", "urgent"]),
            "max_duration_ms": rng.choice([5, 500, 20_000]),
        }

    def work(self, peer: Peer) -> None:
        """As one should: tasks, waited for, some of them cancelled, and a session that is closed."""
        session = peer.open(on_disconnect="close")
        for _ in range(3):
            task = peer.submit(session, *self.steps(), **self.constraints())
            if self.rng.random() < 0.3:
                peer.call("task.cancel", {"session_id": session, "task_id": task})
            done = peer.wait(session, task)
            self.statuses[done["status"]] += 1
            assert done["status"] in ("SUCCESS", "FAILED", "CANCELLED")
        assert peer.call("session.close", {"session_id": session})["result"]["ok"] is True

    def vanish(self, peer: Peer) -> None:
        """Gone in the middle of it."""
        session = peer.open(on_disconnect="close")
        for _ in range(self.rng.randrange(1, 10)):
            peer.start("task.submit", {**submission(session, *self.steps()), "subscribe": True})

    def babble(self, peer: Peer) -> None:
        """Says what is no request, and goes on."""
        for _ in range(10):
            peer.send(self.rng.randbytes(self.rng.randrange(1, 300)).replace(b"\n", b" ") + b"\n")
        # Random bytes may be blank, and then nothing answers them.
        peer.send(request("end", "session.open", {"on_disconnect": "close"}))
        while (answer := peer.line())["id"] != "end":
            assert answer["error"]["code"] in (-32700, -32600)

    def mute(self, peer: Peer) -> None:
        """Asks and does not read."""
        session = peer.open(on_disconnect="close")
        peer.send(*(request(n, "tool.list", {"session_id": session}) for n in range(30)))

    def hurry(self, peer: Peer) -> None:
        """Gone before it could be answered."""
        peer.send(request(1, "session.open"))

    def half(self, peer: Peer) -> None:
        """Says all it has to say at once, and listens."""
        peer.send(*(request(n, "session.open", {"on_disconnect": "close"}) for n in range(3)))
        peer.finish_sending()
        assert len(peer.rest()) == 3


def test_after_a_while_with_a_mixed_crowd_nothing_is_left_and_the_log_is_whole(hearthd) -> None:
    limits = "max_sessions_per_principal = 500\nmax_connections = 200\nclose_grace_s = 1\nsend_timeout_s = 3\n"
    running = hearthd(f"[limits]\n{limits}").start()
    crowd = [Client(running, seed) for seed in range(CLIENTS)]
    for client in crowd:
        client.start()
    for client in crowd:
        client.join(120)
        assert not client.is_alive(), f"{client.name} hangs"
        if client.error is not None:
            raise client.error
    statuses = sum((client.statuses for client in crowd), Counter())
    assert set(statuses) == {"SUCCESS", "FAILED", "CANCELLED"}, statuses

    peer = running.peer()
    running.until(lambda: peer.health()["sessions"] == 1)
    health = peer.health()
    assert health["ok"] is True, health
    for bus, state in health["buses"].items():
        assert state["state"] == "ready", bus
        # The one that was asked is in use by whoever asks.
        assert state["queued"] == 0, bus
        assert not state.get("leased"), bus
    session = peer.open()
    assert [peer.run(session, "gpio.get", line=line)["result"]["value"] for line in (27, 5)] == [0, 0]
    # The daemon, its journal and bus threads, and Trio's cached ones; the crowd has left none of its own.
    assert running.threads() < 50
    assert running.descriptors() < 40
    assert running.memory() < 250

    assert running.stop() == 0
    assert "crashed" not in running.said, running.said
    report = verify([running.audit])
    assert report.ok, report.first_bad
    records = running.records()
    for begun, ended in (
        ("session.open", "session.close"),
        ("task.submit", "task.finish"),
        ("task.step.start", "task.step.finish"),
    ):
        counts = Counter(record["event"] for record in records)
        assert counts[begun] == counts[ended], (begun, counts[begun], counts[ended])
    order: dict[str, list[str]] = {}
    for record in records:
        if "task_id" in record:
            order.setdefault(record["task_id"], []).append(record["event"])
    for task, events in order.items():
        if events != ["bus.wedged"]:
            assert events[0] == "task.submit", (task, events)
            assert events[-1] == "task.finish", (task, events)
