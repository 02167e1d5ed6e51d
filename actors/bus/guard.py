"""The guarded driver of a bus: the one place before the hardware that asks limits, interlocks and the halt.

`Bus` gives every transaction the guarded driver (`BusGuard.face`) and never the driver itself: steps over HACP, MCP and
HCP, the end of a pulse, rollback, and the tools of vendors. A face has all operations of its driver. Those that change
the hardware call `BusGuard.check` first and `BusGuard.note` afterwards; all others are the driver's own. A driver of an
unknown kind is passed as it is: for it the checks of its tickets hold.

Order of one operation, all of it inside one transaction, so nothing comes in between:

    check(output, level) --> the driver's operation --> note(output, level)
         |                        |
         +-- raises, effect none  +-- raises: `failed` notes that the level may be there, or the former one

Bringing outputs to their safe state (`make_safe`, `halt`) is never checked, only noted: safety comes first.

A step of effective risk 0 gets another face (`BusGuard.reader`), behind which every check refuses: whatever its tool
has declared, it only reads.

A control loop claims its outputs (`claims`): it alone may drive them, by the same operations and checks.

To plug in: set `BusGuard.halt` to a callable `(output, level) -> None`, or its `interlocks` to an `InterlockChecks`,
that raises (`Halted`, `InterlockOpen`, with `effect: "none"`) to refuse; None asks nothing. Both are called within the
transaction, in the bus's own thread where the driver blocks, so they must not wait, and must not touch Trio. `halt` is
not asked for a level that is the output's safe state. The limits of the board profile (`limits`) are built in. An
output is the offset of a GPIO line, with the levels 0, 1 and "input"; the address of an I2C device, with the messages
as its level, or address and register of one that lists its registers, with the number to write; "data" of an SPI
device, or as on I2C its registers, with address 0; the number of a channel of a PWM chip or a DAC, with a value in its
unit or "off"; "data" and "lines" of a serial port; the identifier of a CAN frame, or the name of a signal whose steps
are limited; or a Modbus register (unit, table and address), with the number to write.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

import trio
from attrs import define, field

from hearth.actors.bus.limits import LineLimits, RegisterLimits, SpiLimits
from hearth.actors.bus.modbus_limits import ModbusLimits
from hearth.actors.bus.outputs import reported_output
from hearth.actors.bus.signals import SignalLimits
from hearth.drivers.base import Wakeup
from hearth.drivers.i2c.driver import selects
from hearth.drivers.registers import Read, Write
from hearth.errors import LimitViolated, PermissionDenied, RpcError, effect_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence

    from hearth.actors.bus.limits import RegisterWrite
    from hearth.actors.bus.queue import Ticket
    from hearth.drivers.base import Driver
    from hearth.drivers.boards import Board
    from hearth.drivers.can.dbc import CanDatabase
    from hearth.drivers.can.driver import CanBase, CanDriver, Frame
    from hearth.drivers.dac.driver import DacDriver
    from hearth.drivers.gpio.driver import GpioDriver
    from hearth.drivers.i2c.driver import I2cDriver
    from hearth.drivers.modbus.codec import ModbusTable
    from hearth.drivers.modbus.driver import ModbusDriver
    from hearth.drivers.pwm.driver import PwmDriver, Wave
    from hearth.drivers.registers import Message, Outcome, RegWidth
    from hearth.drivers.signals import LineState, SignalLevel
    from hearth.drivers.uart.driver import UartDriver
    from hearth.tools import Drive

log = logging.getLogger("hearth.bus")


class InterlockChecks(Protocol):
    """The interlocks of one bus."""

    def check(self, output: Hashable, level: object) -> None:
        """Raise InterlockOpen where a condition for driving this output to this level does not hold."""

    def note(self, output: Hashable, level: object, *, certain: bool = True) -> None:
        """Note that an output is at a level; without `certain` it may still be at its former one."""


class OutputClaim(Protocol):
    """A control loop that alone may drive an output."""

    def check(self, output: Hashable) -> None:
        """Raise ResourceBusy unless the loop itself is driving."""

    def made_safe(self, output: Hashable) -> None:
        """Note that the output was brought to its safe state."""


@define(eq=False, slots=False)
class BusGuard:
    """The checks of one bus, and the guarded driver that makes them.

    `safe` maps each output to its safe state. `kept` has the outputs that are left as they are when a session ends.
    `face` is the guarded driver.
    """

    bus_id: str
    _driver: Any
    safe: Mapping[Hashable, object] = field(factory=dict, kw_only=True)
    kept: Collection[Hashable] = field(default=(), kw_only=True)
    names: Mapping[Hashable, str] = field(factory=dict, kw_only=True)
    """By output, where the profile has one."""
    lines: LineLimits | None = field(default=None, kw_only=True)
    """The limits of a chip's lines; the bus keeps their longest time on."""
    registers: RegisterLimits | None = field(default=None, kw_only=True)
    signals: SignalLimits | None = field(default=None, kw_only=True)
    # Of the run in which the bus is opened. A blocking driver's thread has no Trio clock of its own.
    _clock: Callable[[], float] = field(default=time.monotonic, init=False)
    due_changed: Wakeup = field(factory=Wakeup, init=False)
    """Woken when a line has been switched on that has to be safe by a certain time."""
    clamped: list[Mapping[str, Any]] = field(factory=list, init=False)
    """By the running transaction: each value that was asked for, and the one that is written in its place."""
    levels: dict[int, LineState | SignalLevel] = field(factory=dict, init=False)
    """Of a chip with lines or signals: the levels that its outputs were last driven to, for observers."""
    halt: Callable[[Hashable, object], None] | None = field(default=None, init=False)
    """Refuses everything while the daemon is halted: raises Halted."""
    interlocks: InterlockChecks | None = field(default=None, init=False)
    """The interlocks of this bus, if it has any."""
    claims: dict[Hashable, OutputClaim] = field(factory=dict, init=False)
    """By output: the control loop that drives it."""
    _limits: LineLimits | RegisterLimits | SignalLimits | None = field(init=False)
    face: Any = field(init=False)
    reader: Any = field(init=False)
    """The guarded driver for steps of risk 0."""

    def __attrs_post_init__(self) -> None:
        self._limits = self.lines or self.registers or self.signals
        face = _FACES.get(self.bus_id.partition(":")[0])
        self.face = self._driver if face is None else face(self._driver, self)
        self.reader = self._driver if face is None else face(self._driver, cast("BusGuard", _ReadersGuard(self)))

    def check(self, output: Hashable, level: Any) -> Any:
        """Return the level to bring an output to: `level`, or the nearest permitted one where the profile clamps.

        Raises ResourceBusy, Halted, InterlockOpen or LimitViolated, each with effect "none".
        """
        self.permit(output, level)
        return level if self._limits is None else self._limits.check(output, level, self._clock())

    def permit(self, output: Hashable, level: Any) -> None:
        """Ask loops, the halt and the interlocks alone, for a target farther than one step. Raises as `check` does."""
        if self.claims and (claim := self.claims.get(output)) is not None:
            claim.check(output)
        if self.halt is not None and self.safe.get(output) != level:
            self.halt(output, level)
        if self.interlocks is not None:
            self.interlocks.check(output, level)

    def permit_safe(self) -> None:
        """Permit to bring outputs to their safe states: nothing but a step of risk 0 is ever refused that."""

    def towards(self, output: Hashable, target: Any) -> Any:
        """Return the level on the way to a target that the limits of a signal permit now."""
        return target if self.signals is None else self.signals.towards(output, target, self._clock())

    def note(self, output: Hashable, level: Any) -> None:
        """Note that an output is now at a level."""
        if self.interlocks is not None:
            self.interlocks.note(output, level)
        if self._limits is not None:
            lines = self.lines
            # A line that is on already keeps the time at which it ends.
            begins = lines is not None and level == 1 and not lines.ends(output)
            self._limits.note(output, level, self._clock())
            if begins and lines is not None and lines.ends(output):
                self.due_changed.wake()

    def drove(self, output: Any, level: Any) -> None:
        """Note, also for observers, that a line or a signal is now at a level."""
        self.levels[output] = level
        self.note(output, level)

    def failed(self, output: Hashable, level: Any, error: BaseException | None = None) -> None:
        """Note that bringing an output to a level failed: unless the effect is "none", it may be there.

        Whatever is no error of the driver's (a bug, a cancellation) leaves that unknown.
        """
        if isinstance(error, RpcError) and effect_of(error) == "none":
            return
        if self.interlocks is not None:
            self.interlocks.note(output, level, certain=False)
        if self._limits is not None:
            self._limits.failed(output, level, self._clock())
            self.due_changed.wake()

    def foresee(self, drive: Drive) -> None:
        """Refuse at submit what the limits could never permit, whatever happens until then. Raises LimitViolated."""
        if self._limits is not None:
            self._limits.foresee(drive)

    @property
    def foresees(self) -> bool:
        """True if `foresee` could refuse something."""
        return self._limits is not None

    def check_rest(self, output: Hashable) -> None:
        """Refuse to bring an output to its safe state before its limits permit it: where that is not urgent.

        Raises LimitViolated.
        """
        if self._limits is not None:
            self._limits.check(output, self.safe.get(output), self._clock())

    def force_safe(self, line: int) -> list[dict[str, Any]]:
        """Bring a GPIO line to its safe state, also one with `hold = "keep"`; a part of a transaction.

        Returns the driver's reports, one of which has an `error` if that failed.
        """
        return self.face.make_safe([line]) or self.face.halt([line])  # type: ignore[no-any-return]

    def opened(self) -> None:
        """Note that the bus has been opened, in Trio: what its outputs did before is not known."""
        self._clock = trio.lowlevel.current_clock().current_time
        self.levels.clear()
        if self._limits is not None:
            # A chip that is opened during a halt drives nothing.
            self._limits.opened(self._clock(), driven=not getattr(self._driver, "halted", False))


class _ReadersGuard:
    """The guard of a transaction of a step of risk 0: it refuses every effect."""

    def __init__(self, guard: BusGuard) -> None:
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guard, name)

    def check(self, output: Hashable, _level: Any) -> Any:
        name = self._guard.names.get(output, output)
        reason = f"a step of risk 0 only reads, and would drive {name!r} of {self._guard.bus_id}"
        cure = "its tool has to declare the risk of what it does (risk_level, effective_risk)"
        raise PermissionDenied(f"Permission denied: {reason}; {cure}", data={"reason": reason, "effect": "none"})

    permit = check

    def permit_safe(self) -> None:
        self.check("outputs", "safe")


async def keep_lines(guard: BusGuard, lines: LineLimits, bring_safe: Callable[[int], Ticket]) -> None:
    """Bring each line that was on for its longest time to its safe state; runs beside the transactions of its bus."""
    while True:
        due = lines.due
        with trio.move_on_at(due):
            await guard.due_changed.until(lambda: lines.due < due)  # noqa: B023  called before the next turn only
        for line in lines.overdue(trio.current_time()):
            try:
                await bring_safe(line).get()
            except RpcError as error:
                log.error("bus %s: line %d is not safe: %s", guard.bus_id, line, error.message)
                lines.postpone(line, trio.current_time())


def retry_after(error: RpcError) -> float | None:
    """Return the seconds after which what a guard refused may pass; None if waiting does not help."""
    wait = (error.data or {}).get("retry_after_ms") if isinstance(error, LimitViolated) else None
    return None if wait is None else wait / 1000


def guard_of(bus_id: str, driver: Driver, board: Board) -> BusGuard:
    """Return the guard of a board's bus, with what the profile says about its outputs."""
    kind, _, name = bus_id.partition(":")
    if kind == "gpio" and name in board.chips:
        specs = board.chips[name].lines
        limited = any(line.limit is not None for line in specs)
        safe: dict[Hashable, object] = {line.offset: line.safe for line in specs}
        kept = [line.offset for line in specs if line.hold == "keep"]
        lines = LineLimits(name, specs) if limited else None
        names: dict[Hashable, str] = {line.offset: line.name for line in specs if line.name}
        return BusGuard(bus_id, driver, safe=safe, kept=kept, names=names, lines=lines)
    for chip in board.profile.signal_chips if kind in ("pwm", "dac") else ():
        if chip.bus == bus_id:
            values: dict[Hashable, object] = {channel.number: channel.safe for channel in chip.channels}
            kept = [channel.number for channel in chip.channels if channel.hold == "keep"]
            signals = SignalLimits(bus_id, [channel.signal for channel in chip.channels])
            channels: dict[Hashable, str] = {channel.number: channel.name for channel in chip.channels}
            return BusGuard(bus_id, driver, safe=values, kept=kept, names=channels, signals=signals)
    for line in board.profile.modbus if kind == "modbus" else ():
        if line.line == name:
            limits = ModbusLimits(line)
            return BusGuard(bus_id, driver, safe=limits.safe, registers=limits)
    for can in board.profile.cans if kind == "can" else ():
        if can.bus == name and any(limit.stepped for limit in can.limits.values()):
            return BusGuard(bus_id, driver, signals=SignalLimits(bus_id, _database(driver).stepped()))
    for spec in board.profile.i2c if kind == "i2c" else ():
        if str(spec.bus) == name and any(device.registers for device in spec.devices):
            return BusGuard(bus_id, driver, registers=RegisterLimits(spec.bus, [device.map for device in spec.devices]))
    for device in board.profile.spi if kind == "spi" else ():
        if device.name == name and device.declared is not None:
            return BusGuard(bus_id, driver, registers=SpiLimits(device))
    return BusGuard(bus_id, driver)


class _GuardedDriver:
    """A driver behind its guard: the operations that are not overridden are the driver's own."""

    def __init__(self, driver: Any, guard: BusGuard) -> None:
        self._driver = driver
        self._guard = guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class _GuardedOutputs(_GuardedDriver):
    """The parts that all drivers of outputs with a safe state have in common."""

    def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        self._guard.permit_safe()
        return self._noted(self._driver.make_safe(outputs))

    def halt(self, outputs: Iterable[Hashable]) -> Any:
        self._guard.permit_safe()
        return self._noted(self._driver.halt(outputs))

    def _noted(self, reports: Any) -> Any:
        for report in reports:
            if "safe" in report:
                output = reported_output(report)
                # A register's report has the value in its unit, and the guard the number that is written.
                level = self._guard.safe.get(output, report["safe"])
                (self._failed if "error" in report else self._drove)(output, level)
                if (claim := self._guard.claims.get(output)) is not None:
                    claim.made_safe(output)
        return reports

    def _drove(self, output: Any, level: Any) -> None:
        self._guard.drove(output, level)

    def _failed(self, output: Any, level: Any, error: BaseException | None = None) -> None:
        self._guard.levels.pop(output, None)
        self._guard.failed(output, level, error)


class _GuardedGpio(_GuardedOutputs):
    _driver: GpioDriver

    def set(self, line: int, state: LineState) -> LineState:
        guard = self._guard
        guard.check(line, state)
        try:
            former = self._driver.set(line, state)
        except BaseException as error:
            self._failed(line, state, error)
            raise
        guard.drove(line, state)
        return former


class Approach(NamedTuple):
    """A step towards a target: what the output gave out before, the level it is at now, and the target."""

    former: Wave | SignalLevel
    level: SignalLevel
    target: SignalLevel


class _GuardedSignals(_GuardedOutputs):
    """The channels of a PWM chip or a converter. `approach` is the guard's own: a driver has no part in it."""

    _driver: PwmDriver | DacDriver

    def set(self, channel: int, value: SignalLevel, *more: Any) -> Wave | SignalLevel:
        guard = self._guard
        self._learn(channel)
        level = guard.check(channel, value)
        if level != value and guard.signals is not None:
            guard.clamped.append(guard.signals.clamp_report(channel, value, level))
        return self._set(channel, level, *more)

    def approach(self, channel: int, target: SignalLevel) -> Approach:
        """Drive a channel as far towards a target as its limits permit now; return where it is, and the target.

        The target is another one than was asked for where the profile clamps. Raises what `set` raises; the halt and
        the interlocks are asked about the target, too, so that a way that may not be ended is not begun.
        """
        guard = self._guard
        self._learn(channel)
        final = target
        if guard.signals is not None:
            final = guard.signals.bounded(channel, target)
            if final != target:
                guard.clamped.append(guard.signals.clamp_report(channel, target, final))
        guard.permit(channel, final)
        level = guard.check(channel, guard.towards(channel, final))
        return Approach(self._set(channel, level), level, final)

    def _learn(self, channel: int) -> None:
        """Read a channel whose steps are limited, if what it gives out is not known."""
        signals = self._guard.signals
        if signals is not None and signals.unknown(channel):
            self._guard.note(channel, self._driver.value(channel))

    def _set(self, channel: int, level: SignalLevel, *more: Any) -> Wave | SignalLevel:
        try:
            former = self._driver.set(channel, level, *more)
        except BaseException as error:
            self._failed(channel, level, error)
            raise
        self._guard.drove(channel, level)
        return former


class _GuardedI2c(_GuardedDriver):
    _driver: I2cDriver

    def transfer(self, addr: int, messages: Sequence[Message], *, ten_bit: bool = False) -> Outcome[bytes]:
        guard = self._guard
        limits = guard.registers
        if limits is None or not limits.lists(addr, ten_bit=ten_bit):
            if _writes(messages, self._driver.addresses.reg_width(addr, ten_bit=ten_bit)):
                guard.check(addr, messages)
            return self._driver.transfer(addr, messages, ten_bit=ten_bit)
        return self._limited(limits, addr, messages, lambda sent: self._driver.transfer(addr, sent, ten_bit=ten_bit))

    def _limited(
        self,
        limits: RegisterLimits,
        addr: int,
        messages: Sequence[Message],
        exchange: Callable[[Sequence[Message]], Outcome[bytes]],
    ) -> Outcome[bytes]:
        """Exchange messages with a device that lists its registers; `exchange` gets those that its limits permit."""
        guard = self._guard
        writes = limits.writes(addr, messages)
        # All are checked before the first one is written.
        numbers = [guard.check(write.output, write.raw) for write in writes]
        if any(number != write.raw for number, write in zip(numbers, writes, strict=True)):
            messages = limits.rewritten(messages, writes, numbers)
            guard.clamped += limits.clamp_reports(writes, numbers)
        settle = partial(self._settle, limits, addr, messages, writes, numbers)
        try:
            answer = exchange(messages)
        except BaseException as error:
            settle(error)
            raise
        if not isinstance(answer, bytes):
            return _settled(answer, settle)
        settle(answer)
        return answer

    def _settle(
        self,
        limits: RegisterLimits,
        addr: int,
        messages: Sequence[Message],
        writes: Sequence[RegisterWrite],
        numbers: Sequence[int],
        outcome: bytes | BaseException,
    ) -> None:
        """Note what a transaction has written and read, or may have written."""
        for write, number in zip(writes, numbers, strict=True):
            if isinstance(outcome, BaseException):
                self._guard.failed(write.output, number, outcome)
            else:
                self._guard.note(write.output, number)
        if isinstance(outcome, bytes):
            for output, number in limits.reads(addr, messages, outcome):
                self._guard.note(output, number)


async def _settled(exchange: Coroutine[Any, Any, bytes], settle: Callable[[bytes | BaseException], None]) -> bytes:
    try:
        data = await exchange
    except BaseException as error:
        settle(error)
        raise
    settle(data)
    return data


def _writes(messages: Sequence[Message], width: RegWidth | None) -> bool:
    """Return False for a read, also of a register: a pointer that moves is no effect."""
    return not (selects(messages, width) or all(isinstance(message, Read) for message in messages))


class _GuardedSpi(_GuardedI2c):
    """The guarded driver of an SPI device: without declared registers each transfer counts as an effect."""

    _driver: Any

    def transfer(self, data: bytes) -> Outcome[bytes]:  # type: ignore[override]
        guard, driver, limits = self._guard, self._driver, self._guard.registers
        if limits is None:
            guard.check("data", data)
            return driver.transfer(data)  # type: ignore[no-any-return]
        assert isinstance(limits, SpiLimits)
        declared = limits.declared
        messages = limits.messages(data)
        if declared.disturbs(data):
            guard.check("data", data)

        def exchange(sent: Sequence[Message]) -> Outcome[bytes]:
            first = sent[0]
            assert isinstance(first, Write)
            # A read goes out as it came, and a write with the numbers that the limits permit.
            rest = data if len(sent) > 1 else data[: declared.frame.size] + first.data[declared.frame.size :]
            return driver.transfer(rest)  # type: ignore[no-any-return]

        return self._limited(limits, 0, messages, exchange)


class _GuardedUart(_GuardedDriver):
    _driver: UartDriver

    def write(self, data: bytes, **more: Any) -> Coroutine[Any, Any, Any]:
        self._guard.check("data", data)
        return self._driver.write(data, **more)

    def exchange(self, data: bytes, **more: Any) -> Coroutine[Any, Any, Any]:
        self._guard.check("data", data)
        return self._driver.exchange(data, **more)

    def control(self, **levels: Any) -> Coroutine[Any, Any, Any]:
        if any(level is not None for level in levels.values()):
            self._guard.check("lines", levels)
        return self._driver.control(**levels)


class _GuardedCan(_GuardedDriver):
    """A CAN interface. The steps of a signal are counted from the last frame that was sent for certain."""

    _driver: CanDriver

    async def send(self, frame: Frame, **more: Any) -> None:
        guard, values = self._guard, self._stepped(frame)
        guard.check(frame.key, frame)
        for signal, value in values.items():
            guard.check(signal, value)
        await self._driver.send(frame, **more)
        for signal, value in values.items():
            guard.note(signal, value)

    def _stepped(self, frame: Frame) -> dict[str, float]:
        if self._guard.signals is None:
            return {}
        database = _database(self._driver)
        # The bounds first, which the driver checks as well: a value that is no number has no distance to another.
        database.check(frame)
        return database.values_of(frame)

    def isotp(self, tx: int, rx: int, data: bytes, **more: Any) -> Coroutine[Any, Any, Any]:
        self._guard.check(tx, data)
        return self._driver.isotp(tx, rx, data, **more)


def _database(driver: Driver) -> CanDatabase:
    """Return the messages of a board's bus, which its driver has as its rules."""
    return cast("CanDatabase", cast("CanBase", driver).rules)


class _GuardedModbus(_GuardedOutputs):
    """Its limits say what a request may read and write, so it asks them about both. It keeps no `levels`."""

    _driver: ModbusDriver

    async def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        return self._noted(await self._driver.make_safe(outputs))

    async def halt(self, outputs: Iterable[Hashable]) -> Any:
        return self._noted(await self._driver.halt(outputs))

    def _drove(self, output: Any, level: Any) -> None:
        self._guard.note(output, level)

    def _failed(self, output: Any, level: Any, error: BaseException | None = None) -> None:
        self._guard.failed(output, level, error)

    async def read(self, unit: int, table: ModbusTable, reg: int, count: int) -> tuple[int, ...]:
        values = await self._driver.read(unit, table, reg, count)
        for output, number in self._limits.numbers(unit, table, reg, values):
            self._guard.note(output, number)
        return values

    async def write(self, unit: int, table: ModbusTable, reg: int, values: Sequence[int]) -> None:
        guard, limits = self._guard, self._limits
        asked = list(limits.numbers(unit, table, reg, values, write=True))
        if not asked:
            guard.check((unit, table, reg), values[0])
        # All are checked before the first one is written.
        numbers = [(output, guard.check(output, number)) for output, number in asked]
        if numbers != asked:
            guard.clamped += [
                limits.clamped(output, number, written)
                for (output, number), (_, written) in zip(asked, numbers, strict=True)
                if number != written
            ]
            values = limits.replaced(reg, values, numbers)
        try:
            await self._driver.write(unit, table, reg, values)
        except BaseException as error:
            for output, number in numbers:
                guard.failed(output, number, error)
            raise
        for output, number in numbers:
            guard.note(output, number)

    @property
    def _limits(self) -> ModbusLimits:
        limits = self._guard.registers
        assert isinstance(limits, ModbusLimits), "guard_of gives each line its limits"
        return limits


_FACES: Final[Mapping[str, Callable[[Any, BusGuard], _GuardedDriver]]] = {
    "gpio": _GuardedGpio,
    "i2c": _GuardedI2c,
    "spi": _GuardedSpi,
    "uart": _GuardedUart,
    "pwm": _GuardedSignals,
    "dac": _GuardedSignals,
    "can": _GuardedCan,
    "modbus": _GuardedModbus,
}
"""By the kind of bus that its id begins with."""
