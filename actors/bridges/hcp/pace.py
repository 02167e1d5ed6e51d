"""How often a job says how far it is: at most once a second and once a percent, so that a long one stays readable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import define

from hearth.hcp.values import write_duration

if TYPE_CHECKING:
    from hearth.hcp.planning import Progress

LEAST_S: Final = 1.0
"""Seconds between two, unless the stage changes."""
PART: Final = 0.01
"""Where nobody knows how much there is to do: the part of the time so far that passes between two."""


@define(eq=False)
class Pace:
    """What has been said last; times are Trio's."""

    _stage: str | None = None
    _percent: float = -1.0
    _first: float = 0.0
    _last: float = 0.0

    def due(self, progress: Progress, now: float) -> dict[str, Any] | None:
        """The data of a progress event, if one is due."""
        percent = None
        if progress.total:
            # Where there turns out to be more to do it stands still; it never goes back.
            percent = max(self._percent, min(100.0, round(100 * progress.done / progress.total, 1)))
        if self._stage is None:
            self._first = now
        elif progress.stage == self._stage:
            if now - self._last < LEAST_S:
                return None
            if percent is None:
                if now - self._last < (now - self._first) * PART:
                    return None
            elif int(percent) <= int(self._percent):
                return None
        self._stage, self._last = progress.stage, now
        self._percent = self._percent if percent is None else percent
        data: dict[str, Any] = {"stage": progress.stage, "message": progress.message or f"{progress.done} steps done"}
        if percent is not None:
            data["percent"] = percent
        if progress.remaining is not None:
            data["remaining"] = write_duration(progress.remaining)
        return data
