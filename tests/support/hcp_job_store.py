"""A job store of HCP sessions under test: rows and lines to put in it, and a look at its file that is not its own."""

from __future__ import annotations

import json
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import trio

from hearth.actors.bridges.hcp.store import JobStore, SessionRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ANN, BEN = "unix:1000", "unix:1001"
"""Principals' keys."""


def session_id(number: int) -> str:
    """The id of a session, as a UUID has to look."""
    return f"00000000-0000-4000-8000-{number:012d}"


def row(number: int = 1, principal: str = ANN, **members: Any) -> SessionRow:
    """A session that begins."""
    values: dict[str, Any] = {
        "session_id": session_id(number),
        "principal": principal,
        "message_id": f"message-{number}",
        "caller_id": "harness-alpha-001",
        "intent": "watch the bench",
        "capability": "bench-climate-survey",
        "version": "1.0.0",
        "inputs_hash": "sha256:00",
        "risk_level": "R1",
        "data_classification": "T2",
        "resumable": True,
        "created_at": 1000.0,
        "started_at": 1000.0,
    }
    return SessionRow(**{**values, **members})


def line(type_: str, number: int = 1, **payload: Any) -> bytes:
    """A message of a session's message log."""
    return json.dumps({"session_id": session_id(number), "type": type_, "payload": payload}).encode() + b"\n"


def event(sequence: int, number: int = 1, **data: Any) -> bytes:
    """An event of it."""
    return line("event", number, event_type="progress", sequence=sequence, data=data)


ACCEPTED = line("task_accepted")


@asynccontextmanager
async def running(job_store: JobStore) -> AsyncIterator[JobStore]:
    """The job store, at work until the body ends; closed afterwards. What an earlier run left is in its notes."""
    job_store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(job_store.run)
        try:
            yield job_store
        finally:
            await job_store.aclose()
            nursery.cancel_scope.cancel()


async def begin(job_store: JobStore, number: int = 1, principal: str = ANN, **members: Any) -> SessionRow:
    """Claim a message and answer it by beginning a session."""
    begun = row(number, principal, **members)
    claim = await job_store.claim(principal, begun.message_id, "digest")
    assert claim.kind == "new"
    await job_store.answer(principal, begun.message_id, line("task_accepted", number), begun)
    return begun


def look(directory: Path, question: str) -> list[Any]:
    """Ask the file of a job store that is closed."""
    with closing(sqlite3.connect(directory / "jobs.sqlite3")) as connection:
        return connection.execute(question).fetchall()
