"""Code that holds the event loop: found out, and reported with the name of who does it.

A capability's function is somebody's Python on the daemon's one event loop: while it computes, nothing else is served.
`Watch.over` measures each stretch between two awaits. A stretch that is long is reported when it ends; one that does
not end is reported while it lasts, by a thread, with the line that it is at: the last thing in the log before a service
manager ends the daemon. It stops nothing: Python cannot.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

LONG_S: Final = 0.1
"""Seconds of a stretch that is reported."""
STUCK_S: Final = 2.0
"""Seconds after which one that has not ended is reported."""

log = logging.getLogger("hearth.hcp")


class Watch:
    """Watches the code of one job. `report` is called after a stretch that was long, with its seconds."""

    def __init__(self, name: str, report: Callable[[float], None]) -> None:
        self._name = name
        self._report = report
        self._began: float | None = None
        self._over = threading.Event()

    async def over(self, code: Awaitable[Any]) -> Any:
        """Await something of the job's."""
        return await _Stretches(code, self)

    @contextmanager
    def stretch(self) -> Iterator[None]:
        """One stretch: the time until the code awaits something, or ends."""
        self._began = began = time.perf_counter()
        try:
            yield
        finally:
            self._began = None
            if (seconds := time.perf_counter() - began) > LONG_S:
                self._report(seconds)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Have a thread look for a stretch that does not end, for as long as this lasts."""
        looking = threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="hearth-hcp-watch", daemon=True
        )
        looking.start()
        try:
            yield
        finally:
            self._over.set()

    def _look(self, loop: int) -> None:
        told: float | None = None
        while not self._over.wait(STUCK_S / 2):
            began = self._began
            if began is None or began == told or time.perf_counter() - began < STUCK_S:
                continue
            told = began
            frame = sys._current_frames().get(loop)
            place = "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            log.error("%s has held the event loop for %g s, at %s: nothing else is served", self._name, STUCK_S, place)


class _Stretches:
    """Awaits something, one stretch after the other."""

    def __init__(self, code: Awaitable[Any], watch: Watch) -> None:
        self._code = code
        self._watch = watch

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self._code.__await__()
        resume: Callable[[Any], Any] = inner.send
        value: Any = None
        while True:
            try:
                with self._watch.stretch():
                    asked = resume(value)
            except StopIteration as stop:
                return stop.value
            try:
                value = yield asked
                resume = inner.send
            except BaseException as error:  # noqa: BLE001  passed on to the code that is awaited
                value, resume = error, inner.throw
