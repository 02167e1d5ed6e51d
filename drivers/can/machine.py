"""CAN interfaces of the machine: found, and what keeps them from working. Their bit rates are set by the system."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.drivers.can.spec import CanSpec
from hearth.drivers.linux.machine import Machine, text_of
from hearth.drivers.linux.survey import Inspection, OnMachine, ProfileProblem, Search, Sockets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
_ARPHRD_CAN = "280"
_IFF_UP = 1
_FD_MTU = 72


@frozen
class FoundCan:
    """A CAN interface of the machine; `down` if it was not brought up, `off_bus` if its controller left the bus."""

    name: str
    down: bool
    off_bus: bool
    fd: bool


def find_can(machine: Machine) -> Iterator[FoundCan]:
    """Yield the CAN interfaces, by name, as /sys shows them."""
    for place in sorted((machine.sys / "class/net").glob("*")):
        if text_of(place / "type") == _ARPHRD_CAN:
            down = not int(text_of(place / "flags") or "0", 16) & _IFF_UP
            off_bus = not down and text_of(place / "carrier") == "0"
            # 16 for classic frames, 72 for CAN FD, more for CAN XL.
            fd = int(text_of(place / "mtu") or "0") >= _FD_MTU
            yield FoundCan(place.name, down, off_bus, fd)


def survey(found: Sequence[FoundCan], search: Search) -> Iterator[CanSpec]:
    """Yield a spec for each interface that is asked for, and that the profile does not list itself."""
    listed = {name for spec in search.of("can") for name in (spec.interface, spec.bus)}
    for one in found:
        if search.asked(one.name) and one.name not in listed and re.fullmatch(r"[A-Za-z0-9_-]+", one.name):
            yield CanSpec(one.name, "socketcan", one.name, fd=one.fd)


def report(look: Inspection) -> dict[str, Any]:
    """Return the interfaces for `hearth doctor`, each with what keeps it from working, and the cure."""
    shown = []
    for one in look.of("can"):
        problem = can_problem(CanSpec(one.name, "socketcan", one.name, fd=one.fd), look.of("can"))
        told, cure = problem or (None, None)
        shown.append({"node": one.name, "fd": one.fd, "problem": told, "cure": cure})
    return {"cans": shown}


def _told(interface: Mapping[str, Any]) -> str:
    return f"{', CAN FD' if interface['fd'] else ''}: {interface['problem'] or 'up'}"


def can_problem(spec: CanSpec, found: Sequence[FoundCan]) -> tuple[str, str] | None:
    """Return what keeps a bus from working on this machine, with its cure; None if nothing does."""
    from hearth.drivers.can.linux import up_command

    there = next((one for one in found if one.name == spec.interface), None)
    up = up_command(spec.interface, spec.bitrate, fd=spec.fd)
    again = f"sudo ip link set {spec.interface} down; {up}"
    if there is None:
        listed = ", ".join(one.name for one in found) or "none"
        cure = "is it plugged in, and its kernel module loaded? `ip -br link` lists all; or correct the profile"
        return f"there is no CAN interface {spec.interface}; there is {listed}", cure
    if there.down:
        return f"{spec.interface} is down; hearth sets no bit rates", up
    if there.off_bus:
        return f"{spec.interface} is off the bus, after too many errors", again
    if spec.fd and not there.fd:
        return f"{spec.interface} does no CAN FD", f"{again}; or take `fd` out"
    return None


def problems(specs: Sequence[CanSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield what keeps the buses of a profile from working on this machine."""
    for index, spec in enumerate(specs):
        if spec.driver != "sim" and (problem := can_problem(spec, look.of("can"))) is not None:
            yield ProfileProblem(f"can[{index}].interface", "fail", *problem)


def sockets(specs: Sequence[CanSpec]) -> Iterator[Sockets]:
    """Yield the sockets of the interfaces."""
    if any(spec.driver == "socketcan" for spec in specs):
        yield Sockets("can", "the CAN interfaces of the board")


MACHINE: Final = OnMachine(
    find=find_can, survey=survey, report=report, told={"cans": ("can", _told)}, problems=problems, sockets=sockets
)
