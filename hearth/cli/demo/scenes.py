"""The demo's scenes: a task, the machine, refusals, a busy bus, a cancelled write, a killed controller, a safe machine.

Each scene opens its own session with the running daemon and shows the answers. It claims only facts that it has
compared with a second source.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from hearth._util.python import python_module
from hearth.api import TaskResult, step
from hearth.cli.demo.stage import EEPROM, PAGE, SAFE_LINE, WIRED_TO, DemoFailed, DemoFolder, Stage
from hearth.cli.task_view import brief, event_line
from hearth.client.connection import connect
from hearth.errors import (
    ApprovalRequired,
    Halted,
    InterlockOpen,
    LimitViolated,
    PermissionDenied,
    PlanStale,
    ResourceBusy,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hearth.api import Plan, Step, TaskEvent
    from hearth.client.connection import Client
    from hearth.client.session import ClientSession, ClientTask


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
    stage.happened(_cut(event_line(event)))


def _cut(line: str) -> str:
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
            refusal = await _refusal(session, "file.read", path=str(path))
            stage.happened(f"file.read by {way.ljust(17)} {_refusal_text(refusal)}")
            leads_there = path.read_text(encoding="utf-8") == place.secret.read_text(encoding="utf-8")
            refused = isinstance(refusal, PermissionDenied)
            stage.claim(f"by {way}: refused, though it leads there", leads_there and refused)
        victim = place.shared / "note.txt"
        refusal = await _refusal(session, "file.delete", path=str(victim))
        stage.happened(f"file.delete {'':22} {_refusal_text(refusal)}")
        why = (refusal.data or {}).get("reason") if refusal is not None else None
        stage.claim(
            "file.delete, risk 3: refused before anything was touched",
            why == "max_risk_level=2 < tool=3" and victim.exists(),
            "the file is still there",
        )


async def _refusal(session: ClientSession, tool: str, **args: Any) -> RpcError | None:
    try:
        await session.run(tool, **args)
    except _REFUSED as error:
        return error
    return None


def _refusal_text(refusal: RpcError | None) -> str:
    if refusal is None:
        return "was allowed"
    reason = (refusal.data or {}).get("reason") or refusal.message.removeprefix(f"{refusal.title}: ")
    return f"{refusal.code} {refusal.title}: {reason}"


# --- failures: a busy bus, a task cancelled in a write, a killed controller -------------------------------------------
#
# Times are shown and never claimed. The claims are about the order of events and the final state of the hardware.

TRIES = 3
"""Attempts to cancel during a write, which takes 90 ms: on a busy machine the cancel may come between two writes."""
_PAGES = 8
_CANCEL_IN = 2
_IN_THE_MIDDLE = 0.03
_CONTROLLER_TIMEOUT = 30.0


def _write(page: int, data: bytes) -> Step:
    return step("i2c.write", bus=1, addr=EEPROM, reg=page * PAGE, data=base64.b64encode(data).decode())


async def _read(session: ClientSession, first_page: int, pages: int) -> list[bytes]:
    answer = await session.run("i2c.read", bus=1, addr=EEPROM, reg=first_page * PAGE, len=pages * PAGE)
    data = base64.b64decode(answer["data"])
    return [data[at : at + PAGE] for at in range(0, len(data), PAGE)]


async def a_busy_bus(stage: Stage, client: Client, _place: DemoFolder) -> None:
    """Submit two tasks to a busy bus: with on_busy "fail" one gets RESOURCE_BUSY at once, the other one waits."""
    stage.scene("One bus, one transaction at a time")
    await stage.say(
        "A task takes the I2C bus for itself (exclusive) and writes to an EEPROM. Two other tasks want to read the "
        'thermometer on the same bus: one with on_busy: "fail", and one that waits.'
    )
    reading = step("i2c.read", bus=1, addr="0x48", reg=0, len=2)
    first = _PAGES * TRIES
    async with client.open_session(client_name="hearth demo") as session:
        writes = [_write(first + n, bytes(PAGE)) for n in range(3)]
        writer = await session.submit("write three pages", writes, exclusive=True)
        events = writer.events()
        show(stage, await anext(events))
        busy = None
        try:
            await session.submit("read now or never", [reading], on_busy="fail")
        except ResourceBusy as error:
            busy = error
        waiting = await session.submit("read when it is free", [reading])
        data: Any = (busy.data if busy is not None else None) or {}
        stage.happened(f"i2c.read, on_busy=fail: {'accepted' if busy is None else f'{busy.code} {busy.message}'}")
        stage.claim(
            "the first one is refused at once, with the holder of the bus",
            data.get("bus") == "i2c:1" and data.get("holder_task") == writer.task_id,
            f"held for {data.get('held_ms', 0):.0f} ms by task …{writer.task_id[-6:]}",
        )
        async for event in events:
            show(stage, event)
        done, waited = await writer.get(), await waiting.wait()
        stage.claim("the writer was not disturbed", done.status == "SUCCESS" and _untouched(done))
        stage.claim(
            "the one that waits had its turn afterwards",
            waited.status == "SUCCESS",
            f"{waited.steps[0].latency_ms or 0:.0f} ms, most of them in the queue",
        )


def _untouched(done: TaskResult) -> bool:
    return all(part.status == "SUCCESS" and part.result == {"written": PAGE} for part in done.steps)


async def a_cancelled_write(stage: Stage, client: Client, _place: DemoFolder) -> None:
    """Cancel a task in the middle of a write: the write finishes whole, and the next one never begins."""
    stage.scene("Cancelled in the middle of a write, and nothing is torn")
    await stage.say(
        f"A task writes {_PAGES} pages of {PAGE} bytes to the EEPROM, 90 ms each on this slow bus. While a page is on "
        "the wire, the task is cancelled. The draft forbids cutting such a write short; in hearth nothing is able to."
    )
    async with client.open_session(client_name="hearth demo") as session:
        for attempt in range(TRIES):
            first = attempt * _PAGES
            pages = [bytes([0x10 * (attempt + 1) + n] * PAGE) for n in range(_PAGES)]
            steps = [_write(first + n, data) for n, data in enumerate(pages)]
            task = await session.submit(f"write {_PAGES} pages", steps)
            answer, caught = await _cancel_within(stage, task)
            # A step is RUNNING also in the moment before its first bit is on the wire: cancelled then, it never begins.
            if caught is not None and not (
                (await task.get()).steps[caught].status == "CANCELLED"
                and await _read(session, first + caught, 1) == [b"\xff" * PAGE]
            ):
                break
        else:
            raise DemoFailed(f"this machine is too busy: in {TRIES} tries no cancel came while a page was written")
        done = await task.get()
        stage.claim("the cancel was answered while the write was still under way", answer == "CANCELLING", answer)
        stage.claim(
            f"page {caught}, on the wire at that moment, was finished",
            done.steps[caught].result == {"written": PAGE},
            f"step {caught} took {done.steps[caught].latency_ms or 0:.0f} ms and is SUCCESS",
        )
        states = [part.status for part in done.steps]
        stage.claim(
            "the task is CANCELLED, and no further page was begun",
            done.status == "CANCELLED" and states == ["SUCCESS"] * (caught + 1) + ["CANCELLED"] * (_PAGES - caught - 1),
        )
        held = await _read(session, first, _PAGES)
        for n, data in enumerate(held):
            stage.happened(f"page {n}: {data.hex(' ')}")
        stage.claim(
            f"read back: pages 0 to {caught} hold all {PAGE} bytes, the others were never touched",
            held == pages[: caught + 1] + [b"\xff" * PAGE] * (_PAGES - caught - 1),
        )


async def _cancel_within(stage: Stage, task: ClientTask) -> tuple[str, int | None]:
    """Cancel while a page is written; return the answer, and the page's step if it is still RUNNING after that."""
    answer, caught = "", None
    async for event in task.events():
        show(stage, event)
        if event.phase == "start" and event.step_index == _CANCEL_IN:
            await trio.sleep(_IN_THE_MIDDLE)
            asked = time.perf_counter()
            answer = await task.cancel()
            took = (time.perf_counter() - asked) * 1000
            now = await task.get()
            last = len(now.steps) - 1
            stage.happened(f"task.cancel: {answer}, after {took:.1f} ms; step {last} is {now.steps[last].status}")
            if now.steps[last].status == "RUNNING":
                caught = last
    return answer, caught


async def a_dead_controller(stage: Stage, client: Client, place: DemoFolder) -> None:
    """Kill a controller process; another session sees the line that it drove go to its safe state."""
    stage.scene("A controller dies, and the machine stops")
    await stage.say(
        f"A robot's controller, a process of its own, drives line {SAFE_LINE}. It asked for on_disconnect: "
        '"close" and a heartbeat. Another session watches the line. Then the controller is killed with SIGKILL: it has '
        "no chance to clean up after itself."
    )
    async with _controller(place) as process, client.open_session(client_name="hearth demo") as session:
        stage.happened(f"controller (pid {process.pid}) drives line {SAFE_LINE}")
        stage.claim(f"the line is on while it lives: line {WIRED_TO} reads 1", await level(session, WIRED_TO) == 1)
        falling = step("gpio.watch", line=WIRED_TO, edge="falling", timeout_ms=20_000)
        watch = await session.submit("see it stop", [falling])
        events = watch.events()
        show(stage, await anext(events))
        # A second transaction on the same bus: when it has returned, the earlier watch is in place.
        await level(session, WIRED_TO)
        process.send_signal(signal.SIGKILL)
        killed = time.perf_counter()
        stage.happened("SIGKILL")
        seen = 0.0
        async for event in events:
            seen = seen or (time.perf_counter() - killed) * 1000
            show(stage, event)
        result: Any = (await watch.get()).steps[0].result or {}
        with trio.fail_after(_CONTROLLER_TIMEOUT):
            code = await process.wait()
        stage.claim("the controller was killed: it did not end by itself", code == -signal.SIGKILL, f"exit {code}")
        stage.claim(
            f"line {SAFE_LINE} went to its safe state without it",
            [edge["value"] for edge in result.get("edges", ())] == [0] and await level(session, WIRED_TO) == 0,
            f"seen from the other session {seen:.1f} ms after the kill",
        )


@asynccontextmanager
async def _controller(place: DemoFolder) -> AsyncIterator[trio.Process]:
    """Start the controller's process, and wait until it drives its line."""
    command = python_module("hearth.cli.demo.controller", str(place.socket), str(SAFE_LINE))
    process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = b""
        with trio.move_on_after(_CONTROLLER_TIMEOUT):
            while b"driving" not in said:
                chunk = await process.stdout.receive_some()
                if not chunk:
                    break
                said += chunk
        if b"driving" not in said:
            raise DemoFailed("the controller process did not come up")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


# --- physical safety: a limit, an interlock, a halt, an approval ------------------------------------------------------
#
# A person opens and closes the contacts of the simulated board through its panel.

PUMP = "PUMP"
MOVES_MS = 20_000
"""Milliseconds within which a line must go to a level."""


@asynccontextmanager
async def _seen(session: ClientSession, line: str, value: int) -> AsyncIterator[list[str]]:
    """Watch a line before the block moves it, and wait until it goes to `value`; the list gets how long that took."""
    edge = "rising" if value else "falling"
    watch = await session.submit("see it move", [step("gpio.watch", line=line, edge=edge, timeout_ms=MOVES_MS)])
    await anext(watch.events())
    # A second transaction on the same bus: when it has returned, the watch is in place.
    await level(session, line)
    began, took = time.perf_counter(), list[str]()
    yield took
    result: Any = (await watch.wait()).steps[0].result or {}
    if result.get("timed_out", True):
        raise DemoFailed(f"{line} did not go to {value}")
    took.append(f"{line} reads {value} after {(time.perf_counter() - began) * 1000:.0f} ms")


async def a_limit(stage: Stage, client: Client, _place: DemoFolder) -> None:
    """Switch a heater on for too long, by one pulse and by not switching it off."""
    stage.scene("What may be on for half a second is on for half a second")
    await stage.say(
        "The profile says: HEATER may be on for 500 ms, once in 10 s. First a pulse of 5 s, then a client that "
        "switches it on and does nothing more:"
    )
    async with client.open_session(client_name="hearth demo") as session:
        refusal = await _refusal(session, "gpio.pulse", line="HEATER", value=1, duration_ms=5000)
        stage.happened(_cut(f"gpio.pulse: {_refusal_text(refusal)}"))
        stage.claim(
            "the pulse is refused before it begins",
            isinstance(refusal, LimitViolated) and await level(session, "HEATER") == 0,
        )
        async with _seen(session, "HEATER", 0) as took:
            await session.run("gpio.set", line="HEATER", value=1)
        stage.claim("the daemon switches the heater off by itself", await level(session, "HEATER") == 0, took[0])
        refusal = await _refusal(session, "gpio.set", line="HEATER", value=1)
        stage.happened(_cut(f"gpio.set: {_refusal_text(refusal)}"))
        wait_ms = (refusal.data or {}).get("retry_after_ms", 0) if refusal is not None else 0
        stage.claim(
            "to switch it on again is refused, with the time to wait",
            isinstance(refusal, LimitViolated) and wait_ms > 0 and await level(session, "HEATER") == 0,
            f"retry_after_ms: {wait_ms:.0f}",
        )


async def an_interlock(stage: Stage, client: Client, place: DemoFolder) -> None:
    """Open the door before and while the pump runs: it is not switched on, and it is switched off."""
    stage.scene("The pump runs only while the door is closed")
    await stage.say(
        "The board has a tank. Its profile says: PUMP may be 1 only while DOOR is closed and the tank is below 90 %. "
        "No client can change that. A person opens the door:"
    )
    async with client.open_session(client_name="hearth demo") as session:
        async with _seen(session, "DOOR", 1):
            place.press("DOOR open")
        refusal = await _refusal(session, "gpio.set", line=PUMP, value=1)
        stage.happened(_cut(f"gpio.set: {_refusal_text(refusal)}"))
        stage.claim(
            "refused while the door is open, and the pump does not run",
            isinstance(refusal, InterlockOpen) and await level(session, PUMP) == 0,
        )
        async with _seen(session, "DOOR", 0):
            place.press("DOOR 0")
        await session.run("gpio.set", line=PUMP, value=1)
        stage.claim("with the door closed it runs", await level(session, PUMP) == 1, "PUMP reads 1")
        async with _seen(session, PUMP, 0) as took:
            place.press("DOOR open")
        stage.claim(
            "the door opens, and the daemon stops the pump without a request", await level(session, PUMP) == 0, took[0]
        )
        async with _seen(session, "DOOR", 0):
            place.press("DOOR 0")
        stage.claim("the door is closed again, and the pump does not start by itself", await level(session, PUMP) == 0)


async def a_halt(stage: Stage, client: Client, place: DemoFolder) -> None:
    """Press the e-stop button while the pump runs, release it, and reset the halt."""
    stage.scene("An emergency stop that does not let go by itself")
    await stage.say(
        "The pump runs, and a person presses the e-stop button. It is a halt input of the profile, and a normally "
        "closed contact, so that a broken wire stops the machine too."
    )
    async with client.open_session(client_name="hearth demo") as session:
        await session.run("gpio.set", line=PUMP, value=1)
        stage.claim("the pump runs", await level(session, PUMP) == 1)
        async with _seen(session, PUMP, 0) as took:
            place.press("ESTOP open")
        # A second halt changes nothing, and is answered when the first one is on the disk.
        state = await session.halt()
        stage.happened(f"halted by {state.by}: {state.reason}")
        stage.claim("the pump stops", await level(session, PUMP) == 0, took[0])
        stage.claim("the halt is on the disk, and outlives the daemon", state.latched and place.latch.exists())
        refusal = await _refusal(session, "gpio.set", line=SAFE_LINE, value=1)
        stage.happened(_cut(f"gpio.set: {_refusal_text(refusal)}"))
        stage.claim("nothing is driven any more", isinstance(refusal, Halted) and await level(session, WIRED_TO) == 0)
        tank = await session.run("hw.sensor.read", sensor="tank")
        stage.claim("reads go on", tank["unit"] == "percent", f"the tank is at {tank['value']:.1f} %")
        async with _seen(session, "ESTOP", 0):
            place.press("ESTOP 0")
        stage.claim("the button is released, and the daemon is still halted", (await session.halt_status()).halted)
        state = await session.reset_halt()
        stage.claim(
            "a person with the right to do so resets the halt, and nothing starts by itself",
            not state.halted and not place.latch.exists() and await level(session, PUMP) == 0,
        )


async def an_approval(stage: Stage, client: Client, place: DemoFolder) -> None:
    """Prepare a plan of risk 3, approve it from another connection, and execute it once."""
    stage.scene("A person approves exactly what runs")
    await stage.say(
        "The policy wants a person's approval from risk 3 on. An agent prepares a plan: switch a line on, and delete a "
        "file. A person sees it in another client, with what it changes, and approves it (the same user here; "
        "`other = true` asks for another one):"
    )
    victim = place.shared / "note.txt"
    steps = [step("gpio.set", line=SAFE_LINE, value=1), step("file.delete", path=str(victim))]
    async with (
        client.open_session(client_name="hearth demo") as agent,
        connect(place.socket) as other,
        other.open_session(client_name="a person") as person,
    ):
        plan = await agent.prepare("tidy up", steps, max_risk_level=3)
        for each in plan.steps:
            changes = f"{brief(each.before)} -> {brief(each.after)}" if each.before else "no state to show"
            stage.happened(f"{each.tool.ljust(11)} {brief(each.args)}: {changes}")
        early = await _not_executed(agent, plan, ApprovalRequired)
        stage.claim(
            "without an approval it is refused, and nothing has changed",
            early is not None and victim.exists() and await level(person, WIRED_TO) == 0,
            _cut(_refusal_text(early)),
        )
        (listed,) = [one for one in await person.plans() if one.state == "waiting"]
        seen = await person.plan(listed.plan_id)
        stage.claim("the person sees the plan of the agent, by its hash", seen.hash == plan.hash, plan.hash[:23] + "…")
        await person.approve(seen)
        task = await agent.execute(plan)
        done = await task.wait()
        stage.claim(
            "approved, it runs: the line is on, and the file is gone",
            done.status == "SUCCESS" and not victim.exists() and await level(person, WIRED_TO) == 1,
        )
        again = await _not_executed(agent, plan, PlanStale)
        stage.claim("it runs once: a second time is refused", again is not None, _cut(_refusal_text(again)))


async def _not_executed(session: ClientSession, plan: Plan, expected: type[RpcError]) -> RpcError | None:
    try:
        await session.execute(plan)
    except expected as error:
        return error
    return None
