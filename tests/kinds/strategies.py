"""One table: for each kind, a strategy of raw calls and one of steps of its tools, on the board of `kinds.board`.

A raw call is an operation of the driver with arguments that a vendor's tool may give it: in bounds and out of them, on
declared outputs and on others, in all the forms that reach the same output. A step is a tool's name and its args, which
fit its schema. `drives` has one of each for every output, by which a test drives it.
"""

from __future__ import annotations

import struct

from attrs import frozen
from hypothesis import strategies as st
from kinds.board import FAN_COMMAND, STEPPER_COMMAND, TORQUE_REQUEST, VENDOR_BUS, WINCH_COMMAND, Raw, frame

from hearth.drivers.can.driver import EXTENDED
from hearth.drivers.registers import Read, Write

NAN, INF = float("nan"), float("inf")


@frozen
class Strategies:
    """The strategies of one kind. `reads` are raw calls without an effect."""

    raw: st.SearchStrategy
    steps: st.SearchStrategy
    reads: tuple[Raw, ...] = ()


def _around(*bounds):
    """Numbers at bounds and beside them, and any between them."""
    near = [bound + by for bound in bounds for by in (-1, 0, 1)]
    return st.one_of(st.sampled_from(near), st.integers(int(min(bounds)) - 5, int(max(bounds)) + 5))


def _floats(least, most):
    wide = (most - least) * 0.2
    return st.one_of(
        st.floats(least - wide, most + wide),
        st.sampled_from([least, most, 0.0, (least + most) / 2, least - wide, most + wide]),
    )


# --- lines and channels -----------------------------------------------------------------------------------------------

_LINES = st.sampled_from(["PUMP", "HEATER", "RELAY", "BRAKE", "LAMP"])

_gpio = Strategies(
    raw=st.builds(
        lambda line, level: Raw("gpio:sim", "set", (line, level)),
        st.integers(0, 4),
        st.sampled_from([0, 1, 1, "input"]),
    ),
    steps=st.one_of(
        st.builds(lambda line, value: ("gpio.set", {"line": line, "value": value}), _LINES, st.integers(0, 1)),
        st.builds(
            lambda line, value, ms: ("gpio.pulse", {"line": line, "value": value, "duration_ms": ms}),
            _LINES,
            st.integers(0, 1),
            st.sampled_from([50, 200, 3_000]),
        ),
    ),
    reads=(Raw("gpio:sim", "get", (0,)), Raw("gpio:sim", "get", (5,))),
)

_LEVEL_OF = {0: _floats(0, 1), 1: _floats(0, 180), 2: _floats(0, 1)}

_pwm = Strategies(
    raw=st.integers(0, 2).flatmap(
        lambda channel: st.builds(
            lambda value, period: Raw("pwm:sim", "set", (channel, value, *period)),
            st.one_of(_LEVEL_OF[channel], st.just("off"), st.sampled_from([NAN, INF, -INF])),
            st.sampled_from([(), (), (), (None,)]),
        )
    ),
    steps=st.one_of(
        st.builds(
            lambda name, duty: ("pwm.set", {"channel": name, "duty": duty}),
            st.sampled_from(["FAN", "BLOWER"]),
            st.floats(0, 1),
        ),
        st.builds(lambda name: ("pwm.off", {"channel": name}), st.sampled_from(["FAN", "BLOWER", "ARM"])),
        st.builds(lambda angle: ("servo.move", {"servo": "ARM", "angle": angle}), st.floats(0, 180)),
    ),
    reads=(Raw("pwm:sim", "get", (0,)), Raw("pwm:sim", "value", (1,))),
)

_SLEWED = st.one_of(_floats(0, 0.5), _floats(0, 10))
_VOLTS_OF = {0: _SLEWED, 1: _floats(0.5, 2.5), 2: _SLEWED}

_dac = Strategies(
    raw=st.integers(0, 2).flatmap(
        lambda channel: st.builds(
            lambda value: Raw("dac:sim", "set", (channel, value)),
            st.one_of(_VOLTS_OF[channel], _VOLTS_OF[channel], st.sampled_from(["off", NAN, INF, -INF])),
        )
    ),
    steps=st.one_of(
        st.builds(
            lambda name, value: ("dac.set", {"channel": name, "value": value}),
            st.sampled_from(["VALVE", "DRIVE"]),
            st.floats(0, 10),
        ),
        st.builds(lambda value: ("dac.set", {"channel": "BIAS", "value": value}), _floats(0.5, 2.5)),
    ),
    reads=(Raw("dac:sim", "value", (0,)),),
)


# --- registers --------------------------------------------------------------------------------------------------------

_I2C = {0x10: (1, _around(0, 200)), 0x11: (1, _around(0, 10, 100)), 0x20: (2, _around(-100, 100)),
        0x30: (2, _around(0, 100, 4_000)), 0x38: (1, _around(0, 1)), 0x40: (1, _around(0, 1)),
        0x41: (1, _around(0, 5, 50))}  # fmt: skip


def _word(number, size):
    return (number % (1 << 8 * size)).to_bytes(size, "big")


def _i2c_write(registers):
    return st.sampled_from(sorted(registers)).flatmap(
        lambda reg: registers[reg][1].map(lambda number: bytes([reg]) + _word(number, registers[reg][0]))
    )


def _i2c_call(addr, *messages):
    return Raw("i2c:1", "transfer", (addr, list(messages)))


_i2c = Strategies(
    raw=st.one_of(
        _i2c_write(_I2C).map(lambda data: _i2c_call(0x50, Write(data))),
        # Two registers at once, a part of one, more than one, others, and a read before a write.
        st.tuples(_around(0, 200), _around(0, 10, 100)).map(
            lambda pair: _i2c_call(0x50, Write(bytes([0x10, pair[0] % 256, pair[1] % 256])))
        ),
        st.tuples(st.sampled_from([0x0F, 0x20, 0x21, 0x30, 0x31, 0x37]), st.binary(min_size=1, max_size=3)).map(
            lambda pair: _i2c_call(0x50, Write(bytes([pair[0]]) + pair[1]))
        ),
        _i2c_write(_I2C).map(lambda data: _i2c_call(0x50, Write(data[:1]), Read(len(data) - 1), Write(data))),
        st.tuples(_i2c_write(_I2C), _i2c_write(_I2C)).map(lambda both: _i2c_call(0x50, *map(Write, both))),
        # It reads a register, so that the next step is counted from there.
        st.sampled_from(sorted(_I2C)).map(lambda reg: _i2c_call(0x50, Write(bytes([reg])), Read(_I2C[reg][0]))),
        st.binary(min_size=2, max_size=4).map(lambda data: _i2c_call(0x51, Write(data))),
    ),
    steps=st.one_of(
        _i2c_write(_I2C).map(
            lambda data: ("i2c.write", {"bus": 1, "addr": 0x50, "reg": data[0], "hex": data[1:].hex()})
        ),
        st.sampled_from(sorted(_I2C)).map(
            lambda reg: ("i2c.read", {"bus": 1, "addr": 0x50, "reg": reg, "len": _I2C[reg][0]})
        ),
        st.binary(min_size=2, max_size=4).map(
            lambda data: ("i2c.transfer", {"bus": 1, "addr": 0x51, "hex": data.hex()})
        ),
    ),
    reads=(_i2c_call(0x50, Write(b"\x10"), Read(1)), _i2c_call(0x51, Read(1))),
)

_SPI = {0x10: (2, _around(0, 3_000)), 0x12: (1, _around(0, 20)), 0x13: (1, _around(0, 10, 100)),
        0x14: (1, _around(0, 20, 200)), 0x20: (1, _around(0, 1))}  # fmt: skip
_SPI_NAMES = {0x10: "SPEED", 0x12: "CURRENT", 0x13: "RAMP", 0x14: "TILT"}

_spi = Strategies(
    raw=st.one_of(
        _i2c_write(_SPI).map(lambda data: Raw("spi:MOTOR", "transfer", (data,))),
        st.sampled_from(sorted(_SPI)).map(
            lambda reg: Raw("spi:MOTOR", "transfer", (bytes([reg | 0x80]) + bytes(_SPI[reg][0]),))
        ),
        # All registers from the first one on, and any bytes.
        st.tuples(_around(0, 3_000), _around(0, 20), _around(0, 10, 100), _around(0, 20)).map(
            lambda all_: Raw(
                "spi:MOTOR",
                "transfer",
                (bytes([0x10]) + _word(all_[0], 2) + b"".join(_word(each, 1) for each in all_[1:]),),
            )
        ),
        st.binary(min_size=1, max_size=4).map(lambda data: Raw("spi:MOTOR", "transfer", (data,))),
        st.binary(min_size=1, max_size=4).map(lambda data: Raw("spi:LOOP", "transfer", (data,))),
    ),
    steps=st.one_of(
        st.sampled_from(sorted(_SPI_NAMES)).flatmap(
            lambda reg: _SPI[reg][1].map(
                lambda number: (
                    "spi.write",
                    {
                        "device": "MOTOR",
                        "register": _SPI_NAMES[reg],
                        "value": number * 0.1 if reg == 0x12 else number,
                    },
                )
            )
        ),
        st.sampled_from(sorted(_SPI_NAMES)).map(
            lambda reg: ("spi.read", {"device": "MOTOR", "register": _SPI_NAMES[reg]})
        ),
        _i2c_write(_SPI).map(lambda data: ("spi.transfer", {"device": "MOTOR", "hex": data.hex()})),
        st.binary(min_size=1, max_size=4).map(lambda data: ("spi.transfer", {"device": "LOOP", "hex": data.hex()})),
    ),
    reads=(Raw("spi:MOTOR", "transfer", (b"\x90\x00\x00",)),),
)

_RUN, _SPEED, _STEPPED, _RAMP, _SETPOINT, _COUNT = ("coil", 0), *(("holding", at) for at in (100, 101, 102, 110, 112))


def _f32(number):
    return struct.unpack(">2H", struct.pack(">f", number))


def _u32(number):
    return struct.unpack(">2H", struct.pack(">I", number % (1 << 32)))


_F32 = st.one_of(_floats(0, 100), st.sampled_from([NAN, INF, -INF, 1e30])).map(_f32)
_WORDS = st.integers(0, 0xFFFF)
_UNITS = st.sampled_from([0, 3, 5])


def _modbus_call(unit, place, values):
    return Raw("modbus:plant", "write", (unit, *place, tuple(values)))


_modbus = Strategies(
    raw=st.one_of(
        st.builds(lambda unit, on: _modbus_call(unit, _RUN, [on]), _UNITS, st.integers(0, 1)),
        st.builds(lambda unit, word: _modbus_call(unit, _SPEED, [word % 65536]), _UNITS, _around(0, 40, 100)),
        st.builds(lambda unit, word: _modbus_call(unit, _STEPPED, [word % 65536]), _UNITS, _around(0, 50, 1_000)),
        st.builds(lambda unit, word: _modbus_call(unit, _RAMP, [word % 65536]), _UNITS, _around(0, 20, 500)),
        st.builds(lambda unit, words: _modbus_call(unit, _SETPOINT, words), _UNITS, _F32),
        st.builds(lambda unit, number: _modbus_call(unit, _COUNT, _u32(number)), _UNITS, _around(0, 70_000)),
        # Several registers at once, and halves of some.
        st.builds(lambda unit, words: _modbus_call(unit, _SPEED, words), _UNITS, st.tuples(_WORDS, _WORDS, _WORDS)),
        st.builds(
            lambda unit, at, words: _modbus_call(unit, ("holding", at), words),
            _UNITS,
            st.sampled_from([109, 110, 111, 112, 113]),
            st.lists(_WORDS, min_size=1, max_size=4),
        ),
        # It reads a register, so that the next step is counted from there.
        st.sampled_from([_STEPPED, _RAMP]).map(lambda place: Raw("modbus:plant", "read", (3, *place, 1))),
        st.just(Raw("modbus:plant", "read", (3, *_SETPOINT, 2))),
    ),
    steps=st.one_of(
        st.builds(
            lambda name, value: ("modbus.write", {"device": "FAN", "name": name, "value": value}),
            st.sampled_from(["speed", "level", "ramp", "count"]),
            _around(0, 20, 50, 100, 500, 1_000).map(lambda number: max(number, 0)),
        ),
        st.builds(lambda on: ("modbus.write", {"device": "FAN", "name": "run", "value": on}), st.booleans()),
        st.builds(
            lambda device, value: ("modbus.write", {"device": device, "name": "setpoint", "value": value}),
            st.sampled_from(["FAN", "HEATER"]),
            _floats(0, 100),
        ),
        st.builds(
            lambda device, at, word: ("modbus.write", {"device": device, "register": at, "value": word}),
            st.sampled_from(["HEATER", "EVERYONE"]),
            st.sampled_from([100, 101, 102, 111]),
            _WORDS,
        ),
    ),
    reads=(Raw("modbus:plant", "read", (3, "holding", 100, 1)),),
)


# --- frames and bytes -------------------------------------------------------------------------------------------------


def torque(raw, key=TORQUE_REQUEST, **more):
    """A frame that requests a speed, in the steps of its signal."""
    return frame(key, struct.pack("<xH5x", raw), **more)


def _j1939(priority, number, destination, source):
    return priority << 26 | number << 8 | destination << 8 | source | EXTENDED


TORQUE_KEYS = [
    _j1939(priority, 0xEF00, to, source) for priority in (0, 3, 6) for to in (0, 7, 255) for source in (0, 3, 200)
]
"""Identifiers that mean the same message: other priorities, source addresses and destinations."""

_can = Strategies(
    raw=st.one_of(
        _around(0, 200).map(lambda raw: frame(FAN_COMMAND, bytes([raw % 256]))),
        _around(-1000, -10, 10, 1000).map(lambda raw: frame(STEPPER_COMMAND, struct.pack("<hB", raw, 0))),
        st.one_of(_floats(-50, 50), st.sampled_from([NAN, INF])).map(
            lambda speed: frame(WINCH_COMMAND, struct.pack("<f", speed))
        ),
        st.builds(torque, _around(0, 4_000, 24_000, 65_530).map(lambda raw: raw % 65536), st.sampled_from(TORQUE_KEYS)),
        # Too short, too long, remote, and other messages with the same number.
        st.tuples(st.sampled_from([FAN_COMMAND, STEPPER_COMMAND, WINCH_COMMAND]), st.binary(max_size=8)).map(
            lambda pair: frame(*pair)
        ),
        st.sampled_from([FAN_COMMAND, STEPPER_COMMAND, TORQUE_REQUEST]).map(lambda key: frame(key, b"", remote=True)),
        st.tuples(st.sampled_from([FAN_COMMAND | EXTENDED, 0x123, 0x18FEF100 | EXTENDED]), st.binary(max_size=8)).map(
            lambda pair: frame(*pair)
        ),
        st.tuples(st.sampled_from([FAN_COMMAND, 0x7E0, *TORQUE_KEYS[:4]]), st.binary(min_size=1, max_size=6)).map(
            lambda pair: Raw("can:can0", "isotp", (pair[0], 0x7E8, pair[1]), {"timeout_s": 0.1})
        ),
    ),
    steps=st.one_of(
        _floats(0, 100).map(
            lambda speed: (
                "can.send",
                {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": round(speed * 2) / 2}},
            )
        ),
        _around(-1000, -10, 10, 1000).map(
            lambda at: (
                "can.send",
                {"bus": "can0", "message": "STEPPER_COMMAND", "signals": {"Position": at, "Hold": 0}},
            )
        ),
        _floats(-50, 50).map(
            lambda speed: ("can.send", {"bus": "can0", "message": "WINCH_COMMAND", "signals": {"Speed": speed}})
        ),
        st.tuples(st.sampled_from(TORQUE_KEYS), _around(0, 4_000, 24_000)).map(
            lambda pair: (
                "can.send",
                {
                    "bus": "can0",
                    "id": f"{pair[0] & ~EXTENDED:#010x}",
                    "hex": struct.pack("<xH5x", pair[1] % 65536).hex(),
                },
            )
        ),
    ),
    reads=(),
)

_uart = Strategies(
    raw=st.one_of(
        st.binary(min_size=1, max_size=8).map(lambda data: Raw("uart:uart0", "write", (data,), {"timeout_s": 1.0})),
        st.binary(min_size=1, max_size=8).map(
            lambda data: Raw("uart:uart0", "exchange", (data,), {"length": 1, "until": None, "timeout_s": 0.1})
        ),
        st.booleans().map(lambda rts: Raw("uart:uart0", "control", (), {"rts": rts})),
        st.booleans().map(lambda dtr: Raw("uart:uart0", "control", (), {"dtr": dtr})),
    ),
    steps=st.one_of(
        st.binary(min_size=1, max_size=8).map(lambda data: ("uart.write", {"port": "uart0", "hex": data.hex()})),
        st.booleans().map(lambda rts: ("uart.control", {"port": "uart0", "rts": rts})),
    ),
    reads=(Raw("uart:uart0", "control"),),
)

_iio = Strategies(
    raw=st.just(Raw("iio:sim", "read", ("vibration",))),
    steps=st.just(("hw.sensor.read", {"sensor": "vibration"})),
    reads=(Raw("iio:sim", "read", ("vibration",)),),
)

_PERCENT_OF = {0: _floats(0, 80), 1: _floats(0, 100)}

_lamp = Strategies(
    raw=st.integers(0, 1).flatmap(
        lambda channel: st.builds(
            lambda value: Raw("lamp:sim", "set", (channel, value)),
            st.one_of(_PERCENT_OF[channel], st.sampled_from(["off", NAN, INF, -INF])),
        )
    ),
    steps=st.builds(
        lambda name, value: ("lamp.set", {"channel": name, "value": value}),
        st.sampled_from(["UV", "WHITE"]),
        st.one_of(st.floats(0, 100), st.floats(0, 20)),
    ),
    reads=(Raw("lamp:sim", "value", (0,)),),
)

_vendor = Strategies(
    raw=st.builds(
        lambda name, percent: Raw(VENDOR_BUS, "set", (name, percent)),
        st.sampled_from(["red", "green"]),
        st.integers(0, 100),
    ),
    steps=st.builds(
        lambda name, percent: ("com.acme.led", {"led": name, "percent": percent}),
        st.sampled_from(["red", "green"]),
        st.integers(0, 100),
    ),
    reads=(Raw(VENDOR_BUS, "get", ("red",)),),
)

STRATEGIES = {
    "gpio": _gpio,
    "pwm": _pwm,
    "dac": _dac,
    "i2c": _i2c,
    "spi": _spi,
    "uart": _uart,
    "can": _can,
    "modbus": _modbus,
    "iio": _iio,
    "lamp": _lamp,
    "vendor": _vendor,
}
"""By kind; "vendor" is a driver that a vendor's package has added, of no kind."""
