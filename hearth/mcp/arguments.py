"""The check of the arguments that an MCP client sends, by the flat schema of the tool (`hearth.mcp.schemas`).

`Arguments` checks the arguments of a call before they are submitted. It takes a number that came as a string, where
that has one meaning, and finds all faults of a call at once, each with its cure. If the cures are certain, it also
gives the corrected arguments. This module knows no tool, and runs nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import frozen

from hearth._util.text import nearest
from hearth.mcp.schemas import object_of
from hearth.schema import Validator, escaped, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


MOST_FAULTS: Final = 8
"""Faults of one call that are reported."""
_MOST_MEMBERS: Final = 256
"""Members of one array or object that are examined one by one."""
_MOST_TRY: Final = 2000
"""Characters of corrected arguments; longer ones are not suggested."""

_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,15}|[0-9]{1,18})\Z")
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?\Z")
_BOOLEANS = {"true": True, "false": False}
_LEVELS = {"high": 1, "on": 1, "true": 1, "yes": 1, "low": 0, "off": 0, "false": 0, "no": 0}


@frozen
class ArgumentFault:
    """One fault of a call's arguments."""

    path: str
    """JSON pointer of the place; "" for the whole."""
    reason: str
    """What is wrong, and what would be right, as a phrase without a full stop."""

    def __str__(self) -> str:
        return f"{self.path or 'arguments'}: {self.reason}"


@frozen
class Checked:
    """The outcome of a check."""

    arguments: Any
    """The arguments to submit, with numbers for numbers; if there are faults, as they were given."""
    faults: tuple[ArgumentFault, ...] = ()
    corrected: Any = None
    """With faults: arguments that would fit together with those of `lacking`, if the cures are certain; else None."""
    lacking: tuple[str, ...] = ()
    """The required arguments that `corrected` does not have."""

    @property
    def fitting(self) -> Any:
        """Arguments that fit: those given, or, with faults, the corrected ones; None if they are not certain."""
        return self.corrected if self.faults and not self.lacking else None if self.faults else self.arguments


class Arguments:
    """The check of one tool's arguments by its flat schema."""

    __slots__ = ("_validator", "schema")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._validator: Validator | None = None

    def accepts(self, arguments: Any) -> bool:
        """Return True if the arguments fit as they are."""
        if self._validator is None:
            self._validator = Validator(self.schema)
        return self._validator.accepts(arguments)

    def check(self, arguments: Any, at: str = "") -> Checked:
        """Return the arguments to submit, or all that is wrong with them. `at` is their place in the call."""
        if self.accepts(arguments):
            return Checked(arguments)
        taken = _taken(arguments, self.schema)
        if self.accepts(taken):
            return Checked(taken)
        faults = tuple(islice(_faults(taken, self.schema, at), MOST_FAULTS))
        if not faults:
            assert self._validator is not None
            where, reason = self._validator.explain(taken)
            faults = (ArgumentFault(f"{at}{where}", reason),)
        corrected = _corrected(taken, self.schema)
        lacking = tuple(name for name in self.schema.get("required", ()) if name not in corrected)
        others = [name for name in self.schema.get("required", ()) if name in corrected]
        certain = Validator({**self.schema, "required": others}).accepts(corrected) and corrected != arguments
        if not certain or len(orjson.dumps(corrected)) > _MOST_TRY:
            return Checked(arguments, faults)
        return Checked(arguments, faults, corrected, lacking)


def usage(schema: Mapping[str, Any]) -> str:
    """Return the names that a tool takes, as a sentence."""
    required = schema.get("required", ())
    names = [f"{name} (required)" if name in required else name for name in schema["properties"]]
    return f"It takes {', '.join(names)}." if names else "It takes no arguments."


def _fits(value: Any, schema: Any) -> bool:
    return Validator({"properties": {"it": schema}}).accepts({"it": value})


def _types(schema: Any) -> set[str]:
    """Return the types that a schema names, at its root or in its alternatives; empty if it names none."""
    if not isinstance(schema, dict):
        return set()
    kinds = schema.get("type", [])
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    for several in ("anyOf", "oneOf"):
        for branch in schema.get(several, ()):
            found |= _types(branch)
    return found


def _taken(value: Any, schema: Any) -> Any:
    """Return a value in the type that its schema wants, where it has one meaning there; else as it is.

    "17" is 17 and "true" is true where no string is wanted; true is 1 where only 0 and 1 are; a string of JSON is the
    array or object that it contains; an optional member that is null is left out.
    """
    if not isinstance(schema, dict) or _fits(value, schema):
        return value
    if isinstance(value, dict):
        properties, required = object_of(schema.get("properties")), schema.get("required", ())
        return {
            name: _taken(member, properties.get(name))
            for name, member in value.items()
            if not (member is None and name in properties and name not in required)
        }
    if isinstance(value, list):
        kind = schema.get("items")
        return value if len(value) > _MOST_MEMBERS else [_taken(item, kind) for item in value]
    return next((other for other in _readings(value, schema) if _fits(other, schema)), value)


def _readings(value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield other readings of a value of a wrong type."""
    # A flag is a level, and never a line, an address or a time: nothing else than 0 and 1 may fit.
    if isinstance(value, bool) and [_fits(number, schema) for number in (0, 1, 2)] == [True, True, False]:
        yield int(value)
    if not isinstance(value, str):
        return
    kinds = _types(schema)
    text = value.strip()
    # "48" may mean 0x48 to a tool that takes "0x48" too: a schema with a form of its own for strings decides itself.
    if "string" not in kinds:
        if _INTEGER.match(text):
            yield int(text, 16) if "x" in text.lower() else int(text)
        if _NUMBER.match(text):
            yield float(text)
        if text.lower() in _BOOLEANS:
            yield _BOOLEANS[text.lower()]
    yield from _several(text, kinds, schema)


def _several(text: str, kinds: set[str], schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the array or object that is given as text."""
    if kinds & {"array", "object"} and text[:1] in ("[", "{"):
        with suppress(orjson.JSONDecodeError):
            read = orjson.loads(text)
            yield read
            yield _taken(read, schema)
    elif "array" in kinds and "string" not in kinds and "," in text:
        yield _taken([part.strip() for part in text.split(",")], schema)


def _faults(value: Any, schema: Any, at: str) -> Iterator[ArgumentFault]:
    """Yield the faults of a value: those of its members, if it is an object or array as the schema wants."""
    if not isinstance(schema, dict) or _fits(value, schema):
        return
    inner: Iterator[ArgumentFault] = iter(())
    if isinstance(value, dict) and ("properties" in schema or schema.get("additionalProperties") is False):
        inner = _member_faults(value, schema, at)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        items = enumerate(islice(value, _MOST_MEMBERS))
        inner = chain.from_iterable(_faults(item, schema["items"], f"{at}/{index}") for index, item in items)
    first = next(inner, None)
    yield first or _leaf(value, schema, at)
    yield from inner


def _member_faults(value: Mapping[str, Any], schema: Mapping[str, Any], at: str) -> Iterator[ArgumentFault]:
    properties = object_of(schema.get("properties"))
    renamed = _renamed(value, schema)
    for name in _unknown(value, schema):
        yield ArgumentFault(f"{at}/{escaped(name)}", _unknown_name(name, renamed.get(name), properties))
    meant = set(renamed.values())
    for name in schema.get("required", ()):
        if name not in value and name not in meant:
            yield ArgumentFault(f"{at}/{escaped(name)}", f"is missing{_wanted(properties.get(name))}")
    for name, member in value.items():
        known = renamed.get(name) or name
        other, either = _as_other_bytes(known, member, properties), _bytes_or_digits(known, member, properties)
        if either is not None:
            yield ArgumentFault(f"{at}/{known}", f"this is not base64; did you mean {either}?")
        elif other is not None:
            yield ArgumentFault(f"{at}/{known}", f"this is not base64; did you mean {_json(other[0])}, or base64?")
        elif known in properties:
            yield from _faults(_taken(member, properties[known]), properties[known], f"{at}/{escaped(known)}")


def _as_other_bytes(name: str, value: Any, properties: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return the argument and value that take bytes which are not in base64; None if the tool has no such argument.

    Tools take bytes as `data` (base64), `text` or `hex`.
    """
    if name != "data" or not {"data", "text", "hex"} <= properties.keys() or _fits(value, properties[name]):
        return None
    value = _listed(value)
    if isinstance(value, list) and all(type(item) is int and 0 <= item <= _BYTE for item in value):
        return "hex", bytes(value).hex()
    if not isinstance(value, str) or len(value) > _MOST_TRY:
        return None
    digits = re.sub(r"0[xX]|[\s,:]", "", value)
    written_as_hex = _HEX.match(digits) and digits != value
    return ("hex", digits) if written_as_hex else ("text", value)


def _listed(value: Any) -> Any:
    """Return the list that is given as text, in JSON or as decimal numbers; any other value as it is."""
    if not isinstance(value, str) or len(value) > _MOST_TRY:
        return value
    if value.strip()[:1] == "[":
        return next(_several(value.strip(), {"array"}, {}), value)
    numbers = _decimals(value)
    return [*map(int, numbers)] if any(len(number) != 2 for number in numbers) else value


def _decimals(value: str) -> list[str]:
    """Return the numbers of a list that is given as text, if all are the decimal digits of a byte; else none."""
    numbers = re.split(r"[\s,:]+", value.strip())
    listed = len(numbers) > 1 and all(re.fullmatch("[0-9]{1,3}", one) and int(one) <= _BYTE for one in numbers)
    return numbers if listed else []


def _bytes_or_digits(name: str, value: Any, properties: Mapping[str, Any]) -> str | None:
    """Return, in words, both readings of pairs of digits: as decimal numbers, and as hexadecimal ones."""
    numbers = _decimals(value) if isinstance(value, str) and _as_other_bytes(name, value, properties) else []
    if not numbers or any(len(number) != 2 for number in numbers):
        return None
    decimal = bytes(map(int, numbers)).hex()
    return f'"hex": "{decimal}" (decimal numbers) or "hex": "{"".join(numbers)}" (hexadecimal ones)'


_BYTE: Final = 255
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})+\Z")


def _certain_bytes(name: str, value: Any, properties: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the argument and value that take these bytes; as they are, where two readings are left."""
    other = None if _bytes_or_digits(name, value, properties) else _as_other_bytes(name, value, properties)
    return other or (name, value)


def _leaf(value: Any, schema: Mapping[str, Any], at: str) -> ArgumentFault:
    # The name does not matter: only the place within the value is used.
    where, reason = Validator({"properties": {"it": schema}}).explain({"it": value})
    near = _both(value, schema) or _json(_meant(value, schema))
    cure = "" if near == "null" else f"; did you mean {near}?"
    return ArgumentFault(f"{at}{where.removeprefix('/it')}", f"{reason}{cure or _wanted(schema)}")


def _both(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return both readings of decimal digits, in words, where a schema takes a number and hexadecimal digits too.

    A CAN identifier or an I2C address is mostly written in hexadecimal digits, also without their "0x".
    """
    text = value.strip() if isinstance(value, str) else ""
    if not (text.isascii() and text.isdecimal() and "integer" in _types(schema) and _fits(f"0x{text}", schema)):
        return None
    number = int(text)
    fits = _fits(number, schema)
    decimal = f"{number} (decimal: 0x{number:x})" if fits else f"{number} (decimal: 0x{number:x}, which is refused)"
    return f'{decimal} or "0x{text}" (hexadecimal: {int(text, 16)})'


def _wanted(schema: Any) -> str:
    """Return what a schema says that it wants, as the end of a reason."""
    said = schema.get("description") if isinstance(schema, dict) else None
    return f"; expected: {shortened(said)}" if isinstance(said, str) else ""


def _unknown_name(name: str, near: str | None, properties: Mapping[str, Any]) -> str:
    shown = _json(name[:100])
    if near is not None:
        return f"there is no argument {shown}; did you mean {_json(near)}?"
    return f"there is no argument {shown}; leave it out" if properties else f"it takes no arguments; leave {shown} out"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _unknown(value: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """Return the first names of an object that its schema does not have."""
    if schema.get("additionalProperties", True) is not False:
        return []
    properties = object_of(schema.get("properties"))
    return list(islice((name for name in value if name not in properties), MOST_FAULTS))


def _meant(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return the value that was probably meant: the nearest choice, or another notation; None if there is none."""
    if not isinstance(value, str):
        return None
    choices = schema.get("enum", ())
    level = _LEVELS.get(value.strip().lower())
    if level is not None and level in choices:
        return level
    if len(value) <= 100 and (near := closest(value, [choice for choice in choices if isinstance(choice, str)])):
        return near
    text = value.strip()
    others: list[Any] = [text, f"0x{text}"]
    if text.isascii() and text.isdecimal():
        # A cure keeps the number; which of two numbers was meant only the caller knows.
        others = [] if _both(text, schema) else [text, int(text[:18])]
    return next((other for other in others if other != value and _fits(other, schema)), None)


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is a variant of: in another case or notation, a part, or misspelt."""
    names = list(known)
    plain = _plain(name)
    parts = [other for other in names if _is_part(plain, _plain(other))]
    return same(name, names) or next(iter([*parts, *nearest(name[:100].lower(), names)]), None)


def same(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is in another notation: "dryRun" is "dry_run"."""
    plain = _plain(name)
    return next((other for other in known if _plain(other) == plain), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _is_part(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= _SHORTEST_PART and (one.startswith(other) or other.startswith(one))


_SHORTEST_PART: Final = 3


def _renamed(value: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, str]:
    """Return unknown name -> the argument that was probably meant, none of them twice."""
    properties = object_of(schema.get("properties"))
    missing = [name for name in properties if name not in value]
    found: dict[str, str] = {}

    def take(name: str, near: str) -> None:
        found[name] = near
        missing.remove(near)

    unknown = _unknown(value, schema)
    for name in unknown:
        near = closest(name, missing)
        if near is not None:
            take(name, near)
    # The rest by elimination: a value that fits only one of the arguments that must be given.
    required = [name for name in schema.get("required", ()) if name in missing]
    progress = True
    while progress and required:
        progress = False
        for name in [name for name in unknown if name not in found]:
            fitting = [near for near in required if _could_be(value[name], properties[near])]
            if len(fitting) == 1:
                take(name, fitting[0])
                required.remove(fitting[0])
                progress = True
    return found


def _could_be(value: Any, schema: Any) -> bool:
    return _fits(_corrected(_taken(value, schema), schema), schema)


def _corrected(value: Any, schema: Any) -> Any:
    """Return the value with every certain cure applied: names that were meant, choices, and nothing unknown."""
    if not isinstance(schema, dict) or _fits(value, schema):
        return value
    properties = object_of(schema.get("properties"))
    if isinstance(value, dict) and "properties" in schema:
        renamed = _renamed(value, schema)
        left_out = {*_unknown(value, schema)} - renamed.keys()
        kept = ((renamed.get(name) or name, member) for name, member in value.items() if name not in left_out)
        meant = dict(_certain_bytes(name, member, properties) for name, member in kept)
        return _taken({name: _corrected(member, properties.get(name)) for name, member in meant.items()}, schema)
    if isinstance(value, list) and len(value) <= _MOST_MEMBERS:
        return [_corrected(item, schema.get("items")) for item in value]
    near = _meant(value, schema)
    return value if near is None else near
