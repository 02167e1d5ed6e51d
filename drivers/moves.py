"""The way of a signal to a target, for the tools servo.move and dac.set.

It owns what a step does between its transactions: a signal with a `slew` goes to its target in many small ones, each as
far as the limits permit then (`approach`, which the bus's guard has), so that other channels of the chip are served in
between. The newest move of a signal has it: an older one that is still under way ends where it is, with RESOURCE_BUSY.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from hearth.drivers.declare import GRACE_MS, LIMIT_MS
from hearth.drivers.signals import OFF
from hearth.errors import LimitViolated, ResourceBusy, RpcError
from hearth.tools import Undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hearth.drivers.signals import SignalLevel, SignalSpec
    from hearth.tools import StepContext

PAUSE_S: Final = 0.02
"""Seconds between two steps of a signal on its way: the period of a servo's pulses."""


class Moved(NamedTuple):
    """A signal at its target: what it gave out before, where it is now, and the reports of what was clamped."""

    former: Any
    target: SignalLevel
    clamped: list[Mapping[str, Any]]


class Moves:
    """The moves of the signals of one board; `key` is what errors call a signal.

    `_tokens` is touched by transactions only, and so by one at a time for a signal.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._tokens: dict[str, object] = {}  # by name: the token of its newest move

    def end(self, name: str) -> None:
        """End the move of a signal where it is; a part of a transaction."""
        self._tokens.pop(name, None)

    async def run(self, ctx: StepContext, spec: SignalSpec, target: SignalLevel) -> Moved:
        """Bring a signal to a target, at its slew.

        Raises what the bus raises, and ResourceBusy when another move has it.
        """
        output, name, token = spec.output, spec.name, object()

        def begin(driver: Any) -> Any:
            self._tokens[name] = token
            return driver.approach(output, target)

        def follow(driver: Any) -> Any:
            return driver.approach(output, target) if self._tokens.get(name) is token else None

        at = await ctx.transact(begin, limit_ms=LIMIT_MS, drives=output)
        former, clamped, target = at.former, list(ctx.clamped), at.target
        try:
            while at.level != target:
                await trio.sleep(PAUSE_S)
                # A move that has been replaced must not take the signal from the session that has it now.
                mine: Callable[[], Any] = lambda: output if self._tokens.get(name) is token else None  # noqa: E731
                at = await ctx.transact(follow, limit_ms=LIMIT_MS, drives=mine)
                if at is None:
                    way = f"on its way to {target:g} {spec.unit}"
                    text = f"{spec.what} was given another command while it was {way}"
                    raise ResourceBusy(text, data={self._key: name, "reason": "set since", "effect": "done"})
        except RpcError as error:
            # The step itself has moved the signal, though its last transaction may have done nothing.
            if (error.data or {}).get("effect") == "none":
                error.data = {**(error.data or {}), "effect": "unknown"}
            raise
        return Moved(former, target, clamped)

    def undo(self, spec: SignalSpec, former: SignalLevel, put: Callable[[Any], None] | None = None) -> Undo:
        """Return the undo to what a signal gave out before: a move back, or what `put` does with the driver at once."""

        def op(driver: Any) -> None:
            self.end(spec.name)
            if former == OFF:
                driver.set(spec.output, OFF)
            elif put is not None:
                put(driver)
            else:
                self._back(driver, spec, former)

        back = OFF if former == OFF else f"{former:g} {spec.unit}"
        return Undo(op, f"{spec.what} back to {back}", spec.output)

    def _back(self, driver: Any, spec: SignalSpec, level: SignalLevel) -> None:
        """Move a signal back by one step, as the rollback of a move; a part of a transaction.

        Raises LimitViolated until it is there: the bus runs this again after that time, as often as the way takes.
        """
        at = driver.approach(spec.output, level)
        if at.level != at.target:
            data = {self._key: spec.name, "retry_after_ms": round(PAUSE_S * 1000), "effect": "unknown"}
            raise LimitViolated(f"{spec.what} is on its way back to {level:g} {spec.unit}", data=data)


def longest_move_ms(ways: Iterable[tuple[float, float | None]]) -> int:
    """Return the time that a move takes at the most.

    `ways` are the range of each signal and its slew, None where it has none.
    """
    return round(max((way / slew for way, slew in ways if slew is not None), default=0.0) * 2_000) + GRACE_MS
