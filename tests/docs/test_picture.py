"""docs/demo.svg, the picture in README.md, shows what `hearth demo` prints today."""

from __future__ import annotations

import importlib.util
import re

import pytest
from docs.player import ROOT

PICTURE = (ROOT / "docs" / "demo.svg").read_text("utf-8")


@pytest.fixture(scope="module")
def script():
    """docs/picture.py: a script among the pages, which is no package."""
    spec = importlib.util.spec_from_file_location("hearth_docs_picture", ROOT / "docs" / "picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.proof
def test_the_picture_has_the_words_of_the_demo_of_today(script) -> None:
    assert script.told(PICTURE) == script.told(script.drawn(script.record())), "make picture draws it again"


def test_the_picture_shows_whole_scenes_and_a_change_would_be_seen(script) -> None:
    words = script.told(PICTURE)
    assert words[:3] == ["$", "hearth", "demo"]
    text = " ".join(words)
    assert "went to its safe state without it" in text
    assert "✗" not in text
    assert script.told(PICTURE.replace("SIGKILL", "SIGTERM")) != words
    assert script.told(re.sub(r"\d\d:\d\d:\d\d", "00:00:00", PICTURE)) == words


def test_the_picture_loads_nothing_from_elsewhere() -> None:
    assert not re.search(r"<(script|image|use|foreignObject)|@import|@font-face|url\((?!#)|href", PICTURE)
    assert re.findall(r"https?:[^\"\s]+", PICTURE) == ["http://www.w3.org/2000/svg"]


def test_the_readme_shows_it() -> None:
    assert "](docs/demo.svg)" in (ROOT / "README.md").read_text("utf-8")
