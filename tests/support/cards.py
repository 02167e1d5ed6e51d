"""Agent cards for tests: good ones of other agents, built in full so that there is something to break everywhere."""

from __future__ import annotations

import copy
from typing import Any

EXAMPLE: dict[str, Any] = {
    "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C0",
    "name": "ResearchAnalyst",
    "version": "1.2.0",
    "capabilities": [
        {
            "id": "text.summarise",
            "description": "Summarise a document to a given word limit.",
            "input_schema": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "max_words": {"type": "integer", "default": 200}},
                "required": ["text"],
            },
        },
        {
            "id": "tool.web_search",
            "description": "Search the public web and return top-k results.",
            "tags": ["search", "retrieval"],
        },
        {"id": "data.fetch_csv", "description": "Fetch a CSV file from a URL and return parsed rows."},
    ],
    "endpoint": {
        "protocol": "https",
        "url": "https://agents.example.com/api/research-analyst",
        "auth": {"scheme": "bearer"},
    },
    "pricing": {"base_cost_joules": 2.854e-21, "per_token_joules": 1.4e-24},
    "metadata": {
        "pacr:trust_tier": "established",
        "pacr:substrate_scope": "AWS_Graviton_c7g",
        "framework": "crewai",
        "created_at": "2026-04-23T00:00:00Z",
    },
    "goal_subscriptions": [
        {"goal_id": "01HZQK3P8EMXR9V7T5N2W4J6C1", "description": "Competitive analysis for Q3 2026", "priority": 0.8}
    ],
}
"""The draft's complete example (§7)."""

SMALLEST: dict[str, Any] = {
    "agent_id": "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
    "name": "a",
    "version": "0.0.0",
    "capabilities": [{"id": "0"}],
    "endpoint": {"protocol": "stdio", "url": "stdio:agent"},
}
"""What is required, and no more."""

LARGEST: dict[str, Any] = {
    "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C2",
    "name": "分析 \U0001f9ea " + "n" * 123,
    "version": "10.20.30-rc.1+build.5",
    "capabilities": [
        {
            "id": "com.example.custom_capability-2",
            "description": "",
            "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": ["object", "null"]},
            "output_schema": {},
            "tags": [],
            "x-unknown": {"id": 5},
        }
    ],
    "endpoint": {"protocol": "mcp", "url": "mcp://[2001:db8::7]:8443/a?b=%20#c", "auth": {}, "health_url": 3},
    "pricing": {"base_cost_joules": 0, "per_token_joules": 0, "currency": "USD"},
    "metadata": {"mcp:server": [1, None], "pacr:trust_tier": "untrusted", "": False},
    "goal_subscriptions": [{"goal_id": "", "priority": 1}, {"goal_id": "b", "priority": 0.0, "why": None}],
    "$comment": "unknown fields are ignored",
}
"""Every field, at the edges of what is allowed, with unknown ones at every level."""

GOOD = (EXAMPLE, SMALLEST, LARGEST)


def card(**changes: Any) -> dict[str, Any]:
    """The draft's example with members of its top level replaced; `...` leaves one out."""
    made = copy.deepcopy(EXAMPLE)
    for name, value in changes.items():
        if value is ...:
            del made[name]
        else:
            made[name] = value
    return made


def with_capability(**members: Any) -> dict[str, Any]:
    """A card with one capability that has these members beside its id."""
    return card(capabilities=[{"id": "tool.test", **members}])


def with_endpoint(protocol: Any, url: Any, **members: Any) -> dict[str, Any]:
    """A card with this endpoint."""
    return card(endpoint={"protocol": protocol, "url": url, **members})
