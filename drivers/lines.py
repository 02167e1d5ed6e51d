"""The lines of a board by their names: which of them may be read, which may be driven, and why not the others.

Interlocks, the halt, standing orders and jobs name lines, so that this is known outside of the kind that drives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from attrs import Factory, field, frozen

from hearth._util.text import suggestions
from hearth.errors import InvalidParams, PermissionDenied
from hearth.tools import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class LineChip(Protocol):
    """A chip in a board's profile that has lines, each with an offset, a name, a direction, and perhaps `reserved`."""

    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def bus(self) -> str: ...  # noqa: D102
    @property
    def lines(self) -> Sequence[Any]: ...  # noqa: D102
    @property
    def aliases(self) -> Mapping[str, int]: ...  # noqa: D102


def names_of(chip: LineChip, wanted: Callable[[Any], bool]) -> dict[int | str, int]:
    """Map every spelling of the wanted lines of a chip to their offsets: offset, name, alias, the offset as text."""
    offsets = {line.offset: line.name for line in chip.lines if wanted(line)}
    names: dict[int | str, int] = {offset: offset for offset in offsets}
    names.update({name: offset for offset, name in offsets.items()})
    names.update({alias: offset for alias, offset in chip.aliases.items() if offset in offsets})
    # Programs and models often send every argument as a string.
    taken = {*chip.aliases, *(line.name for line in chip.lines)}
    names.update({str(offset): offset for offset in offsets if str(offset) not in taken})
    return names


@frozen(eq=False)
class Lines:
    """The lines of one board. `owned` has the outputs that hearth itself drives, by bus and offset, with the reason.

    `unknown` raises InvalidParams for a chip that the board does not have.
    """

    board: str
    chips: Mapping[str, LineChip]
    """The driven chips by label; the first is the default one."""
    owned: Mapping[tuple[str, int], str]
    unknown: Callable[[str, str, object, list[Any]], NoReturn]
    readable: Mapping[str, Mapping[int | str, int]] = field(
        init=False, repr=False, default=Factory(lambda lines: lines._readable(), takes_self=True)
    )
    """Chip label to (offset, name or alias) to offset, for every line that may be read.

    "17" is the line of offset 17, unless a line has the name or alias "17".
    """
    drivable: Mapping[str, Mapping[int | str, int]] = field(
        init=False, repr=False, default=Factory(lambda lines: lines._drivable(), takes_self=True)
    )
    """The same for the lines that may be driven."""

    def _readable(self) -> Mapping[str, Mapping[int | str, int]]:
        return {label: names_of(chip, lambda line: line.reserved is None) for label, chip in self.chips.items()}

    def _drivable(self) -> Mapping[str, Mapping[int | str, int]]:
        return {
            label: names_of(chip, lambda line, chip=chip: self._not_drivable(chip, line) is None)  # type: ignore[misc]
            for label, chip in self.chips.items()
        }

    def chip(self, label: str | None = None) -> LineChip:
        """Return a chip by its label, or the default chip. Raises InvalidParams."""
        found = next(iter(self.chips.values()), None) if label is None else self.chips.get(label)
        if found is None:
            self.unknown("gpio", "chip", label, list(self.chips))
        return found

    def find(self, label: str | None, given: int | str, *, drive: bool = False) -> int:
        """Return the offset of a line, by offset, name or alias.

        Raises InvalidParams for a line that the profile does not list, PermissionDenied for a reserved line and,
        with `drive`, for an input of the profile.
        """
        chip = self.chip(label)
        offset = (self.drivable if drive else self.readable)[chip.label].get(given)
        return offset if offset is not None else self._refuse(chip, given)

    def name(self, given: int | str, label: str | None = None) -> int | str:
        """Return the one spelling of a line: its name, for any of its spellings; an unknown line is unchanged."""
        chip = next(iter(self.chips.values()), None) if label is None else self.chips.get(label)
        if chip is None:
            return given
        known = _offset_of(chip, given) if isinstance(given, str) else given
        return next((line.name for line in chip.lines if known in (line.offset, line.name)), given)

    def use(self, label: str | None, offset: int) -> Use:
        """Return a line with its spellings: its name, its aliases, its offset on the default chip, "CHIP:17"."""
        chip = self.chip(label)
        names = [line.name for line in chip.lines if line.offset == offset]
        names += [alias for alias, known in chip.aliases.items() if known == offset]
        if chip is next(iter(self.chips.values())):
            names.append(str(offset))
        return Use("lines", (*names, *(f"{chip.label}:{name}" for name in {*names, str(offset)})))

    def _not_drivable(self, chip: LineChip, line: Any) -> str | None:
        """Return the reason why no session may drive a line, or None."""
        if (chip.bus, line.offset) in self.owned:
            return self.owned[chip.bus, line.offset]
        if line.reserved is None and line.direction == "input":
            return 'an input by the board\'s profile (direction = "input"): it is never driven'
        reserved: str | None = line.reserved
        return reserved

    def _refuse(self, chip: LineChip, given: int | str) -> NoReturn:
        offset = _offset_of(chip, str(given))
        for line in chip.lines:
            if given in (line.offset, line.name) or line.offset == offset:
                reason = self._not_drivable(chip, line) or "reserved"
                why = f"reserved: {reason}" if line.reserved else reason
                raise PermissionDenied(
                    f"gpio line {line.offset} ({line.name}) of chip {chip.label!r} is {why}",
                    data={"chip": chip.label, "line": line.offset, "reason": reason},
                )
        usable = [line.name for line in chip.lines if line.reserved is None]
        names = [name for name in self.readable[chip.label] if isinstance(name, str) and not name.isdecimal()]
        cure, near = suggestions(given, names)
        raise InvalidParams(
            f"chip {chip.label!r} of board {self.board!r} has no gpio line {given!r}{cure}"
            f"{' It' if cure else '; it'} has {', '.join(usable)}, also by offset",
            data={"chip": chip.label, "line": given, "known": usable, **near},
        )


def _offset_of(chip: LineChip, given: str) -> int | str:
    """Return the offset behind an alias, or behind a decimal number that is the name of no line; else `given`."""
    if given in chip.aliases:
        return chip.aliases[given]
    named = any(line.name == given for line in chip.lines)
    return given if named else next((line.offset for line in chip.lines if str(line.offset) == given), given)
