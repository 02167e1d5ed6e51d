"""The signals of a board by their names, each with the steps of its kind that read it and set it.

What a board profile names is a signal: a line, a channel, a register, a signal of a CAN message, a sensor. Its full
name is the id of its bus and its name there ("gpio:sim:PUMP", "modbus:plant:FAN.speed") and always works; its name
alone works where no other signal of the board has it.

A signal has no operations of its own. To read or set one means a step of a tool of its kind, and it is that step which
a policy permits, a person approves and the log records (`hearth.tools.Resolved`). A kind says which step that is
(`BusKind.signals`); this module knows no kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from attrs import Factory, field, frozen

from hearth._util.text import nearest
from hearth.drivers.kind import ANY
from hearth.errors import InvalidParams, RpcError
from hearth.tools import NOT_ASKED, SIGNALS, OutputState, Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hearth.api import Step
    from hearth.drivers.kind import Outputs, Signal
    from hearth.tools import Args, Drive, KnownOutputs, Reached, Tool


@frozen(eq=False, kw_only=True)
class NamedSignal:
    """A signal of the board. A kind has a subclass, which says by which steps it is read and set.

    `signal` is what the guard of its bus knows of it; None: nothing, such as of a sensor. `access` is "r", "w", "rw",
    or "" for one that is reserved: `read` and `write` are asked only where it has the letter. `use` is the hardware
    that a policy must permit for it to be listed; left out, its name.
    """

    sets: ClassVar[tuple[str, ...]] = ()
    """The tools of which `write` and `pulse` return steps; none means KIND.set."""
    missing: ClassVar[str] = "the device gives no value now"
    """What `why` returns, unless the result says more."""

    bus: str
    name: str
    unit: str = ""
    aliases: tuple[str, ...] = ()
    signal: Signal | None = None
    access: str = "r"
    use: Use = Factory(lambda self: Use(self.kind, (self.name,)), takes_self=True)

    @property
    def kind(self) -> str:
        """Return the name of its kind."""
        return self.bus.partition(":")[0]

    @property
    def set_by(self) -> tuple[str, ...]:
        """Return the tools that set it."""
        return self.sets or (f"{self.kind}.set",)

    @property
    def full(self) -> str:
        """Return its full name."""
        return f"{self.bus}:{self.name}"

    @property
    def named_use(self) -> Use:
        """Return it as what the `signals` of a policy permit."""
        return Use(SIGNALS, (self.name, self.full, *self.aliases))

    def read(self) -> Step:
        """Return the step that reads it."""
        raise NotImplementedError

    def write(self, value: Any) -> Step:
        """Return the step that brings it to a value in its unit. Raises InvalidParams for one that it cannot have."""
        raise NotImplementedError

    def value(self, result: Mapping[str, Any], args: Args) -> Any:
        """Return the value in the result of `read` or `write`, whose args those are; None: it has none."""
        del args
        return result["value"]

    def why(self, result: Mapping[str, Any]) -> str:
        """Return why the result of `read` has no value, where it has none."""
        del result
        return self.missing

    def measured_at(self, result: Mapping[str, Any]) -> float | None:
        """Return when the value in the result of `read` was measured, in seconds since 1970, where the device tells."""
        del result
        return None

    def pulse(self, value: Any, duration_ms: int) -> Step | None:
        """Return the step that brings it to a value for a while, and then back; None: its kind has none."""
        del value, duration_ms
        return None

    def edges(self, count: int, timeout_ms: int) -> Step | None:
        """Return the step that waits for its changes; None: it is read again and again.

        The result has in `edges` each change, with its `value` and its `timestamp_ns` (CLOCK_MONOTONIC).
        """
        del count, timeout_ms
        return None


@frozen(eq=False)
class BoardSignals:
    """The signals of one board. It raises InvalidParams for a name that means none of them, or several."""

    board: str
    everything: tuple[NamedSignal, ...]
    outputs: Mapping[str, Outputs] = field(factory=dict)
    """By bus: which outputs its calls drive."""
    _named: Mapping[str, list[NamedSignal]] = field(init=False, repr=False)
    _reached: Mapping[Reached, list[NamedSignal]] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        named: dict[str, list[NamedSignal]] = {}
        for one in self.everything:
            for name in dict.fromkeys((one.name, *one.aliases)):
                for key in (name, f"{one.bus}:{name}"):
                    named.setdefault(key, []).append(one)
        object.__setattr__(self, "_named", named)
        reached: dict[Reached, list[NamedSignal]] = {}
        for one in self.everything:
            for place in {one.name, one.name if one.signal is None else one.signal.output}:
                reached.setdefault((one.bus, place), []).append(one)
        object.__setattr__(self, "_reached", reached)

    def __iter__(self) -> Iterator[NamedSignal]:
        return iter(self.everything)

    def find(self, name: str) -> NamedSignal:
        """Return a signal by its full name or, where it is the only one, by its name."""
        found = self._named.get(name, ())
        return found[0] if len(found) == 1 else self._refuse(name, found)

    def called(self, signal: NamedSignal) -> str:
        """Return the shortest name that means this signal."""
        names = (key for name in (signal.name, *signal.aliases) for key in (name, f"{signal.bus}:{name}"))
        return next((name for name in names if len(self._named[name]) == 1), signal.full)

    def row(
        self, one: NamedSignal, known: KnownOutputs, interlocks: Iterable[Mapping[str, Any]], now: str
    ) -> dict[str, Any]:
        """Return a signal as all lists, the observer and the views show it. `interlocks` are those of the board."""
        signal, names = one.signal, {one.name, *one.aliases}
        return {
            "name": self.called(one),
            "kind": one.kind,
            "bus": one.bus,
            "unit": one.unit or None,
            "access": one.access,
            **present(one, known, now),
            "safe": None if signal is None or signal.safe is None else signal.shown(signal.safe),
            "limit": {} if signal is None else dict(signal.bounds),
            "interlocks": [lock for lock in interlocks if lock["bus"] == one.bus and lock["drives"] in names],
            "reserved": None if signal is None else signal.reserved,
        }

    def uses(self, tool: Tool, args: Args) -> Sequence[Use]:
        """Return the signals that a step of hardware reads or drives; a use without names is what has no name."""
        said = tool.reaches(args)
        reached = [one for drive in tool.drives(args) for one in self._driven(drive)] if said is None else said
        uses: list[Use] = []
        for place in dict.fromkeys(reached):
            bus, name = place
            if place in self._reached:
                uses += [one.named_use for one in self._reached[place]]
            else:
                # A tool may name what the profile does not: a signal of a message in a CAN database.
                names = (name, f"{bus}:{name}") if said is not None and isinstance(name, str) else ()
                uses.append(Use(SIGNALS, names))
        return uses or (Use(SIGNALS, ()),)

    def _driven(self, drive: Drive) -> Sequence[Reached]:
        try:
            outputs = self.outputs[drive.bus]
            driven = outputs.driven(outputs.asked(drive.output, drive.level))
        except (KeyError, RpcError):
            return ((drive.bus, ANY),)
        return [(drive.bus, output) for output, _ in driven]

    def _refuse(self, name: str, found: Iterable[NamedSignal]) -> NoReturn:
        if full := [one.full for one in found]:
            reason, known = f"{name!r} means {len(full)} signals: give {' or '.join(full)}", full
        else:
            # What is near to it is told by the full name, which always works.
            close = dict.fromkeys(self._named[near][0].full for near in nearest(name, self._named, 3))
            cure = f"did you mean {' or '.join(close)}?" if close else "signal.list has them"
            reason, known = f"board {self.board!r} has no signal {name!r}; {cure}", list(close)
        raise InvalidParams(f"/name: {reason}", data={"path": "/name", "reason": reason, "suggestions": known})


def present(one: NamedSignal, known: KnownOutputs, now: str) -> dict[str, Any]:
    """Return the members of a signal's row that change, without asking the hardware.

    The quality of a level that the driver was asked for now is "good". A level that is remembered, from driving the
    output or from the last reading, is "stale": the device may have lost or changed it since.
    """
    signal = one.signal
    state = _UNKNOWN if signal is None else known.outputs.get(signal.output, _UNKNOWN)
    value = None if signal is None or state.level is None else signal.shown(state.level)
    quality, why = ("good" if state.asked else "stale"), None
    if (failed := known.failed or state.failed) is not None:
        quality, value, why = "failed", None, failed
    elif state.level is None:
        quality, why = "none", NOT_ASKED
    elif value is None or (signal is not None and signal.is_none is not None and signal.is_none(state.level)):
        quality, value, why = "none", None, one.missing
    at = now if quality == "good" else None
    return {"value": value, "quality": quality, "why": why, "at": at, "owner": state.owner, "left": state.left}


_UNKNOWN: Final = OutputState()
