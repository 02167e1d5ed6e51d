"""How much of a recipe is left: steps and time, from counts and paces that are known and steps that were timed.

What depends on results that are not there yet is not guessed: then there is no total. With `until` and `when` it is the
most that there can be, which shrinks as a course goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from hearth.hcp.expressions import ExpressionError
from hearth.hcp.recipe_shape import Call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.hcp.expressions import Expression
    from hearth.hcp.recipe_shape import Step

_KNOWN_AT_ONCE = frozenset({"inputs"})


@frozen
class Amount:
    """So many calls of tools, and so many seconds at least beside them."""

    calls: int = 0
    seconds: float = 0.0


@define
class Place:
    """Where a course is in one sequence of steps: those not begun, and the rounds to come of the current one."""

    later: Sequence[Step] = ()
    step: Step | None = None
    rounds_left: int = 0
    """Not begun."""
    every_s: float = 0.0


@define
class Reckoning:
    """What a course measures itself by."""

    inputs: Mapping[str, Any]
    places: list[Place] = field(factory=list)
    """From the outermost to where it is."""
    done: int = 0
    pending: int = 0
    """Calls begun and not done: 0 or 1."""
    _spent_s: float = 0.0
    _values: dict[int, Any] = field(factory=dict)

    def call_took(self, seconds: float) -> None:
        """A call is done."""
        self.done += 1
        self._spent_s += max(seconds, 0.0)

    def of(self, steps: Sequence[Step]) -> Amount | None:
        """The most that steps which have not begun can take; None where that cannot be told yet."""
        return _sum(self._amount(step) for step in steps)

    def left(self) -> Amount | None:
        """What is to be done from here on, the call under way included."""
        parts: list[Amount | None] = [Amount(self.pending)]
        for place in self.places:
            parts.append(self.of(place.later))
            if place.step is not None and place.rounds_left:
                parts.append(self._times(place.rounds_left, self._once(place.step), place.every_s))
        return _sum(parts)

    def seconds(self, amount: Amount) -> float | None:
        """How long an amount will take, by the calls so far; None before there is anything to tell by."""
        return amount.seconds + amount.calls * self._call_s() if self.done or amount.seconds else None

    def _call_s(self) -> float:
        return self._spent_s / self.done if self.done else 0.0

    def _amount(self, step: Step) -> Amount | None:
        """All rounds of a step."""
        once = self._once(step)
        delay = Amount(0, _seconds(self._known(step.delay_s)))
        if step.rounds is None:
            return _sum((delay, once))
        if step.rounds.items is not None:
            items = self._known(step.rounds.items)
            count = len(items) if isinstance(items, list) else None
        else:
            found = self._known(step.rounds.count)
            count = int(found) if type(found) in (int, float) and found >= 0 else None
        if count is None:
            return None
        return _sum((delay, self._times(count, once, _seconds(self._known(step.rounds.every_s)))))

    def _once(self, step: Step) -> Amount | None:
        return Amount(1) if isinstance(step.do, Call) else self.of(step.do)

    def _known(self, value: float | Expression | None) -> Any:
        """What is a number already, or follows from the inputs alone."""
        if value is None or isinstance(value, (int, float)):
            return value
        if not value.roots <= _KNOWN_AT_ONCE:
            return None
        if id(value) not in self._values:
            try:
                self._values[id(value)] = value.value({"inputs": self.inputs})
            except ExpressionError:
                self._values[id(value)] = None
        return self._values[id(value)]

    def _times(self, count: int, once: Amount | None, every_s: float) -> Amount | None:
        if once is None:
            return None
        # A round takes as long as its pace, unless its calls take longer.
        return Amount(count * once.calls, count * max(once.seconds, every_s - once.calls * self._call_s()))


def _seconds(value: Any) -> float:
    """What will be waited for; what is no such time fails when it comes to it."""
    return float(value) if type(value) in (int, float) and value > 0 else 0.0


def _sum(amounts: Any) -> Amount | None:
    calls, seconds = 0, 0.0
    for one in amounts:
        if one is None:
            return None
        calls += one.calls
        seconds += one.seconds
    return Amount(calls, seconds)

