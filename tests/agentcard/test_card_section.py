"""[card] in hearth.toml: what may stand there, how a mistake is told, and that it reads back as it is written."""

import tomllib

import pytest
from attrs import field, frozen

from hearth.config.agentcard import CardConfig
from hearth.config.file import render, structure
from hearth.errors import ConfigError


@frozen
class Whole:
    """A configuration of nothing else."""

    card: CardConfig = field(factory=CardConfig)


def read(text):
    return structure(Whole, tomllib.loads(text), "hearth.toml").card


FULL = """
[card]
name = "Greenhouse controller"
protocol = "mcp"
url = "https://greenhouse.example/mcp"
auth = "bearer"
base_cost_joules = 2.854e-21
per_token_joules = 0
measure_energy = false
goal_subscriptions = [{ goal_id = "frost-watch", description = "no plant freezes", priority = 0.8 }, { goal_id = "b" }]
metadata = { site = { floors = [1, 2.5, true] }, "pacr:trust_tier" = "basic" }
"""


def test_a_section_has_what_it_says_and_every_key_has_a_default():
    card = read(FULL)
    assert (card.name, card.protocol, card.url, card.auth) == (
        "Greenhouse controller", "mcp", "https://greenhouse.example/mcp", "bearer",
    )  # fmt: skip
    assert (card.base_cost_joules, card.per_token_joules, card.measure_energy) == (2.854e-21, 0, False)
    assert [goal["goal_id"] for goal in card.goal_subscriptions] == ["frost-watch", "b"]
    assert card.metadata == {"site": {"floors": [1, 2.5, True]}, "pacr:trust_tier": "basic"}
    assert read("[card]") == CardConfig()


@pytest.mark.parametrize("text", [FULL, "[card]\n"])
def test_a_section_reads_back_as_it_was_written(text):
    card = read(text)
    assert read(render({"card": card})) == card


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('name = ""', "[card] name: expected a name of at most 128 characters"),
        (f'name = "{"n" * 129}"', "[card] name: expected at most 128 characters, got 129"),
        ('url = "https://a"', "[card]: protocol not set: url alone is no endpoint; set protocol, or take url out"),
        ('protocol = "mcp"', "[card]: url not set"),
        ('protocol = "ftp"\nurl = "ftp://a"', "[card] protocol: expected"),
        ('protocol = "https"\nurl = "http://a"', 'url: "http://a" does not begin with https://'),
        ('protocol = "mcp"\nurl = "no uri"', "url: \"no uri\" is no URI by RFC 3986"),
        ('auth = "basic"', "[card] auth: expected"),
        ("base_cost_joules = 1e-30", "base_cost_joules: 1e-30 J is physically impossible"),
        ("base_cost_joules = -1", "[card] base_cost_joules: expected a number"),
        ("per_token_joules = -1", "[card] per_token_joules: expected a number"),
        ("goal_subscriptions = [{ priority = 1 }]", "[card] goal_subscriptions[0]: goal_id is missing"),
        ('goal_subscriptions = [{ goal_id = "a", priority = 2 }]', "[0].priority: expected a number from 0 to 1"),
        ('goal_subscriptions = [{ goal_id = "a", prio = 1 }]', "did you mean priority?"),
        ("metadata = 5", "[card] metadata: expected a table"),
        ("metadata = { a = 1979-05-27 }", "[card] metadata.a: expected what JSON can hold, got 1979-05-27"),
        ("metadata = { a = [nan] }", "[card] metadata.a[0]: expected what JSON can hold"),
        ("metadata = { a = 9007199254740993 }", "[card] metadata.a: expected an integer that JSON can hold"),
        ('metadata = { "" = 1 }', '[card] metadata key "": expected a non-empty string'),
        ('metadata = { "hearth:x" = 1 }', "use another one"),
        ('metadata = { "pacr:trust_tier" = "high" }', 'metadata pacr:trust_tier: "high" is not among the values'),
        ("nam = 1", "did you mean name?"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_key_and_its_cure(line, told):
    with pytest.raises(ConfigError) as caught:
        read(f"[card]\n{line}\n")
    assert told in str(caught.value)


def test_a_section_built_in_python_keeps_the_same_rules():
    with pytest.raises(ConfigError, match="physically impossible"):
        CardConfig(base_cost_joules=1e-30)
    with pytest.raises(ConfigError, match="expected an array as tuple"):
        CardConfig(goal_subscriptions=[{"goal_id": "a"}])
    assert CardConfig(metadata={"a": [1]}).metadata == {"a": [1]}
