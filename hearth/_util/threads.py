"""Blocking work in a thread of its own, waited for in real time and never by the end of the process.

For the few things that are done to a device or a disk around its use: opening, closing, the last commits. It owns the
thread and its outcome; what the work means and what follows when it does not return is its caller's.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Background(Generic[T]):
    """Work that has begun. A daemon thread: one that is stuck in the kernel must not keep the process from ending."""

    __slots__ = ("_future",)

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised again by `wait`, in the task that waits
            self._future.set_exception(error)

    async def wait(self) -> T:
        """Return what the work returned, or raise what it raised. A cancellation leaves the work alone."""
        return await trio.to_thread.run_sync(self._future.result, abandon_on_cancel=True)

    async def wait_at_most(self, seconds: float) -> T:
        """As `wait`, but for `seconds` of real time, whatever clock the program runs on; then raise TimeoutError.

        A cancellation does not cut it short.
        """
        return await trio.to_thread.run_sync(self._future.result, seconds)

    def join(self) -> bool:
        """Wait, in another thread, until the work has ended; True if it ended well."""
        return self._future.exception() is None
