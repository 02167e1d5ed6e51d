"""The capability files of a daemon: which there are, whose name holds, and all that is wrong with all of them.

It owns finding and reading the files, and is the one module of `hearth.hcp` that opens any. What is in them,
`hearth.hcp.declaration` says. It refuses to offer a part: one fault in one of the operator's files, and there are none.
"""

from __future__ import annotations

import os
import stat
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from hearth.config_toml import number_too_long
from hearth.errors import ConfigError
from hearth.hcp.capability import Capability, CapabilitySet
from hearth.hcp.declaration import Declared, declare
from hearth.hcp.planning import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.hcp.planning import Planner
    from hearth.tools import ToolRegistry

SHIPPED: Final = Path(__file__).parent / "capabilities"
"""Where those are that come with hearth, each in a file of its name."""
LARGEST: Final = 1 << 20
"""Bytes of a capability file."""


@frozen
class _Means:
    """What declarations are held against."""

    registry: ToolRegistry
    planners: Mapping[str, Planner]


@frozen
class _Found:
    """What came of a set of files."""

    capabilities: dict[str, Capability] = field(factory=dict)
    notes: list[str] = field(factory=list)
    wrong: list[str] = field(factory=list)


def load_capabilities(
    paths: Sequence[Path],
    *,
    registry: ToolRegistry,
    planners: Mapping[str, Planner],
    shipped: Sequence[str] = ("*",),
    shipped_directory: Path = SHIPPED,
) -> CapabilitySet:
    """The capabilities of these files, and of the *.toml of these directories; then of those shipped, by pattern.

    An operator's takes the place of a shipped one of its name. A shipped one whose plan cannot be carried out with the
    tools of this machine is left out. Both are told in the notes. Blocking. Raises ConfigError with a line for each
    fault of each file.
    """
    means = _Means(registry, planners)
    own = _own(paths, means)
    ours = _ours(shipped, shipped_directory, means, own)
    if wrong := [*own.wrong, *ours.wrong]:
        raise ConfigError("\n".join(wrong))
    return CapabilitySet([*own.capabilities.values(), *ours.capabilities.values()], [*own.notes, *ours.notes])


def _own(paths: Sequence[Path], means: _Means) -> _Found:
    """The operator's: all or nothing."""
    found = _Found()
    for file in _files(paths, found):
        declared = _declared(file, means)
        found.wrong.extend(_lines(file, declared.faults))
        if (capability := declared.capability) is None:
            continue
        taken = found.capabilities.setdefault(capability.name, capability)
        if taken is not capability:
            found.wrong.append(
                f'{file}: capability.name: "{capability.name}" is taken by {taken.place}; give one of them another name'
            )
    return found


def _ours(patterns: Sequence[str], directory: Path, means: _Means, own: _Found) -> _Found:
    """Those that come with hearth: each is there if this machine has the tools for it."""
    found = _Found()
    files = {file.stem: file for file in sorted(directory.glob("*.toml"))}
    for pattern in patterns:
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in files):
            found.wrong.append(
                f'[hcp] shipped: "{pattern}" fits no capability that comes with hearth{_near(pattern, files)}'
            )
    for name, file in files.items():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        if name in own.capabilities:
            found.notes.append(f"capability {name}: the one of {own.capabilities[name].place} is offered, not hearth's")
            continue
        declared = _declared(file, means)
        if declared.capability is not None:
            found.capabilities[name] = declared.capability
        elif declared.of_machine:
            # What it takes, another machine has: that is no mistake of anybody's.
            why = "; ".join(map(str, declared.faults))
            found.notes.append(f"capability {name} is left out, since this machine cannot carry it out: {why}")
        else:
            found.wrong.extend(_lines(file, declared.faults))
    return found


def _near(pattern: str, names: Mapping[str, Any]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(pattern, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"


def _lines(file: Path, faults: Sequence[Fault]) -> Iterator[str]:
    return (f"{file}: {fault}" for fault in faults)


def _files(paths: Sequence[Path], found: _Found) -> Iterator[Path]:
    """Each file once, however often it is named; of a directory those that are not hidden, by name."""
    seen = set()
    for path in paths:
        try:
            files = _listed(path, found) if path.is_dir() else [path]
            for file in files:
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
    if directory.stat().st_mode & stat.S_IWOTH:
        found.wrong.append(f"{directory}: anybody may put a capability there; chmod o-w {directory}")
        return []
    # Not by glob, which finds nothing in a directory that may not be listed.
    files = sorted(path for path in directory.iterdir() if path.suffix == ".toml" and not path.name.startswith("."))
    if not files:
        found.notes.append(f"{directory} has no capability in it: there is no *.toml")
    return files


def _declared(file: Path, means: _Means) -> Declared:
    document = _read(file)
    if isinstance(document, Fault):
        return Declared(None, (document,))
    return declare(document, str(file), means.registry, means.planners)


def _read(file: Path) -> dict[str, Any] | Fault:
    """The document, or why there is none."""
    try:
        # A FIFO in its place must not hold up the daemon.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return Fault("", f"cannot be read: {error.strerror}; let uid {os.geteuid()} read it")
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return Fault("", "is not a regular file; name a TOML file")
        if status.st_size > LARGEST:
            return Fault("", f"has {status.st_size} bytes; a capability file has at most {LARGEST}")
        if status.st_mode & stat.S_IWOTH:
            # Who can write it decides what its callers have done to the hardware, under their names.
            return Fault("", f"is writable by everybody; chmod o-w {file}")
        data = stream.read(LARGEST)
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Fault("", f"line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8")
    except tomllib.TOMLDecodeError as error:
        return Fault("", f"is not TOML: {error}")
    except ValueError:
        return Fault("", number_too_long(data))
    except RecursionError:
        return Fault("", "arrays or tables are nested too deeply; flatten them")
