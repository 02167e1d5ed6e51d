"""Limits of the board profile: what may not be driven, or not yet, reaches no driver, whichever way it comes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from support.waiting import passes
from support.world import BoardWorld, embedded, running

from hearth import step
from hearth.errors import DeviceError, InternalError, LimitViolated

PUMP, FREE = 0, 3


def profile(**limits):
    """A board with four lines, of which those named are limited, and a converter on I2C with registers."""
    return {
        "name": "bench",
        "description": "a bench",
        "gpio": [
            {
                "label": "sim",
                "driver": "sim",
                "names": ["PUMP", "FAN", "VALVE", "FREE"],
                "lines": {name: {"safe": 0, "limit": limit} for name, limit in limits.items()},
            }
        ],
    }


@asynccontextmanager
async def a_world(content):
    async with running(BoardWorld(content)) as world:
        yield world


async def refused(session, tool, **args):
    """The error of a step that is refused when it runs."""
    with pytest.raises(LimitViolated) as caught:
        await session.run(tool, **args)
    assert caught.value.data["effect"] == "none"
    return caught.value


class Watched:
    """What a line was driven to and when, by its own edges."""

    def __init__(self, world, line):
        self._watch = world.gpio.watch(line, "both")

    @property
    def edges(self):
        return [(edge.value, edge.timestamp_ns / 1e9) for edge in self._watch._edges]

    @property
    def lengths(self):
        """(value, seconds) of each level that has ended."""
        edges = self.edges
        return [(value, round(end - at, 3)) for (value, at), (_, end) in pairwise(edges)]


# --- lines ------------------------------------------------------------------------------------------------------------


async def test_a_line_stays_on_for_its_least_time(autojump_clock, face):
    async with a_world(profile(PUMP={"min_on_ms": 500})) as world, face(world) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        await trio.sleep(0.2)
        error = await refused(session, "gpio.set", line="PUMP", value=0)
        assert world.gpio.state(PUMP) == 1
        assert error.data["limit"] == "min_on_ms"
        assert error.data["allowed"] == 500
        assert 290 <= error.data["retry_after_ms"] <= 300
        assert "gpio line 0 (PUMP) of chip 'sim': it stays on for" in error.message
        await trio.sleep(error.data["retry_after_ms"] / 1000)
        await session.run("gpio.set", line="PUMP", value=0)
        assert world.gpio.state(PUMP) == 0


async def test_a_line_stays_off_for_its_least_time_and_also_after_the_bus_was_opened(autojump_clock, face):
    async with a_world(profile(PUMP={"min_off_ms": 500})) as world, face(world) as session:
        error = await refused(session, "gpio.set", line="PUMP", value=1)
        assert error.data["limit"] == "min_off_ms"
        await trio.sleep(0.5)
        await session.run("gpio.set", line="PUMP", value=1)
        await session.run("gpio.set", line="PUMP", value=0)
        assert (await refused(session, "gpio.set", line="PUMP", value=1)).data["retry_after_ms"] > 490


async def test_a_line_is_switched_on_as_often_as_its_rate_permits_and_off_at_any_time(autojump_clock, face):
    async with a_world(profile(PUMP={"max_rate_hz": 2})) as world, face(world) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        await session.run("gpio.set", line="PUMP", value=0)
        error = await refused(session, "gpio.set", line="PUMP", value=1)
        assert error.data["limit"] == "max_rate_hz"
        assert error.data["allowed"] == 2
        await trio.sleep(0.5)
        await session.run("gpio.set", line="PUMP", value=1)


async def test_setting_a_line_to_what_it_is_switches_nothing_and_is_never_refused(autojump_clock):
    limits = {"min_on_ms": 500, "min_off_ms": 500, "max_rate_hz": 0.1}
    async with a_world(profile(PUMP=limits)) as world, embedded(world) as session:
        await session.run("gpio.set", line="PUMP", value=0)
        await trio.sleep(0.5)
        await session.run("gpio.set", line="PUMP", value=1)
        await session.run("gpio.set", line="PUMP", value=1)
        assert world.gpio.state(PUMP) == 1


async def test_a_line_without_limits_on_the_same_chip_is_free(autojump_clock):
    async with a_world(profile(PUMP={"min_on_ms": 500})) as world, embedded(world) as session:
        for value in (1, 0, 1, 0):
            await session.run("gpio.set", line="FREE", value=value)


async def test_a_line_goes_to_its_safe_state_after_its_longest_time_on_and_the_record_says_why(autojump_clock, face):
    async with a_world(profile(PUMP={"max_on_ms": 300})) as world, face(world) as session:
        watched = Watched(world, PUMP)
        await session.run("gpio.set", line="PUMP", value=1)
        await trio.sleep(0.1)
        # Setting it again is no new beginning.
        await session.run("gpio.set", line="PUMP", value=1)
        await trio.sleep(1)
        assert watched.lengths == [(1, 0.3)]
        (record,) = world.records("limit.max_on")
        assert record["bus"] == "gpio:sim"
        assert record["outputs"] == [PUMP]
        assert record["safe"] == [{"line": PUMP, "name": "PUMP", "safe": 0}]
        assert record["reason"] == "it was on for max_on_ms = 300"
        assert record["session_id"] == session.session_id
        # It is free again, and the next time on is counted from its own begin.
        await session.run("gpio.set", line="PUMP", value=1)
        await trio.sleep(1)
        assert [value for value, _ in watched.edges] == [1, 0, 1, 0]
        assert watched.lengths[2] == (1, 0.3)


async def test_a_line_that_went_off_in_time_is_left_alone_by_the_timer(autojump_clock):
    async with a_world(profile(PUMP={"max_on_ms": 300})) as world, embedded(world) as session:
        watched = Watched(world, PUMP)
        for _ in range(3):
            await session.run("gpio.set", line="PUMP", value=1)
            await trio.sleep(0.25)
            await session.run("gpio.set", line="PUMP", value=0)
        await trio.sleep(1)
        assert [value for value, _ in watched.edges] == [1, 0] * 3
        assert world.records("limit.max_on") == []


async def test_a_line_that_the_timer_has_made_safe_has_no_holder(autojump_clock):
    async with a_world(profile(PUMP={"max_on_ms": 300})) as world:
        async with embedded(world) as session:
            await session.run("gpio.set", line="PUMP", value=1)
            await trio.sleep(1)
        assert [record for record in world.records("session.close") if "safe" in record] == []


async def test_a_pulse_that_is_cancelled_early_lasts_for_the_least_time_on(autojump_clock, face):
    async with a_world(profile(PUMP={"min_on_ms": 500})) as world, face(world) as session:
        watched = Watched(world, PUMP)
        task = await session.submit("pulse", [step("gpio.pulse", line="PUMP", value=1, duration_ms=900)])
        await passes(lambda: world.gpio.state(PUMP) == 1)
        await task.cancel()
        assert (await task.wait()).status == "CANCELLED"
        assert world.gpio.state(PUMP) == "input"
        assert watched.lengths == [(1, pytest.approx(0.5, abs=0.01))]


async def test_a_rollback_waits_until_the_limit_permits_it(autojump_clock, face):
    async with a_world(profile(PUMP={"min_on_ms": 500})) as world, face(world) as session:
        watched = Watched(world, PUMP)
        steps = [step("gpio.set", line="PUMP", value=1), step("gpio.set", line="PUMP", value=0)]
        task = await session.submit("fails", steps, rollback_on_failure=True)
        result = await task.wait()
        assert result.steps[1].error_code == LimitViolated.code
        assert result.steps[0].rolled_back is True
        assert world.gpio.state(PUMP) == "input"
        assert watched.lengths == [(1, pytest.approx(0.5, abs=0.01))]


async def test_a_rollback_to_a_level_that_has_no_holder_waits_for_the_limit_too(autojump_clock):
    async with a_world(profile(PUMP={"min_on_ms": 500, "max_on_ms": 600})) as world, embedded(world) as other:
        watched = Watched(world, PUMP)
        await other.run("gpio.set", line="PUMP", value=0)
        async with embedded(world) as session:
            steps = [
                step("gpio.set", line="PUMP", value=1),
                step("gpio.watch", line="FREE", timeout_ms=800),
                step("gpio.set", line="PUMP", value=0),
            ]
            task = await session.submit("comes to nothing", steps, rollback_on_failure=True)
            await trio.sleep(0.7)
            # The longest time on has taken the line from its holders: the level before has none to go back to.
            await session.run("gpio.set", line="PUMP", value=1)
            result = await task.wait()
            assert result.steps[2].error_code == LimitViolated.code
            assert result.steps[0].rolled_back is True
            assert watched.lengths == [(1, 0.6), (0, pytest.approx(0.1, abs=0.01)), (1, pytest.approx(0.5, abs=0.01))]


@pytest.mark.spec("design 8: limits of outputs")
async def test_an_end_of_the_session_makes_safe_at_once_whatever_the_limits_say(autojump_clock, face):
    async with a_world(profile(PUMP={"min_on_ms": 60_000})) as world:
        async with face(world) as session:
            await session.run("gpio.set", line="PUMP", value=1)
        assert world.gpio.state(PUMP) == 0


@pytest.mark.spec("design 8: limits of outputs")
@pytest.mark.parametrize(
    ("limit", "value", "duration", "named"),
    [
        ({"min_on_ms": 500}, 1, 499, "min_on_ms"),
        ({"max_on_ms": 500}, 1, 501, "max_on_ms"),
        ({"min_off_ms": 500}, 0, 499, "min_off_ms"),
    ],
)
async def test_a_pulse_of_an_impossible_length_is_refused_before_anything_moves(
    autojump_clock, face, limit, value, duration, named
):
    async with a_world(profile(PUMP=limit)) as world, face(world) as session:
        watched = Watched(world, FREE)
        steps = [
            step("gpio.set", line="FREE", value=1),
            step("gpio.pulse", line="PUMP", value=value, duration_ms=duration),
        ]
        for dry_run in (False, True):
            with pytest.raises(LimitViolated) as caught:
                await session.submit("too much", steps, dry_run=dry_run)
            assert caught.value.data["step_index"] == 1
            assert caught.value.data["tool"] == "gpio.pulse"
            assert caught.value.data["limit"] == named
            assert caught.value.data["effect"] == "none"
        assert watched.edges == []
        await session.submit("dry", [steps[0]], dry_run=True)


async def test_a_pulse_within_its_limits_runs(autojump_clock):
    limits = {"min_on_ms": 100, "max_on_ms": 500}
    async with a_world(profile(PUMP=limits)) as world, embedded(world) as session:
        watched = Watched(world, PUMP)
        for duration in (100, 300, 499):
            await session.run("gpio.pulse", line="PUMP", value=1, duration_ms=duration)
        assert [(value, length) for value, length in watched.lengths if value] == [
            (1, pytest.approx(duration / 1000, abs=0.01)) for duration in (100, 300, 499)
        ]


def broken(working, error, *, moves):
    """A driver's `set` that switches the line, or not, and raises."""

    def set_(line, state):
        if moves:
            working(line, state)
        raise error

    return set_


@pytest.mark.parametrize("moves", [True, False], ids=["moved", "did not move"])
@pytest.mark.parametrize(("value", "limit"), [(1, {"min_on_ms": 100}), (0, {"min_off_ms": 100})], ids=["on", "off"])
async def test_after_a_switching_that_failed_a_line_may_be_at_either_level(
    autojump_clock, monkeypatch, value, limit, moves
):
    async with a_world(profile(PUMP=limit)) as world, embedded(world) as session:
        await trio.sleep(1)
        if value == 0:
            await session.run("gpio.set", line="PUMP", value=1)
        with monkeypatch.context() as patch:
            failing = DeviceError("broken", effect="unknown")
            patch.setattr(world.gpio, "set", broken(world.gpio.set, failing, moves=moves))
            with pytest.raises(DeviceError):
                await session.run("gpio.set", line="PUMP", value=value)
        # Back again: if it was switched, that is too early.
        refusal = await refused(session, "gpio.set", line="PUMP", value=1 - value)
        assert refusal.data["limit"] in limit
        # And also what was asked for first may be a switching.
        await trio.sleep(0.101)
        await session.run("gpio.set", line="PUMP", value=value)
        await refused(session, "gpio.set", line="PUMP", value=1 - value)


async def test_a_line_that_may_be_on_after_a_failure_goes_to_its_safe_state_in_time(autojump_clock, monkeypatch):
    async with a_world(profile(PUMP={"max_on_ms": 200})) as world, embedded(world) as session:
        with monkeypatch.context() as patch:
            failing = DeviceError("broken", effect="unknown")
            patch.setattr(world.gpio, "set", broken(world.gpio.set, failing, moves=True))
            with pytest.raises(DeviceError):
                await session.run("gpio.set", line="PUMP", value=1)
        assert world.gpio.state(PUMP) == 1
        await trio.sleep(0.201)
        assert world.gpio.state(PUMP) == 0


async def test_a_line_that_may_be_on_after_a_crash_of_its_driver_goes_to_its_safe_state(autojump_clock, monkeypatch):
    async with a_world(profile(PUMP={"max_on_ms": 60_000})) as world, embedded(world) as session:
        with monkeypatch.context() as patch:
            patch.setattr(world.gpio, "set", broken(world.gpio.set, OSError("a bug"), moves=True))
            with pytest.raises(InternalError):
                await session.run("gpio.set", line="PUMP", value=1)
        assert world.gpio.state(PUMP) == 1
        # When the supervisor has opened the chip again: long before the longest time on.
        await trio.sleep(10)
        assert world.gpio.state(PUMP) == 0


# --- registers --------------------------------------------------------------------------------------------------------

CHIP = 0x50


def converter(*registers, increment="none", **device):
    """A board with one I2C device of 256 bytes of registers, of which these are declared; the others are not written.

    What is never written reads 0xff.
    """
    listed = {"addr": CHIP, "kind": "24c02", "increment": increment, "registers": list(registers), **device}
    thermometer = {"addr": 0x48, "kind": "tmp102"}
    adapter = {"bus": 1, "driver": "sim", "device": [listed, thermometer]}
    return {"name": "bench", "description": "a bench", "i2c": [adapter]}


def memory(world, reg, size=1):
    """What the device holds, past every actor."""
    return bytes(world.parts.drivers["i2c:1"].devices[CHIP].memory[reg : reg + size])


async def write(session, reg, data):
    return await session.run("i2c.write", bus=1, addr=CHIP, reg=reg, hex=data)


async def rejected(session, tool, **args):
    """The error of a step that is refused at submit, before anything moves, and as a dry run too."""
    for dry_run in (True, False):
        with pytest.raises(LimitViolated) as caught:
            await session.submit("refused", [step(tool, bus=1, addr=CHIP, **args)], dry_run=dry_run)
        assert caught.value.data["step_index"] == 0
        assert caught.value.data["tool"] == tool
        assert caught.value.data["effect"] == "none"
    return caught.value


DUTY = {"reg": 0x10, "min": 10, "max": 200, "name": "DUTY"}
WORD = {"reg": 0x20, "width": 16}
STATUS = {"reg": 0x30, "access": "r"}
COMMAND = {"reg": 0x31, "access": "w"}


async def test_a_write_within_the_limits_arrives_as_it_was_asked_for(autojump_clock, face):
    async with a_world(converter(DUTY, WORD, STATUS, COMMAND)) as world, face(world) as session:
        assert await write(session, 0x10, "0a") == {"written": 1}
        await write(session, 0x20, "1234")
        await write(session, 0x31, "01")
        assert memory(world, 0x10) == b"\x0a"
        error = await rejected(session, "i2c.write", reg=0x10, hex="0b0b")
        assert 'one write has one register (increment = "none")' in error.message
        assert memory(world, 0x20, 2) == b"\x12\x34"
        # The pointer alone changes nothing, and a register that is not listed may be read.
        await session.run("i2c.transfer", bus=1, addr=CHIP, hex="70", read_len=2)


async def test_another_device_on_the_adapter_is_free(autojump_clock):
    async with a_world(converter(DUTY)) as world, embedded(world) as session:
        await session.run("i2c.write", bus=1, addr=0x48, reg=2, hex="4b00")


@pytest.mark.parametrize("increment", ["byte", "register"])
async def test_a_longer_write_is_checked_register_by_register(autojump_clock, face, increment):
    second = {"reg": 0x22 if increment == "byte" else 0x21, "max": 10}
    async with a_world(converter(WORD, second, increment=increment)) as world, face(world) as session:
        error = await rejected(session, "i2c.write", reg=0x20, hex="12340b")
        assert error.data["reg"] == second["reg"]
        error = await rejected(session, "i2c.write", reg=0x20, hex="12340a00")
        assert error.data["reg"] == second["reg"] + 1
        await write(session, 0x20, "12340a")
        assert memory(world, 0x20, 3) == b"\x12\x34\x0a"


async def test_a_signed_little_endian_register_in_a_unit_has_its_limits_in_that_unit(autojump_clock):
    angle = {"reg": 0, "width": 16, "signed": True, "order": "little", "scale": 0.1, "min": -0.3, "max": 0.3}
    async with a_world(converter({**angle, "unit": "degree"})) as world, embedded(world) as session:
        await write(session, 0, "fdff")
        await write(session, 0, "0300")
        error = await rejected(session, "i2c.write", reg=0, hex="fcff")
        assert "-0.4 degree is beyond min = -0.3" in error.message
        assert (error.data["allowed"], error.data["unit"]) == (-0.3, "degree")
        assert memory(world, 0, 2) == b"\x03\x00"


STEPPED = {"reg": 0, "min": 0, "max": 200, "max_step": 20}


async def test_a_device_that_comes_up_beyond_its_bounds_can_be_brought_within(autojump_clock):
    async with a_world(converter(STEPPED)) as world, embedded(world) as session:
        await session.run("i2c.read", bus=1, addr=CHIP, reg=0, len=1)  # 255
        await refused(session, "i2c.write", bus=1, addr=CHIP, reg=0, hex="b3")
        await write(session, 0, "b4")


async def test_steps_that_clamp_go_as_far_as_they_may(autojump_clock):
    async with a_world(converter({**STEPPED, "on_limit": "clamp"})) as world, embedded(world) as session:
        world.parts.drivers["i2c:1"].devices[CHIP].memory[0] = 100
        await session.run("i2c.read", bus=1, addr=CHIP, reg=0, len=1)
        reached = []
        for _ in range(6):
            await write(session, 0, "ff")
            reached.append(memory(world, 0)[0])
        assert reached == [120, 140, 160, 180, 200, 200]


async def test_a_register_is_read_anew_after_a_write_whose_exchange_also_read(autojump_clock):
    """One that failed at its second address has written, although it looks like a read."""
    async with a_world(converter(STEPPED)) as world, embedded(world) as session:
        driver = world.parts.drivers["i2c:1"]
        driver.devices[CHIP].memory[0] = 100
        await session.run("i2c.read", bus=1, addr=CHIP, reg=0, len=1)
        driver.faults.nack(after=2)
        with pytest.raises(DeviceError) as caught:
            await session.run("i2c.transfer", bus=1, addr=CHIP, messages=[{"hex": "0065"}, {"read": 1}])
        assert caught.value.data["effect"] == "unknown"
        await refused(session, "i2c.write", bus=1, addr=CHIP, reg=0, hex="66")


async def test_a_register_is_read_anew_after_its_adapter_was_opened_again(autojump_clock):
    """The device may have been without power until then, or have been used by others."""
    async with a_world(converter(STEPPED)) as world, embedded(world) as session:
        driver = world.parts.drivers["i2c:1"]
        driver.devices[CHIP].memory[0] = 100
        await session.run("i2c.read", bus=1, addr=CHIP, reg=0, len=1)
        world.runtime.buses["i2c:1"].guard.opened()
        error = await refused(session, "i2c.write", bus=1, addr=CHIP, reg=0, hex="65")
        assert "its present value is not known" in error.message


# --- what is shown ----------------------------------------------------------------------------------------------------
