"""What the tools of a kind promise from the wire down: refusals, records, lists, plans, owners, undo and interlocks."""

from __future__ import annotations

import pytest
import trio
from kinds.board import Raw, changed, changed_register, content, i2c, output
from kinds.cases import CASES, drive
from support.waiting import passes
from support.world import BOB, OPEN, embedded

from hearth import step
from hearth.drivers.can.spec import SHIPPED
from hearth.drivers.registers import Write
from hearth.errors import DeviceError, Halted, InterlockOpen, LimitViolated, RpcError, TimedOut
from hearth.policy.rules import Match, PolicyEntry

GONE = step("i2c.read", bus=1, addr=0x23, reg=0, len=1)
"""A step that fails when it runs: no device is at this address."""


def every_case(cases):
    """Parameters for cases that are driven by a tool."""
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


async def refused(session, error, tool, args):
    """The error of a step that must not drive anything."""
    with pytest.raises(error) as caught:
        await session.run(tool, **args)
    assert caught.value.data["effect"] == "none"
    return caught.value


# --- bounds -----------------------------------------------------------------------------------------------------------

BEYOND = {
    "gpio": (
        ("gpio.pulse", {"line": "PUMP", "value": 1, "duration_ms": 6_000}),
        {"bus": "gpio:sim", "line": 0, "name": "PUMP", "limit": "max_on_ms", "allowed": 5_000},
        "gpio line 0 (PUMP) of chip 'sim': a pulse of 6000 ms is too long",
    ),
    "gpio too short": (
        ("gpio.pulse", {"line": "PUMP", "value": 1, "duration_ms": 50}),
        {"bus": "gpio:sim", "line": 0, "name": "PUMP", "limit": "min_on_ms", "allowed": 100},
        "gpio line 0 (PUMP) of chip 'sim': a pulse of 50 ms is too short",
    ),
    "pwm": (
        ("pwm.set", {"channel": "BLOWER", "duty": 0.9}),
        {"bus": "pwm:sim", "channel": "BLOWER", "limit": "max", "allowed": 0.8, "unit": "duty"},
        "pwm channel BLOWER: 0.9 duty is beyond max = 0.8 duty",
    ),
    "servo": (
        ("servo.move", {"servo": "ARM", "angle": 181}),
        {"bus": "pwm:sim", "channel": "ARM", "limit": "max", "allowed": 180, "unit": "degree"},
        "servo ARM: 181 degree is beyond max = 180 degree",
    ),
    "dac": (
        ("dac.set", {"channel": "BIAS", "value": 0.4}),
        {"bus": "dac:sim", "channel": "BIAS", "limit": "min", "allowed": 0.5, "unit": "volt"},
        "dac channel BIAS: 0.4 volt is beyond min = 0.5 volt",
    ),
    "lamp": (
        ("lamp.set", {"channel": "UV", "value": 81}),
        {"bus": "lamp:sim", "channel": "UV", "limit": "max", "allowed": 80, "unit": "percent"},
        "lamp UV: 81 percent is beyond max = 80 percent",
    ),
    "i2c": (
        ("i2c.write", {"bus": 1, "addr": 0x50, "reg": 0x10, "hex": "c9"}),
        {"bus": "i2c:1", "addr": 0x50, "reg": 0x10, "name": "speed", "limit": "max", "allowed": 200},
        "i2c bus 1, address 0x50, register 0x10 (speed): 201 is beyond max = 200",
    ),
    "spi": (
        ("spi.write", {"device": "MOTOR", "register": "SPEED", "value": 3_001}),
        {"bus": "spi:MOTOR", "device": "MOTOR", "reg": 0x10, "name": "SPEED", "limit": "max", "allowed": 3_000,
         "unit": "rpm"},
        "spi device 'MOTOR', register 0x10 (SPEED): 3001 rpm is beyond max = 3000 rpm",
    ),
    "spi bytes": (
        ("spi.transfer", {"device": "MOTOR", "hex": "10 0b b9"}),
        {"bus": "spi:MOTOR", "device": "MOTOR", "reg": 0x10, "name": "SPEED", "limit": "max", "allowed": 3_000,
         "unit": "rpm"},
        "spi device 'MOTOR', register 0x10 (SPEED): 3001 rpm is beyond max = 3000 rpm",
    ),
    "modbus": (
        ("modbus.write", {"device": "FAN", "name": "speed", "value": 101}),
        {"bus": "modbus:plant", "device": "FAN", "table": "holding", "register": 100, "name": "speed", "limit": "max",
         "allowed": 100, "unit": "percent"},
        "modbus device FAN, speed (holding 100): 101 percent is beyond max = 100 percent",
    ),
    "modbus f32": (
        ("modbus.write", {"device": "FAN", "name": "setpoint", "value": -0.5}),
        {"bus": "modbus:plant", "device": "FAN", "table": "holding", "register": 110, "name": "setpoint",
         "limit": "min", "allowed": 0},
        "modbus device FAN, setpoint (holding 110): -0.5 is beyond min = 0",
    ),
    "can": (
        ("can.send", {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": 101}}),
        {"signal": "FAN_COMMAND.Speed", "value": 101, "min": 0.0, "max": 100.0, "unit": "percent"},
        "signal FAN_COMMAND.Speed = 101 is outside of 0 to 100 percent",
    ),
    "can bytes": (
        ("can.send", {"bus": "can0", "id": "0x200", "hex": "c9"}),
        {"signal": "FAN_COMMAND.Speed", "value": 100.5, "min": 0.0, "max": 100.0, "unit": "percent"},
        "signal FAN_COMMAND.Speed = 100.5 is outside of 0 to 100 percent",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
async def test_a_value_beyond_its_bounds_is_refused_at_submit_in_a_plan_and_on_a_dry_run(
    open_world, face, promise, name
):
    promise(name.partition(" ")[0], "a value beyond its bounds is refused before anything moves")
    (tool, args), members, said = BEYOND[name]
    one = step(tool, **args)
    async with open_world() as world, face(world) as session:
        for submit, more in ((session.submit, {}), (session.prepare, {}), (session.submit, {"dry_run": True})):
            with pytest.raises(LimitViolated) as caught:
                await submit("x", [one], **more)
            given = dict(caught.value.data)
            if "reason" in given:
                assert said.endswith(f": {given.pop('reason')}")
            assert given == {"step_index": 0, "tool": tool, **members, "effect": "none"}
            assert said in caught.value.message
        assert not world.recorder.operations


_I2C, _SPI = {"bus": 1, "addr": 0x50}, {"device": "MOTOR"}
FORMS = {
    "i2c not listed": (i2c([0x0F, 0]), "does not list it; to be written are: 0x10, 0x11, 0x20, 0x30, 0x38, 0x41"),
    "i2c only read": (i2c([0x40, 1]), 'it is only read (access = "r")'),
    "i2c only written": (i2c([0x41], 1), 'it is only written (access = "w")'),
    "i2c a part": (i2c([0x20, 5]), "it has 2 bytes; write it whole"),
    "i2c a part of one that is listed": (i2c([0x30, 0x0F]), "it has 2 bytes; write it whole"),
    "i2c the end of one": (i2c([0x21, 5]), "does not list it"),
    "i2c several": (i2c([0x10, 10, 101]), "101 is beyond max = 100"),
    "i2c one too many": (i2c([0x10, 10, 5, 5]), "does not list it"),
    "i2c the second message": (i2c([0x10], 1, [0x10, 201]), "201 is beyond max = 200"),
    "i2c the third message": (i2c([0x10, 10], [0x10, 201]), "201 is beyond max = 200"),
    "i2c two bytes": (i2c([0x30, 0x0F, 0xA1]), "4001 is beyond max = 4000"),
    "i2c twice": (i2c([0x11, 10], [0x11, 20]), "it is written twice in one transaction, and its steps are limited"),
    "spi not listed": ("30 00", "does not list it; to be written are: 0x10, 0x12, 0x13, 0x14"),
    "spi only read": ("20 01", 'it is only read (access = "r")'),
    "spi a part": ("10 ff", "it has 2 bytes; write it whole"),
    "spi the end of one": ("11 0b", "does not list it"),
    "spi several": ("10 0000 00 00 c9", "201 is beyond max = 200"),
    "spi a step": ("13 0b", "its present value is not known; read the register first"),
    "spi two bytes": ("10 0b b9", "3001 rpm is beyond max = 3000 rpm"),
}


def forms(kind):
    """Parameters for the forms of a kind."""
    return pytest.mark.parametrize("name", [name for name in FORMS if name.startswith(kind)])


@pytest.fixture
async def refuses(open_world, promise):
    """`await refuses(name, raw)`: a form of bytes is refused, by its tool or past it, and nothing moves."""
    async with open_world() as world, embedded(world) as session:

        async def check(name, *, raw):
            kind, (form, why) = name.partition(" ")[0], FORMS[name]
            promise(kind, "no raw form passes a bound")
            levels = world.levels()
            if raw:
                form = form if kind == "i2c" else Raw("spi:MOTOR", "transfer", (bytes.fromhex(form),))
                error = await refused(session, RpcError, "com.acme.call", world.step_of(form))
            elif kind == "i2c":
                given = [{"hex": one.data.hex()} if isinstance(one, Write) else {"read": 1} for one in form.args[1]]
                error = await refused(session, LimitViolated, "i2c.transfer", {**_I2C, "messages": given})
            else:
                error = await refused(session, LimitViolated, "spi.transfer", {**_SPI, "hex": form})
            assert why in error.message
            assert not world.recorder.operations
            assert world.levels() == levels

        yield check


@pytest.mark.spec("design 8: limits of outputs")
@forms("i2c")
async def test_a_write_that_no_register_takes_is_refused_before_anything_moves(refuses, name):
    await refuses(name, raw=False)


@forms("i2c")
async def test_no_form_of_a_raw_i2c_transfer_passes_the_bounds_of_a_register(refuses, name):
    await refuses(name, raw=True)


@forms("spi")
async def test_bytes_that_reach_another_register_or_a_part_of_one_are_refused(refuses, name):
    await refuses(name, raw=False)


@forms("spi")
async def test_no_form_of_a_raw_spi_transfer_passes_the_bounds_of_a_register(refuses, name):
    await refuses(name, raw=True)


CLAMPED = {
    "pwm": (
        changed("pwm", "FAN", limit={"min": 0.1, "max": 0.4}, safe=0.1, on_limit="clamp"),
        ("pwm.set", {"channel": "FAN"}, "duty"),
        {"channel": "FAN", "unit": "duty"},
        [(0.9, 0.4), (0.01, 0.1)],
    ),
    "servo": (
        changed("pwm", "ARM", start=0, on_limit="clamp"),
        ("servo.move", {"servo": "ARM"}, "angle"),
        {"channel": "ARM", "unit": "degree"},
        [(200, 180), (-20, 0)],
    ),
    "dac": (
        changed("dac", "BIAS", on_limit="clamp"),
        ("dac.set", {"channel": "BIAS"}, "value"),
        {"channel": "BIAS", "unit": "volt"},
        [(5, 2.5), (-1, 0.5)],
    ),
    "lamp": (
        changed("lamp", "WHITE", max=50, on_limit="clamp"),
        ("lamp.set", {"channel": "WHITE"}, "value"),
        {"channel": "WHITE", "unit": "percent"},
        [(90, 50)],
    ),
    "i2c": (
        {},
        ("i2c.write", {**_I2C, "reg": 0x20}, "hex"),
        {"addr": 0x50, "reg": 0x20, "name": "torque"},
        [("00c8", 100), ("8000", -100)],
    ),
    "i2c bytes": (
        {},
        ("i2c.transfer", _I2C, "hex"),
        {"addr": 0x50, "reg": 0x20, "name": "torque"},
        [("2000c8", 100)],
    ),
    "spi": (
        {},
        ("spi.write", {**_SPI, "register": "CURRENT"}, "value"),
        {"device": "MOTOR", "reg": 0x12, "name": "CURRENT", "unit": "ampere"},
        [(2.4, 2.0)],
    ),
    "spi bytes": (
        {},
        ("spi.transfer", _SPI, "hex"),
        {"device": "MOTOR", "reg": 0x12, "name": "CURRENT", "unit": "ampere"},
        [("12 18", 2.0)],
    ),
    "modbus": (
        changed_register("speed", on_limit="clamp"),
        ("modbus.write", {"device": "FAN", "name": "speed"}, "value"),
        {"device": "FAN", "table": "holding", "register": 100, "name": "speed", "unit": "percent"},
        [(2_000, 100)],
    ),
}
_ASKED = {"00c8": 200, "2000c8": 200, "8000": -32_768, "12 18": 2.4}
_CLAMPED_AT = {
    "pwm": ("pwm:sim", "FAN"), "servo": ("pwm:sim", "ARM"), "dac": ("dac:sim", "BIAS"),
    "i2c": ("i2c:1", "torque"), "spi": ("spi:MOTOR", "CURRENT"), "modbus": ("modbus:plant", "speed"),
    "lamp": ("lamp:sim", "WHITE"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAMPED)
async def test_a_value_that_is_clamped_is_driven_told_and_recorded(open_world, face, promise, name):
    promise(name.partition(" ")[0], "a clamped value is driven, told and recorded")
    tables, (tool, args, key), members, rows = CLAMPED[name]
    one = output(*_CLAMPED_AT[name.partition(" ")[0]])
    async with open_world(tables=tables) as world, face(world) as session:
        told = []
        for asked, written in rows:
            done = await session.run(tool, **args, **{key: asked})
            (clamped,) = done["clamped"]
            told.append(clamped)
            assert clamped.pop("asked") == pytest.approx(_ASKED.get(asked, asked))
            assert clamped == {**members, "written": written}
            assert one.level(world) == pytest.approx(written * (10 if one.name == "CURRENT" else 1), abs=one.grain)
            if isinstance(asked, (int, float)):
                assert "clamped" not in await session.run(tool, **args, **{key: written})
        records = world.records("limit.clamped")
        assert [record["clamped"][0]["written"] for record in records] == [written for _, written in rows]
        assert all((record["bus"], record["session_id"]) == (one.bus, session.session_id) for record in records)


# --- steps and slew ---------------------------------------------------------------------------------------------------


def pwm(name, duty):
    return "pwm.set", {"channel": name, "duty": duty}


def i2c_write(reg, data):
    return "i2c.write", {**_I2C, "reg": reg, "hex": data}


def i2c_read(reg, size=1):
    return "i2c.read", {**_I2C, "reg": reg, "len": size}


def spi(register, value=None):
    return ("spi.read", {**_SPI, "register": register}) if value is None else (
        "spi.write", {**_SPI, "register": register, "value": value})  # fmt: skip


def modbus(name, value):
    return "modbus.write", {"device": "FAN", "name": name, "value": value}


def can(message, **signals):
    return "can.send", {"bus": "can0", "message": message, "signals": signals}


def lamp(name, value):
    return "lamp.set", {"channel": name, "value": value}


STEPPED = {
    "pwm": ([pwm("FAN", 0.5), pwm("FAN", 1)], pwm("FAN", 0.25), pwm("FAN", 0.5), "from 1 to 0.25 duty exceeds max_st"),
    "i2c": ([i2c_read(0x11), i2c_write(0x11, "0a")], i2c_write(0x11, "1e"), i2c_write(0x11, "14"), "from 10 to 30 exc"),
    "spi": ([spi("RAMP"), spi("RAMP", 10)], spi("RAMP", 30), spi("RAMP", 20), "from 10 to 30 exceeds max_step = 10"),
    "modbus": ([modbus("level", 50)], modbus("level", 150), modbus("level", 100), "from 50 to 150 exceeds max_step ="),
    "can": (
        [can("STEPPER_COMMAND", Position=500, Hold=0)],
        can("STEPPER_COMMAND", Position=520, Hold=0),
        can("STEPPER_COMMAND", Position=510, Hold=0),
        "can can0, signal STEPPER_COMMAND.Position: from 500 to 520 degree exceeds max_step = 10 degree",
    ),
}


@pytest.mark.parametrize("kind", STEPPED)
async def test_a_step_is_counted_from_the_last_value_and_one_that_is_too_long_is_refused(open_world, promise, kind):
    promise(kind, "a step is counted from the last value")
    first, far, near, said = STEPPED[kind]
    async with open_world() as world, embedded(world) as session:
        if "read" in first[0][0]:
            error = await refused(session, LimitViolated, *first[1])
            assert "its present value is not known; read the register first" in error.message
        for tool, args in first:
            await session.run(tool, **args)
        error = await refused(session, LimitViolated, *far)
        assert (error.data["limit"], said in error.message, "retry_after_ms" in error.data) == ("max_step", True, False)
        await session.run(near[0], **near[1])


async def test_raw_bytes_are_no_way_around_a_step(open_world, promise):
    promise("can", "raw bytes are no way around a step")
    async with open_world() as world, embedded(world) as session:
        await session.can.send("can0", "STEPPER_COMMAND", {"Position": 0, "Hold": 0})
        for named in ({"id": 0x220}, {"message": "STEPPER_COMMAND"}):
            await refused(session, LimitViolated, "can.send", {"bus": "can0", **named, "hex": "0b0000"})
        await session.run("can.send", bus="can0", id=0x221, hex="ff")
        await session.run("can.send", bus="can0", id=0x220, hex="0a0000")


SLEWED = {
    "pwm": ([], pwm("BLOWER", 0.25), ("pwm:sim", "BLOWER"), 500),
    "lamp": ([], lamp("UV", 10), ("lamp:sim", "UV"), 500),
    "i2c": ([i2c_read(0x30, 2)], i2c_write(0x30, "0064"), ("i2c:1", "position"), 1_000),
    "spi": ([spi("TILT")], spi("TILT", 20), ("spi:MOTOR", "TILT"), 1_000),
    "modbus": ([modbus("ramp", 0)], modbus("ramp", 20), ("modbus:plant", "ramp"), 1_000),
    "can": (
        [can("WINCH_COMMAND", Speed=5)],
        can("WINCH_COMMAND", Speed=15),
        ("can:can0", "WINCH_COMMAND.Speed"),
        1_000,
    ),
}


@pytest.mark.parametrize("kind", SLEWED)
async def test_an_output_changes_as_fast_as_its_slew_and_the_refusal_says_when_to_try_again(open_world, promise, kind):
    promise(kind, "a slew that refuses says when it will not")
    first, (tool, args), one, after_ms = SLEWED[kind]
    one = output(*one)
    async with open_world() as world, embedded(world) as session:
        for name, given in first:
            await session.run(name, **given)
        before = one.level(world)
        error = await refused(session, LimitViolated, tool, args)
        assert error.data["limit"] == "slew_per_s"
        assert after_ms * 0.8 < error.data["retry_after_ms"] <= after_ms + 1
        assert f"try again in {error.data['retry_after_ms']} ms" in error.message
        await trio.sleep(error.data["retry_after_ms"] / 1000)
        await session.run(tool, **args)
        assert one.level(world) != before


async def test_steps_are_counted_from_the_frame_before_one_that_may_have_been_sent(open_world, promise):
    promise("can", "after a failure steps are counted from the last known value")
    async with open_world() as world, embedded(world) as session:
        await session.can.send("can0", "STEPPER_COMMAND", {"Position": 0, "Hold": 0})
        world.drivers["can:can0"].set_faults(acknowledged=False)
        tool, args = can("STEPPER_COMMAND", Position=10, Hold=0)
        with pytest.raises(TimedOut):
            await session.run(tool, timeout_ms=10, **args)
        world.drivers["can:can0"].set_faults(acknowledged=True)
        await refused(session, LimitViolated, *can("STEPPER_COMMAND", Position=20, Hold=0))
        await session.run(tool, **args)


async def test_a_limit_of_the_profile_on_a_shipped_files_signal_is_kept_too(open_world):
    signals = {"FAN_COMMAND.Speed": {"limit": {"max_step": 5, "max": 50}}}
    table = {"bus": "can0", "driver": "sim", "dbc": str(SHIPPED / "sim.dbc"), "signals": signals}
    async with open_world(tables={"can": [table]}) as world, embedded(world) as session:
        await session.can.send("can0", "FAN_COMMAND", {"Speed": 40})
        await refused(session, LimitViolated, *can("FAN_COMMAND", Speed=46))
        assert "outside of 0 to 50" in (await refused(session, LimitViolated, *can("FAN_COMMAND", Speed=51))).message


async def test_bytes_that_begin_with_no_command_are_refused(open_world):
    motor = {"name": "MOTOR", "driver": "sim", "kind": "registers", "registers": [{"reg": 1}]}
    tables = {"spi": [{**motor, "increment": "byte", "read_mask": 0x40, "write_mask": 0x80}]}
    async with open_world(tables=tables) as world, embedded(world) as session:
        error = await refused(session, LimitViolated, "spi.transfer", {**_SPI, "hex": "01 00"})
        assert "a transfer begins with a command that reads or writes a register" in error.message
        await session.run("spi.transfer", **_SPI, hex="81 05")
        assert (await session.run("spi.read", **_SPI, register=1))["raw"] == 5
        assert world.drivers["spi:MOTOR"].chip.cells[1] == 5


FAULTS = {
    "pwm": ([pwm("FAN", 0.5)], pwm("FAN", 1), ("pwm:sim", lambda chip: chip.fail())),
    "dac": ([("dac.set", {"channel": "DRIVE", "value": 1})], ("dac.set", {"channel": "DRIVE", "value": 2}),
            ("dac:sim", lambda chip: chip.fail())),
    "lamp": ([lamp("WHITE", 40)], lamp("WHITE", 50), ("lamp:sim", lambda lamps: lamps.fail())),
    "spi": ([spi("RAMP"), spi("RAMP", 10)], spi("RAMP", 20), ("spi:MOTOR", lambda device: device.faults.fail())),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_fault_of_the_device_is_an_error_and_what_comes_next_is_counted_from_what_it_has(
    open_world, promise, kind
):
    promise(kind, "after a failure the value is read before the next step")
    first, (tool, args), (bus, fail) = FAULTS[kind]
    async with open_world() as world, embedded(world) as session:
        for name, given in first:
            await session.run(name, **given)
        fail(world.drivers[bus])
        with pytest.raises(DeviceError) as caught:
            await session.run(tool, **args)
        if kind == "spi":
            assert caught.value.data["effect"] == "unknown"
            assert "not known" in (await refused(session, LimitViolated, tool, args)).message
            await session.run(first[0][0], **first[0][1])
        await session.run(tool, **args)


# --- what is shown ----------------------------------------------------------------------------------------------------

LISTS = {
    "gpio": ("hw.gpio.list", "chips", "lines", {
        "line": 0, "name": "PUMP", "direction": "any", "safe": 0, "hold": "release",
        "limit": {"min_on_ms": 100, "max_on_ms": 5_000, "min_off_ms": 100},
    }),
    "pwm": ("hw.pwm.list", "chips", "channels", {
        "channel": "FAN", "number": 0, "unit": "duty", "limit": {"min": 0, "max": 1, "max_step": 0.5},
        "period_us": 40, "safe": 0, "hold": "release",
    }),
    "servo": ("hw.pwm.list", "chips", "channels", {
        "channel": "ARM", "number": 1, "unit": "degree", "period_us": 20_000, "safe": "off", "hold": "release",
        "limit": {"min": 0, "max": 180, "max_step": 9, "slew_per_s": 90},
        "servo": {"min_us": 1_000, "max_us": 2_000, "min_angle": 0, "max_angle": 180, "slew": 90},
    }),
    "dac": ("hw.dac.list", "devices", "channels", {
        "channel": "VALVE", "number": 0, "quantity": "voltage", "unit": "volt", "safe": 0, "hold": "release",
        "limit": {"min": 0, "max": 10, "max_step": 0.5, "slew_per_s": 5}, "slew": 5,
    }),
    "lamp": ("hw.lamp.list", "cabinets", "channels", {
        "channel": "UV", "number": 0, "unit": "percent", "safe": 0, "hold": "release",
        "limit": {"min": 0, "max": 80, "slew_per_s": 20},
    }),
    "i2c": ("hw.i2c.list", "buses", "devices", {
        "addr": 0x50, "hex": "0x50", "kind": "24c02", "reg_width": 8, "note": "a motor controller", "increment": "byte",
        "registers": [
            {"reg": 0x10, "hex": "0x10", "width": 8, "access": "rw", "min": 0, "max": 200, "name": "speed"},
            {"reg": 0x11, "hex": "0x11", "width": 8, "access": "rw", "max": 100, "max_step": 10, "name": "current"},
            {"reg": 0x20, "hex": "0x20", "width": 16, "access": "rw", "min": -100, "max": 100, "name": "torque",
             "signed": True, "on_limit": "clamp"},
            {"reg": 0x30, "hex": "0x30", "width": 16, "access": "rw", "max": 4_000, "slew_per_s": 100,
             "name": "position"},
            {"reg": 0x38, "hex": "0x38", "width": 8, "access": "rw", "max": 1, "name": "brake"},
            {"reg": 0x40, "hex": "0x40", "width": 8, "access": "r", "name": "status"},
            {"reg": 0x41, "hex": "0x41", "width": 8, "access": "w", "max": 50, "max_step": 5, "name": "key"},
        ],
    }),
    "spi": ("hw.spi.list", "devices", "registers", {
        "reg": 0x13, "hex": "0x13", "width": 8, "access": "rw", "max": 100, "max_step": 10, "name": "RAMP",
    }),
    "can": ("hw.can.list", "buses", "messages", {
        "message": "WINCH_COMMAND", "id": 560, "hex": "0x230", "length": 4, "senders": ["HEARTH"],
        "signals": [{"signal": "Speed", "unit": "percent", "min": -50, "max": 50, "slew_per_s": 10}],
    }),
    "modbus": ("hw.modbus.list", "lines", "devices", {
        "device": "HEATER", "unit": 5, "raw": "rw", "registers": [
            {"name": "power", "register": 100, "table": "holding", "type": "u16", "access": "rw", "max": 40, "safe": 0},
            {"name": "setpoint", "register": 110, "table": "holding", "type": "f32", "access": "rw", "min": 0,
             "max": 60, "max_step": 5, "order": "big"},
        ],
    }),
}  # fmt: skip
UNKNOWN = {
    "gpio": (("gpio.set", {"line": "RELAI", "value": 1}), "RELAY"),
    "pwm": (("pwm.set", {"channel": "FUN", "duty": 0}), "FAN"),
    "dac": (("dac.set", {"channel": "VALV", "value": 0}), "VALVE"),
    "lamp": (lamp("WITE", 0), "WHITE"),
    "spi": (("spi.read", {"device": "MOTR", "register": "SPEED"}), "MOTOR"),
    "can": (can("FAN_COMAND", Speed=0), "FAN_COMMAND"),
    "modbus": (("modbus.read", {"device": "FANN", "name": "speed"}), "FAN"),
}


@pytest.mark.parametrize("name", LISTS)
async def test_the_list_of_a_kind_shows_its_outputs_with_their_limits_and_safe_states(open_world, promise, name):
    promise("pwm" if name == "servo" else name, "its list shows limits and safe states")
    tool, buses, inside, shown = LISTS[name]
    async with open_world() as world, embedded(world) as session:
        bus = (await session.run(tool))[buses][0]
        assert shown in bus[inside]
        ids = [one["id"] for one in (await session.run("hw.board"))["buses"]]
        assert world.drivers.keys() - {"board"} <= {*ids}


@pytest.mark.parametrize("kind", UNKNOWN)
async def test_a_name_that_the_board_has_not_is_refused_with_the_nearest(open_world, promise, kind):
    promise(kind, "an unknown name is refused with the nearest")
    (tool, args), nearest = UNKNOWN[kind]
    async with open_world() as world, embedded(world) as session:
        with pytest.raises(RpcError, match=f"did you mean '?{nearest}"):
            await session.run(tool, **args)
        assert not world.recorder.operations


PLANS = {
    "gpio-RELAY": ({"value": 0}, {"value": 1}),
    "gpio-BRAKE": ({"value": 0}, {"value": 0}),
    "pwm-FAN": ({"duty": 0, "period_us": 40}, {"duty": 0.5, "period_us": 40}),
    "pwm-ARM": ({"angle": None}, {"angle": 5}),
    "dac-VALVE": ({"value": 0}, {"value": 0.5}),
    "dac-DRIVE": ({"value": 0}, {"value": 0.5}),
    "lamp-UV": ({"value": 0}, {"value": 10}),
    "lamp-WHITE": ({"value": 0}, {"value": 70}),
    "i2c-speed": ({"data": "AA=="}, {"data": "lg=="}),
    "i2c-torque": ({"data": "AAA="}, {"data": "/84="}),
    "i2c-brake": ({"data": "AA=="}, {"data": "AA=="}),
    "spi-SPEED": ({"value": 0}, {"value": 3_000}),
    "can-FAN_COMMAND.Speed": (None, None),
    "can-WINCH_COMMAND.Speed": (None, None),
    "modbus-run": ({"value": False}, {"value": True}),
    "modbus-power": ({"value": 0}, {"value": 30}),
    "modbus-speed": ({"value": 0}, {"value": 100}),
}


@every_case(CASES)
async def test_a_plan_shows_what_a_step_changes_and_changes_nothing(open_world, promise, case):
    promise(case.kind, "a plan shows the value before and after")
    async with open_world() as world, embedded(world) as session:
        levels = world.levels()
        plan = await session.prepare("look", [step(case.step[0], **case.step[1])])
        assert [(one.before, one.after) for one in plan.steps] == [PLANS[case.id]]
        assert world.levels() == levels


@every_case([case for case in CASES if case.kind in ("pwm", "dac", "lamp")])
async def test_an_observer_sees_value_owner_limit_and_safe_state(open_world, promise, case):
    promise(case.kind, "an observer sees value, owner, limit and safe state")
    policy = (PolicyEntry(name="watchers", match=Match(uid=1002), rights=["observe"]), OPEN)
    async with open_world(policy=policy) as world, world.client(BOB) as other, other.open_session() as watcher:
        one = case.output
        number, shown = one.output, None
        async with embedded(world) as session:
            await drive(session, world, case, "tool")
            for shown in (await watcher.observe_state())["signals"]:
                if shown["bus"] == one.bus and shown["name"] == one.name:
                    break
            assert shown.pop("limit").items() >= {"min": one.least, "max": one.most}.items()
            unit = {"pwm": "duty", "dac": "volt", "lamp": "percent"}[case.kind] if one.name != "ARM" else "degree"
            assert shown == {
                "bus": one.bus, "channel": number, "name": one.name, "unit": unit,
                "value": pytest.approx(case.level),
                "owner": {"session_id": session.session_id, "principal": "uid:1001"},
                "safe": one.safe, "hold": "release", "reserved": None, "role": None,
            }  # fmt: skip
        [shown] = [one for one in (await watcher.observe_state())["signals"] if one["name"] == case.output.name]
        assert shown["owner"] is None


async def test_a_plan_shows_what_is_switched_off_and_no_value_of_a_register_that_is_only_written(open_world):
    async with open_world(new=["pwm"]) as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=10)
        steps = [
            step("servo.move", servo="ARM", angle=20),
            step("pwm.off", channel="ARM"),
            step("modbus.write", device="EVERYONE", name="reset", value=1),
        ]
        shown = [(one.before, one.after) for one in (await session.prepare("look", steps)).steps]
        assert shown[:2] == [({"angle": 10}, {"angle": 20}), ({"on": True}, {"on": False})]
        assert shown[2][0] is None


async def test_a_value_is_set_and_read_in_the_unit_of_its_channel(open_world, face):
    async with open_world() as world, face(world) as session:
        told = {"channel": "BIAS", "value": 1.5, "unit": "volt"}
        assert await session.run("dac.set", channel="BIAS", value=1.5) == told
        assert await session.run("dac.get", channel="BIAS") == told
        await session.run("com.acme.call", **world.step_of(Raw("dac:sim", "set", (2, "off"))))
        assert (await session.run("dac.get", channel="DRIVE"))["value"] is None


# --- whose it is ------------------------------------------------------------------------------------------------------


@every_case(CASES)
async def test_the_record_of_a_sessions_end_names_what_was_made_safe(open_world, promise, case):
    promise(case.kind, "the end of a session is on record with its safe states")
    async with open_world(new=case.keys) as world:
        async with embedded(world) as session:
            await drive(session, world, case, "tool")
        await passes(lambda: case.is_safe(world))
        [close] = world.records("session.close")
        [report] = close["safe"]
        assert report.get("signal", report.get("name")) == case.output.name
        assert report["safe"] == case.safe


@every_case(CASES)
async def test_an_output_that_another_session_has_driven_since_is_left_to_it(open_world, promise, case):
    promise(case.kind, "the last session to drive an output owns it")
    async with open_world(new=case.keys) as world, embedded(world, BOB) as other:
        async with embedded(world) as session:
            await drive(session, world, case, "tool")
            await drive(other, world, case, "tool")
        assert not case.is_safe(world)
        assert world.runtime.buses[case.output.bus].known().outputs[case.output.output].owner == other.session_id


@every_case(CASES)
async def test_a_controller_that_falls_silent_leaves_a_machine_that_stops(open_world, promise, case):
    promise(case.kind, "safe after a missed heartbeat")
    async with open_world(new=case.keys) as world, embedded(world, heartbeat_ms=3_000) as session:
        await drive(session, world, case, "tool")
        assert not case.is_safe(world)
        await trio.sleep(5)
        assert case.is_safe(world)


UNDO = {
    "gpio-RELAY": "gpio line 2 of sim back to an input",
    "gpio-BRAKE": "gpio line 3 of sim back to an input",
    "pwm-FAN": "pwm channel FAN back to off",
    "pwm-ARM": "servo ARM back to off",
    "dac-VALVE": "dac channel VALVE back to 0 volt",
    "dac-DRIVE": "dac channel DRIVE back to 0 volt",
    "lamp-WHITE": "lamp WHITE back to 0 percent",
    "modbus-run": "modbus.write FAN run back to False",
    "modbus-power": "modbus.write HEATER power back to 0",
    "modbus-speed": "modbus.write FAN speed back to 0",
}


@every_case([case for case in CASES if case.id in UNDO])
async def test_a_task_that_fails_gives_the_former_level_back(open_world, promise, case):
    promise(case.kind, "a rollback restores the former level")
    async with open_world() as world, embedded(world) as session:
        former = case.now(world)
        task = await session.submit("x", [step(case.step[0], **case.step[1]), GONE], rollback_on_failure=True)
        result = await task.wait()
        assert (result.status, [one.rolled_back for one in result.steps]) == ("FAILED", [True, None])
        assert case.now(world) == former
        assert [one["undo"] for one in world.records("task.step.rollback") if "undo" in one] == [UNDO[case.id]]


KEPT = {
    "gpio-RELAY": {"gpio": [{**content("none")["gpio"][0], "lines": {"RELAY": {"safe": 0, "hold": "keep"}}}]},
    "pwm-FAN": changed("pwm", "FAN", hold="keep"),
    "dac-VALVE": changed("dac", "VALVE", hold="keep"),
    "lamp-WHITE": changed("lamp", "WHITE", hold="keep"),
}


@every_case([case for case in CASES if case.id in KEPT])
async def test_an_output_that_the_profile_keeps_outlives_its_session_and_is_safe_after_a_halt(
    open_world, promise, case
):
    promise(case.kind, "what the profile keeps outlives its session, and no halt")
    async with open_world(tables=KEPT[case.id]) as world:
        async with embedded(world) as session:
            await drive(session, world, case, "tool")
        assert case.now(world) == pytest.approx(case.level)
        async with embedded(world) as session:
            await session.halt("smoke")
            await passes(lambda: case.is_safe(world))


# --- halt and interlocks ----------------------------------------------------------------------------------------------

READS = {
    "gpio": ("gpio.get", {"line": "RELAY"}),
    "pwm": ("pwm.get", {"channel": "FAN"}),
    "dac": ("dac.get", {"channel": "VALVE"}),
    "lamp": ("lamp.get", {"channel": "WHITE"}),
    "i2c": i2c_read(0x10),
    "spi": spi("SPEED"),
    "can": ("hw.can.list", {}),
    "modbus": ("modbus.read", {"device": "FAN", "name": "speed"}),
}
MORE_EFFECTS = [("spi.read", {**_SPI, "register": "FAULTS"}), ("spi.transfer", {**_SPI, "hex": "94 00"})]


async def only_reads(world, session, kind, *effects):
    """Halt; refuse these steps, and go on reading."""
    await session.halt("smoke")
    await trio.sleep(1)
    before = len(world.recorder.operations)
    for tool, args in effects:
        await refused(session, Halted, tool, args)
    assert not world.recorder.since(before)
    tool, args = READS[kind]
    await session.run(tool, **args)


@every_case(CASES)
async def test_a_halt_refuses_every_step_with_an_effect_and_reads_go_on(open_world, promise, case):
    promise(case.kind, "during a halt it is read and nothing else")
    async with open_world(new=case.keys) as world, embedded(world) as session:
        await only_reads(world, session, case.kind, case.step)


async def test_during_a_halt_registers_are_read_and_nothing_else(open_world):
    async with open_world() as world, embedded(world) as session:
        await only_reads(world, session, "spi", *MORE_EFFECTS)


LOCKS = {
    "pwm": ("FAN", 0.3, pwm("FAN", 0.3), pwm("FAN", 0.5), ("pwm:sim", "FAN"), "pwm channel FAN of pwm:sim"),
    "servo": ("ARM", 30, ("servo.move", {"servo": "ARM", "angle": 30}), ("servo.move", {"servo": "ARM", "angle": 31}),
              ("pwm:sim", "ARM"), "pwm channel ARM of pwm:sim"),
    "dac": ("DRIVE", 4, ("dac.set", {"channel": "DRIVE", "value": 4}), ("dac.set", {"channel": "DRIVE", "value": 5}),
            ("dac:sim", "DRIVE"), "dac channel DRIVE of dac:sim"),
    "lamp": ("WHITE", 50, lamp("WHITE", 50), lamp("WHITE", 60), ("lamp:sim", "WHITE"),
             "lamp channel WHITE of lamp:sim"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOCKS)
async def test_a_channel_may_be_in_a_guarded_range_only_while_what_it_requires_holds(open_world, promise, kind):
    promise("pwm" if kind == "servo" else kind, "an interlock holds for a range, and its opening makes it safe")
    name, above, inside, beyond, place, said = LOCKS[kind]
    one = output(*place)
    lock = {"drives": name, "above": above, "requires": [{"line": "DOOR", "value": 0}]}
    async with open_world(tables={"interlock": [lock]}, new=["pwm"]) as world, embedded(world) as session:
        door = world.drivers["gpio:sim"].push
        door(5, 1)
        await session.run(inside[0], **inside[1])
        error = await refused(session, InterlockOpen, *beyond)
        assert (error.data["channel"], error.data["above"]) == (name, above)
        assert f"{said} may be above {above} only while" in error.message
        assert one.level(world) == pytest.approx(above, abs=one.grain)
        door(5, 0)
        await session.run(beyond[0], **beyond[1])
        assert one.level(world) > above + one.grain
        door(5, 1)
        with trio.fail_after(60):
            await passes(lambda: one.level(world) == one.safe)
        [record] = world.records("interlock.open")
        assert (record["channel"], record["above"]) == (name, above)
        assert record["safe"] == [{"channel": one.output, "name": name, "safe": one.safe}]
        [listed] = (await session.run("hw.board"))["interlocks"]
        assert (await session.run(f"hw.{place[0].partition(':')[0]}.list"))["interlocks"] == [listed]
        assert (listed["drives"], listed["channel"], listed["above"]) == (name, one.output, above)
