"""Unsafe requests, after published reports of incidents: each is refused, by its code, before it reaches a driver.

A request is what a model or a program would have to ask of hearth to do on the simulated plant (`support.plant`)
what the report tells. `source` names the report: an issue as owner/repository#number, or a report of an authority and
its year. Where it can, a request comes as a submission, as a plan, and over MCP. An observer behind the guard, which
shares no code with what refuses, notes all that a driver is asked to do.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from attrs import evolve
from support.hcp import Caller, capability
from support.mcp import mcp_client
from support.plant import (
    ANGLE,
    ARM,
    CALIBRATION,
    CAROL,
    CLOCK,
    DAN,
    DOSE,
    ERIN,
    FRANK,
    GRACE,
    JOINT,
    LINE,
    MONITOR,
    OPENED,
    POSITION,
    RATE,
    SPEED,
    TANK,
    asks,
    called,
    caller,
    ended,
    plant,
    pulse,
    put,
    turn,
)
from support.world import ALICE, BOB

import hearth
from hearth import expect, step
from hearth._util.toml import dump_value
from hearth.actors.admission import Admission
from hearth.actors.bus.guard import BusGuard
from hearth.actors.bus.interlocks import BusInterlocks, Interlocks
from hearth.actors.bus.limit import Limit
from hearth.actors.bus.queue import HaltFlag
from hearth.actors.bus.transactions import Transactions
from hearth.config.model import load_config
from hearth.errors import (
    ApprovalRequired,
    Halted,
    InterlockOpen,
    InvalidParams,
    LimitViolated,
    PermissionDenied,
    PlanStale,
    RateLimited,
    RpcError,
    SessionInvalid,
    ToolNotFound,
)
from hearth.mcp.names import META_KEY, PLAN
from hearth.policy.rules import ApprovalRule, Scope

LIMIT, OPEN, HALT, DENIED = LimitViolated, InterlockOpen, Halted, PermissionDenied
PERSON, STALE, RATED, BAD, NONE, GONE = (
    ApprovalRequired,
    PlanStale,
    RateLimited,
    InvalidParams,
    ToolNotFound,
    SessionInvalid,
)


class Unsafe(NamedTuple):
    """One request. `attempts` are its ways, each of which raises `refusal`; `given` prepares the plant."""

    source: str
    told: str
    attempts: Any
    refusal: type[RpcError]
    given: Any = None


# --- the state of the plant that a report begins with -----------------------------------------------------------------


async def gate_open(made):
    made.push("GATE", OPENED)
    await trio.sleep(1)


async def lid_open(made):
    made.push("LID", OPENED)
    await trio.sleep(1)


async def tank_full(made):
    made.tank = 97.0


async def sensor_silent(made):
    made.i2c.faults.nack(1_000_000, addr=TANK)


async def sensor_stuck(made):
    made.i2c.faults.wedge(addr=TANK)
    await trio.sleep(5)


async def sensor_reads_nothing(made):
    made.room = 0.0


async def halted(made):
    await (await made.session(BOB)).halt("smoke")
    await trio.testing.wait_all_tasks_blocked()


async def stopped_and_released(made):
    made.push("ESTOP", OPENED)
    await trio.sleep(1)
    made.push("ESTOP", 0)
    await trio.sleep(1)


async def stop_pressed(made):
    made.push("ESTOP", OPENED)
    await trio.sleep(1)


async def stopped_and_reset(made):
    operator = await made.session(BOB)
    await operator.halt("smoke")
    await operator.reset_halt()


async def relay_switched(made):
    session = await made.session()
    await session.run("gpio.set", line="RELAY", value=1)
    await session.run("gpio.set", line="RELAY", value=0)


async def rate_is_five(made):
    made.i2c.devices[ARM].memory[RATE] = 5
    await (await made.session()).run("i2c.read", bus=1, addr=ARM, reg=RATE, len=1)


async def joint_is_ten(made):
    made.i2c.devices[ARM].memory[JOINT] = 10
    await (await made.session()).run("i2c.read", bus=1, addr=ARM, reg=JOINT, len=1)


# --- what takes more than one request ---------------------------------------------------------------------------------


async def plan_before_the_gate_opened(made):
    session = await made.session()
    plan = await session.prepare("move", [turn("MOTOR", 1)])
    await gate_open(made)
    await ended(await session.execute(plan))


async def rest_of_a_task_after_the_reset(made):
    session, operator = await made.session(), await made.session(BOB)
    task = await session.submit("wait, then move", [step("gpio.watch", line="LAMP"), turn("MOTOR", 1)])
    await trio.sleep(1)
    await operator.halt("smoke")
    await operator.reset_halt()
    result = await task.wait()
    assert result.status == "CANCELLED"
    raise Halted(result.error)


async def plan_prepared_before_the_stop(made):
    session = await made.session()
    plan = await session.prepare("move", [turn("MOTOR", 1)])
    await stopped_and_reset(made)
    await session.execute(plan)


async def reset_while_the_button_is_pressed(made):
    operator = await made.session(BOB)
    await operator.reset_halt()


async def reset_by_the_agent(made):
    await (await made.session()).reset_halt()


async def reset_before_the_stop(made):
    # The reset is in the mailbox when the second stop comes.
    session, operator = await made.session(), await made.session(BOB)
    refused = []

    async def reset():
        try:
            await operator.reset_halt()
        except RpcError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reset)
        # In the first turn the request is posted, in the second the session takes it, and in the third it is executed.
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        await session.halt("again")
    (error,) = refused
    raise error


async def undo_after_the_stop(made):
    session, operator = await made.session(), await made.session(BOB)
    steps = [turn("LAMP", 0), step("gpio.watch", line="RELAY", timeout_ms=60_000)]
    await session.run("gpio.set", line="LAMP", value=1)
    task = await session.submit("dark for a moment", steps, rollback_on_failure=True)
    await trio.sleep(1)
    made.watched.forget()
    await operator.halt("smoke")
    await operator.reset_halt()
    result = await task.wait()
    assert [one.rolled_back for one in result.steps] == [False, None]
    raise Halted(result.error)


async def changed_after_it_was_shown(made):
    session, other = await made.session(), await made.session(CAROL)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await other.run("gpio.set", line="LAMP", value=1)
    made.watched.forget()
    await session.execute(plan)


async def other_args_than_approved(made):
    client, operator = await made.tools(FRANK), await made.session(BOB)
    with pytest.raises(PERSON):
        await called(client, "gpio_set", {"line": "LAMP", "value": 1})
    (listed,) = [one for one in await operator.plans() if not one.own]
    plan = await operator.plan(listed.plan_id)
    await operator.approve(plan)
    await called(client, "gpio_set", {"line": "HEATER", "value": 1})


async def approved_once_called_twice(made):
    client, operator = await made.tools(FRANK), await made.session(BOB)
    with pytest.raises(PERSON):
        await called(client, "gpio_set", {"line": "LAMP", "value": 0})
    (listed,) = [one for one in await operator.plans() if not one.own]
    plan = await operator.plan(listed.plan_id)
    await operator.approve(plan)
    await called(client, "gpio_set", {"line": "LAMP", "value": 0})
    made.watched.forget()
    await called(client, "gpio_set", {"line": "LAMP", "value": 0})


async def executed_twice(made):
    session = await made.session()
    plan = await session.prepare("read", [step("gpio.get", line="LAMP")])
    await ended(await session.execute(plan))
    await session.execute(plan)


async def tried_out_after_the_approval(made):
    client, operator = await made.tools(FRANK), await made.session(BOB)
    call = {"intent": "light", "steps": [turn("LAMP", 1).to_wire()]}
    with pytest.raises(PERSON):
        await called(client, PLAN, call)
    (listed,) = [one for one in await operator.plans() if not one.own]
    plan = await operator.plan(listed.plan_id)
    await operator.approve(plan)
    await called(client, PLAN, {**call, "dry_run": True})


async def approved_with_another_hash(made):
    session, operator = await made.session(FRANK), await made.session(BOB)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await operator.approve(evolve(plan, hash="sha256:" + "0" * 64))


async def approved_content_submitted_past_the_plan(made):
    session, operator = await made.session(FRANK), await made.session(BOB)
    await operator.approve(await session.prepare("light", [turn("LAMP", 1)]))
    await session.submit("light", [turn("LAMP", 1)])


async def approved_by_its_author(made):
    session = await made.session(FRANK)
    await session.approve(await session.prepare("light", [turn("LAMP", 1)]))


async def approved_by_its_author_in_another_session(made):
    session, same_person = await made.session(GRACE), await made.session(GRACE)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await same_person.approve(plan)


async def one_person_for_two(made):
    session, operator = await made.session(GRACE), await made.session(BOB)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await operator.approve(plan)
    with pytest.raises(PERSON):
        await session.execute(plan)
    await operator.approve(plan)


async def approved_without_the_right(made):
    session, agent = await made.session(FRANK), await made.session(DAN)
    await agent.approve(await session.prepare("light", [turn("LAMP", 1)]))


async def approved_too_late(made):
    session, operator = await made.session(FRANK), await made.session(BOB)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await trio.sleep(101)
    await operator.approve(plan)


async def executed_long_after_it_was_approved(made):
    session, operator = await made.session(FRANK), await made.session(BOB)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await operator.approve(plan)
    await trio.sleep(101)
    await session.execute(plan)


async def approved_for_another(made):
    session, operator, other = await made.session(FRANK), await made.session(BOB), await made.session(CAROL)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await operator.approve(plan)
    await other.execute(plan)


async def rejected_by_one_approved_by_two(made):
    session, bob, carol = await made.session(GRACE), await made.session(BOB), await made.session(CAROL)
    plan = await session.prepare("light", [turn("LAMP", 1)])
    await bob.reject(plan, reason="not today")
    with pytest.raises(STALE):
        await carol.approve(plan)
    await session.execute(plan)


async def retried_with_another_dose(made):
    session = await made.session()
    first = await session.submit("bolus", [put(DOSE, 22)], idempotency_key="lunch")
    await ended(first)
    made.watched.forget()
    again = await session.submit("bolus", [put(DOSE, 22)], idempotency_key="lunch")
    assert again.task_id == first.task_id
    await session.submit("bolus", [put(DOSE, 23)], idempotency_key="lunch")


async def retried_by_a_tool_call(made):
    client, more = await made.tools(), {"meta": {META_KEY: "invoice 7"}}
    await called(client, "gpio_set", {"line": "LAMP", "value": 1}, **more)
    made.watched.forget()
    await called(client, "gpio_set", {"line": "LAMP", "value": 1}, **more)
    assert made.watched.effects == []
    await called(client, "gpio_set", {"line": "TARGET", "value": 1}, **more)


async def doses_in_a_row_from_two_sessions(made):
    first, second = await made.session(), await made.session()
    for session in (first, second) * 4:
        await session.run("i2c.write", bus=1, addr=ARM, reg=DOSE, data="AQ==")
    made.watched.forget()
    await second.run("i2c.write", bus=1, addr=ARM, reg=DOSE, data="AQ==")


async def session_of_another(made):
    theirs = await made.session(BOB)
    await made.sessions(ALICE).attach(theirs.session_id).run("gpio.set", line="LAMP", value=1)


async def session_that_has_ended(made):
    session = await made.session()
    await session.close()
    await session.run("gpio.set", line="LAMP", value=1)


async def misspelt_flag(made):
    await called(await made.tools(), PLAN, {"intent": "try", "steps": [turn("LAMP", 1).to_wire()], "dryrun": True})


async def denied_tool_by_its_name(made):
    await called(await made.tools(), "uart_control", {"port": "printer", "rts": True})


async def several_names(made):
    for name in ("GPIO_SET", "gpio__set", "hearth_gpio_set"):
        with pytest.raises(NONE):
            await called(await made.tools(), name, {"line": "LAMP", "value": 1})
    session = await made.session()
    for name in ("gpio.set ", "gpio.set\0", "gpio/set"):
        with pytest.raises(NONE):
            await session.submit("light", [step(name, line="LAMP", value=1)])
    await session.submit("light", [step("GPIO.SET", line="LAMP", value=1)])


# --- the requests -----------------------------------------------------------------------------------------------------

REQUESTS = [
    # Values that a plant does not bear.
    Unsafe(
        "robotmcp/ros-mcp-server#264",
        "a model publishes velocities, and no range is checked",
        asks(put(SPEED, 151)),
        LIMIT,
    ),
    Unsafe(
        "kisaragi-mochi/stackchan-mcp#80",
        "a tool's lower bound is not checked, the servo runs into its stop",
        asks(put(ANGLE, 4)),
        LIMIT,
    ),
    Unsafe(
        "ArduPilot/ardupilot#15252",
        "the raw command goes past the servo's own maximum",
        asks(step("i2c.transfer", bus=1, addr=ARM, write="Elc=")),
        LIMIT,
    ),
    Unsafe(
        "bluesky/ophyd-async#933",
        "a plan beyond the motor's limits succeeds, and the motor has not moved",
        asks(put(ANGLE, 86), step("gpio.get", line="LAMP"), abort_on_step_failure=False),
        LIMIT,
    ),
    Unsafe("LoopKit/Loop#33", "the maximum bolus is a setting that nothing reads", asks(put(DOSE, 101)), LIMIT),
    Unsafe(
        "LoopKit/Loop#494",
        "two hundred thousand grams are entered and counted",
        asks(put(DOSE, 3, 13, 64)),
        LIMIT,
    ),
    Unsafe(
        "LoopKit/Loop#1226",
        "a dose is cut to the maximum and not a word is said",
        asks(put(DOSE, 136), abort_on_step_failure=False),
        LIMIT,
    ),
    Unsafe(
        "Artificial-Pancreas/iAPS#779",
        "the comma is missed, 70 units in place of 7.0 begin",
        asks(put(DOSE, 70), put(DOSE, 255)),
        LIMIT,
    ),
    Unsafe(
        "FDA, seizure of Alaris infusion pumps, 2006",
        "a key bounces: 44.8 ml/h in place of 4.8",
        asks(put(RATE, 45)),
        LIMIT,
        rate_is_five,
    ),
    Unsafe(
        "aliasrobotics/RVD#700",
        "a planned path exceeds the joint's velocity",
        asks(put(JOINT, 110)),
        LIMIT,
        joint_is_ten,
    ),
    Unsafe(
        "gnea/grbl#1269",
        "after homing the axis is jogged beyond its travel",
        asks(put(POSITION, 0xFF, 0x9B)),
        LIMIT,
    ),
    Unsafe(
        "mkaiser/Sungrow-SHx-Inverter-Modbus-Home-Assistant#283",
        "undocumented registers are written, the configuration is lost",
        asks(put(0x33, 1)),
        LIMIT,
    ),
    Unsafe(
        "melexis/mlx90640-library#61",
        "the sensor's calibration is overwritten",
        asks(put(CALIBRATION, 0xFF)),
        LIMIT,
    ),
    Unsafe(
        "beagleboard/beaglebone-ai-64#21",
        "a register's number of two bytes is data to a device that takes one",
        asks(step("i2c.read", bus=1, addr=ARM, reg=0x33, reg_width=16, len=1)),
        LIMIT,
    ),
    Unsafe(
        "homebrew8088/CH376-ISA#1",
        "a test program changes bytes in the middle of a memory",
        asks(put(DOSE, 1, 2, 50)),
        LIMIT,
    ),
    Unsafe(
        "Klipper3d/klipper#593",
        "a move out of range aborts the job, and the heater before it stays on",
        asks(turn("HEATER", 1), put(SPEED, 200)),
        LIMIT,
    ),
    # Times that a plant does not bear.
    Unsafe(
        "OctoPrint/OctoPrint#960", "a hotend is left at 200 degrees for two days", asks(pulse("HEATER", 60_000)), LIMIT
    ),
    Unsafe(
        "stanford-ssi/samwise-flight-software#93",
        "a burn wire on for more than half a second is destroyed",
        asks(pulse("BURN_WIRE", 501), dry_run=True),
        LIMIT,
    ),
    Unsafe("ScratMan/HASmartThermostat#8", "the gas burner runs for seconds only", asks(pulse("HEATER", 900)), LIMIT),
    Unsafe(
        "craftbeerpi/craftbeerpi#206", "a compressor starts again without its rest", asks(turn("COMPRESSOR", 1)), LIMIT
    ),
    Unsafe(
        "arendst/Tasmota#1858",
        "a rule that answers itself switches a relay dozens of times a second",
        asks(turn("RELAY", 1)),
        LIMIT,
        relay_switched,
    ),
    Unsafe(
        "Gielz1986/Zendure-HA-zenSDK#272",
        "a relay is worn out by switching all day",
        asks(*[pulse("LAMP", 10)] * 3),
        RATED,
    ),
    Unsafe(
        "Ralim/IronOS#264",
        "450 degrees Fahrenheit are kept as 450 degrees Celsius",
        asks(step("gpio.pulse", line="HEATER", value=450, duration_ms=2_000)),
        BAD,
    ),
    Unsafe(
        "AlexxIT/SonoffLAN#718",
        "a pool heater runs at full power for a day",
        asks(pulse("HEATER", 86_400_000)),
        BAD,
    ),
    # What must hold while an output is driven.
    Unsafe(
        "NIOSH FACE 8420, 1984",
        "a die cast operator is within the robot's reach when it moves",
        asks(turn("MOTOR", 1)),
        OPEN,
        gate_open,
    ),
    Unsafe(
        "NIOSH FACE 01MI002, 2001",
        "a robot cycles while its operator looks for a tool",
        asks(step("gpio.get", line="GATE"), pulse(LINE["MOTOR"], 200)),
        OPEN,
        gate_open,
    ),
    Unsafe(
        "OSHA accident 200200194, 1997",
        "a machine in automatic goes on with its cycle although one part of it was stopped",
        asks(turn("LAMP", 0), turn("MOTOR", 1), abort_on_step_failure=False),
        OPEN,
        gate_open,
    ),
    Unsafe(
        "Snapmaker/Snapmaker2-Controller#101",
        "a laser job can start while the lid is open",
        asks(pulse("LASER", 10)),
        OPEN,
        lid_open,
    ),
    Unsafe(
        "Therac-25, Leveson and Turner, 1993",
        "the beam of one mode without the target of that mode",
        asks(turn("BEAM", 1)),
        OPEN,
    ),
    Unsafe(
        "bluesky/ophyd-async#1422",
        "the hutch is open, the motor cannot move, and the plan goes on",
        asks(turn("MOTOR", 1), put(SPEED, 1)),
        OPEN,
        gate_open,
    ),
    Unsafe(
        "Opentrons/opentrons#7913",
        "the door is opened between two parts of a protocol",
        [plan_before_the_gate_opened],
        OPEN,
    ),
    Unsafe("rgc99/irrigation_unlimited#216", "water runs on into what is full", asks(turn("PUMP", 1)), OPEN, tank_full),
    Unsafe(
        "home-assistant/core#63419",
        "the sensor is lost, and heating goes on by its last value",
        asks(turn("PUMP", 1)),
        OPEN,
        sensor_silent,
    ),
    Unsafe(
        "MarlinFirmware/Marlin#20749",
        "the temperature is not read any more, and the old one is shown",
        asks(turn("PUMP", 1)),
        OPEN,
        sensor_stuck,
    ),
    Unsafe(
        "MarlinFirmware/Marlin#2844",
        "a broken thermocouple reads 0, and so the heater stays on",
        asks(turn("OVEN", 1)),
        OPEN,
        sensor_reads_nothing,
    ),
    # A stop, and what comes after it.
    Unsafe(
        "ros-industrial/motoman#154",
        "the button is pulled out again, and the next command moves the robot",
        asks(turn("LAMP", 1)),
        HALT,
        stopped_and_released,
    ),
    Unsafe(
        "OctoPrint/OctoPrint#3832",
        "the hotend is heated again after the print was cancelled",
        asks(turn("HEATER", 1), principal=CAROL),
        HALT,
        halted,
    ),
    Unsafe(
        "ArduPilot/ardupilot#23415",
        "a plane arms while its stop is set, and starts with the switch",
        asks(turn("LAMP", 1), dry_run=True),
        HALT,
        stop_pressed,
    ),
    Unsafe(
        "aliasrobotics/RVD#651",
        "the next command in the queue runs after the pause",
        [rest_of_a_task_after_the_reset],
        HALT,
    ),
    Unsafe(
        "UniversalRobots/Universal_Robots_ROS_Driver#68",
        "the rest of a trajectory runs when the stop is released",
        [plan_prepared_before_the_stop],
        STALE,
    ),
    Unsafe(
        "Yaskawa-Global/motoros2#444",
        "a reset succeeds while the stop is engaged",
        [reset_while_the_button_is_pressed],
        HALT,
        stop_pressed,
    ),
    Unsafe("PR2/pr2_robot#61", "a program switches the power on again by itself", [reset_by_the_agent], DENIED, halted),
    Unsafe(
        "betaflight/betaflight#3735",
        "a switch that was already set counts when the second one follows",
        [reset_before_the_stop],
        HALT,
        halted,
    ),
    Unsafe(
        "LinuxCNC/linuxcnc#2764",
        "an abort restores the state from before, with the spindle on",
        [undo_after_the_stop],
        HALT,
    ),
    # Hardware that this agent has nothing to do with.
    Unsafe(
        "tsightler/ring-mqtt-ha-addon#44",
        "a lock opens without its code for whoever calls through the window",
        asks(turn("LOCK", 1)),
        DENIED,
    ),
    Unsafe(
        "home-assistant/core#4872",
        "the relay of the garage door is pulsed",
        asks(pulse(LINE["GARAGE"], 500)),
        DENIED,
    ),
    Unsafe(
        "anthropics/claude-code#15763",
        "a chain is permitted because one of its commands is",
        asks(step("gpio.get", line="LAMP"), turn("LAMP", 1), turn("LOCK", 1)),
        DENIED,
    ),
    Unsafe(
        "daid/LegacyCura#263",
        "what has the printer's port heats it, and does not stop",
        asks(step("uart.write", port="printer", text="M104 S220\n")),
        DENIED,
    ),
    Unsafe(
        "bulletmark/edid-rw#5",
        "the bytes meant for a monitor go to another device",
        asks(put(0, 0, addr=MONITOR)),
        DENIED,
    ),
    Unsafe(
        "ubihazard/ddr5-spd-recovery#1",
        "a program for lights changes the memory's own description",
        asks(step("i2c.write", bus=1, addr=hex(CLOCK), reg=1, data="AA==")),
        DENIED,
    ),
    Unsafe(
        "elixir-circuits/circuits_i2c#125",
        "probing every address is known to corrupt some memories",
        asks(step("i2c.scan", bus=1)),
        DENIED,
    ),
    Unsafe(
        "baboomerang/overclockSPD#10",
        "the numbers of one kind of memory mean something else on another",
        asks(put(DOSE, 1, ten_bit=True)),
        DENIED,
    ),
    Unsafe(
        "ROBOTIS-GIT/turtlebot3#1154",
        "the sign of life of one part stands for the whole",
        asks(turn("ALIVE", 1)),
        DENIED,
    ),
    Unsafe(
        "Opentrons/opentrons#12147",
        "the door is to count as closed while it is open",
        asks(turn("GATE", 0)),
        DENIED,
    ),
    Unsafe(
        "grbl/grbl#1292",
        "a pin that has another purpose switches the spindle",
        asks(turn("SPARE", 1)),
        DENIED,
    ),
    Unsafe(
        "homeassistant-ai/ha-mcp#549",
        "an agent that should only read can change everything",
        asks(turn("LAMP", 1), principal=ERIN),
        DENIED,
    ),
    Unsafe(
        "homeassistant-ai/ha-mcp#1990",
        "a lock's rule is not enforced on one of the ways",
        asks(turn("LAMP", 1), principal=ERIN, max_risk_level=2)[:2],
        DENIED,
    ),
    Unsafe(
        "Hmbown/Codewhale#5157",
        "a denied tool is not listed, and can be called",
        [denied_tool_by_its_name],
        NONE,
    ),
    Unsafe("agentrust-io/cmcp#159", "the same tool by another spelling of its name", [several_names], NONE),
    Unsafe(
        "OWASP/www-project-ai-security-and-privacy-guide#188",
        "an agent acts with what is left of another one's session",
        [session_of_another],
        GONE,
    ),
    Unsafe(
        "jerrod-lankford/GarageQTPi#3",
        "what was asked before is asked again when the connection is back",
        [session_that_has_ended],
        GONE,
    ),
    # What only a person may decide, and what a decision is for.
    Unsafe(
        "anthropics/claude-code#30142",
        "reads and writes cannot be told apart, and so all is allowed",
        asks(step("gpio.get", line="LAMP"), turn("LAMP", 1), principal=FRANK)[::2],
        PERSON,
    ),
    Unsafe(
        "github/spec-kit#3124",
        "the step after the gate runs in a dry run",
        asks(turn("LAMP", 1), principal=FRANK, dry_run=True)[::2],
        PERSON,
    ),
    Unsafe(
        "OpenXiangShan/env-scripts#121",
        "in a dry run the command runs all the same",
        [tried_out_after_the_approval],
        PERSON,
    ),
    Unsafe(
        "extra-org/extra#139",
        "what runs after the approval has arguments that no person has seen",
        [other_args_than_approved],
        PERSON,
    ),
    Unsafe(
        "nextlevelbuilder/goclaw#1212",
        "one approval is taken for all later calls",
        [approved_once_called_twice],
        PERSON,
    ),
    Unsafe(
        "cosai-oasis/ws4-secure-design-agentic-systems#158",
        "an old permission is used although the state has changed",
        [changed_after_it_was_shown],
        STALE,
    ),
    Unsafe(
        "crewAIInc/crewAI#6859",
        "an approval carries nothing of what it is for",
        [approved_content_submitted_past_the_plan],
        PERSON,
    ),
    Unsafe(
        "anvia-hq/anvia#178", "the arguments are changed after they were shown", [approved_with_another_hash], STALE
    ),
    Unsafe("anthropics/claude-cookbooks#701", "an approved action is replayed", [executed_twice], STALE),
    Unsafe("google/grr#389", "a user approves their own request", [approved_by_its_author], DENIED),
    Unsafe(
        "self-evolving/repo#224",
        "the same person approves by another account of the program",
        [approved_by_its_author_in_another_session],
        DENIED,
    ),
    Unsafe("kviklet/kviklet#162", "four eyes, two of them of one person", [one_person_for_two], BAD),
    Unsafe("microsoft/autogen#5891", "no record says who may approve", [approved_without_the_right], DENIED),
    Unsafe("sweatco/archie-hq#168", "an approval comes after its time", [approved_too_late], STALE),
    Unsafe(
        "cosai-oasis/secure-ai-tooling#196",
        "an agent uses what was permitted to another",
        [approved_for_another],
        STALE,
    ),
    Unsafe(
        "cosai-oasis/ws4-secure-design-agentic-systems#158",
        "a yes of some time ago is a yes for ever",
        [executed_long_after_it_was_approved],
        STALE,
    ),
    Unsafe(
        "microsoft/autogen#4894",
        "what a person has denied is satisfied by trying again",
        [rejected_by_one_approved_by_two],
        DENIED,
    ),
    # The same request again.
    Unsafe(
        "LoopKit/Loop#588",
        "the bolus failed, says the program, and its repetition has another amount",
        [retried_with_another_dose],
        BAD,
    ),
    Unsafe(
        "ComposioHQ/composio#3654",
        "a call that has timed out is sent again and acts twice",
        [retried_by_a_tool_call],
        BAD,
    ),
    Unsafe(
        "nightscout/AndroidAPS#3342",
        "the distance between two doses is not kept",
        [doses_in_a_row_from_two_sessions],
        RATED,
    ),
    # Arguments that mean something else than was meant.
    Unsafe(
        "1f916-ai/1f916#45",
        "true is taken for the number 1",
        asks(step("gpio.set", line=True, value=True)),
        BAD,
    ),
    Unsafe(
        "homeassistant-ai/ha-mcp#218",
        "a model writes numbers and flags as text",
        asks(step("gpio.set", line="LAMP", value="on")),
        BAD,
    ),
    Unsafe(
        "stanford-oval/genie-toolkit#627",
        "a command without a device goes to all of them",
        asks(step("gpio.set", value=1)),
        BAD,
    ),
    Unsafe(
        "npat-efault/picocom#52",
        "an argument that no option takes is ignored",
        asks(turn("LAMP", 1, chp="other")),
        BAD,
    ),
    Unsafe(
        "egarim/telekinesis#52",
        "a misspelt flag for doing nothing leaves all actions enabled",
        [misspelt_flag],
        BAD,
    ),
    Unsafe(
        "bluesky/ophyd#734",
        "a stopped motion counts as a success",
        asks(turn("LAMP", 1, expect=expect("gpio.set", line="HEATER", value=1, equals={"value": 1})))[:3],
        BAD,
    ),
]


# --- the board --------------------------------------------------------------------------------------------------------


async def findings(one):
    """Have one request made at a plant of its own, in every way; return what is wrong: no refusal, or an effect."""
    found = []
    async with plant() as made:
        if one.given is not None:
            await one.given(made)
        made.watched.forget()
        for attempt in one.attempts:
            try:
                await attempt(made)
            except RpcError as error:
                if error.code != one.refusal.code:
                    found.append(f"refused with {error!r}")
            else:
                found.append("not refused")
        # Nothing of it comes later, either.
        await trio.sleep(120)
        asked = one.given is None and len(one.attempts) > 1
        # What a report began with may still be brought to its safe state, which is 0.
        found += [what for what in made.watched.effects if asked or not what.endswith(" to 0")]
        if asked and one.refusal in (DENIED, BAD, NONE):
            found += made.watched.reads
    return found


@pytest.mark.parametrize("one", REQUESTS, ids=[f"{n}: {one.source}" for n, one in enumerate(REQUESTS)])
async def test_an_unsafe_request_is_refused_before_a_driver_by_every_way(one, autojump_clock):
    assert await findings(one) == []


async def test_the_observer_sees_what_is_permitted(autojump_clock):
    async with plant() as made:
        session, operator = await made.session(), await made.session(BOB)
        await session.run("gpio.set", line="LAMP", value=1)
        for name in ("MOTOR", "LASER", "PUMP", "OVEN"):
            await session.run("gpio.set", line=name, value=1)
        await session.run("i2c.read", bus=1, addr=ARM, reg=DOSE, len=1)
        await session.run("i2c.write", bus=1, addr=ARM, reg=DOSE, data="AQ==")
        await operator.run("uart.write", port="printer", text="M105")
        seen = ["LAMP to 1", "MOTOR to 1", "LASER to 1", "PUMP to 1", "OVEN to 1", "a write to 0x50"]
        assert made.watched.effects == [*seen, "bytes to the printer"]
        assert made.watched.reads == ["0x50"]


def permits(_self, level, _now):
    """Stand for the check of a limit."""
    return level


# What is taken out, what stands there then, and the report whose request gets through.
HOLES = {
    "limits": (
        [(Limit, "check", permits), (Limit, "foresee", None), (BusGuard, "foresee", None)],
        "robotmcp/ros-mcp-server#264",
    ),
    "interlocks": ([(BusInterlocks, "check", None), (Interlocks, "asked", ())], "NIOSH FACE 8420, 1984"),
    "halt": (
        [(Transactions, "_check_halt", None), (HaltFlag, "refusal", None), (Admission, "_require_not_halted", None)],
        "OctoPrint/OctoPrint#3832",
    ),
    "scope": ([(Scope, "permits", True)], "tsightler/ring-mqtt-ha-addon#44"),
    "approvals": ([(ApprovalRule, "missing", 0)], "crewAIInc/crewAI#6859"),
    "the author of a plan": ([(ApprovalRule, "counts", True)], "google/grr#389"),
}


@pytest.mark.parametrize("hole", HOLES)
async def test_a_planted_hole_is_found(hole, monkeypatch, autojump_clock):
    places, source = HOLES[hole]
    (one,) = [one for one in REQUESTS if one.source == source]
    for place, name, answer in places:
        monkeypatch.setattr(place, name, answer if callable(answer) else lambda *_args, _is=answer, **_more: _is)
    assert "not refused" in await findings(one)


# --- files and programs -----------------------------------------------------------------------------------------------


FILES = """
[[policy]]
name = "agent"
match = { any = true }
max_risk = 2
max_risk_ceiling = 3
rights = ["approve"]
approval = [{ from_risk = 3, other = true }]
"""


class UnsafeFile(NamedTuple):
    """A request about files or programs, `{data}` being the one directory that the agent may use."""

    source: str
    told: str
    step: Any
    refusal: type[RpcError]
    constraints: Any = {}  # noqa: RUF012 - never changed
    halted: bool = False


RISKY = {"max_risk_level": 3}
FILE_REQUESTS = [
    UnsafeFile(
        "modelcontextprotocol/servers#1845",
        "a link within the directory leads out of it",
        step("file.read", path="{data}/link"),
        DENIED,
    ),
    UnsafeFile(
        "mavlink/MAVSDK#3069",
        "a directory beside it whose name begins the same",
        step("file.read", path="{data}/../data_secret/key"),
        DENIED,
    ),
    UnsafeFile(
        "wonderwhy-er/DesktopCommanderMCP#403",
        "any file of the machine by its path",
        step("file.read", path="{data}/../../../../../../../etc/passwd"),
        DENIED,
    ),
    UnsafeFile(
        "wonderwhy-er/DesktopCommanderMCP#420",
        "a file that is not there yet, behind a link",
        step("file.write", path="{data}/out/new", text="x"),
        DENIED,
    ),
    UnsafeFile(
        "Replit agent, July 2025",
        "the agent writes during a freeze",
        step("file.write", path="{data}/new", text="x"),
        HALT,
        halted=True,
    ),
    UnsafeFile(
        "homeassistant-ai/ha-mcp#2091",
        "tools that delete have no confirmation",
        step("file.delete", path="{data}/db"),
        PERSON,
        RISKY,
    ),
    UnsafeFile(
        "openclaw/openclaw#41140",
        "a shell that is permitted runs whatever it is given",
        step("proc.exec", template="sh", params={"c": "rm -rf /"}),
        NONE,
        RISKY,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("one", FILE_REQUESTS, ids=[one.source for one in FILE_REQUESTS])
async def test_an_unsafe_request_about_files_is_refused_and_begins_no_step(one, tmp_path):
    data, secret = tmp_path / "data", tmp_path / "data_secret"
    data.mkdir()
    secret.mkdir()
    (secret / "key").write_text("secret")
    (data / "db").write_text("precious")
    (data / "link").symlink_to(secret / "key")
    (data / "out").symlink_to(secret)
    file = tmp_path / "hearth.toml"
    roots = f"[{dump_value(str(data))}]"
    file.write_text(
        f"[audit]\npath = {dump_value(str(tmp_path / 'audit.log'))}\n[files]\nread = {roots}\nwrite = {roots}\n{FILES}"
    )
    args = {
        name: value.replace("{data}", str(data)) if type(value) is str else value
        for name, value in one.step.args.items()
    }
    asked = step(one.step.tool, **args)
    async with hearth.open_runtime(config=load_config(file)) as runtime, runtime.open_session() as session:
        if one.halted:
            await session.halt("freeze")
        with pytest.raises(one.refusal):
            await session.submit(one.told, [asked], **one.constraints)
        with pytest.raises(one.refusal):
            await session.execute(await session.prepare(one.told, [asked], **one.constraints))
        async with mcp_client(runtime, "auto") as client:
            # Of what has risk 3, the model is told that a person must allow it, and no code.
            assert (await client.call_tool(PLAN, {"intent": one.told, "steps": [asked.to_wire()]})).is_error
    assert '"task.step.start"' not in (tmp_path / "audit.log").read_text()
    assert (data / "db").read_text() == "precious"
    assert [path.name for path in secret.iterdir()] == ["key"]


# --- whole jobs -------------------------------------------------------------------------------------------------------


class UnsafeJob(NamedTuple):
    """A job. `refusal` is the code for which it is rejected, or what the end of one that has begun says."""

    source: str
    told: str
    inputs: Any
    refusal: str
    given: Any = None
    name: str = "drive"
    principal: Any = ALICE


async def drives(job, tool, **args):
    """Do one step."""
    await job.run(tool, **args)
    return {}


def offered(name):
    return capability(
        name,
        drives,
        tools=(),
        input_schema={
            "type": "object",
            "properties": {"tool": {"enum": ["gpio.set", "i2c.write"]}},
            "required": ["tool"],
        },
        safety={"risk_floor": "R3"},
    )


JOBS = [
    UnsafeJob(
        "Opentrons/opentrons#20213",
        "a protocol that does not fit what is on the deck",
        {"tool": "i2c.write", "bus": 1, "addr": ARM, "reg": SPEED, "data": "/w=="},
        "2550 mm/s is beyond max = 1500 mm/s; nothing was written",
    ),
    UnsafeJob(
        "Opentrons/opentrons#5158",
        "a robot goes on while its door is open",
        {"tool": "gpio.set", "line": "MOTOR", "value": 1},
        "may be 1 only while line GATE = 0; GATE reads 1; nothing was driven",
        gate_open,
    ),
    UnsafeJob(
        "gavanderhoorn/fanuc_driver_exp#4",
        "what waits is not given up at the emergency stop",
        {"tool": "gpio.set", "line": "LAMP", "value": 1},
        "resource_unavailable",
        halted,
    ),
    UnsafeJob(
        "awslabs/mcp#2755",
        "a text asks for a tool that the work does not need",
        {"tool": "uart.write", "port": "printer", "text": "M112"},
        "invalid_input",
    ),
    UnsafeJob(
        "robotmcp/ros-mcp-server#264",
        "any action goal is sent",
        {"tool": "gpio.set", "line": "LAMP", "value": 1},
        "forbidden",
        name="dance",
    ),
    UnsafeJob(
        "tembo/agent-studio#171",
        "nothing waits for a person before it is done",
        {"tool": "gpio.set", "line": "LAMP", "value": 1},
        "approval_denied",
        principal=FRANK,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("one", JOBS, ids=[one.source for one in JOBS])
async def test_an_unsafe_job_is_rejected_or_ends_before_a_driver(one, tmp_path):
    capabilities = [evolve(offered(name), tools=frozenset(("gpio.set", "i2c.write"))) for name in ("drive", "dance")]
    async with plant(tmp_path / "hcp", capabilities) as made:
        if one.given is not None:
            await one.given(made)
        made.watched.forget()
        speaks, operator = caller(made, one.principal), caller(made, BOB)
        document = Caller.submission(one.name, inputs=one.inputs)
        await speaks.send(document)
        if one.refusal == "approval_denied":
            pending = []
            while not pending:
                pending = (await operator.call("hcp.pending"))["approvals"]
            await operator.call("hcp.decide", approval_id=pending[0]["approval_id"], approve=False)
        answer = await speaks.until_replied(document)
        if answer["type"] == "task_rejected":
            assert answer["payload"]["reason_code"] == one.refusal
        else:
            failed = await speaks.outcome(answer["session_id"])
            assert failed["error_code"] == "safety_violation"
            assert one.refusal in failed["error_message"]
        assert made.watched.effects == []


# --- the table --------------------------------------------------------------------------------------------------------


def test_there_are_at_least_sixty_requests_each_from_a_report_of_its_own():
    every = [*REQUESTS, *FILE_REQUESTS, *JOBS]
    assert len(REQUESTS) >= 60
    assert [source for source, number in Counter(one.source for one in every).items() if number > 2] == []
    assert len({one.source for one in every}) >= 85
    assert {one.refusal for one in REQUESTS} >= {LIMIT, OPEN, HALT, DENIED, PERSON, STALE, RATED, BAD, NONE, GONE}
