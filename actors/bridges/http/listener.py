"""The HTTP listener: accepts as the other TCP listeners do, and serves each connection with the application.

It owns the order of beginnings and ends: the application is opened with the first accept, since only then is there a
runtime, and outlives the accepting, so that answers under way go out after the daemon has stopped to listen.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

import trio

from hearth.actors.bridges.http.visit import Visit
from hearth.actors.bridges.http.wire import HttpConnection, settings
from hearth.actors.listeners.accepting import Stranger
from hearth.actors.listeners.streams import CLOSING, SocketTransport
from hearth.actors.listeners.tcp import Listening, each_stranger
from hearth.actors.listeners.tls import certificate_of, handshake
from hearth.actors.supervisor import contain

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from starlette.types import ASGIApp

    from hearth.actors.listeners.accepting import Doorway, Welcome
    from hearth.actors.listeners.certificates import Certificates
    from hearth.actors.listeners.tcp import Report

LAST_WORDS = 0.5
"""Seconds that answers get to go out once all sessions have ended, before streams are ended too."""


class HttpListener(Listening):
    """One TCP address that speaks HTTP. Implements `accepting.Listener`; times in seconds.

    `house` opens the application: what it runs in the background ends when the context is left. `count` is entered,
    with the carrier's name, for each connection.
    """

    def __init__(
        self,
        listening: socket.socket,
        certificates: Certificates | None,
        house: Callable[[], AbstractAsyncContextManager[ASGIApp]],
        *,
        handshake_timeout: float,
        send_timeout: float,
        report: Report,
        count: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._scheme = "http" if certificates is None else "https"
        super().__init__(self._scheme, listening, certificates)
        self._house = house
        self._handshake_timeout = handshake_timeout
        self._send_timeout = send_timeout
        self._report = report
        self._count = count
        self._settings = settings()
        self._visits: set[Visit] = set()
        self._over = trio.Event()
        self._left = trio.Event()
        """Set when a visit has ended."""

    async def accept_all(self, nursery: trio.Nursery, doorway: Doorway, welcome: Welcome) -> None:
        """See Listener. What is let in is served here, not by `welcome`."""
        del welcome
        app = await nursery.start(self._keep_house)

        def begin(connected: socket.socket, peer: str, settled: Callable[[], None]) -> None:
            visit = Visit(connected, peer, settled, doorway, patience=self._handshake_timeout)
            nursery.start_soon(self._serve, app, visit)

        await each_stranger(self._listening, doorway, self._send_timeout, begin)

    async def _keep_house(self, *, task_status: trio.TaskStatus[ASGIApp]) -> None:
        try:
            async with self._house() as app:
                task_status.started(app)
                await self._over.wait()
                for visit in list(self._visits):
                    visit.finish()
                # Answers to what has ended with its session are on their way; a stream would end with the house only.
                with trio.move_on_after(LAST_WORDS):
                    await self._all_gone()
            await self._all_gone()
        finally:
            # Sends are shielded from whoever gives up an answer, but not from the end of everything.
            for visit in list(self._visits):
                visit.cut()

    async def _all_gone(self) -> None:
        while self._visits:
            self._left = trio.Event()
            await self._left.wait()

    async def _serve(self, app: ASGIApp, visit: Visit) -> None:
        self._visits.add(visit)
        try:
            with self._count(self._scheme), visit.connected, visit.scope:
                await contain(f"connection of {visit.peer}", partial(self._visited, app, visit), lambda _error: None)
        finally:
            self._visits.discard(visit)
            self._left.set()
            visit.over()

    async def _visited(self, app: ASGIApp, visit: Visit) -> None:
        connected = visit.connected
        stream: trio.abc.Stream
        if self._certificates is None:
            stream = transport = SocketTransport(connected, send_timeout=self._send_timeout)
        else:
            try:
                secure = await handshake(connected, self._certificates, self._handshake_timeout, self._send_timeout)
            except Stranger as stranger:
                self._report(self._scheme, visit.peer, str(stranger))
                return
            # Looked at once, as on the other carriers: whoever is inside stays when its certificate expires.
            visit.certificate = cache(partial(certificate_of, secure))
            stream, transport = secure, secure.transport_stream
        try:
            await HttpConnection(app, self._settings, stream, transport, visit).run()
        finally:
            with trio.move_on_after(CLOSING) as closing:
                closing.shield = True
                await stream.aclose()

    def finish(self) -> None:
        """See Listener."""
        self._over.set()
