"""MCP over streamable HTTP at /mcp: both eras, and the client of each request.

A client of 2025-11-25 is its Mcp-Session-Id. It is kept while one of its requests is under way, and for the idle TTL
after the last; then its HACP session is closed with it. A client of 2026-07-28 has no MCP session: it is its principal
and the name it gives, and its HACP session ends by the runtime's own idle TTL. See docs/decisions/0062.

A call of `hacp_halt` needs neither: `McpRoute` answers it, also where no connection, session or memory is left.

`AccessControl` (`bridges/http/app.py`) has checked the Host, the Origin and the principal before a request comes here.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import trio
from attrs import asdict, define, field
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response
from starlette.routing import Route

from hearth.actors.bridges.mcp.provider import KEEP_ALIVE, MOST_NAME, Client, RetainedRequest, who
from hearth.actors.bridges.mcp.reading import BATCHES, batch_of, read_message
from hearth.actors.bridges.mcp.server import halt_reason, make_server
from hearth.errors import QueueFull, RpcError
from hearth.mcp.names import HALT, PATH
from hearth.mcp.results import of_halt
from hearth.policy.memory import SMALL
from hearth.protocol.jsonrpc import dump_error
from hearth.transport.negotiation import ranges_of, weight_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.lowlevel.server import Server
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from starlette.types import Message, Receive, Scope, Send

    from hearth.actors.bridges.mcp.provider import Clients, Context, McpRequest, Provider, SessionFactory
    from hearth.api import Session
    from hearth.policy.memory import Account
    from hearth.policy.principal import Principal

    SessionFactories: TypeAlias = Callable[[Principal], SessionFactory]
    Accounts: TypeAlias = Callable[[Principal], Account]

log = logging.getLogger("hearth.mcp")

_SESSION_ID = "mcp-session-id"
_REVISION = b"mcp-protocol-version"
_JSON, _STREAM = "application/json", "text/event-stream"


class _Known:
    """A client, with the time of its last use."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.used = trio.current_time()


@define(eq=False)
class HttpClients:
    """All clients of one listener. Implements `Clients`.

    `alive` returns whether a session has not ended; it is called for a client without a connection after `idle_ttl`
    seconds without a request. Each principal has at most `most` of these, each with a session.
    """

    _session_factories: SessionFactories
    _nursery: trio.Nursery
    _accounts: Accounts
    alive: Callable[[Principal, Session], bool] = field(kw_only=True)
    idle_ttl: float = field(kw_only=True)
    most: int = field(kw_only=True)
    _by_session: dict[str, Client] = field(factory=dict, init=False)
    _by_name: dict[str, dict[str, _Known]] = field(factory=dict, init=False)
    sessions: dict[str, Any] = field(factory=dict, init=False)
    """The MCP sessions by id: a request may outlive its own."""

    def __len__(self) -> int:
        """Return the number of known clients."""
        return len(self._by_session) + sum(map(len, self._by_name.values()))

    async def of(self, ctx: Context) -> Client:
        """See Clients."""
        principal = caller(ctx)
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self._named(principal, who(ctx))
        request: Any = ctx.request
        session_id: str = request.headers.get(_SESSION_ID, "")
        client = self._by_session.get(session_id)
        if client is None:
            # A request may arrive after its MCP session has ended: it must not create a client that stays.
            if session_id not in self.sessions:
                raise MCPError(code=INVALID_REQUEST, message="This MCP session has ended; initialize a new one")
            name, version = who(ctx)
            keep_alive = min(KEEP_ALIVE, self.idle_ttl / 3)
            client = self._client(principal, name, version, keep_alive)
            self._by_session[session_id] = client
        return client

    def gone(self, session_id: str) -> None:
        """Close the client of an MCP session that has ended."""
        client = self._by_session.pop(session_id, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        """Close all clients."""
        for client in self._by_session.values():
            client.close()
        for known in self._by_name.values():
            for each in known.values():
                each.client.close()

    def _named(self, principal: Principal, given: tuple[str | None, str | None]) -> Client:
        name, version = (given[0] or "")[:MOST_NAME], given[1]
        named = self._by_name.setdefault(principal.key, {})
        known = named.get(name)
        if known is None:
            self._make_room(principal, named)
            known = named[name] = _Known(self._client(principal, name or None, version, None))
            self._nursery.start_soon(self._until_over, principal, name, known)
        known.used = trio.current_time()
        return known.client

    def _client(self, principal: Principal, name: str | None, version: str | None, keep_alive: float | None) -> Client:
        """Return a new client. Raises QueueFull."""
        session_factory, account = self._session_factories(principal), self._accounts(principal)
        return Client(
            session_factory, self._nursery, name=name, version=version, keep_alive=keep_alive, account=account
        )

    def _make_room(self, principal: Principal, named: dict[str, _Known]) -> None:
        """Forget a client without a session, if the principal has as many clients as it may. Raises MCPError."""
        if len(named) < self.most:
            return
        for name, known in named.items():
            if not self._is_open(principal, known):
                known.client.close()
                del named[name]
                return
        raise MCPError(
            code=INVALID_REQUEST,
            message=f"{self.most} clients of yours have sessions; use fewer names in clientInfo, or wait until some "
            f"have been idle for {self.idle_ttl:g} s",
        )

    def _is_open(self, principal: Principal, known: _Known) -> bool:
        """Return True if a client has a session, or is opening one."""
        session = known.client.opened
        return not known.client.idle and (session is None or self.alive(principal, session))

    async def _until_over(self, principal: Principal, name: str, known: _Known) -> None:
        """Forget a client after the idle TTL without a request, once its session has ended."""
        named = self._by_name[principal.key]
        while named.get(name) is known:
            await trio.sleep_until(known.used + self.idle_ttl)
            if known.used + self.idle_ttl > trio.current_time():
                continue
            if self._is_open(principal, known):
                # Work that it began goes on in its session.
                known.used = trio.current_time()
                continue
            known.client.close()
            if named.get(name) is known:
                del named[name]
            if not named:
                self._by_name.pop(principal.key, None)


class Sessions(StreamableHTTPSessionManager):
    """The SDK's sessions of 2025-11-25, at most `most` per principal; `gone` is called when one has ended."""

    def __init__(self, server: Server[Any], *, most: int, gone: Callable[[str], None], **settings: Any) -> None:
        super().__init__(server, **settings)
        self._most = most
        self._gone = gone

    @property
    def open(self) -> dict[str, StreamableHTTPServerTransport]:
        """The open sessions, by id."""
        return self._server_instances

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        if sum(owner == requestor for owner in self._session_owners.values()) >= self._most:
            return None
        return super()._admit_session(requestor)

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        try:
            await super()._discard_session(session_id, transport)
        finally:
            self._gone(session_id)


@define(eq=False)
class McpRoute:
    """The ASGI application at /mcp: names the principal to the SDK, so that a session serves only its owner."""

    _sessions: Sessions
    _session_factories: SessionFactories
    _max_values: int
    _accounts: Accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI; `scope["state"]["principal"]` is not None here."""
        principal: Principal = scope["state"]["principal"]
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal.key, scopes=[]))
        request = RetainedRequest(self._accounts(principal), scope["state"])
        send = request.sending(send)
        if _SESSION_ID.encode() not in dict(scope["headers"]):
            send = _opening(send)
        try:
            if scope["method"] == "POST":
                await self._post(principal, await self._read(request, receive), scope, send)
            else:
                _require_room(scope)
                streams = _takes(scope, _STREAM)
                await self._sessions.handle_request(_accepting_both(scope) if streams else scope, receive, send)
        except RpcError as error:
            status, headers = (503, {"Retry-After": "5"}) if isinstance(error, QueueFull) else (400, {})
            await Response(dump_error(None, error), status, headers, "application/json")(scope, receive, send)
        finally:
            request.let_go()

    async def _post(self, principal: Principal, read: _Again, scope: Scope, send: Send) -> None:
        """Serve a message or a batch. Raises QueueFull, ParseError, InvalidRequest."""
        call = _halt_call(read.body) if _headers_agree(scope["headers"]) else None
        if call is None:
            _require_room(scope)
        value = read_message(read.body, self._max_values)
        takes_json, takes_stream = _takes(scope, _JSON), _takes(scope, _STREAM)
        if call is not None:
            halted = await self._session_factories(principal).halt(halt_reason(call["params"].get("arguments")))
            result = {**of_halt(asdict(halted)), "resultType": "complete"}
            answer = orjson.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result})
            await Response(answer, media_type="application/json")(scope, read, send)
        elif not (takes_stream or (takes_json and not _listens(value))):
            await Response(f"{PATH} answers with {_JSON} or {_STREAM}", 406)(scope, read, send)
        elif type(value) is list:
            await self._batch(value, scope, send, stream=not takes_json)
        else:
            if not (takes_json and takes_stream):
                send = OneAnswer(send, _STREAM if takes_stream else _JSON)
            await self._sessions.handle_request(_accepting_both(scope), read, send)

    async def _read(self, request: RetainedRequest, receive: Receive) -> _Again:
        """Return an ASGI receive for the body. Raises QueueFull."""
        body, ended = await request.whole(receive)
        request.parsed(body)
        return _Again(body, receive, ended=ended)

    async def _batch(self, value: list[Any], scope: Scope, send: Send, *, stream: bool) -> None:
        """Serve the messages of a batch one after the other, and answer with the answers to all. Raises InvalidRequest.

        A revision later than 2025-03-26 has its name in each request's header, and no batches.
        """
        revision = dict(scope["headers"]).get(_REVISION, BATCHES[-1].encode())
        answers: list[bytes] = []

        async def kept(message: Message) -> None:
            if body := message.get("body"):
                answers.append(body)

        for message in batch_of(value, revision.decode("latin-1")):
            receive = _Again(orjson.dumps(message), _never, ended=True)
            await self._sessions.handle_request(_accepting_both(scope), receive, OneAnswer(kept, _JSON))
        if not answers:
            await Response(status_code=202)(scope, _never, send)
        elif stream:
            await Response(b"".join(map(_event, answers)), media_type=_STREAM)(scope, _never, send)
        else:
            await Response(b"[%b]" % b",".join(answers), media_type=_JSON)(scope, _never, send)


class _Again:
    """An ASGI receive that returns a body read before, and then the messages after it."""

    def __init__(self, body: bytes, receive: Receive, *, ended: bool) -> None:
        self._receive = receive
        self.body = body
        self._first: Message | None = {"type": "http.request", "body": body, "more_body": False}
        if not ended:
            self._first = {"type": "http.disconnect"}

    async def __call__(self) -> Message:
        first, self._first = self._first, None
        if first is None:
            return await self._receive()
        # The message is parsed in a turn of its own.
        await trio.lowlevel.checkpoint()
        return first


async def _never() -> Message:
    await trio.sleep_forever()


def _takes(scope: Scope, kind: str) -> bool:
    """Return True if a request can be answered in a media type; without an Accept field in any (RFC 9110, 12.5.1)."""
    ranges = ranges_of(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
    return not ranges or weight_of(kind, ranges) > 0


def _require_room(scope: Scope) -> None:
    """Raise QueueFull if the listener has no room for this request."""
    if scope["state"]["full"] is not None:
        raise scope["state"]["full"]


def _accepting_both(scope: Scope) -> Scope:
    """Return the scope of a request with both media types in its Accept: the SDK refuses any other."""
    others = [(name, value) for name, value in scope["headers"] if name != b"accept"]
    return {**scope, "headers": [*others, (b"accept", f"{_JSON}, {_STREAM}".encode())]}


def _listens(value: Any) -> bool:
    """Return True for a request whose answer is a stream for as long as the client listens."""
    return type(value) is dict and value.get("method") == "subscriptions/listen"


def _opening(send: Send) -> Send:
    """Return an ASGI send for a request without a session: a refusal carries no id of one, as none was opened."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            headers = [pair for pair in message["headers"] if pair[0].lower() != _SESSION_ID.encode()]
            message = {**message, "headers": headers}
        await send(message)

    return sent


class OneAnswer:
    """An ASGI send that brings the answer to a request into one media type, whichever the SDK has chosen for it.

    Of a stream it keeps the answer alone, for a client that takes only JSON. Refusals pass unchanged.
    """

    def __init__(self, send: Send, kind: str) -> None:
        self._send, self._kind = send, kind
        self._start: Message | None = None
        self._streams = False
        self._pending = self._answer = b""

    async def __call__(self, message: Message) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"").decode()
            if message["status"] == 200 and not kind.startswith(self._kind):
                self._start, self._streams = message, kind.startswith(_STREAM)
                return
        if self._start is None:
            await self._send(message)
            return
        self._pending += message.get("body", b"")
        if self._streams:
            self._read_events()
        if not message.get("more_body", False):
            body = self._answer if self._streams else _event(self._pending)
            headers = [pair for pair in self._start["headers"] if pair[0].lower() not in _OF_CONTENT]
            headers += [(b"content-type", self._kind.encode()), (b"content-length", b"%d" % len(body))]
            await self._send({**self._start, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})

    def _read_events(self) -> None:
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data and data != line.strip() and "method" not in orjson.loads(data):
                self._answer = data


_OF_CONTENT = (b"content-type", b"content-length", b"cache-control")


def _event(answer: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % answer


def _headers_agree(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if no header says that the message is anything but a call of `hacp_halt`; the SDK refuses others."""
    told = dict(headers)
    named, due = (told.get(b"mcp-method"), told.get(b"mcp-name")), (b"tools/call", HALT.encode())
    if told.get(b"mcp-protocol-version", b"") >= b"2026":
        return named == due
    return all(header in (None, meant) for header, meant in zip(named, due, strict=True))


def _halt_call(body: bytes) -> dict[str, Any] | None:
    """Return the message if it is a short call of `hacp_halt`, else None."""
    if len(body) > SMALL or HALT.encode() not in body:
        return None
    with suppress(orjson.JSONDecodeError):
        match orjson.loads(body):
            case {"id": _, "method": "tools/call", "params": {"name": name}} as call if name == HALT:
                return dict(call)
    return None


@asynccontextmanager
async def opened(
    session_factories: SessionFactories,
    providers: Sequence[Provider],
    *,
    alive: Callable[[Principal, Session], bool],
    idle_ttl: float,
    max_body: int,
    most_each: int,
    most: int,
    max_values: int,
    accounts: Accounts,
) -> AsyncIterator[list[Route]]:
    """Open the routes of MCP while the context lasts; then all its sessions end.

    `session_factories` gives each principal the factory of its sessions, `accounts` the account for its memory.
    `idle_ttl` is in seconds; `most_each` and `most` bound the MCP clients of one principal, and of all. Raises
    ConfigError.
    """
    created: list[HttpClients] = []

    @asynccontextmanager
    async def clients() -> AsyncIterator[Clients]:
        async with trio.open_nursery() as nursery:
            http_clients = HttpClients(
                session_factories, nursery, accounts, alive=alive, idle_ttl=idle_ttl, most=most_each
            )
            http_clients.sessions = sessions.open
            created.append(http_clients)
            try:
                yield http_clients
            finally:
                http_clients.close()
                nursery.cancel_scope.cancel()

    def gone(session_id: str) -> None:
        for http_clients in created:
            http_clients.gone(session_id)

    server = make_server(providers, clients(), principal=lambda ctx: caller(ctx).key)
    sessions = Sessions(
        server,
        most=most_each,
        gone=gone,
        # `AccessControl` checks Host and Origin; the SDK must not check them by other rules.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=idle_ttl,
        max_request_body_size=max_body,
        max_sessions=most,
    )
    # A client's mistakes are answered to the client; the daemon's log must not be filled by them.
    logging.getLogger("mcp").setLevel(logging.ERROR)
    async with sessions.run():
        route = McpRoute(sessions, session_factories, max_values, accounts)
        yield [Route(path, route) for path in (PATH, f"{PATH}/")]


def caller(ctx: Context) -> Principal:
    """Return the principal of a request, as `AccessControl` found it."""
    request: Any = ctx.request
    principal: Principal = request.state.principal
    return principal


def requester(request: McpRequest) -> str:
    """Return the key of a request's principal."""
    return caller(request.ctx).key
