"""A second reading of AgentCards: the ten rules of the draft's section 5, and the types and MUSTs of its section 2.

In as few words as they need. It shares no code with the validator, and is not clever: it says only good or bad.
"""

from __future__ import annotations

import re
import string
from fractions import Fraction

import jsonschema
import jsonschema_rs

URI = jsonschema_rs.Draft202012Validator({"format": "uri"}, validate_formats=True)
META = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)
ABSENT = object()


def is_valid(card):
    """The ten rules, and the types around them."""
    try:
        top(card)
    except AssertionError:
        return False
    return True


def top(card, is_schema=META.is_valid):
    """Raises AssertionError for a card that breaks a rule. `is_schema` judges the schemas in it."""

    def get(holder, name, *types):
        value = holder.get(name, ABSENT)
        assert value is ABSENT or (isinstance(value, types) and not (isinstance(value, bool) and bool not in types))
        return value

    assert isinstance(card, dict)
    assert {"agent_id", "name", "version", "capabilities", "endpoint"} <= card.keys()
    agent_id, name, version = (get(card, field, str) for field in ("agent_id", "name", "version"))
    assert len(agent_id) == 26  # rule 1
    assert set(agent_id) <= set(string.digits + string.ascii_uppercase) - set("ILOU")
    assert 1 <= len(name) <= 128
    semver = (
        r"^(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z\-.]+)?(?:\+[0-9A-Za-z\-.]+)?$"  # as printed
    )
    assert version.isascii()  # rule 2
    assert not version.endswith("\n")
    assert re.match(semver, version)
    assert get(card, "capabilities", list)  # rule 3
    for capability in card["capabilities"]:
        assert isinstance(capability, dict)
        assert "id" in capability
        letters = set(string.ascii_lowercase + string.digits)
        assert get(capability, "id", str)  # rule 4
        assert capability["id"][0] in letters
        assert set(capability["id"]) <= letters | set("._-")
        get(capability, "description", str)
        tags = get(capability, "tags", list)
        assert tags is ABSENT or all(isinstance(tag, str) for tag in tags)
        for field in ("input_schema", "output_schema"):
            schema = get(capability, field, dict)
            if schema is not ABSENT:
                assert is_schema(schema)
    endpoint = get(card, "endpoint", dict)
    assert {"protocol", "url"} <= endpoint.keys()
    protocol, url = get(endpoint, "protocol", str), get(endpoint, "url", str)
    assert protocol in ("http", "https", "grpc", "stdio", "mcp")  # rule 5
    assert URI.is_valid(url)  # rule 6
    if protocol in ("http", "https"):
        scheme = "https?" if protocol == "http" else "https"
        assert re.match(f"{scheme}://(?:[^/?#@]*@)?[^/?#:]", url, re.IGNORECASE)
    if protocol == "stdio":
        assert url.lower().split(":")[0] not in ("http", "https", "ws", "wss", "ftp", "grpc", "grpcs")
    auth = get(endpoint, "auth", dict)
    if auth is not ABSENT:
        assert auth.get("scheme", "none") in ("none", "bearer", "api_key", "oauth2", "mtls")
    pricing = get(card, "pricing", dict)
    if pricing is not ABSENT:
        base, token = (get(pricing, field, int, float) for field in ("base_cost_joules", "per_token_joules"))
        # The fraction of the double that "2.854e-21" is, in exact arithmetic.
        assert base is ABSENT or base == 0 or Fraction(base) >= Fraction(float("2.854e-21"))  # rule 7
        assert token is ABSENT or Fraction(token) >= 0  # rule 8
    metadata = get(card, "metadata", dict)
    if metadata is not ABSENT and "pacr:trust_tier" in metadata:  # rule 9
        tier = metadata["pacr:trust_tier"]
        assert isinstance(tier, str)
        assert tier in ("untrusted", "basic", "established", "verified", "banned")
    goals = get(card, "goal_subscriptions", list)
    for goal in () if goals is ABSENT else goals:
        assert isinstance(goal, dict)
        assert isinstance(goal.get("goal_id"), str)
        get(goal, "description", str)
        priority = get(goal, "priority", int, float)
        assert priority is ABSENT or 0 <= priority <= 1
