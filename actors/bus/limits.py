"""Limits of a bus's outputs: the state of each limited output, and the refusals that follow from it.

It owns the rules that a board profile has for outputs in time and in value: how long a GPIO line is on and off and how
often it is switched on, and which registers of an I2C or SPI device may be written, with which values, by which steps
and how fast. `signals` has the arithmetic of values, and the limits of outputs that take a number in a unit. It touches
no hardware and keeps no clock: `guard` asks it before each effect and tells it afterwards, with the time in seconds of
a monotonic clock. It is used by one transaction at a time, in whatever thread, so it has no lock.

A line is on while it is driven to 1, else off. It is off since the bus was first opened, because what came before is
not known. After a switching that failed it may be either: then both directions keep their limits. What an output does
when the daemon does not drive it, and what an unlimited one does, is not known here.

A register's value is known from the last write or read of the whole register. `max_step` and `slew_per_s` are counted
from there; while the value is not known (after the bus was opened, after a write that failed), a register that can be
read must be read first. Bounds are compared as the register's integers, never as floating-point numbers.
"""

from __future__ import annotations

from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, cast

from attrs import define, field, frozen

from hearth.actors.bus.signals import BoundedValue
from hearth.drivers.i2c.driver import LAST_SEVEN_BIT
from hearth.drivers.registers import Read, Write
from hearth.drivers.signals import ROUNDING
from hearth.drivers.spi.driver import refused
from hearth.errors import LimitViolated
from hearth.tools import Drive

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from hearth.drivers.gpio.spec import LineSpec
    from hearth.drivers.registers import Message, Register, RegisterMap
    from hearth.drivers.spi.spec import SpiSpec


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts to bring a line to its safe state."""


# --- lines ------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _TimedLine:
    """A limited line; times are seconds."""

    spec: LineSpec
    min_on: float
    min_off: float
    max_on: float
    period: float
    """The least time between two moments at which it is switched on."""
    on: bool = False
    since: float = -inf
    """The time of the last switching."""
    on_at: float = -inf
    """The time at which it was last switched on."""
    uncertain: bool = False
    """True after a switching that failed: it may be on or off."""
    due: float = inf
    """The time by which it has to be in its safe state."""
    reopened: bool = False
    """True if that is because the chip was opened again while it was on."""
    pause: float = FIRST_PAUSE


class LineLimits:
    """The limits of the lines of one GPIO chip; `RegisterLimits` has the same methods."""

    def __init__(self, chip: str, specs: Iterable[LineSpec]) -> None:
        self._chip = chip
        self._lines = {spec.offset: _timed(spec) for spec in specs if spec.limit is not None}
        self._opened = False

    def check(self, output: Hashable, level: Any, now: float) -> Any:
        """Return the level to drive. Raises LimitViolated; a line that does not switch is never refused."""
        line = self._lines.get(output)  # type: ignore[call-overload]
        if line is None:
            return level
        on = level == 1
        if on is line.on and not line.uncertain:
            return level
        if not on:
            limit, until = "min_on_ms", line.since + line.min_on
        else:
            limit, until = "min_off_ms", line.since + line.min_off
            if line.on_at + line.period > until:
                limit, until = "max_rate_hz", line.on_at + line.period
        if until > now:
            raise self._refused(line, f"it stays {'off' if on else 'on'}", limit, until - now)
        return level

    def note(self, output: Hashable, level: Any, now: float) -> None:
        """Note that a line is now at a level."""
        line = self._lines.get(output)  # type: ignore[call-overload]
        if line is None:
            return
        on = level == 1
        if on is not line.on or line.uncertain:
            line.on, line.since, line.uncertain = on, now, False
            if on:
                line.on_at = now
        if not on:
            line.due, line.reopened, line.pause = inf, False, FIRST_PAUSE
        elif line.due == inf:
            line.due = now + line.max_on

    def opened(self, now: float, *, driven: bool) -> None:
        """Note that the chip was opened: what its lines did before is not known. `driven`: at their `initial` levels.

        A line that was on when it was closed has to go to its safe state, because its level may have changed since.
        """
        for line in self._lines.values():
            if driven and line.spec.initial is not None:
                self.note(line.spec.offset, line.spec.initial, now)
            elif line.on:
                line.due, line.reopened = now, True
            elif not self._opened:
                line.since = now
        self._opened = True

    def ends(self, output: Hashable) -> bool:
        """Return True if a line has to be in its safe state by a certain time."""
        line = self._lines.get(output)  # type: ignore[call-overload]
        return line is not None and line.due != inf

    @property
    def due(self) -> float:
        """Return the time at which the next line has to be in its safe state; infinity if none has to."""
        return min((line.due for line in self._lines.values()), default=inf)

    def overdue(self, now: float) -> list[int]:
        """Return the lines that have to go to their safe state now."""
        return [offset for offset, line in self._lines.items() if line.due <= now]

    def is_due(self, offset: int, now: float) -> bool:
        """Return True if a line has to go to its safe state now."""
        return self._lines[offset].due <= now

    def why(self, offset: int) -> str:
        """Return the reason for which a line has to go to its safe state."""
        line = self._lines[offset]
        if line.reopened:
            return "the chip was opened again while the line was on"
        limit = line.spec.limit
        assert limit is not None
        return f"it was on for max_on_ms = {limit.max_on_ms:g}"

    def postpone(self, offset: int, now: float) -> None:
        """Note that a line could not be brought to its safe state: try again after a pause, which grows."""
        line = self._lines[offset]
        line.due = now + line.pause
        line.pause = min(2 * line.pause, LONGEST_PAUSE)

    def failed(self, output: Hashable, level: Any, now: float) -> None:
        """Note that a line may be at a level, which failed, or at its former one."""
        line = self._lines.get(output)  # type: ignore[call-overload]
        if line is None or (not line.uncertain and line.on is (level == 1)):
            return
        if level == 1:
            self.note(output, level, now)
        line.since, line.uncertain = now, True

    def foresee(self, drive: Drive) -> None:
        """Refuse what could never pass, a pulse that is too short or too long. Raises LimitViolated."""
        line = self._lines.get(drive.output)  # type: ignore[call-overload]
        if line is None or drive.duration_ms is None:
            return
        on, seconds = drive.level == 1, drive.duration_ms / 1000
        limit = None
        if seconds < (line.min_on if on else line.min_off):
            limit = "min_on_ms" if on else "min_off_ms"
        elif on and seconds > line.max_on:
            limit = "max_on_ms"
        if limit is not None:
            short = "long" if limit == "max_on_ms" else "short"
            raise self._refused(line, f"a pulse of {drive.duration_ms:g} ms is too {short}", limit)

    def _refused(self, line: _TimedLine, what: str, limit: str, wait: float | None = None) -> LimitViolated:
        value = getattr(line.spec.limit, limit)
        bus, spec = f"gpio:{self._chip}", line.spec
        data = {"bus": bus, "line": spec.offset, "name": spec.name, "limit": limit, "allowed": value}
        if wait is not None:
            data["retry_after_ms"] = max(1, ceil(wait * 1000))
            what += f" for {data['retry_after_ms']} ms more"
        text = f"gpio line {line.spec.offset} ({line.spec.name}) of chip {self._chip!r}: {what}"
        return LimitViolated(
            f"Limit violated: {text} ({limit} = {value:g}); nothing was driven", data={**data, "effect": "none"}
        )


def _timed(spec: LineSpec) -> _TimedLine:
    limit = spec.limit
    assert limit is not None
    return _TimedLine(
        spec,
        min_on=(limit.min_on_ms or 0) / 1000,
        min_off=(limit.min_off_ms or 0) / 1000,
        max_on=inf if limit.max_on_ms is None else limit.max_on_ms / 1000,
        period=0 if limit.max_rate_hz is None else 1 / limit.max_rate_hz,
    )


# --- registers --------------------------------------------------------------------------------------------------------


@frozen
class RegisterWrite:
    """A register within the messages of a transaction, and the number that is written to it."""

    output: tuple[int, int]
    """The device's address, and the register."""
    raw: int
    message: int
    at: int
    """The index of the message, and of the register's first byte in it."""


@define(eq=False)
class _BoundedRegister(BoundedValue):
    """A register; it is counted in its own integers."""

    spec: Register = field(kw_only=True)


class RegisterLimits:
    """The limits of the devices on one I2C adapter that list their registers."""

    def __init__(self, bus: int, devices: Iterable[RegisterMap]) -> None:
        self._bus = bus
        self._devices = {device.addr: device for device in devices if device.registers}
        self._registers: dict[Hashable, _BoundedRegister] = {
            (device.addr, spec.reg): bounded(spec) for device in self._devices.values() for spec in device.registers
        }

    def lists(self, addr: int, *, ten_bit: bool) -> bool:
        """Return True if the device at an address lists its registers; a 7-bit number in ten bits is another device."""
        return addr in self._devices and not (ten_bit and addr <= LAST_SEVEN_BIT)

    def writes(self, addr: int, messages: Sequence[Message]) -> list[RegisterWrite]:
        """Return the registers that a transaction writes, on a device that lists its registers.

        Raises LimitViolated for a write to another register or to a part of one, and for a read of one that is only
        written.
        """
        found: list[RegisterWrite] = []
        for index, message in enumerate(messages):
            if isinstance(message, Write):
                followed = index + 1 < len(messages) and isinstance(messages[index + 1], Read)
                found += self._in_write(addr, index, message.data, read=followed)
        outputs = [write.output for write in found]
        for output in outputs:
            # Both would be compared with the value before the transaction, and not with each other.
            if outputs.count(output) > 1 and self._registers[output].stepped:
                raise self._refused(output, "it is written twice in one transaction, and its steps are limited")
        return found

    def _in_write(self, addr: int, index: int, data: bytes, *, read: bool) -> Iterator[RegisterWrite]:
        device = self._devices[addr]
        at = (device.reg_width or 8) // 8
        reg = int.from_bytes(data[:at], "big")
        if len(data) < at:
            raise self._refused((addr, reg), f"the number of a register has {at} bytes there")
        if len(data) == at and read:
            register = self._registers.get((addr, reg))
            if register is not None and register.spec.access == "w":
                raise self._refused((addr, reg), 'it is only written (access = "w")')
        first = at
        while at < len(data):
            register = self._registers.get((addr, reg))
            if at > first and device.increment == "none":
                raise self._refused((addr, reg), 'one write has one register (increment = "none")')
            if register is None:
                known = ", ".join(f"{spec.reg:#04x}" for spec in device.registers if spec.access != "r") or "none"
                raise self._refused((addr, reg), f"the board profile does not list it; to be written are: {known}")
            spec = register.spec
            if spec.access == "r":
                raise self._refused((addr, reg), 'it is only read (access = "r")')
            if len(data) - at < spec.size:
                raise self._refused((addr, reg), f"it has {spec.size} bytes; write it whole")
            raw = int.from_bytes(data[at : at + spec.size], spec.order, signed=spec.signed)
            yield RegisterWrite((addr, reg), raw, index, at)
            at += spec.size
            reg += spec.size if device.increment == "byte" else 1

    def rewritten(
        self, messages: Sequence[Message], writes: Sequence[RegisterWrite], numbers: Sequence[int]
    ) -> list[Message]:
        """Return the messages with other numbers in the registers that they write."""
        changed = list(messages)
        for write, raw in zip(writes, numbers, strict=True):
            message, spec = changed[write.message], self._registers[write.output].spec
            assert isinstance(message, Write)
            number = raw.to_bytes(spec.size, spec.order, signed=spec.signed)
            changed[write.message] = Write(message.data[: write.at] + number + message.data[write.at + spec.size :])
        return changed

    def clamp_reports(self, writes: Sequence[RegisterWrite], numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield what was asked of each register that was clamped, and what is written instead, in its unit."""
        for write, number in zip(writes, numbers, strict=True):
            if number != write.raw:
                spec = self._registers[write.output].spec
                named = {} if spec.name is None else {"name": spec.name}
                values = {"asked": write.raw * spec.scale, "written": number * spec.scale}
                yield {"addr": write.output[0], "reg": spec.reg, **named, **values}

    def reads(self, addr: int, messages: Sequence[Message], answer: bytes) -> Iterator[tuple[Hashable, int]]:
        """Yield the register that a transaction has read whole, and its number."""
        device = self._devices[addr]
        match messages:
            case [Write(data), Read()] if len(data) == (device.reg_width or 8) // 8:
                register = self._registers.get((addr, int.from_bytes(data, "big")))
                if register is not None and len(answer) >= register.spec.size:
                    spec = register.spec
                    yield (addr, spec.reg), int.from_bytes(answer[: spec.size], spec.order, signed=spec.signed)

    def check(self, output: Hashable, level: Any, now: float) -> Any:
        """Return the number to write, which differs from `level` where it is clamped. Raises LimitViolated."""
        place = cast("tuple[int, int]", output)
        register = self._registers.get(place)
        if register is None:
            return level
        broken = register.broken(level, now, rounding=ROUNDING)
        spec = register.spec
        if register.stepped and register.value is None and spec.access == "rw":
            name = "max_step" if register.step < inf else "slew_per_s"
            raise self._refused(place, "its present value is not known; read the register first", limit=name)
        if broken is None:
            return level
        if spec.on_limit == "clamp":
            low, high = register.window(now)
            if isinstance(level, float):
                return min(max(level, low), high)
            return min(max(level, ceil(low - ROUNDING)), floor(high + ROUNDING))
        raise self._beyond(place, spec, level, *broken)

    def opened(self, now: float, *, driven: bool) -> None:
        """Note that the adapter was opened: what its devices did before is not known."""
        del driven  # They have levels of their own, which no opening changes.
        for output in self._registers:
            self.note(output, None, now)

    def note(self, output: Hashable, level: Any, now: float) -> None:
        """Note the number that was written to a register or read from it; None where it is not known."""
        register = self._registers.get(output)
        if register is not None:
            register.note(level, now)

    def failed(self, output: Hashable, level: Any, now: float) -> None:
        """Note that a write has failed: the register's value is not known any more."""
        del level
        self.note(output, None, now)

    def foresee(self, drive: Drive) -> None:
        """Refuse registers that are not written, and values beyond `min` and `max`. Raises LimitViolated."""
        addr = cast("int", drive.output)
        if not self.lists(addr, ten_bit=False):
            return
        for write in self.writes(addr, drive.level):
            self.foresee_write(write.output, write.raw)

    def foresee_write(self, output: Any, raw: float) -> None:
        """Refuse a number beyond `min` and `max`. Raises LimitViolated."""
        register = self._registers[output]
        if register.spec.on_limit == "refuse" and not register.least <= raw <= register.most:
            limit = "min" if raw < register.least else "max"
            raise self._beyond(output, register.spec, raw, limit, None)

    def _beyond(
        self, output: tuple[int, int], spec: Register, raw: float, limit: str, wait: float | None
    ) -> LimitViolated:
        bound = getattr(spec, limit)
        if bound is None:  # its width
            bound = spec.raw_bounds[limit == "max"] * spec.scale
        unit = f" {spec.unit}" if spec.unit else ""
        data: dict[str, Any] = {"allowed": bound, "unit": spec.unit} if spec.unit else {"allowed": bound}
        text = f"{raw * spec.scale:g}{unit} is beyond {limit} = {bound:g}"
        if wait is not None:
            data["retry_after_ms"] = max(1, ceil(wait * 1000))
            text += f"; try again in {data['retry_after_ms']} ms"
        return self._refused(output, text, limit=limit, **data)

    def _refused(self, output: tuple[int, int], why: str, **data: Any) -> LimitViolated:
        register = self._registers.get(output)
        name = None if register is None else register.spec.name
        named = {"name": name} if name else {}
        place, where = self._place(output[0])
        text = f"{place}, register {output[1]:#04x}{f' ({name})' if name else ''}: {why}"
        data = {**where, "reg": output[1], **named, "reason": why, **data, "effect": "none"}
        return LimitViolated(f"Limit violated: {text}; nothing was written", data=data)

    def _place(self, addr: int) -> tuple[str, dict[str, Any]]:
        """Return a device in words, and as members of an error's data."""
        return f"i2c bus {self._bus}, address {addr:#04x}", {"bus": f"i2c:{self._bus}", "addr": addr}


class SpiLimits(RegisterLimits):
    """The limits of an SPI device that declares registers: each transfer is one to the I2C device at address 0."""

    def __init__(self, spec: SpiSpec) -> None:
        assert spec.declared is not None
        super().__init__(0, [spec.as_device()])
        self._spec = spec
        self.declared = spec.declared

    def messages(self, data: bytes) -> list[Message]:
        """Return what a transfer does as messages. Raises LimitViolated for one that begins with no command."""
        messages = self.declared.frame.messages(data)
        if messages is None:
            raise refused(self._spec.name, "a transfer begins with a command that reads or writes a register")
        return messages

    def reads(self, addr: int, messages: Sequence[Message], answer: bytes) -> Iterator[tuple[Hashable, int]]:
        """Yield the register that a transfer has read whole, and its number."""
        return super().reads(addr, messages, answer[self.declared.frame.header :])

    def clamp_reports(self, writes: Sequence[RegisterWrite], numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the reports of I2C with the device's name in place of its address."""
        for report in super().clamp_reports(writes, numbers):
            del report["addr"]
            yield {"device": self._spec.name, **report}

    def foresee(self, drive: Drive) -> None:
        """Refuse what could never be written. Raises LimitViolated."""
        super().foresee(Drive(drive.bus, 0, self.messages(drive.level)))

    def _place(self, addr: int) -> tuple[str, dict[str, Any]]:
        del addr
        return f"spi device {self._spec.name!r}", {"bus": self._spec.bus, "device": self._spec.name}


def bounded(spec: Register) -> _BoundedRegister:
    """Return the state of a register's limits."""
    bounds = spec.raw_bounds
    step = inf if spec.max_step is None else spec.max_step / spec.scale
    if step < inf and isinstance(bounds[0], int):
        step = floor(step + ROUNDING)
    return _BoundedRegister(
        *bounds,
        spec=spec,
        step=step,
        slew=inf if spec.slew_per_s is None else spec.slew_per_s / spec.scale,
    )
