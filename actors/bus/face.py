"""The guarded driver of a bus: the operations of a driver behind its guard, as transactions get them.

`guard_of` makes it. A face passes on what is not an operation of its driver, and the operations that a
kind declares as reading; every other one goes through `BusGuard.steps`. Operations that drive one output, of which the
kind says where output and level stand (`Outputs.single`), are compiled: they come to the same, by fewer calls.

A step of effective risk 0 gets another face, behind which every effect is refused: whatever its tool has declared, it
only reads. A driver without a kind (a vendor's) is guarded as a whole: each of its operations is an effect on no
declared output, and it brings its outputs to their safe state itself.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from hearth.actors.bus.guard import BusGuard
from hearth.drivers.kind import ANY, Call, Outputs
from hearth.errors import denied

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from hearth.drivers.base import Driver
    from hearth.drivers.kind import Driven, Level


def guard_of(bus_id: str, driver: Driver, outputs: Outputs | None) -> BusGuard:
    """Return the guard of a bus, with the faces of its driver; without `outputs` a driver passes as it is.

    A driver without a kind, whose bus has a vendor's prefix, is guarded as a whole.
    """
    if outputs is None and "." in bus_id.partition(":")[0]:
        guard = BusGuard(bus_id, driver, VendorOutputs())
        # A step of risk 0 reads by operations that no kind has declared: they go on while the daemon is halted.
        guard.face = VendorFace(guard, reads_only=False)
        return guard
    guard = BusGuard(bus_id, driver, outputs)
    if outputs is not None:
        guard.face, guard.reader = Face(guard, reads_only=False), Face(guard, reads_only=True)
    return guard


class Grip:
    """The guarded driver as one transaction has it: of no use after its end."""

    __slots__ = ("_face",)

    def __init__(self, face: Face) -> None:
        self._face: Face | None = face

    def __getattr__(self, name: str) -> Any:
        if self._face is None:
            raise denied("the transaction that had this driver has ended", "ask for another one")
        return getattr(self._face, name)

    def end(self) -> None:
        """Let go of the driver."""
        self._face = None


class Face:
    """The guarded driver: the operations of a driver behind its guard; the rest of it is passed on."""

    def __init__(self, guard: BusGuard, *, reads_only: bool) -> None:
        self._driver = guard.driver
        self._guard = guard
        self._reads_only = reads_only

    def __getattr__(self, name: str) -> Any:
        outputs = self._guard.outputs
        assert outputs is not None, "a face is of a bus with outputs"
        found = None if name.startswith("_") else getattr(self._driver, name)
        if name in outputs.plain or name in outputs.reading:
            return found
        if not callable(found):
            reason = f"{name!r} is not an operation of the driver of {self._guard.bus_id}"
            raise denied(reason, "a transaction reaches nothing else")
        guarded = operation(self._guard, name, reads_only=self._reads_only)
        setattr(self, name, guarded)
        return guarded

    def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        """Bring outputs to their safe state, those that the profile keeps excepted; return the reports."""
        return self._to_safe(outputs, kept=False)

    def halt(self, outputs: Iterable[Hashable]) -> Any:
        """Bring outputs to their safe state, whatever their `hold` is; return the reports."""
        return self._to_safe(outputs, kept=True)

    def _to_safe(self, outputs: Iterable[Hashable], *, kept: bool) -> Any:
        guard = self._guard
        if self._reads_only:
            guard.refuse_effect("outputs")
        return guard.run(guard.make_safe(outputs, kept=kept))

    def approach(self, output: Hashable, target: Level) -> Any:
        """Drive an output as far towards a target as its limits permit now; return an `Approach`.

        The target is another one than was asked for where the profile clamps. Raises what a drive raises; the halt and
        the interlocks are asked about the target, too, so that a way that may not be ended is not begun.
        """
        guard = self._guard
        if self._reads_only:
            guard.refuse_effect(output)
        return guard.run(guard.approach(output, target))

    def force(self, output: Hashable, level: Level) -> Any:
        """Bring an output to a level in one step and ask nothing: for a stop sequence and the heartbeat."""
        guard = self._guard
        return guard.run(guard.force([(output, level)]))


class VendorFace(Face):
    """The face of a driver without a kind, which brings its outputs to their safe state itself."""

    def _to_safe(self, outputs: Iterable[Hashable], *, kept: bool) -> Any:
        return (self._driver.halt if kept else self._driver.make_safe)(outputs)


class VendorOutputs(Outputs):
    """The outputs of a driver without a kind: each operation is an effect on no declared output."""

    plain: ClassVar[frozenset[str]] = frozenset(
        ("describe", "forget", "open", "close", "pump", "make_safe", "halt", "limit_ms", "style", "width", "shares")
    )

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return an effect on no declared output."""
        return ((ANY, call.args),)

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return nothing: there are no signals."""
        del wanted, known
        return ()

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return a call that stands for what a tool has declared."""
        return Call("", (output, level))


def _fixed(value: Any) -> Any:
    """Return an argument that is the same one each time it is looked at: what was checked is what is sent."""
    if isinstance(value, (list, tuple)):
        fixed = list(value)
        for place, part in enumerate(fixed):
            if isinstance(part, (list, tuple, bytearray, memoryview)):
                fixed[place] = _fixed(part)
        return tuple(fixed)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _positions(operation: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of an operation's arguments that have a place."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not inspect.isroutine(operation):
        return ()
    return tuple(name for name, one in inspect.signature(operation).parameters.items() if one.kind in kinds)


def operation(guard: BusGuard, name: str, *, reads_only: bool) -> Callable[..., Any]:
    """Return a guarded operation of the driver."""
    found = getattr(guard.driver, name)
    names = _positions(found)
    # A vendor's driver may have plain functions beside its coroutine functions.
    waits = guard.waits and (not isinstance(guard.outputs, VendorOutputs) or inspect.iscoroutinefunction(found))
    run = guard.runner(waits=waits)

    def guarded(*args: Any, **kw: Any) -> Any:
        # Each argument that has a place goes there, so that a kind finds it.
        while kw and len(args) < len(names) and names[len(args)] in kw:
            args = (*args, kw.pop(names[len(args)]))
        return run(guard.steps(Call(name, tuple(map(_fixed, args)), kw), reads_only=reads_only))

    single = None if guard.outputs is None or reads_only or guard.waits else guard.outputs.single.get(name)
    return guarded if single is None else _compiled(guard, name, *single, guarded)


def _compiled(
    guard: BusGuard, name: str, output_at: int, level_at: int, whole: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an operation that drives one output, for a driver that blocks: `guard.steps` with fewer calls.

    What takes more than a comparison goes the `whole` way: an output that must be read first or be owned, a level
    that is clamped.
    """
    driver, limits, safe = guard.driver, guard.limits, guard.safe
    stepped = {output: limit for output, limit in limits.items() if limit.stepped}
    places = max(output_at, level_at)

    def compiled(*args: Any, **kw: Any) -> Any:
        if kw or len(args) <= places:
            return whole(*args, **kw)
        output, level = args[output_at], args[level_at]
        ticket = guard.ticket
        if (
            ((before := stepped.get(output)) is not None and before.level is None)
            or (ticket is not None and ticket.drives != output)
            or output not in safe
        ):
            return whole(*args)
        if (claim := guard.claims.get(output)) is not None:
            claim.check(output)
        if guard.halt is not None and safe[output] != level:
            guard.halt(output, level)
        if guard.interlocks is not None:
            guard.interlocks.check(output, level)
        limit = limits.get(output)
        if limit is not None and limit.check(level, guard.clock()) != level:
            return whole(*args)
        try:
            answer = getattr(driver, name)(*args)
        except BaseException as error:
            guard.failed(output, level, error)
            raise
        guard.drove(output, level)
        return answer

    return compiled
