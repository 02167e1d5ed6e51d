"""Idempotency keys: the first task of each key of each principal, kept beyond its session and beyond the process.

`IdempotencyKeys` owns the keys of one runtime in memory, where a session looks them up without waiting. Its actor
appends each change to `<audit log>.idempotency`, in a thread; changes that come during a write share the next one. The
process that holds the audit log's lock owns the file. Without a file the keys are kept in memory only.

Theory of operation. Life of a key:

    free ----> entered ----> kept ----> ended ----> free (after `days`)
      ^           |
      +-----------+  the submission or the key could not be recorded: nothing has moved

A task is acknowledged, and begins, only when its audit record and its key are as durable as configured, so a repeat
finds the key at every moment at which something may have moved. A key is dropped only when its time is over: a dropped
key could move the hardware twice. So keys are bounded by refusing new ones: a principal may have so many, and the keys
may take half of its memory quota, and half of all principals' together. The other half is left for work without keys.

The end of a task is written later than it happens. So `open` asks the audit log about tasks whose end the file lacks.
A task that was in flight is FAILED and never runs again. One that the log does not know, although its run's log is
whole, has not begun, because a step begins only after its record: its key is free.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import orjson
import trio
from attrs import define, field, frozen

from hearth._util.files import replace_file
from hearth.actors.mailbox import Mailbox, Slot
from hearth.audit.writer import sync_directory
from hearth.errors import AuditUnavailable, ConfigError, InvalidParams, QueueFull
from hearth.policy.memory import KEY_BYTES, KEY_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hearth.audit.recovery import Recovery
    from hearth.errors import RpcError
    from hearth.policy.memory import Account, MemoryBudget

Settled: TypeAlias = "Callable[[RpcError | None], None]"
"""A callback: called with None when a submission is on record, or with the error that prevents it."""

DAY_S: Final = 86_400
FLUSH_LIMIT_S: Final = 5.0
"""Seconds that the last write may take at the end: a disk that hangs must not keep the process alive."""
VERSION: Final = 1
IN_FLIGHT: Final = "the daemon ended while this task was under way; its effect is unknown, and it is not run again"
_SPARE: Final = 1000
"""Lines of keys that are free again which the file may have, before it is written anew."""


class Home(Protocol):
    """The task registry of the session that submitted the first task; it is asked while it has the task."""

    def holds(self, task_id: str) -> bool:
        """Return True while it has the task."""
        ...


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
    waiting: list[Settled] | None = field(factory=list)
    """Callbacks of repeats that came before the submission was on record; None once it is."""
    home: Home | None = None
    account: Account | None = None
    """The account of the principal, to which KEY_BYTES are charged."""

    def line(self) -> dict[str, Any]:
        """Return the entry as the file has it."""
        line: dict[str, Any] = {"key": self.name.hex(), "principal": self.principal, "task_id": self.task_id}
        line |= {"digest": self.digest, "at": self.at, "after": self.after}
        return line if self.status == "QUEUED" else {**line, "status": self.status}


@frozen(eq=False)
class _Change:
    """A line for the file; the receipt, if a task waits for it, is filled once it is as durable as configured."""

    line: dict[str, Any]
    receipt: Slot[None] | None = None


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
        for entry in [one for one in self.found.values() if one.status == "QUEUED"]:
            if not _learn(entry, recovery):
                del self.found[entry.name]
        return notes

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
        if lines and lines[0].get("version") != VERSION:
            raise ConfigError(f"idempotency keys {self.path}: not a file of this release; move it away")
        lost = self.lines - len(lines) if whole else 0
        note = f"idempotency keys {self.path}: {lost} lines cannot be read, and their keys count as new"
        return lines[1:], [note] if lost else []

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        """Add lines. Raises OSError; then none of them counts."""
        if self.path is None:
            return
        packed = [orjson.dumps(line) + b"\n" for line in ([] if self._size else [{"version": VERSION}])]
        packed += [orjson.dumps(line) + b"\n" for line in lines]
        data = b"".join(packed)
        fresh = not self._size
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
        self.lines += len(packed)

    def rewrite(self, entries: Iterable[IdempotencyEntry]) -> None:
        """Replace the file by one with these entries only. Raises OSError; then it is as before."""
        assert self.path is not None
        lines = [{"version": VERSION}, *(entry.line() for entry in entries)]
        content = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        replace_file(self.path, content, 0o600, sync=True)
        sync_directory(self.path.parent)
        self._size, self.lines = len(content), len(lines)


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


class IdempotencyKeys:
    """The keys of a runtime, those of earlier runs among them; `file` is open. Only `run` waits.

    `head` returns the number of the newest audit record.
    """

    def __init__(
        self,
        file: KeysFile,
        *,
        days: float,
        most: int,
        clock: Callable[[], float],
        head: Callable[[], int],
        memory: MemoryBudget,
    ) -> None:
        self._file = file
        self._days = days
        self._most = most
        self._clock = clock
        self._head = head
        self._memory = memory
        self._entries: dict[bytes, IdempotencyEntry] = file.found
        self._counts: dict[str, int] = {}
        """Keys by principal."""
        for entry in self._entries.values():
            self._counts[entry.principal] = self._counts.get(entry.principal, 0) + 1
            entry.account = memory.for_principal(entry.principal)
            entry.account.add(KEY_BYTES)
        self._mailbox: Mailbox[_Change] = Mailbox()
        self._limiter = trio.CapacityLimiter(1)

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
        kept, quota = self._counts.get(principal, 0), self._memory
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
        self, principal: str, key: str, digest: str, task_id: str, home: Home, account: Account
    ) -> tuple[IdempotencyEntry, Slot[None]]:
        """Enter the first submission with a key; return it, and the receipt that is filled when the key is kept."""
        name = _name(principal, key)
        now, head = float(self._clock()), self._head()
        entry = IdempotencyEntry(name, principal, task_id, digest, now, head, home=home, account=account)
        account.add(KEY_BYTES)
        self._entries[name] = entry
        self._counts[principal] = self._counts.get(principal, 0) + 1
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
        due = self._clock() - self._days * DAY_S
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if oldest.at > due or oldest.status == "QUEUED":
                return
            self._drop(oldest)

    def _post(self, line: dict[str, Any], receipt: Slot[None] | None = None) -> None:
        if self._file.path is not None:
            self._mailbox.post(_Change(line, receipt))
        elif receipt is not None:
            receipt.fill(None)

    # --- the actor ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write changes until cancelled; then those that are there, within FLUSH_LIMIT_S."""
        task_status.started()
        try:
            while True:
                await self._write(await self._mailbox.batch())
        finally:
            with trio.move_on_after(FLUSH_LIMIT_S, shield=True):
                await self._write(self._mailbox.drain())

    async def _write(self, changes: list[_Change]) -> None:
        if not changes:
            return
        crowded = self._file.lines > 3 * len(self._entries) + _SPARE
        entries = [*self._entries.values()] if crowded else None
        work = partial(self._append, [change.line for change in changes], entries)
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
        for change in changes:
            if change.receipt is None:
                continue
            if failure is None:
                change.receipt.fill(None)
            else:
                change.receipt.fail(failure)

    def _append(self, lines: list[dict[str, Any]], crowded: list[IdempotencyEntry] | None) -> None:
        if crowded is not None:
            self._file.rewrite(crowded)
        self._file.append(lines)


def _share(quota: float) -> float:
    """Return the number of keys that a memory quota in bytes has room for."""
    return quota * KEY_SHARE // KEY_BYTES


def _name(principal: str, key: str) -> bytes:
    return hashlib.sha256(f"{principal}\0{key}".encode("utf-8", "surrogatepass")).digest()
