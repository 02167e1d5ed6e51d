"""Blocking work in a thread of its own: a task can wait for it in real time, and the end of the process never does.

It is for work on a device or a disk around its use: opening, closing, the last commits. This module owns the thread and
its outcome. The caller knows the work, and decides what to do if it does not return.
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
    """Work that has begun, in a daemon thread: a thread that is stuck in the kernel must not keep the process alive."""

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
        """Return the result of the work, or raise its exception. A cancellation ends only the wait."""
        return await trio.to_thread.run_sync(self._future.result, abandon_on_cancel=True)

    async def wait_at_most(self, seconds: float) -> T:
        """Return the result, as `wait`; raise TimeoutError after `seconds` of real time, whatever clock Trio runs on.

        A cancellation does not end this wait.
        """
        return await trio.to_thread.run_sync(self._future.result, seconds)

    def join(self) -> bool:
        """Block the calling thread until the work has ended; return True if it raised nothing."""
        return self._future.exception() is None
