"""One spelling for each thing that inputs name: 27, "GPIO27" and an alias of it are one line.

A schema says with `format` that a value names such a thing; the annotations `Line`, `I2cAddress` and `Port` say so in
Python. The gate replaces the value by its one spelling before a check, an envelope, an escalation or a function
compares it with another. The board knows the spellings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias

from hearth.hcp.faults import join

LINE: Final = "gpio-line"
"""A GPIO line, by offset, name or alias: its name. A property `chip` beside it says of which chip."""
ADDRESS: Final = "i2c-address"
"""An I2C address, as an integer or in hexadecimal digits: the integer."""
PORT: Final = "uart-port"
"""A serial port, by its name, its bus id or its device: its name."""
FORMATS: Final = (LINE, ADDRESS, PORT)
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")

DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data: what looks like a keyword there is none."""


class Keywords(dict[str, Any]):
    """Keywords of JSON Schema that can be part of a union: `Annotated[...] | None` needs a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


Line: TypeAlias = Annotated[int | str, Keywords(format=LINE, minimum=0, maximum=1023, minLength=1, maxLength=64)]
"""A GPIO line: an offset or a name from the caller, its one name in the function."""
I2cAddress: TypeAlias = Annotated[
    int,
    Keywords(type=["integer", "string"], format=ADDRESS, minimum=0x08, maximum=0x77, pattern="^0[xX][0-9a-fA-F]{1,4}$"),
]
"""A 7-bit I2C address: an integer or "0x48" from the caller, the integer in the function."""
Port: TypeAlias = Annotated[str, Keywords(format=PORT, minLength=1, maxLength=128)]
"""A serial port: its one name in the function."""

LineName: TypeAlias = Callable[[Any, Any], Any]
"""From a line and its chip (None for the first) to the line's name; a line that it does not know stays as it is."""
PortName: TypeAlias = Callable[[Any], Any]
"""From a serial port, however it is given, to its name; a port that it does not know stays as it is."""


def line_as_given(line: Any, _chip: Any) -> Any:
    """Stand in for a board's `line_name` where there is no board."""
    return line


def port_as_given(port: Any) -> Any:
    """Stand in for a board's `port_name` where there is no board."""
    return port


def respelled(
    schema: Mapping[str, Any] | bool,
    value: Any,
    line_name: LineName = line_as_given,
    port_name: PortName = port_as_given,
    chip: Any = None,
) -> Any:
    """A copy of a valid value in which each thing that the schema marks has its one spelling."""
    if isinstance(schema, bool):
        return value
    if isinstance(value, Mapping):
        properties = schema.get("properties", {})
        chip = value.get("chip")
        return {
            name: respelled(properties[name], inner, line_name, port_name, chip) if name in properties else inner
            for name, inner in value.items()
        }
    if isinstance(value, list):
        items = schema.get("items", {})
        return [respelled(items, inner, line_name, port_name, chip) for inner in value]
    if value is None:
        return value
    if schema.get("format") == LINE:
        return line_name(value, chip)
    if schema.get("format") == PORT:
        return port_name(value)
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
