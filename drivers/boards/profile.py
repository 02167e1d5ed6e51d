"""Board profiles: the devices of a board, as TOML, and the permitted uses of each.

It owns the profile's shape and its checks; it does not look at the machine. A profile is an allowlist: a line, adapter
or port that it does not list does not exist for clients of hearth.

It also owns the table of sensor kinds: reading a named quantity from a device, in one transaction, as a number with a
unit. A sensor keeps no state and needs no second transaction.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from attrs import field, frozen

from hearth.drivers.boards.toml import Table
from hearth.drivers.gpio import Direction, Drive, Hold, Level, LineSpec, LineState, Pull
from hearth.drivers.i2c import (
    FIRST_ADDR,
    LAST_ADDR,
    LAST_TEN_BIT,
    Addresses,
    I2cDriver,
    Message,
    Outcome,
    Read,
    RegWidth,
    Scope,
    Write,
)
from hearth.drivers.uart import Flow, Parity, Rs485, UartSettings
from hearth.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SENSORS_BUS = "sensors"
"""The bus of the sensors that the kernel drives itself, on boards whose profile offers them."""


@frozen
class SensorKind:
    """`messages` go to the device as one transaction; `decode` makes a number in `unit` of the bytes that were read."""

    messages: tuple[Message, ...]
    length: int
    decode: Callable[[bytes], float]
    unit: str


@frozen(eq=False)
class Sensor:
    """One sensor of a board. `bus` is a bus id ("i2c:1")."""

    name: str
    kind: str
    bus: str
    addr: int
    unit: str
    description: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the sensor for hw.sensor.list."""
        entry = {"sensor": self.name, "kind": self.kind, "unit": self.unit, "bus": self.bus}
        return entry if self.description is None else {**entry, "description": self.description}

    def read(self, driver: I2cDriver) -> Outcome[bytes]:
        """Return the transaction that reads it."""
        return driver.transfer(self.addr, SENSOR_KINDS[self.kind].messages)

    def value(self, raw: bytes) -> float:
        """Return the number of `raw`. Raises DeviceError for a reply of the wrong length."""
        kind = SENSOR_KINDS[self.kind]
        if len(raw) != kind.length:
            raise DeviceError(
                f"sensor {self.name!r}: expected {kind.length} bytes, got {len(raw)}",
                effect="done",
                data={"addr": self.addr},
            )
        return kind.decode(raw)


def decode_tmp102(raw: bytes) -> float:
    """Return degrees Celsius from the two bytes of a TMP102's temperature register, in its 12-bit or 13-bit form."""
    word = int.from_bytes(raw, "big", signed=True)
    return (word >> 3 if word & 1 else word >> 4) / 16


def _left(bits: int, per_unit: int) -> Callable[[bytes], float]:
    """Return a decoder of a signed value in the upper `bits` of a big-endian word; the lower bits are undefined."""
    return lambda raw: (int.from_bytes(raw, "big", signed=True) >> (16 - bits)) / per_unit


def decode_tmp117(raw: bytes) -> float:
    """Return degrees Celsius from a TMP117. Raises DeviceError for its -256 before the first conversion."""
    if raw == b"\x80\x00":
        raise DeviceError("the tmp117 has measured nothing yet; ask again", effect="none", data={"errno": "EAGAIN"})
    return int.from_bytes(raw, "big", signed=True) / 128


def decode_mcp9808(raw: bytes) -> float:
    """Return degrees Celsius from the 13 lower bits of an MCP9808's ambient register; the upper three are alerts."""
    word = int.from_bytes(raw, "big") & 0x1FFF
    return (word - 0x2000 if word & 0x1000 else word) / 16


def _register(number: int, decode: Callable[[bytes], float], unit: str = "celsius") -> SensorKind:
    """A kind whose value is one 16-bit register."""
    return SensorKind((Write(bytes((number,))), Read(2)), 2, decode, unit)


SENSOR_KINDS: Mapping[str, SensorKind] = {
    "tmp102": _register(0x00, decode_tmp102),
    "lm75": _register(0x00, _left(9, 2)),
    "lm75b": _register(0x00, _left(11, 8)),
    "tmp75": _register(0x00, _left(12, 16)),
    "tmp117": _register(0x00, decode_tmp117),
    "mcp9808": _register(0x05, decode_mcp9808),
    "ina219": _register(0x02, lambda raw: (int.from_bytes(raw, "big") >> 3) * 4 / 1000, "volt"),
    "ina226": _register(0x02, lambda raw: int.from_bytes(raw, "big") * 125 / 100_000, "volt"),
}
"""Sensors that can be read in one transaction from a chip as it powers up; of the INA chips that is the bus voltage.

A chip that has to be set up, waited for, or calibrated belongs to its kernel driver, whose sensors are offered too.
"""


BusKind: TypeAlias = Literal["gpio", "i2c", "uart", "sensors"]

_SHIPPED = Path(__file__).parent


@frozen
class SensorSpec:
    """A named sensor: a kind this release can read, on an I2C bus."""

    name: str
    kind: str
    bus: int
    addr: int
    description: str | None = None


@frozen
class Undriven:
    """A device that is listed or was found, and that cannot be used through hearth: `reason` says why.

    `cure` has commands, one a line, or a sentence, where there is a cure. `left_alone` marks a device that could be
    driven and is not, out of caution.
    """

    kind: BusKind
    name: str
    reason: str
    path: str | None = None
    label: str | None = None
    cure: str | None = None
    left_alone: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the device for hw.board and the lists."""
        entry: dict[str, Any] = {"kind": self.kind, "name": self.name, "driven": False, "reason": self.reason}
        optional = {"path": self.path, "label": self.label, "cure": self.cure, "left_alone": self.left_alone or None}
        return entry | {key: value for key, value in optional.items() if value is not None}


@frozen(eq=False)
class Profile:
    """A board, as its profile describes it. `tools` are the patterns of the tools that it allows."""

    name: str
    description: str
    source: str
    chips: tuple[ChipSpec, ...] = ()
    i2c: tuple[I2cSpec, ...] = ()
    uarts: tuple[UartSpec, ...] = ()
    sensors: tuple[SensorSpec, ...] = ()
    tools: tuple[str, ...] = ("*",)
    discover: Mapping[BusKind, tuple[str, ...]] = field(factory=dict)
    """Devices to look for on the machine besides the listed: kind to patterns of nodes and names, ("*",) for all."""


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that come with hearth."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def profile_file(name_or_path: str) -> Path | None:
    """Return the file of a profile that is given by its path; None for a shipped one."""
    return Path(name_or_path) if "/" in name_or_path or name_or_path.endswith(".toml") else None


def load_profile(name_or_path: str) -> Profile:
    """Read a profile: a shipped one by name, or a TOML file by path (with a "/" in it, or ending in .toml).

    Raises ConfigError naming the file, the key path and what is expected there.
    """
    path = profile_file(name_or_path)
    if path is None:
        path = _SHIPPED / f"{name_or_path}.toml"
        if name_or_path not in shipped_profiles():
            raise ConfigError(
                f"no board profile {name_or_path!r}; shipped are {', '.join(shipped_profiles())}, "
                "or give the path of a TOML file"
            )
    source = f"board profile {path.name if path.parent == _SHIPPED else path}"
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{source}: is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{source}: arrays or tables are nested too deeply; flatten them") from None
    return parse_profile(content, source)


def parse_profile(content: Mapping[str, object], source: str) -> Profile:
    """Return a profile from the content of its TOML file. Raises ConfigError."""
    top = Table(source, "", content)
    tools = top.table("tools")
    discover = top.table("discover")
    kinds: tuple[BusKind, ...] = ("gpio", "i2c", "uart", "sensors")
    profile = Profile(
        name=top.text("name"),
        description=top.text("description"),
        source=source,
        chips=tuple(parse_chip(table) for table in top.tables("gpio")),
        i2c=tuple(parse_adapter(table) for table in top.tables("i2c")),
        uarts=tuple(parse_port(table) for table in top.tables("uart")),
        sensors=tuple(_sensor(name, table) for name, table in top.named("sensors")),
        tools=tools.texts("allow", ("*",)),
        discover={kind: patterns for kind in kinds if (patterns := _patterns(discover, kind))},
    )
    tools.done()
    discover.done()
    top.done()
    _unique(top, "gpio", "label", [chip.label for chip in profile.chips])
    _unique(top, "i2c", "bus", [spec.bus for spec in profile.i2c])
    _unique(top, "uart", "port", [spec.port for spec in profile.uarts])
    adapters = {spec.bus: spec for spec in profile.i2c}
    for sensor in profile.sensors:
        if sensor.bus not in adapters:
            top.refuse(f"sensors.{sensor.name}.bus", f"there is no [[i2c]] with bus = {sensor.bus}")
        refused = adapters[sensor.bus].addresses.refusal(sensor.addr)
        if refused is not None:
            top.refuse(f"sensors.{sensor.name}.addr", f"{sensor.addr:#04x} may not be used: {refused}")
    return profile


def _unique(top: Table, key: str, what: str, values: list[str] | list[int]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            top.refuse(f"{key}[{index}].{what}", f"{value!r} is there twice")


def _patterns(table: Table, kind: str) -> tuple[str, ...]:
    """Read `true` for everything, or a list of patterns. Sensors have no patterns, because reading one does no harm."""
    if kind != "sensors" and table.is_list(kind):
        return table.texts(kind)
    return ("*",) if table.flag(kind, False) else ()


def _sensor(name: str, table: Table) -> SensorSpec:
    spec = SensorSpec(
        name,
        kind=table.choice("kind", tuple(SENSOR_KINDS)),
        bus=table.integer("bus", 0, 255),
        addr=parse_addr(table),
        description=table.text("description", None),
    )
    table.done()
    return spec


# --- I2C adapters and the known devices on them
# --- I2C adapters and the known devices on them -----------------------------------------------------------------------
#
# The shape of `[[i2c]]` and its checks.

I2C_DRIVERS = ("sim", "i2c-dev")
SIM_DEVICES: Mapping[str, RegWidth] = {"tmp102": 8, "24c02": 8}
"""The devices that the simulator has, with the width of their register numbers."""
_SCOPES: tuple[Scope, ...] = ("any", "declared")
_REG_WIDTHS: tuple[RegWidth | None, ...] = (8, 16, None)

FIRST_TEN_BIT = 0x80
"""From here to LAST_TEN_BIT an address has ten bits and cannot be mistaken for one of seven."""


@frozen
class DeviceSpec:
    """The device at an I2C address: made by the simulator, declared on real boards. 0x80 and above is 10-bit.

    `reg_width` is the number of bits of its register numbers: a read that begins with such a number cannot write.
    """

    addr: int
    kind: str
    note: str | None = None
    write_cycle_ms: float = 0.0
    reg_width: RegWidth | None = None


@frozen
class I2cSpec:
    """An I2C adapter, by the number in /dev/i2c-N, or by the kernel's name of it, where the number may move.

    `timeout_ms` and `retries` set the kernel's handling of one transfer on it. `scope` and `reserved` say which
    addresses may be used.
    """

    bus: int
    driver: str
    speed_hz: int = 100_000
    devices: tuple[DeviceSpec, ...] = ()
    adapter: str | None = None
    timeout_ms: int = 1000
    retries: int = 0
    scope: Scope = "any"
    reserved: tuple[int, ...] = ()

    @property
    def addresses(self) -> Addresses:
        """Return the rules for its addresses, as its driver checks them."""
        declared: dict[int, RegWidth | None] = {device.addr: device.reg_width for device in self.devices}
        return Addresses(declared, self.scope, frozenset(self.reserved))


def parse_adapter(table: Table) -> I2cSpec:
    """One `[[i2c]]`. Raises ConfigError with the key path."""
    bus = table.integer("bus", 0, 255)
    driver = table.choice("driver", I2C_DRIVERS)
    speed = table.integer("speed_hz", 1_000, 3_400_000, 100_000)
    if driver == "sim":
        for key in ("adapter", "timeout_ms", "retries"):
            if table.has(key):
                table.refuse(key, 'a simulated adapter has none; it is for driver = "i2c-dev"')
    adapter = table.text("adapter", None)
    timeout = table.integer("timeout_ms", 10, 60_000, 1000)
    retries = table.integer("retries", 0, 10, 0)
    scope: Scope = table.choice("scope", _SCOPES, "any")
    reserved = table.integers("reserved", FIRST_ADDR, LAST_TEN_BIT)
    devices: list[DeviceSpec] = []
    for entry in table.tables("device"):
        addr = parse_addr(entry, ten_bit=driver != "sim")
        if any(addr == other.addr for other in devices):
            entry.refuse("addr", f"{addr:#04x} is taken on this bus")
        if addr in reserved:
            entry.refuse("addr", f"{addr:#04x} is among the adapter's `reserved` addresses; take it out of one of them")
        kind = entry.choice("kind", tuple(SIM_DEVICES)) if driver == "sim" else entry.text("kind")
        note, cycle = entry.text("note", None), entry.number("write_cycle_ms", 0, 1000, 0.0)
        width: RegWidth | None = entry.choice("reg_width", _REG_WIDTHS, None)
        if driver == "sim":
            if width not in (None, SIM_DEVICES[kind]):
                entry.refuse("reg_width", f"the simulated {kind} has {SIM_DEVICES[kind]}, found {width}")
            width = SIM_DEVICES[kind]
        devices.append(DeviceSpec(addr, kind, note, cycle, width))
        entry.done()
    table.done()
    return I2cSpec(bus, driver, speed, tuple(devices), adapter, timeout, retries, scope, reserved)


def parse_addr(table: Table, *, ten_bit: bool = True) -> int:
    """The key `addr`: 0x08 to 0x77, or a 10-bit one beyond them. Raises ConfigError."""
    addr = table.integer("addr", FIRST_ADDR, LAST_TEN_BIT if ten_bit else LAST_ADDR)
    if LAST_ADDR < addr < FIRST_TEN_BIT:
        table.refuse(
            "addr",
            f"{addr:#04x} is reserved by the I2C specification; devices have {FIRST_ADDR:#04x} to {LAST_ADDR:#04x}, "
            f"with 10 bits {FIRST_TEN_BIT:#04x} to {LAST_TEN_BIT:#05x}",
        )
    return addr


# --- serial ports
# --- serial ports -----------------------------------------------------------------------------------------------------
#
# The shape of `[[uart]]`: the name that callers use, the device, and its settings. `UartSettings` checks the settings.

UART_DRIVERS = ("sim", "serial")
MAX_BAUD = 20_000_000
MAX_DELAY_MS = 1000


@frozen
class UartSpec:
    """A serial port: the name that callers use, and its device."""

    port: str
    driver: str
    path: str | None = None
    settings: UartSettings = field(factory=UartSettings)
    peer: Literal["echo", "none"] = "echo"

    @property
    def baud(self) -> int:
        """Return the rate in bits a second."""
        return self.settings.baud


def parse_port(table: Table) -> UartSpec:
    """One `[[uart]]`. Raises ConfigError with the key path."""
    port = table.text("port")
    driver = table.choice("driver", UART_DRIVERS)
    path = table.text("path", None) if driver == "sim" else table.text("path")
    if driver == "sim" and path is not None:
        table.refuse("path", "a simulated port has none: the pseudo-terminal's is in hw.uart.list")
    if driver != "sim" and table.has("peer"):
        table.refuse("peer", 'only a simulated port (driver = "sim") has one')
    spec = UartSpec(
        port,
        driver,
        path=path,
        settings=_settings(table),
        peer=cast('Literal["echo", "none"]', table.choice("peer", ("echo", "none"), "echo")),
    )
    table.done()
    return spec


def _settings(table: Table) -> UartSettings:
    values: dict[str, Any] = {
        "baud": table.integer("baud", 50, MAX_BAUD, 115_200),
        "bits": table.choice("bits", (5, 6, 7, 8), 8),
        "parity": cast("Parity", table.choice("parity", ("none", "even", "odd", "mark", "space"), "none")),
        "stop_bits": table.choice("stop_bits", (1, 1.5, 2), 1),
        "flow": cast("Flow", table.choice("flow", ("none", "rtscts", "xonxoff"), "none")),
        "rs485": _rs485(table),
        "inbox_bytes": table.integer("inbox_bytes", 4096, 16_777_216, 65_536),
        "rts": table.flag("rts", True),
        "dtr": table.flag("dtr", True),
        "hangup": table.flag("hangup", True),
    }
    try:
        return UartSettings(**values)
    except ValueError as error:
        # The value's own check names the key first: "stop_bits: …".
        key, _, why = str(error).partition(": ")
        table.refuse(key, why)


def _rs485(table: Table) -> Rs485 | None:
    """Read `rs485 = true`, or a table of its details."""
    if not table.is_table("rs485"):
        return Rs485() if table.flag("rs485", False) else None
    details = table.table("rs485")
    rs485 = Rs485(
        rts_on_send=details.flag("rts_on_send", True),
        loopback=details.flag("loopback", False),
        before_ms=details.integer("before_ms", 0, MAX_DELAY_MS, 0),
        after_ms=details.integer("after_ms", 0, MAX_DELAY_MS, 0),
    )
    details.done()
    return rs485


# --- GPIO chips
# --- GPIO chips -------------------------------------------------------------------------------------------------------
#
# The shape of `[[gpio]]` and its checks: the chip's label, its lines, and the permitted uses of each.

GPIO_DRIVERS = ("sim", "gpiod")

MAX_OFFSET = 1023
_INITIAL: tuple[Level | None, ...] = (0, 1, None)
MAX_DEBOUNCE_US = 1_000_000
"""A second: a longer bounce is no contact's."""


@frozen
class ChipSpec:
    """A GPIO chip, found by its label, or by its device node where two chips have the same one.

    `aliases` are further names of its lines, `wires` are for the simulator. `blocking` is true if requests to the chip
    may sleep (chips behind a bus do); None: the driver finds out.
    """

    label: str
    driver: str
    lines: tuple[LineSpec, ...]
    aliases: Mapping[str, int]
    wires: tuple[tuple[int, int], ...] = ()
    path: str | None = None
    blocking: bool | None = None


def parse_chip(table: Table) -> ChipSpec:
    """One `[[gpio]]`. Raises ConfigError with the key path."""
    label = table.text("label")
    driver = table.choice("driver", GPIO_DRIVERS)
    path = table.text("path", None)
    blocking = table.optional_flag("blocking")
    if driver == "sim" and path is not None:
        table.refuse("path", "a simulated chip has no device node")
    if driver == "sim" and blocking is not None:
        table.refuse("blocking", "a simulated chip never blocks")
    offsets = _offsets(table)
    details = dict(table.named("lines"))
    for name in details:
        if name not in offsets:
            table.refuse(f"lines.{name}", "no such name under `names`")
    lines = tuple(_line(offset, name, details.get(name)) for name, offset in offsets.items())
    aliases: dict[str, int] = {}
    for alias, name in table.mapping("alias").items():
        if alias in offsets:
            table.refuse(f"alias.{alias}", "a line has this name already")
        aliases[alias] = _offset(table, f"alias.{alias}", name, offsets)
    wires = tuple(
        (_offset(table, "wires", one, offsets), _offset(table, "wires", other, offsets))
        for one, other in table.pairs("wires")
    )
    if wires and driver != "sim":
        table.refuse("wires", 'only a simulated chip (driver = "sim") has wires')
    table.done()
    return ChipSpec(label, driver, lines, aliases, wires, path, blocking)


def _offsets(table: Table) -> dict[str, int]:
    """Map line names to offsets, from `names`, where the index is the offset and "" leaves a line out."""
    names = table.texts("names")
    offsets: dict[str, int] = {}
    for offset, name in enumerate(names):
        if name in offsets:
            table.refuse("names", f"{name!r} is there twice")
        if name:
            offsets[name] = offset
    if not offsets or len(names) > MAX_OFFSET + 1:
        table.refuse("names", f'expected the names of up to {MAX_OFFSET + 1} lines, by offset; "" leaves one out')
    return offsets


def _offset(table: Table, key: str, name: str, offsets: Mapping[str, int]) -> int:
    if name not in offsets:
        table.refuse(key, f"no line is named {name!r}")
    return offsets[name]


def _line(offset: int, name: str, table: Table | None) -> LineSpec:
    if table is None:
        return LineSpec(offset, name)
    spec = LineSpec(
        offset,
        name,
        safe=cast("LineState", table.choice("safe", (0, 1, "input"), "input")),
        hold=cast("Hold", table.choice("hold", ("release", "keep"), "release")),
        direction=cast("Direction", table.choice("direction", ("any", "input", "output"), "any")),
        pull=cast("Pull", table.choice("pull", ("as-is", "none", "up", "down"), "as-is")),
        reserved=table.text("reserved", None),
        note=table.text("note", None),
        active_low=table.flag("active_low", False),
        drive=cast("Drive", table.choice("drive", ("push-pull", "open-drain", "open-source"), "push-pull")),
        debounce_us=table.integer("debounce_us", 0, MAX_DEBOUNCE_US, 0),
        initial=table.choice("initial", _INITIAL, None),
        functions=table.texts("functions", ()),
    )
    _check(table, spec)
    table.done()
    return spec


def _check(table: Table, spec: LineSpec) -> None:
    """Refuse contradictions: they would surprise the person who wired the line."""
    if spec.direction == "input":
        never = 'a line with direction = "input" is never driven'
        if spec.safe != "input":
            table.refuse("safe", f"{never}, so it is safe as an input only")
        if spec.initial is not None:
            table.refuse("initial", f"{never}, so it has no initial level")
        if spec.drive != "push-pull":
            table.refuse("drive", f"{never}, so it has no drive")
    if spec.direction == "output" and spec.debounce_us:
        table.refuse("debounce_us", 'only an input bounces, and this line has direction = "output"')
    if spec.reserved is not None and spec.initial is not None:
        table.refuse("initial", "the line is reserved, and so must not be driven")
