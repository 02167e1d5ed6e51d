"""The licence list: every licence is known, or it is not written."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str):
    """A script of packaging/ as a module; no package, or it would stand in the way of PyPI's `packaging`."""
    spec = importlib.util.spec_from_file_location(f"packaging_{name}", ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


licences = script("licences")


def metadata(**fields: str) -> Message:
    message = Message()
    message["Name"] = "some-thing"
    for name, value in fields.items():
        message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT OR Apache-2.0"}, "MIT OR Apache-2.0"),
        ({"License": "MIT"}, "MIT"),
        ({"License": "The MIT License (MIT)"}, "MIT"),
        ({"License": "MIT", "Classifier": "License :: OSI Approved :: BSD License"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: BSD License"}, None),
        ({"Classifier": "License :: OSI Approved :: Apache Software License"}, None),
        ({"License": "BSD"}, None),
        ({"License": "Copyright 2015, somebody\nAll rights reserved."}, None),
        ({"License": "UNKNOWN"}, None),
        ({}, None),
    ],
)
def test_a_licence_is_what_the_metadata_declare_and_nothing_is_guessed(fields: dict[str, str], licence) -> None:
    assert licences.licence_of(metadata(**fields)) == licence


def test_where_metadata_leave_it_open_the_text_was_read() -> None:
    open_ = metadata(License="BSD")
    del open_["Name"]
    open_["Name"] = "Semantic_Version"
    assert licences.licence_of(open_) == "BSD-2-Clause"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("MIT", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("AGPL-3.0-only", False),
        ("MIT OR", False),
        ("MIT Apache-2.0", False),
        ("", False),
    ],
)
def test_an_expression_is_one_over_licences_that_somebody_has_decided_on(text: str, is_one: bool) -> None:
    assert licences.is_expression(text) == is_one


def test_a_licence_that_is_not_known_is_named_with_its_distribution_and_the_cure() -> None:
    found = [
        licences.Bundled("good", "1", "MIT", ()),
        licences.Bundled("odd", "2", None, ()),
        licences.Bundled("viral", "3", "AGPL-3.0-only", ()),
    ]
    wrong = licences.unknown(found)
    assert [line.split()[:2] for line in wrong] == [["odd", "2:"], ["viral", "3:"]]
    assert all("licences.py" in line for line in wrong)


@pytest.mark.slow
def test_every_distribution_that_hearth_needs_here_has_a_known_licence() -> None:
    site = Path(importlib.metadata.distribution("attrs").locate_file("")).resolve()
    installed = {one.name.lower(): one for one in licences.bundled(site)}
    wanted, seen = ["hearthd"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for line in importlib.metadata.requires(name) or ():
            if "extra ==" not in line:
                needed = re.split(r"[\s\[><=;!~(]", line)[0]
                if re.search(r"python_version|sys_platform|platform|implementation", line):
                    continue
                wanted.append(needed)
    found = [one for name, one in installed.items() if name in {each.lower() for each in seen}]
    assert len(found) > 20
    assert licences.unknown(found) == []


def test_the_list_names_each_with_its_version_licence_and_text() -> None:
    page = licences.page(
        [licences.Bundled("hearthd", "1.2", "Apache-2.0", ()), licences.Bundled("a", "1", "MIT", ("a/L",))]
    )
    assert "with hearth 1.2" in page
    assert "| a | 1 | MIT | `a/L` |" in page
    assert "| hearthd |" not in page
