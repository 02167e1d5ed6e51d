"""The channels of a chip in a board profile: their names by number, and the table that each of them may have.

It owns what the tables of all chips with numbered channels share; a chip's own module reads one channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Generic

from attrs import frozen

from hearth._util.toml import show
from hearth.drivers.kind import Resource
from hearth.drivers.signals import OFF, ChannelT, SignalLevel
from hearth.fields import ANY_NUMBER, FieldType
from hearth.tables import STRINGS, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MOST_CHANNELS: Final = 64


class LevelField(FieldType):
    """A number in the channel's unit, or "off"."""

    expected = 'a number in the unit of the channel, or "off"'
    example = "0"

    def read(self, raw: object) -> SignalLevel:
        """Return the value unchanged."""
        if raw == OFF:
            return OFF
        if not isinstance(raw, (int, float)) or isinstance(raw, bool):
            raise self.wrong(raw)
        return ANY_NUMBER.read(raw)


@frozen
class SignalChipSpec(Generic[ChannelT]):
    """A chip of a board's profile that has signals: its name in the profile, and the name of its driver."""

    kind: ClassVar[str]
    label: str
    driver: str
    channels: tuple[ChannelT, ...] = ()

    @property
    def bus(self) -> str:
        """Return the id of its bus."""
        return f"{self.kind}:{self.label}"

    def resources(self) -> Iterator[Resource]:
        """Yield the names of its channels, each of which only one chip of a board has."""
        for channel in self.channels:
            name = show(channel.name)
            yield Resource(("channel", channel.name), "channels", name, f"{name} is a channel of another chip already")


def _numbers(chip: Table) -> dict[str, int]:
    """Map the names of channels to their numbers."""
    names: Sequence[str] | None = chip.take("channels", STRINGS)
    numbers = {name: number for number, name in enumerate(names or ()) if name}
    if names is not None and (not numbers or len(names) > MOST_CHANNELS):
        chip.fault("channels", f'expected the names of up to {MOST_CHANNELS} channels, by number; "" leaves one out')
    for name in numbers:
        if list(names or ()).count(name) > 1:
            chip.fault("channels", f"{show(name)} is there twice")
    return numbers


def parse_channels(chip: Table, read: Callable[[int, str, Table], ChannelT]) -> tuple[ChannelT, ...]:
    """Read the channels of a chip with `read`: their names by number, and the table that each of them may have."""
    numbers = _numbers(chip)
    details = dict(chip.named("channel"))
    for name, entry in details.items():
        if numbers and name not in numbers:
            entry.fault("", "no such name under `channels`")
    found = []
    for name, number in {**numbers, **{name: 0 for name in details if name not in numbers}}.items():
        table = details.get(name) or Table({}, f"{chip.at('channel')}.{name}", chip.faults)
        channel = read(number, name, table)
        if name in numbers:
            found.append(channel)
    return tuple(found)
