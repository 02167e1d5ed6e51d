"""The limit of one output: the state of it, and the refusals that follow from what the board profile says.

It owns the rules for an output in time and in value: how long a line is on and off, and how often it is switched on;
the bounds of a number, the step from one to the next, and the change a second. It touches no hardware and keeps no
clock: `guard` asks it before each effect and tells it afterwards, with the time in seconds of a monotonic clock. It is
used by one transaction at a time, in whatever thread, so it has no lock.

A level is known from what was last driven or read; what a device reads that is not finite is not a level. `max_step`
and `slew_per_s` are counted from there, a slew from the time of the last drive. "off" counts as 0 or as the level
before it, as the output's `off` says. No step limits the way to "off" and to a safe state. After a drive that may have
failed, an output that can be read is not known, and one that cannot be read may be at either level: both count.

A line is on while it is driven to 1, else off. It is off since the bus was first opened, because what came before is
not known. After a switching that failed it may be either: then both directions keep their limits.
"""

from __future__ import annotations

from math import ceil, floor, inf, isfinite
from typing import TYPE_CHECKING, Any, Final

from hearth.errors import LimitViolated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.kind import Level, Signal, Times

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts to bring a line to its safe state."""
_COUNTS: Final = 1e-6
_FLOATS: Final = 1e-9
"""By which a step may be exceeded: of a count, and as a part of a number, since 0.1 + 0.2 is more than 0.3."""


def _number(level: Level) -> bool:
    return isinstance(level, (int, float)) and not isinstance(level, bool)


class Limit:
    """The limit of one signal, and the level that it is at, as far as that is known."""

    __slots__ = (
        "_before",
        "_bus",
        "_least",
        "_most",
        "kept",
        "level",
        "off",
        "only_times",
        "signal",
        "since",
        "stepped",
        "times",
    )

    def __init__(self, bus: str, signal: Signal) -> None:
        self._bus = bus
        self.signal = signal
        self._least, self._most = signal.least, signal.most
        self.times = None if signal.times is None else _TimedLine(signal.times)
        self.stepped = signal.stepped
        """True if a level is compared with the one before it."""
        self.only_times = not (self.stepped or signal.least > -inf or signal.most < inf)
        """True if no level is compared, and only switching is limited: of a line."""
        self.level: float | None = None
        """None: not known."""
        self.since = -inf
        """The time of the last drive, or of the reading that has shown another level."""
        self.off = False
        """True if the output was last driven, or read, as "off"."""
        self.kept: float | None = None
        """The level at which an earlier run left the output, if it has written that down."""
        self._before: float | None = None
        """The level at which the output may still be, after a drive that may have failed; None: there is no doubt."""

    # --- before an effect -----------------------------------------------------------------------------------------

    def check(self, level: Level, now: float) -> Level:
        """Return the level to drive, which differs from `level` where it is clamped. Raises LimitViolated."""
        if self.times is not None:
            if (found := self.times.forbids(level == 1, now)) is not None:
                raise self._too_early(level == 1, *found)
            if self.only_times:
                return level
        if not _number(level):
            if level == "off" and self.signal.off in (None, "refuse"):
                why = 'off = "refuse"' if self.signal.off else 'it has no "off"'
                raise self._refused(f"it may not be switched off ({why})", limit="off")
            return level
        if not isfinite(level):
            raise self._refused(f"{level} is not a number")
        broken = self._broken(level, now)
        if broken is None:
            return level
        if self.signal.on_limit == "refuse" or broken[0] == "unknown":
            raise self._beyond(level, *broken)
        low, high = self._window(now)
        if low > high:
            raise self._beyond(level, *broken)
        return self._within(level, low, high)

    def check_rest(self, now: float) -> None:
        """Refuse to switch a line to its safe state before its times permit it. Raises LimitViolated."""
        if self.times is not None and (found := self.times.forbids(self.signal.safe == 1, now)) is not None:
            raise self._too_early(self.signal.safe == 1, *found)

    def foresee(self, level: Level, duration_ms: float | None) -> None:
        """Refuse what could never pass, whatever happens until then. Raises LimitViolated."""
        if self.times is not None and duration_ms is not None:
            self._foresee_pulse(level == 1, duration_ms)
        if not _number(level):
            self.check(level, inf)
        elif not isfinite(level):
            raise self._refused(f"{level} is not a number")
        elif self.signal.on_limit == "refuse":
            self.bounded(level)

    def bounded(self, target: Level) -> Level:
        """Return a target within the bounds: `target`, or the nearer bound where the profile clamps.

        Raises LimitViolated.
        """
        if not _number(target) or not self._outside(target):
            return target
        if self.signal.on_limit == "refuse" or not isfinite(target):
            raise self._beyond(target, "min" if target < self._least else "max", None)
        return self._within(target, self._least, self._most)

    def towards(self, target: Level, now: float) -> Level:
        """Return the level nearest to a target within the bounds that may be driven now."""
        if not _number(target):
            return target
        low, high = self._window(now)
        return min(max(target, low), high)

    @property
    def remembered(self) -> bool:
        """True if the level outlives the process in the outputs file: one that no read could tell the next run."""
        return self.stepped and (self.signal.access == "w" or self.signal.off == "hold")

    def is_missing(self) -> bool:
        """Return True if the present level should be known before the output is driven, and is not."""
        return self.level is None and self.stepped

    def _window(self, now: float) -> tuple[float, float]:
        """Return the least and the greatest level that may come next."""
        low, high = self._least, self._most
        for former in (self.level, self._before) if self.stepped else ():
            if former is not None:
                # A device may come up beyond the bounds: then the nearest bound counts as its level.
                at = min(max(former, self._least), self._most)
                reach = min(self.signal.step, self.signal.slew * max(0.0, now - self.since))
                low, high = max(low, at - reach), min(high, at + reach)
        return low, high

    def _outside(self, level: float) -> bool:
        return not self._least - self.signal.slack <= level <= self._most + self.signal.slack

    def _slack(self, level: float) -> float:
        return _COUNTS if self.signal.grain else max(self.signal.slack, _FLOATS * max(1.0, abs(level)))

    def _within(self, level: float, low: float, high: float) -> float:
        if self.signal.grain:
            low, high = ceil(low - _COUNTS), floor(high + _COUNTS)
        return min(max(level, low), high)

    def _broken(self, level: float, now: float) -> tuple[str, float | None] | None:
        """Return the name of the limit that forbids a level, and the seconds until it permits it, if it will."""
        slack, signal = self._slack(level), self.signal
        if self._outside(level):
            return ("min" if level < self._least else "max"), None
        if self.level is None and self.stepped and signal.access != "w" and not self.off:
            return "unknown", None
        low, high = self._window(now)
        if low - slack <= level <= high + slack:
            return None
        formers = [former for former in (self.level, self._before) if former is not None]
        change = max(abs(level - min(max(former, self._least), self._most)) for former in formers)
        if change <= signal.step + slack:
            return "slew_per_s", change / signal.slew - (now - self.since)
        return "max_step", None

    def _too_early(self, on: bool, limit: str, wait: float) -> LimitViolated:
        return self._refused(f"it stays {'off' if on else 'on'}", limit=limit, wait=wait)

    def _foresee_pulse(self, on: bool, duration_ms: float) -> None:
        assert self.times is not None, "asked by the caller"
        limit = self.times.spec.forbids_pulse(on, duration_ms / 1000)
        if limit is not None:
            short = "long" if limit == "max_on_ms" else "short"
            raise self._refused(f"a pulse of {duration_ms:g} ms is too {short}", limit=limit)

    # --- after an effect ------------------------------------------------------------------------------------------

    def note(self, level: Level, now: float, *, drove: bool = True) -> None:
        """Note that the output was driven to a level, or without `drove` that a level was read."""
        if self.times is not None:
            self.times.note(level == 1, now)
            if self.only_times:
                return
        self.off = level == "off"
        if self.off and self.signal.off == "hold":
            return
        number = 0.0 if level == "off" else level
        if _number(number) and isfinite(number):
            if drove or number != self.level:
                self.since = now
            self.level, self._before = number, None

    def failed(self, level: Level, now: float) -> None:
        """Note that the output may be at a level, or at its former one."""
        if self.times is not None:
            self.times.failed(level == 1, now)
        number = 0.0 if level == "off" else level
        if self.signal.access != "w" or not _number(number) or not isfinite(number):
            self.level = self._before = None
        elif self.level is not None:
            self.level, self._before, self.since = number, self.level, now

    def opened(self, now: float, *, driven: bool) -> None:
        """Note that the bus was opened. `driven`: its lines are at their `initial` levels.

        An output that can be read is not known any more; of one that cannot, the last level goes on to count.
        """
        if self.times is not None:
            self.times.opened(self.signal.start if driven else None, now)
        if self.signal.access != "w":
            # Of a channel that reads as off, the last level may still be what counts.
            self.kept = self.level if self.level is not None else self.kept
            self.level = self._before = None

    def assume(self, level: Level, now: float) -> None:
        """Take a level as the present one, where nothing better is known."""
        if self.level is None and _number(level):
            self.level, self.since = level, now

    # --- errors ---------------------------------------------------------------------------------------------------

    def clamped(self, asked: Level, written: Level) -> dict[str, Any]:
        """Return what was asked of the output, and what is driven instead, in its unit."""
        return self._shown(asked=asked, written=written)

    def reported(self, level: Level) -> dict[str, Any]:
        """Return a level of the output, in its unit, with what names the output."""
        return self._shown(value=level)

    def _shown(self, **levels: Level) -> dict[str, Any]:
        signal = self.signal
        named = {key: value for key, value in signal.place.items() if key != "bus"}
        unit = {"unit": signal.unit} if signal.unit else {}
        return {**named, **{key: signal.shown(level) for key, level in levels.items()}, **unit}

    def _beyond(self, level: float, limit: str, wait: float | None) -> LimitViolated:
        signal = self.signal
        if limit == "unknown":
            name = "max_step" if signal.step < inf else "slew_per_s"
            return self._refused("its present value is not known; read the register first", limit=name)
        shown, unit = signal.shown, f" {signal.unit}" if signal.unit else ""
        if limit in ("max_step", "slew_per_s"):
            assert self.level is not None, "compared with it"
            how = f"from {shown(self.level):g} to {shown(level):g}{unit} exceeds"
        else:
            how = f"{shown(level):g}{unit} is beyond"
        bound = signal.bounds.get(limit)
        if bound is None:  # its width
            bound = shown(signal.least if limit == "min" else signal.most)
        text = f"{how} {limit} = {bound:g}{unit}"
        return self._refused(text, limit=limit, wait=wait, told=True)

    def _refused(
        self, why: str, *, limit: str | None = None, wait: float | None = None, told: bool = False
    ) -> LimitViolated:
        signal = self.signal
        data: dict[str, Any] = {"bus": self._bus, **signal.place}
        if limit is not None:
            bound = signal.bounds.get(limit)
            if bound is None and limit in ("min", "max"):
                bound = signal.shown(signal.least if limit == "min" else signal.most)
            data |= {"limit": limit} | ({} if bound is None else {"allowed": bound})
            data |= {"unit": signal.unit} if signal.unit and bound is not None else {}
        if wait is not None:
            data["retry_after_ms"] = after = max(1, ceil(wait * 1000))
            why = f"{why}; try again in {after} ms" if told else f"{why} for {after} ms more"
        data |= {"reason": why, "effect": "none"}
        if self.times is not None and limit is not None and limit in signal.bounds:
            why = f"{why} ({limit} = {signal.bounds[limit]:g})"
        return LimitViolated(f"Limit violated: {signal.what}: {why}; nothing was {signal.wrote}", data=data)


class _TimedLine:
    """The times of a line that is limited in time, in seconds."""

    __slots__ = ("_opened", "due", "on", "on_at", "pause", "reopened", "since", "spec", "uncertain")

    def __init__(self, spec: Times) -> None:
        self.spec = spec
        self.on = False
        self.since = -inf
        """The time of the last switching."""
        self.on_at = -inf
        """The time at which it was last switched on."""
        self.uncertain = False
        """True after a switching that failed: it may be on or off."""
        self.due = inf
        """The time by which it has to be in its safe state."""
        self.reopened = False
        """True if that is because the chip was opened again while it was on."""
        self.pause = FIRST_PAUSE
        self._opened = False

    def forbids(self, on: bool, now: float) -> tuple[str, float] | None:
        """Return the limit that keeps the line from being switched, and for how long; a line that stays is free."""
        if on is self.on and not self.uncertain:
            return None
        if not on:
            limit, until = "min_on_ms", self.since + self.spec.min_on
        else:
            limit, until = "min_off_ms", self.since + self.spec.min_off
            if self.on_at + self.spec.period > until:
                limit, until = "max_rate_hz", self.on_at + self.spec.period
        return (limit, until - now) if until > now else None

    def note(self, on: bool, now: float) -> None:
        """Note that the line is on or off."""
        if on is not self.on or self.uncertain:
            self.on, self.since, self.uncertain = on, now, False
            if on:
                self.on_at = now
        if not on:
            self.due, self.reopened, self.pause = inf, False, FIRST_PAUSE
        elif self.due == inf:
            self.due = now + self.spec.max_on

    def failed(self, on: bool, now: float) -> None:
        """Note that the line may be on or off."""
        if not self.uncertain and self.on is on:
            return
        if on:
            self.note(on, now)
        self.since, self.uncertain = now, True

    def opened(self, initial: Level | None, now: float) -> None:
        """Note that the chip was opened: a line that was on must go to its safe state, as it may have changed since."""
        if initial is not None:
            self.note(initial == 1, now)
        elif self.on:
            self.due, self.reopened = now, True
        elif not self._opened:
            self.since = now
        self._opened = True

    def postpone(self, now: float) -> None:
        """Note that the line could not be brought to its safe state: try again after a pause, which grows."""
        self.due = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)

    def why(self, bounds: Mapping[str, float]) -> str:
        """Return the reason for which the line has to go to its safe state."""
        if self.reopened:
            return "the chip was opened again while the line was on"
        return f"it was on for max_on_ms = {bounds['max_on_ms']:g}"
