"""The part of a kind of hardware that looks at the machine: its devices, their problems, and the files that they need.

Each kind has a subclass of `OnMachine` (`hearth.drivers.<kind>.machine`). Discovery, `hearth doctor` and the sandbox's
plan loop over them. This module also finds missing permissions on device nodes, with the exact commands (groups, udev
rules) that give them; it changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from attrs import asdict, frozen

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
        return asdict(self)


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


def in_use(entry: Mapping[str, Any]) -> str:
    """Return which processes have a found device open, in words that end a sentence; empty if none has."""
    return f", open in {processes(entry['open_in'])}" if entry["open_in"] else ""


def processes(holders: Sequence[Mapping[str, Any]]) -> str:
    """Return processes in words."""
    return ", ".join(f"{holder['name']} (pid {holder['pid']})" for holder in holders)


MOST_NAMED: Final = 6
"""Limit of the outputs that one problem names; the others are counted."""


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


class DeviceNode(NamedTuple):
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


def missing(key: str, wanted: str, there: Iterable[str], cure: str, severity: Severity = "fail") -> ProfileProblem:
    """Return the problem that a profile lists a device which is not there; `there` are those that are."""
    return ProfileProblem(key, severity, f"{wanted} is not there; there is {', '.join(there) or 'none'}", cure)


class OnMachine:
    """The knowledge that a kind has of machines. `specs` are those of one table of the kind, all of them.

    Each kind has a subclass. The defaults are those of a kind that has no devices, and whose specs need none.
    The page of the kinds quotes a subclass: the first sentence of its `find`, `problems`, `faults` and `gaps`.
    """

    kind: ClassVar[str] = ""
    """Its name, which is also that of its table in a profile."""
    access: ClassVar[Access | None] = None
    held: ClassVar[bool] = False
    """True if a device that a process has open is not driven: reading the open files of all takes a while."""
    member: ClassVar[str] = ""
    """The member of the report that lists its devices."""
    word: ClassVar[str] = ""
    """The word for one of them."""

    def find(self, machine: Machine) -> Iterable[Any]:
        """Yield the devices of the kind, with the kernel's description of them."""
        return ()

    def reason(self, one: Any, holders: Sequence[Holder]) -> str | None:
        """Return why generic-linux does not drive a found device, or None. `holders` are processes that have it open.

        Most programs do not lock a device: two readers of a port would each get half of the received bytes.
        """
        return f"it is open in {', '.join(map(str, holders[:3]))}" if holders and self.held else None

    def survey(self, found: Sequence[Any], search: Search) -> Iterable[Any]:
        """Yield a spec for each found device that is asked for and may be driven."""
        return ()

    def offered(self, found: Sequence[Any], search: Search, listed: Callable[[Any], bool]) -> Iterator[Any]:
        """Yield the devices that are asked for and may be driven, without the listed ones."""
        for one in found:
            if search.asked(one.node, one.label) and not listed(one) and not self.refused(one, search):
                yield one

    def refused(self, one: Any, search: Search) -> bool:
        """Return True for a device that may not be driven, and list it as such."""
        assert self.access is not None
        reason = self.reason(one, search.holders.nodes.get(one.path, ()))
        return search.refused(self.access, one.node, one.path, one.label, reason=reason)

    def pins(self, found: Sequence[Any]) -> Mapping[str, str]:
        """Return the functions of pins that found devices use, with the reason to reserve a line that has one."""
        return {}

    def reserve(self, specs: Sequence[Any], pins: Mapping[str, str]) -> Iterable[Any]:
        """Return the specs with the lines reserved that are such pins."""
        return specs

    def absent(self, specs: Sequence[Any], machine: Machine) -> Iterable[Undriven]:
        """Yield the absent ones of these listed devices, each of which has an `overlay`: the board can do without."""
        return ()

    def buses(self, specs: Mapping[str, tuple[Any, ...]], machine: Machine) -> Mapping[str, Driver]:
        """Return the drivers of further buses, for a profile that asks for the kind in `[discover]`."""
        return {}

    def report(self, look: Inspection) -> Mapping[str, Any]:
        """Return the found devices for `hearth doctor`."""
        shown = [self.shown(one, look) | self._state(one, look) for one in self.seen(look)]
        return {self.member: shown} if self.member else {}

    def seen(self, look: Inspection) -> Iterable[Any]:
        """Return the found devices that the report lists."""
        return look.of(self.kind)

    def shown(self, one: Any, look: Inspection) -> dict[str, Any]:
        """Return a found device for the report."""
        return {"node": one.node, "path": one.path}

    def _state(self, one: Any, look: Inspection) -> dict[str, Any]:
        """Return the members of a found device that say if it can be used: the reason, the permission, its users."""
        if self.access is None:
            return {}
        holders = look.holders.nodes.get(one.path, ())
        reason, lack = self.reason(one, holders), self.access.lack_of(one.path)
        return {
            "not_driven": None if reason is None else {"reason": reason, "cure": NAME_IT},
            "lack": None if lack is None else asdict(lack),
            "open_in": [asdict(holder) for holder in holders],
        }

    def told(self, entry: Mapping[str, Any]) -> str:
        """Return what a person is told of a device of the report, in words that follow its node."""
        return ""

    def hints(self, look: Inspection) -> Iterable[Mapping[str, Any]]:
        """Yield hardware that the machine has and leaves switched off."""
        return ()

    def problems(self, specs: Sequence[Any], look: Inspection) -> Iterator[ProfileProblem]:
        """Yield the problems that keep the listed devices from working here."""
        for index, spec in enumerate(specs):
            if spec.driver != "sim":
                yield from self.faults(f"{self.kind}[{index}]", spec, look)

    def faults(self, at: str, spec: Any, look: Inspection) -> Iterable[ProfileProblem]:
        """Yield the problems of one device that is not simulated; `at` is the place of its table."""
        return ()

    def gaps(self, specs: Sequence[Any], found: Sequence[Any], look: Inspection) -> Iterable[ProfileProblem]:
        """Yield outputs of listed and of found devices without a safe level or a limit."""
        return ()

    def drives(self, spec: Any) -> bool:
        """Return True if a session may drive outputs of a spec."""
        return False

    def unreadable(self, name: str, specs: Mapping[str, tuple[Any, ...]], look: Inspection) -> tuple[str, str] | None:
        """Return why a sensor on a bus of the kind cannot be read here, and the cure; None if it can."""
        return None

    def nodes(self, specs: Sequence[Any], sys: Path) -> Iterable[DeviceNode]:
        """Yield the files that the listed devices need, by the root of /sys."""
        return [node for spec in specs if spec.driver != "sim" for node in self.files(spec, sys)]

    def files(self, spec: Any, sys: Path) -> Iterable[DeviceNode]:
        """Yield the files that one device needs that is not simulated."""
        return ()

    def sockets(self, specs: Sequence[Any]) -> Iterable[Sockets]:
        """Yield the sockets that the listed devices need."""
        return ()
