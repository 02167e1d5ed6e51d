"""Decision records are few, short and complete; the files that they, CONTRIBUTING.md and docs/request.md name exist."""

from __future__ import annotations

import re
from functools import cache

import pytest
from docs.player import ROOT

RECORDS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
MAPS = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "request.md"]
FOLDERS = ("hearth", "actors", "drivers", "tests", "packaging", "docs", "examples", "benchmarks")
MOST_RECORDS, MOST_LINES = 69, 60
_MAP = re.compile(r"^## Map\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_REFERENCE = re.compile(r"[Dd]ecisions?[\s/]+(\d{4}(?:,\s*\d{4}|\s+and\s+\d{4})*)\b")
_FILE = re.compile(r"(?<![\w/.])[\w/]+\.py\b")


@cache
def modules() -> frozenset[str]:
    """Return the paths of all Python files of the project, from its root."""
    return frozenset(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def missing(text: str) -> set[str]:
    """Return the Python files that a text names and that do not exist; a name without folders may be in any of them."""
    return {
        name
        for name in _FILE.findall(text)
        if name not in modules() and not any(module.endswith(f"/{name}") for module in modules())
    }


def test_decision_records_are_few() -> None:
    assert len(RECORDS) <= MOST_RECORDS


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.name[:4])
def test_a_decision_record_has_context_decision_and_consequences_on_one_screen(record) -> None:
    text = record.read_text("utf-8")
    parts = re.findall(r"^\*\*(Context|Decision|Consequences)\b", text, re.MULTILINE)
    assert list(dict.fromkeys(parts)) == ["Context", "Decision", "Consequences"]
    assert text.count("\n") <= MOST_LINES


@pytest.mark.slow
def test_every_reference_to_a_decision_is_to_one_that_is_there() -> None:
    numbers = {record.name[:4] for record in RECORDS}
    files = [path for folder in FOLDERS for kind in ("py", "md") for path in (ROOT / folder).rglob(f"*.{kind}")]
    wrong = {
        f"{path.relative_to(ROOT)}: {number}"
        for path in [*files, *ROOT.glob("*.md"), ROOT / "pyproject.toml"]
        for named in _REFERENCE.findall(path.read_text("utf-8"))
        for number in re.findall(r"\d{4}", named)
        if number not in numbers
    }
    assert not wrong


@pytest.mark.parametrize("page", [*MAPS, *RECORDS], ids=lambda path: path.name)
def test_every_module_that_a_page_about_the_code_names_exists(page) -> None:
    assert not missing(page.read_text("utf-8"))


def test_a_module_that_does_not_exist_is_found() -> None:
    assert missing("see `actors/no_such.py` and `bus/actor.py`, then `nowhere.py`") == {
        "actors/no_such.py",
        "nowhere.py",
    }


def test_the_map_has_at_most_forty_lines_and_every_folder_on_it_exists() -> None:
    (text,) = _MAP.findall(MAPS[0].read_text("utf-8"))
    lines = text.splitlines()
    assert len(lines) <= 40
    above: list[str] = []
    for line in lines:
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        if name.endswith("/"):
            above = [*above[:depth], name]
            assert (ROOT / "".join(above)).is_dir(), "".join(above)
        else:
            assert (ROOT / "".join(above[:depth]) / name).is_file(), name


def test_every_package_is_on_the_map() -> None:
    (text,) = _MAP.findall(MAPS[0].read_text("utf-8"))
    for layer in ("hearth", "actors", "drivers"):
        packages = {path.parent.name for path in (ROOT / layer).glob("*/__init__.py") if not path.parent.is_symlink()}
        assert packages <= set(re.findall(r"(\w+)/", text))
