"""Which planners there are: ours, and vendors' where they are named."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from hcp.capability_files import changed, registry

from hearth.errors import ConfigError
from hearth.hcp.declaration import declare
from hearth.hcp.planners import ENTRY_POINTS, load_planners

VENDOR = '''
from types import SimpleNamespace

from hearth.hcp.planning import Fault, PlanError

class Planner:
    """Plans with the tools that its table lists."""
    def prepare(self, document, registry):
        if "acme" not in document:
            raise PlanError("acme", "missing", more=[Fault("acme.tools", "missing")])
        return SimpleNamespace(tools=frozenset(document["acme"]["tools"]), resumable=False, begin=None)

class Broken(Planner):
    def __init__(self):
        raise LookupError("no licence")

def wrong():
    return 5
'''
MODULE = "acme_planner_for_test"


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    """A distribution `acme-planner` on sys.path with entry points in the group hearth.planners."""
    (tmp_path / f"{MODULE}.py").write_text(VENDOR)
    info = tmp_path / "acme_planner-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-planner\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hearth.planners]\n"
        f"acme = {MODULE}:Planner\n"
        f"acme-broken = {MODULE}:Broken\n"
        f"acme-missing = {MODULE}_missing:Planner\n"
        f"acme-wrong = {MODULE}:wrong\n"
        f"acme.dotted = {MODULE}:Planner\n"
        f"recipe = {MODULE}:Planner\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(MODULE, None)


def test_a_vendors_planner_is_not_even_imported_unless_it_is_named(vendor):
    assert list(load_planners()) == ["recipe"]
    assert MODULE not in sys.modules


def test_a_vendors_planner_is_there_beside_ours_which_none_replaces(vendor):
    planners = load_planners(["acme", "recipe"])
    assert list(planners) == ["recipe", "acme"]
    assert type(planners["recipe"]).__module__ == "hearth.hcp.recipe"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("acme-broken", r"the package 'acme-planner' \(.*:Broken\) cannot be used: LookupError: no licence"),
        ("acme-missing", r"the package 'acme-planner' .* cannot be used: ModuleNotFoundError"),
        ("acme-wrong", r"the package 'acme-planner' \(.*:wrong\) made 5, which has no prepare\(\)"),
        ("acme.dotted", r"calls its planner 'acme\.dotted', which cannot be the name of a table of its own"),
        ("acmee", r"no package that is installed has a planner 'acmee'; did you mean acme"),
    ],
)
def test_a_vendors_planner_that_cannot_be_used_is_named_with_its_package(vendor, name, told):
    with pytest.raises(ConfigError, match=rf"\[hcp\] planners: .*{told}"):
        load_planners([name])


def document(tools=None):
    """A capability whose planner is the vendor's, with a table of its own or none."""
    made = changed("recipe")
    made["capability"]["planner"] = "acme"
    return made if tools is None else {**made, "acme": {"tools": tools}}


def faults_of(made, *planners):
    return list(map(str, declare(made, "acme.toml", registry(), load_planners(planners)).faults))


def test_a_vendors_plan_is_that_of_the_capability_which_names_its_planner(vendor):
    capability = declare(document(["gpio.set"]), "acme.toml", registry(), load_planners(["acme"])).capability
    assert capability is not None
    assert (capability.planner, capability.plan.tools) == ("acme", {"gpio.set"})


def test_a_planner_that_the_configuration_does_not_name_is_none(vendor):
    line, *_ = faults_of(document(["gpio.set"]))
    assert line.startswith('capability.planner: there is no planner "acme" here, but recipe; a vendor')


def test_every_fault_that_a_vendors_planner_finds_is_told(vendor):
    assert faults_of(document(), "acme") == ["acme: missing", "acme.tools: missing"]


def test_a_vendors_plan_may_name_no_tool_that_there_is_not(vendor):
    (line,) = faults_of(document(["gpio.set", "gpio.sett"]), "acme")
    assert line == "capability.planner: the package 'acme-planner' plans with 'gpio.sett', which is no tool here"


def test_a_bug_of_a_vendors_planner_is_told_with_its_package(vendor):
    (line,) = faults_of(document([["gpio.set"]]), "acme")
    assert line.startswith("capability.planner: the package 'acme-planner' cannot plan it: TypeError: ")


def test_a_vendors_plan_is_held_to_the_declared_risk_as_ours_is(vendor):
    made = document(["gpio.set"])
    made["capability"]["safety"] |= {"risk_floor": "R1"}
    (line,) = faults_of(made, "acme")
    assert line.startswith('capability.safety.risk_floor: expected at least "R3", since the plan uses gpio.set')


def test_the_page_about_the_configuration_names_the_entry_points_group_and_a_planner_that_may_be_called_so():
    page = (Path(__file__).parents[2] / "docs/reference/config.md").read_text("utf-8")
    (block,) = re.findall(r"```toml\n(# pyproject.*?)```", page, re.DOTALL)
    (planners,) = tomllib.loads(block)["project"]["entry-points"].values()
    assert list(tomllib.loads(block)["project"]["entry-points"]) == [ENTRY_POINTS]
    assert f"`[{next(iter(planners))}]`" in page
