"""GPIO: chips with lines that are read, watched and driven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.kind import BusKind, Opening, late

if TYPE_CHECKING:
    from hearth.drivers.base import Driver
    from hearth.drivers.gpio.spec import ChipSpec


def _open(spec: ChipSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.driver == "gpiod":
        from hearth.drivers.gpio.linux import LinuxGpio

        return LinuxGpio(spec.label, spec.lines, path=spec.path, blocking=spec.blocking)
    from hearth.drivers.gpio.sim import SimGpio
    from hearth.drivers.lines import names_of
    from hearth.drivers.simulated import clock_for

    # A chip never waits: in virtual time it is INLINE.
    style = Style.THREAD if opening.style is Style.THREAD else Style.INLINE
    names = {name: offset for name, offset in names_of(spec, lambda _: True).items() if isinstance(name, str)}
    wiring: Any = {"wires": spec.wires, "contacts": spec.contacts, "panel": spec.panel}
    driver = SimGpio(spec.label, spec.lines, names=names, style=style, **wiring)
    if opening.style is Style.ASYNC:
        clock = clock_for(opening.style)
        driver.clock_ns = lambda: round(clock() * 1e9)
    return driver


KIND: Final = BusKind(
    name="gpio",
    key="label",
    scope="lines",
    discover="gpio",
    open=_open,
    outputs=late("gpio.outputs:GpioOutputs", 1),
    limits="a line: `limit` with `min_on_ms`, `max_on_ms`, `min_off_ms`, `max_rate_hz`",
    safe='a line: `safe` = 0, 1 or "input"; without it "input", and its `pull` decides',
)
