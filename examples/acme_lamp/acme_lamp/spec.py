"""The table `[[lamp]]` of a board profile: the fields of `Lamp` are the keys of its channels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from attrs import frozen

from hearth.drivers.channels import LevelField, SignalChipSpec, parse_channels
from hearth.drivers.kind import Resource
from hearth.drivers.signals import (
    OFF,
    Hold,
    Off,
    OnLimit,
    Positive,
    Quantity,
    SignalChannel,
    SignalLevel,
    SignalLimit,
    SignalSpec,
    beyond,
)
from hearth.fields import Choice, Number, Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hearth.drivers.base import Driver
    from hearth.drivers.kind import Opening
    from hearth.tables import Table

Percent: TypeAlias = Annotated[float, Number(le=100)]


@frozen
class Lamp(SignalChannel):
    """A lamp. `led` is its directory in /sys/class/leds; it is driven from 0 to `max` percent."""

    number: int
    name: str
    led: str = ""
    max: Percent = 100.0
    slew_per_s: Positive | None = None
    on_limit: OnLimit = "refuse"
    safe: SignalLevel = 0.0
    hold: Hold = "release"
    start: Quantity | None = None
    off: Off = "zero"
    reserved: str | None = None

    @property
    def signal(self) -> SignalSpec:
        """Return it as a signal of its bus: its unit and its limits."""
        limit = SignalLimit(0.0, self.max, slew_per_s=self.slew_per_s)
        return SignalSpec(self.number, "channel", self.name, f"lamp {self.name}", "percent", limit, self.on_limit)

    def fault_of(self, level: SignalLevel) -> str | None:
        """Return why a profile may not name a level, or None."""
        return 'a lamp has no "off"; give 0' if level == OFF else beyond(self.signal.limit, level, "percent")

    def to_json(self) -> dict[str, Any]:
        """Return the lamp for hw.lamp.list."""
        more = {key: value for key, value in (("led", self.led), ("reserved", self.reserved)) if value}
        entry = {"channel": self.name, "number": self.number, "safe": self.safe, "hold": self.hold}
        return {**entry, **self.signal.to_json(), **more}


@frozen
class Lamps(SignalChipSpec[Lamp]):
    """One `[[lamp]]`: a bus with its lamps."""

    kind: ClassVar[str] = "lamp"

    def make_driver(self, opening: Opening) -> Driver:
        """Return its driver, not opened."""
        from acme_lamp.driver import Leds, SimLamps

        return Leds(self.label, self.channels) if self.driver == "leds" else SimLamps(self.label, self.channels)

    def resources(self) -> Iterator[Resource]:
        """Yield what no other entry of the profile may use: the names of the lamps, and their LEDs."""
        yield from super().resources()
        for lamp in self.channels:
            if self.driver == "leds":
                yield Resource(("node", os.path.realpath(lamp.led)), f"channel.{lamp.name}.led", lamp.led)


def parse_lamp(table: Table) -> Lamps:
    """Read one `[[lamp]]`."""
    label, driver = table.take("label", Text()), table.take("driver", Choice("sim", "leds"))

    def lamp(number: int, name: str, entry: Table) -> Lamp:
        found = Lamp(number, name, safe=entry.take("safe", LevelField(), 0.0), **entry.given(Lamp))
        entry.done()
        if driver == "leds" and not found.led:
            entry.fault("led", "missing; it takes the directory of an LED, such as /sys/class/leds/uv")
        levels: dict[str, SignalLevel | None] = {"safe": found.safe, "start": found.start}
        for key, level in levels.items():
            if entry.ok and level is not None and (fault := found.fault_of(level)) is not None:
                entry.fault(key, fault)
        return found

    channels = parse_channels(table, lamp)
    table.done()
    return Lamps(label, driver, channels)
