"""One spelling for each thing that inputs name: 27, "GPIO27" and an alias of it are one line.

A schema says with `format` that a value names such a thing. The gate replaces it by the one spelling before an
envelope, an escalation or a plan compares it with another. What the value stands for, the board knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hearth.hcp.tables import join

if TYPE_CHECKING:
    from hearth.hcp.schema_kinds import Shape

LINE: Final = "gpio-line"
"""A GPIO line, by offset, name or alias: its name. A property `chip` beside it says of which chip."""
ADDRESS: Final = "i2c-address"
"""An I2C address, as an integer or in hexadecimal digits: the integer."""
FORMATS: Final = (LINE, ADDRESS)
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")

DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data: what looks like a keyword there is none."""

LineName: TypeAlias = Callable[[Any, Any], Any]
"""From a line and its chip (None for the first) to the line's name; what it does not know comes back as it is."""


def as_given(line: Any, _chip: Any) -> Any:
    """Where there is no board to ask."""
    return line


def respelled(schema: Shape | bool, value: Any, line_name: LineName, chip: Any = None) -> Any:
    """A copy of a valid value in which each thing that the schema marks has its one spelling."""
    if isinstance(schema, bool):
        return value
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        chip = value.get("chip")
        return {
            name: respelled(properties[name], inner, line_name, chip) if name in properties else inner
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [respelled(schema.get("items", {}), inner, line_name, chip) for inner in value]
    if schema.get("format") == LINE:
        return line_name(value, chip)
    if schema.get("format") == ADDRESS and isinstance(value, str) and _HEX.fullmatch(value):
        return int(value, 16)
    return value


def misplaced(schema: Any, path: str, *, reached: bool = True) -> Iterator[str]:
    """The paths of marks that would never be looked at: only `properties` and `items` lead to values."""
    if isinstance(schema, list):
        for number, inner in enumerate(schema):
            yield from misplaced(inner, f"{path}[{number}]", reached=False)
    if not isinstance(schema, Mapping):
        return
    if schema.get("format") in FORMATS and not reached:
        yield join(path, "format")
    for key, inner in schema.items():
        if key == "properties" and isinstance(inner, Mapping):
            for name, one in inner.items():
                yield from misplaced(one, join(join(path, key), name), reached=reached)
        elif key not in DATA:
            yield from misplaced(inner, join(path, key), reached=reached and key == "items")
