"""Board profiles: the devices of a board, as TOML, and the permitted uses of each.

It owns the profile's shape and its checks; it does not look at the machine. A profile is an allowlist: a line, adapter
or port that it does not list does not exist for clients of hearth.

It also owns the table of sensor kinds: reading a named quantity from a device, in one transaction, as a number with a
unit. A sensor keeps no state and needs no second transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from attrs import evolve, field, frozen

from hearth._util.toml import parse_toml, show
from hearth.drivers.gpio import HaltInput, HaltSpec, Heartbeat, Level, LineLimit, LineSpec, StopEntry
from hearth.drivers.i2c import (
    FIRST_ADDR,
    LAST_ADDR,
    LAST_TEN_BIT,
    Addresses,
    I2cDriver,
    Increment,
    Message,
    Outcome,
    Read,
    Register,
    RegWidth,
    Scope,
    Write,
)
from hearth.drivers.uart import Rs485, UartSettings
from hearth.errors import ConfigError, DeviceError
from hearth.fields import (
    ANY_NUMBER,
    Anything,
    Choice,
    Fault,
    FieldType,
    Flag,
    Integer,
    ListOf,
    MapOf,
    Number,
    Table,
    Text,
    join,
    near,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    "mcp3221": SensorKind((Read(2),), 2, lambda raw: round(int.from_bytes(raw, "big") * 100 / 4096, 2), "percent"),
}
"""Sensors that can be read in one transaction from a chip as it powers up.

Of the INA chips the value is the bus voltage. An MCP3221 measures in percent of its supply: the level of a tank with a
ratiometric level sender, for one.

A chip that has to be set up, waited for, or calibrated belongs to its kernel driver, whose sensors are offered too.
"""


BusKind: TypeAlias = Literal["gpio", "i2c", "uart", "sensors"]

_DISCOVERED: Final[tuple[BusKind, ...]] = get_args(BusKind)
_FLAG: Final = Flag()
_TEXT: Final = Text()
_STRING: Final = Text("a string", "(?s:.*)")
_STRINGS: Final = ListOf(_STRING)
_SENSOR_KIND: Final = Choice(*SENSOR_KINDS)

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
    interlocks: tuple[InterlockSpec, ...] = ()
    tools: tuple[str, ...] = ("*",)
    halt: HaltSpec = field(factory=HaltSpec)
    discover: Mapping[BusKind, tuple[str, ...]] = field(factory=dict)
    """Devices to look for on the machine besides the listed: kind to patterns of nodes and names, ("*",) for all."""

    def simulated_line(self, name: str) -> tuple[str, int] | None:
        """Return the simulated chip (its label) and the offset of the line with this name or alias; None if none."""
        for chip in self.chips:
            offsets = {line.name: line.offset for line in chip.lines} | dict(chip.aliases)
            if chip.driver == "sim" and name in offsets:
                return chip.label, offsets[name]
        return None


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that come with hearth."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def profile_file(name_or_path: str) -> Path | None:
    """Return the file of a profile that is given by its path; None for a shipped one."""
    return Path(name_or_path) if "/" in name_or_path or name_or_path.endswith(".toml") else None


def load_profile(name_or_path: str) -> Profile:
    """Read a profile: a shipped one by name, or a TOML file by path (with a "/" in it, or ending in .toml).

    Raises ConfigError with one line for each fault: the file, the key path, and what is expected there.
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
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    return parse_profile(parse_toml(data, source), source)


def parse_profile(content: Mapping[str, object], source: str) -> Profile:
    """Return a profile from the content of its TOML file. Raises ConfigError with one line for each fault."""
    faults: list[Fault] = []
    top = Table(content, "", faults)
    tools, discover = top.table("tools", required=False), top.table("discover", required=False)
    interlocks = [(table, _interlock(table)) for table in top.tables("interlock")]
    halt = top.table("halt", required=False)
    profile = Profile(
        name=top.take("name", _TEXT),
        description=top.take("description", _TEXT),
        source=source,
        chips=tuple([parse_chip(table) for table in top.tables("gpio")]),
        i2c=tuple([parse_adapter(table) for table in top.tables("i2c")]),
        uarts=tuple([parse_port(table) for table in top.tables("uart")]),
        sensors=tuple([_sensor(name, table) for name, table in top.named("sensors")]),
        tools=tools.take("allow", _STRINGS, ("*",)),
        discover={kind: patterns for kind in _DISCOVERED if (patterns := _patterns(discover, kind))},
    )
    for table in (tools, discover, top):
        table.done()
    if top.ok:
        _check_profile(top, profile)
    if top.ok:
        resolved = [_resolve(table, named, profile) for table, named in interlocks]
        profile = evolve(profile, interlocks=tuple(filter(None, resolved)), halt=parse_halt(halt, profile))
    if faults:
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults))
    return profile


def _check_profile(top: Table, profile: Profile) -> None:
    """Add the faults of values that do not go together."""
    _check_unique(top, "gpio", "label", [chip.label for chip in profile.chips])
    _check_unique(top, "i2c", "bus", [spec.bus for spec in profile.i2c])
    _check_unique(top, "uart", "port", [spec.port for spec in profile.uarts])
    adapters = {spec.bus: spec for spec in profile.i2c}
    for sensor in profile.sensors:
        table = Table({}, join("sensors", sensor.name), top.faults)
        if sensor.bus not in adapters:
            table.fault("bus", f"there is no [[i2c]] with bus = {sensor.bus}")
        elif (refused := adapters[sensor.bus].addresses.refusal(sensor.addr)) is not None:
            table.fault("addr", f"{sensor.addr:#04x} may not be used: {refused}")
    for bus, spec in enumerate(profile.i2c):
        for index, device in enumerate(spec.devices):
            if device.tank is not None and profile.simulated_line(device.tank.pump) is None:
                place = f"i2c[{bus}].device[{index}].tank.pump"
                reason = f"no simulated chip has a line {show(device.tank.pump)}"
                top.faults.append(Fault(place, reason))


def _check_unique(top: Table, key: str, what: str, values: Sequence[str | int]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            top.faults.append(Fault(f"{key}[{index}].{what}", f"{show(value)} is there twice"))


def _patterns(table: Table, kind: str) -> tuple[str, ...]:
    """Read `true` for everything, or a list of patterns. Sensors have no patterns, because reading one does no harm."""
    if kind != "sensors" and isinstance(table.content.get(kind), list):
        return table.take(kind, _STRINGS) or ()
    return ("*",) if table.take(kind, _FLAG, False) else ()


def _sensor(name: str, table: Table) -> SensorSpec:
    values = {"kind": table.take("kind", _SENSOR_KIND), "bus": table.take("bus", _BUS), "addr": _addr(table)}
    values |= table.given({"description": _TEXT})
    table.done()
    return SensorSpec(name, **values)


# --- I2C adapters and the known devices on them -----------------------------------------------------------------------

SIM_DEVICES: Mapping[str, RegWidth | None] = {"tmp102": 8, "24c02": 8, "mcp3221": None}
"""The devices that the simulator has, with the width of their register numbers; None for one without registers."""
FIRST_TEN_BIT = 0x80
"""From here to LAST_TEN_BIT an address has ten bits and cannot be mistaken for one of seven."""

_BUS: Final = Integer(0, 255)
_ADDRESS: Final = Integer(FIRST_ADDR, LAST_TEN_BIT)
_SIM_ADDRESS: Final = Integer(FIRST_ADDR, LAST_ADDR)
_SIM_KIND: Final = Choice(*SIM_DEVICES)
_I2C_DRIVER: Final = Choice("sim", "i2c-dev")
_REAL_ADAPTER: Final[Mapping[str, FieldType]] = {
    "adapter": _TEXT,
    "timeout_ms": Integer(10, 60_000),
    "retries": Integer(0, 10),
}
_ADAPTER: Final[Mapping[str, FieldType]] = {
    "speed_hz": Integer(1_000, 3_400_000),
    "scope": Choice("any", "declared"),
    "reserved": ListOf(_ADDRESS),
}
_DEVICE: Final[Mapping[str, FieldType]] = {
    "note": _TEXT,
    "write_cycle_ms": Number(ge=0, le=1000),
    "reg_width": Choice(8, 16),
    "increment": Choice("none", "byte", "register"),
}
_ABOVE_0: Final = Number(gt=0)
_ON_LIMIT: Final = Choice("refuse", "clamp")
_REGISTER: Final[Mapping[str, FieldType]] = {
    "width": Choice(8, 16, 24, 32),
    "access": Choice("r", "w", "rw"),
    "min": ANY_NUMBER,
    "max": ANY_NUMBER,
    "max_step": _ABOVE_0,
    "slew_per_s": _ABOVE_0,
    "unit": _TEXT,
    "name": _TEXT,
    "signed": _FLAG,
    "order": Choice("big", "little"),
    "scale": _ABOVE_0,
    "on_limit": _ON_LIMIT,
}
_REG: Final = Integer(0, 0xFFFF)
_PERCENT: Final = Number(ge=0, le=100)
_TANK: Final[Mapping[str, FieldType]] = {"start": _PERCENT, "fill": _PERCENT, "drain": _PERCENT}


@frozen
class TankSpec:
    """The tank whose level a simulated mcp3221 measures. `pump` is the name of the line that drives its pump.

    `start` is the level at the start in percent, `fill` and `drain` are in percent a second.
    """

    pump: str
    start: float = 50.0
    fill: float = 5.0
    drain: float = 0.5


@frozen
class DeviceSpec:
    """The device at an I2C address: made by the simulator, declared on real boards. 0x80 and above is 10-bit.

    `reg_width` is the number of bits of its register numbers: a read that begins with such a number cannot write.
    A device with `registers` takes writes to these alone; `increment` says which one follows in a longer write.
    """

    addr: int
    kind: str
    note: str | None = None
    write_cycle_ms: float = 0.0
    reg_width: RegWidth | None = None
    tank: TankSpec | None = None
    registers: tuple[Register, ...] = ()
    increment: Increment = "none"


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
    """Read one `[[i2c]]`; only where the table is `ok` is every value of its type."""
    bus, driver = table.take("bus", _BUS), table.take("driver", _I2C_DRIVER)
    values = table.given(_ADAPTER) | table.given(_REAL_ADAPTER)
    if driver == "sim":
        for key in _REAL_ADAPTER.keys() & table.content:
            table.fault(key, 'a simulated adapter has none; it is for driver = "i2c-dev"')
    reserved, taken, devices = values.get("reserved") or (), set[int](), []
    for entry in table.tables("device"):
        device = _device(entry, simulated=driver == "sim")
        if entry.ok and device.addr in taken:
            entry.fault("addr", f"{device.addr:#04x} is taken on this bus")
        elif entry.ok and device.addr in reserved:
            which = f"{device.addr:#04x} is among the adapter's `reserved` addresses"
            entry.fault("addr", f"{which}; take it out of one of them")
        taken.add(device.addr)
        devices.append(device)
    table.done()
    return I2cSpec(bus, driver, devices=tuple(devices), **values)


def _device(entry: Table, *, simulated: bool) -> DeviceSpec:
    addr, kind = (
        _addr(entry, _SIM_ADDRESS if simulated else _ADDRESS),
        entry.take("kind", _SIM_KIND if simulated else _TEXT),
    )
    values = entry.given(_DEVICE)
    if simulated and entry.ok:
        width = SIM_DEVICES[kind]
        if values.setdefault("reg_width", width) != width:
            has = "no registers; leave it out" if width is None else f"{width}, found {values['reg_width']}"
            entry.fault("reg_width", f"the simulated {kind} has {has}")
    if "tank" in entry.content:
        if entry.ok and not (simulated and kind == "mcp3221"):
            entry.fault("tank", 'only the simulated "mcp3221" measures one')
        values["tank"] = _tank(entry.table("tank"))
    tables = list(entry.tables("registers"))
    registers = tuple([_register_of(table) for table in tables])
    entry.done()
    device = DeviceSpec(addr, kind, registers=registers, **values)
    if entry.ok:
        _check_registers(entry, device, tables)
    return device


def _register_of(table: Table) -> Register:
    """Read one register, and refuse limits by which nothing could be written to it."""
    number = table.take("reg", _REG)
    values = table.given(_REGISTER)
    table.done()
    register = Register(number, **values) if table.ok else Register(0)
    if not table.ok:
        return register
    if register.access == "r" and (register.limited or "on_limit" in values):
        table.fault("access", 'a register with access = "r" is never written, so it has no limits')
    elif "on_limit" in values and not register.limited:
        table.fault("on_limit", "the register has no limit; give min, max, max_step or slew_per_s")
    low, high = (bound * register.scale for bound in Register(0, register.width, signed=register.signed).raw_bounds)
    if register.min is not None and register.max is not None and register.min > register.max:
        table.fault("min", f"{register.min:g} is greater than max = {register.max:g}; exchange them")
        return register
    for key, bound in (("min", register.min), ("max", register.max)):
        if bound is not None and not low <= bound <= high:
            holds = f"a register of {register.width} bits holds {low:g} to {high:g}"
            table.fault(key, f"{bound:g} is impossible: {holds} (see width, signed and scale)")
            return register
    least, most = register.raw_bounds
    if least > most:
        table.fault("min", f"no value lies between min and max: the register changes in steps of {register.scale:g}")
    elif register.max_step is not None and register.max_step < register.scale:
        table.fault("max_step", f"{register.max_step:g} is less than one step of the register, {register.scale:g}")
    return register


def _check_registers(entry: Table, device: DeviceSpec, tables: Sequence[Table]) -> None:
    """Refuse registers whose numbers a write could not tell apart."""
    if device.registers and device.reg_width is None:
        entry.fault("reg_width", "missing; `registers` needs the bits of a register's number, 8 or 16")
    if device.increment != "none" and not device.registers:
        entry.fault("increment", "it is for a device with `registers`; list them, or leave it out")
    taken: dict[int, int] = {}
    for index, (register, table) in enumerate(zip(device.registers, tables, strict=True)):
        if device.reg_width == 8 and register.reg > 0xFF:
            table.fault("reg", f"{register.reg:#06x} has more than 8 bits; give the device reg_width = 16")
        for number in range(register.reg, register.reg + (register.size if device.increment == "byte" else 1)):
            other = taken.setdefault(number, register.reg)
            if other != register.reg:
                table.fault("reg", f'{number:#04x} belongs to register {other:#04x} (increment = "byte")')
                break
        else:
            if register.reg in (earlier.reg for earlier in device.registers[:index]):
                table.fault("reg", f"{register.reg:#04x} is there twice")


def _tank(table: Table) -> TankSpec:
    pump, values = table.take("pump", _TEXT), table.given(_TANK)
    table.done()
    return TankSpec(pump, **values)


def _addr(table: Table, kind: FieldType = _ADDRESS) -> int:
    """The key `addr`: 0x08 to 0x77, or a 10-bit one beyond them."""
    addr: int | None = table.take("addr", kind)
    if addr is not None and LAST_ADDR < addr < FIRST_TEN_BIT:
        table.fault(
            "addr",
            f"{addr:#04x} is reserved by the I2C specification; devices have {FIRST_ADDR:#04x} to {LAST_ADDR:#04x}, "
            f"with 10 bits {FIRST_TEN_BIT:#04x} to {LAST_TEN_BIT:#05x}",
        )
    return addr  # type: ignore[return-value]


# --- serial ports -----------------------------------------------------------------------------------------------------

_UART_DRIVER: Final = Choice("sim", "serial")
_PEER: Final[Mapping[str, FieldType]] = {"peer": Choice("echo", "none")}
_SETTINGS: Final[Mapping[str, FieldType]] = {
    "baud": Integer(50, 20_000_000),
    "bits": Choice(5, 6, 7, 8),
    "parity": Choice("none", "even", "odd", "mark", "space"),
    "stop_bits": Choice(1, 1.5, 2),
    "flow": Choice("none", "rtscts", "xonxoff"),
    "inbox_bytes": Integer(4096, 16_777_216),
    "rts": _FLAG,
    "dtr": _FLAG,
    "hangup": _FLAG,
}
_DELAY_MS: Final = Integer(0, 1000)
_RS485: Final[Mapping[str, FieldType]] = {
    "rts_on_send": _FLAG,
    "loopback": _FLAG,
    "before_ms": _DELAY_MS,
    "after_ms": _DELAY_MS,
}


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
    """Read one `[[uart]]`; only where the table is `ok` is every value of its type."""
    port, driver = table.take("port", _TEXT), table.take("driver", _UART_DRIVER)
    path = table.take("path", _TEXT) if driver == "serial" else table.take("path", _TEXT, None)
    values = table.given(_PEER)
    if driver == "sim" and path is not None:
        table.fault("path", "a simulated port has none: the pseudo-terminal's is in hw.uart.list")
    if driver == "serial" and values:
        table.fault("peer", 'only a simulated port (driver = "sim") has one')
    # As callers read it in hw.uart.list: 1, not the 1.0 of UartSettings.
    settings: dict[str, Any] = {"stop_bits": 1, **table.given(_SETTINGS), "rs485": _rs485(table)}
    table.done()
    if table.ok:
        try:
            values["settings"] = UartSettings(**settings)
        except ValueError as error:
            # The value's own check names the key first: "stop_bits: …".
            key, _, why = str(error).partition(": ")
            table.fault(key, why)
    return UartSpec(port, driver, path=path, **values)


def _rs485(table: Table) -> Rs485 | None:
    """Read `rs485 = true`, or a table of its details."""
    if not isinstance(table.content.get("rs485"), dict):
        return Rs485() if table.take("rs485", _FLAG, False) else None
    details = table.table("rs485")
    values = details.given(_RS485)
    details.done()
    return Rs485(**values) if details.ok else None


# --- GPIO chips -------------------------------------------------------------------------------------------------------

MAX_OFFSET = 1023

_GPIO_DRIVER: Final = Choice("sim", "gpiod")
_REAL_CHIP: Final[Mapping[str, FieldType]] = {"path": _TEXT, "blocking": _FLAG}
_ALIASES: Final = MapOf(_TEXT)
_CONTACTS: Final = MapOf(Choice(0, 1))
_WIRES: Final = ListOf(ListOf(_STRING, least=2, most=2, expected="a pair of line names"))
_LINE: Final[Mapping[str, FieldType]] = {
    "safe": Choice(0, 1, "input"),
    "hold": Choice("release", "keep"),
    "direction": Choice("any", "input", "output"),
    "pull": Choice("as-is", "none", "up", "down"),
    "reserved": _TEXT,
    "note": _TEXT,
    "active_low": _FLAG,
    "drive": Choice("push-pull", "open-drain", "open-source"),
    # At most a second: a longer bounce is no contact's.
    "debounce_us": Integer(0, 1_000_000),
    "initial": Choice(0, 1),
    "functions": _STRINGS,
}
_DAY_MS: Final = Number(gt=0, le=86_400_000)
_LIMIT: Final[Mapping[str, FieldType]] = {
    "min_on_ms": _DAY_MS,
    "max_on_ms": _DAY_MS,
    "min_off_ms": _DAY_MS,
    "max_rate_hz": Number(gt=0, le=1_000_000),
}


@frozen
class ChipSpec:
    """A GPIO chip, found by its label, or by its device node where two chips have the same one.

    `aliases` are further names of its lines, `wires`, `contacts` and `panel` are for the simulator. `blocking` is true
    if requests to the chip may sleep (chips behind a bus do); None: the driver finds out.
    """

    label: str
    driver: str
    lines: tuple[LineSpec, ...]
    aliases: Mapping[str, int]
    wires: tuple[tuple[int, int], ...] = ()
    contacts: Mapping[int, Level] = field(factory=dict)
    panel: str | None = None
    path: str | None = None
    blocking: bool | None = None


def parse_chip(table: Table) -> ChipSpec:
    """Read one `[[gpio]]`; only where the table is `ok` is every value of its type."""
    label, driver = table.take("label", _TEXT), table.take("driver", _GPIO_DRIVER)
    values = table.given(_REAL_CHIP)
    if driver == "sim" and "path" in values:
        table.fault("path", "a simulated chip has no device node")
    if driver == "sim" and "blocking" in values:
        table.fault("blocking", "a simulated chip never blocks")
    offsets = _offsets(table)
    lines = {name: LineSpec(offset, name) for name, offset in offsets.items()}
    for name, details in table.named("lines"):
        lines[name] = _line(offsets.get(name, 0), name, details)
        if offsets and name not in offsets:
            details.fault("", "no such name under `names`")
    aliases: Mapping[str, str] = table.take("alias", _ALIASES, {}) or {}
    wires: Sequence[tuple[str, str]] = table.take("wires", _WIRES, ()) or ()
    contacts: Mapping[str, Level] = table.take("contacts", _CONTACTS, {}) or {}
    panel: str | None = table.take("panel", _TEXT, None)
    table.done()
    simulated = {"wires": wires, "contacts": contacts, "a panel": panel}
    for what in [what for what, given in simulated.items() if given and driver == "gpiod"]:
        table.fault(what.split()[-1], f'only a simulated chip (driver = "sim") has {what}')
    if offsets:
        _check_names(table, offsets, aliases, wires)
        for name in contacts.keys() - offsets.keys():
            table.faults.append(Fault(join(table.at("contacts"), name), f"no line is named {show(name)}"))
    return ChipSpec(
        label,
        driver,
        tuple(lines.values()),
        {alias: offsets.get(name, 0) for alias, name in aliases.items()},
        tuple((offsets.get(one, 0), offsets.get(other, 0)) for one, other in wires),
        {offsets.get(name, 0): level for name, level in contacts.items()},
        panel,
        **values,
    )


def _offsets(table: Table) -> dict[str, int]:
    """Map line names to offsets, from `names`, where the index is the offset and "" leaves a line out; {} if wrong."""
    names: Sequence[str] | None = table.take("names", _STRINGS)
    offsets: dict[str, int] = {}
    for offset, name in enumerate(names or ()):
        if name in offsets:
            table.fault("names", f"{show(name)} is there twice")
            return {}
        if name:
            offsets[name] = offset
    if names is not None and (not offsets or len(names) > MAX_OFFSET + 1):
        table.fault("names", f'expected the names of up to {MAX_OFFSET + 1} lines, by offset; "" leaves one out')
        return {}
    return offsets


def _check_names(
    table: Table, offsets: Mapping[str, int], aliases: Mapping[str, str], wires: Iterable[tuple[str, str]]
) -> None:
    """Add a fault for each alias of a line that there is not, or that is a line itself, and for the ends of wires."""
    for alias, name in aliases.items():
        if alias in offsets:
            table.faults.append(Fault(join(table.at("alias"), alias), "a line has this name already"))
        elif name not in offsets:
            table.faults.append(Fault(join(table.at("alias"), alias), f"no line is named {show(name)}"))
    for name in chain.from_iterable(wires):
        if name not in offsets:
            table.fault("wires", f"no line is named {show(name)}")


def _line(offset: int, name: str, table: Table) -> LineSpec:
    spec = LineSpec(offset, name, limit=_limit(table), **table.given(_LINE))
    if table.take("on_limit", _ON_LIMIT, "refuse") == "clamp":
        table.fault("on_limit", 'a line has no value between on and off to clamp to; leave it out, or write "refuse"')
    table.done()
    if table.ok:
        _check(table, spec)
    return spec


def _limit(table: Table) -> LineLimit | None:
    if "limit" not in table.content:
        return None
    details = table.table("limit")
    values = details.given(_LIMIT)
    details.done()
    if not details.ok:
        return None
    limit = LineLimit(**values)
    if not values:
        details.fault("", f"no limit; give one of {', '.join(_LIMIT)}, or leave it out")
    elif limit.min_on_ms is not None and limit.max_on_ms is not None and limit.min_on_ms > limit.max_on_ms:
        details.fault("min_on_ms", f"{limit.min_on_ms:g} is longer than max_on_ms = {limit.max_on_ms:g}; exchange them")
    return limit


def _check(table: Table, spec: LineSpec) -> None:
    """Refuse contradictions: they would surprise the person who wired the line."""
    if spec.direction == "input":
        never = 'a line with direction = "input" is never driven'
        if spec.safe != "input":
            table.fault("safe", f"{never}, so it is safe as an input only")
        if spec.initial is not None:
            table.fault("initial", f"{never}, so it has no initial level")
        if spec.drive != "push-pull":
            table.fault("drive", f"{never}, so it has no drive")
        if spec.limit is not None:
            table.fault("limit", f"{never}, so it has no limit")
    if spec.direction == "output" and spec.debounce_us:
        table.fault("debounce_us", 'only an input bounces, and this line has direction = "output"')
    if spec.reserved is not None and spec.initial is not None:
        table.fault("initial", "the line is reserved, and so must not be driven")
    if spec.limit is not None and spec.limit.max_on_ms is not None and spec.safe == 1:
        cure = 'give the line safe = 0 or "input", or take max_on_ms out'
        details = Table({}, table.at("limit"), table.faults)
        details.fault("max_on_ms", f"after it the line goes to its safe state, which is on (safe = 1); {cure}")


# --- interlocks -------------------------------------------------------------------------------------------------------

_LEVEL: Final = Choice(0, 1)
_INTERLOCK: Final[Mapping[str, FieldType]] = {
    "chip": _TEXT,
    "max_age_ms": Integer(1, 60_000),
    "check_ms": Integer(10, 10_000),
}
_CONDITION: Final[Mapping[str, FieldType]] = {
    "line": _TEXT,
    "chip": _TEXT,
    "value": _LEVEL,
    "sensor": _TEXT,
    "min": ANY_NUMBER,
    "max": ANY_NUMBER,
}


@frozen
class Condition:
    """One requirement of an interlock: line `name` reads `value`, or sensor `name` reads at least `min`, at most `max`.

    `bus` is the bus that reads it; `line` is the line's offset, and None for a sensor.
    """

    name: str
    bus: str
    line: int | None = None
    value: Level | None = None
    min: float | None = None
    max: float | None = None

    def holds(self, read: float) -> bool:
        """Return True if a reading meets the requirement; NaN meets none."""
        if self.line is not None:
            return read == self.value
        return (self.min is None or read >= self.min) and (self.max is None or read <= self.max)

    def to_json(self) -> dict[str, Any]:
        """Return the condition as the profile has it."""
        if self.line is not None:
            return {"line": self.name, "value": self.value}
        bounds = {"min": self.min, "max": self.max}
        return {"sensor": self.name, **{key: bound for key, bound in bounds.items() if bound is not None}}

    def __str__(self) -> str:
        if self.line is not None:
            return f"line {self.name} = {self.value}"
        bounds = [f"{sign} {bound:g}" for sign, bound in (("≥", self.min), ("≤", self.max)) if bound is not None]
        return f"sensor {self.name} {' and '.join(bounds)}"


MAX_AGE_MS, CHECK_MS = 500, 100


@frozen
class InterlockSpec:
    """An output that may be driven to `value` only while all of `requires` hold.

    `name` is the line as the profile names it here, `line` its offset on the chip of `bus`. A reading counts for
    `max_age_ms`; while the output is at `value`, the conditions are evaluated every `check_ms`.
    """

    name: str
    bus: str
    line: int
    value: Level
    requires: tuple[Condition, ...]
    max_age_ms: int = MAX_AGE_MS
    check_ms: int = CHECK_MS


def _interlock(table: Table) -> dict[str, Any]:
    """Read one `[[interlock]]`, its names as they are written; see `_resolve`."""
    values = {"drives": table.take("drives", _TEXT), "value": table.take("value", _LEVEL), **table.given(_INTERLOCK)}
    values["requires"] = [(entry, _condition(entry)) for entry in table.tables("requires")]
    table.done()
    age, period = values.get("max_age_ms", MAX_AGE_MS), values.get("check_ms", CHECK_MS)
    if table.ok and age < 2 * period:
        table.fault(
            "max_age_ms", f"{age} is less than twice check_ms = {period}: readings would be stale between checks"
        )
    if table.ok and not values["requires"]:
        table.fault("requires", 'expected at least one condition, such as { line = "DOOR", value = 0 }')
    return values


def _condition(entry: Table) -> dict[str, Any]:
    """Read `{ line, value }`, `{ sensor, min }`, `{ sensor, max }` or `{ sensor, min, max }`."""
    values = entry.given(_CONDITION)
    entry.done()
    if not entry.ok:
        return values
    if ("line" in values) == ("sensor" in values):
        entry.fault("", "expected { line, value }, or { sensor, min, max } with at least one bound")
    elif "line" in values:
        if "value" not in values:
            entry.fault("value", f"missing; it takes {_LEVEL.expected}, the level that the line must have")
        for key in ("min", "max"):
            if key in values:
                entry.fault(key, "a line has no bounds; give the `value` that it must have")
    elif "min" not in values and "max" not in values:
        entry.fault("", "a sensor needs a bound: add min, max or both")
    elif "min" in values and "max" in values and values["min"] > values["max"]:
        entry.fault("min", f"{values['min']:g} is above max = {values['max']:g}: no reading is within these bounds")
    for key in ("chip", "value") if "line" not in values else ():
        if key in values:
            entry.fault(key, "a sensor has none; give min, max or both")
    return values


def _resolve(table: Table, values: Mapping[str, Any], profile: Profile) -> InterlockSpec | None:
    """Return the interlock of a profile that is right by itself, with its names resolved; None after a fault."""
    found = _find_line(table, "drives", values["drives"], values.get("chip"), profile)
    if found is None:
        return None
    bus, spec = found
    if spec.reserved is not None or spec.direction == "input":
        reason = f"reserved: {spec.reserved}" if spec.reserved else 'direction = "input"'
        table.fault("drives", f"line {show(spec.name)} may not be driven ({reason}); name an output")
    if spec.safe == values["value"]:
        table.fault("value", f"{spec.safe} is also the line's safe state, to which an open interlock must bring it")
    if spec.initial == values["value"]:
        table.fault("value", f"the line is driven to initial = {spec.initial} before any condition is read; drop it")
    if spec.hold == "keep":
        why = "its level would outlast the daemon, which could not take it back"
        table.fault("drives", f'line {show(spec.name)} has hold = "keep", so that {why}; use hold = "release"')
    requires: list[Condition] = []
    for entry, named in values["requires"]:
        condition = _resolve_condition(entry, named, profile)
        if condition is None:
            continue
        if (condition.bus, condition.line) == (bus, spec.offset):
            entry.fault("line", "this is the driven line itself; require another one")
        for other in requires:
            if _contradict(condition, other):
                entry.fault("", f"contradicts the requirement {other}: the output could never be driven")
        requires.append(condition)
    timing = {key: values[key] for key in ("max_age_ms", "check_ms") if key in values}
    return InterlockSpec(values["drives"], bus, spec.offset, values["value"], tuple(requires), **timing)


def _resolve_condition(entry: Table, named: Mapping[str, Any], profile: Profile) -> Condition | None:
    if "line" in named:
        found = _find_line(entry, "line", named["line"], named.get("chip"), profile)
        if found is None:
            return None
        bus, spec = found
        if spec.reserved is not None:
            entry.fault("line", f"line {show(spec.name)} may not be read (reserved: {spec.reserved}); require another")
        return Condition(named["line"], bus, spec.offset, named["value"])
    name = named["sensor"]
    bounds = {key: named[key] for key in ("min", "max") if key in named}
    for sensor in profile.sensors:
        if sensor.name == name:
            return Condition(name, f"i2c:{sensor.bus}", **bounds)
    if "/" in name and "sensors" in profile.discover:
        # The kernel's sensors come and go; one that is not there cannot be read, and leaves the interlock open.
        return Condition(name, SENSORS_BUS, **bounds)
    names = [sensor.name for sensor in profile.sensors]
    has = near(name, names) or f"; [sensors] has {', '.join(names) or 'none'}"
    entry.fault("sensor", f"no sensor is named {show(name)}{has}")
    return None


def _find_line(table: Table, key: str, name: str, chip: str | None, profile: Profile) -> tuple[str, LineSpec] | None:
    """Return the bus and the line of a name or alias, on the chip of this label, or on the only chip that has it."""
    chips = [spec for spec in profile.chips if chip in (None, spec.label)]
    if not chips:
        labels = [spec.label for spec in profile.chips]
        has = near(chip or "", labels) or f"; [[gpio]] has {', '.join(labels) or 'none'}"
        table.fault(
            key if chip is None else "chip", f"no chip{'' if chip is None else f' {show(chip)}'} is listed{has}"
        )
        return None
    found = [
        (f"gpio:{spec.label}", line)
        for spec in chips
        for line in spec.lines
        if line.name == name or spec.aliases.get(name) == line.offset
    ]
    if len(found) > 1:
        table.fault(key, f'{show(name)} is a line of {", ".join(bus[5:] for bus, _ in found)}; add chip = "..."')
        return None
    if not found:
        names = chain.from_iterable((*(line.name for line in spec.lines), *spec.aliases) for spec in chips)
        table.fault(
            key, f"no line is named {show(name)}{near(name, names) or '; list it under `names` of its [[gpio]]'}"
        )
        return None
    return found[0]


def _contradict(one: Condition, other: Condition) -> bool:
    """Return True if both requirements are of the same line or sensor, and no reading meets both."""
    if (one.bus, one.line) != (other.bus, other.line):
        return False
    if one.line is not None:
        return one.value != other.value
    if one.name != other.name:
        return False
    least = max((bound for bound in (one.min, other.min) if bound is not None), default=-inf)
    return least > min((bound for bound in (one.max, other.max) if bound is not None), default=inf)


# --- halt -------------------------------------------------------------------------------------------------------------

_STATE: Final = Choice(0, 1, "input")
_INPUT: Final[Mapping[str, FieldType]] = {"stop": _LEVEL, "timeout_ms": Integer(20, 3_600_000)}
_AFTER_MS: Final = Integer(0, 60_000)
_HZ: Final = Number(ge=0.1, le=100)


def parse_halt(table: Table, profile: Profile) -> HaltSpec:
    """Read `[halt]`, whose lines are those of a profile that is right by itself."""
    inputs, sequence, used = [], [], dict[tuple[str, int], str]()
    for index, given in enumerate(table.take("inputs", ListOf(Anything()), ()) or ()):
        # A name stands for a table with nothing else.
        entry = _table_of({"line": given} if isinstance(given, str) else given, f"{table.at('inputs')}[{index}]", table)
        line, values = _halt_line(entry, profile), entry.given(_INPUT)
        if len(values) > 1:
            entry.fault("timeout_ms", "an input halts by its level (`stop`) or by its silence: leave one of them out")
        if line is not None:
            _check_halt_line(entry, line, used, driven=False)
            inputs.append(HaltInput(*line[:3], **values))
        entry.done()
    for entry in table.tables("sequence"):
        line, value = _halt_line(entry, profile), entry.take("value", _STATE)
        after = entry.take("after_ms", _AFTER_MS, 0)
        if line is not None:
            _check_halt_line(entry, line, {}, driven=True)
            sequence.append(StopEntry(*line[:3], value, after))
        entry.done()
    heartbeat = None
    if "heartbeat" in table.content:
        entry = table.table("heartbeat")
        line, hz = _halt_line(entry, profile), entry.take("hz", _HZ)
        if line is not None:
            used.update({(one.chip, one.offset): "a line of [[halt.sequence]]" for one in sequence})
            _check_halt_line(entry, line, used, driven=True)
            heartbeat = Heartbeat(*line[:3], hz)
        entry.done()
    table.done()
    return HaltSpec(tuple(inputs), tuple(sequence), heartbeat)


def _table_of(given: object, path: str, table: Table) -> Table:
    if isinstance(given, Mapping):
        return Table(given, path, table.faults)
    expected = 'expected a line\'s name, or a table such as { line = "ESTOP", stop = 1 }'
    table.faults.append(Fault(path, f"{expected}; got {show(given)}"))
    return Table({}, "", [])


def _halt_line(entry: Table, profile: Profile) -> tuple[str, int, str, LineSpec] | None:
    """Return chip, offset, name and spec of the line that a table of `[halt]` names, or None after a fault."""
    chip, name = entry.take("chip", _TEXT, None), entry.take("line", _TEXT)
    found = None if name is None else _find_line(entry, "line", name, chip, profile)
    return None if found is None else (found[0].removeprefix("gpio:"), found[1].offset, found[1].name, found[1])


def _check_halt_line(
    entry: Table, line: tuple[str, int, str, LineSpec], used: dict[tuple[str, int], str], *, driven: bool
) -> None:
    chip, offset, name, spec = line
    if spec.reserved is not None:
        entry.fault("line", f"{show(name)} is reserved: {spec.reserved}")
    elif driven and spec.direction == "input":
        entry.fault("line", f'{show(name)} has direction = "input": it is never driven')
    elif not driven and spec.direction != "input":
        entry.fault(
            "line", f'{show(name)} could be driven, and would then not report a stop; give it direction = "input"'
        )
    if (chip, offset) in used:
        entry.fault("line", f"{show(name)} is {used[chip, offset]} already")
    used[chip, offset] = "the heartbeat" if driven else "an input"
