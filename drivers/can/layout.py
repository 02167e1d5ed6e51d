"""The layout of a CAN message: the values that its signals have in a frame, and the frame of given values.

cantools decodes a message as a whole or not at all: a short frame, a multiplexer value that the file does not have, or
two signals that share bits lose all the others. Here each signal is taken from its own bits, as the file defines them:
`start` is the least significant bit of a little-endian signal, and the most significant one of a big-endian signal,
with bit 7 first in each byte. A multiplexer selects by its bits, unsigned and unscaled, as a DBC file writes them.

It owns what is known of a message and its signals while a bus is used, with copies of cantools' attributes, which it
computes each time that they are read. It knows no bus, and no limits of a profile.
"""

from __future__ import annotations

import struct
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from hearth._util.text import suggestions
from hearth.drivers.can.driver import FD_LENGTHS, Frame, key_of
from hearth.drivers.signals import SignalLimit
from hearth.drivers.units import same_unit
from hearth.errors import InvalidParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.drivers.registers import Valid

FLOATS: Final = {16: struct.Struct(">e"), 32: struct.Struct(">f"), 64: struct.Struct(">d")}
_J1939: Final = {0xFF: "not available", 0xFE: "error"}
"""The codes in the most significant byte of a J1939 signal of one, two or four bytes (SAE J1939-71, 5.1.4)."""
_J1939_BITS: Final = (8, 16, 32)
_MOST_BITS: Final = 64


def fits(signal: Any, length: int) -> bool:
    """Return True if a signal is within a message of so many bytes."""
    return bool(0 <= _place(signal) <= 8 * length - signal.length)


def reversed_bounds(signal: Any) -> bool:
    """Return True if the file gives the greater bound of a signal first: as it is written, no value would fit."""
    return None not in (signal.minimum, signal.maximum) and bool(signal.minimum > signal.maximum)


def _place(signal: Any) -> int:
    """Return the number of bits before a signal, in the order of its own bytes."""
    start: int = signal.start
    return start if signal.byte_order == "little_endian" else 8 * (start // 8) + 7 - start % 8


def wrong(pointer: str, reason: str, **more: Any) -> InvalidParams:
    """Return the error of a value or a name at a place in the args of can.send."""
    return InvalidParams(f"{pointer}: {reason}", data={"path": pointer, "reason": reason, **more})


@define(eq=False)
class Part:
    """A signal of a message."""

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
    bounds: SignalLimit
    """Those of the file."""
    raw_of: Callable[[float], float]
    codes: bool
    """If its bits may be a code of J1939."""
    selects: bool
    """True for a multiplexer."""
    note: str | None
    none: frozenset[int] = frozenset()
    """Bits that mean that there is no value, by the board profile."""
    valid: Valid | None = None
    """The least and the greatest value that is one, by the board profile."""

    @classmethod
    def of(cls, signal: Any, parent: str | None, *, j1939: bool) -> Part:
        """Return the part for a signal of cantools."""
        at, length, conversion = _place(signal), signal.length, signal.conversion
        scale, offset = conversion.scale, conversion.offset
        bounds = [None if one is None else float(one) for one in (signal.minimum, signal.maximum)]
        if reversed_bounds(signal):
            bounds.reverse()
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
            SignalLimit(*bounds),
            conversion.numeric_scaled_to_raw,
            j1939 and not signal.is_signed and length > 1,
            signal.is_multiplexer,
            signal.comment,
        )

    @property
    def choices(self) -> list[tuple[float, str]]:
        """Return its value table: each value in its unit, with its name. Several may have one name."""
        return [(raw * self.scale + self.offset, str(name)) for raw, name in self.names.items()]

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
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ValueError(f"{self.name} cannot be {value!r}: {error}") from error
        bits: int = raw & self.mask
        if self.number(bits) != raw:
            least, most = (self.value(end) for end in ((self.sign, self.sign - 1) if self.sign else (0, self.mask)))
            holds = f"its {self.end - self.at} bits hold {least:g} to {most:g}"
            raise ValueError(f"{self.name} cannot be {value!r}: {holds}")
        return bits

    def given(self, given: Any) -> Any:
        """Return the number of a caller's value, by the choices and the unit. Raises InvalidParams."""
        place = f"/signals/{self.name}"
        if isinstance(given, dict):
            unit = given.get("unit", self.unit)
            if not same_unit(unit or "", self.unit or ""):
                has = f"its unit is {self.unit!r}" if self.unit else "it has no unit"
                raise wrong(f"{place}/unit", f"{unit!r} is not the unit of {self.name}: {has}")
            given = given["value"]
        if not isinstance(given, str):
            return given
        choices = self.choices
        found = [value for value, name in choices if name == given]
        if len(found) == 1:
            return found[0]
        if found:
            numbers = " or ".join(f"{value:g}" for value in found)
            raise wrong(place, f"{self.name} has {len(found)} values with the name {given!r}; give {numbers}")
        names = dict.fromkeys(name for _, name in choices)
        cure, near = suggestions(given, names)
        listed = f"it has {', '.join(names)}" if choices else "it takes a number"
        raise wrong(place, f"{self.name} has no choice {given!r}{cure}; {listed}", **near)

    def absent(self, bits: int) -> str | None:
        """Return why bits are not a value ("not available", "error", "not a number", …); None for a value."""
        length = self.end - self.at
        if self.packed is not None and not isfinite(self.number(bits)):
            return "not a number"
        if length > _MOST_BITS:
            return f"{length} bits are not a number"
        if bits in self.none:
            return "no value"
        if self.codes and self.packed is None:
            # Of another length only all ones are a code.
            highest = bits >> length - 8 if length in _J1939_BITS else 0xFF if bits == self.mask else 0
            if (code := _J1939.get(highest)) is not None:
                return code
        if self.valid is not None and not self.valid[0] <= (value := self.value(bits)) <= self.valid[1]:
            return f"{value:g} is outside of {self.valid[0]:g} to {self.valid[1]:g}"
        return None

    def shown(self, bits: int) -> dict[str, Any]:
        """Return the value as JSON, with its unit, and with the name that its value table has for it."""
        absent = self.absent(bits)
        shown: dict[str, Any] = {"value": self.value(bits)} if absent is None else {"value": None, "none": absent}
        if isinstance(shown["value"], int) and shown["value"].bit_length() > _MOST_BITS:
            shown["value"] = float(shown["value"])  # JSON has no greater integers
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
    name: str = field(init=False)
    key: int = field(init=False)
    length: int = field(init=False)
    j1939: bool = field(init=False)
    parts: Mapping[str, Part] = field(init=False, repr=False)
    """Its signals by name, each behind its multiplexer."""
    _known: Mapping[str, frozenset[int]] = field(init=False, repr=False)
    """The values of each multiplexer that the file has."""

    def __attrs_post_init__(self) -> None:
        message = self.message
        self.name, self.length, self.j1939 = message.name, message.length, message.protocol == "j1939"
        self.key = key_of(message.frame_id, extended=message.is_extended_frame)
        self.parts = {one.name: one for one in self._ordered()}
        known: dict[str, set[int]] = {}
        for part in self.parts.values():
            if part.selects:
                known[part.name] = {raw & part.mask for raw in part.names}
            if part.parent is not None:
                known.setdefault(part.parent, set()).update(part.ids)
        self._known = {name: frozenset(ids) for name, ids in known.items() if ids}

    def _ordered(self) -> list[Part]:
        """Return the signals of the message, each behind its multiplexer."""
        signals = self.message.signals
        multiplexers = [one.name for one in signals if one.is_multiplexer]
        parents: dict[str, str | None] = {one.name: one.multiplexer_signal for one in signals}
        if len(multiplexers) == 1:
            # A long name (SystemSignalLongSymbol), whose short one cantools gives here.
            parents = {name: None if parent is None else multiplexers[0] for name, parent in parents.items()}
        parts: list[Part] = []
        placed: set[str | None] = {None}
        while found := [one for one in signals if one.name not in placed and parents[one.name] in placed]:
            parts += [Part.of(one, parents[one.name], j1939=self.j1939) for one in found]
            placed |= {one.name for one in found}
        return parts

    def bits(self, data: bytes) -> dict[str, int]:
        """Return the bits of each signal that a frame has, by name: those that are selected, and wholly there."""
        little, big, size = int.from_bytes(data, "little"), int.from_bytes(data, "big"), 8 * len(data)
        found: dict[str, int] = {}
        for part in self.parts.values():
            if part.end <= size and (part.parent is None or found.get(part.parent) in part.ids):
                found[part.name] = (little >> part.at if part.little else big >> size - part.end) & part.mask
        return found

    def values(self, data: bytes) -> dict[str, float]:
        """Return the numbers of the signals that a frame has, in their units."""
        return {name: self.parts[name].value(bits) for name, bits in self.bits(data).items()}

    def shown(self, data: bytes) -> dict[str, Any]:
        """Return the signals of a frame as JSON, with a note on those that it does not have."""
        bits = self.bits(data)
        signals = {name: self.parts[name].shown(one) for name, one in bits.items()}
        told = [f"the frame has {len(data)} of {self.length} bytes"] if len(data) < self.length else []
        unknown = [name for name, ids in self._known.items() if name in bits and bits[name] not in ids]
        told += [f"the file does not have {name} = {bits[name]}" for name in unknown]
        return {"signals": signals, **({"note": "; ".join(told)} if told else {})}

    def frame(self, values: Mapping[str, float]) -> Frame:
        """Return the frame with these values. Raises ValueError as `encode` does."""
        data = self.encode(values)
        return Frame(self.key, data, fd=bool(self.message.is_fd) or len(data) > FD_LENGTHS[8])

    def encode(self, values: Mapping[str, float]) -> bytes:
        """Return the bytes of a frame with these values. Raises ValueError, with the names, for any that do not fit."""
        if self.flaw is not None:
            raise ValueError(f"{self.flaw}; send its bytes with `id`")
        little = big = 0
        size, bits = 8 * self.length, dict[str, int]()
        for part in self.parts.values():
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
        return (int.from_bytes(little.to_bytes(self.length, "little"), "big") | big).to_bytes(self.length, "big")
