"""What a server offers comes from providers: each lists some tools, resources or prompts, and serves those.

The base class offers nothing, so a provider overrides what it has, and only what some provider has overridden is
offered by the server. This module knows no particular one; `server` puts them together in a fixed order, and refuses
two tools of one name.

What the bridge keeps for one HTTP request, charged to its principal until nobody has any of it.

A request is kept while it is served, and one whose call became an MCP task for as long as that is kept. Over stdio the
bridge is a process of the client's own, and no request has anything charged.
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

from hearth.errors import CarrierError, HearthError, PermissionDenied, RpcError, SessionInvalid, TaskFailed
from hearth.mcp.results import WORLD, ProtocolError, advice, of_error
from hearth.mcp.tools import ToolView
from hearth.policy.memory import HTTP_REQUEST_BYTES, MCP_CLIENT_BYTES, SMALL, Account, Retained, unlimited
from hearth.protocol.framing import parsed_bytes

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from mcp.server.context import ServerRequestContext
    from pydantic import BaseModel
    from starlette.types import Message, Receive, Send

    from hearth.api import Session

# --- clients ----------------------------------------------------------------------------------------------------------
# Which MCP client a request comes from, and the one HACP session that client has.
#
# A session is opened when the client first needs it, kept while the client is there, and closed with it, which puts the
# lines it drove into their safe state. One that has ended meanwhile is opened anew, and the client is told so with its
# next result. A session belongs to its client and never to one request: whoever is cancelled while it is being opened
# leaves it to the next. Nothing here reads a message.

Context: TypeAlias = "ServerRequestContext[Clients, Any]"
"""What the SDK hands to a handler; its lifespan context is the `Clients` of the server."""

KEEP_ALIVE: Final = 60.0
"""Seconds between two requests by which the session of a client that is there is kept: the idle TTL is 300 s."""
ANSWER_PATIENCE: Final = 600.0
"""Seconds for which a question waits for its answer."""
MOST_QUESTIONS: Final = 16
"""Questions of one client that may wait for their answers; more, and the oldest is forgotten."""
BOARD_TOOL: Final = "hw.board"
MOST_NAME: Final = 256
"""Characters of a client's name and version that HACP takes."""

REOPENED: Final = (
    "Note: the session in which you had driven lines before has ended ({why}). Those lines have gone to their safe "
    "state; a new session is in use from here on."
)

log = logging.getLogger("hearth.mcp")


class SessionFactory(Protocol):
    """Where sessions are opened: an embedded runtime for one principal, or a connection to a daemon."""

    def open_session(
        self, *, client_name: str | None = None, client_version: str | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """See hearth.client.connection.Client."""
        ...


class _HeldSession:
    """A session, from the moment it is asked for."""

    __slots__ = ("board", "ending", "error", "ready", "session", "view")

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.ending = trio.Event()
        self.session: Session | None = None
        self.view: ToolView | None = None
        self.board: str | None = None
        self.error: HearthError | None = None


class Questions:
    """The questions of one client that wait for their answers, where an answer comes with another request."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    def ask(self, about: bytes) -> str:
        """A new question; returns what its answer must bring along, which nobody can guess."""
        name = secrets.token_urlsafe(24)
        self._open[name] = about, trio.current_time() + ANSWER_PATIENCE
        if len(self._open) > MOST_QUESTIONS:
            self._open.popitem(last=False)
        return name

    def settle(self, name: str | None, about: bytes) -> bool:
        """True if this is the first answer to a question that was asked, about just this, and not long ago."""
        asked, until = self._open.pop(name or "", (b"", 0.0))
        return asked == about and trio.current_time() <= until


class Client:
    """One MCP client. Its session lives in a task of `nursery`, which outlives every request.

    `keep_alive` is for a client whose presence is known (a pipe, a connection); None leaves its session to the
    runtime's idle TTL. Raises QueueFull where `account` has no room for it.
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
        """What is kept for it beside its session is charged here; without a bound where that is its own process."""
        self.account.charge(MCP_CLIENT_BYTES)
        self.nursery = nursery
        """Where what outlives a request may run; it ends with the server."""
        self.questions = Questions()
        self._session_factory = session_factory
        self._name = name
        self._version = version
        self._keep_alive = keep_alive
        self._held: _HeldSession | None = None
        self._lost: str | None = None
        self._news: str | None = None
        self.gone = trio.Event()
        """Set when it has gone: what runs for it beside its session must end."""

    def introduce(self, name: str | None, version: str | None) -> None:
        """What the client calls itself: for the sessions that are opened from now on, and their audit records."""
        self._name, self._version = name or self._name, version or self._version

    async def session(self) -> Session:
        """Its session, opened if there is none. Raises what session.open was answered with, and CarrierError."""
        held = self._held
        if held is None or held.session is None:
            held = await self._hold_one()
            assert held.session is not None
        return held.session

    async def view(self) -> ToolView:
        """The tools its session may use. Raises as `session`."""
        if self._held is not None and self._held.view is not None:
            return self._held.view
        try:
            return await self._view()
        except SessionInvalid:
            # It had ended before it was asked: once more, in a new one.
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
        """The name of the board, for a person who has several; None where this session may not know it."""
        held = await self._hold_one()
        if held.board is None and (await self.view()).find(BOARD_TOOL) is not None:
            assert held.session is not None
            try:
                held.board = str((await held.session.run(BOARD_TOOL)).get("name"))
            except (RpcError, TaskFailed) as error:
                log.info("the board's name cannot be had: %s", error)
        return held.board

    async def _hold_one(self) -> _HeldSession:
        held = self._held
        if held is None:
            if self.gone.is_set():
                raise CarrierError("this client has gone")
            held = self._held = _HeldSession()
            self.nursery.start_soon(self._hold, held)
        await held.ready.wait()
        if held.session is None:
            raise held.error or CarrierError("the bridge is ending")
        return held

    def forget(self, session: Session, why: HearthError) -> None:
        """A session has turned out to have ended, or cannot be reached any more; the next request opens another."""
        held = self._held
        if held is not None and held.session is session:
            self._held = None
            held.ending.set()
            self._lost = str(why).rstrip(".")

    def news(self) -> str | None:
        """What the client must be told beside its next result; once."""
        news, self._news = self._news, None
        return news

    def close(self) -> None:
        """The client has gone: its session is closed, and it gets no other. Idempotent, and never waits."""
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
        """Its session, if there is one by now."""
        return None if self._held is None else self._held.session

    async def _hold(self, held: _HeldSession) -> None:
        name, version = (None if text is None else text[:MOST_NAME] for text in (self._name, self._version))
        try:
            async with self._session_factory.open_session(client_name=name, client_version=version) as session:
                held.session = session
                if self._lost is not None:
                    # Only now: a daemon that answers has brought the lines of the session before into their safe state.
                    self._news, self._lost = REOPENED.format(why=self._lost), None
                held.ready.set()
                await self._keep(held, session)
        except HearthError as error:
            held.error = error
            if held.session is not None:
                log.warning("a session has ended badly: %s", error)
        finally:
            if self._held is held:
                self._held = None
            held.ready.set()

    async def _keep(self, held: _HeldSession, session: Session) -> None:
        """Until it is to end; a session without requests would end by itself."""
        while not held.ending.is_set():
            with trio.move_on_after(self._keep_alive or float("inf")):
                await held.ending.wait()
                return
            try:
                await session.tools()
            except (SessionInvalid, CarrierError) as error:
                self.forget(session, error)
            except RpcError as error:
                log.info("a session could not be kept awake: %s", error)


class Clients(Protocol):
    """All clients of one server."""

    async def of(self, ctx: Context) -> Client:
        """Whose request this is. Raises MCPError for one that may not be made."""
        ...


def who(ctx: Context) -> tuple[str | None, str | None]:
    """The name and the version that the client gave of itself, if it did."""
    params = ctx.session.client_params
    return (None, None) if params is None else (params.client_info.name, params.client_info.version)


# --- failures ---------------------------------------------------------------------------------------------------------
# What hearth raises, as MCP says it. HACP's codes stay in the data, for MCP means something else by some of them.


def no_resource(ask: McpRequest, uri: str, why: str = "") -> MCPError:
    """The error for a URI that nobody has, or behind which there is nothing, and why."""
    # 2026-07-28 has given up the code of its own.
    code = types.INVALID_PARAMS if ask.modern else -32002
    return MCPError(
        code=code, message=f"Resource not found: {why}" if why else "Resource not found", data={"uri": uri[:1000]}
    )


def as_mcp(error: HearthError) -> MCPError:
    """An error of whatever is not a tool's call."""
    outcome = of_error(error)
    if isinstance(outcome, ProtocolError):
        return MCPError(code=outcome.code, message=outcome.message, data=outcome.data)
    code = types.INVALID_REQUEST if isinstance(error, PermissionDenied) else types.INTERNAL_ERROR
    return MCPError(code=code, message=outcome["content"][0]["text"], data=outcome.get("_meta") or None)


def no_session(error: RpcError | CarrierError) -> dict[str, Any]:
    """The CallToolResult of a call for which there is no session to be had: nothing of it has been submitted.

    Raises MCPError where the call itself is wrong.
    """
    if isinstance(error, CarrierError):
        text = f"{str(error).rstrip('.')}. {WORLD['none']} {advice(error)}"
        return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
    outcome = of_error(error)
    if isinstance(outcome, ProtocolError):
        raise as_mcp(error)
    return {**outcome, "resultType": "complete"}


# --- providers --------------------------------------------------------------------------------------------------------

Outcome: TypeAlias = "types.CallToolResult | types.InputRequiredResult | dict[str, Any]"
"""What a tools/call is answered with; a dict is as on the wire, with its `resultType`: an extension's, or for speed."""


@frozen
class McpRequest:
    """One request of one client."""

    ctx: Context
    client: Client

    @property
    def modern(self) -> bool:
        """True in the era of 2026-07-28, where every request stands alone and the server asks nothing by itself."""
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> types.ClientCapabilities:
        """What the client declared that it can do; nothing, where it declared nothing."""
        return self.ctx.session.client_capabilities or types.ClientCapabilities()

    @property
    def can_elicit(self) -> bool:
        """True if the client can put a form before a person: an empty declaration means forms."""
        elicitation = self.capabilities.elicitation
        return elicitation is not None and (elicitation.form is not None or elicitation.url is None)

    @property
    def wants_progress(self) -> bool:
        """True if the client gave a progress token."""
        return bool(self.ctx.meta and self.ctx.meta.get("progress_token") is not None)


CallNext: TypeAlias = Callable[[McpRequest, types.CallToolRequestParams], Awaitable[Outcome]]
"""The rest of a tools/call: later interceptors, and in the end the provider whose tool it is."""


@frozen
class Method:
    """A request method that the protocol itself does not have, such as an extension's."""

    name: str
    params: type[BaseModel]
    """What its params are validated against; a subclass of mcp_types.RequestParams."""
    handle: Callable[[McpRequest, Any], Awaitable[BaseModel | dict[str, Any] | None]]
    """Serves it. Raises MCPError."""
    versions: frozenset[str] | None = None
    """The protocol versions that have it; None for all. In others it is not found (-32601)."""


class Provider:
    """Something that a server offers."""

    # --- tools --------------------------------------------------------------------------------------------------

    async def tools(self, ask: McpRequest) -> Sequence[types.Tool]:
        """The tools this client may call, in a fixed order."""
        del ask
        return ()

    async def call(self, ask: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """Call a tool; None for one that is not this provider's. Raises MCPError for what is no execution failure."""
        del ask, params
        return None

    async def intercept(self, ask: McpRequest, params: types.CallToolRequestParams, call_next: CallNext) -> Outcome:
        """Be asked before any tool is called, whoever's it is; the first provider is the outermost."""
        return await call_next(ask, params)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """The schema of a tool with parameters that HTTP clients mirror into headers (`x-mcp-header`), if it is ours.

        It is asked before it is known who calls.
        """
        del name
        return None

    # --- resources ----------------------------------------------------------------------------------------------

    async def resources(self, ask: McpRequest) -> Sequence[types.Resource]:
        """What can be read."""
        del ask
        return ()

    async def templates(self, ask: McpRequest) -> Sequence[types.ResourceTemplate]:
        """What can be read under a URI that somebody fills in."""
        del ask
        return ()

    async def read(
        self, ask: McpRequest, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult | None:
        """Read a resource; None for a URI that is not this provider's."""
        del ask, params
        return None

    async def subscribe(self, ask: McpRequest, params: types.SubscribeRequestParams) -> bool:
        """Begin to tell this client of changes (until 2025-11-25); False for a URI that is not this provider's."""
        del ask, params
        return False

    async def unsubscribe(self, ask: McpRequest, params: types.UnsubscribeRequestParams) -> bool:
        """Tell it no more; False for a URI that is not this provider's."""
        del ask, params
        return False

    async def listen(
        self, ask: McpRequest, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream of changes (from 2026-07-28 on), of whatever the server has.

        The first provider that has this serves it, and hands on to others what is theirs.
        """
        raise NotImplementedError

    # --- prompts, completion, logging ---------------------------------------------------------------------------

    async def prompts(self, ask: McpRequest) -> Sequence[types.Prompt]:
        """The prompts there are."""
        del ask
        return ()

    async def prompt(
        self, ask: McpRequest, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult | None:
        """A prompt, filled in; None for one that is not this provider's."""
        del ask, params
        return None

    async def complete(self, ask: McpRequest, params: types.CompleteRequestParams) -> types.CompleteResult | None:
        """What an argument may be completed to; None for a reference that is not this provider's."""
        del ask, params
        return None

    async def set_level(self, ask: McpRequest, params: types.SetLevelRequestParams) -> None:
        """The least level of log messages that this client wants (until 2025-11-25)."""
        del ask, params

    # --- extensions ---------------------------------------------------------------------------------------------

    def methods(self) -> Sequence[Method]:
        """Further request methods."""
        return ()

    def extensions(self) -> Mapping[str, dict[str, Any]]:
        """The protocol's extensions that this provider speaks, and their settings, as they are advertised."""
        return {}


_STATE = "retained"


class RetainedRequest(Retained):
    """A request that is being read, or served."""

    __slots__ = ("_size",)

    def __init__(self, account: Account, state: dict[str, Any]) -> None:
        super().__init__(account)
        self._size = 0
        self.grow(HTTP_REQUEST_BYTES)
        state[_STATE] = self

    async def whole(self, receive: Receive) -> tuple[bytes, bool]:
        """Its body, which the door bounds, and whether it has come to its end. Raises QueueFull."""
        parts: list[bytes] = []
        ended = False
        while not ended and (message := await receive())["type"] == "http.request":
            parts.append(message.get("body", b""))
            self._keep(len(parts[-1]))
            ended = not message.get("more_body", False)
        return b"".join(parts), ended

    def parsed(self, body: bytes) -> None:
        """Its body is about to be parsed; the bytes are kept too. Raises QueueFull."""
        self._keep(parsed_bytes(body))

    def _keep(self, size: int) -> None:
        """Charge more of it. A small request is always served: its principal must be able to make room."""
        if self._size + size > SMALL:
            self._account.require(size)
        self._size += size
        self.grow(size)

    def sending(self, send: Send) -> Send:
        """An ASGI send that charges what its peer has yet to take."""
        account = self._account

        async def charged(message: Message) -> None:
            size = len(message.get("body", b""))
            account.add(size)
            try:
                await send(message)
            finally:
                account.release(size)

        return charged


def retained(ask: McpRequest) -> Retained:
    """What is kept for the request; where nothing is charged, something that costs nothing."""
    state = getattr(ask.ctx.request, "state", None)
    held: Retained | None = getattr(state, _STATE, None)
    return Retained() if held is None else held
