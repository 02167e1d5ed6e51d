"""`hacp_plan`: a whole task of ordered steps in one call, so that a model can plan and not just call.

It takes tools by either of their names, and says of each step what became of it. What a plan may do is HACP's business:
the same checks, the same policy and the same audit as for any task (draft §3.4; design §4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from hearth.actors.bridges.mcp.calls import TaskProvider
from hearth.actors.bridges.mcp.jobs import Job
from hearth.api import Step
from hearth.mcp.icons import icon
from hearth.mcp.names import PLAN, mcp_name
from hearth.mcp.outcome import PLAN_RESULT
from hearth.protocol.methods import PRIORITIES
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.mcp.providers import Ask
    from hearth.mcp.view import ToolView

MOST_STEPS: Final = 256
"""Steps of a plan; an operator may allow fewer."""

DESCRIPTION: Final = """\
Run several steps on the hardware as one task: in order, each one tool with its arguments, under one set of rules. \
Prefer it to single calls whenever there is more than one step: it is checked as a whole before anything moves, a step \
that fails ends it, and nobody else's steps come in between with "exclusive". Try it with dry_run first: everything is \
checked and authorised, nothing is touched, and you are told what would run. The result tells of each step what became \
of it. Its risk is the highest of its steps' risks; from 3 on a person is asked first.\
"""

INPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "intent": {
            "type": "string",
            "minLength": 1,
            "maxLength": 4096,
            "description": "what this is for, in a sentence; it is kept in the audit log",
        },
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_STEPS,
            "description": "the steps, in the order in which they run",
            "items": {
                "type": "object",
                "properties": {
                    "tool": {"type": "string", "description": 'a tool\'s name, as "gpio_set" or as "gpio.set"'},
                    "args": {"type": "object", "description": "its arguments, as its own inputSchema has them"},
                },
                "required": ["tool"],
                "additionalProperties": False,
            },
        },
        "dry_run": {
            "type": "boolean",
            "default": False,
            "description": "check and authorise everything, touch nothing, and tell what would run",
        },
        "exclusive": {
            "type": "boolean",
            "default": False,
            "description": "hold every bus of the plan from its first step to its last, so that nobody comes between",
        },
        "rollback_on_failure": {
            "type": "boolean",
            "default": False,
            "description": "if the plan fails, times out or is cancelled, undo its completed steps in reverse, where "
            "their tools can",
        },
        "max_duration_ms": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 9007199254740991,
            "description": "milliseconds after which the plan is cancelled; a transfer that has begun still finishes",
        },
        "abort_on_step_failure": {
            "type": "boolean",
            "default": True,
            "description": "end the plan at the first step that fails; false: run all steps, the plan fails if any did",
        },
        "on_busy": {
            "type": "string",
            "enum": ["wait", "fail"],
            "default": "wait",
            "description": "what to do while somebody else uses a bus: wait in its queue, or fail at once",
        },
        "priority": {
            "type": "string",
            "enum": list(PRIORITIES),
            "default": "normal",
            "description": "whose turn it is first where several wait for one bus",
        },
    },
    "required": ["intent", "steps"],
    "additionalProperties": False,
}

_VALIDATOR: Final = Validator(INPUT)
_TOOL: Final = types.Tool(
    name=PLAN,
    title="Run a plan",
    description=DESCRIPTION,
    input_schema=dict(INPUT),
    output_schema=dict(PLAN_RESULT),
    annotations=types.ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
    ),
    icons=[types.Icon.model_validate(icon("plan"))],
)


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
        plan = params.arguments or {}
        if not _VALIDATOR.accepts(plan):
            raise _wrong(*_VALIDATOR.explain(plan))
        view = await ask.client.view()
        entries = [_entry(view, index, step["tool"]) for index, step in enumerate(plan["steps"])]
        steps = [Step(entry["name"], step.get("args", {})) for entry, step in zip(entries, plan["steps"], strict=True)]
        constraints = {name: value for name, value in plan.items() if name not in ("intent", "steps")}
        return Job(PLAN, plan["intent"], steps, entries, constraints, plan=True)


def _entry(view: ToolView, index: int, name: str) -> Mapping[str, Any]:
    entry = view.hacp(name) or view.hacp(mcp_name(name))
    if entry is None or name not in (entry["name"], mcp_name(entry["name"])):
        raise _wrong(f"/steps/{index}/tool", f"there is no tool {name[:100]!r}; tools/list has those there are")
    return entry


def _wrong(pointer: str, reason: str) -> MCPError:
    return MCPError(
        code=types.INVALID_PARAMS,
        message=f"Invalid arguments for {PLAN}: {pointer or 'arguments'}: {reason}. Nothing has run.",
        data={"path": pointer, "reason": reason},
    )
