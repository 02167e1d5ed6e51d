"""Recovery of a log after its last run: a torn last line, tasks that were in flight, an end without `daemon.stop`.

Works on files that the caller has locked. It moves bytes that are no record aside and never destroys them. It reads at
most `WINDOW` bytes back from the end, however large the log is. In a longer run, tasks without a record in the window
are not found, and the recovery says so (`complete` is False).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from hearth.audit.files import CHUNK, backward, first_seq, head_of, parse, read_exactly, rotated_files
from hearth.audit.record import GENESIS, Head, Record, timestamp
from hearth.audit.writer import sync_directory
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

WINDOW = 128 * 1024 * 1024
"""Bytes that recovery reads back, over the current file and those it was rotated from."""

MOST_NAMED = 1000
"""Tasks in flight that a `daemon.recover` record names."""

_LONGEST_ID = 64
RUN_EVENTS = ("daemon.start", "daemon.stop", "daemon.recover")
"""Events at which a run begins or ends: no task from before can still be in flight."""

_EVENT = re.compile(rb'\{"seq":[0-9]+,"ts":"[^"]*","event":"(task\.|daemon\.)')
_START_OF_RECORD = b'{"seq":'


@frozen
class Recovery:
    """The state of a log as it was found, after repair.

    `head` is where the chain continues. `size` and `first_seq` are the current file's (None: it has no record). `torn`
    names the file with the bytes that were cut off; `torn_records` counts whole records in it, which came after bytes
    that never reached the disk. `in_flight` has one JSON object per task: `task_id`, `session_id`, and under `steps`
    those that had begun and not finished. `unclean` is True if the last daemon wrote no `daemon.stop`.
    """

    head: Head = (0, GENESIS)
    size: int = 0
    first_seq: int | None = None
    torn: Path | None = None
    torn_bytes: int = 0
    torn_records: int = 0
    in_flight: tuple[Record, ...] = ()
    unclean: bool = False
    complete: bool = True
    finished: Mapping[str, str] = field(factory=dict)
    """The terminal status of each task that ended in the last run, by task id."""
    began: int = 0
    """The number of the record with which the last run began."""
    known: tuple[int, int] = (0, 0)
    """The last record that was on the disk, and the last one there was, as the tree's file has it; 0: none."""

    @property
    def rollback(self) -> str | None:
        """For a person: the log lacks records that were on the disk. No power cut does that. None: it lacks none."""
        return cut_short(self.head[0], self.known[0])

    def record(self) -> Record | None:
        """The `daemon.recover` record, or None if the last run ended as it should."""
        missing = self.known[1] > self.head[0]
        if self.torn is None and not self.in_flight and not self.unclean and not missing:
            return None
        record: dict[str, Any] = {"event": "daemon.recover"}
        if self.torn is not None:
            record["torn"] = {"file": self.torn.name, "bytes": self.torn_bytes}
            if self.torn_records:
                record["torn"]["records"] = self.torn_records
        if missing:
            record["missing"] = {
                "first_seq": self.head[0] + 1,
                "last_seq": self.known[1],
                "synced": self.rollback is not None,
            }
        record["in_flight"] = list(self.in_flight[-MOST_NAMED:])
        if len(self.in_flight) > MOST_NAMED:
            record["more_in_flight"] = len(self.in_flight) - MOST_NAMED
        record["complete"] = self.complete
        return record

    def notes(self) -> list[str]:
        """Return the same for a person, one line each."""
        notes = []
        if self.torn is not None:
            behind = f", {self.torn_records} records behind them among them" if self.torn_records else ""
            notes.append(
                f"the audit log ended in {self.torn_bytes} bytes that are no record{behind}; moved to {self.torn}"
            )
        if self.rollback is not None:
            notes.append(self.rollback)
        elif self.known[1] > self.head[0]:
            notes.append(
                f"the audit log ends at record {self.head[0]}, but its tree file has hashes up to record "
                f"{self.known[1]}: a power cut took records that were not synced, or the log was cut or replaced"
            )
        if self.in_flight:
            names = ", ".join(_named(task["task_id"]) for task in self.in_flight[:5])
            more = f" and {len(self.in_flight) - 5} more" if len(self.in_flight) > 5 else ""
            notes.append(f"{len(self.in_flight)} tasks were in flight when the last run ended: {names}{more}")
        elif self.unclean:
            notes.append("the last run ended without daemon.stop; no task was in flight")
        if not self.complete:
            notes.append(f"only the last {WINDOW >> 20} MiB of the audit log were searched for tasks in flight")
        return notes


def cut_short(last: int, synced: int) -> str | None:
    """Return the reason why a log whose last record is `last` lacks some of those that were on the disk, or None."""
    if synced <= last:
        return None
    return (
        f"the audit log ends at record {last}, but its tree file says that record {synced} was on the disk: the log "
        "was cut or replaced by an older copy, or the disk lost what it had synced; compare it with a backup"
    )


def _named(task_id: str) -> str:
    """Return an id for a note of one line. Our ids are 26 letters and digits; a log may hold other programs'."""
    return task_id if task_id.isalnum() and len(task_id) <= _LONGEST_ID else ascii(task_id[:_LONGEST_ID])


def recover(path: Path, fd: int, now: float) -> Recovery:
    """Repair the file at `path`, open for reading and writing and locked as `fd`, and return the state of its last run.

    Blocking. Raises ConfigError if the file is no audit log, or if a torn line cannot be moved aside.
    """
    size = os.fstat(fd).st_size
    end, head, behind = _sound_end(fd, size)
    older = rotated_files(path)
    if head is None and size and not behind and not older:
        _require_ours(path, fd)
    if head is None:
        head = _head_of_rotated(older[-1]) if older else (0, GENESIS)
    # After everything that may refuse: a move aside must be on record, and a refused log has no record.
    torn = _move_aside(path, fd, end, size, now) if end < size else None
    unfinished = _Unfinished()
    unfinished.read(_newest_first(fd, end, older))
    return Recovery(
        head=head,
        size=end,
        first_seq=first_seq(fd),
        torn=torn,
        torn_bytes=size - end if torn else 0,
        torn_records=behind,
        in_flight=tuple(unfinished.tasks()),
        unclean=unfinished.unclean,
        complete=unfinished.complete,
        finished=unfinished.finished,
        began=unfinished.began,
    )


def _sound_end(fd: int, size: int) -> tuple[int, Head | None, int]:
    """Return the end of the last run's records without a gap, their head, and the number of records behind a gap.

    The end is after the last whole record, unless a power cut left a gap: a disk writes pages in any order, so there
    may be whole records behind bytes that were never written. No head: there is no record, or none before the gap.
    Earlier runs are not checked: their damage is for verification to find.
    """
    end, head, behind, found = 0, None, 0, 0
    for offset, line in backward(fd, size, max(0, size - WINDOW)):
        record = parse(line)
        if record is None:
            end, head, behind = 0, None, found
            continue
        if head is None:
            end, head = offset + len(line), head_of(line, record)
        found += 1
        if record.get("event") in RUN_EVENTS:
            break
    return end, head, behind


def _require_ours(path: Path, fd: int) -> None:
    """Raise ConfigError unless a file without a record can be a torn first line, or the zeros of a power cut."""
    start = os.pread(fd, len(_START_OF_RECORD), 0)
    if not _START_OF_RECORD.startswith(start) and start.strip(b"\0"):
        raise ConfigError(f"audit log {path}: holds something else; move it away or name another file in [audit] path")


def _move_aside(path: Path, fd: int, end: int, size: int, now: float) -> Path:
    """Copy the bytes after the last record to a file of their own, and only then cut them off."""
    stamp = timestamp(now).replace("-", "").replace(":", "")
    target = path.with_name(f"{path.name}.torn-{stamp}")
    try:
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        with os.fdopen(out, "wb") as file:
            file.writelines(read_exactly(fd, min(CHUNK, size - offset), offset) for offset in range(end, size, CHUNK))
            file.flush()
            os.fsync(out)
        sync_directory(path.parent)
        os.ftruncate(fd, end)
    except OSError as error:
        raise ConfigError(
            f"audit log {path}: ends in a torn line that cannot be moved to {target}: {error.strerror}; "
            "free space, or check the directory's owner and mode"
        ) from error
    return target


def _head_of_rotated(path: Path) -> Head:
    """Return the head that the last whole record of a rotated file makes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"audit log {path}: {error.strerror}; the log goes on from this file") from error
    try:
        for _, line in backward(fd, os.fstat(fd).st_size):
            if (record := parse(line)) is not None:
                return head_of(line, record)
    finally:
        os.close(fd)
    raise ConfigError(f"audit log {path}: has no whole record to continue from; move it away")


def _newest_first(fd: int, end: int, older: Sequence[Path]) -> Iterator[bytes | None]:
    """Yield the lines of the current file and those before it, as far as the window goes; None when there is more."""
    left = WINDOW
    floor = max(0, end - left)
    for _, line in backward(fd, end, floor):
        yield line
    oldest = first_seq(fd)
    left -= end - floor
    for path in reversed(older):
        if left <= 0:
            break
        try:
            before = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            size = os.fstat(before).st_size
            floor = max(0, size - left)
            for _, line in backward(before, size, floor):
                yield line
            oldest = first_seq(before)
            left -= size - floor
        finally:
            os.close(before)
    if floor or oldest not in (1, None):
        yield None


@define
class _Unfinished:
    """The unfinished tasks of the last run, found by reading it backwards."""

    unclean: bool = False
    complete: bool = True
    began: int = 0
    finished: dict[str, str] = field(factory=dict)
    _finished_steps: set[tuple[str, int | None]] = field(factory=set)
    _open: dict[str, dict[str, Any]] = field(factory=dict)

    def read(self, lines: Iterator[bytes | None]) -> None:
        """Read until the run's first record."""
        for line in lines:
            if line is None:
                self.complete = False
                return
            if not _EVENT.match(line):
                continue
            record = parse(line)
            if record is not None and self._take(record):
                return

    def tasks(self) -> Iterator[Record]:
        """Yield the tasks in flight; the one without a record for the longest time first."""
        for task in reversed(self._open.values()):
            if task["task_id"] not in self.finished:
                yield {**task, "steps": task["steps"][::-1]}

    def _take(self, record: Record) -> bool:
        """Note one record; True if nothing before it can still be in flight."""
        event, task_id = record["event"], record.get("task_id")
        if event == "daemon.start":
            self.unclean = True
        if event in RUN_EVENTS:
            self.began = record["seq"]
            return True
        if not isinstance(task_id, str):
            return False
        index = record.get("step_index")
        # A log that another program wrote into may have any value here, also one that nests deeper than Python can
        # write.
        step = (task_id, index if isinstance(index, int) else None)
        if event == "task.finish":
            self.finished.setdefault(task_id, str(record.get("status")))
        elif event == "task.step.finish":
            self._finished_steps.add(step)
        elif event in ("task.submit", "task.step.start") and task_id not in self.finished:
            task = self._open.setdefault(
                task_id, {"session_id": record.get("session_id"), "task_id": task_id, "steps": []}
            )
            if event == "task.step.start" and step not in self._finished_steps:
                task["steps"].append({"step_index": record.get("step_index"), "tool": record.get("tool")})
        return False
