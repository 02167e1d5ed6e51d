"""Board profiles: the devices of a board, as TOML, the permitted uses of each, and what must hold before a use.

It reads the profile as a whole, and checks what does not go together; each kind reads its own tables, and `interlocks`
the rest. It does not look at the machine. A profile is an allowlist: a line, adapter or port that it does not list does
not exist for clients of hearth.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

from hearth._util.files import read_file
from hearth._util.toml import parse_toml, show
from hearth.drivers.kinds import entries_of, kinds_of, packages
from hearth.drivers.profile import (
    Condition as Condition,
    HaltSpec,
    InterlockSpec as InterlockSpec,
    Profile,
    Undriven as Undriven,
)
from hearth.errors import ConfigError
from hearth.fields import Fault, Flag, Text
from hearth.tables import STRINGS, Table

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from hearth.drivers.kind import BusKind, Specs

_FLAG: Final = Flag()
_TEXT: Final = Text()

_SHIPPED = Path(__file__).parent


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that come with hearth."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def profile_file(name_or_path: str) -> Path | None:
    """Return the file of a profile that is given by its path; None for a shipped one."""
    return Path(name_or_path) if "/" in name_or_path or name_or_path.endswith(".toml") else None


def load_profile(name_or_path: str, *, any_owner: bool = False) -> Profile:
    """Read a profile: a shipped one by name, or a TOML file by path (with a "/" in it, or ending in .toml).

    Raises ConfigError with one line for each fault: the file, the key path, and what is expected there; also if users
    other than root and our own could change the file, unless it may be of `any_owner`.
    """
    path = profile_file(name_or_path)
    if path is None:
        path = _SHIPPED / f"{name_or_path}.toml"
        if name_or_path not in shipped_profiles():
            raise ConfigError(
                f"no board profile {name_or_path!r}; shipped are {', '.join(shipped_profiles())}, "
                "or give the path of a TOML file"
            )
    source = f"board profile {path.name if path.parent == _SHIPPED else path}"
    trusted = None if any_owner or path.parent == _SHIPPED else {os.geteuid()}
    try:
        data, _ = read_file(path, trusted=trusted)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"board profile {error}") from None
    profile = parse_profile(parse_toml(data, source), source, path.parent)
    return evolve(profile, specs=_beside(profile.specs, path.parent))


def _beside(specs: Specs, folder: Path) -> Specs:
    """Return the specs with the paths of their files, which are relative to the folder of the profile."""
    kinds = {kind.name: kind.beside for kind in kinds_of(specs) if kind.name in specs}
    return {**specs, **{name: tuple([beside(one, folder) for one in specs[name]]) for name, beside in kinds.items()}}


def parse_profile(content: Mapping[str, object], source: str, folder: Path = Path()) -> Profile:
    """Return a profile from the content of its TOML file, which is in `folder`.

    Raises ConfigError with one line for each fault.
    """
    faults: list[Fault] = []
    top = Table(content, "", faults)
    kinds = kinds_of(content)
    tools, discover = top.table("tools", required=False), top.table("discover", required=False)
    interlocks, halt_table = [*top.tables("interlock")], top.table("halt", required=False)
    profile = Profile(
        name=top.take("name", _TEXT),
        description=top.take("description", _TEXT),
        source=source,
        specs=_specs(top, kinds),
        tools=tools.take("allow", STRINGS, ("*",)),
        discover=dict(_discover(discover, kinds)),
    )
    for table in (tools, discover):
        table.done()
    if top.ok:
        _check_profile(top, profile)
    # A stop sequence may name signals of a file beside the profile.
    whole = evolve(profile, specs=_beside(profile.specs, folder)) if top.ok else None
    locks, halt = _interlocks(interlocks, halt_table, whole)
    top.done(packages=packages, or_else="or the table of a kind whose package is installed where hearthd runs")
    if faults:
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults))
    return evolve(profile, interlocks=locks, halt=halt, specs=_leaned_on(profile.specs, kinds, locks))


def _interlocks(
    interlocks: Sequence[Table], halt_table: Table, profile: Profile | None
) -> tuple[tuple[InterlockSpec, ...], HaltSpec]:
    """Read `[[interlock]]` and `[halt]`."""
    if not interlocks and not halt_table.content:
        halt_table.done()
        return (), HaltSpec()
    # Imported here: many boards have neither.
    from hearth.drivers.boards.interlocks import check_halt, parse_halt, parse_interlock

    locks = [(table, lock) for table in interlocks if (lock := parse_interlock(table, profile)) is not None]
    halt = parse_halt(halt_table, profile)
    for table, lock in locks:
        check_halt(table, lock, halt)
    return tuple(lock for _, lock in locks), halt


def _specs(top: Table, kinds: Iterable[BusKind]) -> Specs:
    """Return the specs of each table that the profile has."""
    tables = {kind.name: tuple([kind.read(entry) for entry in top.tables(kind.name)]) for kind in kinds}
    for name, read in [one for kind in kinds for one in kind.named.items()]:
        tables[name] = tuple([read(key, entry) for key, entry in top.named(name)])
    return {name: specs for name, specs in tables.items() if specs}


def _leaned_on(specs: Specs, kinds: Iterable[BusKind], locks: Iterable[InterlockSpec]) -> Specs:
    """Return the specs, in which the devices know the interlocks that go by their sensors."""
    users = {one.name: f"the interlock of {lock.what}" for lock in locks for one in lock.requires if one.line is None}
    for kind in kinds if users else ():
        if kind.lean is not None and kind.name in specs:
            specs = {**specs, **kind.lean(specs, users)}
    return specs


def _discover(table: Table, kinds: Iterable[BusKind]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each kind to look for, with its patterns: `true` for everything, or a list of them."""
    for kind in kinds:
        if (word := kind.discover) is None:
            continue
        if kind.patterns and isinstance(table.content.get(word), list):
            patterns = table.take(word, STRINGS)
        else:
            patterns = ("*",) if table.take(word, _FLAG, False) else ()
        if patterns:
            yield word, patterns


def _check_profile(top: Table, profile: Profile) -> None:
    """Add the faults of entries that do not go together."""
    owners: dict[Hashable, str] = {}
    for kind in kinds_of(profile.specs):
        names = [getattr(spec, kind.key) for spec in profile.of(kind.name)]
        for index, name in enumerate(names):
            if name in names[:index]:
                top.faults.append(Fault(f"{kind.name}[{index}].{kind.key}", f"{show(name)} is there twice"))
    for kind, at, spec in entries_of(profile.specs):
        for need in kind.resources(spec):
            place = f"{at}.{need.place}".rstrip(".")
            owner = owners.setdefault(need.key, place)
            if owner != place:
                top.faults.append(Fault(place, need.refusal or f"{need.what} is taken by {owner}"))
        for follow in kind.follows(spec):
            if profile.simulated_line(follow.line) is None:
                reason = f"no simulated chip has a line {show(follow.line)}"
                top.faults.append(Fault(f"{at}.{follow.place}", reason))
    for kind in kinds_of(profile.specs):
        if kind.check is not None and not profile.specs.keys().isdisjoint(kind.tables):
            kind.check(top, profile.specs, profile.discover)
