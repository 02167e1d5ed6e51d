""" "Off" is a value: no step, no slew and no end of a session makes a way around the limits of what comes next."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from kinds.board import Raw, call, changed, content, output
from support.world import embedded, reset_halt

from hearth import step
from hearth.actors.bus.outputs_file import LEVELS_S
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.registers import Write
from hearth.errors import LimitViolated, RpcError


async def seconds(session, tool, **args):
    """Run a step; return how long it took."""
    began = trio.current_time()
    await session.run(tool, **args)
    return trio.current_time() - began


def angle(world):
    return output("pwm:sim", "ARM").level(world)


def duty(world):
    return output("pwm:sim", "FAN").level(world)


@pytest.fixture(autouse=True)
def _kind(request, record_property):
    kind = request.node.originalname.split("_")[2]
    record_property("promise", ("dac" if kind == "channel" else kind, "off is a value"))


# --- servos -----------------------------------------------------------------------------------------------------------


async def test_a_servo_takes_its_time_from_one_angle_to_another(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        assert await seconds(session, "servo.move", servo="ARM", angle=90) == pytest.approx(1.0, abs=0.1)
        assert angle(world) == pytest.approx(90, abs=0.1)


async def test_a_servo_takes_its_time_also_after_it_was_switched_off(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        await session.run("servo.move", servo="ARM", angle=90)
        await session.run("pwm.off", channel="ARM")
        assert angle(world) == "off"
        assert await seconds(session, "servo.move", servo="ARM", angle=180) == pytest.approx(1.0, abs=0.1)


async def test_a_servo_takes_its_time_also_after_the_session_that_moved_it_has_ended(open_world):
    async with open_world() as world:
        async with embedded(world) as session:
            await session.run("servo.move", servo="ARM", angle=0)
        assert angle(world) == "off", "its safe state"
        await trio.sleep(10)
        async with embedded(world) as session:
            assert await seconds(session, "servo.move", servo="ARM", angle=180) == pytest.approx(2.0, abs=0.1)


async def test_a_servo_takes_its_time_also_after_a_halt(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        await session.halt("a test")
        assert angle(world) == "off"
        await reset_halt(world.runtime)
        assert await seconds(session, "servo.move", servo="ARM", angle=180) == pytest.approx(2.0, abs=0.1)


async def test_a_servo_keeps_its_angle_over_a_restart_in_the_outputs_file(open_world, tmp_path):
    path = tmp_path / "outputs"
    async with open_world(outputs=path) as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        of_killed = path.read_bytes()
    path.write_bytes(of_killed)
    async with open_world(outputs=path) as world, embedded(world) as session:
        assert await seconds(session, "servo.move", servo="ARM", angle=180) == pytest.approx(2.0, abs=0.1)


async def test_the_outputs_file_has_the_last_angle_a_second_after_a_short_move(open_world, tmp_path):
    path = tmp_path / "outputs"
    async with open_world(outputs=path) as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        await trio.sleep(10)
        assert await seconds(session, "servo.move", servo="ARM", angle=45) < LEVELS_S
        await trio.sleep(LEVELS_S)
        of_killed = path.read_bytes()
    path.write_bytes(of_killed)
    async with open_world(outputs=path) as world, embedded(world) as session:
        assert await seconds(session, "servo.move", servo="ARM", angle=180) == pytest.approx(1.5, abs=0.1)


async def test_a_servo_that_was_off_does_not_jump_by_a_raw_call_either(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        await session.run("pwm.off", channel="ARM")
        await trio.sleep(10)
        with pytest.raises(LimitViolated):
            await call(session, world, Raw("pwm:sim", "set", (1, 180.0)))
        assert angle(world) == "off"


async def test_a_servo_that_rests_for_long_does_not_jump(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        await trio.sleep(100)
        with pytest.raises(LimitViolated):
            await call(session, world, Raw("pwm:sim", "set", (1, 90.0)))


async def test_a_servo_with_a_start_takes_its_time_from_there_at_its_first_move(open_world):
    async with open_world(new=["pwm"]) as world, embedded(world) as session:
        assert await seconds(session, "servo.move", servo="ARM", angle=90) == pytest.approx(1.0, abs=0.1)


# --- the first drive of what cannot be read ---------------------------------------------------------------------------


async def test_a_first_drive_that_nothing_came_before_is_within_bounds_and_on_record_as_first(open_world):
    async with open_world() as world, embedded(world) as session:
        write = Raw("i2c:1", "transfer", (0x50, [Write(b"\x41\x28")]))
        await call(session, world, write)
        (record,) = world.records("limit.first")
        assert record["first"] == {"addr": 0x50, "reg": 0x41, "name": "key", "value": 40}
        assert (record["bus"], record["session_id"]) == ("i2c:1", session.session_id)
        await call(session, world, Raw("i2c:1", "transfer", (0x50, [Write(b"\x41\x2a")])))
        await call(session, world, Raw("i2c:1", "transfer", (0x50, [Write(b"\x10\x05")])))
        assert len(world.records("limit.first")) == 1
        with pytest.raises(LimitViolated):
            await call(session, world, Raw("i2c:1", "transfer", (0x50, [Write(b"\x41\x33")])))


async def test_the_first_move_of_a_servo_without_a_start_is_on_record_as_first(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=90)
        assert [one["first"]["value"] for one in world.records("limit.first")] == [90]
    async with open_world(new=["pwm"]) as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=90)
        assert not world.records("limit.first")


# --- channels ---------------------------------------------------------------------------------------------------------


async def test_a_fan_does_not_pass_its_step_by_way_of_off(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("pwm.set", channel="FAN", duty=0.25)
        await session.run("pwm.off", channel="FAN")
        with pytest.raises(LimitViolated):
            await session.run("pwm.set", channel="FAN", duty=1)
        assert duty(world) == "off"
        await session.run("pwm.set", channel="FAN", duty=0.5)


async def test_a_fan_does_not_pass_its_step_by_its_first_set_of_all(open_world):
    async with open_world() as world, embedded(world) as session:
        with pytest.raises(LimitViolated):
            await session.run("pwm.set", channel="FAN", duty=1)
        assert duty(world) == "off"


async def test_a_fan_that_runs_already_is_read_before_its_first_set(open_world):
    def runs(world):
        driver = world.drivers["pwm:sim"]
        driver.open()
        driver.set(0, 0.25)
        driver.close()

    async with open_world(before=runs) as world, embedded(world) as session:
        with pytest.raises(LimitViolated):
            await session.run("pwm.set", channel="FAN", duty=1)
        await session.run("pwm.off", channel="FAN")
        with pytest.raises(LimitViolated):
            await session.run("pwm.set", channel="FAN", duty=0.75)


async def test_a_fan_does_not_pass_its_step_by_the_end_of_a_session(open_world):
    async with open_world() as world:
        async with embedded(world) as session:
            await session.run("pwm.set", channel="FAN", duty=0.5)
        async with embedded(world) as session:
            with pytest.raises(LimitViolated):
                await session.run("pwm.set", channel="FAN", duty=1)
        assert duty(world) == 0


async def test_a_fan_may_be_switched_off_from_any_level_in_one_step(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("pwm.set", channel="FAN", duty=0.5)
        await session.run("pwm.set", channel="FAN", duty=1)
        await session.run("pwm.off", channel="FAN")
        assert duty(world) == "off"


async def test_a_fan_goes_to_its_safe_level_from_any_level_in_one_step(open_world):
    async with open_world() as world:
        async with embedded(world) as session:
            await session.run("pwm.set", channel="FAN", duty=0.5)
            await session.run("pwm.set", channel="FAN", duty=1)
        assert duty(world) == 0


async def test_a_fan_with_off_refuse_is_switched_off_by_a_halt_alone(open_world):
    tables = changed("pwm", "FAN", off="refuse", safe="off")
    async with open_world(tables=tables) as world, embedded(world) as session:
        await session.run("pwm.set", channel="FAN", duty=0.5)
        with pytest.raises(RpcError) as caught:
            await session.run("pwm.off", channel="FAN")
        assert caught.value.data["effect"] == "none"
        with pytest.raises(RpcError) as caught:
            await call(session, world, Raw("pwm:sim", "set", (0, "off")))
        assert caught.value.data["effect"] == "none"
        assert duty(world) == pytest.approx(0.5)
        await session.halt("a test")
        assert duty(world) == "off"


async def test_a_fan_with_off_hold_goes_on_from_its_last_level(open_world):
    async with open_world(tables=changed("pwm", "FAN", off="hold")) as world, embedded(world) as session:
        await session.run("pwm.set", channel="FAN", duty=0.5)
        await session.run("pwm.set", channel="FAN", duty=1)
        await session.run("pwm.off", channel="FAN")
        await session.run("pwm.set", channel="FAN", duty=1)
        assert duty(world) == pytest.approx(1)


@pytest.mark.parametrize("off", ["refuse", "zero", "hold"])
def test_a_profile_takes_each_off_and_start_of_a_channel(off):
    profile = content("none") | changed("pwm", "FAN", off=off, start=0.2)
    profile |= changed("dac", "DRIVE", off=off, start=3)
    del profile["can"]
    parse_profile(profile, "test profile")


# --- converters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["VALVE", "DRIVE"])
async def test_a_dac_takes_its_time_also_after_the_end_of_a_session(open_world, channel):
    async with open_world() as world:
        async with embedded(world) as session:
            assert await seconds(session, "dac.set", channel=channel, value=10) == pytest.approx(2.0, abs=0.2)
        await trio.sleep(5)
        async with embedded(world) as session:
            assert await seconds(session, "dac.set", channel=channel, value=10) == pytest.approx(2.0, abs=0.2)


async def test_a_dac_that_is_off_does_not_jump_by_a_raw_call(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("dac.set", channel="DRIVE", value=1)
        await call(session, world, Raw("dac:sim", "set", (2, "off")))
        await trio.sleep(10)
        with pytest.raises(LimitViolated):
            await call(session, world, Raw("dac:sim", "set", (2, 10.0)))
        assert output("dac:sim", "DRIVE").level(world) == "off"


async def test_a_channel_with_a_slew_moves_at_it_however_long_it_has_rested(open_world):
    async with open_world() as world, embedded(world) as session:
        told = []
        world.drivers["dac:sim"].attach(0, told.append)
        await session.run("dac.set", channel="VALVE", value=0)
        await trio.sleep(100)
        assert await seconds(session, "dac.set", channel="VALVE", value=5) == pytest.approx(1.0, abs=0.2)
        assert told[-1] == 5
        assert all(0 <= after - before <= 0.5 + 1e-3 for before, after in pairwise(told))


async def test_a_dac_that_gives_out_a_voltage_already_is_read_before_its_first_set(open_world):
    def gives(world):
        world.drivers["dac:sim"].counts[2] = 8_000

    async with open_world(before=gives) as world, embedded(world) as session:
        assert output("dac:sim", "DRIVE").level(world) == pytest.approx(8)
        assert await seconds(session, "dac.set", channel="DRIVE", value=0) == pytest.approx(1.6, abs=0.2)


async def test_a_dac_moves_back_at_its_slew_in_a_rollback_and_is_off_again_if_it_was(open_world):
    async with open_world() as world, embedded(world) as session:
        valve, drive = (output("dac:sim", name) for name in ("VALVE", "DRIVE"))
        await session.run("dac.set", channel="VALVE", value=2)
        await call(session, world, Raw("dac:sim", "set", (2, "off")))
        steps = [
            step("dac.set", channel=name, value=value) for name, value in (("VALVE", 4), ("DRIVE", 1), ("VALVE", 9))
        ]
        told = []
        world.drivers["dac:sim"].attach(0, told.append)
        task = await session.submit("taken back", steps, rollback_on_failure=True)
        await trio.sleep(1)
        assert (4 < valve.level(world) < 9, drive.level(world)) == (True, 1)
        world.drivers["dac:sim"].fail()
        assert [one.rolled_back for one in (await task.wait()).steps] == [True, True, None]
        assert (valve.level(world), drive.level(world)) == (2, "off")
        assert max(abs(after - before) for before, after in pairwise(told)) <= 0.5 + 1e-3
        undone = [record["undo"] for record in world.records("task.step.rollback") if "undo" in record]
        assert undone == ["dac channel DRIVE back to off", "dac channel VALVE back to 2 volt"]


async def test_a_dac_takes_its_time_at_its_first_set(open_world):
    async with open_world() as world, embedded(world) as session:
        assert await seconds(session, "dac.set", channel="VALVE", value=10) == pytest.approx(2.0, abs=0.2)
        assert output("dac:sim", "VALVE").level(world) == pytest.approx(10)
