"""Opening a board: the drivers of a profile's buses. It makes drivers but opens none: the bus actors do that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers.board import BOARD_BUS, Board, BoardDriver
from hearth.drivers.kind import Opening
from hearth.drivers.kinds import entries_of, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.drivers.base import Driver, Style
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.machine import Machine
    from hearth.drivers.profile import Profile, Undriven


def open_board(profile: Profile, *, style: Style | None = None, seed: int = 0, machine: Machine | None = None) -> Board:
    """Make the drivers of a profile's buses, and "board" itself; open none of them.

    `style` and `seed` are for simulated buses: the way they wait, and the readings of their devices. ASYNC is the one
    for tests with a virtual clock. Where the profile asks for it, the machine (this one, if no other is given) is
    surveyed, once; devices that are there and may not be driven are listed in `undriven` with the reason, so that the
    rest of the machine (files, telemetry) can be served.
    """
    undriven: tuple[Undriven, ...] = ()
    if profile.discover:
        from hearth.drivers.boards.discover import THIS, with_found

        machine = machine or THIS
        profile, undriven = with_found(profile, machine)
    absent = {(entry.kind, entry.name): entry for entry in _absent(profile, machine)}
    undriven += tuple(absent.values())
    drivers: dict[str, Driver] = {}
    specs: dict[str, Any] = {}
    outputs: dict[str, Outputs] = {}
    kinds = kinds_of(profile.specs)
    for kind in kinds:
        for spec in profile.of(kind.name):
            bus = kind.bus(spec)
            if (kind.name, bus.partition(":")[2]) in absent:
                continue
            if (driver := kind.open(spec, Opening(style, seed))) is not None:
                drivers[bus], specs[bus] = driver, spec
                if kind.outputs is not None:
                    outputs[bus] = kind.outputs(spec, driver)
    _attach(profile, drivers)
    for kind in kinds:
        if machine is not None and kind.discover in profile.discover:
            drivers |= kind.machine().buses(profile.specs, machine)
    sensors = {sensor.name: sensor for kind in kinds for sensor in kind.sensors(profile.specs)}
    drivers[BOARD_BUS] = BoardDriver(profile, drivers, specs, undriven)
    return Board(profile, drivers, specs, undriven, sensors, outputs)


def _absent(profile: Profile, machine: Machine | None) -> Iterator[Undriven]:
    """Yield the devices of the profile that are not there, and that the board can do without."""
    for kind in kinds_of(profile.specs):
        # Only one that an overlay of the firmware switches on may be absent.
        if specs := [spec for spec in profile.of(kind.name) if getattr(spec, "overlay", None) is not None]:
            from hearth.drivers.linux.machine import THIS

            yield from kind.machine().absent(specs, machine or THIS)


def _attach(profile: Profile, drivers: Mapping[str, Any]) -> None:
    """Connect each simulated device that follows a line to it: they are on two buses."""
    for kind, _, spec in entries_of(profile.specs):
        for follow in kind.follows(spec):
            found = profile.simulated_line(follow.line)
            assert found is not None, "parse_profile asks for it"
            bus, offset = found
            drivers[bus].attach(offset, follow.attach(drivers[kind.bus(spec)]))
