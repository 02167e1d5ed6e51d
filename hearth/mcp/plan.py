"""`hacp_plan` as an MCP client is shown it: what a whole task in one call takes, and what is said of it.

How a plan runs is the bridge's (`hearth.actors.bridges.mcp.offers`), and what it may do is HACP's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.mcp.icons import icon
from hearth.mcp.names import PLAN
from hearth.mcp.outcome import PLAN_RESULT
from hearth.protocol.methods import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

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

DEFINITION: Final[Mapping[str, Any]] = {
    "name": PLAN,
    "title": "Run a plan",
    "description": DESCRIPTION,
    "inputSchema": INPUT,
    "outputSchema": PLAN_RESULT,
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    "icons": [icon("plan")],
}
"""An MCP Tool object."""
