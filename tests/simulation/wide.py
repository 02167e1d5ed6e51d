"""The further buses that some worlds have: CAN, SPI and Modbus; their devices, what clients do there, and what fails.

Whether a world has them, and all that is done on them, goes by chances of their own: a world is the same with this
module and without, unless it has these buses. The devices are the shipped simulators, told as those of `devices` are.
"""

from __future__ import annotations

import random
import struct

import trio
from attrs import define, field

from hearth.drivers.base import Style
from hearth.drivers.can.driver import Frame, FrameQueue
from hearth.drivers.can.sim import FAN_COMMAND, SimCan
from hearth.drivers.can.spec import SHIPPED
from hearth.drivers.modbus.line import ModbusLine
from hearth.drivers.modbus.sim import SimModbusPort
from hearth.drivers.spi.driver import RegisterFrame
from hearth.drivers.spi.sim import RegisterChip, SimSpi

from .devices import OnWire, beside_its_wire

CAN, SPI, MODBUS = "can:can0", "spi:MOTOR", "modbus:plant"
QUEUE = 16
"""Frames that the CAN bus keeps for its readers; see wide.toml."""
OTHER_KEYS = (0x300, 0x301)
"""What other nodes send; beside it there is FAN_COMMAND, which clients send."""
KEYS = (FAN_COMMAND, *OTHER_KEYS)
BUSES = {
    CAN: {"queue": QUEUE},
    SPI: {},
    MODBUS: {
        "lines": {
            "coil 0": {"safe": 0, "hold": "release"},
            "holding 100": {"safe": 50, "hold": "release"},
            "holding 101": {"safe": 0, "hold": "keep"},
        }
    },
}
RANGES = [
    {"bus": CAN, "name": "FAN_COMMAND.Speed", "max": 80, "max_step": 30},
    {"bus": SPI, "name": "SPEED", "max": 3000},
    {"bus": MODBUS, "name": "holding 100", "max": 500, "max_step": 250},
]
"""The greatest values that may reach a device, and the greatest step from one to the next."""
OWNED = [
    {"bus": CAN, "name": "FAN_COMMAND.Speed", "safe": 0},
    {"bus": SPI, "name": "SPEED", "left": "SPEED"},
    {"bus": MODBUS, "name": "holding 101", "left": "FAN.ramp"},
]
"""Outputs and their safe values, or the names by which a halt leaves them. No tool announces the first."""
TOOLS = {
    "can.send": (2, CAN, None, None, False, False),
    "can.read": (1, CAN, None, None, False, False),
    "can.watch": (1, CAN, None, None, False, False),
    "spi.read": (0, SPI, None, None, False, False),
    "spi.write": (2, SPI, None, None, False, False),
    "modbus.read": (0, MODBUS, None, None, False, False),
    "modbus.write": (2, MODBUS, None, None, True, True),
}
"""As `terms.TOOLS`."""


def is_wide(seed) -> bool:
    """Whether this world has these buses."""
    return random.Random(f"{seed}/wide").random() < 0.3


def profile(content, more):
    """The content of a board's profile with these buses."""
    (bus,) = more["can"]
    return {**content, **more, "can": [{**bus, "dbc": str(SHIPPED / bus["dbc"])}]}


# --- devices --------------------------------------------------------------------------------------------------------


@define(eq=False, slots=False)
class _Queue(FrameQueue):
    """A receive queue that tells each frame that comes into it, by its place."""

    wire: object = field(default=None, kw_only=True)

    def __attrs_post_init__(self):
        self._places = {}

    def feed(self, frame, sender=""):
        super().feed(frame, sender)
        # With the frame, whose id is another one's as soon as it is freed.
        self._places[id(frame)] = self.received, frame
        self.wire.tell(
            "can.frame",
            bus=self.wire.bus,
            place=self.received,
            key=frame.key,
            sender=sender,
            error=bool(frame.error),
        )

    def shown(self, taken):
        """What a read has brought, for the tape."""
        places = [self._places[id(frame)][0] for frame in taken.frames]
        return {"places": places, "lost": taken.lost, "complete": taken.complete}


class Can(OnWire, SimCan):
    """The shipped simulated bus, without nodes: what other nodes send is the world's."""

    def __init__(self, rules, wire) -> None:
        super().__init__("can0", rules=rules, virtual=True)
        self.wire = wire
        self.fresh()

    def fresh(self):
        """Begin a life of the daemon: what the one before had received is not its own."""
        self.queue = _Queue(QUEUE, wire=self.wire)

    async def pump(self):
        # Not that of OnWire alone: its own one beside it.
        await beside_its_wire(self.wire, super(OnWire, self).pump)

    def _on_wire(self, frame, reader):
        # The shipped one keeps what was sent in `wire`, which is the tape's here.
        self._feed(frame, reader)

    def _begins(self, reader):
        # Where a session's cursor is, if this is its first use of the bus.
        self.wire.tell("can.cursor", bus=self.wire.bus, reader=reader, place=self.queue.received)

    def send(self, frame, *, timeout_s, reader=""):
        work = super().send
        speed = self.rules.values_of(frame).get("FAN_COMMAND.Speed")
        args = {"key": frame.key, "data": frame.data}
        if speed is not None:
            args["limited"] = {"FAN_COMMAND.Speed": speed}

        def begun():
            self._begins(reader)
            return work(frame, timeout_s=timeout_s, reader=reader)

        return self.wire.run("send", args, begun)

    def take(self, wanted, most, *, partial=False, errors=False, reader=""):
        work = super().take
        keys = [key for key in KEYS if wanted is None or wanted(key)]
        args = {"reader": reader, "keys": keys, "count": most, "partial": partial, "errors": errors}

        def begun():
            self._begins(reader)
            return work(wanted, most, partial=partial, errors=errors, reader=reader)

        return self.wire.run("take", args, begun, shown=self.queue.shown)

    def follow(self):
        return self.wire.run("follow", {}, super().follow)

    def talk(self, count, rng):
        """Let other nodes send frames."""
        for _ in range(count):
            self.inject(Frame(rng.choice(OTHER_KEYS), struct.pack(">I", self.queue.received)))


class Spi(OnWire, SimSpi):
    """The shipped simulated chip with registers."""

    def __init__(self, wire) -> None:
        super().__init__("MOTOR", RegisterChip(RegisterFrame()), style=Style.ASYNC)
        self.wire = wire

    def transfer(self, data):
        work = super().transfer
        args = {"data": bytes(data)}
        if data[0] == 0x10 and len(data) == 3:
            args["limited"] = {"SPEED": int.from_bytes(data[1:], "big")}
        return self.wire.run("transfer", args, lambda: work(data))


class Modbus(OnWire, ModbusLine):
    """The shipped line, with the simulated device at the far end of a pair of sockets."""

    def __init__(self, spec, wire) -> None:
        port = SimModbusPort(spec.line, spec.settings, spec.devices)
        super().__init__(spec.line, port, spec.devices, timeout_s=spec.timeout_ms / 1000, late_s=spec.late_ms / 1000)
        self.wire = wire

    async def pump(self):
        # Not that of OnWire alone: its own one beside it.
        await beside_its_wire(self.wire, super(OnWire, self).pump)

    def _told(self, what, args, lines, work):
        """Run an exchange, and tell which registers it has changed, whatever the line knows of it."""

        async def whole():
            memory = self.port.devices[3].memory
            before = dict(memory)
            try:
                return await work()
            finally:
                for table, reg in lines:
                    if memory[table, reg] != before[table, reg]:
                        line = f"{table} {reg}"
                        self.wire.tell("bus.level", bus=self.wire.bus, line=line, value=memory[table, reg])

        return self.wire.run(what, args, whole)

    def read(self, unit, table, reg, count):
        work = super().read
        return self.wire.run("read", {"table": table, "reg": reg}, lambda: work(unit, table, reg, count))

    def write(self, unit, table, reg, values):
        work = super().write
        line = f"{table} {reg}"
        args = {"line": line, "value": values[0], "limited": {line: values[0]}}
        return self._told("write", args, [(table, reg)], lambda: work(unit, table, reg, values))


def drivers(board, found, wire_of):
    """The devices of these buses, by bus."""
    (line,) = board.profile.of("modbus")
    return {
        CAN: Can(found[CAN].rules, wire_of(CAN)),
        SPI: Spi(wire_of(SPI)),
        MODBUS: Modbus(line, wire_of(MODBUS)),
    }


# --- clients --------------------------------------------------------------------------------------------------------


def plan(seed, number, pace):
    """The actions of a client on these buses."""
    rng = random.Random(f"{seed}/wide/c{number}")
    return [(rng.random() * pace, "wide") for _ in range(rng.choice([2, 4, 8]))] if is_wide(seed) else []


def step(rng, mark):
    """A step on one of these buses."""
    tool, args = rng.choices([_send, _read, _watch, _spi, _modbus], [5, 8, 1, 3, 6])[0](rng)
    return {"tool": tool, "args": {"mark": mark, **args}}


def _send(rng):
    speed = rng.choice([0, 20, 40, 60, 80, 80, 90])
    if rng.random() < 0.3:
        return "can.send", {"bus": "can0", "id": FAN_COMMAND, "hex": f"{2 * speed:02x}", "timeout_ms": 50}
    return "can.send", {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": speed}, "timeout_ms": 50}


def _read(rng):
    args = {"bus": "can0", "count": rng.choice([1, 2, 5, 20]), "timeout_ms": rng.choice([0, 0, 30, 300])}
    if rng.random() < 0.3:
        args["filter"] = [rng.choice(OTHER_KEYS)]
    if rng.random() < 0.2:
        args["errors"] = True
    return "can.read", args


def _watch(rng):
    return "can.watch", {"bus": "can0", "count": rng.choice([1, 10]), "timeout_ms": 100, "every_ms": 10}


def _spi(rng):
    if rng.random() < 0.4:
        return "spi.read", {"device": "MOTOR", "register": "SPEED"}
    return "spi.write", {"device": "MOTOR", "register": "SPEED", "value": rng.choice([0, 1000, 3000, 3001])}


def _modbus(rng):
    if rng.random() < 0.3:
        return "modbus.read", {"device": "FAN", "name": rng.choice(["run", "speed", "ramp"])}
    name = rng.choice(["run", "speed", "speed", "ramp"])
    value = rng.random() < 0.7 if name == "run" else rng.choice([0, 100, 500, 501])
    return "modbus.write", {"device": "FAN", "name": name, "value": value}


# --- what goes wrong ------------------------------------------------------------------------------------------------


async def run(world, rng) -> None:
    """Let other nodes talk, and these devices fail."""
    for _ in range(rng.choice([10, 30, 60])):
        await trio.sleep(rng.random() * rng.choice([0.005, 0.05, 0.3]))
        if world.drivers is None or world.mute:
            continue
        kinds = {_talk: 30, _bus_off: 1, _unheard: 1, _full: 0.7, _lost: 2, _fails: 1, _vanishes: 1}
        await rng.choices([*kinds], [*kinds.values()])[0](world, rng)


async def _talk(world, rng):
    if world.wires[CAN].open:
        world.drivers[CAN].talk(rng.choice([1, 1, 2, 6, 30]), rng)


async def _bus_off(world, rng):
    can = world.drivers[CAN]
    if not world.wires[CAN].open:
        return
    world.tape.tell("fault", what="bus-off", bus=CAN)
    can.restarts = False
    can.report("bus off")
    await trio.sleep(rng.choice([0.05, 0.5, 3]))
    can.restarts = True
    world.tape.tell("fault", what="clear", bus=CAN)


async def _for_a_while(world, rng, name, value):
    world.tape.tell("fault", what=name, bus=CAN)
    world.drivers[CAN].set_faults(**{name: value})
    await trio.sleep(rng.choice([0.02, 0.3]))
    world.drivers[CAN].set_faults(**{name: not value})
    world.tape.tell("fault", what="clear", bus=CAN)


async def _unheard(world, rng):
    await _for_a_while(world, rng, "acknowledged", value=False)


async def _full(world, rng):
    await _for_a_while(world, rng, "full", value=True)


async def _lost(world, rng):
    world.tape.tell("fault", what="lost", bus=MODBUS)
    world.drivers[MODBUS].port.devices[3].faults.append(rng.choice(["lost", "lost", "damaged", "cut", "garbage", 4, 2]))


async def _fails(world, rng):
    world.tape.tell("fault", what="fails", bus=SPI)
    world.drivers[SPI].faults.fail(1, after=rng.randint(0, 2))


async def _vanishes(world, rng):
    bus = rng.choice([CAN, SPI, MODBUS])
    world.tape.tell("fault", what="vanish", bus=bus)
    world.wires[bus].vanish()
    await trio.sleep(rng.choice([0.05, 1]))
    world.wires[bus].come_back()
    world.tape.tell("fault", what="return", bus=bus)


def heal(world) -> None:
    """End everything that still lasts."""
    can = world.drivers[CAN]
    can.restarts = True
    can.set_faults(acknowledged=True, full=False)
    world.drivers[SPI].faults.clear()
    world.drivers[MODBUS].port.devices[3].faults.clear()
    for bus in BUSES:
        world.tape.tell("fault", what="clear", bus=bus)
