"""Daemons that are killed: forks of one zygote, the directory they leave to one another, and the clients they have.

A `Deployment` is a directory with a hearth.toml, a tape, and one life of a hearthd after another. What its clients were
told is kept here, in a process that nobody kills, and on the tape: a line is there before the client goes on.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import socket
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from crash.syscalls import say
from support.hearthd import BOUND, Hearthd, Peer, eventually, listens

if TYPE_CHECKING:
    from pathlib import Path

    from support.zygote import Zygote

ROTATE, CHECKPOINT = 6000, 9
"""So small that a short scenario meets rotations and checkpoints."""


class Life:
    """One run of the daemon, from its fork to its end."""

    def __init__(self, deployment: Deployment, at: int, moment: str) -> None:
        self.tasks: dict[str, Told] = {}
        self.said = deployment.directory / "said"
        arguments = [deployment.config, deployment.tape, deployment.logs, at, moment]
        self._control = socket.socket(socket.AF_UNIX)
        self._control.settimeout(BOUND)
        self._control.connect(str(deployment.zygote.path))
        reading, writing = os.pipe()
        with self.said.open("ab") as said, open(os.devnull, "rb") as nothing:
            streams = [nothing.fileno(), writing, said.fileno()]
            start = json.dumps({"arguments": [str(part) for part in arguments]}).encode()
            socket.send_fds(self._control, [start], streams)
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            self.pid = int(told.readline())
        self._process = os.pidfd_open(self.pid)
        self._socket = deployment.socket

    def dead(self, patience: float = 0.0) -> bool:
        """Whether it has ended, and its locks with it."""
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(patience * 1000))

    def ready(self) -> bool:
        """Wait until it serves; False if it died before."""
        return bool(eventually(lambda: "dead" if self.dead() else listens(self._socket) and "up", "a daemon") == "up")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def end(self) -> int | None:
        """Wait for its end: the exit status, or None if it was killed."""
        assert self.dead(BOUND), "the daemon did not end"
        code = self._control.recv(1)
        self._control.close()
        os.close(self._process)
        return code[0] if code else None


class Told:
    """What one client was told of one task."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.started = 0
        self.status: str | None = None


class Client(threading.Thread):
    """A client that submits task after task and remembers what it was told, until `rounds` are done or all is over."""

    def __init__(
        self, deployment: Deployment, number: int, rounds: int, *, watch: bool = False, close: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.deployment, self.number, self.rounds = deployment, number, rounds
        self.tasks: dict[str, Told] = {}
        self.finished = 0
        self._watch, self._close = watch, close

    def run(self) -> None:
        # The daemon dies at any moment: a line that is cut short is an AssertionError of Peer's.
        with contextlib.suppress(OSError, AssertionError, json.JSONDecodeError):
            peer = Peer(self.deployment.socket)
            try:
                self._work(peer)
            finally:
                peer.close()

    def _work(self, peer: Peer) -> None:
        session = peer.open(client_name=f"load-{self.number}")
        if self._watch:  # one task is always in flight
            self._submit(peer, session, [("gpio.watch", {"line": 4, "timeout_ms": 60_000})])
        for _ in range(self.rounds):
            # Two at once: one is told to have begun while the other one waits.
            for _ in range(2):
                self._submit(peer, session, self.deployment.steps(self.number))
            before = self.finished
            while self.finished < before + 2:
                self._hear(peer)
        if self._close:
            peer.call("session.close", {"session_id": session})

    def _submit(self, peer: Peer, session: str, steps: list[tuple[str, dict[str, Any]]]) -> None:
        asked = [{"tool": tool, "args": args} for tool, args in steps]
        task = {"intent": "load", "steps": asked, "constraints": {"abort_on_step_failure": True}}
        peer.start("task.submit", {"session_id": session, "subscribe": True, "task": task})

    def _hear(self, peer: Peer) -> None:
        said = peer.line()
        if said is None:
            raise ConnectionResetError
        if "id" in said:
            assert "result" in said, said
            task_id = said["result"]["task_id"]
            self.deployment.note(ack=task_id)
            self.tasks.setdefault(task_id, Told(task_id))
            return
        event = said["params"]
        told = self.tasks[event["task_id"]]
        if event["phase"] == "start":
            told.started += 1
        elif event["phase"] == "task_finish":
            self.deployment.note(finish=event["task_id"], status=event["status"])
            told.status = event["status"]
            self.finished += 1


class Deployment:
    """One directory, and the lives that follow each other in it."""

    def __init__(self, directory: Path, zygote: Zygote, durability: str = "os") -> None:
        self.directory, self.zygote, self.durability = directory, zygote, durability
        self.logs, self.place = directory / "log", directory / "place"
        self.place.mkdir(parents=True)
        configured = Hearthd(
            directory,
            "[card]\n[hcp]\nserve = false\n[limits]\nmax_sessions_per_principal = 1000\n"
            f'[files]\nwrite = ["{self.place}"]\n',
            audit=f'durability = "{durability}"\nrotate_bytes = {ROTATE}\ncheckpoint_every = {CHECKPOINT}',
            logs=self.logs,
        )
        self.socket, self.log, self.config = configured.socket, configured.audit, configured.config
        self.tape = directory / "tape"
        self.tape.touch()
        self._tape = os.open(self.tape, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.intended: dict[str, tuple[str, str]] = {}
        """By token: the args hashes of the I2C write and of the file that bear it."""
        self.clients: list[Client] = []
        self._tokens = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        os.close(self._tape)

    def note(self, **entry: Any) -> None:
        """What a client was told, at its place on the tape."""
        say(self._tape, **entry)

    def entries(self) -> list[dict[str, Any]]:
        """The tape."""
        return [json.loads(line) for line in self.tape.read_bytes().splitlines()]

    def steps(self, number: int) -> list[tuple[str, dict[str, Any]]]:
        """The steps of one more task: two whose traces bear a token of their own, after one that drives a line."""
        with self._lock:
            self._tokens += 1
            token = f"t{self._tokens:07d}"
        data = base64.b64encode(token.encode()).decode()
        write = {"bus": 1, "addr": 80, "reg": 0, "data": data}
        keep = {"path": str(self.place / token), "data": data, "mode": "create"}
        self.intended[token] = (hash_of(write), hash_of(keep))
        drive = {"line": 16 + number % 6, "value": self._tokens % 2}
        return [("gpio.set", drive), ("i2c.write", write), ("file.write", keep)]

    # --- lives

    def start(self, at: int = 0, moment: str = "after") -> Life:
        return Life(self, at, moment)

    def scripted_life(self, at: int = 0, moment: str = "after") -> int | None:
        """A life that does always the same: one client, some tasks, the end of the session, SIGTERM."""
        life = self.start(at, moment)
        if life.ready():
            self._serve(Client(self, 0, rounds=2, watch=True, close=True))
            life.signal(signal.SIGTERM)
        return life.end()

    def load(self, enough: int, clients: int = 4) -> None:
        """A life that is killed from outside, under load, once so many tasks have finished."""
        life = self.start()
        assert life.ready(), self.said()
        working = [Client(self, number, rounds=1000, watch=not number) for number in range(clients)]
        self.clients += working
        for client in working:
            client.start()
        while sum(client.finished for client in working) < enough:
            assert any(client.is_alive() for client in working), self.said()
            working[0].join(0.0005)
        life.signal(signal.SIGKILL)
        for client in working:
            client.join(BOUND)
            assert not client.is_alive()
        assert life.end() is None

    def last_life(self) -> None:
        """A life that nobody kills: it recovers, serves and ends as it should."""
        life = self.start()
        assert life.ready(), f"the next daemon does not start:\n{self.said()}"
        client = Client(self, 0, rounds=1, close=True)
        self._serve(client)
        assert [told.status for told in client.tasks.values()] == ["SUCCESS"] * 2, self.said()
        life.signal(signal.SIGTERM)
        assert life.end() == 0, self.said()

    def _serve(self, client: Client) -> None:
        self.clients.append(client)
        client.start()
        client.join(BOUND)
        assert not client.is_alive(), "a client waits for a daemon that does not answer"

    def said(self) -> str:
        """What the daemons said to their operator."""
        return (self.directory / "said").read_text()


def hash_of(args: dict[str, Any]) -> str:
    """The args_hash of plain args, by another way than the daemon's: RFC 8785 asks no more of ASCII and ints."""
    return "sha256:" + sha256(json.dumps(args, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
