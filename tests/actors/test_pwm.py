"""PWM channels and servos from the wire down: limits in units, ownership, rollback, interlocks and halt.

In virtual time over the simulated chip, whose record has every pulse that was given out.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import pairwise

import pytest
import trio
from support.waiting import passes
from support.world import BOB, OPEN, BoardWorld, embedded, running

from hearth import step
from hearth.client import observing
from hearth.drivers.pwm.driver import Pulses
from hearth.errors import (
    DeviceError,
    Halted,
    LimitViolated,
    ResourceBusy,
)
from hearth.policy.rules import Match, PolicyEntry

FAN, ESC, ARM, FREE, KEPT = range(5)
BOARD = {
    "name": "bench",
    "description": "a bench with a fan, a motor controller and an arm",
    "gpio": [{"label": "sim", "driver": "sim", "names": ["DOOR"], "lines": {"DOOR": {"pull": "down"}}}],
    "pwm": [
        {
            "label": "chip",
            "driver": "sim",
            "channels": ["FAN", "ESC", "ARM", "FREE", "KEPT"],
            "channel": {
                "FAN": {"period_us": 40, "safe": 0.2, "limit": {"max": 0.8, "max_step": 0.3}},
                "ESC": {
                    "period_us": 20_000,
                    "unit": "us",
                    "safe": 1_000,
                    "limit": {"min": 1_000, "max": 2_000, "slew_per_s": 100},
                    "on_limit": "clamp",
                },
                "ARM": {
                    "safe": 0,
                    "servo": {"min_us": 500, "max_us": 2_500, "min_angle": -90, "max_angle": 90, "slew": 60},
                },
                "FREE": {"period_us": 1_000, "min_period_us": 500, "max_period_us": 2_000},
                "KEPT": {"period_us": 1_000, "hold": "keep"},
            },
        }
    ],
}
LOCK = {"drives": "ARM", "above": 30, "requires": [{"line": "DOOR", "value": 0}]}


class World(BoardWorld):
    @property
    def chip(self):
        return self.parts.drivers["pwm:chip"]

    def angles(self):
        """Every angle that the arm was told."""
        spec = self.chip.specs[ARM]
        return [spec.wave(pulses).value for channel, pulses in self.chip.log if channel == ARM]

    def value(self, channel):
        return self.chip.specs[channel].wave(self.chip.pulses(channel)).value


@asynccontextmanager
async def a_world(*locks, policy=(OPEN,), **more):
    async with running(
        World({**BOARD, **({"interlock": list(locks)} if locks else {}), **more}, policy=policy)
    ) as world:
        yield world


async def spin(session, duty):
    """Bring the fan from off to a duty in as many steps as its max_step asks for."""
    for step_to in (0.3, 0.6):
        if step_to < duty:
            await session.run("pwm.set", channel="FAN", duty=step_to)
    await session.run("pwm.set", channel="FAN", duty=duty)


async def refused(session, tool, error=LimitViolated, **args):
    with pytest.raises(error) as caught:
        await session.run(tool, **args)
    return caught.value


# --- values and their limits ------------------------------------------------------------------------------------------


async def test_a_channel_is_set_by_its_share_or_by_its_pulse(autojump_clock, face):
    async with a_world() as world, face(world) as session:
        assert await session.run("pwm.set", channel="FREE", duty=0.25) == {
            "channel": "FREE",
            "duty": 0.25,
            "pulse_us": 250,
            "period_us": 1_000,
        }
        assert world.chip.pulses(FREE) == Pulses(250_000, 1_000_000)
        assert (await session.run("pwm.set", channel="FREE", pulse_us=300, period_us=600))["duty"] == 0.5
        assert world.chip.pulses(FREE) == Pulses(300_000, 600_000)
        assert await session.run("pwm.get", channel="FREE") == {
            "channel": "FREE",
            "on": True,
            "duty": 0.5,
            "pulse_us": 300,
            "period_us": 600,
        }
        await session.run("pwm.off", channel="FREE")
        assert (await session.run("pwm.get", channel="FREE"))["on"] is False


@pytest.mark.parametrize(
    ("tool", "args", "path"),
    [
        ("pwm.set", {"channel": "ARM", "duty": 0.1}, "/channel"),
        ("pwm.set", {"channel": "FREE"}, ""),
        ("pwm.set", {"channel": "FREE", "duty": 0.1, "pulse_us": 5}, "/pulse_us"),
        ("pwm.set", {"channel": "FREE", "pulse_us": 1_001}, "/pulse_us"),
        ("servo.move", {"servo": "FAN", "angle": 1}, "/servo"),
    ],
)
async def test_args_that_cannot_be_meant_are_refused_with_their_place(autojump_clock, tool, args, path):
    async with a_world() as world, world.client() as client, client.open_session() as session:
        with pytest.raises(Exception, match=r"Invalid params") as caught:
            await session.run(tool, **args)
        assert caught.value.data["path"] == path


async def test_a_period_that_is_fixed_and_one_beyond_its_bounds_are_refused_at_submit(autojump_clock, face):
    async with a_world() as world, face(world) as session:
        error = await refused(session, "pwm.set", channel="FAN", duty=0, period_us=50)
        assert error.data["limit"] == "period_us"
        error = await refused(session, "pwm.set", channel="FREE", duty=0, period_us=3_000)
        assert (error.data["limit"], error.data["allowed"]) == ("max_period_us", 2_000)


# --- servos -----------------------------------------------------------------------------------------------------------


async def test_a_servo_moves_at_its_slew(autojump_clock, face):
    async with a_world() as world, face(world) as session:
        await session.run("servo.move", servo="ARM", angle=-90)
        begun = trio.current_time()
        world.chip.log.clear()
        assert await session.run("servo.move", servo="ARM", angle=30) == {"servo": "ARM", "angle": 30}
        assert 1.8 < trio.current_time() - begun < 2.2
        angles = world.angles()
        assert (angles[0], angles[-1]) == (pytest.approx(-90, abs=6), pytest.approx(30, abs=1e-3))
        assert angles == sorted(angles)
        assert max(after - before for before, after in pairwise(angles)) <= 6.001
        assert world.chip.pulses(ARM) == Pulses(1_833_333, 20_000_000)


async def test_a_servo_never_leaves_its_limits_whatever_is_asked_of_it(autojump_clock):
    rng = random.Random(11)
    async with a_world() as world, embedded(world) as one, embedded(world, BOB) as other:
        told = []
        angle_of = world.chip.specs[ARM].wave
        world.chip.attach(ARM, lambda pulses: told.append((trio.current_time(), angle_of(pulses).value)))
        await one.run("servo.move", servo="ARM", angle=0)

        async def move(session, angle, patience):
            with trio.move_on_after(patience):
                with suppress(ResourceBusy), nullcontext() if abs(angle) <= 90 else pytest.raises(LimitViolated):
                    await session.run("servo.move", servo="ARM", angle=angle)

        for _ in range(60):
            async with trio.open_nursery() as nursery:
                for session in (one, other):
                    nursery.start_soon(move, session, rng.uniform(-140, 140), rng.choice([0.01, 0.4, 4]))
        moves = list(told)
    assert len(moves) > 300
    assert all(-90 <= angle <= 90 for _, angle in moves)
    for (then, before), (now, after) in pairwise(moves):
        assert abs(after - before) <= min(60 * (now - then), 6) + 1e-3


async def test_other_channels_are_served_while_a_servo_moves(autojump_clock):
    async with a_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=-90)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: session.run("servo.move", servo="ARM", angle=90))
            await trio.sleep(1)
            await session.run("pwm.set", channel="FREE", duty=0.5)
            assert -60 < world.value(ARM) < 0


async def test_a_cancelled_move_stops_where_it_is(autojump_clock):
    async with a_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=-90)
        task = await session.submit("sweep", [step("servo.move", servo="ARM", angle=90)])
        await trio.sleep(1)
        await task.cancel()
        await task.wait()
        stopped = world.value(ARM)
        assert -50 < stopped < 0
        await trio.sleep(1)
        assert world.value(ARM) == stopped


async def test_the_newest_move_has_the_servo_and_the_older_one_fails(autojump_clock):
    async with a_world() as world, embedded(world) as one, embedded(world, BOB) as other:
        await one.run("servo.move", servo="ARM", angle=-90)
        task = await one.submit("sweep", [step("servo.move", servo="ARM", angle=90)])
        await trio.sleep(0.5)
        await other.run("servo.move", servo="ARM", angle=-80)
        result = await task.wait()
        [failed] = result.steps
        assert failed.error_code == ResourceBusy.code
        assert failed.error_data["effect"] == "done"
        await trio.sleep(2)
        assert world.value(ARM) == pytest.approx(-80)
        assert world.runtime.buses["pwm:chip"].known().outputs[ARM].owner == other.session_id


async def test_a_move_that_fails_on_its_way_says_that_its_effect_is_not_known(autojump_clock):
    async with a_world() as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=0)
        async with trio.open_nursery() as nursery:

            async def fail():
                await trio.sleep(0.3)
                world.chip.fail()

            nursery.start_soon(fail)
            error = await refused(session, "servo.move", DeviceError, servo="ARM", angle=90)
        assert error.data["effect"] == "unknown"


# --- whose it is ------------------------------------------------------------------------------------------------------


async def test_a_rollback_restores_value_and_period_and_moves_the_servo_back_at_its_slew(autojump_clock, face):
    async with a_world() as world, face(world) as session:
        await session.run("pwm.set", channel="FREE", duty=0.5, period_us=600)
        await session.run("servo.move", servo="ARM", angle=-30)
        task = await session.submit(
            "taken back",
            [
                step("pwm.set", channel="FREE", duty=0.9, period_us=2_000),
                step("servo.move", servo="ARM", angle=30),
                step("pwm.set", channel="FAN", duty=0.3),
                step("pwm.set", channel="FAN", duty=0.8),
            ],
            rollback_on_failure=True,
        )
        result = await task.wait()
        assert result.status == "FAILED"
        assert [one.rolled_back for one in result.steps] == [True, True, True, None]
        assert world.chip.pulses(FREE) == Pulses(300_000, 600_000)
        assert [world.value(ARM), world.value(FAN)] == [pytest.approx(-30), "off"]
        angles = world.angles()
        assert max(abs(after - before) for before, after in pairwise(angles)) <= 6.001
        assert [record["undo"] for record in world.records("task.step.rollback") if "undo" in record] == [
            "pwm channel FAN back to off",
            "servo ARM back to -30 degree",
            "pwm channel FREE back to 0.5 duty",
        ]


async def test_what_a_rollback_cannot_restore_because_its_owner_has_gone_is_made_safe(autojump_clock):
    async with a_world() as world, embedded(world, BOB) as other:
        async with embedded(world) as session:
            await session.run("servo.move", servo="ARM", angle=-30)
            task = await other.submit(
                "taken back", [step("servo.move", servo="ARM", angle=60)], rollback_on_failure=True
            )
            await trio.sleep(0.5)
        await trio.sleep(0.5)
        await task.cancel()
        await task.wait()
        await trio.sleep(3)
        assert world.runtime.buses["pwm:chip"].known().outputs[ARM].owner == other.session_id
    assert world.value(ARM) == 0


# --- interlocks, halt, policy -----------------------------------------------------------------------------------------


async def test_a_condition_that_opens_brings_the_servo_to_its_safe_angle_and_ends_its_move(autojump_clock):
    async with a_world(LOCK) as world, embedded(world) as session:
        await session.run("servo.move", servo="ARM", angle=20)
        task = await session.submit("sweep", [step("servo.move", servo="ARM", angle=90)])
        await trio.sleep(0.8)
        assert world.value(ARM) > 40
        world.gpio.push(0, 1)
        result = await task.wait()
        assert result.status == "FAILED"
        await trio.sleep(1)
        assert world.value(ARM) == pytest.approx(0, abs=31)
        [record] = world.records("interlock.open")
        assert (record["channel"], record["above"]) == ("ARM", 30)
        assert record["safe"] == [{"channel": ARM, "name": "ARM", "safe": 0}]


async def test_a_halt_brings_channels_to_their_safe_values_and_refuses_others(autojump_clock):
    async with a_world() as world, embedded(world) as session:
        await spin(session, 0.7)
        await session.run("pwm.set", channel="KEPT", duty=0.7)
        task = await session.submit("sweep", [step("servo.move", servo="ARM", angle=90)])
        await trio.sleep(0.1)
        await session.halt("smoke")
        await task.wait()
        await passes(lambda: world.value(KEPT) == "off")
        assert [world.value(channel) for channel in (FAN, ARM)] == [0.2, 0]
        await refused(session, "pwm.set", Halted, channel="FAN", duty=0.3)
        assert (await session.run("pwm.get", channel="FAN"))["duty"] == 0.2


# --- observing --------------------------------------------------------------------------------------------------------


async def test_an_observer_follows_a_move(autojump_clock):
    policy = (PolicyEntry(name="watchers", match=Match(uid=1002), rights=["observe"]), OPEN)
    async with (
        a_world(policy=policy) as world,
        world.client(BOB) as other,
        other.open_session() as watcher,
        embedded(world) as session,
    ):
        await session.run("servo.move", servo="ARM", angle=-60)
        state = await watcher.observe_state()
        arm = next(one for one in state["signals"] if one["name"] == "ARM")
        events = watcher.observe()
        await session.submit("sweep", [step("servo.move", servo="ARM", angle=60)])
        seen = []
        with trio.fail_after(60):
            while arm["value"] != 60:
                observing.apply(state, await anext(events))
                arm = next(one for one in state["signals"] if one["name"] == "ARM")
                seen.append(arm["value"])
        assert len(set(seen)) > 10
        assert seen == sorted(seen)
