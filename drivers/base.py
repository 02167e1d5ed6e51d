"""The driver Protocol: what a bus actor needs of the hands, and the little that all drivers share.

A driver is small, bounded in time and has one caller: the bus that owns it. It knows no actor, no session and no
policy. A transaction is a callable that gets the driver and returns a value (or, for ASYNC drivers, a coroutine); the
bus runs it whole. A driver that fails raises `DeviceError` (or `ResourceBusy` for a device another process holds) and
says what became of the world in `effect`; any other exception is a bug, and the bus that saw it is reopened.

A device that disappears is told by `pump`, and by nothing else: the transaction that met it fails like any other,
`pump` raises the DeviceError that says so, and the bus goes down with that reason, is closed, and is opened again with
growing pauses until `open` succeeds (see docs/decisions). A driver whose descriptor can be polled sees the end there;
one that learns of it in a transaction hands it to its pump through `hearth.drivers.wakeup.Departure`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable, Iterable, Mapping

T = TypeVar("T")


class Style(enum.Enum):
    """Where a bus may run the driver's operations."""

    INLINE = "inline"
    """In the bus's task: every operation is bounded to microseconds and never blocks."""
    THREAD = "thread"
    """In the bus's own thread(s): an operation may block in the kernel."""
    ASYNC = "async"
    """In the bus's task, shielded: an operation is a coroutine function over pollable descriptors or virtual time."""


class Driver(Protocol):
    """One bus's hands."""

    @property
    def style(self) -> Style:
        """How operations must be run."""
        ...

    @property
    def width(self) -> int:
        """How many transactions may run at once: 1 for a real bus, more for pools (files, telemetry)."""
        ...

    @property
    def opens_in_thread(self) -> bool:
        """True if `open` and `close` may block although the style is not THREAD: the bus calls them in a thread."""
        ...

    @property
    def shares(self) -> str | None:
        """While it is open: what this bus's device is called, if other buses are on it too; else None.

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

        Nobody uses the driver any more when it is called: transactions and `pump` have ended. Where style is THREAD, or
        `opens_in_thread`, it is called in a thread and may block; else it must not. It ends what listens beside the bus
        (a watch, a read that waits for bytes) with an error that says why.
        """

    async def pump(self) -> None:
        """Feed asynchronous input (edges, received bytes) to its listeners while the driver is open.

        Runs beside the transactions, in the bus's nursery and the Trio thread; returns at once where there is nothing
        to feed or to wait for. Raises DeviceError when the device is gone, at once and without polling for it.
        """

    def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        """A transaction: bring these outputs to the board's safe state, except those with `hold = "keep"`.

        `outputs` are what transactions were said to drive: strings, integers, or tuples of them, since they are written
        down for the run after a crash. They may come from a run with another profile: one that is not known is reported
        and left alone. Returns a list of JSON objects that say what was done (`{"line": 17, "safe": 0}`); an object
        with an `error` is an output that is not safe, for which the bus asks again when it is reopened and at the next
        start.
        """
        ...

    def forget(self, session_id: str) -> None:
        """The session has ended: drop what is kept for it. Called in the Trio thread; touches no device."""

    def describe(self) -> Mapping[str, Any]:
        """A JSON object about the device for `hw.*` and health; touches no hardware."""
        ...


class BaseDriver:
    """The uninteresting answers, for drivers that have no better ones."""

    style = Style.THREAD
    width = 1
    opens_in_thread = False
    shares: str | None = None

    def open(self) -> None:
        """Nothing to acquire."""

    def close(self) -> None:
        """Nothing to release."""

    async def pump(self) -> None:
        """No asynchronous input."""

    def make_safe(self, outputs: Iterable[Hashable]) -> Any:
        """No outputs: nothing to bring to a safe state."""
        return []

    def forget(self, session_id: str) -> None:
        """Nothing is kept for a session."""

    def describe(self) -> Mapping[str, Any]:
        """Nothing to tell."""
        return {}


def finish_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never really suspends, in a thread that has no event loop.

    It lets one simulated device serve both styles: with a blocking `pause` it is driven by this function in a bus's
    thread, with `trio.sleep` it is awaited in the bus's task under virtual time.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("a THREAD-style operation tried to suspend; only ASYNC-style drivers may await")
