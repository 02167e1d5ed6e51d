"""How fast things start: whole processes, each paired with the bare import that it cannot do without."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from benchmarks.quiet import quietest
from benchmarks.report import Row
from benchmarks.servers import ENDED_WITHIN, ROOT, hearth_command, hearthd_command, started

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

    Once: TypeAlias = Callable[[], float]


class CannotStart(Exception):
    """The process did not do what was asked of it."""


@frozen
class Start:
    """The time until something has started, over the time of `python -c "import MODULE"`."""

    name: str
    what: str
    goal: float
    module: str
    prepare: Callable[[Servers], Once]

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        bare = [sys.executable, "-c", f"import {self.module}"]
        once = self.prepare(servers)
        # As an installed package has it, and as the bare module has it, whatever this machine thinks of writing them.
        for package in ("hearth", "actors", "drivers"):
            compileall.compile_dir(ROOT / package, quiet=2)

        def turn(number: int) -> tuple[float, float]:
            first = _finished(bare) if number % 2 else once()
            second = once() if number % 2 else _finished(bare)
            return (second, first) if number % 2 else (first, second)

        try:
            turn(0)  # with cold caches
            turns = quietest(turn, effort.starts, repeats=effort.repeats)
        except CannotStart as error:
            yield Row(self.name, self.what, None, goal=self.goal, sense="at most", note=str(error))
            return
        times, bases = zip(*turns.kept, strict=True)
        found = [one / other for one, other in turns.kept]
        yield Row(
            self.name,
            self.what,
            median(found),
            f"x {self.module}",
            self.goal,
            "at most",
            spread=(min(found), max(found)),
            others=turns.others,
            note=f"{median(times) * 1000:.0f} ms; import {self.module}: {median(bases) * 1000:.0f} ms",
            detail={"seconds": times, "bare_seconds": bases},
        )


def _finished(command: Sequence[str]) -> float:
    """Seconds that a whole process takes."""
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
        raise CannotStart(f"exit code {done.returncode}: {last[0]}")
    return took


def _daemon(servers: Servers) -> Once:
    """Hearthd without a configuration: the simulated board, everything by default, in directories of its own."""
    folder = str(servers.folder("defaults"))
    env = {**os.environ, "RUNTIME_DIRECTORY": folder, "STATE_DIRECTORY": folder}
    return lambda: _ready(hearthd_command(), env)


def _configured(servers: Servers) -> Once:
    config = servers.config("configured")
    return lambda: _ready([*hearthd_command(), "--config", str(config)], None)


def _ready(command: Sequence[str], env: dict[str, str] | None) -> float:
    """Seconds until a daemon says that it is ready."""
    begun = time.perf_counter()
    try:
        with started(command, "", env):
            return time.perf_counter() - begun
    except RuntimeError as error:
        raise CannotStart(str(error)) from error


@frozen
class McpStart:
    """The CPU time of `hearth mcp` until a client has the list of tools: all that a client waits for at its start."""

    name: str
    what: str
    goal: float
    arguments: Callable[[Servers], Sequence[str]]

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        env = {**os.environ, "XDG_STATE_HOME": str(servers.folder(self.name))}
        command = [*hearth_command(), "mcp", *self.arguments(servers)]
        try:
            _until_listed(command, env)  # with cold caches
            turns = quietest(lambda _: _until_listed(command, env), effort.starts, repeats=effort.repeats)
        except CannotStart as error:
            yield Row(self.name, self.what, None, goal=self.goal, sense="at most", note=str(error))
            return
        times, tools = zip(*turns.kept, strict=True)
        yield Row(
            self.name,
            self.what,
            median(times),
            "s of CPU",
            self.goal,
            "at most",
            spread=(min(times), max(times)),
            others=turns.others,
            note=f"{tools[0]} tools",
            detail={"seconds": times},
        )


def _until_listed(command: Sequence[str], env: dict[str, str]) -> tuple[float, int]:
    """Return the CPU seconds of a process until it has listed its tools, and their number."""
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        answers = []
        for document in MCP_HANDSHAKE:
            process.stdin.write(json.dumps(document).encode() + b"\n")
            process.stdin.flush()
            if "id" in document:
                answers.append(process.stdout.readline())
        if not answers[-1]:
            raise CannotStart("it ended before it listed its tools")
        # The fields after the name, which may have spaces: the 12th and 13th are the times as user and in the kernel.
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        process.stdin.close()
        process.wait(ENDED_WITHIN)
    return used, len(json.loads(answers[-1])["result"]["tools"])


MCP_HANDSHAKE = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "benchmarks", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}},
)

STARTS: list[Start | McpStart] = [
    Start("start-hearthd", "hearthd ready on sim", 3, "trio", _daemon),
    Start("start-config", "hearthd --config FILE ready on sim", 3, "trio", _configured),
    Start("start-cli", "hearth --help", 1.5, "click", lambda _: lambda: _finished([*hearth_command(), "--help"])),
    McpStart("cpu-mcp-board", "hearth mcp --board sim, until tools/list", 1.0, lambda _: ("--board", "sim")),
    McpStart("cpu-mcp", "hearth mcp, until tools/list", 1.0, lambda servers: ("--to", servers.hearthd().address)),
]
