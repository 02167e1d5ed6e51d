"""The soak itself, for some seconds: it finds nothing wrong with a sound daemon, and finds a leak in another.

How flat a daemon is takes minutes to tell: `make soak`. Here nothing may be left in an idle daemon, and the log has
all.
"""

from __future__ import annotations

import json

import pytest
from soak.__main__ import main as command
from soak.judge import Tolerance
from soak.page import BEGIN, END, rewrite
from soak.picture import draw
from soak.run import Plan, passed, soak, words

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]

SECONDS = 14
LOOSE = (Tolerance("held", "descriptors beside connections", "", 20.0), Tolerance("threads", "threads", "", 10.0))
"""Some seconds say nothing of memory: everything is still filling up."""
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def found():
    """What a short run found."""
    return soak(Plan(SECONDS, clients=30, pause=0.2, tolerances=LOOSE, period=0.5, rotate_bytes=32_768))


def test_after_a_while_with_a_mixed_crowd_nothing_is_left_and_the_log_is_whole(found) -> None:
    assert found["wrong"] == []
    assert passed(found), words(found)
    log, visits = found["log"], found["visits"]
    # How much it is says how slow the machine was.
    assert log["tasks"] > log["acknowledged"] > 20
    assert log["files"] > 1, "the log was to be rotated"
    assert log["signed_to"] > log["records"] - 400
    assert {"work", "trouble", "hoard"} <= set(visits), visits


def test_samples_are_taken_of_all_that_is_judged_and_drawn(found) -> None:
    assert len(found["samples"]) >= SECONDS / 2
    last = found["samples"][-1]
    for name in ("rss", "private", "blocks", "descriptors", "threads", "cpu", "busy", "others", "log", "files"):
        assert last[name] > 0 or name == "others", (name, last)


def test_the_plot_is_a_picture_and_the_page_gets_its_table(found, tmp_path) -> None:
    pytest.importorskip("PIL", reason="a plot takes the extra: pip install 'hearthd[plot]'")
    drawn = draw(found, tmp_path / "soak.png")
    assert drawn.read_bytes().startswith(PNG)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    rewrite(found, page, tmp_path / "again.png")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| descriptors beside connections | " in text
    assert "old" not in text
    assert (tmp_path / "again.png").exists()


def test_a_page_without_a_place_for_the_table_is_left_alone(found, tmp_path) -> None:
    (tmp_path / "page.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="there is no"):
        rewrite(found, tmp_path / "page.md", tmp_path / "soak.png")
    assert (tmp_path / "page.md").read_text() == "nothing\n"


def test_a_daemon_that_leaks_is_found_out(tmp_path, capsys) -> None:
    leaks = ["--plant", "descriptors=4", "--plant", "threads=2", "--plant", "bytes=2000000"]
    assert command(["--minutes", "0.25", "--period", "0.3", "--clients", "2", "--out", str(tmp_path), *leaks]) == 1
    found = json.loads((tmp_path / "soak.json").read_text())
    grown = {one["series"] for one in found["verdicts"] if not one["flat"]}
    assert {"held", "threads", "private", "blocks"} <= grown
    assert any("descriptors" in what and "left in an idle daemon" in what for what in found["wrong"]), found["wrong"]
    assert "GROWS" in capsys.readouterr().out
