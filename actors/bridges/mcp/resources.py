"""The MCP resources: the board, its sensors, the tool manifest, the head of the audit log, and the client's tasks.

This module owns the hearth:// URIs and their contents. Everything is read through the client's own HACP session, as
steps of hw.board, hw.sensor.list and hw.sensor.read: with its principal's rights, and audited. If the session may not
use a tool, its resources are missing. `Changes` owns the subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

import mcp_types as types
import orjson
import trio
from attrs import define, field
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import (
    SUBSCRIPTION_ID_META_KEY,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
    event_to_notification,
)

from hearth.actors.bridges.mcp.calls import ConsentRequest, submit
from hearth.actors.bridges.mcp.provider import McpRequest, Provider, no_resource
from hearth.api import Step
from hearth.errors import (
    AuditUnavailable,
    CarrierError,
    DeviceError,
    HearthError,
    InvalidParams,
    QueueFull,
    RateLimited,
    ResourceBusy,
    RpcError,
    SessionInvalid,
    TaskNotFound,
    from_wire,
)
from hearth.mcp.names import mcp_name
from hearth.mcp.results import of_task
from hearth.policy.memory import MCP_WATCH_BYTES, text_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import Client
    from hearth.api import Session
    from hearth.policy.memory import Account

# --- Subscriptions to resources, and the polling behind them ----------------------------------------------------------
#
# `Changes` owns one poller for each subscribed resource of each client, however many subscriptions there are; the
# limits; and both ways to report a change, resources/subscribe (until 2025-11-25) and subscriptions/listen (from
# 2026-07-28 on). Its creator defines the resources, and what counts as a change.
#
# A poller reads through its client's own session, so it has only the client's rights. It ends with the last
# subscription or with the client, whichever is first.

EVERY: Final = 2.0
"""Seconds between two polls of one resource: each is an audited task, in a history of 256 tasks."""
MOST_WATCHED: Final = 32
"""Resources that one client may have watched at a time."""
MOST_STREAMS: Final = 16
"""Streams of subscriptions/listen that one client may have open at a time."""

Look: TypeAlias = "Callable[[Client, str], Awaitable[object]]"
"""The value of the resource with a canonical URI that is compared with its former one. Raises HearthError."""

Notify: TypeAlias = "Callable[[], Awaitable[None]]"

_PASSING = (AuditUnavailable, QueueFull, RateLimited, ResourceBusy)
"""Refusals that do not tell whether a resource exists and may be read."""
_UNKNOWN: Final = object()


class _Watch:
    """The watch on one resource of one client, polled while `subscribers` is not empty."""

    __slots__ = ("_account", "error", "ready", "scope", "seen", "subscribers")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.subscribers: dict[object, tuple[Notify, int]] = {}
        """By token: the function to call, and the bytes charged for it."""
        self.ready = trio.Event()
        """Set after the first poll: a value that differs from that one is a change."""
        self.error: HearthError | None = None
        """The error of the first poll, if the resource cannot be watched."""
        self.seen: object = _UNKNOWN
        self.scope = trio.CancelScope()

    def drop(self, token: object) -> bool:
        """Remove one subscription; False if it is removed already."""
        _, size = self.subscribers.pop(token, (None, 0))
        self._account.release(size)
        return size > 0


class _ClientSubscriptions:
    """The subscriptions of one client. The keys of `watches` are canonical URIs, those of `plain` are as given."""

    __slots__ = ("plain", "streams", "watches")

    def __init__(self) -> None:
        self.watches: dict[str, _Watch] = {}
        self.plain: dict[str, object] = {}
        self.streams = 0


@define(eq=False)
class Changes:
    """All subscriptions of one server's clients.

    `canonical` returns a URI's one canonical spelling, or None if it cannot be watched. `every`: seconds between two
    polls.
    """

    _canonical: Callable[[str], str | None]
    _look: Look
    every: float = field(default=EVERY, kw_only=True)
    _subscriptions: WeakKeyDictionary[Client, _ClientSubscriptions] = field(factory=WeakKeyDictionary, init=False)

    async def subscribe(self, request: McpRequest, uri: str) -> bool:
        """Report changes to this client until it unsubscribes or goes; False for a foreign URI.

        A second subscription to the same URI changes nothing. Raises MCPError beyond the limit, QueueFull, and the
        errors of the first poll.
        """
        key = self._canonical(uri)
        if key is None:
            return False
        subscribed = self._subscribed_of(request.client)
        if uri in subscribed.plain:
            return True
        session = request.ctx.session

        async def notify() -> None:
            await session.send_resource_updated(uri)

        token = object()
        try:
            watch = self._enter(request.client, key, uri, token, notify)
            if watch is None:
                raise MCPError(
                    types.INVALID_REQUEST,
                    f"this client has {MOST_WATCHED} resources watched already; unsubscribe from one of them first",
                )
            await watch.ready.wait()
            if watch.error is not None:
                raise watch.error
            if subscribed.plain.setdefault(uri, token) is not token:  # another request for the same was faster
                _drop(subscribed, key, token)
        except InvalidParams:
            _drop(subscribed, key, token)
            return False
        except BaseException:
            _drop(subscribed, key, token)
            raise
        return True

    def unsubscribe(self, request: McpRequest, uri: str) -> bool:
        """End a subscription; False for a foreign URI."""
        key = self._canonical(uri)
        if key is None:
            return False
        subscribed = self._subscribed_of(request.client)
        if uri in subscribed.plain:
            _drop(subscribed, key, subscribed.plain.pop(uri))
        return True

    async def listen(
        self, request: McpRequest, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream, which ends when the client ends it or goes.

        The acknowledgement names the watched URIs. It leaves out those that cannot be watched, that this client may not
        read, or that exceed the limit; also changes of lists other than that of the tools, which do not change. Raises
        MCPError for one stream too many, QueueFull, CarrierError.
        """
        request_id = request.ctx.request_id
        assert request_id is not None, "what is answered has an id"
        subscribed = self._subscribed_of(request.client)
        if subscribed.streams >= MOST_STREAMS:
            raise MCPError(
                types.INVALID_REQUEST,
                f"this client has {MOST_STREAMS} streams open already; end one, or list all resources on one stream",
            )
        stream = _Stream(request, request_id)
        entered: list[tuple[str, object]] = []
        tools_changed = stream.notifier(ToolsListChanged())
        subscribed.streams += 1
        try:
            if params.notifications.tools_list_changed:
                request.client.list_readers.add(tools_changed)
            watches: list[tuple[str, _Watch]] = []
            for uri in dict.fromkeys(params.notifications.resource_subscriptions or ()):
                key = self._canonical(uri)
                token = object()
                watch = (
                    None
                    if key is None
                    else self._enter(request.client, key, uri, token, stream.notifier(ResourceUpdated(uri)))
                )
                if key is not None and watch is not None:
                    entered.append((key, token))
                    watches.append((uri, watch))
            honoured = [uri for uri, watch in watches if await _can_be_watched(watch)]
            await stream.acknowledge(honoured, tools=params.notifications.tools_list_changed or None)
            await stream.run(request.client.gone)
        finally:
            subscribed.streams -= 1
            request.client.list_readers.discard(tools_changed)
            for key, token in entered:
                _drop(subscribed, key, token)
        return types.SubscriptionsListenResult(_meta=stream.meta)

    # --- one poller for each resource ---------------------------------------------------------------------------

    def _subscribed_of(self, client: Client) -> _ClientSubscriptions:
        return self._subscriptions.setdefault(client, _ClientSubscriptions())

    def _enter(self, client: Client, key: str, uri: str, token: object, notify: Notify) -> _Watch | None:
        """Call `notify` whenever the resource has changed since the watch's first poll.

        Returns None beyond the limit. Raises QueueFull.
        """
        watches = self._subscribed_of(client).watches
        watch = watches.get(key)
        if watch is None and len(watches) >= MOST_WATCHED:
            return None
        # One resource has many spellings, so each subscription is charged as if it had a poller of its own.
        size = MCP_WATCH_BYTES + text_bytes(uri)
        client.account.charge(size)
        if watch is None:
            watch = watches[key] = _Watch(client.account)
            client.nursery.start_soon(self._poll, client, key, watch)
        watch.subscribers[token] = notify, size
        return watch

    async def _poll(self, client: Client, key: str, watch: _Watch) -> None:
        subscribed = self._subscribed_of(client)
        try:
            with watch.scope:
                pause = await self._poll_once(client, key, watch)
                while watch.error is None:
                    watch.ready.set()
                    with trio.move_on_after(pause):
                        await client.gone.wait()
                        break
                    pause = await self._poll_once(client, key, watch)
        finally:
            if subscribed.watches.get(key) is watch:
                del subscribed.watches[key]
            for token in list(watch.subscribers):
                watch.drop(token)
            # Subscribers that wait for the first poll must not wait for a poller that has ended.
            if not watch.ready.is_set():
                watch.error = watch.error or HearthError("the subscription ended before anything was looked at")
                watch.ready.set()

    async def _poll_once(self, client: Client, key: str, watch: _Watch) -> float:
        """Poll once, report a change, and return the seconds until the next poll.

        A device that does not answer is a state like any other: its begin and its end are changes. A temporary refusal
        (a full queue, a rate) gives no value.
        """
        try:
            now: object = await self._look(client, key)
        except DeviceError as error:
            now = error.symbol
        except HearthError as error:
            if not watch.ready.is_set() and not isinstance(error, _PASSING):
                watch.error = error
            retry_ms = (error.data or {}).get("retry_after_ms", 0) if isinstance(error, RateLimited) else 0
            return max(self.every, retry_ms / 1000)
        before, watch.seen = watch.seen, now
        if before is not _UNKNOWN and before != now:
            for notify, _ in list(watch.subscribers.values()):
                await notify()
        return self.every


class _Stream:
    """The changes that one subscriptions/listen has yet to send: each at most once, since a change has no data."""

    def __init__(self, request: McpRequest, request_id: types.RequestId) -> None:
        self.meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: request_id}
        self._session = request.ctx.session
        self._request_id = request_id
        self._changed: dict[ServerEvent, None] = {}
        self._wake = trio.Event()

    def notifier(self, event: ServerEvent) -> Notify:
        """Return the function that notes a change; it never waits for the stream's reader."""

        async def notify() -> None:
            self._changed[event] = None
            self._wake.set()

        return notify

    async def acknowledge(self, uris: list[str], *, tools: bool | None) -> None:
        honoured = types.SubscriptionFilter(resource_subscriptions=uris or None, tools_list_changed=tools)
        await self._send(
            types.SubscriptionsAcknowledgedNotification(
                params=types.SubscriptionsAcknowledgedNotificationParams(notifications=honoured, _meta=self.meta)
            )
        )

    async def run(self, gone: trio.Event) -> None:
        """Send changes until the client has gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._notify)
            await gone.wait()
            nursery.cancel_scope.cancel()

    async def _notify(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            changed, self._changed = self._changed, {}
            for event in changed:
                await self._send(event_to_notification(event, self.meta))

    async def _send(self, notification: types.ServerNotification) -> None:
        await self._session.send_notification(notification, related_request_id=self._request_id)


async def _can_be_watched(watch: _Watch) -> bool:
    """Wait for the first poll; False if the resource cannot be watched. Raises CarrierError."""
    await watch.ready.wait()
    if isinstance(watch.error, CarrierError):
        raise watch.error
    return watch.error is None


def _drop(subscribed: _ClientSubscriptions, key: str, token: object) -> None:
    """Remove the subscription with this token; the last one ends the poller."""
    watch = subscribed.watches.get(key)
    if watch is not None and watch.drop(token) and not watch.subscribers:
        del subscribed.watches[key]
        watch.scope.cancel()


T = TypeVar("T")

BOARD: Final = "hearth://board"
SENSORS: Final = "hearth://sensors"
SENSOR: Final = f"{SENSORS}/"
"""Followed by a sensor's name, percent-encoded; slashes in it are accepted as they are."""
TOOLS: Final = "hearth://tools"
AUDIT: Final = "hearth://audit/head"
TASK: Final = "hearth://tasks/"
"""Followed by a task id."""

MIME: Final = "application/json"


class Resources(Provider):
    """The provider of the resources.

    `changes` has the `listen` of subscriptions/listen; `every`: seconds between polls.
    """

    def __init__(self, *, every: float = EVERY) -> None:
        self.changes = Changes(watchable, compared_value, every=every)

    async def resources(self, request: McpRequest) -> Sequence[types.Resource]:
        """See Provider. Sensors that cannot be listed at the moment are left out."""
        view = await request.client.view()

        def may(tool: str) -> bool:
            return view.find(tool) is not None

        found = []
        if may("hw.board"):
            found.append(
                _resource(BOARD, "board", "The board", "Its buses, its parts that are not driven, and its health", 0.9)
            )
        if may("hw.sensor.list"):
            found.append(
                _resource(SENSORS, "sensors", "Sensors", "All sensors with their units; measures nothing", 0.7)
            )
        found.append(_resource(TOOLS, "tools", "Tool manifest", "The tools of this session, by their HACP names", 0.4))
        if may("hw.board"):
            found.append(
                _resource(AUDIT, "audit_head", "Head of the audit log", "Its last record's number and hash", 0.2)
            )
        if may("hw.sensor.list") and may("hw.sensor.read"):
            found += await _sensors(request.client)
        return found

    async def templates(self, request: McpRequest) -> Sequence[types.ResourceTemplate]:
        """See Provider."""
        view = await request.client.view()
        task = types.ResourceTemplate(
            uri_template=f"{TASK}{{task_id}}",
            name="task",
            title="A task",
            description="The state and the results of a task of this session; it remembers the last 256",
            mime_type=MIME,
            annotations=_annotations(0.5),
        )
        if view.find("hw.sensor.read") is None:
            return (task,)
        sensor = types.ResourceTemplate(
            uri_template=f"{SENSOR}{{name}}",
            name="sensor",
            title="A sensor",
            description="What a sensor measures now; subscribe to hear of changes",
            mime_type=MIME,
            annotations=_annotations(0.8),
        )
        return (sensor, task)

    async def read(
        self, request: McpRequest, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | None:
        """See Provider."""
        try:
            value = await _value(request.client, params.uri)
        except (InvalidParams, TaskNotFound) as error:
            raise no_resource(request, params.uri, error.message) from None
        except DeviceError as error:
            if (error.data or {}).get("errno") != "ENODEV":
                raise
            raise no_resource(request, params.uri, error.message) from None
        if value is None:
            return None
        text = orjson.dumps(value).decode()
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=MIME, text=text)]
        )

    async def subscribe(self, request: McpRequest, params: types.SubscribeRequestParams) -> bool:
        """See Provider."""
        return await self.changes.subscribe(request, params.uri)

    async def unsubscribe(self, request: McpRequest, params: types.UnsubscribeRequestParams) -> bool:
        """See Provider."""
        return self.changes.unsubscribe(request, params.uri)


# --- the contents behind a URI --------------------------------------------------------------------------------------


async def _value(client: Client, uri: str) -> Mapping[str, Any] | None:
    """Return the JSON object at a URI; None for a foreign URI. Raises RpcError, CarrierError."""
    if uri == BOARD:
        return await _run(client, uri, "hw.board")
    if uri == SENSORS:
        return await _run(client, uri, "hw.sensor.list")
    if uri == TOOLS:
        return {"tools": await _in_session(client, lambda session: session.tools())}
    if uri == AUDIT:
        audit: Mapping[str, Any] = (await _run(client, uri, "hw.board"))["health"]["audit"]
        return audit
    if uri.startswith(SENSOR) and uri != SENSOR:
        return await _run(client, uri, "hw.sensor.read", sensor=unquote(uri.removeprefix(SENSOR)))
    if uri.startswith(TASK) and uri != TASK:
        return await _in_session(client, lambda session: _task(session, uri.removeprefix(TASK)))
    return None


async def _task(session: Session, task_id: str) -> Mapping[str, Any]:
    result = await (await session.task(task_id)).get()
    state: Mapping[str, Any] = of_task(result)["structuredContent"]
    return {**state, "intent": result.intent}


async def _run(client: Client, uri: str, tool: str, **args: Any) -> Mapping[str, Any]:
    """Run a reading tool and return its result. Raises its RpcError or that of its submission, CarrierError."""
    running = await submit(
        client, ConsentRequest(mcp_name(tool), f"resources/read {uri[:256]}", (Step(tool, args),), ())
    )
    try:
        (step,) = (await running.result()).steps
    except BaseException:
        # The caller that gave up is the only one that knows the task's id.
        await running.cancel()
        raise
    if step.result is not None:
        return step.result
    raise from_wire(
        {"code": step.error_code, "message": step.error or f"{tool} {step.status}", "data": step.error_data}
    )


async def _in_session(client: Client, request: Callable[[Session], Awaitable[T]]) -> T:
    """Run a request in the client's session; in a new one if that turns out to have ended."""
    for last in (False, True):
        session = await client.session()
        try:
            return await request(session)
        except (SessionInvalid, CarrierError) as error:
            client.forget(session, error)
            if last or not isinstance(error, SessionInvalid):
                raise
    raise AssertionError("the second time returns or raises")


async def _sensors(client: Client) -> list[types.Resource]:
    try:
        listed = (await _run(client, SENSORS, "hw.sensor.list"))["sensors"]
    except RpcError:
        return []
    return [
        types.Resource(
            uri=SENSOR + quote(sensor["sensor"], safe=""),
            name=sensor["sensor"],
            title=sensor.get("label") or sensor["sensor"],
            description=f"{sensor['kind']} in {sensor['unit']}, on {sensor['bus']}"
            + (f": {sensor['description']}" if "description" in sensor else ""),
            mime_type=MIME,
            annotations=_annotations(0.8),
        )
        for sensor in listed
    ]


# --- watchable resources --------------------------------------------------------------------------------------------


def watchable(uri: str) -> str | None:
    """Return the canonical spelling of a URI that can be watched (a sensor's, or the board's); None for all others."""
    if uri == BOARD:
        return uri
    if uri.startswith(SENSOR) and uri != SENSOR:
        return SENSOR + quote(unquote(uri.removeprefix(SENSOR)), safe="")
    return None


async def compared_value(client: Client, uri: str) -> object:
    """Return the value of a watchable resource to compare: a sensor's value; the states of the board's parts.

    The board's counters and the audit log's head change with every poll, and are left out.
    """
    value = await _value(client, uri)
    assert value is not None, "what is watchable can be read"
    if uri != BOARD:
        return value["value"]
    health = value["health"]
    buses = {bus: (state["state"], state.get("reason")) for bus, state in health["buses"].items()}
    return (health["ok"], health["audit"]["ok"], buses)


# --- MCP's form -----------------------------------------------------------------------------------------------------


def _resource(uri: str, name: str, title: str, description: str, priority: float) -> types.Resource:
    return types.Resource(
        uri=uri,
        name=name,
        title=title,
        description=description,
        mime_type=MIME,
        annotations=_annotations(priority),
    )


def _annotations(priority: float) -> types.Annotations:
    return types.Annotations(audience=["user", "assistant"], priority=priority)
