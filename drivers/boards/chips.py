"""A GPIO chip as a board profile describes it: its label, its lines, and what may be done with each.

Owns the shape of `[[gpio]]` and its checks; refuses to look at the machine, so that a profile for one machine can be
checked on another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from attrs import frozen

from hearth.drivers.gpio import Direction, Drive, Hold, Level, LineSpec, LineState, Pull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.boards.strict import Table

GPIO_DRIVERS = ("sim", "gpiod")

MAX_OFFSET = 1023
_INITIAL: tuple[Level | None, ...] = (0, 1, None)
MAX_DEBOUNCE_US = 1_000_000
"""A second: what bounces longer is no contact."""


@frozen
class ChipSpec:
    """A GPIO chip, found by its label, or by its device node where two chips have the same one.

    `aliases` are further names of its lines, `wires` are for the simulator. `blocking` says whether asking the chip
    may sleep (chips behind a bus do); None: the driver finds out.
    """

    label: str
    driver: str
    lines: tuple[LineSpec, ...]
    aliases: Mapping[str, int]
    wires: tuple[tuple[int, int], ...] = ()
    path: str | None = None
    blocking: bool | None = None


def parse_chip(table: Table) -> ChipSpec:
    """One `[[gpio]]`. Raises ConfigError with the key path."""
    label = table.text("label")
    driver = table.choice("driver", GPIO_DRIVERS)
    path = table.text("path", None)
    blocking = table.optional_flag("blocking")
    if driver == "sim" and path is not None:
        table.refuse("path", "a simulated chip has no device node")
    if driver == "sim" and blocking is not None:
        table.refuse("blocking", "a simulated chip never blocks")
    offsets = _offsets(table)
    details = dict(table.named("lines"))
    for name in details:
        if name not in offsets:
            table.refuse(f"lines.{name}", "no such name under `names`")
    lines = tuple(_line(offset, name, details.get(name)) for name, offset in offsets.items())
    aliases: dict[str, int] = {}
    for alias, name in table.mapping("alias").items():
        if alias in offsets:
            table.refuse(f"alias.{alias}", "a line has this name already")
        aliases[alias] = _offset(table, f"alias.{alias}", name, offsets)
    wires = tuple(
        (_offset(table, "wires", one, offsets), _offset(table, "wires", other, offsets))
        for one, other in table.pairs("wires")
    )
    if wires and driver != "sim":
        table.refuse("wires", 'only a simulated chip (driver = "sim") has wires')
    table.done()
    return ChipSpec(label, driver, lines, aliases, wires, path, blocking)


def _offsets(table: Table) -> dict[str, int]:
    """Line names to offsets, from `names`, where the index is the offset and "" leaves a line out."""
    names = table.texts("names")
    offsets: dict[str, int] = {}
    for offset, name in enumerate(names):
        if name in offsets:
            table.refuse("names", f"{name!r} is there twice")
        if name:
            offsets[name] = offset
    if not offsets or len(names) > MAX_OFFSET + 1:
        table.refuse("names", f'expected the names of up to {MAX_OFFSET + 1} lines, by offset; "" leaves one out')
    return offsets


def _offset(table: Table, key: str, name: str, offsets: Mapping[str, int]) -> int:
    if name not in offsets:
        table.refuse(key, f"no line is named {name!r}")
    return offsets[name]


def _line(offset: int, name: str, table: Table | None) -> LineSpec:
    if table is None:
        return LineSpec(offset, name)
    spec = LineSpec(
        offset,
        name,
        safe=cast("LineState", table.choice("safe", (0, 1, "input"), "input")),
        hold=cast("Hold", table.choice("hold", ("release", "keep"), "release")),
        direction=cast("Direction", table.choice("direction", ("any", "input", "output"), "any")),
        pull=cast("Pull", table.choice("pull", ("as-is", "none", "up", "down"), "as-is")),
        reserved=table.text("reserved", None),
        note=table.text("note", None),
        active_low=table.flag("active_low", False),
        drive=cast("Drive", table.choice("drive", ("push-pull", "open-drain", "open-source"), "push-pull")),
        debounce_us=table.integer("debounce_us", 0, MAX_DEBOUNCE_US, 0),
        initial=table.choice("initial", _INITIAL, None),
        functions=table.texts("functions", ()),
    )
    _check(table, spec)
    table.done()
    return spec


def _check(table: Table, spec: LineSpec) -> None:
    """Refuse what contradicts itself: it would surprise whoever wired the line."""
    if spec.direction == "input":
        never = 'a line with direction = "input" is never driven'
        if spec.safe != "input":
            table.refuse("safe", f"{never}, so it is safe as an input only")
        if spec.initial is not None:
            table.refuse("initial", f"{never}, so it has no initial level")
        if spec.drive != "push-pull":
            table.refuse("drive", f"{never}, so it has no drive")
    if spec.direction == "output" and spec.debounce_us:
        table.refuse("debounce_us", 'only an input bounces, and this line has direction = "output"')
    if spec.reserved is not None and spec.initial is not None:
        table.refuse("initial", "the line is reserved, and so nobody may drive it")
