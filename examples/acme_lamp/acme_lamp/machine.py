"""Lamps on this machine: what `hearth doctor` finds and compares, and the files that the sandbox leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.drivers.linux.machine import FoundDevice, Machine, origin_of
from hearth.drivers.linux.survey import Access, DeviceNode, OnMachine, ProfileProblem, lacking, missing, real

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from acme_lamp.spec import Lamps
    from hearth.drivers.linux.survey import Inspection

ACCESS = Access("leds", "leds", 'SUBSYSTEM=="leds", RUN+="/bin/chgrp leds /sys%p/brightness"')


class LampMachine(OnMachine):
    """The LEDs of a machine, which a profile may list as lamps."""

    kind, member, word = "lamp", "lamp", "lamp"
    access = ACCESS

    def find(self, machine: Machine) -> Iterator[FoundDevice]:
        """Yield the LEDs of the machine."""
        for led in sorted((machine.sys / "class/leds").glob("*")):
            yield FoundDevice(led.name, str(led / "brightness"), origin_of(led, machine), led.name)

    def reason(self, one: FoundDevice, holders: Any) -> str:
        """Return why no LED is driven that no profile lists."""
        return "only a person knows what it lights"

    def told(self, entry: Mapping[str, Any]) -> str:
        """Return what a person is told of an LED, behind its name."""
        return f"({entry['path']})"

    def faults(self, at: str, spec: Lamps, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield the problems that keep listed lamps from working here."""
        for lamp in spec.channels:
            key = f"{at}.channel.{lamp.name}.led"
            if Path(lamp.led, "brightness").exists():
                yield from lacking(key, f"{lamp.led}/brightness", ACCESS)
            else:
                there = (one.node for one in look.of("lamp"))
                yield missing(key, f"the LED {lamp.led}", there, "correct the path, or load its driver")

    def drives(self, spec: Lamps) -> bool:
        """Return True: lamps are outputs."""
        return True

    def files(self, spec: Lamps, sys: Path) -> Iterator[DeviceNode]:
        """Yield the directories that the driver writes in."""
        for lamp in spec.channels:
            yield DeviceNode(f"lamp {lamp.name}", real(lamp.led), "attribute")
