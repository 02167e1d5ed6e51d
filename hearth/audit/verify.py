"""Verification of a log, and reading its ends: `verify`, `head`, `tail`. Reads only; needs no daemon and no lock.

`verify` proves that every line is the one that was written: numbers without a gap, each `prev` the hash of the line
before it, across all rotated files. The chain cannot show that lines are missing at its end, or that an attacker
without the key wrote a new chain: for these there are signed checkpoints. `Report.signed_to` says how far signatures
reach, and a checkpoint that was noted elsewhere (`known=`) shows whether the log still contains it.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import orjson
from attrs import define, field, frozen

from hearth._util.formats import check_format
from hearth.audit import keys
from hearth.audit.files import (
    FORMAT,
    first_seq,
    head_of,
    is_aside,
    newest_records,
    open_files,
    real,
    records_from,
    rotated_files,
    rotated_seq,
)
from hearth.audit.notes import Checkpoint, NotAccepted
from hearth.audit.record import GENESIS, Head
from hearth.audit.recovery import cut_short
from hearth.audit.tree import Tree, known as recorded
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hearth.audit.record import Record

PathLike: TypeAlias = str | os.PathLike[str]


class Bad(NamedTuple):
    """The first fault: the file, the line in it (1 is the first; 0: the file itself), and the reason."""

    file: Path
    line: int
    reason: str


@frozen
class Report:
    """The result of `verify`. Nothing after the first bad record is read, so the numbers are those up to there.

    `first_seq` is 1 unless older files are no longer there. `signed_to` is the seq that the last checkpoint with a good
    signature covers, 0 if there is none or no public key was given: records after it are chained only.
    """

    records: int
    files: tuple[Path, ...]
    head: Head | None
    first_seq: int | None
    checkpoints: int
    signed_to: int
    first_bad: Bad | None = None
    unsigned: int = 0
    """Records at the end that no checkpoint follows: chained only, so that cutting them off would not show."""
    lost: Mapping[str, int] = field(factory=dict)
    """Records that by the log's own account were lost because it could not be written: by class."""
    uncounted: int = 0
    """Count of runs that ended while the log's disk was full and could not say how many records were lost."""

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return self.first_bad is None


CHECKPOINT_EVERY: Final = 1000
"""The default of [audit] checkpoint_every."""


def verify(
    paths: PathLike | Iterable[PathLike],
    public_key: PathLike | keys.PublicKeys | None = None,
    *,
    known: Head | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
) -> Report:
    """Check the log at `paths`, and with `public_key` (the file `<key>.pub`) the signature of every checkpoint.

    With a public key, a log of more than `checkpoint_every` records in which none is a checkpoint is bad: whoever can
    write the file can make a chain, and leave out what only the key can sign. A path stands for its log: the files it
    was rotated to are found beside it and read first. `known` is a head (seq, hash) that the log had at an earlier
    time. Memory use does not depend on the log's size. Raises ConfigError for a public key that cannot be read;
    everything about the log itself, unreadable files included, is in the report.
    """
    if public_key is not None and not isinstance(public_key, keys.PublicKeys):
        public_key = keys.load_public(Path(public_key))
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    # Before the log, which may grow while it is read.
    synced = max((recorded(real(path))[0] for path in given), default=0)
    return _ChainCheck(public_key, known, synced, checkpoint_every).run(_inputs(given))


def head(path: PathLike) -> Head | None:
    """Return the seq and hash of the last whole record of the log at `path`, or None if it has none. Raises OSError."""
    for line, record in newest_records(path):
        return head_of(line, record)
    return None


def tail(path: PathLike, count: int) -> list[Record]:
    """Return the last `count` whole records of the log at `path`, oldest first. Raises OSError."""
    records: list[Record] = []
    for _, record in newest_records(path):
        if len(records) >= count:
            break
        records.append(record)
    return records[::-1]


MOST_PAGE_BYTES = 1 << 20
"""Bytes of the records that `page` returns, but for the last one."""


def page(path: PathLike, first: int | None, count: int) -> dict[str, Any]:
    """Return up to `count` records of the log at `path` from number `first` on, or else the newest, in rising order.

    The result has `records`, the numbers `first_seq` and `last_seq` of the log's first and last record (0: none), and
    `next_seq`, the number from which to read on; None at the end. Reads only near those records. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        files = open_files(stack, path)
        last = head(path)
        last_seq = 0 if last is None else last[0]
        oldest = files[0][0] if files else 0
        wanted = max(oldest, last_seq - count + 1 if first is None else first)
        records: list[Record] = []
        size = 0
        for line, record in records_from(files, wanted):
            if len(records) == count or size > MOST_PAGE_BYTES:
                break
            records.append(record)
            size += len(line)
    until = records[-1]["seq"] if records else wanted - 1
    return {
        "records": records,
        "first_seq": oldest,
        "last_seq": last_seq,
        "next_seq": until + 1 if until < last_seq else None,
    }


def _inputs(given: Iterable[PathLike]) -> Iterator[tuple[Path, Iterable[bytes] | OSError]]:
    """Yield every file of the logs named, oldest first and once, with its lines."""
    seen: set[tuple[int, int]] = set()
    for path in given:
        base = real(path)
        if not is_aside(base):  # those are named by a shell pattern, kept for people, and no part of the log
            yield from _log(base, seen)


def _log(base: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[Path, Iterable[bytes] | OSError]]:
    """Yield the files of one log.

    The current file is opened before the directory is read: if it is rotated in between, the open file is still the
    newest file of one consistent log, whatever its name is by then.
    """
    with contextlib.ExitStack() as stack:
        current: IO[bytes] | OSError
        try:
            current = stack.enter_context(base.open("rb"))
        except OSError as error:
            current, newest = error, None
        else:
            newest = first_seq(current.fileno())
            if _is_seen(current, seen):
                return
        older = [file for file in rotated_files(base) if newest is None or (rotated_seq(file) or 0) < newest]
        for file in older:
            try:
                lines = stack.enter_context(file.open("rb"))
            except OSError as error:
                yield file, error
                return
            if not _is_seen(lines, seen):
                yield file, lines
            lines.close()
        if not (older and isinstance(current, FileNotFoundError)):
            yield base, current


def _is_seen(file: IO[bytes], seen: set[tuple[int, int]]) -> bool:
    """Return True if this very file was given before, and remember it."""
    status = os.fstat(file.fileno())
    identity = (status.st_dev, status.st_ino)
    known = identity in seen
    seen.add(identity)
    return known


def _shown(value: object) -> str:
    """Return a record's claim for a reason: one short line, whatever it is."""
    try:
        text = repr(value)
    except RecursionError:  # orjson reads more levels than Python writes out
        text = f"a {type(value).__name__} that is nested too deeply to be shown"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _plain(value: object) -> str:
    """Return the same for a hash or a key's name: without quotes, where it looks like one."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_SHOWN else _shown(value)


_LONGEST_SHOWN = 120
_OF_THE_DISK = frozenset(("audit.reserve", "audit.resume", "audit.gap", "daemon.start"))


@define
class _ChainCheck:
    """One pass over a log."""

    public_keys: keys.PublicKeys | None
    known: Head | None
    synced: int = 0
    """The last record that was on the disk, by the tree's file."""
    checkpoint_every: int = CHECKPOINT_EVERY
    seq: int | None = None
    prev: str = GENESIS
    first_seq: int | None = None
    records: int = 0
    checkpoints: int = 0
    signed_to: int = 0
    unsigned: int = 0
    lost: Counter[str] = field(factory=Counter)
    uncounted: int = 0
    tree: Tree | None = None
    """The tree of the records read so far."""
    full: bool = False
    """True if the disk was full, by the newest record that mentions it."""
    line: int = 0
    files: list[Path] = field(factory=list)

    def run(self, inputs: Iterator[tuple[Path, Iterable[bytes] | OSError]]) -> Report:
        for file, lines in inputs:
            self.files.append(file)
            if isinstance(lines, OSError):
                return self._report(Bad(file, 0, lines.strerror or str(lines)))
            self.line = 0
            named = rotated_seq(file)
            for line in lines:
                self.line += 1
                reason = self._take(line)
                if reason is None and self.line == 1 and named not in (None, self.seq):
                    reason = f"the file is named after record {named}, but begins with record {self.seq}"
                if reason is not None:
                    return self._report(Bad(file, self.line, reason))
            if named is not None and not self.line:
                return self._report(Bad(file, 0, f"the file is named after record {named}, but holds no record"))
        return self._report(self._end())

    def _take(self, line: bytes) -> str | None:
        """Check one line; return the reason if it is bad."""
        if not line.endswith(b"\n"):
            return "torn: the last line has no line feed"
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            return f"not JSON: {error}"
        if not isinstance(record, dict):
            return "not a JSON object"
        try:
            if self.line == 1:
                check_format("the file", record.get("format"), FORMAT, "verify the files before it alone")
        except ConfigError as newer:
            return str(newer)
        seq, prev = record.get("seq"), record.get("prev")
        reason = self._link(seq, prev)
        event = record.get("event")
        self.unsigned += 1
        if reason is None and event == "audit.checkpoint":
            reason = self._checkpoint(record)
        if reason is not None:
            return reason
        if isinstance(event, str) and event in _OF_THE_DISK:
            self._note(record)
        if self.tree is None:
            self.tree = Tree(record["seq"])
        self.tree.add(line[:-1])
        self.seq = seq
        self.prev = "sha256:" + sha256(line[:-1]).hexdigest()
        self.records += 1
        if self.known is not None and seq == self.known[0] and self.prev != self.known[1]:
            return f"record {seq} has the hash {self.prev}, and not {self.known[1]} as noted before"
        return None

    def _note(self, record: dict[str, Any]) -> None:
        """Note a record's account of a log that could not be written."""
        event, lost = record["event"], record.get("lost")
        if event == "daemon.start":
            self.uncounted += self.full
        self.full = event == "audit.reserve"
        if event in ("audit.resume", "audit.gap") and isinstance(lost, dict):
            self.lost.update({name: count for name, count in lost.items() if type(count) is int and count > 0})

    def _link(self, seq: Any, prev: Any) -> str | None:
        if type(seq) is not int or seq < 1:
            return f"seq is {_shown(seq)}, not a number from 1 on"
        if not isinstance(prev, str):
            return f"prev is {_shown(prev)}, not a hash"
        if self.seq is None:
            self.first_seq = seq
            if seq > 1:  # older files were removed; the chain begins with what is there
                self.prev = prev
        elif seq != self.seq + 1:
            return f"seq is {seq}, expected {self.seq + 1}: records are missing, repeated or out of order"
        if prev != self.prev:
            before = _plain(self.prev)  # of the first line that is there it is what that line itself says
            return f"prev is {_plain(prev)}, but the line before has the hash {before}: one of the two was changed"
        return None

    def _checkpoint(self, record: dict[str, Any]) -> str | None:
        claimed = record.get("head")
        before = {"seq": record["seq"] - 1, "hash": record["prev"]}
        if claimed != before:
            return f"checkpoint for the head {_shown(claimed)}, but the head is {_shown(before)}"
        if self.public_keys is not None:
            key, signature = record.get("key"), record.get("sig")
            if key not in self.public_keys:
                return f"checkpoint signed with the key {_plain(key)}, which is not among the public keys given"
            message = keys.checkpoint_message(before["seq"], before["hash"], str(record.get("ts")))
            if not self.public_keys.verify(str(key), message, str(signature)):
                return f"checkpoint signature by {key} is wrong"
            self.signed_to = before["seq"]
        if "note" in record and (reason := self._note_of(record, before["seq"])) is not None:
            return reason
        self.checkpoints += 1
        self.unsigned = 0
        return None

    def _note_of(self, record: Mapping[str, Any], seq: int) -> str | None:
        """Check the signed note of a checkpoint; return the reason if it is bad."""
        try:
            noted = Checkpoint.parse(str(record["note"]))
            if self.public_keys is not None:
                noted.signer_among(self.public_keys)
        except NotAccepted as error:
            return f"checkpoint with a bad note: {error}"
        tree = self.tree
        # Where the oldest files were removed, the root cannot be computed from the records that are left.
        if (
            tree is not None
            and seq - noted.size + 1 == tree.first
            and ((noted.origin, noted.root) != (tree.origin, tree.root()))
        ):
            return f"checkpoint with a note for another tree: {_plain(noted.text)}, but the records have another root"
        return None

    def _end(self) -> Bad | None:
        if not self.files:
            return Bad(Path(), 0, "no audit log was named")
        if self.public_keys is not None and not self.checkpoints and self.records > self.checkpoint_every:
            every = f"hearthd signs one at its start and every {self.checkpoint_every} ([audit] checkpoint_every)"
            return Bad(self.files[-1], self.line, f"no checkpoint in {self.records} records; {every}")
        if self.known is None or (self.first_seq or 1) <= self.known[0] <= (self.seq or 0):
            reason = cut_short(self.seq or 0, self.synced)
            return None if reason is None else Bad(self.files[-1], self.line, reason)
        place = Bad(self.files[-1], self.line, "")
        if self.known[0] > (self.seq or 0):
            return place._replace(reason=f"the log ends at record {self.seq or 0}, but had record {self.known[0]}")
        return place._replace(reason=f"the log begins at record {self.first_seq}, after record {self.known[0]}")

    def _report(self, bad: Bad | None) -> Report:
        return Report(
            records=self.records,
            files=tuple(self.files),
            head=None if self.seq is None else (self.seq, self.prev),
            first_seq=self.first_seq,
            checkpoints=self.checkpoints,
            signed_to=self.signed_to,
            first_bad=bad,
            unsigned=self.unsigned,
            lost=dict(self.lost),
            uncounted=self.uncounted + self.full,
        )
