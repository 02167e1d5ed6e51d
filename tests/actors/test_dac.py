"""DAC channels from the wire down: limits in units, slew, ownership, rollback, interlocks, halt and audit.

In virtual time over the simulated converter, whose record has everything that was given out.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from attrs import evolve
from support.waiting import passes
from support.world import OPEN, BoardWorld, embedded, running

from hearth import step
from hearth.drivers.boards.profile import parse_profile
from hearth.errors import ConfigError, LimitViolated, PermissionDenied
from hearth.policy.rules import Match, PolicyEntry

VALVE, LOOP, BIAS, KEPT = range(4)
BOARD = {
    "name": "bench",
    "description": "a bench with a valve, a current loop and a reference",
    "gpio": [{"label": "sim", "driver": "sim", "names": ["DOOR"], "lines": {"DOOR": {"pull": "down"}}}],
    "dac": [
        {
            "label": "chip",
            "driver": "sim",
            "channels": ["VALVE", "LOOP", "BIAS", "KEPT"],
            "channel": {
                "VALVE": {"min": 0, "max": 10, "safe": 0, "slew": 2},
                "LOOP": {
                    "quantity": "current",
                    "min": 0.004,
                    "max": 0.02,
                    "safe": "off",
                    "scale": 1e-6,
                    "on_limit": "clamp",
                },
                "BIAS": {"min": -2.5, "max": 2.5, "safe": 0.5},
                "KEPT": {"min": 0, "max": 5, "safe": 0, "hold": "keep"},
            },
        }
    ],
}
LOCK = {"drives": "VALVE", "above": 4, "requires": [{"line": "DOOR", "value": 0}]}


class World(BoardWorld):
    @property
    def chip(self):
        return self.parts.drivers["dac:chip"]


@asynccontextmanager
async def a_world(*locks, policy=(OPEN,), **more):
    content = {**BOARD, **({"interlock": list(locks)} if locks else {}), **more}
    async with running(World(content, policy=policy)) as world:
        yield world


async def refused(session, tool, error=LimitViolated, **args):
    with pytest.raises(error) as caught:
        await session.run(tool, **args)
    return caught.value


# --- values and their limits ------------------------------------------------------------------------------------------


async def test_a_channel_is_set_and_read_in_its_unit(autojump_clock, face):
    async with a_world() as world, face(world) as session:
        assert await session.run("dac.set", channel="BIAS", value=-1.5) == {
            "channel": "BIAS",
            "value": -1.5,
            "unit": "volt",
        }
        assert world.chip.level(BIAS) == -1.5
        assert await session.run("dac.get", channel="BIAS") == {"channel": "BIAS", "value": -1.5, "unit": "volt"}
        assert await session.run("dac.get", channel="LOOP") == {"channel": "LOOP", "value": 0.0, "unit": "ampere"}


async def test_a_channel_with_a_slew_moves_at_it_however_long_it_has_rested(autojump_clock, face):
    async with a_world() as world, face(world) as session:
        told = []
        world.chip.attach(VALVE, lambda volts: told.append((trio.current_time(), volts)))
        await session.run("dac.set", channel="VALVE", value=0)
        await trio.sleep(100)
        begun = trio.current_time()
        await session.run("dac.set", channel="VALVE", value=5)
        assert 2.3 < trio.current_time() - begun < 2.7
        assert told[-1][1] == 5
        assert all(0 <= after - before <= 0.2 + 1e-3 for (_, before), (_, after) in pairwise(told))


async def test_what_an_earlier_run_left_is_read_before_the_first_step(autojump_clock):
    async with a_world() as world, embedded(world) as session:
        world.chip.counts[VALVE] = 8_000
        task = await session.submit("close", [step("dac.set", channel="VALVE", value=0)])
        await trio.sleep(1)
        assert 5.5 < world.chip.level(VALVE) < 6.5
        assert (await task.wait()).status == "SUCCESS"


# --- whose it is ------------------------------------------------------------------------------------------------------


async def test_a_rollback_moves_back_at_the_slew_and_switches_off_what_was_off(autojump_clock, face):
    async with a_world() as world, face(world) as session:
        world.chip.counts[LOOP] = None
        await session.run("dac.set", channel="VALVE", value=2)
        told = []
        world.chip.attach(VALVE, told.append)
        task = await session.submit(
            "taken back",
            [
                step("dac.set", channel="VALVE", value=4),
                step("dac.set", channel="LOOP", value=0.01),
                step("dac.set", channel="VALVE", value=10),
            ],
            rollback_on_failure=True,
        )
        await trio.sleep(2)
        assert 4 < world.chip.level(VALVE) < 10
        assert world.chip.level(LOOP) == 0.01
        world.chip.fail()
        result = await task.wait()
        assert [one.rolled_back for one in result.steps] == [True, True, None]
        assert [world.chip.level(number) for number in (VALVE, LOOP)] == [2, None]
        assert max(abs(after - before) for before, after in pairwise(told)) <= 0.2 + 1e-3
        assert [record["undo"] for record in world.records("task.step.rollback") if "undo" in record] == [
            "dac channel LOOP back to off",
            "dac channel VALVE back to 2 volt",
        ]


# --- interlocks, halt, policy -----------------------------------------------------------------------------------------


async def test_a_policy_permits_only_the_channels_that_it_names(autojump_clock):
    policy = (evolve(OPEN, dac=["bi*"]),)
    async with a_world(policy=policy) as world, embedded(world) as session:
        await session.run("dac.set", channel="BIAS", value=1)
        for tool, args in (("dac.set", {"value": 1}), ("dac.get", {})):
            error = await refused(session, tool, PermissionDenied, channel="VALVE", **args)
            assert "VALVE is not in `dac` of policy" in error.message
        [device] = (await session.run("hw.dac.list"))["devices"]
        assert [one["channel"] for one in device["channels"]] == ["BIAS"]


# --- the stop sequence ------------------------------------------------------------------------------------------------

PWM = {
    "label": "fans",
    "driver": "sim",
    "channels": ["FAN", "ARM"],
    "channel": {
        "FAN": {"period_us": 40, "safe": 0.1, "limit": {"max": 0.8, "max_step": 0.1}},
        "ARM": {"safe": 0, "servo": {"min_us": 500, "max_us": 2_500, "min_angle": -90, "max_angle": 90, "slew": 60}},
    },
}
STOPS = [
    {"channel": "ARM", "value": 45},
    {"channel": "VALVE", "value": 2.5, "after_ms": 200},
    {"channel": "LOOP", "value": "off", "after_ms": 100},
    {"channel": "FAN", "value": 0.8, "after_ms": 100},
    {"line": "DOOR", "value": 1, "after_ms": 100},
]


async def test_an_observer_sees_what_the_stop_sequence_does_with_a_channel(autojump_clock):
    policy = (PolicyEntry(name="all", match=Match(uid=1001), rights=["observe"]),)
    async with a_world(policy=policy, halt={"sequence": STOPS[1:2]}) as world, embedded(world) as session:
        await session.halt()
        await trio.sleep(0.15)
        [valve] = [one for one in (await session.observe_state())["signals"] if one["name"] == "VALVE"]
        assert valve["role"] == "stop sequence"
        await passes(lambda: world.chip.level(VALVE) == 0)


STOP_FAULTS = {
    "a line and a channel": ({"channel": "VALVE", "line": "DOOR", "value": 1}, "line: an entry names a line or a"),
    "a value beyond the bounds": ({"channel": "VALVE", "value": 11}, "value: 11 is beyond the channel's limits"),
    "off, which it has not": ({"channel": "VALVE", "value": "off"}, 'value: it has no "off", unless its `safe` is'),
    "an unknown channel": ({"channel": "VALVES", "value": 1}, "channel: no pwm or dac channel is named"),
    "a level of a line": ({"channel": "VALVE", "value": "input"}, "value: expected a number in the unit"),
    "no value": ({"channel": "VALVE"}, "value: missing"),
    "a reserved channel": ({"channel": "KEPT", "value": 1}, 'channel: "KEPT" is reserved: the amplifier\'s'),
}


@pytest.mark.parametrize("name", STOP_FAULTS)
def test_an_entry_that_could_not_be_driven_is_refused_in_the_profile(name) -> None:
    entry, expected = STOP_FAULTS[name]
    [dac] = BOARD["dac"]
    content = {**dac, "channel": {**dac["channel"], "KEPT": {**dac["channel"]["KEPT"], "reserved": "the amplifier's"}}}
    with pytest.raises(ConfigError) as caught:
        parse_profile({**BOARD, "dac": [content], "halt": {"sequence": [entry]}}, "p")
    assert f"p: halt.sequence[0].{expected}" in str(caught.value)


def test_a_stop_sequence_drives_no_channel_to_what_an_interlock_guards() -> None:
    with pytest.raises(ConfigError, match=r"interlock.0..above: halt.sequence.0. drives channel .VALVE. to it"):
        parse_profile({**BOARD, "interlock": [LOCK], "halt": {"sequence": [{"channel": "VALVE", "value": 5}]}}, "p")
    parse_profile({**BOARD, "interlock": [LOCK], "halt": {"sequence": [{"channel": "VALVE", "value": 4}]}}, "p")
