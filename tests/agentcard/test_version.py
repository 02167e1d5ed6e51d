"""The version of a card follows from what has changed."""

import copy

import pytest
from hypothesis import given, strategies as st
from support.cards import EXAMPLE

from hearth.actors.agentcard import FIRST, next_version
from hearth.agentcard.validate import validate


def changed(change):
    card = copy.deepcopy(EXAMPLE)
    change(card)
    return next_version(EXAMPLE, card)  # the example's is 1.2.0


def test_a_first_card_is_1_0_0_and_an_unchanged_one_keeps_its_version():
    assert next_version(None, EXAMPLE) == FIRST == "1.0.0"
    assert next_version(EXAMPLE, EXAMPLE) == "1.2.0"
    assert next_version(EXAMPLE, {**EXAMPLE, "version": "9.9.9"}) == "1.2.0"


@pytest.mark.spec(
    "card 2.3",
    "SHOULD",
    "Implementations SHOULD increment the PATCH component when reissuing an AgentCard with corrected metadata.",
)
@pytest.mark.parametrize(
    "change",
    [
        lambda card: card["metadata"].update(framework="hearth"),
        lambda card: card.update(name="Other"),
        lambda card: card.pop("pricing"),
        lambda card: card["goal_subscriptions"].clear(),
        lambda card: card["capabilities"][0].update(description="Better words."),
        lambda card: card["capabilities"][1]["tags"].append("web"),
        lambda card: card["capabilities"].reverse(),
    ],
)
def test_what_nothing_depends_on_raises_the_patch(change):
    assert changed(change) == "1.2.1"


@pytest.mark.spec(
    "card 2.3",
    "SHOULD",
    "They SHOULD increment the MINOR component when new capabilities are added in a backward-compatible manner.",
)
def test_a_new_capability_raises_the_minor_and_other_changes_with_it_no_more():
    assert changed(lambda card: card["capabilities"].append({"id": "tool.new"})) == "1.3.0"
    assert changed(lambda card: (card["capabilities"].append({"id": "tool.new"}), card.update(name="x"))) == "1.3.0"


@pytest.mark.spec(
    "card 2.3",
    "SHOULD",
    "They SHOULD increment the MAJOR component when capabilities are removed or endpoint URLs change incompatibly.",
)
@pytest.mark.parametrize(
    "change",
    [
        lambda card: card["capabilities"].pop(),
        lambda card: card["capabilities"][0].update(id="text.sum"),
        lambda card: card["endpoint"].update(url="https://elsewhere.example/"),
        lambda card: card["endpoint"].update(auth={"scheme": "mtls"}),
        lambda card: card["capabilities"][0]["input_schema"].update(required=["text", "max_words"]),
        lambda card: card["capabilities"][1].update(output_schema={}),
        lambda card: (card["capabilities"].pop(), card["capabilities"].append({"id": "tool.new"})),
    ],
)
def test_what_others_may_depend_on_raises_the_major(change):
    assert changed(change) == "2.0.0"


@pytest.mark.parametrize("version", ["1.2", "1.0.0-rc.1", "", None, "1.2.3+b", "01.0.0", "1.2.3\n"])
def test_a_version_of_another_programs_making_is_refused(version):
    with pytest.raises(ValueError, match="no version of three numbers"):
        next_version({**EXAMPLE, "version": version}, EXAMPLE)


def test_what_is_no_card_is_refused():
    with pytest.raises(ValueError, match="no capabilities"):
        next_version({"version": "1.0.0", "capabilities": [{}]}, EXAMPLE)


@pytest.mark.slow
@given(
    st.sets(st.sampled_from("abcd"), min_size=1),
    st.sets(st.sampled_from("abcd"), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_a_version_never_falls_and_stays_only_if_nothing_changed(then, now, moved, renamed):
    def card(ids, version, *, moved=False, renamed=False):
        return {
            **EXAMPLE,
            "version": version,
            "name": "B" if renamed else "A",
            "capabilities": [{"id": name} for name in sorted(ids)],
            "endpoint": {"protocol": "mcp", "url": "mcp://b" if moved else "mcp://a"},
        }

    version = next_version(card(then, "3.4.5"), card(now, "0.0.0", moved=moved, renamed=renamed))
    order = [int(part) for part in version.split(".")]
    assert order >= [3, 4, 5]
    assert (order == [3, 4, 5]) == (then == now and not moved and not renamed)
    assert (order[0] == 4) == bool(moved or then - now)
    assert validate(card(now, version)) == []
