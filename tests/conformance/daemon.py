"""The daemon and the client of the conformance tests: the client speaks as the draft's plain one does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from support import hearthd
from support.hearthd import Wire, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Hearthd", "Peer", "eventually"]


class Peer(Wire):
    """One connection."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.notifications: list[dict[str, Any]] = []
        """What came while `call` waited for its answer."""

    def ask(self, document: bytes) -> Any:
        """Send one line and return the next one that comes."""
        self.send(document + b"\n")
        return self.line()

    def is_silent(self) -> bool:
        """True if nothing is on its way: a request that is answered comes back without anything before it."""
        return self.ask(b'{"jsonrpc":"2.0","id":"still there?","method":"no.such"}')["id"] == "still there?"

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


AS_USER = """
import os, sys
from pathlib import Path
import hearth.actors.daemon as daemon
# An interpreter that is root's may be readable to nobody else: everything is imported once while it still is.
import cryptography.hazmat.primitives.serialization, hearth.audit.keys, jsonschema
user, *arguments = sys.argv[1:]
config = daemon.load_config(Path(arguments[1]), any_owner=True)
parts = daemon.build_parts(config, default_policy=(), daemon=True)
import difflib, hearth.agentcard.signature
for service in parts.extras.values():
    service.ahead()
from hearth.extras import OWN
for later in ("card", "mcp"):
    OWN[later].load("service")
parts.paths.close()
os.setgroups([])
os.setresgid(int(user), int(user), int(user))
os.setresuid(int(user), int(user), int(user))
daemon.main(arguments)
"""


class Hearthd(hearthd.Hearthd):
    """A daemon of its own in a directory of its own."""

    def __init__(self, directory: Path, config: str = "", *, server: str = "", audit: str = "") -> None:
        super().__init__(directory, config, server=server, audit=audit)

    def start(  # type: ignore[override]
        self, *arguments: str, env: Mapping[str, str] | None = None, user: int | None = None
    ) -> Hearthd:
        """Wait until it is ready. With `user`, root's interpreter becomes that user before the daemon begins."""
        self.env = {**os.environ, **(env or {})}
        if user is None:
            super().start(*arguments)
        else:
            super().start(*arguments, program=["-c", AS_USER, str(user)])
        return self

    def peer(self) -> Peer:
        self.peers.append(Peer(self.socket))
        return self.peers[-1]
