"""The front desk: takes whatever is handed in, and has the desk behind it opened when the first of it comes.

Most runtimes never see a whole job, and what a desk is made of takes longer to import than all the rest of a small
daemon. So `open_books` looks at what the last run left, beside the audit log, and `open_job_server` lasts as long as
the runtime serves; the house itself is made by the first message, in a thread, or at once where sessions have no end
yet. What comes meanwhile waits in its order, and is answered once, as ever.
"""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define

from hearth._util.exceptions import unwrapped
from hearth.errors import ConfigError, InternalError, RpcError, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hearth.actors.bridges.hcp.service import HcpJobServer, OpenStorage
    from hearth.actors.bridges.hcp.services import OpenSession
    from hearth.actors.messages import HcpRequest, MessageSink, Request
    from hearth.actors.runtime import Runtime, RuntimeParts
    from hearth.policy.principal import Principal

SERVICE: Final = "hearth.actors.bridges.hcp.service"

log = logging.getLogger("hearth.hcp")


@define(eq=False)
class JobStorage:
    """What jobs are remembered in: opened, where the last run left some, else to be opened when there is a job."""

    parts: RuntimeParts
    directory: Path
    furniture: OpenStorage | None = None
    used: bool = False
    """Whether there has been a desk over them, which closes them itself."""

    @property
    def notes(self) -> tuple[str, ...]:
        """For a person, one line each."""
        return () if self.furniture is None else self.furniture.notes

    @property
    def unfinished(self) -> bool:
        """Whether sessions of the last run have no end yet."""
        return self.furniture is not None and bool(self.furniture.job_store.unfinished)

    def open(self) -> OpenStorage:
        """Open them, if they are not. Blocking: briefly, where there are none yet. Raises ConfigError."""
        furniture = self.furniture
        if furniture is None:
            service: Any = import_module(SERVICE)
            furniture = self.furniture = service.open_storage(self.parts, self.directory)
        return furniture

    def close(self) -> None:
        """Let go of them, if there never was a desk. Blocking; idempotent."""
        if self.furniture is not None and not self.used:
            self.furniture.job_store.close()


def open_job_storage(parts: RuntimeParts) -> JobStorage | None:
    """Lock and repair what the last run's jobs left; None where no jobs are taken. Blocking. Raises ConfigError."""
    if not parts.hcp.serve or parts.hcp_directory is None:
        return None
    books = JobStorage(parts, parts.hcp_directory)
    if parts.hcp_directory.exists():
        books.open()
    return books


class LazyJobServer:
    """Implements `hearth.actors.messages.JobServer`."""

    def __init__(self) -> None:
        self.closing = False
        self._job_server: HcpJobServer | None = None
        self._waiting: list[_Waiting] = []
        self._wanted = trio.Event()
        self._tried = trio.Event()

    def receive(self, principal: Principal, request: HcpRequest) -> None:
        """See messages.JobServer."""
        self._hand_on(_Waiting(principal, request=request))

    def call(self, principal: Principal, ask: Request, reader: MessageSink) -> None:
        """See messages.JobServer."""
        if self.closing:
            raise ShuttingDown
        self._hand_on(_Waiting(principal, ask=ask, reader=reader))

    def _hand_on(self, waiting: _Waiting) -> None:
        if self._job_server is not None:
            waiting.deliver(self._job_server)
        elif self.closing:
            waiting.refuse("shutting_down", "the daemon is ending")
        else:
            self._waiting.append(waiting)
            self._wanted.set()

    async def real(self) -> HcpJobServer:
        """The desk behind this one, opened if it is not."""
        while self._job_server is None:
            self._wanted.set()
            await self._tried.wait()
        return self._job_server

    async def end(self, until: float) -> None:
        """Take no more jobs, stop those that run, and wait for their ends until this time of Trio's clock."""
        self.closing = True
        if self._waiting:
            with trio.move_on_at(until):
                await self._tried.wait()
        if self._job_server is not None:
            await self._job_server.end(until)

    # --- for who opens it ---------------------------------------------------------------------------------------

    async def wanted(self) -> None:
        """Wait until there is something to do, or nothing will be."""
        await self._wanted.wait()

    def opened(self, job_server: HcpJobServer) -> None:
        """Hand on what has waited, and from now on everything."""
        self._job_server = job_server
        self._tried.set()
        for waiting in self._take():
            waiting.deliver(job_server)

    def refuse(self, reason: str) -> None:
        """The desk cannot be opened: refuse what has waited; what comes next will try again."""
        self._wanted = trio.Event()
        tried, self._tried = self._tried, trio.Event()
        tried.set()
        for waiting in self._take():
            waiting.refuse("resource_unavailable", reason)

    def close(self) -> None:
        """Nothing more will be done here."""
        self.closing = True
        self._wanted.set()
        for waiting in self._take():
            waiting.refuse("shutting_down", "the daemon is ending")

    def _take(self) -> list[_Waiting]:
        waiting, self._waiting = self._waiting, []
        return waiting


@define(eq=False)
class _Waiting:
    """A message, or a method's call, on its way to the desk."""

    principal: Principal
    request: HcpRequest | None = None
    ask: Request | None = None
    reader: MessageSink | None = None

    def deliver(self, job_server: HcpJobServer) -> None:
        """Hand it on."""
        if self.request is not None:
            job_server.receive(self.principal, self.request)
        elif self.ask is not None and self.reader is not None:
            try:
                job_server.call(self.principal, self.ask, self.reader)
            except RpcError as error:
                self.ask.error(error)

    def refuse(self, reason_code: Any, reason: str) -> None:
        """Answer it that it cannot be served now."""
        if self.ask is not None:
            shutting_down = reason_code == "shutting_down"
            self.ask.error(ShuttingDown() if shutting_down else InternalError(data={"reason": reason}))
        elif self.request is not None:
            from hearth.actors.bridges.hcp.rejections import unread

            self.request.answer(unread(self.request.document, reason_code, reason, time.time()))


class Opening:
    """A front desk's life, and that of the house behind it."""

    def __init__(self, books: JobStorage, runtime: Runtime, open_session: OpenSession) -> None:
        self._books = books
        self._runtime = runtime
        self._open_session = open_session
        self._over, self._is_ready = trio.Event(), trio.Event()
        self._job_server = LazyJobServer()

    async def ready(self) -> LazyJobServer:
        """Wait until jobs can be taken: what has no end yet gets one before anybody can ask."""
        await self._is_ready.wait()
        return self._job_server

    async def run(self) -> None:
        """Keep the desk until it is over: what cancels whoever serves does not reach its jobs."""
        job_server, books = self._job_server, self._books

        def opened(real: HcpJobServer) -> None:
            job_server.opened(real)
            self._is_ready.set()

        if not (urgent := books.unfinished):
            self._is_ready.set()
        with trio.CancelScope(shield=True):
            while not self._over.is_set():
                if not urgent:
                    await job_server.wanted()
                    if self._over.is_set():
                        return
                try:
                    # In a thread: it takes most of a second on a small board, and others are served meanwhile.
                    service = await trio.to_thread.run_sync(_load, self._runtime.parts)
                    furniture = books.open()
                except ConfigError as error:
                    log.error("whole jobs cannot be taken: %s", error)
                    job_server.refuse(str(error))
                    # The rest of the daemon serves nonetheless, and the next message tries again.
                    urgent = False
                    self._is_ready.set()
                    continue
                books.used = True
                await service.serve_jobs(furniture, self._runtime, self._open_session, opened, self._over)

    async def end(self) -> None:
        """End every job, then the desk itself. Half of the grace is for the sessions that end afterwards."""
        with trio.CancelScope(shield=True):
            await self._job_server.end(trio.current_time() + self._runtime.parts.limits.shutdown_grace_s / 2)
        self._over.set()
        self._job_server.close()


def _load(parts: RuntimeParts) -> Any:
    """What jobs need that a runtime without any does without: modules, and the capabilities that come with hearth."""
    service = import_module(SERVICE)
    parts.capabilities.loaded()
    return service


@asynccontextmanager
async def open_job_server(
    books: JobStorage | None, runtime: Runtime, open_session: OpenSession
) -> AsyncIterator[LazyJobServer | None]:
    """Take jobs while this lasts; on the way out every job comes to its end. An exception comes out as it is."""
    if books is None:
        yield None
        return
    opening = Opening(books, runtime, open_session)
    async with unwrapped() as body, trio.open_nursery() as nursery, body.watched():
        # Not by `nursery.start`: whoever is cancelled there would wait for a task that only `end` lets go.
        nursery.start_soon(opening.run)
        try:
            job_server = runtime.job_server = await opening.ready()
            yield job_server
        finally:
            await opening.end()
