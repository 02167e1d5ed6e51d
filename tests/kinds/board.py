"""One simulated board that has every kind of hardware, the world around it, and a recorder at its drivers.

One of the kinds is a vendor's: lamps, of `examples/acme_lamp`.

`TEXT` is the profile that every release reads. `NEW` has the keys that came with the one guard (`safe` of registers and
of CAN signals, `off`, `start`): a world with `new=True` has them too. `LEVELS` reads each output past every actor, at
the simulated device, so the judges of this suite share no code with the guard.

A `Recorder` wraps the operations of each driver before the runtime starts. It keeps every operation that reaches a
driver, its time, its outcome, and the levels of the bus's outputs after it.
"""

from __future__ import annotations

import inspect
import struct
import tomllib
from copy import deepcopy
from functools import wraps

import trio
from attrs import define, evolve, field, frozen
from support import vendor
from support.world import NOON, BoardWorld

from hearth.actors.bus.outputs_file import OutputsFile
from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.can.driver import EXTENDED, Frame
from hearth.drivers.registers import Read, Write
from hearth.errors import RpcError
from hearth.tools import Tool, ToolRegistry

vendor.install()

TEXT = """
name = "kinds"
description = "a board with one bus of every kind"

[[gpio]]
label = "sim"
driver = "sim"
names = ["PUMP", "HEATER", "RELAY", "BRAKE", "LAMP", "DOOR"]

[gpio.lines.PUMP]
safe = 0
limit = { max_on_ms = 5_000, min_on_ms = 100, min_off_ms = 100 }

[gpio.lines.HEATER]
safe = 0
active_low = true
limit = { max_on_ms = 2_000 }

[gpio.lines.RELAY]
safe = 0

[gpio.lines.BRAKE]
safe = 1

[gpio.lines.LAMP]
safe = "input"

[gpio.lines.DOOR]
direction = "input"
pull = "up"

[[pwm]]
label = "sim"
driver = "sim"
channels = ["FAN", "ARM", "BLOWER"]

[pwm.channel.FAN]
period_us = 40
safe = 0
limit = { max_step = 0.5 }

[pwm.channel.ARM]
servo = { min_us = 1_000, max_us = 2_000, min_angle = 0, max_angle = 180, slew = 90 }
safe = "off"

[pwm.channel.BLOWER]
period_us = 1_000
safe = 0
limit = { max = 0.8, slew_per_s = 0.5 }

[[dac]]
label = "sim"
driver = "sim"
channels = ["VALVE", "BIAS", "DRIVE"]

[dac.channel.VALVE]
min = 0
max = 10
safe = 0
slew = 5

[dac.channel.BIAS]
min = 0.5
max = 2.5
safe = 1.25

[dac.channel.DRIVE]
min = 0
max = 10
safe = "off"
slew = 5

[[i2c]]
bus = 1
driver = "sim"

[[i2c.device]]
addr = 0x50
kind = "24c02"
increment = "byte"
note = "a motor controller"
registers = [
    { reg = 0x10, name = "speed", min = 0, max = 200 },
    { reg = 0x11, name = "current", max = 100, max_step = 10 },
    { reg = 0x20, name = "torque", width = 16, signed = true, min = -100, max = 100, on_limit = "clamp" },
    { reg = 0x30, name = "position", width = 16, max = 4_000, slew_per_s = 100 },
    { reg = 0x38, name = "brake", max = 1 },
    { reg = 0x40, name = "status", access = "r" },
    { reg = 0x41, name = "key", access = "w", max = 50, max_step = 5 },
]

[[i2c.device]]
addr = 0x51
kind = "24c02"
note = "its registers are not listed"

[[spi]]
name = "MOTOR"
driver = "sim"
kind = "registers"
increment = "byte"
registers = [
    { reg = 0x10, name = "SPEED", width = 16, max = 3_000, unit = "rpm" },
    { reg = 0x12, name = "CURRENT", scale = 0.1, max = 2.0, on_limit = "clamp", unit = "ampere" },
    { reg = 0x13, name = "RAMP", max = 100, max_step = 10 },
    { reg = 0x14, name = "TILT", max = 200, slew_per_s = 20 },
    { reg = 0x20, name = "FAULTS", access = "r", read_effect = true },
]

[[spi]]
name = "LOOP"
driver = "sim"
kind = "loopback"

[[uart]]
port = "uart0"
driver = "sim"
peer = "none"

[[can]]
bus = "can0"
driver = "sim"
dbc = "DBC"

[can.signals."STEPPER_COMMAND.Position"]
limit = { max_step = 10 }

[can.signals."WINCH_COMMAND.Speed"]
limit = { slew_per_s = 10 }

[can.signals."TORQUE_REQUEST.Speed"]
limit = { max_step = 500 }

[[modbus]]
line = "plant"
driver = "sim"
timeout_ms = 200
late_ms = 100
turnaround_ms = 20

[[modbus.device]]
unit = 3
name = "FAN"
registers = [
    { name = "run", table = "coil", reg = 0, safe = false },
    { name = "speed", reg = 100, min = 0, max = 100, unit = "percent" },
    { name = "level", reg = 101, max = 1_000, max_step = 50, safe = 0 },
    { name = "ramp", reg = 102, max = 500, slew_per_s = 20 },
    { name = "setpoint", reg = 110, type = "f32", min = 0, max = 100, max_step = 5 },
    { name = "count", reg = 112, type = "u32", max = 70_000 },
]

[[modbus.device]]
unit = 5
name = "HEATER"
raw = "rw"
registers = [
    { name = "power", reg = 100, max = 40, safe = 0 },
    { name = "setpoint", reg = 110, type = "f32", min = 0, max = 60, max_step = 5 },
]

[[modbus.device]]
unit = 0
name = "EVERYONE"
raw = "rw"
registers = [{ name = "reset", reg = 500, access = "w" }]

[[iio]]
label = "sim"
driver = "sim"
rate_hz = 100
channels = [{ sensor = "vibration", unit = "metre_per_second_squared", amplitude = 2.5, hz = 12, offset = 9.81 }]

[[lamp]]
label = "sim"
driver = "sim"
channels = ["UV", "WHITE"]

[lamp.channel.UV]
max = 80
slew_per_s = 20

[lamp.channel.WHITE]
safe = 30
"""

DBC = """VERSION ""
NS_ :
BS_:
BU_: PLANT HEARTH
BO_ 512 FAN_COMMAND: 1 HEARTH
 SG_ Speed : 0|8@1+ (0.5,0) [0|100] "percent" PLANT
BO_ 544 STEPPER_COMMAND: 3 HEARTH
 SG_ Position : 0|16@1- (1,0) [-1000|1000] "degree" PLANT
 SG_ Hold : 16|1@1+ (1,0) [0|1] "" PLANT
BO_ 560 WINCH_COMMAND: 4 HEARTH
 SG_ Speed : 0|32@1- (1,0) [-50|50] "percent" PLANT
BO_ 2364473347 TORQUE_REQUEST: 8 HEARTH
 SG_ Speed : 8|16@1+ (0.125,0) [0|3000] "rpm" PLANT
SIG_VALTYPE_ 560 Speed : 1;
BA_DEF_ BO_ "VFrameFormat" ENUM "StandardCAN","ExtendedCAN","reserved","J1939PG";
BA_DEF_DEF_ "VFrameFormat" "StandardCAN";
BA_ "VFrameFormat" BO_ 512 0;
BA_ "VFrameFormat" BO_ 544 0;
BA_ "VFrameFormat" BO_ 560 0;
BA_ "VFrameFormat" BO_ 2364473347 3;
"""

_BOARD = tomllib.loads(TEXT)
FAN_COMMAND, STEPPER_COMMAND, WINCH_COMMAND = 0x200, 0x220, 0x230
TORQUE_REQUEST = 0x0CEF0003 | EXTENDED
"""The identifier of a J1939 message: priority 3, PGN 0xEF00 (PDU1) to destination 0, source address 3."""

NEW = {
    "pwm": {"channel": {"ARM": {"start": 0}}},
    "dac": {"channel": {}},
    "i2c": {"speed": {"safe": 0}, "current": {"safe": 0}, "torque": {"safe": 0}, "brake": {"safe": 1}},
    "spi": {"SPEED": {"safe": 0}, "RAMP": {"safe": 0}},
    "can": {
        "FAN_COMMAND.Speed": {"safe": 0},
        "WINCH_COMMAND.Speed": {"safe": 0},
    },
    "modbus": {"speed": {"safe": 0}},
}
"""The new keys, by kind: of channels, and of registers and signals by name."""

VENDOR_BUS = "com.acme.leds"


def content(dbc, *, new=(), **more):
    """The content of the profile. `new` names the kinds whose new keys are in it; `more` replaces whole tables."""
    board = deepcopy(_BOARD)
    board["can"][0]["dbc"] = str(dbc)
    for kind in new:
        given = deepcopy(NEW[kind])
        if kind in ("pwm", "dac"):
            for name, keys in given["channel"].items():
                board[kind][0]["channel"][name] |= keys
        elif kind == "can":
            for name, keys in given.items():
                board["can"][0]["signals"].setdefault(name, {}).update(keys)
        else:
            registers = board[kind][0]["registers"] if kind == "spi" else board[kind][0]["device"][0]["registers"]
            for register in registers:
                register.update(given.get(register["name"], {}))
    return board | more


def changed(kind, name, **keys):
    """The tables of a kind with other keys for one channel."""
    table = deepcopy(_BOARD[kind])
    table[0]["channel"][name] |= keys
    return {kind: table}


def changed_register(name, **keys):
    """The Modbus table with other keys for one register of its first device."""
    table = deepcopy(_BOARD["modbus"])
    next(one for one in table[0]["device"][0]["registers"] if one["name"] == name).update(keys)
    return {"modbus": table}


# --- levels -----------------------------------------------------------------------------------------------------------


@frozen
class Output:
    """An output of the board, and its limits as this file has them. `level(world)` is that of the simulated device.

    `off` says what "off" counts as for the next step: 0, or the last level. `readable` is False for an output whose
    level cannot be learned before it is first driven.
    """

    bus: str
    output: object
    name: str
    level: object
    least: float = float("-inf")
    most: float = float("inf")
    step: float = float("inf")
    slew: float = float("inf")
    soft: bool = False
    """One step is never greater than the slew allows in a tenth of a second."""
    safe: object = None
    """None: the profile of every release gives it none."""
    new_safe: object = None
    """Its safe state by the new keys."""
    off: str = "zero"
    has_off: bool = True
    """False for a channel without one."""
    readable: bool = True
    grain: float = 1e-6
    max_on: float = float("inf")

    @property
    def kind(self):
        return self.bus.partition(":")[0]


def _gpio(number):
    return lambda world: world.drivers["gpio:sim"].state(number)


def _duty(number):
    def level(world):
        pulses = world.drivers["pwm:sim"].pulses(number)
        return pulses.length_ns / pulses.period_ns if pulses.enabled else "off"

    return level


def _angle(world):
    pulses = world.drivers["pwm:sim"].pulses(1)
    return (pulses.length_ns / 1000 - 1_000) * 0.18 if pulses.enabled else "off"


def _volts(number):
    def level(world):
        volts = world.drivers["dac:sim"].level(number)
        return "off" if volts is None else volts

    return level


def _percent(number):
    return lambda world: world.drivers["lamp:sim"].percent[number]


def _bytes(place, size, *, signed=False):
    def level(world):
        cells, at = place(world)
        return int.from_bytes(cells[at : at + size], "big", signed=signed)

    return level


def _i2c(reg, size=1, *, signed=False):
    return _bytes(lambda world: (world.drivers["i2c:1"].devices[0x50].memory, reg), size, signed=signed)


def _spi(reg, size=1):
    return _bytes(lambda world: (world.drivers["spi:MOTOR"].chip.cells, reg), size)


def _modbus(unit, table, reg, kind="H"):
    def level(world):
        memory = world.drivers["modbus:plant"].port.devices[unit].memory
        words = [memory[table, at] for at in range(reg, reg + struct.calcsize(f">{kind}") // 2)]
        return struct.unpack(f">{kind}", struct.pack(f">{len(words)}H", *words))[0]

    return level


def pgn(key):
    """The PGN of a J1939 identifier: the destination of a PDU1 does not count."""
    number = key >> 8 & 0x3FFFF
    return number if number & 0xFF00 >= 0xF000 else number & 0x3FF00


def _can(means, layout, scale=1.0):
    """The value in the last frame that means a message, None if none was sent."""

    def level(world):
        size = struct.calcsize(layout)
        for frame in reversed(world.drivers["can:can0"].wire):
            if means(frame.key) and not frame.remote and len(frame.data) >= size:
                return struct.unpack_from(layout, frame.data)[0] * scale
        return None

    return level


def _is(key):
    return lambda other: other == key


def _torque(key):
    return bool(key & EXTENDED) and pgn(key) == pgn(TORQUE_REQUEST)


def _signal(name, level, *bounds, **more):
    """A signal of CAN, whose value cannot be learned before it is first sent."""
    return Output("can:can0", name, name, level, *bounds, readable=False, **more)


OUTPUTS = [
    Output("gpio:sim", 0, "PUMP", _gpio(0), safe=0, max_on=5.0),
    Output("gpio:sim", 1, "HEATER", _gpio(1), safe=0, max_on=2.0),
    Output("gpio:sim", 2, "RELAY", _gpio(2), safe=0),
    Output("gpio:sim", 3, "BRAKE", _gpio(3), safe=1),
    Output("gpio:sim", 4, "LAMP", _gpio(4), safe="input"),
    Output("pwm:sim", 0, "FAN", _duty(0), 0, 1, step=0.5, safe=0, grain=1e-4),
    Output("pwm:sim", 1, "ARM", _angle, 0, 180, slew=90, soft=True, safe="off", off="hold", readable=False, grain=1e-3),
    Output("pwm:sim", 2, "BLOWER", _duty(2), 0, 0.8, slew=0.5, safe=0, grain=1e-4),
    Output("dac:sim", 0, "VALVE", _volts(0), 0, 10, slew=5, soft=True, safe=0, has_off=False, grain=1.1e-3),
    Output("dac:sim", 1, "BIAS", _volts(1), 0.5, 2.5, safe=1.25, has_off=False, grain=1.1e-3),
    Output("dac:sim", 2, "DRIVE", _volts(2), 0, 10, slew=5, soft=True, safe="off", grain=1.1e-3),
    Output("i2c:1", (0x50, 0x10), "speed", _i2c(0x10), 0, 200, new_safe=0),
    Output("i2c:1", (0x50, 0x11), "current", _i2c(0x11), 0, 100, step=10, new_safe=0),
    Output("i2c:1", (0x50, 0x20), "torque", _i2c(0x20, 2, signed=True), -100, 100, new_safe=0),
    Output("i2c:1", (0x50, 0x30), "position", _i2c(0x30, 2), 0, 4_000, slew=100),
    Output("i2c:1", (0x50, 0x38), "brake", _i2c(0x38), 0, 1, new_safe=1),
    Output("i2c:1", (0x50, 0x41), "key", _i2c(0x41), 0, 50, step=5, readable=False),
    Output("spi:MOTOR", (0, 0x10), "SPEED", _spi(0x10, 2), 0, 3_000, new_safe=0),
    Output("spi:MOTOR", (0, 0x12), "CURRENT", _spi(0x12), 0, 20),
    Output("spi:MOTOR", (0, 0x13), "RAMP", _spi(0x13), 0, 100, step=10, new_safe=0),
    Output("spi:MOTOR", (0, 0x14), "TILT", _spi(0x14), 0, 200, slew=20),
    _signal("FAN_COMMAND.Speed", _can(_is(FAN_COMMAND), "<B", 0.5), 0, 100, new_safe=0),
    _signal("STEPPER_COMMAND.Position", _can(_is(STEPPER_COMMAND), "<h"), -1000, 1000, step=10),
    _signal("WINCH_COMMAND.Speed", _can(_is(WINCH_COMMAND), "<f"), -50, 50, slew=10, new_safe=0),
    _signal("TORQUE_REQUEST.Speed", _can(_torque, "<xH", 0.125), 0, 3_000, step=500),
    Output("modbus:plant", (3, "coil", 0), "run", _modbus(3, "coil", 0), 0, 1, safe=0),
    Output("modbus:plant", (3, "holding", 100), "speed", _modbus(3, "holding", 100), 0, 100, new_safe=0),
    Output("modbus:plant", (3, "holding", 101), "level", _modbus(3, "holding", 101), 0, 1_000, step=50, safe=0),
    Output("modbus:plant", (3, "holding", 102), "ramp", _modbus(3, "holding", 102), 0, 500, slew=20),
    Output("modbus:plant", (3, "holding", 110), "setpoint", _modbus(3, "holding", 110, "f"), 0, 100, step=5),
    Output("modbus:plant", (3, "holding", 112), "count", _modbus(3, "holding", 112, "I"), 0, 70_000),
    Output("modbus:plant", (5, "holding", 100), "power", _modbus(5, "holding", 100), 0, 40, safe=0),
    Output("modbus:plant", (5, "holding", 110), "setpoint", _modbus(5, "holding", 110, "f"), 0, 60, step=5),
    Output("lamp:sim", 0, "UV", _percent(0), 0, 80, slew=20, safe=0, has_off=False),
    Output("lamp:sim", 1, "WHITE", _percent(1), 0, 100, safe=30, has_off=False),
]


def output(bus, name):
    """The output of this name on a bus; the first one."""
    return next(one for one in OUTPUTS if one.bus == bus and one.name == name)


# --- a vendor's driver and tools --------------------------------------------------------------------------------------


class Leds(BaseDriver):
    """A vendor's driver that declares no kind: LEDs by name."""

    style = Style.INLINE
    simulated = True

    def __init__(self):
        self.percent = {"red": 0, "green": 0}

    def set(self, name, percent):
        """Return the former percent."""
        former, self.percent[name] = self.percent[name], percent
        return former

    def get(self, name):
        """Return the percent."""
        return self.percent[name]

    def make_safe(self, outputs):
        """Switch LEDs off."""
        done = []
        for name in outputs:
            self.set(name, 0)
            done.append({"led": name, "safe": 0})
        return done

    def describe(self):
        """Return the kind."""
        return {"kind": "leds"}


@frozen
class Raw:
    """An operation of a driver with its arguments, as a vendor's tool calls it."""

    bus: str
    op: str
    args: tuple = ()
    kw: dict = field(factory=dict)

    def __call__(self, driver):
        return getattr(driver, self.op)(*self.args, **self.kw)


_ANY = {"type": "object"}


def vendors_tools(world):
    """Yield tools that make a raw call: one declares nothing, one has risk 0, one declares what the call drives.

    The last one declares the LED that it sets.
    """

    async def call(ctx, args):
        await ctx.transact(world.raw[args["number"]])
        return {}

    async def declared(ctx, args):
        raw = world.raw[args["number"]]
        await ctx.transact(raw, drives=raw.drives)
        return {}

    async def led(ctx, args):
        await ctx.transact(lambda leds: leds.set(args["led"], args["percent"]), drives=args["led"])
        return {}

    def tool(name, risk, bus, run):
        return Tool(
            name=f"com.acme.{name}",
            risk_level=risk,
            timeout_ms=10_000,
            description=name,
            params_schema=_ANY,
            result_schema=_ANY,
            capability="CAP_GPIO_RW",
            bus=bus,
            run=run,
        )

    yield tool("call", 2, lambda args: world.raw[args["number"]].bus, call)
    yield tool("peek", 0, lambda args: world.raw[args["number"]].bus, call)
    yield tool("declared", 2, lambda args: world.raw[args["number"]].bus, declared)
    yield tool("led", 2, lambda _args: VENDOR_BUS, led)


# --- the recorder -----------------------------------------------------------------------------------------------------

OPERATIONS = {
    "gpio": ("set",),
    "pwm": ("set",),
    "dac": ("set",),
    "i2c": ("transfer",),
    "spi": ("transfer",),
    "uart": ("write", "exchange", "control"),
    "can": ("send", "isotp"),
    "modbus": ("read", "write"),
    "iio": ("read", "capture"),
    "lamp": ("set",),
    "com.acme.leds": ("set",),
}
"""By kind: the operations that a recorder keeps."""


@define(eq=False)
class Operation:
    """One operation that has reached a driver. `levels` are those of the bus's outputs after it."""

    bus: str
    op: str
    args: tuple
    kw: dict
    at: float
    effect: str = "begun"
    """"done", or the effect of its error."""
    ended: float = 0.0
    levels: dict = field(factory=dict)


class Recorder:
    """The operations that have reached the drivers of a world, oldest first."""

    def __init__(self, world):
        self._world = world
        self.operations = []
        self.initial = {}
        for bus, driver in world.drivers.items():
            for name in OPERATIONS.get(bus.partition(":")[0], ()):
                if hasattr(driver, name):
                    setattr(driver, name, self._recorded(bus, name, getattr(driver, name)))

    def _recorded(self, bus, name, operation):
        def begin(args, kw):
            self.operations.append(Operation(bus, name, args, kw, trio.current_time()))
            return self.operations[-1]

        def end(one, effect="done"):
            one.effect, one.ended, one.levels = effect, trio.current_time(), self._world.levels(bus)

        async def later(args, kw):
            one = begin(args, kw)
            try:
                value = await operation(*args, **kw)
            except BaseException as error:
                end(one, effect_of(error))
                raise
            end(one)
            return value

        @wraps(operation)
        def now(*args, **kw):
            one = begin(args, kw)
            try:
                value = operation(*args, **kw)
            except BaseException as error:
                end(one, effect_of(error))
                raise
            if not inspect.isawaitable(value):
                end(one)
                return value
            self.operations.pop()
            value.close()
            return later(args, kw)

        return now

    def since(self, count, bus=None):
        """The operations after the first `count`, of one bus or of all."""
        return [one for one in self.operations[count:] if bus in (None, one.bus)]


def effect_of(error):
    """The effect of a driver's error; a bug of it leaves that unknown."""
    return (error.data or {}).get("effect", "unknown") if isinstance(error, RpcError) else "unknown"


# --- the world --------------------------------------------------------------------------------------------------------


class KindsWorld(BoardWorld):
    """A world over the board, in virtual time, with the vendor's driver and tools, and a recorder.

    With `outputs` its driven outputs are kept in that file.
    """

    def __init__(self, dbc, *, new=(), outputs=None, tables=None, **more):
        super().__init__(content(dbc, new=new, **(tables or {})), **more)
        self.raw = []
        board = self.parts.board
        board.add_driver(VENDOR_BUS, Leds())
        self.drivers = board.drivers
        # Erased, each byte of the memory would be beyond its register's bounds.
        self.drivers["i2c:1"].devices[0x50].memory[:] = bytes(256)
        registry = ToolRegistry([*self.parts.registry.values(), *vendors_tools(self)])
        self.parts = evolve(self.parts, registry=registry, drivers=board.drivers)
        if outputs is not None:
            outputs_file = OutputsFile(outputs)
            outputs_file.open(NOON)
            self.parts = evolve(self.parts, outputs_file=outputs_file)
        self.recorder = Recorder(self)

    def levels(self, bus=None):
        """By bus and output: the level at the simulated device."""
        return {(one.bus, one.output): one.level(self) for one in OUTPUTS if bus in (None, one.bus)}

    def step_of(self, raw):
        """The args of a vendor's tool that makes this call."""
        self.raw.append(raw)
        return {"number": len(self.raw) - 1}


async def call(session, world, raw, *, tool="com.acme.call"):
    """Make a raw call by the vendor's tool, which declares nothing of it."""
    return await session.run(tool, **world.step_of(raw))


class Op:
    """A transaction of a vendor's own on a bus. `drives` is what the tool that declares its outputs says."""

    def __init__(self, bus, op, drives=None):
        self.bus, self._op, self.drives = bus, op, drives

    def __call__(self, driver):
        return self._op(driver)


def i2c(*messages, **more):
    """A raw transfer with the device at 0x50: lists of bytes are written, a number is so many bytes that are read."""
    given = [Write(bytes(one)) if isinstance(one, list) else Read(one) for one in messages]
    return Raw("i2c:1", "transfer", (0x50, given), more)


def stepper(position, **more):
    """A raw call that sends the frame of STEPPER_COMMAND."""
    return frame(STEPPER_COMMAND, struct.pack("<hB", position, 0), **more)


def frame(key, data, **more):
    """A raw call that sends a CAN frame."""
    return Raw("can:can0", "send", (Frame(key, bytes(data), **more),), {"timeout_s": 1.0})
