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
    from collections.abc import Mapping, Sequence

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
class Layout:
    """One message of a file. `flaw` is why its frame is not made from values: bits are missing, or are shared."""

    message: Any
    flaw: str | None = None
    _order: Sequence[tuple[Any, str | None, frozenset[int]]] = field(init=False, repr=False)
    """Each signal with its multiplexer and the values of it that it belongs to; a multiplexer is before its signals."""
    _known: Mapping[str, frozenset[int]] = field(init=False, repr=False)
    """The values of each multiplexer that the file has."""

    def __attrs_post_init__(self) -> None:
        signals = self.message.signals
        multiplexers = [one.name for one in signals if one.is_multiplexer]
        parents: dict[str, str | None] = {}
        for one in signals:
            parent = one.multiplexer_signal
            if parent is not None and parent not in multiplexers and len(multiplexers) == 1:
                parent = multiplexers[0]  # a long name (SystemSignalLongSymbol), whose short one cantools gives here
            parents[one.name] = parent
        order: list[tuple[Any, str | None, frozenset[int]]] = []
        placed: set[str | None] = {None}
        while found := [one for one in signals if one.name not in placed and parents[one.name] in placed]:
            order += [(one, parents[one.name], frozenset(one.multiplexer_ids or ())) for one in found]
            placed |= {one.name for one in found}
        self._order = order
        known = {
            one.name: {raw & (1 << one.length) - 1 for raw in one.choices or ()}
            for one in signals
            if one.is_multiplexer
        }
        for _, parent, ids in order:
            if parent is not None:
                known.setdefault(parent, set()).update(ids)
        self._known = {name: frozenset(ids) for name, ids in known.items() if ids}

    def bits(self, data: bytes) -> dict[str, int]:
        """Return the bits of each signal that a frame has, by name: those that are selected, and wholly there."""
        little, big, size = int.from_bytes(data, "little"), int.from_bytes(data, "big"), 8 * len(data)
        found: dict[str, int] = {}
        for signal, parent, ids in self._order:
            if parent is not None and found.get(parent) not in ids:
                continue
            at, length = _place(signal), signal.length
            if at + length <= size:
                whole = little >> at if signal.byte_order == "little_endian" else big >> size - at - length
                found[signal.name] = whole & (1 << length) - 1
        return found

    def values(self, bits: Mapping[str, int]) -> dict[str, float]:
        """Return the numbers of signals in their units."""
        return {
            name: signal.conversion.raw_to_scaled(_number(signal, bits[name]), False)
            for signal, _, _ in self._order
            if (name := signal.name) in bits
        }

    def missing(self, data: bytes, bits: Mapping[str, int]) -> str | None:
        """Return why a frame has not all signals of its message; None if it has."""
        told = [f"the frame has {len(data)} of {self.message.length} bytes"] if len(data) < self.message.length else []
        unknown = [name for name, ids in self._known.items() if name in bits and bits[name] not in ids]
        told += [f"the file does not have {name} = {bits[name]}" for name in unknown]
        return "; ".join(told) or None

    def encode(self, values: Mapping[str, float]) -> bytes:
        """Return the bytes of a frame with these values. Raises ValueError, with the names, for any that do not fit."""
        if self.flaw is not None:
            raise ValueError(f"{self.flaw}; send its bytes with `id`")
        little = big = 0
        size, bits = 8 * self.message.length, dict[str, int]()
        for signal, parent, ids in self._order:
            name = signal.name
            if parent is not None and bits.get(parent) not in ids:
                continue
            if name not in values:
                raise ValueError(f"{name} is missing")
            bits[name] = pattern = _pattern(signal, values[name])
            if pattern not in self._known.get(name, {pattern}):
                known = ", ".join(map(str, sorted(self._known[name])))
                raise ValueError(f"the file does not have {name} = {pattern}; it has {known}")
            at = _place(signal)
            if signal.byte_order == "little_endian":
                little |= pattern << at
            else:
                big |= pattern << size - at - signal.length
        if more := values.keys() - bits.keys():
            chosen = ", ".join(f"{name} = {bits[name]}" for name in self._known if name in bits)
            raise ValueError(f"{', '.join(sorted(more))}: not in a frame with {chosen}")
        length: int = self.message.length
        return (int.from_bytes(little.to_bytes(length, "little"), "big") | big).to_bytes(length, "big")

    def absent(self, signal: Any, bits: int) -> str | None:
        """Return the meaning of bits that are not a number: "not available", "error", "not a number"; else None."""
        length = signal.length
        if signal.conversion.is_float:
            return "not a number" if isnan(_number(signal, bits)) else None
        if self.message.protocol != "j1939" or signal.is_signed or length < 2:
            return None
        if length in _J1939_BITS:
            return _J1939.get(bits >> length - 8)
        return "not available" if bits == (1 << length) - 1 else None


def _number(signal: Any, bits: int) -> float:
    length = signal.length
    if signal.conversion.is_float:
        number: float = FLOATS[length].unpack(bits.to_bytes(length // 8, "big"))[0]
        return number
    return bits - (1 << length) if signal.is_signed and bits >> length - 1 else bits


def _pattern(signal: Any, value: float) -> int:
    """Return the bits of a value. Raises ValueError for a number that they cannot hold."""
    length, conversion = signal.length, signal.conversion
    try:
        raw = conversion.numeric_scaled_to_raw(value)
        if conversion.is_float:
            return int.from_bytes(FLOATS[length].pack(raw), "big")
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{signal.name} cannot be {value!r}: {error}") from error
    bits: int = raw & (1 << length) - 1
    if _number(signal, bits) != raw:
        ends = [conversion.raw_to_scaled(_number(signal, end), False) for end in _ends(signal)]
        raise ValueError(f"{signal.name} cannot be {value!r}: its {length} bits hold {ends[0]:g} to {ends[1]:g}")
    return bits


def _ends(signal: Any) -> tuple[int, int]:
    top = 1 << signal.length - 1
    return (top, top - 1) if signal.is_signed else (0, 2 * top - 1)


def choices_of(signal: Any) -> list[tuple[float, str]]:
    """Return the value table of a signal: each value in its unit, with its name. Several may have one name."""
    convert = signal.conversion.raw_to_scaled
    return [(convert(raw, False), str(name)) for raw, name in (signal.choices or {}).items()]


def name_of(signal: Any, bits: int) -> str | None:
    """Return the name that the value table has for the bits of a signal; a table may write -1 as 255."""
    choices = signal.choices or {}
    found = choices.get(_number(signal, bits), choices.get(bits))
    return None if found is None else str(found)
