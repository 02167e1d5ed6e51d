"""The devices and the confinement of this machine, for a person.

It gathers JSON objects for `hearth doctor`, which judges them: the devices and their users, missing permissions, the
fit of a profile, and the gaps in its physical safety; and the confinement that this kernel offers, that a daemon would
use, and that a running one has. It changes nothing, claims nothing, puts nothing in force, and opens no device but as a
plan does. It connects to no address but the profile's, and raises for nothing that it finds. On a bus it transfers
nothing but one read of each Modbus server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.config.model import default_socket, default_state_dir
from hearth.drivers.boards.discover import THIS, find, survey
from hearth.drivers.boards.profile import load_profile
from hearth.drivers.kinds import entries_of, kinds_of
from hearth.drivers.linux.device_users import find_holders
from hearth.drivers.linux.survey import Inspection, ProfileProblem, some_of
from hearth.drivers.sandbox import landlock
from hearth.drivers.sandbox.cage import cannot_hold, program_notes
from hearth.drivers.sandbox.enforce import available
from hearth.drivers.sandbox.plan import Places, make_plan
from hearth.drivers.signals import OFF
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.config.model import Config
    from hearth.drivers.kind import Outputs
    from hearth.drivers.linux.device_users import Holders
    from hearth.drivers.linux.machine import Machine
    from hearth.drivers.linux.survey import Found, Severity
    from hearth.drivers.profile import Profile

_HALT_EXAMPLE = '[halt] inputs = ["ESTOP"], a line with direction = "input" and a normally closed contact to ground'


def mismatches(profile: Profile, found: Found, holders: Holders, machine: Machine = THIS) -> Iterator[ProfileProblem]:
    """Yield the problems that keep the profile from working here: the key path, the cause and the cure of each.

    A device that it merely looks for (`discover`) need not be there; one that is there and cannot be used is reported.
    """
    look = Inspection(found, holders, machine)
    for kind in kinds_of(profile.specs):
        if specs := profile.of(kind.name):
            yield from kind.machine().problems(specs, look)
    for entry in survey(profile, found, holders).undriven:
        if not entry.left_alone:
            yield ProfileProblem(f"discover.{entry.kind}", "warn", f"{entry.name}: {entry.reason}", entry.cure)


def safety_gaps(profile: Profile, found: Found, holders: Holders, machine: Machine = THIS) -> Iterator[ProfileProblem]:
    """Yield the gaps in the physical safety of a profile, with the devices that it looks for and that are there."""
    look, there = Inspection(found, holders, machine), survey(profile, found, holders).specs
    drivers: set[str] = set()
    for kind in kinds_of(profile.specs):
        listed, more = profile.of(kind.name), there.get(kind.name, ())
        if listed or more:
            on_machine = kind.machine()
            yield from on_machine.gaps(listed, more, look)
            drivers |= {spec.driver for spec in (*listed, *more) if on_machine.drives(spec)}
    if not profile.halt.inputs and drivers:
        severity: Severity = "warn" if drivers != {"sim"} else "note"
        told = "no halt input, so that no button stops the outputs"
        yield ProfileProblem("halt.inputs", severity, told, f"name an input: {_HALT_EXAMPLE}")
    yield from _unreadable(profile, look)
    yield from cautions(profile)


def cautions(profile: Profile) -> Iterator[ProfileProblem]:
    """Yield the gaps in the safety of a profile that show without a look at the machine."""
    yield from _leaned_on(profile)
    yield from _one_sided(profile)
    for kind in kinds_of(profile.specs):
        for caution in kind.cautions(profile.specs) if profile.of(kind.name) else ():
            yield ProfileProblem(*caution)
        for index, spec in enumerate(profile.of(kind.name)):
            if kind.outputs is not None and spec.driver != "sim":
                outputs = kind.outputs(spec, None)
                yield from _without_safe(f"{kind.name}[{index}].safe", kind.bus(spec), outputs)
                yield from _without_start(f"{kind.name}[{index}]", kind.bus(spec), outputs)


def _without_safe(key: str, bus: str, outputs: Outputs) -> Iterator[ProfileProblem]:
    """Yield the outputs of a bus that a halt leaves as they are."""
    signals = outputs.signals.values()
    free = [one.name for one in signals if one.safe is None and one.access != "r" and one.reserved is None]
    if free:
        told = f"{bus}: no safe state, so that a halt leaves them as they are: {some_of(free)}"
        yield ProfileProblem(key, "warn", told, "give each a `safe`, or switch what they drive by a line that has one")


def _without_start(key: str, bus: str, outputs: Outputs) -> Iterator[ProfileProblem]:
    """Yield the outputs whose first drive no step and no slew limits: nothing tells the level before it.

    That is so at the first start, before the outputs file has a level of them.
    """
    blind = [one for one in outputs.signals.values() if one.stepped and (one.access == "w" or one.off == "hold")]
    free = [one.name for one in blind if one.start is None and one.safe in (None, OFF) and one.reserved is None]
    if free:
        told = f"{bus}: the first drive may be of any size within the bounds, since it cannot be read: {some_of(free)}"
        cure = "give each a `safe` value, which is driven first, or where it takes one the `start` that it has"
        yield ProfileProblem(key, "warn", told, cure)


def _leaned_on(profile: Profile) -> Iterator[ProfileProblem]:
    """Yield the lines by which interlocks go, and that clients could drive.

    A required line with direction = "output" is one that clients switch on purpose: a valve before its pump.
    """
    lines = {(chip.bus, line.offset): line for chip in profile.line_chips for line in chip.lines}
    for index, lock in enumerate(profile.interlocks):
        for number, one in enumerate(lock.requires):
            if one.line is not None and lines[one.bus, one.line].direction == "any":
                told = f"clients may drive {one.name}, by which the interlock of {lock.what} goes"
                cure = 'give the line direction = "input", or "output" where clients are to switch it'
                yield ProfileProblem(f"interlock[{index}].requires[{number}].line", "warn", told, cure)


def _one_sided(profile: Profile) -> Iterator[ProfileProblem]:
    """Yield the interlocks that a source without a value may meet: they have one bound, and it has no codes."""
    kinds = [*kinds_of(profile.specs)]
    checked = {one.name for kind in kinds for one in kind.sensors(profile.specs) if one.checked}
    listed = [(kind, spec) for kind in kinds for spec in profile.of(kind.name)]
    simulated = {kind.bus(spec) for kind, spec in listed if getattr(spec, "driver", None) == "sim"}
    for index, lock in enumerate(profile.interlocks):
        for number, one in enumerate(lock.requires):
            open_end = one.line is None and (one.min is None) != (one.max is None)
            if open_end and one.name not in checked and one.bus not in simulated:
                told = f"the interlock of {lock.what} has one bound for sensor {one.name}, which a broken wire may meet"
                cure = "give both `min` and `max`, or the sensor `none` or `valid`"
                yield ProfileProblem(f"interlock[{index}].requires[{number}]", "warn", told, cure)


def _unreadable(profile: Profile, look: Inspection) -> Iterator[ProfileProblem]:
    """Yield the interlocks whose sensors cannot be read here: each keeps its output from being driven."""
    readers = {word: kind for kind in kinds_of(profile.specs) for word in (kind.name, kind.discover)}
    for index, interlock in enumerate(profile.interlocks):
        for number, condition in enumerate(interlock.requires):
            kind = readers.get(condition.bus.partition(":")[0]) if condition.line is None else None
            found = None if kind is None else kind.machine().unreadable(condition.name, profile.specs, look)
            if found is not None:
                why, cure = found
                stays = f"{interlock.name} cannot be driven to {interlock.region}"
                told = f"sensor {condition.name} cannot be read ({why}), so that the interlock is open: {stays}"
                yield ProfileProblem(f"interlock[{index}].requires[{number}].sensor", "fail", told, cure)


def look(board: str | None = None, *, machine: Machine = THIS) -> dict[str, Any]:
    """Return all devices; with `board`, a profile's name or path, also the fit of that profile.

    Raises ConfigError for a profile that cannot be read.
    """
    profile = None if board is None else load_profile(board, any_owner=True)
    tables = () if profile is None else tuple(profile.specs)
    found = find(machine=machine, tables=tables)
    holders = find_holders(machine.proc, machine.dev)
    seen = Inspection(found, holders, machine)
    kinds = [kind.machine() for kind in kinds_of(tables)]
    result: dict[str, Any] = {key: value for kind in kinds for key, value in kind.report(seen).items()}
    result["hints"] = [hint for kind in kinds for hint in kind.hints(seen)]
    result["everybody_seen"] = holders.complete
    if profile is not None:
        result["profile"] = {
            "name": profile.name,
            "source": profile.source,
            "wants": _wants(profile),
            "problems": [problem.to_json() for problem in mismatches(profile, found, holders, machine)],
            "safety": [problem.to_json() for problem in safety_gaps(profile, found, holders, machine)],
        }
    return result


def told(found: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield of each device that `look` has returned the word for it, what a person is told, and the device.

    A kind of another package is found by a member of the kind's name.
    """
    for kind in kinds_of(found):
        machine = kind.machine()
        for entry in found.get(machine.member, ()):
            yield machine.word, f"{entry['node']} {machine.told(entry)}", entry


def _wants(profile: Profile) -> bool:
    """Return True if the profile needs a device of this machine; a simulated board does not."""
    drivers = (getattr(spec, "driver", "sim") for _, _, spec in entries_of(profile.specs))
    return bool(profile.discover) or any(driver != "sim" for driver in drivers)


_SHOWN = ("Uid", "Gid", "NoNewPrivs", "Seccomp", "CapPrm", "CapEff", "CapBnd", "CapAmb")
"""Fields of /proc/PID/status that show confinement. The kernel does not show a process's Landlock rules."""


def look_at_sandbox(config: Config) -> dict[str, Any]:
    """Return the kernel's confinement, part by part, and a plan for a daemon that this user starts."""
    try:
        abi = landlock.version()
    except OSError:
        abi = 0
    return {
        "kernel": {
            "landlock": abi,
            "parts": [{"name": part.name, "can_be": part.in_force, "detail": part.detail} for part in available()],
        },
        "planned": _planned(config),
    }


def _planned(config: Config) -> dict[str, Any]:
    """Return the plan, as far as it can be known without opening the board; the reason for none in `off` or `error`."""
    if not config.sandbox.enable:
        return {"off": "[sandbox] enable = false"}
    # Shipped tools need no more than this, unless they are enabled by name.
    tools = ({"sys.network"} | set(config.tools.enable)) - set(config.tools.disable)
    try:
        audit = config.audit.path or default_state_dir(os.environ, os.geteuid()) / "audit.log"
        places = Places(
            audit=audit,
            key=config.audit.key or Path(f"{audit}.key"),
            socket=config.server.socket or default_socket(os.environ, os.geteuid()),
        )
        profile = load_profile(config.board.profile, any_owner=True)
        plan = make_plan(config, profile, places, tools=tools, environ=os.environ, uid=os.geteuid())
    except ConfigError as error:
        return {"error": str(error)}
    runs = "proc.exec" in tools
    programs = {
        "programs": sorted(config.tools.exec) if runs else [],
        "programs_refused": cannot_hold(config),
        "notes": [*plan.notes, *(program_notes(config, os.geteuid()) if runs else ())],
    }
    return {**plan.to_json(), **programs, "require": config.sandbox.require}


def process_sandbox(pid: int) -> dict[str, Any] | None:
    """Return the kernel's view of a process and all its threads; None where there is none, or nothing may be seen."""
    facts: dict[str, set[str]] = {name: set() for name in _SHOWN}
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for line in (thread / "status").read_text("ascii", "replace").splitlines():
                name, _, value = line.partition(":")
                if name in facts:
                    facts[name].add(" ".join(value.split()))
    except OSError:
        return None
    return {"pid": pid, **{name: sorted(values) for name, values in facts.items()}}
