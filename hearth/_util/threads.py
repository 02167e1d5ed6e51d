"""Blocking work in another thread, so that the event loop never waits for a disk or a device that does not answer.

`Background` is for work around the use of a device or a disk: opening, closing, the last commits. A task can wait for
it in real time, and the end of the process never does. `Helper` is for the many short calls of one user of a disk, in
their order. This module owns the threads and the outcomes. The caller knows the work, and decides what to do if it does
not return. `IMPORTING` is for imports outside the main thread.

Theory of operation of a `Helper`. A file that the kernel keeps in memory answers within microseconds, less than a turn
of the loop costs. So `Helper.call` blocks the calling thread for at most `PATIENCE_S`, and nearly every call is `done`
when it returns. A call that is not done goes on in the helper's thread: the caller waits for it beside the loop
(`HelperCall.wait`, `HelperCall.then`), and gives the helper nothing else until then, or the loop would spend its
patience again.

The two threads take turns, and waking another processor takes many times as long as such a call. So the caller stays on
its processor for as long as it waits in place, and the helper moves there. Where they may not, they are slower and
nothing else.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio
from outcome import Error, Value, capture

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE_S = 0.002
"""Seconds for which the event loop waits in place for a call that it has given to a `Helper`.

Under a virtual clock it has to be more (`hearth.testing`): time would pass before the thread has had its turn.
"""

IMPORTING = threading.Lock()
"""Held by a thread, other than the main one, that imports while the daemon serves.

Python locks each module that is being imported. Two threads that enter a cycle of modules at two of its places wait for
each other's module, and one of them gets a `_DeadlockError`; importlib.abc and importlib.resources are such a cycle.
After its start the main thread imports nothing.
"""


class Background(Generic[T]):
    """Work that has begun, in a daemon thread: a thread that is stuck in the kernel must not keep the process alive."""

    __slots__ = ("_future",)

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._future: Future[Value[T] | Error] = Future()
        threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        self._future.set_result(capture(work))

    async def wait(self) -> T:
        """Return the result of the work, or raise its exception. A cancellation ends only the wait."""
        return _value(await trio.to_thread.run_sync(self._future.result, abandon_on_cancel=True))

    async def wait_at_most(self, seconds: float) -> T:
        """Return the result, as `wait`; raise TimeoutError after `seconds` of real time, whatever clock Trio runs on.

        A cancellation does not end this wait.
        """
        return _value(await trio.to_thread.run_sync(self._future.result, seconds))

    def join(self) -> bool:
        """Block the calling thread until the work has ended; return True if it raised nothing."""
        return isinstance(self._future.result(), Value)


def _value(outcome: Value[T] | Error) -> T:
    """Return a value, or raise the error: `unwrap` does so once only."""
    if isinstance(outcome, Error):
        try:
            raise outcome.error
        finally:
            del outcome  # breaks the cycle of error, traceback and this frame
    return outcome.value


class HelperCall(Generic[T]):
    """A call that a helper's thread makes. The Trio thread uses it, and the helper fills it in."""

    __slots__ = ("_ended", "_outcome", "_wakes", "_work", "done", "processor")

    def __init__(self, work: Callable[[], T], processor: int = -1) -> None:
        self.processor = processor
        """The number of the processor of the thread that waits for it in place; -1 if none does."""
        self._work: Callable[[], T] | None = work
        self._outcome: Value[T] | Error | None = None
        self._ended = threading.Lock()
        self._ended.acquire()
        self._wakes: list[Callable[[], None]] = []
        self.done = False
        """True once the call has ended."""

    def run(self) -> None:
        """Make the call; for the helper's thread."""
        work, self._work = self._work, None
        assert work is not None, "a call is made once"
        self._outcome = capture(work)
        self.done = True
        self._ended.release()
        if self._wakes:  # `then`, which comes later, sees that the call is done
            self._wake()

    def _wake(self) -> None:
        # Both threads come here once `done` is True; the one that gets the function calls it. The loop may have ended.
        with suppress(IndexError, trio.RunFinishedError):
            self._wakes.pop()()

    def settle(self, seconds: float) -> None:
        """Block the calling thread until the call has ended, for at most so long."""
        self._ended.acquire(timeout=seconds)

    def get(self) -> T:
        """Return the value of a call that is done, or raise its exception."""
        assert self._outcome is not None, "it is done"
        return _value(self._outcome)

    def then(self, function: Callable[[], Any]) -> None:
        """Call `function` in a turn of the loop when the call has ended. Only once for each call."""
        self._wakes.append(partial(trio.lowlevel.current_trio_token().run_sync_soon, function))
        if self.done:
            self._wake()

    async def wait(self) -> None:
        """Wait until the call has ended. A cancellation ends only the wait."""
        if not self.done:
            ended = trio.Event()
            self.then(ended.set)
            await ended.wait()


class Helper:
    """One daemon thread that makes calls in their order; it starts with the first call and ends with this object."""

    __slots__ = ("__weakref__", "_calls", "_name", "_process")

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = 0
        self._calls: SimpleQueue[HelperCall[Any] | None] | None = None

    def call(self, work: Callable[[], T], patience: float | None = None) -> HelperCall[T]:
        """Have `work` called; wait in place for at most `patience` seconds (`PATIENCE_S`; -1: until it has ended)."""
        if self._calls is None or self._process != os.getpid():
            # A fork has no threads.
            self._process = os.getpid()
            self._calls = SimpleQueue()
            weakref.finalize(self, self._calls.put, None).atexit = False
            threading.Thread(target=_make, args=(self._calls,), name=self._name, daemon=True).start()
        if patience == 0:
            call = HelperCall(work)
            self._calls.put(call)
            return call
        call = HelperCall(work, _processor()())
        allowed = _move(call.processor)
        try:
            self._calls.put(call)
            call._ended.acquire(timeout=PATIENCE_S if patience is None else patience)
        finally:
            # Also after a Ctrl-C: the caller's thread is the embedding program's.
            if allowed:
                _move(*allowed)
        return call


def _make(calls: SimpleQueue[HelperCall[Any] | None]) -> None:
    here = -1
    while (call := calls.get()) is not None:
        call.run()
        if call.processor not in (here, -1):
            here = call.processor
            _move(here)
        del call  # what it holds must not wait for the next one


def _move(*processors: int) -> set[int]:
    """Let the calling thread run on these processors alone; return those that it had before, none if it may not."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, processors)
    except (OSError, ValueError):
        # Not permitted, or there is no such processor (any more).
        return set()
    return before


@cache
def _processor() -> Callable[[], int]:
    """Return the function that returns the number of the calling thread's processor, or -1."""
    import ctypes  # not at the top: most programs that import this module never wait for a helper

    found: Callable[[], int] = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1)
    return found
