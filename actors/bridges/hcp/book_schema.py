"""The book's tables, what SQLite is told when it opens them, and the way from an older release's tables to these.

Owns the SQL of the schema and nothing that is written into it. Blocking; raises sqlite3.Error, and SchemaError for a
database that is not a book of this release.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from hearth.errors import HearthError

if TYPE_CHECKING:
    from pathlib import Path

    from hearth.audit.settings import Durability

APPLICATION_ID: Final = 0x48435042
"""SQLite's mark of whose file it is: "HCPB"."""
KEY_BYTES: Final = 32
BUSY_S: Final = 0.5
"""How long somebody who looks into the file with a tool of his own may hold up its opening."""

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
)
"""What each release of the schema adds to the one before; `user_version` counts how many of them a book has."""


class SchemaError(HearthError):
    """A database that is whole, and no book that this release may write in; the message says which."""


class Damaged(sqlite3.DatabaseError):
    """A book that SQLite can open and that is not whole."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def connect(path: Path, durability: Durability) -> sqlite3.Connection:
    """Open the file, which must be there, for one process and any thread. Raises SchemaError, sqlite3.Error.

    Another's database is left as it is. The exclusive mode is for robustness more than for the lock: with it SQLite
    keeps the index of its log in memory and maps no file, so that one which is cut off under us is an error, no SIGBUS.
    """
    place = f"{path.absolute().as_uri()}?mode=rw"
    book = sqlite3.connect(place, BUSY_S, uri=True, isolation_level=None, check_same_thread=False)
    try:
        book.execute("PRAGMA locking_mode = EXCLUSIVE")
        if _is_new(book):
            book.execute("PRAGMA auto_vacuum = INCREMENTAL")
            if durability != "fsync":
                # A power cut at this moment leaves a book to be begun anew, in which there was nothing.
                book.execute("PRAGMA synchronous = OFF")
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {'FULL' if durability == 'fsync' else 'NORMAL'}",
            "journal_size_limit = 4194304",
            "foreign_keys = ON",
            "secure_delete = ON",
            "trusted_schema = OFF",
        ):
            book.execute(f"PRAGMA {pragma}")
    except BaseException:
        book.close()
        raise
    return book


def _is_new(book: sqlite3.Connection) -> bool:
    """Whether nothing is in it yet. Raises SchemaError for what is no book, or none of ours."""
    mark, release = _pragma(book, "application_id"), _pragma(book, "user_version")
    if mark == APPLICATION_ID:
        if release > len(_RELEASES):
            raise SchemaError(f"a newer hearth wrote it: its schema is {release}, this one knows {len(_RELEASES)}")
        return False
    if mark or release or book.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise SchemaError("it is another program's database")
    return True


def prepare(book: sqlite3.Connection, key: bytes) -> None:
    """Look whether the file is whole, and make the tables or bring an older release's up to this one.

    A new book gets this key. Raises sqlite3.Error, also for a file that is damaged.
    """
    damage = book.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise Damaged(damage)
    release = _pragma(book, "user_version")
    if release == len(_RELEASES):
        return
    book.execute("BEGIN IMMEDIATE")
    for number in range(release, len(_RELEASES)):
        for statement in _RELEASES[number].split(";"):
            book.execute(statement)
    if not release:
        book.execute("INSERT INTO facts VALUES ('key', ?)", (key,))
    book.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    book.execute(f"PRAGMA user_version = {len(_RELEASES)}")
    book.execute("COMMIT")


def read_key(book: sqlite3.Connection) -> bytes:
    """The secret that session tokens are made with. Raises sqlite3.Error, also where there is none."""
    row = book.execute("SELECT value FROM facts WHERE name = 'key'").fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != KEY_BYTES:
        raise Damaged("it has lost its key")
    return row[0]


def _pragma(book: sqlite3.Connection, name: str) -> int:
    value: int = book.execute(f"PRAGMA {name}").fetchone()[0]
    return value
