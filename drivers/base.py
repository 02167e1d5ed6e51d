"""The driver Protocol: the interface between a bus actor and a driver, and the parts that all drivers share.

A driver is small, bounded in time and has one caller: the bus that owns it. It knows no actor, no session and no
policy. A transaction is a callable that gets the driver and returns a value (or, for ASYNC drivers, a coroutine); the
bus runs it whole. A driver that fails raises `DeviceError` (or `ResourceBusy` for a device another process holds) and
reports the effect on the hardware in `effect`; any other exception is a bug, and the bus reopens the driver.

`pump` alone reports a device that disappears. The transaction that met it fails like any other. `pump` raises the
DeviceError; the bus goes down with that reason, closes the driver, and opens it again with growing pauses until `open`
succeeds (docs/decisions/0040). A driver with a descriptor that can be polled sees the end there; one that learns of it
in a transaction passes it to its pump through `hearth.drivers.base.DeviceGone`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence

    from hearth.errors import DeviceError

# The bridge by which asynchronous input in a driver reaches a waiting step: a task that does not run on the bus. A
# Wakeup holds no state: the waiters check the state of its owner. It may be woken from the Trio thread and from a bus's
# own thread alike, and never loses a wakeup. `DeviceGone` is the one state that drivers share: the device is gone.


class Wakeup:
    """A condition that any number of tasks can wait for."""

    __slots__ = ("_event", "_token")

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    def wake(self) -> None:
        """Make every waiter check its condition again.

        Call it after the change, from any thread; costs nothing without waiters.
        """
        event, self._event = self._event, None
        if event is None:
            return
        token = self._token
        assert token is not None, "set before the event, by the task that waits for it"
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
            event.set()
            return
        try:
            token.run_sync_soon(event.set)
        except trio.RunFinishedError:
            return  # the waiters ended with their run

    async def until(self, ready: Callable[[], object]) -> None:
        """Wait until `ready()` is true; a checkpoint only if it is not true yet."""
        while not ready():
            event = self._event
            if event is None:
                self._token = trio.lowlevel.current_trio_token()
                event = self._event = trio.Event()
                # A thread may have changed the state before it could see this event: check once more.
                if ready():
                    return
            await event.wait()


class DeviceGone:
    """The report from a transaction that its device is gone, where nothing that can be polled would show it.

    The transaction calls `report` and then fails as it would anyway; the driver's `pump` is `await departure.wait()`,
    which raises the error, and so the bus goes down and is opened again. `open` calls `forget`. From any thread.
    """

    __slots__ = ("_error", "_wakeup")

    def __init__(self) -> None:
        self._error: DeviceError | None = None
        self._wakeup = Wakeup()

    def report(self, error: DeviceError) -> None:
        """Report that the device is gone, because of `error`; only the first report counts."""
        if self._error is None:
            self._error = error
            self._wakeup.wake()

    def forget(self) -> None:
        """Drop the report: the device is there again."""
        self._error = None

    async def wait(self) -> NoReturn:
        """Wait until the device is gone, and raise the error."""
        await self._wakeup.until(lambda: self._error)
        assert self._error is not None
        raise self._error


T = TypeVar("T")


class Style(enum.Enum):
    """The place where a bus may run the driver's operations."""

    INLINE = "inline"
    """In the bus's task: every operation is bounded to microseconds and never blocks."""
    THREAD = "thread"
    """In the bus's own thread(s): an operation may block in the kernel."""
    ASYNC = "async"
    """In the bus's task, shielded: an operation is a coroutine function over pollable descriptors or virtual time."""


class Driver(Protocol):
    """The driver of one bus."""

    @property
    def style(self) -> Style:
        """Return the way in which operations must be run."""
        ...

    @property
    def width(self) -> int:
        """Return how many transactions may run at once: 1 for a real bus, more for pools (files, telemetry)."""
        ...

    @property
    def opens_in_thread(self) -> bool:
        """True if `open` and `close` may block although the style is not THREAD: the bus calls them in a thread."""
        ...

    @property
    def shares(self) -> str | None:
        """While it is open: return the name of the bus's device, if other buses use it too; else None.

        Buses of style THREAD that name the same device take turns: a transaction of one begins when that of the other
        has returned, as if they were one bus.
        """
        ...

    def open(self) -> None:
        """Acquire the device. Raises DeviceError (missing, no permission) or ResourceBusy (held by another process).

        It is called again after a `close`, as often as the device disappears, and leaves nothing acquired when it
        raises. Where style is THREAD, or `opens_in_thread`, it may block, in a thread that is not the bus's own.
        """

    def close(self) -> None:
        """Release the device; idempotent, and safe after a failed `open`.

        Nothing uses the driver any more when it is called: transactions and `pump` have ended. Where style is THREAD,
        or `opens_in_thread`, it is called in a thread and may block; else it must not. It ends listeners beside the bus
        (a watch, a read that waits for bytes) with an error that says why.
        """

    async def pump(self) -> None:
        """Feed asynchronous input (edges, received bytes) to its listeners while the driver is open.

        Runs beside the transactions, in the bus's nursery and the Trio thread; returns at once where there is nothing
        to feed or to wait for. Raises DeviceError when the device is gone, at once and without polling for it.
        """

    def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        """A transaction: bring these outputs to the board's safe state, except those with `hold = "keep"`.

        `outputs` are those that transactions declared to drive: strings, integers, or tuples of them, since they are
        written to a file for the run after a crash. They may come from a run with another profile: an unknown one is
        reported and left alone. Returns a list of JSON objects that say what was done (`{"line": 17, "safe": 0}`); an
        object with an `error` is an output that is not safe, for which the bus asks again when it is reopened and at
        the next start.
        """
        ...

    def halt(self, outputs: Iterable[Hashable]) -> Any:
        """A transaction, `make_safe` for a halt: outputs with `hold = "keep"` go to their safe state too."""
        ...

    def forget(self, session_id: str) -> None:
        """Drop the state kept for a session that has ended. Called in the Trio thread; touches no device."""

    def describe(self) -> Mapping[str, Any]:
        """Return a JSON object about the device for `hw.*` and health; touches no hardware."""
        ...


class BaseDriver:
    """Default implementations, for drivers that need no others."""

    style = Style.THREAD
    width = 1
    opens_in_thread = False
    shares: str | None = None
    simulated = False
    """True for a driver that reaches no hardware. One that does not say so reaches some."""
    halted = False
    """Set by the bus before `open`: while it is true, `open` drives no output."""

    @property
    def advice(self) -> Sequence[tuple[str, str]]:
        """Return what was seen that a key of the board profile would mend, each with that cure; for health."""
        return ()

    def open(self) -> None:
        """Do nothing: there is nothing to acquire."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def pump(self) -> None:
        """Return at once: there is no asynchronous input."""

    def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        """Do nothing: there are no outputs to bring to a safe state."""
        return []

    def halt(self, outputs: Iterable[Hashable]) -> Any:
        """Bring the outputs to their safe state as `make_safe` does: a driver without `hold` has no other."""
        return self.make_safe(outputs)

    def forget(self, session_id: str) -> None:
        """Do nothing: nothing is kept for a session."""

    def describe(self) -> Mapping[str, Any]:
        """Return an empty object."""
        return {}


def finish_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never really suspends, in a thread that has no event loop.

    One simulated device can serve both styles: with a blocking `pause` it is driven by this function in a bus's thread,
    with `trio.sleep` it is awaited in the bus's task under virtual time.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("a THREAD-style operation tried to suspend; only ASYNC-style drivers may await")
