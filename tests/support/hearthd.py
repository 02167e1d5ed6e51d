"""A real hearthd as a process, on a socket of its own, and a client that is not ours: bytes on a socket.

`Wire` is what every such client has; `Peer` is one that works with sessions and tasks. Both take the path of a Unix
socket, or a connection that is made (support.dialing has those of the other carriers). The conformance tests have their
own, which speaks as the draft's plain client does, and a daemon with more knobs (tests/conformance/daemon.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from support import preloaded

from hearth.audit.files import rotated_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BOUND = 50
"""Seconds after which any wait here is a failure: less than the 60 s or more of what must hold up no end."""


def eventually(condition: Callable[[], Any], what: str = "it") -> Any:
    """Look again until the condition holds, and return what it returned; the bound makes a failure of waiting."""
    limit = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < limit, f"{what} has not come about within {BOUND} s"
        time.sleep(0.005)
    return found


def submission(session_id: str, *steps: tuple[str, dict[str, Any]], **constraints: Any) -> dict[str, Any]:
    """The params of a task.submit."""
    asked = [{"tool": tool, "args": args} for tool, args in steps]
    return {"session_id": session_id, "task": {"intent": "test", "steps": asked, "constraints": constraints}}


def request(id_: Any, method: str, params: Any = None) -> bytes:
    """One line."""
    return json.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params or {}}).encode() + b"\n"


def unix_socket(path: Path) -> socket.socket:
    """A connected socket."""
    connected = socket.socket(socket.AF_UNIX)
    # Connected while it blocks: then it waits for its turn where many connect at once.
    try:
        connected.connect(str(path))
    except OSError:
        connected.close()
        raise
    return connected


def listens(path: Path) -> bool:
    """Whether somebody takes connections there: a socket's file is there a moment before."""
    try:
        unix_socket(path).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


class Wire:
    """A connection to a daemon: what is sent and received is exactly what is on it."""

    def __init__(self, place: Any) -> None:
        self.socket = unix_socket(place) if isinstance(place, Path) else place
        self.socket.settimeout(BOUND)
        self._lines = self.socket.makefile("rb")
        self._last_id = 0

    def send(self, *documents: bytes) -> None:
        self.socket.sendall(b"".join(documents))

    def raw(self) -> bytes:
        """The next line with its line end; b"" when the server has closed."""
        text = self._lines.readline()
        assert not text or text.endswith(b"\n"), "the server closed in the middle of a line"
        return text

    def line(self) -> Any:
        """The next line, read; None when the server has closed."""
        text = self.raw()
        return json.loads(text) if text else None

    def start(self, method: str, params: Any = None, **members: Any) -> int:
        """Send a request; returns its id."""
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}, **members}
        self.send(json.dumps(request).encode() + b"\n")
        return self._last_id

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


class Peer(Wire):
    """A client that works: sessions, tasks, and their ends."""

    daemon: Hearthd | None = None
    """What it is connected to, where a failure should show how that ended."""

    def call(self, method: str, params: Any = None) -> Any:
        """Call and return the whole answer, passing over notifications."""
        id_ = self.start(method, params)
        while True:
            answer = None
            with contextlib.suppress(ConnectionResetError):
                answer = self.line()
            assert answer is not None, f"the server closed before it answered {method}{self._why()}"
            if answer.get("id") == id_:
                return answer

    def _why(self) -> str:
        if self.daemon is None or self.daemon.process is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.daemon.process.wait(1)
        return f"; its exit code is {self.daemon.process.returncode}, and it said:\n{self.daemon.said[-2000:]}"

    def answer_or_refusal(self, method: str) -> Any:
        """Call as the first thing on a connection; also one that is turned away is answered."""
        with contextlib.suppress(BrokenPipeError):
            self.start(method)
        return self.line()

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
        # From its first event: it may be followed already, and `call` passes over the events before its answer.
        answer = self.call("task.events.subscribe", {**here, "from_seq": 1})
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

    def until_cut_off(self) -> None:
        """Wait until the server closes the connection, without reading anything."""
        poll = select.poll()
        poll.register(self.socket, 0)
        assert poll.poll(BOUND * 1000), "the server keeps the connection"


_OTHER_USER = """
import os, socket, sys
os.setgroups([int(group) for group in sys.argv[2].split()])
os.setgid(65534)
os.setuid(65534)
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(60)
peer.connect(sys.argv[1])
peer.sendall(sys.stdin.buffer.read())
peer.shutdown(socket.SHUT_WR)
for line in peer.makefile("rb"):
    sys.stdout.buffer.write(line)
"""


def as_nobody(path: Path, *documents: bytes, groups: Sequence[int] = ()) -> list[Any]:
    """What a process of the user nobody, in these groups beside its own, is answered. Needs root."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _OTHER_USER, str(path), " ".join(map(str, groups))],
        input=b"".join(documents),
        capture_output=True,
        timeout=BOUND,
        check=False,
    )
    if done.returncode:
        raise PermissionError(done.stderr.decode())
    return [json.loads(line) for line in done.stdout.splitlines()]


class Hearthd:
    """The daemon under test."""

    def __init__(
        self,
        directory: Path,
        config: str = "",
        env: dict[str, str] | None = None,
        *,
        server: str = "",
        audit: str = "checkpoint_every = 50",
        logs: Path | None = None,
    ) -> None:
        """`config` is more of hearth.toml; `server` and `audit` are more of these two tables of it.

        The audit log is in `logs`, or in the daemon's own directory.
        """
        self.directory = directory
        self.socket = directory / "hearth.sock"
        self.audit = (logs or directory) / "audit.log"
        self.config = directory / "hearth.toml"
        self.config.write_text(
            f'[server]\nsocket = "{self.socket}"\n{server}\n[audit]\npath = "{self.audit}"\n{audit}\n{config}\n'
        )
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.said = ""
        self.listening: dict[str, str] = {}
        """Where else it listens, by scheme, as it said when it started."""
        self.peers: list[Any] = []

    def start(self, *arguments: str, prefix: Sequence[str] = (), program: Sequence[str] = preloaded.COMMAND) -> Hearthd:
        """Start it and wait until it is ready; `prefix` is a command that runs it (nohup …).

        It is a fork of a process that has imported it, where that makes no difference.
        """
        self.said = ""
        words = ["--config", str(self.config), *arguments]
        if not prefix and program == preloaded.COMMAND and preloaded.serves(self.env):
            self.process = preloaded.Daemon(words, stderr=subprocess.PIPE, env=self.env)
        else:
            command = [*prefix, sys.executable, *program, *words]
            self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=self.env)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if line.startswith("hearthd: listening on "):
                address = line.split()[-1]
                self.listening[address.partition(":")[0]] = address
            if line.startswith("hearthd: ready on "):
                # Nobody must be able to stop it by not reading what it says, but that is one test's business.
                self._listener = threading.Thread(target=self._listen, args=[self.process.stderr], daemon=True)
                self._listener.start()
                return self
        self.process.stderr.close()
        self.process.wait(BOUND)
        raise AssertionError(f"hearthd did not start:\n{self.said}")

    def _listen(self, stderr: IO[str]) -> None:
        with stderr:
            for line in stderr:
                self.said += line

    def peer(self, connected: Any = None) -> Peer:
        """A client on its socket, or on this connection to it; closed at the end."""
        self.peers.append(Peer(self.socket if connected is None else connected))
        self.peers[-1].daemon = self
        return self.peers[-1]

    def hang_up(self) -> None:
        """Close all clients."""
        for peer in self.peers:
            peer.close()
        self.peers.clear()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end; returns the exit status."""
        assert self.process is not None
        status = self.process.wait(BOUND)
        self._listener.join(BOUND)
        return status

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def end(self) -> None:
        """Whatever state it is in: leave nothing behind."""
        self.hang_up()
        if self.process is None or self.process.poll() is not None:
            return
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def records(self, **like: Any) -> list[dict[str, Any]]:
        """The audit records with these members, from the first file that was rotated to the last line that is whole."""
        text = b"".join(file.read_bytes() for file in (*rotated_files(self.audit), self.audit))
        records = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
        return [record for record in records if like.items() <= record.items()]

    def recorded(self, **like: Any) -> dict[str, Any]:
        """Wait for a record with these members, and return the first."""
        found: list[dict[str, Any]] = eventually(lambda: self.records(**like), f"an audit record {like}")
        return found[0]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so that the daemon does in its own time; fail after a generous bound."""
        eventually(condition)

    def memory(self) -> int:
        """Resident memory, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))
