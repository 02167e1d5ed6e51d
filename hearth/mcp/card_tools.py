"""The definitions of the four AgentCard tools in MCP.

The bridge itself serves them beside the session (`hearth.actors.bridges.mcp.cards`), and asks the session before each
use (`hearth.policy.uses`). Names and arguments are those of the draft's [AGENTCARD-MCP]; a card may also be an object,
as §3 of the draft requires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.mcp.families import icon
from hearth.mcp.names import CARD_TOOLS
from hearth.mcp.schemas import flat, portable
from hearth.policy.uses import BY_NAME, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.policy.rules import Grant

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


def policy_name(mcp_name: str) -> str:
    """Return the policy's name of an AgentCard tool: `agentcard.list` for `agentcard_list`."""
    return mcp_name.replace("_", ".", 1)


def usable(grant: Grant) -> list[str]:
    """Return the MCP names of the AgentCard tools that a session with this grant may use."""
    return [mcp_name for mcp_name in CARD_TOOLS if refusal(BY_NAME[policy_name(mcp_name)], grant) is None]
