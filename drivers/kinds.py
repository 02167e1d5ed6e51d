"""The kinds of hardware: hearth's own, in the order in which boards and tools list them, and those of other packages.

A kind of a package is an entry point of the group `hearth.kinds` that refers to a `BusKind`; its name is the kind's
name. It is loaded when a board profile has a table of that name: to install a package runs nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from hearth._util.foreign import usable
from hearth._util.python import package_of, vendor_entry_points
from hearth.drivers.can import KIND as CAN
from hearth.drivers.dac import KIND as DAC
from hearth.drivers.gpio import KIND as GPIO
from hearth.drivers.i2c import KIND as I2C
from hearth.drivers.iio import KIND as IIO
from hearth.drivers.kind import BusKind
from hearth.drivers.modbus import KIND as MODBUS
from hearth.drivers.pwm import KIND as PWM
from hearth.drivers.spi import KIND as SPI
from hearth.drivers.uart import KIND as UART
from hearth.errors import ConfigError
from hearth.tables import join
from hearth.tools import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ENTRY_POINTS: Final = "hearth.kinds"

OWN: Final = (GPIO, I2C, UART, PWM, DAC, CAN, SPI, MODBUS, IIO)
_TABLES: Final = frozenset(table for kind in OWN for table in kind.tables)
_OF_NO_KIND: Final = frozenset({"name", "description", "tools", "discover", "interlock", "halt"})
"""The other keys of a profile: for them alone no package is looked up, which takes a while."""


def kinds_of(tables: Iterable[str] = ()) -> tuple[BusKind, ...]:
    """Return hearth's own kinds, and those of packages that own one of these tables of a profile.

    Raises ConfigError for a package whose kind cannot be used.
    """
    others = sorted({*tables} - _TABLES - _OF_NO_KIND)
    points = vendor_entry_points(ENTRY_POINTS) if others else {}
    return (*OWN, *(_load(name) for name in others if name in points))


@cache
def _load(name: str) -> BusKind:
    point = vendor_entry_points(ENTRY_POINTS)[name]
    kind = usable(point.load, f"[[{name}]]: {package_of(point)} ({point.value})")
    if not isinstance(kind, BusKind) or kind.name != name:
        raise ConfigError(f"[[{name}]]: {package_of(point)} has no BusKind of this name at {point.value}")
    return kind


def packages() -> Iterable[str]:
    """Return the names of the kinds of other packages; loads none of them."""
    return vendor_entry_points(ENTRY_POINTS)


def words(asked: Iterable[str] = ()) -> frozenset[str]:
    """Return the words by which a policy names hardware: hearth's own and, if others are asked for, those of packages.

    It loads no package: a word of one is its kind's name.
    """
    own = frozenset([SIGNALS, *(kind.word for kind in OWN)])
    return own if own.issuperset(asked) else own | {*vendor_entry_points(ENTRY_POINTS)}


def entries_of(specs: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[BusKind, str, Any]]:
    """Yield the entries of all tables: the kind, the path of the entry in the profile, and its spec."""
    for kind in kinds_of(specs):
        for index, spec in enumerate(specs.get(kind.name, ())):
            yield kind, f"{kind.name}[{index}]", spec
        for table in kind.named:
            for spec in specs.get(table, ()):
                yield kind, join(table, spec.name), spec
