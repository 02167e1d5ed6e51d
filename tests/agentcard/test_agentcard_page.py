"""docs/agentcard.md says what is so: its commands are played, and its section is read."""

import tomllib

import pytest
from attrs import field, frozen
from docs.player import ROOT, acts, blocks, matches, play

from hearth.config.agentcard import CardConfig
from hearth.config.file import structure

BLOCKS = blocks((ROOT / "docs/agentcard.md").read_text("utf-8"))
ACTS = list(acts(BLOCKS))
BEFORE = (
    'printf \'[server]\\nsocket = "%s/h.sock"\\n[audit]\\npath = "%s/audit.log"\\n\' "$HOME" "$HOME" > h.toml\n'
    'start_hearthd --config h.toml\nexport HEARTH_SOCKET="$HOME/h.sock"\n'
)
"""What the page takes for granted: a daemon."""


@frozen
class Whole:
    """A configuration of nothing else."""

    card: CardConfig = field(factory=CardConfig)


@pytest.fixture(scope="module")
def played(tmp_path_factory, unmeasured):
    return play(ACTS, tmp_path_factory.mktemp("page"), BEFORE)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ACTS)), ids=[f"line {act.line}" for act in ACTS])
def test_the_block_does_what_the_page_says(played, number):
    act, outcome = ACTS[number], played[number]
    assert outcome.code == act.code, f"{act.shell}\n{outcome.output}"
    if act.expected:
        assert matches(act.expected, outcome.output), f"{act.shell} printed:\n{outcome.output}"


def test_the_section_on_the_page_is_one():
    (text,) = [block.text for block in BLOCKS if block.language == "toml"]
    card = structure(Whole, tomllib.loads(text), "hearth.toml").card
    assert (card.name, card.protocol, card.base_cost_joules) == ("Greenhouse controller", "mcp", 0.5)
    assert len(ACTS) > 5
