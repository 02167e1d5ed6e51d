"""Serial ports as a kind of a board: the ports that may be used, and what keeps a profile's from working here."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.linux.survey import Inspection, Node, OnMachine, ProfileProblem, Search, in_use, real, state
from hearth.drivers.serial_port.machine import ACCESS, FoundPort, find_ports, port_problems, port_reason
from hearth.drivers.serial_port.settings import PORTS
from hearth.drivers.uart.spec import UartSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def survey(found: Sequence[FoundPort], search: Search) -> Iterator[UartSpec]:
    """Yield a spec for each port that may be driven, and that no other entry of the profile uses."""
    paths = (getattr(spec, "path", None) for specs in search.specs.values() for spec in specs)
    listed = {realpath(path) for path in paths if path is not None}
    names = {spec.port for spec in search.of("uart")}
    for port in found:
        # A port without a device is a virtual machine's, of which many are unconnected: only if named.
        asked = search.asked(port.node) and (port.origin.above or not search.everything)
        if not asked or realpath(port.path) in listed:
            continue
        if port.node in names:
            why = "the profile gives its name to another port"
            search.leave(port.node, why, port.path, port.origin.driver, "list it, or rename that")
            continue
        reason = port_reason(port, search.holders.nodes.get(port.path, ()))
        if not search.refused(ACCESS, port.node, port.path, port.origin.driver, reason=reason):
            yield UartSpec(port.node, "serial", port.path)


def problems(specs: Sequence[UartSpec], look: Inspection) -> Iterator[ProfileProblem]:
    """Yield what keeps the ports of a profile from working here."""
    for index, spec in enumerate(specs):
        if spec.path is not None:
            yield from port_problems(f"uart[{index}].path", spec.path, look)


def report(look: Inspection) -> dict[str, Any]:
    """Return the ports for `hearth doctor`."""
    shown = []
    for port in look.of(PORTS):
        holders = look.holders.nodes.get(port.path, ())
        # An unconnected port of a virtual machine is listed only if the profile names it.
        if port.origin.above or port.console or port.terminal_of or holders:
            judged = state(ACCESS, port.path, port_reason(port, holders), holders)
            shown.append({"node": port.node, "path": port.path, "driver": port.origin.driver, **judged})
    return {"ports": shown}


def _told(port: Mapping[str, Any]) -> str:
    return f"({port['driver'] or 'serial port'}){in_use(port)}"


def nodes(specs: Sequence[UartSpec], _sys: Path) -> Iterator[Node]:
    """Yield the nodes of the ports, and the pseudo-terminals of simulated ones."""
    for spec in specs:
        if spec.driver == "serial":
            yield Node(f"uart {spec.port}", real(spec.path))
    if any(spec.driver == "sim" for spec in specs):
        for name in ("ptmx", "pts"):
            yield Node("the simulated serial ports", Path("/dev", name), "fixed")


MACHINE: Final = OnMachine(
    access=ACCESS,
    find=find_ports,
    held=True,
    survey=survey,
    report=report,
    told={"ports": ("port", _told)},
    problems=problems,
    nodes=nodes,
)
