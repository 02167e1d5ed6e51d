"""What an author declares of a capability, and all that can be wrong with it, each with place and cure."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import pytest
from annotated_types import Ge, Le
from attrs import evolve, frozen

from hearth import Escalation, InputRefused, Limit, Line, capability
from hearth.annotations import NotJson
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.tools import build_tools
from hearth.hcp.capability import MARK, CapabilitySource
from hearth.hcp.declaration import declare
from hearth.hcp.source_check import source_warnings
from hearth.tools import ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth import Job
    from hearth.hcp.capability import Capability

GONE = object()
"""For `changed`: the argument is left out."""


@functools.cache
def registry() -> ToolRegistry:
    """The tools of the simulated board."""
    return ToolRegistry(build_tools(open_board(load_profile("sim"))))


@frozen
class Blinked:
    times: int
    at: datetime | None = None


def twice_at_most(line: int | str, pause_s: float) -> None:
    if line == "GPIO4" and pause_s > 2:
        raise InputRefused("GPIO4 has a slow relay", cure="Use another line", at="line")


RIGHT: dict[str, Any] = {
    "name": "line-blink",
    "version": "1.2.0",
    "tools": ["gpio.set"],
    "risk_ceiling": "R4",
    "risk_floor": "R3",
    "requires_human_approval": True,
    "resource_types": ["gpio_line"],
    "hazard_categories": ["moving_parts"],
    "formats": ["blink-report"],
    "max_duration": "PT10M",
    "concurrent_limit": 2,
    "data_classification": "T3",
    "escalate": [Escalation(lambda times: times > 10, "R4", "the load is moved for long", "keep times at 10 or less")],
    "limits": {"times": Limit(lambda times: times, max=50), "current": Limit(max=2, unit="ampere")},
    "prohibited_actions": ["driving_a_line_that_is_not_wired"],
    "emergency_procedures": {"smoke": "cut_the_power"},
    "check": twice_at_most,
    "clean_up": ["gpio.set"],
    "clean_up_duration": "PT5S",
}


async def blink(
    job: Job,
    *,
    line: Line = 17,
    times: Annotated[int, Ge(1), Le(100), "how often"] = 3,
    pause_s: float = 1,
    in_: list[Line] | None = None,
) -> Blinked:
    """Drive a line high and low again, some times.

    Whatever hangs on it moves.
    """
    return Blinked(times)


def source(function: Callable[..., Any] = blink, **changes: Any) -> CapabilitySource:
    values = {**RIGHT, **changes}
    return CapabilitySource(
        function=function, place="blink.py:7", values={key: one for key, one in values.items() if one is not GONE}
    )


def plain(function: Callable[..., Any], **changes: Any) -> CapabilitySource:
    """Of another function, whose inputs the rules do not know."""
    return source(
        function, **{**dict.fromkeys(("escalate", "limits", "check", "requires_human_approval"), GONE), **changes}
    )


def declared(given: CapabilitySource) -> Capability:
    """The capability of a source in which nothing may be wrong."""
    found = declare(given, registry())
    assert list(map(str, found.faults)) == []
    assert found.capability is not None
    return found.capability


def faults_of(given: CapabilitySource) -> list[str]:
    """What is wrong with a source, without its place."""
    found = declare(given, registry())
    assert (found.capability is None) == bool(found.faults)
    assert {fault.place for fault in found.faults} <= {given.place}
    return [str(evolve(fault, place="")) for fault in found.faults]


# --- the decorator ----------------------------------------------------------------------------------------------------


async def test_a_decorated_function_is_itself_and_carries_what_was_declared():
    mark = capability("look", version="1.0.0", tools=["hw.board"], risk_ceiling="R1", limits={"a": Limit(max=1)})

    async def look(job: Job, *, n: int) -> int:
        return n

    assert mark(look) is look
    assert await look(None, n=5) == 5
    given = getattr(look, MARK)
    assert given.function is look
    file, _, line = given.place.rpartition(":")
    assert (file, int(line)) == (look.__code__.co_filename, look.__code__.co_firstlineno)
    assert given.values["limits"] == {"a": Limit(max=1)}
    assert "risk_floor" not in given.values, "an argument that was not given is not there"


def test_it_checks_nothing_by_itself():
    def look():
        return 5

    assert capability("", version=5, tools=5, risk_ceiling="R9")(look)() == 5
    assert [one.partition(":")[0] for one in faults_of(getattr(look, MARK))][:2] == ["name", "version"]


# --- a declaration that is right --------------------------------------------------------------------------------------


def test_a_declaration_that_is_right_is_a_capability_with_all_that_it_says():
    one = declared(source())
    assert (one.name, one.version, one.place) == ("line-blink", "1.2.0", "blink.py:7")
    assert one.description == "Drive a line high and low again, some times.\n\nWhatever hangs on it moves."
    assert one.formats == ("blink-report",)
    assert (one.max_duration, one.concurrent_limit) == (timedelta(minutes=10), 2)
    assert one.data_classification == "T3"
    assert one.tools == {"gpio.set"}
    assert (one.clean_up, one.clean_up_s) == ({"gpio.set"}, 5.0)
    assert one.function is blink
    assert [rule.because for rule in one.safety.escalate] == ["the load is moved for long"]
    assert list(one.envelope.parameters) == ["times", "current"]
    assert one.envelope.prohibited_actions == ("driving_a_line_that_is_not_wired",)
    assert one.envelope.emergency_procedures == {"smoke": "cut_the_power"}
    assert one.inputs.accepts({"line": 3})
    assert not one.inputs.accepts({"lines": 3})
    assert not one.outputs.accepts({})
    assert source_warnings(one.function) == []


@pytest.mark.spec("hcp L3 Capability Declaration Fields")
@pytest.mark.spec("hcp L3 Safety Declaration Fields")
def test_its_declaration_is_the_one_of_l3():
    declaration = declared(source()).declaration()["capability"]
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
    inputs = declaration["input_schema"]
    assert inputs["properties"]["times"] == {
        "type": "integer", "minimum": 1, "maximum": 100, "description": "how often", "default": 3,
    }  # fmt: skip
    assert list(inputs["properties"]) == ["line", "times", "pause_s", "in"]
    assert "required" not in inputs
    assert declaration["output_schema"]["required"] == ["times"]


def test_json_becomes_keyword_arguments_and_what_is_returned_becomes_json():
    one = declared(source())
    assert one.structure({"line": 4.0, "times": 3, "pause_s": 1, "in": ["A", 2]}) == {
        "line": 4, "times": 3, "pause_s": 1.0, "in_": ["A", 2],
    }  # fmt: skip
    at = datetime(2025, 1, 15, tzinfo=UTC)
    assert one.unstructure(Blinked(3, at)) == {"times": 3, "at": "2025-01-15T00:00:00.000Z"}
    with pytest.raises(NotJson, match=r"outputs\.at: bytes has no JSON form"):
        one.unstructure(Blinked(3, b"now"))


def test_the_check_gets_the_inputs_that_it_names():
    one = declared(source())
    one.check({"line": "GPIO4", "times": 3, "pause_s": 1, "in": None})
    with pytest.raises(InputRefused, match="slow relay") as caught:
        one.check({"line": "GPIO4", "times": 3, "pause_s": 3, "in": None})
    assert (caught.value.place, caught.value.cure) == ("/payload/inputs/line", "Use another line")


@pytest.mark.parametrize(
    ("check", "place", "cure"),
    [
        (lambda times: 1 / 0, "/payload/inputs/times", "Change /payload/inputs/times"),
        (lambda in_, times: 1 / 0, "/payload/inputs", "Change /payload/inputs/in or /payload/inputs/times"),
        (lambda: 1 / 0, "/payload/inputs", "Change them"),
    ],
)
def test_a_check_that_raises_anything_else_refuses(check, place, cure):
    with pytest.raises(InputRefused, match="cannot be checked: ZeroDivisionError: division by zero") as caught:
        declared(source(check=check)).check({"line": 1, "times": 3, "pause_s": 3, "in": None})
    assert (caught.value.place, caught.value.cure) == (place, cure)


@frozen
class Even:
    n: int = attrs.field()

    @n.validator
    def _even(self, _attribute, value):
        if value % 2:
            raise ValueError(f"{value} is odd")


async def pairs(job, *, pair: Even, since: datetime | None = None) -> None:
    """Take a pair."""


@pytest.mark.parametrize(
    ("inputs", "name", "said"),
    [({"pair": {"n": 3}}, "pair", "3 is odd"), ({"pair": {"n": 2}, "since": "2025-02-30T00:00:00Z"}, "since", "day")],
)
def test_inputs_that_only_their_class_refuses_are_refused_with_their_place(inputs, name, said):
    one = declared(plain(pairs))
    assert one.inputs.accepts(inputs)
    with pytest.raises(InputRefused, match=said) as caught:
        one.structure(inputs)
    assert caught.value.place == f"/payload/inputs/{name}"
    assert caught.value.cure == f"Give /payload/inputs/{name} a value that it takes"


def test_a_function_that_returns_nothing_has_no_outputs():
    one = declared(plain(pairs))
    assert one.output_schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert one.unstructure(None) == {}


def test_what_may_be_left_out_has_a_default():
    left_out = [key for key in RIGHT if key not in ("name", "version", "tools", "risk_ceiling")]
    one = declared(source(**dict.fromkeys(left_out, GONE)))
    assert (one.max_duration, one.concurrent_limit) == (timedelta(hours=1), 1)
    assert (one.data_classification, one.formats) == ("T2", ())
    assert (one.clean_up, one.clean_up_s) == (frozenset(), 2.0)
    assert one.envelope.to_wire() == {}
    assert not one.safety.requires_human_approval
    one.check({"line": 1})


@pytest.mark.spec(
    "hcp L3 Risk Assessment Process",
    "is",
    "Static risk floor: The capability's declared risk_ceiling sets the minimum possible risk.",
)
def test_without_a_floor_of_its_own_a_risk_begins_at_the_ceiling_as_l3_has_it():
    one = declared(source(risk_floor=GONE, escalate=GONE))
    assert one.safety.risk_floor == one.safety.risk_ceiling == "R4"


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_names_may_be_given_in_any_collection(kind):
    assert declared(source(tools=kind(["gpio.set", "hw.board"]))).tools == {"gpio.set", "hw.board"}


# --- one fault at a time ----------------------------------------------------------------------------------------------

NAME = 'expected a name such as "bench-climate-survey", got'
SEMVER = 'expected a semver version such as "1.0.0", got'
RISK = 'expected "R1", "R2", "R3", "R4" or "R5", got'


def rule(when=lambda times: False, risk="R4", because="it is so", cure="do less"):
    return Escalation(when, risk, because, cure)


async def later(times):
    return True


WRONG = [
    ("name", GONE, 'missing; it takes a name such as "bench-climate-survey"'),
    ("name", "Bench", f'{NAME} "Bench"'),
    ("name", "a--b", f'{NAME} "a--b"'),
    ("name", "a" * 65, "expected at most 64 characters, got 65"),
    ("version", "1.0", f"{SEMVER} '1.0'"),
    ("version", 1, f"{SEMVER} 1"),
    ("formats", "csv", 'expected an array, got "csv"'),
    ("formats", ["a", ""], 'formats[1]: expected a non-empty string, got ""'),
    ("risk_ceiling", GONE, "missing; it takes"),
    ("risk_ceiling", "R6", f'{RISK} "R6"'),
    ("risk_floor", "R0", f'{RISK} "R0"'),
    ("risk_floor", "R5", '"R5" is above risk_ceiling = "R4"; lower it or raise risk_ceiling'),
    ("requires_human_approval", 1, "expected true or false, got 1"),
    ("involves_physical_resources", "yes", 'expected true or false, got "yes"'),
    ("max_duration", "10m", "expected an ISO 8601 duration such as"),
    ("max_duration", "PT0S", "expected a duration that is more than nothing"),
    ("concurrent_limit", 0, "expected an integer from 1 to 1000, got 0"),
    ("data_classification", "T5", 'expected "T1", "T2", "T3" or "T4", got "T5"'),
    ("tools", GONE, "missing; it takes an array"),
    ("tools", "gpio.set", 'expected an array, got "gpio.set"'),
    ("tools", ["gpio.set", 5], "tools[1]: expected a non-empty string, got 5"),
    ("tools", ["gpio.set", "gpio.sett"], "this daemon has no tool 'gpio.sett'; did you mean 'gpio.set'?"),
    ("tools", ["gpio.set", "zzz"], "this daemon has no tool 'zzz'; tool.list has them all"),
    ("clean_up", ["gpio.get"], "'gpio.get' is not among tools; a job may use no others, so put it there too"),
    ("clean_up_duration", "2s", "expected an ISO 8601 duration such as"),
    ("check", 5, "expected a function of the inputs, such as `lambda"),
    (
        "check",
        lambda tiems: None,
        "there is no input 'tiems'; did you mean 'times'?; there are line, times, pause_s, in",
    ),
    ("check", lambda *inputs: None, "parameter 'inputs': name each input that it looks at"),
    ("check", lambda **inputs: None, "parameter 'inputs': name each input that it looks at"),
    ("check", later, "is async; it is called before there is a job, so write `def`"),
    ("check", dict, "has no signature that can be read; wrap it in a lambda"),
    ("escalate", 5, "expected an array, got 5"),
    ("escalate", [5], "escalate[0]: expected an Escalation(when, risk, because, cure), got 5"),
    ("escalate", [rule(risk="R6")], f'escalate[0].risk: {RISK} "R6"'),
    ("escalate", [rule(because="")], 'escalate[0].because: expected a non-empty string, got ""'),
    ("escalate", [rule(cure="x" * 301)], "escalate[0].cure: expected at most 300 characters, got 301"),
    ("escalate", [rule(), rule("times > 5")], "escalate[1].when: expected a function of the inputs, such as"),
    ("escalate", [rule(lambda time: 1)], "escalate[0].when: there is no input 'time'; did you mean 'times'?"),
    ("limits", 5, "expected a table, got 5"),
    ("limits", {"a": 5}, "limits.a: expected a Limit(value, min=…, max=…), got 5"),
    ("limits", {"a": Limit()}, "limits.a.max: a limit without `min` and `max` bounds nothing"),
    ("limits", {"a": Limit(min=2, max=1)}, "limits.a.min: 2 is above max = 1; nothing could hold"),
    ("limits", {"a": Limit(max="1")}, 'limits.a.max: expected a number, got "1"'),
    ("limits", {"a": Limit(max=10**400)}, "limits.a.max: expected a number, got a number of 1329 bits"),
    ("limits", {"a": Limit(max=1, unit=5)}, "limits.a.unit: expected a unit, got 5"),
    ("limits", {"a": Limit(5, max=1)}, "limits.a.value: expected a function of the inputs, such as"),
    ("limits", {"a": Limit(lambda x: x, max=1)}, "limits.a.value: there is no input 'x'; there are line, times,"),
    ("prohibited_actions", "none", 'expected an array, got "none"'),
    ("emergency_procedures", {"a": 5}, "emergency_procedures.a: expected a non-empty string, got 5"),
]


@pytest.mark.parametrize(("key", "value", "reason"), WRONG, ids=lambda value: str(value).partition(" at 0x")[0][:30])
def test_a_fault_is_told_once_with_its_key_and_what_is_expected_there(key, value, reason):
    lines = faults_of(source(**{key: value}))
    assert len(lines) == 1
    assert lines[0].startswith(reason if reason.startswith(key) else f"{key}: {reason}")


@pytest.mark.parametrize("risk", ["R3", "R5"])
def test_a_rule_raises_the_risk_above_the_floor_and_not_above_the_ceiling(risk):
    lines = faults_of(source(escalate=[rule(risk=risk)]))
    between = 'expected a risk above risk_floor ("R3") and up to risk_ceiling ("R4")'
    assert lines[0] == f'escalate[0].risk: {between}, got "{risk}"'


def test_everything_that_is_wrong_is_told_at_once_with_its_place():
    given = source(
        name="Line Blink", version="1", risk_ceiling="R9", max_duration="an hour", tools=["gpio.sett"], clean_up=GONE
    )
    found = declare(given, registry())
    assert [str(fault).split(": ")[:2] for fault in found.faults] == [
        ["blink.py:7", key] for key in ("name", "version", "max_duration", "risk_ceiling", "tools")
    ]


def test_messages_name_the_keys_of_a_plan_file_where_it_is_one():
    keys = {
        "risk_ceiling": "capability.safety.risk_ceiling",
        "limits": "safety_envelope.parameters",
        "tools": "steps",
        "description": "capability.description",
        "input_schema": "capability.input_schema",
    }
    given = evolve(source(input_schema={}, description="", risk_ceiling="R9", limits={"a": Limit()}), keys=keys)
    assert [line.partition(": ")[0] for line in faults_of(given)] == [
        "capability.description",
        "capability.input_schema.type",
        "capability.safety.risk_ceiling",
        "safety_envelope.parameters.a.max",
    ]


# --- the tools --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "of_machine"),
    [
        ({"tools": ["gpio.sett"], "clean_up": GONE}, True),
        ({"tools": ["gpio.set", "zzz"]}, True),
        ({"tools": ["gpio.sett"], "version": "1"}, False),
        ({"version": "1"}, False),
    ],
)
def test_only_tools_that_are_missing_may_be_due_to_the_machine(changes, of_machine):
    found = declare(source(**changes), registry())
    assert found.faults
    assert found.of_machine is of_machine


@pytest.mark.spec("hcp L3 Risk Classification")
@pytest.mark.parametrize(
    ("safety", "key"),
    [
        ({"risk_floor": "R2"}, "risk_floor"),
        ({"risk_ceiling": "R2", "risk_floor": GONE}, "risk_ceiling"),
        ({"risk_ceiling": "R2", "risk_floor": "R2"}, "risk_ceiling"),
    ],
)
def test_a_risk_below_that_of_the_riskiest_tool_is_refused(safety, key):
    # gpio.set has risk level 2.
    (line,) = faults_of(source(escalate=GONE, requires_human_approval=False, **safety))
    reason = 'expected at least "R3", since its tools include gpio.set, which has risk level 2; got "R2"'
    assert line == f"{key}: {reason}"


def test_more_risk_than_the_tools_have_may_be_declared():
    assert faults_of(source(escalate=GONE, risk_ceiling="R5", risk_floor="R5")) == []


def test_a_tool_that_some_arguments_make_harmless_is_taken_at_its_least():
    # i2c.read has risk level 2, and 0 with the arguments that only read.
    one = declared(source(tools=["i2c.read"], clean_up=GONE, risk_ceiling="R1", risk_floor=GONE, escalate=GONE,
                          requires_human_approval=False))  # fmt: skip
    assert not one.safety.involves_physical_resources, "with R1 it can do nothing else"


@pytest.mark.parametrize(
    ("tools", "said", "holds"),
    [
        (["gpio.set"], GONE, True),
        (["gpio.set"], True, True),
        (["gpio.get"], GONE, False),
        (["gpio.get"], True, True),
        (["gpio.get"], False, False),
        (["hw.sensor.read", "sys.load", "file.write"], GONE, False),
        ([], GONE, False),
    ],
)
def test_whether_hardware_is_driven_follows_from_the_tools(tools, said, holds):
    one = declared(source(tools=tools, clean_up=GONE, involves_physical_resources=said))
    assert one.safety.involves_physical_resources is holds


def test_a_capability_that_drives_hardware_cannot_say_that_it_does_not():
    (line,) = faults_of(source(involves_physical_resources=False))
    reason = "expected true, since its tools include gpio.set, which drives hardware"
    assert line == f"involves_physical_resources: {reason}"


def test_a_person_cannot_be_promised_for_risks_at_which_none_is_asked():
    given = source(tools=["hw.board"], clean_up=GONE, escalate=GONE, risk_ceiling="R2", risk_floor="R1")
    (line,) = faults_of(given)
    assert line.startswith(
        "requires_human_approval: a person is asked from R3 on, and no job of this capability is above R1; raise"
    )


def test_a_rule_that_raises_the_risk_to_r3_is_enough_for_a_person_to_be_asked():
    assert faults_of(source(tools=["hw.board"], clean_up=GONE, risk_floor="R1", escalate=[rule(risk="R3")])) == []


# --- the function -----------------------------------------------------------------------------------------------------


def test_a_description_is_the_docstring():
    async def silent(job) -> None:
        pass

    (line,) = faults_of(plain(silent))
    assert line == "description: missing; write a docstring, which is what callers read"
    assert declared(plain(silent, description="Says nothing.")).description == "Says nothing."


def ordinary(job) -> None:
    """Not async."""


async def generator(job):
    """Yields."""
    yield 1


async def without_job() -> None:
    """No job."""


async def keyword_job(*, job) -> None:
    """The job is no keyword."""


async def positional(job, line: int, *more: int, times: int) -> None:
    """Inputs by position."""


async def bare(job, *, line, times: int) -> None:
    """No annotation."""


async def open_ended(job, /, **inputs: int) -> None:
    """Any inputs."""


async def job_in_the_way(job, **inputs: Any) -> None:
    """An input may be called as the job is."""


async def one_name_twice(job, *, x: int, x_: int) -> None:
    """In JSON these are one."""


async def unsayable(job, *, data: bytes, pair: Annotated[int, "x", 5], hidden: Job, n: int = "x") -> list[int]:
    """Several mistakes."""


async def wrong_default(job, *, n: Annotated[int, Le(3)] = 5) -> None:
    """Its own schema refuses its default."""


async def marked_too_deep(job, *, lines: dict[str, Line]) -> None:
    """Nobody looks there."""


async def silent_return(job):
    """No return annotation."""


async def wrong_return(job) -> dict[str, Any] | list[int]:
    """Not always an object."""


FUNCTIONS = [
    (ordinary, ["function: expected an async function (`async def`) that returns its outputs"]),
    (generator, ["function: expected an async function"]),
    (without_job, ["function: expected the job as its first parameter: (job, *, inputs…)"]),
    (keyword_job, ["function: expected the job as its first parameter: (job, *, inputs…)"]),
    (positional, ["parameters.line: inputs are keyword-only", "parameters.more: inputs are keyword-only"]),
    (bare, ["parameters.line: has no annotation; write its type"]),
    (open_ended, ["parameters.inputs: **inputs declares no inputs; name each input as a parameter, or give"]),
    (job_in_the_way, [
        "function: an input may be called 'job' too: write (job, /, **inputs)",
        "parameters.inputs: **inputs declares no inputs",
    ]),
    (one_name_twice, ["parameters.x_: there is a 'x' already, as JSON has it; give one of them another name"]),
    (unsayable, [
        "parameters.hidden: cannot be evaluated: name 'Job' is not defined; define it at the top of the module",
        "parameters.data: bytes has no JSON form", "parameters.pair: 5 says nothing here",
        "returns: outputs are an object in JSON; return an attrs class, or dict[str, T], whose members are the outputs",
    ]),
    (wrong_default, ["parameters.n.default: its own schema refuses it: 5 is greater than the maximum of 3"]),
    (marked_too_deep, ["parameters.lines.additionalProperties.format: is looked at only where"]),
    (silent_return, ["returns: the function does not say what it returns; write `-> Outputs`, an attrs class"]),
    (wrong_return, ["returns: outputs are an object in JSON"]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "reasons"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_function_says_what_it_takes_and_what_it_returns(function, reasons):
    lines = faults_of(plain(function))
    assert len(lines) == len(reasons)
    assert [line for line, reason in zip(lines, reasons, strict=True) if not line.startswith(reason)] == []


def test_the_annotation_of_the_job_is_not_looked_at():
    assert "Job" not in globals(), "it is imported for type checkers only"
    assert blink.__annotations__["job"] == "Job"
    declared(source())


# --- schemas that are given -------------------------------------------------------------------------------------------

GIVEN = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer"}, "in": {"type": "integer", "default": 5}, "m": {}},
}


async def takes_all(job, /, **inputs: Any) -> None:
    """Take all."""


async def takes_some(job, *, n, in_, m=7) -> dict[str, Any]:
    """Take these."""


@pytest.mark.parametrize("function", [takes_all, takes_some])
def test_with_a_schema_of_its_own_a_function_gets_json_as_it_is(function):
    one = declared(plain(function, input_schema=GIVEN, output_schema={"type": "object"}))
    inner = "in" if function is takes_all else "in_"
    assert one.input_schema is GIVEN
    assert one.structure({"n": 1.0, "in": 5}) == {"n": 1.0, inner: 5}
    assert one.inputs.accepts({"n": 1, "more": 1})
    more = {"more": 1} if function is takes_all else {}
    assert one.structure({"n": 1, "more": 1}) == {"n": 1, **more}, "a parameter that there is not is not passed"
    assert one.unstructure({"a": (1,)}) == {"a": [1]}


@pytest.mark.parametrize("function", [takes_all, takes_some])
def test_a_function_that_changes_its_inputs_changes_no_approval(function):
    one = declared(plain(function, input_schema=GIVEN))
    inputs = {"n": [1], "in": {"a": [2]}}
    made = one.structure(inputs)
    made["n"].append(5)
    made["in" if function is takes_all else "in_"]["a"].append(5)
    assert inputs == {"n": [1], "in": {"a": [2]}}


@pytest.mark.parametrize(
    ("function", "schema", "reason"),
    [
        (takes_some, {"type": "object", "properties": {"n": {}, "in": {}, "m": {}}, "required": ["n"]},
         "parameters.in_: may be missing in inputs; give it a default here or there, or require it in input_schema"),
        (takes_some, {**GIVEN, "properties": {"n": {}, "in": {"default": 5}}},
         "parameters.m: is no input: input_schema has no property 'm'"),
        (takes_some, {**GIVEN, "properties": {**GIVEN["properties"], "x": {}}},
         "function: has no parameter for input 'x'; add one, or take **inputs"),
        (takes_all, {**GIVEN, "properties": {"n": {"default": 2.5, "type": "integer"}}},
         "input_schema.properties.n.default: its own schema refuses it"),
        (takes_all, {**GIVEN, "const": float("nan")}, "input_schema.const: expected what JSON can hold, got nan"),
        (takes_all, {"type": "object", "maximum": 2**53 + 1},
         "input_schema.maximum: expected an integer that JSON can hold"),
        (takes_all, 5, "input_schema: expected a table, got 5"),
    ],
)  # fmt: skip
def test_a_function_fits_the_schema_that_is_given_for_it(function, schema, reason):
    lines = faults_of(plain(function, input_schema=schema))
    assert len(lines) == 1
    assert lines[0].startswith(reason)


OBJECT = {"type": "object"}
SCHEMAS = [
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
        {**OBJECT, "properties": {"a": {"$ref": "#/$defs/b", "default": 3}}, "$defs": {"b": {"maximum": 2}}},
        ".properties.a.default: its own schema refuses it: 3 is greater than the maximum of 2",
    ),
]


@pytest.mark.parametrize("key", ["input_schema", "output_schema"])
@pytest.mark.parametrize(("schema", "told"), SCHEMAS)
def test_a_schema_must_be_one_of_an_object_whole_and_agree_with_its_own_defaults(key, schema, told):
    lines = faults_of(plain(takes_all, **{"input_schema": OBJECT, key: schema}))
    assert len(lines) == 1
    assert lines[0].startswith(f"{key}{told}")


def test_what_only_looks_like_a_reference_is_data():
    schema = {"type": "object", "properties": {"a": {"const": {"$ref": "http://a"}}}}
    assert faults_of(plain(takes_all, input_schema=OBJECT, output_schema=schema)) == []
