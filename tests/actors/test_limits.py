"""Limits of the board profile: what may not be driven, or not yet, reaches no driver, whichever way it comes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from support.waiting import passes
from support.world import BoardWorld, running

from hearth import step
from hearth.errors import LimitViolated

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
async def embedded(world, **opening):
    async with world.sessions().open_session(**opening) as session:
        yield session


@asynccontextmanager
async def over_the_wire(world, **opening):
    async with world.client() as client, client.open_session(**opening) as session:
        yield session


@pytest.fixture(params=[embedded, over_the_wire], ids=["embedded", "wire"])
def face(request):
    return request.param


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
        assert error.data["value"] == 500
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
        assert error.data["value"] == 2
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
        assert record["safe"] == [{"line": PUMP, "safe": 0}]
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


async def test_an_end_of_the_session_makes_safe_at_once_whatever_the_limits_say(autojump_clock, face):
    async with a_world(profile(PUMP={"min_on_ms": 60_000})) as world:
        async with face(world) as session:
            await session.run("gpio.set", line="PUMP", value=1)
        assert world.gpio.state(PUMP) == 0


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
