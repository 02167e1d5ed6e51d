"""DBC files: the messages of a CAN bus by name, their signals in units, and the rules for what is sent.

cantools reads the file (extra `can`); it is imported when a database is loaded, which the board does for a file that
its profile names, and the first use for the one that is shipped. `SendRules` of a bus are here:
every frame whose identifier the database knows is decoded and checked, so that raw bytes are no way around the bounds.
The bounds are those of the file ([min|max]) and, within them, those of the profile. The bus keeps the limits of steps,
which compare a value with the one that was sent before.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from attrs import define, field, frozen

from hearth._util.text import suggestions
from hearth.drivers.can.driver import EXTENDED, FD_LENGTHS, Frame, Scope, group_of, key_name
from hearth.drivers.can.files import Flaw, read_messages
from hearth.drivers.can.layout import Layout, Part, wrong
from hearth.drivers.can.transport import ANNOUNCING, CONTROL, Transport
from hearth.drivers.kind import Signal
from hearth.drivers.registers import Valid  # noqa: TC001  attrs reads the annotations
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError, InvalidParams, LimitViolated, PermissionDenied, RpcError
from hearth.fields import Integer, ListOf

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger("hearth.can")

_MOST_NAMED = 12
_SLACK = 1e-6
"""Of a signal's step: 4 steps of 0.3 are 1.2000000000000002, and no more than 1.2."""


def check_bounds(name: str, value: object, unit: str | None, *limits: SignalLimit, slack: float = 0.0) -> None:
    """Raise LimitViolated, with effect "none", for a number outside one of the limits; NaN is outside of all.

    `slack` is for the arithmetic of a scaled number, and less than the least step. Pure, and without knowledge of CAN.
    """
    if not isinstance(value, (int, float)):
        return
    least, most = _narrowest(limits)
    if not least - slack <= value <= most + slack:
        bounds = f"{least:g} to {most:g}{f' {unit}' if unit else ''}"
        data = {"signal": name, "value": value, "min": least, "max": most, "unit": unit, "effect": "none"}
        raise LimitViolated(
            f"signal {name} = {value:g} is outside of {bounds}",
            data={key: None if one in (inf, -inf) else one for key, one in data.items()},
        )


def _narrowest(limits: Iterable[SignalLimit]) -> tuple[float, float]:
    """Return the greatest `min` and the least `max`, infinite where there is none."""
    bounds = [(one.min, one.max) for one in limits]
    least = max((low for low, _ in bounds if low is not None), default=-inf)
    return least, min((high for _, high in bounds if high is not None), default=inf)


@frozen
class Codes:
    """What of a signal means that it has no value: its bits, and values outside of a range. A profile's keys."""

    none: Annotated[tuple[int, ...], ListOf(Integer(-(1 << 63), (1 << 64) - 1))] = ()
    valid: Valid | None = None


@define(eq=False)
class CanDatabase:
    """The messages of one bus. `limits` are the profile's, by "MESSAGE.SIGNAL"."""

    bus: str
    path: Path | None = None
    limits: Mapping[str, SignalLimit] = field(factory=dict)
    scope: Scope = "any"
    safe: Mapping[str, float] = field(factory=dict, kw_only=True)
    idle: Mapping[str, float] = field(factory=dict, kw_only=True)
    """By "MESSAGE.SIGNAL": the safe values, and those of the other signals of such a message."""
    codes: Mapping[str, Codes] = field(factory=dict, kw_only=True)
    """By "MESSAGE.SIGNAL"."""
    encoding: str | None = field(default=None, kw_only=True)
    fd: bool = field(default=True, kw_only=True)
    """If CAN FD frames may be sent."""
    flaws: Sequence[Flaw] = field(default=(), init=False)
    """The parts of the file that are not used as they are written."""
    _messages: dict[str, Layout] | None = field(default=None, init=False)
    _by_key: dict[int, list[Layout]] = field(factory=dict, init=False)
    """The messages of an identifier: more than one where the file gives it twice."""
    _by_group: dict[int, list[Layout]] = field(factory=dict, init=False)
    """The messages of a J1939 parameter group, whose identifiers have any priority, source and destination."""

    problem: str | None = field(default=None, init=False)
    """Why the shipped file could not be read: without it everything goes by identifier."""

    @property
    def loaded(self) -> bool:
        """True if the file was read, or if there is none."""
        return self._messages is not None

    def load(self) -> None:
        """Read the file, once. Raises ConfigError: no cantools, no such file, not a DBC file, an unknown signal."""
        if self._messages is not None:
            return
        messages: dict[str, Layout] = {}
        if self.path is not None:
            found = read_messages(self.path, self.bus, self.encoding)
            messages, self.flaws = {one.name: one for one in found.layouts}, found.flaws
        for name in (*self.limits, *self.safe, *self.idle, *self.codes):
            self._check_known(name, messages)
        for message in messages.values():
            self._by_key.setdefault(message.key, []).append(message)
            if message.j1939:
                self._by_group.setdefault(group_of(message.key), []).append(message)
        self._messages = messages
        for name, codes in self.codes.items():
            part = self.part(name)
            part.none, part.valid = frozenset(code & part.mask for code in codes.none), codes.valid
        for name in self.safe:
            self._check_whole(messages[name.partition(".")[0]])

    def _check_known(self, name: str, messages: Mapping[str, Layout]) -> None:
        """Refuse a name of the profile that the file does not have, with the reason. Raises ConfigError."""
        message, _, signal = name.partition(".")
        known = {*messages[message].parts} if message in messages else {*messages}
        if signal and (signal or message) in known:
            return
        cure, _ = suggestions(signal if message in messages else message, known)
        why = [f"; {one}" for one in self.flaws if one.message == message and one.signal in (None, signal)]
        told = "".join(why[:1]) or cure
        raise ConfigError(f"can {self.bus}: signals.{name!r}: {self.path} has no such signal{told}")

    def log_flaws(self) -> None:
        """Log the parts of the file that are not used as they are written."""
        name = None if self.path is None else self.path.name
        for flaw in self.flaws[:_MOST_NAMED]:
            log.warning("can %s: %s: %s", self.bus, name, flaw)
        if more := len(self.flaws[_MOST_NAMED:]):
            log.warning("can %s: %s: and %d more; hw.can.list has them", self.bus, name, more)

    def _check_whole(self, message: Layout) -> None:
        """Refuse a message whose frame could not be made from safe and idle values. Raises ConfigError."""
        if any(one.selects for one in message.parts.values()):
            raise ConfigError(f"can {self.bus}: message {message.name} is multiplexed: its signals have no safe values")
        if message.flaw is not None:
            raise ConfigError(f"can {self.bus}: message {message.name} cannot have a safe value: {message.flaw}")
        given = {**self.idle, **self.safe}
        missing = [name for name in message.parts if f"{message.name}.{name}" not in given]
        if missing:
            cure = ", ".join(f'[can.signals."{message.name}.{name}"] idle = …' for name in missing)
            what = f"message {message.name} has a safe value and no value for {', '.join(missing)}"
            raise ConfigError(f"can {self.bus}: {what}; give {cure}")

    def means(self, key: int) -> Sequence[Layout]:
        """Return the messages that an identifier means: several for one that is there twice; of J1939 by its group."""
        self._loaded()
        found = self._by_key.get(key, ())
        if self._by_group and key & EXTENDED:
            return [*found, *(one for one in self._by_group.get(group_of(key), ()) if one not in found)]
        return found

    def _loaded(self) -> dict[str, Layout]:
        self.try_load()
        assert self._messages is not None
        return self._messages

    def try_load(self) -> None:
        """Read the shipped file if cantools is installed; `problem` says why it could not be read."""
        try:
            self.load()
        except ConfigError as error:
            if self.limits or self.scope == "declared":
                raise
            self._messages, self.problem = {}, str(error)

    # --- names ------------------------------------------------------------------------------------------------------

    def message(self, name: str) -> Layout:
        """Return the message of that name. Raises InvalidParams with the nearest names."""
        messages = self._loaded()
        if name not in messages:
            cure, near = suggestions(name, messages)
            none = self.problem or "none: its board profile names no DBC file; give `id`"
            has = ", ".join([*messages][:_MOST_NAMED]) or none
            reason = f"bus {self.bus!r} has no message {name!r}{cure}{' It' if cure else '; it'} has {has}"
            raise InvalidParams(reason, data={"path": "/message", "message": name, **near})
        return messages[name]

    def key(self, name: str) -> int:
        """Return the key of a message. Raises InvalidParams."""
        return self.message(name).key

    def part(self, name: str) -> Part:
        """Return the signal of a full name, "MESSAGE.SIGNAL", which the file has."""
        message, _, signal = name.partition(".")
        return self.message(message).parts[signal]

    def name_of(self, key: int) -> str | None:
        """Return the name of the message with this key, or None."""
        self._loaded()
        return next((message.name for message in self.means(key)), None)

    def keys(self, pattern: str) -> list[int]:
        """Return the keys of the messages whose name fits a pattern ("ENGINE_*"). Raises InvalidParams if none does."""
        if not any(char in pattern for char in "*?["):
            return [self.key(pattern)]
        self._loaded()
        found = [key for key, ones in self._by_key.items() if any(fnmatchcase(one.name, pattern) for one in ones)]
        return found or [self.key(pattern)]

    def transport(self) -> Transport | None:
        """Return what puts together the J1939 messages of more bytes than a frame has; None for a file without any."""
        groups = {group for group, ones in self._by_group.items() if any(one.length > FD_LENGTHS[8] for one in ones)}
        return Transport(groups) if groups else None

    def fits(self, key: int, patterns: Iterable[str]) -> bool:
        """Return True if a key means a message whose name fits one of the patterns: of J1939 from any address."""
        return any(fnmatchcase(one.name, pattern) for one in self.means(key) for pattern in patterns)

    # --- values -----------------------------------------------------------------------------------------------------

    def frame(self, name: str, signals: Mapping[str, Any]) -> Frame:
        """Return the frame of a message with these values, in the signals' units.

        A value is a number, the name of a choice, or `{value, unit}`, whose unit must be the signal's. Raises
        InvalidParams (a signal that is unknown or missing, another unit) and LimitViolated.
        """
        message = self.message(name)
        if message.j1939 and message.length > FD_LENGTHS[8]:
            reason = f"message {name} has {message.length} bytes, which J1939 sends in several frames; hearth sends one"
            raise wrong("/message", reason)
        values: dict[str, Any] = {}
        for signal, given in signals.items():
            if signal not in message.parts:
                cure, near = suggestions(signal, message.parts)
                reason = f"message {name} has no signal {signal!r}{cure}; it has {', '.join(message.parts)}"
                raise wrong(f"/signals/{signal}", reason, **near)
            values[signal] = message.parts[signal].given(given)
        self._check(message, values)
        try:
            return message.frame(values)
        except ValueError as error:
            raise wrong("/signals", f"message {name}: {error}") from error

    def decode(self, frame: Frame) -> dict[str, Any]:
        """Return the `message` of a frame with its `signals`, each `{value, unit?, name?}`; {} if it is in no file.

        A value is None where the bits are not a number; `none` says what they are. `note` says why signals are missing:
        the frame is short, or the file does not have the value of a multiplexer.
        """
        self._loaded()
        message = next(iter(self.means(frame.key)), None)
        if message is None or frame.remote or frame.error:
            return {}
        return {"message": message.name, **message.shown(frame.data)}

    # --- what may be sent -------------------------------------------------------------------------------------------

    def check(self, frame: Frame) -> None:
        """See `SendRules.check`."""
        messages = self.means(frame.key)
        if frame.fd and not self.fd:
            raise self._denied(
                "it sends classic frames only, of up to 8 bytes; `fd = true` in its [[can]] of the board profile "
                "allows CAN FD, for which its interface must be set up too"
            )
        if frame.remote and frame.data:
            data = {"bus": self.bus, "effect": "none"}
            raise LimitViolated(f"can {self.bus}: a remote frame asks for data, and has none itself", data=data)
        if not messages:
            self._check_declared(frame.key)
            self._check_announced(frame)
        for message in messages if not frame.remote else ():
            if len(frame.data) < message.length:
                what = f"{len(frame.data)} bytes are not {message.name}, which has {message.length}"
                data = {"bus": self.bus, "effect": "none"}
                raise LimitViolated(f"can {self.bus}: {what}; send it by name", data=data)
            self._check(message, message.values(frame.data))

    def _check_announced(self, frame: Frame) -> None:
        """Refuse a J1939 frame that announces a message of the file in several frames: they would pass unchecked."""
        if group_of(frame.key) != CONTROL or not frame.data or frame.data[0] not in ANNOUNCING:
            return
        for message in self._by_group.get(int.from_bytes(frame.data[5:8], "little"), ()):
            raise self._denied(f"the frame announces the message {message.name} in parts; send it with can.send, whole")

    def check_isotp(self, key: int) -> None:
        """See `SendRules.check_isotp`: the frames of such a message would pass unchecked."""
        for message in self.means(key):
            raise self._denied(f"{key_name(key)} is the message {message.name}; send it with can.send")
        self._check_declared(key)

    def _check_declared(self, key: int) -> None:
        if self.scope == "declared":
            raise self._denied(
                f'{key_name(key)} is no message of its DBC file, and the board profile says scope = "declared"'
            )

    def _denied(self, reason: str) -> PermissionDenied:
        text = f"can {self.bus}: {reason}"
        return PermissionDenied(text, data={"bus": self.bus, "reason": reason, "effect": "none"})

    def _check(self, message: Layout, values: Mapping[str, Any]) -> None:
        for part in message.parts.values():
            if part.name in values:
                name = f"{message.name}.{part.name}"
                limits = (part.bounds, self.limits.get(name, SignalLimit()))
                check_bounds(name, values[part.name], part.unit, *limits, slack=abs(part.scale) * _SLACK)

    # --- signals ----------------------------------------------------------------------------------------------------
    #
    # `check` compares a frame with no other one. The bus compares the values of a signal with those sent before, and
    # brings it to its safe value (`hearth.drivers.can.outputs`); here is what that needs.

    def signals(self) -> dict[Hashable, Signal]:
        """Return the signals of which the profile says something that is for the bus, by "MESSAGE.SIGNAL"."""
        names = [name for name, limit in self.limits.items() if limit.stepped]
        return {name: self._signal(name) for name in dict.fromkeys((*names, *self.safe))}

    def _signal(self, name: str) -> Signal:
        limit = self.limits.get(name, SignalLimit())
        return Signal(
            name,
            name,
            f"can {self.bus}, signal {name}",
            place={"bus": f"can:{self.bus}", "signal": name},
            report={"signal": name},
            unit=self.part(name).unit or "",
            access="w",
            safe=self.safe.get(name),
            step=inf if limit.max_step is None else limit.max_step,
            slew=inf if limit.slew_per_s is None else limit.slew_per_s,
            bounds=limit.to_json(),
            number=partial(self._number, name),
            is_none=partial(self._is_none, name),
        )

    def _is_none(self, name: str, value: float) -> bool:
        part = self.part(name)
        return part.absent(part.pattern(value)) is not None

    def _number(self, name: str, given: Any) -> float:
        """Return the value of a signal that has a safe one. Raises ValueError for one that no frame may have."""
        message, _, signal = name.partition(".")
        others = {one: value for one, value in {**self.idle, **self.safe}.items() if one.startswith(f"{message}.")}
        try:
            self.frame(message, {**{one.partition(".")[2]: value for one, value in others.items()}, signal: given})
            value: float = self.part(name).given(given)
        except RpcError as error:
            raise ValueError((error.data or {}).get("reason", error.message)) from None
        return value

    def values_of(self, frame: Frame) -> dict[str, float]:
        """Return the values of a frame's signals by "MESSAGE.SIGNAL", none if its message is not in the file."""
        values: dict[str, float] = {}
        for message in self.means(frame.key) if not frame.remote else ():
            values |= {f"{message.name}.{signal}": value for signal, value in message.values(frame.data).items()}
        return values

    def whole(self, name: str, values: Mapping[str, float]) -> Frame:
        """Return the frame of a message with a safe value: with these values, and `idle` ones for the others."""
        message = self.message(name)
        known = {one: f"{name}.{one}" for one in message.parts}
        given = {signal: values.get(full, self.idle.get(full, self.safe.get(full))) for signal, full in known.items()}
        return message.frame({signal: value for signal, value in given.items() if value is not None})

    # --- for hw.can.list --------------------------------------------------------------------------------------------

    def to_json(self) -> list[dict[str, Any]]:
        """Return the messages with their signals."""
        return [self._message_json(one) for one in self._loaded().values()]

    def _message_json(self, layout: Layout) -> dict[str, Any]:
        message = layout.message
        entry = {
            "message": layout.name,
            "id": message.frame_id,
            "hex": key_name(layout.key),
            "extended": message.is_extended_frame or None,
            "length": layout.length,
            "cycle_ms": message.cycle_time,
            "senders": list(message.senders) or None,
            "note": message.comment,
            "signals": [self._signal_json(layout.name, one) for one in layout.parts.values()],
        }
        return {name: value for name, value in entry.items() if value is not None}

    def _signal_json(self, message: str, part: Part) -> dict[str, Any]:
        of_profile = self.limits.get(f"{message}.{part.name}", SignalLimit())
        least, most = _narrowest((part.bounds, of_profile))
        entry = {
            "signal": part.name,
            "unit": part.unit,
            "min": None if least == -inf else least,
            "max": None if most == inf else most,
            "max_step": of_profile.max_step,
            "slew_per_s": of_profile.slew_per_s,
            "none": sorted(part.none) or None,
            "valid": None if part.valid is None else list(part.valid),
            "choices": [{"value": value, "name": name} for value, name in part.choices] or None,
            "multiplexer": part.selects or None,
            "multiplexed_by": sorted(part.ids) or None,
            "note": part.note,
        }
        return {name: value for name, value in entry.items() if value is not None}
