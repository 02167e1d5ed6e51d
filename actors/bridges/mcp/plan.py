"""`hacp_plan`: a whole task of ordered steps in one call, so that a model can plan and not just call.

It takes tools by either of their names, and says of each step what became of it. What a plan may do is HACP's business:
the same checks, the same policy and the same audit as for any task (draft §3.4; design §4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from hearth.actors.bridges.mcp.calls import TaskProvider
from hearth.actors.bridges.mcp.jobs import Job, arguments_of
from hearth.api import Step
from hearth.mcp.names import PLAN, nearest
from hearth.mcp.plan import DEFINITION, INPUT
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.mcp.providers import Ask
    from hearth.mcp.view import ToolView

_VALIDATOR: Final = Validator(INPUT)
_TOOL: Final = types.Tool.model_validate(DEFINITION)


class Plan(TaskProvider):
    """See the module."""

    async def tools(self, ask: Ask) -> Sequence[types.Tool]:
        """See Provider."""
        del ask
        return (_TOOL,)

    async def job(self, ask: Ask, params: types.CallToolRequestParams) -> Job | None:
        """See TaskProvider. Raises MCPError for a plan that cannot be read, or that names a tool there is not."""
        if params.name != PLAN:
            return None
        plan = arguments_of(params)
        if not _VALIDATOR.accepts(plan):
            raise _wrong(*_VALIDATOR.explain(plan))
        view = await ask.client.view()
        entries = [_entry(view, index, step["tool"]) for index, step in enumerate(plan["steps"])]
        steps = [Step(entry["name"], step.get("args", {})) for entry, step in zip(entries, plan["steps"], strict=True)]
        constraints = {name: value for name, value in plan.items() if name not in ("intent", "steps")}
        return Job(PLAN, plan["intent"], steps, entries, constraints, plan=True)


def _entry(view: ToolView, index: int, name: str) -> Mapping[str, Any]:
    entry = view.find(name)
    if entry is None:
        near = nearest(name, view.names())
        raise _wrong(f"/steps/{index}/tool", f"there is no tool {name[:100]!r}{near} tools/list has those there are")
    return entry


def _wrong(pointer: str, reason: str) -> MCPError:
    return MCPError(
        code=types.INVALID_PARAMS,
        message=f"Invalid arguments for {PLAN}: {pointer or 'arguments'}: {reason}. Nothing has run.",
        data={"path": pointer, "reason": reason},
    )
