"""A capability file's recipe is checked whole at start-up: each fault has its key and the cure, and all are found."""

from __future__ import annotations

import pytest
from support.recipes import faults, prepare

from hearth.hcp.planning import PlanError

STEP = """
[[recipe.steps]]
name = "read"
tool = "sensor.read"
args = { sensor = "t" }
"""
AT = "recipe.steps[0]"


def step(line: str, *, without: str = "") -> str:
    return "\n".join(one for one in STEP.splitlines() if not without or not one.startswith(without)) + f"\n{line}\n"


def args(text: str) -> str:
    """The step with other args."""
    return step(f"args = {{ {text} }}", without="args")


def scale(text: str) -> str:
    """The step with another arg, of computed value."""
    return args(f"sensor = 't', scale = {{ expr = '`1`', {text} }}")


def outputs(text: str) -> str:
    """A sound step, and outputs."""
    return f"{STEP}[recipe.outputs]\n{text}"


def artifact(text: str) -> str:
    """A sound step, and an artifact."""
    return f"{STEP}[[recipe.artifacts]]\nname = 'a'\nfile = 'x'\n{text}"


def group(text: str) -> str:
    """A group of steps."""
    return f"[[recipe.steps]]\nname = 'g'\n{text}"


INNER = "[[recipe.steps.steps]]\nname = 'a'\ntool = 'a.note'\n"
ARTIFACT = "recipe.artifacts[0]"


def test_a_sound_recipe_has_no_faults() -> None:
    assert faults(STEP) == {}


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        # names and keys
        ("", "recipe", "missing"),
        ("[recipe]", "recipe.steps", "at least one"),
        ("[recipe]\nsteps = 3", "recipe.steps", "[[recipe.steps]]"),
        (STEP + STEP, "recipe.steps[1].name", "already"),
        (STEP.replace('"read"', '"Read"'), f"{AT}.name", "small letters"),
        (STEP.replace('"read"', '"error"'), f"{AT}.name", "of themselves"),
        (step("", without="name"), f"{AT}.name", "missing"),
        (step("repeet = 3"), f"{AT}.repeet", "repeat"),
        (step("phase = 3"), f"{AT}.phase", "expected"),
        (step('on_failure = "ignore"'), f"{AT}.on_failure", '"fail" or "continue"'),
        ("[recipe]\nstep = 1" + STEP, "recipe.step", "steps"),
        # tools and args
        (STEP.replace("sensor.read", "sensor.reed"), f"{AT}.tool", "did you mean 'sensor.read'?"),
        (step("", without="tool"), f"{AT}.tool", "missing; or give `steps`"),
        (step("steps = [{ name = 'x', tool = 'a.note' }]"), f"{AT}.tool", "not both"),
        (args('sensr = "t"'), f"{AT}.args.sensr", "did you mean 'sensor'?"),
        (step("", without="args"), f"{AT}.args.sensor", "missing; the tool needs it: its name"),
        (args("sensor = 5"), f"{AT}.args.sensor", "not of type"),
        (args('sensor = ""'), f"{AT}.args.sensor", "shorter than 1"),
        (args("sensor = { expr = 'inputs.samples' }"), f"{AT}.args.sensor", "a number, and a string"),
        (args("sensor = { expr = 'inputs.sensr' }"), f"{AT}.args.sensor.expr", "did you mean 'sensor'?"),
        (args("sensor = { expr = 3 }"), f"{AT}.args.sensor.expr", "expected"),
        (args("sensor = { expr = 'inputs.sensor', form = 'x' }"), f"{AT}.args.sensor.form", "from"),
        (
            scale("from = 'celsius', unit = 'metre'"),
            f"{AT}.args.scale.unit",
            "cannot be converted",
        ),
        (
            scale("from = 'florp', unit = 'metre'"),
            f"{AT}.args.scale.unit",
            "not a unit",
        ),
        (scale("from = 'm'"), f"{AT}.args.scale.unit", "missing"),
        (scale("unit = 'm'"), f"{AT}.args.scale.unit", "in which unit"),
        (
            scale("from = 'm', unit_of = \"'m'\", unit = 'm'"),
            f"{AT}.args.scale.from",
            "not both",
        ),
        (
            "[[recipe.steps]]\nname = 's'\ntool = 'a.note'\nargs = { anything = [1, { x = { expr = 'nothing' } }] }",
            f"{AT}.args.anything[1].x.expr",
            "no name that an expression can begin from",
        ),
        (
            "[[recipe.steps]]\nname = 's'\ntool = 'line.set'\nargs = { line = 13, value = 1 }",
            f"{AT}.args",
            "the board has no line 13",
        ),
        # expressions
        (step("when = 'results.read.value'"), f"{AT}.when", "no step that has run by then"),
        (step("when = 'latest.value'"), f"{AT}.when", "can begin from"),
        (step("when = 'item'"), f"{AT}.when", "can begin from"),
        (step("when = 'foo('"), f"{AT}.when", "no JMESPath"),
        (step("when = true"), f"{AT}.when", "expected an expression"),
        (step("delay_s = -1"), f"{AT}.delay_s", "expected a number"),
        (step("delay_s = 'inputs.sensor'"), f"{AT}.delay_s", "expected a number, and it gives a string"),
        # rounds
        (step("repeat = { count = -1 }"), f"{AT}.repeat.count", "expected an integer"),
        (step("repeat = { count = 1.5 }"), f"{AT}.repeat.count", "expected an integer"),
        (step("repeat = { count = 'inputs.sensor' }"), f"{AT}.repeat.count", "gives a string"),
        (step("repeat = { until = '`true`' }"), f"{AT}.repeat.count", "missing"),
        (step("repeat = 3"), f"{AT}.repeat", "expected a table"),
        (step("repeat = { count = 2, evry_s = 1 }"), f"{AT}.repeat.evry_s", "every_s"),
        (step("repeat = { count = 2, until = 'latest.valeu' }"), f"{AT}.repeat.until", "did you mean 'value'?"),
        (step("for_each = 'inputs.lines'\nrepeat = { count = 2 }"), f"{AT}.repeat.count", "leave count out"),
        (step("for_each = 'inputs.line'"), f"{AT}.for_each", "did you mean 'lines'?"),
        (
            step("for_each = 'inputs.lines'\nargs = { sensor = { expr = 'item.in' } }", without="args"),
            f"{AT}.args.sensor.expr",
            "there is out",
        ),
        # reports, retries, decodings
        (step("report = 'latest.vlue'"), f"{AT}.report", "did you mean 'value'?"),
        (step("report = { expr = 'latest.value', every = 0 }"), f"{AT}.report.every", "expected an integer"),
        (step("report = { evry = 2 }"), f"{AT}.report.expr", "missing; it takes an expression"),
        (step("retry = { times = 0 }"), f"{AT}.retry.times", "expected an integer"),
        (step("retry = { after_s = 1 }"), f"{AT}.retry.times", "missing"),
        (step("decode.x = { from = 'data', format = 'b' }"), f"{AT}.decode.x.from", "there is value, unit"),
        (step("decode.value = { from = 'unit', format = 'b' }"), f"{AT}.decode.value", "of that name"),
        (step("decode.X-1 = { from = 'unit', format = 'b' }"), f"{AT}.decode.X-1", "small letters"),
        # groups
        ("[[recipe.steps]]\nname = 'g'\nsteps = []", f"{AT}.steps", "at least one"),
        (group("args = {}\n" + INNER), f"{AT}.args", "group"),
        (group(INNER.replace("a.note", "no.tool")), f"{AT}.steps[0].tool", "no tool"),
        (
            group("repeat = { count = 2 }\n" + INNER + "when = 'here.b'\n" + INNER.replace("'a'", "'b'")),
            f"{AT}.steps[0].when",
            "no step of this round that has run",
        ),
        (
            (
                "[[recipe.steps]]\nname = 'g'\n[[recipe.steps.steps]]\nname = 'a'\ntool = 'a.note'\n"
                "[[recipe.steps]]\nname = 'z'\ntool = 'a.note'\nwhen = 'results.a'"
            ),
            "recipe.steps[1].when",
            "no step that has run by then",
        ),
        # outputs
        (outputs("x = 'results.raed.value'"), "recipe.outputs.x", "did you mean 'read'?"),
        (outputs("x = 'results.read.valeu'"), "recipe.outputs.x", "did you mean 'value'?"),
        (outputs("x = 'here.read'"), "recipe.outputs.x", "can begin from"),
        (outputs("x = 5"), "recipe.outputs.x", "an expression in quotes"),
        (STEP + "[recipe.outputs.x]\ny = 'inputs.nothing'", "recipe.outputs.x.y", "there is no 'nothing'"),
        (
            outputs("x = { expr = 'results.read.value', from = 'celsius', unit = 'm' }"),
            "recipe.outputs.x.unit",
            "cannot",
        ),
        # artifacts
        (STEP + "[[recipe.artifacts]]\nname = 'a'\nfile = '../x'\ncontent = 'results'", f"{ARTIFACT}.file", "letters"),
        (STEP + "[[recipe.artifacts]]\nfile = 'x'\ncontent = 'results'", f"{ARTIFACT}.name", "missing"),
        (artifact(""), f"{ARTIFACT}.rows", "one of `rows`"),
        (artifact("rows = 'results.x'"), f"{ARTIFACT}.rows", "no step"),
        (artifact("rows = '[results.read]'"), f"{ARTIFACT}.columns", "missing"),
        (
            artifact("rows = '[results.read]'\ncolumns = { v = 'valeu' }"),
            f"{ARTIFACT}.columns.v",
            "did you mean 'value'?",
        ),
        (
            artifact("rows = '[results.read]'\ncolumns = ['valeu']"),
            f"{ARTIFACT}.valeu",
            "did you mean 'value'?",
        ),
        (artifact("rows = '[results.read]'\ncolumns = []"), f"{ARTIFACT}.columns", "array of"),
        (artifact("content = 'nothing'"), f"{ARTIFACT}.content", "can begin from"),
        (artifact("type = 'csv'\ncontent = 'results'"), f"{ARTIFACT}.type", "MIME"),
        (
            artifact("type = 'text/plain'\nrows = '[results.read]'\ncolumns = ['value']"),
            f"{ARTIFACT}.type",
            "makes text/csv",
        ),
        (
            artifact("plot = { rows = '[results.read]', x = 'att_s', series = { v = 'value' } }"),
            f"{ARTIFACT}.plot.x",
            "did you mean 'at_s'?",
        ),
        (
            artifact("plot = { rows = '[results.read]', x = 'at_s' }"),
            f"{ARTIFACT}.plot.series",
            "missing",
        ),
        # the envelope, against the results
        (
            STEP + "[safety_envelope.parameters.t]\nwatch = 'results.read.valeu'\nmax = 1",
            "safety_envelope.parameters.t.watch",
            "value",
        ),
    ],
)
def test_a_fault_is_said_at_its_key_with_the_cure(text: str, key: str, said: str) -> None:
    found = faults(text)
    assert key in found, found
    assert said in found[key]


def test_two_artifacts_of_one_file_or_name_are_a_fault() -> None:
    one = "[[recipe.artifacts]]\nname = 'a'\nfile = 'x'\ncontent = 'results'\n"
    found = faults(STEP + one + one.replace("'x'", "'X'"))
    assert set(found) == {"recipe.artifacts[1].name", "recipe.artifacts[1].file"}


@pytest.mark.parametrize(
    ("schema", "outputs", "key", "said"),
    [
        ('required = ["mean"]', "", "recipe.outputs.mean", "requires it"),
        (
            'properties.n = { type = "string" }',
            "n = 'results.read.value'",
            "recipe.outputs.n",
            "a number, and a string",
        ),
        ('properties.n = { type = "string" }', "n = { literal = 5 }", "recipe.outputs.n", "not of type"),
        (
            'properties.n = { type = "string" }\nadditionalProperties = false',
            "m = 'results'",
            "recipe.outputs.m",
            "no such output",
        ),
        ('properties.n = { required = ["a"] }', "n = { b = 'results' }", "recipe.outputs.n.a", "requires it"),
    ],
)
def test_outputs_are_held_to_the_output_schema(schema: str, outputs: str, key: str, said: str) -> None:
    found = faults(f"{schema}\n{STEP}[recipe.outputs]\n{outputs}")
    assert said in found[key]


def test_all_faults_of_a_file_are_found_at_once() -> None:
    text = """
[[recipe.steps]]
name = "a"
tool = "no.such"
when = "inputs.x"
[[recipe.steps]]
name = "b"
tool = "line.set"
args = { line = 5000, vale = 1 }
[recipe.outputs]
x = "results.c"
[[recipe.artifacts]]
name = "r"
file = "r.csv"
rows = "results.b"
[safety_envelope.parameters.p]
watch = "results.d"
"""
    assert list(faults(text)) == [
        "recipe.steps[0].when",
        "recipe.steps[0].tool",
        "recipe.steps[1].args.line",
        "recipe.steps[1].args.vale",
        "recipe.steps[1].args.value",
        "recipe.outputs.x",
        f"{ARTIFACT}.columns",
        "safety_envelope.parameters.p.watch",
        "safety_envelope.parameters.p.max",
    ]
    with pytest.raises(PlanError) as caught:
        prepare(text)
    assert caught.value.key == "recipe.steps[0].when"
    assert str(caught.value).count("\n") == len(caught.value.faults) - 1


def test_a_literal_table_and_whole_args_fit_as_the_tool_has_them() -> None:
    assert (
        faults("[[recipe.steps]]\nname = 's'\ntool = 'a.note'\nargs = { anything = { a = 1, b = [{ c = 2 }] } }") == {}
    )


def test_a_tool_whose_results_are_open_may_give_anything() -> None:
    text = "[[recipe.steps]]\nname = 's'\ntool = 'a.note'\n[recipe.outputs]\nx = 'results.s.said.anything.goes'"
    assert faults(text) == {}


def test_a_capability_that_is_no_table_leaves_the_recipe_to_be_read() -> None:
    assert faults(STEP, head="capability = 5\n") == {}
    assert faults(STEP + "[safety_envelope]\nx = 1", head="") == {
        "safety_envelope.x": faults(STEP + "[safety_envelope]\nx = 1")["safety_envelope.x"]
    }
    assert "expected a table" in faults("", head="recipe = 5\n")["recipe"]


def test_what_an_expression_gives_is_held_against_what_is_wanted_in_every_part() -> None:
    text = artifact("plot = { title = 5, rows = 'results', x = 'at', series = ['value'], x_label = 't' }")
    assert "expected words" in faults(text)[f"{ARTIFACT}.plot.title"]
    computed = "{ expr = 'inputs.limit', unit_of = 'inputs.unit', unit = 'K' }"
    assert faults(outputs(f"x = {{ literal = 5 }}\ny = {computed}")) == {}
    assert "expected a table" in faults(step("args = 5", without="args"))[f"{AT}.args"]


def test_args_that_do_not_fit_together_are_a_fault_of_the_whole() -> None:
    text = "[[recipe.steps]]\nname = 's'\ntool = 'pair.set'\nargs = { a = 1, b = 2 }"
    assert "not" in faults(text)[f"{AT}.args"]
    assert faults(text.replace(", b = 2", "")) == {}
