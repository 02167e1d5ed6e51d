"""What is on this machine and who uses it, what this user may not open, and whether a profile fits: for a person.

Owns the looking for `hearth doctor`, as one JSON object. It changes nothing, claims nothing, talks on no bus, and
raises for nothing that it finds. What is good or bad about a finding is the doctor's to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers.boards.access import Lack, lack_of
from hearth.drivers.boards.discover import KERNEL, THIS, find, functionality
from hearth.drivers.boards.fit import misfits
from hearth.drivers.boards.generic import HEADERS, NAME_IT, adapter_reason, chip_reason, port_reason
from hearth.drivers.boards.profile import load_profile
from hearth.drivers.linux.holders import find_holders

if TYPE_CHECKING:
    from hearth.drivers.boards.discover import FoundChip, Machine
    from hearth.drivers.boards.profile import Kind, Profile
    from hearth.drivers.linux.holders import Holder, Holders


def look(board: str | None = None, *, machine: Machine = THIS) -> dict[str, Any]:
    """Everything there is; with `board`, a profile's name or path, also whether that profile fits.

    Raises ConfigError for a profile that cannot be read.
    """
    profile = None if board is None else load_profile(board)
    found = find(machine=machine)
    holders = find_holders(machine.proc, machine.dev)
    told: dict[str, Any] = {
        "chips": [_chip(chip, holders) for chip in found.chips],
        "adapters": [
            {
                "node": adapter.node,
                "path": adapter.path,
                "name": adapter.name,
                "functionality": _listed(functionality(adapter.path)),
                **_state("i2c", adapter.path, adapter_reason(adapter), holders.nodes.get(adapter.path, ())),
            }
            for adapter in found.adapters
        ],
        "ports": [
            {
                "node": port.node,
                "path": port.path,
                "driver": port.origin.driver,
                **_state("uart", port.path, port_reason(port), open_in),
            }
            # A port of a virtual machine that leads nowhere is of no interest, until somebody wants it.
            for port in found.ports
            for open_in in [holders.nodes.get(port.path, ())]
            if port.origin.above or port.console or port.terminal_of or open_in
        ],
        "sensors": _sensors(machine),
        "everybody_seen": holders.complete,
    }
    if profile is not None:
        told["profile"] = {
            "name": profile.name,
            "source": profile.source,
            "wants": _wants(profile),
            "problems": [problem.to_json() for problem in misfits(profile, found, holders, machine)],
        }
    return told


def _chip(chip: FoundChip, holders: Holders) -> dict[str, Any]:
    used = [
        {
            "line": line.offset,
            "name": line.name,
            "consumer": None if line.consumer == KERNEL else line.consumer,
            "by": [_holder(holder) for holder in holders.lines.get((chip.node, line.offset), ())],
        }
        for line in chip.lines
        if line.consumer is not None
    ]
    reason = None if chip.label is None or chip.label in HEADERS else chip_reason(chip)
    return {
        "node": chip.node,
        "path": chip.path,
        "label": chip.label,
        "driver": chip.origin.driver,
        "lines": len(chip.lines) if chip.error is None else None,
        "names": [line.name or "" for line in chip.lines],
        "used": used,
        "error": chip.error,
        **_state("gpio", chip.path, reason, holders.nodes.get(chip.path, ())),
    }


def _state(kind: Kind, path: str, reason: str | None, holders: tuple[Holder, ...]) -> dict[str, Any]:
    lack = lack_of(path, kind)
    return {
        "not_driven": None if reason is None else {"reason": reason, "cure": NAME_IT},
        "lack": None if lack is None else _lack(lack),
        "open_in": [_holder(holder) for holder in holders],
    }


def _lack(lack: Lack) -> dict[str, Any]:
    return {"reason": lack.reason, "cure": lack.cure}


def _holder(holder: Holder) -> dict[str, Any]:
    return {"pid": holder.pid, "name": holder.name}


def _listed(abilities: tuple[str, ...] | None) -> list[str] | None:
    return None if abilities is None else list(abilities)


def _sensors(machine: Machine) -> int:
    from hearth.drivers.linux.sensors import KernelSensors

    return len(KernelSensors(sys=machine.sys).scan())


def _wants(profile: Profile) -> bool:
    """Whether the profile needs anything of this machine; a simulated board does not."""
    drivers = (spec.driver for specs in (profile.chips, profile.i2c, profile.uarts) for spec in specs)
    return bool(profile.discover) or any(driver != "sim" for driver in drivers)
