"""Long tool calls as MCP tasks: the extension `io.modelcontextprotocol/tasks` (SEP-2663), of the era of 2026-07-28.

It owns when a call becomes a task, the methods tasks/get, tasks/update and tasks/cancel, and the streams of task
states. A call that ends soon is answered directly; a longer one is answered with a handle, and goes on. The provider
that executes the call does not know about tasks. The experimental tasks of before 2026-07-28 had another shape and are
not served: for those clients a call stays a call, and reports progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias
from weakref import WeakKeyDictionary

import mcp_types as types
import trio
from attrs import frozen
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from hearth.actors.bridges.mcp.long_call import LEASE, CallChannel, LongCall, notify_on_stream
from hearth.actors.bridges.mcp.provider import Method, Provider, retained
from hearth.errors import HearthError
from hearth.mcp.names import PLAN, TASKS as EXTENSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import CallNext, Client, McpRequest, Outcome


_VERSIONS: Final = frozenset(MODERN_PROTOCOL_VERSIONS)

SOON: Final = 0.1
"""Seconds after which a call that may take long, by its tool's timeout, is answered with a task."""
EVENTUALLY: Final = 5.0
"""Seconds after which any other call is answered with a task: it waits for a bus, or for an unforeseen reason."""
LONG_MS: Final = 10_000
"""Milliseconds: a tool that declares this timeout or more may take long."""


@frozen
class Terms:
    """The terms on which a call becomes a task."""

    after: float
    """Seconds that the call may take before it becomes a task; 0: at once."""
    required: bool = False
    """True if it is never answered directly: a client without the extension is refused."""


TermsOf: TypeAlias = "Callable[[McpRequest, types.CallToolRequestParams], Awaitable[Terms | None]]"
"""The function that gives the terms of a call; None if it never becomes a task."""


async def patience(request: McpRequest, params: types.CallToolRequestParams) -> Terms | None:
    """Return the terms of a call of hearth's own tools."""
    if params.name == PLAN:
        return Terms(after=SOON)
    try:
        entry = (await request.client.view()).find(params.name)
    except HearthError:
        # No session can be opened; the call itself reports that better.
        return None
    if entry is None:
        return None
    return Terms(after=SOON if entry.get("timeout_ms", 0) >= LONG_MS else EVENTUALLY)


class TaskParams(types.RequestParams):
    """The params of tasks/get and tasks/cancel."""

    task_id: str


class UpdateParams(TaskParams):
    """The params of tasks/update; an answer is parsed once its question is known."""

    input_responses: dict[str, Any]


class Tasks(Provider):
    """The provider of the extension.

    `listen` serves the rest of subscriptions/listen, with the McpRequest that it is given. `lease`: seconds that a task
    is kept after the last request for it; if clients are forgotten after a time, no longer than that.
    """

    def __init__(self, terms: TermsOf = patience, *, listen: Listen | None = None, lease: float = LEASE) -> None:
        self._terms = terms
        self._listen = listen
        self._lease = lease
        self._tasks_by_client: WeakKeyDictionary[Client, ClientTasks] = WeakKeyDictionary()

    def extensions(self) -> Mapping[str, dict[str, Any]]:
        """See Provider. The extension has no settings."""
        return {EXTENSION: {}}

    def methods(self) -> Sequence[Method]:
        """See Provider."""
        return (
            Method("tasks/get", TaskParams, self._get, _VERSIONS),
            Method("tasks/update", UpdateParams, self._update, _VERSIONS),
            Method("tasks/cancel", TaskParams, self._cancel, _VERSIONS),
        )

    async def intercept(self, request: McpRequest, params: types.CallToolRequestParams, call_next: CallNext) -> Outcome:
        """See Provider."""
        terms = await self._terms(request, params) if request.modern else None
        if terms is None:
            return await call_next(request, params)
        if not _declared(request):
            if terms.required:
                raise _undeclared()
            return await call_next(request, params)
        client_tasks = self._client_tasks(request)
        if terms.required and client_tasks.full:
            raise MCPError(
                code=types.INVALID_REQUEST,
                message=f"This client has {MOST_TASKS} tasks; wait until the ttlMs of one is over",
            )
        call = LongCall(request, client_tasks.changed, lease=self._lease)
        call.charge()
        # The call starts in any case; only the form of its answer is still open.
        request.client.nursery.start_soon(_run, request.client, client_tasks, call, call_next, params)
        if terms.after <= 0 and not client_tasks.full:
            return _handle(client_tasks, call)
        try:
            with trio.move_on_after(terms.after):
                return await call.outcome()
            # It may have ended in this very turn, or the client has no room for another task.
            return await call.outcome() if call.settled or client_tasks.full else _handle(client_tasks, call)
        except BaseException:
            # The caller that gives up now has no handle, and could never get the result.
            call.cancel()
            raise

    async def listen(
        self, request: McpRequest, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """See Provider. Raises MCPError if tasks are named and the extension was not declared."""
        wanted = (params.notifications.model_extra or {}).get("taskIds")
        if wanted is not None and not _declared(request):
            raise _undeclared()
        return await listen_to(self._client_tasks(request), wanted, request, params, self._listen)

    async def _get(self, request: McpRequest, params: TaskParams) -> dict[str, Any]:
        return self._find(request, params).describe()

    async def _update(self, request: McpRequest, params: UpdateParams) -> dict[str, Any]:
        self._find(request, params).answer(params.input_responses, retained(request))
        return {}

    async def _cancel(self, request: McpRequest, params: TaskParams) -> dict[str, Any]:
        self._find(request, params).cancel()
        return {}

    def _find(self, request: McpRequest, params: TaskParams) -> LongCall:
        if not _declared(request):
            raise _undeclared()
        headers = getattr(request.ctx.request, "headers", None)
        if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != params.task_id:
            raise MCPError(code=types.HEADER_MISMATCH, message="the mcp-name header does not match params.taskId")
        return self._client_tasks(request).find(params.task_id)

    def _client_tasks(self, request: McpRequest) -> ClientTasks:
        return self._tasks_by_client.setdefault(request.client, ClientTasks())


def _handle(client_tasks: ClientTasks, call: LongCall) -> dict[str, Any]:
    client_tasks.enter(call)
    return call.hand_over()


async def _run(
    client: Client, client_tasks: ClientTasks, call: LongCall, call_next: CallNext, params: types.CallToolRequestParams
) -> None:
    """Run a call in its client's nursery, which clients may share, until it is over or the client has gone."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, client, nursery.cancel_scope)
            await call.run(call_next, params)
            nursery.cancel_scope.cancel()
    finally:
        client_tasks.remove(call)
        call.release()


async def _cancel_when_gone(client: Client, scope: trio.CancelScope) -> None:
    await client.gone.wait()
    scope.cancel()


def _declared(request: McpRequest) -> bool:
    return EXTENSION in (request.capabilities.extensions or {})


def _undeclared() -> MCPError:
    return MCPError(
        code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        message=f"This needs the client capability extensions[{EXTENSION!r}], which the request does not declare",
        data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


# --- The MCP tasks of one client: found only by it, bounded in number, and dropped when their lease ends --------------

MOST_TASKS: Final = 64
"""Tasks that a client may have at a time, finished ones included: as many as a HACP session has live ones."""
MOST_WATCHES: Final = 16
"""Streams, per client, that report its tasks."""
LISTENING: Final = 5.0
"""Seconds between two renewals, by an open stream, of the leases of its tasks."""


class ClientTasks:
    """The MCP tasks of one client, and the streams that report them. The client's nursery runs the calls."""

    def __init__(self) -> None:
        self._calls: dict[str, LongCall] = {}
        self._watches: set[TaskWatch] = set()

    @property
    def full(self) -> bool:
        """True if no further task fits."""
        return len(self._calls) >= MOST_TASKS

    def enter(self, call: LongCall) -> None:
        """Add a task: it can be found from now on."""
        self._calls[call.task_id] = call

    def remove(self, call: LongCall) -> None:
        """Remove a task, if it is there."""
        self._calls.pop(call.task_id, None)

    def find(self, task_id: str) -> LongCall:
        """Return a task and renew its lease. Raises MCPError: not found, be it unknown, over or another client's."""
        call = self._calls.get(task_id)
        if call is None:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message="Task not found: this client has none of that id, or its ttlMs is over",
            )
        call.renew()
        return call

    def changed(self, call: LongCall) -> None:
        """Notify the streams that report this task."""
        for watch in self._watches:
            watch.note(call)

    def watch(self, task_ids: Iterable[str]) -> TaskWatch:
        """Open a stream of those of these tasks that exist. Raises MCPError for one stream too many."""
        if len(self._watches) >= MOST_WATCHES:
            raise MCPError(
                code=types.INVALID_REQUEST,
                message=f"This client listens to its tasks on {MOST_WATCHES} streams already; end one of them first",
            )
        calls = (self._calls.get(task_id) for task_id in task_ids)
        return TaskWatch(self._watches, [call for call in calls if call is not None])


class TaskWatch:
    """The states that one stream has yet to send: of each task only its current one, however often it changed."""

    def __init__(self, watches: set[TaskWatch], calls: list[LongCall]) -> None:
        self._calls = {call.task_id: call for call in calls}
        self._unreported = dict(self._calls)
        self._changed = trio.Event()
        self._watches = watches

    @property
    def task_ids(self) -> list[str]:
        """The ids of its tasks."""
        return list(self._calls)

    def note(self, call: LongCall) -> None:
        """Note that a task has changed."""
        if call.task_id in self._calls:
            self._unreported[call.task_id] = call
            self._changed.set()

    def __enter__(self) -> Self:
        self._watches.add(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._watches.discard(self)

    async def report(self, say: Callable[[dict[str, Any]], Awaitable[None]]) -> NoReturn:
        """Send each task's state, at first and after every change, until cancelled."""
        while True:
            while self._unreported:
                _, call = self._unreported.popitem()
                await say(call.describe())
            self._changed = trio.Event()
            with trio.move_on_after(LISTENING):
                await self._changed.wait()
            for call in self._calls.values():
                if not call.settled:
                    # A client that listens still wants its tasks.
                    call.renew()


# --- Status notifications: subscriptions/listen with `taskIds`, on one stream with the server's other changes
# ----------
#
# The acknowledgement is one frame for everything on the stream. The server of the other changes sends it, and the ids
# of the tasks are added on its way. Then each task's state goes out at once and after every change.

Listen: TypeAlias = (
    "Callable[[McpRequest, types.SubscriptionsListenRequestParams], Awaitable[types.SubscriptionsListenResult]]"
)
"""Serve one stream of changes."""

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

_IDS: Final = TypeAdapter(list[str])


async def listen_to(
    client_tasks: ClientTasks,
    wanted: Any,
    request: McpRequest,
    params: types.SubscriptionsListenRequestParams,
    others: Listen | None,
) -> types.SubscriptionsListenResult:
    """Serve a stream of the states of the `wanted` tasks; `others` serves its other changes.

    Raises MCPError if `wanted` is not a list of ids.
    """
    others = others or _nothing_else
    if wanted is None:
        return await others(request, params)
    try:
        task_ids = _IDS.validate_python(wanted, strict=True)
    except ValidationError:
        raise MCPError(code=types.INVALID_PARAMS, message="notifications.taskIds must be a list of task ids") from None
    with client_tasks.watch(task_ids) as watch:
        async with trio.open_nursery() as nursery:
            stream = _StatusStream(request, watch)
            nursery.start_soon(stream.run)
            result = await others(stream.ask(request), params)
            nursery.cancel_scope.cancel()
    return result


class _StatusStream(CallChannel):
    """The stream as `others` sees it."""

    def __init__(self, request: McpRequest, watch: TaskWatch) -> None:
        super().__init__(request, lambda _message: None)
        self._ctx = request.ctx
        self._watch = watch
        self._acknowledged = trio.Event()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        """See DispatchContext."""
        if method == ACKNOWLEDGED and params is not None:
            honored = {**params["notifications"], "taskIds": self._watch.task_ids}
            await super().notify(method, {**params, "notifications": honored}, opts)
            self._acknowledged.set()
        else:
            await super().notify(method, params, opts)

    async def run(self) -> None:
        """Send the tasks' states, once the acknowledgement has named them."""
        await self._acknowledged.wait()
        await self._watch.report(self._say)

    async def _say(self, state: dict[str, Any]) -> None:
        meta = {SUBSCRIPTION_ID_META_KEY: self._ctx.request_id}
        await notify_on_stream(self._ctx, "notifications/tasks", {**state, "_meta": meta})


async def _nothing_else(
    request: McpRequest, params: types.SubscriptionsListenRequestParams
) -> types.SubscriptionsListenResult:
    """Serve a stream without other changes: acknowledge, and wait for its end."""
    del params
    meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: request.ctx.request_id}
    acknowledged = types.SubscriptionsAcknowledgedNotificationParams(
        notifications=types.SubscriptionFilter(), _meta=meta
    )
    await request.ctx.session.send_notification(
        types.SubscriptionsAcknowledgedNotification(params=acknowledged), related_request_id=request.ctx.request_id
    )
    await request.client.gone.wait()
    return types.SubscriptionsListenResult(_meta=meta)
