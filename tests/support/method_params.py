"""The smallest params that each HACP method takes, and the methods that need a session: for tests of all methods."""

from __future__ import annotations

from typing import Any, Final

MINIMAL: Final[dict[str, dict[str, Any]]] = {
    "attest.quote": {"nonce": "0f" * 16},
    "task.submit": {"task": {"intent": "i", "steps": [{"tool": "t"}]}},
    "task.get": {"task_id": "t"},
    "task.cancel": {"task_id": "t"},
    "plan.prepare": {"task": {"intent": "i", "steps": [{"tool": "t"}]}},
    "plan.execute": {"plan_id": "p"},
    "plan.approve": {"plan_id": "p", "hash": "h"},
    "plan.get": {"plan_id": "p"},
    "plan.reject": {"plan_id": "p"},
    "approval.grant": {"tool": "t", "args": {}, "times": 1, "within_s": 1},
    "approval.revoke": {"approval_id": "a"},
    "mcp.use": {"tool": "t"},
    "hcp.attach": {"session_id": "s"},
    "hcp.artifact": {"uri": "hcp://s/artifacts/f"},
    "hcp.decide": {"approval_id": "a"},
    "hcp.withdraw": {"message_id": "m"},
}
"""Method -> its params without `session_id`, where it requires any."""


def needs_a_session(method: str) -> bool:
    """Return True if the method's params name the session that the caller works in."""
    return method != "session.open" and not method.startswith("hcp.")
