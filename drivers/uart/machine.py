"""Serial ports as a kind of a board: the ports that may be used, and what keeps a profile's from working here."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.drivers.linux.survey import DeviceNode, OnMachine, in_use, real
from hearth.drivers.serial_port.machine import ACCESS, FoundPort, find_ports, port_problems
from hearth.drivers.serial_port.settings import PORTS
from hearth.drivers.uart.spec import UartSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.linux.device_users import Holder
    from hearth.drivers.linux.machine import Machine
    from hearth.drivers.linux.survey import Inspection, ProfileProblem, Search


class UartMachine(OnMachine):
    """Serial ports as the machine has them."""

    kind, member, word = PORTS, "ports", "port"
    access = ACCESS
    held = True

    def find(self, machine: Machine) -> Iterator[FoundPort]:
        """Yield the serial ports that have a node, by name."""
        return find_ports(machine)

    def reason(self, one: FoundPort, holders: Sequence[Holder]) -> str | None:
        """See `OnMachine.reason`. It drives ports that no console, terminal or program uses."""
        if one.console:
            return "the kernel writes its console to it"
        if one.terminal_of:
            return f"it is the terminal of {', '.join(one.terminal_of[:3])}"
        return super().reason(one, holders)

    def survey(self, found: Sequence[FoundPort], search: Search) -> Iterator[UartSpec]:
        """Yield a spec for each port that may be driven, and that no other entry of the profile uses."""
        paths = (getattr(spec, "path", None) for specs in search.specs.values() for spec in specs)
        listed = {realpath(path) for path in paths if path is not None}
        names = {spec.port for spec in search.of(PORTS)}
        for port in found:
            # A port without a device is a virtual machine's, of which many are unconnected: only if named.
            asked = search.asked(port.node) and (port.origin.above or not search.everything)
            if not asked or realpath(port.path) in listed:
                continue
            if port.node in names:
                why = "the profile gives its name to another port"
                search.leave(port.node, why, port.path, port.label, "list it, or rename that")
            elif not self.refused(port, search):
                yield UartSpec(port.node, "serial", port.path)

    def faults(self, at: str, spec: UartSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield a port that is missing, not permitted, a console or a terminal, or open in another program."""
        assert spec.path is not None
        return port_problems(f"{at}.path", spec.path, look)

    def seen(self, look: Inspection) -> Iterator[FoundPort]:
        """Yield the ports without the unconnected ones of a virtual machine, which are listed only if they are used."""
        for port in look.of(PORTS):
            if port.origin.above or port.console or port.terminal_of or look.holders.nodes.get(port.path):
                yield port

    def shown(self, one: FoundPort, look: Inspection) -> dict[str, Any]:
        """See `OnMachine.shown`."""
        return {"node": one.node, "path": one.path, "driver": one.label}

    def told(self, entry: Mapping[str, Any]) -> str:
        """See `OnMachine.told`."""
        return f"({entry['driver'] or 'serial port'}){in_use(entry)}"

    def nodes(self, specs: Sequence[UartSpec], sys: Path) -> Iterator[DeviceNode]:
        """Yield the nodes of the ports, and the pseudo-terminals of simulated ones."""
        for spec in specs:
            if spec.driver == "serial":
                yield DeviceNode(f"uart {spec.port}", real(spec.path))
        if any(spec.driver == "sim" for spec in specs):
            for name in ("ptmx", "pts"):
                yield DeviceNode("the simulated serial ports", Path("/dev", name), "fixed")
