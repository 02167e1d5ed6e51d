"""The devices of this machine, by kind, and which of them a board may drive.

It reads names and states. It requests no line, transfers nothing on a bus, and does not guess what is connected. Each
kind finds its own devices, and decides which of them may be driven, and under which names: parts of a machine that it
needs to run, and devices in use, are listed and left alone until a profile names them. A device that the profile lists
itself is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from hearth.drivers.boards.profile import load_profile
from hearth.drivers.kinds import kinds_of
from hearth.drivers.linux.device_users import NO_HOLDERS, find_holders
from hearth.drivers.linux.machine import THIS as THIS, DeviceOrigin as DeviceOrigin, Machine as Machine
from hearth.drivers.linux.survey import Search

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from hearth.drivers.linux.device_users import Holders
    from hearth.drivers.linux.survey import Found
    from hearth.drivers.profile import Profile, Undriven


@frozen
class MachineSurvey:
    """The devices found: by table the specs of drivable ones, and the rest with its reasons."""

    specs: Mapping[str, tuple[Any, ...]] = field(factory=dict)
    undriven: tuple[Undriven, ...] = ()

    def of(self, table: str) -> tuple[Any, ...]:
        """Return the devices of a table that may be driven."""
        return self.specs.get(table, ())


def find(
    wanted: Container[str] | None = None, machine: Machine = THIS, tables: Iterable[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Return the devices that there are, by kind: of the kinds with these words in `[discover]`, or of all (None).

    `tables` are those of a profile, for the kinds of packages.
    """
    kinds = [kind for kind in kinds_of(tables) if wanted is None or (kind.discover or "") in wanted]
    return {kind.name: found for kind in kinds if (found := tuple(kind.machine().find(machine)))}


def survey(profile: Profile, found: Found, holders: Holders = NO_HOLDERS) -> MachineSurvey:
    """Sort the devices that the profile's `discover` asks for, without those that the profile lists itself.

    `holders` are the processes that have ports open.
    """
    undriven: list[Undriven] = []
    specs: dict[str, tuple[Any, ...]] = {}
    for kind in kinds_of(profile.specs):
        patterns = profile.discover.get(kind.discover or "", ())
        if patterns and found.get(kind.name):
            search = Search(kind.name, patterns, profile.specs, holders, undriven, _shipped)
            specs[kind.name] = tuple(kind.machine().survey(found[kind.name], search))
    return MachineSurvey(specs, tuple(undriven))


def _shipped(name: str) -> Mapping[str, tuple[Any, ...]]:
    return load_profile(name).specs


def with_found(profile: Profile, machine: Machine) -> tuple[Profile, tuple[Undriven, ...]]:
    """Return the profile with the devices that it looks for here, and the found ones that may not be driven."""
    found = find(profile.discover, machine, profile.specs)
    used = [(kind.machine(), found[kind.name]) for kind in kinds_of(profile.specs) if found.get(kind.name)]
    # Reading the list of open files of all processes takes a while, and only some kinds need it.
    holders = find_holders(machine.proc, machine.dev) if any(one.held for one, _ in used) else NO_HOLDERS
    there = survey(profile, found, holders)
    specs = {table: (*profile.of(table), *there.of(table)) for table in {**profile.specs, **there.specs}}
    pins = {pin: reason for one, devices in used for pin, reason in one.pins(devices).items()}
    for kind in kinds_of(specs) if pins else ():
        specs[kind.name] = tuple(kind.machine().reserve(specs.get(kind.name, ()), pins))
    return evolve(profile, specs=specs), there.undriven
