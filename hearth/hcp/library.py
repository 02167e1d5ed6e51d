"""The capabilities of a daemon: loaded from all sources, with all their faults, and one capability for each name.

Sources are the entries of `[hcp] capabilities` (files, directories, entry points of installed packages) and the modules
of `hearth.hcp.capabilities`, which ship with hearth. With one fault in one of the operator's sources, none of the
operator's capabilities is offered. `capability_files` reads the files; `hearth.hcp.declaration` checks the
declarations.
"""

from __future__ import annotations

import os
import pkgutil
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from hearth._util.foreign import usable
from hearth._util.python import package_of, vendor_entry_points
from hearth._util.text import nearest
from hearth.config.hcp import is_path
from hearth.errors import ConfigError
from hearth.hcp.capability import MARK, Capability, CapabilitySet, CapabilitySource
from hearth.hcp.capability_files import declared_in, read_source, run_code
from hearth.hcp.declaration import declare
from hearth.hcp.plan_files import read_plan
from hearth.hcp.source_check import source_warnings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from importlib.metadata import EntryPoint

    from hearth.tools import ToolRegistry

SHIPPED: Final = "hearth.hcp.capabilities"
"""The package of the shipped ones: `bench-climate-survey` is in its module `bench_climate_survey`."""
ENTRY_POINTS: Final = "hearth.capabilities"
"""The entry point group of installed packages: each is a function decorated with @capability."""
_KINDS: Final = (".py", ".toml")


@frozen
class _Found:
    """The result of loading a set of sources."""

    registry: ToolRegistry
    capabilities: dict[str, Capability] = field(factory=dict)
    notes: list[str] = field(factory=list)
    wrong: list[str] = field(factory=list)

    def add(self, capability: Capability) -> None:
        """Offer a capability, unless another one has its name."""
        taken = self.capabilities.setdefault(capability.name, capability)
        if taken is not capability:
            cure = "give one of them another name"
            self.wrong.append(f'{capability.place}: name: "{capability.name}" is taken by {taken.place}; {cure}')


def load_capabilities(
    entries: Sequence[str], *, registry: ToolRegistry, shipped: Sequence[str] = ("*",), package: str = SHIPPED
) -> CapabilitySet:
    """Return the capabilities of the entries of `[hcp] capabilities`, and those of `package` that fit the patterns.

    An operator's capability replaces a shipped one of the same name. A shipped one is left out if this machine does not
    have its tools. The notes name both. Blocking; it runs the operator's Python files. Raises ConfigError with a line
    for each fault of each source.
    """
    own = _own(entries, registry)
    ours = _ours(shipped, package, registry, own)
    if wrong := [*own.wrong, *ours.wrong]:
        raise ConfigError("\n".join(wrong))
    # The shipped capabilities have no faults: a test checks that, so a start need not read their sources.
    warnings = [warning for one in own.capabilities.values() for warning in source_warnings(one.function)]
    found = [*own.capabilities.values(), *ours.capabilities.values()]
    return CapabilitySet(found, [*own.notes, *ours.notes, *warnings])


def _own(entries: Sequence[str], registry: ToolRegistry) -> _Found:
    """The operator's: all or nothing."""
    found = _Found(registry)
    points = vendor_entry_points(ENTRY_POINTS) if not all(map(is_path, entries)) else {}
    seen: set[tuple[int, int]] = set()
    for entry in dict.fromkeys(entries):
        if is_path(entry):
            for file in _files(Path(entry), seen, found):
                _read(file, found)
        elif entry in points:
            _load(points[entry], found)
        else:
            missing = f'no installed package has a capability "{entry}" (entry point group {ENTRY_POINTS})'
            found.wrong.append(f"[hcp] capabilities: {missing}; {_near(entry, points)}")
    return found


def _near(name: str, names: Iterable[str]) -> str:
    close = nearest(name, names := list(names))
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(names)) or 'none'}"


def _load(point: EntryPoint, found: _Found) -> None:
    """The capability of an entry point."""
    where = f"[hcp] capabilities: {package_of(point)} ({point.value})"
    try:
        function = usable(point.load, where)
    except ConfigError as error:
        found.wrong.append(str(error))
        return
    source = getattr(function, MARK, None)
    if isinstance(source, CapabilitySource):
        _take(source, found)
    else:
        found.wrong.append(f"{where} is not a function decorated with @capability")


def _files(path: Path, seen: set[tuple[int, int]], found: _Found) -> Iterator[Path]:
    """Yield the file, or the directory's files that are not hidden, by name; each once, however often it is named."""
    try:
        for file in _listed(path, found) if path.is_dir() else [path]:
            status = file.stat()
            if (key := (status.st_dev, status.st_ino)) not in seen:
                seen.add(key)
                yield file
    except OSError as error:
        cure = "create it, or take it out of [hcp] capabilities"
        if isinstance(error, PermissionError):
            cure = f"let uid {os.geteuid()} read it"
        found.wrong.append(f"{error.filename}: cannot be read: {error.strerror}; {cure}")


def _listed(directory: Path, found: _Found) -> list[Path]:
    # Not by glob, which finds nothing in a directory that may not be listed.
    files = sorted(path for path in directory.iterdir() if path.suffix in _KINDS and not path.name.startswith("."))
    if not files:
        found.notes.append(f"{directory} has no capability in it: there is no *.py and no *.toml")
    return files


def _read(file: Path, found: _Found) -> None:
    """The capabilities of a file."""
    try:
        if file.suffix == ".py":
            sources = run_code(file, read_source(file))
        else:
            source, faults = read_plan(file, read_source(file), found.registry)
            found.wrong.extend([f"{file}: {fault}" for fault in faults])
            sources = [source] if source is not None else []
    except ConfigError as error:
        found.wrong.extend(str(error).splitlines())
        return
    for source in sources:
        _take(source, found)


def _take(source: CapabilitySource, found: _Found) -> None:
    """Offer the capability of a source, or add its faults."""
    declared = declare(source, found.registry)
    found.wrong.extend(map(str, declared.faults))
    if declared.capability is not None:
        found.add(declared.capability)


def _ours(patterns: Sequence[str], package: str, registry: ToolRegistry, own: _Found) -> _Found:
    """Load the shipped capabilities: each is offered if this machine has its tools."""
    found = _Found(registry)
    paths = import_module(package).__path__
    modules = {one.name.replace("_", "-"): one.name for one in pkgutil.iter_modules(paths) if one.name[0] != "_"}
    for pattern in patterns:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in modules):
            fits = f'"{pattern}" fits no capability that comes with hearth'
            found.wrong.append(f"[hcp] shipped: {fits}; {_near(pattern, modules)}")
    for name, module in modules.items():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        if name in own.capabilities:
            found.notes.append(f"capability {name}: the one of {own.capabilities[name].place} is offered, not hearth's")
            continue
        for source in declared_in(import_module(f"{package}.{module}")):
            declared = declare(source, registry)
            if declared.capability is not None:
                found.add(declared.capability)
            elif declared.of_machine:
                # Another machine has the tools, so this is no mistake of the operator's.
                why = "; ".join(map(str, declared.faults))
                found.notes.append(f"capability {name} is left out, since this machine cannot carry it out: {why}")
            else:
                found.wrong.extend(map(str, declared.faults))
    return found
