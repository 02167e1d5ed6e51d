"""What an MCP client can read here: the board, its sensors, the tool manifest, the head of the audit log, its tasks.

Owns the hearth:// URIs and what stands behind each. Everything is read through the client's own HACP session, as steps
of hw.board, hw.sensor.list and hw.sensor.read, so with the rights of its principal and on the record; a tool that the
session may not use takes its resources away. Telling of changes is `subscriptions`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

import mcp_types as types
import orjson

from hearth.actors.bridges.mcp.calls import submit
from hearth.actors.bridges.mcp.failures import no_resource
from hearth.actors.bridges.mcp.jobs import Job
from hearth.actors.bridges.mcp.providers import Ask, Provider
from hearth.actors.bridges.mcp.subscriptions import EVERY, Changes
from hearth.api import Step
from hearth.errors import CarrierError, DeviceError, InvalidParams, RpcError, SessionInvalid, TaskNotFound, from_wire
from hearth.mcp.names import mcp_name
from hearth.mcp.outcome import of_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hearth.actors.bridges.mcp.clients import Client
    from hearth.api import Session

T = TypeVar("T")

BOARD: Final = "hearth://board"
SENSORS: Final = "hearth://sensors"
SENSOR: Final = f"{SENSORS}/"
"""Followed by a sensor's name, percent-encoded; a name with slashes in it is taken as it is, too."""
TOOLS: Final = "hearth://tools"
AUDIT: Final = "hearth://audit/head"
TASK: Final = "hearth://tasks/"
"""Followed by a task id."""

MIME: Final = "application/json"


class Resources(Provider):
    """See the module. `changes` has the `listen` of subscriptions/listen; `every`: seconds between two looks."""

    def __init__(self, *, every: float = EVERY) -> None:
        self.changes = Changes(watchable, essence, every=every)

    async def resources(self, ask: Ask) -> Sequence[types.Resource]:
        """See Provider. Sensors that cannot be listed at the moment are left out."""
        view = await ask.client.view()

        def may(tool: str) -> bool:
            return view.find(tool) is not None

        found = []
        if may("hw.board"):
            found.append(_resource(BOARD, "board", "The board", "Its buses, what is not driven, and its health", 0.9))
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
            found += await _sensors(ask.client)
        return found

    async def templates(self, ask: Ask) -> Sequence[types.ResourceTemplate]:
        """See Provider."""
        view = await ask.client.view()
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

    async def read(self, ask: Ask, params: types.ReadResourceRequestParams) -> types.ReadResourceResult | None:
        """See Provider."""
        try:
            value = await _value(ask.client, params.uri)
        except (InvalidParams, TaskNotFound) as error:
            raise no_resource(ask, params.uri, error.message) from None
        except DeviceError as error:
            if (error.data or {}).get("errno") != "ENODEV":
                raise
            raise no_resource(ask, params.uri, error.message) from None
        if value is None:
            return None
        text = orjson.dumps(value).decode()
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=MIME, text=text)]
        )

    async def subscribe(self, ask: Ask, params: types.SubscribeRequestParams) -> bool:
        """See Provider."""
        return await self.changes.subscribe(ask, params.uri)

    async def unsubscribe(self, ask: Ask, params: types.UnsubscribeRequestParams) -> bool:
        """See Provider."""
        return self.changes.unsubscribe(ask, params.uri)


# --- what stands behind a URI ---------------------------------------------------------------------------------------


async def _value(client: Client, uri: str) -> Mapping[str, Any] | None:
    """The JSON object at a URI, None for a URI that is not ours. Raises RpcError, CarrierError."""
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
    told: Mapping[str, Any] = of_task(result)["structuredContent"]
    return {**told, "intent": result.intent}


async def _run(client: Client, uri: str, tool: str, **args: Any) -> Mapping[str, Any]:
    """What a tool that only reads answers. Raises the RpcError that it or its submission failed with, CarrierError."""
    running = await submit(client, Job(mcp_name(tool), f"resources/read {uri[:256]}", (Step(tool, args),), ()))
    try:
        (step,) = (await running.result()).steps
    except BaseException:
        # Whoever gave up waiting is the only one who knows of the task.
        await running.cancel()
        raise
    if step.result is not None:
        return step.result
    raise from_wire(
        {"code": step.error_code, "message": step.error or f"{tool} {step.status}", "data": step.error_data}
    )


async def _in_session(client: Client, ask: Callable[[Session], Awaitable[T]]) -> T:
    """Ask something of the client's session; of a new one, if it turns out to have ended."""
    for last in (False, True):
        session = await client.session()
        try:
            return await ask(session)
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


# --- what can be watched, and what in it counts ---------------------------------------------------------------------


def watchable(uri: str) -> str | None:
    """The one spelling of a URI whose changes are told of: a sensor's, and the board's. None for all others."""
    if uri == BOARD:
        return uri
    if uri.startswith(SENSOR) and uri != SENSOR:
        return SENSOR + quote(unquote(uri.removeprefix(SENSOR)), safe="")
    return None


async def essence(client: Client, uri: str) -> object:
    """What of a watchable resource is compared: a sensor's value as it is; of the board, how its parts are.

    The board's counters and the audit log's head move with every look, and so count for nothing.
    """
    value = await _value(client, uri)
    assert value is not None, "what is watchable can be read"
    if uri != BOARD:
        return value["value"]
    health = value["health"]
    buses = {bus: (state["state"], state.get("reason")) for bus, state in health["buses"].items()}
    return (health["ok"], health["audit"]["ok"], buses)


# --- as MCP has it --------------------------------------------------------------------------------------------------


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
