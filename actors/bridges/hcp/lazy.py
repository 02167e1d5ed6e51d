"""The lazy job server: accepts every job request, and opens the real job server when the first one arrives.

Most runtimes never get a whole job, and the job server's modules take longer to import than all the rest of a small
daemon. `open_job_storage` therefore opens only what the last run left beside the audit log. The first request opens the
job server, in a thread; sessions of the last run that have not ended open it at start. Requests that arrive while it
opens wait in their order, and each is answered once.
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
from hearth._util.threads import IMPORTING
from hearth.errors import ConfigError, InternalError, RpcError, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hearth.actors.bridges.hcp.service import HcpJobServer, OpenStorage
    from hearth.actors.messages import HcpRequest, MessageSink, Request
    from hearth.actors.runtime import Runtime, RuntimeParts
    from hearth.actors.service import OpenSession
    from hearth.policy.principal import Principal

SERVICE: Final = "hearth.actors.bridges.hcp.service"

log = logging.getLogger("hearth.hcp")


@define(eq=False)
class JobStorage:
    """The files that keep jobs: opened at start if the last run left some, otherwise by the first job."""

    parts: RuntimeParts
    directory: Path
    opened: OpenStorage | None = None
    used: bool = False
    """True once a job server has used them; that server then closes them itself."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the operator, one line each."""
        return () if self.opened is None else self.opened.notes

    @property
    def unfinished(self) -> bool:
        """True if sessions of the last run have not ended."""
        return self.opened is not None and bool(self.opened.job_store.unfinished)

    def open(self, now: float) -> OpenStorage:
        """Open the files, if they are not open. Blocking. `now` in epoch seconds. Raises ConfigError."""
        opened = self.opened
        if opened is None:
            service: Any = import_module(SERVICE)
            opened = self.opened = service.open_storage(self.parts, self.directory, now)
        return opened

    def close(self) -> None:
        """Close the files, unless a job server has used them. Blocking; idempotent."""
        if self.opened is not None and not self.used:
            self.opened.job_store.close()


def open_job_storage(parts: RuntimeParts) -> JobStorage | None:
    """Lock and repair the last run's job files, once; return None if this daemon accepts no jobs.

    Blocking. Raises ConfigError.
    """
    jobs = parts.extras.get("hcp")
    if jobs is None or jobs.directory is None:
        return None
    if jobs.storage is None:
        jobs.storage = JobStorage(parts, jobs.directory)
        if jobs.directory.exists():
            jobs.storage.open(parts.clock())
    storage: JobStorage = jobs.storage
    return storage


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
        self._hand_on(_Waiting(principal, message=request))

    def call(self, principal: Principal, request: Request, sink: MessageSink) -> None:
        """See messages.JobServer."""
        if self.closing:
            raise ShuttingDown
        self._hand_on(_Waiting(principal, request=request, sink=sink))

    def halt(self) -> None:
        """See messages.JobServer. Whether a message that waits would act is not known yet: it may be sent again."""
        if self._job_server is not None:
            self._job_server.halt()
            return
        messages = [one for one in self._waiting if one.message is not None]
        self._waiting = [one for one in self._waiting if one.message is None]
        for waiting in messages:
            waiting.refuse("resource_unavailable", "the daemon was halted before the job server was open")

    def _hand_on(self, waiting: _Waiting) -> None:
        if self._job_server is not None:
            waiting.deliver(self._job_server)
        elif self.closing:
            waiting.refuse("shutting_down", "the daemon is ending")
        else:
            self._waiting.append(waiting)
            self._wanted.set()

    async def real(self) -> HcpJobServer:
        """Return the real job server; open it first if it is not open."""
        while self._job_server is None:
            self._wanted.set()
            await self._tried.wait()
        return self._job_server

    async def end(self, until: float) -> None:
        """Accept no more jobs, stop the running ones, and wait for their ends until this time (Trio's clock)."""
        self.closing = True
        if self._waiting:
            with trio.move_on_at(until):
                await self._tried.wait()
        if self._job_server is not None:
            await self._job_server.end(until)

    # --- for JobServerLifetime, which opens the real server ---------------------------------------------------------

    async def wanted(self) -> None:
        """Wait until a request needs the real server, or `close` was called."""
        await self._wanted.wait()

    def opened(self, job_server: HcpJobServer) -> None:
        """Deliver the waiting requests to the real server, and every later one at once."""
        self._job_server = job_server
        self._tried.set()
        for waiting in self._take():
            waiting.deliver(job_server)

    def refuse(self, reason: str) -> None:
        """Refuse the waiting requests, because the real server cannot be opened; the next request tries again."""
        # New events before the refusals: a request that arrives from now on starts another attempt.
        self._wanted = trio.Event()
        tried, self._tried = self._tried, trio.Event()
        tried.set()
        for waiting in self._take():
            waiting.refuse("resource_unavailable", reason)

    def close(self) -> None:
        """Refuse the waiting requests and all later ones: the daemon is ending."""
        self.closing = True
        self._wanted.set()
        for waiting in self._take():
            waiting.refuse("shutting_down", "the daemon is ending")

    def _take(self) -> list[_Waiting]:
        waiting, self._waiting = self._waiting, []
        return waiting


@define(eq=False)
class _Waiting:
    """An HCP `message`, or a method call (`request` and `sink`), that waits for the real job server."""

    principal: Principal
    message: HcpRequest | None = None
    request: Request | None = None
    sink: MessageSink | None = None

    def deliver(self, job_server: HcpJobServer) -> None:
        """Pass it to the job server."""
        if self.message is not None:
            job_server.receive(self.principal, self.message)
        elif self.request is not None and self.sink is not None:
            try:
                job_server.call(self.principal, self.request, self.sink)
            except RpcError as error:
                self.request.error(error)

    def refuse(self, reason_code: Any, reason: str) -> None:
        """Answer that it cannot be served now."""
        if self.request is not None:
            shutting_down = reason_code == "shutting_down"
            self.request.error(ShuttingDown() if shutting_down else InternalError(data={"reason": reason}))
        elif self.message is not None:
            from hearth.hcp.rejections import unread

            self.message.answer(unread(self.message.document, reason_code, reason, time.time()))


class JobServerLifetime:
    """The lifetime of one lazy job server and of the real one behind it."""

    def __init__(self, storage: JobStorage, runtime: Runtime, open_session: OpenSession) -> None:
        self._storage = storage
        self._runtime = runtime
        self._open_session = open_session
        self._over, self._ready = trio.Event(), trio.Event()
        self._job_server = LazyJobServer()

    async def ready(self) -> LazyJobServer:
        """Wait until jobs can be accepted.

        Sessions of the last run are ended first, so that no caller sees one without an end.
        """
        await self._ready.wait()
        return self._job_server

    async def run(self) -> None:
        """Open and run the real job server until `end`. Cancelling the caller does not reach its jobs."""
        job_server, storage = self._job_server, self._storage

        def opened(real: HcpJobServer) -> None:
            job_server.opened(real)
            self._ready.set()

        if not (urgent := storage.unfinished):
            self._ready.set()
        with trio.CancelScope(shield=True):
            while not self._over.is_set():
                if not urgent:
                    await job_server.wanted()
                    if self._over.is_set():
                        return
                try:
                    # In a thread: the imports take most of a second on a small board, and the daemon goes on serving.
                    service = await trio.to_thread.run_sync(_load, self._runtime.parts)
                    # In a thread too: their disk may hang.
                    opened_storage = await trio.to_thread.run_sync(storage.open, self._runtime.parts.clock())
                except ConfigError as error:
                    log.error("HCP jobs cannot be accepted: %s", error)
                    job_server.refuse(str(error))
                    # The rest of the daemon keeps serving, and the next message tries again.
                    urgent = False
                    self._ready.set()
                    continue
                storage.used = True
                await service.serve_jobs(opened_storage, self._runtime, self._open_session, opened, self._over)

    async def end(self) -> None:
        """End every job, then the job server.

        Half of the shutdown grace is left for the sessions that end afterwards.
        """
        with trio.CancelScope(shield=True):
            await self._job_server.end(trio.current_time() + self._runtime.parts.limits.shutdown_grace_s / 2)
        self._over.set()
        self._job_server.close()


def _load(parts: RuntimeParts) -> Any:
    """Import the job server's modules and the capabilities that come with hearth; blocking."""
    with IMPORTING:
        service = import_module(SERVICE)
        parts.extras["hcp"].capabilities.loaded()
    return service


@asynccontextmanager
async def open_job_server(
    storage: JobStorage | None, runtime: Runtime, open_session: OpenSession
) -> AsyncIterator[LazyJobServer | None]:
    """Accept jobs until the block ends, then end every job. An exception of the block comes out as it is."""
    if storage is None:
        yield None
        return
    lifetime = JobServerLifetime(storage, runtime, open_session)
    async with unwrapped() as body, trio.open_nursery() as nursery, body.watched():
        # Not by `nursery.start`: a caller that is cancelled there would wait for a task that only `end` lets return.
        nursery.start_soon(lifetime.run)
        try:
            job_server = runtime.extras["hcp"].server = await lifetime.ready()
            yield job_server
        finally:
            await lifetime.end()
