"""The devices of a world: the shipped simulators, whose every exchange is put on the tape where it reaches the wire.

Owns what goes wrong with a device (latency, a bug in its driver, a device that vanishes) and who an exchange is for: a
step's `mark`, which the wrapped tools hand down beside the runtime, so that the tape tells whose an exchange was
without asking the runtime. It refuses to know of actors.
"""

from __future__ import annotations

import os
import socket
from contextvars import ContextVar
from typing import TYPE_CHECKING

import trio

from hearth.drivers.base import BaseDriver, DeviceGone, Style
from hearth.drivers.gpio.sim import SimGpio
from hearth.drivers.i2c.sim import Eeprom, SimI2c, SlowTemperature, Tmp102
from hearth.drivers.serial_port.pty import EchoPeer, SimUart
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from pathlib import Path

MARK: ContextVar[tuple[str | None, str | None]] = ContextVar("mark", default=(None, None))
"""The mark of the step that the exchange is for, and what it is to the step: "undo", "end", or None."""
INSIDE: ContextVar[bool] = ContextVar("inside", default=False)
"""True within an exchange: what it is made of is not told."""

PLAIN = (str, int, float, bytes, bool, type(None))


class Wire:
    """What one device does beside its work: it tells, it takes its time, it breaks."""

    def __init__(self, bus, tell, rng, number) -> None:
        self.bus = bus
        self.tell = tell
        self.rng = rng
        self.number = number
        """Gives transactions their numbers."""
        self.slow = 0.0
        """Seconds of latency, on average."""
        self.base = 0.0
        """Seconds of latency in any case."""
        self.bugs = 0
        """So many of the next exchanges run into a bug of the driver."""
        self.gone = False
        self.dead = False
        """The machine is off: what is still in its memory reaches the wire no more."""
        self.departure = DeviceGone()
        self.broken = trio.Event()
        self.open = False

    def opened(self) -> None:
        """The device is opened; raises DeviceError when it is not there."""
        if self.gone or self.dead:
            raise DeviceError(f"{self.bus}: no such device", effect="none", data={"errno": "ENOENT"})
        self.departure.forget()
        self.broken = trio.Event()
        self.open = True
        self.tell("bus.open", bus=self.bus)

    def closed(self) -> None:
        """The device is closed."""
        if self.open:
            self.open = False
            self.tell("bus.close", bus=self.bus)

    def begin(self, what, args) -> int:
        """An exchange begins; returns its number."""
        number = self.number()
        mark, role = MARK.get()
        if role is not None and what == "get":
            # No tool reads a line while it takes an effect back: the bus asks what an interlock requires.
            mark = role = None
        if mark is not None:
            args["mark"] = mark
        if not self.open:
            args["closed"] = True
        self.tell("bus.begin", bus=self.bus, transaction=number, what=role or what, args=args)
        return number

    def end(self, number, outcome, **more) -> None:
        """It has ended."""
        self.tell("bus.end", bus=self.bus, transaction=number, outcome=outcome, **more)

    def look(self) -> None:
        """Where an exchange may go wrong before it has any effect."""
        if self.dead or self.gone:
            error = DeviceError(f"{self.bus}: the device is gone", effect="none", data={"errno": "ENODEV"})
            self.departure.report(error)
            raise error
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError(f"{self.bus}: a bug in the driver")

    def vanish(self) -> None:
        """The device is pulled out."""
        self.gone = True
        error = DeviceError(f"{self.bus}: the device is gone", effect="unknown", data={"errno": "ENODEV"})
        self.departure.report(error)

    def come_back(self) -> None:
        """It is plugged in again."""
        self.gone = False

    async def watch(self) -> None:
        """A driver's pump: raises when the device is gone, or when the driver is made to crash beside its work."""

        async def crash() -> None:
            await self.broken.wait()
            raise RuntimeError(f"{self.bus}: a bug in the driver's pump")

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            try:
                await self.departure.wait()
            except DeviceError as error:
                failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def call(self, what, args, work):
        """Run an exchange that takes no time."""
        if INSIDE.get():
            return work()
        number = self.begin(what, args)
        token = INSIDE.set(True)
        outcome, read = "error", {}
        try:
            self.look()
            value = work()
            outcome = "done"
            if what == "get":
                read["value"] = value
        finally:
            INSIDE.reset(token)
            self.end(number, outcome, **read)
        return value

    async def run(self, what, args, work, *, shown=None):
        """Run an exchange that takes its time, and may be cut in the middle: by what, the judge asks.

        `shown` makes of its value what the tape has of it.
        """
        if INSIDE.get():
            return await work()
        number = self.begin(what, args)
        token = INSIDE.set(True)
        outcome, read = "error", {}
        try:
            self.look()
            if self.slow or self.base:
                await trio.sleep(self.base + (self.rng.expovariate(1 / self.slow) if self.slow else 0.0))
                self.look()
            value = await work()
        except trio.Cancelled:
            outcome = "cut"
            raise
        else:
            outcome = "done"
            if shown is not None:
                read["value"] = shown(value)
            return value
        finally:
            INSIDE.reset(token)
            self.end(number, outcome, **read)


class OnWire:
    """A device whose opening and closing are told, and which goes when its wire breaks."""

    def open(self):
        self.wire.opened()
        super().open()

    def close(self):
        super().close()
        self.wire.closed()

    async def pump(self):
        await self.wire.watch()


async def beside_its_wire(wire, pump):
    """Run a driver's own pump until it ends, or its wire breaks."""
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal failure
            try:
                await wire.watch()
            except DeviceError as error:
                failure = error
                nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        await pump()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Gpio(OnWire, SimGpio):
    """The shipped simulated chip."""

    def __init__(self, spec, wire) -> None:
        super().__init__(
            spec.label,
            spec.lines,
            wires=spec.wires,
            style=Style.INLINE,
            clock_ns=lambda: int(trio.current_time() * 1e9),
        )
        self.wire = wire
        self.stuck: dict[int, int] = {}
        """Lines that stay at a level whatever drives them."""

    def get(self, line):
        return self.wire.call("get", {"line": line}, lambda: self.stuck.get(line, super(Gpio, self).get(line)))

    def set(self, line, state):
        def work():
            former = super(Gpio, self).set(line, state)
            if former != state:
                self.wire.tell("bus.level", bus=self.wire.bus, line=line, value=None if state == "input" else state)
            return former

        return self.wire.call("set", {"line": line, "value": state}, work)

    def watch(self, line, edge):
        return self.wire.call("watch", {"line": line}, lambda: super(Gpio, self).watch(line, edge))

    def unwatch(self, watch):
        return self.wire.call("unwatch", {"line": watch.line}, lambda: super(Gpio, self).unwatch(watch))


class I2c(OnWire, SimI2c):
    """The shipped simulated adapter, in virtual time."""

    def __init__(self, spec, wire) -> None:
        clock = trio.current_time
        parts = {
            device.addr: Tmp102(SlowTemperature(1, clock)) if device.kind == "tmp102" else Eeprom(clock)
            for device in spec.devices
        }
        super().__init__(spec.bus, parts, style=Style.ASYNC, speed_hz=spec.speed_hz)
        self.wire = wire

    def transfer(self, addr, messages, *, ten_bit=False):
        shown = [message.data if hasattr(message, "data") else message.length for message in messages]
        work = super().transfer
        # A reading of a thermometer is two exchanges in one transaction, which may take as long as both.
        exchanges = 2 if isinstance(self.devices.get(addr), Tmp102) else 1
        return self.wire.run(
            "transfer",
            {"addr": addr, "messages": shown, "limit_ms": exchanges * self.limit_ms(messages)},
            lambda: work(addr, messages, ten_bit=ten_bit),
        )

    def scan(self, include=()):
        work = super().scan
        return self.wire.run("scan", {}, lambda: work(include))


class Uart(SimUart):
    """The shipped simulated port; its cable is a pair of sockets, whose bytes are there as soon as they are sent.

    (A pseudo-terminal's come when a thread of the kernel has had its turn.)
    """

    def __init__(self, spec, wire) -> None:
        super().__init__(spec.port, spec.settings)
        self.wire = wire

    def open(self):
        self.wire.opened()
        near, far = (end.detach() for end in socket.socketpair())
        os.set_blocking(near, False)
        os.set_blocking(far, False)
        self._far = far
        self.path = "/dev/pts/world"
        self.peer = EchoPeer(far)
        self._rts, self._dtr = self.settings.rts, self.settings.dtr
        self._attach(near)

    def close(self):
        super().close()
        self.wire.closed()

    async def pump(self):
        await beside_its_wire(self.wire, super().pump)

    def write(self, data, **more):
        work = super().write
        return self.wire.run("write", {"data": bytes(data)}, lambda: work(data, **more))

    def take(self, length, until, **more):
        work = super().take
        return self.wire.run("take", {}, lambda: work(length, until, **more))

    def exchange(self, data, **more):
        work = super().exchange
        return self.wire.run("exchange", {"data": bytes(data)}, lambda: work(data, **more))

    def control(self, *, rts=None, dtr=None, break_s=None):
        work = super().control

        async def whole():
            lines = await work(rts=rts, dtr=dtr, break_s=break_s)
            if rts is not None or dtr is not None:
                self.wire.tell("bus.level", bus=self.wire.bus, line="lines", value=None)
            return lines

        return self.wire.run("control", {"rts": rts, "dtr": dtr}, whole)


class Pool(BaseDriver):
    """A driver whose operations block (files, telemetry): each takes a seeded time here, and then runs in place."""

    style = Style.ASYNC
    opens_in_thread = True

    def __init__(self, driver, wire) -> None:
        self.driver = driver
        self.wire = wire
        self.width = driver.width

    def open(self):
        self.wire.opened()
        self.driver.open()

    def close(self):
        self.driver.close()
        self.wire.closed()

    async def pump(self):
        await self.wire.watch()

    def describe(self):
        return self.driver.describe()

    def __getattr__(self, name):
        method = getattr(self.driver, name)

        def call(*args, **more):
            async def work():
                await trio.sleep(self.wire.rng.random() * 0.003)
                self.wire.look()
                return method(*args, **more)

            shown = {str(at): value for at, value in enumerate(args) if isinstance(value, PLAIN)}
            return self.wire.run(name, shown, work)

        return call


TELEMETRY = {
    "stat": "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\nbtime 1776630000\n",
    "meminfo": "MemTotal: 1024 kB\nMemFree: 512 kB\nMemAvailable: 600 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "vmstat": "oom_kill 0\n",
    "loadavg": "0.10 0.20 0.30 1/99 1234\n",
    "uptime": "1000.00 900.00\n",
    "cpuinfo": "processor : 0\nmodel name : simulated\n\n",
}


def lay_out_telemetry(root: Path) -> None:
    """A small /proc that says the same in every world."""
    proc = root / "proc"
    proc.mkdir()
    for name, text in TELEMETRY.items():
        (proc / name).write_text(text)
