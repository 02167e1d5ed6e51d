"""The demo's scenes: a task, the machine, refusals, a busy bus, a cancelled write, a killed controller, a safe machine.

Each scene opens its own session with the running daemon and shows the answers. It claims only facts that it has
compared with a second source.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

from hearth.cli.demo.daemon import SAFE_LINE, WIRED_TO, DemoFolder
from hearth.cli.task_view import event_line
from hearth.errors import (
    Halted,
    InterlockOpen,
    LimitViolated,
    PermissionDenied,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.api import TaskEvent
    from hearth.cli.demo.stage import Stage
    from hearth.client.connection import Client
    from hearth.client.session import ClientSession


EXAMPLE: Mapping[str, Any] = {
    "intent": "Read sensor and toggle status LED",
    "steps": [
        {"tool": "i2c.read", "args": {"bus": 1, "addr": "0x48", "reg": "0x00", "len": 2}},
        {"tool": "gpio.set", "args": {"line": 17, "value": 1}},
    ],
    "constraints": {"max_duration_ms": 5000, "abort_on_step_failure": True, "max_risk_level": 2},
}
"""The task of the draft's section 3.4, word for word."""

REFUSALS = 4
"""Number of the refusals in `the_guards`; the last scene counts them in the audit log."""
LONGEST_LINE = 92
_REFUSED = (PermissionDenied, LimitViolated, InterlockOpen, Halted)
_TOLERANCE = 0.5
"""Degrees by which a room may change between two readings."""


def show(stage: Stage, event: TaskEvent) -> None:
    """Show an event, cut to the length of a line."""
    stage.happened(cut(event_line(event)))


def cut(line: str) -> str:
    """Return a line that fits the stage."""
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


async def level(session: ClientSession, line: int | str) -> int:
    """Return the present level of a line."""
    return int((await session.run("gpio.get", line=line))["value"])


async def what_there_is(stage: Stage, client: Client, _place: DemoFolder) -> None:
    """Show the tools of a session and the health of the buses; this continues the scene of the daemon's start."""
    async with client.open_session(client_name="hearth demo") as session:
        tools = await session.tools()
        board = await session.run("hw.board")
    stage.claim("it is up, and every bus is healthy", board["health"]["ok"], ", ".join(board["health"]["buses"]))
    risky = sum(tool["risk_level"] >= 2 for tool in tools)
    stage.claim(
        f"it offers {len(tools)} tools, each with a schema and a risk level",
        bool(tools) and all("params_schema" in tool and "risk_level" in tool for tool in tools),
        f"{risky} of them can move something or destroy something",
    )


async def a_task(stage: Stage, client: Client, _place: DemoFolder) -> None:
    """Run the draft's own example (one intent, two steps, one status), and check the safe state after the session."""
    stage.scene("A task: say what for, then the steps")
    await stage.say(
        "An agent opens a session and submits the example of the HACP draft: read a thermometer over I2C, then switch "
        f"line {SAFE_LINE} on. These are the daemon's events, as they come:"
    )
    async with client.open_session(client_name="hearth demo") as session:
        task = await session.submit(EXAMPLE["intent"], EXAMPLE["steps"], **EXAMPLE["constraints"])
        events = []
        async for event in task.events():
            show(stage, event)
            events.append(event)
        done = await task.get()
        expected = ["start", "finish", "start", "finish", "task_finish"]
        stage.claim("the task ended SUCCESS", done.status == "SUCCESS", f"task {done.task_id}")
        stage.claim(
            "each step was told when it began and when it had finished",
            [event.phase for event in events] == expected and [event.seq for event in events] == [1, 2, 3, 4, 5],
            f"{len(events)} events, none missing",
        )
        raw = base64.b64decode((done.steps[0].result or {})["data"])
        celsius = (int.from_bytes(raw, "big", signed=True) >> 4) / 16
        sensor = await session.run("hw.sensor.read", sensor="temperature")
        stage.claim(
            f"the thermometer says {celsius:.2f} °C",
            len(raw) == 2 and abs(celsius - sensor["value"]) <= _TOLERANCE,
            f"the bytes {raw.hex(' ')} in 1/16 °C; hw.sensor.read says {sensor['value']:.2f}",
        )
        stage.claim(
            f"line {SAFE_LINE} is on", await level(session, WIRED_TO) == 1, f"line {WIRED_TO}, wired to it, reads 1"
        )
    async with client.open_session(client_name="hearth demo") as session:
        stage.claim(
            f"the session is closed, and line {SAFE_LINE} went to its safe state by itself",
            await level(session, WIRED_TO) == 0,
            f"line {WIRED_TO} reads 0",
        )


async def the_machine(stage: Stage, client: Client, place: DemoFolder) -> None:
    """Show telemetry and files of this machine, which are not simulated."""
    stage.scene("The machine itself, through the same daemon")
    await stage.say("Not all is simulated: this is the machine you are on, and a file in a directory that may be used.")
    async with client.open_session(client_name="hearth demo") as session:
        cpu, memory, load, uptime = [
            await session.run(tool) for tool in ("sys.cpuinfo", "sys.memory", "sys.load", "sys.uptime")
        ]
        total, available = memory["total_bytes"] / 2**30, memory["available_bytes"] / 2**30
        stage.happened(f"sys.cpuinfo   {cpu['model'] or cpu['architecture']}, {cpu['logical_cores']} cores")
        stage.happened(f"sys.memory    {total:.1f} GiB, of which {available:.1f} available")
        stage.happened(f"sys.load      {load['load_1m']:.2f} {load['load_5m']:.2f} {load['load_15m']:.2f}")
        stage.happened(f"sys.uptime    {uptime['uptime_s'] / 3600:.1f} h, since {uptime['boot_time']}")
        stage.claim(
            "it is this machine: the kernel tells this process the same",
            memory["total_bytes"] == _memory_total() and cpu["logical_cores"] == os.cpu_count(),
            "memory and cores compared with /proc",
        )
        text = b"written through hearth, read without it\n"
        path = place.shared / "note.txt"
        written = await session.run("file.write", path=str(path), data=base64.b64encode(text).decode())
        read = await session.run("file.read", path=str(path))
        stage.happened(f"file.write    {path} ({written['size']} bytes)")
        stage.claim(
            "the file is really there, and file.read returns it",
            path.read_bytes() == text == base64.b64decode(read["data"]),
            "read back without hearth, too",
        )


def _memory_total() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))


async def the_guards(stage: Stage, client: Client, place: DemoFolder) -> None:
    """Show refusals of the policy: paths outside the allowed directory, and a tool above the risk cap."""
    stage.scene("What an agent may not do, it cannot do")
    await stage.say(
        f"This session may use {place.shared.name}/ and tools up to risk 2. Beside it lies a secret. Three ways to it, "
        "and then one tool of risk 3:"
    )
    ways = {
        "its path": place.secret,
        "a .. in the path": place.shared / ".." / place.secret.name,
        "a symbolic link": place.shared / "escape",
    }
    async with client.open_session(client_name="hearth demo") as session:
        for way, path in ways.items():
            refusal = await refusal_of(session, "file.read", path=str(path))
            stage.happened(f"file.read by {way.ljust(17)} {refusal_text(refusal)}")
            leads_there = path.read_text(encoding="utf-8") == place.secret.read_text(encoding="utf-8")
            refused = isinstance(refusal, PermissionDenied)
            stage.claim(f"by {way}: refused, though it leads there", leads_there and refused)
        victim = place.shared / "note.txt"
        refusal = await refusal_of(session, "file.delete", path=str(victim))
        stage.happened(f"file.delete {'':22} {refusal_text(refusal)}")
        why = (refusal.data or {}).get("reason") if refusal is not None else None
        stage.claim(
            "file.delete, risk 3: refused before anything was touched",
            why == "max_risk_level=2 < tool=3" and victim.exists(),
            "the file is still there",
        )


async def refusal_of(session: ClientSession, tool: str, **args: Any) -> RpcError | None:
    """Return the error with which the daemon refuses a call; None if it runs."""
    try:
        await session.run(tool, **args)
    except _REFUSED as error:
        return error
    return None


def refusal_text(refusal: RpcError | None) -> str:
    """Return a refusal as it is shown."""
    if refusal is None:
        return "was allowed"
    reason = (refusal.data or {}).get("reason") or refusal.message.removeprefix(f"{refusal.title}: ")
    return f"{refusal.code} {refusal.title}: {reason}"
