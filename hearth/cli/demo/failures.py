"""The demo's scenes of failures: a busy bus, a task cancelled in a write, a killed controller.

Times are shown and never claimed. The claims are about the order of events and the final state of the hardware.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from hearth._util.python import python_module
from hearth.api import TaskResult, step
from hearth.cli.demo.daemon import EEPROM, PAGE, SAFE_LINE, WIRED_TO, DemoFolder
from hearth.cli.demo.scenes import level, show
from hearth.cli.demo.stage import DemoFailed, Stage
from hearth.errors import (
    ResourceBusy,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hearth.api import Step
    from hearth.client.connection import Client
    from hearth.client.session import ClientSession, ClientTask


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
