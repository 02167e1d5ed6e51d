"""Behind the front desk: the book, the store and the desk itself, made of a runtime's parts, and kept while they last.

What is slow to import is imported by this module, which nobody imports before there is something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from attrs import frozen

from hearth.actors.bridges.hcp.book import Book
from hearth.actors.bridges.hcp.desk import HcpDesk
from hearth.actors.bridges.hcp.recovery import recover
from hearth.actors.bridges.hcp.services import Services
from hearth.actors.bridges.hcp.store import ArtifactStore
from hearth.policy.rules import Rate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
