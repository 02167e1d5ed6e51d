"""What a capability file says, and all that can be wrong with it."""

from datetime import date, time, timedelta

import pytest
from hcp.capability_files import GONE, changed, declared, faults_of

from hearth.hcp.planning import Order


def test_a_file_that_is_right_is_a_capability_with_all_that_it_says():
    capability = declared()
    assert (capability.name, capability.version, capability.planner) == ("line-blink", "1.2.0", "recipe")
    assert capability.place == "blink.toml"
    assert capability.formats == ("blink-report",)
    assert (capability.max_duration, capability.concurrent_limit) == (timedelta(minutes=10), 2)
    assert capability.data_classification == "T3"
    assert capability.plan.tools == {"gpio.set"}
    assert capability.plan.begin(Order(session_id="s", started_at=0, inputs={"line": 17, "times": 3})).phase == "high"
    assert [one.because for one in capability.safety.escalate] == ["whatever hangs on the line is moved for long"]
    assert capability.safety.escalate[0].when.value({"inputs": {"times": 11}}) is True
    assert capability.inputs.accepts({"line": 3})
    assert not capability.outputs.accepts({})
    assert capability.envelope.check_inputs({"times": 51}) is not None
    assert capability.envelope.check_inputs({"times": 50}) is None


@pytest.mark.spec("hcp L3 Capability Declaration Fields")
@pytest.mark.spec("hcp L3 Safety Declaration Fields")
def test_its_declaration_is_the_one_of_l3():
    declaration = declared().declaration()["capability"]
    assert list(declaration) == [
        "name", "version", "description", "input_schema", "output_schema", "safety", "constraints",
    ]  # fmt: skip
    assert declaration["safety"] == {
        "risk_ceiling": "R4",
        "requires_human_approval": True,
        "involves_physical_resources": True,
        "resource_types": ["gpio_line"],
        "hazard_categories": ["moving_parts"],
    }
    assert declaration["constraints"] == {"max_duration": "PT10M", "concurrent_limit": 2}


def test_what_may_be_left_out_has_a_default():
    capability = declared("capability.constraints", GONE)
    assert (capability.max_duration, capability.concurrent_limit) == (timedelta(hours=1), 1)
    assert capability.data_classification == "T2"
    assert declared("capability.formats").formats == ()
    assert declared("safety_envelope").envelope.check_inputs({"times": 10**6}) is None


@pytest.mark.spec(
    "hcp L3 Risk Assessment Process",
    "is",
    "Static risk floor: The capability's declared risk_ceiling sets the minimum possible risk.",
)
def test_without_a_floor_of_its_own_a_risk_begins_at_the_ceiling_as_l3_has_it():
    safety = changed("capability.safety.risk_floor")
    safety["capability"]["safety"].pop("escalate")
    capability = declared("capability.safety", safety["capability"]["safety"])
    assert capability.safety.risk_floor == capability.safety.risk_ceiling == "R4"


NAME = 'expected a name such as "bench-climate-survey", got'
SEMVER = 'expected a semver version such as "1.0.0", got'
RISK = 'expected "R1", "R2", "R3", "R4" or "R5", got'
WRONG = [
    ("name", GONE, 'missing; it takes a name such as "bench-climate-survey"'),
    ("name", "Bench", f'{NAME} "Bench"'),
    ("name", "a--b", f'{NAME} "a--b"'),
    ("name", "a" * 65, "expected at most 64 characters, got 65"),
    ("version", "1.0", f"{SEMVER} '1.0'"),
    ("version", 1, f"{SEMVER} 1"),
    ("description", "", 'expected a non-empty string, got ""'),
    ("formats", "csv", 'expected an array, got "csv"'),
    ("descripton", "x", "unknown key; did you mean description?"),
    ("planner", "recpe", 'there is no planner "recpe" here, but recipe; a vendor\'s is known only if [hcp] planners'),
    ("planner", 5, "expected a non-empty string, got 5"),
    ("safety", GONE, "missing; it takes a table"),
    ("safety.risk_floor", "R0", f'{RISK} "R0"'),
    ("safety.hazard_category", [], "unknown key; did you mean hazard_categories?"),
    ("safety.requires_human_approval", 1, "expected true or false, got 1"),
    ("safety.escalate", 5, "expected an array of tables, written as [[capability.safety.escalate]]; got 5"),
    ("safety.escalate.0.because", GONE, "missing; it takes a non-empty string"),
    ("safety.escalate.0.if", "x", "unknown key; expected when, risk, because"),
    ("constraints", [], "expected a table, got []"),
    ("constraints.max_duration", "10m", "expected an ISO 8601 duration such as"),
    ("constraints.max_duration", "PT0S", "expected a duration that is more than nothing"),
    ("constraints.concurrent_limit", 0, "expected an integer from 1 to 1000, got 0"),
    ("constraints.data_classification", "T5", 'expected "T1", "T2", "T3" or "T4", got "T5"'),
    ("constraints.max_duraton", "PT1S", "unknown key; did you mean max_duration?"),
]


@pytest.mark.parametrize(("key", "value", "reason"), WRONG)
def test_a_fault_is_told_once_with_its_key_and_what_is_expected_there(key, value, reason):
    (line,) = faults_of(changed(f"capability.{key}", value))
    assert line.startswith(f"capability.{key.replace('.0.', '[0].')}: {reason}")


def test_a_fault_in_a_list_is_told_with_its_place_in_the_list():
    (line,) = faults_of(changed("capability.formats", ["a", ""]))
    assert line == 'capability.formats[1]: expected a non-empty string, got ""'


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("recipes", {}, "recipes: unknown key; did you mean recipe?"),
        ("safety_envelope", 5, "safety_envelope: expected a table, got 5"),
        ("capability", GONE, "capability: missing; it takes a table"),
        ("capability", 5, "capability: expected a table, got 5"),
    ],
)
def test_of_a_table_that_is_not_there_nothing_more_is_said(key, value, told):
    assert faults_of(changed(key, value)) == [told]


OBJECT = {"type": "object"}
SCHEMAS = [
    (5, ": expected a table, got 5"),
    ({}, '.type: expected type = "object": inputs and outputs are objects'),
    ({"type": "array"}, '.type: expected type = "object": inputs and outputs are objects; got "array"'),
    ({**OBJECT, "required": "line"}, ": not a JSON Schema 2020-12: "),
    ({**OBJECT, "allOf": [{"$ref": "#/$defs/b"}]}, ": cannot be used: Pointer '/$defs/b' does not exist"),
    (
        {**OBJECT, "properties": {"a": {"$ref": "https://acme.example/a.json"}}},
        '.properties.a."$ref": leads out of the file, and nothing is fetched: "https://acme.example/a.json"; put it',
    ),
    ({**OBJECT, "allOf": [{"$dynamicRef": "a.json#x"}]}, '.allOf[0]."$dynamicRef": leads out of the file'),
    (
        {**OBJECT, "$schema": "http://json-schema.org/draft-07/schema#"},
        '."$schema": only JSON Schema 2020-12 is known, not "http://json-schema.org/draft-07/schema#"; take it out',
    ),
    (
        {**OBJECT, "properties": {"times": {"type": "integer", "default": "3"}}},
        '.properties.times.default: its own schema refuses it: "3" is not of type "integer"',
    ),
    (
        {**OBJECT, "properties": {"a": {"$ref": "#/$defs/b", "default": 3}}, "$defs": {"b": {"maximum": 2}}},
        ".properties.a.default: its own schema refuses it: 3 is greater than the maximum of 2",
    ),
]


@pytest.mark.parametrize(("schema", "told"), SCHEMAS)
def test_a_schema_must_be_one_of_an_object_whole_in_the_file_and_agree_with_its_own_defaults(schema, told):
    (line,) = faults_of(changed("capability.input_schema", schema))
    assert line.startswith(f"capability.input_schema{told}")


def test_what_only_looks_like_a_reference_is_data():
    schema = {"type": "object", "properties": {"a": {"const": {"$ref": "http://a"}}}}
    assert faults_of(changed("capability.output_schema", schema)) == []


def test_a_floor_above_the_ceiling_is_refused():
    (line,) = faults_of(without_escalation(risk_floor="R5"))
    assert line == 'capability.safety.risk_floor: "R5" is above risk_ceiling = "R4"; lower it or raise risk_ceiling'


def without_escalation(**safety):
    """The document with these members of its safety, and no rule that raises the risk."""
    document = changed("capability.safety.escalate")
    document["capability"]["safety"] |= safety
    for name in [name for name, value in safety.items() if value is GONE]:
        del document["capability"]["safety"][name]
    return document


@pytest.mark.parametrize("risk", ["R3", "R5"])
def test_a_rule_raises_the_risk_above_the_floor_and_not_above_the_ceiling(risk):
    (line,) = faults_of(changed("capability.safety.escalate.0.risk", risk))
    assert line == (
        "capability.safety.escalate[0].risk: expected a risk above risk_floor "
        f'("R3") and up to risk_ceiling ("R4"), got "{risk}"'
    )


@pytest.mark.parametrize("when", ["inputs.times >", "results.high.value == `1`", "inputs.tiems > `10`"])
def test_a_rule_speaks_of_inputs_that_there_are(when):
    (line,) = faults_of(changed("capability.safety.escalate.0.when", when))
    assert line.startswith("capability.safety.escalate[0].when: ")


@pytest.mark.spec("hcp L3 Risk Classification")
def test_a_risk_below_that_of_the_riskiest_tool_is_refused():
    # gpio.set has risk level 2.
    (line,) = faults_of(without_escalation(risk_floor="R2", requires_human_approval=False))
    assert line == (
        'capability.safety.risk_floor: expected at least "R3", since the plan uses gpio.set, '
        'which has risk level 2; got "R2"'
    )
    lines = faults_of(without_escalation(risk_ceiling="R2", risk_floor=GONE, requires_human_approval=False))
    assert [line.partition(":")[0] for line in lines] == ["capability.safety.risk_ceiling"]


def test_more_risk_than_the_tools_have_may_be_declared():
    assert faults_of(without_escalation(risk_ceiling="R5", risk_floor="R5")) == []


def test_a_plan_that_drives_hardware_is_said_to_involve_physical_resources():
    (line,) = faults_of(changed("capability.safety.involves_physical_resources", False))
    assert line == (
        "capability.safety.involves_physical_resources: expected true, "
        "since the plan uses gpio.set, which drives hardware"
    )


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("gpio.get", {"line": 17}),
        ("hw.board", {}),
        ("file.write", {"path": "/srv/x", "data": "eA=="}),
        ("sys.load", {}),
    ],
)
def test_looking_and_what_is_the_machines_own_drives_no_hardware(tool, args):
    document = changed("capability.safety.involves_physical_resources", False)
    document["recipe"]["steps"] = [{"name": "it", "tool": tool, "args": args}]
    assert faults_of(document) == []


def test_a_person_cannot_be_promised_for_risks_at_which_nobody_is_asked():
    document = without_escalation(risk_ceiling="R2", risk_floor="R1", requires_human_approval=True)
    document["recipe"]["steps"] = [{"name": "it", "tool": "hw.board", "args": {}}]
    (line,) = faults_of(document)
    assert line.startswith(
        "capability.safety.requires_human_approval: a person is asked from R3 on, "
        "and no job of this capability is above R1; raise risk_floor"
    )


def test_a_rule_that_raises_the_risk_to_r3_is_enough_for_a_person_to_be_asked():
    document = changed("capability.safety.risk_floor", "R1")
    document["recipe"]["steps"] = [{"name": "it", "tool": "hw.board", "args": {}}]
    assert faults_of(document) == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (date(2026, 11, 22), "expected what JSON can hold, got 2026-11-22; write it as a string"),
        (time(12, 0), "expected what JSON can hold, got 12:00:00; write it as a string"),
        (float("nan"), "expected what JSON can hold, got nan; write it as a string"),
        (float("-inf"), "expected what JSON can hold, got -inf; write it as a string"),
        (2**53 + 1, "expected an integer that JSON can hold, from -2^53 to 2^53, got 9007199254740993"),
    ],
)
def test_what_json_cannot_hold_is_refused_wherever_it_stands(value, told):
    document = changed("recipe.steps.0.args.value", [True, 1.5, value])
    assert faults_of(document) == [f"recipe.steps[0].args.value[2]: {told}"]


def test_the_plan_is_held_against_the_tools_there_are():
    (line,) = faults_of(changed("recipe.steps.0.tool", "gpio.sett"))
    assert line.startswith("recipe.steps[0].tool: ")
    assert "gpio.sett" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("safety_envelope.parameters.times.max", GONE),
        ("safety_envelope.parameters.times.value", "inputs.tiems"),
        ("safety_envelope.parameters.times.watch", "results.low.value"),
        ("safety_envelope.parameters.times.limit", 5),
        ("safety_envelope.prohibited_actions", "none"),
    ],
)
def test_what_is_wrong_in_the_envelope_is_told_once_whoever_looks_at_it(key, value):
    (line,) = faults_of(changed(key, value))
    assert line.startswith(f"{key}: ")


def test_the_planners_own_table_is_known_by_its_name_alone():
    assert faults_of(changed("acme", {})) == ["acme: unknown key; expected capability, safety_envelope, recipe"]
    (line,) = faults_of(changed("recipe"))
    assert line.startswith("recipe: ")


def test_everything_that_is_wrong_is_told_at_once():
    document = changed("capability.name", "Line Blink")
    document["capability"]["version"] = "1"
    document["capability"]["safety"]["risk_ceilng"] = "R3"
    document["capability"]["constraints"]["max_duration"] = "an hour"
    document["recipe"]["steps"][0]["tool"] = "gpio.sett"
    document["extra"] = {}
    assert [line.partition(":")[0] for line in faults_of(document)] == [
        "capability.name",
        "capability.version",
        "capability.safety.risk_ceilng",
        "capability.constraints.max_duration",
        "extra",
        "recipe.steps[0].tool",
    ]
