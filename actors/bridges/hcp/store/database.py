"""The job store's file: its directory, its lock, and its transactions, each done whole or not at all.

It owns `jobs.sqlite3` from `open` to `close`. It refuses a file that belongs to another program or a newer release, and
moves a damaged one aside with a note. Blocking; used by one thread at a time. It turns every sqlite3.Error into a
JobStoreError, and opens the file again after an error that may have broken the connection. It does not know what the
operations mean.

Theory of operation. States of the store: fresh (no file; the first operation creates it) -> open -> closed, and between
open and closed at times without a connection: after an error that may have broken it, the next operation connects
again. The directory's lock is held until `close`. What is on the disk is a whole number of commits at any time:
SQLite's write-ahead log sees to that, also when the process is killed. After a power cut the last commits may be
missing, unless durability is "fsync".
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sqlite3
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import outcome

from hearth._util.formats import check_format
from hearth.actors.bridges.hcp.store.queries import JobStoreError, SessionRow, unfinished_sessions
from hearth.audit.record import timestamp
from hearth.errors import ConfigError, HearthError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hearth.audit.log import Durability

FILE: Final = "jobs.sqlite3"
FORMER_FILE: Final = "book.sqlite3"
"""The file's name up to release 0.1; `open` renames such a file."""
_SIDE_FILES: Final = ("-wal", "-journal")
_LOST: Final = (
    "the answers, messages, checkpoints and artifacts of earlier HCP jobs are not known "
    "any more, and a message that is sent again counts as new"
)
_GONE: Final = "it was removed or replaced while it was in use; put it back, or restart the daemon for a new one"
_DAMAGED: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_SURVIVED: Final = frozenset((sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT))
"""Errors that leave the connection intact."""
_UNHOLDABLE: Final = (UnicodeEncodeError, OverflowError)
"""The sqlite3 module's errors for a text with half a surrogate pair, and for an integer past 64 bits."""
_PLAIN: Final = {
    sqlite3.SQLITE_FULL: "no space is left on the disk",
    sqlite3.SQLITE_READONLY: "it may not be written",
    sqlite3.SQLITE_PERM: "it may not be written",
    sqlite3.SQLITE_BUSY: "another program is using it",
    sqlite3.SQLITE_LOCKED: "another program is using it",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_IOERR: "the disk does not take or give it",
    sqlite3.SQLITE_CORRUPT: "it is damaged; at its next start the daemon moves it aside",
    sqlite3.SQLITE_NOTADB: "it is damaged; at its next start the daemon moves it aside",
}


class JobDatabase:
    """The file of one job store, from `open` to `close`."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        self.path = directory / FILE
        self.key = secrets.token_bytes(KEY_BYTES)
        """The secret that session tokens are made with: the store's own, once it is open."""
        self.fresh = False
        """True while there is no file yet: the first operation creates it."""
        self.unfinished: tuple[SessionRow, ...] = ()
        """The sessions that had not ended at `open`."""
        self.aside: str | None = None
        """The suffix of a damaged store's files, if one was moved aside: ".found-…"."""
        self._directory = directory
        self._durability: Durability = durability
        self._lock = -1
        self._connection: sqlite3.Connection | None = None
        self._there: tuple[int, int] | None = None

    # --- opening and closing

    def open(self, now: float) -> list[str]:
        """Lock the directory and open an existing store; return notes for the operator, one line each.

        Without one, the first operation creates it. Raises ConfigError; then nothing is open.
        """
        try:
            self._lock_directory()
            return self._open_existing(now)
        except OSError as error:
            raise ConfigError(f"HCP job store {self.path}: {error.strerror}; see [audit] path") from error
        finally:
            # Whatever failed: the lock must not be held by a daemon that does not start.
            if self._connection is None and not self.fresh:
                self.close()

    def close(self) -> None:
        """Merge the write-ahead log into the file, close it, and unlock the directory. Idempotent; does not raise."""
        self._drop()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _lock_directory(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The directory, because the file may not exist yet, and may be moved aside.
        fd = self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _must_be_ours(os.fstat(fd), self._directory, "700")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"HCP job store {self.path}: another process is using it; stop the other hearthd, or give this "
                "one another file in [audit] path"
            ) from None

    def _open_existing(self, now: float) -> list[str]:
        """Open the store, if there is one; move a damaged one aside."""
        self._take_over_former_file()
        # lstat: a link could lead to a file of another user, or of another program.
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            self.fresh = True
            return []
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"HCP job store {self.path}: not a regular file; move it away")
        _must_be_ours(status, self.path, "600")
        try:
            self._connection = self._connect()
            prepare(self._connection, self.key)
            self.key = read_key(self._connection)
            self.unfinished = unfinished_sessions(self._connection)
        except SchemaError as error:
            raise ConfigError(f"HCP job store {self.path}: {error}; move it away, or see [audit] path") from error
        except sqlite3.Error as error:
            self._drop()
            if _code(error) not in _DAMAGED:
                raise ConfigError(f"HCP job store {self.path}: {_why(error)}; see [audit] path") from error
            note = self._moved_aside(_why(error), now)
            self.fresh = True
            return [note]
        return []

    def _take_over_former_file(self) -> None:
        """Rename an older release's files, the main file last: the next start completes one that is cut short here."""
        former = self.path.with_name(FORMER_FILE)
        if not os.path.lexists(former) or os.path.lexists(self.path):
            return
        for suffix in (*_SIDE_FILES, ""):
            with suppress(FileNotFoundError):
                former.with_name(FORMER_FILE + suffix).rename(self.path.with_name(FILE + suffix))

    def _begin(self) -> sqlite3.Connection:
        """Create the store. Raises JobStoreError, sqlite3.Error; then there is none."""
        # Created here, because SQLite would follow a link and use the umask.
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            if self._durability == "fsync":
                # The name too: a power cut must not lose a file that holds answers.
                os.fsync(self._lock)
        except OSError as error:
            raise JobStoreError(f"HCP job store {self.path}: cannot be made: {error.strerror}") from error
        try:
            self._connection = self._connect()
            prepare(self._connection, self.key)
        except BaseException:
            # Half made. Removed, or O_EXCL would refuse the next attempt.
            self._drop()
            for suffix in ("", *_SIDE_FILES):
                self.path.with_name(FILE + suffix).unlink(missing_ok=True)
            raise
        self.fresh = False
        return self._connection

    def _moved_aside(self, why: str, now: float) -> str:
        stamp = timestamp(now).replace("-", "").replace(":", "")
        self.aside = f".found-{stamp}"
        aside = self.path.with_name(FILE + self.aside)
        self.path.rename(aside)
        # With its write-ahead log, without which the last commits could not be recovered from it.
        for suffix in _SIDE_FILES:
            with suppress(FileNotFoundError):
                self.path.with_name(FILE + suffix).rename(aside.with_name(aside.name + suffix))
        return f"HCP job store {self.path}: {why}; it is now {aside}: {_LOST}"

    def _connect(self) -> sqlite3.Connection:
        """Open the existing file. Raises SchemaError, sqlite3.Error."""
        job_store = connect(self.path, self._durability)
        status = self.path.stat()
        self._there = status.st_dev, status.st_ino
        return job_store

    def _drop(self) -> None:
        """Close the connection, which may be broken, if there is one."""
        job_store, self._connection = self._connection, None
        if job_store is not None:
            with suppress(sqlite3.Error):
                job_store.close()

    # --- transactions

    def write(self, operations: Sequence[Callable[[sqlite3.Connection], Any]]) -> list[outcome.Outcome[Any]]:
        """Run operations in their order, commit them together, and return their outcomes.

        An operation that raises JobStoreError is undone; the others are not affected. A failed commit fails all of
        them.
        """
        try:
            job_store = self._ready()
            # IMMEDIATE takes the lock at once: if that fails, no operation has run.
            job_store.execute("BEGIN IMMEDIATE")
            results = [_one(job_store, operation) for operation in operations]
            job_store.execute("COMMIT")
        except (sqlite3.Error, JobStoreError) as error:
            reason = self._failed(error)
            return [outcome.Error(JobStoreError(reason)) for _ in operations]
        return results

    def read(self, operations: Sequence[Callable[[sqlite3.Connection], Any]]) -> list[outcome.Outcome[Any]]:
        """Run operations that write nothing, or need no transaction; a failure affects only its own operation."""
        return [self._read_one(operation) for operation in operations]

    def _read_one(self, operation: Callable[[sqlite3.Connection], Any]) -> outcome.Outcome[Any]:
        try:
            return outcome.Value(operation(self._ready()))
        except (sqlite3.Error, JobStoreError) as error:
            return outcome.Error(JobStoreError(self._failed(error)))
        except _UNHOLDABLE as error:
            return outcome.Error(JobStoreError(f"the HCP job store cannot hold that: {error}"))

    def _ready(self) -> sqlite3.Connection:
        """Return the connection, after checking that the file is still the one opened.

        Raises JobStoreError, sqlite3.Error.
        """
        if self.fresh:
            return self._begin()
        try:
            status = self.path.stat()
        except OSError as error:
            why = _GONE if error.errno == errno.ENOENT else error.strerror
            raise JobStoreError(f"HCP job store {self.path}: {why}") from error
        # SQLite would go on writing to a file that has lost its name, and all of it would be lost with the process.
        if self._there != (status.st_dev, status.st_ino):
            raise JobStoreError(f"HCP job store {self.path}: {_GONE}")
        if self._connection is None:
            try:
                self._connection = self._connect()
            except (SchemaError, ConfigError) as error:
                raise JobStoreError(f"HCP job store {self.path}: {error}") from error
        return self._connection

    def _failed(self, error: sqlite3.Error | JobStoreError) -> str:
        """Roll back after an error, drop a connection that may be broken, and return the reason."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        if isinstance(error, JobStoreError):
            return str(error)
        # The next operation opens the file again, which also repairs it from its write-ahead log.
        if _code(error) not in _SURVIVED:
            self._drop()
        return f"HCP job store {self.path}: {_why(error)}"


def _one(job_store: sqlite3.Connection, operation: Callable[[sqlite3.Connection], Any]) -> outcome.Outcome[Any]:
    """Run one of several operations; undo it by itself if it is refused. Raises sqlite3.Error."""
    # Any other sqlite3.Error is raised, and fails the whole commit: it is about the file, not about this operation.
    job_store.execute("SAVEPOINT one")
    result: outcome.Outcome[Any]
    try:
        result = outcome.Value(operation(job_store))
    except JobStoreError as error:
        job_store.execute("ROLLBACK TO one")
        result = outcome.Error(error)
    except sqlite3.IntegrityError as error:
        job_store.execute("ROLLBACK TO one")
        result = outcome.Error(JobStoreError(f"the HCP job store has that already: {error}"))
    except _UNHOLDABLE as error:
        job_store.execute("ROLLBACK TO one")
        result = outcome.Error(JobStoreError(f"the HCP job store cannot hold that: {error}"))
    job_store.execute("RELEASE one")
    return result


def _must_be_ours(status: os.stat_result, path: Path, mode: str) -> None:
    if status.st_uid != os.geteuid():
        raise ConfigError(f"HCP job store {path}: belongs to uid {status.st_uid}; chown it to uid {os.geteuid()}")
    if status.st_mode & 0o077:
        raise ConfigError(f"HCP job store {path}: others can read or write it; chmod {mode} it")


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary code; SQLITE_MISUSE for an error of Python's sqlite3 module itself."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    return code & 0xFF


def _why(error: sqlite3.Error) -> str:
    return _PLAIN.get(_code(error), str(error))


# --- The schema: its tables, SQLite's settings, and the migration from an older release ----------------------------
#
# Blocking; raises sqlite3.Error, and SchemaError for a database that is not a job store of this release.

APPLICATION_ID: Final = 0x48435042
"""SQLite's application id of a job store: "HCPB"."""
KEY_BYTES: Final = 32
BUSY_S: Final = 0.5
"""Seconds for which another program that reads the file may delay `open`."""

# Append only: files of earlier releases have the statements that are there.
_RELEASES: Final[tuple[str, ...]] = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL);

    CREATE TABLE answers (
        principal TEXT NOT NULL,
        message_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        answer BLOB NOT NULL,
        session_id TEXT,
        answered_at REAL NOT NULL,
        PRIMARY KEY (principal, message_id)
    );
    CREATE INDEX answers_by_age ON answers (answered_at);

    CREATE TABLE sessions (
        no INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        message_id TEXT NOT NULL,
        caller_id TEXT NOT NULL,
        intent TEXT NOT NULL,
        capability TEXT NOT NULL,
        version TEXT NOT NULL,
        inputs_hash TEXT NOT NULL,
        risk_level TEXT NOT NULL,
        data_classification TEXT NOT NULL,
        resumable INTEGER NOT NULL,
        created_at REAL NOT NULL,
        started_at REAL NOT NULL,
        resumed_from TEXT,
        state TEXT NOT NULL,
        updated_at REAL NOT NULL,
        ended_at REAL,
        phase TEXT NOT NULL,
        checkpoints INTEGER NOT NULL,
        lines INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        story_bytes INTEGER NOT NULL DEFAULT 0,
        outcome_bytes INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX sessions_by_principal ON sessions (principal, no);
    CREATE INDEX sessions_by_end ON sessions (ended_at);

    CREATE TABLE lines (
        session INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
        n INTEGER NOT NULL,
        line BLOB NOT NULL,
        PRIMARY KEY (session, n)
    );

    CREATE TABLE outcomes (
        session INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
        n INTEGER NOT NULL,
        outcome BLOB NOT NULL,
        PRIMARY KEY (session, n)
    );

    CREATE TABLE artifacts (
        session INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
        file TEXT NOT NULL,
        name TEXT NOT NULL,
        type TEXT NOT NULL,
        size INTEGER NOT NULL,
        checksum TEXT NOT NULL,
        PRIMARY KEY (session, file)
    );
    """,
    """
    CREATE TABLE begun (
        session INTEGER NOT NULL REFERENCES sessions (no) ON DELETE CASCADE,
        position TEXT NOT NULL,
        operation BLOB NOT NULL,
        PRIMARY KEY (session, position)
    );

    -- Until here an outcome did not say which operation it is of: no job can go on from one.
    DELETE FROM outcomes;
    UPDATE sessions SET checkpoints = 0, outcome_bytes = 0, resumable = 0;
    """,
    """
    -- How many lines a broker has confirmed. NULL is a session whose caller reads over a connection.
    ALTER TABLE sessions ADD COLUMN published INTEGER;
    ALTER TABLE sessions ADD COLUMN rewinds INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX sessions_to_publish ON sessions (no) WHERE published < lines;
    """,
    """
    -- Outcomes say whether a step may have acted, and when, by whom and in what state of things an answer was given.
    -- Without that a person is asked again. A session knows which one has resumed it: that one may be deleted first.
    ALTER TABLE sessions ADD COLUMN resumed_by TEXT;
    """,
)
"""The additions of each release of the schema; `user_version` counts those that a file has."""


class SchemaError(HearthError):
    """A database that is intact but not a job store this release may write; the message says which."""


class Damaged(sqlite3.DatabaseError):
    """A job store that SQLite can open but that is damaged."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def connect(path: Path, durability: Durability) -> sqlite3.Connection:
    """Open an existing file for one process and any thread. Raises SchemaError, sqlite3.Error.

    Another program's database is not changed. The exclusive mode serves robustness more than locking: SQLite then keeps
    the index of its log in memory and maps no file, so a log that is truncated from outside is an error and not a
    SIGBUS.
    """
    place = f"{path.absolute().as_uri()}?mode=rw"
    job_store = sqlite3.connect(place, timeout=BUSY_S, uri=True, isolation_level=None, check_same_thread=False)
    try:
        job_store.execute("PRAGMA locking_mode = EXCLUSIVE")
        if _is_new(job_store, path):
            # Only possible before the first table is made.
            job_store.execute("PRAGMA auto_vacuum = INCREMENTAL")
            if durability != "fsync":
                # A power cut at this moment leaves a file that is created again; it held nothing yet.
                job_store.execute("PRAGMA synchronous = OFF")
        # foreign_keys: off by default, and rows of a deleted session must go with it. secure_delete: what is deleted
        # may be personal. trusted_schema: a file that was planted here must not call functions. temp_store: a confined
        # daemon may make no files in the directories for temporary ones, where a large statement puts its journal.
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {'FULL' if durability == 'fsync' else 'NORMAL'}",
            "journal_size_limit = 4194304",
            "foreign_keys = ON",
            "secure_delete = ON",
            "trusted_schema = OFF",
            "temp_store = MEMORY",
        ):
            job_store.execute(f"PRAGMA {pragma}")
    except BaseException:
        job_store.close()
        raise
    return job_store


def _is_new(job_store: sqlite3.Connection, path: Path) -> bool:
    """Return True for an empty database. Raises SchemaError for a foreign one, ConfigError for a newer release's."""
    mark, release = _pragma(job_store, "application_id"), _pragma(job_store, "user_version")
    if mark == APPLICATION_ID:
        check_format(f"HCP job store {path}", release, len(_RELEASES), "move it away, or see [audit] path")
        return False
    if mark or release or job_store.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise SchemaError("it is another program's database")
    return True


def prepare(job_store: sqlite3.Connection, key: bytes) -> None:
    """Check that the file is intact, and create the tables or migrate those of an older release.

    A new store gets this key. Raises sqlite3.Error, also for a damaged file.
    """
    damage = job_store.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise Damaged(damage)
    release = _pragma(job_store, "user_version")
    if release == len(_RELEASES):
        return
    # One transaction: a migration that is cut short has not begun.
    job_store.execute("BEGIN IMMEDIATE")
    for number in range(release, len(_RELEASES)):
        for statement in _RELEASES[number].split(";"):
            job_store.execute(statement)
    if not release:
        job_store.execute("INSERT INTO facts VALUES ('key', ?)", (key,))
    job_store.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    job_store.execute(f"PRAGMA user_version = {len(_RELEASES)}")
    job_store.execute("COMMIT")


def read_key(job_store: sqlite3.Connection) -> bytes:
    """Return the secret that session tokens are made with. Raises sqlite3.Error, also if it is missing."""
    row = job_store.execute("SELECT value FROM facts WHERE name = 'key'").fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != KEY_BYTES:
        raise Damaged("it has lost its key")
    return row[0]


def _pragma(job_store: sqlite3.Connection, name: str) -> int:
    value: int = job_store.execute(f"PRAGMA {name}").fetchone()[0]
    return value
