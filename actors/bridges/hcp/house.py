"""Behind the front desk: the book, the store and the desk itself, made of a runtime's parts, and kept while they last.

What is slow to import is imported by this module, which nobody imports before there is something to do.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import frozen

from hearth.actors.bridges.hcp.account import Account
from hearth.actors.bridges.hcp.book import Book, BookError
from hearth.actors.bridges.hcp.desk import HcpDesk
from hearth.actors.bridges.hcp.ending import AFTER_ABORT
from hearth.actors.bridges.hcp.execution import checkpoint_id
from hearth.actors.bridges.hcp.services import Services
from hearth.actors.bridges.hcp.store import ArtifactStore
from hearth.actors.bridges.hcp.story import Story
from hearth.hcp.durable import unknown as unknown_of
from hearth.hcp.messages import ErrorDetails, TaskFailed
from hearth.hcp.reading import write_payload
from hearth.hcp.report import summary
from hearth.policy.rules import Rate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hearth.actors.bridges.hcp.book_rows import SessionRow
    from hearth.actors.bridges.hcp.services import OpenSession
    from hearth.actors.runtime import Runtime, RuntimeParts

@frozen(eq=False)
class Furniture:
    """What jobs are remembered in, opened."""

    book: Book
    store: ArtifactStore
    notes: tuple[str, ...]
    """For a person, one line each."""


def furnish(parts: RuntimeParts, directory: Path) -> Furniture:
    """Lock and repair what the last run's jobs left, or begin anew. Blocking. Raises ConfigError."""
    durability = parts.journal.settings.durability
    book = Book(directory, durability=durability, clock=parts.clock)
    store = ArtifactStore(
        directory,
        book,
        most_each=parts.hcp.max_artifact_bytes,
        most_all=parts.hcp.max_artifacts_bytes,
        durability=durability,
    )
    return Furniture(book, store, (*book.open(), *store.open()))


async def keep_house(
    furniture: Furniture,
    runtime: Runtime,
    open_session: OpenSession,
    opened: Callable[[HcpDesk], None],
    over: trio.Event,
) -> None:
    """Keep a desk until it is over; `opened` is told of it once what the last run left without an end has one."""
    parts, book = runtime.parts, furniture.book
    services = Services(
        capabilities=parts.capabilities,
        settings=parts.hcp,
        policy=parts.policy,
        registry=parts.registry,
        journal=parts.journal,
        book=book,
        store=furniture.store,
        open_session=open_session,
        line_name=parts.board.line_name,
        port_name=parts.board.port_name,
        clock=parts.clock,
        idle_ttl_s=parts.limits.idle_ttl_s,
        memory=runtime.memory,
        refusals=runtime.refusals,
        rate=Rate.parse(parts.limits.session_rate),
    )
    try:
        async with trio.open_nursery() as outer:
            await outer.start(book.run)
            await recover(services)
            async with trio.open_nursery() as jobs:
                desk = HcpDesk(services, jobs)
                jobs.start_soon(desk.expire)
                opened(desk)
                await over.wait()
                jobs.cancel_scope.cancel()
                # Before the last of them has gone: a disk that hangs would keep it.
                await book.aclose()
    finally:
        await book.aclose()


# --- The end of sessions that the daemon did not live to end: said at the next start (L2, Recovery; L4, Task Failure)
#
# What is said is what the book has: nothing is known of a step that was in flight. Nothing goes on by itself either,
# for nobody may be there who wants it: the caller resubmits with `last_checkpoint` if it does.

MESSAGE: Final = "the daemon ended while the job was under way"

log = logging.getLogger("hearth.hcp")


async def recover(services: Services) -> None:
    """Bring every session that has none to its end; one that cannot be written to now is left to the next start."""
    for row in services.book.unfinished:
        try:
            await _end(services, row)
        except BookError as error:
            log.error("HCP session %s is still without an end: %s", row.session_id, error)


async def _end(services: Services, row: SessionRow) -> None:
    lines = await services.book.story(row.session_id)
    duration_s, made, warnings = _measured(row, lines)
    unknown = [str(unknown_of(operation).operation) for operation in await services.book.begun(row.session_id)]
    message = f"{MESSAGE}; unknown is what came of {', '.join(unknown)}" if unknown else MESSAGE
    last = checkpoint_id(row.session_id, row.checkpoints) if row.checkpoints or unknown else None
    aborting = row.state == "ABORTING"
    services.audit(
        "hcp.recover",
        hcp_session=row.session_id,
        principal=row.principal,
        last_checkpoint=last,
        unknown=unknown or None,
    )
    services.audit(
        "hcp.finish",
        hcp_session=row.session_id,
        principal=row.principal,
        state="ABORTED" if aborting else "FAILED",
        error_code=None if aborting else "internal_error",
        reason="daemon_ended",
        steps=made,
        checkpoints=made,
        duration_s=round(duration_s, 3),
    )
    failed = TaskFailed(
        error_code="internal_error",
        error_message=message,
        error_details=ErrorDetails(
            phase=row.phase or None,
            step=row.checkpoints + 1,
            last_checkpoint=last,
            recoverable=row.resumable,
            reason="daemon_ended",
        ),
        artifacts=tuple(await services.book.artifacts(row.session_id)),
        execution_summary=summary(
            duration_s=duration_s, steps=made, checkpoints=made, risk_events=(), warnings=warnings
        ),
    )
    account = Account(
        row.session_id,
        services.book,
        Story(lines),
        services.clock,
        state=row.state,
        sequence=row.sequence,
        phase=row.phase,
    )
    if row.state == "PAUSED":
        # L2 has no way from there to the end.
        await account.move("RUNNING", "the daemon ended")
    if aborting:
        said = write_payload(failed)
        left = {name: said[name] for name in AFTER_ABORT if said.get(name)}
        await account.close("ABORTED", "daemon ended", closing=left)
    else:
        await account.close("FAILED", "daemon ended", failed)
    log.warning("HCP session %s (%s) had not ended; its last checkpoint is %s", row.session_id, row.capability, last)


def _measured(row: SessionRow, lines: list[bytes]) -> tuple[float, int, tuple[str, ...]]:
    """For how long it is known to have run (seconds), its checkpoints, and what it was warned of: by its messages."""
    messages: list[dict[str, Any]] = [orjson.loads(line) for line in lines]
    newest = datetime.fromisoformat(messages[-1]["timestamp"]).timestamp() if messages else row.created_at
    events = [message["payload"] for message in messages if message["type"] == "event"]
    warnings = tuple(str(event["data"]["message"]) for event in events if event["event_type"] == "warning")
    made = sum(event["event_type"] == "checkpoint_created" for event in events)
    return max(0.0, newest - row.created_at), made, warnings
