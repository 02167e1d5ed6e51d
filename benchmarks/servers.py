"""The processes under test: started with a configuration of their own, watched from outside, ended for certain.

A server is ready when it says so on stderr. CPU time and memory are the kernel's figures for the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ENDED_WITHIN = 30.0
MCP_FLOORS = {"mcp-http": "http"}
"""By name, what `benchmarks.mcp_floors` calls it. The one over pipes is started by whoever drives it."""
WEBSOCKET_FLOORS = ("echo", "loop", "nursery", "senders")

CONFIG = """\
[server]
socket = "{socket}"

[audit]
path = "{audit}"
durability = "{durability}"

[limits]
idle_ttl_s = 100_000
max_sessions_per_principal = 100_000
session_rate = "999999/s"
max_tasks_per_session = 10_000
max_connections = 100_000
{limits}

[[policy]]
name = "benchmarks"
match = {{ uid = {uid} }}
max_risk = 2
tools = ["hw.*", "gpio.*", "i2c.*", "uart.*", "can.*", "sys.*"]
rate = {{ "hw.board" = "1/h", "*" = "999999/s" }}
rights = ["approve", "observe", "reset_halt"]
"""
"""Everything that guards a real daemon is on; only the numbers are out of the way of thousands of clients."""

WEBSOCKET = """\

[websocket]
listen = "127.0.0.1:0"
"""
"""Who connects from here is known by the uid that owns the other end, and so falls under the same policy entry."""

HTTP = """\

[http]
listen = "127.0.0.1:0"
"""
"""As for [websocket]."""


@frozen
class Server:
    """A running server."""

    address: str
    process: subprocess.Popen[bytes]
    websocket: str = ""
    """Its ws:// address, if it has one; see `over_websocket`."""
    http: str = ""
    """Its http:// address, if it has one; see `over_http`."""

    @property
    def pid(self) -> int:
        """The server's process."""
        return self.process.pid

    def over_websocket(self) -> str:
        """Its ws:// address. Raises RuntimeError if it said of none."""
        if not self.websocket:
            raise RuntimeError("the server did not say that it listens on a ws:// address")
        return self.websocket

    def over_http(self) -> str:
        """Its http:// address. Raises RuntimeError if it said of none."""
        if not self.http:
            raise RuntimeError("the server did not say that it listens on an http:// address")
        return self.http

    def cpu_seconds(self) -> float:
        """The CPU time it has used, in user and kernel mode, all threads."""
        # What clock_getcpuclockid(3) returns for a process: nanoseconds, unlike the ticks of /proc/PID/stat.
        return time.clock_gettime((~self.pid << 3) | 2)

    def memory(self) -> int:
        """Bytes of anonymous memory, resident or swapped out: unlike PSS they do not depend on who else maps a file."""
        size = 0
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Anonymous:", "Swap:")):
                size += int(line.split()[1]) * 1024
        return size


class Servers:
    """Starts what is asked for once, keeps it, and ends it all on leaving."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._kept: dict[str, Server] = {}

    def __enter__(self) -> Self:
        # Sockets need short paths. The audit log goes where the checkout is: to a disk, which /tmp may not be.
        self._sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-bench-")))
        RESULTS.mkdir(exist_ok=True)
        self._state = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def floor(self, name: str) -> Server:
        """Floor "a" or "b", or one of the WebSocket or MCP floors, which have no other address."""
        known = self._kept.get(name)
        if known is None:
            path = self._sockets / f"floor-{name}"
            if name in WEBSOCKET_FLOORS:
                command = [sys.executable, "-m", "benchmarks.websocket_floors", name]
            elif name in MCP_FLOORS:
                command = [sys.executable, "-m", "benchmarks.mcp_floors", MCP_FLOORS[name]]
            else:
                command = [sys.executable, "-m", "benchmarks.floors", name, str(path)]
            known = self._kept[name] = self._stack.enter_context(started(command, str(path)))
        return known

    def hearthd(
        self,
        name: str = "os",
        *,
        durability: str = "os",
        style: str | None = None,
        options: Sequence[str] = (),
        websocket: bool = False,
        http: bool = False,
        limits: str = "",
        more: str = "",
        uid: int | None = None,
        descriptors: Sequence[int] = (),
    ) -> Server:
        """A daemon on the simulated board; the same `name` is the same daemon.

        `limits`: lines more of that section; `more`: more keys of the policy entry, then more sections; `uid`: whom
        alone its policy lets in, by default us; `descriptors`: those of ours that it inherits.
        """
        known = self._kept.get(name)
        if known is None:
            config = self.config(name, durability, websocket=websocket, http=http, limits=limits, more=more, uid=uid)
            if style is not None:
                options = ["--style", style, *options]
            command = [sys.executable, "-m", "benchmarks.hearthd", *options] if options else hearthd_command()
            running = started([*command, "--config", str(config)], str(self._sockets / name), descriptors=descriptors)
            known = self._kept[name] = self._stack.enter_context(running)
        return known

    def config(
        self,
        name: str,
        durability: str = "os",
        *,
        websocket: bool = False,
        http: bool = False,
        limits: str = "",
        more: str = "",
        uid: int | None = None,
    ) -> Path:
        """Write a configuration file for a daemon called `name`."""
        state = self._state / name
        state.mkdir(exist_ok=True)
        config = state / "hearth.toml"
        text = CONFIG.format(
            socket=self._sockets / name,
            audit=state / "audit.log",
            durability=durability,
            uid=os.geteuid() if uid is None else uid,
            limits=limits,
        )
        config.write_text(text + (WEBSOCKET if websocket else "") + (HTTP if http else "") + more)
        return config

    def folder(self, name: str) -> Path:
        """An empty directory with a short path."""
        folder = self._sockets / name
        folder.mkdir()
        return folder


def hearthd_command() -> list[str]:
    """How to run the daemon as it is installed."""
    return _script("hearthd", "from hearth.actors.daemon import main; main()")


def hearth_command() -> list[str]:
    """How to run the command line as it is installed."""
    return _script("hearth", "from hearth.cli.main import main; main()")


def _script(name: str, code: str) -> list[str]:
    script = Path(sys.executable).with_name(name)
    return [str(script)] if script.exists() else [sys.executable, "-c", code]


@contextmanager
def started(
    command: Sequence[str],
    address: str,
    env: dict[str, str] | None = None,
    *,
    descriptors: Sequence[int] = (),
) -> Iterator[Server]:
    """Run a server, which inherits some descriptors, from when it says that it is ready until leaving."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, pass_fds=descriptors)
    assert process.stderr is not None
    try:
        said = []
        listening = {"ws": "", "http": ""}
        for line in process.stderr:
            said.append(line)
            _, _, where = line.decode(errors="replace").strip().partition(": listening on ")
            listening[where.partition("://")[0]] = where
            if b": ready on " in line:
                break
        else:
            raise RuntimeError(f"{command} ended with {process.wait()}: {b''.join(said).decode()}")
        # Whatever else it says is passed on, and a full pipe never holds it up.
        threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True).start()
        yield Server(address, process, listening["ws"], listening["http"])
    finally:
        process.terminate()
        try:
            process.wait(ENDED_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pass_on(stream: IO[bytes]) -> None:
    with stream:
        for line in stream:
            if not line.startswith(b"hearthd: INFO"):
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
