"""The layout of a CAN message: the values that its signals have in a frame, and the frame of given values.

cantools decodes a message as a whole or not at all: a short frame, a multiplexer value that the file does not have, or
two signals that share bits lose all the others. Here each signal is taken from its own bits, as the file defines them:
`start` is the least significant bit of a little-endian signal, and the most significant one of a big-endian signal,
with bit 7 first in each byte. A multiplexer selects by its bits, unsigned and unscaled, as a DBC file writes them.

A layout knows no bounds and no bus.
"""

from __future__ import annotations

import struct
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FLOATS: Final = {16: struct.Struct(">e"), 32: struct.Struct(">f"), 64: struct.Struct(">d")}
_J1939: Final = {0xFF: "not available", 0xFE: "error"}
"""The codes in the most significant byte of a J1939 signal of one, two or four bytes (SAE J1939-71, 5.1.4)."""
_J1939_BITS: Final = (8, 16, 32)


def fits(signal: Any, length: int) -> bool:
    """Return True if a signal is within a message of so many bytes."""
    return bool(_place(signal) + signal.length <= 8 * length)


def _place(signal: Any) -> int:
    """Return the number of bits before a signal, in the order of its own bytes."""
    start: int = signal.start
    return start if signal.byte_order == "little_endian" else 8 * (start // 8) + 7 - start % 8


@define(eq=False)
class _Part:
    """A signal of a message, with copies of its attributes, which cantools computes each time that they are read."""

    name: str
    parent: str | None
    """Its multiplexer."""
    ids: frozenset[int]
    """The values of the multiplexer that it belongs to."""
    little: bool
    at: int
    end: int
    mask: int
    sign: int
    """Its bit of the sign; 0 for one without."""
    packed: struct.Struct | None
    """Of a float."""
    scale: float
    offset: float
    unit: str | None
    names: Mapping[Any, Any]
    raw_of: Callable[[float], float]
    codes: bool
    """If its bits may be a code of J1939."""

    @classmethod
    def of(cls, signal: Any, parent: str | None, *, j1939: bool) -> _Part:
        """Return the part for a signal of cantools."""
        at, length, conversion = _place(signal), signal.length, signal.conversion
        scale, offset = conversion.scale, conversion.offset
        if float(scale).is_integer() and float(offset).is_integer():
            scale, offset = int(scale), int(offset)
        return cls(
            signal.name,
            parent,
            frozenset(signal.multiplexer_ids or ()),
            signal.byte_order == "little_endian",
            at,
            at + length,
            (1 << length) - 1,
            1 << length - 1 if signal.is_signed and not conversion.is_float else 0,
            FLOATS[length] if conversion.is_float else None,
            scale,
            offset,
            signal.unit,
            signal.choices or {},
            conversion.numeric_scaled_to_raw,
            j1939 and not signal.is_signed and length > 1,
        )

    def number(self, bits: int) -> float:
        """Return the number that bits are, without its scale."""
        if self.packed is not None:
            number: float = self.packed.unpack(bits.to_bytes(self.packed.size, "big"))[0]
            return number
        return bits - self.mask - 1 if bits & self.sign else bits

    def value(self, bits: int) -> float:
        """Return the number that bits are, in the unit."""
        return self.number(bits) * self.scale + self.offset

    def pattern(self, value: float) -> int:
        """Return the bits of a value. Raises ValueError for a number that they cannot hold."""
        try:
            raw: Any = self.raw_of(value)
            if self.packed is not None:
                return int.from_bytes(self.packed.pack(raw), "big")
        except (OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{self.name} cannot be {value!r}: {error}") from error
        bits: int = raw & self.mask
        if self.number(bits) != raw:
            least, most = (self.value(end) for end in ((self.sign, self.sign - 1) if self.sign else (0, self.mask)))
            holds = f"its {self.end - self.at} bits hold {least:g} to {most:g}"
            raise ValueError(f"{self.name} cannot be {value!r}: {holds}")
        return bits

    def absent(self, bits: int) -> str | None:
        """Return the meaning of bits that are not a number: "not available", "error", "not a number"; else None."""
        if self.packed is not None:
            return "not a number" if isnan(self.number(bits)) else None
        length = self.end - self.at
        if length in _J1939_BITS:
            return _J1939.get(bits >> length - 8)
        return "not available" if bits == self.mask else None

    def shown(self, bits: int) -> dict[str, Any]:
        """Return the value as JSON, with its unit, and with the name that its value table has for it."""
        absent = self.absent(bits) if self.codes or self.packed is not None else None
        shown: dict[str, Any] = {"value": self.value(bits)} if absent is None else {"value": None, "none": absent}
        if self.unit:
            shown["unit"] = self.unit
        if self.names:
            name = self.names.get(self.number(bits), self.names.get(bits))  # a table may write -1 as 255
            if name is not None:
                shown["name"] = str(name)
        return shown


@define(eq=False)
class Layout:
    """One message of a file. `flaw` is why its frame is not made from values: bits are missing, or are shared."""

    message: Any
    flaw: str | None = None
    _parts: Sequence[_Part] = field(init=False, repr=False)
    """A multiplexer is before its signals."""
    _known: Mapping[str, frozenset[int]] = field(init=False, repr=False)
    """The values of each multiplexer that the file has."""

    def __attrs_post_init__(self) -> None:
        multiplexers = [one.name for one in self.message.signals if one.is_multiplexer]
        self._parts = self._ordered(multiplexers)
        known: dict[str, set[int]] = {}
        for part in self._parts:
            if part.name in multiplexers:
                known[part.name] = {raw & part.mask for raw in part.names}
            if part.parent is not None:
                known.setdefault(part.parent, set()).update(part.ids)
        self._known = {name: frozenset(ids) for name, ids in known.items() if ids}

    def _ordered(self, multiplexers: Sequence[str]) -> list[_Part]:
        """Return the signals of the message, each behind its multiplexer."""
        signals = self.message.signals
        parents: dict[str, str | None] = {one.name: one.multiplexer_signal for one in signals}
        if len(multiplexers) == 1:
            # A long name (SystemSignalLongSymbol), whose short one cantools gives here.
            parents = {name: None if parent is None else multiplexers[0] for name, parent in parents.items()}
        parts: list[_Part] = []
        placed: set[str | None] = {None}
        while found := [one for one in signals if one.name not in placed and parents[one.name] in placed]:
            j1939 = self.message.protocol == "j1939"
            parts += [_Part.of(one, parents[one.name], j1939=j1939) for one in found]
            placed |= {one.name for one in found}
        return parts

    def bits(self, data: bytes) -> dict[str, int]:
        """Return the bits of each signal that a frame has, by name: those that are selected, and wholly there."""
        little, big, size = int.from_bytes(data, "little"), int.from_bytes(data, "big"), 8 * len(data)
        found: dict[str, int] = {}
        for part in self._parts:
            if part.end <= size and (part.parent is None or found.get(part.parent) in part.ids):
                found[part.name] = (little >> part.at if part.little else big >> size - part.end) & part.mask
        return found

    def values(self, data: bytes) -> dict[str, float]:
        """Return the numbers of the signals that a frame has, in their units."""
        bits = self.bits(data)
        return {part.name: part.value(bits[part.name]) for part in self._parts if part.name in bits}

    def shown(self, data: bytes) -> dict[str, Any]:
        """Return the signals of a frame as JSON, with a note on those that it does not have."""
        bits = self.bits(data)
        signals = {part.name: part.shown(bits[part.name]) for part in self._parts if part.name in bits}
        told = [f"the frame has {len(data)} of {self.message.length} bytes"] if len(data) < self.message.length else []
        unknown = [name for name, ids in self._known.items() if name in bits and bits[name] not in ids]
        told += [f"the file does not have {name} = {bits[name]}" for name in unknown]
        return {"signals": signals, **({"note": "; ".join(told)} if told else {})}

    def encode(self, values: Mapping[str, float]) -> bytes:
        """Return the bytes of a frame with these values. Raises ValueError, with the names, for any that do not fit."""
        if self.flaw is not None:
            raise ValueError(f"{self.flaw}; send its bytes with `id`")
        little = big = 0
        size, bits = 8 * self.message.length, dict[str, int]()
        for part in self._parts:
            name = part.name
            if part.parent is not None and bits.get(part.parent) not in part.ids:
                continue
            if name not in values:
                raise ValueError(f"{name} is missing")
            bits[name] = pattern = part.pattern(values[name])
            if pattern not in self._known.get(name, {pattern}):
                known = ", ".join(map(str, sorted(self._known[name])))
                raise ValueError(f"the file does not have {name} = {pattern}; it has {known}")
            if part.little:
                little |= pattern << part.at
            else:
                big |= pattern << size - part.end
        if more := values.keys() - bits.keys():
            chosen = ", ".join(f"{name} = {bits[name]}" for name in self._known if name in bits)
            raise ValueError(f"{', '.join(sorted(more))}: not in a frame with {chosen}")
        length: int = self.message.length
        return (int.from_bytes(little.to_bytes(length, "little"), "big") | big).to_bytes(length, "big")


def choices_of(signal: Any) -> list[tuple[float, str]]:
    """Return the value table of a signal: each value in its unit, with its name. Several may have one name."""
    convert = signal.conversion.raw_to_scaled
    return [(convert(raw, False), str(name)) for raw, name in (signal.choices or {}).items()]
