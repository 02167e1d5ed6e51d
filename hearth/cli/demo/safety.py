"""The demo's scenes of physical safety: a limit, an interlock, a halt, an approval.

A person opens and closes the contacts of the simulated board through its panel.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hearth.api import step
from hearth.cli.demo.daemon import SAFE_LINE, WIRED_TO, DemoFolder
from hearth.cli.demo.scenes import cut, level, refusal_of, refusal_text
from hearth.cli.demo.stage import DemoFailed, Stage
from hearth.cli.task_view import brief
from hearth.client.connection import connect
from hearth.errors import (
    ApprovalRequired,
    Halted,
    InterlockOpen,
    LimitViolated,
    PlanStale,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hearth.api import Plan
    from hearth.client.connection import Client
    from hearth.client.session import ClientSession


PUMP = "PUMP"
MOVES_MS = 20_000
"""Milliseconds within which a line must go to a level."""


async def _refused(stage: Stage, session: ClientSession, tool: str, **args: Any) -> RpcError | None:
    """Make a call that the daemon refuses, show the refusal, and return it; None if it runs."""
    refusal = await refusal_of(session, tool, **args)
    stage.happened(cut(f"{tool}: {refusal_text(refusal)}"))
    return refusal


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
        refusal = await _refused(stage, session, "gpio.pulse", line="HEATER", value=1, duration_ms=5000)
        stage.claim(
            "the pulse is refused before it begins",
            isinstance(refusal, LimitViolated) and await level(session, "HEATER") == 0,
        )
        async with _seen(session, "HEATER", 0) as took:
            await session.run("gpio.set", line="HEATER", value=1)
        stage.claim("the daemon switches the heater off by itself", await level(session, "HEATER") == 0, took[0])
        refusal = await _refused(stage, session, "gpio.set", line="HEATER", value=1)
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
        refusal = await _refused(stage, session, "gpio.set", line=PUMP, value=1)
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
        refusal = await _refused(stage, session, "gpio.set", line=SAFE_LINE, value=1)
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
            cut(refusal_text(early)),
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
        stage.claim("it runs once: a second time is refused", again is not None, cut(refusal_text(again)))


async def _not_executed(session: ClientSession, plan: Plan, expected: type[RpcError]) -> RpcError | None:
    try:
        await session.execute(plan)
    except expected as error:
        return error
    return None
