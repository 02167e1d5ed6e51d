"""Interlocks: what a board's outputs require, before the driver and while they are driven (the issue of safety)."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from support.doubles import AllowedPaths, MemoryJournal, Observer
from support.world import NOON, OPEN, World, running

from hearth import step
from hearth.actors.runtime import RuntimeParts
from hearth.config.model import LimitsConfig
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.tools import build_tools
from hearth.errors import InterlockOpen
from hearth.tools import ToolRegistry

PUMP, DOOR, LID, LAMP = 0, 1, 2, 3
CLOSED, OPENED = 0, 1
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


class Cell(World):
    """A runtime over the simulated cell, in virtual time, and its outside."""

    def __init__(self, *interlocks, policy=(OPEN,), journal=None):
        profile = parse_profile({**BOARD, "interlock": list(interlocks)}, "cell")
        board = open_board(profile, style=Style.ASYNC)
        self.observer = Observer()
        super().__init__(
            RuntimeParts(
                board=board,
                drivers=board.drivers,
                registry=ToolRegistry(build_tools(board)),
                policy=policy,
                paths=AllowedPaths(),
                journal=MemoryJournal(self.observer),
                limits=LimitsConfig(),
                clock=lambda: NOON + trio.current_time(),
            )
        )
        self.gpio, self.other = board.drivers["gpio:cell"], board.drivers["gpio:other"]
        self.i2c = board.drivers["i2c:1"]
        self.tank = 50.0
        self.i2c.devices[0x4D].percent = lambda: self.tank

        self.highs = 0
        """How often the pump was switched on."""
        self.gpio.attach(PUMP, self._switched)

    def _switched(self, level):
        self.highs += level

    def _records(self):
        return self.journal.records

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


# --- readings ---------------------------------------------------------------------------------------------------------


async def test_a_stale_reading_is_taken_again_before_the_output_is_driven(autojump_clock):
    cell = Cell(lock(TANK_FULL))
    async with session_of(cell) as session:
        for tank in (10, 30, 19, 21):
            cell.tank = tank
            await trio.sleep(60)
            result = await (await session.submit("on", [step("gpio.set", line="PUMP", value=1)])).wait()
            assert (result.status == "SUCCESS") is (tank >= 20), tank
            await session.run("gpio.set", line="PUMP", value=0)


FAILURES = {
    "a sensor that does not answer": lambda cell: cell.i2c.faults.nack(100, addr=0x4D),
    "a bus that is wedged": lambda cell: cell.i2c.faults.wedge(),
}


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
