"""The parameters of each HACP method: attrs values, and their readers from a JSON object (draft §3, §8).

A reader accepts exactly the declared JSON types (`params`). It ignores unknown members at every level (draft §2.5;
`known` names them), and raises InvalidParams whose data names the place by JSON pointer. Whether a session, task or
tool of that name exists is not known here. The readers are hand-written and do not use cattrs, because they run for
every request and at the daemon's start. `submissions` reads tasks, `hcp_methods` the params of hcp.*.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from attrs import frozen

from hearth.errors import UnsupportedVersion
from hearth.fields import whole
from hearth.protocol.hcp_methods import HCP_METHODS, HcpParams
from hearth.protocol.params import read_choice, read_flag, read_integer, read_optional_text, read_text, wrong
from hearth.protocol.submissions import TaskSubmit, read_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


SUPPORTED_MAJOR = 0
SUPPORTED = "0.1.0"


# The grammar of semver.org, without capture of the tails.
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?\Z",
    re.ASCII,
)


@frozen(eq=False)
class SessionOpen:
    """session.open (draft §3.1), with the two members of the deadman (hearth/actors/session.py)."""

    client_name: str | None = None
    client_version: str | None = None
    protocol_version: str | None = None
    on_disconnect: Literal["keep", "close"] = "keep"
    heartbeat_ms: int | None = None
    conversation: bool = False
    """True for the session of a model: it has no rights, only reads and prepares plans, and can be tainted."""


@frozen(eq=False)
class SessionClose:
    """session.close (draft §3.2)."""


@frozen(eq=False)
class ToolList:
    """tool.list (draft §3.3)."""


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
    from_seq: int | None = None
    """None: from the beginning, but no event that the connection follows already."""


@frozen(eq=False)
class EventsUnsubscribe:
    """task.events.unsubscribe."""

    task_id: str | None = None


@frozen(eq=False)
class PlanPrepare:
    """plan.prepare: check a task, and show what each step would change."""

    submit: TaskSubmit


@frozen(eq=False)
class PlanExecute:
    """plan.execute: run a prepared plan, at most once; `wait_ms` waits for its approval."""

    plan_id: str
    hash: str | None = None
    wait_ms: int = 0
    subscribe: bool = False


@frozen(eq=False)
class PlanList:
    """plan.list: one's own plans, and those that one may approve; `wait_ms` waits for a change after `after_seq`."""

    after_seq: int | None = None
    wait_ms: int = 0


@frozen(eq=False)
class PlanGet:
    """plan.get: one plan with its contents, for those that plan.list names it to."""

    plan_id: str


@frozen(eq=False)
class PlanApprove:
    """plan.approve: approve the plan with this id and this hash."""

    plan_id: str
    hash: str
    reason: str | None = None


@frozen(eq=False)
class PlanReject:
    """plan.reject: reject a plan, withdraw one's own, or take back one's approval of it."""

    plan_id: str
    reason: str | None = None


@frozen(eq=False)
class ApprovalGrant:
    """approval.grant: approve calls of one tool in advance, within bounds; with `dry_run` only say what."""

    tool: str
    args: Mapping[str, Mapping[str, Any]]
    """Arg -> its bound: `equals`, `min` and `max`, or `any`."""
    times: int
    within_s: int
    principal: str | None = None
    reason: str | None = None
    dry_run: bool = False


@frozen(eq=False)
class ApprovalList:
    """approval.list: the standing approvals that one has given, may revoke, or may use."""


@frozen(eq=False)
class ApprovalRevoke:
    """approval.revoke: end a standing approval."""

    approval_id: str


ApprovalParams: TypeAlias = ApprovalGrant | ApprovalList | ApprovalRevoke
MOST_TIMES = 1000
"""Uses of one standing approval."""
LONGEST_WITHIN_S = 86_400
"""The longest time for which a standing approval is given."""

PlanParams: TypeAlias = PlanPrepare | PlanExecute | PlanList | PlanGet | PlanApprove | PlanReject
LONGEST_WAIT_MS = 60_000
"""The longest `wait_ms`: shorter than the time after which an idle session is closed."""


@frozen(eq=False)
class McpInfo:
    """mcp.info (draft Table 2)."""


@frozen(eq=False)
class McpTools:
    """mcp.tools (draft Table 2)."""


@frozen(eq=False)
class McpUse:
    """mcp.use: permission for one use of a tool that the MCP bridge serves itself, by its name in the policy."""

    tool: str


@frozen(eq=False)
class HaltNow:
    """halt: stop all effects, now."""

    reason: str | None = None


@frozen(eq=False)
class HaltQuery:
    """halt.status."""


@frozen(eq=False)
class HaltReset:
    """halt.reset: of the holds of these generations, or of all."""

    holds: frozenset[int] | None = None


@frozen(eq=False)
class ObserveState:
    """observe.state: the whole runtime, as it is now."""


@frozen(eq=False)
class ObserveSubscribe:
    """observe.subscribe: the runtime as one ordered stream, from an event of `stream` on, or from a snapshot."""

    stream: str | None = None
    from_seq: int | None = None


@frozen(eq=False)
class ObserveUnsubscribe:
    """observe.unsubscribe."""


@frozen(eq=False)
class ObserveAudit:
    """observe.audit: audit records from a number on, or the newest."""

    from_seq: int | None = None
    limit: int = 100


@frozen(eq=False)
class AttestQuote:
    """attest.quote: a signed statement of what the daemon runs with, for a nonce of the caller's."""

    nonce: str
    since: int | None = None
    """The number of records of an earlier checkpoint: the answer proves that the log still begins with those."""


@frozen(eq=False)
class AttestKey:
    """attest.key: the public keys that statements are verified with."""


AttestParams: TypeAlias = AttestQuote | AttestKey
ObserveParams: TypeAlias = ObserveState | ObserveSubscribe | ObserveUnsubscribe | ObserveAudit
MOST_RECORDS = 500
"""Audit records in one answer."""


@frozen(eq=False)
class PolicyReload:
    """policy.reload: read policy, tokens and certificates again; `yes`: also if a principal may do more by that."""

    yes: bool = False


Params: TypeAlias = (
    SessionOpen
    | SessionClose
    | ToolList
    | TaskSubmit
    | TaskGet
    | TaskCancel
    | EventsSubscribe
    | EventsUnsubscribe
    | PlanParams
    | ApprovalParams
    | ObserveParams
    | AttestParams
    | PolicyReload
    | McpInfo
    | McpTools
    | McpUse
    | HaltNow
    | HaltQuery
    | HaltReset
    | HcpParams
)


def _read_halt(params: Mapping[str, Any]) -> HaltNow:
    """Return a halt, whatever its reason is: no stop is refused for its words, of which it keeps the first 256."""
    reason = params.get("reason")
    return HaltNow(reason if type(reason) is str else None)


def _read_reset(params: Mapping[str, Any]) -> HaltReset:
    holds = params.get("holds")
    if holds is not None and (type(holds) is not list or any(type(whole(one)) is not int for one in holds)):
        raise wrong("/holds", "a list of generations, which are integers", None)
    return HaltReset(None if holds is None else frozenset(map(whole, holds)))


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
        read_flag(params, "conversation", "", default=False),
    )


def _read_submit(params: Mapping[str, Any]) -> TaskSubmit:
    return read_task(params, subscribe=read_flag(params, "subscribe", "", default=False))


def _read_prepare(params: Mapping[str, Any]) -> PlanPrepare:
    submit = read_task(params, strict=True)
    if submit.idempotency_key is not None:
        raise wrong("/task/idempotency_key", "no key: a plan runs once, and its plan_id is the key", None)
    return PlanPrepare(submit)


def _wait_ms(params: Mapping[str, Any]) -> int:
    return read_integer(params, "wait_ms", "", 0, LONGEST_WAIT_MS) or 0


def _read_execute(params: Mapping[str, Any]) -> PlanExecute:
    return PlanExecute(
        read_text(params, "plan_id"),
        read_optional_text(params, "hash"),
        _wait_ms(params),
        read_flag(params, "subscribe", "", default=False),
    )


def _read_approve(params: Mapping[str, Any]) -> PlanApprove:
    return PlanApprove(read_text(params, "plan_id"), read_text(params, "hash"), read_optional_text(params, "reason"))


def _read_grant(params: Mapping[str, Any]) -> ApprovalGrant:
    args = params.get("args")
    if type(args) is not dict:
        raise wrong("/args", "an object of bounds", args)
    for name, bound in args.items():
        at = f"/args/{name[:64]}"
        if type(bound) is not dict or bound.keys() not in _BOUNDS:
            raise wrong(at, 'one of {"equals": …}, {"min": …, "max": …} and {"any": true}', bound)
        limits = [bound[key] for key in ("min", "max") if key in bound]
        if any(type(limit) not in (int, float) for limit in limits) or limits != sorted(limits):
            raise wrong(at, "numbers, min not above max", None)
        if bound.get("any", True) is not True:
            raise wrong(f"{at}/any", "true", bound["any"])
    times = read_integer(params, "times", "", 1, MOST_TIMES)
    within_s = read_integer(params, "within_s", "", 1, LONGEST_WITHIN_S)
    if times is None or within_s is None:
        raise wrong("/times" if times is None else "/within_s", "a number: each approval has an end", None)
    return ApprovalGrant(
        read_text(params, "tool"),
        args,
        times,
        within_s,
        read_optional_text(params, "principal", most=4096),
        read_optional_text(params, "reason"),
        read_flag(params, "dry_run", "", default=False),
    )


_BOUNDS = ({"equals"}, {"any"}, {"min"}, {"max"}, {"min", "max"})


def _read_subscribe(params: Mapping[str, Any]) -> EventsSubscribe:
    task_id = read_optional_text(params, "task_id")
    from_seq = read_integer(params, "from_seq", "", 0)
    if from_seq is not None and task_id is None:
        raise wrong("/from_seq", "a task_id beside it: each task counts its own events", None)
    return EventsSubscribe(task_id, from_seq)


def _read_audit(params: Mapping[str, Any]) -> ObserveAudit:
    limit = read_integer(params, "limit", "", 1, MOST_RECORDS)
    return ObserveAudit(read_integer(params, "from_seq", "", 1), 100 if limit is None else limit)


_NONCE = re.compile(r"(?:[0-9a-f]{2}){16,64}")


def _read_quote(params: Mapping[str, Any]) -> AttestQuote:
    nonce = read_text(params, "nonce", most=128)
    if not _NONCE.fullmatch(nonce):
        raise wrong("/nonce", "16 to 64 bytes as lower-case hex digits", None)
    return AttestQuote(nonce, read_integer(params, "since", "", 0))


_CLOSE = SessionClose()
_APPROVALS = ApprovalList()
_LIST = ToolList()
_MCP_INFO = McpInfo()
_MCP_TOOLS = McpTools()
_HALT_STATUS = HaltQuery()
_OBSERVE_STATE = ObserveState()
_ATTEST_KEY = AttestKey()
_OBSERVE_UNSUBSCRIBE = ObserveUnsubscribe()

METHODS: Mapping[str, Callable[[Mapping[str, Any]], Params]] = {
    "session.open": _read_open,
    "session.close": lambda _params: _CLOSE,
    "tool.list": lambda _params: _LIST,
    "task.submit": _read_submit,
    "task.get": lambda params: TaskGet(read_text(params, "task_id")),
    "task.cancel": lambda params: TaskCancel(read_text(params, "task_id")),
    "task.events.subscribe": _read_subscribe,
    "task.events.unsubscribe": lambda params: EventsUnsubscribe(read_optional_text(params, "task_id")),
    "plan.prepare": _read_prepare,
    "plan.execute": _read_execute,
    "plan.list": lambda params: PlanList(read_integer(params, "after_seq", "", 0), _wait_ms(params)),
    "plan.get": lambda params: PlanGet(read_text(params, "plan_id")),
    "plan.approve": _read_approve,
    "plan.reject": lambda params: PlanReject(read_text(params, "plan_id"), read_optional_text(params, "reason")),
    "approval.grant": _read_grant,
    "approval.list": lambda _params: _APPROVALS,
    "approval.revoke": lambda params: ApprovalRevoke(read_text(params, "approval_id")),
    "mcp.info": lambda _params: _MCP_INFO,
    "mcp.tools": lambda _params: _MCP_TOOLS,
    "mcp.use": lambda params: McpUse(read_text(params, "tool")),
    "halt": _read_halt,
    "halt.status": lambda _params: _HALT_STATUS,
    "halt.reset": _read_reset,
    "observe.state": lambda _params: _OBSERVE_STATE,
    "observe.subscribe": lambda params: ObserveSubscribe(
        read_optional_text(params, "stream"), read_integer(params, "from_seq", "", 1)
    ),
    "observe.unsubscribe": lambda _params: _OBSERVE_UNSUBSCRIBE,
    "observe.audit": _read_audit,
    "policy.reload": lambda params: PolicyReload(read_flag(params, "yes", "", default=False)),
    "attest.quote": _read_quote,
    "attest.key": lambda _params: _ATTEST_KEY,
    **HCP_METHODS,
}
"""Method name -> reader of its params object (all but a HACP session_id, which `read_session_id` takes first)."""


def read_session_id(params: Mapping[str, Any]) -> str:
    """The session a request names; all but session.open and hcp.* have it. Raises InvalidParams."""
    return read_text(params, "session_id")
