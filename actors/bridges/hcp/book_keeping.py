"""What the book lets go of, and the artifacts it knows: bounds by age, by number and by size, and who gives way.

Operations as those of `book_rows`. Fairness is decided here: where a bound holds for all principals together, whoever
takes up most of it gives way first, by his own oldest ended session. A session that runs never gives way.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hearth.actors.bridges.hcp.artifact_uri import write_uri
from hearth.actors.bridges.hcp.book_rows import BookError
from hearth.hcp.messages import Artifact

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator

    from hearth.actors.bridges.hcp.book_rows import Limits

_ARTIFACTS = (
    "SELECT file, name, type, size, checksum FROM artifacts"
    " WHERE session = (SELECT no FROM sessions WHERE session_id = ?)"
)


class NoRoom(BookError):
    """Everything that could give way has done so."""


# --- retention


def forget_old(book: sqlite3.Connection, before: float, spared: Collection[str], limits: Limits) -> list[str]:
    """Forget sessions that ended before then and are not `spared`, and those past the bounds; the ids of all of them.

    The answer that began a session is kept on for its own age, so that a repeated message never runs anew because its
    principal was busy.
    """
    old = book.execute("SELECT no, session_id FROM sessions WHERE ended_at < ?", (before,)).fetchall()
    gone = [(no, session_id) for no, session_id in old if session_id not in spared]
    book.executemany("DELETE FROM sessions WHERE no = ?", [(no,) for no, _ in gone])
    too_many = book.execute(
        "SELECT no, session_id FROM (SELECT no, session_id, row_number() OVER"
        " (PARTITION BY principal ORDER BY ended_at DESC, no DESC) AS place"
        " FROM sessions WHERE ended_at IS NOT NULL) WHERE place > ?",
        (limits.sessions,),
    ).fetchall()
    gone += too_many
    book.executemany("DELETE FROM sessions WHERE no = ?", [(no,) for no, _ in too_many])
    sizes = book.execute(
        "SELECT principal, no, session_id, story_bytes + outcome_bytes, ended_at IS NOT NULL FROM sessions"
        " ORDER BY ended_at, no"
    ).fetchall()
    for no, session_id in _giving_way(sizes, limits.all_bytes):
        book.execute("DELETE FROM sessions WHERE no = ?", (no,))
        gone.append((no, session_id))
    book.execute(
        "DELETE FROM answers WHERE answered_at < ? AND (session_id IS NULL"
        " OR session_id NOT IN (SELECT session_id FROM sessions))",
        (before,),
    )
    forget_refusals(book, limits)
    _forget_oldest(
        book,
        "session_id IS NOT NULL AND session_id NOT IN (SELECT session_id FROM sessions)",
        limits.answers,
    )
    return [session_id for _, session_id in gone]


def forget_refusals(book: sqlite3.Connection, limits: Limits) -> None:
    """Keep the newest rejections of each principal, and of all; those who have most give way first.

    Acceptances are counted apart: no flood of rejections makes a job run twice.
    """
    _forget_oldest(book, "session_id IS NULL", limits.refusals, limits.all_refusals)


def _forget_oldest(book: sqlite3.Connection, which: str, most: int, most_in_all: int = -1) -> None:
    """Keep of those answers the newest of each principal; of all, those nearest to their principal's newest."""
    book.execute(
        "WITH placed AS (SELECT rowid AS no, answered_at, row_number() OVER"
        f" (PARTITION BY principal ORDER BY answered_at DESC, rowid DESC) AS place FROM answers WHERE {which})"
        " DELETE FROM answers WHERE rowid IN (SELECT no FROM placed WHERE place > :most"
        " UNION ALL SELECT * FROM (SELECT no FROM placed WHERE :in_all >= 0 AND place <= :most"
        " ORDER BY place, answered_at DESC, no DESC LIMIT -1 OFFSET max(:in_all, 0)))",
        {"most": most, "in_all": most_in_all},
    )


def give_back(book: sqlite3.Connection) -> None:
    """Make the file shorter by what has become free; outside of a transaction."""
    # Not by execute: this pragma frees a page at each step, and of a statement without columns that takes only one.
    book.executescript("PRAGMA incremental_vacuum")


def _giving_way(rows: list[tuple[str, int, str, int, int]], most: int) -> Iterator[tuple[int, str]]:
    """What has to go until no more than `most` is left, as (number, session_id).

    `rows` are (principal, number, session_id, size, whether it may go); those that may go are in the order of going.
    """
    held: defaultdict[str, int] = defaultdict(int)
    movable: defaultdict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for principal, no, session_id, size, may_go in rows:
        held[principal] += size
        if may_go:
            movable[principal].append((no, session_id, size))
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


def list_artifacts(book: sqlite3.Connection, session_id: str) -> list[Artifact]:
    """A session's artifacts, in the order in which they were kept."""
    rows = book.execute(f"{_ARTIFACTS} ORDER BY artifacts.rowid", (session_id,))
    return [_artifact(session_id, *row) for row in rows]


def find_artifact(book: sqlite3.Connection, session_id: str, file: str) -> Artifact | None:
    """One of them."""
    row = book.execute(f"{_ARTIFACTS} AND file = ?", (session_id, file)).fetchone()
    return None if row is None else _artifact(session_id, *row)


def _artifact(session_id: str, file: str, name: str, type_: str, size: int, checksum: str) -> Artifact:
    uri = write_uri(session_id, file)
    return Artifact(name=name, type=type_, uri=uri, size_bytes=size, checksum=checksum)


def admit_artifact(
    book: sqlite3.Connection, session_id: str, file: str, artifact: Artifact, most: int
) -> list[tuple[str, str]]:
    """Note an artifact, whose file is there; returns those (session_id, file) that had to give way to it.

    All artifacts together have at most `most` bytes. Raises NoRoom, BookError.
    """
    row = book.execute("SELECT no, principal FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    if row is None:
        raise BookError(f"the HCP book has no session {session_id}")
    no, principal = row
    assert artifact.size_bytes is not None, "what is kept has been measured"
    sizes = book.execute(
        "SELECT principal, no, session_id, sum(size), ended_at IS NOT NULL FROM artifacts"
        " JOIN sessions ON no = session GROUP BY no ORDER BY ended_at, no"
    ).fetchall()
    left = sum(size for _, _, _, size, _ in sizes) + artifact.size_bytes
    gone: list[tuple[str, str]] = []
    for victim, victim_id in _giving_way([*sizes, (principal, no, session_id, artifact.size_bytes, 0)], most):
        for name, size in book.execute("SELECT file, size FROM artifacts WHERE session = ?", (victim,)):
            gone.append((victim_id, name))
            left -= size
        book.execute("DELETE FROM artifacts WHERE session = ?", (victim,))
    if left > most:
        raise NoRoom(f"artifacts may have {most} bytes together, and those of jobs that run have them already")
    book.execute(
        "INSERT INTO artifacts (session, file, name, type, size, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        (no, file, artifact.name, artifact.type, artifact.size_bytes, artifact.checksum),
    )
    return gone


def settle_artifacts(book: sqlite3.Connection, there: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Forget the artifacts whose files are not `there`; returns the others, as (session_id, file)."""
    known: set[tuple[str, str]] = set(
        book.execute("SELECT session_id, file FROM artifacts JOIN sessions ON no = session")
    )
    book.executemany(
        "DELETE FROM artifacts WHERE session = (SELECT no FROM sessions WHERE session_id = ?) AND file = ?",
        known - there,
    )
    return known & there
