"""An opened board: a profile joined to drivers, with the names of its buses, lines and ports.

It owns the bus ids ("gpio:<label>", "i2c:<number>", "uart:<port>", "spi:<name>", "board") and the lookup of a bus or a
line by name. It makes drivers but opens none: the bus actors do that. A profile entry without a driver here is refused
by name.

The bus "board" answers hw.board and the hw.*.list tools. Its driver touches no hardware, and calls only `describe` of
the other drivers, which is safe at any time and from any bus.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NoReturn

from attrs import asdict, evolve, field, frozen

from hearth._util.text import suggestions
from hearth.drivers.base import BaseDriver, Driver, Style
from hearth.drivers.can.spec import can_driver, can_json
from hearth.drivers.dac.spec import dac_driver
from hearth.drivers.i2c.chips import SENSOR_KINDS, I2cSensor
from hearth.drivers.iio.spec import iio_driver
from hearth.drivers.sensor import SENSORS_BUS, Sensor
from hearth.errors import ConfigError, InvalidParams, PermissionDenied
from hearth.tools import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from hearth.drivers.boards.discover import FoundSpi, Machine
    from hearth.drivers.boards.profile import BusKind, Profile, Undriven
    from hearth.drivers.dac.driver import DacChannelSpec
    from hearth.drivers.gpio.spec import ChipSpec, LineSpec
    from hearth.drivers.i2c.spec import DeviceSpec, I2cSpec
    from hearth.drivers.pwm.driver import ChannelSpec
    from hearth.drivers.pwm.spec import PwmSpec
    from hearth.drivers.serial_port.settings import UartSettings
    from hearth.drivers.signals import SignalChannel
    from hearth.drivers.spi.spec import SpiSpec
    from hearth.drivers.uart.spec import UartSpec

_HEADER_PIN = re.compile(r"PIN\d+")
"""The form of an alias that is a position on the board's pin header."""


class BoardDriver(BaseDriver):
    """A driver whose operations are the answers of hw.board and the hw.*.list tools."""

    simulated = True

    style = Style.INLINE

    def __init__(
        self,
        profile: Profile,
        drivers: Mapping[str, Driver],
        undriven: tuple[Undriven, ...],
        sensors: Mapping[str, Sensor],
    ) -> None:
        self._profile = profile
        self._drivers = drivers
        self._undriven = undriven
        self._sensors = sensors

    def describe(self) -> Mapping[str, Any]:
        """Return the board's name and description."""
        return {"kind": "board", "name": self._profile.name, "description": self._profile.description}

    def info(self) -> dict[str, Any]:
        """Return the result of hw.board."""
        return {
            "name": self._profile.name,
            "description": self._profile.description,
            "buses": [{"id": bus, **driver.describe()} for bus, driver in self._drivers.items() if driver is not self],
            "undriven": [entry.to_json() for entry in self._undriven],
        }

    def _missing(self, kind: BusKind) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self._undriven if entry.kind == kind]

    def gpio(self) -> dict[str, Any]:
        """Return the result of hw.gpio.list."""
        chips = [
            {
                "chip": chip.label,
                "bus": f"gpio:{chip.label}",
                "driven": True,
                **_path_of(self._drivers[f"gpio:{chip.label}"]),
                "lines": _lines_json(chip),
            }
            for chip in self._profile.chips
            if f"gpio:{chip.label}" in self._drivers
        ]
        return {"chips": chips, "undriven": self._missing("gpio")}

    def i2c(self) -> dict[str, Any]:
        """Return the result of hw.i2c.list."""
        buses = [
            {
                "bus": spec.bus,
                "id": f"i2c:{spec.bus}",
                "driven": True,
                "speed_hz": spec.speed_hz,
                "scope": spec.scope,
                "reserved": list(spec.reserved),
                **_without_kind(self._drivers[f"i2c:{spec.bus}"].describe()),
                "devices": [_device_json(device) for device in spec.devices],
            }
            for spec in self._profile.i2c
            if f"i2c:{spec.bus}" in self._drivers
        ]
        return {"buses": buses, "undriven": self._missing("i2c")}

    def spi(self) -> dict[str, Any]:
        """Return the result of hw.spi.list."""
        devices = [
            {"bus": spec.bus, "driven": True, **_without_kind(self._drivers[spec.bus].describe()), **spec.to_json()}
            for spec in self._profile.spi
        ]
        return {"devices": devices, "undriven": self._missing("spi")}

    def uart(self) -> dict[str, Any]:
        """Return the result of hw.uart.list."""
        ports = [
            {
                "bus": f"uart:{spec.port}",
                "driven": True,
                **self._drivers[f"uart:{spec.port}"].describe(),
                **_settings_json(spec.settings),
            }
            for spec in self._profile.uarts
            if f"uart:{spec.port}" in self._drivers
        ]
        return {"ports": ports, "undriven": self._missing("uart")}

    def pwm(self) -> dict[str, Any]:
        """Return the result of hw.pwm.list."""
        chips = [
            {
                "chip": chip.label,
                "bus": chip.bus,
                "driven": True,
                **_path_of(self._drivers[chip.bus]),
                "channels": [channel.to_json() for channel in chip.channels],
            }
            for chip in self._profile.pwm
            if chip.bus in self._drivers
        ]
        return {"chips": chips, "undriven": self._missing("pwm")}

    def dac(self) -> dict[str, Any]:
        """Return the result of hw.dac.list."""
        devices = [
            {
                "device": device.label,
                "bus": device.bus,
                **_path_of(self._drivers[device.bus]),
                "channels": [channel.to_json() for channel in device.channels],
            }
            for device in self._profile.dacs
        ]
        return {"devices": devices}

    def can(self) -> dict[str, Any]:
        """Return the result of hw.can.list, without the messages."""
        specs = [spec for spec in self._profile.cans if f"can:{spec.bus}" in self._drivers]
        buses = [can_json(spec, self._drivers[f"can:{spec.bus}"]) for spec in specs]
        return {"buses": buses, "undriven": self._missing("can")}

    def modbus(self) -> dict[str, Any]:
        """Return the result of hw.modbus.list."""
        return {"lines": [{**self._drivers[spec.bus].describe(), **spec.to_json()} for spec in self._profile.modbus]}

    def sensors(self) -> dict[str, Any]:
        """Return the result of hw.sensor.list."""
        return {"sensors": [sensor.to_json() for sensor in self._sensors.values()]}


def _path_of(driver: Driver) -> dict[str, Any]:
    path = driver.describe().get("path")
    return {} if path is None else {"path": path}


def _lines_json(chip: ChipSpec) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for line in chip.lines:
        entry: dict[str, Any] = {
            "line": line.offset,
            "name": line.name,
            "direction": line.direction,
            "safe": line.safe,
            "hold": line.hold,
        }
        aliases = [alias for alias, offset in chip.aliases.items() if offset == line.offset]
        pins = [int(alias[3:]) for alias in aliases if _HEADER_PIN.fullmatch(alias)]
        optional = {
            "aliases": aliases,
            "pin": pins[0] if pins else None,
            "active_low": line.active_low,
            "drive": line.drive if line.drive != "push-pull" else None,
            "pull": line.pull if line.pull != "as-is" else None,
            "debounce_us": line.debounce_us,
            "functions": list(line.functions),
            "limit": None if line.limit is None else line.limit.to_json(),
            "reserved": line.reserved,
            "note": line.note,
        }
        entry |= {key: value for key, value in optional.items() if value}
        lines.append(entry if line.initial is None else {**entry, "initial": line.initial})
    return lines


def _settings_json(settings: UartSettings) -> dict[str, Any]:
    """Return the port's settings; default values are left out, but for the four numbers that every client needs."""
    result: dict[str, Any] = {
        "baud": settings.baud,
        "bits": settings.bits,
        "parity": settings.parity,
        "stop_bits": settings.stop_bits,
        "flow": settings.flow,
    }
    if settings.rs485 is not None:
        result["rs485"] = asdict(settings.rs485)
    return result


def _without_kind(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a driver's description, without the parts that the list shows under another name."""
    return {key: value for key, value in description.items() if key not in ("kind", "bus", "devices")}


def _device_json(device: DeviceSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {"addr": device.addr, "hex": f"{device.addr:#04x}", "kind": device.kind}
    optional = {
        "reg_width": device.reg_width,
        "note": device.note,
        "increment": device.increment if device.registers else None,
        "registers": [register.to_json() for register in device.registers] or None,
    }
    return entry | {key: value for key, value in optional.items() if value is not None}


BOARD_BUS = "board"


@frozen(eq=False)
class Board:
    """The hardware that this process can use. `drivers` maps bus ids to drivers that are not opened yet."""

    profile: Profile
    drivers: dict[str, Driver]
    undriven: tuple[Undriven, ...]
    sensors: Mapping[str, Sensor]
    chips: Mapping[str, ChipSpec]
    """The driven GPIO chips by label; the first is the default one."""
    readable: Mapping[str, Mapping[int | str, int]] = field(repr=False)
    """Chip label to (offset, name or alias) to offset, for every line that may be read.

    "17" is the line of offset 17, unless a line has the name or alias "17".
    """
    drivable: Mapping[str, Mapping[int | str, int]] = field(repr=False)
    """The same for the lines that may be driven."""

    @property
    def name(self) -> str:
        """Return the profile's name."""
        return self.profile.name

    @property
    def description(self) -> str:
        """Return the profile's description."""
        return self.profile.description

    def real_buses(self) -> list[str]:
        """Return the buses that reach hardware: those whose driver does not say that it is simulated."""
        return [bus for bus, driver in self.drivers.items() if getattr(driver, "simulated", False) is not True]

    def has(self, kind: str) -> bool:
        """True if there is a bus of this kind ("gpio", "i2c", "uart", "pwm", "dac", "can", "modbus", "iio", …)."""
        return any(bus == kind or bus.startswith(f"{kind}:") for bus in self.drivers)

    def add_driver(self, bus: str, driver: Driver) -> None:
        """Add a vendor's driver, which serves the bus of that id ("com.acme.leds").

        Call it from the entry point that makes the vendor's tools: later the buses run. Raises ConfigError for an id
        that is taken or has no prefix.
        """
        if "." not in bus:
            raise ConfigError(f"bus {bus!r} of a vendor needs the vendor's prefix, such as com.acme.{bus}")
        if bus in self.drivers:
            raise ConfigError(f"board {self.name!r} has a bus {bus!r} already: choose another id, with your own prefix")
        self.drivers[bus] = driver

    def gpio_bus(self, chip: str | None = None) -> str:
        """Return the bus id of a chip by its label, or of the default chip. Raises InvalidParams."""
        label = next(iter(self.chips), None) if chip is None else chip
        if label not in self.chips:
            self._unknown("gpio", "chip", chip, list(self.chips))
        return f"gpio:{label}"

    def i2c_bus(self, bus: int) -> str:
        """Return the bus id of an I2C adapter by its number. Raises InvalidParams."""
        bus_id = f"i2c:{int(bus)}"
        if bus_id not in self.drivers:
            self._unknown(
                "i2c", "bus", bus, [spec.bus for spec in self.profile.i2c if f"i2c:{spec.bus}" in self.drivers]
            )
        return bus_id

    def uart_bus(self, port: str) -> str:
        """Return the bus id of a serial port by its name. Raises InvalidParams."""
        bus_id = f"uart:{port}"
        if bus_id not in self.drivers:
            known = [spec.port for spec in self.profile.uarts if f"uart:{spec.port}" in self.drivers]
            self._unknown("uart", "port", port, known)
        return bus_id

    def channel(self, name: str) -> tuple[str, ChannelSpec]:
        """Return a PWM channel by its name, with its bus id. Raises InvalidParams, PermissionDenied."""
        found = {channel.name: (chip, channel) for chip in self.profile.pwm for channel in chip.channels}
        if name not in found:
            self._unknown(
                "pwm", "channel", name, [known for known, (chip, _) in found.items() if chip.bus in self.drivers]
            )
        chip, channel = found[name]
        if chip.bus not in self.drivers:
            self._unknown("pwm", "chip", chip.label, [])
        _refuse_reserved("pwm", channel)
        return chip.bus, channel

    def dac_channel(self, name: str) -> tuple[str, DacChannelSpec]:
        """Return a converter's channel by its name, with its bus id. Raises InvalidParams, PermissionDenied."""
        found = {channel.name: (device, channel) for device in self.profile.dacs for channel in device.channels}
        if name not in found:
            self._unknown("dac", "channel", name, list(found))
        device, channel = found[name]
        _refuse_reserved("dac", channel)
        return device.bus, channel

    def can_bus(self, bus: str) -> str:
        """Return the bus id of a CAN bus by its name. Raises InvalidParams."""
        bus_id = f"can:{bus}"
        if bus_id not in self.drivers:
            self._unknown("can", "bus", bus, [spec.bus for spec in self.profile.cans])
        return bus_id

    def spi_device(self, name: str) -> SpiSpec:
        """Return an SPI device by its name. Raises InvalidParams."""
        found = next((spec for spec in self.profile.spi if spec.name == name), None)
        if found is None:
            self._unknown("spi", "device", name, [spec.name for spec in self.profile.spi])
        return found

    def sensor(self, name: str) -> Sensor:
        """Return a sensor by its name. Raises InvalidParams."""
        if name not in self.sensors:
            self._unknown("sensor", "sensor", name, list(self.sensors))
        return self.sensors[name]

    def line(self, chip: str | None, name_or_offset: int | str, *, drive: bool = False) -> int:
        """Return the offset of a line, by offset, name or alias.

        Raises InvalidParams for a line that the profile does not list, PermissionDenied for one that is reserved or,
        with `drive`, that is an input by the profile.
        """
        label = self.gpio_bus(chip).removeprefix("gpio:")
        lines = self.drivable if drive else self.readable
        offset = lines[label].get(name_or_offset)
        return offset if offset is not None else self._refuse_line(label, name_or_offset)

    def line_name(self, given: int | str, chip: str | None = None) -> int | str:
        """Return the one spelling of a line: its name, for any of its spellings; an unknown line is unchanged."""
        spec = next(iter(self.chips.values()), None) if chip is None else self.chips.get(chip)
        if spec is None:
            return given
        known = _offset_of(spec, given) if isinstance(given, str) else given
        return next((line.name for line in spec.lines if known in (line.offset, line.name)), given)

    def line_use(self, chip: str | None, offset: int) -> Use:
        """Return a line with its spellings: its name, its aliases, its offset on the default chip, "CHIP:17"."""
        chip = self.gpio_bus(chip).removeprefix("gpio:")
        spec = self.chips[chip]
        names = [line.name for line in spec.lines if line.offset == offset]
        names += [alias for alias, known in spec.aliases.items() if known == offset]
        if spec is next(iter(self.chips.values())):
            names.append(str(offset))
        return Use("lines", (*names, *(f"{chip}:{name}" for name in {*names, str(offset)})))

    def port_name(self, given: str) -> str:
        """Return the one spelling of a serial port: its name, also for its bus id or device; others unchanged."""
        if f"uart:{given}" in self.drivers:
            return given
        for spec in self.profile.uarts:
            # A profile names a stable link; a caller may name the device that it leads to at present.
            devices = () if spec.path is None else (spec.path, os.path.realpath(spec.path))
            if given == f"uart:{spec.port}" or given in devices:
                return spec.port
        return given

    def _refuse_line(self, label: str, name_or_offset: int | str) -> NoReturn:
        spec = self.chips[label]
        offset = _offset_of(spec, str(name_or_offset))
        for line in spec.lines:
            if name_or_offset in (line.offset, line.name) or line.offset == offset:
                reason = _not_drivable(line, label, self.profile) or "reserved"
                raise PermissionDenied(
                    f"gpio line {line.offset} ({line.name}) of chip {label!r} is {_or_reserved(line, reason)}",
                    data={"chip": label, "line": line.offset, "reason": reason},
                )
        usable = [line.name for line in spec.lines if line.reserved is None]
        names = [name for name in self.readable[label] if isinstance(name, str) and not name.isdecimal()]
        cure, near = suggestions(name_or_offset, names)
        raise InvalidParams(
            f"chip {label!r} of board {self.name!r} has no gpio line {name_or_offset!r}{cure}"
            f"{' It' if cure else '; it'} has {', '.join(usable)}, also by offset",
            data={"chip": label, "line": name_or_offset, "known": usable, **near},
        )

    def _unknown(self, kind: str, what: str, given: object, known: list[Any]) -> NoReturn:
        for entry in self.undriven:
            names = (entry.name, entry.label, entry.name.removeprefix("i2c-"))
            if entry.kind == kind and given is not None and str(given) in names:
                raise InvalidParams(
                    f"{kind} {what} {given!r}: {entry.reason}",
                    data={what: given, "known": known, "reason": entry.reason, "cure": entry.cure},
                )
        listed = ", ".join(str(name) for name in known) or "none"
        asked = f"no {kind} {what}" if given is None else f"no {kind} {what} {given!r}"
        asked = asked.replace("sensor sensor", "sensor")
        cure, near = suggestions(given, map(str, known))
        raise InvalidParams(
            f"board {self.name!r} has {asked}; it has: {listed}{cure}", data={what: given, "known": known, **near}
        )


def _refuse_reserved(kind: str, channel: SignalChannel) -> None:
    if channel.reserved is not None:
        reason = f"{kind} channel {channel.name} is reserved: {channel.reserved}"
        raise PermissionDenied(reason, data={"channel": channel.name, "reason": channel.reserved})


def _offset_of(chip: ChipSpec, given: str) -> int | str:
    """Return the offset behind an alias, or behind a decimal number that is the name of no line; else `given`."""
    if given in chip.aliases:
        return chip.aliases[given]
    named = any(line.name == given for line in chip.lines)
    return given if named else next((line.offset for line in chip.lines if str(line.offset) == given), given)


def _or_reserved(line: LineSpec, reason: str) -> str:
    return f"reserved: {reason}" if line.reserved else reason


def open_board(profile: Profile, *, style: Style | None = None, seed: int = 0, machine: Machine | None = None) -> Board:
    """Make the drivers of a profile's buses, and "board" itself; open none of them.

    `style` and `seed` are for simulated buses: the way they wait, and the readings of their devices. ASYNC is the one
    for tests with a virtual clock. Where the profile asks for it, the machine (this one, if no other is given) is
    surveyed, once; devices that are there and may not be driven are listed in `undriven` with the reason, so that the
    rest of the machine (files, telemetry) can be served.
    """
    undriven: tuple[Undriven, ...] = ()
    if profile.discover:
        from hearth.drivers.boards.discover import THIS, find
        from hearth.drivers.boards.generic import survey
        from hearth.drivers.linux.device_users import NO_HOLDERS, find_holders

        machine = machine or THIS
        there = find(profile.discover, machine)
        # Reading the list of open files of all processes takes a while, and only these need it.
        asks = there.ports or there.spi
        found = survey(profile, there, find_holders(machine.proc, machine.dev) if asks else NO_HOLDERS)
        undriven = found.undriven
        profile = evolve(
            profile,
            chips=with_spi_pins((*profile.chips, *found.chips), there.spi),
            i2c=(*profile.i2c, *found.i2c),
            uarts=(*profile.uarts, *found.uarts),
            pwm=(*profile.pwm, *found.pwm),
            cans=(*profile.cans, *found.cans),
            spi=(*profile.spi, *found.spi),
        )
    undriven += tuple(_absent(profile, machine))
    absent = {entry.name for entry in undriven if entry.kind == "pwm"}
    specs: list[tuple[BusKind, str, str, Any]] = [
        *(("gpio", chip.label, chip.driver, chip) for chip in profile.chips),
        *(("i2c", str(i2c.bus), i2c.driver, i2c) for i2c in profile.i2c),
        *(("uart", uart.port, uart.driver, uart) for uart in profile.uarts),
        *(("pwm", chip.label, chip.driver, chip) for chip in profile.pwm if chip.label not in absent),
        *(("dac", dac.label, dac.driver, dac) for dac in profile.dacs),
        *(("can", can.bus, can.driver, can) for can in profile.cans),
        *(("spi", spi.name, spi.driver, spi) for spi in profile.spi),
    ]
    drivers: dict[str, Driver] = {
        f"{kind}:{name}": _FACTORIES[kind, driver](spec, style, seed) for kind, name, driver, spec in specs
    }
    drivers |= {spec.bus: spec.make_driver() for spec in profile.modbus}
    drivers |= {spec.bus: iio_driver(spec, style, seed) for spec in profile.iio if spec.driver == "sim"}
    _connect_tanks(profile, drivers)
    if machine is not None and "sensors" in profile.discover:
        from hearth.drivers.iio.kernel import KernelSensors

        triggers = {spec.label: spec.trigger for spec in profile.iio if spec.trigger is not None}
        drivers[SENSORS_BUS] = KernelSensors(sys=machine.sys, dev=machine.dev, triggers=triggers)
    chips = {chip.label: chip for chip in profile.chips}
    sensors = {
        spec.name: I2cSensor(
            spec.name, spec.kind, f"i2c:{spec.bus}", spec.addr, SENSOR_KINDS[spec.kind].unit, spec.description
        )
        for spec in profile.sensors
    } | {sensor.name: sensor for spec in profile.modbus for sensor in spec.sensors()}
    sensors |= {sensor.name: sensor for spec in profile.iio for sensor in spec.sensors()}
    drivers[BOARD_BUS] = BoardDriver(profile, drivers, undriven, sensors)
    return Board(
        profile,
        drivers,
        undriven,
        sensors,
        chips,
        readable={label: _names(chip, lambda line: line.reserved is None) for label, chip in chips.items()},
        drivable={label: _drivable(chip, profile) for label, chip in chips.items()},
    )


def _absent(profile: Profile, machine: Machine | None) -> Iterator[Undriven]:
    """Yield the PWM chips of a profile that an overlay switches on, and that are not there."""
    optional = [chip for chip in profile.pwm if chip.overlay is not None]
    if optional:
        from hearth.drivers.boards.discover import THIS
        from hearth.drivers.boards.profile import Undriven
        from hearth.drivers.pwm.linux import pwm_chips

        where = machine or THIS
        there = {chip.device for chip in pwm_chips(where.sys, where.dev)}
        for chip in optional:
            if chip.label not in there:
                why = f"the machine has no such PWM chip now: the overlay {chip.overlay} switches it on"
                yield Undriven("pwm", chip.label, why, None, chip.label, overlay_cure(chip.overlay))


def overlay_cure(overlay: str | None) -> str:
    """Return the commands that switch on an overlay of a Raspberry Pi."""
    return f"echo 'dtoverlay={overlay}' | sudo tee -a /boot/firmware/config.txt\nsudo reboot"


def _drivable(chip: ChipSpec, profile: Profile) -> dict[int | str, int]:
    return _names(chip, lambda line: _not_drivable(line, chip.label, profile) is None)


def _not_drivable(line: LineSpec, label: str, profile: Profile) -> str | None:
    """Return the reason why no session may drive a line, or None."""
    beat = profile.halt.heartbeat
    if beat is not None and (beat.chip, beat.offset) == (label, line.offset):
        return "the heartbeat output ([halt] heartbeat): hearth itself drives it"
    if line.reserved is None and line.direction == "input":
        return 'an input by the board\'s profile (direction = "input"): it is never driven'
    return line.reserved


def _names(chip: ChipSpec, wanted: Callable[[LineSpec], bool]) -> dict[int | str, int]:
    offsets = {line.offset: line.name for line in chip.lines if wanted(line)}
    names: dict[int | str, int] = {offset: offset for offset in offsets}
    names.update({name: offset for offset, name in offsets.items()})
    names.update({alias: offset for alias, offset in chip.aliases.items() if offset in offsets})
    # Programs and models often send every argument as a string.
    taken = {*chip.aliases, *(line.name for line in chip.lines)}
    names.update({str(offset): offset for offset in offsets if str(offset) not in taken})
    return names


def _sim_gpio(chip: ChipSpec, style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.gpio.sim import SimGpio

    # A chip never waits: in virtual time it is INLINE.
    mine = Style.THREAD if style is Style.THREAD else Style.INLINE
    names = {name: offset for name, offset in _names(chip, lambda _: True).items() if isinstance(name, str)}
    driver = SimGpio(
        chip.label,
        chip.lines,
        wires=chip.wires,
        contacts=chip.contacts,
        panel=chip.panel,
        names=names,
        style=mine,
    )
    if style is Style.ASYNC:
        from hearth.drivers.simulated import clock_for

        clock = clock_for(style)
        driver.clock_ns = lambda: round(clock() * 1e9)
    return driver


def _sim_i2c(spec: I2cSpec, style: Style | None, seed: int) -> Driver:
    from hearth.drivers.i2c.sim import Device, Eeprom, Mcp3221, SimI2c, SlowTemperature, Tmp102
    from hearth.drivers.simulated import clock_for

    mine = style or Style.THREAD
    clock = clock_for(mine)
    devices: dict[int, Device] = {}
    for device in spec.devices:
        if device.kind == "tmp102":
            devices[device.addr] = Tmp102(SlowTemperature(seed + device.addr, clock))
        elif device.kind == "mcp3221":
            devices[device.addr] = Mcp3221(lambda: 0.0)
        else:
            devices[device.addr] = Eeprom(clock, write_cycle_s=device.write_cycle_ms / 1000)
    return SimI2c(spec.bus, devices, style=mine, speed_hz=spec.speed_hz, addresses=spec.addresses)


def _connect_tanks(profile: Profile, drivers: Mapping[str, Any]) -> None:
    """Connect each tank to the line of its pump, which is on another bus than its level."""
    for spec in profile.i2c:
        for device in spec.devices:
            if device.tank is not None:
                from hearth.drivers.gpio.sim import Tank
                from hearth.drivers.simulated import clock_for

                adapter = drivers[f"i2c:{spec.bus}"]
                found = profile.simulated_line(device.tank.pump)
                assert found is not None, "parse_profile asks for it"
                given = asdict(device.tank, filter=lambda attribute, _: attribute.name != "pump")
                adapter.devices[device.addr].percent = tank = Tank(clock_for(adapter.style), **given)
                drivers[f"gpio:{found[0]}"].attach(found[1], tank.pump)


def _sim_uart(spec: UartSpec, style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.serial_port.pty import SimUart

    return SimUart(spec.port, spec.settings, peer=spec.peer, terminal=style is not Style.ASYNC)


def _sim_pwm(spec: PwmSpec, style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.pwm.sim import SimPwm

    # A chip never waits: in virtual time it is INLINE.
    return SimPwm(spec.label, spec.channels, style=Style.THREAD if style is Style.THREAD else Style.INLINE)


def _linux_gpio(chip: ChipSpec, _style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.gpio.linux import LinuxGpio

    return LinuxGpio(chip.label, chip.lines, path=chip.path, blocking=chip.blocking)


def _linux_i2c(spec: I2cSpec, _style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.i2c.linux import LinuxI2c

    return LinuxI2c(
        spec.bus,
        adapter=spec.adapter,
        timeout_ms=spec.timeout_ms,
        retries=spec.retries,
        speed_hz=spec.speed_hz,
        addresses=spec.addresses,
    )


def _linux_uart(spec: UartSpec, _style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.serial_port.tty import LinuxUart

    assert spec.path is not None, "parse_port asks for it"
    return LinuxUart(spec.port, spec.path, spec.settings)


def _linux_pwm(spec: PwmSpec, _style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.pwm.linux import LinuxPwm

    return LinuxPwm(spec.label, spec.channels, chardev=spec.chardev)


def _sim_spi(spec: SpiSpec, style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.spi.sim import Loopback, RegisterChip, SimSpi

    chip: Loopback | RegisterChip = Loopback()
    if spec.kind == "registers":
        registers = () if spec.declared is None else spec.declared.registers
        cleared = {one.reg + at for one in registers if one.read_effect for at in range(one.size)}
        chip = RegisterChip(None if spec.declared is None else spec.declared.frame, cleared=cleared)
    return SimSpi(spec.name, chip, spec.settings, style=style or Style.THREAD)


def _linux_spi(spec: SpiSpec, _style: Style | None, _seed: int) -> Driver:
    from hearth.drivers.spi.linux import LinuxSpi

    assert spec.path is not None, "parse_device asks for it"
    return LinuxSpi(spec.name, spec.path, spec.settings)


_FACTORIES: Mapping[tuple[BusKind, str], Callable[[Any, Style | None, int], Driver]] = {
    ("gpio", "sim"): _sim_gpio,
    ("i2c", "sim"): _sim_i2c,
    ("uart", "sim"): _sim_uart,
    ("pwm", "sim"): _sim_pwm,
    ("dac", "sim"): dac_driver,
    ("dac", "iio"): dac_driver,
    ("can", "sim"): can_driver,
    ("can", "socketcan"): can_driver,
    ("gpio", "gpiod"): _linux_gpio,
    ("i2c", "i2c-dev"): _linux_i2c,
    ("uart", "serial"): _linux_uart,
    ("pwm", "pwm"): _linux_pwm,
    ("spi", "sim"): _sim_spi,
    ("spi", "spidev"): _linux_spi,
}
"""Factories of drivers, by kind and by the profile's `driver`.

Each imports its modules when it is called.
"""


def with_spi_pins(chips: Iterable[ChipSpec], found: Iterable[FoundSpi]) -> tuple[ChipSpec, ...]:
    """Reserve the lines that are pins of the SPI controllers that are switched on, by the lines' `functions`.

    The kernel does not count a pin that has another function as a line in use, and driving it would take the function
    away.
    """
    pins: set[str] = set()
    for device in found:
        if named := re.fullmatch(r"spidev(\d+)\.(\d+)", device.node):
            wires = ("MISO", "MOSI", "SCLK", "SIO0", "SIO1", f"CE{named[2]}", f"CE{named[2]}_N")
            pins.update(f"SPI{named[1]}_{wire}" for wire in wires)

    def reserved(line: LineSpec) -> LineSpec:
        pin = next((word for words in line.functions for word in words.split() if word in pins), None)
        if pin is None or line.reserved is not None:
            return line
        return evolve(line, reserved=f"{pin} of an SPI controller that is switched on")

    return tuple(evolve(chip, lines=tuple(map(reserved, chip.lines))) for chip in chips) if pins else tuple(chips)
