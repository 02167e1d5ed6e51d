"""The definitions of `hacp_plan`, a whole task in one call, and of `hacp_halt`.

The bridge runs them (`hearth.actors.bridges.mcp.server`), and HACP authorises them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.mcp.families import icon
from hearth.mcp.names import HALT, PLAN
from hearth.mcp.results import PLAN_RESULT
from hearth.protocol.submissions import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Mapping


MOST_STEPS: Final = 256
"""Limit of the steps of a plan; an operator may set a lower one."""

DESCRIPTION: Final = """\
Run several steps on the hardware as one task: in order, each one tool with its arguments, under one set of rules. \
Prefer it to single calls whenever there is more than one step: it is checked as a whole before anything moves, a step \
that fails ends it, and with "exclusive" no other task's steps run in between. Try it with dry_run first: everything \
is checked and authorised, nothing is touched, and the result says what would run. The result has the outcome of each \
step. The risk of a plan is the highest of its steps' risks; from 3 on a person is asked first.\
"""

PLAN_INPUT: Final[Mapping[str, Any]] = {
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
                    "expect": {
                        "type": "object",
                        "description": "the effect that must be seen, or the step fails: a tool of risk 0 that reads, "
                        "its args, and members of its result in equals, min or max, within_ms: "
                        '{"tool": "gpio_get", "args": {"line": 27}, "equals": {"value": 1}, "within_ms": 500}',
                    },
                },
                "required": ["tool"],
                "additionalProperties": False,
            },
        },
        "dry_run": {
            "type": "boolean",
            "default": False,
            "description": "check and authorise everything, touch nothing, and report what would run",
        },
        "exclusive": {
            "type": "boolean",
            "default": False,
            "description": "hold every bus of the plan from its first step to its last: no other task runs in between",
        },
        "rollback_on_failure": {
            "type": "boolean",
            "default": False,
            "description": "if the plan fails, times out or is cancelled, undo its completed steps in reverse, where "
            "their tools can",
        },
        "max_duration_ms": {
            "type": "number",
            "minimum": 0,
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
            "description": "what to do while another task uses a bus: wait in its queue, or fail at once",
        },
        "priority": {
            "type": "string",
            "enum": list(PRIORITIES),
            "default": "normal",
            "description": "which task goes first if several wait for one bus",
        },
    },
    "required": ["intent", "steps"],
    "additionalProperties": False,
}

CONSTRAINTS: Final = tuple(name for name in PLAN_INPUT["properties"] if name not in ("intent", "steps"))
"""The arguments of a plan that are about the whole task."""

PLAN_DEFINITION: Final[Mapping[str, Any]] = {
    "name": PLAN,
    "title": "Run a plan",
    "description": DESCRIPTION,
    "inputSchema": PLAN_INPUT,
    "outputSchema": PLAN_RESULT,
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    "icons": [icon("plan")],
}
"""An MCP Tool object."""


HALT_INPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "reason": {
            "type": "string",
            "maxLength": 256,
            "description": "what is wrong, for the person who looks at the machine; it is kept in the audit log",
        }
    },
    "required": ["reason"],
    "additionalProperties": False,
}

HALT_DEFINITION: Final[Mapping[str, Any]] = {
    "name": HALT,
    "title": "Halt",
    "description": "Stop all effects of this machine at once, for every client: nothing that acts begins any more, "
    "tasks that act are cancelled, and outputs go to their safe states. Call it when something is wrong in the real "
    "world and you cannot be sure to put it right; it is always allowed. Reading goes on. Only a person can "
    "end the halt.",
    "inputSchema": HALT_INPUT,
    "outputSchema": {
        "type": "object",
        "properties": {
            "halted": {"type": "boolean", "description": "true"},
            "since": {"type": "string", "description": "the time of the halt, in UTC"},
            "reason": {"type": "string", "description": "why the machine is halted; the first reason stays"},
            "latched": {"type": "boolean", "description": "whether the halt would outlive a restart of the daemon"},
        },
        "required": ["halted", "since", "reason", "latched"],
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
    "icons": [icon("halt")],
}
"""An MCP Tool object. There is none for a reset: a person looks at the machine first."""
