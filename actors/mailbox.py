"""Messages between actors: a `Mailbox` that an actor drains in batches, and a `Slot` that carries one answer back.

A mailbox is a Trio memory channel with two rules. Senders never wait: `post` is for queues whose bound is kept where
requests enter. The owner takes all messages that are there in one wake-up. A slot is filled once by the answering
actor, and awaited by one task. Neither reads what it carries.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import trio

T = TypeVar("T")

_EMPTY: Any = object()


class Mailbox(Generic[T]):
    """An actor's inbox. Only its owner calls `batch`."""

    __slots__ = ("_receive", "_send")

    def __init__(self) -> None:
        self._send: trio.MemorySendChannel[T]
        self._receive: trio.MemoryReceiveChannel[T]
        self._send, self._receive = trio.open_memory_channel[T](math.inf)

    def post(self, message: T) -> None:
        """Add a message without waiting. Raises trio.BrokenResourceError when the owner has closed its mailbox."""
        self._send.send_nowait(message)

    @property
    def empty(self) -> bool:
        """True if no message is there."""
        return not self._receive.statistics().current_buffer_used

    async def batch(self) -> list[T]:
        """Wait for a message; return it and all others that are there, oldest first."""
        messages = [await self._receive.receive()]
        take = self._receive.receive_nowait
        try:
            while True:
                messages.append(take())
        except trio.WouldBlock:
            return messages

    def drain(self) -> list[T]:
        """Return all messages that are there, without waiting."""
        messages: list[T] = []
        try:
            while True:
                messages.append(self._receive.receive_nowait())
        except trio.WouldBlock:
            return messages

    def close(self) -> None:
        """Reject further messages, and drop those that are there; call `drain` first."""
        self._receive.close()


class Slot(Generic[T]):
    """One answer, from the actor that fills it to the one task that awaits it.

    `get` is a checkpoint only if the answer is not there yet. At most one task may wait.
    """

    __slots__ = ("_error", "_task", "_value")

    def __init__(self) -> None:
        self._value: T = _EMPTY
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None

    @property
    def filled(self) -> bool:
        """True once an answer or an error is there."""
        return self._value is not _EMPTY or self._error is not None

    def fill(self, value: T) -> None:
        """Store the answer and wake the waiting task. Raises RuntimeError for a second answer, which is a bug."""
        if self._value is not _EMPTY or self._error is not None:
            raise RuntimeError("this slot has been answered already")
        self._value = value
        if self._task is not None:
            # HOT: as `_wake` has it.
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def fail(self, error: BaseException) -> None:
        """Store an error, which `get` raises, and wake the waiting task. Raises RuntimeError as `fill` does."""
        if self.filled:
            raise RuntimeError("this slot has been answered already")
        self._error = error
        if self._task is not None:
            self._wake()

    def _wake(self) -> None:
        task, self._task = self._task, None
        assert task is not None
        trio.lowlevel.reschedule(task)

    def abort(self) -> bool:
        """Return True to let a waiting task that is cancelled go, False to keep it until the answer comes.

        The plain slot returns True. A bus ticket overrides this method: it is the whole of the rule that a transaction
        which has begun is never interrupted (see `bus.queue`).
        """
        return True

    async def get(self) -> T:
        """Wait for the answer and return it, or raise the error it was failed with."""
        if self._value is _EMPTY and self._error is None:
            await self.wait()
        return self._value if self._error is None else self.get_nowait()

    def get_nowait(self) -> T:
        """Return the answer, or raise the error; only for a slot that is `filled`."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The error's traceback refers to this frame, and `self` to the error. Break the cycle here, because
                # only the garbage collector would free it.
                del self
        return self._value

    async def wait(self) -> None:
        """Wait until the answer is there, without returning it."""
        if self._value is _EMPTY and self._error is None:
            self._task = trio.lowlevel.current_task()

            def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
                if self.abort():
                    self._task = None
                    return trio.lowlevel.Abort.SUCCEEDED
                return trio.lowlevel.Abort.FAILED

            await trio.lowlevel.wait_task_rescheduled(abort)
