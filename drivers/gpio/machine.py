"""GPIO chips of the machine: found, judged, compared with a profile, and confined.

A chip's node is opened to read the kernel's description of its lines, which claims none of them. A wrong level on a pin
of the processor can cut the power, so the processor's own chips are left alone, except for the lines on a header.
"""

from __future__ import annotations

import errno
from collections import Counter
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, evolve, frozen

from hearth.drivers.gpio.spec import MAX_OFFSET, ChipSpec, LineSpec
from hearth.drivers.linux.machine import HEADERS, DeviceOrigin, FoundDevice, Machine, origin_of
from hearth.drivers.linux.survey import (
    Access,
    DeviceNode,
    OnMachine,
    ProfileProblem,
    lacking,
    missing,
    processes,
    real,
    some_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.linux.device_users import Holder, Holders
    from hearth.drivers.linux.survey import Inspection, Search, Severity

KERNEL: Final = "kernel"
"""The consumer of a line that the kernel holds without a reason given: its pin has another function, for example."""
OURS: Final = "hearth"
"""The consumer that hearth's own requests have: a daemon that runs is no obstacle to itself."""
ACCESS: Final = Access("gpio", "gpio", 'SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio", MODE="0660"')
_NO_NAMES = frozenset({"", "-", "NC"})
_GONE = frozenset({"ENOENT", "ENODEV", "ENXIO"})


@frozen
class FoundLine:
    """A line as the kernel reports it. `consumer` is its present user, None if it has none."""

    offset: int
    name: str | None
    consumer: str | None
    output: bool = False


@frozen
class FoundChip(FoundDevice):
    """A GPIO chip. Without `label` and `lines` it could not be opened, and `error` is the errno's name."""

    lines: tuple[FoundLine, ...] = ()
    error: str | None = None


def _chip(node: str, path: str, origin: DeviceOrigin) -> FoundChip:
    import gpiod

    try:
        with gpiod.Chip(path) as chip:
            info = chip.get_info()
            lines = []
            for offset in range(info.num_lines):
                line = chip.get_line_info(offset)
                consumer = (line.consumer or KERNEL) if line.used else None
                output = line.direction is gpiod.line.Direction.OUTPUT
                lines.append(FoundLine(offset, line.name or None, consumer, output))
            return FoundChip(node, path, origin, info.label or None, tuple(lines))
    except OSError as error:
        # No permission, or gone between being listed and being opened.
        return FoundChip(node, path, origin, error=errno.errorcode.get(error.errno or 0, "EIO"))


def _spec(chip: FoundChip, search: Search, *, unique: bool) -> ChipSpec:
    if (header := HEADERS.get(chip.label or "")) is not None:
        spec: ChipSpec = next(each for each in search.shipped(header)["gpio"] if each.label == chip.label)
        return evolve(spec, lines=tuple(_reserved(line, chip.lines) for line in spec.lines))
    if chip.label and unique:
        return ChipSpec(chip.label, "gpiod", _lines(chip.lines), {})
    # Its label is not unique, so it goes by its node, as long as that stays the same.
    return ChipSpec(chip.node, "gpiod", _lines(chip.lines), {}, path=chip.path)


def _usable(chip: FoundChip, search: Search) -> bool:
    """Return True if a chip could be opened and has lines; else list it as not driven."""
    if chip.error in _GONE:
        cure = "it is looked for once, at start: restart hearth when it is there again"
        search.leave(chip.node, "it went while it was looked at", chip.path, None, cure)
    elif chip.error is not None:
        why = f"{chip.path} cannot be opened ({chip.error})"
        search.leave(chip.node, why, chip.path, chip.label, "the kernel's log may say why")
    elif not chip.lines:
        search.leave(chip.node, "it has no lines", chip.path, chip.label, None)
    else:
        return True
    return False


def _lines(found: tuple[FoundLine, ...]) -> tuple[LineSpec, ...]:
    """Return the lines under the kernel's names; those without a name of their own get one from their offset."""
    names = Counter(line.name for line in found)
    lines = []
    for line in found[: MAX_OFFSET + 1]:
        name = line.name or ""
        if name in _NO_NAMES:
            name = f"line{line.offset}"
        if names[name] > (name == line.name):  # another line has this name too
            name = f"{name}@{line.offset}"
        lines.append(_reserved(LineSpec(line.offset, name), found))
    return tuple(lines)


def _reserved(spec: LineSpec, found: tuple[FoundLine, ...]) -> LineSpec:
    """Return the line, reserved if it is in use."""
    consumer = found[spec.offset].consumer if spec.offset < len(found) else None
    if consumer is None or spec.reserved is not None:
        return spec
    who = "the kernel" if consumer == KERNEL else f"{consumer!r}"
    return evolve(spec, reserved=f"in use by {who} since before hearth started")


def _not_there(key: str, wanted: str, chips: Sequence[FoundChip]) -> Iterator[ProfileProblem]:
    closed = [chip for chip in chips if chip.label is None]
    for chip in closed:
        yield from lacking(key, chip.path, ACCESS)
    there = [f"{chip.label!r} ({chip.node})" for chip in chips if chip.label is not None]
    cure = "is it plugged in, and its kernel module loaded? Else correct the profile"
    if closed:
        cure = "is it plugged in and its kernel module loaded? One of those that could not be opened may be it"
    yield missing(key, wanted, there or ["none that could be opened"], cure, "warn" if closed else "fail")


def _line_problems(at: str, spec: ChipSpec, chip: FoundChip, holders: Holders) -> Iterator[ProfileProblem]:
    correct = "correct `names`: the index of a name is the line's offset"
    for line in spec.lines if chip.error is None else ():
        place = f"{at}.lines.{line.name}"
        if line.offset >= len(chip.lines):
            what = f"the chip has the lines 0 to {len(chip.lines) - 1}, and no {line.offset}"
            yield ProfileProblem(place, "fail", what, correct)
            continue
        found = chip.lines[line.offset]
        if line.reserved is None and found.consumer not in (None, OURS):
            processes = ", ".join(map(str, holders.lines.get((chip.node, line.offset), ())))
            who = "the kernel" if found.consumer == KERNEL else repr(found.consumer)
            yield ProfileProblem(
                place,
                "fail",
                f"line {line.offset} is held by {who}{f', which is {processes}' if processes else ''}",
                "free it (a device tree overlay or a driver may hold it), or give the line a `reserved`",
            )
        elsewhere = [other.offset for other in chip.lines if other.name == line.name]
        if elsewhere and line.offset not in elsewhere:
            what = f"the kernel gives this name to line {elsewhere[0]}, the profile to line {line.offset}"
            yield ProfileProblem(place, "warn", what, correct)


_OUTPUTS: Final[tuple[tuple[str, Callable[[LineSpec], bool], str, str], ...]] = (
    (
        "safe",
        lambda line: line.safe == "input" and line.pull in ("as-is", "none"),
        "no safe level, since nothing that hearth knows of holds a released line",
        'give each output `safe` = 0 or 1, or safe = "input" with a `pull`; give the others direction = "input"',
    ),
    (
        "limit",
        lambda line: line.limit is None,
        "no limit, so that a client may drive it for as long and as often as it likes",
        "give each output a `limit`, such as { max_on_ms = 5000, max_rate_hz = 2 }",
    ),
    (
        "hold",
        lambda line: line.hold == "keep",
        "stays driven when its session or hearthd ends",
        'use hold = "release" unless the machine is safe at either level',
    ),
)
"""Findings about outputs: the key, the lines that it is about, the problem, and the cure."""


def _has_power_at_rest(line: LineSpec) -> bool:
    # A line that may be either is an output where the profile says how it is driven.
    is_output = line.direction == "output" or line.drive != "push-pull" or line.limit is not None
    return is_output and line.at_rest == 1 and line.safe != 1


def _outputs(chip: ChipSpec) -> list[LineSpec]:
    return [line for line in chip.lines if line.reserved is None and line.direction != "input"]


def _told_line(line: Mapping[str, Any]) -> str:
    name = f"{line['line']} ({line['name']})" if line["name"] else str(line["line"])
    by = f", {processes(line['by'])}" if line["by"] else ""
    return f"{name} by {line['consumer'] or 'the kernel'}{by}"


class GpioMachine(OnMachine):
    """GPIO chips as the machine has them."""

    kind, member, word = "gpio", "chips", "chip"
    access = ACCESS

    def find(self, machine: Machine) -> Iterator[FoundChip]:
        """Yield the GPIO chips that have a node, by number, with the kernel's description of their lines."""
        for entry, path in machine.nodes_of("bus/gpio/devices", "gpiochip*"):
            yield _chip(entry.name, path, origin_of(entry, machine))

    def reason(self, one: FoundChip, holders: Sequence[Holder]) -> str | None:
        """Return why generic-linux does not drive this GPIO chip, or None.

        It drives chips that are plugged in, expanders behind another bus, and simulated ones.
        """
        # A chip that may not be opened is unknown, and may be a header's: the permission comes first.
        if one.label is None or one.label in HEADERS or one.origin.apart:
            return None
        if one.origin.described_by is not None or one.origin.is_a_card:
            return (
                "its pins belong to the machine itself, whose storage, power and displays need them, and it is unknown "
                "which of them are free"
            )
        return None

    def survey(self, found: Sequence[FoundChip], search: Search) -> Iterator[ChipSpec]:
        """Yield a spec for each chip that may be driven."""
        listed = {name for chip in search.of("gpio") for name in (chip.label, chip.path)} - {None}
        labels = Counter(chip.label for chip in found if search.asked(chip.node, chip.label))
        for chip in self.offered(found, search, lambda chip: chip.label in listed or chip.path in listed):
            if _usable(chip, search):
                yield _spec(chip, search, unique=labels[chip.label] == 1)

    def reserve(self, specs: Sequence[ChipSpec], pins: Mapping[str, str]) -> Iterator[ChipSpec]:
        """Yield the chips with the lines reserved that have one of the functions that are in use.

        The kernel does not count a pin that has another function as a line in use, and driving it would take the
        function away.
        """

        def reserved(line: LineSpec) -> LineSpec:
            pin = next((word for words in line.functions for word in words.split() if word in pins), None)
            return line if pin is None or line.reserved is not None else evolve(line, reserved=pins[pin])

        for chip in specs:
            yield evolve(chip, lines=tuple(map(reserved, chip.lines)))

    def shown(self, one: FoundChip, look: Inspection) -> dict[str, Any]:
        """Return a chip with the users of its lines."""
        used = [
            {
                "line": line.offset,
                "name": line.name,
                "consumer": None if line.consumer == KERNEL else line.consumer,
                "by": [asdict(holder) for holder in look.holders.lines.get((one.node, line.offset), ())],
            }
            for line in one.lines
            if line.consumer is not None
        ]
        return {
            "node": one.node,
            "path": one.path,
            "label": one.label,
            "driver": one.origin.driver,
            "lines": len(one.lines) if one.error is None else None,
            "names": [line.name or "" for line in one.lines],
            "used": used,
            "error": one.error,
        }

    def told(self, entry: Mapping[str, Any]) -> str:
        """See `OnMachine.told`."""
        if entry["lines"] is None:
            return f"({entry['driver'] or 'GPIO chip'}), not opened: {entry['error']}"
        told = f'"{entry["label"]}" ({entry["driver"]}): {entry["lines"]} lines'
        used = [_told_line(line) for line in entry["used"]]
        return f"{told}, {len(used)} in use: {some_of(used)}" if used else f"{told}, none in use"

    def faults(self, at: str, spec: ChipSpec, look: Inspection) -> Iterator[ProfileProblem]:
        """Yield a chip that is missing, there twice or not permitted, and lines that are missing, held or renamed."""
        chips: tuple[FoundChip, ...] = look.of("gpio")
        if spec.path is not None:
            key, wanted = f"{at}.path", spec.path
            matching = [chip for chip in chips if chip.path == realpath(spec.path)]
        else:
            key, wanted = f"{at}.label", f"a chip labelled {spec.label!r}"
            matching = [chip for chip in chips if chip.label == spec.label]
        if len(matching) > 1:
            nodes = ", ".join(chip.path for chip in matching)
            told = f"{wanted} is there {len(matching)} times: {nodes}"
            yield ProfileProblem(key, "fail", told, "say which with `path`")
        elif matching:
            yield from lacking(key, matching[0].path, ACCESS)
            yield from _line_problems(at, spec, matching[0], look.holders)
        else:
            yield from _not_there(key, wanted, chips)

    def gaps(self, specs: Sequence[ChipSpec], found: Sequence[ChipSpec], look: Inspection) -> Iterator[ProfileProblem]:
        """Yield outputs without a safe level or a limit. Lines that share a finding are one problem."""
        for index, chip in enumerate((*specs, *found)):
            place = f"gpio[{index}]" if index < len(specs) else "discover.gpio"
            # On a simulated chip it is a "note": nothing moves.
            severity: Severity = "note" if chip.driver == "sim" else "warn"
            for key, concerns, problem, cure in _OUTPUTS:
                if names := [line.name for line in _outputs(chip) if concerns(line)]:
                    told = f"chip {chip.label}: {problem}: {some_of(names)}"
                    yield ProfileProblem(f"{place}.{key}", severity, told, cure)
        for index, chip in enumerate(specs):
            if names := [line.name for line in _outputs(chip) if _has_power_at_rest(line)]:
                told = "in the safe state nothing drives it, and its pull holds it at 1"
                cure = "turn its `pull` around, so that the line is 0 when it is released, or drive it with safe = 0"
                severity = "note" if chip.driver == "sim" else "warn"
                problem = f"chip {chip.label}: {told}: {', '.join(names)}"
                yield ProfileProblem(f"gpio[{index}].pull", severity, problem, cure)

    def drives(self, spec: ChipSpec) -> bool:
        """See `OnMachine.drives`."""
        return bool(_outputs(spec))

    def nodes(self, specs: Sequence[ChipSpec], sys: Path) -> Iterator[DeviceNode]:
        """Yield the nodes of real chips, and the panels of simulated ones.

        Chips are opened to read their labels, as the drivers do; no line is requested.
        """
        from hearth.drivers.gpio.linux_chips import survey as labelled

        for spec in specs:
            if (panel := real(spec.panel)) is not None:
                yield DeviceNode(f"the panel of gpio chip {spec.label}", panel, "fixed")
        chips = [spec for spec in specs if spec.driver == "gpiod"]
        paths = {chip.label: chip.path for chip in labelled().chips} if any(spec.path is None for spec in chips) else {}
        for spec in chips:
            yield DeviceNode(f"gpio chip {spec.label}", real(paths.get(spec.label) if spec.path is None else spec.path))
        if chips:
            yield DeviceNode("GPIO chips are found by their labels", Path("/dev"), "list")
