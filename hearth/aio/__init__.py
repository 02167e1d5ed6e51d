"""hearth for asyncio: `async with hearth.aio.connect() as client:`, or `client = await hearth.aio.connect()`.

The interface is that of `hearth`; only the event loop differs. Cancelling a caller cancels its wait, never a
transaction that has begun on a bus; a task that its caller never learned of is cancelled. What is open when the program
ends is closed then: tasks are cancelled, and outputs go to their safe state.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from hearth import api
from hearth._util.portal import EventsFace, Face, OwningFace, Portal
from hearth.client.connection import Client as TrioClient, connect as trio_connect
from hearth.client.jobs import JobsClient
from hearth.client.session import ClientSession, WithNamespaces
from hearth.hcp import api as hcp_api

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from types import CoroutineType, TracebackType
    from typing import Literal, Unpack

    from hearth._util.portal import Wait
    from hearth.actors.bus.loop_thread import LoopIO
    from hearth.actors.embedded import EmbeddedRuntime
    from hearth.actors.loop import ControlLoop
    from hearth.config.model import Config
    from hearth.drivers.base import Style
    from hearth.drivers.boards import Board
    from hearth.hcp.messages import State, TaskAccepted
    from hearth.loop import LoopArguments, LoopStats, Sample
    from hearth.transport.address import Address

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")
C = TypeVar("C", bound="_Closes")

__all__ = ["Client", "Events", "Job", "Loop", "Opening", "Runtime", "Session", "Task", "connect", "open_runtime"]


async def _wait(wait: Wait[T]) -> T:
    """Wait in asyncio. A caller that is cancelled abandons the call, and waits until it has ended."""
    try:
        await _until_done(wait.outcome)
    except asyncio.CancelledError:
        wait.abandon()
        # Another cancellation must not cut this: the Trio side bounds it.
        while not wait.settled.done():
            with suppress(asyncio.CancelledError):
                await _until_done(wait.settled)
        raise
    return wait.outcome.result()


async def _until_done(future: Future[Any]) -> None:
    """Wait until a future of another thread is done; a cancellation does not reach that future."""
    if future.done():
        return
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits there any more
            loop.call_soon_threadsafe(_finish, done)

    future.add_done_callback(tell)
    await done


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


# The results are typed as CoroutineType, which type checkers take a coroutine function of a Protocol to return.


def _awaited(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], CoroutineType[Any, Any, T]]:
    """Return the coroutine function for asyncio that calls this one of the Trio object."""
    name = method.__name__

    @functools.wraps(method)
    async def awaited(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await _wait(self._call(name, args, kwargs))
        return result

    return cast("Callable[Concatenate[Any, P], CoroutineType[Any, Any, T]]", awaited)


def _making(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], kind: Callable[[Face[Any], T], W]
) -> Callable[Concatenate[Any, P], CoroutineType[Any, Any, W]]:
    """Return a coroutine function as `_awaited`, whose result gets a face of its own."""
    call = _awaited(method)

    @functools.wraps(method)
    async def making(self: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return kind(self, await call(self, *args, **kwargs))

    return cast("Callable[Concatenate[Any, P], CoroutineType[Any, Any, W]]", making)


class Events(EventsFace[T], AsyncIterator[T]):
    """An iterator over the events of a task or a job; `aclose` or the end of the object ends its subscription.

    A timeout around one event loses none.
    """

    async def __anext__(self) -> T:
        coming = self._next()
        await _until_done(coming.outcome)
        event = self._taken(coming)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        """End the subscription."""
        self._end()


class Task(Face[api.Task]):
    """A submitted task. Implements `hearth.Task`."""

    @property
    def task_id(self) -> str:
        """See hearth.Task."""
        return self._inner.task_id

    def events(self, *, from_seq: int = 1) -> Events[api.TaskEvent]:
        """See hearth.Task."""
        return Events(self, partial(self._inner.events, from_seq=from_seq))

    wait = _awaited(api.Task.wait)
    get = _awaited(api.Task.get)
    cancel = _awaited(api.Task.cancel)


class Session(WithNamespaces, OwningFace[ClientSession]):
    """An open session. Implements `hearth.Session`; `close`, or the end of its `async with` block, closes it."""

    @property
    def session_id(self) -> str:
        """See hearth.Session."""
        return self._inner.session_id

    @property
    def capabilities(self) -> Sequence[str]:
        """See hearth.Session."""
        return self._inner.capabilities

    tools = _awaited(api.Session.tools)
    call = _awaited(api.Session.call)
    submit = _making(api.Session.submit, Task)
    task = _making(api.Session.task, Task)
    halt = _awaited(api.Session.halt)
    halt_status = _awaited(api.Session.halt_status)
    reset_halt = _awaited(api.Session.reset_halt)
    observe_state = _awaited(api.Session.observe_state)
    observe_audit = _awaited(api.Session.observe_audit)
    attest_quote = _awaited(api.Session.attest_quote)
    attest_key = _awaited(api.Session.attest_key)
    prepare = _awaited(api.Session.prepare)
    execute = _making(api.Session.execute, Task)
    plans = _awaited(api.Session.plans)
    plan = _awaited(api.Session.plan)
    approve = _awaited(api.Session.approve)
    reject = _awaited(api.Session.reject)
    grant_approval = _awaited(api.Session.grant_approval)
    standing_approvals = _awaited(api.Session.standing_approvals)
    revoke_approval = _awaited(api.Session.revoke_approval)

    def observe(self, *, stream: str | None = None, from_seq: int | None = None) -> Events[Mapping[str, Any]]:
        """See hearth.Session."""
        return Events(self, partial(self._inner.observe, stream=stream, from_seq=from_seq))

    async def run(self, tool: str, /, **args: Any) -> Mapping[str, Any]:
        """See hearth.Session."""
        result: Mapping[str, Any] = await _wait(self._call("run", (tool,), args))
        return result

    async def close(self) -> int:
        """Close the session; return the number of its tasks that have not ended yet."""
        try:
            yielding: int = await _wait(self._call("close", (), {}))
        finally:
            await self._aclose()
        return yielding

    async def _aclose(self) -> None:
        await _wait(self._end())


class Loop(Face["ControlLoop"]):
    """A control loop; see `hearth.ControlLoop`. Its function runs in a thread of its own, not in the event loop."""

    @property
    def name(self) -> str:
        """The name of the loop, in records and messages."""
        return self._inner.name

    @property
    def ended(self) -> str | None:
        """The reason why the loop has ended; None while it runs."""
        return self._inner.ended

    def stats(self) -> LoopStats:
        """Return counts and the histogram of lateness."""
        return self._inner.stats()

    def telemetry(self) -> Events[Sample]:
        """Return an iterator over the values that the function emits; see `hearth.ControlLoop`."""
        return Events(self, self._inner.telemetry)

    async def wait(self) -> LoopStats:
        """Wait until the loop has ended and its outputs are safe; return its last counts."""
        stats: LoopStats = await _wait(self._call("wait", (), {}))
        return stats

    async def stop(self) -> LoopStats:
        """End the loop, make its outputs safe, and return its last counts. Raises LoopStopped if it ended by itself."""
        stats: LoopStats = await _wait(self._call("stop", (), {}))
        await self._aclose()
        return stats

    async def _aclose(self) -> None:
        await _wait(self._end())


class Job(Face[hcp_api.JobHandle]):
    """A submitted and accepted job. Implements `hearth.JobHandle`."""

    @property
    def session_id(self) -> str:
        """See hearth.JobHandle."""
        return self._inner.session_id

    @property
    def accepted(self) -> TaskAccepted | None:
        """See hearth.JobHandle."""
        return self._inner.accepted

    @property
    def state(self) -> State:
        """See hearth.JobHandle."""
        return self._inner.state

    @property
    def last_processed_sequence(self) -> int:
        """See hearth.JobHandle."""
        return self._inner.last_processed_sequence

    def events(self, *, from_sequence: int | None = None) -> Events[hcp_api.JobEvent]:
        """See hearth.JobHandle."""
        return Events(self, partial(self._inner.events, from_sequence=from_sequence))

    wait = _awaited(hcp_api.JobHandle.wait)
    abort = _awaited(hcp_api.JobHandle.abort)


# --- connections and runtimes ---------------------------------------------------------------------------------------


class _Closes(Protocol):
    async def _aclose(self) -> None: ...


class Opening(Generic[C]):
    """What is opened by `async with`, whose end closes it, or by `await`, after which its `close` closes it."""

    def __init__(self, open_it: Callable[[], Coroutine[Any, Any, C]]) -> None:
        self._open = open_it

    def __await__(self) -> Generator[Any, None, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened._aclose()


class _Opened(OwningFace[T]):
    """A connection or a runtime: what a portal runs around."""

    async def _session(self, manager: Callable[[], AbstractAsyncContextManager[ClientSession]]) -> Session:
        held = self._portal.enter(manager)
        return Session(self, await _wait(held.entering()), held)

    async def attach(self, session_id: str) -> Session:
        """Return a session of the same principal that was opened elsewhere, and is closed there."""
        return Session(self, await _wait(self._look(methodcaller("attach", session_id))))

    halt = _awaited(TrioClient.halt)
    delegate = _making(JobsClient.delegate, Job)
    hand_over = _making(JobsClient.hand_over, Job)
    attach_job = _making(JobsClient.attach_job, Job)
    capabilities = _awaited(JobsClient.capabilities)
    jobs = _awaited(JobsClient.jobs)
    withdraw = _awaited(JobsClient.withdraw)
    pending_approvals = _awaited(JobsClient.pending_approvals)
    decide = _awaited(JobsClient.decide)
    artifact = _awaited(JobsClient.artifact)
    artifact_to = _awaited(JobsClient.artifact_to)

    async def close(self) -> None:
        """Close every session that is open here, and then this; other calls that wait raise CarrierError."""
        await _wait(self._portal.close())

    async def _aclose(self) -> None:
        await self.close()


class Client(_Opened[TrioClient]):
    """A connection to a daemon, for asyncio; see `hearth.Client`."""

    def open_session(
        self,
        *,
        client_name: str | None = None,
        client_version: str | None = None,
        on_disconnect: Literal["keep", "close"] = "close",
        heartbeat_ms: int | None = None,
        conversation: bool = False,
    ) -> Opening[Session]:
        """Open a session (draft §3.1): `async with client.open_session() as session:`, or `await`.

        Raises PermissionDenied, QueueFull, ShuttingDown or CarrierError.
        """
        manager = partial(
            self._inner.open_session,
            client_name=client_name,
            client_version=client_version,
            on_disconnect=on_disconnect,
            heartbeat_ms=heartbeat_ms,
            conversation=conversation,
        )
        return Opening(partial(self._session, manager))


class Runtime(_Opened[Any]):
    """A running runtime in this process, for asyncio; see `hearth.Runtime`."""

    _inner: EmbeddedRuntime

    @property
    def audit_path(self) -> Path:
        """The path of the audit log."""
        return self._inner.audit_path

    async def health(self) -> Mapping[str, Any]:
        """Return the state of every bus and of the audit log."""
        return await _wait(self._look(methodcaller("health")))

    def open_session(
        self,
        *,
        client_name: str | None = None,
        client_version: str | None = None,
        heartbeat_ms: int | None = None,
        conversation: bool = False,
    ) -> Opening[Session]:
        """Open a session: `async with runtime.open_session() as session:`, or `await`.

        Raises PermissionDenied, QueueFull or ShuttingDown.
        """
        manager = partial(
            self._inner.open_session,
            client_name=client_name,
            client_version=client_version,
            heartbeat_ms=heartbeat_ms,
            conversation=conversation,
        )
        return Opening(partial(self._session, manager))

    def loop(
        self,
        hz: float,
        function: Callable[[LoopIO], object],
        *,
        lines: Sequence[int | str],
        **arguments: Unpack[LoopArguments],
    ) -> Opening[Loop]:
        """Run a control loop: `async with runtime.loop(100, control, lines=["PUMP"]) as loop:`, or `await`.

        The arguments are those of `hearth.Runtime.loop`, which says what is raised.
        """
        return Opening(partial(self._loop, partial(self._inner.loop, hz, function, lines=lines, **arguments)))

    async def _loop(self, manager: Callable[[], AbstractAsyncContextManager[ControlLoop]]) -> Loop:
        held = self._portal.enter(manager)
        return Loop(self, await _wait(held.entering()), held)


def connect(address: str | os.PathLike[str] | Address | None = None, *, token: str | None = None) -> Opening[Client]:
    """Connect to a daemon: `async with hearth.aio.connect("ssh://pi") as client:`, or `await`.

    The arguments are those of `hearth.connect`. Raises CarrierError if no daemon answers, and ConfigError for an
    address, a key or a token that cannot be used.
    """

    async def opened() -> Client:
        portal = Portal("hearth.aio.connect")
        return Client(portal, await _wait(portal.open(partial(trio_connect, address, token=token))))

    return Opening(opened)


def open_runtime(
    *, board: str | os.PathLike[str] | Board = "sim", config: Config | None = None, style: Style | None = None
) -> Opening[Runtime]:
    """Run a hearth in a thread of this process: `async with hearth.aio.open_runtime() as runtime:`, or `await`.

    The arguments are those of `hearth.open_runtime`. Raises ConfigError before anything runs.
    """

    def root() -> AbstractAsyncContextManager[EmbeddedRuntime]:
        # Imported in the portal's thread: it takes half a second, in which the event loop goes on.
        from hearth.actors.embedded import open_runtime as trio_open_runtime

        return trio_open_runtime(board=board, config=config, style=style)

    async def opened() -> Runtime:
        portal = Portal("hearth.aio.open_runtime")
        return Runtime(portal, await _wait(portal.open(root)))

    return Opening(opened)
