"""Which whole jobs a policy entry lets its principals hand in."""

import pytest

from hearth.errors import ConfigError
from hearth.policy.principal import Principal
from hearth.policy.rules import JobRules, PolicyEntry, decide, idle_job_rules
from hearth.tools import ToolRegistry


def entry(**hcp):
    return PolicyEntry(name="a", match={"any": True}, hcp=hcp)


def test_an_entry_that_says_nothing_allows_every_capability_from_every_caller_up_to_t2():
    rules = PolicyEntry(name="a", match={"any": True}).hcp
    assert rules.allows("bench-climate-survey")
    assert rules.allows_caller("harness-alpha-001")
    assert (rules.max_risk, rules.max_data_classification) == ("R5", "T2")


def test_patterns_are_over_whole_names_and_letter_case_counts():
    rules = JobRules(capabilities="bench-*", callers=["alpha-?"])
    assert rules.capabilities == ("bench-*",)
    assert [rules.allows(name) for name in ("bench-x", "my-bench-x", "Bench-x")] == [True, False, False]
    assert [rules.allows_caller(name) for name in ("alpha-1", "alpha-12")] == [True, False]


def test_no_pattern_at_all_allows_nothing():
    assert not JobRules(capabilities=()).allows("bench-x")
    assert not JobRules(callers=()).allows_caller("alpha")


def test_a_grant_carries_the_rules_of_the_entry_that_matched():
    entries = [PolicyEntry(name="root", match={"uid": 0}), entry(max_risk="R2", callers="a")]
    assert decide(entries, Principal("unix", uid=7), ToolRegistry([])).hcp == JobRules(max_risk="R2", callers="a")


@pytest.mark.parametrize(
    ("hcp", "told"),
    [
        ({"max_risk": "R6"}, "hcp.max_risk: expected R1, R2, R3, R4, R5, got 'R6'"),
        ({"max_data_classification": 2}, "hcp.max_data_classification: expected T1, T2, T3, T4, got 2"),
        ({"capabilities": [""]}, "hcp.capabilities: expected names or patterns such as"),
        ({"callers": [7]}, "hcp.callers: expected names or patterns such as"),
        ({"approve": True}, "hcp: expected a table of capabilities, max_risk and so on, got {'approve': True}"),
    ],
)
def test_rules_that_mean_nothing_are_refused_by_their_key(hcp, told):
    with pytest.raises(ConfigError) as caught:
        entry(**hcp)
    assert told in str(caught.value)


def test_a_pattern_that_fits_no_capability_is_pointed_out_unless_it_means_all():
    there = {"bench-x": False}
    assert idle_job_rules([entry(capabilities=["bench-*", "*"])], there) == []
    (told,) = idle_job_rules([entry(capabilities=["bench-*", "bnech-*"])], there)
    assert told == "policy 'a': hcp.capabilities: 'bnech-*' fits no capability; `hearth hcp capabilities` lists them"


def test_a_capability_whose_jobs_no_person_could_approve_is_pointed_out():
    there = {"furnace": True, "bench-x": False}
    (told,) = idle_job_rules([entry()], there)
    assert told == "capability furnace: a person must allow its jobs, and no [[policy]] entry has approve in its rights"
    able = PolicyEntry(name="able", match={"any": True}, rights=["approve"])
    assert idle_job_rules([entry(), able], there) == []
