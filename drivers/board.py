"""An opened board: a profile joined to drivers, with the names of its buses, lines and sensors. It knows no kind.

It owns the lookup of a bus or a line by name; `hearth.drivers.boards.board` makes it. The bus "board" answers hw.board
and the hw.*.list tools. Its driver touches no hardware, and calls only `describe` of the other drivers, which is safe
at any time and from any bus.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NoReturn

from attrs import Factory, field, frozen

from hearth._util.text import suggestions
from hearth.drivers.base import BaseDriver, Driver, Style
from hearth.drivers.lines import Lines
from hearth.errors import ConfigError, InvalidParams, PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.drivers.profile import Profile, Undriven
    from hearth.drivers.sensor import Sensor
    from hearth.drivers.signals import SignalChannel

BOARD_BUS: Final = "board"


class BoardDriver(BaseDriver):
    """A driver whose operations are the answers of hw.board and the hw.*.list tools."""

    simulated = True

    style = Style.INLINE

    def __init__(
        self,
        profile: Profile,
        drivers: Mapping[str, Driver],
        specs: Mapping[str, Any],
        undriven: tuple[Undriven, ...],
    ) -> None:
        self._profile = profile
        self._drivers = drivers
        self._specs = specs
        self._undriven = undriven

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

    def of(self, kind: str) -> Iterator[tuple[Any, Mapping[str, Any], dict[str, Any]]]:
        """Yield each driven bus of a kind: its spec, what its driver says of itself, and the path of its device."""
        for bus, spec in self._specs.items():
            if bus.startswith(f"{kind}:"):
                described = self._drivers[bus].describe()
                yield spec, described, {} if described.get("path") is None else {"path": described["path"]}

    def missing(self, kind: str) -> list[dict[str, Any]]:
        """Return the devices of a kind that are listed or were found, and are not driven."""
        return [entry.to_json() for entry in self._undriven if entry.kind == kind]


@frozen(eq=False)
class Board:
    """The hardware that this process can use. `drivers` maps bus ids to drivers that are not opened yet.

    `specs` has by bus id the entry of the profile, or the one made for a device that was found.
    """

    profile: Profile
    drivers: dict[str, Driver]
    specs: Mapping[str, Any]
    undriven: tuple[Undriven, ...]
    sensors: Mapping[str, Sensor]
    outputs: Mapping[str, Any] = field(factory=dict, repr=False)
    """By bus, the `Outputs` of those that drive anything."""
    signals: Any = field(init=False, repr=False, default=())
    """What its profile names (`named.Signals`); there once its tools are made."""
    lines: Lines = field(init=False, repr=False, default=Factory(lambda board: board._lines(), takes_self=True))

    def _lines(self) -> Lines:
        beat = self.profile.halt.heartbeat
        why = "the heartbeat output ([halt] heartbeat): hearth itself drives it"
        owned = {} if beat is None else {(beat.bus, beat.offset): why}
        chips = {spec.label: spec for spec in self.specs.values() if hasattr(spec, "lines")}
        return Lines(self.profile.name, chips, owned, self.unknown)

    @property
    def name(self) -> str:
        """Return the profile's name."""
        return self.profile.name

    @property
    def description(self) -> str:
        """Return the profile's description."""
        return self.profile.description

    @property
    def chips(self) -> Mapping[str, Any]:
        """Return the specs of the driven chips with lines by label; the first is the default one."""
        return self.lines.chips

    def real_buses(self) -> list[str]:
        """Return the buses that reach hardware: those whose driver does not say that it is simulated."""
        return [bus for bus, driver in self.drivers.items() if getattr(driver, "simulated", False) is not True]

    def has(self, kind: str) -> bool:
        """True if there is a bus of this kind ("gpio", "iio", …)."""
        return any(bus == kind or bus.startswith(f"{kind}:") for bus in self.drivers)

    def of(self, kind: str) -> list[Any]:
        """Return the specs of the driven buses of a kind."""
        return [spec for bus, spec in self.specs.items() if bus.startswith(f"{kind}:")]

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

    def bus(self, kind: str, what: str, name: object, *, key: str | None = None) -> str:
        """Return the id of a bus by its name, which a message calls `what` ("port"). Raises InvalidParams.

        `key` is the attribute of a spec that has the name, if it is not called `what`.
        """
        bus = f"{kind}:{name}"
        if bus not in self.drivers:
            self.unknown(kind, what, name, [getattr(spec, key or what) for spec in self.of(kind)])
        return bus

    def channel(self, kind: str, name: str) -> tuple[str, Any]:
        """Return a channel of a kind by its name, with its bus id. Raises InvalidParams, PermissionDenied."""
        found: dict[str, tuple[Any, SignalChannel]]
        found = {one.name: (chip, one) for chip in self.profile.of(kind) for one in chip.channels}
        if name not in found:
            self.unknown(kind, "channel", name, [one.name for chip in self.of(kind) for one in chip.channels])
        chip, channel = found[name]
        if chip.bus not in self.drivers:
            self.unknown(kind, "chip", chip.label, [])
        if channel.reserved is not None:
            reason = f"{kind} channel {name} is reserved: {channel.reserved}"
            raise PermissionDenied(reason, data={"channel": name, "reason": channel.reserved})
        return chip.bus, channel

    def sensor(self, name: str) -> Sensor:
        """Return a sensor by its name. Raises InvalidParams."""
        if name not in self.sensors:
            self.unknown("sensor", "sensor", name, list(self.sensors))
        return self.sensors[name]

    def gpio_bus(self, chip: str | None = None) -> str:
        """Return the bus id of a chip by its label, or of the default chip. Raises InvalidParams."""
        return self.lines.chip(chip).bus

    def line(self, chip: str | None, name_or_offset: int | str, *, drive: bool = False) -> int:
        """Return the offset of a line; see `Lines.find`. Raises InvalidParams, PermissionDenied."""
        return self.lines.find(chip, name_or_offset, drive=drive)

    def line_name(self, given: int | str, chip: str | None = None) -> int | str:
        """Return the one spelling of a line; see `Lines.name`."""
        return self.lines.name(given, chip)

    def port_name(self, given: str) -> str:
        """Return the one spelling of a serial port: its name, also for its bus id or device; others unchanged."""
        ports = {spec.port: (bus, spec.path) for bus, spec in self.specs.items() if hasattr(spec, "port")}
        for name, (bus, path) in ports.items() if given not in ports else ():
            # A profile names a stable link; a caller may name the device that it leads to at present.
            if given == bus or (path is not None and given in (path, os.path.realpath(path))):
                return str(name)
        return given

    def unknown(self, kind: str, what: str, given: object, known: list[Any]) -> NoReturn:
        """Raise InvalidParams for a name that the board does not have, with the reason, or the names that it has."""
        for entry in self.undriven:
            names = (entry.name, entry.label, entry.name.rpartition("-")[2])
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
