"""Puts a plan in force, part by part, and reports what is in force.

Theory of operation. The attacker has taken over the daemon after it began to serve, through a flaw in it or in a
library, and runs code of its own in the process. Guaranteed, as far as the kernel supports it: such a process can use
only the files, devices, sockets and system calls of the plan, cannot run a program, and can never get more rights back.
The daemon confines itself before it serves its first client.

`confine` goes in an order in which no step undoes or escapes an earlier one, and no later step lacks a right:

1. One thread: other threads would keep their rights, because the kernel confines a thread and its children. With a
   second thread `confine` raises ConfigError, and the daemon does not start.
2. The seccomp filter is built, because its library must be found while files can still be read.
3. `user`: the capability bounding set is reduced and the user becomes that of the plan. This needs root's powers.
4. `capabilities`: all but those of the plan are given up, for this process and all that it starts.
5. `no_new_privs`: no set-uid program gives rights back. The kernel requires it for the next two steps.
6. `files`, `devices`, `network`, `scopes`: Landlock rules. All rights that no rule grants are denied, for good.
7. `syscalls`: the filter, last, because it denies system calls that the steps before it need.

A user that cannot be become is a ConfigError: the daemon does not run as root instead. Every other part that the kernel
lacks is reported with its cure, and the daemon runs without it: the log, the audit log, health and doctor show it.
`off` switches off all parts but the user. A kernel that is attacked itself, and resources of the machine (processor,
memory, disk), are not covered here.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from attrs import frozen

from hearth.drivers.sandbox import identity, landlock, seccomp
from hearth.drivers.sandbox.landlock import Fs
from hearth.drivers.sandbox.seccomp import Filter, NoFilter
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hearth.drivers.sandbox.plan import Access, SandboxPlan

# The parts of a plan that are in force, and the reasons for the others: for the log, the audit log, health and doctor.

Name: TypeAlias = Literal["user", "capabilities", "no_new_privs", "files", "devices", "network", "scopes", "syscalls"]


class Layer(NamedTuple):
    """A part of the confinement: `detail` is its extent, or the reason for its absence with the cure."""

    name: Name
    in_force: bool
    detail: str


def by_cause(parts: Iterable[Layer]) -> dict[str, list[Name]]:
    """Return the parts that are not in force, by the reason: one cause is reported once."""
    causes: dict[str, list[Name]] = {}
    for part in parts:
        if not part.in_force:
            causes.setdefault(part.detail, []).append(part.name)
    return causes


@frozen(kw_only=True)
class SandboxReport:
    """All parts of a confined daemon; or the reason why it is not confined, in `off`."""

    parts: tuple[Layer, ...] = ()
    off: str | None = None
    user: str | None = None
    added: tuple[str, ...] = ()
    hotplug: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> Literal["in force", "in part", "off"]:
        """Return a summary in a word or two."""
        if self.off is not None:
            return "off"
        return "in force" if all(part.in_force for part in self.parts) else "in part"

    @property
    def missing(self) -> dict[str, str]:
        """Return the parts that are not in force, and the reasons."""
        return {part.name: part.detail for part in self.parts if not part.in_force}

    def to_json(self) -> dict[str, Any]:
        """Return the report for health and the audit log."""
        result: dict[str, Any] = {"state": self.state}
        if self.off is not None:
            return {**result, "reason": self.off, **({"user": self.user} if self.user else {})}
        result["in_force"] = [part.name for part in self.parts if part.in_force]
        optional = {
            "missing": self.missing, "user": self.user, "added": list(self.added), "hotplug": self.hotplug,
            "notes": list(self.notes),
        }  # fmt: skip
        return result | {name: value for name, value in optional.items() if value}

    def lines(self) -> Iterator[tuple[Literal["info", "warning"], str]]:
        """Yield the report for the log: one line for the parts in force, one for each other part."""
        if self.off is not None:
            yield "warning", f"sandbox: off: {self.off}"
            return
        held = [f"{part.name} ({part.detail})" for part in self.parts if part.in_force]
        yield "info", f"sandbox: in force: {', '.join(held) or 'nothing'}"
        for why, names in by_cause(self.parts).items():
            yield "warning", f"sandbox: not in force: {', '.join(names)}: {why}"
        if self.added:
            yield "warning", f"sandbox: the environment added to what may be written: {', '.join(self.added)}"
        if self.hotplug is not None:
            yield "info", f"sandbox: all of /dev may be opened: {self.hotplug}"
        for note in self.notes:
            yield "warning", f"sandbox: {note}"


_READ = Fs.READ_FILE | Fs.READ_DIR
RIGHTS: Mapping[Access, Fs] = {
    "read": _READ,
    "write": _READ
    | Fs.WRITE_FILE
    | Fs.TRUNCATE
    | Fs.REMOVE_FILE
    | Fs.REMOVE_DIR
    | Fs.MAKE_REG
    | Fs.MAKE_DIR
    | Fs.REFER,
    "execute": _READ | Fs.EXECUTE,
    "device": _READ | Fs.WRITE_FILE | Fs.IOCTL_DEV,
    "list": Fs.READ_DIR,
    "unlink": Fs.REMOVE_FILE,
}
"""The rights of each kind of access."""
_LANDLOCK: tuple[tuple[Name, int, str], ...] = (
    ("files", 1, ""),
    ("network", 4, "Linux 6.7"),
    ("devices", 5, "Linux 6.10"),
    ("scopes", 6, "Linux 6.12"),
)
"""The parts that are Landlock's, each with the version of its interface, and the kernel, that introduced it."""


def confine(plan: SandboxPlan, *, off: str | None = None, abi: int = landlock.NEWEST) -> SandboxReport:
    """Put all of a plan in force that can be; `abi` is the newest version of Landlock to use.

    Where `off` says why it is switched off, only its user is put in force. Raises ConfigError where the process cannot
    become that user, or there are other threads and a part to put in force.
    """
    user = None if plan.user is None else plan.user.name
    # By the kernel's count: `threading` does not know the threads of a C library, nor of an emulated processor.
    others = len(os.listdir("/proc/self/task")) - 1  # noqa: PTH208 - a count
    if others and (off is None or user is not None):
        names = sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        which = ", ".join(names) or f"{others} of a library, or of an emulator of this processor"
        raise ConfigError(
            f"[sandbox]: threads that run already would not be confined: {which}; take out what starts them "
            "([tools] enable, [hcp] capabilities), or start with --no-sandbox" + (" and no user" if user else "")
        )
    if off is not None:
        # Also then: an operator who names a user never gets a daemon that runs as root.
        _become(plan)
        return SandboxReport(off=off, user=user)
    # Built while files can still be read: the module searches for libseccomp.
    made = _filter(plan)
    # The order of this list is the order of the steps (see above): each item is evaluated whole before the next one.
    parts = [*_become(plan), _capabilities(plan), _no_new_privs(), *_landlock(plan, abi), _seccomp(plan, made)]
    return SandboxReport(
        parts=tuple(parts),
        user=user,
        added=tuple(str(path) for path in plan.added),
        hotplug=plan.hotplug,
        notes=plan.notes,
    )


def available(abi: int = landlock.NEWEST) -> Iterator[Layer]:
    """Yield the parts that could be put in force here; put nothing in force."""
    yield Layer("no_new_privs", True, "for all that is run")
    try:
        there = min(landlock.version(), abi)
    except OSError as error:
        for name, _, _ in _LANDLOCK:
            yield Layer(name, False, landlock.why_not(error))
    else:
        for name, since, kernel in _LANDLOCK:
            yield _part_of_landlock(name, since, kernel, there, "can be")
    try:
        Filter(())
    except NoFilter as error:
        yield Layer("syscalls", False, str(error))
    else:
        yield Layer("syscalls", True, "can be")


def _become(plan: SandboxPlan) -> list[Layer]:
    if plan.user is None:
        return []
    try:
        # Before the user changes, because another user than root may not do this.
        identity.bound_capabilities(plan.capabilities)
        identity.become(plan.user)
    except OSError as error:
        raise ConfigError(f"[sandbox] user: cannot become {plan.user.name}: {error.strerror}") from None
    return [Layer("user", True, identity.in_words(plan.user))]


def _capabilities(plan: SandboxPlan) -> Layer:
    try:
        identity.keep_capabilities(plan.capabilities)
    except OSError as error:
        return Layer("capabilities", False, f"the kernel keeps them: {error.strerror}")
    return Layer("capabilities", True, f"{', '.join(plan.capabilities) or 'none'} kept")


def _no_new_privs() -> Layer:
    try:
        identity.no_new_privs()
    except OSError as error:
        return Layer("no_new_privs", False, f"the kernel refuses it: {error.strerror}")
    return Layer("no_new_privs", True, "for all that is run")


def _landlock(plan: SandboxPlan, newest: int) -> Iterator[Layer]:
    # A Landlock domain may not look into processes outside of it (ptrace access), and no rule can allow that.
    if plan.looks is not None:
        for name, _, _ in _LANDLOCK:
            yield Layer(name, False, f"Landlock would keep hearthd from looking into other processes ({plan.looks})")
        return
    scopes = landlock.ABSTRACT_UNIX_SOCKETS | (0 if plan.signals else landlock.SIGNALS)
    try:
        abi = min(landlock.version(), newest)
        with landlock.Ruleset(abi, scopes, tcp=plan.network is None) as rules:
            # A path that is not there gets no rule, and stays denied.
            failed = rules.allow_all((grant.path, RIGHTS[grant.access]) for grant in plan.grants)
            for port in plan.tcp:
                rules.allow_connect(port)
            rules.enforce()
    except OSError as error:
        for name, _, _ in _LANDLOCK:
            yield Layer(name, False, landlock.why_not(error))
        return
    reasons = {
        "files": f"Landlock {abi}, {len(plan.grants) - len(failed)} paths",
        "network": _network(plan),
        "devices": "ioctl on none but the listed",
        "scopes": _scopes(plan),
    }
    for name, since, kernel in _LANDLOCK:
        yield _part_of_landlock(name, since, kernel, abi, reasons[name])


def _part_of_landlock(name: Name, since: int, kernel: str, abi: int, reason: str) -> Layer:
    if abi >= since:
        return Layer(name, True, reason)
    return Layer(name, False, f"Landlock {abi} of this kernel does not know it; it takes {kernel} or later")


def _network(plan: SandboxPlan) -> str:
    if plan.network is not None:
        return f"TCP is allowed: {plan.network}"
    if plan.tcp:
        ports = ", ".join(f"{port} ({why})" for port, why in plan.tcp.items())
        return f"no TCP is bound, and connected only to port {ports}"
    return "no TCP is bound or connected"


def _scopes(plan: SandboxPlan) -> str:
    return "no abstract sockets" + (" and no signals" if plan.signals is None else "") + " to the outside"


def _filter(plan: SandboxPlan) -> Filter | NoFilter:
    try:
        return Filter(
            seccomp.rules(plan.families, connect=plan.connect is not None, tcp=bool(plan.tcp), notifier=plan.notifier)
        )
    except NoFilter as error:
        return error


def _seccomp(plan: SandboxPlan, made: Filter | NoFilter) -> Layer:
    try:
        if isinstance(made, NoFilter):
            raise made
        made.enforce()
    except NoFilter as error:
        return Layer("syscalls", False, str(error))
    return Layer("syscalls", True, f"{made.calls} are denied, execve among them")
