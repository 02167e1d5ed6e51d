"""The converters of a board profile: the table `[[dac]]` and its channels, each read with its faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from attrs import frozen

from hearth.drivers.base import Style
from hearth.drivers.channels import LevelField, SignalChipSpec, parse_channels
from hearth.drivers.dac.driver import DacChannelSpec
from hearth.fields import ANY_NUMBER, Choice, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.base import Driver
    from hearth.drivers.kind import Opening
    from hearth.tables import Table

_TEXT: Final = Text()
_DRIVER: Final = Choice("sim", "iio")


@frozen
class DacSpec(SignalChipSpec[DacChannelSpec]):
    """A converter, found by its lasting name: the middle part of what hw.sensor.list calls its outputs."""

    kind: ClassVar[str] = "dac"

    def make_driver(self, opening: Opening) -> Driver:
        """Return its driver, not opened; a simulated one is INLINE in virtual time."""
        if self.driver == "iio":
            from hearth.drivers.dac.linux import LinuxDac

            return LinuxDac(self.label, self.channels)
        from hearth.drivers.dac.sim import SimDac

        style = Style.THREAD if opening.style is Style.THREAD else Style.INLINE
        return SimDac(self.label, self.channels, style=style)


def resting_power(specs: Sequence[DacSpec], found: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the channels whose "off" does not hold the output at ground: key path, problem and cure.

    `found` has by device the path of one of its attributes. The kernel names the mode: "three_state", "1kohm_to_gnd".
    """
    for index, spec in enumerate(specs):
        for channel in spec.channels:
            if channel.safe != "off" or spec.driver == "sim" or spec.label not in found:
                continue
            try:
                mode = (Path(found[spec.label]).parent / f"{channel.output}_powerdown_mode").read_text("ascii").strip()
            except OSError:
                mode = "unknown"
            if not mode.endswith("_to_gnd"):
                told = f'its "off" leaves the output open (powerdown_mode {mode}): the load decides what it gets'
                cure = "give it a number as `safe`, or write a mode that ends in _to_gnd, if the kernel lists one, to"
                yield f"dac[{index}].channel.{channel.name}.safe", told, f"{cure} {channel.output}_powerdown_mode"


def parse_dac(table: Table) -> DacSpec:
    """Read one `[[dac]]`; only where the table is `ok` is every value of its type."""
    label, driver = table.take("label", _TEXT), table.take("driver", _DRIVER)
    channels = parse_channels(table, _channel)
    table.done()
    return DacSpec(label, driver, channels)


def _channel(number: int, name: str, table: Table) -> DacChannelSpec:
    low, high = table.take("min", ANY_NUMBER), table.take("max", ANY_NUMBER)
    safe = table.take("safe", LevelField())
    values: dict[str, Any] = table.given(DacChannelSpec)
    table.done()
    if not table.ok:
        return DacChannelSpec(number, name, 0, 0, 0)
    spec = DacChannelSpec(number, name, low, high, safe, **values)
    if low > high:
        table.fault("min", f"{low:g} is greater than max = {high:g}; exchange them")
    for key, level in (("safe", safe), ("start", spec.start)):
        if low <= high and level is not None and (fault := spec.fault_of(level)) is not None:
            table.fault(key, fault)
    if values.get("scale") == 0:
        table.fault("scale", "0 would make all counts one value; give the value of one step")
    for key in ("offset", "unit"):
        if key in values and "scale" not in values:
            table.fault(key, "it belongs to a `scale`, the value of one step in that unit; add one, or take it out")
    return spec
