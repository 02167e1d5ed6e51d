"""Providers and clients: the interface of everything that the MCP server offers, and the HACP session of each client.

A provider lists some tools, resources or prompts, and serves them. The base class offers nothing, and the server offers
only methods that some provider overrides. This module knows no particular provider; `server` puts them together in a
fixed order and refuses two tools of one name.

`RetainedRequest` charges the memory of one HTTP request to its principal while the request is served, or, if its call
became an MCP task, while that task is kept. Over stdio the bridge is a process of the client's own, and no request is
charged.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import mcp_types as types
import trio
from attrs import frozen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from hearth.errors import (
    CarrierError,
    HearthError,
    InvalidParams,
    PermissionDenied,
    RpcError,
    SessionInvalid,
    TaskFailed,
    ToolNotFound,
)
from hearth.mcp.advice import WORLD, advice
from hearth.mcp.results import of_error
from hearth.mcp.tools import ToolView
from hearth.policy.memory import HTTP_REQUEST_BYTES, MCP_CLIENT_BYTES, SMALL, Account, Retained, unlimited
from hearth.protocol.framing import parsed_bytes

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from mcp.server.context import ServerRequestContext
    from pydantic import BaseModel
    from starlette.types import Message, Receive, Send

    from hearth.api import HaltStatus, Session

# --- clients ----------------------------------------------------------------------------------------------------------
# Each MCP client has one HACP session. It is opened when the client first needs it, kept while the client is there, and
# closed with it, which puts the lines it drove into their safe state. After a session has ended, the next request opens
# a new one, and the client is informed with its next result. A session belongs to its client and not to a request:
# cancelling a request leaves the session that it was opening to the next request. No code here reads a message.

Context: TypeAlias = "ServerRequestContext[Clients, Any]"
"""The SDK's context of a request; its lifespan context is the server's `Clients`."""

KEEP_ALIVE: Final = 60.0
"""Seconds between two requests that keep a present client's session open: the idle TTL is 300 s."""
ANSWER_TIMEOUT: Final = 600.0
"""Seconds for which a question waits for its answer."""
MOST_QUESTIONS: Final = 16
"""Questions of one client that may wait for their answers; one more drops the oldest."""
BOARD_TOOL: Final = "hw.board"
MOST_NAME: Final = 256
"""Characters of a client's name and version that HACP takes."""

REOPENED: Final = (
    "Note: the session in which you had driven lines before has ended ({why}). Those lines have gone to their safe "
    "state; a new session is in use from here on."
)

log = logging.getLogger("hearth.mcp")


class SessionFactory(Protocol):
    """The factory of sessions: an embedded runtime for one principal, or a connection to a daemon."""

    def open_session(
        self, *, client_name: str | None = None, client_version: str | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """See hearth.client.connection.Client."""
        ...

    async def halt(self, reason: str = "") -> HaltStatus:
        """See hearth.client.connection.Client."""
        ...


class _HeldSession:
    """A session, from the request to open it on."""

    __slots__ = ("board", "ending", "error", "ready", "session", "view")

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.ending = trio.Event()
        self.session: Session | None = None
        self.view: ToolView | None = None
        self.board: str | None = None
        self.error: HearthError | None = None


class Questions:
    """The open questions of one client whose answers come with another request."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    def ask(self, about: bytes) -> str:
        """Return the token of a new question, which its answer must carry and which cannot be guessed."""
        name = secrets.token_urlsafe(24)
        self._open[name] = about, trio.current_time() + ANSWER_TIMEOUT
        if len(self._open) > MOST_QUESTIONS:
            self._open.popitem(last=False)
        return name

    def settle(self, name: str | None, about: bytes) -> bool:
        """Return True for the first answer to a question about exactly this, within `ANSWER_TIMEOUT`."""
        asked, until = self._open.pop(name or "", (b"", 0.0))
        return asked == about and trio.current_time() <= until


class Client:
    """One MCP client. Its session lives in a task of `nursery`, which outlives every request.

    `keep_alive` is for a client whose presence is known (a pipe, a connection); None leaves its session to the
    runtime's idle TTL. Raises QueueFull if `account` has no room for it.
    """

    def __init__(
        self,
        session_factory: SessionFactory,
        nursery: trio.Nursery,
        *,
        name: str | None = None,
        version: str | None = None,
        keep_alive: float | None = KEEP_ALIVE,
        account: Account | None = None,
    ) -> None:
        self.account = unlimited() if account is None else account
        """The account that the client's memory, beside its session, is charged to.

        It is unlimited if the client has a bridge process of its own.
        """
        self.account.charge(MCP_CLIENT_BYTES)
        self.nursery = nursery
        """The nursery for work that outlives a request; it ends with the server."""
        self.questions = Questions()
        self.plan_questions = Questions()
        """The questions about calls that need an approval, by their plans' hashes."""
        self._session_factory = session_factory
        self._name = name
        self._version = version
        self._keep_alive = keep_alive
        self._held: _HeldSession | None = None
        self._lost: str | None = None
        self._note: str | None = None
        self.found_tools: set[str] = set()
        """The tools that its searches have found, by their MCP names: tools/list has them from then on."""
        self.list_readers: set[Callable[[], Awaitable[None]]] = set()
        """To call when tools/list changes, for a client that listens to that (from 2026-07-28 on)."""
        self.gone = trio.Event()
        """Set when the client has gone: its work beside its session must end."""

    def introduce(self, name: str | None, version: str | None) -> None:
        """Set the client's name and version, for the sessions opened from now on and their audit records."""
        self._name, self._version = name or self._name, version or self._version

    async def halt(self, reason: str) -> HaltStatus:
        """Halt, without a session. Raises RpcError, CarrierError."""
        return await self._session_factory.halt(reason)

    async def session(self) -> Session:
        """Return its session, opened if there is none. Raises the errors of session.open, and CarrierError."""
        held = self._held
        if held is None or held.session is None:
            held = await self._hold_one()
            assert held.session is not None
        return held.session

    async def view(self) -> ToolView:
        """Return the tools that its session may use. Raises as `session`."""
        if self._held is not None and self._held.view is not None:
            return self._held.view
        try:
            return await self._view()
        except SessionInvalid:
            # The session had ended before the request: try once more, in a new one.
            return await self._view()

    async def _view(self) -> ToolView:
        held = await self._hold_one()
        if held.view is None:
            assert held.session is not None
            try:
                held.view = ToolView(await held.session.tools())
            except (SessionInvalid, CarrierError) as error:
                self.forget(held.session, error)
                raise
        return held.view

    async def board(self) -> str | None:
        """Return the board's name, for a person with several boards; None if this session may not read it."""
        held = await self._hold_one()
        if held.board is None and (await self.view()).find(BOARD_TOOL) is not None:
            assert held.session is not None
            try:
                held.board = str((await held.session.run(BOARD_TOOL)).get("name"))
            except (RpcError, TaskFailed) as error:
                log.info("the board's name cannot be read: %s", error)
        return held.board

    async def _hold_one(self) -> _HeldSession:
        held = self._held
        if held is None:
            if self.gone.is_set():
                raise CarrierError("this client has gone")
            held = self._held = _HeldSession()
            # In a task of its own: cancelling one request must not stop what others wait for.
            self.nursery.start_soon(self._hold, held)
        await held.ready.wait()
        if held.session is None:
            raise held.error or CarrierError("the bridge is ending")
        return held

    def forget(self, session: Session, why: HearthError) -> None:
        """Drop a session that has ended or cannot be reached; the next request opens another."""
        held = self._held
        if held is not None and held.session is session:
            self._held = None
            held.ending.set()
            self._lost = str(why).rstrip(".")

    def take_note(self) -> str | None:
        """Return, once, a note that the client must get with its next result."""
        note, self._note = self._note, None
        return note

    def close(self) -> None:
        """Close the client's session for good: the client has gone. Idempotent, and never waits."""
        if not self.gone.is_set():
            self.gone.set()
            self.account.release(MCP_CLIENT_BYTES)
        held, self._held = self._held, None
        if held is not None:
            held.ending.set()

    @property
    def idle(self) -> bool:
        """True while it has no session."""
        return self._held is None

    @property
    def opened(self) -> Session | None:
        """The session that is open, if there is one."""
        return None if self._held is None else self._held.session

    async def _hold(self, held: _HeldSession) -> None:
        name, version = (None if text is None else text[:MOST_NAME] for text in (self._name, self._version))
        try:
            async with self._session_factory.open_session(client_name=name, client_version=version) as session:
                held.session = session
                if self._lost is not None:
                    # Only now: a daemon that answers has brought the former session's lines into their safe state.
                    self._note, self._lost = REOPENED.format(why=self._lost), None
                held.ready.set()
                await self._keep(held, session)
        except HearthError as error:
            held.error = error
            if held.session is not None:
                log.warning("a session has ended with an error: %s", error)
        finally:
            if self._held is held:
                self._held = None
            held.ready.set()

    async def _keep(self, held: _HeldSession, session: Session) -> None:
        """Keep the session open until `ending` is set: a session without requests would be ended."""
        while not held.ending.is_set():
            with trio.move_on_after(self._keep_alive or float("inf")):
                await held.ending.wait()
                return
            try:
                await session.tools()
            except (SessionInvalid, CarrierError) as error:
                self.forget(session, error)
            except RpcError as error:
                log.info("a session could not be kept open: %s", error)


class Clients(Protocol):
    """All clients of one server."""

    async def of(self, ctx: Context) -> Client:
        """Return the client of a request. Raises MCPError for a request that is not allowed."""
        ...


def who(ctx: Context) -> tuple[str | None, str | None]:
    """Return the client's own name and version; None for each that it did not give."""
    params = ctx.session.client_params
    return (None, None) if params is None else (params.client_info.name, params.client_info.version)


# --- failures ---------------------------------------------------------------------------------------------------------
# hearth's errors in MCP's form. HACP's codes stay in the data: in MCP some of them mean something else.


def no_resource(request: McpRequest, uri: str, why: str = "") -> MCPError:
    """Return the error for an unknown URI, or for a URI without a resource behind it, with the reason."""
    # 2026-07-28 has no code of its own for this.
    code = types.INVALID_PARAMS if request.modern else -32002
    return MCPError(
        code=code, message=f"Resource not found: {why}" if why else "Resource not found", data={"uri": uri[:1000]}
    )


def as_mcp(error: HearthError) -> MCPError:
    """Return the MCPError for any request that is not a tool's call."""
    outcome = of_error(error)
    code = next((code for kind, code in _CODES if isinstance(error, kind)), types.INTERNAL_ERROR)
    return MCPError(code=code, message=outcome["content"][0]["text"], data=outcome.get("_meta") or None)


_CODES: Final = (
    (PermissionDenied, types.INVALID_REQUEST),
    (InvalidParams, types.INVALID_PARAMS),
    (ToolNotFound, types.INVALID_PARAMS),
)


class Refused(Exception):
    """A call that is refused before anything of it is submitted. `outcome` is its CallToolResult."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        super().__init__()
        self.outcome = outcome


def no_session(error: RpcError | CarrierError) -> dict[str, Any]:
    """Return the CallToolResult of a call without a session: nothing of it was submitted."""
    if isinstance(error, CarrierError):
        text = f"{str(error).rstrip('.')}. {WORLD['none']} {advice(error)}"
        return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
    return {**of_error(error), "resultType": "complete"}


# --- providers --------------------------------------------------------------------------------------------------------

Outcome: TypeAlias = "types.CallToolResult | types.InputRequiredResult | dict[str, Any]"
"""The answer to a tools/call; a dict is in wire form with its `resultType`, for an extension or for speed."""


@frozen
class McpRequest:
    """One request of one client."""

    ctx: Context
    client: Client

    @property
    def modern(self) -> bool:
        """True in the era of 2026-07-28: every request stands alone, and the server sends no requests."""
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> types.ClientCapabilities:
        """The client's declared capabilities; empty if it declared none."""
        return self.ctx.session.client_capabilities or types.ClientCapabilities()

    @property
    def can_elicit(self) -> bool:
        """True if the client can show a form to a person: an empty declaration means forms."""
        elicitation = self.capabilities.elicitation
        return elicitation is not None and (elicitation.form is not None or elicitation.url is None)

    @property
    def wants_progress(self) -> bool:
        """True if the client gave a progress token."""
        return bool(self.ctx.meta and self.ctx.meta.get("progress_token") is not None)


CallNext: TypeAlias = Callable[[McpRequest, types.CallToolRequestParams], Awaitable[Outcome]]
"""The rest of a tools/call: the later interceptors, then the provider of the tool."""


@frozen
class Method:
    """A request method that the protocol itself does not have, such as an extension's."""

    name: str
    params: type[BaseModel]
    """The model of its params; a subclass of mcp_types.RequestParams."""
    handle: Callable[[McpRequest, Any], Awaitable[BaseModel | dict[str, Any] | None]]
    """Serve a request. Raises MCPError."""
    versions: frozenset[str] | None = None
    """The protocol versions that have it; None for all. In others it is not found (-32601)."""


class Provider:
    """The base class of a part of the server's offer."""

    # --- tools --------------------------------------------------------------------------------------------------

    async def tools(self, request: McpRequest) -> Sequence[types.Tool]:
        """Return the tools this client may call, in a fixed order."""
        del request
        return ()

    def listed(self, client: Client, tools: Sequence[types.Tool]) -> Sequence[types.Tool]:
        """Return those of the tools of all providers that tools/list shows to a client; all can be called."""
        del client
        return tools

    async def call(self, request: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """Call a tool; None for another provider's tool.

        Raises Refused for a wrong call, and MCPError for an error outside the tool's execution.
        """
        del request, params
        return None

    async def intercept(self, request: McpRequest, params: types.CallToolRequestParams, call_next: CallNext) -> Outcome:
        """Intercept the call of any provider's tool; the first provider is the outermost."""
        return await call_next(request, params)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of this provider's tool, if HTTP clients mirror its parameters into headers.

        Such parameters are marked `x-mcp-header`. It is called before the caller is known.
        """
        del name
        return None

    # --- resources ----------------------------------------------------------------------------------------------

    async def resources(self, request: McpRequest) -> Sequence[types.Resource]:
        """Return the resources."""
        del request
        return ()

    async def templates(self, request: McpRequest) -> Sequence[types.ResourceTemplate]:
        """Return the resource templates: URIs with a part to fill in."""
        del request
        return ()

    async def read(
        self, request: McpRequest, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult | None:
        """Read a resource; None for another provider's URI."""
        del request, params
        return None

    async def subscribe(self, request: McpRequest, params: types.SubscribeRequestParams) -> bool:
        """Start reporting changes to this client (until 2025-11-25); False for another provider's URI."""
        del request, params
        return False

    async def unsubscribe(self, request: McpRequest, params: types.UnsubscribeRequestParams) -> bool:
        """Stop reporting changes to this client; False for another provider's URI."""
        del request, params
        return False

    async def listen(
        self, request: McpRequest, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of changes (from 2026-07-28 on), for every provider.

        The first provider that has this method serves it, and delegates to the others.
        """
        raise NotImplementedError

    # --- prompts, completion, logging ---------------------------------------------------------------------------

    async def prompts(self, request: McpRequest) -> Sequence[types.Prompt]:
        """Return the prompts."""
        del request
        return ()

    async def prompt(
        self, request: McpRequest, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult | None:
        """Return a prompt, filled in; None for another provider's prompt."""
        del request, params
        return None

    async def complete(self, request: McpRequest, params: types.CompleteRequestParams) -> types.CompleteResult | None:
        """Return the completions of an argument; None for another provider's reference."""
        del request, params
        return None

    async def set_level(self, request: McpRequest, params: types.SetLevelRequestParams) -> None:
        """Set the lowest level of log messages that this client gets (until 2025-11-25)."""
        del request, params

    # --- extensions ---------------------------------------------------------------------------------------------

    def methods(self) -> Sequence[Method]:
        """Return further request methods."""
        return ()

    def extensions(self) -> Mapping[str, dict[str, Any]]:
        """Return the protocol extensions of this provider with their settings, as advertised."""
        return {}


_STATE = "retained"


class RetainedRequest(Retained):
    """A request that is being read or served, with its memory charged."""

    __slots__ = ("_size",)

    def __init__(self, account: Account, state: dict[str, Any]) -> None:
        super().__init__(account)
        self._size = 0
        self.grow(HTTP_REQUEST_BYTES)
        state[_STATE] = self

    async def whole(self, receive: Receive) -> tuple[bytes, bool]:
        """Return the request's body, and whether it is complete. Raises QueueFull.

        `AccessControl` bounds the size of the body.
        """
        parts: list[bytes] = []
        ended = False
        while not ended and (message := await receive())["type"] == "http.request":
            parts.append(message.get("body", b""))
            self._keep(len(parts[-1]))
            ended = not message.get("more_body", False)
        return b"".join(parts), ended

    def parsed(self, body: bytes) -> None:
        """Charge the parsed body, before parsing; the raw bytes stay charged too. Raises QueueFull."""
        self._keep(parsed_bytes(body))

    def _keep(self, size: int) -> None:
        """Charge more of the request. A small one is always served: its principal must be able to free memory."""
        if self._size + size > SMALL:
            self._account.require(size)
        self._size += size
        self.grow(size)

    def sending(self, send: Send) -> Send:
        """Return an ASGI send that charges the bytes that its peer has not taken yet."""
        account = self._account

        async def charged(message: Message) -> None:
            size = len(message.get("body", b""))
            account.add(size)
            try:
                await send(message)
            finally:
                account.release(size)

        return charged


def retained(request: McpRequest) -> Retained:
    """Return the request's charge; an empty one if nothing is charged."""
    state = getattr(request.ctx.request, "state", None)
    held: Retained | None = getattr(state, _STATE, None)
    return Retained() if held is None else held
