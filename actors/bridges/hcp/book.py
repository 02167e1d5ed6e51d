"""The book: what HCP's jobs must not forget when the daemon dies, in one SQLite file.

Owns who holds which message: each is answered once, however often it is sent. Everything else that it is asked it has
done: the operations are `book_rows`'s and `book_keeping`'s, their order and their commits the `book_clerk`'s, and the
file is `book_file`'s.
"""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio

from hearth.actors.bridges.hcp import book_keeping, book_rows
from hearth.actors.bridges.hcp.book_clerk import Clerk
from hearth.actors.bridges.hcp.book_file import BookFile
from hearth.actors.bridges.hcp.book_rows import (
    BookError as BookError,
    Claim as Claim,
    Limits as Limits,
    SessionRow as SessionRow,
    StoryFull as StoryFull,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hearth.audit.settings import Durability
    from hearth.hcp.messages import Artifact
    from hearth.hcp.values import State

_PRUNE_EVERY: Final = 256
"""After how many rejections the oldest are looked for: they cost a caller nothing."""


class _Held:
    """A message that somebody has, from `claim` until it is answered or released."""

    __slots__ = ("digest", "looked")

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.looked: trio.Event | None = None
        """Set when the book has been asked whether it was answered before; None from then on."""


class Book:
    """One book. `open` it, then `run` it in a nursery; ask while it runs.

    All of its coroutines raise BookError, one line that says why: then what was asked has had no effect, unless the
    disk failed while it synced, when nobody can tell. The book stays usable: each operation tries anew. Who is
    cancelled takes back what has not begun, and waits for what has. The clock gives epoch seconds.
    """

    def __init__(
        self,
        directory: Path,
        *,
        durability: Durability = "os",
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = BookFile(directory, durability)
        self._clerk = Clerk(self._file)
        self._limits = Limits() if limits is None else limits
        self._clock = clock
        self._held: dict[tuple[str, str], _Held] = {}
        self._refused = 0
        """Rejections of this run, whoever's message it was."""
        self._ended: dict[str, float] = {}
        """When sessions of this run ended, by a clock that nobody sets."""

    # --- its life

    def open(self) -> list[str]:
        """Lock, repair and read the book; notes for a person, one line each. A new one is made when it is first asked.

        Blocking; call it before `run`. What is damaged is moved aside, and a note says so. Raises ConfigError if
        another process uses it, if it is somebody else's or a newer release's, or if it cannot be read.
        """
        return self._file.open(self._clock())

    def close(self) -> None:
        """Close a book that was opened and will not run. Blocking; idempotent."""
        self._file.close()

    @property
    def key(self) -> bytes:
        """The secret that session tokens are made with: as old as the book."""
        return self._file.key

    @property
    def aside(self) -> str | None:
        """What the names of a damaged book's files end in, if that was moved aside when this one was opened."""
        return self._file.aside

    @property
    def unfinished(self) -> tuple[SessionRow, ...]:
        """The sessions that had not ended when the book was opened, in the order in which they began."""
        return self._file.unfinished

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what is asked, until cancelled; then what was asked by then, within `FLUSH_LIMIT_S`, and end.

        What is asked after that is refused. It can be run once.
        """
        await self._clerk.run(task_status=task_status)

    async def aclose(self) -> None:
        """End `run`, and close the file. Idempotent; cancellation does not cut it short; does not raise."""
        await self._clerk.aclose()

    # --- messages: each is answered once

    async def claim(self, principal: str, message_id: str, digest: str) -> Claim:
        """Ask for a message, to answer it; `digest` stands for what it says. See Claim for what comes back.

        A claim that is "new" is held until it is answered, released, or the process ends. One that is "pending" comes
        back at once, without a checkpoint, if whoever holds it has got his claim by then.
        """
        key = principal, message_id
        while (held := self._held.get(key)) is not None:
            if held.digest != digest:
                return Claim("conflict")
            if held.looked is None:
                return Claim("pending")
            await held.looked.wait()
        held, looked = _Held(digest), trio.Event()
        held.looked, self._held[key] = looked, held
        new = False
        try:
            answered = await self._clerk.read(book_rows.find_answer, principal, message_id, digest)
            new = answered is None
        finally:
            held.looked = None
            if not new:
                del self._held[key]
            looked.set()
        return answered or Claim("new")

    async def answer(
        self,
        principal: str,
        message_id: str,
        line: bytes,
        session: SessionRow | None = None,
        outcomes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Remember what a message that is held has been answered, and let go of it.

        With a `session` the message has begun that one: its story begins with the answer, and its checkpoints with
        `outcomes`, those of the one that it goes on from. If this raises BookError, the message is still held. Raises
        KeyError for a message that nobody holds.
        """
        key = principal, message_id
        message = (principal, message_id, self._held[key].digest)
        told = [orjson.dumps(outcome) for outcome in outcomes]
        await self._clerk.write(book_rows.put_answer, message, line, session, told, self._clock())
        self._held.pop(key, None)
        self._refused += session is None
        if session is None and not self._refused % _PRUNE_EVERY:
            self._clerk.write_later(book_keeping.forget_refusals, self._limits)

    async def release(self, principal: str, message_id: str) -> None:
        """Let go of a message without an answer: if it comes again, it is new."""
        self._held.pop((principal, message_id), None)

    # --- sessions

    async def append(
        self, session_id: str, lines: Sequence[bytes], *, phase: str | None = None, state: State | None = None
    ) -> None:
        """Go on with a session's story; `phase` and `state` where they change. Raises StoryFull."""
        await self._clerk.write(
            book_rows.add_lines, session_id, lines, self._limits, phase=phase, state=state, now=self._clock()
        )

    async def record(
        self,
        session_id: str,
        number: int,
        outcome: Mapping[str, Any],
        lines: Sequence[bytes],
        *,
        phase: str | None = None,
        state: State | None = None,
    ) -> None:
        """Write record `number`: an operation with its outcome, and the messages that tell of it. Raises StoryFull."""
        await self._clerk.write(
            book_rows.add_checkpoint,
            session_id,
            number,
            str(outcome.get("position", "")),
            orjson.dumps(outcome),
            lines,
            self._limits,
            phase=phase,
            state=state,
            now=self._clock(),
        )

    async def begin(self, session_id: str, position: str, operation: Mapping[str, Any]) -> None:
        """Write down that an operation begins which may have an effect; `record` and `withdraw` undo that."""
        await self._clerk.write(book_rows.begin_operation, session_id, position, orjson.dumps(operation))

    async def withdraw(self, session_id: str, position: str) -> None:
        """Forget that an operation began: it had no effect."""
        await self._clerk.write(book_rows.withdraw_operation, session_id, position)

    async def begun(self, session_id: str) -> list[dict[str, Any]]:
        """The operations of which only the beginning is on record, in their order."""
        return [orjson.loads(text) for text in await self._clerk.read(book_rows.begun_operations, session_id)]

    async def end(self, session_id: str, state: State, lines: Sequence[bytes]) -> None:
        """Write a session's last messages, however long its story is, and the state in which it has ended."""
        await self._clerk.write(book_rows.end_session, session_id, state, lines, self._clock())
        self._ended[session_id] = trio.current_time()

    async def session(self, session_id: str) -> SessionRow | None:
        """A session; None if there is none, or none any more."""
        return await self._clerk.read(book_rows.find_session, session_id)

    async def sessions(self, principal: str, most: int) -> list[SessionRow]:
        """A principal's sessions, the newest first."""
        return await self._clerk.read(book_rows.newest_sessions, principal, most)

    async def story(self, session_id: str) -> list[bytes]:
        """A session's messages, each a whole line; none if there is no such session."""
        return await self._clerk.read(book_rows.read_story, session_id)

    async def outcomes(self, session_id: str, upto: int) -> list[dict[str, Any]]:
        """The outcomes 1 to `upto` of a session. Raises BookError unless all of them are there."""
        return await self._clerk.read(_read_outcomes, session_id, upto)

    async def expire(self, now: float, retention_s: float) -> list[str]:
        """Forget what ended longer ago than that, and what is past the bounds; the ids of sessions that are forgotten.

        Their artifacts' files are left to whoever keeps those. What ended in this run is as old as time has passed,
        whatever the clock on the wall has been set to since: a board without a battery learns the date late.
        """
        young = trio.current_time() - retention_s
        spared = frozenset(session_id for session_id, ended in self._ended.items() if ended > young)
        gone = await self._clerk.write(book_keeping.forget_old, now - retention_s, spared, self._limits)
        for session_id in gone:
            self._ended.pop(session_id, None)
        with suppress(BookError):  # what is forgotten is forgotten; the room comes back another time
            await self._clerk.read(book_keeping.give_back)
        return gone

    # --- artifacts, for the store that keeps their files

    async def admit(self, session_id: str, file: str, artifact: Artifact, most: int) -> list[tuple[str, str]]:
        """Note an artifact whose file is there; returns those (session_id, file) that had to give way to it.

        All artifacts together have at most `most` bytes. Raises NoRoom where nothing that may give way is left.
        """
        return await self._clerk.write(book_keeping.admit_artifact, session_id, file, artifact, most)

    async def artifact(self, session_id: str, file: str) -> Artifact | None:
        """An artifact; None if there is none, or none any more."""
        return await self._clerk.read(book_keeping.find_artifact, session_id, file)

    async def artifacts(self, session_id: str) -> list[Artifact]:
        """A session's artifacts, in the order in which they were kept."""
        return await self._clerk.read(book_keeping.list_artifacts, session_id)

    def settle_artifacts(self, there: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Forget the artifacts of which no file is `there`; returns those (session_id, file) that are left.

        Blocking; for the time between `open` and `run`. Raises BookError.
        """
        if self._file.fresh:
            return set()
        return set(self._file.write([functools.partial(book_keeping.settle_artifacts, there=there)])[0].unwrap())


def _read_outcomes(book: sqlite3.Connection, session_id: str, upto: int) -> list[dict[str, Any]]:
    return [orjson.loads(text) for text in book_rows.read_outcomes(book, session_id, upto)]
