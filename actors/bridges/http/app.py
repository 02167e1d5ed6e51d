"""The HTTP application: a door that every request passes, and behind it the routes, each from a module of its own.

The door asks in this order: for which host, from which page, from whom. Paths that say nothing to anybody in particular
are named here; behind all others stands only who is in the policy.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from starlette.applications import Starlette
from starlette.responses import Response

from hearth.actors.bridges.http import card, health, metrics
from hearth.actors.bridges.http.caller import Callers
from hearth.actors.bridges.http.hosts import Hosts, allowing, preflight
from hearth.actors.bridges.http.problems import Problem, broken, not_allowed, not_found, told
from hearth.actors.listeners.callers import Refused
from hearth.errors import SessionInvalid
from hearth.policy.rules import token_digests
from hearth.policy.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hearth.actors.bridges.http.visit import Visit
    from hearth.actors.runtime import Runtime
    from hearth.api import Session
    from hearth.config import Config
    from hearth.policy.principal import Principal


@asynccontextmanager
async def opened(
    config: Config, runtime: Runtime, report: Callable[[str, str], None], *, with_mcp: bool
) -> AsyncIterator[ASGIApp]:
    """The application over a runtime while the context lasts; `report` is told of who is refused: peer, reason."""
    section, limits, policy = config.http, config.limits, runtime.parts.policy
    encrypted, behind_proxy = section.cert is not None, section.plaintext
    hosts = Hosts(section.hosts, section.origins, encrypted=encrypted, behind_proxy=behind_proxy)
    callers = Callers(policy, Tokens(token_digests(policy)), report, behind_proxy=behind_proxy)
    async with AsyncExitStack() as stack:
        routes = [*health.routes(runtime), *metrics.routes(runtime), *card.routes(runtime.agent_card)]
        runtime.serves_mcp = with_mcp
        if with_mcp:
            routes += await stack.enter_async_context(_mcp(config, runtime))
        app = Starlette(
            routes=routes,
            exception_handlers={
                404: not_found, 405: not_allowed, Problem: told, Exception: broken,
            },
        )  # fmt: skip
        app.router.redirect_slashes = False
        yield Door(app, hosts, callers, max_body=limits.max_document_bytes, body_timeout=limits.send_timeout_s)


def _mcp(config: Config, runtime: Runtime) -> AbstractAsyncContextManager[list[Route]]:
    from hearth.actors.bridges.mcp import http as mcp
    from hearth.actors.bridges.mcp.offers import all_offers
    from hearth.actors.bridges.mcp.tasks_call import LEASE
    from hearth.actors.embedded import EmbeddedRuntime

    limits = config.limits
    state = runtime.parts.journal.settings.path.parent

    def alive(principal: Principal, session: Session) -> bool:
        try:
            runtime.find_session(session.session_id, principal.key)
        except SessionInvalid:
            return False
        return True

    return mcp.opened(
        partial(EmbeddedRuntime, runtime),
        # A client that is forgotten keeps no task: so none is promised for longer than a client is known.
        all_offers(
            state,
            principal=mcp.asker,
            own_card=runtime.agent_card,
            lease=min(LEASE, limits.idle_ttl_s),
            account=runtime.memory.for_principal,
        ),
        alive=alive,
        idle_ttl=limits.idle_ttl_s,
        max_body=limits.max_document_bytes,
        most_each=limits.max_sessions_per_principal,
        most=limits.max_connections,
        max_values=limits.max_values,
        accounts=lambda principal: runtime.memory.for_principal(principal.key),
    )


OPEN = (health.PATH,)
"""Paths for anybody."""
WELL_KNOWN = "/.well-known/"
"""What lies beneath is for anybody, and for every page there is."""
READING = ("GET", "HEAD", "OPTIONS")


class Door:
    """What every request passes; times in seconds. An ASGI application around another."""

    def __init__(self, app: ASGIApp, hosts: Hosts, callers: Callers, *, max_body: int, body_timeout: float) -> None:
        self._app = app
        self._hosts = hosts
        self._callers = callers
        self._max_body = max_body
        self._body_timeout = body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI; `scope["state"]` has the connection's Visit."""
        visit: Visit = scope["state"]["visit"]
        answer = _Answer(send, visit)
        try:
            await self._serve(scope, _Body(receive, self._max_body, self._body_timeout), answer, visit)
        except Problem as problem:
            if answer.begun:
                raise
            await problem.response()(scope, receive, answer)

    async def _serve(self, scope: Scope, receive: _Body, answer: _Answer, visit: Visit) -> None:
        headers, path = scope["headers"], scope["path"]
        host = self._hosts.check(headers, scope["server"][0])
        public = path.startswith(WELL_KNOWN)
        origin = None
        if not (public and scope["method"] in READING):
            origin = self._hosts.origin(headers, host)
            if scope["method"] == "OPTIONS" and origin is not None:
                answer.extra = preflight(origin)
                await Response(status_code=204)(scope, receive, answer)
                return
        answer.extra = allowing(origin)
        who = self._callers.of(headers, visit)
        state = scope["state"]
        state["principal"] = None if isinstance(who, Refused) else who
        state["admitted"] = False
        if not isinstance(who, Refused) and self._callers.admits(who):
            full = visit.let_in(who)
            if full is not None:
                raise Problem(503, f"{full.message}; try again later", {"Retry-After": "5"})
            state["admitted"] = True
        elif not public and path not in OPEN:
            raise self._callers.refusal(who, visit)
        receive.announced(headers)
        await self._app(scope, receive, answer)


class _Answer:
    """An ASGI send that adds what the door has to say."""

    def __init__(self, send: Send, visit: Visit) -> None:
        self._send = send
        self._visit = visit
        self.extra: Any = ()
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            more = list(self.extra)
            if self._visit.stranger:
                # One answer: who is nobody in particular must not keep a place at the door.
                more.append((b"connection", b"close"))
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"connection"]
            message = {**message, "headers": [*kept, *more]}
        await self._send(message)


class _Body:
    """An ASGI receive that bounds a request's body: its size, and the time until all of it is here."""

    def __init__(self, receive: Receive, most: int, timeout: float) -> None:
        self._receive = receive
        self._most = most
        self._timeout = timeout
        self._deadline = trio.current_time() + timeout
        self._size = 0
        self._whole = False

    def announced(self, headers: Any) -> None:
        """Refuse what says of itself that it is too large. Raises Problem."""
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value) > self._most:
                raise self._too_large()

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        with trio.move_on_at(self._deadline):
            message = await self._receive()
            self._size += len(message.get("body", b""))
            if self._size > self._most:
                raise self._too_large()
            self._whole = not message.get("more_body", False)
            return message
        raise Problem(408, f"the request's body was not here within {self._timeout:g} s; send it faster")

    def _too_large(self) -> Problem:
        return Problem(413, f"the request's body is longer than [limits] max_document_bytes = {self._most}")
