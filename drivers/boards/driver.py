"""The bus "board": what hw.* tells about the board itself.

Owns the JSON form of a board; touches no hardware, and asks the other drivers for nothing but `describe`,
which is safe at any time and from any bus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.drivers.base import BaseDriver, Driver, Style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.boards.profile import ChipSpec, Kind, Profile
    from hearth.drivers.boards.sensors import Sensor


@frozen
class Undriven:
    """Something that is listed or was found, and that nobody can use through hearth: `reason` says why."""

    kind: Kind
    name: str
    reason: str
    path: str | None = None
    label: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As hw.board and the lists show it."""
        entry: dict[str, Any] = {"kind": self.kind, "name": self.name, "driven": False, "reason": self.reason}
        if self.path is not None:
            entry["path"] = self.path
        if self.label is not None:
            entry["label"] = self.label
        return entry


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
            {"chip": chip.label, "bus": f"gpio:{chip.label}", "driven": True, "lines": _lines_json(chip)}
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
                "devices": [_device_json(device.addr, device.kind, device.note) for device in spec.devices],
            }
            for spec in self._profile.i2c
            if f"i2c:{spec.bus}" in self._drivers
        ]
        return {"buses": buses, "undriven": self._missing("i2c")}

    def uart(self) -> dict[str, Any]:
        """For hw.uart.list."""
        ports = [
            {"bus": f"uart:{spec.port}", "driven": True, **self._drivers[f"uart:{spec.port}"].describe()}
            for spec in self._profile.uarts
            if f"uart:{spec.port}" in self._drivers
        ]
        return {"ports": ports, "undriven": self._missing("uart")}

    def sensors(self) -> dict[str, Any]:
        """For hw.sensor.list."""
        listed = []
        for sensor in self._sensors.values():
            entry = {"sensor": sensor.name, "kind": sensor.kind, "unit": sensor.unit, "bus": sensor.bus}
            listed.append(entry if sensor.description is None else {**entry, "description": sensor.description})
        return {"sensors": listed}


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
        optional = {"aliases": aliases, "reserved": line.reserved, "note": line.note}
        lines.append(entry | {key: value for key, value in optional.items() if value})
    return lines


def _device_json(addr: int, kind: str, note: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"addr": addr, "hex": f"{addr:#04x}", "kind": kind}
    return entry if note is None else {**entry, "note": note}
