"""Plan files: what they may say, how inputs get into their steps, and what is wrong with one."""

import tomllib

import pytest
from hcp.capability_files import PLAN, named, registry

from hearth.api import Expect
from hearth.errors import ConfigError
from hearth.hcp.library import load_capabilities
from hearth.hcp.plan_files import filled

ECHO = """\
[capability]
name = "echo"
version = "1.0.0"
description = "Says a text on a port."

[capability.input_schema]
type = "object"
required = ["text"]
additionalProperties = false

[capability.input_schema.properties]
text = { type = "string" }
times = { type = "integer" }

[capability.safety]
risk_ceiling = "R3"

[[steps]]
tool = "uart.write"
args = { port = "loop", data = "{text}" }
"""


def load(tmp_path, text):
    return next(iter(load_capabilities([str(named(tmp_path, "a", text))], registry=registry(), shipped=[]).values()))


def faults(tmp_path, text):
    """What is wrong with a file, each without the file."""
    file = named(tmp_path, "a", text)
    with pytest.raises(ConfigError) as caught:
        load_capabilities([str(file)], registry=registry(), shipped=[])
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines), lines
    return [line.removeprefix(f"{file}: ") for line in lines]


class Job:
    """Does steps, and gives each its number."""

    def __init__(self):
        self.done = []

    async def run(self, tool, /, **args):
        self.done.append((tool, args))
        return {"number": len(self.done)}


async def test_a_plan_does_its_steps_in_order_with_the_inputs_in_their_args(tmp_path):
    capability = load(tmp_path, PLAN)
    job = Job()
    outputs = await capability.function(job, **capability.structure({"line": 17}))
    assert job.done == [("gpio.set", {"line": 17, "value": 1}), ("gpio.set", {"line": 17, "value": 0})]
    assert outputs == {"steps": [{"number": 1}, {"number": 2}]}
    assert capability.outputs.accepts(outputs)
    assert capability.tools == {"gpio.set"}


async def test_a_step_that_fails_ends_the_plan(tmp_path):
    class Failing(Job):
        async def run(self, tool, /, **args):
            await super().run(tool, **args)
            raise LookupError

    job = Failing()
    with pytest.raises(LookupError):
        await load(tmp_path, PLAN).function(job, line=17)
    assert len(job.done) == 1


def test_it_declares_what_a_function_would(tmp_path):
    capability = load(tmp_path, PLAN)
    assert (capability.version, capability.description) == ("1.2.0", "Drives a line high and low again.")
    assert (capability.formats, capability.concurrent_limit, capability.data_classification) == (
        ("blink-report",), 2, "T3",
    )  # fmt: skip
    safety = capability.declaration()["capability"]["safety"]
    assert safety == {
        "risk_ceiling": "R3",
        "requires_human_approval": True,
        "involves_physical_resources": True,
        "hazard_categories": ["moving_parts"],
    }


def test_without_an_input_schema_it_takes_no_inputs(tmp_path):
    text = ECHO.partition("[capability.input_schema]")[0] + '[capability.safety]\nrisk_ceiling = "R1"\n'
    capability = load(tmp_path, text + '[[steps]]\ntool = "hw.sensor.list"\n')
    assert capability.inputs.accepts({})
    assert not capability.inputs.accepts({"x": 1})


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        ("{n}", 5),
        ("{list}", [1, "a"]),
        ("{text}", "a {n} b"),
        ("{n}{n}", "55"),
        ("say {text}", "say a {n} b"),
        ("{yes}, {none}, {list}", 'true, null, [1, "a"]'),
        ("{{n}}", "{n}"),
        ("{{{n}}}", "{5}"),
        ("}}{{", "}{"),
        ("", ""),
        (5, 5),
        (True, True),
        ({"{n}": ["{n}", {"deep": "x{n}"}]}, {"{n}": [5, {"deep": "x5"}]}),
    ],
)
def test_a_placeholder_takes_the_inputs_value(value, becomes):
    inputs = {"n": 5, "text": "a {n} b", "list": [1, "a"], "yes": True, "none": None}
    assert filled(value, inputs) == becomes


def test_an_input_may_have_any_name(tmp_path):
    text = PLAN.replace("properties.line", "properties.job").replace("{line}", "{job}")
    assert load(tmp_path, text).structure({"job": 3}) == {"job": 3}


WRONG = [
    ("", '"1.2.0"', '"1"', ["capability.version: expected a semver version"]),
    ("a key that is missing", 'name = "line-blink"\n', "", ["capability.name: missing; "]),
    ("no description", 'description = "Drives', 'descripton = "Drives', [
        "capability.description: missing; it is what callers read",
        "capability.descripton: unknown key; did you mean description?",
    ]),
    ("a key of functions alone", "[capability.safety]", "[capability.output_schema]\n[capability.safety]", [
        "capability.output_schema: unknown key; did you mean input_schema?",
    ]),
    ("a key of recipes", "[capability]", "[safety_envelope]\n[capability]", ["safety_envelope: unknown key; "]),
    ("the planner of recipes", "[capability]", "[capability]\nplanner = 'x'", ["capability.planner: unknown key; "]),
    ("too low a risk", '"R3"\nrequires_human_approval = true', '"R1"', [
        'capability.safety.risk_ceiling: expected at least "R3", since its tools include gpio.set',
    ]),
    ("no such risk", '"R3"', '"R9"', ["capability.safety.risk_ceiling: expected "]),
    ("hardware that it denies", "[capability.safety]", "[capability.safety]\ninvolves_physical_resources = false", [
        "capability.safety.involves_physical_resources: expected true",
    ]),
    ("a wrong schema", '"integer"', '"intger"', ["capability.input_schema: "]),
    ("no such constraint", "concurrent_limit = 2", "concurrent_limits = 2", [
        "capability.constraints.concurrent_limits: unknown key; did you mean concurrent_limit?",
    ]),
    ("a date", '"1.2.0"', "2026-11-23", ["capability.version: expected what JSON can hold, got "]),
    ("a table in the place of another", "[[steps]]", "[steps]", None),
    ("another table", "[[steps]]", "[[step]]", ["step: unknown key; did you mean steps?"]),
    ("a key of a step", "value = 1 }", "value = 1 }\nname = 'x'", ["steps[0].name: unknown key; "]),
    ("no tool", 'tool = "gpio.set"\nargs = { line = "{line}", value = 1 }', 'args = {}', ["steps[0].tool: missing; "]),
    ("no such tool", '"gpio.set"', '"gpio.sett"', [
        "steps[0].tool: this daemon has no tool 'gpio.sett'; did you mean 'gpio.set'?; tool.list has them all",
    ]),
    ("no such arg", "value = 1", "valeu = 1", ["steps[0].args.valeu: unknown key; did you mean value?"]),
    ("an arg that is missing", ", value = 1", "", ["steps[0].args: gpio.set does not take it: "]),
    ("an arg of another kind", "value = 1", 'value = "high"', ["steps[0].args.value: gpio.set does not take it: "]),
    ("an arg out of bounds", "value = 1", "value = 2", ["steps[0].args.value: gpio.set does not take it: "]),
    ("a line that is not there", 'line = "{line}", value = 1', 'line = "NONE", value = 1', ["steps[0].args: "]),
    ("no such input", '"{line}"', '"{lime}"', [
        "steps[0].args.line: {lime} names no input; did you mean 'line'?; there are line",
    ]),
    ("an empty placeholder", '"{line}"', '"{}"', ["steps[0].args.line: {} names no input; there are line"]),
    ("a brace alone", '"{line}"', '"{{line}"', ["steps[0].args.line: a brace alone; write "]),
    ("an input that may be left out", ", default = 17", "", [
        "steps[0].args.line: {line} may be left out; give it a default in input_schema, or list it under required",
        "steps[1].args.line: {line} may be left out; give it a default in input_schema, or list it under required",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), [row[1:] for row in WRONG], ids=[row[0] or "version" for row in WRONG])
def test_a_mistake_is_told_with_its_key_and_the_cure(tmp_path, old, new, said):
    assert old in PLAN
    if said is None:
        text = PLAN.partition(old)[0] + new + PLAN.partition(old)[2].partition("[[steps]]")[0]
        said = ["steps: expected an array of tables, written as [[steps]]; got a table"]
    else:
        text = PLAN.replace(old, new, 1)
    told = faults(tmp_path, text)
    assert [line[: len(start)] for line, start in zip(told, said, strict=True)] == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "capability: missing; "),
        (PLAN.partition("[[steps]]")[0], "steps: missing; write each step as [[steps]], with its tool and its args"),
        ("capability = 5", "capability: expected a table, got 5"),
        ("[recipe]\n[capability]\n", "recipe: hearth has no recipes any more; write it as a Python function"),
        ("x = " + "[" * 5000 + "]" * 5000, "arrays or tables are nested too deeply; flatten them"),
        ("x = " + "9" * 5000, "line 1: a number of more than 4300 digits; no key takes one"),
        ("[capability\n", "line 1, column 12: Expected ']' at the end of a table declaration"),
    ],
)
def test_what_is_no_plan_file_says_so(tmp_path, text, said):
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_capabilities([str(file)], registry=registry(), shipped=[])
    assert str(caught.value).startswith(f"{file}: {said}")


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"[capability]\nname = '\xff'\n")
    with pytest.raises(ConfigError, match=r"a\.toml: line 2: byte 0xff is not UTF-8; save it as UTF-8"):
        load_capabilities([str(tmp_path)], registry=registry(), shipped=[])


def test_a_value_that_only_a_job_knows_is_not_judged_and_the_others_are(tmp_path):
    assert tomllib.loads(ECHO)["steps"]
    assert load(tmp_path, ECHO).tools == {"uart.write"}
    (line,) = faults(tmp_path, ECHO.replace('port = "loop"', "port = 5"))
    assert line.startswith("steps[0].args.port: uart.write does not take it: ")


SEEN = """\
[capability]
name = "seen"
version = "1.0.0"
description = "Drives a line, and looks at it."

[capability.input_schema]
type = "object"
required = ["line", "within"]
additionalProperties = false

[capability.input_schema.properties]
line = { type = "integer" }
within = { type = "integer" }

[capability.safety]
risk_ceiling = "R3"

[[steps]]
tool = "gpio.set"
args = { line = "{line}", value = 1 }
expect = { tool = "gpio.get", args = { line = "{line}" }, equals = { value = 1 }, within_ms = "{within}" }
"""


async def test_a_step_may_have_the_effect_that_must_be_seen_with_inputs_in_it(tmp_path):
    capability = load(tmp_path, SEEN)
    job = Job()
    await capability.function(job, line=5, within=20)
    wanted = Expect("gpio.get", {"line": 5}, equals={"value": 1}, within_ms=20)
    assert job.done == [("gpio.set", {"line": 5, "value": 1, "expect": wanted})]
    assert capability.tools == {"gpio.set", "gpio.get"}


@pytest.mark.parametrize(
    ("instead", "fault"),
    [
        ("expect = 1", "steps[0].expect: expected a table"),
        ('expect = { tool = "gpio.get" }', "steps[0].expect: expected a member of the result in equals, min or max"),
        ('expect = { tool = "gpio.get", equal = { value = 1 } }', "steps[0].expect.equal: unknown key; did you mean"),
        ('expect = { tool = "gpio.gett", equals = { value = 1 } }', "steps[0].expect.tool: this daemon has no tool"),
        (
            'expect = { tool = "gpio.get", args = { lin = 5 }, equals = { value = 1 } }',
            "steps[0].expect.args.lin: unknown key; did you mean line",
        ),
        (
            'expect = { tool = "gpio.get", equals = { value = "{x}" } }',
            "steps[0].expect.equals.value: {x} names no input",
        ),
    ],
)
def test_a_wrong_expectation_is_a_fault_of_the_file(tmp_path, instead, fault):
    head, _, _ = SEEN.rpartition("expect = ")
    assert faults(tmp_path, head + instead + "\n")[0].startswith(fault)
