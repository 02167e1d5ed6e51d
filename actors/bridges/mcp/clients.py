"""Which MCP client a request comes from, and the one HACP session that client has.

A session is opened when the client first needs it, kept while the client is there, and closed with it, which puts the
lines it drove into their safe state. One that has ended meanwhile is opened anew. Nothing here reads a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import trio

from hearth.mcp.view import ToolView

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from mcp.server.context import ServerRequestContext

    from hearth.api import Session

Context: TypeAlias = "ServerRequestContext[Clients, Any]"
"""What the SDK hands to a handler; its lifespan context is the `Clients` of the server."""


class House(Protocol):
    """Where sessions are opened: an embedded runtime for one principal, or a connection to a daemon."""

    def open_session(
        self, *, client_name: str | None = None, client_version: str | None = None
    ) -> AbstractAsyncContextManager[Session]:
        """See hearth.client.Client."""
        ...


class Client:
    """One MCP client. Its session lives in a task of `nursery`, which outlives every request."""

    def __init__(self, house: House, nursery: trio.Nursery, *, name: str | None, version: str | None) -> None:
        self._house = house
        self._nursery = nursery
        self._name = name
        self._version = version
        self._session: Session | None = None
        self._view: ToolView | None = None
        self._closing = trio.Event()
        self._turn = trio.Lock()

    async def session(self) -> Session:
        """Its session, opened if there is none. Raises the RpcError that session.open was answered with."""
        async with self._turn:
            if self._session is None:
                opened = await self._nursery.start(self._hold)
                if isinstance(opened, Exception):
                    raise opened
        assert self._session is not None
        return self._session

    async def view(self) -> ToolView:
        """The tools its session may use."""
        session = await self.session()
        if self._view is None:
            self._view = ToolView(await session.tools())
        return self._view

    def forget(self, session: Session) -> None:
        """A session has turned out to have ended; the next request opens another."""
        if self._session is session:
            self._session = None
            self._view = None
            self._closing.set()

    def close(self) -> None:
        """The client has gone."""
        self._session = None
        self._closing.set()

    async def _hold(self, *, task_status: trio.TaskStatus[Any]) -> None:
        closing = self._closing = trio.Event()
        async with self._house.open_session(client_name=self._name, client_version=self._version) as session:
            self._session = session
            task_status.started()
            await closing.wait()


class Clients(Protocol):
    """All clients of one server."""

    async def of(self, ctx: Context) -> Client:
        """Whose request this is."""
        ...
