"""What the book says, and the SQL that says it: each function is one operation, inside somebody else's transaction.

Blocking. Raises BookError for what is not so (no such session), sqlite3.Error for a disk or a file that fails; whoever
runs the transaction turns that into a BookError too. Nothing here keeps a connection, a time or a thread. What is
forgotten, and the artifacts' rows, are `book_keeping`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import evolve, fields, frozen

from hearth.actors.bridges.hcp.story import sequence_of
from hearth.errors import HearthError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from hearth.hcp.values import Classification, Risk, State


class BookError(HearthError):
    """The book cannot do what it is asked; one line that says why. What it did not do has no effect."""


class StoryFull(BookError):
    """A session's story or its outcomes have reached their bound; its end is taken nevertheless."""


@frozen
class Claim:
    """What the book knows of a message.

    "new": it is the asker's now, to answer or to release. "pending": somebody has it already and has not answered yet.
    "answered": `answer` is the line that was said, `session_id` the session it began, if any; the book may have
    forgotten that session by now. "conflict": another message has this id.
    """

    kind: Literal["new", "pending", "answered", "conflict"]
    answer: bytes | None = None
    session_id: str | None = None


@frozen(kw_only=True)
class SessionRow:
    """An HCP session, as the book keeps it. Instants are epoch seconds.

    The members from `state` on are the book's own: what a new row says there counts for nothing.
    """

    session_id: str
    principal: str
    """The key of whoever submitted it."""
    message_id: str
    """Of its task_submit."""
    caller_id: str
    intent: str
    capability: str
    version: str
    inputs_hash: str
    """Of the inputs with defaults filled in."""
    risk_level: Risk
    data_classification: Classification
    resumable: bool
    created_at: float
    started_at: float
    """The start of the first of a chain of sessions of which each went on from the one before."""
    resumed_from: str | None = None
    """The checkpoint that it went on from."""
    state: State = "RUNNING"
    updated_at: float = 0.0
    """Of the last change of state."""
    ended_at: float | None = None
    phase: str = ""
    """Where it was last, by its plan's own names."""
    checkpoints: int = 0
    """The number of the newest one: steps completed, those of the sessions that it went on from included."""
    lines: int = 0
    """Of its story."""
    sequence: int = 0
    """Of its newest event."""


@frozen(kw_only=True)
class Limits:
    """How much the book keeps of what is young enough to be kept."""

    story_bytes: int = 16 << 20
    """Of one session's messages, but for its last ones."""
    outcome_bytes: int = 64 << 20
    """Of one session's outcomes."""
    sessions: int = 1000
    """Ended sessions of one principal."""
    refusals: int = 1000
    """Remembered rejections of one principal; a message whose rejection is forgotten is judged again."""
    all_refusals: int = 5000
    """Remembered rejections of all principals together."""
    answers: int = 10_000
    """Remembered acceptances of one principal whose sessions are kept no longer."""
    all_bytes: int = 256 << 20
    """All stories and outcomes together."""


_STORED = tuple(attribute.name for attribute in fields(SessionRow))
_COLUMNS = ", ".join(_STORED)
_INSERT = f"INSERT INTO sessions ({_COLUMNS}) VALUES ({', '.join('?' * len(_STORED))})"
_SELECT = f"SELECT {_COLUMNS} FROM sessions"


# --- messages and their answers


def find_answer(book: sqlite3.Connection, principal: str, message_id: str, digest: str) -> Claim | None:
    """What was answered to a message; None where it is not known."""
    row = book.execute(
        "SELECT digest, answer, session_id FROM answers WHERE principal = ? AND message_id = ?", (principal, message_id)
    ).fetchone()
    if row is None:
        return None
    return Claim("answered", row[1], row[2]) if row[0] == digest else Claim("conflict")


def put_answer(
    book: sqlite3.Connection,
    message: tuple[str, str, str],
    line: bytes,
    session: SessionRow | None,
    outcomes: Sequence[bytes],
    now: float,
) -> None:
    """Remember what is answered to a message (principal, message_id, digest), and the session that it begins.

    The story begins with the answer; `outcomes` are those of the checkpoint that the session goes on from.
    """
    if session is not None:
        begun = evolve(
            session, state="RUNNING", updated_at=now, ended_at=None, phase="", checkpoints=0, lines=0, sequence=0
        )
        cursor = book.execute(_INSERT, [getattr(begun, name) for name in _STORED])
        no = cursor.lastrowid
        assert no is not None, "an INSERT that succeeded has a row"
        _add_outcomes(book, no, 0, outcomes)
        _add_lines(book, no, 0, [line])
    book.execute(
        "INSERT INTO answers (principal, message_id, digest, answer, session_id, answered_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (*message, line, None if session is None else session.session_id, now),
    )


# --- sessions


def find_session(book: sqlite3.Connection, session_id: str) -> SessionRow | None:
    """The session; None where it is not known."""
    row = book.execute(f"{_SELECT} WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else _session(row)


def newest_sessions(book: sqlite3.Connection, principal: str, most: int) -> list[SessionRow]:
    """A principal's sessions, the newest first."""
    rows = book.execute(f"{_SELECT} WHERE principal = ? ORDER BY no DESC LIMIT ?", (principal, most))
    return [_session(row) for row in rows]


def unfinished_sessions(book: sqlite3.Connection) -> tuple[SessionRow, ...]:
    """The sessions that have not ended, in the order in which they began."""
    return tuple(_session(row) for row in book.execute(f"{_SELECT} WHERE ended_at IS NULL ORDER BY no"))


def _session(row: tuple[object, ...]) -> SessionRow:
    values = dict(zip(_STORED, row, strict=True))
    values["resumable"] = bool(values["resumable"])
    return SessionRow(**values)  # type: ignore[arg-type]  # as they were put in


# --- what becomes of a session


def add_lines(
    book: sqlite3.Connection,
    session_id: str,
    lines: Sequence[bytes],
    limits: Limits,
    *,
    phase: str | None,
    state: State | None,
    now: float,
) -> None:
    """Go on with a story. Raises StoryFull."""
    no, have, story_bytes, _, _ = _running(book, session_id)
    if story_bytes + sum(map(len, lines)) > limits.story_bytes:
        raise StoryFull(f"the story of HCP session {session_id} has reached its {limits.story_bytes} bytes")
    _add_lines(book, no, have, lines)
    if phase is not None:
        book.execute("UPDATE sessions SET phase = ? WHERE no = ?", (phase, no))
    if state is not None:
        book.execute("UPDATE sessions SET state = ?, updated_at = ? WHERE no = ?", (state, now, no))


def add_checkpoint(
    book: sqlite3.Connection,
    session_id: str,
    number: int,
    position: str,
    outcome: bytes,
    lines: Sequence[bytes],
    limits: Limits,
    *,
    phase: str | None,
    state: State | None,
    now: float,
) -> None:
    """Write down what came of the operation at a position, and the messages that tell of it. Raises StoryFull."""
    no, _, _, outcome_bytes, checkpoints = _running(book, session_id)
    if number != checkpoints + 1:
        raise BookError(f"checkpoint {number} of HCP session {session_id} cannot follow number {checkpoints}")
    if outcome_bytes + len(outcome) > limits.outcome_bytes:
        raise StoryFull(f"the outcomes of HCP session {session_id} have reached their {limits.outcome_bytes} bytes")
    _add_outcomes(book, no, checkpoints, [outcome])
    book.execute("DELETE FROM begun WHERE session = ? AND position = ?", (no, position))
    add_lines(book, session_id, lines, limits, phase=phase, state=state, now=now)


def begin_operation(book: sqlite3.Connection, session_id: str, position: str, operation: bytes) -> None:
    """Write down that an operation which may have an effect begins."""
    no = _running(book, session_id)[0]
    book.execute("INSERT INTO begun (session, position, operation) VALUES (?, ?, ?)", (no, position, operation))


def withdraw_operation(book: sqlite3.Connection, session_id: str, position: str) -> None:
    """Forget that an operation began: it had no effect."""
    book.execute("DELETE FROM begun WHERE session = ? AND position = ?", (_running(book, session_id)[0], position))


def begun_operations(book: sqlite3.Connection, session_id: str) -> list[bytes]:
    """The operations that began and of which nothing more is known, as JSON, in the order in which they began."""
    found = book.execute(
        "SELECT operation FROM begun WHERE session = (SELECT no FROM sessions WHERE session_id = ?) ORDER BY rowid",
        (session_id,),
    )
    return [operation for (operation,) in found]


def end_session(book: sqlite3.Connection, session_id: str, state: State, lines: Sequence[bytes], now: float) -> None:
    """Write a session's last messages and its final state, whatever the length of its story."""
    no, have, _, _, _ = _running(book, session_id)
    _add_lines(book, no, have, lines)
    book.execute("UPDATE sessions SET state = ?, updated_at = ?, ended_at = ? WHERE no = ?", (state, now, now, no))


def read_story(book: sqlite3.Connection, session_id: str) -> list[bytes]:
    """A session's messages; none where it is not known."""
    found = book.execute(
        "SELECT line FROM lines WHERE session = (SELECT no FROM sessions WHERE session_id = ?) ORDER BY n",
        (session_id,),
    )
    return [line for (line,) in found]


def read_outcomes(book: sqlite3.Connection, session_id: str, upto: int) -> list[bytes]:
    """The outcomes 1 to `upto`, as JSON. Raises BookError where not all of them are there."""
    found = book.execute(
        "SELECT outcome FROM outcomes WHERE session = (SELECT no FROM sessions WHERE session_id = ?)"
        " AND n <= ? ORDER BY n",
        (session_id, upto),
    ).fetchall()
    if len(found) != upto:
        raise BookError(f"the HCP book has no checkpoint {upto} of session {session_id}")
    return [outcome for (outcome,) in found]


def _running(book: sqlite3.Connection, session_id: str) -> tuple[int, int, int, int, int]:
    """A running session's number, lines, bytes of story and of outcomes, and checkpoints."""
    row = book.execute(
        "SELECT no, lines, story_bytes, outcome_bytes, checkpoints, ended_at FROM sessions WHERE session_id = ?",
        (session_id,),
    ).fetchone()
    if row is None:
        raise BookError(f"the HCP book has no session {session_id}")
    if row[5] is not None:
        raise BookError(f"HCP session {session_id} has ended")
    return row[0], row[1], row[2], row[3], row[4]


def _add_lines(book: sqlite3.Connection, no: int, have: int, lines: Sequence[bytes]) -> None:
    book.executemany(
        "INSERT INTO lines (session, n, line) VALUES (?, ?, ?)",
        [(no, have + offset, line) for offset, line in enumerate(lines, 1)],
    )
    newest = next((found for line in reversed(lines) if (found := sequence_of(line)) is not None), None)
    book.execute(
        "UPDATE sessions SET lines = lines + ?, story_bytes = story_bytes + ?, sequence = coalesce(?, sequence)"
        " WHERE no = ?",
        (len(lines), sum(map(len, lines)), newest, no),
    )


def _add_outcomes(book: sqlite3.Connection, no: int, have: int, outcomes: Sequence[bytes]) -> None:
    book.executemany(
        "INSERT INTO outcomes (session, n, outcome) VALUES (?, ?, ?)",
        [(no, have + offset, outcome) for offset, outcome in enumerate(outcomes, 1)],
    )
    book.execute(
        "UPDATE sessions SET checkpoints = checkpoints + ?, outcome_bytes = outcome_bytes + ? WHERE no = ?",
        (len(outcomes), sum(map(len, outcomes)), no),
    )
