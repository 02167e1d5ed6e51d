"""Control loops: what they promise about their lines, their records and their ends. No time is judged here."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import asynccontextmanager

import pytest
import trio
from support.faulty_disk import FaultyDisk
from support.loops import BOARD, BUS, CHIP, DOOR, LAMP, LATCH, PUMP, VALVE, VirtualClock, cell
from support.waiting import passes

import hearth
from hearth import step
from hearth.actors import loop as loops
from hearth.actors.bus.loop_thread import LoopEnded
from hearth.config.model import LimitsConfig
from hearth.drivers.base import Style
from hearth.errors import (
    ApprovalRequired,
    AuditUnavailable,
    DeviceError,
    Halted,
    InterlockOpen,
    InvalidParams,
    LimitViolated,
    LoopStopped,
    PermissionDenied,
    ResourceBusy,
    SessionInvalid,
)
from hearth.policy.rules import RIGHTS, ApprovalRule, Match, PolicyEntry

FAST = 500


def on(io):
    io.write("PUMP", 1)


def blinking(io):
    io.write("PUMP", round(io.time * FAST) % 2)


async def turned(loop, runs=3):
    """The loop has run so often since now."""
    wanted = loop.stats().runs + runs
    await passes(lambda: loop.stats().runs >= wanted)


def entry(**more):
    return (PolicyEntry(name="test", match=Match(any=True), **{"max_risk": 2, "rights": RIGHTS, **more}),)


@asynccontextmanager
async def ends_by_itself(match, error=LoopStopped):
    with pytest.raises(error, match=match) as raised:
        yield raised


# --- what a loop does -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", [Style.INLINE, Style.THREAD])
async def test_a_loop_drives_its_line_and_its_end_leaves_it_safe(tmp_path, style):
    async with cell(tmp_path, style=style) as world:
        async with world.loop(FAST, blinking, lines=["PUMP"], name="blink") as loop:
            await turned(loop)
            assert loop.name == "blink"
            assert loop.ended is None
        stats = loop.stats()
        assert world.gpio.state(PUMP) == 0
        assert stats.ended == loop.ended == "its owner stopped it"
        assert stats.runs == stats.writes["PUMP"] == len(world.gpio.sets) - 1, "one is the safe state"
        assert world.gpio.overlaps == 0


async def test_the_function_gets_the_time_of_its_periods_and_of_those_it_missed(tmp_path):
    clock, seen = VirtualClock(), []

    def function(io):
        seen.append((round(io.time, 6), round(io.dt, 6), io.late))
        clock.spend(0.025 if len(seen) == 2 else 0.001)
        if len(seen) == 4:
            io.stop()

    async with (
        cell(tmp_path) as world,
        ends_by_itself("its function stopped it"),
        world.loop(100, function, lines=["PUMP"], clock=clock) as loop,
    ):
        await loop.wait()
    assert seen == [(0, 0.01, 0), (0.01, 0.01, 0), (0.04, 0.03, 0), (0.05, 0.01, 0)]


async def test_a_loop_reads_its_inputs_and_its_outputs_by_name_and_offset(tmp_path):
    read = []

    def function(io):
        io.write("PUMP", 1)
        read.append((io.read("DOOR"), io.read(DOOR), io.read("PUMP"), io.read(PUMP)))
        io.stop("enough")

    async with cell(tmp_path) as world, ends_by_itself("enough"):
        world.gpio.push(DOOR, 1)
        async with world.loop(FAST, function, lines=["PUMP"], inputs=["DOOR"]) as loop:
            await loop.wait()
    assert read == [(1, 1, 1, 1)]


async def test_a_write_outside_the_lines_granted_is_refused_and_drives_nothing(tmp_path):
    refused = []

    def function(io):
        for use in (
            lambda: io.write("LAMP", 1),
            lambda: io.write("DOOR", 1),
            lambda: io.read("LAMP"),
            lambda: io.write(LAMP, 1),
        ):
            try:
                use()
            except PermissionDenied as error:
                refused.append(error)
        io.stop()

    async with (
        cell(tmp_path) as world,
        ends_by_itself("stopped"),
        world.loop(FAST, function, lines=["PUMP"], inputs=["DOOR"]) as loop,
    ):
        await loop.wait()
        assert len(refused) == 4
        assert all(error.data["effect"] == "none" and "not granted" in error.message for error in refused)
        assert not [line for line, _ in world.gpio.sets if line != PUMP]


@pytest.mark.parametrize("level", [2, -1, "1", None, 0.5])
async def test_a_level_that_is_none_ends_the_loop_and_drives_nothing(tmp_path, level):
    async with (
        cell(tmp_path) as world,
        ends_by_itself("raised ValueError: gpio line PUMP: the level is 0 or 1"),
        world.loop(FAST, lambda io: io.write("PUMP", level), lines=["PUMP"]) as loop,
    ):
        await loop.wait()
        assert set(world.gpio.sets) == {(PUMP, 0)}, "the safe state"


async def test_the_interface_works_in_the_loops_own_thread_only(tmp_path):
    kept, failed = [], []
    async with cell(tmp_path) as world:
        async with world.loop(FAST, kept.append, lines=["PUMP"]) as loop:
            await turned(loop)
            for use in (lambda io: io.write("PUMP", 1), lambda io: io.read("PUMP"), lambda io: io.emit(1)):
                with pytest.raises(RuntimeError, match="own thread"):
                    use(kept[0])
                failed.append(use)
        assert (PUMP, 1) not in world.gpio.sets


# --- limits, interlocks, halt: checked at each write ------------------------------------------------------------------


def board(**line):
    return {**BOARD, "gpio": [{**CHIP, "lines": {**CHIP["lines"], "PUMP": {"safe": 0, **line}}}]}


async def test_limits_are_checked_at_each_write_and_a_refusal_drives_nothing(tmp_path):
    refused = []

    def function(io):
        io.write("PUMP", 1)
        try:
            io.write("PUMP", 0)
        except LimitViolated as error:
            refused.append(error.data["limit"])
        if len(refused) == 3:
            io.stop()

    async with (
        cell(tmp_path, board=board(limit={"min_on_ms": 3_600_000})) as world,
        ends_by_itself("stopped"),
        world.loop(FAST, function, lines=["PUMP"]) as loop,
    ):
        stats = await loop.wait()
    assert refused == ["min_on_ms"] * 3
    assert (stats.refused, stats.writes, stats.last) == (3, {"PUMP": 3}, {"PUMP": 1})


async def test_a_line_that_is_on_for_its_longest_time_goes_safe_and_ends_its_loop(tmp_path):
    async with cell(tmp_path, board=board(limit={"max_on_ms": 30})) as world:
        async with (
            ends_by_itself("line PUMP was brought to its safe state"),
            world.loop(FAST, on, lines=["PUMP"]) as loop,
        ):
            await loop.wait()
            assert world.gpio.state(PUMP) == 0
        assert world.gpio.sets[-1] == (PUMP, 0)
        assert [record["outputs"] for record in world.records("limit.max_on")] == [[PUMP]]


LOCKED = {**BOARD, "interlock": [{"drives": "PUMP", "value": 1, "requires": [{"line": "DOOR", "value": 0}]}]}


async def test_an_interlock_is_asked_at_each_write(tmp_path):
    outcomes = []

    def function(io):
        try:
            io.write("PUMP", 1)
        except InterlockOpen:
            outcomes.append("refused")
        else:
            outcomes.append("driven")
            io.stop()

    async with cell(tmp_path, board=LOCKED) as world, ends_by_itself("stopped"):
        world.gpio.push(DOOR, 1)
        async with world.loop(FAST, function, lines=["PUMP"]) as loop:
            await turned(loop)
            assert (PUMP, 1) not in world.gpio.sets
            world.gpio.push(DOOR, 0)
            await loop.wait()
    assert outcomes[0] == "refused"
    assert outcomes[-1] == "driven"


async def test_an_interlock_that_opens_makes_the_output_safe_and_ends_the_loop(tmp_path):
    async with cell(tmp_path, board=LOCKED) as world:

        def function(io):
            if io.read("DOOR") == 0:
                io.write("PUMP", 1)

        async with (
            ends_by_itself("line PUMP was brought to its safe state"),
            world.loop(FAST, function, lines=["PUMP"], inputs=["DOOR"]) as loop,
        ):
            await turned(loop)
            world.gpio.push(DOOR, 1)
            await loop.wait()
        assert world.gpio.state(PUMP) == 0
        assert len(world.records("interlock.open")) == 1


@pytest.mark.slow
async def test_the_readings_of_other_buses_stay_fresh_for_a_loop_that_seldom_drives(tmp_path):
    lock = {"drives": "PUMP", "value": 1, "requires": [{"sensor": "tank", "max": 90}], "max_age_ms": 200}
    devices = [{"addr": 0x4D, "kind": "mcp3221", "tank": {"pump": "PUMP", "start": 50}}]
    tank = {"i2c": [{"bus": 1, "driver": "sim", "device": devices}]}
    sensors = {"sensors": {"tank": {"kind": "mcp3221", "bus": 1, "addr": 0x4D}}}

    def function(io):
        # Off for 450 ms, in which a reading would get too old.
        io.write("PUMP", round(io.time * 100) % 50 < 5)
        if io.time > 1.02:
            io.stop()

    async with cell(tmp_path, board={**BOARD, **tank, **sensors, "interlock": [lock]}) as world:
        async with ends_by_itself("its function stopped it"), world.loop(100, function, lines=["PUMP"]) as loop:
            stats = await loop.wait()
        assert (stats.refused, stats.last) == (0, {"PUMP": 1})


async def test_a_halt_stops_the_loop_and_makes_its_outputs_safe(tmp_path):
    async with cell(tmp_path) as world, world.runtime.open_session() as session:
        async with (
            ends_by_itself("the daemon was halted"),
            world.loop(FAST, on, lines=["PUMP", "LATCH"]) as loop,
        ):
            await turned(loop)
            await session.halt("a person pressed the button")
            await loop.wait()
            sets = len(world.gpio.sets)
            assert (world.gpio.state(PUMP), world.gpio.state(LATCH)) == (0, 0)
        await session.reset_halt()
        assert world.gpio.sets[sets:] == [], "nothing starts again"
        events = [record["event"] for record in world.records()]
        assert events.index("loop.start") < events.index("halt") < events.index("loop.stop")


@pytest.mark.slow
async def test_a_halt_reaches_a_loop_whose_function_hangs(tmp_path):
    stuck, leave, after = threading.Event(), threading.Event(), []

    def function(io):
        io.write("PUMP", 1)
        stuck.set()
        leave.wait(30)
        try:
            io.write("PUMP", 1)
        except LoopEnded as ended:
            after.append(ended)
            raise

    try:
        async with cell(tmp_path) as world, world.runtime.open_session() as session:
            async with (
                ends_by_itself("the daemon was halted"),
                world.loop(FAST, function, lines=["PUMP"], watchdog_ms=60_000),
            ):
                await passes(stuck.is_set)
                await session.halt("stop")
                await passes(lambda: world.gpio.state(PUMP) == 0)
            assert world.records("loop.stop")[0]["stuck"] is True
            leave.set()
            await passes(lambda: after)
            assert world.gpio.state(PUMP) == 0
            await session.reset_halt()
            assert world.runtime.health()["buses"][BUS]["state"] == "ready"
    finally:
        leave.set()


async def test_a_write_during_a_halt_is_refused_even_before_the_loop_is_told(tmp_path):
    refused, halted = [], threading.Event()

    def function(io):
        halted.wait(30)
        try:
            io.write("PUMP", 1)
        except (Halted, LoopEnded) as error:
            refused.append(error)

    async with cell(tmp_path) as world, world.runtime.open_session() as session:
        async with (
            ends_by_itself("the daemon was halted"),
            world.loop(FAST, function, lines=["PUMP"], watchdog_ms=60_000) as loop,
        ):
            world.runtime._runtime.halt.halt("now", "test")
            halted.set()
            # The end of the halted task stops it; the end of this block would, too, and for another reason.
            await passes(lambda: refused and loop.ended is not None)
        assert (PUMP, 1) not in world.gpio.sets
        await session.reset_halt()


async def test_a_loop_is_not_granted_during_a_halt(tmp_path):
    async with cell(tmp_path) as world, world.runtime.open_session() as session:
        await session.halt("no")
        with pytest.raises(Halted):
            async with world.loop(FAST, on, lines=["PUMP"]):
                raise AssertionError
        assert world.gpio.sets == [(LATCH, 0)], "the safe state of what a session may have left"


# --- its ends -----------------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


@pytest.mark.parametrize("error", [Broken("a bug"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_a_loop_whose_thread_dies_leaves_its_outputs_safe(tmp_path, error, caplog):
    safe = []

    def function(io):
        io.write("PUMP", 1)
        raise error

    caplog.set_level(logging.INFO, "hearth.loop")
    async with cell(tmp_path) as world:
        async with (
            ends_by_itself(f"its function raised {type(error).__name__}") as raised,
            world.loop(FAST, function, lines=["PUMP", "VALVE"]) as loop,
        ):
            await loop.wait()
            safe.append((world.gpio.state(PUMP), world.gpio.state(VALVE)))
        assert raised.value.__cause__ is error
        assert raised.value.reason == loop.ended
        assert safe == [(0, 1)]
        (stop,) = world.records("loop.stop")
        assert stop["reason"].startswith("its function raised")
        assert any(record.exc_info for record in caplog.records), "with its traceback"


def endless(io):
    while True:
        io.write("PUMP", 1)


@pytest.mark.parametrize("function", [on, endless])
async def test_the_thread_makes_its_outputs_safe_itself_while_the_event_loop_hangs(tmp_path, monkeypatch, function):
    monkeypatch.setattr(loops, "AUTHORITY_S", 0.1)
    driven, safe = threading.Event(), threading.Event()

    async with cell(tmp_path) as world:
        world.gpio.attach(PUMP, lambda level: driven.set() if level else safe.set())
        async with (
            ends_by_itself("digests were not written in time"),
            world.loop(FAST, function, lines=["PUMP"], watchdog_ms=60_000) as loop,
        ):
            # From here on the event loop does nothing until the line is safe.
            assert driven.wait(30)
            assert safe.wait(30)
            assert world.gpio.state(PUMP) == 0
            await loop.wait()


async def test_a_loop_that_makes_no_progress_is_ended_by_its_watchdog(tmp_path):
    leave, after = threading.Event(), []

    def function(io):
        io.write("PUMP", 1)
        leave.wait(30)
        try:
            io.write("PUMP", 1)
        except LoopEnded:
            after.append(world.gpio.state(PUMP))
            raise

    try:
        async with cell(tmp_path) as world:
            async with (
                ends_by_itself("watchdog"),
                world.loop(FAST, function, lines=["PUMP"], watchdog_ms=20) as loop,
            ):
                await loop.wait()
                assert world.gpio.state(PUMP) == 0
            leave.set()
            await passes(lambda: after)
            assert after == [0], "what it writes afterwards is not written"
    finally:
        leave.set()


@pytest.mark.slow
async def test_a_loop_that_hangs_in_its_driver_wedges_the_bus_and_goes_safe_when_the_call_returns(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("hearth.actors.bus.actor.SAFE_STATE_LIMIT", 0.05)
    monkeypatch.setattr(loops, "SAFE_S", 0.01)
    hangs = threading.Event()

    def function(io):
        if not hangs.is_set():
            hangs.set()
            world.gpio.held.clear()
        io.write("PUMP", 1)

    limits = LimitsConfig(close_grace_s=0.1)
    async with cell(tmp_path, limits=limits) as world, world.runtime.open_session() as session:
        async with ends_by_itself("watchdog"), world.loop(FAST, function, lines=["PUMP"], watchdog_ms=20):
            await passes(world.gpio.hanging.is_set)
            await passes(lambda: world.runtime.health()["buses"][BUS]["state"] == "wedged")
            with pytest.raises(ResourceBusy, match="wedged"):
                await session.run("gpio.get", line="LAMP")
        assert world.records("bus.wedged")
        world.gpio.held.set()
        await passes(lambda: world.runtime.health()["buses"][BUS]["state"] == "ready")
        await passes(lambda: world.gpio.state(PUMP) == 0)
        assert world.gpio.sets[-1] == (PUMP, 0), "after the call that hung"
        assert world.gpio.overlaps == 0
        await session.run("gpio.set", line="PUMP", value=1)


async def test_the_end_of_its_session_ends_a_loop(tmp_path):
    async with cell(tmp_path) as world:
        async with ends_by_itself("cancelled"), world.loop(FAST, on, lines=["PUMP"]) as loop:
            await turned(loop)
            session = next(record for record in world.records("loop.start"))["session_id"]
            await world.runtime.attach(session).close()
            await loop.wait()
            assert world.gpio.state(PUMP) == 0
        assert [record["reason"] for record in world.records("session.close")] == ["closed by the client"]


async def test_a_policy_that_no_longer_has_its_principal_ends_a_loop(tmp_path):
    async with cell(tmp_path, policy=entry()) as world:
        async with ends_by_itself("cancelled"), world.loop(FAST, on, lines=["PUMP"]) as loop:
            await turned(loop)
            world.runtime._runtime.replace_policy([])
            await loop.wait()
        assert world.gpio.state(PUMP) == 0


async def test_a_person_with_the_right_cancels_a_loop_by_its_task(tmp_path):
    async with cell(tmp_path) as world, world.runtime.open_session() as session:
        async with ends_by_itself("cancelled"), world.loop(FAST, on, lines=["PUMP"], name="tank") as loop:
            await turned(loop)
            (task,) = (await session.observe_state())["tasks"]
            assert task["intent"] == "control loop tank"
            await session.call("task.cancel", task_id=task["task_id"])
            await loop.wait()
        assert world.gpio.state(PUMP) == 0


async def test_an_owner_that_is_cancelled_leaves_its_outputs_safe(tmp_path):
    async with cell(tmp_path) as world:
        with trio.CancelScope() as scope:
            async with world.loop(FAST, on, lines=["PUMP"]) as loop:
                await turned(loop)
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert world.gpio.state(PUMP) == 0
        assert len(world.records("loop.stop")) == 1


async def test_an_error_of_the_owner_passes_and_leaves_its_outputs_safe(tmp_path):
    async with cell(tmp_path) as world:
        async with ends_by_itself("mine", Broken), world.loop(FAST, on, lines=["PUMP"]) as loop:
            await turned(loop)
            raise Broken("mine")
        assert world.gpio.state(PUMP) == 0


async def test_the_end_of_the_runtime_ends_its_loops(tmp_path):
    async with trio.open_nursery() as nursery:
        async with cell(tmp_path) as world:

            async def owner():
                async with ends_by_itself("cancelled"), world.loop(FAST, on, lines=["PUMP"]) as loop:
                    began.set()
                    await loop.wait()

            began = trio.Event()
            nursery.start_soon(owner)
            await began.wait()
        assert world.gpio.state(PUMP) == 0
        events = [record["event"] for record in world.records()]
        assert events.index("loop.stop") < events.index("session.close") < events.index("daemon.stop")


async def test_a_device_that_is_gone_ends_the_loop_and_is_safe_when_it_is_back(tmp_path):
    async with cell(tmp_path) as world:
        gone, opened = trio.Event(), []

        async def pump():
            if not opened:
                opened.append(1)
                await gone.wait()
                raise DeviceError("unplugged", effect="none")

        world.gpio.pump = pump
        bus = world.runtime._runtime.buses[BUS]
        # The bus runs already: it is brought down once, to be opened with the pump above.
        bus._lanes.fail(DeviceError("first", effect="none"))
        await passes(lambda: opened and bus.state == "ready")
        async with ends_by_itself("unplugged"), world.loop(FAST, on, lines=["PUMP"]) as loop:
            await turned(loop)
            gone.set()
            await loop.wait()
        await passes(lambda: bus.state == "ready")
        await passes(lambda: world.gpio.state(PUMP) == 0)
        assert not world.runtime._runtime.buses[BUS].guard.claims


# --- overruns ---------------------------------------------------------------------------------------------------------


async def test_overruns_are_counted_exactly(tmp_path):
    clock, runs = VirtualClock(), []

    def function(io):
        runs.append(io.time)
        clock.spend(0.0251 if len(runs) % 5 == 0 else 0.0001)
        if len(runs) == 50:
            io.stop()

    async with (
        cell(tmp_path) as world,
        ends_by_itself("stopped"),
        world.loop(100, function, lines=["PUMP"], clock=clock) as loop,
    ):
        stats = await loop.wait()
    # Each overrun lasts over the next two periods.
    assert (stats.runs, stats.overruns, stats.missed) == (50, 10, 20)
    assert sum(stats.lateness) == 50


@pytest.mark.parametrize("late", ["the run", "the wake-up"])
async def test_an_overrun_stops_a_loop_that_asks_for_it(tmp_path, late):
    clock, runs = VirtualClock(), []

    def function(io):
        runs.append(1)
        io.write("PUMP", 1)
        if len(runs) == 7:
            clock.spend(0.0101)

    if late == "the wake-up":
        wait = clock.wait
        clock.wait = lambda until, ended: wait(until + (20_000_000 if len(runs) == 7 else 0), ended)
        clock.spend = lambda _seconds: None
    async with (
        cell(tmp_path) as world,
        ends_by_itself("a period was missed"),
        world.loop(100, function, lines=["PUMP"], clock=clock, on_overrun="stop") as loop,
    ):
        stats = await loop.wait()
        assert world.gpio.state(PUMP) == 0
    assert (stats.runs, stats.overruns) == (7, int(late == "the run"))
    assert stats.missed >= 1


# --- the grant ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "error", "match"),
    [
        (entry(max_risk=1), PermissionDenied, "max_risk_level=1"),
        (entry(tools=("gpio.get",)), PermissionDenied, "not in the allowlist"),
        (entry(lines=("LAMP",)), PermissionDenied, "PUMP is not in `lines`"),
        (entry(approval=(ApprovalRule(from_risk=2),)), ApprovalRequired, "has risk 2"),
    ],
)
async def test_the_policy_is_asked_at_the_grant(tmp_path, policy, error, match):
    async with cell(tmp_path, policy=policy) as world:
        with pytest.raises(error, match=match):
            async with world.loop(FAST, on, lines=["PUMP"]):
                raise AssertionError
        assert world.gpio.sets == []
        assert not world.records("loop.start")
        assert len(world.records("task.reject")) == 1


async def test_an_input_must_be_permitted_too(tmp_path):
    async with cell(tmp_path, policy=entry(lines=("PUMP",))) as world:
        with pytest.raises(PermissionDenied, match="DOOR"):
            async with world.loop(FAST, on, lines=["PUMP"], inputs=["DOOR"]):
                raise AssertionError


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"lines": []}, "lines: name at least one"),
        ({"lines": ["PUMPP"]}, "no gpio line 'PUMPP'.*PUMP"),
        ({"chip": "other"}, "no gpio chip 'other'"),
        ({"lines": ["PUMP"] * 65}, "at most 64"),
        ({"hz": 0}, "hz: 0 is not from"),
        ({"hz": 100_000}, "hz: 100000 is not from"),
        ({"hz": float("nan")}, "hz: nan"),
        ({"on_overrun": "retry"}, "on_overrun"),
        ({"watchdog_ms": 0}, "watchdog_ms"),
        ({"telemetry": 0}, "telemetry"),
    ],
)
async def test_wrong_arguments_are_refused_with_the_place_and_the_cure(tmp_path, wrong, match):
    arguments = {"hz": 100, "lines": ["PUMP"], **wrong}
    async with cell(tmp_path) as world:
        with pytest.raises(InvalidParams, match=match):
            async with world.loop(arguments.pop("hz"), on, **arguments):
                raise AssertionError
        assert not world.records("session.open")


async def test_an_input_of_the_profile_is_never_driven(tmp_path):
    async with cell(tmp_path) as world:
        with pytest.raises(PermissionDenied, match="never driven"):
            async with world.loop(FAST, on, lines=["DOOR"]):
                raise AssertionError


async def test_a_driver_that_only_trio_can_call_is_refused(tmp_path):
    async with cell(tmp_path, style=Style.ASYNC) as world:
        with pytest.raises(InvalidParams, match="cannot be called from the thread of a control loop"):
            async with world.loop(FAST, on, lines=["PUMP"]):
                raise AssertionError


async def test_a_line_has_one_loop(tmp_path):
    async with cell(tmp_path) as world:
        async with world.loop(FAST, on, lines=["PUMP"], name="first") as first:
            with pytest.raises(ResourceBusy, match="'first'"):
                async with world.loop(FAST, on, lines=["LAMP", "PUMP"]):
                    raise AssertionError
            async with world.loop(FAST, lambda io: io.write("LAMP", 1), lines=["LAMP"]) as second:
                await turned(first)
                await turned(second)
            await turned(first)
        assert world.gpio.overlaps == 0


async def test_a_loop_waits_for_a_task_that_has_leased_its_bus(tmp_path):
    async with cell(tmp_path) as world, world.runtime.open_session() as session:
        watch = step("gpio.watch", line="STOP", timeout_ms=600_000)
        task = await session.submit("mine", [watch], exclusive=True)
        await passes(lambda: world.runtime.health()["buses"][BUS].get("leased"))
        with trio.move_on_after(0.05) as scope:
            async with world.loop(FAST, on, lines=["PUMP"]):
                raise AssertionError
        assert scope.cancelled_caught
        await task.cancel()
        async with world.loop(FAST, on, lines=["PUMP"]) as loop:
            await turned(loop)


async def test_no_loop_begins_without_its_record(tmp_path):
    disk = FaultyDisk()
    async with cell(tmp_path, disk=disk) as world:
        disk.write_error = OSError(28, os.strerror(28))
        with pytest.raises(AuditUnavailable):
            async with world.loop(FAST, on, lines=["PUMP"]):
                raise AssertionError
        assert (PUMP, 1) not in world.gpio.sets
        disk.write_error = None


async def test_a_loop_whose_digest_cannot_be_written_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(loops, "DIGEST_S", 0.05)
    disk = FaultyDisk()
    async with cell(tmp_path, disk=disk) as world:
        async with ends_by_itself("audit log cannot be written"), world.loop(FAST, on, lines=["PUMP"]) as loop:
            await turned(loop)
            disk.write_error = OSError(28, os.strerror(28))
            await loop.wait()
            assert world.gpio.state(PUMP) == 0
        disk.write_error = None


# --- others on the same bus ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", [Style.INLINE, Style.THREAD])
async def test_others_read_its_lines_drive_the_rest_of_the_chip_and_are_refused_its_own(tmp_path, style):
    async with cell(tmp_path, style=style) as world, world.runtime.open_session() as session:
        async with world.loop(FAST, on, lines=["PUMP"], name="tank") as loop:
            await turned(loop)
            assert (await session.run("gpio.get", line="PUMP"))["value"] == 1
            await session.run("gpio.set", line="LAMP", value=1)
            for tool, more in (("gpio.set", {}), ("gpio.pulse", {"duration_ms": 1})):
                with pytest.raises(ResourceBusy, match="driven by the control loop 'tank'") as refused:
                    await session.run(tool, line="PUMP", value=0, **more)
                assert refused.value.data["effect"] == "none"
            await turned(loop)
            levels = world.runtime._runtime.buses[BUS].known().outputs
            assert (levels[PUMP].level, levels[LAMP].level) == (1, 1)
        assert (world.gpio.state(PUMP), world.gpio.state(LAMP)) == (0, 1)
        await session.run("gpio.set", line="PUMP", value=1)


async def test_a_pulse_that_ends_under_a_loop_leaves_the_loops_level(tmp_path):
    async with cell(tmp_path) as world, world.runtime.open_session() as session:
        pulse = await session.submit("on", [step("gpio.pulse", line="PUMP", value=1, duration_ms=60)])
        await passes(lambda: world.gpio.state(PUMP) == 1)
        async with world.loop(FAST, lambda io: io.write("PUMP", 1), lines=["PUMP"]) as loop:
            await pulse.wait()
            assert world.gpio.state(PUMP) == 1
            await turned(loop)
            assert loop.ended is None
        assert world.gpio.state(PUMP) == 0


async def test_the_end_of_a_session_with_a_deadman_that_had_driven_the_line_ends_the_loop(tmp_path):
    async with cell(tmp_path) as world, ends_by_itself("line PUMP was brought to its safe state"):
        async with world.runtime.open_session(heartbeat_ms=60_000) as session:
            await session.run("gpio.set", line="PUMP", value=1)
            manager = world.loop(FAST, on, lines=["PUMP"])
            loop = await manager.__aenter__()
            await turned(loop)
        try:
            await loop.wait()
            assert world.gpio.state(PUMP) == 0
        finally:
            await manager.__aexit__(None, None, None)


@pytest.mark.slow
async def test_two_callers_of_the_driver_never_overlap_and_its_old_caller_is_back_in_the_end(tmp_path):
    async with cell(tmp_path) as world:

        async def hammer(line):
            async with world.runtime.open_session() as session:
                for _ in range(60):
                    await session.run("gpio.get", line=line)

        for _ in range(3):
            async with world.loop(1000, blinking, lines=["PUMP"]) as loop:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(hammer, "LAMP")
                    nursery.start_soon(hammer, "VALVE")
                await turned(loop)
        assert {"hearth-bus", "hearth-loop loop"} <= world.gpio.callers
        assert world.gpio.overlaps == 0
        world.gpio.callers.clear()
        await hammer("LAMP")
        assert world.gpio.callers == {threading.current_thread().name}, "in place again"


@pytest.mark.slow
async def test_a_loop_that_runs_for_longer_than_the_idle_time_keeps_its_session(tmp_path):
    limits = LimitsConfig(idle_ttl_s=0.2)
    async with cell(tmp_path, limits=limits) as world, world.loop(FAST, on, lines=["PUMP"]) as loop:
        await passes(lambda: loop.stats().runs > FAST // 2)
        assert loop.ended is None


# --- records --------------------------------------------------------------------------------------------------------


async def test_the_digests_counts_equal_the_writes_made(tmp_path, monkeypatch):
    monkeypatch.setattr(loops, "DIGEST_S", 0.03)

    def function(io):
        io.write("PUMP", round(io.time * FAST) % 2)
        if round(io.time * FAST) % 3 == 0:
            io.write("LAMP", 1)

    async with cell(tmp_path) as world:
        async with world.loop(FAST, function, lines=["PUMP", "LAMP"], inputs=["DOOR"], name="tank") as loop:
            await passes(lambda: len(world.records("loop.digest")) >= 4)
        stats = loop.stats()
        (start,), (stop,) = world.records("loop.start"), world.records("loop.stop")
        told = [*world.records("loop.digest"), stop]
        for line, name in ((PUMP, "PUMP"), (LAMP, "LAMP")):
            made = [level for driven, level in world.gpio.sets if driven == line][:-1]
            assert sum(record["writes"][name] for record in told) == stats.writes[name] == len(made)
            assert stop["last"][name] == made[-1]
        for count in ("runs", "missed", "overruns", "refused", "failed"):
            assert sum(record[count] for record in told) == stop["total"][count] == getattr(stats, count)
        assert [(report["line"], report["safe"]) for report in stop["safe"]] == [(PUMP, 0), (LAMP, 0)]
        assert start["hz"] == FAST
        assert (start["lines"], start["inputs"], start["on_overrun"]) == (["PUMP", "LAMP"], ["DOOR"], "skip")
        same = ("session_id", "task_id", "principal", "bus", "name")
        assert all(record[member] == start[member] for record in told for member in same)


async def test_the_grant_is_on_record_before_the_first_period(tmp_path):
    first = []

    async with cell(tmp_path) as world:

        def function(io):
            first.append([record["event"] for record in world.records()])
            io.stop()

        async with ends_by_itself("stopped"), world.loop(FAST, function, lines=["PUMP"]) as loop:
            await loop.wait()
    assert "loop.start" in first[0]


async def test_its_lines_are_on_the_list_of_driven_outputs_from_the_grant_on(tmp_path):
    async with cell(tmp_path) as world:
        listed = tmp_path / "audit.log.outputs"
        async with world.loop(FAST, lambda _io: None, lines=["PUMP", "LAMP"]) as loop:
            await turned(loop)
            assert b'"outputs":{"gpio:cell":[0,3]}' in listed.read_bytes()
        assert not listed.exists()


# --- telemetry, scheduling ------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_telemetry_comes_in_order_and_ends_with_the_loop(tmp_path):
    def function(io):
        io.emit(round(io.time * FAST))
        if io.time > 0.2:
            io.stop()

    seen = []
    async with (
        cell(tmp_path) as world,
        ends_by_itself("stopped"),
        world.loop(FAST, function, lines=["PUMP"]) as loop,
    ):
        seen = [sample async for sample in loop.telemetry()]
    stats = loop.stats()
    assert [sample.seq for sample in seen] == list(range(1, stats.runs + 1))
    assert all(sample.value == round(sample.time * FAST) for sample in seen)
    assert (stats.emitted, stats.dropped) == (stats.runs, 0)


async def test_telemetry_that_is_not_read_is_dropped_the_oldest_first_and_counted(tmp_path):
    def function(io):
        io.emit(io.time)
        if io.time > 0.2:
            io.stop()

    async with (
        cell(tmp_path) as world,
        ends_by_itself("stopped"),
        world.loop(FAST, function, lines=["PUMP"], telemetry=10, clock=VirtualClock()) as loop,
    ):
        stats = await loop.wait()
        seen = [sample.seq async for sample in loop.telemetry()]
    assert stats.dropped == stats.emitted - 10 == loop.stats().dropped
    assert seen == list(range(stats.emitted - 9, stats.emitted + 1))


async def test_a_loop_without_the_right_to_sched_fifo_runs_and_says_so(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    async with cell(tmp_path) as world:
        async with world.loop(FAST, on, lines=["PUMP"]) as loop:
            await turned(loop)
            assert loop.stats().scheduling == "other"
        assert "runs without SCHED_FIFO: Operation not permitted: it takes CAP_SYS_NICE" in caplog.text
        assert world.records("loop.start")[0]["scheduling"] == "other"


async def test_only_the_loops_thread_has_sched_fifo_and_only_if_it_is_wanted(tmp_path):
    policies = []

    def function(io):
        child = []
        thread = threading.Thread(target=lambda: child.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
        policies.append((os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, *child))
        io.stop()

    async with cell(tmp_path) as world:
        for realtime in (True, False):
            async with (
                ends_by_itself("stopped"),
                world.loop(FAST, function, lines=["PUMP"], realtime=realtime) as loop,
            ):
                await loop.wait()
            wanted = os.SCHED_FIFO if loop.stats().scheduling == "fifo" else os.SCHED_OTHER
            assert policies.pop() == (wanted, os.SCHED_OTHER)
        assert loop.stats().scheduling == "other"
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


async def test_the_switch_interval_is_short_while_loops_run_and_then_as_before(tmp_path):
    before = sys.getswitchinterval()
    async with cell(tmp_path) as world:
        async with world.loop(FAST, on, lines=["PUMP"]), world.loop(FAST, lambda _: None, lines=["LAMP"]):
            assert sys.getswitchinterval() == pytest.approx(min(before, loops.SWITCH_S))
        assert sys.getswitchinterval() == before


async def test_a_loop_belongs_to_the_thread_of_its_runtime(tmp_path):
    async with cell(tmp_path) as world:

        async def elsewhere():
            async with world.loop(FAST, on, lines=["PUMP"]):
                raise AssertionError

        with pytest.raises(RuntimeError, match="another thread"):
            await trio.to_thread.run_sync(trio.run, elsewhere)


async def test_a_loop_of_a_runtime_that_ends_is_refused(tmp_path):
    async with cell(tmp_path) as world:
        await world.runtime._runtime.end_sessions()
        with pytest.raises((SessionInvalid, hearth.RpcError)):
            async with world.loop(FAST, on, lines=["PUMP"]):
                raise AssertionError
