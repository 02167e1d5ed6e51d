"""The bus "board": what hw.* tells about the board itself.

Owns the JSON form of a board; touches no hardware, and asks the other drivers for nothing but `describe`,
which is safe at any time and from any bus.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from hearth.drivers.base import BaseDriver, Driver, Style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.boards.profile import ChipSpec, DeviceSpec, Kind, Profile
    from hearth.drivers.boards.sensors import Sensor
    from hearth.drivers.uart import UartSettings

_HEADER_PIN = re.compile(r"PIN\d+")
"""The form of an alias that is a position on the board's pin header."""


@frozen
class Undriven:
    """Something that is listed or was found, and that nobody can use through hearth: `reason` says why.

    `cure` is what to do about it, where there is something: commands, one a line, or a sentence. `left_alone` is what
    could be driven and is not, out of caution.
    """

    kind: Kind
    name: str
    reason: str
    path: str | None = None
    label: str | None = None
    cure: str | None = None
    left_alone: bool = False

    def to_json(self) -> dict[str, Any]:
        """As hw.board and the lists show it."""
        entry: dict[str, Any] = {"kind": self.kind, "name": self.name, "driven": False, "reason": self.reason}
        optional = {"path": self.path, "label": self.label, "cure": self.cure, "left_alone": self.left_alone or None}
        return entry | {key: value for key, value in optional.items() if value is not None}


class BoardDriver(BaseDriver):
    """A driver whose operations are the answers of hw.board and the hw.*.list tools."""

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
        """The board's name and description."""
        return {"kind": "board", "name": self._profile.name, "description": self._profile.description}

    def info(self) -> dict[str, Any]:
        """For hw.board."""
        return {
            "name": self._profile.name,
            "description": self._profile.description,
            "buses": [{"id": bus, **driver.describe()} for bus, driver in self._drivers.items() if driver is not self],
            "undriven": [entry.to_json() for entry in self._undriven],
        }

    def _missing(self, kind: Kind) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self._undriven if entry.kind == kind]

    def gpio(self) -> dict[str, Any]:
        """For hw.gpio.list."""
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
        """For hw.i2c.list."""
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

    def uart(self) -> dict[str, Any]:
        """For hw.uart.list."""
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

    def sensors(self) -> dict[str, Any]:
        """For hw.sensor.list."""
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
            "reserved": line.reserved,
            "note": line.note,
        }
        entry |= {key: value for key, value in optional.items() if value}
        lines.append(entry if line.initial is None else {**entry, "initial": line.initial})
    return lines


def _settings_json(settings: UartSettings) -> dict[str, Any]:
    """How the port is set up; what is as usual is left out, but for the four numbers that everybody asks for."""
    told: dict[str, Any] = {
        "baud": settings.baud,
        "bits": settings.bits,
        "parity": settings.parity,
        "stop_bits": settings.stop_bits,
        "flow": settings.flow,
    }
    if settings.rs485 is not None:
        told["rs485"] = asdict(settings.rs485)
    return told


def _without_kind(description: Mapping[str, Any]) -> dict[str, Any]:
    """What a driver tells of itself, without what the list says of it under another name."""
    return {key: value for key, value in description.items() if key not in ("kind", "bus", "devices")}


def _device_json(device: DeviceSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {"addr": device.addr, "hex": f"{device.addr:#04x}", "kind": device.kind}
    optional = {"reg_width": device.reg_width, "note": device.note}
    return entry | {key: value for key, value in optional.items() if value is not None}
