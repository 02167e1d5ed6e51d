"""One case for each output with a safe state: how a tool and a raw call drive it, and the level that it has then.

`put` gives the simulated device that level past every actor, as a run that was killed leaves it.
"""

from __future__ import annotations

import struct

import pytest
import trio
from attrs import evolve, frozen
from kinds.board import FAN_COMMAND, WINCH_COMMAND, Output, Raw, frame, output

from hearth.drivers.can.driver import Frame
from hearth.drivers.registers import Write
from hearth.errors import LimitViolated


@frozen(eq=False)
class Case:
    """One output, a step and a raw call that drive it, and its level then; `new`: its safe state is a new key."""

    output: Output
    step: tuple
    raw: Raw
    level: object
    put: object
    new: bool = False
    before: tuple = ()
    """Raw calls that have to come first."""

    @property
    def kind(self):
        return self.output.kind

    @property
    def id(self):
        return f"{self.kind}-{self.output.name}"

    @property
    def keys(self):
        """The kinds whose new keys its profile needs."""
        return (self.kind,) if self.new else ()

    @property
    def safe(self):
        return self.output.new_safe if self.new else self.output.safe

    def without_safe(self):
        """The same on the profile of every release, which gives its output no safe state."""
        return evolve(self, new=False)

    def now(self, world):
        """The level at the simulated device."""
        return self.output.level(world)

    def is_safe(self, world):
        level = self.now(world)
        if isinstance(self.safe, str) or isinstance(level, str) or level is None:
            # A channel that gives out nothing is as good as one at 0.
            return level == self.safe or (self.safe == 0 and level == "off")
        return abs(level - self.safe) <= self.output.grain


def _setting(bus, name, number, level, step, *, is_read=False):
    """The case of an output that a driver has an operation to set; `is_read`: a raw call has to read it first."""

    def put(world):
        driver = world.drivers[bus]
        driver.open()
        driver.set(number, level)
        driver.close()

    before = (Raw(bus, "value", (number,)),) if is_read else ()
    return Case(output(bus, name), step, Raw(bus, "set", (number, level)), level, put, before=before)


def _memory(reg, data):
    def put(world):
        world.drivers["i2c:1"].devices[0x50].memory[reg : reg + len(data)] = data

    return put


def _cells(reg, data):
    def put(world):
        world.drivers["spi:MOTOR"].chip.cells[reg : reg + len(data)] = data

    return put


def _words(unit, table, reg, *words):
    def put(world):
        memory = world.drivers["modbus:plant"].port.devices[unit].memory
        memory |= {(table, reg + index): word for index, word in enumerate(words)}

    return put


def _sent(key, data):
    def put(world):
        world.drivers["can:can0"].wire.append(Frame(key, data))

    return put


def _i2c(*data):
    return Raw("i2c:1", "transfer", (0x50, [Write(bytes(data))]))


_WINCH = struct.pack("<f", 20)

CASES = [
    _setting("gpio:sim", "RELAY", 2, 1, ("gpio.set", {"line": "RELAY", "value": 1})),
    _setting("gpio:sim", "BRAKE", 3, 0, ("gpio.set", {"line": "BRAKE", "value": 0})),
    _setting("pwm:sim", "FAN", 0, 0.5, ("pwm.set", {"channel": "FAN", "duty": 0.5})),
    _setting("pwm:sim", "ARM", 1, 5.0, ("servo.move", {"servo": "ARM", "angle": 5})),
    _setting("dac:sim", "VALVE", 0, 0.5, ("dac.set", {"channel": "VALVE", "value": 0.5}), is_read=True),
    _setting("dac:sim", "DRIVE", 2, 0.5, ("dac.set", {"channel": "DRIVE", "value": 0.5}), is_read=True),
    Case(
        output("i2c:1", "speed"),
        ("i2c.write", {"bus": 1, "addr": 0x50, "reg": 0x10, "hex": "96"}),
        _i2c(0x10, 150),
        150,
        _memory(0x10, b"\x96"),
        new=True,
    ),
    Case(
        output("i2c:1", "torque"),
        ("i2c.write", {"bus": 1, "addr": 0x50, "reg": 0x20, "hex": "ffce"}),
        _i2c(0x20, 0xFF, 0xCE),
        -50,
        _memory(0x20, b"\xff\xce"),
        new=True,
    ),
    Case(
        output("i2c:1", "brake"),
        ("i2c.write", {"bus": 1, "addr": 0x50, "reg": 0x38, "hex": "00"}),
        _i2c(0x38, 0),
        0,
        _memory(0x38, b"\x00"),
        new=True,
    ),
    Case(
        output("spi:MOTOR", "SPEED"),
        ("spi.write", {"device": "MOTOR", "register": "SPEED", "value": 3_000}),
        Raw("spi:MOTOR", "transfer", (bytes.fromhex("100bb8"),)),
        3_000,
        _cells(0x10, b"\x0b\xb8"),
        new=True,
    ),
    Case(
        output("can:can0", "FAN_COMMAND.Speed"),
        ("can.send", {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": 100}}),
        frame(FAN_COMMAND, b"\xc8"),
        100,
        _sent(FAN_COMMAND, b"\xc8"),
        new=True,
    ),
    Case(
        output("can:can0", "WINCH_COMMAND.Speed"),
        ("can.send", {"bus": "can0", "id": "0x230", "hex": _WINCH.hex()}),
        frame(WINCH_COMMAND, _WINCH),
        20,
        _sent(WINCH_COMMAND, _WINCH),
        new=True,
    ),
    Case(
        output("modbus:plant", "run"),
        ("modbus.write", {"device": "FAN", "name": "run", "value": True}),
        Raw("modbus:plant", "write", (3, "coil", 0, (1,))),
        1,
        _words(3, "coil", 0, 1),
    ),
    Case(
        output("modbus:plant", "power"),
        ("modbus.write", {"device": "HEATER", "name": "power", "value": 30}),
        Raw("modbus:plant", "write", (5, "holding", 100, (30,))),
        30,
        _words(5, "holding", 100, 30),
    ),
    Case(
        output("modbus:plant", "speed"),
        ("modbus.write", {"device": "FAN", "name": "speed", "value": 100}),
        Raw("modbus:plant", "write", (3, "holding", 100, (100,))),
        100,
        _words(3, "holding", 100, 100),
        new=True,
    ),
    _setting("lamp:sim", "UV", 0, 10, ("lamp.set", {"channel": "UV", "value": 10}), is_read=True),
    _setting("lamp:sim", "WHITE", 1, 70, ("lamp.set", {"channel": "WHITE", "value": 70})),
]

WAYS = ("tool", "raw")


async def drive(session, world, case, way):
    """Drive the output of a case by a tool, or by a vendor's call that declares nothing."""
    if way == "tool":
        tool, args = case.step
    else:
        for raw in case.before:
            await session.run("com.acme.call", **world.step_of(raw))
        tool, args = "com.acme.call", world.step_of(case.raw)
    try:
        await session.run(tool, **args)
    except LimitViolated as error:
        # A slew is counted from the moment at which the level was learned.
        await trio.sleep(error.data["retry_after_ms"] / 1000)
        await session.run(tool, **args)
    level = case.now(world)
    assert abs(level - case.level) <= case.output.grain, "the case drives its output"


def every(cases, ways):
    """Parameters for cases and ways."""
    return [pytest.param(case, way, id=f"{case.id}-{way}") for case in cases for way in ways]
