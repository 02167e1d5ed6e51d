"""A real hearthd as a process, and a client that is not ours: bytes on a socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

BOUND = 30
"""Seconds after which any wait here is a failure."""


def eventually(condition: Callable[[], Any], what: str = "it") -> Any:
    """Look again until the condition holds, and return what it returned; the bound makes a failure of waiting."""
    deadline = time.monotonic() + BOUND
    pause = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {BOUND} s"
        pause.wait(0.01)
    return found


class Peer:
    """One connection. What is sent and received is exactly what is on the wire."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(BOUND)
        self.socket.connect(str(path))
        self._reader = self.socket.makefile("rb")
        self._last_id = 0
        self.notifications: list[dict[str, Any]] = []
        """What came while `call` waited for its answer."""

    # --- bytes --------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def raw(self) -> bytes:
        """The next line with its line end; b"" when the server has closed."""
        return self._reader.readline()

    def line(self) -> Any:
        """The next line, read; None when the server has closed."""
        text = self.raw()
        return json.loads(text) if text else None

    def ask(self, document: bytes) -> Any:
        """Send one line and return the next one that comes."""
        self.send(document + b"\n")
        return self.line()

    def is_silent(self) -> bool:
        """True if nothing is on its way: a request that is answered comes back without anything before it."""
        return self.ask(b'{"jsonrpc":"2.0","id":"still there?","method":"no.such"}')["id"] == "still there?"

    # --- calls --------------------------------------------------------------------------------------------------

    def start(self, method: str, params: Any = None) -> int:
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}}
        self.send(json.dumps(request).encode() + b"\n")
        return self._last_id

    def answer(self, id_: Any) -> dict[str, Any]:
        """The answer with this id; notifications that come before it are kept."""
        while True:
            said = self.line()
            assert said is not None, "the server closed before it answered"
            if said.get("id") == id_:
                return dict(said)
            self.notifications.append(said)

    def call(self, method: str, params: Any = None) -> dict[str, Any]:
        return self.answer(self.start(method, params))

    def result(self, method: str, params: Any = None) -> Any:
        answer = self.call(method, params)
        assert "result" in answer, answer
        return answer["result"]

    def error(self, method: str, params: Any = None) -> dict[str, Any]:
        answer = self.call(method, params)
        assert "error" in answer, answer
        return dict(answer["error"])

    # --- sessions and tasks -------------------------------------------------------------------------------------

    def open(self, **params: Any) -> str:
        return str(self.result("session.open", params)["session_id"])

    def submission(self, session_id: str, *steps: tuple[str, Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        """The params of a task.submit. `more`: constraints, and idempotency_key, intent and subscribe."""
        task: dict[str, Any] = {
            "intent": more.pop("intent", "test"),
            "steps": [{"tool": tool, "args": dict(args)} for tool, args in steps],
        }
        if "idempotency_key" in more:
            task["idempotency_key"] = more.pop("idempotency_key")
        params = {"session_id": session_id, "task": task, "subscribe": more.pop("subscribe", False)}
        if more:
            task["constraints"] = more
        return params

    def submit(self, session_id: str, *steps: tuple[str, Mapping[str, Any]], **more: Any) -> str:
        return str(self.result("task.submit", self.submission(session_id, *steps, **more))["task_id"])

    def refused(self, session_id: str, *steps: tuple[str, Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        return self.error("task.submit", self.submission(session_id, *steps, **more))

    def get(self, session_id: str, task_id: str) -> Any:
        return self.result("task.get", {"session_id": session_id, "task_id": task_id})

    def finished(self, session_id: str, task_id: str) -> Any:
        """Poll until the task is terminal, as the draft's plain client does; returns the task."""

        def look() -> Any:
            task = self.get(session_id, task_id)
            return task if task["status"] in ("SUCCESS", "FAILED", "CANCELLED") else None

        return eventually(look, f"the end of task {task_id}")

    def run(self, session_id: str, *steps: tuple[str, Mapping[str, Any]], **more: Any) -> Any:
        """Submit, wait, return the task."""
        return self.finished(session_id, self.submit(session_id, *steps, **more))

    def value(self, session_id: str, tool: str, **args: Any) -> Any:
        """The result of one step, which must succeed."""
        task = self.run(session_id, (tool, args))
        assert task["status"] == "SUCCESS", task
        return task["steps"][0]["result"]

    def event(self) -> dict[str, Any]:
        """The params of the next task.event."""
        said = self.notifications.pop(0) if self.notifications else self.line()
        assert said is not None, "the server closed"
        assert said.get("method") == "task.event", said
        return dict(said["params"])

    def events_until(self, phase: str) -> list[dict[str, Any]]:
        """Events up to and with the first one of this phase."""
        events = [self.event()]
        while events[-1]["phase"] != phase:
            events.append(self.event())
        return events

    def transactions(self, session_id: str, bus: str) -> int:
        """How many transactions have begun on a bus so far."""
        return int(self.value(session_id, "hw.board")["health"]["buses"][bus]["transactions"])

    def close(self) -> None:
        self._reader.close()
        self.socket.close()


AS_USER = """
import os, sys
from pathlib import Path
import hearth.actors.daemon as daemon
# An interpreter that is root's may be readable to nobody else: everything is imported once while it still is.
import cryptography.hazmat.primitives.serialization, hearth.audit.keys, jsonschema
user, *arguments = sys.argv[1:]
config = daemon.load_config(Path(arguments[1]))
daemon.build_parts(config, default_policy=()).paths.close()
os.setgroups([])
os.setresgid(int(user), int(user), int(user))
os.setresuid(int(user), int(user), int(user))
daemon.main(arguments)
"""


class Hearthd:
    """A daemon of its own in a directory of its own."""

    def __init__(self, directory: Path, config: str = "", *, server: str = "", audit: str = "") -> None:
        self.directory = directory
        self.socket = directory / "hearth.sock"
        self.audit = directory / "audit.log"
        self.config = directory / "hearth.toml"
        self.config.write_text(
            f'[server]\nsocket = "{self.socket}"\n{server}\n[audit]\npath = "{self.audit}"\n{audit}\n{config}\n'
        )
        self.process: subprocess.Popen[str] | None = None
        self.said = ""
        self._peers: list[Peer] = []

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, user: int | None = None) -> Hearthd:
        """Wait until it is ready. With `user`, root's interpreter becomes that user before the daemon begins."""
        program = ["-m", "hearth.actors.daemon"] if user is None else ["-c", AS_USER, str(user)]
        self.process = subprocess.Popen(
            [sys.executable, *program, "--config", str(self.config), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if line.startswith("hearthd: ready on "):
                return self
        self.process.wait(BOUND)
        raise AssertionError(f"hearthd did not start:\n{self.said}")

    def peer(self) -> Peer:
        self._peers.append(Peer(self.socket))
        return self._peers[-1]

    def hang_up(self) -> None:
        """Close all clients."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def stop(self) -> int:
        """End it gracefully; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=BOUND)
        self.said += rest or ""
        return int(self.process.returncode)

    def end(self) -> None:
        """Whatever state it is in: leave nothing behind."""
        self.hang_up()
        if self.process is None or self.process.stderr is None or self.process.stderr.closed:
            return
        self.process.terminate()
        try:
            self.process.communicate(timeout=BOUND)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise

    def records(self, **like: Any) -> list[dict[str, Any]]:
        """The audit records with these members; a line that is being written is left out."""
        text = self.audit.read_bytes()
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        records = [json.loads(line) for line in lines]
        return [record for record in records if like.items() <= record.items()]

    def recorded(self, **like: Any) -> dict[str, Any]:
        """Wait for a record with these members, and return the first."""
        found: list[dict[str, Any]] = eventually(lambda: self.records(**like), f"an audit record {like}")
        return found[0]
