"""docs/sandbox.md: each attack that is tried stands there in the line of its rule, with what it is answered."""

from __future__ import annotations

import re

import pytest
from docs.player import ROOT
from support.intruder import ATTACKS

PAGE = (ROOT / "docs/sandbox.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## What is in force")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and "`" in line
]
NAMED = {name: answered for _, answered, names in ROWS for name in re.findall(r"`(\w+)`", names)}


def test_the_page_names_every_attack_and_no_other() -> None:
    assert set(NAMED) == set(ATTACKS)
    assert len(NAMED) == sum(len(re.findall(r"`(\w+)`", names)) for _, _, names in ROWS), "none of them twice"


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_answered_as_the_page_says(attack: str) -> None:
    assert ATTACKS[attack].expected in NAMED[attack].split(", ")


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    written = "\n".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in written] == []
