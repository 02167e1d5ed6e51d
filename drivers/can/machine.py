"""CAN interfaces of the machine: found, and what keeps them from working. Their bit rates are set by the system."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.drivers.can.spec import CanSpec
from hearth.drivers.linux.machine import Machine, text_of
from hearth.drivers.linux.survey import OnMachine, ProfileProblem, Sockets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.linux.survey import Inspection, Search
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


class CanMachine(OnMachine):
    """CAN interfaces as the machine has them."""

    kind, member, word = "can", "cans", "can"

    def find(self, machine: Machine) -> Iterator[FoundCan]:
        """Yield the CAN interfaces, by name, as /sys shows them."""
        for place in sorted((machine.sys / "class/net").glob("*")):
            if text_of(place / "type") == _ARPHRD_CAN:
                down = not int(text_of(place / "flags") or "0", 16) & _IFF_UP
                off_bus = not down and text_of(place / "carrier") == "0"
                # 16 for classic frames, 72 for CAN FD, more for CAN XL.
                fd = int(text_of(place / "mtu") or "0") >= _FD_MTU
                yield FoundCan(place.name, down, off_bus, fd)

    def survey(self, found: Sequence[FoundCan], search: Search) -> Iterator[CanSpec]:
        """Yield a spec for each interface that is asked for, and that the profile does not list itself."""
        listed = {name for spec in search.of("can") for name in (spec.interface, spec.bus)}
        for one in found:
            if search.asked(one.name) and one.name not in listed and re.fullmatch(r"[A-Za-z0-9_-]+", one.name):
                yield CanSpec(one.name, "socketcan", one.name, fd=one.fd)

    def shown(self, one: FoundCan, look: Inspection) -> dict[str, Any]:
        """Return an interface with what keeps it from working, and the cure."""
        problem = can_problem(CanSpec(one.name, "socketcan", one.name, fd=one.fd), look.of("can"))
        told, cure = problem or (None, None)
        return {"node": one.name, "fd": one.fd, "problem": told, "cure": cure}

    def told(self, entry: Mapping[str, Any]) -> str:
        """See `OnMachine.told`."""
        return f"{', CAN FD' if entry['fd'] else ''}: {entry['problem'] or 'up'}"

    def faults(self, at: str, spec: CanSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield an interface that is missing, down, off the bus, or without CAN FD."""
        if (problem := can_problem(spec, look.of("can"))) is not None:
            yield ProfileProblem(f"{at}.interface", "fail", *problem)

    def sockets(self, specs: Sequence[CanSpec]) -> Iterator[Sockets]:
        """Yield the sockets of the interfaces."""
        if any(spec.driver == "socketcan" for spec in specs):
            yield Sockets("can", "the CAN interfaces of the board")
