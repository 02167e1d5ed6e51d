"""The JSON Schema of AgentCards that `agentcard://schema` answers with: draft-aevum-agentcard-00 §2 and §5 as a schema.

It is written from the draft and not the public project's file, which contradicts it (protocol names, a required
description, no unknown fields). It says what a schema can say, in patterns that mean the same to every dialect of
regular expressions; what a URI is to the letter is for `agentcard_validate`, whose verdict is the one that counts.
"""

from __future__ import annotations

from typing import Any, Final

from hearth.agentcard.validate import AUTH_SCHEMES, LANDAUER_J, NAME_POINTS, PROTOCOLS, TRUST_TIERS

_META: Final = "https://json-schema.org/draft/2020-12/schema"


def _scheme(name: str) -> dict[str, Any]:
    """An endpoint of this protocol has a URL that begins with it, in whatever case."""
    letters = "".join(f"[{letter.upper()}{letter}]" for letter in name)
    return {
        "if": {"properties": {"protocol": {"const": name}}, "required": ["protocol"]},
        "then": {"properties": {"url": {"pattern": f"^{letters}://[^/?#]"}}},
    }


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


_CAPABILITY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": _text("what it is called, with dots between the parts of the name", pattern=r"^[a-z0-9][a-z0-9._-]*$"),
        "description": _text("one to three sentences: what it does, takes and returns"),
        "input_schema": {"type": "object", "description": "JSON Schema 2020-12 of its parameters", "$ref": _META},
        "output_schema": {"type": "object", "description": "JSON Schema 2020-12 of its result", "$ref": _META},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "words to find it by"},
    },
}
_ENDPOINT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "how the agent is reached",
    "required": ["protocol", "url"],
    "properties": {
        "protocol": {"type": "string", "enum": list(PROTOCOLS), "description": "what is spoken there"},
        "url": _text("a URI (RFC 3986) that fits the protocol", format="uri", pattern="^[A-Za-z][A-Za-z0-9+.-]*:"),
        "auth": {
            "type": "object",
            "description": "the authentication that is asked for there",
            "properties": {"scheme": {"type": "string", "enum": list(AUTH_SCHEMES), "default": "none"}},
        },
    },
    "allOf": [_scheme("http"), _scheme("https")],
}
_PRICING: Final[dict[str, Any]] = {
    "type": "object",
    "description": "what using the agent costs, in joules",
    "properties": {
        "base_cost_joules": {
            "type": "number",
            "description": "energy of an invocation: 0, or at least the Landauer limit at 300 K as the draft has it",
            "anyOf": [{"const": 0}, {"minimum": LANDAUER_J}],
        },
        "per_token_joules": {"type": "number", "description": "further energy for each output token", "minimum": 0},
    },
}
_GOAL: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["goal_id"],
    "properties": {
        "goal_id": _text("which goal"),
        "description": _text("what it is about"),
        "priority": {"type": "number", "description": "the agent's commitment to it", "minimum": 0, "maximum": 1},
    },
}

CARD_SCHEMA: Final[dict[str, Any]] = {
    "$schema": _META,
    "title": "AgentCard",
    "description": "What an agent says of itself (draft-aevum-agentcard-00). Unknown fields are ignored at all levels.",
    "type": "object",
    "required": ["agent_id", "name", "version", "capabilities", "endpoint"],
    "properties": {
        "agent_id": _text("a ULID: who the agent is, for ever", pattern="^[0-9A-HJKMNP-TV-Z]{26}$"),
        "name": _text("a display name, which others may have too", minLength=1, maxLength=NAME_POINTS),
        "version": _text(
            "the semantic version of the card",
            pattern=r"^(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)"
            r"(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?$",
        ),
        "capabilities": {
            "type": "array",
            "description": "what the agent can do, the most prominent first",
            "minItems": 1,
            "items": _CAPABILITY,
        },
        "endpoint": _ENDPOINT,
        "pricing": _PRICING,
        "metadata": {
            "type": "object",
            "description": "anything else",
            "properties": {
                "pacr:trust_tier": {
                    "type": "string",
                    "enum": list(TRUST_TIERS),
                    "description": "what the agent says of its own trustworthiness",
                },
            },
        },
        "goal_subscriptions": {"type": "array", "items": _GOAL, "description": "the goals that the agent works for"},
    },
}
