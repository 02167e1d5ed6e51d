"""How often a job says how far it is: at most once a second and once a percent, so that a long one stays readable."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from attrs import define

from hearth.hcp.values import write_duration

LEAST_S: Final = 1.0
"""Seconds between two, unless the stage changes."""
PART: Final = 0.01
"""Where the whole is not known: the part of the time so far that passes between two."""


@define(eq=False)
class Pace:
    """What has been said last; times are Trio's."""

    _stage: str | None = None
    _percent: float = -1.0
    _first: float = 0.0
    _last: float = 0.0

    def due(self, stage: str, message: str, done: float | None, elapsed_s: float, now: float) -> dict[str, Any] | None:
        """The data of a progress event, if one is due; `done` is the part that is done, 0 to 1, where that is known."""
        # Where there turns out to be more to do it stands still; it never goes back.
        percent = None if done is None else max(self._percent, min(100.0, round(100 * done, 1)))
        begins = percent is not None and self._percent < 0
        if percent is None and self._percent >= 0:
            # The function says itself how far it is: a count of steps must not take the second of its next percent.
            percent = self._percent
        if self._stage is None:
            self._first = now
        elif stage == self._stage and not begins:
            if now - self._last < LEAST_S:
                return None
            if percent is None:
                if now - self._last < (now - self._first) * PART:
                    return None
            elif int(percent) <= int(self._percent):
                return None
        self._stage, self._last = stage, now
        self._percent = self._percent if percent is None else percent
        data: dict[str, Any] = {"stage": stage, "message": message}
        if percent is not None:
            data["percent"] = percent
        if done and done <= 1:
            data["remaining"] = write_duration(timedelta(seconds=round(elapsed_s * (1 - done) / done)))
        return data
