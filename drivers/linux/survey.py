"""The part of a kind of hardware that looks at the machine: its devices, their problems, and the files that they need.

Each kind fills in one `OnMachine` (`hearth.drivers.<kind>.machine`). Discovery, `hearth doctor` and the sandbox's plan
loop over them. This module also finds missing permissions on device nodes, with the exact commands (groups, udev
rules) that give them; it changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from attrs import field, frozen

from hearth.drivers.linux.device_users import group_name, lets_group_in, user_name
from hearth.drivers.linux.machine import HEADERS
from hearth.drivers.profile import Undriven

if TYPE_CHECKING:
    from hearth.drivers.base import Driver
    from hearth.drivers.linux.device_users import Holder, Holders
    from hearth.drivers.linux.machine import Machine

Found: TypeAlias = Mapping[str, tuple[Any, ...]]
"""The devices that were found, by the word of their kind in `[discover]`."""
Severity: TypeAlias = Literal["note", "warn", "fail"]

NAME_IT: Final = "a board profile that lists it drives it; see docs/reference/boards.md"
"""The cure for a device that is left alone: a person who knows the wiring lists the device."""


@frozen
class Lack:
    """A missing permission: the fact, and the commands that give it, one a line."""

    reason: str
    cure: str


@frozen
class Access:
    """How distributions let programs use the devices of a kind: their group, and the udev rule that gives it."""

    group: str
    subsystem: str
    rule: str

    def commands(self, path: str) -> list[str]:
        """Return the commands that give a node that is root's alone to the group, now and at each start."""
        text = self.rule.format(node=Path(path).resolve().name)
        return [
            f"sudo groupadd --system --force {self.group}",
            f"echo '{text}' | sudo tee -a /etc/udev/rules.d/60-hearth.rules",
            f"sudo udevadm control --reload && sudo udevadm trigger --subsystem-match={self.subsystem}",
        ]

    def lack_of(self, path: str) -> Lack | None:
        """Return this process's missing permission to open a node for reading and writing; None if none is missing."""
        if os.access(path, os.R_OK | os.W_OK, effective_ids=True):
            return None
        try:
            node = Path(path).stat()
        except OSError:
            return None
        user, owner, group = user_name(os.geteuid()), user_name(node.st_uid), group_name(node.st_gid)
        reason = f"{user} may not open {path} ({owner}:{group}, mode {stat.S_IMODE(node.st_mode):04o})"
        if lets_group_in(node):
            return Lack(reason, join_group(group, user))
        return Lack(reason, "\n".join((*self.commands(path), join_group(self.group, user))))


def join_group(group: str, user: str) -> str:
    """Return the command that makes `user` a member of `group`."""
    return f"sudo usermod -aG {group} {user}   # then log in again"


@frozen
class Search:
    """A search for the devices of a kind: its patterns in `[discover]`, and all devices that the profile lists itself.

    `holders` are the processes that have nodes open. Devices that may not be driven are added to `undriven`. `shipped`
    returns the devices of a shipped profile.
    """

    word: str
    patterns: tuple[str, ...]
    specs: Mapping[str, tuple[Any, ...]]
    holders: Holders
    undriven: list[Undriven]
    shipped: Callable[[str], Mapping[str, tuple[Any, ...]]]

    def of(self, table: str) -> tuple[Any, ...]:
        """Return the devices of a table that the profile lists itself."""
        return self.specs.get(table, ())

    @property
    def everything(self) -> bool:
        """True if the profile asks for all devices of the kind, and names none."""
        return self.patterns == ("*",)

    def asked(self, *names: str | None) -> bool:
        """Return True if the profile asks for a device with one of these names."""
        return any(fnmatchcase(name, one) for one in self.patterns for name in names if name is not None)

    def leave(self, name: str, reason: str, path: str, label: str | None, cure: str | None) -> None:
        """List a device as not driven."""
        self.undriven.append(Undriven(self.word, name, reason, path, label, cure))

    def refused(self, access: Access, name: str, path: str, label: str | None, *, reason: str | None) -> bool:
        """Return True and list this one as not driven: because of `reason`, or for lack of a permission."""
        if reason is not None:
            self.undriven.append(Undriven(self.word, name, reason, path, label, NAME_IT, left_alone=True))
            return True
        lack = access.lack_of(path)
        if lack is not None:
            self.leave(name, lack.reason, path, label, lack.cure)
        return lack is not None


@frozen
class ProfileProblem:
    """`severity` is "fail" for what cannot work, "warn" for what depends on the daemon's user, or looks wrong."""

    key: str
    severity: Severity
    problem: str
    cure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the problem for doctor --json."""
        return {"key": self.key, "severity": self.severity, "problem": self.problem, "cure": self.cure}


@frozen
class Inspection:
    """A machine as it was found, for the problems of a profile on it."""

    found: Found
    holders: Holders
    machine: Machine

    def of(self, kind: str) -> tuple[Any, ...]:
        """Return the found devices of a kind."""
        return self.found.get(kind, ())

    @property
    def has_header(self) -> bool:
        """True on a board whose header a shipped profile knows: a Raspberry Pi."""
        return any(getattr(one, "label", None) in HEADERS for devices in self.found.values() for one in devices)


def lacking(key: str, path: str, access: Access) -> Iterator[ProfileProblem]:
    """Yield the missing permission to open a node that a profile names at `key`."""
    lack = access.lack_of(path)
    if lack is not None:
        yield ProfileProblem(key, "warn", f"{lack.reason}: hearthd could not either, as this user", lack.cure)


def state(access: Access, path: str, reason: str | None, holders: Sequence[Holder]) -> dict[str, Any]:
    """Return the members of a found device that say if it can be used: the reason, the permission, its users."""
    lack = access.lack_of(path)
    return {
        "not_driven": None if reason is None else {"reason": reason, "cure": NAME_IT},
        "lack": None if lack is None else {"reason": lack.reason, "cure": lack.cure},
        "open_in": [holder_json(holder) for holder in holders],
    }


def in_use(entry: Mapping[str, Any]) -> str:
    """Return which processes have a found device open, in words that end a sentence; empty if none has."""
    return f", open in {processes(entry['open_in'])}" if entry["open_in"] else ""


def processes(holders: Sequence[Mapping[str, Any]]) -> str:
    """Return processes in words."""
    return ", ".join(f"{holder['name']} (pid {holder['pid']})" for holder in holders)


def holder_json(holder: Holder) -> dict[str, Any]:
    """Return a process that has a device open."""
    return {"pid": holder.pid, "name": holder.name}


def open_in(holders: Sequence[Holder]) -> str | None:
    """Return the reason to leave a node alone that processes have open now; None if none has."""
    return f"it is open in {', '.join(map(str, holders[:3]))}" if holders else None


MOST_NAMED: Final = 6
"""Limit of the outputs that one problem names; the others are counted."""


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


class Node(NamedTuple):
    """A file that a bus opens. None: its device is not there now, and comes back under a path that is not known.

    `role` is "node" for a device's node in /dev, "attribute" for its directory in /sys, "fixed" for a file that does
    not come and go, and "list" for a directory whose names alone are read.
    """

    what: str
    path: Path | None
    role: Literal["node", "attribute", "fixed", "list"] = "node"


def real(path: str | Path | None) -> Path | None:
    """Return the node that a path refers to, if there is one."""
    if path is None:
        return None
    found = Path(os.path.realpath(path))
    return found if found.exists() else None


class Sockets(NamedTuple):
    """A family of sockets that a bus makes ("can"), or a TCP port that it connects to, with the reason."""

    family: str
    why: str
    port: int | None = None


def _none(*_args: Any) -> tuple[()]:
    return ()


@frozen(eq=False, kw_only=True)
class OnMachine:
    """The knowledge that a kind has of machines. `specs` are those of one table of the kind, all of them."""

    access: Access | None = None
    find: Callable[[Machine], Iterable[Any]] = _none
    """Yields the devices of the kind, with the kernel's description of them."""
    held: bool = False
    """True if a device that a process has open is not driven: reading the open files of all takes a while."""
    survey: Callable[[Sequence[Any], Search], Iterable[Any]] = _none
    """Yields a spec for each found device that is asked for and may be driven."""
    pins: Callable[[Sequence[Any]], Mapping[str, str]] = lambda _found: {}
    """Returns the functions of pins that found devices use, with the reason to reserve a line that has one."""
    reserve: Callable[[Sequence[Any], Mapping[str, str]], Iterable[Any]] | None = None
    """Returns the specs with the lines reserved that are such pins."""
    absent: Callable[[Sequence[Any], Machine], Iterable[Undriven]] = _none
    """Yields the absent ones of these listed devices, each of which has an `overlay`: the board can do without."""
    buses: Callable[[Mapping[str, tuple[Any, ...]], Machine], Mapping[str, Driver]] = lambda _specs, _machine: {}
    """Returns the drivers of further buses, for a profile that asks for the kind in `[discover]`."""
    report: Callable[[Inspection], Mapping[str, Any]] = lambda _look: {}
    """Returns the found devices for `hearth doctor`."""
    told: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = field(factory=dict)
    """By the member of `report` that lists devices: the word for one, and what a person is told of it."""
    hints: Callable[[Inspection], Iterable[Mapping[str, Any]]] = _none
    """Yields hardware that the machine has and leaves switched off."""
    problems: Callable[[Sequence[Any], Inspection], Iterable[ProfileProblem]] = _none
    """Yields the problems that keep the listed devices from working here."""
    gaps: Callable[[Sequence[Any], Sequence[Any], Inspection], Iterable[ProfileProblem]] = _none
    """Yields outputs of listed and of found devices without a safe level or a limit."""
    drives: Callable[[Any], bool] = lambda _spec: False
    """True if a session may drive outputs of a spec."""
    unreadable: Callable[[str, Mapping[str, tuple[Any, ...]], Inspection], tuple[str, str] | None] = (
        lambda _name, _specs, _look: None
    )
    """Returns why a sensor on a bus of the kind cannot be read here, and the cure; None if it can."""
    nodes: Callable[[Sequence[Any], Path], Iterable[Node]] = _none
    """Yields the files that the listed devices need, by the root of /sys."""
    sockets: Callable[[Sequence[Any]], Iterable[Sockets]] = _none
    """Yields the sockets that the listed devices need."""
