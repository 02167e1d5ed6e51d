"""The members that each method's params have, and what is done about others (draft §2.5; design §8).

They are ignored, and named in the answer; with `strict` the request is refused instead. A client of ours asks for that,
and holds what it sends against the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.known_members import Known, refusal
from hearth.protocol.members import read_flag
from hearth.protocol.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.protocol.methods import Params


def _params(*names: str, **inside: Known) -> Known:
    return Known(frozenset((*names, *inside, "session_id", "strict")), inside)


_CONSTRAINTS = Known(
    frozenset(
        (
            "max_duration_ms",
            "abort_on_step_failure",
            "max_risk_level",
            "rollback_on_failure",
            "exclusive",
            "on_busy",
            "dry_run",
            "priority",
        )
    )
)
_STEPS = Known(None, items=Known(frozenset(("tool", "args"))))
_TASK = Known(
    frozenset(("intent", "steps", "constraints", "idempotency_key")), {"constraints": _CONSTRAINTS, "steps": _STEPS}
)

KNOWN: Mapping[str, Known] = {
    "session.open": _params("client_name", "client_version", "protocol_version", "on_disconnect", "heartbeat_ms"),
    "session.close": _params(),
    "tool.list": _params(),
    "task.submit": _params("subscribe", task=_TASK),
    "task.get": _params("task_id"),
    "task.cancel": _params("task_id"),
    "task.events.subscribe": _params("task_id", "from_seq"),
    "task.events.unsubscribe": _params("task_id"),
    "mcp.info": _params(),
    "mcp.tools": _params(),
    "mcp.use": _params("tool"),
    "hcp.capabilities": _params(),
    "hcp.sessions": _params(),
    "hcp.attach": _params("from_sequence"),
    "hcp.artifact": _params("uri", "offset", "len"),
    "hcp.pending": _params(),
    "hcp.decide": _params("approval_id", "approve", "reason"),
    "hcp.withdraw": _params("message_id", "reason"),
}
"""Method name -> what is understood of its params; a tool's args are known by its schema."""


def read_params(method: str, params: Mapping[str, Any]) -> tuple[Params, tuple[str, ...]]:
    """A method's params, and where in them something is ignored.

    Raises InvalidParams, also because of what is not understood if they are strict, and UnsupportedVersion.
    """
    read, known = METHODS[method](params), KNOWN[method]
    strict = "strict" in params and read_flag(params, "strict", "", default=False)
    if known.knows(params):
        return read, ()
    strangers = known.strangers(params)
    if strict:
        raise refusal(strangers)
    return read, tuple([one.pointer for one in strangers])


def require_known(method: str, params: Mapping[str, Any]) -> None:
    """Refuse what a client would send and nobody would understand. Raises InvalidParams."""
    strangers = KNOWN[method].strangers(params)
    if strangers:
        raise refusal(strangers)
