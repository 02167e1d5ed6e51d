"""A blinded interlock: no client makes a sensor that an interlock goes by return an old, or its own, reading.

HEATER may be 1 only while the thermometer T is at most 60 degrees. Each attack tries to have it on at 150.
"""

from __future__ import annotations

import pytest
import trio
from support.world import BoardWorld, running

from hearth.drivers.base import Style
from hearth.errors import InterlockOpen, PermissionDenied

HEATER, ADDR = 0, 0x48
ON = {"line": "HEATER", "value": 1}
TO = {"bus": 1, "addr": ADDR}
SHUT_DOWN, RUNNING = "61a0", "60a0"
CONFIG = {"reg": 1, "width": 16, "name": "CONFIG"}

WRITES = {
    "i2c.write": {"reg": 1, "hex": SHUT_DOWN},
    "i2c.write without a register": {"hex": f"01{SHUT_DOWN}"},
    "i2c.transfer": {"hex": f"01{SHUT_DOWN}"},
    "i2c.transfer that reads": {"hex": f"01{SHUT_DOWN}", "read_len": 2},
    "i2c.transfer of messages": {"messages": [{"read": 2}, {"hex": f"01{SHUT_DOWN}"}, {"read": 2}]},
    "i2c.read with a wide register": {"reg": 0x0161, "reg_width": 16, "len": 2},
    "i2c.write to ten bits": {"reg": 1, "hex": SHUT_DOWN, "ten_bit": True},
}


class Oven(BoardWorld):
    """A heater, and its thermometer, whose chip is the simulated TMP102. `device` is the profile's of the chip."""

    def __init__(self, *, device=None, style=Style.ASYNC, **condition):
        chip = {"addr": ADDR, "kind": "tmp102", **(device or {})}
        profile = {
            "name": "oven",
            "description": "a heater",
            "gpio": [{"label": "oven", "driver": "sim", "names": ["HEATER"], "lines": {"HEATER": {"safe": 0}}}],
            "i2c": [{"bus": 1, "driver": "sim", "device": [chip, {"addr": 0x50, "kind": "24c02"}]}],
            "sensors": {"T": {"kind": "tmp102", "bus": 1, "addr": ADDR}},
            "interlock": [
                {"drives": "HEATER", "value": 1, "requires": [{"sensor": "T", "max": 60, **condition}]},
            ],
        }
        super().__init__(profile, style=style)
        self.i2c = self.parts.drivers["i2c:1"]
        self.chip = self.i2c.devices[ADDR]
        self.celsius = 25.0
        self.chip.temperature = lambda: self.celsius

    @property
    def heating(self):
        return self.gpio.state(HEATER) == 1


async def test_a_hot_oven_is_not_heated(autojump_clock):
    async with running(Oven()) as oven, oven.sessions().open_session() as session:
        await session.run("gpio.set", **ON)
        oven.celsius = 150.0
        await trio.sleep(0.2)
        assert not oven.heating
        with pytest.raises(InterlockOpen):
            await session.run("gpio.set", **ON)


@pytest.mark.parametrize("how", WRITES)
async def test_no_client_writes_to_a_thermometer_that_an_interlock_goes_by(autojump_clock, how):
    async with running(Oven()) as oven, oven.sessions().open_session() as session:
        before = list(oven.chip._registers)
        with pytest.raises(PermissionDenied) as refused:
            await session.run(how.split()[0], **TO, **WRITES[how])
        assert "the interlock of gpio line HEATER goes by sensor T" in refused.value.message
        assert "list the registers" in refused.value.message
        assert refused.value.data["effect"] == "none"
        assert oven.chip._registers == before
        oven.celsius = 150.0
        with pytest.raises(InterlockOpen):
            await session.run("gpio.set", **ON)


async def test_its_registers_may_be_read_and_other_devices_written(autojump_clock):
    async with running(Oven()) as oven, oven.sessions().open_session() as session:
        assert (await session.run("i2c.read", **TO, reg=1, len=2))["hex"] == RUNNING
        assert (await session.run("i2c.transfer", **TO, hex="01", read_len=2))["hex"] == RUNNING
        await session.run("i2c.write", **TO, hex="00")
        await session.run("i2c.read", **TO, len=2)
        await session.run("i2c.write", bus=1, addr=0x50, reg=0, hex=SHUT_DOWN)
        assert (await session.run("hw.sensor.read", sensor="T"))["value"] == 25.0


@pytest.mark.parametrize("style", [Style.ASYNC, Style.INLINE])
async def test_a_thermometer_that_is_shut_down_counts_as_no_reading(autojump_clock, style):
    """The profile lists its configuration, so clients may write it: what it says is read with each temperature."""
    listed = {"registers": [CONFIG]}
    async with running(Oven(device=listed, style=style)) as oven, oven.sessions().open_session() as session:
        await session.run("gpio.set", **ON)
        await session.run("i2c.write", **TO, reg=1, hex=SHUT_DOWN)
        await trio.sleep(0.3)
        assert not oven.heating
        oven.celsius = 150.0
        with pytest.raises(InterlockOpen, match="shut down"):
            await session.run("gpio.set", **ON)
        await session.run("i2c.write", **TO, reg=1, hex=RUNNING)
        oven.celsius = 30.0
        await session.run("gpio.set", **ON)
        assert oven.heating


# --- a reading that does not change -----------------------------------------------------------------------------------

STUCK = {"stuck_after_ms": 5_000}


async def test_a_reading_that_never_changes_counts_as_none_after_a_time(autojump_clock):
    async with running(Oven(**STUCK)) as oven, oven.sessions().open_session() as session:
        await session.run("gpio.set", **ON)
        await trio.sleep(4)
        assert oven.heating
        await trio.sleep(2)
        assert not oven.heating
        [record] = oven.records("interlock.open")
        assert "has not changed for" in record["requires"][0]["error"]
        with pytest.raises(InterlockOpen, match="has not changed for") as refused:
            await session.run("gpio.set", **ON)
        assert refused.value.data["requires"][0]["stuck_after_ms"] == 5_000
        oven.celsius += 0.0625
        await session.run("gpio.set", **ON)


async def test_a_reading_that_changes_a_little_goes_on_counting(autojump_clock):
    async with running(Oven(**STUCK)) as oven, oven.sessions().open_session() as session:
        await session.run("gpio.set", **ON)
        for tick in range(20):
            oven.celsius = 25 + tick % 2 / 16
            await trio.sleep(2)
        assert oven.heating


async def test_a_stuck_reading_does_not_begin_to_count_again_when_the_output_is_switched_or_a_read_fails(
    autojump_clock,
):
    async with running(Oven(**STUCK)) as oven, oven.sessions().open_session() as session:
        for _ in range(2):
            await session.run("gpio.set", **ON)
            await trio.sleep(1)
            await session.run("gpio.set", line="HEATER", value=0)
            oven.i2c.faults.nack()
            await trio.sleep(1.5)
        await trio.sleep(1)
        with pytest.raises(InterlockOpen, match="has not changed for"):
            await session.run("gpio.set", **ON)


async def test_without_a_time_a_reading_may_stay_as_it_is(autojump_clock):
    async with running(Oven()) as oven, oven.sessions().open_session() as session:
        await session.run("gpio.set", **ON)
        await trio.sleep(60)
        assert oven.heating
