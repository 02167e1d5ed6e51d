"""Steps of CAN signals: by name or in raw bytes, what steps too far or too fast does not reach the bus."""

from __future__ import annotations

import struct
from contextlib import asynccontextmanager

import pytest
import trio
from support.world import BoardWorld, running

from hearth.drivers.can.spec import SHIPPED
from hearth.errors import LimitViolated, TimedOut

DBC = """VERSION ""
NS_ :
BS_:
BU_: DRIVE HEARTH
BO_ 512 COMMAND: 6 HEARTH
 SG_ Speed : 0|8@1+ (0.5,0) [0|100] "percent" DRIVE
 SG_ Trim : 8|8@1- (1,0) [0|0] "" DRIVE
 SG_ Level : 16|32@1- (1,0) [0|10] "m" DRIVE
SIG_VALTYPE_ 512 Level : 1;
"""
SIGNALS = {
    "COMMAND.Speed": {"limit": {"max": 80, "max_step": 20}},
    "COMMAND.Trim": {"limit": {"slew_per_s": 10}},
    "COMMAND.Level": {"limit": {"max_step": 1}},
}


@pytest.fixture(autouse=True)
def _virtual_time(autojump_clock):
    pass


@pytest.fixture
async def cell(tmp_path):
    (tmp_path / "drive.dbc").write_text(DBC)
    bus = {"bus": "can0", "driver": "sim", "dbc": str(tmp_path / "drive.dbc"), "signals": SIGNALS}
    async with open_cell(bus) as opened:
        yield opened


@asynccontextmanager
async def open_cell(bus):
    world = BoardWorld({"name": "b", "description": "b", "can": [bus]})
    async with running(world), world.sessions().open_session() as session:
        session.wire = lambda: [frame.data for frame in world.parts.board.drivers["can:can0"].wire]
        session.driver = world.parts.board.drivers["can:can0"]
        yield session


async def command(session, speed=0, trim=0, **more):
    signals = {"Speed": speed, "Trim": trim, "Level": 0}
    await session.run("can.send", bus="can0", message="COMMAND", signals=signals, **more)


def data(speed, trim, level=0.0):
    return struct.pack("<Bbf", round(speed / 0.5), trim, level)


async def refused(session, sending):
    before = session.wire()
    with pytest.raises(LimitViolated) as caught:
        await sending
    assert caught.value.data["effect"] == "none"
    assert session.wire() == before
    return caught.value


async def test_the_first_value_is_free_and_each_next_one_is_within_a_step_of_it(cell):
    await command(cell, 60)
    await command(cell, 80)
    error = await refused(cell, command(cell, 59.5))
    assert error.message == (
        "Limit violated: can can0, signal COMMAND.Speed: from 80 to 59.5 percent exceeds max_step = 20; "
        "nothing was driven"
    )
    assert error.data == {
        "bus": "can:can0", "signal": "COMMAND.Speed", "limit": "max_step", "allowed": 20, "unit": "percent",
        "reason": "from 80 to 59.5 percent exceeds max_step = 20",
        "effect": "none",
    }  # fmt: skip
    await command(cell, 60)
    assert cell.wire() == [data(60, 0), data(80, 0), data(60, 0)]


async def test_raw_bytes_are_no_way_around_a_step(cell):
    await command(cell, 0)
    await refused(cell, cell.run("can.send", bus="can0", id=0x200, hex=data(20.5, 0).hex()))
    await refused(cell, cell.run("can.send", bus="can0", message="COMMAND", hex=data(0, 0, 1.5).hex()))
    await cell.run("can.send", bus="can0", id=0x201, hex="ff")
    await cell.run("can.send", bus="can0", id=0x200, hex=data(20, 0, 1.0).hex())


async def test_a_change_a_second_is_counted_from_the_last_change(cell):
    await command(cell)
    await trio.sleep(0.5)
    began = trio.current_time()
    await command(cell, trim=5)
    error = await refused(cell, command(cell, trim=8))
    assert error.data["limit"] == "slew_per_s"
    wait = error.data["retry_after_ms"]
    least = 300 - (trio.current_time() - began) * 1000
    assert least <= wait <= 301, "no more than the 300 ms that are missing, rounded up"
    told = f"from 5 to 8 exceeds slew_per_s = 10; try again in {wait} ms; nothing was driven"
    assert error.message.endswith(told)
    await trio.sleep(wait / 1000)
    await command(cell, trim=8)


async def test_a_bound_is_refused_before_a_step_and_so_is_what_is_no_number(cell):
    await command(cell)
    assert "outside of 0 to 80" in (await refused(cell, command(cell, 90))).message
    nan = data(0, 0, float("nan")).hex()
    assert "COMMAND.Level" in (await refused(cell, cell.run("can.send", bus="can0", id=0x200, hex=nan))).message


async def test_after_a_frame_that_may_have_been_sent_steps_are_counted_from_the_one_before(cell):
    await command(cell, 10)
    cell.driver.set_faults(acknowledged=False)
    with pytest.raises(TimedOut):
        await command(cell, 30, timeout_ms=10)
    cell.driver.set_faults(acknowledged=True)
    await refused(cell, command(cell, 50))
    await command(cell, 30)


async def test_the_list_of_messages_shows_the_limits_of_steps(cell):
    (bus,) = (await cell.run("hw.can.list"))["buses"]
    speed, trim, _ = bus["messages"][0]["signals"]
    assert (speed["max"], speed["max_step"], "slew_per_s" in speed) == (80, 20, False)
    assert (trim["slew_per_s"], "max_step" in trim) == (10, False)


async def test_a_limit_of_the_shipped_file_is_kept_too():
    limits = {"FAN_COMMAND.Speed": {"limit": {"max_step": 5}}}
    async with open_cell(
        {"bus": "can0", "driver": "sim", "dbc": str(SHIPPED / "sim.dbc"), "signals": limits}
    ) as session:
        await session.can.send("can0", "FAN_COMMAND", {"Speed": 40})
        await refused(session, session.can.send("can0", "FAN_COMMAND", {"Speed": 46}))
