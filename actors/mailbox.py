"""How actors talk: a `Mailbox` that an actor drains in batches, and a `Slot` that carries one answer back.

A mailbox is a Trio memory channel with the two habits every actor here has: senders never wait (`post` is for queues
that cannot be full by design: their bound is kept where requests enter), and the owner takes all that is there in one
wake-up. A slot is filled once by the answering actor and awaited by one asker. Neither knows what it carries.
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
        """Leave a message and go on at once. Raises trio.BrokenResourceError when the owner has closed its mailbox."""
        self._send.send_nowait(message)

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
        """All messages that are there, without waiting."""
        messages: list[T] = []
        try:
            while True:
                messages.append(self._receive.receive_nowait())
        except trio.WouldBlock:
            return messages

    def close(self) -> None:
        """Refuse further messages, and lose those that are there: `drain` first."""
        self._receive.close()


class Slot(Generic[T]):
    """One answer, from the actor that fills it to the one task that awaits it.

    `get` is a checkpoint only if the answer is not there yet: an asker whose answer came first goes straight on.
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
        """Give the answer. A second answer is a bug and raises RuntimeError."""
        if self._value is not _EMPTY or self._error is not None:
            raise RuntimeError("this slot has been answered already")
        self._value = value
        if self._task is not None:
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Answer with an error, raised by `get`."""
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
        """Called when the asker is cancelled while waiting: True lets it go, False keeps it until the answer comes.

        The plain slot lets go. A bus ticket overrides this: that one method is the whole of the rule that a transaction
        which has begun is never interrupted.
        """
        return True

    async def get(self) -> T:
        """Wait for the answer and return it, or raise the error it was failed with."""
        if self._value is _EMPTY and self._error is None:
            await self.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The traceback has this frame, and we have the error: only a collector would free the two.
                del self
        return self._value

    async def wait(self) -> None:
        """Wait for the answer and leave it there."""
        if not self.filled:
            self._task = trio.lowlevel.current_task()

            def abort(_raise_cancel: Any) -> trio.lowlevel.Abort:
                if self.abort():
                    self._task = None
                    return trio.lowlevel.Abort.SUCCEEDED
                return trio.lowlevel.Abort.FAILED

            await trio.lowlevel.wait_task_rescheduled(abort)
