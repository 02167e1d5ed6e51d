"""Modbus through the whole runtime: tools, limits, rollback, halt, policy, sensors and interlocks."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from support import guarded
from support.world import OPEN, BoardWorld, running

from hearth import step
from hearth.actors.bus.queue import Requester, Ticket
from hearth.errors import DeviceError, InterlockOpen, InvalidParams, LimitViolated, PermissionDenied, TimedOut
from hearth.policy.rules import Match, PolicyEntry

HOLDING = [
    {"name": "speed", "reg": 0, "scale": 0.1, "unit": "hertz", "min": 0, "max": 50},
    {"name": "ramp", "reg": 1, "type": "s16", "min": -10, "max": 10, "on_limit": "clamp"},
    {"name": "power", "reg": 2, "type": "f32", "min": 0.5, "max": 2.5, "unit": "kilowatt"},
    {"name": "level", "reg": 4, "type": "f32", "max": 1.5, "on_limit": "clamp"},
    {"name": "step", "reg": 6, "max_step": 5},
    {"name": "slow", "reg": 7, "slew_per_s": 10},
    {"name": "total", "reg": 8, "type": "u32", "order": "little", "access": "r"},
    {"name": "reset", "reg": 10, "access": "w"},
    {"name": "run", "table": "coil", "reg": 0},
    {"name": "temperature", "table": "input", "reg": 0, "type": "f32", "unit": "celsius", "sensor": "motor"},
]


def content(*, raw="none", **more):
    drive = {"unit": 3, "name": "DRIVE", "registers": HOLDING, "raw": raw}
    everyone = {"unit": 0, "name": "EVERYONE", "registers": [{"name": "stop", "reg": 10, "access": "w"}]}
    line = {"line": "plant", "driver": "sim", "timeout_ms": 200, "late_ms": 100, "device": [drive, everyone]}
    return {"name": "b", "description": "a board", "modbus": [line], **more}


@pytest.fixture(autouse=True)
def _virtual_time(autojump_clock):
    pass


@asynccontextmanager
async def session(*, policy=(OPEN,), **more):
    async with running(BoardWorld(content(**more), policy=policy)) as world, world.sessions().open_session() as opened:
        opened.world = world
        opened.device = world.parts.drivers["modbus:plant"].port.devices[3]
        opened.bus = world.runtime.buses["modbus:plant"]
        yield opened


async def write(session, name, value):
    return await session.run("modbus.write", device="DRIVE", name=name, value=value)


async def read(session, name, **more):
    return await session.run("modbus.read", device="DRIVE", name=name, **more)


@pytest.mark.parametrize(
    ("name", "value"), [("speed", 12.3), ("ramp", -7), ("power", 0.7), ("run", True), ("step", 3), ("run", False)]
)
async def test_what_is_written_by_name_is_read_back_in_its_unit(name, value):
    async with session() as opened:
        if name == "power":
            opened.device.memory |= {("holding", 2): 0x3F80}
        assert (await write(opened, name, value))["value"] == value
        done = await read(opened, name)
        assert done["value"] == value
        assert done["name"] == name
        assert type(done["value"]) is type(value)
        assert done.get("unit") == {"speed": "hertz", "power": "kilowatt"}.get(name)


async def test_registers_that_follow_each_other_are_read_in_one_request():
    async with session() as opened:
        opened.device.memory |= {("holding", 0): 5, ("holding", 1): 0xFFFF, ("holding", 2): 0x4020}
        before = opened.device.requests
        done = await read(opened, "speed", count=3)
        assert opened.device.requests == before + 1
        assert [(one["name"], one["value"]) for one in done["values"]] == [("speed", 0.5), ("ramp", -1), ("power", 2.5)]
        by_number = await opened.run("modbus.read", device="DRIVE", register=8)
        assert (by_number["name"], by_number["value"]) == ("total", 0)
        assert (await opened.run("modbus.read", device="DRIVE", table="coil", register=0))["value"] is False


async def test_a_write_ignores_the_count_of_a_read():
    async with session() as opened:
        given = {"device": "DRIVE", "name": "speed", "value": 12, "count": 2}
        task = {"intent": "x", "steps": [{"tool": "modbus.write", "args": given}]}
        answer = await opened.call("task.submit", task=task, strict=False)
        (await (await opened.task(answer["task_id"])).wait()).raise_for_status()
        assert opened.device.memory["holding", 0] == 120


async def test_a_value_between_two_steps_is_rounded_and_the_result_says_what_was_written():
    async with session() as opened:
        assert (await write(opened, "speed", 12.34))["value"] == 12.3
        assert opened.device.memory["holding", 0] == 123


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"name": "sped", "value": 1}, "/name"),
        ({"name": "speed", "register": 0, "value": 1}, "/register"),
        ({"value": 1}, ""),
        ({"name": "speed", "table": "coil", "value": 1}, "/table"),
        ({"name": "speed", "value": True}, "/value"),
        ({"name": "run", "value": 2}, "/value"),
        ({"name": "ramp", "value": 40_000}, "/value"),
        ({"name": "power", "value": 1e300}, "/value"),
    ],
)
async def test_args_that_fit_the_schema_and_are_wrong_are_refused_at_submit_with_their_place(args, path):
    async with session() as opened:
        with pytest.raises(InvalidParams) as caught:
            await opened.submit("x", [step("modbus.write", device="DRIVE", **args)])
        assert caught.value.data["path"] == path
        assert opened.device.requests == 0


async def test_unknown_devices_and_too_many_registers_are_refused_with_what_there_is():
    async with session() as opened:
        with pytest.raises(InvalidParams, match="it has: DRIVE, EVERYONE; did you mean DRIVE"):
            await opened.run("modbus.read", device="DRIV", name="speed")
        with pytest.raises(InvalidParams, match="2 declared registers follow each other there, the last is reset"):
            await read(opened, "total", count=3)
        with pytest.raises(PermissionDenied, match="total is only read"):
            await write(opened, "total", 1)
        with pytest.raises(PermissionDenied, match="reset is only written"):
            await read(opened, "reset")


# --- limits -----------------------------------------------------------------------------------------------------------


async def vendor(session, op):
    """A transaction of any code on the line, past the tools."""
    requester = Requester("s", "t", "p", halts=session.bus._halt_flag.count)
    return await session.bus.request(Ticket(op, requester, limit=30.0, risk=1)).get()


async def test_where_the_profile_clamps_the_nearest_value_is_written_and_said():
    async with session() as opened:
        done = await write(opened, "ramp", 2000)
        assert (done["value"], done["clamped"][0]["asked"], done["clamped"][0]["written"]) == (10, 2000, 10)
        assert opened.device.memory["holding", 1] == 10
        done = await write(opened, "level", 7.25)
        assert (done["value"], done["clamped"][0]["device"]) == (1.5, "DRIVE")
        assert opened.device.memory["holding", 4] == 0x3FC0
        # Of several registers only the one beyond its bounds is changed.
        await vendor(opened, lambda driver: driver.write(3, "holding", 0, [100, 2000]))
        assert (opened.device.memory["holding", 0], opened.device.memory["holding", 1]) == (100, 10)


async def test_all_registers_of_a_request_are_checked_before_the_first_is_written():
    async with session() as opened:
        with pytest.raises(LimitViolated, match="power"):
            await vendor(opened, lambda driver: driver.write(3, "holding", 0, [100, 5, 0, 0]))
        assert opened.device.requests == 0


async def test_a_step_is_counted_from_the_value_that_the_device_has():
    async with session() as opened:
        opened.device.memory["holding", 6] = 100
        assert (await write(opened, "step", 104))["value"] == 104
        with pytest.raises(LimitViolated, match="max_step = 5"):
            await write(opened, "step", 98)
        opened.device.memory["holding", 6] = 50  # a person at its panel
        assert (await write(opened, "step", 46))["value"] == 46


async def test_after_a_write_in_doubt_the_value_is_read_before_a_step_is_counted():
    async with session() as opened:
        await write(opened, "step", 5)
        opened.device.faults.extend([6, "lost"])  # the first is the answer to the read before the write
        with pytest.raises(DeviceError, match="exception 6") as caught:
            await write(opened, "step", 9)
        assert caught.value.data["effect"] == "none"
        opened.device.faults.clear()
        with pytest.raises(TimedOut) as caught:
            await vendor(opened, lambda driver: lost(driver, opened.device))
        assert caught.value.data["effect"] == "unknown"
        with pytest.raises(LimitViolated, match="read the register first"):
            await vendor(opened, lambda driver: driver.write(3, "holding", 6, [12]))
        assert (await write(opened, "step", 12))["value"] == 12


async def lost(driver, device):
    await driver.read(3, "holding", 6, 1)
    device.faults.append("lost")
    await driver.write(3, "holding", 6, [9])


# --- raw addresses ----------------------------------------------------------------------------------------------------


async def test_addresses_that_are_not_declared_are_refused_unless_the_device_is_raw():
    async with session() as opened:
        for tool, more in (("modbus.read", {}), ("modbus.write", {"value": 1})):
            with pytest.raises(PermissionDenied, match="holding 100: the board profile does not declare it"):
                await opened.run(tool, device="DRIVE", register=100, **more)
    async with session(raw="r") as opened:
        opened.device.memory["holding", 100] = 7
        done = await opened.run("modbus.read", device="DRIVE", register=100)
        assert done == {"device": "DRIVE", "table": "holding", "register": 100, "value": 7}
        with pytest.raises(PermissionDenied, match="does not declare"):
            await opened.run("modbus.write", device="DRIVE", register=100, value=1)


async def test_raw_addresses_are_read_and_written_as_words_and_bits():
    async with session(raw="rw") as opened:
        opened.device.memory |= {("holding", 100): 1, ("holding", 101): 2, ("coil", 50): 0}
        done = await opened.run("modbus.read", device="DRIVE", register=100, count=2)
        assert [one["value"] for one in done["values"]] == [1, 2]
        assert (await opened.run("modbus.write", device="DRIVE", register=101, value=9))["value"] == 9
        assert opened.device.memory["holding", 101] == 9
        done = await opened.run("modbus.write", device="DRIVE", table="coil", register=50, value=True)
        assert done["value"] is True
        with pytest.raises(InvalidParams, match="an integer from 0 to 65535"):
            await opened.run("modbus.write", device="DRIVE", register=101, value=1.5)


@pytest.mark.parametrize(
    ("scope", "named", "raw"),
    [
        (("DRIVE",), True, False),
        (("plant:3",), True, False),
        (("plant:drive",), True, False),
        (("DRIVE*",), True, True),
        (("DRIVE", "DRIVE:raw"), True, True),
        (("plant:3:raw",), False, True),
        (("EVERYONE",), False, False),
        ((), False, False),
        (None, True, True),
    ],
)
async def test_a_policy_permits_devices_by_name_or_number_and_raw_addresses_apart(scope, named, raw):
    policy = PolicyEntry(name="p", match=Match(any=True), modbus=scope)
    async with session(raw="rw", policy=(policy,)) as opened:
        opened.device.memory["holding", 100] = 1
        for args, permitted in (({"name": "speed"}, named), ({"register": 100}, raw)):
            if permitted:
                await opened.run("modbus.read", device="DRIVE", **args)
                await opened.run("modbus.write", device="DRIVE", **args, value=1)
            else:
                for tool, more in (("modbus.read", {}), ("modbus.write", {"value": 1})):
                    with pytest.raises(PermissionDenied, match="is not in `modbus`"):
                        await opened.submit("x", [step(tool, device="DRIVE", **args, **more)])
        (line,) = (await opened.run("hw.modbus.list"))["lines"]
        assert ("DRIVE" in [device["device"] for device in line["devices"]]) is named
        if not named:
            with pytest.raises(PermissionDenied):
                await opened.run("hw.sensor.read", sensor="motor")


# --- rollback, plans, halt --------------------------------------------------------------------------------------------


async def test_a_task_that_fails_gives_registers_their_former_values_back():
    async with session() as opened:
        opened.device.memory |= {("holding", 0): 123, ("coil", 0): 1}
        steps = [
            step("modbus.write", device="DRIVE", name="speed", value=20),
            step("modbus.write", device="DRIVE", name="run", value=False),
            step("modbus.write", device="DRIVE", name="reset", value=1),
            step("modbus.read", device="DRIVE", name="speed", expect={"tool": "modbus.read", "args": {}}),
        ]
        opened.device.memory.pop(("holding", 8))
        steps[3] = step("modbus.read", device="DRIVE", name="total")
        done = await (await opened.submit("x", steps, rollback_on_failure=True)).wait()
        assert done.status == "FAILED"
        assert [one.rolled_back for one in done.steps][:2] == [True, True]
        assert opened.device.memory["holding", 0] == 123
        assert opened.device.memory["coil", 0] == 1
        assert opened.device.memory["holding", 10] == 1, "a register that is only written has no former value"


async def test_a_broadcast_says_that_it_is_not_confirmed():
    async with session() as opened:
        done = await opened.run("modbus.write", device="EVERYONE", name="stop", value=5)
        assert done["confirmed"] is False
        assert opened.device.memory["holding", 10] == 5


async def test_two_clients_share_a_line_and_each_gets_its_own_answers():
    async with session() as opened, opened.world.sessions().open_session() as other:
        opened.device.memory |= {("holding", 0): 10, ("holding", 1): 5}
        seen = []

        async def ask(session, name, wanted):
            for _ in range(20):
                assert (await session.run("modbus.read", device="DRIVE", name=name))["value"] == wanted
            seen.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, opened, "speed", 1)
            nursery.start_soon(ask, other, "ramp", 5)
        assert sorted(seen) == ["ramp", "speed"]


async def test_a_cancelled_request_that_has_begun_finishes_and_the_next_one_is_not_disturbed():
    async with session() as opened:
        opened.device.delay_s = 0.1
        task = await opened.submit("x", [step("modbus.write", device="DRIVE", name="speed", value=20)])
        await trio.sleep(0.15)
        await task.cancel()
        await task.wait()
        assert opened.device.memory["holding", 0] == 200
        assert (await read(opened, "speed"))["value"] == 20


# --- sensors and interlocks -------------------------------------------------------------------------------------------


async def test_a_register_may_be_a_sensor_of_the_board_with_its_unit():
    async with session() as opened:
        opened.device.memory["input", 0] = 0x41AC
        assert await opened.run("hw.sensor.read", sensor="motor") == {
            "sensor": "motor",
            "value": 21.5,
            "unit": "celsius",
        }
        (listed,) = (await opened.run("hw.sensor.list"))["sensors"]
        assert listed == {"sensor": "motor", "kind": "modbus", "unit": "celsius", "bus": "modbus:plant"}
        opened.device.memory["input", 0] = 0x7FC0
        assert (await read(opened, "temperature"))["value"] is None
        with pytest.raises(DeviceError, match="no value"):
            await opened.run("hw.sensor.read", sensor="motor")


@pytest.mark.slow
async def test_an_interlock_holds_by_a_register_and_opens_when_the_device_falls_silent():
    gpio = [{"label": "sim", "driver": "sim", "names": ["PUMP"], "lines": {"PUMP": {"safe": 0}}}]
    lock = {"drives": "PUMP", "value": 1, "requires": [{"sensor": "motor", "max": 60}]}
    async with session(gpio=gpio, interlock=[lock]) as opened:
        opened.device.memory["input", 0] = 0x41AC
        await opened.run("gpio.set", line="PUMP", value=1)
        opened.device.memory["input", 0] = 0x42C8  # 100 degrees
        await trio.sleep(1)
        assert opened.world.gpio.level(0) == 0
        with pytest.raises(InterlockOpen, match="motor"):
            await opened.run("gpio.set", line="PUMP", value=1)
        opened.device.memory["input", 0] = 0x41AC
        opened.device.faults.extend(["lost"] * 100)
        await trio.sleep(3)
        with pytest.raises(InterlockOpen, match="motor"):
            await opened.run("gpio.set", line="PUMP", value=1)


# --- safe values ------------------------------------------------------------------------------------------------------

SAFE = [
    {"name": "run", "table": "coil", "reg": 0, "safe": False},
    {"name": "speed", "reg": 0, "scale": 0.1, "unit": "hertz", "min": 0, "max": 50, "max_step": 20, "safe": 2.5},
    {"name": "open", "reg": 1, "type": "f32", "access": "w", "safe": 0},
    {"name": "kept", "reg": 3},
]


def safe_content():
    drives = [{"unit": unit, "name": f"DRIVE{unit}", "registers": SAFE} for unit in (3, 4)]
    line = {"line": "plant", "driver": "sim", "timeout_ms": 200, "late_ms": 100, "device": drives}
    return {"name": "b", "description": "a board", "modbus": [line]}


@asynccontextmanager
async def safe_world(**more):
    async with running(BoardWorld(safe_content(), **more)) as world:
        world.devices = world.parts.drivers["modbus:plant"].port.devices
        yield world


async def start_drive(session, unit=3):
    for name, value in (("run", True), ("speed", 20), ("open", 1.5), ("kept", 7)):
        await session.run("modbus.write", device=f"DRIVE{unit}", name=name, value=value)


def memory(world, unit=3):
    places = (("coil", 0), ("holding", 0), ("holding", 1), ("holding", 3))
    return [world.devices[unit].memory[place] for place in places]


STARTED, STOPPED = [1, 200, 0x3FC0, 7], [0, 25, 0, 7]


async def test_registers_with_a_safe_value_get_it_when_the_session_that_wrote_them_ends():
    async with safe_world() as world, world.sessions().open_session() as other:
        async with world.sessions().open_session() as session:
            await start_drive(session)
            await start_drive(other, unit=4)
            assert memory(world) == memory(world, 4) == STARTED
        assert memory(world) == STOPPED, "also beyond max_step: safety comes first"
        assert memory(world, 4) == STARTED, "another session's"
        (closed,) = [one for one in world.records() if one["event"] == "session.close"]
        assert [(one["name"], one["safe"]) for one in closed["safe"]] == [
            ("run", False), ("speed", 2.5), ("open", 0),
        ]  # fmt: skip
        # The limit of steps counts from the safe value.
        with pytest.raises(LimitViolated, match="max_step"):
            await other.run("modbus.write", device="DRIVE3", name="speed", value=23)


async def test_a_device_that_does_not_answer_costs_one_wait_and_the_others_are_made_safe():
    async with safe_world() as world:
        async with world.sessions().open_session() as session:
            await start_drive(session)
            await start_drive(session, unit=4)
            world.devices[3].faults.extend(["lost"] * 99)
            before, began = world.devices[3].requests, trio.current_time()
        assert world.devices[3].requests == before + 1
        assert trio.current_time() - began < 1
        assert memory(world, 4) == STOPPED
        (closed,) = [one for one in world.records() if one["event"] == "session.close"]
        told = [(one["device"], one["name"], "error" in one) for one in closed["safe"]]
        assert told == [("DRIVE3", name, True) for name in ("run", "speed", "open")] + [
            ("DRIVE4", name, False) for name in ("run", "speed", "open")
        ]


async def test_an_output_of_an_earlier_profile_is_left_alone(autojump_clock):
    async with safe_world() as world:
        driver = guarded.of(world.parts.board, "modbus:plant")
        reports = await driver.make_safe([(3, "holding", 3), (9, "coil", 0), "data"])
        assert [(one["output"], "left alone" in one["note"]) for one in reports] == [
            ((3, "holding", 3), True), ((9, "coil", 0), True), ("data", True),
        ]  # fmt: skip
