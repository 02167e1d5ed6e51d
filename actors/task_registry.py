"""The tasks of a session, and the idempotency keys of a runtime, by which a repeated submission finds its first task.

`TaskRegistry` belongs to one session: its live tasks, its ended tasks, and those that it has adopted. It runs in the
Trio thread only. An ended task is kept as the bytes of its last state, up to `max_history` tasks; older ones are
dropped first, and earlier if their principal needs the memory. Everything here is charged to the principal's account; a
task's whole cost is charged before it is accepted.

A submission that repeats an idempotency key may mean a task of another session of the principal: it is adopted. While
that session has the task, requests about it are passed on; after that only its status is known. It stays a task of its
first session: a subscription to all tasks of a session leaves out those that it has adopted.

`IdempotencyKeys` keeps the first task of each key of each principal, beyond its session and beyond the process. It owns
the keys of one runtime in memory, where a session looks them up without waiting. Its actor appends each change to
`<audit log>.idempotency`, in a thread; changes that come during a write share the next one. The process that holds the
audit log's lock owns the file. Without a file the keys are kept in memory only.

Theory of operation. Life of a key:

    free ----> entered ----> kept ----> ended ----> free (after `days`)
      ^           |
      +-----------+  the submission or the key could not be recorded: nothing has moved

A task is acknowledged, and begins, only when its audit record and its key are as durable as configured, so a repeat
finds the key at every moment at which something may have moved. A key is dropped only when its time is over: a dropped
key could move the hardware twice. So keys are bounded by refusing new ones: a principal may have so many, and the keys
may take half of its memory quota, and half of all principals' together. The other half is left for work without keys.

The end of a task is written later than it happens. So `KeysFile.open` asks the audit log about tasks whose end the file
lacks, and adds what it learns, because the log is searched for one run only. A task that was in flight is FAILED and
never runs again. One that the log does not know, although its run's log is whole, has not begun, because a step begins
only after its record: its key is free.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import define, field

from hearth._util.files import replace_file
from hearth._util.formats import check_format
from hearth.actors.events import EventLog
from hearth.actors.mailbox import Mailbox, Slot
from hearth.audit.record import canonical, timestamp
from hearth.audit.writer import sync_directory
from hearth.errors import AuditUnavailable, ConfigError, InvalidParams, QueueFull, TaskNotFound
from hearth.policy.memory import ENDED_BYTES, EVENT_BYTES, KEY_BYTES, KEY_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from hearth.actors.task import TaskActor
    from hearth.audit.recovery import Recovery
    from hearth.errors import RpcError
    from hearth.policy.memory import Account, MemoryBudget
    from hearth.protocol.submissions import TaskSubmit


@define(slots=True, eq=False)
class Finished:
    """A task that has ended, as its last snapshot and its history. Implements `policy.memory.Droppable`."""

    task_id: str
    status: str
    snapshot: bytes
    log: EventLog
    task_registry: TaskRegistry
    adopted: bool = False
    """True for a task of another session."""

    def drop(self) -> None:
        """See Droppable."""
        self.task_registry.forget(self.task_id)


@define(eq=False)
class TaskRegistry:
    """One session's tasks."""

    _principal: str
    _max_live: int
    _max_history: int
    _account: Account
    _keys: IdempotencyKeys
    _live: dict[str, TaskActor] = field(factory=dict, init=False)
    _history: dict[str, Finished] = field(factory=dict, init=False)
    _keyed: dict[str, IdempotencyEntry] = field(factory=dict, init=False)
    """The entries of live tasks that have a key, by task id."""
    _adopted: dict[str, IdempotencyEntry] = field(factory=dict, init=False)
    """The entries of tasks of other sessions, by task id."""

    # --- adding and removing ------------------------------------------------------------------------------------

    def check_room(self, submit: TaskSubmit, cost: int) -> None:
        """Raise QueueFull if there is no room for a task that takes `cost` bytes of memory, or for its key."""
        if len(self._live) >= self._max_live:
            raise QueueFull(
                f"Queue full: the session has {len(self._live)} live tasks",
                data={"max_tasks_per_session": self._max_live},
            )
        if submit.idempotency_key is not None:
            self._keys.check_room(self._principal)
            cost += KEY_BYTES
        self._account.require(cost)

    def enter_key(self, task_id: str, submit: TaskSubmit) -> Slot[None] | None:
        """Enter the key of an accepted submission; return the receipt that its task waits for. None without a key."""
        if submit.idempotency_key is None:
            return None
        entry, receipt = self._keys.enter(
            self._principal, submit.idempotency_key, digest(submit), task_id, self, self._account
        )
        self._keyed[task_id] = entry
        return receipt

    def enter(self, task: TaskActor) -> None:
        """Add an accepted task, whose cost has been charged."""
        self._live[task.task_id] = task

    def settle_key(self, task_id: str, error: RpcError | None) -> None:
        """Note that a submission is on record, or, with `error`, that it failed: its key is then free again.

        The repeats that came in between are answered, in their order.
        """
        known = self._keyed.get(task_id)
        if known is None:
            return
        if error is not None:
            del self._keyed[task_id]
            self._keys.free(known)
        waiting, known.waiting = known.waiting, None
        for settled in waiting or ():
            settled(error)

    def ended(self, task: TaskActor) -> None:
        """Move a task that has ended to the history; the task calls this last."""
        assert task.snapshot is not None
        del self._live[task.task_id]
        self._keep(Finished(task.task_id, task.status, task.snapshot, task.log, self), task.charged)
        entry = self._keyed.pop(task.task_id, None) if self._keyed else None
        if entry is not None:
            self._keys.ended(entry, task.status)

    def _keep(self, finished: Finished, charged: int = 0) -> None:
        """Add an ended task; `charged` bytes, for the live one, are charged for it already."""
        self._history[finished.task_id] = finished
        self._account.offer(finished)
        self._account.add(ENDED_BYTES + len(finished.snapshot) - charged)
        while len(self._history) > self._max_history:
            self.forget(next(iter(self._history)))

    def forget(self, task_id: str) -> None:
        """Drop an ended task. Its events stay charged while a send queue still holds them."""
        finished = self._history.pop(task_id)
        self._account.withdraw(finished)
        self._account.release(ENDED_BYTES + len(finished.snapshot))
        finished.log.let_go()

    def close(self) -> None:
        """Drop everything, because the session and its tasks have ended. Idempotent."""
        for task_id in list(self._history):
            self.forget(task_id)
        for task in self._live.values():
            self._account.release(task.charged)
            task.log.let_go()
        self._live.clear()
        self._keyed.clear()
        self._adopted.clear()

    # --- looking up ---------------------------------------------------------------------------------------------

    def repeat(self, submit: TaskSubmit) -> IdempotencyEntry | None:
        """Return the first submission with this key, or None for a new one.

        Raises InvalidParams if the key was used for another task.
        """
        key = submit.idempotency_key
        return None if key is None else self._keys.find(self._principal, key, digest(submit))

    def repeated(self, known: IdempotencyEntry) -> dict[str, Any]:
        """Return the answer to a submission that repeats this one, whose task is then known here too."""
        if not self.has(known.task_id):
            self._adopted[known.task_id] = known
        live = self._home(known.task_id)._live.get(known.task_id)
        status = known.status if live is None else live.status
        return {"task_id": known.task_id, "status": status, "repeated": True}

    def _home(self, task_id: str) -> TaskRegistry:
        """Return the registry that has a task: this one, or for an adopted task that of its session."""
        entry = self._adopted.get(task_id)
        if entry is None:
            return self
        if entry.home is not None and entry.home.holds(task_id):
            return entry.home
        # Its session has ended, or has forgotten it: what is left is its status.
        del self._adopted[task_id]
        reason = {} if entry.reason is None else {"error": entry.reason, "error_data": {"effect": "unknown"}}
        snapshot = orjson.dumps({"task_id": task_id, "status": entry.status, "intent": "", "steps": [], **reason})
        log = EventLog(task_id, None, self._account, EVENT_BYTES)
        self._account.add(EVENT_BYTES)
        log.publish("task_finish", timestamp(entry.at), {"status": entry.status, **reason})
        self._keep(Finished(task_id, entry.status, snapshot, log, self, adopted=entry.home is not self))
        return self

    def get(self, task_id: str) -> Any:
        """Return the result of task.get, or its JSON. Raises TaskNotFound."""
        home = self._home(task_id)
        finished = home._history.get(task_id)
        return home.live(task_id).describe() if finished is None else finished.snapshot

    def cancel(self, task_id: str) -> dict[str, Any]:
        """Cancel a task; return the result of task.cancel: CANCELLING, or the status of a task that has ended.

        A failure that is decided is not the end yet: its rollback may still run. A success can change no more. Raises
        TaskNotFound.
        """
        home = self._home(task_id)
        finished = home._history.get(task_id)
        if finished is not None:
            return {"task_id": task_id, "status": finished.status}
        task = home.live(task_id)
        if task.verdict == "SUCCESS":
            return {"task_id": task_id, "status": "SUCCESS"}
        task.cancel("cancelled")
        return {"task_id": task_id, "status": "CANCELLING"}

    def live(self, task_id: str) -> TaskActor:
        """Return a live task. Raises TaskNotFound."""
        task = self._live.get(task_id)
        if task is None:
            raise TaskNotFound(data={"task_id": task_id[:64]})
        return task

    def log_of(self, task_id: str) -> EventLog:
        """Return a task's event history. Raises TaskNotFound."""
        home = self._home(task_id)
        finished = home._history.get(task_id)
        return home.live(task_id).log if finished is None else finished.log

    def has(self, task_id: str) -> bool:
        """Return True while the task lives, is kept as ended, or is adopted."""
        return self.holds(task_id) or task_id in self._adopted

    def holds(self, task_id: str) -> bool:
        """Return True while this session, and no other, has the task."""
        return task_id in self._live or task_id in self._history

    def logs(self) -> Iterator[EventLog]:
        """Yield the event histories of the session's own tasks, oldest first."""
        for finished in self._history.values():
            if not finished.adopted:
                yield finished.log
        for task in self._live.values():
            yield task.log

    def all_live(self) -> list[TaskActor]:
        """Return the live tasks."""
        return list(self._live.values())


def digest(submit: TaskSubmit) -> str:
    """Return a digest that two submissions share if intent, constraints and steps, with their args, are the same.

    Their RFC 8785 forms are compared, as those of an approved plan are: 1 and 1.0 are the same.
    """
    steps = [
        [step.tool, step.args] if step.expect is None else [step.tool, step.args, step.expect.to_wire()]
        for step in submit.steps
    ]
    return hashlib.sha256(canonical([submit.intent, repr(submit.constraints), steps])).hexdigest()


# --- idempotency keys -------------------------------------------------------------------------------------------------

DAY_S: Final = 86_400
_SET_S: Final = 1_577_836_800
"""The beginning of 2020: an earlier time is that of a clock that nothing has set since the machine was switched on."""
FLUSH_LIMIT_S: Final = 5.0
"""Seconds that the last write may take at the end: a disk that hangs must not keep the process alive."""
VERSION: Final = 1
IN_FLIGHT: Final = "the daemon ended while this task was under way; its effect is unknown, and it is not run again"
_SPARE: Final = 1000
"""Lines of keys that are free again which the file may have, before it is written anew."""


@define(slots=True, eq=False)
class IdempotencyEntry:
    """The first submission with an idempotency key."""

    name: bytes
    """SHA-256 over principal and key."""
    principal: str
    task_id: str
    digest: str
    at: float
    """Epoch seconds."""
    after: int
    """The number of the audit record after which it came."""
    status: str = "QUEUED"
    """QUEUED, or the terminal status once the task has ended."""
    reason: str | None = None
    """The reason why no more than the status is known."""
    waiting: list[Callable[[RpcError | None], None]] | None = field(factory=list)
    """Called, for repeats that came before the submission was on record, with None or its error; None once it is."""
    home: TaskRegistry | None = None
    """The task registry of the session that submitted the first task; it is asked while it has the task."""
    account: Account | None = None
    """The account of the principal, to which KEY_BYTES are charged."""
    until: float | None = None
    """The uptime of the machine at which its time is over; None: of an earlier run, whose age `at` tells."""

    def line(self) -> dict[str, Any]:
        """Return the entry as the file has it: without a status that has a reason, which the next run finds again."""
        line: dict[str, Any] = {"key": self.name.hex(), "principal": self.principal, "task_id": self.task_id}
        line |= {"digest": self.digest, "at": self.at, "after": self.after}
        return line if self.status == "QUEUED" or self.reason is not None else {**line, "status": self.status}


class KeysFile:
    """The file of the keys. Blocking; used by one thread at a time."""

    def __init__(self, path: Path | None = None, *, sync: bool = False) -> None:
        self.path = path
        self.lines = 0
        self.found: dict[bytes, IdempotencyEntry] = {}
        """The entries of earlier runs, oldest first."""
        self._sync = sync
        self._size = 0

    def open(self, recovery: Recovery | None) -> list[str]:
        """Read the keys of earlier runs into `found`; return notes for a person. Raises ConfigError."""
        lines, notes = self._read()
        for line in lines:
            name = bytes.fromhex(line["key"])
            if "principal" in line:
                members = {member: line[member] for member in _MEMBERS if member in line}
                self.found[name] = IdempotencyEntry(name=name, waiting=None, **members)
            elif "status" not in line:
                self.found.pop(name, None)
            elif name in self.found:
                self.found[name].status = line["status"]
        if learned := self._learn(recovery):
            try:
                self.write(learned)
            except OSError as error:
                notes.append(f"idempotency keys {self.path}: the ends of {len(learned)} tasks: {error.strerror}")
        return notes

    def _learn(self, recovery: Recovery | None) -> list[dict[str, Any]]:
        """Find out how the tasks ended whose end the file lacks; return the lines of those that the log knows.

        They must be in the file: the next run searches the log of this run only.
        """
        lines: list[dict[str, Any]] = []
        for entry in [one for one in self.found.values() if one.status == "QUEUED"]:
            if not _learn(entry, recovery):
                del self.found[entry.name]
                lines.append({"key": entry.name.hex()})
            elif entry.reason is None:
                lines.append({"key": entry.name.hex(), "status": entry.status})
        return lines

    def _read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the lines of an earlier run, and notes for a person. Raises ConfigError."""
        if self.path is None:
            return [], []
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            cure = "see [audit] path, or move it away: the keys of earlier submissions are then not known any more"
            raise ConfigError(f"idempotency keys {self.path}: {error.strerror}; {cure}") from error
        whole, _, torn = content.rpartition(b"\n")
        self._size = len(content) - len(torn)
        lines = [line for line in map(_parsed, whole.split(b"\n")) if line is not None]
        self.lines = whole.count(b"\n") + 1
        if lines:
            cure = "move it away: the keys of earlier submissions are then not known any more"
            check_format(f"idempotency keys {self.path}", lines[0].get("version"), VERSION, cure)
        if lines and lines[0].get("version") != VERSION:
            raise ConfigError(f"idempotency keys {self.path}: not a file of this release; move it away")
        lost = self.lines - len(lines) if whole else 0
        note = f"idempotency keys {self.path}: {lost} lines cannot be read, and their keys count as new"
        return lines[1:], [note] if lost else []

    def write(self, lines: Sequence[dict[str, Any]], entries: Iterable[IdempotencyEntry] | None = None) -> None:
        """Add lines; with `entries` the file has only these before. Raises OSError; then no line counts."""
        assert self.path is not None
        if entries is not None:
            self._rewrite(self.path, [entry.line() for entry in entries])
        fresh = not self._size
        data = _packed(lines, begins=fresh)
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            there = os.fstat(fd).st_size
            if there < self._size:
                self.lines = sys.maxsize  # the next write makes the file anew
                raise OSError(errno.ESTALE, "it was removed or cut while it was in use")
            if there > self._size:
                # What a write that failed, or a crash, has left behind the last whole line.
                os.ftruncate(fd, self._size)
            written = 0
            while written < len(data):
                written += os.write(fd, data[written:])
            if self._sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)
        if self._sync and fresh:
            sync_directory(self.path.parent)
        self._size += len(data)
        self.lines += data.count(b"\n")

    def _rewrite(self, path: Path, lines: Sequence[dict[str, Any]]) -> None:
        content = _packed(lines, begins=True)
        replace_file(path, content, 0o600, sync=True)
        sync_directory(path.parent)
        self._size, self.lines = len(content), content.count(b"\n")


def _packed(lines: Sequence[dict[str, Any]], *, begins: bool) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in ([{"version": VERSION}] if begins else []) + [*lines])


def _learn(entry: IdempotencyEntry, recovery: Recovery | None) -> bool:
    """Find out how a task ended whose end the file does not have; return False for one that has not begun."""
    if recovery is not None:
        status = recovery.finished.get(entry.task_id)
        if status is not None:
            entry.status = status
            return True
        in_flight = any(task["task_id"] == entry.task_id for task in recovery.in_flight)
        of_last_run = recovery.began <= entry.after <= recovery.head[0]
        if recovery.complete and of_last_run and not in_flight:
            return False
    entry.status, entry.reason = "FAILED", IN_FLIGHT
    return True


_MEMBERS: Final = {"principal": str, "task_id": str, "digest": str, "at": float, "after": int, "status": str}
_REQUIRED: Final = _MEMBERS.keys() - {"status"}


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a line of the file, or None for one that is damaged."""
    try:
        value = orjson.loads(line)
        if "version" not in value:
            bytes.fromhex(value["key"])
            if "principal" in value and not value.keys() >= _REQUIRED:
                return None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    sound = all(type(value.get(name, kind())) is kind for name, kind in _MEMBERS.items())
    return value if sound else None


@define(eq=False)
class IdempotencyKeys:
    """The keys of a runtime, those of earlier runs among them; `file` is open. Only `run` waits.

    `head` returns the number of the newest audit record.
    """

    _file: KeysFile
    _days: float = field(kw_only=True, alias="days")
    _most: int = field(kw_only=True, alias="most")
    _clock: Callable[[], float] = field(kw_only=True, alias="clock")
    _uptime: Callable[[], float] = field(kw_only=True, alias="uptime")
    _head: Callable[[], int] = field(kw_only=True, alias="head")
    _memory: MemoryBudget = field(kw_only=True, alias="memory")
    _entries: dict[bytes, IdempotencyEntry] = field(init=False)
    _counts: Counter[str] = field(factory=Counter, init=False)
    """Keys by principal."""
    _mailbox: Mailbox[tuple[dict[str, Any], Slot[None] | None]] = field(factory=Mailbox, init=False)
    """Lines for the file; the receipt of one is filled, if there is any, once it is as durable as configured."""
    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _undated: list[IdempotencyEntry] = field(init=False)
    """Entries of earlier runs whose clock was not set: their time begins when that of this run is."""

    def __attrs_post_init__(self) -> None:
        self._entries = self._file.found
        self._undated = [entry for entry in self._entries.values() if entry.at < _SET_S]
        for entry in self._entries.values():
            self._counts[entry.principal] += 1
            entry.account = self._memory.for_principal(entry.principal)
            entry.account.add(KEY_BYTES)

    # --- called by sessions -------------------------------------------------------------------------------------------

    def find(self, principal: str, key: str, digest: str) -> IdempotencyEntry | None:
        """Return the first submission with this key, or None for a new key.

        Raises InvalidParams if the key was used for another task.
        """
        self._expire()
        known = self._entries.get(_name(principal, key))
        if known is not None and known.digest != digest:
            reason = f"idempotency_key {key!r} was used for another task"
            raise InvalidParams(
                f"Invalid params: {reason}",
                data={"path": "/task/idempotency_key", "reason": reason, "task_id": known.task_id},
            )
        return known

    def check_room(self, principal: str) -> None:
        """Raise QueueFull if a principal may not use another key."""
        self._expire()
        kept, quota = self._counts[principal], self._memory
        self._require(kept < self._most, kept, "this principal", "tasks", "max_idempotency_keys", self._most)
        self._require(kept < _share(quota.each), kept, "this principal", "limits", "max_retained_bytes", quota.each)
        kept = len(self._entries)
        self._require(
            kept < _share(quota.total), kept, "all principals", "limits", "max_retained_total_bytes", quota.total
        )

    def _require(self, fits: bool, kept: int, whose: str, section: str, limit: str, value: float) -> None:
        if fits:
            return
        reason = f"{kept} idempotency keys are kept for {whose}, each for {self._days:g} days"
        cure = f"submit without a key, or change [{section}] {limit} or [tasks] idempotency_days"
        data = {"reason": reason, "cure": cure, "limit": limit, limit: value}
        raise QueueFull(f"Queue full: {reason}; {cure}", data=data)

    def enter(
        self, principal: str, key: str, digest: str, task_id: str, home: TaskRegistry, account: Account
    ) -> tuple[IdempotencyEntry, Slot[None]]:
        """Enter the first submission with a key; return it, and the receipt that is filled when the key is kept."""
        name = _name(principal, key)
        now, head = float(self._clock()), self._head()
        until = self._uptime() + self._days * DAY_S
        entry = IdempotencyEntry(name, principal, task_id, digest, now, head, home=home, account=account, until=until)
        account.add(KEY_BYTES)
        self._entries[name] = entry
        self._counts[principal] += 1
        receipt: Slot[None] = Slot()
        self._post(entry.line(), receipt)
        return entry, receipt

    def free(self, entry: IdempotencyEntry) -> None:
        """Free the key of a submission that was not recorded, and so has had no effect."""
        self._drop(entry)
        self._post({"key": entry.name.hex()})

    def ended(self, entry: IdempotencyEntry, status: str) -> None:
        """Note the terminal status of a task."""
        entry.status = status
        if self._entries.get(entry.name) is entry:
            self._post({"key": entry.name.hex(), "status": status})

    def _drop(self, entry: IdempotencyEntry) -> None:
        del self._entries[entry.name]
        self._counts[entry.principal] -= 1
        if entry.account is not None:
            entry.account.release(KEY_BYTES)

    def _expire(self) -> None:
        """Drop the keys whose time is over, the oldest first; one whose task still runs is kept."""
        clock, now = float(self._clock()), self._uptime()
        if self._undated and clock >= _SET_S:
            for entry in self._undated:
                if self._entries.get(entry.name) is entry:
                    entry.at = clock
                    self._post(entry.line())
            self._undated.clear()
        due = clock - self._days * DAY_S
        while self._entries:
            oldest = next(iter(self._entries.values()))
            over = oldest.at <= due if oldest.until is None else oldest.until <= now
            if not over or oldest.status == "QUEUED":
                return
            self._drop(oldest)

    def _post(self, line: dict[str, Any], receipt: Slot[None] | None = None) -> None:
        if self._file.path is not None:
            self._mailbox.post((line, receipt))
        elif receipt is not None:
            receipt.fill(None)

    # --- the actor ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write changes until cancelled; then those that are there, within FLUSH_LIMIT_S."""
        task_status.started()
        changes: list[tuple[dict[str, Any], Slot[None] | None]] = []
        try:
            while True:
                changes = await self._mailbox.batch()
                await self._write(changes)
                changes = []
        finally:
            # First those of a write that was cancelled: if it is under way all the same, they are written twice, in the
            # same order, which changes nothing.
            with trio.move_on_after(FLUSH_LIMIT_S, shield=True):
                await self._write([*changes, *self._mailbox.drain()])

    async def _write(self, changes: list[tuple[dict[str, Any], Slot[None] | None]]) -> None:
        if not changes:
            return
        crowded = self._file.lines > 3 * len(self._entries) + _SPARE
        work = partial(self._file.write, [line for line, _ in changes], [*self._entries.values()] if crowded else None)
        failure: AuditUnavailable | None = None
        try:
            # Cancelled at the end of the runtime, when no task waits for a receipt. The thread goes on, and the last
            # write waits for it, because the limiter has one token.
            await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except OSError as error:
            reason = f"idempotency keys {self._file.path}: {error.strerror}"
            failure = AuditUnavailable(
                f"{reason}; nothing was done: free space, or submit without a key",
                data={"reason": reason, "effect": "none"},
            )
        for receipt in [receipt for _, receipt in changes if receipt is not None]:
            if failure is None:
                receipt.fill(None)
            else:
                receipt.fail(failure)


def _share(quota: float) -> float:
    """Return the number of keys that a memory quota in bytes has room for."""
    return quota * KEY_SHARE // KEY_BYTES


def _name(principal: str, key: str) -> bytes:
    return hashlib.sha256(f"{principal}\0{key}".encode("utf-8", "surrogatepass")).digest()
