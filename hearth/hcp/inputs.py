"""A job's inputs: defaults, cures for refused values, the author's functions over them, and one spelling for hardware.

The validator decides if inputs fit the schema; this module derives the cure from the schema of the place. An author's
function (of a limit, an escalation, a check) gets the inputs that its parameters name.

The board has one spelling for each line, I2C address and port: 27, "GPIO27" and an alias of it are one line. A schema
marks such a value with `format`; the annotations `Line`, `I2cAddress` and `Port` do so in Python. The safety gate
replaces the value by its one spelling before a check, an envelope, an escalation or a function compares it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Annotated, Any, Final, TypeAlias

from hearth._util.text import nearest
from hearth.annotations import wire_name
from hearth.errors import HearthError
from hearth.fields import whole
from hearth.schema import Validator, escaped
from hearth.tables import join

AT: Final = "/payload/inputs"
"""JSON pointer of the inputs in a task_submit."""
_SHOWN = 80
_NAMES_SHOWN = 12
_COMPARED = 12


class InputRefused(HearthError):
    """Inputs that fit the schema but are refused by a capability's own check."""

    def __init__(self, reason: str, *, cure: str, at: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.cure = cure
        self.at = at
        """The input, by its name; "" is all of them."""

    @property
    def place(self) -> str:
        """A JSON pointer into the message."""
        return pointer(self.at) if self.at else AT


def pointer(name: str) -> str:
    """The place of an input in a task_submit."""
    return f"{AT}/{escaped(wire_name(name))}"


def named(function: Callable[..., Any]) -> tuple[str, ...]:
    """The inputs that an author's function names as its parameters."""
    return tuple(inspect.signature(function).parameters)


def places(function: Callable[..., Any]) -> list[str]:
    """The same, as places in a task_submit; the place of all inputs, if it names none."""
    return [pointer(name) for name in named(function)] or [AT]


def ask(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """Return the value of an author's function of structured inputs; an absent input is None. Raises what it raises."""
    by_wire = {wire_name(name): value for name, value in inputs.items()}
    return function(**{name: by_wire.get(wire_name(name)) for name in named(function)})


def fill_defaults(schema: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs, with the defaults of absent properties at the top of the schema."""
    filled = dict(inputs)
    for name, inner in _properties(schema).items():
        if name not in filled and isinstance(inner, Mapping) and "default" in inner:
            filled[name] = deepcopy(inner["default"])
    return filled


def what_is_wrong(schema: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[str, str]:
    """Return a sentence that names the place of a fault in refused inputs, and the cure."""
    pointer_in, reason = Validator(schema).explain(inputs)
    place = AT
    value: Any = inputs
    wanted: Any = schema
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer_in.split("/")[1:]]
    for part in parts:
        place = f"{place}/{escaped(part)}"
        value = value[int(part)] if isinstance(value, Sequence) else value[part]
        wanted = _beneath(schema, wanted, part)
    return f"{place}: {reason}", _cure(place, value, wanted)


def _cure(place: str, value: Any, wanted: Any) -> str:
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        known = _properties(wanted)
        missing = [name for name in wanted.get("required", ()) if name not in value]
        unknown_members = _unknown_members(value, known) if wanted.get("additionalProperties") is False else []
        for name in missing or known:
            if near := nearest(name, [one[:_SHOWN] for one in unknown_members], 1):
                return f"Write {name!r} where {place} has {_short(near[0])}"
        cures = [f"Remove {_short(one)} from {place}" for one in unknown_members[:1]]
        cures += [f"Add {place}/{escaped(one)}: {describe(known.get(one))}" for one in missing[:1]]
        if cures:
            there = f"; there are {', '.join(list(known)[:_NAMES_SHOWN])}" if unknown_members and known else ""
            return ". ".join(cures) + there
    return f"Give {place} {describe(wanted)}"


def _unknown_members(value: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Return the first few unknown members: comparing names takes time, and a caller may send a million."""
    return list(islice((name for name in value if name not in known), _COMPARED))


def describe(schema: Any) -> str:
    """Return a schema's requirement in words: "an integer from 1 to 1000 (how many samples)"."""
    if not isinstance(schema, Mapping):
        return "a value that matches the capability's input_schema"
    about = schema.get("description")
    said = f" ({about})" if isinstance(about, str) and len(about) <= 2 * _SHOWN else ""
    if "const" in schema:
        return f"{_short(schema['const'])}{said}"
    if isinstance(choices := schema.get("enum"), Sequence):
        return f"one of {', '.join(_short(choice) for choice in choices[:_NAMES_SHOWN])}{said}"
    kind = schema.get("type")
    words = " or ".join(_WORDS.get(str(one), "a value") for one in (kind if isinstance(kind, list) else [kind]))
    return f"{words}{_bounds(schema)}{said}"


_WORDS: Final = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_LIMITS: Final = (
    ("minimum", "of at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "of at most {}"),
    ("exclusiveMaximum", "below {}"),
    ("multipleOf", "in multiples of {}"),
    ("pattern", "that fits the pattern {}"),
)
_SIZES: Final = (("minLength", "maxLength", "character"), ("minItems", "maxItems", "item"))


def _bounds(schema: Mapping[str, Any]) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f" from {_short(schema['minimum'])} to {_short(schema['maximum'])}"
    found = [text.format(_short(schema[keyword])) for keyword, text in _LIMITS if keyword in schema]
    found += [_size(schema.get(least), schema.get(most), what) for least, most, what in _SIZES]
    words = " and ".join(one for one in found if one)
    return f" {words}" if words else ""


def _size(least: Any, most: Any, what: str) -> str:
    if least is not None and most is not None:
        return f"of {least} to {most} {what}s"
    if least is None and most is None:
        return ""
    bound, number = ("at least", least) if most is None else ("at most", most)
    return f"of {bound} {number} {what}{'' if number == 1 else 's'}"


def _properties(schema: Any) -> Mapping[str, Any]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _beneath(root: Mapping[str, Any], schema: Any, part: str) -> Any:
    """Return the subschema of a member or an item, where it is stated directly; else None."""
    if not isinstance(schema, Mapping):
        return None
    inner = _properties(schema).get(part, schema.get("items") if part.isdecimal() else None)
    if isinstance(inner, Mapping) and isinstance(ref := inner.get("$ref"), str) and ref.startswith("#/$defs/"):
        definitions = root.get("$defs")
        return definitions.get(ref.removeprefix("#/$defs/")) if isinstance(definitions, Mapping) else None
    return inner


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


LINE: Final = "gpio-line"
"""A GPIO line, by offset, name or alias: its name. A property `chip` beside it says of which chip."""
ADDRESS: Final = "i2c-address"
"""An I2C address, as an integer or in hexadecimal digits: the integer."""
PORT: Final = "uart-port"
"""A serial port, by its name, its bus id or its device: its name."""
FORMATS: Final = (LINE, ADDRESS, PORT)
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")

DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data. A name in it that looks like a keyword is not one."""


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
"""From a line and its chip (None for the first) to the line's name; an unknown line is unchanged."""
PortName: TypeAlias = Callable[[Any], Any]
"""From a serial port, in any of its spellings, to its name; an unknown port is unchanged."""


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
    """Return a copy of a valid value in which each marked value has its one spelling."""
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
    kinds = schema.get("type", ())
    if "integer" in kinds and "number" not in kinds:
        value = whole(value)
    if schema.get("format") == LINE:
        return line_name(value, chip)
    if schema.get("format") == PORT:
        return port_name(value)
    if schema.get("format") == ADDRESS and isinstance(value, str) and _HEX.fullmatch(value):
        return int(value, 16)
    return value


def misplaced(schema: Any, path: str, *, reached: bool = True) -> Iterator[str]:
    """Yield the paths of marks that have no effect: only `properties` and `items` lead to values."""
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
