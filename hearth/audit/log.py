"""The owner of the log's files: opens and locks them, seals records into them, rotates them, and signs checkpoints.

Blocking, and used by one thread at a time; the journal actor is its only user. It signs with the key that it is given;
`hearth.audit.keys` makes and reads keys. The journal actor keeps the records that could not be written.
`AuditSettings`, the operator's settings of the log, are here too; they refuse only values that cannot work.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import Attribute, evolve, field, frozen

from hearth._util.formats import check_format
from hearth.audit import keys
from hearth.audit.files import FORMAT, format_of, real, rotated_files, rotated_name
from hearth.audit.notes import Checkpoint
from hearth.audit.record import GENESIS, Head, Record, timestamp
from hearth.audit.recovery import Recovery, recover
from hearth.audit.reserve import Reserve
from hearth.audit.tree import Tree, TreeFile, known
from hearth.audit.writer import Disk, LogFailed, Writer, sync_directory, sync_names
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


Stamped: TypeAlias = tuple[float, Record]
"""A record, and the time at which it was reported, in epoch seconds."""

WATCH_S = 1.0
"""The log checks at most once in this time that its file is still there: a stat(2)."""

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_MODE = 0o640


class AuditLog:
    """One audit log, from `open` to `close`.

    `signer` may be set at any time; until then checkpoints that are due wait (`checkpoint_due`). `warning` names a
    fault that does not keep records from being written, else None. `head` is the last record written (with durability
    "fsync": synced), and may be read from any thread.
    """

    def __init__(self, settings: AuditSettings, *, disk: Disk | None = None) -> None:
        self._settings = settings
        self.path = real(settings.path)
        self.signer: keys.Signer | None = None
        self.checkpoint_due = False
        self.warning: str | None = None
        self.head: Head = (0, GENESIS)
        self._lock = Lock()
        """Held during `append`, so that another thread can ask for the tree (`grown`)."""
        self._sync = settings.durability == "fsync"
        disk = disk or Disk()
        self._writer = Writer(self.path, sync=self._sync, disk=disk)
        self.tree_file = TreeFile(self.path)
        self.reserve = Reserve(self.path.with_name(self.path.name + ".reserve"), settings.reserve_bytes, disk)
        self._signed_at = 0
        self._opening: Record | None = None
        self._rotate_at = settings.rotate_bytes
        self._watched_at = 0.0

    @property
    def is_open(self) -> bool:
        """True from `open` to `close`."""
        return self._writer.fd >= 0

    # --- opening and closing

    def open(self, now: float) -> Recovery:
        """Lock the log, repair its end, and find where the chain continues.

        Raises ConfigError if another process writes it, if it is no audit log, if a path cannot be used, or if the key
        is one that others can read.
        """
        keys.inspect(self._settings.key)
        try:
            existed = next(directory for directory in self.path.parents if directory.exists())
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            if self._sync and not self.path.exists():
                # An earlier process may have renamed it and died before it made the next file.
                sync_directory(self.path.parent)
            fd = self._open_locked()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._check_format(fd)
            found = recover(self.path, fd, now)
            if self._sync:
                self._settle(fd, existed)
            found = evolve(found, known=known(self.path))
            self._writer.tree = self.tree_file.open(found.head[0])
        except BaseException:
            os.close(fd)
            raise
        self._writer.adopt(fd, found.size, found.head, found.first_seq)
        self.head = found.head
        # A number that shows a rollback stays until that is on record.
        if self._sync and found.head[0] and found.rollback is None:
            self.tree_file.settle(self._writer.tree, found.head[0])
        with suppress(OSError):  # it says so itself; a log without a reserve is still a log
            self.reserve.make()
        self._watched_at = now
        if not found.size and found.head[0]:
            self._open_with("recovered", rotated_files(self.path)[-1].name, None)
        return found

    def close(self) -> None:
        """Sync and close; idempotent. Raises LogFailed if what was written could not be synced."""
        if not self.is_open:
            return
        try:
            self._writer.sync()
            if self._writer.size:
                self.tree_file.settle(self._writer.tree, self._writer.chain.seq)
        finally:
            os.close(self._writer.fd)
            self._writer.fd = -1

    def _check_format(self, fd: int) -> None:
        """Raise ConfigError if a newer release wrote the log: its newest file with a record names the format."""
        found, older = format_of(fd), rotated_files(self.path)
        if older and not os.fstat(fd).st_size:
            # A file that cannot be read is for recovery to name.
            with suppress(OSError), older[-1].open("rb") as newest:
                found = format_of(newest.fileno())
        check_format(f"audit log {self.path}", found, FORMAT, "name another file in [audit] path")

    def _settle(self, fd: int, existed: Path) -> None:
        """Sync the records that an earlier process may have left in the kernel: later ones must not outlast them."""
        try:
            os.fsync(fd)
            sync_names(self.path, existed)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"audit log {self.path}: {error.strerror}; see [audit] path")

    def _open_locked(self) -> int:
        while True:
            fd = os.open(self.path, _FLAGS | os.O_NONBLOCK, _MODE)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise ConfigError(f"audit log {self.path}: not a regular file; see [audit] path")
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_path(status):
                    return fd
            except BlockingIOError:
                os.close(fd)
                raise ConfigError(
                    f"audit log {self.path}: another process is writing it; stop the other hearthd, or give this one "
                    "another file in [audit] path"
                ) from None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # the other process rotated it between our open and our lock

    def _is_at_path(self, status: os.stat_result) -> bool:
        try:
            return os.path.samestat(status, self.path.stat())
        except FileNotFoundError:
            return False

    # --- writing

    @property
    def unsigned(self) -> bool:
        """True if there are records that no checkpoint covers."""
        return self.head[0] > self._signed_at

    def append(self, records: Sequence[Stamped], now: float, *, spend: bool = False) -> None:
        """Seal and write `records`; with durability "fsync" return when they are on the disk.

        Checkpoints and rotation happen on the way. An empty sequence writes the log's own outstanding records, at
        `now`. `spend` frees the reserve for these records; later ones are refused until it is refilled. Raises
        LogFailed; the records after the first `written` are then not in the log, and may be given again.
        """
        with self._lock:
            writer = self._writer
            chain, every = writer.chain, self._settings.checkpoint_every
            at = records[-1][0] if records else now
            writer.kept = 0
            rest = records
            try:
                if spend or self.reserve.spent:
                    self._settle_reserve(spend=spend)
                # The file must be there, end in a whole record, and have its opening.
                writer.begin()
                if not 0 <= at - self._watched_at < WATCH_S:
                    self._watch(at)
                if self._opening is not None:
                    self._write_opening(at)
                if rest and not writer.size:
                    rest = [(rest[0][0], {**rest[0][1], "format": FORMAT}), *rest[1:]]
                while rest:
                    if writer.size >= self._rotate_at:
                        self._rotate(rest[0][0])
                    # In one pass, as many as there are up to the next checkpoint or rotation.
                    # One at least, also into a new file whose opening alone fills it.
                    lines = chain.seal_some(rest, every - chain.seq % every, max(1, self._rotate_at - writer.size))
                    at = rest[len(lines) - 1][0]
                    rest = rest[len(lines) :]
                    writer.write(lines)
                    if not chain.seq % every:
                        self.checkpoint_due = True
                        self._checkpoint(at)
                if self.checkpoint_due:
                    self._checkpoint(at)
                if self._sync:
                    writer.sync()
                    self.tree_file.synced = chain.seq
            except LogFailed as failed:
                # A checkpoint may have been taken back.
                self.checkpoint_due |= self._signed_at > chain.seq
                self.tree_file.truncate(writer.tree.size)
                failed.written = writer.kept
                raise
            except BaseException:
                writer.restore()
                raise
            finally:
                self.head = chain.seq, chain.prev

    def grown(self) -> tuple[Head, Tree]:
        """Return the head, and a copy of the tree that ends with it. Any thread may call it; waits for an append."""
        with self._lock:
            return self._writer.chain.head, self._writer.tree.copy()

    def _settle_reserve(self, *, spend: bool) -> None:
        try:
            if spend:
                self.reserve.spend()
            elif self.reserve.spent:
                self.reserve.make()
        except OSError as error:
            raise self._writer.failed(error) from error

    def _write_opening(self, at: float) -> None:
        if self._opening is not None and not self._writer.size:
            self._writer.write([self._writer.chain.seal(self._opening, at)], ours=True)

    def _checkpoint(self, at: float) -> None:
        """Sign the head, if there is a key to sign with."""
        if self.signer is None:
            return
        chain, tree = self._writer.chain, self._writer.tree
        seq, head = chain.head
        record = {
            "event": "audit.checkpoint",
            "head": {"seq": seq, "hash": head},
            "key": self.signer.key_id,
            "sig": self.signer.sign(keys.checkpoint_message(seq, head, timestamp(at))),
            "note": Checkpoint.of(tree.origin, tree.size, tree.root()).signed(self.signer),
        }
        self._writer.write([chain.seal(record, at)], ours=True)
        self._signed_at = chain.seq
        self.checkpoint_due = False
        self.tree_file.flush(tree)

    def _rotate(self, at: float) -> None:
        """Give the file its rotated name and continue in a new one; if that is impossible, continue in the old one."""
        if self._sync:
            self._writer.sync()
        target = rotated_name(self.path, self._writer.first_seq)
        try:
            if target.exists():
                raise FileExistsError(errno.EEXIST, f"{target} exists")
            fd = self._begin_file(target)
        except OSError as error:
            self.warning = f"audit log {self.path}: cannot be rotated: {error.strerror}; move old files away"
            self._rotate_at = self._writer.size + self._settings.rotate_bytes // 8
            return
        self._replace(fd, "size", target.name)
        self._write_opening(at)
        self._checkpoint(at)

    def _watch(self, at: float) -> None:
        """Check that the file we write is the one that others read, and repair it if not."""
        first, last = self._writer.first_seq, self._writer.chain.seq
        target: Path | None = None
        try:
            reason = self._touched()
            if reason is None:
                self._watched_at = at
                return
            if reason != "removed":
                target = rotated_name(self.path, first)
                if target.exists():
                    stamp = timestamp(at).replace("-", "").replace(":", "")
                    target = self.path.with_name(f"{self.path.name}.found-{stamp}")
            fd = self._begin_file(target)
        except OSError as error:
            raise self._writer.failed(error) from error
        self.warning = (
            f"audit log {self.path}: {reason} by another program while it was being written; "
            f"records {first} to {last} may be lost"
        )
        self._replace(fd, reason, target.name if target else None)
        self._watched_at = at

    def _touched(self) -> str | None:
        """Return the change that another program has made to the file, or None."""
        ours = os.fstat(self._writer.fd)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return "removed"
        if not os.path.samestat(there, ours):
            return "replaced"
        return None if there.st_size == self._writer.size else "changed"

    def _begin_file(self, aside: Path | None) -> int:
        """Put a new, locked, empty file at the path; rename the present one to `aside` first."""
        draft = self.path.with_name(self.path.name + ".next")
        fd = os.open(draft, _FLAGS | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if aside is not None:
                self.path.rename(aside)
            try:
                if aside is not None and self._sync:
                    # Without this a power cut could leave the second rename without the first: the file, and no name
                    # for it.
                    sync_directory(self.path.parent)
                draft.rename(self.path)
            except OSError:
                if aside is not None:
                    aside.rename(self.path)
                raise
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _replace(self, fd: int, reason: str, previous: str | None) -> None:
        first, head = self._writer.first_seq, self._writer.chain.head
        os.close(self._writer.fd)
        self._writer.adopt(fd, 0, head)
        self._rotate_at = self._settings.rotate_bytes
        self._open_with(reason, previous, first)

    def _open_with(self, reason: str, previous: str | None, first: int | None) -> None:
        """Begin the current file, which is empty, with an audit.rotate record; a checkpoint follows it."""
        self._opening = {
            "event": "audit.rotate",
            "format": FORMAT,
            "reason": reason,
            "previous": previous,
            "previous_first_seq": first,
            "previous_last_seq": self._writer.chain.seq,
        }
        self.checkpoint_due = True


Durability: TypeAlias = Literal["os", "fsync", "relaxed"]
"""The state of a record when its receipt is answered: in the kernel, on the disk, or merely accepted."""

DURABILITIES: tuple[Durability, ...] = ("os", "fsync", "relaxed")


def _known(_instance: Any, _attribute: Attribute[Any], value: str) -> None:
    if value not in DURABILITIES:
        raise ConfigError(f"audit.durability: {value!r} is none of {', '.join(DURABILITIES)}")


def _at_least(least: int) -> Any:
    def check(_instance: Any, attribute: Attribute[Any], value: int) -> None:
        if value < least:
            raise ConfigError(f"audit.{attribute.name}: {value} is too small; the least is {least}")

    return check


@frozen(kw_only=True)
class AuditSettings:
    """The `[audit]` table of hearth.toml, with its defaults filled in.

    A file that has reached `rotate_bytes` is followed by a new one; a checkpoint follows every record whose number is a
    multiple of `checkpoint_every`, and no record stays without one for longer than `checkpoint_interval_s`.
    `reserve_bytes` of the disk are kept so that running work can be logged to its end when the disk is full. `key` is
    the daemon's Ed25519 key; it is made when the first checkpoint is due, and its public half is beside it as
    `<key>.pub`. Raises ConfigError for a value that cannot work.
    """

    path: Path
    durability: Durability = field(default="os", validator=_known)
    rotate_bytes: int = field(default=64 * 1024 * 1024, validator=_at_least(1024))
    checkpoint_every: int = field(default=1000, validator=_at_least(1))
    checkpoint_interval_s: float = 3600
    reserve_bytes: int = field(default=1024 * 1024, validator=_at_least(0))
    key: Path
