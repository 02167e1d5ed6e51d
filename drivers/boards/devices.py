"""The devices of a board profile: its GPIO chips, I2C adapters and serial ports, and the sensors on the adapters.

It owns the tables `[[gpio]]`, `[[i2c]]`, `[[uart]]` and `[sensors]`, each read with its faults; `profile` reads the
whole document. It also owns the table of sensor kinds: reading a named quantity from a device, in one transaction, as a
number with a unit. A sensor keeps no state and needs no second transaction.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

from attrs import field, frozen

from hearth._util.toml import show
from hearth.drivers.gpio import Level, LineLimit, LineSpec
from hearth.drivers.i2c import (
    FIRST_ADDR,
    LAST_ADDR,
    LAST_TEN_BIT,
    Addresses,
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
from hearth.errors import DeviceError
from hearth.fields import (
    STRING,
    STRINGS,
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
    kinds_of,
)
from hearth.tools import Use, i2c_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hearth.drivers.i2c import I2cDriver

_FLAG: Final = Flag()
_TEXT: Final = Text()

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

    def uses(self) -> Use:
        """Return the device that it is read from."""
        return i2c_use(int(self.bus.removeprefix("i2c:")), self.addr)

    def limit_ms(self, driver: Any) -> float:
        """Return the milliseconds after which reading it with the driver of its bus counts as wedged."""
        return cast("I2cDriver", driver).limit_ms(SENSOR_KINDS[self.kind].messages)

    def read(self, driver: Any) -> Outcome[Any]:
        """Return the transaction that reads it; `value` decodes its result."""
        return cast("I2cDriver", driver).transfer(self.addr, SENSOR_KINDS[self.kind].messages)

    def value(self, raw: Any) -> float:
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


_SENSOR_KIND: Final = Choice(*SENSOR_KINDS)
_BUS: Final = Integer(0, 255)


@frozen
class SensorSpec:
    """A named sensor: a kind this release can read, on an I2C bus."""

    name: str
    kind: str
    bus: int
    addr: int
    description: str | None = None


def parse_sensor(name: str, table: Table) -> SensorSpec:
    """Read one table of `[sensors]`; only where the table is `ok` is every value of its type."""
    values = {"kind": table.take("kind", _SENSOR_KIND), "bus": table.take("bus", _BUS), "addr": _addr(table)}
    values |= table.given(SensorSpec)
    table.done()
    return SensorSpec(name, **values)


# --- I2C adapters and the known devices on them -----------------------------------------------------------------------

SIM_DEVICES: Mapping[str, RegWidth | None] = {"tmp102": 8, "24c02": 8, "mcp3221": None}
"""The devices that the simulator has, with the width of their register numbers; None for one without registers."""
FIRST_TEN_BIT = 0x80
"""From here to LAST_TEN_BIT an address has ten bits and cannot be mistaken for one of seven."""

_ADDRESS: Final = Integer(FIRST_ADDR, LAST_TEN_BIT)
_SIM_ADDRESS: Final = Integer(FIRST_ADDR, LAST_ADDR)
_SIM_KIND: Final = Choice(*SIM_DEVICES)
_I2C_DRIVER: Final = Choice("sim", "i2c-dev")
_OF_REAL_ADAPTERS: Final = {"adapter", "timeout_ms", "retries"}
_ON_LIMIT: Final = Choice("refuse", "clamp")
_REG: Final = Integer(0, 0xFFFF)
Percent: TypeAlias = Annotated[float, Number(ge=0, le=100)]


@frozen
class TankSpec:
    """The tank whose level a simulated mcp3221 measures. `pump` is the name of the line that drives its pump.

    `start` is the level at the start in percent, `fill` and `drain` are in percent a second.
    """

    pump: str
    start: Percent = 50.0
    fill: Percent = 5.0
    drain: Percent = 0.5


@frozen
class DeviceSpec:
    """The device at an I2C address: made by the simulator, declared on real boards. 0x80 and above is 10-bit.

    `reg_width` is the number of bits of its register numbers: a read that begins with such a number cannot write.
    A device with `registers` takes writes to these alone; `increment` says which one follows in a longer write.
    """

    addr: int
    kind: str
    note: str | None = None
    write_cycle_ms: Annotated[float, Number(ge=0, le=1000)] = 0.0
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
    speed_hz: Annotated[int, Integer(1_000, 3_400_000)] = 100_000
    scope: Scope = "any"
    reserved: Annotated[tuple[int, ...], ListOf(_ADDRESS)] = ()
    adapter: str | None = None
    timeout_ms: Annotated[int, Integer(10, 60_000)] = 1000
    retries: Annotated[int, Integer(0, 10)] = 0
    devices: tuple[DeviceSpec, ...] = ()

    @property
    def addresses(self) -> Addresses:
        """Return the rules for its addresses, as its driver checks them."""
        declared: dict[int, RegWidth | None] = {device.addr: device.reg_width for device in self.devices}
        return Addresses(declared, self.scope, frozenset(self.reserved))


def parse_adapter(table: Table) -> I2cSpec:
    """Read one `[[i2c]]`; only where the table is `ok` is every value of its type."""
    bus, driver = table.take("bus", _BUS), table.take("driver", _I2C_DRIVER)
    values = table.given(I2cSpec)
    if driver == "sim":
        for key in _OF_REAL_ADAPTERS & table.content.keys():
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
    values = entry.given(DeviceSpec)
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
    registers = tuple([parse_register(table, Register) for table in tables])
    entry.done()
    device = DeviceSpec(addr, kind, registers=registers, **values)
    if entry.ok:
        check_registers(entry, device, tables)
    return device


_Register = TypeVar("_Register", bound=Register)


def parse_register(table: Table, kind: type[_Register]) -> _Register:
    """Read one register, and refuse limits by which nothing could be written to it."""
    number = table.take("reg", _REG)
    values = table.given(kind)
    table.done()
    register = kind(number, **values) if table.ok else kind(0)
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


def check_registers(entry: Table, device: DeviceSpec, tables: Sequence[Table]) -> None:
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
    pump, values = table.take("pump", _TEXT), table.given(TankSpec)
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
_PEER: Final = Choice("echo", "none")


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
    values = table.given({"peer": _PEER})
    if driver == "sim" and path is not None:
        table.fault("path", "a simulated port has none: the pseudo-terminal's is in hw.uart.list")
    if driver == "serial" and values:
        table.fault("peer", 'only a simulated port (driver = "sim") has one')
    # As callers read it in hw.uart.list: 1, not the 1.0 of UartSettings.
    settings: dict[str, Any] = {"stop_bits": 1, **table.given(UartSettings), "rs485": parse_rs485(table)}
    table.done()
    if table.ok:
        try:
            values["settings"] = UartSettings(**settings)
        except ValueError as error:
            # The value's own check names the key first: "stop_bits: …".
            key, _, why = str(error).partition(": ")
            table.fault(key, why)
    return UartSpec(port, driver, path=path, **values)


def parse_rs485(table: Table) -> Rs485 | None:
    """Read `rs485 = true`, or a table of its details."""
    if not isinstance(table.content.get("rs485"), dict):
        return Rs485() if table.take("rs485", _FLAG, False) else None
    details = table.table("rs485")
    values = details.given(Rs485)
    details.done()
    return Rs485(**values) if details.ok else None


# --- GPIO chips -------------------------------------------------------------------------------------------------------

MAX_OFFSET = 1023

_GPIO_DRIVER: Final = Choice("sim", "gpiod")
_REAL_CHIP: Final[Mapping[str, FieldType]] = {"path": _TEXT, "blocking": _FLAG}
_ALIASES: Final = MapOf(_TEXT)
_CONTACTS: Final = MapOf(Choice(0, 1))
_WIRES: Final = ListOf(ListOf(STRING, least=2, most=2, expected="a pair of line names"))


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

    @property
    def bus(self) -> str:
        """Return the id of its bus."""
        return f"gpio:{self.label}"


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
    names: Sequence[str] | None = table.take("names", STRINGS)
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
    spec = LineSpec(offset, name, limit=_limit(table), **table.given(LineSpec))
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
    values = details.given(LineLimit)
    details.done()
    if not details.ok:
        return None
    limit = LineLimit(**values)
    if not values:
        details.fault("", f"no limit; give one of {', '.join(kinds_of(LineLimit))}, or leave it out")
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
