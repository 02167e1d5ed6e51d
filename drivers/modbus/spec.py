"""The table `[[modbus]]` of a board profile: lines, the devices on them, and their registers; and registers as sensors.

It reads one line with its faults, and makes its driver.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

from attrs import Factory, evolve, field, frozen

from hearth._util.toml import show
from hearth.drivers.kind import Caution, Resource
from hearth.drivers.modbus.codec import BITS, Tid
from hearth.drivers.modbus.driver import BROADCAST, LAST_REG, SUNSPEC, ModbusDevice, ModbusRegister
from hearth.drivers.registers import check_valid
from hearth.drivers.sensor import Sensor
from hearth.drivers.serial_port.settings import UartSettings, parse_rs485
from hearth.errors import no_value
from hearth.fields import ANY_NUMBER, Choice, FieldType, Integer, Number, Text
from hearth.tables import Table, kinds_of
from hearth.tools import Use

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    from hearth.drivers.kind import Opening, Specs
    from hearth.drivers.modbus.line import ModbusLine
    from hearth.drivers.serial_port.fd import FdUart

_TEXT: Final = Text()
_NAME: Final = Text("a name without a colon", r"[^:\s]+")
_DRIVER: Final = Choice("sim", "rtu", "tcp")
_UNIT: Final = Integer(0, 255)
_REG: Final = Integer(0, LAST_REG)
LAST_SERIAL_UNIT: Final = 247
SLOWEST_BAUD: Final = 300


class _RegisterValue(FieldType):
    """A value of a register: a number in its unit, or true or false."""

    expected = "a number in the unit of the register, or true or false"
    example = "0"

    def read(self, raw: object) -> bool | float:
        """Return the value unchanged."""
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, (int, float)):
            raise self.wrong(raw)
        return ANY_NUMBER.read(raw)


_VALUE: Final = _RegisterValue()


@frozen
class ModbusSpec:
    """A line: the name that its bus has, its port or address, its timing, and its devices.

    `path` and `settings` are of a serial line, `host` and `tcp_port` of TCP. `timeout_ms` is the longest wait for an
    answer; for `late_ms` more the answer to a request that has timed out is not taken for another one's;
    `turnaround_ms` is the pause after a broadcast. The other keys are for devices that do not keep to the standard: see
    docs/reference/boards.md.
    """

    line: str
    driver: str
    path: str | None = None
    host: str | None = None
    tcp_port: Annotated[int, Integer(1, 65_535)] = 502
    timeout_ms: Annotated[float, Number(ge=1, le=60_000)] = 1000
    late_ms: Annotated[float, Number(ge=0, le=60_000)] = 1000
    turnaround_ms: Annotated[float, Number(ge=0, le=1000)] = 100
    loopback: bool = False
    framing: Literal["rtu", "tcp"] = field(
        default=Factory(lambda self: "tcp" if self.driver == "tcp" else "rtu", takes_self=True)
    )
    tid: Tid = "same"
    delay_ms: Annotated[float, Number(ge=0, le=60_000)] = 0
    pause_ms: Annotated[float, Number(ge=0, le=60_000)] = 0
    reconnect_after_timeout: bool = True
    settings: UartSettings = field(factory=UartSettings)
    devices: tuple[ModbusDevice, ...] = ()

    @property
    def bus(self) -> str:
        """Return the id of its bus."""
        return f"modbus:{self.line}"

    @property
    def broadcasts(self) -> bool:
        """True if all devices obey a request to unit 0, and none answers."""
        return self.framing == "rtu"

    def use(self, device: ModbusDevice, *, raw: bool = False) -> Use:
        """Return a device with its spellings in a policy; addresses that are not declared are a use of their own."""
        names = (device.name, f"{self.line}:{device.name}", f"{self.line}:{device.unit}")
        return Use("modbus", tuple(f"{name}:raw" for name in names) if raw else names)

    def make_driver(self, _opening: Opening | None) -> ModbusLine:
        """Return the line's driver, not opened."""
        from hearth.drivers.modbus.line import ModbusLine

        port: FdUart
        if self.driver == "tcp":
            from hearth.drivers.modbus.network import TcpPort

            assert self.host is not None, "parse_modbus asks for it"
            port = TcpPort(self.line, self.host, self.tcp_port)
        elif self.driver == "rtu":
            from hearth.drivers.serial_port.tty import LinuxUart

            assert self.path is not None, "parse_modbus asks for it"
            port = LinuxUart(self.line, self.path, self.settings)
        else:
            from hearth.drivers.modbus.sim import SimModbusPort

            port = SimModbusPort(self.line, self.settings, self.devices)
        return ModbusLine(
            self.line,
            port,
            self.devices,
            timeout_s=self.timeout_ms / 1000,
            late_s=self.late_ms / 1000,
            turnaround_s=self.turnaround_ms / 1000,
            delay_s=self.delay_ms / 1000,
            pause_s=self.pause_ms / 1000,
            rtu=self.framing == "rtu",
            loopback=self.loopback,
            tid=self.tid,
            reconnect=self.reconnect_after_timeout,
        )

    def sensors(self) -> Iterator[Sensor]:
        """Yield the registers that are sensors of the board."""
        for device in self.devices:
            for register in device.registers:
                if register.sensor is not None:
                    yield ModbusSensor(
                        register.sensor,
                        "modbus",
                        self.bus,
                        device.unit,
                        register.unit or "raw",
                        register.note,
                        register=register,
                        use=self.use(device),
                    )

    def resources(self) -> Iterator[Resource]:
        """Yield what it needs alone on its board."""
        if self.host is not None:
            host = str(ip_address(self.host))
            yield Resource((host, self.tcp_port), "host", f"port {self.tcp_port} of {show(self.host)}")
        for number, device in enumerate(self.devices):
            place = f"device[{number}]"
            yield Resource(("modbus device", device.name), f"{place}.name", show(device.name))
            for which, register in enumerate(device.registers):
                if register.sensor is not None:
                    at = f"{place}.registers[{which}].sensor"
                    yield Resource(("sensor", register.sensor), at, show(register.sensor))

    def to_json(self) -> dict[str, Any]:
        """Return the devices for hw.modbus.list."""
        return {
            "line": self.line,
            "bus": self.bus,
            "devices": [
                {
                    "device": device.name,
                    "unit": device.unit,
                    **({"note": device.note} if device.note else {}),
                    **({"raw": device.raw} if device.raw != "none" else {}),
                    "registers": [register.to_json() for register in device.registers],
                }
                for device in self.devices
            ],
        }


@frozen(eq=False, kw_only=True)
class ModbusSensor(Sensor):
    """A register that is a sensor. Its `addr` is the unit."""

    register: ModbusRegister
    use: Use

    def uses(self) -> Use:
        """Return the device that it is read from."""
        return self.use

    def limit_ms(self, driver: Any) -> float:
        """See Sensor."""
        return cast("ModbusLine", driver).limit_ms()

    def read(self, driver: Any) -> Coroutine[Any, Any, tuple[int, ...]]:
        """Return the transaction that reads it."""
        register = self.register
        return cast("ModbusLine", driver).read(self.addr, register.table, register.reg, register.size)

    def value(self, raw: Any) -> float:
        """Return the number of what was read. Raises DeviceError for one that is none."""
        value = self.register.shown(raw)
        if value is None:
            raise no_value(f"sensor {self.name!r}: the device says that it has no value", sensor=self.name)
        return float(value)


def lean(specs: Specs, users: Mapping[str, str]) -> Specs:
    """See `BusKind.lean`."""

    def leaned(spec: ModbusSpec) -> ModbusSpec:
        found = {
            device.unit: tuple(f"{users[name]} goes by sensor {name}" for name in device.sensors() if name in users)
            for device in spec.devices
        }
        # A broadcast reaches all devices of a line.
        found[BROADCAST] = tuple(chain.from_iterable(found.values()))
        return evolve(spec, devices=tuple(evolve(one, leaned_on=found[one.unit]) for one in spec.devices))

    return {"modbus": tuple(map(leaned, specs["modbus"]))}


def cautions(specs: Specs) -> Iterator[Caution]:
    """Yield the registers by which something goes, and that clients may write."""
    for index, spec in enumerate(specs["modbus"]):
        for number, device in enumerate(spec.devices):
            place = f"modbus[{index}].device[{number}]"
            used = [one for one in device.registers if any(who.endswith(f" {one.sensor}") for who in device.leaned_on)]
            if names := [f"{one.name}" for one in used if one.access != "r"]:
                told = f"clients may write {', '.join(names)}, by which an interlock goes"
                cure = 'give a register that is only measured access = "r"'
                yield Caution(f"{place}.registers", "warn", told, cure)
            if device.raw == "rw" and device.leaned_on:
                told = f"undeclared addresses of {device.name} are only read, since {device.leaned_on[0]}"
                yield Caution(f"{place}.raw", "note", told, "declare the registers that clients may write")


def parse_modbus(table: Table) -> ModbusSpec:
    """Read one `[[modbus]]`; only where the table is `ok` is every value of its type."""
    line, driver = table.take("line", _NAME), table.take("driver", _DRIVER)
    kinds, settings = dict(kinds_of(ModbusSpec)), dict(kinds_of(UartSettings))
    for key in ("flow", "inbox_bytes", "bits"):
        settings.pop(key)
    # 8 bits, even parity is what the standard wants where the profile does not say.
    given: dict[str, Any] = {"baud": 19_200, "parity": "even", "stop_bits": 1, **table.given(settings)}
    given["rs485"] = parse_rs485(table)
    values = table.given(kinds)
    _check_port(table, driver, values, {*settings, "rs485"})
    serial = driver != "tcp" or values.get("framing") == "rtu"
    devices: list[ModbusDevice] = []
    for entry in table.tables("device"):
        device = _device(entry, broadcast=serial)
        if entry.ok and any(device.unit == other.unit for other in devices):
            entry.fault("unit", f"{device.unit} is taken on this line")
        if entry.ok and serial and device.unit > LAST_SERIAL_UNIT:
            entry.fault("unit", f"a serial line has the units 1 to {LAST_SERIAL_UNIT}, and 0 for all of them")
        devices.append(device)
    table.done()
    if table.ok:
        if given["baud"] < SLOWEST_BAUD:
            table.fault("baud", f"{given['baud']} is slower than Modbus can be timed; give {SLOWEST_BAUD} or more")
        try:
            values["settings"] = UartSettings(**given)
        except ValueError as error:
            key, _, why = str(error).partition(": ")
            table.fault(key, why)
        if not devices:
            table.fault("device", "the line has no device; add a [[modbus.device]]")
    return ModbusSpec(line, driver, devices=tuple(devices), **values)


def _check_port(table: Table, driver: str | None, values: dict[str, Any], serial: set[str]) -> None:
    """Refuse what does not belong to this kind of line, and an address that is none."""
    own = {"rtu": "path", "tcp": "host"}
    for kind, key in own.items():
        if driver == kind and key not in table.content:
            table.fault(key, f"missing; it takes {'the device of the port' if kind == 'rtu' else 'an IP address'}")
        elif driver not in (kind, None) and key in table.content:
            table.fault(key, f'only a line with driver = "{kind}" has one')
    has, foreign = _foreign(driver, values, serial)
    for key in sorted(foreign & table.content.keys()):
        table.fault(key, f"{has} has none")
    if values.get("host") is not None:
        try:
            ip_address(values["host"])
        except ValueError:
            why = 'expected an IP address such as "192.0.2.7": another machine could answer for a name'
            table.fault("host", why)


def _foreign(driver: str | None, values: dict[str, Any], serial: set[str]) -> tuple[str, set[str]]:
    """Return the words for a kind of line, and the keys that it does not have."""
    has = f'a line with driver = "{driver}"'
    if driver != "tcp":
        return has, {"tcp_port", "tid", "framing", "reconnect_after_timeout"}
    if values.get("framing") == "rtu":
        return f'{has} and framing = "rtu"', {"tid", *serial}
    foreign = {"turnaround_ms", "loopback", *serial}
    return has, foreign | {"late_ms"} if values.get("tid", "same") in ("same", "next") else foreign


def _device(entry: Table, *, broadcast: bool) -> ModbusDevice:
    unit, name = entry.take("unit", _UNIT), entry.take("name", _NAME)
    values = entry.given(ModbusDevice)
    tables = list(entry.tables("registers"))
    registers = tuple([_register(table) for table in tables])
    entry.done()
    if values.get("codes") == "sunspec":
        registers = tuple(
            one if one.none or one.type not in SUNSPEC else evolve(one, none=(SUNSPEC[one.type],)) for one in registers
        )
    device = ModbusDevice(unit, name, registers, **values)
    if entry.ok:
        _check_registers(device, tables)
        if not registers and device.raw == "none":
            entry.fault("registers", 'nothing of the device could be used; list registers, or give raw = "r"')
        for register, table in zip(registers, tables, strict=True) if broadcast and unit == BROADCAST else ():
            if register.access != "w":
                table.fault("access", 'none answers for unit 0, so it is only written; give access = "w"')
    return device


def _register(table: Table) -> ModbusRegister:
    """Read one register, and refuse limits by which nothing could be written to it."""
    name, reg = table.take("name", _NAME), table.take("reg", _REG)
    others = ("width", "signed", "name", "safe")
    kinds = {key: kind for key, kind in kinds_of(ModbusRegister).items() if key not in others}
    values = table.given(kinds) | table.given({"safe": _VALUE})
    table.done()
    if not table.ok:
        return ModbusRegister(0)
    bits = values.get("table") in BITS
    values.setdefault("type", "bool" if bits else "u16")
    if values.get("table") in ("discrete", "input") and values.setdefault("access", "r") != "r":
        table.fault("access", f'table {values["table"]!r} is only read; give access = "r"')
    register = ModbusRegister(reg, name=name, **values)
    if bits and register.type != "bool":
        table.fault("type", f'a {register.table} is one bit; give type = "bool", or leave it out')
    _check_text(table, register, values)
    check_valid(table, register.valid)
    if register.reg + register.size - 1 > LAST_REG:
        table.fault("reg", f"its {register.size} registers end beyond {LAST_REG}")
    if table.ok:
        _check_limits(table, register, values)
        if register.safe is not None:
            _check_safe(table, register, register.safe)
    return register


def _check_text(table: Table, register: ModbusRegister, values: dict[str, Any]) -> None:
    text = register.type == "text"
    if text != (register.length is not None):
        told = "missing; it takes the registers that the text has" if text else 'only type = "text" has one'
        table.fault("length", told)
    if text and register.access != "r":
        table.fault("access", 'a text is only read; give access = "r"')
    for key in sorted({"scale", "offset", "valid", "sensor", "unit"} & values.keys()) if text else ():
        table.fault(key, "a text is not a number: it has none")


def _check_safe(table: Table, register: ModbusRegister, safe: bool | float) -> None:
    if register.access == "r":
        table.fault("safe", 'a register with access = "r" is never written, so it has no safe value')
        return
    if (register.type == "bool") != isinstance(safe, bool):
        table.fault("safe", f"expected {'true or false' if register.type == 'bool' else 'a number'}, got {show(safe)}")
        return
    low, high = register.raw_bounds
    try:
        fits = low <= register.number(register.encode(safe)) <= high
    except (OverflowError, struct.error):
        fits = False
    if not fits:
        has = f"{register.valued(low):g} to {register.valued(high):g}"
        table.fault("safe", f"{show(safe)} is beyond what may be written, {has}")


def _check_limits(table: Table, register: ModbusRegister, values: dict[str, Any]) -> None:
    if register.access == "r" and (register.limited or "on_limit" in values):
        table.fault("access", 'a register with access = "r" is never written, so it has no limits')
    if register.sensor is not None and register.access == "w":
        table.fault("sensor", 'a register with access = "w" is never read')
    if register.type == "bool":
        for key in {"min", "max", "max_step", "slew_per_s", "scale", "offset", "none", "valid"} & values.keys():
            table.fault(key, "a bool is 0 or 1: it has none")
    low, high = register.unlimited().raw_bounds
    for key, bound in (("min", register.min), ("max", register.max)):
        if bound is not None and not low <= register.counted(bound) <= high:
            holds = f"{register.valued(low):g} to {register.valued(high):g}"
            table.fault(key, f"{bound:g} is impossible: type {register.type!r} holds {holds} (see type and scale)")
            return
    least, most = register.raw_bounds
    if least > most:
        table.fault("min", "no value lies between min and max")
    elif register.counts and register.max_step is not None and register.max_step < register.scale:
        table.fault("max_step", f"{register.max_step:g} is less than one step of the register, {register.scale:g}")


def _check_registers(device: ModbusDevice, tables: Sequence[Table]) -> None:
    """Refuse registers that share a name or an address."""
    names: set[str] = set()
    taken: dict[tuple[str, int], str] = {}
    for register, table in zip(device.registers, tables, strict=True):
        assert register.name is not None, "_register asks for it"
        if register.name in names:
            table.fault("name", f"{register.name!r} is there twice")
        names.add(register.name)
        for at in range(register.reg, register.reg + register.size):
            other = taken.setdefault((register.table, at), register.name)
            if other != register.name:
                table.fault("reg", f"{register.table} {at} belongs to {other}")
                break
