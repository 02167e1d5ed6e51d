"""The tables `[[i2c]]` and `[sensors]` of a board profile: adapters, the known devices on them, and their sensors."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  attrs reads the annotations
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from attrs import evolve, field, frozen

from hearth._util.toml import show
from hearth.drivers.i2c.chips import SENSOR_KINDS, I2cSensor
from hearth.drivers.i2c.driver import FIRST_ADDR, LAST_ADDR, LAST_TEN_BIT, Addresses, Scope
from hearth.drivers.kind import Caution, Follow, Resource
from hearth.drivers.registers import (
    Increment,
    Register,
    RegisterMap,
    RegWidth,
    Valid,
    check_registers,
    check_valid,
    parse_register,
)
from hearth.fields import ANY_NUMBER, Choice, FieldType, Integer, ListOf, Number, Text
from hearth.tables import Table, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hearth.drivers.base import Driver
    from hearth.drivers.kind import Opening, Specs


_TEXT: Final = Text()
_SENSOR_KIND: Final = Choice(*SENSOR_KINDS)


_BUS: Final = Integer(0, 255)


@frozen
class SensorSpec:
    """A named sensor: a kind this release can read, on an I2C bus.

    The values of `none`, and those outside of `valid`, are not measurements: a bus that hangs reads as ones or zeros.
    """

    name: str
    kind: str
    bus: int
    addr: int
    description: str | None = None
    none: Annotated[tuple[float, ...], ListOf(ANY_NUMBER)] = ()
    valid: Valid | None = None

    def sensors(self) -> Iterator[I2cSensor]:
        """Yield it as a sensor of the board."""
        unit = SENSOR_KINDS[self.kind].unit
        what = (self.name, self.kind, f"i2c:{self.bus}", self.addr, unit, self.description)
        yield I2cSensor(*what, none=self.none, valid=self.valid)

    def resources(self) -> Iterator[Resource]:
        """Yield what it needs alone on its board."""
        yield Resource(("sensor", self.name), "", show(self.name))


def check(top: Table, specs: Specs, _discover: Mapping[str, tuple[str, ...]]) -> None:
    """Add the faults of sensors on an adapter that is not listed, or at an address that may not be used."""
    adapters = {one.bus: one for one in specs.get("i2c", ())}
    for sensor in specs.get("sensors", ()):
        table = Table({}, join("sensors", sensor.name), top.faults)
        if sensor.bus not in adapters:
            table.fault("bus", f"there is no [[i2c]] with bus = {sensor.bus}")
        elif (refused := adapters[sensor.bus].addresses.refusal(sensor.addr)) is not None:
            table.fault("addr", f"{sensor.addr:#04x} may not be used: {refused}")


def parse_sensor(name: str, table: Table) -> SensorSpec:
    """Read one table of `[sensors]`; only where the table is `ok` is every value of its type."""
    values = {"kind": table.take("kind", _SENSOR_KIND), "bus": table.take("bus", _BUS), "addr": _addr(table)}
    values |= table.given(SensorSpec)
    check_valid(table, values.get("valid"))
    table.done()
    return SensorSpec(name, **values)


SIM_DEVICES: Mapping[str, RegWidth | None] = {"tmp102": 8, "24c02": 8, "mcp3221": None}
"""The devices that the simulator has, with the width of their register numbers; None for one without registers."""


FIRST_TEN_BIT = 0x80
"""From here to LAST_TEN_BIT an address has ten bits and cannot be mistaken for one of seven."""


_ADDRESS: Final = Integer(FIRST_ADDR, LAST_TEN_BIT)


_SIM_ADDRESS: Final = Integer(FIRST_ADDR, LAST_ADDR)


_SIM_KIND: Final = Choice(*SIM_DEVICES)


_I2C_DRIVER: Final = Choice("sim", "i2c-dev")


_OF_REAL_ADAPTERS: Final = {"adapter", "timeout_ms", "retries"}


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

    def attach(self, addr: int, adapter: Any) -> Callable[[Any], None]:
        """Put the level of the tank on a simulated device; return the function for the levels of the pump's line."""
        from hearth.drivers.simulated import Tank, clock_for

        clock = clock_for(adapter.style)
        tank = adapter.devices[addr].percent = Tank(clock, start=self.start, fill=self.fill, drain=self.drain)
        return tank.pump


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

    @property
    def map(self) -> RegisterMap:
        """Return its registers, for the limits of its bus."""
        return RegisterMap(self.registers, self.reg_width, self.increment, self.addr)


@frozen
class I2cSpec:
    """An I2C adapter, by the number in /dev/i2c-N, or by the kernel's name of it, where the number may move.

    `timeout_ms` and `retries` set the kernel's handling of one transfer on it. `scope` and `reserved` say which
    addresses may be used. `leaned_on` has the addresses whose readings safety goes by, with what goes by them.
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
    leaned_on: Mapping[int, str] = field(factory=dict)

    def make_driver(self, opening: Opening) -> Driver:
        """Return its driver, not opened."""
        from hearth.drivers.base import Style

        common: Any = {"speed_hz": self.speed_hz, "addresses": self.addresses}
        if self.driver == "i2c-dev":
            from hearth.drivers.i2c.linux import LinuxI2c

            kernel: Any = {"adapter": self.adapter, "timeout_ms": self.timeout_ms, "retries": self.retries}
            return LinuxI2c(self.bus, **common, **kernel)
        from hearth.drivers.i2c.sim import Device, Eeprom, Mcp3221, SimI2c, SlowTemperature, Tmp102
        from hearth.drivers.simulated import clock_for

        style = opening.style or Style.THREAD
        clock = clock_for(style)
        devices: dict[int, Device] = {}
        for device in self.devices:
            if device.kind == "tmp102":
                devices[device.addr] = Tmp102(SlowTemperature(opening.seed + device.addr, clock))
            elif device.kind == "mcp3221":
                devices[device.addr] = Mcp3221(lambda: 0.0)
            else:
                devices[device.addr] = Eeprom(clock, write_cycle_s=device.write_cycle_ms / 1000)
        return SimI2c(self.bus, devices, style=style, **common)

    @property
    def addresses(self) -> Addresses:
        """Return the rules for its addresses, as its driver checks them."""
        declared: dict[int, RegWidth | None] = {device.addr: device.reg_width for device in self.devices}
        return Addresses(declared, self.scope, frozenset(self.reserved), self.protected)

    @property
    def protected(self) -> dict[int, str]:
        """Return the addresses that clients only read, with the reason.

        A device that lists its registers is not among them: its bus permits writes to these alone.
        """
        listed = {device.addr for device in self.devices if device.registers}
        cure = "clients only read it; list the registers that they may write (`registers` of its [[i2c.device]])"
        return {addr: f"{who}: {cure}" for addr, who in self.leaned_on.items() if addr not in listed}

    def follows(self) -> Iterator[Follow]:
        """Yield the tanks, each of which follows the line of its pump."""
        for index, device in enumerate(self.devices):
            if device.tank is not None:
                place = f"device[{index}].tank.pump"
                yield Follow(place, device.tank.pump, partial(device.tank.attach, device.addr))


def lean(specs: Specs, users: Mapping[str, str]) -> Specs:
    """See `BusKind.lean`."""
    found: dict[int, dict[int, str]] = {}
    for sensor in specs.get("sensors", ()):
        # A chip without a configuration has nothing that could be written.
        if sensor.name in users and SENSOR_KINDS[sensor.kind].configuration is not None:
            found.setdefault(sensor.bus, {})[sensor.addr] = f"{users[sensor.name]} goes by sensor {sensor.name}"
    return {"i2c": tuple(evolve(spec, leaned_on=found.get(spec.bus, {})) for spec in specs["i2c"])}


def cautions(specs: Specs) -> Iterator[Caution]:
    """Yield the devices that could be written if no interlock went by them."""
    cure = "list the registers that they may write (`registers` of its [[i2c.device]])"
    for index, spec in enumerate(specs["i2c"]):
        for addr in spec.protected:
            told = f"clients only read address {addr:#04x}, since {spec.leaned_on[addr]}"
            yield Caution(f"i2c[{index}]", "note", told, cure)


def parse_i2c(table: Table) -> I2cSpec:
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
        check_registers(entry, device.map, tables)
    return device


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
