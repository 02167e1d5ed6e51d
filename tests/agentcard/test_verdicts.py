"""Thousands of strangers' cards by mutation: the validator's verdict is that of a second, independent reading.

The oracle below restates the ten rules of the draft's section 5, and the types and MUSTs of its section 2, in as few
words as they need. It shares no code with the validator, and is not clever: it says only good or bad.
"""

import copy
import json
import random
import re
import string
from fractions import Fraction

import jsonschema
import jsonschema_rs
import pytest
from support.cards import EXAMPLE, GOOD, LARGEST

from hearth.agentcard.validate import validate

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


def top(card):
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
                assert META.is_valid(schema)
    endpoint = get(card, "endpoint", dict)
    assert {"protocol", "url"} <= endpoint.keys()
    protocol, url = get(endpoint, "protocol", str), get(endpoint, "url", str)
    assert protocol in ("http", "https", "grpc", "stdio", "mcp")  # rule 5
    assert URI.is_valid(url)  # rule 6
    if protocol in ("http", "https"):
        assert re.match(f"{protocol}://(?:[^/?#@]*@)?[^/?#:]", url, re.IGNORECASE)
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


STRANGE = [
    None, True, False, 0, 1, -1, 2, 0.5, 1e-21, 2.854e-21, 2.8539999999999996e-21, 1e-300, 10**20, "", "a", "A", "0",
    "1.0.0", "01.0.0", "1.0.0-x", "http", "https", "grpc", "stdio", "mcp", "websocket", "none", "mtls", "basic",
    "verified", "object",
    "https://a.example", "http://a.example/x", "mcp://a", "stdio:x", "no uri", "https://", "a" * 129,
    "\U0001f9ea" * 128,
    "01HZQK3P8EMXR9V7T5N2W4J6C9", "01HZQK3P8EMXR9V7T5N2W4J6CI", [], {}, [None], ["a"], [{}], {"id": "a"}, {"type": 5},
    {"scheme": "x"}, {"goal_id": "g"}, [{"id": "tool.x"}], {"type": "object", "properties": {"a": {"type": "string"}}},
]  # fmt: skip
ALPHABET = string.ascii_letters + string.digits + "._-+:/@%[]#? \n\u0660é"


def places(value, path=()):
    """The paths of all values in a document, that of the whole first."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from places(member, (*path, key))


def mutated(rng, card):
    """A card with one to three things changed: replaced, removed, added, or one character of a text."""
    card = copy.deepcopy(card)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice([path for path in places(card) if path])
        *way, last = path
        holder = card
        for key in way:
            holder = holder[key]
        value = holder[last]
        change = rng.randrange(6)
        if change == 0:
            del holder[last]
        elif change == 1 and isinstance(value, str):
            at = rng.randrange(len(value) + 1)
            holder[last] = value[:at] + rng.choice(ALPHABET) + value[at + rng.randrange(2) :]
        elif change == 2 and isinstance(value, (int, float)):
            holder[last] = rng.choice((-value, value * 2, value / 1.0001, value + 1e-22, value - 1e-25))
        elif change == 3 and isinstance(holder, dict):
            holder[rng.choice(["x", "pacr:trust_tier", "scheme", "priority", "tags", "type", "auth"])] = rng.choice(
                STRANGE
            )
        elif change == 4 and isinstance(value, list):
            value.append(copy.deepcopy(rng.choice([*STRANGE, *value])))
        else:
            holder[last] = copy.deepcopy(rng.choice(STRANGE))
    return card


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_of_thousands_of_mutated_cards_the_verdicts_agree_with_the_ten_rules(seed):
    rng = random.Random(seed)
    verdicts = {True: 0, False: 0}
    for _ in range(1000):
        card = mutated(rng, rng.choice((*GOOD, LARGEST)))
        expected = is_valid(card)
        findings = validate(card)
        assert (not findings) == expected, (card, [str(finding) for finding in findings])
        assert validate(json.dumps(card)) == findings
        verdicts[expected] += 1
    assert min(verdicts.values()) > 150, "both verdicts must occur often, or nothing was compared"


def test_the_oracle_itself_knows_good_from_bad():
    assert all(map(is_valid, GOOD))
    for name in ("agent_id", "name", "version", "capabilities", "endpoint"):
        assert not is_valid({key: value for key, value in EXAMPLE.items() if key != name})


def test_every_replacement_of_every_value_has_the_same_verdict():
    for path in places(EXAMPLE):
        if not path:
            continue
        for strange in STRANGE[:12]:
            card = copy.deepcopy(EXAMPLE)
            holder = card
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = strange
            assert (not validate(card)) == is_valid(card), (path, strange)
