"""The request that a long call believes it is answering: the client's facts, and no way to ask the client.

A call that has become an MCP task outlives the request that began it. Its progress is the task's status message, and
goes to the request too for as long as that has no answer; the SDK drops what comes later, and so it should, since tasks
have neither progress notifications nor log entries (SEP-2663). It refuses every request to the client: what a task
needs to know it asks by `inputRequests`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import anyio
import mcp_types as types
from attrs import evolve
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.transport_context import TransportContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.actors.bridges.mcp.clients import Context
    from hearth.actors.bridges.mcp.providers import Ask


async def speak(ctx: Context, method: str, params: Mapping[str, Any] | None) -> None:
    """Send a notification, in its wire form, on the stream of a request's answer."""
    said = types.Notification[dict[str, Any], str](method=method, params=dict(params or {}))
    await ctx.session.send_notification(cast("types.ServerNotification", said), related_request_id=ctx.request_id)


class Channel:
    """Implements the SDK's DispatchContext for one call. `tell` takes the text of each progress report."""

    def __init__(self, ask: Ask, tell: Callable[[str], None]) -> None:
        self._origin = ask.ctx
        self._tell = tell
        self._cancel_requested = anyio.Event()

    def ask(self, ask: Ask) -> Ask:
        """The same request, answered through this channel; it has a progress token, if the client gave none too."""
        ctx = ask.ctx
        params = ctx.session.client_params
        connection = Connection.from_envelope(
            ctx.protocol_version, None if params is None else params.client_info, ctx.session.client_capabilities
        )
        meta = cast("types.RequestParamsMeta", {"progress_token": "task", **(ctx.meta or {})})
        return evolve(ask, ctx=replace(ctx, session=ServerSession(self, connection, request_meta=meta), meta=meta))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """See DispatchContext."""
        if message is not None:
            self._tell(message)
        await self._origin.session.report_progress(progress, total, message)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        """See DispatchContext."""
        del opts
        await speak(self._origin, method, params)

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
        """See DispatchContext; a task is cancelled by its scope, and not by notifications/cancelled (SEP-2663)."""
        return self._cancel_requested
