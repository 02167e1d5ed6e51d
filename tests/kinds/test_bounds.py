"""A bound goes by meaning: every form of an order that reaches an output is held to its limits, and NaN is no level."""

from __future__ import annotations

import struct
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from kinds.board import (
    DBC,
    FAN_COMMAND,
    STEPPER_COMMAND,
    TORQUE_REQUEST,
    WINCH_COMMAND,
    Op,
    Raw,
    call,
    changed_register,
    content,
    frame,
    i2c,
    output,
    stepper,
)
from kinds.strategies import TORQUE_KEYS, torque
from support.world import embedded

from hearth.drivers.can.driver import EXTENDED, Frame
from hearth.drivers.pwm.driver import Pulses
from hearth.drivers.registers import Write
from hearth.errors import RpcError


@pytest.fixture
async def cell(open_world):
    """A session on the board; `refused(raw)` and `passes(raw)` make a raw call."""
    async with open_world() as world, embedded(world) as session:
        yield Cell(world, session)


class Cell:
    """A session that makes raw calls."""

    def __init__(self, world, session):
        self.world, self.session = world, session

    async def passes(self, raw):
        await call(self.session, self.world, raw)

    async def refused(self, raw):
        """Make a call that must be refused, with nothing done: no operation with an effect reaches a driver."""
        levels, before = self.world.levels(), len(self.world.recorder.operations)
        with pytest.raises(RpcError) as caught:
            await self.passes(raw)
        assert caught.value.data["effect"] == "none", caught.value
        reached = [one for one in self.world.recorder.since(before) if one.op != "read" and one.effect != "none"]
        assert not reached, reached
        assert self.world.levels() == levels
        return caught.value

    def level(self, bus, name):
        return output(bus, name).level(self.world)


def words(number):
    return struct.unpack(">2H", struct.pack(">f", number))


def write(unit, reg, *values, table="holding"):
    return Raw("modbus:plant", "write", (unit, table, reg, values))


# --- numbers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [float("nan"), float("inf"), float("-inf")],
)
async def test_a_register_that_reads_no_number_keeps_its_step(cell, promise, number):
    promise("modbus", "a number that is none removes no limit")
    memory = cell.world.drivers["modbus:plant"].port.devices[3].memory
    for level in (5, 10):
        await cell.session.run("modbus.write", device="FAN", name="setpoint", value=level)
    memory |= {("holding", 110 + index): word for index, word in enumerate(words(number))}
    await cell.session.run("modbus.read", device="FAN", name="setpoint")
    with pytest.raises(RpcError):
        await cell.session.run("modbus.write", device="FAN", name="setpoint", value=90)
    assert memory["holding", 110] == words(number)[0]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("pwm", lambda number: Raw("pwm:sim", "set", (0, number))),
        ("pwm", lambda number: Raw("pwm:sim", "set", (1, number))),
        ("pwm", lambda number: Raw("pwm:sim", "set", (2, number))),
        ("dac", lambda number: Raw("dac:sim", "set", (0, number))),
        ("dac", lambda number: Raw("dac:sim", "set", (1, number))),
        ("lamp", lambda number: Raw("lamp:sim", "set", (1, number))),
        ("modbus", lambda number: write(3, 110, *words(number))),
        ("modbus", lambda number: write(5, 110, *words(number))),
        ("can", lambda number: frame(WINCH_COMMAND, struct.pack("<f", number))),
    ],
)
async def test_a_number_that_is_none_is_refused_of_every_signal(cell, promise, kind, make, number):
    promise(kind, "a number that is none is refused")
    await cell.refused(make(number))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_no_float_that_is_no_number_passes_a_limit(open_world, number):
    """Not one that clamps either."""
    async with open_world(tables=changed_register("setpoint", on_limit="clamp")) as world, embedded(world) as session:
        await Cell(world, session).refused(write(3, 110, *words(number)))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_a_number_that_is_none_is_refused_of_a_broadcast_too(cell, promise, number):
    promise("modbus", "a number that is none is refused in a broadcast")
    await cell.refused(write(0, 110, *words(number)))


@pytest.mark.parametrize(("channel", "name"), [(0, "VALVE"), (1, "BIAS")])
async def test_a_channel_without_off_is_not_switched_off(cell, promise, channel, name):
    promise("dac", "a channel without off is not switched off")
    await cell.refused(Raw("dac:sim", "set", (channel, "off")))
    assert cell.level("dac:sim", name) != "off"


# --- modbus: unit 0, and halves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        write(0, 100, 101),
        write(0, 100, 41),
        write(0, 101, 51),
        write(0, 102, 400),
        write(0, 100, 30, 1_001, 0),
        write(0, 110, *words(70)),
        write(0, 110, *words(6)),
        write(0, 112, 0x7FFF, 0),
    ],
    ids=["speed", "power", "level-step", "ramp-slew", "three", "setpoint", "setpoint-step", "count"],
)
async def test_a_broadcast_is_bounded_by_the_registers_of_every_unit(cell, promise, raw):
    promise("modbus", "a broadcast is held to every unit's limits")
    await cell.refused(raw)


@pytest.mark.parametrize("raw", [write(0, 110, 0x42C8), write(0, 111, 1), write(0, 112, 1), write(0, 109, 0, 0x42C8)])
async def test_a_broadcast_to_half_of_a_register_is_refused(cell, promise, raw):
    promise("modbus", "a half of a 32-bit register is refused in a broadcast")
    await cell.refused(raw)


@pytest.mark.parametrize("unit", [3, 5])
@pytest.mark.parametrize("values", [(110, 0x42C8), (111, 1), (109, 0, 0x42C8), (111, 1, 0)])
async def test_half_of_a_register_is_refused(cell, promise, unit, values):
    promise("modbus", "a half of a 32-bit register is refused")
    await cell.refused(write(unit, *values))


async def test_a_broadcast_within_all_bounds_reaches_every_unit(cell):
    await cell.passes(write(0, 100, 30))
    assert cell.level("modbus:plant", "speed") == cell.level("modbus:plant", "power") == 30


async def test_the_next_step_of_a_register_is_counted_from_a_broadcast(cell, promise):
    promise("modbus", "a step is counted from a broadcast")
    await cell.passes(Raw("modbus:plant", "read", (3, "holding", 101, 1)))
    await cell.passes(write(0, 101, 50))
    await cell.passes(write(3, 101, 100))
    await cell.refused(write(3, 101, 49))


async def test_an_address_beside_declared_registers_passes_where_the_device_is_raw(cell):
    cell.world.drivers["modbus:plant"].port.devices[5].memory["holding", 101] = 0
    await cell.passes(write(5, 101, 0xFFFF))
    await cell.refused(write(5, 100, 41, 7))
    await cell.refused(write(3, 103, 7))


# --- registers on I2C and SPI -----------------------------------------------------------------------------------------


async def test_a_register_that_is_signed_is_clamped_in_raw_bytes(cell, promise):
    promise("i2c", "a clamped register is clamped in raw bytes")
    for number, written in ((200, 100), (-32_768, -100), (-50, -50)):
        await cell.passes(i2c([0x20, *struct.pack(">h", number)]))
        assert cell.level("i2c:1", "torque") == written


async def test_a_stepped_register_that_was_read_in_the_same_transfer_is_held_to_its_step(cell, promise):
    promise("i2c", "a step holds within one transfer")
    await cell.passes(i2c([0x11], 1))
    await cell.refused(i2c([0x11], 1, [0x11, 11]))
    await cell.refused(i2c([0x11, 10], [0x11, 20]))
    await cell.passes(i2c([0x11, 10]))


async def test_ten_bits_of_an_address_are_no_way_to_the_device_of_seven(cell):
    with pytest.raises(RpcError):
        await cell.passes(i2c([0x10, 201], ten_bit=True))
    assert cell.level("i2c:1", "speed") == 0


# --- CAN --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        frame(FAN_COMMAND, b"\xc9"),
        frame(FAN_COMMAND, b"\xc9", fd=True),
        frame(FAN_COMMAND, b""),
        stepper(1001),
        torque(24_001),
        torque(24_001, fd=True),
        Raw("can:can0", "isotp", (FAN_COMMAND, 0x7E8, b"\x01"), {"timeout_s": 0.1}),
        Raw("can:can0", "isotp", (TORQUE_REQUEST, 0x7E8, b"\x01"), {"timeout_s": 0.1}),
    ],
)
async def test_no_form_of_a_declared_frame_passes_its_bounds(cell, promise, raw):
    promise("can", "no raw form passes a bound")
    await cell.refused(raw)


OTHERS = [key for key in TORQUE_KEYS if key != TORQUE_REQUEST]


@pytest.mark.parametrize("key", OTHERS, ids=hex)
async def test_a_j1939_message_is_bounded_by_its_pgn(cell, promise, key):
    promise("can", "a J1939 message is bounded by its PGN")
    await cell.refused(torque(24_001, key))


async def test_the_steps_of_a_j1939_message_are_counted_over_all_its_identifiers(cell, promise):
    promise("can", "the steps of a J1939 message are counted by its PGN")
    await cell.passes(torque(8))
    await cell.passes(torque(3_200, OTHERS[0]))
    await cell.refused(torque(8_000, OTHERS[1]))
    await cell.passes(torque(6_400))


@pytest.mark.parametrize("kind", ["broadcast", "request"])
async def test_a_j1939_transport_that_announces_a_bounded_message_is_refused(cell, promise, kind):
    promise("can", "a J1939 transport of a bounded message is refused")
    control, size = (0x20, 9) if kind == "broadcast" else (0x10, 9)
    announced = struct.pack("<BHBB", control, size, 2, 0xFF) + b"\x00\xef\x00"
    to = 0xFF if kind == "broadcast" else 0x07
    await cell.refused(frame(0x1CEC0000 | to << 8 | 0x03 | EXTENDED, announced))


async def test_an_isotp_message_on_another_identifier_of_a_bounded_message_is_refused(cell, promise):
    promise("can", "an ISO-TP message on a bounded PGN is refused")
    await cell.refused(Raw("can:can0", "isotp", (OTHERS[0], 0x7E8, b"\x01"), {"timeout_s": 0.1}))


async def test_another_pgn_is_not_bounded_by_this_one(cell):
    await cell.passes(torque(65_000, 0x0C010003 | EXTENDED))


async def test_an_extended_identifier_is_not_the_standard_one_of_the_same_number(cell, promise):
    promise("can", "extended is not standard")
    await cell.passes(stepper(0))
    await cell.passes(frame(FAN_COMMAND | EXTENDED, b"\xff"))
    # Nor is a step counted from it.
    await cell.passes(frame(STEPPER_COMMAND | EXTENDED, struct.pack("<hB", 500, 0)))
    await cell.refused(stepper(500))
    await cell.passes(stepper(10))


async def test_a_remote_frame_is_no_way_around_a_step(cell, promise):
    promise("can", "a remote frame is no way around")
    await cell.passes(stepper(0))
    await cell.passes(frame(STEPPER_COMMAND, b"", remote=True))
    await cell.refused(stepper(500))
    await cell.passes(stepper(10))


async def test_a_remote_frame_carries_no_data(cell, promise):
    promise("can", "a remote frame carries no data")
    with suppress(RpcError):
        await cell.passes(frame(FAN_COMMAND, b"\xff", remote=True))
    assert not any(one.data for one in cell.world.drivers["can:can0"].wire)


DUPLICATED = DBC.replace(
    "SIG_VALTYPE_",
    """BO_ 768 {}: 1 HEARTH
 SG_ Speed : 0|8@1+ (1,0) [0|{}] "" PLANT
BO_ 768 {}: 1 HEARTH
 SG_ Speed : 0|8@1+ (1,0) [0|{}] "" PLANT
SIG_VALTYPE_""",
)


@asynccontextmanager
async def duplicated(open_world, dbc, *names):
    dbc.write_text(DUPLICATED.format(*names))
    tables = {"can": [content(dbc)["can"][0]]}
    async with open_world(tables=tables) as world, embedded(world) as session:
        yield Cell(world, session)


@pytest.mark.parametrize(
    "names",
    [
        ("WIDE", 100, "NARROW", 10),
        ("NARROW", 10, "WIDE", 100),
    ],
    ids=["narrow-last", "wide-last"],
)
async def test_a_frame_is_held_to_every_message_of_its_identifier(open_world, tmp_path, promise, names):
    promise("can", "a duplicated identifier is held to every message")
    async with duplicated(open_world, tmp_path / "twice.dbc", *names) as cell:
        await cell.refused(frame(0x300, b"\x0b"))
        await cell.passes(frame(0x300, b"\x0a"))


# --- operations that are none of the driver's interface ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bus", "op"),
    [
        ("pwm", "pwm:sim", lambda pwm: pwm.write(pwm.spec(2), Pulses(1_000_000, 1_000_000))),
        ("dac", "dac:sim", lambda dac: dac.write(dac.spec(0), 20_000)),
        ("modbus", "modbus:plant", lambda line: line.port.write(bytes.fromhex("0306006400ff88a7"), timeout_s=1.0)),
        ("spi", "spi:MOTOR", lambda spi: spi.chip.cells.__setitem__(0x10, 0xFF)),
        ("i2c", "i2c:1", lambda i2c: i2c.devices[0x50].memory.__setitem__(0x10, 0xFF)),
        ("lamp", "lamp:sim", lambda lamps: lamps.percent.__setitem__(0, 100.0)),
    ],
    ids=["pwm", "dac", "modbus", "spi", "i2c", "lamp"],
)
async def test_nothing_behind_the_operations_of_a_driver_is_reached_through_its_guard(cell, promise, kind, bus, op):
    promise(kind, "nothing behind the operations is reached")
    levels = cell.world.levels(bus)
    with pytest.raises(RpcError):
        await cell.passes(Op(bus, op))
    await trio.sleep(1)
    assert cell.world.levels(bus) == levels


# --- values that a guard reads once, and a driver again ---------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        "i2c",
        "modbus",
    ],
)
async def test_what_was_checked_is_what_is_sent(cell, promise, kind):
    promise(kind, "the levels that were checked are those that are sent")
    if kind == "i2c":
        raw = Raw("i2c:1", "transfer", (0x50, Turning(Write(b"\x10\x05"), Write(b"\x10\xff"))))
    else:
        raw = Raw("modbus:plant", "write", (3, "holding", 100, Turning(5, 200)))
    with suppress(RpcError):
        await cell.passes(raw)
    assert cell.level(raw.bus, "speed") in (0, 5)


class Turning(list):
    """A sequence of one item, which is another one from the third look on."""

    def __init__(self, first, then):
        super().__init__([first])
        self._then, self._looks = then, 0

    def __iter__(self):
        self._looks += 1
        if self._looks > 2:
            self[:] = [self._then]
        return super().__iter__()


def test_the_frame_that_means_torque_is_the_one_of_the_file():
    assert Frame(TORQUE_REQUEST).key == 0x8CEF0003
