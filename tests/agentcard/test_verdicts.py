"""Thousands of foreign cards by mutation: the validator's verdict is that of a second, independent reading.

The oracle is `support.card_rules`.
"""

import copy
import json
import random
import string

import pytest
from support.card_rules import is_valid
from support.cards import EXAMPLE, GOOD, LARGEST

from hearth.agentcard.validate import validate

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


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured_here")
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


@pytest.mark.proof
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
