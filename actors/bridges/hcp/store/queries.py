"""The rows of the job store and their SQL: each function is one operation, inside its caller's transaction.

Blocking. Raises JobStoreError for an operation that does not fit the rows (no such session), and sqlite3.Error for a
disk or a file that fails; the caller that runs the transaction turns that into a JobStoreError. No function keeps a
connection, a time or a thread. Retention and the rows of artifacts come last.

An artifact's URI is `hcp://SESSION/artifacts/FILE`. Both names become names in a directory, so any name with another
meaning there (a separator, a leading dot) is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

import orjson
from attrs import evolve, fields, frozen

from hearth.errors import HearthError
from hearth.hcp.messages import Artifact

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Sequence

    from hearth.hcp.messages import State
    from hearth.policy.levels import Classification, Risk

_SESSION = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FILE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_IS_SESSION = re.compile(_SESSION)
_IS_FILE = re.compile(_FILE)
_IS_URI = re.compile(rf"hcp://({_SESSION})/artifacts/({_FILE})")


@frozen
class ArtifactUri:
    """The two names in an artifact's URI."""

    session_id: str
    file: str


def is_session(name: str) -> bool:
    """Return True for a possible session id: a UUID in lower case."""
    return _IS_SESSION.fullmatch(name) is not None


def is_file(name: str) -> bool:
    """Return True for a valid file name: up to 64 letters, digits, '.', '_' and '-', the first a letter or digit."""
    return _IS_FILE.fullmatch(name) is not None


def write_uri(session_id: str, file: str) -> str:
    """Return the URI of a session's file."""
    return f"hcp://{session_id}/artifacts/{file}"


def parse_uri(uri: str) -> ArtifactUri:
    """Return the names in a URI. Raises ValueError."""
    match = _IS_URI.fullmatch(uri)
    if match is None:
        raise ValueError(f"expected hcp://SESSION/artifacts/FILE, got {uri[:120]!r}")
    return ArtifactUri(match[1], match[2])


class JobStoreError(HearthError):
    """The job store cannot do an operation; one line with the reason. A failed operation has no effect."""


class MessageLogFull(JobStoreError):
    """A session's messages or outcomes have reached their limit; its end can still be stored."""


@frozen
class Claim:
    """The store's record of a message.

    "new": the caller holds the message now, and answers or releases it. "pending": another caller holds it and has not
    answered yet. "answered": `answer` is the line that was sent, `session_id` the session it began, if any; that
    session may have been deleted since. "conflict": another message has this id.
    """

    kind: Literal["new", "pending", "answered", "conflict"]
    answer: bytes | None = None
    session_id: str | None = None


@frozen(kw_only=True)
class SessionRow:
    """An HCP session, as the job store keeps it. Instants are epoch seconds.

    The store owns the members from `state` on: their values in a new row are ignored.
    """

    session_id: str
    principal: str
    """The key of the principal that submitted it."""
    message_id: str
    """The message_id of its task_submit."""
    caller_id: str
    intent: str
    capability: str
    version: str
    inputs_hash: str
    """The hash of the inputs with defaults filled in."""
    risk_level: Risk
    data_classification: Classification
    resumable: bool
    created_at: float
    started_at: float
    """The start of the first session in a chain of sessions that each resumed the one before."""
    resumed_from: str | None = None
    """The checkpoint that it resumed from."""
    resumed_by: str | None = None
    """The session that has resumed it."""
    state: State = "RUNNING"
    updated_at: float = 0.0
    """The time of the last change of state."""
    ended_at: float | None = None
    phase: str = ""
    """Its last phase, in its capability's own words."""
    checkpoints: int = 0
    """The number of the newest checkpoint; those of the sessions it resumes are included."""
    lines: int = 0
    """The number of its messages."""
    sequence: int = 0
    """The sequence of its newest event."""
    published: int | None = None
    """The number of its messages that the broker has confirmed; None if they do not go through a broker."""


@frozen(kw_only=True)
class Limits:
    """Limits on the store's size, apart from age."""

    log_bytes: int = 16 << 20
    """Bytes of one session's messages, except for its last ones."""
    outcome_bytes: int = 64 << 20
    """Bytes of one session's outcomes."""
    sessions: int = 1000
    """Ended sessions of one principal."""
    refusals: int = 1000
    """Stored rejections of one principal; a message whose rejection was deleted is judged again."""
    all_refusals: int = 5000
    """Stored rejections of all principals together."""
    answers: int = 10_000
    """Stored acceptances of one principal whose sessions were deleted."""
    all_bytes: int = 256 << 20
    """Bytes of all messages and outcomes together."""


_STORED = tuple(attribute.name for attribute in fields(SessionRow))
_COLUMNS = ", ".join(_STORED)
_INSERT = f"INSERT INTO sessions ({_COLUMNS}) VALUES ({', '.join('?' * len(_STORED))})"
_SELECT = f"SELECT {_COLUMNS} FROM sessions"


# --- messages and their answers


def find_answer(job_store: sqlite3.Connection, principal: str, message_id: str, digest: str) -> Claim | None:
    """Return the stored answer to a message; None if there is none."""
    row = job_store.execute(
        "SELECT digest, answer, session_id FROM answers WHERE principal = ? AND message_id = ?", (principal, message_id)
    ).fetchone()
    if row is None:
        return None
    return Claim("answered", row[1], row[2]) if row[0] == digest else Claim("conflict")


def put_answer(
    job_store: sqlite3.Connection,
    message: tuple[str, str, str],
    line: bytes,
    session: SessionRow | None,
    outcomes: Sequence[bytes],
    now: float,
) -> None:
    """Store the answer to a message (principal, message_id, digest), and the session that it begins.

    The session's messages begin with the answer; `outcomes` are those of the checkpoint that it resumes from.
    """
    if session is not None:
        begun = evolve(
            session, state="RUNNING", updated_at=now, ended_at=None, phase="", checkpoints=0, lines=0, sequence=0
        )
        cursor = job_store.execute(_INSERT, [getattr(begun, name) for name in _STORED])
        no = cursor.lastrowid
        assert no is not None, "an INSERT that succeeded has a row"
        _add_outcomes(job_store, no, 0, outcomes)
        _add_lines(job_store, no, 0, [line])
        if session.resumed_from is not None:
            resumed = session.resumed_from.removeprefix("ckpt-").rpartition("-")[0]
            job_store.execute("UPDATE sessions SET resumed_by = ? WHERE session_id = ?", (session.session_id, resumed))
    job_store.execute(
        "INSERT INTO answers (principal, message_id, digest, answer, session_id, answered_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (*message, line, None if session is None else session.session_id, now),
    )


# --- sessions


def find_session(job_store: sqlite3.Connection, session_id: str) -> SessionRow | None:
    """Return a session; None if it is not known."""
    row = job_store.execute(f"{_SELECT} WHERE session_id = ?", (session_id,)).fetchone()
    return None if row is None else _session(row)


def newest_sessions(job_store: sqlite3.Connection, principal: str, most: int) -> list[SessionRow]:
    """Return a principal's sessions, the newest first."""
    rows = job_store.execute(f"{_SELECT} WHERE principal = ? ORDER BY no DESC LIMIT ?", (principal, most))
    return [_session(row) for row in rows]


def unfinished_sessions(job_store: sqlite3.Connection) -> tuple[SessionRow, ...]:
    """Return the sessions that have not ended, in the order in which they began."""
    return tuple(_session(row) for row in job_store.execute(f"{_SELECT} WHERE ended_at IS NULL ORDER BY no"))


def _session(row: tuple[object, ...]) -> SessionRow:
    values = dict(zip(_STORED, row, strict=True))
    values["resumable"] = bool(values["resumable"])
    return SessionRow(**values)  # type: ignore[arg-type]  # the row has the types that were stored


# --- the outbox: messages that go through a broker and that it has not confirmed yet


@frozen
class OutboxLine:
    """A message to publish: line `number` of a session, which had been rewound `rewinds` times when it was read."""

    session_id: str
    caller_id: str
    rewinds: int
    number: int
    line: bytes


def read_outbox(job_store: sqlite3.Connection, most: int, each: int) -> list[OutboxLine]:
    """Return the oldest messages to publish, in the order of each session: at most `each` of one session."""
    # A long session must not delay the answer to a new order, hence `each`.
    rows = job_store.execute(
        "SELECT session_id, caller_id, rewinds, n, line FROM sessions JOIN lines ON session = no"
        " AND n > published AND n <= published + ? WHERE published < lines ORDER BY no, n LIMIT ?",
        (each, most),
    )
    return [OutboxLine(*row) for row in rows]


def outbox_size(job_store: sqlite3.Connection) -> tuple[int, int]:
    """Return the messages to publish, and their bytes."""
    messages, size = job_store.execute(
        "SELECT count(*), coalesce(sum(length(line)), 0) FROM sessions JOIN lines ON session = no AND n > published"
        " WHERE published < lines"
    ).fetchone()
    return messages, size


def advance_outbox(
    job_store: sqlite3.Connection, marks: Collection[tuple[int, str, int]], most: int, each: int
) -> list[OutboxLine]:
    """Note what was confirmed, as (lines, session, rewinds at the reading), and return the next messages.

    A session that was rewound since is left as it is.
    """
    job_store.executemany("UPDATE sessions SET published = ? WHERE session_id = ? AND rewinds = ?", marks)
    return read_outbox(job_store, most, each)


def rewind(job_store: sqlite3.Connection, session_id: str, principal: str, sequence: int) -> bool:
    """Publish a session's messages again, from the event `sequence` on; False if this principal has no such session.

    The first message to publish is the one after the last earlier event: see `MessageLog.index_of`.
    """
    row = job_store.execute(
        "SELECT no FROM sessions WHERE session_id = ? AND principal = ? AND published IS NOT NULL",
        (session_id, principal),
    ).fetchone()
    if row is None:
        return False
    kept = 0
    for number, line in job_store.execute("SELECT n, line FROM lines WHERE session = ? ORDER BY n DESC", row):
        if (found := sequence_of(line)) is not None and found < sequence:
            kept = number
            break
    # Counted: a batch that is on its way now must not mark as published what is asked for again.
    job_store.execute(
        "UPDATE sessions SET published = min(published, ?), rewinds = rewinds + 1 WHERE no = ?", (kept, *row)
    )
    return True


# --- changes to a session


def add_lines(
    job_store: sqlite3.Connection,
    session_id: str,
    lines: Sequence[bytes],
    limits: Limits,
    *,
    phase: str | None,
    state: State | None,
    now: float,
) -> None:
    """Append messages to a session. Raises MessageLogFull."""
    no, have, story_bytes, _, _ = _running(job_store, session_id)
    if story_bytes + sum(map(len, lines)) > limits.log_bytes:
        raise MessageLogFull(f"the messages of HCP session {session_id} have reached their {limits.log_bytes} bytes")
    _add_lines(job_store, no, have, lines)
    if phase is not None:
        job_store.execute("UPDATE sessions SET phase = ? WHERE no = ?", (phase, no))
    if state is not None:
        job_store.execute("UPDATE sessions SET state = ?, updated_at = ? WHERE no = ?", (state, now, no))


def add_checkpoint(
    job_store: sqlite3.Connection,
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
    """Store the outcome of the operation at a position, and the messages about it. Raises MessageLogFull."""
    no, _, _, outcome_bytes, checkpoints = _running(job_store, session_id)
    # Without gaps: a job that resumes replays the records 1 to N, and nothing else.
    if number != checkpoints + 1:
        raise JobStoreError(f"checkpoint {number} of HCP session {session_id} cannot follow number {checkpoints}")
    if outcome_bytes + len(outcome) > limits.outcome_bytes:
        raise MessageLogFull(
            f"the outcomes of HCP session {session_id} have reached their {limits.outcome_bytes} bytes"
        )
    _add_outcomes(job_store, no, checkpoints, [outcome])
    # In the transaction of the outcome: after a crash an operation is under way or has an outcome, never both and
    # never neither.
    job_store.execute("DELETE FROM begun WHERE session = ? AND position = ?", (no, position))
    add_lines(job_store, session_id, lines, limits, phase=phase, state=state, now=now)


def begin_operation(job_store: sqlite3.Connection, session_id: str, position: str, operation: bytes) -> None:
    """Note that an operation begins that may have an effect."""
    no = _running(job_store, session_id)[0]
    job_store.execute("INSERT INTO begun (session, position, operation) VALUES (?, ?, ?)", (no, position, operation))


def withdraw_operation(job_store: sqlite3.Connection, session_id: str, position: str) -> None:
    """Remove the note that an operation began: it had no effect."""
    job_store.execute(
        "DELETE FROM begun WHERE session = ? AND position = ?", (_running(job_store, session_id)[0], position)
    )


def begun_operations(job_store: sqlite3.Connection, session_id: str) -> list[bytes]:
    """Return the operations that began and have no outcome, as JSON, in the order in which they began."""
    found = job_store.execute(
        "SELECT operation FROM begun WHERE session = (SELECT no FROM sessions WHERE session_id = ?) ORDER BY rowid",
        (session_id,),
    )
    return [operation for (operation,) in found]


def end_session(
    job_store: sqlite3.Connection, session_id: str, state: State, lines: Sequence[bytes], now: float
) -> None:
    """Store a session's last messages and its final state, whatever the number of its messages."""
    # Beyond `log_bytes` too: a session whose end cannot be stored would be ended again by the next start.
    no, have, _, _, _ = _running(job_store, session_id)
    _add_lines(job_store, no, have, lines)
    job_store.execute("UPDATE sessions SET state = ?, updated_at = ?, ended_at = ? WHERE no = ?", (state, now, now, no))


def read_messages(job_store: sqlite3.Connection, session_id: str) -> list[bytes]:
    """Return a session's messages; none if it is not known."""
    found = job_store.execute(
        "SELECT line FROM lines WHERE session = (SELECT no FROM sessions WHERE session_id = ?) ORDER BY n",
        (session_id,),
    )
    return [line for (line,) in found]


def read_outcomes(job_store: sqlite3.Connection, session_id: str, upto: int) -> list[bytes]:
    """Return the outcomes 1 to `upto`, as JSON. Raises JobStoreError unless all of them are there."""
    found = job_store.execute(
        "SELECT outcome FROM outcomes WHERE session = (SELECT no FROM sessions WHERE session_id = ?)"
        " AND n <= ? ORDER BY n",
        (session_id, upto),
    ).fetchall()
    if len(found) != upto:
        raise JobStoreError(f"the HCP job store has no checkpoint {upto} of session {session_id}")
    return [outcome for (outcome,) in found]


def _running(job_store: sqlite3.Connection, session_id: str) -> tuple[int, int, int, int, int]:
    """Return a running session's row number, lines, bytes of messages, bytes of outcomes, and checkpoints."""
    row = job_store.execute(
        "SELECT no, lines, story_bytes, outcome_bytes, checkpoints, ended_at FROM sessions WHERE session_id = ?",
        (session_id,),
    ).fetchone()
    if row is None:
        raise JobStoreError(f"the HCP job store has no session {session_id}")
    if row[5] is not None:
        raise JobStoreError(f"HCP session {session_id} has ended")
    return row[0], row[1], row[2], row[3], row[4]


def sequence_of(line: bytes) -> int | None:
    """Return the sequence of the event on a stored line; None for a message of another type."""
    message: Any = orjson.loads(line)
    if message["type"] != "event":
        return None
    sequence: int = message["payload"]["sequence"]
    return sequence


def _add_lines(job_store: sqlite3.Connection, no: int, have: int, lines: Sequence[bytes]) -> None:
    job_store.executemany(
        "INSERT INTO lines (session, n, line) VALUES (?, ?, ?)",
        [(no, have + offset, line) for offset, line in enumerate(lines, 1)],
    )
    newest = next((found for line in reversed(lines) if (found := sequence_of(line)) is not None), None)
    job_store.execute(
        "UPDATE sessions SET lines = lines + ?, story_bytes = story_bytes + ?, sequence = coalesce(?, sequence)"
        " WHERE no = ?",
        (len(lines), sum(map(len, lines)), newest, no),
    )


def _add_outcomes(job_store: sqlite3.Connection, no: int, have: int, outcomes: Sequence[bytes]) -> None:
    job_store.executemany(
        "INSERT INTO outcomes (session, n, outcome) VALUES (?, ?, ?)",
        [(no, have + offset, outcome) for offset, outcome in enumerate(outcomes, 1)],
    )
    job_store.execute(
        "UPDATE sessions SET checkpoints = checkpoints + ?, outcome_bytes = outcome_bytes + ? WHERE no = ?",
        (len(outcomes), sum(map(len, outcomes)), no),
    )


# --- Retention and artifacts: limits by age, number and size, and the choice of what to delete ---------------------
#
# These are operations like those above. Where a limit holds for all principals together, the principal that uses most
# of it loses its oldest ended session first. A running session is never deleted.

_ARTIFACTS = (
    "SELECT file, name, type, size, checksum FROM artifacts"
    " WHERE session = (SELECT no FROM sessions WHERE session_id = ?)"
)


class NoRoom(JobStoreError):
    """Everything that may be deleted has been deleted, and there is still no room."""


# --- retention


def forget_old(job_store: sqlite3.Connection, before: float, spared: Collection[str], limits: Limits) -> list[str]:
    """Delete sessions that ended before a time and are not `spared`, and those past the limits; return all their ids.

    The answer that began a session is kept for its own age, so that a repeated message never runs again only because
    its principal was busy.
    """
    # Sessions first: the answers below are deleted only where no session is left.
    old = job_store.execute("SELECT no, session_id FROM sessions WHERE ended_at < ?", (before,)).fetchall()
    gone = [(no, session_id) for no, session_id in old if session_id not in spared]
    job_store.executemany("DELETE FROM sessions WHERE no = ?", [(no,) for no, _ in gone])
    too_many = job_store.execute(
        "SELECT no, session_id FROM (SELECT no, session_id, row_number() OVER"
        " (PARTITION BY principal ORDER BY ended_at DESC, no DESC) AS place"
        " FROM sessions WHERE ended_at IS NOT NULL) WHERE place > ?",
        (limits.sessions,),
    ).fetchall()
    gone += too_many
    job_store.executemany("DELETE FROM sessions WHERE no = ?", [(no,) for no, _ in too_many])
    sizes = job_store.execute(
        "SELECT principal, no, session_id, story_bytes + outcome_bytes, ended_at IS NOT NULL FROM sessions"
        " ORDER BY ended_at, no"
    ).fetchall()
    for no, session_id in _giving_way(sizes, limits.all_bytes):
        job_store.execute("DELETE FROM sessions WHERE no = ?", (no,))
        gone.append((no, session_id))
    job_store.execute(
        "DELETE FROM answers WHERE answered_at < ? AND (session_id IS NULL"
        " OR session_id NOT IN (SELECT session_id FROM sessions))",
        (before,),
    )
    forget_refusals(job_store, limits)
    _forget_oldest(
        job_store,
        "session_id IS NOT NULL AND session_id NOT IN (SELECT session_id FROM sessions)",
        limits.answers,
    )
    return [session_id for _, session_id in gone]


def forget_refusals(job_store: sqlite3.Connection, limits: Limits) -> None:
    """Keep the newest rejections of each principal, and of all; the principal with most loses its own first.

    Acceptances are counted apart: no flood of rejections makes a job run twice.
    """
    _forget_oldest(job_store, "session_id IS NULL", limits.refusals, limits.all_refusals)


def _forget_oldest(job_store: sqlite3.Connection, which: str, most: int, most_in_all: int = -1) -> None:
    """Delete matching answers: each principal keeps its `most` newest, and all together keep `most_in_all`.

    Past `most_in_all`, each principal loses its oldest first.
    """
    job_store.execute(
        "WITH placed AS (SELECT rowid AS no, answered_at, row_number() OVER"
        f" (PARTITION BY principal ORDER BY answered_at DESC, rowid DESC) AS place FROM answers WHERE {which})"
        " DELETE FROM answers WHERE rowid IN (SELECT no FROM placed WHERE place > :most"
        " UNION ALL SELECT * FROM (SELECT no FROM placed WHERE :in_all >= 0 AND place <= :most"
        " ORDER BY place, answered_at DESC, no DESC LIMIT -1 OFFSET max(:in_all, 0)))",
        {"most": most, "in_all": most_in_all},
    )


def give_back(job_store: sqlite3.Connection) -> None:
    """Return free pages to the file system; outside a transaction."""
    # Not `execute`: this pragma frees one page at each step, and `execute` takes only one step of a statement without
    # columns.
    job_store.executescript("PRAGMA incremental_vacuum")


def _giving_way(rows: list[tuple[str, int, str, int, int]], most: int) -> Iterator[tuple[int, str]]:
    """Choose the sessions to delete until at most `most` bytes are left; yields (number, session_id).

    `rows` are (principal, number, session_id, size, whether it may be deleted); the deletable ones are in the order of
    deletion.
    """
    held: defaultdict[str, int] = defaultdict(int)
    movable: defaultdict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for principal, no, session_id, size, may_go in rows:
        held[principal] += size
        if may_go:
            movable[principal].append((no, session_id, size))
    # Popped from the end: of each principal the session that ended first.
    for queue in movable.values():
        queue.reverse()
    total = sum(held.values())
    while total > most and movable:
        principal = max(movable, key=held.__getitem__)
        no, session_id, size = movable[principal].pop()
        if not movable[principal]:
            del movable[principal]
        held[principal] -= size
        total -= size
        yield no, session_id


# --- artifacts


def list_artifacts(job_store: sqlite3.Connection, session_id: str) -> list[Artifact]:
    """Return a session's artifacts, in the order in which they were kept."""
    rows = job_store.execute(f"{_ARTIFACTS} ORDER BY artifacts.rowid", (session_id,))
    return [_artifact(session_id, *row) for row in rows]


def find_artifact(job_store: sqlite3.Connection, session_id: str, file: str) -> Artifact | None:
    """Return one artifact; None if it is not known."""
    row = job_store.execute(f"{_ARTIFACTS} AND file = ?", (session_id, file)).fetchone()
    return None if row is None else _artifact(session_id, *row)


def _artifact(session_id: str, file: str, name: str, type_: str, size: int, checksum: str) -> Artifact:
    uri = write_uri(session_id, file)
    return Artifact(name=name, type=type_, uri=uri, size_bytes=size, checksum=checksum)


def admit_artifact(
    job_store: sqlite3.Connection, session_id: str, file: str, artifact: Artifact, most: int
) -> list[tuple[str, str]]:
    """List an artifact whose file exists; return the (session_id, file) pairs that were deleted to make room.

    All artifacts together have at most `most` bytes. Raises NoRoom, JobStoreError.
    """
    row = job_store.execute("SELECT no, principal FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    if row is None:
        raise JobStoreError(f"the HCP job store has no session {session_id}")
    no, principal = row
    assert artifact.size_bytes is not None, "what is kept has been measured"
    sizes = job_store.execute(
        "SELECT principal, no, session_id, sum(size), ended_at IS NOT NULL FROM artifacts"
        " JOIN sessions ON no = session GROUP BY no ORDER BY ended_at, no"
    ).fetchall()
    # The new artifact counts for its principal, and its session runs, so it gives way to none.
    left = sum(size for _, _, _, size, _ in sizes) + artifact.size_bytes
    gone: list[tuple[str, str]] = []
    for victim, victim_id in _giving_way([*sizes, (principal, no, session_id, artifact.size_bytes, 0)], most):
        for name, size in job_store.execute("SELECT file, size FROM artifacts WHERE session = ?", (victim,)):
            gone.append((victim_id, name))
            left -= size
        job_store.execute("DELETE FROM artifacts WHERE session = ?", (victim,))
    if left > most:
        raise NoRoom(f"artifacts may have {most} bytes together, and those of jobs that run have them already")
    job_store.execute(
        "INSERT INTO artifacts (session, file, name, type, size, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        (no, file, artifact.name, artifact.type, artifact.size_bytes, artifact.checksum),
    )
    return gone


def settle_artifacts(job_store: sqlite3.Connection, there: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Forget the artifacts whose files are not in `there`; return the others, as (session_id, file)."""
    known: set[tuple[str, str]] = set(
        job_store.execute("SELECT session_id, file FROM artifacts JOIN sessions ON no = session")
    )
    job_store.executemany(
        "DELETE FROM artifacts WHERE session = (SELECT no FROM sessions WHERE session_id = ?) AND file = ?",
        known - there,
    )
    return known & there
