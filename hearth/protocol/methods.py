"""Each HACP method's parameters: attrs values, and how they are read from a JSON object (draft §3, §8; design §8).

A reader takes exactly the declared JSON types (no coercion: `true` is not 1, "5" is not 5), takes null for an
optional member as if it were left out, ignores unknown members at every level (draft §2.5; `known` names them), and
raises InvalidParams whose data names the place by JSON pointer. Whether a session, task or tool of that name exists is
not known here. Reading is by hand and not by cattrs because these few lines are on the path of every request, and on
that of the daemon's start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from attrs import field, frozen

from hearth.errors import UnsupportedVersion
from hearth.protocol.hcp_methods import (
    HCP_METHODS,
    HcpArtifact as HcpArtifact,
    HcpAttach as HcpAttach,
    HcpCapabilities as HcpCapabilities,
    HcpDecide as HcpDecide,
    HcpParams as HcpParams,
    HcpPending as HcpPending,
    HcpSessions as HcpSessions,
)
from hearth.protocol.members import (
    MAX_SAFE,
    read_choice,
    read_flag,
    read_integer,
    read_optional_text,
    read_text,
    wrong,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]
PRIORITIES: Mapping[str, int] = {"low": 0, "normal": 1, "high": 2, "urgent": 3}

SUPPORTED_MAJOR = 0
SUPPORTED = "0.1.0"
MOST_STEPS = 4096
"""Steps that are read at all: a server's own limit is lower, and reading must not take it long to refuse."""

# The grammar of semver.org, without capture of the tails.
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?\Z",
    re.ASCII,
)


@frozen(eq=False)
class SessionOpen:
    """session.open (draft §3.1), with the deadman's two members (design §4)."""

    client_name: str | None = None
    client_version: str | None = None
    protocol_version: str | None = None
    on_disconnect: Literal["keep", "close"] = "keep"
    heartbeat_ms: int | None = None


@frozen(eq=False)
class SessionClose:
    """session.close (draft §3.2)."""


@frozen(eq=False)
class ToolList:
    """tool.list (draft §3.3)."""


@frozen(eq=False)
class StepSpec:
    """One step as submitted."""

    tool: str
    args: Mapping[str, Any]


@frozen(eq=False)
class Constraints:
    """task.constraints (draft §3.4; design §4)."""

    max_duration_ms: float | None = None
    abort_on_step_failure: bool = True
    max_risk_level: int | None = None
    rollback_on_failure: bool = False
    exclusive: bool = False
    on_busy: Literal["wait", "fail"] = "wait"
    dry_run: bool = False
    priority: Priority = "normal"


NO_CONSTRAINTS = Constraints()


@frozen(eq=False)
class TaskSubmit:
    """task.submit (draft §3.4)."""

    intent: str
    steps: tuple[StepSpec, ...]
    constraints: Constraints = NO_CONSTRAINTS
    idempotency_key: str | None = None
    subscribe: bool = False
    strict: bool = False


@frozen(eq=False)
class TaskGet:
    """task.get (draft §3.5)."""

    task_id: str


@frozen(eq=False)
class TaskCancel:
    """task.cancel (draft §3.6)."""

    task_id: str


@frozen(eq=False)
class EventsSubscribe:
    """task.events.subscribe (draft §8). Without a task_id: every task of the session."""

    task_id: str | None = None
    from_seq: int = field(default=1)


@frozen(eq=False)
class EventsUnsubscribe:
    """task.events.unsubscribe (design §8)."""

    task_id: str | None = None


@frozen(eq=False)
class McpInfo:
    """mcp.info (draft Table 2)."""


@frozen(eq=False)
class McpTools:
    """mcp.tools (draft Table 2)."""


@frozen(eq=False)
class McpUse:
    """mcp.use: leave for one use of a tool that the MCP bridge serves itself, by its name in the policy."""

    tool: str


Params: TypeAlias = (
    SessionOpen
    | SessionClose
    | ToolList
    | TaskSubmit
    | TaskGet
    | TaskCancel
    | EventsSubscribe
    | EventsUnsubscribe
    | McpInfo
    | McpTools
    | McpUse
    | HcpParams
)


def _read_open(params: Mapping[str, Any]) -> SessionOpen:
    version = read_optional_text(params, "protocol_version")
    if version is not None:
        matched = _SEMVER.match(version)
        if matched is None:
            raise wrong("/protocol_version", 'a semantic version such as "0.1.0"', None)
        if int(matched[1]) > SUPPORTED_MAJOR:
            raise UnsupportedVersion(
                f"protocol {version} is not spoken here; the highest is {SUPPORTED}", data={"supported": [SUPPORTED]}
            )
    return SessionOpen(
        read_optional_text(params, "client_name"),
        read_optional_text(params, "client_version"),
        version,
        cast("Any", read_choice(params, "on_disconnect", "", ("keep", "close"), "keep")),
        read_integer(params, "heartbeat_ms", "", 50, 86_400_000),
    )


def _read_step(value: Any, index: int) -> StepSpec:
    at = f"/task/steps/{index}"
    if type(value) is not dict:
        raise wrong(at, "an object", value)
    tool = value.get("tool")
    if type(tool) is not str:
        raise wrong(f"{at}/tool", "a string", tool)
    # A fresh object for each: a tool that writes into a shared one would change the steps of other sessions.
    args = value.get("args", {})
    if type(args) is not dict:
        raise wrong(f"{at}/args", "an object", args)
    return StepSpec(tool, args)


def _read_constraints(value: Any) -> Constraints:
    at = "/task/constraints"
    if value is None:
        return NO_CONSTRAINTS
    if type(value) is not dict:
        raise wrong(at, "an object", value)
    duration = value.get("max_duration_ms")
    if duration is not None and (type(duration) not in (int, float) or not 0 < duration <= MAX_SAFE):
        raise wrong(f"{at}/max_duration_ms", "a number of milliseconds above 0", None)
    return Constraints(
        duration,
        read_flag(value, "abort_on_step_failure", at, default=True),
        read_integer(value, "max_risk_level", at, 0, 3),
        read_flag(value, "rollback_on_failure", at, default=False),
        read_flag(value, "exclusive", at, default=False),
        cast("Any", read_choice(value, "on_busy", at, ("wait", "fail"), "wait")),
        read_flag(value, "dry_run", at, default=False),
        cast("Any", read_choice(value, "priority", at, tuple(PRIORITIES), "normal")),
    )


def _read_submit(params: Mapping[str, Any]) -> TaskSubmit:
    task = params.get("task")
    if type(task) is not dict:
        raise wrong("/task", "an object", task)
    steps = task.get("steps")
    if type(steps) is not list:
        raise wrong("/task/steps", "an array", steps)
    if not steps:
        raise wrong("/task/steps", "at least one step", None)
    if len(steps) > MOST_STEPS:
        raise wrong("/task/steps", f"at most {MOST_STEPS} steps", None)
    key = read_optional_text(task, "idempotency_key", "/task")
    if key == "":
        # Whoever fills in every member would otherwise get the first task's answer for every other one.
        raise wrong("/task/idempotency_key", "at least one character", None)
    return TaskSubmit(
        read_text(task, "intent", "/task"),
        tuple([_read_step(step, index) for index, step in enumerate(steps)]),
        _read_constraints(task.get("constraints")),
        key,
        read_flag(params, "subscribe", "", default=False),
        read_flag(params, "strict", "", default=False),
    )


def _read_subscribe(params: Mapping[str, Any]) -> EventsSubscribe:
    task_id = read_optional_text(params, "task_id")
    from_seq = read_integer(params, "from_seq", "", 0)
    if from_seq is not None and task_id is None:
        raise wrong("/from_seq", "a task_id beside it: each task counts its own events", None)
    return EventsSubscribe(task_id, 1 if from_seq is None else from_seq)


_CLOSE = SessionClose()
_LIST = ToolList()
_MCP_INFO = McpInfo()
_MCP_TOOLS = McpTools()

METHODS: Mapping[str, Callable[[Mapping[str, Any]], Params]] = {
    "session.open": _read_open,
    "session.close": lambda _params: _CLOSE,
    "tool.list": lambda _params: _LIST,
    "task.submit": _read_submit,
    "task.get": lambda params: TaskGet(read_text(params, "task_id")),
    "task.cancel": lambda params: TaskCancel(read_text(params, "task_id")),
    "task.events.subscribe": _read_subscribe,
    "task.events.unsubscribe": lambda params: EventsUnsubscribe(read_optional_text(params, "task_id")),
    "mcp.info": lambda _params: _MCP_INFO,
    "mcp.tools": lambda _params: _MCP_TOOLS,
    "mcp.use": lambda params: McpUse(read_text(params, "tool")),
    **HCP_METHODS,
}
"""Method name -> reader of its params object (all but a HACP session_id, which `read_session_id` takes first)."""


def read_session_id(params: Mapping[str, Any]) -> str:
    """The session a request names; all but session.open and hcp.* have it. Raises InvalidParams."""
    return read_text(params, "session_id")
