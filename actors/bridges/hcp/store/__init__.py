"""The job store: what HCP's jobs must not forget when the daemon dies, in one SQLite file.

Owns who holds which message: each is answered once, however often it is sent; and the order of the operations and their
commits. The operations are `book_rows`'s, the file is `book_file`'s.
"""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
import outcome
import trio

from hearth._util.threads import Background
from hearth.actors.bridges.hcp.store import queries
from hearth.actors.bridges.hcp.store.database import JobDatabase
from hearth.actors.bridges.hcp.store.queries import (
    Claim as Claim,
    JobStoreError as JobStoreError,
    Limits as Limits,
    MessageLogFull as MessageLogFull,
    SessionRow as SessionRow,
)
from hearth.actors.mailbox import Mailbox, Slot

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hearth.audit.log import Durability
    from hearth.hcp.messages import Artifact, State

# --- Who does what is asked of the job store, in order, in one thread at a time: the actor behind `job_store`
#
# It takes operations in the order in which they were asked. Those that write, and are there together, are one commit;
# an asker goes on once its commit is as durable as configured. One that is cancelled before its operation has begun
# takes it back; afterwards it waits for what came of it, as with a transaction on a bus. So the job store never says
# what nobody did, nor the other way round. What the operations are it does not know.

FLUSH_LIMIT_S: Final = 5.0
"""How long the last commits may take once the job store is told to end; a disk that hangs must not keep the process."""

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


class DatabaseActor:
    """The actor. `run` it in a nursery; what is asked before that waits for it."""

    def __init__(self, file: JobDatabase) -> None:
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
        """Have an operation done in a transaction, and return what it returns. Raises JobStoreError."""
        written: T = await self._post(lambda job_store: operation(job_store, *args, **named), writes=True).get()
        return written

    async def read(self, operation: Callable[..., T], *args: Any) -> T:
        """Have an operation done that writes nothing, or wants no transaction around it. Raises JobStoreError."""
        read: T = await self._post(lambda job_store: operation(job_store, *args), writes=False).get()
        return read

    def write_later(self, operation: Callable[..., Any], *args: Any) -> None:
        """Have an operation done in a transaction; nobody waits for it, and nobody is told that it failed."""
        if not self._closed:
            self._post(lambda job_store: operation(job_store, *args), writes=True)

    def _post(self, operation: Callable[[sqlite3.Connection], Any], *, writes: bool) -> _Asked:
        if self._closed:
            raise JobStoreError(f"HCP job store {self._file.path}: closed")
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
                asked.fail(JobStoreError(f"HCP job store {self._file.path}: {reason}"))

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


# --- The job store itself

_PRUNE_EVERY: Final = 256
"""After how many rejections the oldest are looked for: they cost a caller nothing."""


class _Held:
    """A message that somebody has, from `claim` until it is answered or released."""

    __slots__ = ("digest", "looked")

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.looked: trio.Event | None = None
        """Set when the job store has been asked whether it was answered before; None from then on."""


class JobStore(DatabaseActor):
    """One job store. `open` it, then `run` it in a nursery; ask while it runs.

    All of its coroutines raise JobStoreError, one line that says why: then what was asked has had no effect, unless the
    disk failed while it synced, when nobody can tell. The job store stays usable: each operation tries anew. Who is
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
        super().__init__(JobDatabase(directory, durability))
        self._limits = Limits() if limits is None else limits
        self._clock = clock
        self._held: dict[tuple[str, str], _Held] = {}
        self._refused = 0
        """Rejections of this run, whoever's message it was."""
        self._ended: dict[str, float] = {}
        """When sessions of this run ended, by a clock that nobody sets."""

    # --- its life

    def open(self) -> list[str]:
        """Lock, repair and read the job store; return notes for a person. A new one is made when it is first used.

        Blocking; call it before `run`. What is damaged is moved aside, and a note says so. Raises ConfigError if
        another process uses it, if it is somebody else's or a newer release's, or if it cannot be read.
        """
        return self._file.open(self._clock())

    def close(self) -> None:
        """Close a job store that was opened and will not run. Blocking; idempotent."""
        self._file.close()

    @property
    def key(self) -> bytes:
        """The secret that session tokens are made with: as old as the job store."""
        return self._file.key

    @property
    def aside(self) -> str | None:
        """What the names of a damaged store's files end in, if that was moved aside when this one was opened."""
        return self._file.aside

    @property
    def unfinished(self) -> tuple[SessionRow, ...]:
        """The sessions that had not ended when the job store was opened, in the order in which they began."""
        return self._file.unfinished

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
            answered = await self.read(queries.find_answer, principal, message_id, digest)
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
        `outcomes`, those of the one that it goes on from. If this raises JobStoreError, the message is still held.
        Raises KeyError for a message that nobody holds.
        """
        key = principal, message_id
        message = (principal, message_id, self._held[key].digest)
        told = [orjson.dumps(outcome) for outcome in outcomes]
        await self.write(queries.put_answer, message, line, session, told, self._clock())
        self._held.pop(key, None)
        self._refused += session is None
        if session is None and not self._refused % _PRUNE_EVERY:
            self.write_later(queries.forget_refusals, self._limits)

    async def release(self, principal: str, message_id: str) -> None:
        """Let go of a message without an answer: if it comes again, it is new."""
        self._held.pop((principal, message_id), None)

    # --- sessions

    async def append(
        self, session_id: str, lines: Sequence[bytes], *, phase: str | None = None, state: State | None = None
    ) -> None:
        """Go on with a session's story; `phase` and `state` where they change. Raises MessageLogFull."""
        await self.write(
            queries.add_lines, session_id, lines, self._limits, phase=phase, state=state, now=self._clock()
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
        """Write record `number`: an operation with its outcome, and its messages. Raises MessageLogFull."""
        await self.write(
            queries.add_checkpoint,
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
        await self.write(queries.begin_operation, session_id, position, orjson.dumps(operation))

    async def withdraw(self, session_id: str, position: str) -> None:
        """Forget that an operation began: it had no effect."""
        await self.write(queries.withdraw_operation, session_id, position)

    async def begun(self, session_id: str) -> list[dict[str, Any]]:
        """The operations of which only the beginning is on record, in their order."""
        return [orjson.loads(text) for text in await self.read(queries.begun_operations, session_id)]

    async def end(self, session_id: str, state: State, lines: Sequence[bytes]) -> None:
        """Write a session's last messages, however long its story is, and the state in which it has ended."""
        await self.write(queries.end_session, session_id, state, lines, self._clock())
        self._ended[session_id] = trio.current_time()

    async def session(self, session_id: str) -> SessionRow | None:
        """A session; None if there is none, or none any more."""
        return await self.read(queries.find_session, session_id)

    async def sessions(self, principal: str, most: int) -> list[SessionRow]:
        """A principal's sessions, the newest first."""
        return await self.read(queries.newest_sessions, principal, most)

    async def message_log(self, session_id: str) -> list[bytes]:
        """A session's messages, each a whole line; none if there is no such session."""
        return await self.read(queries.read_messages, session_id)

    async def outcomes(self, session_id: str, upto: int) -> list[dict[str, Any]]:
        """The outcomes 1 to `upto` of a session. Raises JobStoreError unless all of them are there."""
        return await self.read(_read_outcomes, session_id, upto)

    async def expire(self, now: float, retention_s: float) -> list[str]:
        """Forget what ended longer ago than that, and what is past the bounds; the ids of sessions that are forgotten.

        Their artifacts' files are left to whoever keeps those. What ended in this run is as old as time has passed,
        whatever the clock on the wall has been set to since: a board without a battery learns the date late.
        """
        young = trio.current_time() - retention_s
        spared = frozenset(session_id for session_id, ended in self._ended.items() if ended > young)
        gone = await self.write(queries.forget_old, now - retention_s, spared, self._limits)
        for session_id in gone:
            self._ended.pop(session_id, None)
        with suppress(JobStoreError):  # what is forgotten is forgotten; the room comes back another time
            await self.read(queries.give_back)
        return gone

    # --- artifacts, for the store that keeps their files

    async def admit(self, session_id: str, file: str, artifact: Artifact, most: int) -> list[tuple[str, str]]:
        """Note an artifact whose file is there; returns those (session_id, file) that had to give way to it.

        All artifacts together have at most `most` bytes. Raises NoRoom where nothing that may give way is left.
        """
        return await self.write(queries.admit_artifact, session_id, file, artifact, most)

    async def artifact(self, session_id: str, file: str) -> Artifact | None:
        """An artifact; None if there is none, or none any more."""
        return await self.read(queries.find_artifact, session_id, file)

    async def artifacts(self, session_id: str) -> list[Artifact]:
        """A session's artifacts, in the order in which they were kept."""
        return await self.read(queries.list_artifacts, session_id)

    def settle_artifacts(self, there: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Forget the artifacts of which no file is `there`; returns those (session_id, file) that are left.

        Blocking; for the time between `open` and `run`. Raises JobStoreError.
        """
        if self._file.fresh:
            return set()
        return set(self._file.write([functools.partial(queries.settle_artifacts, there=there)])[0].unwrap())


def _read_outcomes(job_store: sqlite3.Connection, session_id: str, upto: int) -> list[dict[str, Any]]:
    return [orjson.loads(text) for text in queries.read_outcomes(job_store, session_id, upto)]
