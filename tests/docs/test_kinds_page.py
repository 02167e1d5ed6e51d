"""docs/reference/kinds.md: each kind says all of its facts, and the keys that it names are those that it reads."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conformance.pages import generate, kinds_page

from hearth.drivers import boards
from hearth.drivers.kinds import OWN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from hearth.drivers.kind import BusKind

PAGES = [(generate.ROOT / "docs" / page).read_text("utf-8") for page in ("reference/boards.md", "howto/use-signals.md")]

EACH_KIND = pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)


def test_the_page_is_current() -> None:
    assert generate.ROOT / "docs/reference/kinds.md" not in generate.stale(), "run `python docs/generate.py`"


@EACH_KIND
def test_a_kind_says_every_fact(kind: BusKind) -> None:
    facts = kinds_page.facts(kind)
    assert tuple(facts) == kinds_page.FACTS
    assert {fact for fact, text in facts.items() if not text} == set()


@EACH_KIND
def test_the_keys_that_bound_an_output_are_keys_of_the_table(kind: BusKind) -> None:
    paths = {path for keys in kinds_page.keys_of(kind).values() for path in keys.found}
    named = {word.partition(" ")[0] for text in (kind.limits, kind.safe) for word in re.findall(r"`([^`]+)`", text)}
    assert named <= {step for path in paths for step in path.split(".")}


@EACH_KIND
def test_a_kind_names_all_keys_that_bound_an_output(kind: BusKind) -> None:
    bounds = {"min", "max", "max_step", "slew_per_s", "slew", "min_on_ms", "max_on_ms", "min_off_ms", "max_rate_hz"}
    read = {path.rpartition(".")[2] for keys in kinds_page.keys_of(kind).values() for path in keys.found}
    assert read & bounds == set(re.findall(r"`(\w+)`", kind.limits)) & bounds


PROFILES = [
    *(tomllib.loads(file.read_text("utf-8")) for file in sorted(Path(boards.__file__).parent.glob("*.toml"))),
    *(
        tomllib.loads(text)
        for page in PAGES
        for text in re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    ),
]
"""The shipped profiles, and every TOML block of the pages about profiles."""


def used(content: Mapping[str, Any], known: Collection[str], path: str = "") -> Iterator[str]:
    """Yield the paths of the keys of a table, in the form of the page."""
    for key, value in content.items():
        at = f"{path}{key}"
        if at in known or not isinstance(value, (list, dict)):
            yield at
        elif isinstance(value, list):
            for one in value:
                yield from used(one, known, f"{at}[].")
        elif any(one.startswith(f"{at}.NAME.") for one in known):
            for one in value.values():
                yield from used(one, known, f"{at}.NAME.")
        else:
            yield from used(value, known, f"{at}.")


@EACH_KIND
def test_every_key_of_every_profile_is_on_the_page(kind: BusKind) -> None:
    page = kinds_page.page().partition(f"\n## {kind.name}\n")[2].partition("\n## ")[0]
    seen = 0
    for header, keys in kinds_page.keys_of(kind).items():
        table = header.strip("[]").partition(".")[0]
        # A fragment of a page has a part of an entry alone, which TOML reads as a table in place of an array.
        there = [
            profile[table] for profile in PROFILES if isinstance(profile.get(table), list if "[[" in header else dict)
        ]
        for entry in (one for entries in there for one in (entries if "[[" in header else entries.values())):
            for path in used(entry, keys.found):
                assert path in keys.found
                assert f"| `{path}` |" in page
                seen += 1
    assert seen, "no profile has such a table"
