"""A portal: Trio functions that run in a thread of their own, for callers in asyncio and in threads.

`hearth.aio` and `hearth.sync` are two ways to wait for what happens here. A portal is one thread that runs Trio around
one context manager, the root: a connection to a daemon or an embedded runtime. Portals share nothing.

- A portal is opening, open, closing, then ended. `stop` may be called in any state and any thread, and more than once.
- A `call` runs in the portal's nursery. Its outcome goes to a concurrent future, whose waiter is in another thread.
- A waiter that is interrupted (asyncio's cancellation, KeyboardInterrupt) calls `abandon`: it cancels the Trio task,
  as Trio cancels a caller, so a bus transaction that has begun goes on. Then it waits until the task has ended.
- An answer that came first is lost on an abandoned call. `lost` undoes its effect; only the Trio thread decides whether
  an answer is lost, so there is no race.
- The sessions of a connection are `Held`: Trio context managers that another thread enters and leaves. They are left
  before the root is, also if the other thread forgets it.
- An object that a caller forgot (`OwningFace`) is closed by its finalizer, with a ResourceWarning. Each face keeps the
  one that it was made from, so a session is open as long as a namespace, task or iterator of it is in use.
- At the end of the program the calls that were under way get no answer. A later one, in a function of `atexit`, must
  not wait for them: `ended` says that no outcome will come any more.

The thread is no daemon, because it must bring outputs to their safe state before the process ends. The end of the
program stops every portal that is still open: after the main thread and all other threads that are no daemons have
ended, while Python still lets threads start, which Trio needs. (It no longer does in functions of `atexit`, and
Python 3.12.0 and 3.12.1 do not at any time after the main thread's end.) A daemon
thread that still waits then is left waiting: Python ends it next.

A child made by `os.fork` has the portal's memory and not its thread. There a call raises RuntimeError.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio
from attrs import frozen
from outcome import Error, Value, acapture, capture

from hearth._util.exceptions import only_cancelled
from hearth.errors import CarrierError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

T = TypeVar("T")
W = TypeVar("W")


@frozen
class Wait(Generic[T]):
    """Something to wait for: `outcome`. An interrupted waiter calls `abandon`, and then waits for `settled`."""

    outcome: Future[T]
    abandon: Callable[[], object]
    settled: Future[Any]


def _nothing() -> None:
    """Abandon nothing: the wait is for an end that has been asked for."""


def _over() -> Wait[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return Wait(done, _nothing, done)


def block(wait: Wait[T], timeout: float | None = None) -> T:
    """Wait in the calling thread; raise TimeoutError after `timeout` seconds.

    KeyboardInterrupt and TimeoutError abandon the call. A second KeyboardInterrupt does not wait for its end.
    """
    try:
        wait.outcome.exception(timeout)
    except BaseException:
        wait.abandon()
        wait.settled.exception()
        raise
    return wait.outcome.result()


class Portal:
    """A thread in which Trio runs around one context manager."""

    def __init__(self, name: str) -> None:
        """`name` is that of the function that opened it, for messages."""
        self.name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._leave = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._stopping = self._at_exit = False
        self._ended: Future[None] = Future()
        self._thread: _PortalThread | None = None

    @property
    def forked(self) -> bool:
        """True in a process that was forked from the portal's: its thread is not here."""
        return os.getpid() != self._pid

    @property
    def ended(self) -> bool:
        """True if the thread has ended Trio, or is in another process: an outcome that is not there never comes."""
        return self.forked or self._ended.done()

    @property
    def in_use(self) -> bool:
        """True until it has ended, or was asked to."""
        return not (self.ended or self._stopping)

    def open(self, root: Callable[[], AbstractAsyncContextManager[T]]) -> Wait[T]:
        """Start the thread; the outcome is what the root yields."""
        opened: Future[T] = Future()
        self._thread = _PortalThread(target=self._run, args=(root, opened), name="hearth-portal", daemon=False)
        self._thread.start()
        _END.stops(self)
        return Wait(opened, self.stop, self._ended)

    def stop(self, *, at_exit: bool = False) -> None:
        """Leave all sessions, then the root; returns at once."""
        if self.forked:
            return
        with self._lock:
            self._stopping = True
            self._at_exit = self._at_exit or at_exit
        self.post(self._stop)

    def forget(self) -> bool:
        """Stop, in a finalizer, so without the lock; return False if that was asked for before."""
        in_use = self.in_use
        self.post(self._stop)
        return in_use

    def close(self) -> Wait[None]:
        """Stop; the outcome comes when the thread ends, and is the error if the root ended with one."""
        if self.forked:
            return _over()
        self.stop()
        return Wait(self._ended, _nothing, self._ended)

    def _run(self, root: Callable[[], AbstractAsyncContextManager[T]], opened: Future[T]) -> None:
        ended = capture(lambda: trio.run(self._main, root, opened))
        error = ended.error if isinstance(ended, Error) else None
        if not opened.done():
            opened.set_exception(error or self._gone())
            error = None
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _main(self, root: Callable[[], AbstractAsyncContextManager[T]], opened: Future[T]) -> None:
        with self._scope:
            with self._lock:
                self._token = trio.lowlevel.current_trio_token()
                if self._stopping:
                    self._scope.cancel()
            async with root() as value, trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    opened.set_result(value)
                    await self._leave.wait()
                finally:
                    self._nursery = None
                    nursery.cancel_scope.cancel()

    def _stop(self) -> None:
        if self._nursery is None and not self._leave.is_set():
            self._scope.cancel()  # it is still opening
        self._leave.set()

    def call(self, call: Callable[[], Awaitable[T]], lost: Callable[[T], Awaitable[object]] | None = None) -> Wait[T]:
        """Call a Trio function in the portal. `lost` takes a value that its waiter did not get.

        The outcome is CarrierError when the portal closes. Raises RuntimeError in a forked child.
        """
        made = _PortalCall(self, call, lost)
        self._submit(made)
        return made.wait

    def enter(self, manager: Callable[[], AbstractAsyncContextManager[T]]) -> Held[T]:
        """Enter a Trio context manager, and keep it open until `leave` or the end of the portal. Raises as `call`."""
        return Held(self, manager)

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the Trio thread, soon; do nothing if Trio has ended. Safe in a finalizer."""
        if self._token is not None and not self.forked:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function, *args)

    def _submit(self, call: _PortalCall[Any]) -> None:
        if self.forked:
            raise RuntimeError(
                f"this process was forked from the one that called {self.name}, whose connection stays there; "
                f"call {self.name} in this process too, after the fork"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("the portal's own thread would wait for itself; use the Trio interface there")
        assert self._token is not None, "called before the portal was open"
        try:
            self._token.run_sync_soon(self.begin, call)
        except trio.RunFinishedError:
            self.refuse(call.wait.outcome, everywhere=threading.current_thread() is threading.main_thread())

    def begin(self, call: _PortalCall[Any]) -> None:
        """Begin a call; in the Trio thread."""
        if self._nursery is not None:
            self._nursery.start_soon(call.run)
        else:
            self.refuse(call.wait.outcome)

    def refuse(self, waiter: Future[Any], *, everywhere: bool = False) -> None:
        """Raise CarrierError in a waiter; at the end of the program only daemon threads wait: they get no answer."""
        if everywhere or not self._at_exit:
            waiter.set_exception(self._gone())

    def _gone(self) -> CarrierError:
        return CarrierError(f"what {self.name} opened is closed; call {self.name} again")


class _PortalCall(Generic[T]):
    """One call of a Trio function from another thread."""

    def __init__(
        self, portal: Portal, call: Callable[[], Awaitable[T]], lost: Callable[[T], Awaitable[object]] | None = None
    ) -> None:
        self._portal = portal
        self._call = call
        self._lost = lost
        self._scope = trio.CancelScope()
        self._abandoned = False
        future: Future[T] = Future()
        self.wait = Wait(future, self._abandon, future)

    async def run(self) -> None:
        """Call the function and pass on its outcome; raises nothing."""
        future = self.wait.outcome
        with self._scope:
            outcome = await acapture(self._call)
            if isinstance(outcome, Value):
                future.set_result(outcome.value)
                if self._abandoned:
                    self._undo(outcome.value)
            elif only_cancelled(outcome.error):
                self._portal.refuse(future, everywhere=self._abandoned)
            else:
                future.set_exception(outcome.error)

    def _abandon(self) -> None:
        self._portal.post(self._abandon_here)

    def _abandon_here(self) -> None:
        self._abandoned = True
        self._scope.cancel()
        future = self.wait.outcome
        if future.done() and future.exception() is None:
            self._undo(future.result())

    def _undo(self, value: T) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            undo = lost

            async def undone() -> None:
                await undo(value)

            self._portal.begin(_PortalCall(self._portal, undone))


class Held(Generic[T]):
    """A Trio context manager that another thread has entered; made by `Portal.enter`."""

    def __init__(self, portal: Portal, manager: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._portal = portal
        self._manager = manager
        self._leave = trio.Event()
        self._entered: Future[T] = Future()
        self._left: Future[None] = Future()
        self._whole = portal.call(self._hold)
        self._whole.outcome.add_done_callback(self._is_over)

    async def _hold(self) -> None:
        async with self._manager() as value:
            self._entered.set_result(value)
            await self._leave.wait()

    def _is_over(self, whole: Future[None]) -> None:
        error = whole.exception()
        if not self._entered.done():
            self._entered.set_exception(error or CarrierError("it was left before it was entered"))
        elif error is None or isinstance(error, CarrierError):
            self._left.set_result(None)  # also if the portal was closed first
        else:
            self._left.set_exception(error)

    def entering(self) -> Wait[T]:
        """The wait for what the manager yields."""
        return Wait(self._entered, self._whole.abandon, self._whole.outcome)

    def leave(self) -> Wait[None]:
        """Leave the manager; the outcome comes when it is left. A waiter that is interrupted waits on."""
        if self._portal.ended and not self._left.done():
            return _over()
        self._portal.post(self._leave.set)
        return Wait(self._left, _nothing, self._left)

    def forget(self) -> bool:
        """Leave the manager, in a finalizer; return False if it was left before, or its portal was stopped."""
        in_use = self._portal.in_use and not self._left.done()
        self._portal.post(self._leave.set)
        return in_use


class Face(Generic[T]):
    """A Trio object behind a portal, for callers elsewhere."""

    def __init__(self, origin: Portal | Face[Any], inner: T, held: Held[T] | None = None) -> None:
        """`origin` is the face that it was made by, or the portal whose root it is.

        `held` is the context manager that the object came from, if leaving it ends the object.
        """
        self._origin = origin
        self._portal: Portal = origin._portal if isinstance(origin, Face) else origin
        self._inner = inner
        self._held = held

    def __repr__(self) -> str:
        return repr(self._inner)

    def _call(self, method: str, args: tuple[Any, ...], arguments: dict[str, Any]) -> Wait[Any]:
        """Call an asynchronous method of the Trio object."""
        undo, unless = _UNDONE.get(method, ("", ""))
        lost = methodcaller(undo) if undo and arguments.get(unless) is None else None
        return self._portal.call(partial(getattr(self._inner, method), *args, **arguments), lost)

    def _look(self, function: Callable[[T], W]) -> Wait[W]:
        """Call a function of the Trio object that does not wait, in its thread."""

        async def look() -> W:
            return function(self._inner)

        return self._portal.call(look)

    def _end(self) -> Wait[None]:
        """Leave the context manager that the object came from."""
        return _over() if self._held is None else self._held.leave()


class OwningFace(Face[T]):
    """A face that closes its object when the caller forgets it."""

    def __del__(self) -> None:
        owned = self._held or self._origin
        if not isinstance(owned, Face) and owned.forget():
            name = f"{type(self).__module__}.{type(self).__name__}"
            text = f"{name} was not closed; it is closed now: use `with`, or call close"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)


class EventsFace(Generic[T]):
    """The events of a Trio iterator, for one reader elsewhere. The end of this object ends the subscription."""

    def __init__(self, origin: Face[Any], make: Callable[[], AsyncIterator[T]]) -> None:
        """`make` is called in the Trio thread when the first event is asked for."""
        self._origin = origin
        self._portal = origin._portal
        self._source = _EventSource(make)
        self._coming: Wait[deque[T]] | None = None

    def _next(self) -> Wait[deque[T]]:
        """Return the wait for the next events, none after the last. Who stops waiting finds the same wait again."""
        if self._coming is None or (self._portal.ended and not self._coming.outcome.done()):
            self._coming = self._portal.call(self._source.next)
        return self._coming

    def _taken(self, coming: Wait[deque[T]]) -> T | None:
        """Return the next event of those that have come. Raises the error that came instead."""
        events: deque[T] = deque()
        try:
            events = coming.outcome.result()
            return events.popleft() if events else None
        finally:
            if not events:
                self._coming = None

    def _end(self) -> None:
        self._portal.post(self._source.end, self._coming)

    def __del__(self) -> None:
        self._end()


class _EventSource(Generic[T]):
    """A Trio iterator of events; apart from its face, so that a pending call does not keep the face alive."""

    def __init__(self, make: Callable[[], AsyncIterator[T]]) -> None:
        self._make = make
        self._events: AsyncIterator[T] | None = None

    async def next(self) -> deque[T]:
        """Return the next event with those that came with it; none after the last. Each hop takes as long as a task."""
        if self._events is None:
            self._events = self._make()
        event = await anext(self._events, None)
        if event is None:
            return deque()
        received = getattr(self._events, "received", None)
        return deque([event] if received is None else [event, *received()])

    def end(self, coming: Wait[Any] | None) -> None:
        """End the subscription; in the Trio thread."""
        if coming is not None:
            coming.abandon()
        close = getattr(self._events, "close", None)
        if close is not None:
            close()


_UNDONE = {"submit": ("cancel", "idempotency_key"), "delegate": ("abort", "message_id")}
"""Method -> the method of its result that undoes it, if the caller was cancelled and so never knew the result, and the
argument with which a caller can come back for the result: then nothing is undone."""


class _PortalThread(threading.Thread):
    """A portal's thread."""


class _End:
    """The end of the program, which stops all portals of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._portals: weakref.WeakSet[Portal] = weakref.WeakSet()
        self._watching = False

    def stops(self, portal: Portal) -> None:
        """Stop this portal too when the program ends."""
        with self._lock:
            self._portals.add(portal)
            if not self._watching:
                threading.Thread(target=self._watch, name="hearth-portals", daemon=True).start()
                self._watching = True

    def _watch(self) -> None:
        main = threading.main_thread()
        main.join()
        while users := [
            thread
            for thread in threading.enumerate()
            if thread is not main and not thread.daemon and not isinstance(thread, _PortalThread)
        ]:
            users[0].join()
        with self._lock:
            self._watching = False
            portals = list(self._portals)
        for portal in portals:
            portal.stop(at_exit=True)

    def forked(self) -> None:
        """Forget the portals: their threads are not in this child, and the lock may be held there for ever."""
        self._lock = threading.Lock()
        self._portals, self._watching = weakref.WeakSet(), False


_END = _End()
os.register_at_fork(after_in_child=_END.forked)
