"""How asynchronous input reaches a waiting step: the bridge from a driver's hands to a task off the bus.

It owns the question "who must look again?", and nothing else: the state that is looked at stays with whoever
keeps it. It may be rung from the Trio thread and from a bus's own thread alike, and never loses a ring. `Departure`
is the one such state that drivers share: that the device is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.errors import DeviceError


class Wakeup:
    """Lets any number of tasks wait until something they can see has become true."""

    __slots__ = ("_event", "_token")

    def __init__(self) -> None:
        self._event: trio.Event | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    def wake(self) -> None:
        """Make every waiter look again.

        Call it after the change, from any thread; costs nothing when nobody waits.
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
                # A thread may have changed the world before it could see this event: look once more.
                if ready():
                    return
            await event.wait()


class Departure:
    """How a driver says from a transaction that its device is gone, where nothing that can be polled would tell.

    The transaction calls `tell` and then fails as it would anyway; the driver's `pump` is `await departure.wait()`,
    which raises what was told, and so brings the bus down and has it opened again. `open` calls `forget`. From any
    thread.
    """

    __slots__ = ("_error", "_wakeup")

    def __init__(self) -> None:
        self._error: DeviceError | None = None
        self._wakeup = Wakeup()

    def tell(self, error: DeviceError) -> None:
        """The device is gone, because of `error`; only the first one counts."""
        if self._error is None:
            self._error = error
            self._wakeup.wake()

    def forget(self) -> None:
        """The device is there again."""
        self._error = None

    async def wait(self) -> NoReturn:
        """Wait until the device is gone, and raise why."""
        await self._wakeup.until(lambda: self._error)
        assert self._error is not None
        raise self._error
