"""The HTTP application: the checks that every request passes, its own routes, and those of /metrics and /mcp.

`AccessControl` checks, in this order: the Host, the Origin, the principal. The paths that need no principal are named
here; all others serve only principals in the policy.

/.well-known/agentcard is this machine's AgentCard, open to every reader (draft-aevum-agentcard-00 §3, §4). This module
owns its media type, its caching and its cross-origin headers; the runtime's card keeper owns its content.
"""

from __future__ import annotations

import hashlib
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import trio
from attrs import define, field
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from hearth.actors.agentcard import card_of
from hearth.actors.bridges.http import dashboard, metrics
from hearth.actors.listeners.accept import Refused, caller, is_cross_site, values
from hearth.errors import QueueFull, SessionInvalid
from hearth.mcp.names import PATH as MCP
from hearth.transport.negotiation import ranges_of, weight_of
from hearth.transport.problems import MEDIA_TYPE, document

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hearth.actors.bridges.http.connection import PeerConnection
    from hearth.actors.listeners.accept import Headers
    from hearth.actors.runtime import Runtime
    from hearth.api import Session
    from hearth.config.model import Config
    from hearth.policy.principal import Principal
    from hearth.policy.rules import PolicyInForce

PATH = "/.well-known/agentcard"
MAX_AGE = 3600
"""Seconds that a reader may keep a card for (§4)."""

OWN, PLAIN = "application/agentcard+json", "application/json"
_OFFERED = (OWN, PLAIN)
"""The media types, the preferred one first: a client without a preference of its own gets it."""

_READ = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "ETag",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
}
_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD",
    "Access-Control-Allow-Headers": "Accept, If-None-Match",
    "Access-Control-Max-Age": "86400",
    "Allow": "GET, HEAD, OPTIONS",
}


def card_routes(card: Callable[[], Mapping[str, Any] | None]) -> list[Route]:
    """Return the route of /.well-known/agentcard. `card` returns the current card; None is answered 503."""
    kept: tuple[Mapping[str, Any] | None, bytes, str] = (None, b"", "")

    async def agentcard(request: Request) -> Response:
        nonlocal kept
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        chosen = choose(request.headers.getlist("accept"))
        if chosen is None:
            return _card_error(406, f"the card is there as {OWN} and as {PLAIN}: accept one of them")
        now = card()
        if now is None:
            return _card_error(503, "there is no valid card to show; the daemon's log says why")
        if now is not kept[0]:
            body = orjson.dumps(now)
            kept = now, body, hashlib.sha256(body).hexdigest()[:32]
        # Two representations are two entities, even with equal bytes: a cache must not answer one for the other.
        tag = f'"{kept[2]}{"" if chosen == OWN else "-json"}"'
        headers = {**_READ, "Cache-Control": f"max-age={MAX_AGE}", "ETag": tag}
        if _matches(request.headers.getlist("if-none-match"), tag):
            return Response(status_code=304, headers=headers)
        return Response(kept[1], headers=headers, media_type=chosen)

    return [Route(PATH, agentcard, methods=["GET", "HEAD", "OPTIONS"])]


def _card_error(status: int, why: str) -> Response:
    return Response(orjson.dumps({"error": why}), status, {**_READ, "Cache-Control": "no-store"}, media_type=PLAIN)


def choose(accept: Iterable[str]) -> str | None:
    """Return the media type for an Accept header, given as its lines; None if neither fits (RFC 9110 §12.5.1).

    Without the header, or with an empty one, the preferred type is returned. An unreadable range is ignored.
    """
    ranges = ranges_of(accept)
    if not ranges:
        return OWN
    weighed = [(weight, offered) for offered in _OFFERED if (weight := weight_of(offered, ranges)) > 0]
    # Of equal weights, `max` returns the first: the preferred type.
    return max(weighed, key=lambda pair: pair[0])[1] if weighed else None


def _matches(lines: Iterable[str], tag: str) -> bool:
    """Return True if an If-None-Match header names the tag; the comparison is weak (RFC 9110 §13.1.2)."""
    tags = {part.strip().removeprefix("W/") for line in lines for part in line.split(",")}
    return tag in tags or "*" in tags


class HttpProblem(Exception):
    """A refused request: the answer's status and headers; `detail` names the place and the cure."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """Return the response for this problem."""
        return Response(document(self.status, self.detail), self.status, self.headers, MEDIA_TYPE)


async def problem_response(_request: Request, error: Exception) -> Response:
    """Answer a HttpProblem (Starlette handler)."""
    assert isinstance(error, HttpProblem)
    return error.response()


async def not_found(_request: Request, _error: Exception) -> Response:
    """Answer 404 (Starlette handler). The path may hold a secret, so it is not repeated."""
    return HttpProblem(404, "nothing is served at this path").response()


async def not_allowed(_request: Request, error: Exception) -> Response:
    """Answer 405 (Starlette handler)."""
    headers = getattr(error, "headers", None) or {}
    allowed = headers.get("Allow", "GET")
    return HttpProblem(405, f"this path takes no such method; it takes {allowed}", headers).response()


async def broken(_request: Request, _error: Exception) -> Response:
    """Answer 500 (Starlette handler): the log has the exception, the answer does not."""
    return HttpProblem(500, "an internal error; see the daemon's log").response()


# --- health -----------------------------------------------------------------------------------------------------------
# /healthz: whether the daemon can work, for every client; and the reasons, for principals that the policy admits.

HEALTH = "/healthz"
_HEALTH_HEADERS = {"Cache-Control": "no-store"}


def health_routes(runtime: Runtime) -> list[Route]:
    """Return the route of /healthz: 200 {"ok": true}, or 503 {"ok": false}; admitted principals get the reasons too."""

    async def healthz(request: Request) -> Response:
        found = health_report(runtime)
        shown = found if request.state.admitted else {"ok": found["ok"]}
        return Response(orjson.dumps(shown), 200 if found["ok"] else 503, _HEALTH_HEADERS, "application/json")

    return [Route(HEALTH, healthz)]


def health_report(runtime: Runtime) -> Mapping[str, Any]:
    """Return the runtime's health as hw.board reports it, with `ready`, and `wedged`: the buses that do not answer."""
    health = runtime.health()
    wedged = sorted(bus for bus, status in health["buses"].items() if status["state"] != "ready")
    ready = not runtime.closing
    return {**health, "ok": health["ok"] and ready, "ready": ready, "wedged": wedged}


# --- app --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(
    config: Config,
    runtime: Runtime,
    hosts: Hosts,
    report: Callable[[str, str], None],
    *,
    with_mcp: bool,
    page: Mapping[str, tuple[str, bytes]],
) -> AsyncIterator[ASGIApp]:
    """Open the application over a runtime; `report` is called with peer and reason of each refused client.

    `page` has the files of the dashboard, which were read before the daemon confined itself; none if it has no page.
    """
    section, limits = config.http, config.limits
    callers = Callers(runtime.parts.policy, report, behind_proxy=section.plaintext)
    async with AsyncExitStack() as stack:
        routes = [*health_routes(runtime), *metrics.routes(runtime), *card_routes(partial(card_of, runtime))]
        if page:
            routes += [*dashboard.routes(page), Route(HACP, upgrade_required)]
        if with_mcp:
            runtime.extra("mcp").over_http = True
            routes += await stack.enter_async_context(_mcp(config, runtime))
        app = Starlette(
            routes=routes,
            exception_handlers={
                404: not_found, 405: not_allowed, HttpProblem: problem_response, Exception: broken,
            },
        )  # fmt: skip
        app.router.redirect_slashes = False
        yield AccessControl(app, hosts, callers, max_body=limits.max_document_bytes, body_timeout=limits.send_timeout_s)


def _mcp(config: Config, runtime: Runtime) -> AbstractAsyncContextManager[list[Route]]:
    from hearth.actors.bridges.mcp import http as mcp
    from hearth.actors.bridges.mcp.long_call import LEASE
    from hearth.actors.bridges.mcp.server import all_offers
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
        # A forgotten client keeps no task: so the lease promises no more than the time for which a client is known.
        all_offers(
            state,
            principal=mcp.requester,
            own_card=partial(card_of, runtime),
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


HACP = "/hacp"
"""The path of HACP over a WebSocket, for pages of this origin; `listener` passes such a request on."""


async def upgrade_required(_request: Request) -> Response:
    """Answer 426 to a request for `HACP` that is none for a WebSocket."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
    return HttpProblem(426, "this path speaks HACP over a WebSocket (docs/carriers.md)", headers).response()


WELL_KNOWN = "/.well-known/"
"""The prefix of paths that are open to every client and every web page."""
READING = ("GET", "HEAD", "OPTIONS")


@define(eq=False)
class AccessControl:
    """The checks that every request passes; times in seconds. An ASGI application around another."""

    _app: ASGIApp
    _hosts: Hosts
    _callers: Callers
    max_body: int = field(kw_only=True)
    body_timeout: float = field(kw_only=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI; `scope["state"]` has its PeerConnection."""
        connection: PeerConnection = scope["state"]["connection"]
        answer = _Answer(send, connection)
        try:
            await self._serve(scope, _Body(receive, self.max_body, self.body_timeout), answer, connection)
        except HttpProblem as problem:
            if answer.begun:
                raise
            await problem.response()(scope, receive, answer)

    async def _serve(self, scope: Scope, receive: _Body, answer: _Answer, connection: PeerConnection) -> None:
        headers, path = scope["headers"], scope["path"]
        host = self._hosts.check(headers, scope["server"][0])
        public = path.startswith(WELL_KNOWN)
        origin = None
        if not (public and scope["method"] in READING):
            page = scope["method"] == "GET" and path in dashboard.PAGE
            origin = self._hosts.origin(headers, host, page=page)
            if scope["method"] == "OPTIONS" and origin is not None:
                answer.extra = preflight(origin)
                await Response(status_code=204)(scope, receive, answer)
                return
        answer.extra = allowing(origin)
        who = self._callers.of(headers, connection)
        state = scope["state"]
        state["principal"] = None if isinstance(who, Refused) else who
        state["admitted"], state["full"] = False, None
        of_the_page = f"{path}/".startswith(dashboard.PREFIX)
        if not isinstance(who, Refused) and self._callers.admits(who):
            state["full"] = full = connection.let_in(who)
            # The page, and /mcp, which then refuses all but a halt itself.
            if full is not None and not (of_the_page or (path == MCP and isinstance(full, QueueFull))):
                raise HttpProblem(503, f"{full.message}; try again later", {"Retry-After": "5"})
            state["admitted"] = full is None
        elif not public and not of_the_page and path != HEALTH:
            raise self._callers.refusal(who, connection)
        receive.announced(headers)
        await self._app(scope, receive, answer)


class _Answer:
    """An ASGI send that adds the headers of `AccessControl`."""

    def __init__(self, send: Send, connection: PeerConnection) -> None:
        self._send = send
        self._connection = connection
        self.extra: Any = ()
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            more = list(self.extra)
            if self._connection.unknown_peer:
                # One answer only: an unknown peer must not keep a slot for unknown peers.
                more.append((b"connection", b"close"))
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"connection"]
            message = {**message, "headers": [*kept, *more]}
        await self._send(message)


class _Body:
    """An ASGI receive that bounds a request's body: its size, and the time until it is complete."""

    def __init__(self, receive: Receive, most: int, timeout: float) -> None:
        self._receive = receive
        self._most = most
        self._timeout = timeout
        self._deadline = trio.current_time() + timeout
        self._size = 0
        self._whole = False

    def announced(self, headers: Any) -> None:
        """Refuse a request whose Content-Length is too large. Raises HttpProblem."""
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
        raise HttpProblem(408, f"the request's body was not here within {self._timeout:g} s; send it faster")

    def _too_large(self) -> HttpProblem:
        return HttpProblem(413, f"the request's body is longer than [limits] max_document_bytes = {self._most}")


# --- callers: the principal of each request, and the policy's admission -----------------------------------------------
#
# `listeners.accept` owns the rules of proof. This part maps their result to HTTP: the status, the audit record, and the
# values that routes find in `request.state`.

CURES = {
    400: "send one token",
    401: "send `Authorization: Bearer TOKEN`, or show a client certificate that [http] client_ca signed",
}


@define(eq=False)
class Callers:
    """The authentication of requests for `AccessControl`. `report` gets peer and reason of each failed one."""

    _policy: PolicyInForce
    _report: Callable[[str, str], None]
    behind_proxy: bool = field(kw_only=True)

    def of(self, headers: Headers, connection: PeerConnection) -> Principal | Refused:
        """Return the principal of a request on this connection, or the reason why there is none."""
        try:
            return caller(
                headers, self._policy.tokens, connection.certificate, connection.local, behind_proxy=self.behind_proxy
            )
        except Refused as refused:
            return refused

    def admits(self, principal: Principal) -> bool:
        """Return True if a policy entry matches the principal; the session decides what it may do."""
        return any(match.holds(principal) for entry in self._policy for match in entry.match)

    def refusal(self, who: Principal | Refused, connection: PeerConnection) -> HttpProblem:
        """Return the answer to a client that the policy does not admit, and report it for the audit log."""
        if not isinstance(who, Refused):
            reason = f"no policy entry matches {who.key}"
            self._report(connection.peer, reason)
            return HttpProblem(403, f"{reason}; write a [[policy]] entry for it")
        self._report(connection.peer, str(who))
        headers = {"WWW-Authenticate": "Bearer"} if who.status == 401 else {}
        return HttpProblem(who.status, f"the request is not authenticated: {who}; {CURES[who.status]}", headers)


# --- hosts and origins: the names a request may be sent to, and the pages that may send one ---------------------------
#
# A page of another site can make its name point at this machine (DNS rebinding); its browser then sends the page's
# requests here. But the browser names that site in Host, and the page in Origin, and no script can change either. So a
# request under an unknown name is refused before any other check.

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""The names of loopback: no foreign name server can define them."""
_SHOWN = 100
"""Characters of a peer's input that an answer repeats."""
_METHODS = b"GET, HEAD, POST, DELETE"
_REQUEST_HEADERS = (
    b"Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"
)
_ANSWER_HEADERS = b"Mcp-Session-Id, WWW-Authenticate"
_DAY = b"86400"


class Hosts:
    """The accepted names and pages: `hosts` without ports, `origins` as a browser sends them."""

    def __init__(
        self, hosts: Iterable[str], origins: Iterable[str], *, encrypted: bool, behind_proxy: bool = False
    ) -> None:
        self._hosts = frozenset((*LOOPBACK, *hosts))
        self._origins = frozenset(origins)
        self._schemes = ("http", "https") if behind_proxy else ("https",) if encrypted else ("http",)
        """The schemes of the daemon's own pages; behind a proxy, the proxy's scheme is not known here."""

    def check(self, headers: Headers, address: str) -> str:
        """Return the Host of a request that came to `address`, with its port. Raises HttpProblem: 400 or 421."""
        given = values(headers, b"host")
        if len(given) != 1:
            raise HttpProblem(400, "a request has exactly one Host header")
        host = given[0].lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts and name != _in_a_url(address):
            cure = "ask under this machine's address, or list the name in [http] hosts"
            raise HttpProblem(421, f"Host {name[:_SHOWN]!r} is no name of this daemon; {cure}")
        return host

    def origin(self, headers: Headers, host: str, *, page: bool = False) -> str | None:
        """Return the origin of a page of another site that sends the request. Raises HttpProblem: 403.

        A page under the request's own Host was served by this daemon, or by the proxy in front of it. A link of another
        site may open the dashboard (`page`), and nothing else.
        """
        given = values(headers, b"origin")
        if is_cross_site(headers) and not (page and values(headers, b"sec-fetch-mode") == ["navigate"]):
            cure = "open the address itself, or have a page of [http] origins send it with an Origin"
            raise HttpProblem(403, f"a page of another site causes this request (Sec-Fetch-Site); {cure}")
        if not given:
            return None
        origin = given[0].lower()
        if len(given) > 1 or not (origin in self._origins or self._own(origin, host)):
            shown = ", ".join(given)[:_SHOWN]
            raise HttpProblem(403, f"Origin {shown!r} is not in [http] origins; list the page's origin there")
        return origin if origin in self._origins else None

    def _own(self, origin: str, host: str) -> bool:
        scheme, _, place = origin.partition("://")
        return scheme in self._schemes and place == host


def _in_a_url(address: str) -> str:
    """Return a socket's address as in a URL: IPv4 without the IPv6 prefix, IPv6 in brackets."""
    if "." in address:
        return address.removeprefix("::ffff:")
    return f"[{address.partition('%')[0]}]"


def allowing(origin: str | None) -> Sequence[tuple[bytes, bytes]]:
    """Return the headers that let a page of `origin` read an answer."""
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-expose-headers", _ANSWER_HEADERS),
        (b"vary", b"Origin"),
    )


def preflight(origin: str) -> Sequence[tuple[bytes, bytes]]:
    """Return the headers that let a page of `origin` send a request that needs a preflight."""
    return (
        (b"access-control-allow-origin", origin.encode()),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", _REQUEST_HEADERS),
        (b"access-control-max-age", _DAY),
        (b"vary", b"Origin"),
    )
