"""A kind of hardware: all that hearth knows of one sort of bus, as one record, and the words that kinds and core share.

The three words. A *signal* is a named value of the machine, an output in most cases: a line, a channel, a register, a
signal of a CAN message. A *kind* is everything that hearth knows of one sort of hardware: its table in a board profile,
its drivers, its tools, how it is found, checked and confined. A *call* is one operation of a driver with its arguments,
the thing that the guard lets through, changes or refuses (`hearth.actors.bus.guard`).

A kind is one folder of `hearth.drivers`, whose package has its record, `KIND`. `hearth.drivers.kinds` has the list of
them. The core loops over that list: nothing outside of a kind's folder names it, and no kind imports another. The
functions of a record import what they need when they are called, so that a board loads only the kinds that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from attrs import field, frozen

from hearth.errors import PermissionDenied

if TYPE_CHECKING:
    from hearth.drivers.signals import Off, OnLimit

Level: TypeAlias = Any
"""What an output is driven to, in its kind's own number: 0, 1 or "input", a duty or "off", a register's integer."""
Driven: TypeAlias = tuple[Hashable, Level]
"""An output, and the level that a call brings it to."""

ANY: Final = "any"
"""The output of an effect that reaches no declared signal: a raw transfer, a frame, bytes."""
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Call(NamedTuple):
    """One operation of a driver with its arguments."""

    op: str
    args: tuple[Any, ...] = ()
    kw: Mapping[str, Any] = _NONE

    def with_arg(self, index: int, value: object) -> Call:
        """Return the same call with another argument at a place."""
        return self._replace(args=(*self.args[:index], value, *self.args[index + 1 :]))


def undeclared(call: Call, bus: str) -> PermissionDenied:
    """Return the refusal of an operation that its kind does not declare: what it does is not known."""
    reason = f"{call.op!r} is not an operation of bus {bus} that a transaction may use"
    return PermissionDenied(f"Permission denied: {reason}", data={"reason": reason, "effect": "none"})


@frozen
class Times:
    """How an output may be switched in time, in seconds: it is on at level 1 of a line, and off at all others."""

    min_on: float = 0.0
    max_on: float = inf
    min_off: float = 0.0
    period: float = 0.0
    """The least time between two moments at which it is switched on."""

    def forbids_pulse(self, on: bool, seconds: float) -> str | None:
        """Return the limit that a pulse of this length breaks, whenever it comes; None if none does."""
        if seconds < (self.min_on if on else self.min_off):
            return "min_on_ms" if on else "min_off_ms"
        return "max_on_ms" if on and seconds > self.max_on else None


def _same(level: Level) -> Level:
    return level


@frozen(eq=False)
class Signal:
    """A signal as its bus knows it. A level is the kind's own number; `shown` turns it into one in `unit`.

    `place` has the members by which errors and clamps name it ({"channel": "FAN"}), `report` those of safe states
    ({"channel": 0, "name": "FAN"}), and `what` is what a message calls it ("pwm channel FAN"). `least`, `most`, `step`
    and `slew` (a second) are in levels; `bounds` has by the name of a limit what the profile gives, in `unit`.
    """

    output: Hashable
    name: str
    what: str
    place: Mapping[str, Any] = _NONE
    report: Mapping[str, Any] = _NONE
    unit: str = ""
    access: Literal["r", "w", "rw"] = "rw"
    reserved: str | None = None
    safe: Level | None = None
    """The level of its safe state; None: it has none, and is left as it is."""
    keep: bool = False
    """True for an output that the end of a session leaves as it is (`hold = "keep"`)."""
    start: Level | None = None
    """The level that the machine has when nothing is known of the output; None: the profile does not say."""
    off: Off | None = None
    """None: it has no "off"."""
    least: float = -inf
    most: float = inf
    step: float = inf
    slew: float = inf
    bounds: Mapping[str, float] = _NONE
    on_limit: OnLimit = "refuse"
    times: Times | None = None
    grain: float = 0.0
    """1 for counts, which are rounded to whole ones; 0 for other numbers."""
    slack: float = 0.0
    """By how much a number may be beyond a limit, for the arithmetic of one that is scaled."""
    device: Hashable = None
    """Signals of one device: one that does not answer is not asked for the others."""
    wrote: Literal["driven", "written", "sent"] = "driven"
    shown: Callable[[Level], Any] = field(default=_same)

    @property
    def stepped(self) -> bool:
        """True if a level is compared with the one before it."""
        return self.step < inf or self.slew < inf

    @property
    def limited(self) -> bool:
        """True if some levels may not be driven, or not at any time."""
        return self.stepped or self.least > -inf or self.most < inf or self.times is not None


class Outputs(Protocol):
    """Which outputs the calls of one bus drive, and which calls drive its outputs. Pure: no clock, no hardware."""

    @property
    def plain(self) -> frozenset[str]:
        """Return the attributes of the driver that are not operations: a transaction gets them as they are."""
        ...

    @property
    def reading(self) -> frozenset[str]:
        """Return the operations without an effect, whatever their arguments, of whose answers `seen` says nothing."""
        ...

    @property
    def single(self) -> Mapping[str, tuple[int, int]]:
        """Return the operations that drive one output, with the places of output and level: they are compiled."""
        ...

    @property
    def signals(self) -> Mapping[Hashable, Signal]:
        """Return the signals of the bus that the profile declares."""
        ...

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the outputs that a call drives, and their levels; `ANY` for an effect on none; () without effect.

        Raises LimitViolated or PermissionDenied, with effect "none", for a call that no level could permit.
        """
        ...

    def permitted(self, call: Call, levels: Sequence[Level]) -> Call:
        """Return the same call with other levels, in the order of `driven`; all its other bits as they were."""
        ...

    def seen(self, call: Call, answer: Any) -> Iterable[Driven]:
        """Return the levels that the answer of a call shows."""
        ...

    def read(self, signal: Signal) -> Call | None:
        """Return the call that reads a signal's level; None if it cannot be read, or reading changes it."""
        ...

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the calls that bring outputs to levels; `known` are the levels of the others."""
        ...

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the call of which a tool says in advance that it will drive an output (`hearth.tools.Drive`)."""
        ...

    def place(self, output: Hashable) -> Mapping[str, Any]:
        """Return the members that name an output which the profile does not list, in a report."""
        ...
