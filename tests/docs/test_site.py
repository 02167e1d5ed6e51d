"""docs/index.md and docs/reference/python.md: the site of `make site` leads to every page and every public name."""

from __future__ import annotations

import re
from pathlib import Path

import hearth

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LISTED = {
    page.resolve().relative_to(ROOT).with_suffix("").as_posix()
    for block in re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL)
    for entry in re.findall(r"^[\w./*-]+$", block, re.MULTILINE)
    for page in DOCS.glob(f"{entry}.md")
}


def test_the_site_leads_to_every_page() -> None:
    pages = {
        page.relative_to(ROOT).with_suffix("").as_posix()
        for page in DOCS.rglob("*.md")
        if page.name != "index.md" and not (page.parent.name == "decisions" and page.stem != "README")
    }
    assert pages <= LISTED


def test_every_public_name_is_on_the_page_of_the_python_api() -> None:
    page = (DOCS / "reference" / "python.md").read_text("utf-8")
    named = set(re.findall(r"^\.\. auto\w+:: hearth\.(\w+)\b", page, re.MULTILINE))
    assert set(dir(hearth)) - {"__version__"} <= named
