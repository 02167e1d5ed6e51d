"""A real hearthd, as a process, on a socket of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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
        task = {
            "intent": "test",
            "steps": [{"tool": tool, "args": args} for tool, args in steps],
            "constraints": constraints,
        }
        return str(self.call("task.submit", {"session_id": session_id, "task": task})["result"]["task_id"])

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

    def start(self, *arguments: str) -> Hearthd:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hearth.actors.daemon", "--config", str(self.config), *arguments],
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
