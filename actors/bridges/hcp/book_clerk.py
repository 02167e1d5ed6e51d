"""Who does what is asked of the book, in order, in one thread at a time: the actor behind `book`.

It takes operations in the order in which they were asked. Those that write, and are there together, are one commit; an
asker goes on once its commit is as durable as configured. One that is cancelled before its operation has begun takes
it back; afterwards it waits for what came of it, as with a transaction on a bus. So the book never says what nobody
did, nor the other way round. What the operations are it does not know.
"""

from __future__ import annotations

import functools
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import outcome
import trio

from hearth.actors.bridges.hcp.book_rows import BookError
from hearth.actors.mailbox import Mailbox, Slot
from hearth.actors.threads import Background

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from hearth.actors.bridges.hcp.book_file import BookFile

FLUSH_LIMIT_S: Final = 5.0
"""How long the last commits may take once the book is told to end; a disk that hangs must not keep the process."""

T = TypeVar("T")


class _Asked(Slot[Any]):
    """One operation and its answer."""

    __slots__ = ("begun", "operation", "withdrawn", "writes")

    def __init__(self, operation: Callable[[sqlite3.Connection], Any] | None, *, writes: bool) -> None:
        super().__init__()
        self.operation = operation
        """None only wakes the actor up."""
        self.writes = writes
        self.begun = self.withdrawn = False

    def abort(self) -> bool:
        """See Slot: what has begun is waited for."""
        self.withdrawn = not self.begun
        return self.withdrawn


class Clerk:
    """The actor. `run` it in a nursery; what is asked before that waits for it."""

    def __init__(self, file: BookFile) -> None:
        self._file = file
        self._mailbox: Mailbox[_Asked] = Mailbox()
        self._limiter = trio.CapacityLimiter(1)
        self._running: trio.Event | None = None
        self._guard = trio.CancelScope(shield=True)
        self._stopping = False
        self._closed = False
        """Nothing more is taken."""
        self._left = False
        """The file has been closed, or is left to a thread that does not come back."""

    # --- asking

    async def write(self, operation: Callable[..., T], *args: Any, **named: Any) -> T:
        """Have an operation done in a transaction, and return what it returns. Raises BookError."""
        written: T = await self._post(lambda book: operation(book, *args, **named), writes=True).get()
        return written

    async def read(self, operation: Callable[..., T], *args: Any) -> T:
        """Have an operation done that writes nothing, or wants no transaction around it. Raises BookError."""
        read: T = await self._post(lambda book: operation(book, *args), writes=False).get()
        return read

    def write_later(self, operation: Callable[..., Any], *args: Any) -> None:
        """Have an operation done in a transaction; nobody waits for it, and nobody is told that it failed."""
        if not self._closed:
            self._post(lambda book: operation(book, *args), writes=True)

    def _post(self, operation: Callable[[sqlite3.Connection], Any], *, writes: bool) -> _Asked:
        if self._closed:
            raise BookError(f"HCP book {self._file.path}: closed")
        asked = _Asked(operation, writes=writes)
        self._mailbox.post(asked)
        return asked

    # --- its life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what is asked, until cancelled; then what was asked by then, within `FLUSH_LIMIT_S`, and end.

        What is asked after that is refused. It can be run once.
        """
        running = self._running = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, nursery.cancel_scope)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._stop()
        finally:
            running.set()

    async def aclose(self) -> None:
        """End `run`, and close the file. Idempotent; cancellation does not cut it short; does not raise."""
        with trio.CancelScope(shield=True):
            if self._running is not None and not self._running.is_set():
                self._stop()
                await self._running.wait()
            self._refuse()
            if not self._left:
                self._left = True
                with trio.move_on_after(FLUSH_LIMIT_S):
                    await Background(self._file.close, "hearth-book").wait()

    def _stop(self) -> None:
        if not self._stopping:
            self._guard.deadline = trio.current_time() + FLUSH_LIMIT_S
        self._stopping = True
        self._mailbox.post(_Asked(None, writes=False))

    def _refuse(self) -> None:
        """Take nothing more."""
        self._closed = True
        self._fail(self._mailbox.drain(), "closed")

    def _fail(self, batch: Sequence[_Asked], reason: str) -> None:
        for asked in batch:
            if asked.operation is not None and not asked.withdrawn and not asked.filled:
                asked.fail(BookError(f"HCP book {self._file.path}: {reason}"))

    async def _serve(self, outer: trio.CancelScope) -> None:
        """The loop, out of reach of cancellation from outside; its guard ends it if the last commits take too long."""
        try:
            with self._guard:
                while not self._stopping:
                    await self._do(await self._mailbox.batch())
                while batch := self._mailbox.drain():
                    await self._do(batch)
        finally:
            self._refuse()
        outer.cancel()

    async def _do(self, batch: list[_Asked]) -> None:
        """Do what has been asked, in order, with one commit for those that write and stand together."""
        try:
            for writes, together in groupby(batch, key=attrgetter("writes")):
                await self._do_together(list(together), writes=writes)
        except BaseException:
            # A bug, or a disk that does not answer on the way out.
            self._fail(batch, "it ended before this was safe")
            raise

    async def _do_together(self, batch: list[_Asked], *, writes: bool) -> None:
        group = [asked for asked in batch if asked.operation is not None and not asked.withdrawn]
        if not group:
            return
        for asked in group:
            asked.begun = True
        work = functools.partial(
            self._file.write if writes else self._file.read, [asked.operation for asked in group if asked.operation]
        )
        try:
            results = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:  # it took too long on the way out: the file is left to the thread
            self._left = True
            raise
        for asked, result in zip(group, results, strict=True):
            if isinstance(result, outcome.Value):
                asked.fill(result.value)
            else:
                asked.fail(result.error)  # type: ignore[attr-defined]
