"""The gate in L3's order: each refusal with its code, its place and a cure, and what an approval holds."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from attrs import evolve
from hcp.gatekit import OUTPUTS, SURVEY, TOOLS, allowed, approve, capability, reject, submit

from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.tools import build_tools
from hearth.hcp.capability import CapabilitySet, Escalation, Limit
from hearth.hcp.codec import message, read_message, write_message
from hearth.hcp.inputs import InputRefused
from hearth.hcp.messages import JobConstraints, Rejection, TaskRejected, read_duration
from hearth.hcp.safety import allowance, assess, may_submit
from hearth.policy.principal import Principal
from hearth.policy.rules import JobRules, PolicyEntry
from hearth.tools import ToolRegistry

# --- what an approval holds -------------------------------------------------------------------------------------------


def test_a_task_is_approved_with_defaults_filled_in_and_the_capabilitys_own_limits():
    approval = approve(submit({"sensor": "bench", "samples": 3}))
    assert approval.capability is SURVEY
    assert approval.inputs == {"sensor": "bench", "samples": 3, "interval": 0.5, "heat": 20, "mode": "once"}
    assert (approval.risk, approval.classification, approval.priority) == ("R1", "T1", "normal")
    assert approval.max_duration == timedelta(hours=1)
    assert approval.safety_envelope == SURVEY.envelope.to_wire()
    assert approval.warnings == ()
    assert approval.rule is None
    assert approval.expected is None
    assert approval.confidence_threshold is None


def test_a_default_is_a_copy_that_no_job_shares():
    inputs = {"type": "object", "properties": {"lines": {"type": "array", "default": [1]}}}
    one = capability(inputs=inputs, rules=[], limits={})
    approve(submit({}), one).inputs["lines"].append(2)
    assert approve(submit({}), one).inputs == {"lines": [1]}


def test_the_callers_own_inputs_are_left_as_they_were():
    given = {"sensor": "bench"}
    approve(submit(given))
    assert given == {"sensor": "bench"}


@pytest.mark.parametrize(("asked", "approved"), [("PT10M", timedelta(minutes=10)), ("PT72H", timedelta(hours=1))])
@pytest.mark.spec(
    "hcp L4 Constraints",
    "is",
    "max_duration | string (ISO 8601 duration) | Maximum allowed execution time",
)
def test_max_duration_is_the_shorter_of_what_is_asked_and_what_the_capability_runs(asked, approved):
    approval = approve(submit(constraints={"max_duration": read_duration(asked)}))
    assert approval.max_duration == approved
    assert bool(approval.warnings) == (asked == "PT72H")


@pytest.mark.spec(
    "hcp L4 Constraints",
    "is",
    "data_classification | enum (T1–T4) | Sensitivity level of the data involved",
)
def test_priority_classification_and_threshold_are_the_callers_where_they_are_allowed():
    asked = {"priority": "urgent", "data_classification": "T2", "confidence_threshold": 0.9}
    approval = approve(submit(constraints=asked))
    assert (approval.priority, approval.classification, approval.confidence_threshold) == ("urgent", "T2", 0.9)


def test_a_caller_that_names_no_classification_gets_the_daemons():
    assert approve(submit(), default_classification="T2").classification == "T2"


@pytest.mark.parametrize(
    ("risk", "required", "waits"),
    [("R1", True, False), ("R2", True, False), ("R3", True, True), ("R4", True, True), ("R4", False, False)],
)
def test_a_person_approves_what_requires_it_from_r3_on(risk, required, waits):
    one = capability(floor=risk, approval=required)
    assert (approve(submit(), one).rule is not None) is waits


# --- refusals, in their order -----------------------------------------------------------------------------------------

# Each row: what is submitted, to which capability, by whose leave; code, then words of message and suggestion.
REFUSALS = {
    "a caller_id that the policy does not list": (
        submit(caller_id="stranger"), SURVEY, allowed(callers=("harness-*",)),
        "unauthorized", ["/payload/caller_id", "'stranger'", "'lab'"], ["hcp.callers"], None,
    ),
    "a capability that there is not": (
        submit(capability="bench-climate-servey"), SURVEY, None,
        "unknown_capability", ["/payload/capability", "'bench-climate-servey'"], ["'bench-climate-survey'"], None,
    ),
    "one that is like no other": (
        submit(capability="zzz"), SURVEY, None,
        "unknown_capability", ["'zzz'"], ["There are bench-climate-survey"], None,
    ),
    "one that there is not, for who may use none": (
        submit(capability="zzz"), SURVEY, allowed(capabilities=()),
        "unknown_capability", ["'zzz'"], ["No capability is permitted"], None,
    ),
    "a capability that the policy does not permit": (
        submit(), SURVEY, allowed(capabilities=("host-*",)),
        "forbidden", ["/payload/capability", "bench-climate-survey", "'lab'"], ["hcp.capabilities"], None,
    ),
    "a range that is none": (
        submit(capability_version="latest"), SURVEY, None,
        "invalid_input", ["/payload/capability_version", "'latest'"], ['"1.x"', '"^1.2"'], None,
    ),
    "a range without the version": (
        submit(capability_version=">=2.0.0"), SURVEY, None,
        "version_mismatch", ["/payload/capability_version", "1.4.2", "'>=2.0.0'"], ['"1.x"', "1.4.2"], None,
    ),
    "an input missing": (
        submit({}), SURVEY, None,
        "invalid_input", ["/payload/inputs: ", '"sensor"'], ["Add /payload/inputs/sensor: a string", "which"], None,
    ),
    "an input beyond its bound": (
        submit({"sensor": "b", "samples": 0}), SURVEY, None,
        "invalid_input", ["/payload/inputs/samples", "minimum of 1"], ["an integer from 1 to 100000"], None,
    ),
    "an input of another type": (
        submit({"sensor": 5}), SURVEY, None,
        "invalid_input", ["/payload/inputs/sensor", "string"], ["Give /payload/inputs/sensor a string"], None,
    ),
    "an input misspelt": (
        submit({"sensor": "b", "sample": 3}), SURVEY, None,
        "invalid_input", ["/payload/inputs", "sample"], ["Write 'samples' where /payload/inputs has \"sample\""], None,
    ),
    "a required input misspelt": (
        submit({"sensors": "b"}), SURVEY, None,
        "invalid_input", ["/payload/inputs"], ["Write 'sensor' where /payload/inputs has \"sensors\""], None,
    ),
    "an input that there is not": (
        submit({"sensor": "b", "zzz": 3}), SURVEY, None,
        "invalid_input", ["/payload/inputs", "zzz"], ['Remove "zzz"', "sensor, samples"], None,
    ),
    "one of a few words": (
        submit({"sensor": "b", "mode": "never"}), SURVEY, None,
        "invalid_input", ["/payload/inputs/mode"], ['one of "once", "often"'], None,
    ),
    "an input deep within": (
        submit({"sensor": "b", "lines": [{"offset": 1}, {}]}), SURVEY, None,
        "invalid_input", ["/payload/inputs/lines/1"], ["Add /payload/inputs/lines/1/offset: an integer"], None,
    ),
    "an input outside of the safety envelope": (
        submit({"sensor": "b", "interval": 90}), SURVEY, None,
        "safety_violation", ["/payload/inputs/interval", "90", "60", "second"], ["0.01", "60 second"], "R1",
    ),
    "more risk than the policy allows, by an input": (
        submit({"sensor": "b", "samples": 5000}), SURVEY, allowed(risk="R2"),
        "risk_too_high", ["the task is R3", "'lab'", "R2", "many samples wear"],
        ["Keep /payload/inputs/samples at 1000 or less", "then the risk is R1"], "R3",
    ),
    "more risk than the capability has, by an input": (
        submit({"sensor": "b", "heat": 100}), capability(ceiling="R3"), None,
        "risk_too_high", ["the task is R4", "bench-climate-survey", "R3", "heat is a hazard"],
        ["Keep /payload/inputs/heat below 100", "then the risk is R1"], "R4",
    ),
    "more risk than the policy allows, whatever the inputs": (
        submit(), capability(floor="R4"), allowed(risk="R2"),
        "risk_too_high", ["the task is R4", "'lab'", "R2", "the least"], ["No input", "hcp.max_risk = R4"], "R4",
    ),
    "data that the capability does not take": (
        submit(constraints={"data_classification": "T3"}), SURVEY, allowed(max_data_classification="T4"),
        "classification_too_high", ["/payload/constraints/data_classification", "T3", "bench-climate-survey", "T2"],
        ["T2"], "R1",
    ),
    "data that the policy does not take": (
        submit(constraints={"data_classification": "T3"}), capability(data_classification="T4"), None,
        "classification_too_high", ["T3", "'lab'", "T2"], ["hcp.max_data_classification"], "R1",
    ),
    "a tool that is not on the allowlist": (
        submit(), SURVEY, allowed(tools=frozenset()),
        "forbidden", ["hw.sensor.read", "not among the tools", "'lab'"], ["'hw.sensor.read' in tools"], "R1",
    ),
    "a tool above the risk cap": (
        submit(), SURVEY, allowed(too_risky=TOOLS),
        "forbidden", ["hw.sensor.read", "risk level", "'lab'"], ["higher max_risk"], "R1",
    ),
    "a format that there is not": (
        submit(expected_output={"format": "climate-servey"}), capability(formats=("climate-survey", "raw")), None,
        "invalid_input", ["/payload/expected_output/format", "'climate-servey'"], ["Use 'climate-survey',"], None,
    ),
    "a format like no other": (
        submit(expected_output={"format": "zzz"}), capability(formats=("climate-survey", "raw")), None,
        "invalid_input", ["/payload/expected_output/format"], ["'climate-survey' or 'raw'"], None,
    ),
    "a required field that there can never be": (
        submit(expected_output={"required_fields": ("mean", "sprad")}), SURVEY, None,
        "invalid_input", ["/payload/expected_output/required_fields", "'sprad'"], ["Write 'spread'"], None,
    ),
    "a required field like no other": (
        submit(expected_output={"required_fields": ("zzz",)}), SURVEY, None,
        "invalid_input", ["'zzz'"], ["Ask for some of mean, spread, confidence"], None,
    ),
    "a required member of the schema that there can never be": (
        submit(expected_output={"schema": {"required": ["zzz"]}}), SURVEY, None,
        "invalid_input", ["/payload/expected_output/schema/required", "'zzz'"], ["mean"], None,
    ),
    "a schema that is none": (
        submit(expected_output={"schema": {"properties": {"a": {"type": "strin"}}}}), SURVEY, None,
        "invalid_input", ["/payload/expected_output/schema/properties/a/type"], ["2020-12"], None,
    ),
    "a schema that leads elsewhere": (
        submit(expected_output={"schema": {"$ref": "http://127.0.0.1:9/"}}), SURVEY, None,
        "invalid_input", ["/payload/expected_output/schema/$ref"], ["#/$defs/NAME"], None,
    ),
    "a threshold for what states no confidence": (
        submit(constraints={"confidence_threshold": 0.5}), capability(outputs={"type": "object"}), None,
        "invalid_input", ["/payload/constraints/confidence_threshold"], ["Leave confidence_threshold out"], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_it_refuses_with_code_place_and_cure(case):
    task, one, by, code, message_words, cure_words, risk = REFUSALS[case]
    rejection = reject(task, one, by=by)
    assert rejection.reason_code == code
    assert [word for word in message_words if word not in rejection.message] == []
    assert [word for word in cure_words if word not in (rejection.suggestion or "")] == []
    assert rejection.risk == risk


def test_who_matches_no_policy_entry_is_unauthorized_whatever_they_ask():
    with pytest.raises(Rejection) as caught:
        assess(submit(capability="zzz"), CapabilitySet([SURVEY]), None)
    assert caught.value.reason_code == "unauthorized"
    assert "[[policy]]" in (caught.value.suggestion or "")


def test_only_capabilities_that_the_policy_permits_are_proposed():
    secret = capability("bench-climate-surveyor")
    rejection = reject(
        submit(capability="bench-climate-surveyo"), SURVEY, secret, by=allowed(capabilities=(SURVEY.name,))
    )
    assert rejection.suggestion == "Did you mean 'bench-climate-survey'?"


def test_a_long_list_of_capabilities_is_cut():
    many = [capability(f"cap-{number}", rules=[]) for number in range(30)]
    assert "and 18 more" in (reject(submit(capability="zzz"), *many).suggestion or "")


@pytest.mark.spec("hcp L3 Approval Flow")
def test_refusals_come_in_the_order_of_the_page():
    """Everything is wrong at once; each cure that is followed leads on to the next refusal."""
    one = capability(ceiling="R4", formats=("raw",))
    strict = {"callers": ("harness-*",), "capabilities": ("bench-*",), "max_data_classification": "T1"}
    task = submit(
        {"samples": 5000, "interval": 90},
        caller_id="stranger",
        capability="zzz",
        capability_version="9.x",
        constraints={"data_classification": "T2"},
        expected_output={"format": "cooked"},
    )
    narrow = allowed(risk="R2", tools=frozenset(), **strict)
    wider = allowed(risk="R3", tools=frozenset(), **strict)
    seen = [reject(task, one, by=narrow).reason_code]
    task = evolve(task, caller_id="harness-1")
    seen.append(reject(task, one, by=narrow).reason_code)
    task = evolve(task, capability=one.name)
    seen.append(reject(task, one, by=narrow).reason_code)
    task = evolve(task, capability_version="1.x")
    seen.append(reject(task, one, by=narrow).reason_code)
    task = evolve(task, inputs={**task.inputs, "sensor": "b"})
    seen.append(reject(task, one, by=narrow).reason_code)
    task = evolve(task, inputs={**task.inputs, "interval": 1})
    seen.append(reject(task, one, by=narrow).reason_code)
    seen.append(reject(task, one, by=wider).reason_code)
    task = evolve(task, constraints=JobConstraints())
    seen.append(reject(task, one, by=wider).reason_code)
    seen.append(reject(task, one, by=evolve(wider, tools=TOOLS)).reason_code)
    assert seen == [
        "unauthorized", "unknown_capability", "version_mismatch", "invalid_input", "safety_violation",
        "risk_too_high", "classification_too_high", "forbidden", "invalid_input",
    ]  # fmt: skip


@pytest.mark.spec("hcp L3 TaskRejected Response")
def test_a_rejection_is_a_message_of_l3():
    rejection = reject(submit({"sensor": "b", "samples": 5000}), by=allowed(risk="R2"))
    payload = rejection.payload("msg-001")
    assert payload == TaskRejected(
        reason_code="risk_too_high",
        reason_message=rejection.message,
        assessed_risk_level="R3",
        suggestion=rejection.suggestion,
        in_reply_to="msg-001",
    )
    document = write_message(message(payload, session_id=None, now=0.0))
    assert read_message(document).payload == payload


# --- what is merely not promised --------------------------------------------------------------------------------------


def test_a_format_where_none_is_declared_is_a_warning():
    (warning,) = approve(submit(expected_output={"format": "raw"})).warnings
    assert "/payload/expected_output/format" in warning
    assert "'raw'" in warning


def test_a_declared_format_is_taken():
    one = capability(formats=("climate-survey",))
    assert approve(submit(expected_output={"format": "climate-survey"}), one).warnings == ()


@pytest.mark.parametrize("more", [{}, {"additionalProperties": False, "patternProperties": {"^x": True}}])
def test_an_output_that_is_not_declared_where_others_may_be_is_a_warning(more):
    open_ended = {key: value for key, value in OUTPUTS.items() if key != "additionalProperties"} | more
    names = ("mean", *(f"x{number}" for number in range(20)))
    (warning,) = approve(submit(expected_output={"required_fields": names}), capability(outputs=open_ended)).warnings
    assert "/payload/expected_output/required_fields" in warning
    assert "and 8 more" in warning


def test_a_callers_schema_is_compiled_once_at_the_gate():
    schema = {"required": ["mean"], "properties": {"mean": {"minimum": 10}}}
    approval = approve(submit(expected_output={"schema": schema, "required_fields": ("mean",)}))
    assert approval.expected is not None
    assert approval.expected.mismatch_of({"mean": 20}) is None
    assert approval.expected.mismatch_of({"mean": 2}) is not None


# --- risk -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "risk"),
    [
        ({}, "R1"),
        ({"samples": 1000}, "R1"),
        ({"samples": 1001}, "R3"),
        ({"fast": False}, "R1"),
        ({"fast": True}, "R2"),
        ({"heat": 100}, "R4"),
        ({"heat": 100, "fast": True, "samples": 2000}, "R4"),
    ],
)
@pytest.mark.spec(
    "hcp L3 Risk Assessment Process",
    "is",
    "Input-driven escalation: Specific input parameters may elevate the risk level.",
)
def test_the_risk_is_the_floor_raised_by_every_rule_that_holds(inputs, risk):
    assert approve(submit({"sensor": "b", **inputs})).risk == risk


def rule(when, risk="R4", cure="keep it low"):
    return Escalation(when, risk, "it is so", cure)


def test_a_rule_never_lowers_the_floor():
    one = capability(floor="R3", rules=[rule(lambda samples: samples > 0, "R1")])
    assert approve(submit(), one).risk == "R3"


def test_a_rule_that_raises_an_exception_counts_as_one_that_holds():
    one = capability(rules=[rule(lambda samples, heat: samples / heat > 5)])
    assert approve(submit(), one).risk == "R1"
    assert approve(submit({"sensor": "b", "heat": 0}), one).risk == "R4"


@pytest.mark.parametrize(
    ("fast", "risk"), [({}, "R1"), ({"fast": False}, "R1"), ({"fast": True}, "R4")], ids=["absent", "false", "true"]
)
def test_a_rule_gets_none_for_an_input_that_is_not_there(fast, risk):
    seen = []
    one = capability(rules=[rule(lambda fast: seen.append(fast) or fast)])
    assert approve(submit({"sensor": "b", **fast}), one).risk == risk
    assert seen == [fast.get("fast")]


def test_the_cure_for_too_much_risk_is_the_authors():
    one = capability(rules=[rule(lambda samples: samples > 5, cure="keep samples at 5 or less.")])
    rejection = reject(submit({"sensor": "b", "samples": 9}), one, by=allowed(risk="R2"))
    assert rejection.suggestion == "Keep samples at 5 or less: then the risk is R1"


# --- the capability's own check and values ----------------------------------------------------------------------------


def refuse(_inputs):
    raise InputRefused("two of them are one line", cure="Name each line once", at="lines")


@pytest.mark.parametrize("part", ["check", "structure"])
def test_what_a_capability_refuses_itself_is_an_invalid_input(part):
    rejection = reject(submit(), capability(**{part: refuse}))
    assert rejection.reason_code == "invalid_input"
    assert rejection.message == "/payload/inputs/lines: two of them are one line"
    assert rejection.suggestion == "Name each line once"


def test_a_check_is_asked_after_the_schema_and_before_the_envelope():
    one = capability(check=refuse)
    assert "/payload/inputs/samples" in reject(submit({"sensor": "b", "samples": 0}), one).message
    beyond = submit({"sensor": "b", "interval": 90})
    assert reject(beyond, one).reason_code == "invalid_input"
    assert reject(beyond).reason_code == "safety_violation"


def test_rules_and_limits_get_structured_values_and_the_approval_keeps_json():
    kelvin = {"interval": Limit(lambda heat: heat.kelvin, max=400)}
    one = capability(
        limits=kelvin,
        rules=[rule(lambda heat: heat.kelvin > 300, "R2")],
        structure=lambda inputs: {**inputs, "heat": SimpleNamespace(kelvin=inputs["heat"] + 273.15)},
    )
    assert approve(submit({"sensor": "b", "heat": 20}), one).risk == "R1"
    approval = approve(submit({"sensor": "b", "heat": 50}), one)
    assert (approval.risk, approval.inputs["heat"]) == ("R2", 50)
    assert "/payload/inputs/heat: outside" in reject(submit({"sensor": "b", "heat": 200}), one).message


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (lambda samples, heat: 99, "/payload/inputs/samples or /payload/inputs/heat: "),
        (lambda: 99, "/payload/inputs: "),
        (lambda in_: 99, "/payload/inputs/in: "),
    ],
)
def test_a_violation_names_the_inputs_that_the_limit_looks_at(value, place):
    rejection = reject(submit(), capability(limits={"effort": Limit(value, max=1)}))
    assert rejection.message == f"{place}outside of the safety envelope: effort: 99 is above the most allowed, 1"
    assert rejection.suggestion == "Keep effort at 1 or less"


def test_the_board_spells_lines_and_ports_before_anything_compares_them():
    schema = {
        "type": "object",
        "properties": {
            "ports": {"type": "array", "uniqueItems": True, "items": {"type": "string", "format": "uart-port"}},
            "line": {"type": ["integer", "string"], "format": "gpio-line"},
        },
    }
    one = capability(inputs=schema, rules=[rule(lambda line: line == "GPIO17", "R2")], limits={})
    board = {
        "line_name": lambda line, _chip: "GPIO17" if line == 17 else line,
        "port_name": lambda port: port.removeprefix("uart:"),
    }
    approval = approve(submit({"ports": ["uart:a", "b"], "line": 17}), one, **board)
    assert (approval.inputs, approval.risk) == ({"ports": ["a", "b"], "line": "GPIO17"}, "R2")
    with pytest.raises(Rejection, match="unique"):
        approve(submit({"ports": ["uart:a", "a"]}), one, **board)


def test_every_rule_above_the_limit_is_in_the_cure_and_those_within_it_stay():
    rejection = reject(submit({"sensor": "b", "samples": 2000, "heat": 120, "fast": True}), by=allowed(risk="R2"))
    assert rejection.suggestion == (
        "Keep /payload/inputs/samples at 1000 or less; and keep /payload/inputs/heat below 100: then the risk is R2"
    )


# --- whose allowance --------------------------------------------------------------------------------------------------

OURS = Principal(kind="unix", uid=1000, gid=1000)


def test_a_principal_that_no_entry_matches_has_no_allowance():
    assert allowance([PolicyEntry(name="other", match={"uid": 7})], OURS, {}) is None


@pytest.mark.parametrize(
    ("cap", "rules", "highest"),
    [
        (0, "R5", "R1"),
        (1, "R5", "R2"),
        (2, "R5", "R4"),
        (3, "R5", "R5"),
        (3, "R2", "R2"),
        (1, "R1", "R1"),
        (2, "R3", "R3"),
    ],
)
def test_the_highest_risk_is_within_max_risk_and_within_hcp_max_risk(cap, rules, highest):
    entry = PolicyEntry(name="lab", match={"uid": 1000}, max_risk=cap, hcp=JobRules(max_risk=rules))
    found = allowance([entry], OURS, {})
    assert found is not None
    assert found.max_risk == highest


def test_a_ceiling_that_a_task_would_have_to_ask_for_is_not_reached_through_hcp():
    entry = PolicyEntry(name="lab", match={"uid": 1000}, max_risk=1, max_risk_ceiling=3)
    found = allowance([entry], OURS, {})
    assert found is not None
    assert found.max_risk == "R2"


def test_an_allowance_tells_the_tools_on_the_list_from_those_above_the_cap():
    registry = ToolRegistry(build_tools(open_board(load_profile("sim"))))
    entry = PolicyEntry(name="lab", match={"uid": 1000}, max_risk=1, tools=("gpio.*",), rights=["approve"])
    found = allowance([entry], OURS, registry)
    assert found is not None
    assert found.policy == "lab"
    assert found.tools == {name for name in registry if name.startswith(("gpio.", "signal."))}
    harmless = {"i2c.read", "spi.read"}  # with some arguments
    assert found.too_risky == {name for name, tool in registry.items() if tool.risk_level > 1} - harmless
    assert found.too_risky
    assert found.rights == {"approve"}


@pytest.mark.parametrize(
    ("one", "by"),
    [
        (SURVEY, allowed(capabilities=("host-*",))),
        (SURVEY, allowed(tools=frozenset())),
        (SURVEY, allowed(too_risky=TOOLS)),
        (capability(floor="R3"), allowed(risk="R2")),
    ],
)
def test_what_no_inputs_would_get_in_is_not_listed(one, by):
    assert not may_submit(one, by)
    assert reject(submit(), one, by=by).reason_code in ("forbidden", "risk_too_high")


def test_what_some_inputs_get_in_is_listed():
    assert may_submit(SURVEY, allowed(risk="R1"))
