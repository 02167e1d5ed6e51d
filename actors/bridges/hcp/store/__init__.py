"""The job store: the messages, sessions and records of HCP jobs that survive a restart, in one SQLite file.

It owns the claims on messages (each is answered once, however often it is sent) and the order of the operations and
their commits. `queries` holds the operations' SQL, `database` the file.

Theory of operation. Life of a call: waiting -> begun -> answered, in the order of the calls. Cancelling a waiting call
withdraws it, and nothing happens. A begun one is waited for, so its caller always knows what the store holds.

The actor takes all calls that wait, and runs neighbouring ones that write in one transaction, in a thread. SQLite is
used by one thread at a time, because the actor waits for it. During a commit further calls gather in the mailbox: the
slower the disk, the more of them share the next commit.

Life of a claim: `claim` -> held -> `answer` (kept in the file) or `release`. The claim is in memory, the answer in the
file; a claim ends after the commit of its answer. So a message that is sent again finds a holder or an answer at every
moment, and after a crash it finds the answer, or is new and has had no effect.
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
    OutboxLine as OutboxLine,
    SessionRow as SessionRow,
)
from hearth.actors.mailbox import Mailbox, Slot

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hearth.audit.log import Durability
    from hearth.hcp.messages import Artifact, State

# --- The actor: runs database operations in order, one thread at a time --------------------------------------------
#
# It takes operations in the order of the calls. Neighbouring operations that write share one commit, and a caller goes
# on once its commit is as durable as configured. A call that is cancelled before its operation has begun withdraws it;
# later it waits for the outcome, as with a transaction on a bus. So the store never records an operation whose caller
# believes it did not happen, nor the reverse. The actor does not know what the operations mean.

FLUSH_LIMIT_S: Final = 5.0
"""Seconds that the last commits may take at the end; a disk that hangs must not keep the process alive."""

T = TypeVar("T")


class _DatabaseCall(Slot[Any]):
    """One operation and its answer."""

    __slots__ = ("begun", "operation", "withdrawn", "writes")

    def __init__(self, operation: Callable[[sqlite3.Connection], Any] | None, *, writes: bool) -> None:
        super().__init__()
        self.operation = operation
        """None only wakes the actor."""
        self.writes = writes
        self.begun = self.withdrawn = False

    def abort(self) -> bool:
        """See Slot: an operation that has begun is waited for."""
        self.withdrawn = not self.begun
        return self.withdrawn


class DatabaseActor:
    """The actor. `run` it in a nursery; calls made before that wait for it."""

    def __init__(self, file: JobDatabase) -> None:
        self._file = file
        self._mailbox: Mailbox[_DatabaseCall] = Mailbox()
        self._limiter = trio.CapacityLimiter(1)
        self._running: trio.Event | None = None
        self._guard = trio.CancelScope(shield=True)
        self._stopping = False
        self._closed = False
        """True once no more operations are accepted."""
        self._left = False
        """True once the file is closed, or left to a thread that does not return."""

    # --- operations

    async def write(self, operation: Callable[..., T], *args: Any, **named: Any) -> T:
        """Run an operation in a transaction, and return its result. Raises JobStoreError."""
        written: T = await self._post(lambda job_store: operation(job_store, *args, **named), writes=True).get()
        return written

    async def read(self, operation: Callable[..., T], *args: Any) -> T:
        """Run an operation that writes nothing, or needs no transaction. Raises JobStoreError."""
        read: T = await self._post(lambda job_store: operation(job_store, *args), writes=False).get()
        return read

    def write_later(self, operation: Callable[..., Any], *args: Any) -> None:
        """Run an operation in a transaction without waiting for it; a failure is not reported."""
        if not self._closed:
            self._post(lambda job_store: operation(job_store, *args), writes=True)

    def _post(self, operation: Callable[[sqlite3.Connection], Any], *, writes: bool) -> _DatabaseCall:
        if self._closed:
            raise JobStoreError(f"HCP job store {self._file.path}: closed")
        call = _DatabaseCall(operation, writes=writes)
        self._mailbox.post(call)
        return call

    # --- lifetime

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run operations until cancelled; then those posted by then, within `FLUSH_LIMIT_S`, and end.

        Later operations are refused. It can be run once.
        """
        running = self._running = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, nursery.cancel_scope)
                task_status.started()
                try:
                    # `_serve` is shielded, so that cancellation cannot abandon a commit; it is stopped by `_stop`.
                    await trio.sleep_forever()
                finally:
                    self._stop()
        finally:
            running.set()

    async def aclose(self) -> None:
        """End `run`, and close the file. Idempotent; not cut short by cancellation; does not raise."""
        with trio.CancelScope(shield=True):
            if self._running is not None and not self._running.is_set():
                self._stop()
                await self._running.wait()
            self._refuse()
            if not self._left:
                self._left = True
                with trio.move_on_after(FLUSH_LIMIT_S):
                    await Background(self._file.close, "hearth-jobs").wait()

    def _stop(self) -> None:
        if not self._stopping:
            self._guard.deadline = trio.current_time() + FLUSH_LIMIT_S
        self._stopping = True
        # An empty call wakes the loop, which may be waiting for one.
        self._mailbox.post(_DatabaseCall(None, writes=False))

    def _refuse(self) -> None:
        """Refuse all operations that wait and all later ones."""
        self._closed = True
        self._fail(self._mailbox.drain(), "closed")

    def _fail(self, batch: Sequence[_DatabaseCall], reason: str) -> None:
        for call in batch:
            if call.operation is not None and not call.withdrawn and not call.filled:
                call.fail(JobStoreError(f"HCP job store {self._file.path}: {reason}"))

    async def _serve(self, outer: trio.CancelScope) -> None:
        """Run batches, shielded from outside cancellation; the guard ends the loop if the last commits hang."""
        try:
            with self._guard:
                while not self._stopping:
                    await self._do(await self._mailbox.batch())
                while batch := self._mailbox.drain():
                    await self._do(batch)
        finally:
            self._refuse()
        outer.cancel()

    async def _do(self, batch: list[_DatabaseCall]) -> None:
        """Run a batch in order; neighbouring operations that write share one commit."""
        try:
            for writes, together in groupby(batch, key=attrgetter("writes")):
                # HOT: no function of its own, which would be resumed with each answer of the thread.
                group: list[_DatabaseCall] = []
                operations: list[Callable[[sqlite3.Connection], Any]] = []
                for call in together:
                    if call.operation is not None and not call.withdrawn:
                        # No checkpoint before they are all taken, so none of them is withdrawn in between.
                        call.begun = True
                        group.append(call)
                        operations.append(call.operation)
                if not group:
                    continue
                work = functools.partial(self._file.write if writes else self._file.read, operations)
                try:
                    results = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
                except trio.Cancelled:  # the last commits took too long: the file is left to the thread
                    self._left = True
                    raise
                for call, result in zip(group, results, strict=True):
                    if isinstance(result, outcome.Value):
                        call.fill(result.value)
                    else:
                        call.fail(result.error)  # type: ignore[attr-defined]
        except BaseException:
            # A bug, or a disk that does not answer at the end.
            self._fail(batch, "it ended before this was safe")
            raise


# --- The job store itself

_PRUNE_EVERY: Final = 256
"""Rejections stored between two prunings of the oldest."""


class _HeldMessage:
    """A message that a caller has claimed, from `claim` until it is answered or released."""

    __slots__ = ("digest", "searched")

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.searched: trio.Event | None = None
        """Set once the store has been searched for an earlier answer; None from then on."""


class JobStore(DatabaseActor):
    """One job store. `open` it, then `run` it in a nursery; call the operations while it runs.

    Every coroutine raises JobStoreError, with the reason in one line. A failed operation had no effect, unless the disk
    failed while it synced: then the effect is unknown. The store stays usable: each operation tries again. A cancelled
    call withdraws its operation if that has not begun, and waits for it otherwise. The clock gives epoch seconds.
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
        self._held: dict[tuple[str, str], _HeldMessage] = {}
        self._refused = 0
        """Rejections of this run, of all principals."""
        self._ended: dict[str, float] = {}
        """The end of each session of this run, by a monotonic clock."""
        self.on_lines: Callable[[], None] = lambda: None
        """Called after each commit that may have added lines to the outbox."""

    # --- lifetime

    def open(self, now: float | None = None) -> list[str]:
        """Lock, repair and read the store; return notes for the operator. The first operation makes a missing file.

        Blocking; call it before `run`, with `now` in epoch seconds where that is in a thread. A damaged file is moved
        aside, with a note. Raises ConfigError for a file that another process uses, that another user or a newer
        release owns, or that cannot be read.
        """
        return self._file.open(self._clock() if now is None else now)

    def close(self) -> None:
        """Close a store that was opened and will not run. Blocking; idempotent."""
        self._file.close()

    @property
    def key(self) -> bytes:
        """The secret that session tokens are made with: as old as the store."""
        return self._file.key

    @property
    def aside(self) -> str | None:
        """The suffix of a damaged store's files, if that store was moved aside at `open`."""
        return self._file.aside

    @property
    def unfinished(self) -> tuple[SessionRow, ...]:
        """The sessions that had not ended at `open`, in the order in which they began."""
        return self._file.unfinished

    # --- messages: each is answered once

    async def claim(self, principal: str, message_id: str, digest: str) -> Claim:
        """Claim a message, in order to answer it; `digest` identifies its content. See Claim for the result.

        A claim of kind "new" is held until it is answered, released, or the process ends. "pending" returns at once,
        without a checkpoint, if the holder's own `claim` has returned by then.
        """
        key = principal, message_id
        # Wait only for the holder's search of the store: its answer may take as long as an approval.
        while (held := self._held.get(key)) is not None:
            if held.digest != digest:
                return Claim("conflict")
            if held.searched is None:
                return Claim("pending")
            # Then look again: the holder may have failed, and another waiter may have claimed the message first.
            await held.searched.wait()
        held, searched = _HeldMessage(digest), trio.Event()
        held.searched, self._held[key] = searched, held
        new = False
        try:
            answered = await self.read(queries.find_answer, principal, message_id, digest)
            new = answered is None
        finally:
            # Also after an error: each waiter then finds a holder, an answer, or claims the message itself.
            held.searched = None
            if not new:
                del self._held[key]
            searched.set()
        return answered or Claim("new")

    async def answer(
        self,
        principal: str,
        message_id: str,
        line: bytes,
        session: SessionRow | None = None,
        outcomes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Store the answer to a claimed message, and end the claim.

        With a `session` the message has begun that session: its message log begins with the answer, and its checkpoints
        with `outcomes`, those of the session that it resumes. After a JobStoreError the claim still holds. Raises
        KeyError for a message that is not claimed.
        """
        key = principal, message_id
        message = (principal, message_id, self._held[key].digest)
        encoded = [orjson.dumps(outcome) for outcome in outcomes]
        await self.write(queries.put_answer, message, line, session, encoded, self._clock())
        # After the commit: until then a repeated message is pending, and not new.
        self._held.pop(key, None)
        self.on_lines()
        self._refused += session is None
        if session is None and not self._refused % _PRUNE_EVERY:
            self.write_later(queries.forget_refusals, self._limits)

    async def release(self, principal: str, message_id: str) -> None:
        """End a claim without an answer: the same message, sent again, is new."""
        self._held.pop((principal, message_id), None)

    # --- sessions

    async def append(
        self, session_id: str, lines: Sequence[bytes], *, phase: str | None = None, state: State | None = None
    ) -> None:
        """Append to a session's message log; `phase` and `state` where they change. Raises MessageLogFull."""
        await self.write(
            queries.add_lines, session_id, lines, self._limits, phase=phase, state=state, now=self._clock()
        )
        self.on_lines()

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
        """Store record `number`: an operation with its outcome, and its messages. Raises MessageLogFull."""
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
        self.on_lines()

    async def begin(self, session_id: str, position: str, operation: Mapping[str, Any]) -> None:
        """Note that an operation begins that may have an effect; `record` and `withdraw` remove the note."""
        await self.write(queries.begin_operation, session_id, position, orjson.dumps(operation))

    async def withdraw(self, session_id: str, position: str) -> None:
        """Remove the note that an operation began: it had no effect."""
        await self.write(queries.withdraw_operation, session_id, position)

    async def begun(self, session_id: str) -> list[dict[str, Any]]:
        """Return the operations that began and have no outcome, in their order."""
        return [orjson.loads(text) for text in await self.read(queries.begun_operations, session_id)]

    async def end(self, session_id: str, state: State, lines: Sequence[bytes]) -> None:
        """Store a session's last messages, however long its log is, and its final state."""
        await self.write(queries.end_session, session_id, state, lines, self._clock())
        self._ended[session_id] = trio.current_time()
        self.on_lines()

    # --- the outbox, for the uplink to a broker

    async def outbox(self, most: int, each: int, confirmed: Sequence[OutboxLine] = ()) -> list[OutboxLine]:
        """Return the oldest messages to publish, at most `each` of one session.

        `confirmed` are those of the last call, once the broker has confirmed all of them.
        """
        if not confirmed:
            return await self.read(queries.read_outbox, most, each)
        marks = {line.session_id: (line.number, line.session_id, line.rewinds) for line in confirmed}
        return await self.write(queries.advance_outbox, list(marks.values()), most, each)

    async def outbox_size(self) -> tuple[int, int]:
        """Return the messages to publish, and their bytes."""
        return await self.read(queries.outbox_size)

    async def rewind(self, session_id: str, principal: str, sequence: int) -> bool:
        """Publish a session's messages again from the event `sequence` on; False if there is none of this principal."""
        found = await self.write(queries.rewind, session_id, principal, sequence)
        self.on_lines()
        return found

    async def session(self, session_id: str) -> SessionRow | None:
        """Return a session; None if it does not exist, or is no longer kept."""
        return await self.read(queries.find_session, session_id)

    async def sessions(self, principal: str, most: int) -> list[SessionRow]:
        """Return a principal's sessions, the newest first."""
        return await self.read(queries.newest_sessions, principal, most)

    async def message_log(self, session_id: str) -> list[bytes]:
        """Return a session's messages, each a whole line; none if there is no such session."""
        return await self.read(queries.read_messages, session_id)

    async def outcomes(self, session_id: str, upto: int) -> list[dict[str, Any]]:
        """Return the outcomes 1 to `upto` of a session. Raises JobStoreError unless all of them are there."""
        return await self.read(_read_outcomes, session_id, upto)

    async def expire(self, now: float, retention_s: float) -> list[str]:
        """Delete sessions that ended more than `retention_s` ago or exceed the limits; return their ids.

        The caller deletes their artifacts' files. The age of a session that ended in this run is the time that has
        passed since, whatever the wall clock has been set to: a board without a battery learns the date late.
        """
        oldest_spared = trio.current_time() - retention_s
        spared = frozenset(session_id for session_id, ended in self._ended.items() if ended > oldest_spared)
        gone = await self.write(queries.forget_old, now - retention_s, spared, self._limits)
        for session_id in gone:
            self._ended.pop(session_id, None)
        with suppress(JobStoreError):  # the rows are deleted; the file shrinks another time
            await self.read(queries.give_back)
        return gone

    # --- artifacts, for `ArtifactStore`, which keeps their files

    async def admit(self, session_id: str, file: str, artifact: Artifact, most: int) -> list[tuple[str, str]]:
        """List an artifact whose file exists; return the (session_id, file) pairs that are deleted to make room.

        All artifacts together have at most `most` bytes. Raises NoRoom if nothing deletable is left.
        """
        return await self.write(queries.admit_artifact, session_id, file, artifact, most)

    async def artifact(self, session_id: str, file: str) -> Artifact | None:
        """Return an artifact; None if it does not exist, or is no longer kept."""
        return await self.read(queries.find_artifact, session_id, file)

    async def artifacts(self, session_id: str) -> list[Artifact]:
        """Return a session's artifacts, in the order in which they were kept."""
        return await self.read(queries.list_artifacts, session_id)

    def settle_artifacts(self, there: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Forget the artifacts whose file is not in `there`; return the (session_id, file) pairs that are left.

        Blocking; for the time between `open` and `run`. Raises JobStoreError.
        """
        if self._file.fresh:
            return set()
        return set(self._file.write([functools.partial(queries.settle_artifacts, there=there)])[0].unwrap())


def _read_outcomes(job_store: sqlite3.Connection, session_id: str, upto: int) -> list[dict[str, Any]]:
    return [orjson.loads(text) for text in queries.read_outcomes(job_store, session_id, upto)]
