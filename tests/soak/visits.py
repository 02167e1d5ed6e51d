"""What the clients of a soak do: well-behaved and badly-behaved visits over every carrier, each drawn from a seed.

A visit is one connection, or a few, from its beginning to its end. It raises AssertionError where the daemon did what
it must not do. A refusal that belongs to a full daemon (busy, full, too fast) ends the visit and is counted.
"""

from __future__ import annotations

import base64
import contextlib
import random
import socket
import ssl
import struct
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from soak import accidents
from soak.calling import mcp_visit
from support.dialing import tcp, tls, web_socket
from support.hearthd import Peer, request, submission, unix_socket

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

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
]
TERMINAL = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
FULL = frozenset({-32004, -32005, -32006})
"""Busy, full, too fast: what a full daemon may answer to anybody."""


class DaemonFull(Exception):
    """The daemon refused because one of its bounds is reached."""


class Visitor:
    """One client. `way` is what `soak.deployment` says of the daemon; `told` gets the id and the status of each task.

    `over` is set when the run ends: pauses end with it.
    """

    def __init__(
        self, way: Mapping[str, Any], seed: int, over: threading.Event, told: Callable[[str, str], None]
    ) -> None:
        self.way = way
        self.rng = random.Random(seed)
        self.over = over
        self.told = told
        self.done: Counter[str] = Counter()
        self._context = ssl.create_default_context(cafile=way["ca"])
        self._context.load_cert_chain(*way["certificate"])
        self._anonymous = ssl.create_default_context(cafile=way["ca"])

    # --- connections ----------------------------------------------------------------------------------------------

    def dial(self, kind: str) -> Any:
        """A connection over this carrier."""
        listening = self.way["listening"]
        if kind == "unix":
            return unix_socket(Path(self.way["socket"]))
        if kind == "tls":
            return tls(listening["tls"], self._context)
        return web_socket(listening["ws"], token=self.way["token"])

    def anything(self) -> Any:
        """A connection over some carrier."""
        return self.dial(self.rng.choice(("unix", "unix", "tls", "ws")))

    @contextlib.contextmanager
    def peer(self, kind: str | None = None) -> Any:
        """A client over this carrier, or any."""
        peer = Peer(self.anything() if kind is None else self.dial(kind))
        try:
            yield peer
        finally:
            peer.close()

    def ask(self, peer: Peer, method: str, params: Any = None) -> Any:
        """The result. Raises DaemonFull."""
        answer = peer.call(method, params)
        if answer.get("error", {}).get("code") in FULL:
            raise DaemonFull(answer["error"]["message"])
        assert "result" in answer, f"{method}: {answer}; asked {params}"[:1000]
        return answer["result"]

    def open(self, peer: Peer, **params: Any) -> str:
        """A session."""
        return str(self.ask(peer, "session.open", {"client_name": "soak", **params})["session_id"])

    def submit(
        self, peer: Peer, session: str, *steps: Any, more: Mapping[str, Any] | None = None, **constraints: Any
    ) -> str:
        """An acknowledged task's id."""
        params = submission(session, *steps, **constraints)
        params["task"].update(more or {})
        task = str(self.ask(peer, "task.submit", params)["task_id"])
        self.told(task, "")
        return task

    def ended(self, peer: Peer, session: str, task: str) -> str:
        """Follow a task to its end, counting what there is exactly one of; returns its status."""
        here = {"session_id": session, "task_id": task}
        self.ask(peer, "task.events.subscribe", here)
        return self.heard(peer, {task})[task]

    def heard(self, peer: Peer, tasks: set[str]) -> dict[str, str]:
        """Read notifications until each of these tasks has ended; each event is there once and in order."""
        last: dict[str, int] = {}
        open_steps: dict[str, list[int]] = {task: [] for task in tasks}
        statuses: dict[str, str] = {}
        while tasks - statuses.keys():
            said = peer.line()
            assert said is not None, "the daemon hung up on a follower that reads"
            params = said.get("params", {})
            task = params.get("task_id")
            if "method" not in said or task not in tasks:
                continue
            assert task not in statuses, f"an event after the end of the task: {params}"
            assert params["seq"] > last.get(task, 0), f"events out of order: {params} after {last[task]}"
            last[task] = params["seq"]
            match params["phase"]:
                case "start":
                    open_steps[task].append(params["step_index"])
                case "finish":
                    assert open_steps[task] == [params["step_index"]], (params, open_steps[task])
                    open_steps[task].clear()
                case "task_finish":
                    assert not open_steps[task], f"a task ended within a step: {params}"
                    assert params["status"] in TERMINAL, params
                    statuses[task] = params["status"]
                    self.told(task, params["status"])
        return statuses

    def steps(self, most: int = 5) -> list[Any]:
        """Some steps."""
        return self.rng.choices(STEPS, k=self.rng.randrange(1, most + 1))

    def constraints(self) -> dict[str, Any]:
        """Some constraints."""
        rng = self.rng
        return {
            "abort_on_step_failure": rng.random() < 0.5,
            "rollback_on_failure": rng.random() < 0.3,
            "exclusive": rng.random() < 0.1,
            "priority": rng.choice(["low", "normal", "high", "urgent"]),
            "max_duration_ms": rng.choice([5, 500, 20_000]),
        }

    # --- as one should --------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Tasks, waited for, some of them cancelled or handed in twice, and a session that is closed."""
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="close")
            for _ in range(self.rng.randrange(2, 6)):
                key = {"idempotency_key": self.rng.randbytes(8).hex()} if self.rng.random() < 0.3 else {}
                steps, constraints = self.steps(), self.constraints()
                task = self.submit(peer, session, *steps, more=key, **constraints)
                if key:
                    assert self.submit(peer, session, *steps, more=key, **constraints) == task
                if self.rng.random() < 0.25:
                    self.ask(peer, "task.cancel", {"session_id": session, "task_id": task})
                status = self.ended(peer, session, task)
                found = self.ask(peer, "task.get", {"session_id": session, "task_id": task})
                assert found["status"] == status, (found, status)
                self.over.wait(self.rng.uniform(0, 0.2))
            assert self.ask(peer, "session.close", {"session_id": session})["ok"] is True

    def follow(self) -> None:
        """One subscription to all of a session, then several tasks at once."""
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="close")
            self.ask(peer, "task.events.subscribe", {"session_id": session})
            # Answers come between events: what is said is read in one place.
            asked = [peer.start("task.submit", submission(session, *self.steps(3))) for _ in range(4)]
            events, tasks = [], {}
            while len(tasks) < len(asked) or sum(one["phase"] == "task_finish" for one in events) < len(asked):
                said = peer.line()
                assert said is not None, "the daemon hung up on a follower that reads"
                if "method" in said:
                    events.append(said["params"])
                elif said["id"] in asked:
                    if said.get("error", {}).get("code") in FULL:
                        raise DaemonFull(said["error"]["message"])
                    tasks[said["result"]["task_id"]] = True
                    self.told(said["result"]["task_id"], "")
            for task in tasks:
                mine = [one for one in events if one["task_id"] == task]
                assert [one["seq"] for one in mine] == sorted({one["seq"] for one in mine}), mine
                starts, finishes = (
                    [one["step_index"] for one in mine if one["phase"] == phase] for phase in ("start", "finish")
                )
                assert starts == finishes == sorted(set(starts)), mine
                assert mine[-1]["phase"] == "task_finish", mine
                self.told(task, mine[-1]["status"])

    def late(self) -> None:
        """Subscribe when all is over: the whole history is still there."""
        with self.peer() as peer, self.peer("unix") as other:
            session = self.open(peer, on_disconnect="close")
            task = self.submit(peer, session, *self.steps())
            status = self.ended(peer, session, task)
            here = {"session_id": session, "task_id": task, "from_seq": 1}
            self.ask(peer, "task.events.subscribe", here)
            assert self.heard(peer, {task}) == {task: status}
            if isinstance(peer.socket, socket.socket) and peer.socket.family != socket.AF_UNIX:
                assert other.refusal("task.get", {"session_id": session, "task_id": task})["code"] == -32000

    def lease(self) -> None:
        """The I2C bus for oneself, and no patience."""
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="close")
            reads = [("i2c.read", {"bus": 1, "addr": "0x48", "reg": 0, "len": 2})] * 3
            task = self.submit(peer, session, *reads, exclusive=True, on_busy=self.rng.choice(["wait", "fail"]))
            self.ended(peer, session, task)

    def files(self) -> None:
        """Write, read, look, delete: all of it beneath the shared directory."""
        path = f"{self.way['share']}/{self.rng.randbytes(6).hex()}"
        content = self.rng.randbytes(self.rng.randrange(1, 4000))
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="close")
            text = base64.b64encode(content).decode()
            task = self.submit(
                peer, session,
                ("file.write", {"path": path, "data": text}), ("file.read", {"path": path}),
                ("file.stat", {"path": path}), ("file.delete", {"path": path}), max_risk_level=3,
            )  # fmt: skip
            assert self.ended(peer, session, task) == "SUCCESS"
            found = self.ask(peer, "task.get", {"session_id": session, "task_id": task})
            assert base64.b64decode(found["steps"][1]["result"]["data"]) == content

    # --- as one should not ----------------------------------------------------------------------------------------

    def refused(self) -> None:
        """What is not allowed is refused, each with its reason."""
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="close")
            for step, code in (
                (("gpio.explode", {}), -32002),
                (("gpio.set", {"line": "x" * 100}), -32602),
                (("file.read", {"path": "/etc/passwd"}), -32003),
                (("file.delete", {"path": f"{self.way['share']}/risky"}), -32003),
            ):
                answer = peer.call("task.submit", submission(session, step))
                assert answer.get("error", {}).get("code") == code, answer
            # All at once: on a machine that is slow enough, one after the other would be slow enough.
            lines = [request(f"m{n}", "task.submit", submission(session, ("sys.memory", {}))) for n in range(8)]
            peer.send(*lines)
            answers = [peer.line() for _ in lines]
            for each in answers:
                if "result" in each:
                    self.told(each["result"]["task_id"], "")
            codes = {each["error"]["code"] for each in answers if "error" in each}
            assert codes == {-32006}, f"a rate of 2/s let 8 through at once: {answers}"

    def vanish(self) -> None:
        """Gone in the middle of it, with a reset."""
        connected = self.anything()
        peer = Peer(connected)
        try:
            session = self.open(peer, on_disconnect="close")
            for _ in range(self.rng.randrange(1, 8)):
                peer.start("task.submit", {**submission(session, *self.steps()), "subscribe": True})
        finally:
            beneath = getattr(connected, "socket", connected)
            beneath.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()

    def abandon(self) -> None:
        """A session that nobody will ever name again: silence ends it, and its tasks run to their end."""
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="keep")
            self.submit(peer, session, *self.steps())

    def deadman(self) -> None:
        """A heartbeat that stops."""
        with self.peer() as peer:
            session = self.open(peer, heartbeat_ms=200)
            answer = peer.call("task.submit", submission(session, ("gpio.set", {"line": 5, "value": 1})))
            if "result" in answer:
                self.told(answer["result"]["task_id"], "")
            else:
                # Too late already, on a machine that is slow enough.
                assert answer["error"]["code"] == -32000, answer
            self.over.wait(self.rng.uniform(0.5, 1.5))

    def mute(self) -> None:
        """Asks a lot, follows a lot, and does not read for a while."""
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="close")
            peer.send(*(request(f"t{n}", "tool.list", {"session_id": session}) for n in range(20)))
            for _ in range(10):
                peer.start("task.submit", {**submission(session, *self.steps()), "subscribe": True})
            self.over.wait(self.rng.uniform(1, 6))

    def slow(self) -> None:
        """Follows, reads one line now and then, and misses nothing but progress."""
        with self.peer() as peer:
            session = self.open(peer, on_disconnect="close")
            task = self.submit(peer, session, *(("gpio.watch", {"line": 27, "timeout_ms": 5, "count": 1}),) * 8)
            self.ask(peer, "task.events.subscribe", {"session_id": session, "task_id": task})
            self.over.wait(self.rng.uniform(0.2, 1))
            self.heard(peer, {task})

    def babble(self) -> None:
        """Says what is no request, and goes on."""
        with self.peer("unix") as peer:
            for _ in range(10):
                peer.send(self.rng.randbytes(self.rng.randrange(1, 300)).replace(b"\n", b" ") + b"\n")
            peer.send(request("end", "session.open", {"on_disconnect": "close"}))
            # Random bytes may be blank, and then nothing answers them.
            while (answer := peer.line())["id"] != "end":
                assert answer["error"]["code"] in (-32700, -32600), answer

    def hoard(self) -> None:
        """Has as much kept as it can, unread, until it is told that this is too much; it is alone in its principal."""
        junk: Any = [[]] * 15_000 if self.rng.random() < 0.5 else ["j" * 200_000]
        watch = ("gpio.watch", {"line": 27, "timeout_ms": 60_000, "junk": junk})
        listening = self.way["listening"]["ws"]
        with contextlib.ExitStack() as stack:
            peer, deaf = (Peer(web_socket(listening, token=self.way["hoarder"])) for _ in range(2))
            stack.callback(peer.close)
            stack.callback(deaf.close)
            for _ in range(16):
                session = self.open(peer, on_disconnect="close")
                with contextlib.suppress(ConnectionError):  # it may have been cut off, since it does not read
                    deaf.start("task.events.subscribe", {"session_id": session})
                for _ in range(60):
                    params = submission(session, watch)
                    params["task"] |= {"idempotency_key": self.rng.randbytes(100).hex(), "intent": "i" * 4000}
                    answer = peer.call("task.submit", params)
                    if "error" in answer:
                        assert answer["error"]["code"] == -32005, answer
                        assert answer["error"]["data"]["limit"] == "max_retained_bytes", answer
                        return
                    self.told(answer["result"]["task_id"], "")
            raise AssertionError("it was never told that this is too much")

    def half(self) -> None:
        """Says all it has to say at once, and listens."""
        with self.peer("unix") as peer:
            peer.send(*(request(n, "session.open", {"on_disconnect": "close"}) for n in range(3)))
            peer.finish_sending()
            assert len(peer.rest()) == 3

    def knock(self) -> None:
        """Gone at some moment of a handshake, or let in as nobody."""
        listening = self.way["listening"]
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            match self.rng.randrange(5):
                case 0:
                    tcp(listening["tls"]).close()
                case 1:
                    self._say(tcp(listening["tls"]), bytes.fromhex("16030102000100") + self.rng.randbytes(100))
                case 2:
                    # With TLS 1.3 the handshake is done before the client hears that it lacks a certificate.
                    self._say(tls(listening["tls"], self._anonymous), request(1, "session.open"))
                case 3:
                    self._say(tcp(listening["ws"]), b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgr")
                case _:
                    self._say(self.dial("unix"), request(1, "session.open")[:-20])

    @staticmethod
    def _say(connected: Any, data: bytes) -> None:
        try:
            connected.sendall(data)
        finally:
            connected.close()

    # --- other protocols, and accidents ---------------------------------------------------------------------------

    def mcp(self) -> None:
        """A model's calls over HTTP; one in three clients leaves without goodbye."""
        if "http" in self.way["listening"]:
            mcp_visit(self.way["listening"]["http"], self.rng)

    def job(self) -> None:
        """A whole job, from its submission to its account, or aborted by the caller's absence of interest."""
        message = {
            "hcp_version": "1.0",
            "message_id": str(UUID(bytes=self.rng.randbytes(16), version=4)),
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "session_id": None,
            "type": "task_submit",
            "payload": {
                "capability": "bench-climate-survey",
                "caller_id": "soak",
                "intent": "Is it warm?",
                "inputs": {"samples": self.rng.randrange(2, 6), "interval_s": 0.05, "tolerance": 500},
            },
        }
        with self.peer("unix") as peer:
            peer.socket.sendall(request_line(message))
            if self.rng.random() < 0.2:
                return
            while True:
                said = peer.line()
                assert said is not None, "the daemon hung up on the caller of a job"
                kind, payload = said.get("type"), said.get("payload", {})
                if kind == "task_rejected":
                    raise DaemonFull(str(payload))
                assert kind in _OF_JOBS, said
                if payload.get("event_type") == "session_closed":
                    return

    def trouble(self) -> None:
        """Something goes wrong with the I2C bus for a while, and is mended."""
        kind = self.rng.choice(("nack", "nack", "timeout", "latency", "wedge"))
        with self.peer("unix") as peer:
            session = self.open(peer, on_disconnect="close")
            times = {"times": self.rng.randrange(1, 6)} if kind in ("nack", "timeout") else {}
            for each in ({"kind": kind, **times}, {"kind": "clear"}):
                task = self.submit(peer, session, (accidents.FAULT, each))
                assert self.ended(peer, session, task) == "SUCCESS"
                self.over.wait(self.rng.uniform(0.2, 2.5))


_OF_JOBS = frozenset({"task_accepted", "event", "task_completed", "task_failed", "task_aborted"})


def request_line(document: Mapping[str, Any]) -> bytes:
    """A document as a line."""
    import json

    return json.dumps(document).encode() + b"\n"


VISITS: Sequence[tuple[str, float]] = (
    ("work", 30), ("follow", 12), ("late", 6), ("lease", 5), ("files", 6), ("refused", 4), ("vanish", 6),
    ("abandon", 3), ("deadman", 3), ("mute", 3), ("slow", 5), ("babble", 3), ("half", 3), ("knock", 6), ("mcp", 3),
    ("job", 2),
)  # fmt: skip
"""What is drawn, and how often. `trouble` is the business of one client alone."""
