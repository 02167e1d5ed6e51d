"""Capabilities of installed packages: imported where the configuration names them, and told by their package."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from hcp.capability_files import RIGHT, named, registry

from hearth.errors import ConfigError
from hearth.hcp.library import ENTRY_POINTS, load_capabilities

MODULE = "acme_capabilities_for_test"


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """A distribution `acme-capabilities` on sys.path, with entry points of every kind."""
    packages = tmp_path / "site-packages"
    info = packages / "acme_capabilities-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / f"{MODULE}.py").write_text(f"{RIGHT}\n\nwrong = 5\n")
    (packages / f"{MODULE}_broken.py").write_text("raise LookupError('no licence')")
    (packages / f"{MODULE}_ending.py").write_text("raise SystemExit(1)")
    (packages / f"{MODULE}_old.py").write_text(RIGHT.replace('"R3"', '"R1"').replace("1.2.0", "1"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-capabilities\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\n"
        f"acme-blink = {MODULE}:blink\n"
        f"acme-broken = {MODULE}_broken:blink\n"
        f"acme-ending = {MODULE}_ending:blink\n"
        f"acme-missing = {MODULE}_missing:blink\n"
        f"acme-nothing = {MODULE}:nothing\n"
        f"acme-old = {MODULE}_old:blink\n"
        f"acme-wrong = {MODULE}:wrong\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    yield packages
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        del sys.modules[name]


def load(*entries):
    return load_capabilities([str(entry) for entry in entries], registry=registry(), shipped=[])


def refused(*entries):
    """The lines of the refusal."""
    with pytest.raises(ConfigError) as caught:
        load(*entries)
    return str(caught.value).splitlines()


def test_a_package_is_not_even_imported_unless_its_entry_point_is_named(vendor, tmp_path):
    named(tmp_path, "a")
    assert list(load(tmp_path)) == ["a"]
    assert MODULE not in sys.modules


def test_a_capability_of_a_package_is_offered_beside_those_of_files(vendor, tmp_path):
    named(tmp_path, "a")
    found = load("acme-blink", tmp_path, "acme-blink")
    assert {name: found[name].place for name in found} == {
        "a": f"{tmp_path}/a.py:8",
        "line-blink": f"{vendor / MODULE}.py:8",
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("acme-broken", r"\(.*_broken:blink\) cannot be used: LookupError: no licence"),
        ("acme-ending", r"\(.*_ending:blink\) cannot be used: SystemExit: 1"),
        ("acme-missing", r"\(.*_missing:blink\) cannot be used: ModuleNotFoundError: No module named "),
        ("acme-nothing", r"\(.*:nothing\) cannot be used: AttributeError: "),
        ("acme-wrong", r"\(.*:wrong\) is not a function decorated with @capability"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_package(vendor, name, told):
    (line,) = refused(name)
    assert re.match(rf"\[hcp\] capabilities: the package 'acme-capabilities' {told}", line)


def test_a_name_that_is_not_there_is_told_with_the_nearest(vendor):
    near, far = refused("acme-blnk", "x")
    missing = "[hcp] capabilities: no installed package has a capability"
    assert near == f'{missing} "acme-blnk" (entry point group hearth.capabilities); did you mean acme-blink?'
    assert far.startswith(f'{missing} "x" (entry point group hearth.capabilities); there are acme-blink, acme-broken, ')


def test_a_name_is_told_with_the_group_where_no_package_has_any():
    (line,) = refused("x")
    assert line.endswith("(entry point group hearth.capabilities); there are none")


def test_every_fault_of_a_packages_capability_is_told_with_the_others(vendor, tmp_path):
    named(tmp_path, "a", RIGHT.replace("1.2.0", "1"))
    told = refused("acme-old", tmp_path, "acme-broken")
    old = f"{vendor / MODULE}_old.py:8"
    assert [line.split(" ")[:2] for line in told] == [
        [f"{old}:", "version:"],
        [f"{old}:", "requires_human_approval:"],
        [f"{tmp_path}/a.py:8:", "version:"],
        ["[hcp]", "capabilities:"],
    ]


def test_the_page_about_the_configuration_names_the_entry_point_group():
    page = (Path(__file__).parents[2] / "docs/reference/config.md").read_text("utf-8")
    (block,) = re.findall(r"```toml\n(# pyproject.*?)```", page, re.DOTALL)
    assert list(tomllib.loads(block)["project"]["entry-points"]) == [ENTRY_POINTS]
