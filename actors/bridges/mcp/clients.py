"""Which MCP client a request comes from, and the one HACP session that client has.

A session is opened when the client first needs it, kept while the client is there, and closed with it, which puts the
lines it drove into their safe state. One that has ended meanwhile is opened anew, and the client is told so with its
next result. A session belongs to its client and never to one request: whoever is cancelled while it is being opened
leaves it to the next. Nothing here reads a message.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import trio

from hearth.actors.bridges.mcp.consent import Questions
from hearth.actors.memory_budget import MCP_CLIENT_BYTES, unlimited
from hearth.errors import CarrierError, HearthError, RpcError, SessionInvalid, TaskFailed
from hearth.mcp.view import ToolView

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from mcp.server.context import ServerRequestContext

    from hearth.actors.memory_budget import Account
    from hearth.api import Session

Context: TypeAlias = "ServerRequestContext[Clients, Any]"
"""What the SDK hands to a handler; its lifespan context is the `Clients` of the server."""

KEEP_ALIVE: Final = 60.0
"""Seconds between two requests by which the session of a client that is there is kept: the idle TTL is 300 s."""
BOARD_TOOL: Final = "hw.board"
MOST_NAME: Final = 256
"""Characters of a client's name and version that HACP takes."""

REOPENED: Final = (
    "Note: the session in which you had driven lines before has ended ({why}). Those lines have gone to their safe "
    "state; a new session is in use from here on."
)

log = logging.getLogger("hearth.mcp")


class House(Protocol):
    """Where sessions are opened: an embedded runtime for one principal, or a connection to a daemon."""

    def open_session(
        self, *, client_name: str | None = None, client_version: str | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """See hearth.client.Client."""
        ...


class _Held:
    """A session, from the moment it is asked for."""

    __slots__ = ("board", "ending", "error", "ready", "session", "view")

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.ending = trio.Event()
        self.session: Session | None = None
        self.view: ToolView | None = None
        self.board: str | None = None
        self.error: HearthError | None = None


class Client:
    """One MCP client. Its session lives in a task of `nursery`, which outlives every request.

    `keep_alive` is for a client whose presence is known (a pipe, a connection); None leaves its session to the
    runtime's idle TTL. Raises QueueFull where `account` has no room for it.
    """

    def __init__(
        self,
        house: House,
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
        self._house = house
        self._name = name
        self._version = version
        self._keep_alive = keep_alive
        self._held: _Held | None = None
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

    async def _hold_one(self) -> _Held:
        held = self._held
        if held is None:
            if self.gone.is_set():
                raise CarrierError("this client has gone")
            held = self._held = _Held()
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

    async def _hold(self, held: _Held) -> None:
        name, version = (None if text is None else text[:MOST_NAME] for text in (self._name, self._version))
        try:
            async with self._house.open_session(client_name=name, client_version=version) as session:
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

    async def _keep(self, held: _Held, session: Session) -> None:
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
