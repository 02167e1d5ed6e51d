"""The caller's record: its orders, and the messages that it has processed, in one SQLite file.

Theory of operation. An order is in the order store before it is published, and a message before its delivery is
acknowledged. So a caller that was killed sends again what has no answer (the device does it once), and goes on with the
event after the last one that it has. Per session it takes events in their sequence only:

- a sequence that it has: a duplicate, dropped;
- the next one: stored;
- a later one: messages are missing, because a broker was wiped or a queue was full. It is dropped, and the session is
  named in `TakenMessages.gaps`: the client asks the device for all from the first missing one on.

An answer or an event counts only if it comes from the device that the order went to: the broker has checked its user.
Blocking; one thread at a time.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import define, field, fields, frozen

from hearth._util.formats import check_format
from hearth.errors import HearthError
from hearth.hcp.messages import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE orders (
    message_id TEXT PRIMARY KEY,
    device TEXT NOT NULL,
    document BLOB NOT NULL,
    not_after REAL,
    made_at REAL NOT NULL,
    published INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'NEW',
    session_id TEXT,
    sequence INTEGER NOT NULL DEFAULT 0,
    said TEXT NOT NULL DEFAULT '',
    result BLOB
);
CREATE UNIQUE INDEX orders_by_session ON orders (session_id);
CREATE TABLE events (
    session_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    message BLOB NOT NULL,
    PRIMARY KEY (session_id, sequence)
);
"""
ENDED: Final = frozenset({*TERMINAL, "NOT SENT"})
"""The states of orders for which nothing more is to come; beside HCP's, "NEW" and "NOT SENT"."""


class OrderStoreError(HearthError):
    """The order store's file cannot be used."""


@frozen(kw_only=True)
class FleetOrder:
    """One order to one device. `said` is the last thing that its device reported, for a person."""

    message_id: str
    device: str
    document: Mapping[str, Any]
    not_after: float | None
    """Epoch seconds of this caller's clock; None: at any time."""
    made_at: float
    published: bool = False
    """True once it may be in a queue."""
    state: str = "NEW"
    session_id: str | None = None
    sequence: int = 0
    said: str = ""
    result: Mapping[str, Any] | None = None
    """The payload of task_completed, task_failed or task_rejected."""


@define
class TakenMessages:
    """The effect of some messages: what was new, how many were duplicates or of no order, and what is missing."""

    new: list[dict[str, Any]] = field(factory=list)
    """Messages, in the order in which they were processed."""
    duplicates: int = 0
    foreign: int = 0
    gaps: dict[str, int] = field(factory=dict)
    """Session -> the first sequence that is missing."""


class OrderStore:
    """The store in a file, or in memory with the path ":memory:".

    Raises OrderStoreError for another kind of file, and ConfigError for the file of a newer release.
    """

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(path)
        except sqlite3.Error as error:
            self._db.close()
            why = "another client is using it" if "locked" in str(error) else str(error)
            raise OrderStoreError(f"{path}: {why}; use another file (--state)") from None
        except HearthError:
            self._db.close()
            raise

    def _prepare(self, path: Path | str) -> None:
        # A second client with the same order store would take the same orders for its own.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT")
        check_format(f"order store {path}", version, _VERSION, "use another file (--state)")
        if version not in (0, _VERSION):
            raise OrderStoreError(f"{path}: an order store of another release of hearth; use another file (--state)")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Do all of it durably, or nothing. Raises OrderStoreError."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise OrderStoreError(f"the order store cannot be written: {error}") from None

    def add(self, orders: Iterable[FleetOrder]) -> None:
        """Store new orders, durably."""
        rows = [(one.message_id, one.device, orjson.dumps(one.document), one.not_after, one.made_at) for one in orders]
        with self._transaction():
            self._db.executemany(
                "INSERT INTO orders (message_id, device, document, not_after, made_at) VALUES (?, ?, ?, ?, ?)", rows
            )

    def mark_published(self, message_ids: Iterable[str]) -> None:
        """Note that orders are about to be published: from now on they may be in a queue."""
        with self._transaction():
            self._db.executemany(
                "UPDATE orders SET published = 1 WHERE message_id = ?", [(one,) for one in message_ids]
            )

    def mark(self, order: FleetOrder, *, published: bool, said: str, state: str | None = None) -> None:
        """Note why an order has not reached its device, as long as it has no answer."""
        with self._transaction():
            self._db.execute(
                "UPDATE orders SET published = ?, state = coalesce(?, state), said = ?"
                " WHERE message_id = ? AND session_id IS NULL AND result IS NULL",
                (published, state, said, order.message_id),
            )

    def orders(self, *, open_only: bool = False) -> list[FleetOrder]:
        """Return the orders, the oldest first; with `open_only` those that have not ended."""
        ended = ", ".join(f"'{state}'" for state in ENDED)
        where = f"WHERE state NOT IN ({ended})" if open_only else ""
        names = [each.name for each in fields(FleetOrder)]
        rows = self._db.execute(f"SELECT {', '.join(names)} FROM orders {where} ORDER BY made_at, rowid")
        return [_order(dict(zip(names, row, strict=True))) for row in rows]

    def events(self, session_id: str) -> list[dict[str, Any]]:
        """Return the events of a session, in their sequence."""
        rows = self._db.execute("SELECT message FROM events WHERE session_id = ? ORDER BY sequence", (session_id,))
        return [orjson.loads(message) for (message,) in rows]

    def take(self, messages: Iterable[tuple[dict[str, Any], str | None]]) -> TakenMessages:
        """Process messages, each with the user that the broker has found in it, in one durable transaction."""
        taken = TakenMessages()
        with self._transaction():
            for message, user in messages:
                self._take(message, user, taken)
        return taken

    def _take(self, message: dict[str, Any], user: str | None, taken: TakenMessages) -> None:
        payload: Any = message.get("payload")
        kind, session_id = message.get("type"), message.get("session_id")
        if not isinstance(payload, dict):
            taken.foreign += 1
            return
        if kind in ("task_accepted", "task_rejected"):
            self._take_answer(kind, payload, session_id, message, user, taken)
            return
        row = self._db.execute(
            "SELECT message_id, sequence, state, result IS NOT NULL FROM orders WHERE session_id = ? AND device = ?",
            (session_id, user),
        ).fetchone()
        if row is None:
            # Also an event whose task_accepted was lost: the order is sent again, and all its messages come again.
            taken.foreign += 1
            return
        message_id, last, state, has_result = row
        if kind == "event":
            self._take_event(message, payload, (message_id, last, state, bool(has_result)), taken)
        elif kind in ("task_completed", "task_failed"):
            if has_result:
                taken.duplicates += 1
            else:
                self._db.execute(
                    "UPDATE orders SET result = ? WHERE message_id = ?", (orjson.dumps(payload), message_id)
                )
                taken.new.append(message)
        else:
            taken.foreign += 1

    def _take_answer(
        self,
        kind: str,
        payload: Mapping[str, Any],
        session_id: Any,
        message: dict[str, Any],
        user: Any,
        taken: TakenMessages,
    ) -> None:
        row = self._db.execute(
            "SELECT message_id, state, session_id FROM orders WHERE message_id = ? AND device = ?",
            (payload.get("in_reply_to"), user),
        ).fetchone()
        if row is None:
            taken.foreign += 1
        elif row[2] is not None or row[1] in ENDED:
            taken.duplicates += 1
        elif kind == "task_accepted":
            self._db.execute(
                "UPDATE orders SET state = 'PENDING', session_id = ?, said = 'accepted' WHERE message_id = ?",
                (session_id, row[0]),
            )
            taken.new.append(message)
        else:
            said = f"{payload.get('reason_code')}: {payload.get('reason_message')}"
            self._db.execute(
                "UPDATE orders SET state = 'REJECTED', said = ?, result = ? WHERE message_id = ?",
                (said, orjson.dumps(payload), row[0]),
            )
            taken.new.append(message)

    def _take_event(
        self,
        message: dict[str, Any],
        payload: Mapping[str, Any],
        order: tuple[str, int, str, bool],
        taken: TakenMessages,
    ) -> None:
        message_id, last, state, has_result = order
        sequence = payload.get("sequence")
        if type(sequence) is not int:
            taken.foreign += 1
        elif sequence <= last:
            taken.duplicates += 1
        elif sequence > last + 1 or (_closes(payload) and not has_result):
            # An outcome has no sequence: it comes right before session_closed.
            taken.gaps[message["session_id"]] = last + 1
        else:
            state, said = _seen(payload, state)
            self._db.execute(
                "INSERT INTO events VALUES (?, ?, ?)", (message["session_id"], sequence, orjson.dumps(message))
            )
            self._db.execute(
                "UPDATE orders SET sequence = ?, state = ?, said = coalesce(?, said) WHERE message_id = ?",
                (sequence, state, said, message_id),
            )
            taken.new.append(message)


def _closes(payload: Mapping[str, Any]) -> bool:
    """Return True for the end of a session that has an outcome (L4); an aborted one has none."""
    data: Any = payload.get("data")
    closes = payload.get("event_type") == "session_closed" and isinstance(data, dict)
    return closes and data.get("final_state") in ("COMPLETED", "FAILED")


def _seen(payload: Mapping[str, Any], state: str) -> tuple[str, str | None]:
    """Return the state of an order after an event, and the words for it."""
    data: Any = payload.get("data")
    data = data if isinstance(data, dict) else {}
    kind = payload.get("event_type")
    if kind == "state_changed":
        # A session ends with session_closed: its outcome comes before that.
        to = str(data.get("to_state", state))
        return state if to in TERMINAL else to, None
    if kind == "session_closed":
        return str(data.get("final_state", state)), str(data.get("reason", ""))
    said = data.get("message") or data.get("description") or data.get("stage")
    return state, None if said is None else str(said)


def _order(row: dict[str, Any]) -> FleetOrder:
    row["document"] = orjson.loads(row["document"])
    row["published"] = bool(row["published"])
    row["result"] = None if row["result"] is None else orjson.loads(row["result"])
    return FleetOrder(**row)
