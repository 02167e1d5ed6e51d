"""Declared decodings: how the raw bytes that a tool gave, in base64, become numbers.

A format is a few codes of Python's `struct` with a byte order. One number is a number, several are an array; of each:
((raw >> shift) & mask) * scale + offset. Nothing is guessed: too few bytes, or no number, is a DecodingError.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.config_kinds import Integer, Kind, Text
from hearth.errors import HearthError
from hearth.hcp.expressions import ExpressionError, Names, compile_expression
from hearth.hcp.schema_kinds import kinds_of
from hearth.hcp.units import UnitError, check_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.expressions import Expression
    from hearth.hcp.schema_kinds import Shape
    from hearth.hcp.tables import Table

_FORMAT: Final = re.compile(r"[<>]?(?:[bBhHiIlLqQefdx]){1,32}")
_WHOLE: Final = frozenset("bBhHiIlLqQ")
_WIDE: Final = frozenset("hHiIlLqQefd")
_LAST_BYTE: Final = 4096


class DecodingError(HearthError):
    """Bytes that are not what was declared."""


class Factor(Kind):
    """A finite number of any sign, of which JSON can hold multiples."""

    expected = "a number"

    def read(self, raw: object) -> float:
        """As written; truth values are none."""
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not math.isfinite(raw):
            raise self.wrong(raw)
        return raw


@frozen(kw_only=True)
class Decoding:
    """One declared decoding: from a member of a tool's result to a named number, or an array of them."""

    name: str
    source: Expression
    """Over the tool's result: where the base64 is."""
    format: str
    at: int = 0
    """Bytes before it."""
    shift: int = 0
    mask: int | None = None
    scale: float = 1
    offset: float = 0
    unit: str | None = None

    def decode(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The members that it adds to a tool's result. Raises DecodingError."""
        try:
            given = self.source.value(result)
        except ExpressionError as error:
            raise DecodingError(f"{self.name}: {error}") from None
        raw = self._bytes(given)
        layout = _struct(self.format)
        if len(raw) < self.at + layout.size:
            need = f"{layout.size} from {self.at} on" if self.at else f"{layout.size}"
            raise DecodingError(f"{self.name}: {self.source.text} has {len(raw)} bytes, {self.format!r} takes {need}")
        numbers = [self._number(one) for one in layout.unpack_from(raw, self.at)]
        value = {self.name: numbers if len(numbers) > 1 else numbers[0]}
        return value if self.unit is None else {**value, f"{self.name}_unit": self.unit}

    def shape(self) -> dict[str, Shape]:
        """The members that it adds, with what they are."""
        several = len(self.format.strip("<>").replace("x", "")) > 1
        number: Shape = {"type": "number"}
        value: Shape = {"type": "array", "items": number} if several else number
        return {self.name: value} if self.unit is None else {self.name: value, f"{self.name}_unit": {"type": "string"}}

    def _bytes(self, given: Any) -> bytes:
        if not isinstance(given, str):
            raise DecodingError(f"{self.name}: {self.source.text} is no string of base64")
        try:
            return base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError) as error:
            raise DecodingError(f"{self.name}: {self.source.text} is no base64: {error}") from None

    def _number(self, raw: float) -> float:
        if isinstance(raw, int):
            raw >>= self.shift
            if self.mask is not None:
                raw &= self.mask
        # A whole number stays one where nothing is done to it.
        value = raw if self.scale == 1 and not self.offset else raw * self.scale + self.offset
        if not math.isfinite(value):
            raise DecodingError(f"{self.name}: the bytes of {self.source.text} are no finite number by {self.format!r}")
        return value


def read_decoding(table: Table, name: str, result: Shape) -> Decoding | None:
    """A decoding from its table; None where the faults, which are on the table's list, leave none.

    `result` is the schema of the tool's results.
    """
    source = _source(table, result)
    form = _form(table)
    whole = form is not None and set(form.strip("<>x")) <= _WHOLE
    for key in ("shift", "mask"):
        if key in table.content and form is not None and not whole:
            table.fault(key, "bits are for whole numbers, and the format has others")
    found = {
        "at": table.take("at", Integer(0, _LAST_BYTE), 0),
        "shift": table.take("shift", Integer(0, 63), 0),
        "mask": table.take("mask", Integer(1), None),
        "scale": table.take("scale", Factor(), 1),
        "offset": table.take("offset", Factor(), 0),
        "unit": table.take("unit", Text("a unit", limit=64), None),
    }
    table.done()
    if found["unit"] is not None:
        try:
            check_unit(found["unit"])
        except UnitError as error:
            table.fault("unit", str(error))
    if source is None or form is None:
        return None
    return Decoding(name=name, source=source, format=form, **found)


def _source(table: Table, result: Shape) -> Expression | None:
    text = table.take("from", Text("the member of the result that has the bytes"))
    if text is None:
        return None
    properties = result.get("properties")
    names = Names(properties) if isinstance(properties, dict) else None
    try:
        source = compile_expression(text, names=names)
    except ExpressionError as error:
        table.fault("from", f"not in what the tool gives: {error}")
        return None
    kinds = kinds_of(source.shape)
    if kinds is not None and "string" not in kinds:
        table.fault("from", f"{text} is no base64 in what the tool gives; use it as it is in expressions")
        return None
    return source


def _form(table: Table) -> str | None:
    form: str | None = table.take("format", Text('codes of struct such as ">h"', limit=40))
    if form is None:
        return None
    codes = set(form.strip("<>x"))
    if not _FORMAT.fullmatch(form) or not codes:
        table.fault(
            "format", f"expected codes of struct (bBhHiIlLqQ, e f d, x to skip a byte) such as \">h\", got {form!r}"
        )
    elif codes & _WIDE and form[0] not in "<>":
        table.fault("format", f"say the byte order: \">{form}\" (first the high byte) or \"<{form}\"")
    else:
        return form
    return None


def _struct(form: str) -> struct.Struct:
    # Without an order it is of single bytes; "<" keeps struct from aligning.
    return struct.Struct(form if form[0] in "<>" else f"<{form}")
