"""MCP Tool definitions: the tools of a session, `hacp_plan`, and the four AgentCard tools.

This module maps names in both directions and writes the definitions. It does not know the caller, and not the SDK.

The bridge itself serves the AgentCard tools, beside the session, and asks the session before each use
(`hearth.policy.uses`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hearth.mcp.arguments import Arguments, flat, plain, portable, same
from hearth.mcp.names import (
    CARD_TOOLS,
    CLOSED,
    HALT,
    LONGEST_SHOWN,
    MEANS,
    META_TOOL,
    PLAN,
    by_mcp_name,
    icon,
    mcp_name,
)
from hearth.mcp.results import PLAN_RESULT
from hearth.policy.uses import BY_NAME, refusal
from hearth.protocol.methods import PRIORITIES
from hearth.tools import CARD_NAMESPACE, RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hearth.policy.rules import Grant

# --- plan -------------------------------------------------------------------------------------------------------------
# The definition of `hacp_plan`: a whole task in one call. The bridge runs it (`hearth.actors.bridges.mcp.server`),
# and HACP authorises it.

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


# --- view -------------------------------------------------------------------------------------------------------------


class ToolView:
    """The entries of `tool.list`, by MCP name and in their order. Raises ConfigError for two with one MCP name."""

    def __init__(self, manifest: Iterable[Mapping[str, Any]]) -> None:
        self._by_hacp = entries = {entry["name"]: entry for entry in manifest}
        self._entries = {mcp: entries[name] for mcp, name in by_mcp_name(entries).items()}
        self._definitions: list[dict[str, Any]] | None = None
        self._arguments: dict[str, Arguments] = {}
        self._named = Naming(self._by_hacp)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> Mapping[str, Any] | None:
        """Return the `tool.list` entry for an MCP name, a HACP name or an id in the AgentCard; None if it is unknown.

        A name never means two tools: an MCP name has no dot, and no HACP name begins with the prefix of an id.
        """
        if "." not in name:
            return self._entries.get(name)
        return self._by_hacp.get(name) or self._by_hacp.get(name.removeprefix(CARD_NAMESPACE))

    def names(self) -> list[str]:
        """Return every name that a client may use, except the ids of the AgentCard."""
        return [*self._entries, *self._by_hacp]

    def arguments(self, entry: Mapping[str, Any]) -> Arguments:
        """Return the check of the arguments of an entry's tool."""
        name = entry["name"]
        if name not in self._arguments:
            # By the tool's own schema, not by the published one, which accepts more.
            self._arguments[name] = Arguments(portable(flat(entry["params_schema"]), self._named))
        return self._arguments[name]

    def definitions(self) -> list[dict[str, Any]]:
        """Return an MCP Tool object for each entry; they are made once, so do not change them."""
        if self._definitions is None:
            self._definitions = [_definition(entry, self._named) for entry in self._entries.values()]
        return self._definitions


# --- search -----------------------------------------------------------------------------------------------------------
# Names that a model makes up, and the words of a task, lead to the tools that were probably meant.

_CLOSE_ENOUGH: Final = 2.2
"""The least score of a tool that is suggested: one word of its name, or most of its letters."""
_MOST_WORDS: Final = 32


def search(query: str, tools: Iterable[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return up to `most` of the tools (MCP Tool objects) that fit the words of a query, the best first.

    A word counts where it is in a tool's name, more if it begins the name, and a little in its description; letters
    that the whole query and a name have in common count too, for a misspelt name.
    """
    from difflib import SequenceMatcher  # 5 ms, and only when something is searched for

    asked = _words(query)[:_MOST_WORDS]
    means = [(word, *MEANS.get(word, ())) for word in asked]
    alike = SequenceMatcher(b="_".join(asked))
    scored: list[tuple[float, Mapping[str, Any]]] = []
    for tool in tools:
        name, told = _words(tool["name"]), frozenset(_words(str(tool.get("description", ""))))
        alike.set_seq1("_".join(name))
        score = 2.0 * alike.ratio()
        for group in means:
            score += max(_worth(word, name, told) for word in group)
        scored.append((score, tool))
    close = [pair for pair in scored if pair[0] >= _CLOSE_ENOUGH + _worth_of_few(asked)]
    return [tool for _, tool in sorted(close, key=lambda pair: -pair[0])[:most]]


NEAR: Final = 3
"""Tools that are suggested for an unknown name."""


def near_tools(name: str, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the MCP names of the tools that an unknown name may stand for, the nearest first."""
    equal = same(name[:LONGEST_SHOWN], [tool["name"] for tool in tools])
    return [equal] if equal else [tool["name"] for tool in search(name[:LONGEST_SHOWN], tools, NEAR)]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+[0-9]*[a-z]*|[0-9]+", text[:4096].lower())


def _worth(word: str, name: Sequence[str], told: frozenset[str]) -> float:
    if name and word == name[0]:
        return 3.0
    if word in name:
        return 2.0
    long = [part for part in name if len(part) > _SHORT]
    if len(word) > _SHORT and any(part.startswith(word) or word.startswith(part) for part in long):
        return 1.5
    return 0.5 if word in told else 0.0


_SHORT: Final = 2


def _worth_of_few(asked: Sequence[str]) -> float:
    """Return what the threshold is lowered by for a query of one word, whose letters then count alone."""
    return -0.8 if len(asked) < _SHORT else 0.0


class Naming:
    """A rewriter of text about tools: it replaces HACP names by MCP names."""

    def __init__(self, names: Iterable[str]) -> None:
        # The longest name first: "gpio.set.v2" must not match as "gpio.set".
        known = sorted(names, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, known))})(?![\w]|\.\w)")

    def __call__(self, text: str) -> str:
        """Return the text with MCP names for HACP names; names that are not tools of the session stay."""
        return self._pattern.sub(lambda found: mcp_name(found[1]), text)


_OWN_MEMBERS = frozenset(("description", "params_schema", "result_schema"))
"""Members of an entry that have a member of their own in an MCP Tool. All others, unknown ones too, go to _meta (draft
§3.3)."""


def _definition(entry: Mapping[str, Any], named: Naming) -> dict[str, Any]:
    """Return the MCP Tool object of one `tool.list` entry; it is valid in MCP 2025-11-25 and in 2026-07-28.

    Only the members that the draft requires (§3.3) are expected in the entry: another server may send no more.
    """
    name = entry["name"]
    made = {
        "name": mcp_name(name),
        "title": name,
        "description": named(in_words(entry)),
        "inputSchema": plain(portable(flat(entry["params_schema"]), named)),
    }
    if "result_schema" in entry:
        made["outputSchema"] = plain(portable(entry["result_schema"], named))
    told = {member: value for member, value in entry.items() if member not in _OWN_MEMBERS}
    return {
        **made,
        "annotations": hints(entry),
        "icons": [icon(family(name))],
        "_meta": {META_TOOL: {**told, "risk": risk_name(entry["risk_level"])}},
    }


# --- risk level and rollback as MCP annotations, and in words ---------------------------------------------------------
# MCP's annotations are hints for people and clients. Only the daemon's policy decides what a session may do.


def family(name: str) -> str:
    """Return the first segment of a tool's name."""
    return name.partition(".")[0]


def risk_name(level: int) -> str:
    """Return the name of a risk level (draft §3.3, Table 4); a level of a later protocol gets the highest name."""
    return RISK_NAMES[min(level, len(RISK_NAMES) - 1)]


def hints(entry: Mapping[str, Any]) -> dict[str, bool]:
    """Return all four of MCP's ToolAnnotations for a tool.list entry.

    A tool is destructive if it cannot be undone: risk 3, and risk 2 without rollback. It is idempotent if it has no
    effect (risk 0), or its entry says so (`idempotent`).
    """
    risk, undoable = entry["risk_level"], entry.get("supports_rollback") is True
    return {
        "readOnlyHint": risk == 0,
        "destructiveHint": risk >= 3 or (risk == 2 and not undoable),
        "idempotentHint": risk == 0 or entry.get("idempotent") is True,
        "openWorldHint": family(entry["name"]) not in CLOSED,
    }


def _least(entry: Mapping[str, Any]) -> str:
    least = entry.get("least_risk")
    return "" if least is None else f" at most, and {least} for some arguments"


def in_words(entry: Mapping[str, Any]) -> str:
    """Return the description, with the risk and the rollback in words for a model."""
    risk = entry["risk_level"]
    undoable = entry.get("supports_rollback") is True
    said = str(entry.get("description") or entry["name"]).rstrip()
    said = said if said.endswith((".", "!", "?")) else f"{said}."
    level = f"Risk {risk} ({risk_name(risk)})"
    if risk == 0:
        return f"{said} {level}: only reads."
    level += _least(entry)
    what = {1: "may change something, which is easily put right", 2: "acts on the real world"}.get(
        risk, "cannot be taken back: a person is asked first"
    )
    back = f"; within {PLAN} it can be rolled back" if undoable else "; there is no rollback"
    return f"{said} {level}: {what}{back if risk < 3 or undoable else ''}."


# --- card tools -------------------------------------------------------------------------------------------------------
# The definitions of the four AgentCard tools. Names and arguments are those of the draft's [AGENTCARD-MCP]; a card may
# also be an object, as §3 of the draft requires. The bridge runs them (`hearth.actors.bridges.mcp.cards`).

DECLARE, RESOLVE, VALIDATE, LIST = CARD_TOOLS

MAX_QUERY: Final = 128
"""Limit of a query in code points, the same as that of a name."""
IDS_SHOWN: Final = 16
"""Limit of the capability ids of one agent in a list; agentcard_resolve returns all."""

_CLAIM = (
    "A declared card is a claim of the principal who declared it: its capabilities and its trust tier have not been "
    "checked, so grant nothing because of them."
)


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _object(properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of these members."""
    return portable({"properties": dict(properties), "required": list(properties), **more})


def _input(properties: Mapping[str, Any]) -> dict[str, Any]:
    return portable(flat(_object(properties)))


def _array(items: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": description}


_CARD_JSON: Mapping[str, Any] = {
    "description": "the AgentCard: a JSON object, or a string with the JSON of one",
    "anyOf": [{"type": "object"}, {"type": "string"}],
}
_ORIGIN: Mapping[str, Any] = {
    "declared_by": {
        "type": ["string", "null"],
        "description": "the principal who declared it, by this server's name for it; null for this server's own card",
    },
    "declared_at": {
        "type": ["string", "null"],
        "description": "when, in UTC (RFC 3339); null for this server's own card",
    },
    "own": {"type": "boolean", "description": "true for the card of this server itself"},
}
_SUMMARY: Mapping[str, Any] = {
    "agent_id": _text("its ULID"),
    "name": _text("its display name"),
    "version": _text("the version of its card"),
    "endpoint": _text("where it says that it is reached"),
    "capabilities": {"type": "integer", "description": "how many it claims"},
    "capability_ids": _array({"type": "string"}, f"the first {IDS_SHOWN} of them"),
    **_ORIGIN,
}
_FINDING: Mapping[str, Any] = {
    "pointer": _text("JSON pointer of the place; empty for the whole card"),
    "rule": _text("the part of draft-aevum-agentcard-00 that it breaks"),
    "problem": _text("what is there"),
    "cure": _text("what to put there"),
}


def _tool(name: str, title: str, description: str, takes: dict[str, Any], gives: dict[str, Any]) -> Mapping[str, Any]:
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": takes,
        "outputSchema": gives,
        "annotations": {
            "readOnlyHint": name != DECLARE,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
        "icons": [icon("agentcard")],
    }


CARD_DEFINITIONS: Final = (
    _tool(
        DECLARE,
        "Declare an AgentCard",
        "Register an agent's card (draft-aevum-agentcard-00), so that other agents that use this server find it by "
        f"{RESOLVE} and {LIST}. The card must be valid. Declared again under the same agent_id it takes the place of "
        "the former one, which only the principal who declared that may do. It is kept when the server is restarted. "
        f"{_CLAIM}",
        _input({"card_json": _CARD_JSON}),
        _object(_SUMMARY),
    ),
    _tool(
        RESOLVE,
        "Resolve an agent",
        "Look up an agent's card by its agent_id (26 characters), or by its name or a part of it, without regard to "
        "case. If several fit, they are listed to choose from by agent_id. The card of this server itself is among "
        f"them. {_CLAIM}",
        _input({"query": _text("an agent_id, or a part of a name", minLength=1, maxLength=MAX_QUERY)}),
        _object(
            {
                "match": {
                    "description": "the one agent that fits; null if several do",
                    "anyOf": [
                        _object({"card": {"type": "object", "description": "its AgentCard"}, **_ORIGIN}),
                        {"type": "null"},
                    ],
                },
                "candidates": _array(_object(_SUMMARY), "the agents that fit, if they are several"),
            }
        ),
    ),
    _tool(
        VALIDATE,
        "Validate an AgentCard",
        "Check a card against every rule of draft-aevum-agentcard-00, before it is published or believed. The result "
        "lists each fault with its place, the rule and the cure. Unknown fields are not faults. That a card is valid "
        "says nothing about whether its claims are true.",
        _input({"card_json": _CARD_JSON}),
        _object(
            {
                "valid": {"type": "boolean", "description": "true if no rule is broken"},
                "findings": _array(_object(_FINDING), "the faults, in the order of the fields"),
            }
        ),
    ),
    _tool(
        LIST,
        "List agents",
        f"List the agents whose cards are known here: this server first, then those declared. {_CLAIM}",
        _input({}),
        _object(
            {
                "agents": _array(_object(_SUMMARY), "the agents; those declared by agent_id"),
                "skipped": _array(
                    _object({"file": _text("its name"), "reason": _text("why it is none")}),
                    "files of the registry that are no declared cards, for the operator",
                ),
                "skipped_more": {"type": "integer", "description": "how many more such files there are"},
            }
        ),
    ),
)
"""MCP Tool objects, in the order in which they are listed."""


def usable(grant: Grant) -> list[str]:
    """Return the MCP names of the AgentCard tools that a session with this grant may use."""
    return [mcp_name for mcp_name in CARD_TOOLS if refusal(BY_NAME[policy_name(mcp_name)], grant) is None]


def policy_name(mcp_name: str) -> str:
    """Return the policy's name of an AgentCard tool: `agentcard.list` for `agentcard_list`."""
    return mcp_name.replace("_", ".", 1)
