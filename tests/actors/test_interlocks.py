"""Interlocks: what a board's outputs require, before the driver and while they are driven (the issue of safety)."""

from __future__ import annotations

import logging
import random
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest
import trio
import trio.testing
from support.amounts import amount
from support.mcp import mcp_client, text_of
from support.waiting import passes
from support.world import BoardWorld, running
from support.writers import WRITERS, no_threads, serving

from hearth import step
from hearth.actors.bus import interlocks
from hearth.drivers.base import Style
from hearth.drivers.i2c.chips import I2cSensor
from hearth.errors import DeviceError, Halted, InterlockOpen, from_wire
from hearth.mcp.results import META_ERROR

PUMP, DOOR, LID, LAMP = 0, 1, 2, 3
CLOSED, OPENED = 0, 1
WRITES = amount("HEARTH_WRITES", 100_000)

RULES = {"drives": "PUMP", "value": 1, "max_age_ms": 500, "check_ms": 100}
DOOR_CLOSED = {"line": "DOOR", "value": CLOSED}
LID_CLOSED = {"line": "LID", "value": CLOSED}
TANK_FULL = {"sensor": "tank", "min": 20}

BOARD = {
    "name": "cell",
    "description": "a pump, a door on its chip, a lid on another chip, a tank",
    "gpio": [
        {
            "label": "cell",
            "driver": "sim",
            "names": ["PUMP", "DOOR", "VALVE", "LAMP"],
            "lines": {"PUMP": {"safe": 0}, "DOOR": {"pull": "down"}, "VALVE": {"safe": 0}, "LAMP": {"safe": 0}},
        },
        {"label": "other", "driver": "sim", "names": ["", "", "LID"], "lines": {"LID": {"pull": "down"}}},
    ],
    "i2c": [
        {
            "bus": 1,
            "driver": "sim",
            "device": [{"addr": 0x4D, "kind": "mcp3221", "tank": {"pump": "PUMP", "start": 50}}],
        }
    ],
    "sensors": {"tank": {"kind": "mcp3221", "bus": 1, "addr": 0x4D}},
}


class Cell(BoardWorld):
    """A runtime over the simulated cell, in virtual time, and its outside."""

    def __init__(self, *interlocks, left_driven=(), style=Style.ASYNC):
        left = {"gpio:cell": left_driven} if left_driven else None
        super().__init__({**BOARD, "interlock": list(interlocks)}, style=style, left=left)
        self.other, self.i2c = self.parts.drivers["gpio:other"], self.parts.drivers["i2c:1"]
        self.tank = 50.0
        self.i2c.devices[0x4D].percent = lambda: self.tank

        self.highs = 0
        """How often the pump was switched on."""
        self.gpio.attach(PUMP, self._switched)

    def _switched(self, level):
        self.highs += level

    def crash(self, bus):
        """Let a bug of the driver bring a bus down; the supervisor opens it again."""
        bus._lanes.fail(RuntimeError("a bug in the driver"))

    @property
    def outputs(self):
        """The lines that sessions hold, by the bus."""
        return list(self.runtime.buses["gpio:cell"]._driven._holders)

    @property
    def pumping(self):
        return self.gpio.state(PUMP) == 1


def lock(*requires, **more):
    return {**RULES, "requires": list(requires), **more}


@asynccontextmanager
async def session_of(cell, **opening):
    async with running(cell) as world, world.sessions().open_session(**opening) as session:
        yield session


async def test_an_output_is_driven_while_what_it_requires_holds(autojump_clock):
    cell = Cell(lock(DOOR_CLOSED, LID_CLOSED, TANK_FULL))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        assert cell.pumping
        await trio.sleep(10)
        assert cell.pumping


REQUIRED = {
    "a line of the same chip": (DOOR_CLOSED, lambda cell: cell.gpio.push(DOOR, OPENED), {"read": 1, "age_ms": 0.0}),
    "a line of another chip": (LID_CLOSED, lambda cell: cell.other.push(LID, OPENED), {"read": 1}),
    "a sensor": (TANK_FULL, lambda cell: setattr(cell, "tank", 10), {}),
}


@pytest.mark.parametrize("what", REQUIRED)
async def test_an_output_is_not_driven_while_a_condition_is_open(autojump_clock, what):
    condition, opens, found = REQUIRED[what]
    cell = Cell(lock(condition))
    opens(cell)
    async with session_of(cell) as session:
        with pytest.raises(InterlockOpen) as refused:
            await session.run("gpio.set", line="PUMP", value=1)
        assert not cell.pumping
        assert refused.value.data["effect"] == "none"
        (entry,) = refused.value.data["requires"]
        assert condition.items() <= entry.items()
        assert found.items() <= entry.items()
        assert (refused.value.data["line"], refused.value.data["value"]) == ("PUMP", 1)
        await session.run("gpio.set", line="PUMP", value=0)
        await session.run("gpio.set", line="LAMP", value=1)


@pytest.mark.spec("design 8: interlocks")
@pytest.mark.parametrize("what", REQUIRED)
async def test_an_output_goes_to_its_safe_state_when_a_condition_opens(autojump_clock, what):
    condition, opens, _ = REQUIRED[what]
    cell = Cell(lock(condition))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        await trio.sleep(3.03)
        opens(cell)
        assert cell.pumping
        await trio.sleep(0.11)
        assert not cell.pumping
        (record,) = cell.records("interlock.open")
        assert (record["bus"], record["line"], record["value"]) == ("gpio:cell", "PUMP", 1)
        assert condition.items() <= record["requires"][0].items()
        assert record["safe"] == [{"line": PUMP, "name": "PUMP", "safe": 0}]


async def test_an_interlock_that_demands_it_halts_and_its_hold_stays_until_its_conditions_hold_again(autojump_clock):
    cell = Cell({**lock(LID_CLOSED), "halt": True}, {**lock(LID_CLOSED), "drives": "LAMP"})
    async with session_of(cell) as session:
        await session.run("gpio.set", line="LAMP", value=1)
        cell.other.push(LID, OPENED)
        await trio.sleep(1)
        assert not cell.runtime.halt.flag.halted, "only one that demands it, while its output is driven"
        cell.other.let_go(LID)
        await session.run("gpio.set", line="PUMP", value=1)
        cell.other.push(LID, OPENED)
        halt = cell.runtime.halt
        await passes(lambda: halt.flag.halted)
        (hold,) = halt.status()["holds"]
        assert (hold["source"], hold["by"]) == ("interlock", "interlock gpio:cell PUMP")
        assert hold["reason"] == "interlock gpio:cell PUMP: LID reads 1"
        await session.halt("smoke")
        with pytest.raises(Halted, match=r"interlocks are open \(gpio:cell PUMP: LID reads 1\)") as refused:
            await halt.reset("a person", halt.flag.count)
        assert refused.value.data["interlocks"] == {"gpio:cell PUMP": "LID reads 1"}
        (left,) = halt.status()["holds"]
        assert left["source"] == "interlock", "the person's own is removed"
        cell.other.let_go(LID)
        await halt.reset("a person", halt.flag.count)
        assert not halt.flag.halted
        assert not cell.pumping


# --- every way to the driver ------------------------------------------------------------------------------------------


async def test_a_pulse_is_not_begun_while_a_condition_is_open(autojump_clock):
    cell = Cell(lock(LID_CLOSED))
    cell.other.push(LID, OPENED)
    async with session_of(cell) as session:
        with pytest.raises(InterlockOpen):
            await session.run("gpio.pulse", line="PUMP", value=1, duration_ms=100)
        assert cell.highs == 0
        assert cell.gpio.state(PUMP) == "input"


async def test_a_pulse_ends_at_once_when_a_condition_opens(autojump_clock):
    cell = Cell(lock(LID_CLOSED))
    async with session_of(cell) as session:
        task = await session.submit("pulse", [step("gpio.pulse", line="PUMP", value=1, duration_ms=10_000)])
        await trio.sleep(1)
        cell.other.push(LID, OPENED)
        await trio.sleep(0.11)
        assert not cell.pumping
        cell.other.let_go(LID)
        result = await task.wait()
        assert (result.status, result.steps[0].result["restored"]) == ("SUCCESS", False)
        assert (cell.gpio.state(PUMP), cell.highs) == (0, 1)


async def test_the_end_of_a_pulse_does_not_restore_a_level_whose_condition_has_opened(autojump_clock):
    cell = Cell(lock(LID_CLOSED))
    async with session_of(cell) as holder, cell.sessions().open_session() as other:
        await holder.run("gpio.set", line="PUMP", value=1)
        task = await other.submit("pulse", [step("gpio.pulse", line="PUMP", value=0, duration_ms=1000)])
        await trio.sleep(0.5)
        cell.other.push(LID, OPENED)
        result = await task.wait()
        assert (result.status, result.steps[0].result["restored"]) == ("SUCCESS", False)
        assert (cell.gpio.state(PUMP), cell.highs) == (0, 1)
        assert cell.outputs == []


async def test_the_end_of_a_pulse_restores_a_level_whose_condition_holds(autojump_clock):
    cell = Cell(lock(LID_CLOSED, TANK_FULL))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        await session.run("gpio.pulse", line="PUMP", value=0, duration_ms=30_000)
        assert cell.pumping


async def test_a_rollback_does_not_restore_a_level_whose_condition_has_opened(autojump_clock):
    cell = Cell(lock(LID_CLOSED))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        steps = [
            step("gpio.set", line="PUMP", value=0),
            step("gpio.watch", line="LAMP", timeout_ms=1000),
            step("i2c.read", bus=1, addr=0x20, len=1),
        ]
        task = await session.submit("fails", steps, rollback_on_failure=True)
        await trio.sleep(0.5)
        cell.other.push(LID, OPENED)
        result = await task.wait()
        assert (result.status, result.steps[0].rolled_back) == ("FAILED", True)
        assert (cell.gpio.state(PUMP), cell.highs) == (0, 1)
        assert cell.outputs == []


async def test_a_rollback_restores_a_level_whose_condition_holds(autojump_clock):
    cell = Cell(lock(LID_CLOSED, TANK_FULL))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        steps = [
            step("gpio.set", line="PUMP", value=0),
            step("gpio.watch", line="LAMP", timeout_ms=30_000),
            step("i2c.read", bus=1, addr=0x20, len=1),
        ]
        result = await (await session.submit("fails", steps, rollback_on_failure=True)).wait()
        assert (result.status, result.steps[0].rolled_back) == ("FAILED", True)
        assert cell.pumping


@asynccontextmanager
async def over_hacp(cell):
    async with cell.client() as client, client.open_session() as session:
        yield partial(session.run, "gpio.set", line="PUMP")


@asynccontextmanager
async def in_process(cell):
    async with cell.sessions().open_session() as session:
        yield partial(session.run, "gpio.set", line="PUMP")


@asynccontextmanager
async def over_mcp(cell):
    async with mcp_client(cell.sessions(), "auto") as client:

        async def drive(value):
            result = await client.call_tool("gpio_set", {"line": "PUMP", "value": value})
            if result.is_error:
                error = result.meta[META_ERROR]
                raise from_wire({"code": error["code"], "message": text_of(result), "data": error})

        yield drive


@pytest.mark.spec("design 8: interlocks")
@pytest.mark.parametrize("face", [in_process, over_hacp, over_mcp], ids=["in process", "HACP", "MCP"])
async def test_an_interlock_holds_whichever_way_a_request_comes(autojump_clock, face):
    cell = Cell(lock(DOOR_CLOSED, LID_CLOSED))
    async with running(cell), face(cell) as drive:
        cell.other.push(LID, OPENED)
        with pytest.raises(InterlockOpen, match="LID reads 1; nothing was driven") as refused:
            await drive(value=1)
        assert refused.value.data["effect"] == "none"
        assert cell.highs == 0
        cell.other.let_go(LID)
        await drive(value=1)
        assert cell.pumping
        cell.gpio.push(DOOR, OPENED)
        await trio.sleep(0.11)
        assert not cell.pumping


# --- readings ---------------------------------------------------------------------------------------------------------


async def test_a_stale_reading_is_taken_again_before_the_output_is_driven(autojump_clock):
    cell = Cell(lock(TANK_FULL))
    async with session_of(cell) as session:
        for tank in (10, 30, 19, 21):
            cell.tank = tank
            await trio.sleep(60)
            # After a step that may wait, so that the submission does not look.
            steps = [step("gpio.watch", line="DOOR", timeout_ms=1), step("gpio.set", line="PUMP", value=1)]
            result = await (await session.submit("on", steps)).wait()
            assert (result.status == "SUCCESS") is (tank >= 20), tank
            await session.run("gpio.set", line="PUMP", value=0)


FAILURES = {
    "a sensor that does not answer": lambda cell: cell.i2c.faults.nack(100, addr=0x4D),
    "a bus that is wedged": lambda cell: cell.i2c.faults.wedge(),
}


@pytest.mark.spec("design 8: interlocks")
@pytest.mark.parametrize("what", FAILURES)
async def test_a_sensor_that_fails_counts_as_an_open_interlock(autojump_clock, what):
    cell = Cell(lock(TANK_FULL))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        await trio.sleep(1)
        FAILURES[what](cell)
        await trio.sleep(0.7)
        assert not cell.pumping
        (entry,) = cell.records("interlock.open")[0]["requires"]
        assert entry["error"]
        with pytest.raises(InterlockOpen) as refused:
            await session.run("gpio.set", line="PUMP", value=1)
        assert refused.value.data["requires"][0]["error"]
        cell.i2c.faults.clear()


async def test_a_reading_that_is_no_number_counts_as_open(autojump_clock, monkeypatch):
    cell = Cell(lock({"sensor": "tank", "max": 90}))
    monkeypatch.setattr(I2cSensor, "value", lambda _self, _raw: float("nan"))
    async with session_of(cell) as session:
        with pytest.raises(InterlockOpen, match=r"tank counts as open .it reads no number"):
            await session.run("gpio.set", line="PUMP", value=1)


async def test_a_wedged_sensor_holds_up_neither_other_outputs_nor_the_safe_level(autojump_clock):
    cell = Cell(lock(TANK_FULL))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        cell.i2c.faults.wedge()
        await trio.sleep(0.3)
        begun = trio.current_time()
        await session.run("gpio.set", line="LAMP", value=1)
        await session.run("gpio.set", line="PUMP", value=0)
        assert trio.current_time() == begun
        cell.i2c.faults.clear()


async def test_readings_stay_fresh_while_a_request_waits_for_its_turn(autojump_clock):
    cell = Cell(lock(TANK_FULL))
    async with session_of(cell) as session, cell.sessions().open_session() as other:
        leaser = await other.submit("lease", [step("gpio.watch", line="DOOR", timeout_ms=20_000)], exclusive=True)
        await trio.sleep(1)
        task = await session.submit("on", [step("gpio.set", line="PUMP", value=1)])
        await trio.sleep(5)
        cell.tank = 30
        assert not cell.pumping
        await leaser.wait()
        assert (await task.wait()).status == "SUCCESS"
        await session.run("gpio.set", line="PUMP", value=0)
        leaser = await other.submit("lease", [step("gpio.watch", line="DOOR", timeout_ms=20_000)], exclusive=True)
        await trio.sleep(1)
        task = await session.submit("on", [step("gpio.set", line="PUMP", value=1)])
        await trio.sleep(5)
        cell.tank = 10
        assert (await task.wait()).steps[0].error_code == InterlockOpen.code


async def test_a_lease_on_the_bus_of_a_sensor_does_not_keep_an_interlock_from_being_read(autojump_clock):
    cell = Cell(lock(TANK_FULL))
    async with session_of(cell) as session, cell.sessions().open_session() as other:
        steps = [step("i2c.read", bus=1, addr=0x4D, len=2), step("gpio.watch", line="DOOR", timeout_ms=20_000)]
        await other.submit("lease both", steps, exclusive=True)
        await trio.sleep(1)
        task = await session.submit("on", [step("gpio.set", line="PUMP", value=1)])
        assert (await task.wait()).status == "SUCCESS"


async def test_readings_are_not_taken_while_no_output_needs_them(autojump_clock):
    cell = Cell(lock(TANK_FULL, LID_CLOSED))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        await session.run("gpio.set", line="PUMP", value=0)
        await trio.sleep(1)
        before = len(cell.i2c.log)
        await trio.sleep(3600)
        assert len(cell.i2c.log) == before


async def test_a_line_of_the_same_chip_is_read_when_its_output_is_driven_and_then_every_check_ms(
    autojump_clock, monkeypatch
):
    cell = Cell(lock(DOOR_CLOSED))
    read = []
    get = cell.gpio.get
    monkeypatch.setattr(cell.gpio, "get", lambda line: (read.append(line), get(line))[1])
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        assert read == [DOOR, DOOR], "for the submission, which had no reading yet, and when it is driven"
        for _ in range(3):
            await session.run("gpio.set", line="PUMP", value=0)
            await session.run("gpio.set", line="PUMP", value=1)
        assert len(read) == 2 + 3
        await trio.sleep(0.35)
        assert len(read) == 2 + 3 + 3


# --- early ------------------------------------------------------------------------------------------------------------

ON = step("gpio.set", line="PUMP", value=1)
LIGHT = step("gpio.set", line="LAMP", value=1)


@pytest.mark.parametrize("dry_run", [False, True], ids=["for real", "dry run"])
@pytest.mark.parametrize("what", REQUIRED)
async def test_a_submission_that_could_not_drive_its_output_is_refused_before_anything_moves(
    autojump_clock, what, dry_run
):
    condition, opens, _ = REQUIRED[what]
    cell = Cell(lock(condition))
    async with session_of(cell) as session:
        opens(cell)
        steps = (
            [step("gpio.get", line="DOOR"), LIGHT, ON] if "line" in condition else [step("gpio.get", line="DOOR"), ON]
        )
        with pytest.raises(InterlockOpen) as refused:
            await session.submit("on", steps, dry_run=dry_run)
        assert refused.value.data["step_index"] == len(steps) - 1
        assert refused.value.data["requires"][0].items() >= condition.items()
        assert cell.gpio.state(LAMP) == "input"
        await trio.testing.wait_all_tasks_blocked()
        (record,) = cell.records("task.reject")
        assert record["error_code"] == InterlockOpen.code


async def test_a_plan_that_could_not_drive_its_output_is_refused_when_it_is_prepared(autojump_clock):
    cell = Cell(lock(DOOR_CLOSED))
    async with session_of(cell) as session:
        cell.gpio.push(DOOR, OPENED)
        with pytest.raises(InterlockOpen):
            await session.prepare("on", [ON])


LATER = {
    "drives a required line": ([step("gpio.set", line="VALVE", value=1), ON], lambda _cell: None),
    "waits for what is required": (
        [step("gpio.watch", line="DOOR", edge="falling"), ON],
        lambda cell: cell.gpio.push(DOOR, CLOSED),
    ),
}


@pytest.mark.parametrize("what", LATER)
async def test_a_submission_is_judged_in_its_turn_after_a_step_that(autojump_clock, what):
    steps, helps = LATER[what]
    cell = Cell(lock({"line": "VALVE", "value": 1} if "drives" in what else DOOR_CLOSED))
    cell.gpio.push(DOOR, OPENED)
    async with session_of(cell) as session:
        await (await session.submit("dry", steps, dry_run=True)).wait()
        task = await session.submit("on", steps)
        await trio.sleep(1)
        helps(cell)
        assert (await task.wait()).status == "SUCCESS"
        assert cell.pumping


async def test_a_submission_is_refused_early_if_a_required_sensor_cannot_be_read(autojump_clock):
    cell = Cell(lock(TANK_FULL))
    async with session_of(cell) as session:
        cell.i2c.faults.wedge()
        begun = trio.current_time()
        with pytest.raises(InterlockOpen, match=r"tank counts as open"):
            await session.submit("on", [ON])
        assert trio.current_time() - begun <= interlocks.PATIENCE
        cell.i2c.faults.clear()


# --- bookkeeping, faults and restarts ---------------------------------------------------------------------------------


async def test_an_output_that_an_interlock_made_safe_is_held_by_no_session(autojump_clock):
    cell = Cell(lock(DOOR_CLOSED))
    async with session_of(cell) as session, cell.sessions().open_session() as other:
        await session.run("gpio.set", line="PUMP", value=1)
        assert cell.outputs == [PUMP]
        cell.gpio.push(DOOR, OPENED)
        await trio.sleep(0.2)
        assert (cell.pumping, cell.outputs) == (False, [])
        cell.gpio.push(DOOR, CLOSED)
        await trio.sleep(10)
        assert not cell.pumping, "only a new request drives it"
        await other.run("gpio.set", line="PUMP", value=1)
        await session.close()
        assert cell.pumping, "it is the other session's now"


async def test_a_set_that_an_interlock_refuses_leaves_the_output_to_the_session_that_has_set_it(autojump_clock):
    cell = Cell(lock(DOOR_CLOSED))
    async with session_of(cell) as other, cell.sessions().open_session() as session:
        await session.run("gpio.set", line="PUMP", value=0)
        steps = [step("gpio.watch", line="LAMP", timeout_ms=1000), step("gpio.set", line="PUMP", value=1)]
        task = await other.submit("too late", steps)
        await trio.sleep(0.5)
        cell.gpio.push(DOOR, OPENED)
        assert (await task.wait()).steps[1].error_code == InterlockOpen.code
        await session.close()
        assert cell.outputs == []


async def test_a_set_that_is_refused_leaves_an_output_that_no_session_has_set_to_none(autojump_clock):
    cell = Cell(lock(DOOR_CLOSED))
    async with session_of(cell) as refused:
        steps = [step("gpio.watch", line="LAMP", timeout_ms=1000), step("gpio.set", line="PUMP", value=1)]
        task = await refused.submit("too late", steps)
        await trio.sleep(0.5)
        cell.gpio.push(DOOR, OPENED)
        assert (await task.wait()).steps[1].error_code == InterlockOpen.code
        assert cell.outputs == []
        cell.gpio.push(DOOR, CLOSED)
        async with cell.sessions().open_session() as other:
            steps = [step("gpio.set", line="PUMP", value=1), step("gpio.watch", line="LAMP", timeout_ms=9000)]
            await other.submit("undone at the end of its session", steps, rollback_on_failure=True)
            await trio.sleep(0.1)
            assert cell.outputs == [PUMP]
        assert (cell.outputs, cell.gpio.state(PUMP)) == ([], 0), "its own to make safe, although it was undone"


async def test_a_set_that_fails_without_an_effect_leaves_the_output_to_the_session_that_has_set_it(autojump_clock):
    cell = Cell()
    async with session_of(cell) as other, cell.sessions().open_session() as session:
        await session.run("gpio.set", line="LAMP", value=1)
        cell.gpio.fail()
        with pytest.raises(DeviceError):
            await other.run("gpio.set", line="LAMP", value=0)
        await session.close()
        assert (cell.outputs, cell.gpio.state(LAMP)) == ([], 0)


async def test_a_set_that_fails_without_an_effect_leaves_an_output_to_the_end_that_could_not_make_it_safe(
    autojump_clock,
):
    cell = Cell()
    async with session_of(cell) as other:
        async with cell.sessions().open_session() as session:
            await session.run("gpio.set", line="LAMP", value=1)
            cell.gpio.fail(10)
        with pytest.raises(DeviceError):
            await other.run("gpio.set", line="LAMP", value=0)
        cell.gpio.fail(0)
        cell.crash(cell.runtime.buses["gpio:cell"])
        await trio.sleep(1)
        assert (cell.outputs, cell.gpio.state(LAMP)) == ([], 0)


async def test_an_output_that_cannot_be_made_safe_is_tried_again_and_reported_once(autojump_clock, caplog):
    cell = Cell(lock(LID_CLOSED))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        cell.gpio.fail(10)
        cell.other.push(LID, OPENED)
        await trio.sleep(0.55)
        assert cell.pumping
        (record,) = cell.records("interlock.open")
        assert "injected fault" in record["error"]
        assert cell.outputs == [PUMP]
        await trio.sleep(1)
        assert (cell.pumping, cell.outputs) == (False, [])
        assert [("error" in record, "safe" in record) for record in cell.records("interlock.open")] == [
            (True, False),
            (False, True),
        ]
    assert "interlock: gpio line PUMP of gpio:cell is not safe" in caplog.text
    assert "line PUMP of gpio:cell was brought to its safe state: LID reads 1" in caplog.text


async def test_a_line_of_the_same_chip_that_cannot_be_read_counts_as_open(autojump_clock):
    cell = Cell(lock(DOOR_CLOSED))
    async with session_of(cell) as session:
        cell.gpio.fail(1)
        with pytest.raises(InterlockOpen, match=r"DOOR counts as open .gpio chip cell: injected fault"):
            await session.run("gpio.set", line="PUMP", value=1)


async def test_an_output_whose_driving_failed_half_way_counts_as_driven(autojump_clock, monkeypatch):
    cell = Cell(lock(LID_CLOSED))
    real = type(cell.gpio).set

    def half_way(self, line, state):
        real(self, line, state)
        if (line, state) == (PUMP, 1):
            raise DeviceError("the line was lost", effect="unknown")

    monkeypatch.setattr(type(cell.gpio), "set", half_way)
    async with session_of(cell) as session:
        with pytest.raises(DeviceError, match="the line was lost"):
            await session.run("gpio.set", line="PUMP", value=1)
        assert cell.pumping
        cell.other.push(LID, OPENED)
        await trio.sleep(0.11)
        assert not cell.pumping


async def test_a_required_line_that_hearth_drives_opens_the_interlock_at_once(autojump_clock):
    cell = Cell(lock({"line": "VALVE", "value": 1}))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="VALVE", value=1)
        await session.run("gpio.set", line="PUMP", value=1)
        await trio.sleep(0.05)
        begun = trio.current_time()
        await session.run("gpio.set", line="VALVE", value=0)
        await trio.testing.wait_all_tasks_blocked()
        assert not cell.pumping
        assert trio.current_time() == begun


async def test_an_output_that_the_end_of_its_session_made_safe_is_no_longer_watched(autojump_clock):
    cell = Cell(lock(LID_CLOSED))
    async with session_of(cell):
        async with cell.sessions().open_session() as session:
            await session.run("gpio.set", line="PUMP", value=1)
        assert not cell.pumping
        cell.other.push(LID, OPENED)
        await trio.sleep(1)
        assert cell.records("interlock.open") == []


async def test_an_output_that_an_earlier_run_left_driven_is_watched_until_it_is_safe(autojump_clock):
    cell = Cell(lock(LID_CLOSED), left_driven=[PUMP])
    cell.gpio.open()
    cell.gpio.set(PUMP, 1)
    cell.gpio.close()
    # What brings it to its safe state at the start fails; only the next opening of the bus would try again.
    cell.gpio.fail(1)
    async with running(cell):
        await trio.sleep(10)
        assert cell.pumping, "the lid is closed"
        cell.other.push(LID, OPENED)
        await trio.sleep(0.11)
        assert not cell.pumping


@pytest.mark.proof
async def test_with_drivers_in_threads_an_output_goes_to_its_safe_state_when_a_condition_opens():
    cell = Cell(lock(DOOR_CLOSED, LID_CLOSED, TANK_FULL), style=Style.THREAD)
    async with session_of(cell) as session:
        for opens, closes in (
            (partial(cell.gpio.push, DOOR, OPENED), partial(cell.gpio.push, DOOR, CLOSED)),
            (partial(cell.other.push, LID, OPENED), partial(cell.other.push, LID, CLOSED)),
            (partial(setattr, cell, "tank", 10), partial(setattr, cell, "tank", 50)),
            (cell.i2c.faults.wedge, cell.i2c.faults.clear),
        ):
            await session.run("gpio.set", line="PUMP", value=1)
            assert cell.pumping
            opens()
            await passes(lambda: not cell.pumping)
            with pytest.raises(InterlockOpen):
                await session.run("gpio.set", line="PUMP", value=1)
            closes()
            await passes(lambda: cell.runtime.buses["i2c:1"].state == "ready")
        assert len(cell.records("interlock.open")) == 4


async def test_an_interlock_is_enforced_as_soon_as_the_outputs_own_bus_can_be_used_again(autojump_clock):
    cell = Cell(lock(LID_CLOSED))
    async with session_of(cell) as session:
        await session.run("gpio.set", line="PUMP", value=1)
        bus = cell.runtime.buses["gpio:cell"]
        cell.crash(bus)
        cell.other.push(LID, OPENED)
        await trio.sleep(30)
        assert (bus.state, cell.pumping) == ("ready", False)


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["hw.board", "hw.gpio.list"])
async def test_the_board_shows_its_interlocks_and_what_they_read_now(autojump_clock, tool):
    cell = Cell(lock(DOOR_CLOSED, LID_CLOSED, TANK_FULL))
    cell.other.push(LID, OPENED)
    cell.i2c.faults.nack(1, addr=0x4D)
    async with session_of(cell) as session:
        (shown,) = (await session.run(tool))["interlocks"]
        assert {key: shown[key] for key in ("drives", "bus", "line", "value", "open", "driven")} == {
            "drives": "PUMP",
            "bus": "gpio:cell",
            "line": PUMP,
            "value": 1,
            "open": True,
            "driven": False,
        }
        door, lid, tank = shown["requires"]
        assert (door["read"], door["holds"], lid["read"], lid["holds"]) == (0, True, 1, False)
        assert (tank["read"], tank["holds"]) == (None, False)
        assert "0x4d" in tank["error"]
        cell.other.let_go(LID)
        await session.run("gpio.set", line="PUMP", value=1)
        (shown,) = (await session.run(tool))["interlocks"]
        assert (shown["open"], shown["driven"], shown["requires"][2]["read"]) == (
            False,
            True,
            pytest.approx(50, abs=0.1),
        )


async def test_a_board_without_interlocks_shows_none(autojump_clock):
    async with session_of(Cell()) as session:
        assert (await session.run("hw.board"))["interlocks"] == []


# --- an observer ------------------------------------------------------------------------------------------------------


class Witness:
    """What a voltmeter on each line and a float in the tank see; it shares no code with the guard.

    Times are in virtual milliseconds. A condition on the pump's own chip must hold at the moment at which the pump is
    switched on; another one must have held at a time that is `AGE` ago at most, and the pump then runs for `SLACK` only
    if it has opened since. When a condition opens while the pump runs, it may run for `CHECK` and `SLACK` more; `AGE`
    more if it opened because it can no longer be read.
    """

    AGE, CHECK, SLACK = 500.0, 100.0, 25.0

    def __init__(self, cell):
        self.cell = cell
        self.switched_on = 0
        self.cut = 0
        self.violations = []
        self._running: float | None = None
        self._open_since = {"door": None, "valve": None, "lid": None, "tank": None, "unread": None}
        self._open_since["valve"] = -1e9
        cell.gpio.attach(PUMP, self._pump)
        cell.gpio.attach(DOOR, lambda level: self._is("door", level == CLOSED))
        cell.gpio.attach(2, lambda level: self._is("valve", level == 1))
        cell.other.attach(LID, lambda level: self._is("lid", level == CLOSED))

    def now(self):
        return trio.current_time() * 1000

    def tank(self, level):
        self.cell.tank = level
        self._is("tank", level >= 20)

    def unread(self, failing):
        self._is("unread", not failing)

    def _is(self, name, holds):
        if holds:
            self.look()
            self._open_since[name] = None
        elif self._open_since[name] is None:
            self._open_since[name] = self.now()

    def _pump(self, level):
        self.look()
        if level and self._running is None:
            self._running = self.now()
            self.switched_on += 1
            for name, since in self._open_since.items():
                if since is not None and (name in ("door", "valve") or self.now() - since > self.AGE):
                    self.violations.append((self.now(), "switched on", name, since))
        elif not level:
            self.cut += self._running is not None and any(since is not None for since in self._open_since.values())
            self._running = None

    def look(self):
        """Note a pump that has been running for too long."""
        for name, since in self._open_since.items():
            if self._running is None or since is None:
                continue
            allowed = self.SLACK + (self.CHECK if since >= self._running else 0) + (self.AGE if name == "unread" else 0)
            if self.now() - max(since, self._running) > allowed:
                self.violations.append((self.now(), "runs on", name, since))


class Storm:
    """Writers that drive the cell at random until `count` writes were asked for, while its outside changes."""

    def __init__(self, seed, count):
        self.dice = random.Random(seed)
        self.left = count
        self.ran = {surface: Counter() for surface in WRITERS}
        self.cell = Cell(lock(DOOR_CLOSED, {"line": "VALVE", "value": 1}, LID_CLOSED, TANK_FULL))
        self.witness = Witness(self.cell)

    def step(self):
        name = self.dice.choice(["PUMP", "PUMP", "PUMP", "VALVE", "LAMP"])
        value = int(self.dice.random() < (0.9 if name == "VALVE" else 0.5))
        if self.dice.random() < 0.2:
            return step("gpio.pulse", line=name, value=value, duration_ms=self.dice.randint(1, 400))
        return step("gpio.set", line=name, value=value)

    async def write(self, surface, write):
        dice = self.dice
        while self.left > 0:
            steps = [self.step() for _ in range(dice.randint(1, 12))]
            self.left -= len(steps)
            if fails := dice.random() < 0.3:
                steps.append(step("i2c.read", bus=1, addr=0x20, len=1))
            give_up_s = dice.random() if dice.random() < 0.2 else None
            self.ran[surface] += await write(steps, rollback=fails, give_up_s=give_up_s)
            await trio.sleep(dice.random())

    async def live(self, world, surface):
        while self.left > 0:
            async with WRITERS[surface](world) as write:
                with trio.move_on_after(self.dice.random() * 60):
                    await self.write(surface, write)

    async def disturb(self):
        """Open something for a while, as people, water and bad wires do."""
        while True:
            await trio.sleep(self.dice.random() * 2)
            opens, closes = self.dice.choice([self.door, self.lid, self.drain, self.drain, self.unplug])()
            opens()
            await trio.sleep(self.dice.choice([0.01, 0.2, 2]) * self.dice.random())
            closes()

    def door(self):
        return partial(self.cell.gpio.push, DOOR, OPENED), partial(self.cell.gpio.push, DOOR, CLOSED)

    def lid(self):
        return partial(self.cell.other.push, LID, OPENED), partial(self.cell.other.push, LID, CLOSED)

    def drain(self):
        return partial(self.witness.tank, self.dice.choice([10, 19.9])), partial(self.witness.tank, 20.1)

    def unplug(self):
        faults = self.cell.i2c.faults
        fault = self.dice.choice([partial(faults.nack, 10**6), faults.wedge])

        def opens():
            self.witness.unread(failing=True)
            fault(addr=0x4D)

        def closes():
            faults.clear()
            self.witness.unread(failing=False)

        return opens, closes

    async def blow(self):
        with no_threads():
            async with serving(self.cell) as world, trio.open_nursery() as nursery:
                nursery.start_soon(self.disturb)
                async with trio.open_nursery() as writers:
                    for surface in WRITERS:
                        writers.start_soon(self.live, world, surface)
                self.witness.look()
                nursery.cancel_scope.cancel()

    def judge(self, *, switched_on, cut):
        """Assert that there was no violation, and that it was no quiet day on any surface."""
        assert self.witness.violations == []
        assert self.witness.switched_on > switched_on
        assert self.witness.cut > cut
        for surface, ran in self.ran.items():
            assert min(ran["done"], ran["refused"]) > switched_on / 2, (surface, ran)


async def watched_storm(seed, count):
    storm = Storm(seed, count)
    with quiet_log():
        await storm.blow()
    return storm


@contextmanager
def quiet_log():
    """Thousands of refused rollbacks are no news."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.spec("design 8: interlocks")
@pytest.mark.proof
@pytest.mark.parametrize("seed", range(4))
async def test_an_observer_sees_no_driven_level_while_a_required_condition_is_open(autojump_clock, seed):
    (await watched_storm(seed, 2_500)).judge(switched_on=50, cut=10)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(100, 100 + WRITES // 10_000))
async def test_an_observer_of_many_more_writes_sees_none_either(autojump_clock, seed):
    (await watched_storm(seed, 10_000)).judge(switched_on=200, cut=40)


async def _nothing(_self, _lock):
    pass


BROKEN = {
    "a guard that does not ask": ("BusInterlocks.check", lambda _self, _output, _level: None),
    "a monitor that does not enforce": ("Interlocks._enforce", _nothing),
    "a level that is not noted": ("BusInterlocks.note", lambda _self, _output, _level, certain=True: None),
}


@pytest.mark.proof
@pytest.mark.parametrize("what", BROKEN)
async def test_the_observer_sees_what_a_broken_interlock_lets_through(autojump_clock, monkeypatch, what):
    name, instead = BROKEN[what]
    monkeypatch.setattr(f"hearth.actors.bus.interlocks.{name}", instead)
    assert (await watched_storm(1, 1_000)).witness.violations
