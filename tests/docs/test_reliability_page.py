"""docs/reliability.md says commands that there are: targets and variables of the Makefile, options of programs.

They run for minutes and hours, so they are not run here; what runs them for some seconds is beside each program.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from docs.player import ROOT, blocks

PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
COMMANDS = [
    words
    for block in blocks(PAGE)
    if block.language in ("sh", "console")
    for line in block.text.splitlines()
    if (words := shlex.split(line.removeprefix("$ "), comments=True))
]


def test_the_page_has_a_section_for_each_kind_of_test() -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == ["Simulation", "Crashes", "Soak", "Fuzzing"]


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "make"], ids=" ".join)
def test_a_make_command_on_the_page_has_its_target_and_its_variables(words) -> None:
    for word in words[1:]:
        variable, equals, _ = word.partition("=")
        if equals:
            assert f"$({variable})" in MAKEFILE or f"$(if $({variable})" in MAKEFILE, variable
        else:
            assert re.search(rf"^{re.escape(word)}:", MAKEFILE, re.MULTILINE), word


@pytest.mark.slow
@pytest.mark.parametrize("words", [words for words in COMMANDS if words[:2] == ["python", "-m"]], ids=" ".join)
def test_a_program_on_the_page_has_the_options_that_it_is_given(words) -> None:
    told = subprocess.run(
        [sys.executable, "-m", words[2], "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 0, told.stderr
    for word in words[3:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in told.stdout


def test_no_other_program_is_named_in_a_block() -> None:
    assert not [words for words in COMMANDS if words[0] != "make" and words[:2] != ["python", "-m"]]
