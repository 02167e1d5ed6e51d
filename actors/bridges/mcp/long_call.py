"""One call that may take long: it runs on its own, and is answered directly or becomes an MCP task.

The call is a Trio task of its client, not of the request that began it. It runs the same tool call that the request
would have run, so its result is the same. Until the client has a handle, the waiting request gets the outcome. After
the handle was sent, the call reaches exactly one of completed, failed and cancelled. An MCP task has a lease that every
request about it renews: when the lease ends, the client is taken to have cancelled it.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import anyio
import mcp_types as types
import trio
from attrs import evolve
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.transport_context import TransportContext
from mcp_types.methods import serialize_server_result
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from hearth._util.exceptions import sole
from hearth.actors.bridges.mcp.provider import as_mcp, retained
from hearth.actors.supervisor import contain
from hearth.errors import HearthError, QueueFull
from hearth.policy.memory import MCP_CALL_BYTES, SMALL_OUTCOME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.actors.bridges.mcp.provider import CallNext, Context, McpRequest, Outcome
    from hearth.policy.memory import Retained

LEASE: Final = 300.0
"""Seconds that a task is kept after the last request for it: as long as a HACP session without requests."""
POLL_MS: Final = 1000
"""Milliseconds that a client should leave between two polls."""
MOST_ROUNDS: Final = 32
"""Rounds of questions to the person in one call, at most."""

_ANSWERS: Final[Mapping[str, TypeAdapter[types.InputResponse]]] = {
    "elicitation/create": TypeAdapter(types.ElicitResult),
    "sampling/createMessage": TypeAdapter(types.CreateMessageResult | types.CreateMessageResultWithTools),
    "roots/list": TypeAdapter(types.ListRootsResult),
}


class LongCall:
    """One call. `changed` is called after every change that the client can see; `lease` is in seconds."""

    def __init__(self, request: McpRequest, changed: Callable[[LongCall], None], *, lease: float = LEASE) -> None:
        self.task_id = secrets.token_hex(16)
        self.status: types.TaskStatus = "working"
        self._message: str | None = None
        self._changed = changed
        self._lease = lease
        self._version = request.ctx.protocol_version
        self._ask = CallChannel(request, self._report).ask(request)
        self._scope = trio.CancelScope()
        self._keep = trio.CancelScope()
        self._settled = trio.Event()
        self._handed_over = False
        self._outcome: Outcome | None = None
        self._result = b""
        """The outcome as JSON, once the client has a handle."""
        self._account = request.client.account
        self._charged = 0
        self._requests = [retained(request)]
        """The requests of which something is kept in memory."""
        self._error: MCPError | None = None
        self._why = "its client has gone"
        self._rounds = 0
        self._questions: dict[str, tuple[str, types.InputRequest]] = {}
        self._answers: dict[str, types.InputResponse] = {}
        self._answered = trio.Event()
        self._created = self._touched = datetime.now(UTC)
        self._created_at = trio.current_time()
        self._until = float("inf")

    def charge(self) -> None:
        """Charge the call and its request to its client, until `release`. Raises QueueFull."""
        self._account.charge(MCP_CALL_BYTES)
        self._charged = MCP_CALL_BYTES
        for request in self._requests:
            request.hold()

    def release(self) -> None:
        """Release all memory charged for the call."""
        self._account.release(self._charged)
        for request in self._requests:
            request.let_go()

    @property
    def settled(self) -> bool:
        """True once the call has an outcome."""
        return self._settled.is_set()

    async def run(self, call_next: CallNext, params: types.CallToolRequestParams) -> None:
        """Make the call, then keep its outcome until its lease ends."""
        try:
            await contain("an MCP tool call", lambda: self._run(call_next, params), self._crashed)
        finally:
            if not self.settled:
                lapsed = trio.current_time() >= self._until
                why = f"its client has not asked for it for {self._lease:g} s" if lapsed else self._why
                self._end("cancelled", f"cancelled: {why}")
        if self._handed_over:
            with self._keep:
                await trio.sleep_forever()

    async def outcome(self) -> Outcome:
        """Wait for the outcome. Raises the call's MCPError. Cancelling this does not cancel the call."""
        await self._settled.wait()
        if self._outcome is None:
            raise self._error or MCPError(code=types.INTERNAL_ERROR, message="The call was cancelled")
        return self._outcome

    def hand_over(self) -> dict[str, Any]:
        """Make the call an MCP task; return the CreateTaskResult."""
        self._handed_over = True
        self.renew()
        return {"resultType": "task", **self._envelope()}

    def renew(self) -> None:
        """Renew the lease: the client has asked for the task."""
        self._until = self._keep.deadline = trio.current_time() + self._lease
        if not self.settled:
            self._scope.deadline = self._until

    def cancel(self) -> None:
        """Cancel the call, if it is not over."""
        self._why = "its client asked for that"
        self._scope.cancel()

    def describe(self) -> dict[str, Any]:
        """Return the current DetailedTask, as tasks/get and notifications/tasks carry it."""
        described = self._envelope()
        if self.status == "input_required":
            described["inputRequests"] = {
                key: request.model_dump(by_alias=True, mode="json", exclude_none=True)
                for key, (_, request) in self._questions.items()
            }
        elif self.status == "completed":
            described["result"] = from_json(self._result)
        elif self.status == "failed":
            assert self._error is not None
            described["error"] = self._error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
        return described

    def answer(self, responses: Mapping[str, Any], request: Retained) -> None:
        """Take the answers of a request to open questions; answers to no open question are ignored.

        Raises MCPError, and takes none, if one of them does not fit its question.
        """
        taken = {key: self._read(key, response) for key, response in responses.items() if key in self._questions}
        for key, response in taken.items():
            asked_as, _ = self._questions.pop(key)
            self._answers[asked_as] = response
        if taken:
            request.hold()
            self._requests.append(request)
        if taken and not self._questions:
            self._become("working", None)
            self._answered.set()
        elif taken:
            self._become("input_required", self._message)

    # --- inside -------------------------------------------------------------------------------------------------

    async def _run(self, call_next: CallNext, params: types.CallToolRequestParams) -> None:
        with self._scope:
            try:
                outcome = await self._call(call_next, params)
            except (MCPError, ValidationError, HearthError, ExceptionGroup) as error:
                answered = _as_mcp_error(sole(error))
                if answered is None:
                    raise
                self._fail(answered)
            else:
                self._complete(outcome)

    async def _call(self, call_next: CallNext, params: types.CallToolRequestParams) -> Outcome:
        """Call, answer its questions, and call again until it asks none, as a client would (SEP-2322)."""
        while True:
            outcome = await call_next(self._ask, params)
            if not isinstance(outcome, types.InputRequiredResult) or not self._handed_over:
                return outcome
            self._rounds += 1
            if self._rounds > MOST_ROUNDS:
                raise MCPError(
                    code=types.INTERNAL_ERROR, message=f"the call asked for input more than {MOST_ROUNDS} times"
                )
            answers = await self._put(outcome.input_requests or {})
            params = params.model_copy(
                update={"input_responses": answers, "request_state": outcome.request_state},
            )

    async def _put(self, questions: types.InputRequests) -> types.InputResponses:
        """Show questions to the client until all are answered. A task never uses a question's key twice (SEP-2663)."""
        if not questions:
            # A state without a question means: try again later.
            await trio.sleep(POLL_MS / 1000)
            return {}
        self._answers = {}
        self._answered = trio.Event()
        self._questions = {f"{self._rounds}.{key}": (key, request) for key, request in questions.items()}
        self._become("input_required", "waiting for input")
        await self._answered.wait()
        return self._answers

    def _read(self, key: str, response: Any) -> types.InputResponse:
        _, request = self._questions[key]
        try:
            return _ANSWERS[request.method].validate_python(response, by_name=False)
        except ValidationError as error:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=f"inputResponses[{key!r}] is no answer to {request.method}: {error.errors()[0]['msg']}",
            ) from None

    def _complete(self, outcome: Outcome) -> None:
        if not self._handed_over:
            self._outcome = outcome
            self._end("completed", None)
            return
        result = to_json(self._as_on_the_wire(outcome))
        if len(result) > SMALL_OUTCOME:
            try:
                self._account.charge(len(result))
            except QueueFull as error:
                self._fail(_not_kept(error, outcome))
                return
            self._charged += len(result)
        self._result = result
        self._end("completed", None)

    def _as_on_the_wire(self, outcome: Outcome) -> dict[str, Any]:
        """Return the outcome as the SDK would have sent it."""
        if isinstance(outcome, BaseModel):
            outcome = outcome.model_dump(by_alias=True, mode="json", exclude_none=True)
        if outcome.get("resultType", "complete") in types.CORE_RESULT_TYPES:
            return serialize_server_result("tools/call", self._version, outcome)
        return outcome

    def _fail(self, error: MCPError) -> None:
        self._error = error
        self._end("failed", error.message)

    def _crashed(self, error: BaseException) -> None:
        del error  # it is in the log, and its text may hold what a client must not read
        self._fail(MCPError(code=types.INTERNAL_ERROR, message="Internal server error"))

    def _end(self, status: types.TaskStatus, message: str | None) -> None:
        self._questions = {}
        self._settled.set()
        if self._handed_over:
            # However long it has run, its end can be read for a whole lease.
            self.renew()
        self._become(status, message)

    def _report(self, message: str) -> None:
        self._become(self.status, message)

    def _become(self, status: types.TaskStatus, message: str | None) -> None:
        self.status, self._message = status, message
        self._touched = datetime.now(UTC)
        if self._handed_over:
            self._changed(self)

    def _envelope(self) -> dict[str, Any]:
        envelope: dict[str, Any] = {
            "taskId": self.task_id,
            "status": self.status,
            "createdAt": _iso(self._created),
            "lastUpdatedAt": _iso(self._touched),
            "ttlMs": round((self._until - self._created_at) * 1000),
            "pollIntervalMs": POLL_MS,
        }
        if self._message is not None:
            envelope["statusMessage"] = self._message
        return envelope


def _not_kept(error: QueueFull, outcome: Outcome) -> MCPError:
    """Return the error for a call that has run and whose result does not fit into the memory budget."""
    failed = outcome.get("isError") if isinstance(outcome, dict) else getattr(outcome, "is_error", None)
    error.data = {**(error.data or {}), "effect": "unknown" if failed else "done"}
    return as_mcp(error)


def _as_mcp_error(error: BaseException) -> MCPError | None:
    """Return the error that the request itself would have got; None for a bug."""
    if isinstance(error, HearthError):
        return as_mcp(error)
    data = handler_exception_to_error_data(error)
    return None if data is None else MCPError.from_error_data(data)


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- The request that a long call answers: it has the client's facts, and no way to send it requests -----------------
#
# A call that has become an MCP task outlives its request. Its progress becomes the task's status message, and is also
# sent to the request until that is answered; the SDK drops later progress, as it should, since tasks have neither
# progress notifications nor log entries (SEP-2663). Requests to the client are refused: a task asks its questions by
# `inputRequests`.


async def notify_on_stream(ctx: Context, method: str, params: Mapping[str, Any] | None) -> None:
    """Send a notification, in wire form, on the stream of a request's answer."""
    notification = types.Notification[dict[str, Any], str](method=method, params=dict(params or {}))
    sent = cast("types.ServerNotification", notification)
    await ctx.session.send_notification(sent, related_request_id=ctx.request_id)


class CallChannel:
    """The SDK's DispatchContext for one call. `report` takes the text of each progress report."""

    def __init__(self, request: McpRequest, report: Callable[[str], None]) -> None:
        self._origin = request.ctx
        self._report = report
        self._cancel_requested = anyio.Event()

    def ask(self, request: McpRequest) -> McpRequest:
        """Return the request, answered through this channel and with a progress token, even if the client gave none."""
        ctx = request.ctx
        params = ctx.session.client_params
        connection = Connection.from_envelope(
            ctx.protocol_version, None if params is None else params.client_info, ctx.session.client_capabilities
        )
        meta = cast("types.RequestParamsMeta", {"progress_token": "task", **(ctx.meta or {})})
        return evolve(request, ctx=replace(ctx, session=ServerSession(self, connection, request_meta=meta), meta=meta))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """See DispatchContext."""
        if message is not None:
            self._report(message)
        await self._origin.session.report_progress(progress, total, message)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        """See DispatchContext."""
        del opts
        await notify_on_stream(self._origin, method, params)

    async def send_raw_request(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> NoReturn:
        """See DispatchContext."""
        del params, opts
        raise NoBackChannelError(method)

    @property
    def transport(self) -> TransportContext:
        """See DispatchContext."""
        return TransportContext(kind="task", can_send_request=False)

    @property
    def can_send_request(self) -> bool:
        """See DispatchContext."""
        return False

    @property
    def request_id(self) -> types.RequestId | None:
        """See DispatchContext."""
        return self._origin.request_id

    @property
    def message_metadata(self) -> None:
        """See DispatchContext."""

    @property
    def cancel_requested(self) -> anyio.Event:
        """See DispatchContext. A task is cancelled by its scope, not by notifications/cancelled (SEP-2663)."""
        return self._cancel_requested
