"""Typed namespaces of a session: `await session.gpio.set("LED", 1)` for `await session.run("gpio.set", …)`.

A namespace calls tools through its session's `run`, so it raises what `run` raises. Binary data is bytes, in and out.
The methods are coroutines of whichever event loop the session belongs to: Trio, or asyncio for `hearth.aio`.
`hearth.sync` has the same methods as plain ones, made from these. A result without a member that its schema requires
raises CarrierError.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from attrs import NOTHING, evolve, field, fields, frozen

from hearth.errors import CarrierError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from attrs import AttrsInstance

T = TypeVar("T")
A = TypeVar("A", bound="AttrsInstance")

Bytes: TypeAlias = "bytes | bytearray | memoryview"
ModbusTable: TypeAlias = Literal["coil", "discrete", "input", "holding"]
SignalValue: TypeAlias = "bool | float | str"
FileType: TypeAlias = Literal["file", "directory", "symlink", "fifo", "socket", "device", "unknown"]


class ToolRunner(Protocol):
    """The part of a session that namespaces use."""

    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """Run one tool and return its result."""
        ...


# --- results --------------------------------------------------------------------------------------------------------


@frozen
class LineEdge:
    """A change of a line's level."""

    value: int
    """The level after the change: 0 or 1."""
    edge: Literal["rising", "falling"]
    timestamp_ns: int
    """CLOCK_MONOTONIC of the machine with the line, in nanoseconds."""
    seq: int
    """Number of the edge since the watch began, from 1; a gap shows that edges were lost."""


class Received(bytes):
    """The bytes that a serial port received."""

    timed_out: bool
    """True if the time was over before the requested end."""
    lost: int
    """Bytes and characters that were lost before these: this session read too late, or the device overran."""

    def __new__(cls, data: bytes, *, timed_out: bool = False, lost: int = 0) -> Self:
        """Return these bytes."""
        received = super().__new__(cls, data)
        received.timed_out, received.lost = timed_out, lost
        return received


@frozen
class SensorReading:
    """A measured value with its unit ("celsius", "volt", …)."""

    sensor: str
    value: float
    unit: str

    def __float__(self) -> float:
        return float(self.value)


@frozen
class SensorCapture:
    """Samples of sensors, taken at an even rate: `samples["vibration"]` has those of one, oldest first."""

    samples: Mapping[str, Sequence[float]]
    """By sensor, all of the same length."""
    units: Mapping[str, str]
    """By sensor."""
    rate_hz: float | None
    """The rate that the device had; None if it has none, as with a trigger that a program fires."""
    timestamps_us: Sequence[int] | None
    """The time of each sample by the device's clock, if it was asked for."""
    timed_out: bool
    """True if fewer samples than asked for came in time."""


@frozen
class PwmReading:
    """What a PWM channel gives out: its share of the period, and its pulse and period in microseconds."""

    channel: str
    on: bool
    duty: float
    pulse_us: float
    period_us: float
    angle: float | None = None
    """Of a servo, in degrees: what it was told; None if it is off, and of a channel without a servo."""


@frozen
class CanSignal:
    """The value of a signal in its unit, with the name of its choice where its DBC file gives the value one.

    `value` is None where the bits are not a number: `none` says what they are ("not available").
    """

    value: float | None
    unit: str | None = None
    name: str | None = None
    none: str | None = None

    def __float__(self) -> float:
        if self.value is None:
            raise ValueError(f"the signal has no value: {self.none}")
        return float(self.value)


@frozen(kw_only=True)
class CanFrame:
    """A CAN frame, or a report of the interface about an error: then `error` says which ones, and `id` is empty.

    `id` is in hex, with three digits for 11 bits ("0x123") and eight for 29 bits; all methods take it as it is.
    """

    id: str
    data: bytes = b""
    message: str | None = None
    """Its name in the DBC file of the bus; then `signals` has its values."""
    signals: Mapping[str, CanSignal] = field(factory=dict)
    timestamp_us: int | None = None
    """Microseconds since 1970 at which it was received; None for one that was sent."""
    fd: bool = False
    bitrate_switch: bool = False
    remote: bool = False
    length: int | None = None
    """Bytes that a `remote` frame asks for."""
    note: str | None = None
    """Why signals of the message are missing: the frame is short, or the file does not have a multiplexer's value."""
    error: Sequence[str] = ()


class CanFrames(tuple[CanFrame, ...]):  # noqa: SLOT001  subclasses of tuple have none that are not empty
    """Frames in the order in which they came."""

    timed_out: bool
    """True if the time was over before there were as many as requested."""
    lost: int
    """Frames that were lost before these: this session read too late, or the kernel's buffer was full."""

    def __new__(cls, frames: Iterable[CanFrame], *, timed_out: bool = False, lost: int = 0) -> Self:
        """Return these frames."""
        made = super().__new__(cls, frames)
        made.timed_out, made.lost = timed_out, lost
        return made


@frozen
class CanWatched:
    """The end of a watch: the number of frames seen and lost, and the newest frame of each identifier."""

    seen: int
    lost: int
    timed_out: bool
    latest: Sequence[CanFrame]


@frozen
class ModbusReading:
    """The value of a Modbus register in its unit; None if the device says that it has none."""

    register: int
    """Its address on the wire, from 0."""
    value: bool | float | None
    name: str | None = None
    unit: str | None = None


@frozen
class DacReading:
    """The value that a channel of a converter is set to, in its unit; None if it is off."""

    channel: str
    value: float | None
    unit: str


@frozen(kw_only=True)
class SignalReading:
    """A signal's value in its unit; None, with `why`, if it has none now."""

    name: str
    bus: str
    """The id of its bus; `"BUS:NAME"` is its full name."""
    value: SignalValue | None
    unit: str | None = None
    at: str | None
    """When it was measured (RFC 3339, UTC); None: not known."""
    quality: Literal["good", "stale", "none", "failed"]
    """"good": measured at `at`; "stale": remembered; else there is no value."""
    why: str | None = None


@frozen(kw_only=True)
class SignalRow(SignalReading):
    """A signal of the board; the value is the one that is known without asking the hardware."""

    kind: str
    access: Literal["r", "w", "rw", ""]
    """"r": it can be read, "w": it can be set."""
    safe: SignalValue | None
    """The value it is brought to when the session that drove it ends; None: it stays."""
    limit: Mapping[str, Any]
    interlocks: Sequence[Mapping[str, Any]]
    owner: str | None
    """The id of this session while it drives the output, or "another session"."""
    reserved: str | None
    """The reason why it can be neither read nor set."""
    left: bool
    """True if it is driven and a halt does not stop it."""


class SignalRows(tuple[SignalRow, ...]):  # noqa: SLOT001  subclasses of tuple have none that are not empty
    """Signals in the order of the board's kinds."""

    truncated: bool
    """True if there are more than the list has: give a `kind` or a `name`."""

    def __new__(cls, rows: Iterable[SignalRow], *, truncated: bool = False) -> Self:
        """Return these rows."""
        made = super().__new__(cls, rows)
        made.truncated = truncated
        return made


@frozen
class SignalChange:
    """A value that a signal has changed to, in its unit; None if it has none any more."""

    value: SignalValue | None
    at: str | None = None
    """When it was measured (RFC 3339, UTC)."""


@frozen
class FileStat:
    """A file's type, size in bytes, time of last change (seconds since 1970, UTC) and permissions ("0644")."""

    path: str
    type: FileType
    size: int
    mtime: float
    mode: str


@frozen
class DirEntry:
    """An entry of a directory; `size` and `mtime` are None if it may not be looked at."""

    name: str
    type: FileType
    size: int | None = None
    mtime: float | None = None


# --- namespaces -----------------------------------------------------------------------------------------------------


class Namespace:
    """Methods that run tools of one family in one session."""

    __slots__ = ("_session",)

    def __init__(self, session: ToolRunner) -> None:
        self._session = session

    async def _run(self, tool: str, **args: Any) -> _Result:
        given = {name: value for name, value in args.items() if value is not None}
        return _Result(tool, await self._session.run(tool, **given))


class GpioNamespace(Namespace):
    """GPIO lines. `line` is an offset (17) or a name ("LED"); `chip` is a label, the first chip if left out."""

    __slots__ = ()

    async def get(self, line: int | str, *, chip: str | None = None) -> int:
        """Return the level of a line: 0 is low, 1 is high."""
        return (await self._run("gpio.get", line=line, chip=chip)).member("value", int)

    async def set(self, line: int | str, value: int, *, chip: str | None = None) -> None:
        """Drive a line low (0) or high (1), until it is set again or the session ends."""
        await self._run("gpio.set", line=line, value=int(value), chip=chip)

    async def pulse(self, line: int | str, value: int, duration_ms: int, *, chip: str | None = None) -> None:
        """Drive a line to a value for 1 to 60000 milliseconds, then bring it back to its former state."""
        await self._run("gpio.pulse", line=line, value=int(value), duration_ms=duration_ms, chip=chip)

    async def watch(
        self,
        line: int | str,
        *,
        edge: Literal["rising", "falling", "both"] = "both",
        count: int = 1,
        timeout_ms: int = 10_000,
        chip: str | None = None,
    ) -> Sequence[LineEdge]:
        """Wait for `count` edges on a line; return the edges, which are fewer if `timeout_ms` is over first."""
        result = await self._run("gpio.watch", line=line, edge=edge, count=count, timeout_ms=timeout_ms, chip=chip)
        return [one.read(LineEdge, "value", "edge", "timestamp_ns", "seq") for one in result.objects("edges")]


class I2cNamespace(Namespace):
    """I2C adapters and the devices on them. `bus` is N of /dev/i2c-N, `addr` is 72 or "0x48".

    Each method is one transaction on the bus. `reg_width` is the bits of the register's number, 8 or 16.
    """

    __slots__ = ()

    async def read(
        self,
        bus: int,
        addr: int | str,
        *,
        length: int,
        reg: int | str | None = None,
        reg_width: Literal[8, 16] | None = None,
        ten_bit: bool | None = None,
    ) -> bytes:
        """Read 1 to 4096 bytes, starting at register `reg` if one is given."""
        result = await self._run(
            "i2c.read", bus=bus, addr=addr, reg=reg, reg_width=reg_width, len=length, ten_bit=ten_bit
        )
        return result.data()

    async def write(
        self,
        bus: int,
        addr: int | str,
        data: Bytes,
        *,
        reg: int | str | None = None,
        reg_width: Literal[8, 16] | None = None,
        ten_bit: bool | None = None,
    ) -> None:
        """Write 1 to 4096 bytes, starting at register `reg` if one is given. There is no rollback."""
        await self._run(
            "i2c.write", bus=bus, addr=addr, reg=reg, reg_width=reg_width, data=_base64(data), ten_bit=ten_bit
        )

    async def transfer(
        self, bus: int, addr: int | str, write: Bytes, *, length: int = 0, ten_bit: bool | None = None
    ) -> bytes:
        """Write bytes and then read `length` bytes, with a repeated START between them."""
        result = await self._run(
            "i2c.transfer", bus=bus, addr=addr, write=_base64(write), read_len=length, ten_bit=ten_bit
        )
        return result.data()

    async def scan(self, bus: int, *, include: Iterable[int | str] = ()) -> Sequence[int]:
        """Return the addresses that acknowledge, ascending; `include` asks addresses that are otherwise left out."""
        return (await self._run("i2c.scan", bus=bus, include=[*include] or None)).member("addresses", list)


class UartNamespace(Namespace):
    """Serial ports, by their names.

    A read ends after `length` bytes, after the text `until`, or after `gap_ms` of silence, whichever is first, and at
    the latest after `timeout_ms`.
    """

    __slots__ = ()

    async def read(
        self,
        port: str,
        *,
        length: int | None = None,
        until: str | None = None,
        gap_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> Received:
        """Return what has come since this session's last read, and wait for more if need be (default: 1000 ms)."""
        result = await self._run("uart.read", port=port, len=length, until=until, gap_ms=gap_ms, timeout_ms=timeout_ms)
        return result.received()

    async def write(self, port: str, data: Bytes, *, drain: bool | None = None) -> None:
        """Send 1 to 4096 bytes; with `drain` wait until they have left the system."""
        await self._run("uart.write", port=port, data=_base64(data), drain=drain)

    async def exchange(
        self,
        port: str,
        data: Bytes,
        *,
        length: int | None = None,
        until: str | None = None,
        gap_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> Received:
        """Send a command and return the reply, with no other transfer between; earlier input is skipped."""
        result = await self._run(
            "uart.exchange",
            port=port,
            data=_base64(data),
            len=length,
            until=until,
            gap_ms=gap_ms,
            timeout_ms=timeout_ms,
        )
        return result.received()


class PwmNamespace(Namespace):
    """PWM channels and servos, by their names."""

    __slots__ = ()

    async def get(self, channel: str) -> PwmReading:
        """Return what a channel gives out."""
        result = await self._run("pwm.get", channel=channel)
        return evolve(
            result.read(PwmReading, "channel", "on", "duty", "pulse_us", "period_us"), angle=result.get("angle")
        )

    async def set(
        self,
        channel: str,
        *,
        duty: float | None = None,
        pulse_us: float | None = None,
        period_us: float | None = None,
    ) -> None:
        """Make a channel give out pulses, by exactly one of `duty` (0 to 1) and `pulse_us`, until it is set again."""
        await self._run("pwm.set", channel=channel, duty=duty, pulse_us=pulse_us, period_us=period_us)

    async def off(self, channel: str) -> None:
        """Make a channel or a servo give out nothing."""
        await self._run("pwm.off", channel=channel)

    async def move(self, servo: str, angle: float) -> float:
        """Move a servo to an angle in degrees; return the angle, which is another one where the board clamps it."""
        return (await self._run("servo.move", servo=servo, angle=angle)).number("angle")


class DacNamespace(Namespace):
    """Channels of converters (DAC), by their names, with values in their units."""

    __slots__ = ()

    async def get(self, channel: str) -> DacReading:
        """Return the value that a channel is set to."""
        result = await self._run("dac.get", channel=channel)
        return result.read(DacReading, "channel", "value", "unit")

    async def set(self, channel: str, value: float) -> float:
        """Bring a channel to a value; return the value, which is another one where the board clamps it."""
        return (await self._run("dac.set", channel=channel, value=value)).number("value")


class SpiNamespace(Namespace):
    """SPI devices, by their names. Each method is one transfer.

    `register` is the name or the number of a register that the board's profile declares; a value is in its unit.
    """

    __slots__ = ()

    async def transfer(self, device: str, write: Bytes) -> bytes:
        """Send 1 to 4096 bytes, and return as many bytes that came in at the same time."""
        return (await self._run("spi.transfer", device=device, write=_base64(write))).data()

    async def read(self, device: str, register: int | str) -> float:
        """Return the value of a register."""
        return (await self._run("spi.read", device=device, register=register)).number("value")

    async def write(self, device: str, register: int | str, value: float) -> float:
        """Write the nearest value that the register can hold, and return it; there is no rollback."""
        result = await self._run("spi.write", device=device, register=register, value=value)
        return result.number("value")


class CanNamespace(Namespace):
    """CAN buses, by their names.

    An identifier is a number, or hex with three digits for 11 bits and eight for 29 bits. A message is one of the bus's
    DBC file. A signal's value is a number in its unit, the name of a choice, or `{"value": …, "unit": …}`.
    """

    __slots__ = ()

    async def send(
        self,
        bus: str,
        message: str | None = None,
        signals: Mapping[str, Any] | None = None,
        *,
        ident: int | str | None = None,
        data: Bytes | None = None,
        fd: bool | None = None,
        bitrate_switch: bool | None = None,
        timeout_ms: int | None = None,
    ) -> CanFrame:
        """Send a `message` with its `signals`, or `data` with an identifier; return the frame as it was sent.

        Raises LimitViolated for a value out of its bounds, and TimedOut if no node has acknowledged the frame in time.
        """
        given = None if data is None else _base64(data)
        result = await self._run(
            "can.send",
            bus=bus,
            message=message,
            signals=None if signals is None else dict(signals),
            id=ident,
            data=given,
            fd=fd,
            bitrate_switch=bitrate_switch,
            timeout_ms=timeout_ms,
        )
        return result.frame()

    async def read(
        self,
        bus: str,
        *,
        only: Iterable[int | str] | None = None,
        count: int = 1,
        timeout_ms: int | None = None,
        errors: bool | None = None,
    ) -> CanFrames:
        """Return `count` frames that have come since this session's last read, and wait for more if need be.

        `only` has identifiers, names of messages, or patterns over names ("ENGINE_*"). There are fewer frames if
        `timeout_ms` (default: 1000) is over first. `errors` adds what the interface reports.
        """
        wanted = None if only is None else [*only]
        result = await self._run("can.read", bus=bus, filter=wanted, count=count, timeout_ms=timeout_ms, errors=errors)
        frames = [one.frame() for one in result.objects("frames")]
        return CanFrames(frames, timed_out=result.member("timed_out", bool), lost=result.member("lost", int))

    async def watch(
        self,
        bus: str,
        *,
        only: Iterable[int | str] | None = None,
        count: int | None = None,
        timeout_ms: int | None = None,
        errors: bool | None = None,
    ) -> CanWatched:
        """Wait for `count` frames from now on (default: 256), at most `timeout_ms`; takes nothing from `read`.

        All frames are in the progress events of a task with a `can.watch` step (`session.submit`).
        """
        wanted = None if only is None else [*only]
        result = await self._run("can.watch", bus=bus, filter=wanted, count=count, timeout_ms=timeout_ms, errors=errors)
        latest = [one.frame() for one in result.objects("latest")]
        return CanWatched(
            result.member("seen", int), result.member("lost", int), result.member("timed_out", bool), latest
        )

    async def isotp(
        self,
        bus: str,
        tx: int | str,
        rx: int | str,
        data: Bytes,
        *,
        padding: int | None = None,
        fd: bool | None = None,
        timeout_ms: int | None = None,
    ) -> Received:
        """Send an ISO-TP message of 1 to 4095 bytes to the identifier `tx`, and return the answer from `rx`.

        Running into `timeout_ms` is no failure: the answer is empty then, and `timed_out` is True.
        """
        result = await self._run(
            "can.isotp", bus=bus, tx=tx, rx=rx, data=_base64(data), padding=padding, fd=fd, timeout_ms=timeout_ms
        )
        return result.received()


class ModbusNamespace(Namespace):
    """Modbus devices, by their names. `register` is the name of a register, or its address in `table`."""

    __slots__ = ()

    async def read(self, device: str, register: int | str, *, table: ModbusTable | None = None) -> bool | float | None:
        """Return the value of a register in its unit; None if the device says that it has none."""
        result = await self._run("modbus.read", device=device, table=table, **_register(register))
        return result.register_value()

    async def read_many(
        self, device: str, register: int | str, count: int, *, table: ModbusTable | None = None
    ) -> Sequence[ModbusReading]:
        """Return the values of `count` registers that follow each other, by one request."""
        result = await self._run("modbus.read", device=device, table=table, count=count, **_register(register))
        # A row of one register has no list.
        rows = [result] if result.get("values") is None else result.objects("values")
        return [
            ModbusReading(row.member("register", int), row.register_value(), row.get("name"), row.get("unit"))
            for row in rows
        ]

    async def write(
        self,
        device: str,
        register: int | str,
        value: bool | float,
        *,
        table: Literal["coil", "holding"] | None = None,
    ) -> bool | float | None:
        """Write the nearest value that a register can hold, and return it; it stays when the session ends.

        Raises TimedOut or DeviceError with effect "unknown" when the answer is lost: read the register back.
        """
        result = await self._run("modbus.write", device=device, value=value, table=table, **_register(register))
        return result.register_value()


def _register(register: int | str) -> dict[str, int | str]:
    return {"name" if isinstance(register, str) else "register": register}


class FilesNamespace(Namespace):
    """Files on the machine of the daemon. Paths are absolute, beneath a directory that its operator allows."""

    __slots__ = ()

    async def listdir(self, path: str | os.PathLike[str]) -> Sequence[DirEntry]:
        """Return the entries of a directory by name, at most 2000; links are not followed."""
        result = await self._run("file.list", path=_path(path))
        return [DirEntry(*map(one.get, ("name", "type", "size", "mtime"))) for one in result.objects("entries")]

    async def stat(self, path: str | os.PathLike[str]) -> FileStat:
        """Look at a file or directory without reading it; follows links. Raises DeviceError if there is nothing."""
        result = await self._run("file.stat", path=_path(path))
        return result.read(FileStat, "path", "type", "size", "mtime", "mode")

    async def read(self, path: str | os.PathLike[str], *, offset: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes from `offset` on, fewer at the end of the file; None is the rest of the file.

        More than 262144 bytes are read in several steps, between which the file may change.
        """
        parts: list[bytes] = []
        while length is None or length > 0:
            most = None if length is None else min(length, SLICE)
            result = await self._run("file.read", path=_path(path), offset=offset, len=most)
            part = result.data()
            parts.append(part)
            if not part or result.member("eof", bool):
                break
            offset += len(part)
            length = None if length is None else length - len(part)
        return b"".join(parts)

    async def write(
        self,
        path: str | os.PathLike[str],
        data: Bytes,
        *,
        mode: Literal["replace", "append", "create"] | None = None,
    ) -> int:
        """Write a file of at most 1048576 bytes and return its size; the default mode replaces it whole and at once."""
        return (await self._run("file.write", path=_path(path), data=_base64(data), mode=mode)).member("size", int)


SLICE = 262_144
"""Bytes that one file.read returns at most."""


class SensorsNamespace(Namespace):
    """Sensors, by their names."""

    __slots__ = ()

    async def names(self) -> Sequence[str]:
        """Return the names of the sensors that `read` takes."""
        return [one.member("sensor", str) for one in (await self._run("hw.sensor.list")).objects("sensors")]

    async def read(self, sensor: str) -> SensorReading:
        """Return what a sensor measures now."""
        return (await self._run("hw.sensor.read", sensor=sensor)).read(SensorReading, "sensor", "value", "unit")

    async def capture(
        self,
        *sensors: str,
        samples: int,
        rate_hz: float | None = None,
        timestamps: bool | None = None,
        timeout_ms: int | None = None,
    ) -> SensorCapture:
        """Return `samples` of sensors of one device, taken through its buffer at `rate_hz`, or at the rate it has.

        There are fewer samples if `timeout_ms` (default: 10000) is over first.
        """
        result = await self._run(
            "hw.sensor.capture",
            sensors=[*sensors],
            samples=samples,
            rate_hz=rate_hz,
            timestamps=timestamps,
            timeout_ms=timeout_ms,
        )
        captured = result.objects("sensors")
        return SensorCapture(
            samples={one.member("sensor", str): one.member("samples", list) for one in captured},
            units={one.member("sensor", str): one.member("unit", str) for one in captured},
            rate_hz=result.get("rate_hz"),
            timestamps_us=result.get("timestamps_us"),
            timed_out=result.member("timed_out", bool),
        )


class SignalsNamespace(Namespace):
    """Signals: every value that the board's profile names, whatever bus it is on.

    `name` is the name in `list` ("PUMP", "FAN.speed"). A full name ("gpio:sim:PUMP") always works, a short one where no
    other signal of the board has it.
    """

    __slots__ = ()

    async def list(self, *, kind: str | None = None, name: str | None = None) -> SignalRows:
        """Return the signals of the board: all, those on buses of one kind, those whose name fits a pattern ("TANK*").

        Their values are those that are known without asking the hardware.
        """
        result = await self._run("signal.list", kind=kind, name=name)
        rows = [one.made(SignalRow) for one in result.objects("signals")]
        return SignalRows(rows, truncated=result.member("truncated", bool))

    async def read(self, name: str) -> SignalReading:
        """Return the value of a signal."""
        return (await self._run("signal.read", name=name)).made(SignalReading)

    async def set(self, name: str, value: SignalValue, *, duration_ms: int | None = None) -> SignalValue:
        """Bring an output to a value in its unit, with the unit ("3.3 V") if that is to be checked, or "off".

        Returns the value that was driven, which is another one where the board clamps it. The output stays so until it
        is set again or the session ends; with `duration_ms` it goes back after that time.
        """
        result = await self._run("signal.set", name=name, value=value, duration_ms=duration_ms)
        driven: SignalValue = result.needed("value")
        return driven

    async def watch(
        self, name: str, *, count: int = 1, min_change: float | None = None, timeout_ms: int = 10_000
    ) -> Sequence[SignalChange]:
        """Wait for `count` changes of a signal; return them. They are fewer if `timeout_ms` is over first.

        A change smaller than `min_change` does not count.
        """
        result = await self._run("signal.watch", name=name, count=count, min_change=min_change, timeout_ms=timeout_ms)
        return [one.made(SignalChange) for one in result.objects("changes")]


# --- arguments and results ------------------------------------------------------------------------------------------


class _Result:
    """A tool's result, or an object in it."""

    __slots__ = ("_tool", "_values")

    def __init__(self, tool: str, values: Any) -> None:
        self._tool = tool
        self._values: Mapping[str, Any] = values if isinstance(values, dict) else {}

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def member(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        if not isinstance(value, kind):
            raise CarrierError(f"the server answered {self._tool} without {name} ({kind.__name__})")
        return value

    def objects(self, name: str) -> list[_Result]:
        return [_Result(self._tool, one) for one in self.member(name, list)]

    def read(self, kind: type[T], *names: str) -> T:
        return kind(*[self.member(name, object) for name in names])

    def needed(self, name: str) -> Any:
        if name not in self._values:
            raise CarrierError(f"the server answered {self._tool} without {name}")
        return self._values[name]

    def made(self, kind: type[A]) -> A:
        """Return an attrs object of the members that have its attributes' names; one with a default may be missing."""
        wanted = (one for one in fields(kind) if one.default is NOTHING or one.name in self._values)
        return kind(**{one.name: self.needed(one.name) for one in wanted})

    def number(self, name: str) -> float:
        value = self.member(name, object)
        if not isinstance(value, (int, float)):
            raise CarrierError(f"the server answered {self._tool} without {name} (number)")
        return value

    def register_value(self) -> bool | float | None:
        value = self._values.get("value")
        if "value" not in self._values or not isinstance(value, (int, float, type(None))):
            raise CarrierError(f"the server answered {self._tool} without value (number, boolean or null)")
        return value

    def frame(self) -> CanFrame:
        error = self.get("error")
        if error:
            return CanFrame(id="", error=self.member("error", list), timestamp_us=self.get("timestamp_us"))
        signals = self.get("signals") or {}
        return CanFrame(
            id=self.member("id", str),
            data=self.data(),
            message=self.get("message"),
            signals={name: _Result(self._tool, one).signal() for name, one in signals.items()},
            timestamp_us=self.get("timestamp_us"),
            fd=bool(self.get("fd")),
            bitrate_switch=bool(self.get("bitrate_switch")),
            remote=bool(self.get("remote")),
            length=self.get("length"),
            note=self.get("note"),
        )

    def signal(self) -> CanSignal:
        value = None if self.get("value") is None else self.number("value")
        return CanSignal(value, self.get("unit"), self.get("name"), self.get("none"))

    def data(self) -> bytes:
        try:
            return base64.b64decode(self.member("data", str), validate=True)
        except binascii.Error:
            raise CarrierError(f"the server answered {self._tool} with data that is not base64") from None

    def received(self) -> Received:
        lost = sum(self.get(name) or 0 for name in ("overflow", "overrun"))
        return Received(self.data(), timed_out=self.member("timed_out", bool), lost=lost)


def _base64(data: Bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _path(path: str | os.PathLike[str]) -> str:
    return path if isinstance(path, str) else path.__fspath__()
