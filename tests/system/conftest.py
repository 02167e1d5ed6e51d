"""A real hearthd, as a process, on a socket of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def submission(session_id: str, *steps: tuple[str, dict[str, Any]], **constraints: Any) -> dict[str, Any]:
    """The params of a task.submit."""
    task = {"intent": "test", "steps": [{"tool": tool, "args": args} for tool, args in steps], "constraints": constraints}
    return {"session_id": session_id, "task": task}


def request(id_: Any, method: str, params: Any = None) -> bytes:
    """One line."""
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params or {}}).encode() + b"\n"


class Peer:
    """A client that is not ours: bytes on a socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")
        self._last_id = 0

    def send(self, *documents: bytes) -> None:
        self.socket.sendall(b"".join(documents))

    def line(self) -> Any:
        """The next line, read; None when the server has closed."""
        text = self._lines.readline()
        return json.loads(text) if text else None

    def start(self, method: str, params: Any = None, **members: Any) -> int:
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}, **members}
        self.send(json.dumps(request).encode() + b"\n")
        return self._last_id

    def call(self, method: str, params: Any = None) -> Any:
        """Call and return the whole answer, passing over notifications."""
        id_ = self.start(method, params)
        while True:
            answer = self.line()
            assert answer is not None, f"the server closed before it answered {method}"
            if answer.get("id") == id_:
                return answer

    def open(self, **params: Any) -> str:
        return str(self.call("session.open", params)["result"]["session_id"])

    def submit(self, session_id: str, *steps: tuple[str, dict[str, Any]], **constraints: Any) -> str:
        answer = self.call("task.submit", submission(session_id, *steps, **constraints))
        assert "result" in answer, answer
        return str(answer["result"]["task_id"])

    def refusal(self, method: str, params: Any = None) -> Any:
        """Call what must be refused; returns the error object."""
        answer = self.call(method, params)
        assert "error" in answer, f"{method} was not refused: {str(answer)[:200]}"
        return answer["error"]

    def wait(self, session_id: str, task_id: str) -> Any:
        """Follow a task to its end; returns it as task.get shows it."""
        here = {"session_id": session_id, "task_id": task_id}
        answer = self.call("task.events.subscribe", here)
        assert "result" in answer, answer
        while True:
            said = self.line()
            assert said is not None, "the server closed before the task ended"
            params = said.get("params", {})
            if params.get("task_id") == task_id and params.get("phase") == "task_finish":
                return self.call("task.get", here)["result"]

    def run(self, session_id: str, tool: str, /, **args: Any) -> Any:
        """Run one step; returns it as task.get shows it."""
        return self.wait(session_id, self.submit(session_id, (tool, args)))["steps"][0]

    def health(self) -> Any:
        """What hw.board says of the daemon, asked in a session that is closed again."""
        session = self.open()
        health = self.run(session, "hw.board")["result"]["health"]
        self.call("session.close", {"session_id": session})
        return health

    def finish_sending(self) -> None:
        """Half-close: nothing more will be sent, everything is still read."""
        self.socket.shutdown(socket.SHUT_WR)

    def rest(self) -> list[Any]:
        """All that is said until the server closes; an abrupt close counts as one."""
        said = []
        with contextlib.suppress(ConnectionResetError):
            while (document := self.line()) is not None:
                said.append(document)
        return said

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


class Hearthd:
    """The daemon under test."""

    def __init__(self, directory: Path, config: str = "", env: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.socket = directory / "hearth.sock"
        self.audit = directory / "audit.log"
        self.config = directory / "hearth.toml"
        self.config.write_text(
            f'[server]\nsocket = "{self.socket}"\n[audit]\npath = "{self.audit}"\ncheckpoint_every = 50\n{config}'
        )
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.said = ""
        self.peers: list[Peer] = []

    def start(self, *arguments: str, prefix: Sequence[str] = ()) -> Hearthd:
        """Start it and wait until it is ready; `prefix` is a command that runs it (prlimit, nohup …)."""
        self.said = ""
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "hearth.actors.daemon", "--config", str(self.config), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if line.startswith("hearthd: ready on "):
                return self
        raise AssertionError(f"hearthd did not start:\n{self.said}")

    def peer(self) -> Peer:
        self.peers.append(Peer(self.socket))
        return self.peers[-1]

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end; returns the exit status, and adds what it said."""
        assert self.process is not None
        _, rest = self.process.communicate(timeout=30)
        self.said += rest or ""
        return self.process.returncode

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def memory(self) -> int:
        """Resident memory, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hearthd]:
    """One daemon for the tests of a module that leave it as they found it."""
    directory = tmp_path_factory.mktemp("shared")
    daemon = Hearthd(directory, "[limits]\nmax_sessions_per_principal = 1000\n").start()
    yield daemon
    for peer in daemon.peers:
        peer.close()
    assert daemon.stop() == 0
    assert "crashed" not in daemon.said, daemon.said


@pytest.fixture
def peer(shared: Hearthd) -> Iterator[Peer]:
    """A connection to the shared daemon."""
    connected = Peer(shared.socket)
    yield connected
    connected.close()


@pytest.fixture
def hearthd(tmp_path: Path) -> Iterator[Callable[..., Hearthd]]:
    """Makes daemons, and ends those that are left."""
    made: list[Hearthd] = []

    def make(config: str = "", *, env: dict[str, str] | None = None, directory: Path | None = None) -> Hearthd:
        daemon = Hearthd(directory or tmp_path, config, env)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        for peer in daemon.peers:
            peer.close()
        if daemon.process is not None and daemon.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                daemon.kill()
