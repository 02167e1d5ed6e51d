"""The proc.* tools: what they declare to an agent, and what they make of what a program did."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import jsonschema_rs
import orjson
import pytest
import trio
from support.schemas import closed

from hearth.config.exec import ExecParam, ExecTemplate
from hearth.drivers.process import ProcessDriver
from hearth.drivers.programs import LauncherClient, ProgramDriver
from hearth.drivers.tools.process import process_tools
from hearth.errors import ConfigError, DeviceError, InvalidParams, PermissionDenied, TimedOut
from hearth.tools import PathUse

PYTHON = str(Path(sys.executable).resolve())


def python(code, **options):
    return ExecTemplate(argv=(PYTHON, "-I", "-S", "-c", code), **options)


TEMPLATES = {
    "greet": ExecTemplate(
        argv=(PYTHON, "-I", "-S", "-c", "import sys; print(*sys.argv[1:])", "{word}", "{name}"),
        params={"word": ExecParam(enum=("hello", "bye")), "name": ExecParam(pattern="[a-z]+", description="whom")},
        description="Greet somebody",
    ),
    "three": python("raise SystemExit(3)"),
    "three-is-fine": python("raise SystemExit(3)", ok_exit_codes=(0, 3)),
    "abort": python("import os; os.abort()"),
    "pause": python("import signal; signal.pause()", timeout_ms=50),
    "binary": python("import os; os.write(1, bytes(range(256)))"),
}
SHOW = ExecTemplate(
    argv=("/bin/echo", "{file}", "{word}"),
    params={"file": ExecParam(pattern="/.*", path="read"), "word": ExecParam(pattern=".*")},
)


class Step:
    """A step whose bus has a process driver, or another."""

    def __init__(self, driver=None, **options):
        self.driver, self.limit_ms = driver or ProcessDriver(**options), None

    async def transact(self, op, *, limit_ms=None, on_cancel=None):
        self.limit_ms = limit_ms
        return await trio.to_thread.run_sync(op, self.driver)


@pytest.fixture(scope="module")
def programs(tmp_path_factory, unmeasured):
    """A driver that runs the templates, not confined."""
    templates = {**TEMPLATES, "show": SHOW}
    launcher = LauncherClient(templates, None, tmp_path_factory.mktemp("programs") / "record")
    driver = ProgramDriver(launcher)
    driver.open()
    yield driver
    launcher.close()


def tool(name, **options):
    (found,) = [one for one in process_tools(exec_templates=TEMPLATES, **options) if one.name == name]
    return found


async def run(name, args, step=None):
    """Run a tool as a task does, and hold args and result to its schemas."""
    one = tool(name)
    jsonschema.Draft202012Validator(one.params_schema).validate(args)
    one.bus(args)
    with trio.fail_after(30):
        result = await one.run(step or Step(), args)
    orjson.dumps(result)
    jsonschema.Draft202012Validator(closed(one.result_schema)).validate(result)
    return result


def test_listing_is_in_the_default_set_and_the_rest_is_opt_in_at_risk_three():
    declared = [(one.name, one.risk_level, one.opt_in, one.capability) for one in process_tools()]
    assert declared == [
        ("proc.list", 0, False, "CAP_PROC"),
        ("proc.exec", 3, True, "CAP_PROC"),
        ("proc.signal", 3, True, "CAP_PROC"),
    ]


@pytest.mark.parametrize("templates", [{}, TEMPLATES], ids=["none", "some"])
def test_all_schemas_suit_both_validators(templates):
    for one in process_tools(exec_templates=templates):
        for schema in (one.params_schema, one.result_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
            jsonschema_rs.validator_for(schema)


def test_programs_run_on_a_bus_of_their_own_so_that_signals_need_not_wait_for_them():
    listing, running, signalling = process_tools(exec_templates=TEMPLATES)
    assert running.bus({"template": "three"}) == "exec"
    assert listing.bus({}) == signalling.bus({"pid": 1, "signal": "SIGTERM"}) == "processes"
    listing, running, signalling = process_tools("p", TEMPLATES, exec_bus="x")
    assert (listing.bus({}), running.bus({"template": "three"})) == ("p", "x")
    assert signalling.bus({"pid": 1, "signal": "SIGTERM"}) == "p"


# --- proc.list ---------------------------------------------------------------------------------------------------


async def test_the_processes_of_this_machine_are_listed_as_declared():
    result = await run("proc.list", {"sort": "pid", "limit": 2.0})
    assert len(result["processes"]) == min(2, result["total"])
    jsonschema.Draft202012Validator(closed(tool("proc.list").result_schema)).validate(
        await run("proc.list", {}, Step(show_argv=True, show_users=True))
    )


async def test_the_list_can_be_narrowed():
    asked = {"name": "no process has this", "user": "nobody", "sort": "memory"}
    result = await run("proc.list", asked, Step(show_users=True))
    assert (result["matched"], result["processes"]) == (0, [])


@pytest.mark.parametrize("args", [{"sort": "name"}, {"limit": 0}, {"limit": 501}, {"name": ""}, {"user": 0}])
def test_an_unsuitable_question_is_refused_by_the_schema(args):
    assert not jsonschema.Draft202012Validator(tool("proc.list").params_schema).is_valid(args)


# --- proc.exec ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_template_is_run_with_its_parameters(programs):
    result = await run("proc.exec", {"template": "greet", "params": {"word": "hello", "name": "robot"}}, Step(programs))
    assert (result["exit_code"], result["stdout"]["text"]) == (0, "hello robot\n")


async def test_output_that_is_no_text_is_declared_too(programs):
    assert "base64" in (await run("proc.exec", {"template": "binary"}, Step(programs)))["stdout"]


async def test_an_exit_code_that_means_failure_fails_the_step_and_keeps_the_output(programs):
    with pytest.raises(DeviceError, match="three failed with exit code 3") as caught:
        await run("proc.exec", {"template": "three"}, Step(programs))
    assert caught.value.data["effect"] == "done"
    assert (caught.value.data["exit_code"], caught.value.data["stdout"]["text"]) == (3, "")
    assert (await run("proc.exec", {"template": "three-is-fine"}, Step(programs)))["exit_code"] == 3


async def test_a_program_that_crashed_had_an_unknown_effect(programs):
    with pytest.raises(DeviceError, match="abort was ended by SIGABRT") as caught:
        await run("proc.exec", {"template": "abort"}, Step(programs))
    assert caught.value.data["effect"] == "unknown"


async def test_a_program_whose_time_ran_out_is_reported_as_timed_out(programs):
    with pytest.raises(TimedOut, match="pause was ended after its 50 ms") as caught:
        await run("proc.exec", {"template": "pause"}, Step(programs))
    assert (caught.value.data["effect"], caught.value.data["timed_out"]) == ("unknown", True)


async def test_the_bus_is_given_the_time_that_ending_a_program_takes(programs):
    step = Step(programs)
    with pytest.raises(TimedOut):
        await run("proc.exec", {"template": "pause"}, step)
    assert step.limit_ms > 50 + TEMPLATES["pause"].grace_ms
    assert tool("proc.exec").timeout_ms > 10_000 + TEMPLATES["pause"].grace_ms


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"template": "rm"},
        {"template": "greet", "params": {"word": "hi", "name": "a"}},
        {"template": "greet", "params": {"word": "hello", "name": 5}},
        {"template": "greet", "params": {"word": "hello", "name": "a" * 1025}},
        {"template": "three", "params": "x"},
    ],
)
def test_what_is_no_use_of_a_template_is_refused_by_the_schema(args):
    schema = tool("proc.exec").params_schema
    assert not jsonschema.Draft202012Validator(schema).is_valid(args)
    assert not jsonschema_rs.validator_for(schema).is_valid(args)


@pytest.mark.parametrize(
    ("args", "param", "reason"),
    [
        ({"template": "greet"}, "word", "is missing"),
        ({"template": "greet", "params": {"word": "hello"}}, "name", "is missing"),
        ({"template": "greet", "params": {"word": "hello", "name": "Robot"}}, "name", "expected a match of [a-z]+"),
    ],
)
def test_parameters_that_a_flat_schema_cannot_refuse_are_refused_at_submit(args, param, reason):
    with pytest.raises(InvalidParams) as caught:
        tool("proc.exec").bus(args)
    assert caught.value.data == {"path": f"/params/{param}", "param": param, "reason": reason}


def test_a_parameter_of_another_template_is_refused_and_not_ignored():
    with pytest.raises(InvalidParams, match="three takes no parameter name; it takes: none") as caught:
        tool("proc.exec").bus({"template": "three", "params": {"name": "robot"}})
    assert caught.value.data["path"] == "/params/name"


def test_a_parameter_that_several_templates_have_is_described_for_each():
    one = process_tools(exec_templates={"greet": TEMPLATES["greet"], "show": SHOW})[1]
    params = one.params_schema["properties"]["params"]
    assert params["properties"]["word"] == {
        "type": "string",
        "maxLength": 1024,
        "description": "for greet: one of hello, bye; for show: matches the regular expression .*",
    }
    assert params["description"].endswith("greet takes word, name; show takes file, word")
    assert one.bus({"template": "show", "params": {"file": "/srv/a", "word": "x"}}) == "exec"


@pytest.mark.parametrize("templates", [{}, TEMPLATES], ids=["none", "some"])
def test_the_root_of_every_schema_is_flat(templates):
    for one in process_tools(exec_templates=templates):
        assert one.params_schema.keys() == {"$schema", "type", "properties", "required"}


def test_unknown_fields_and_parameters_are_ignored():
    args = {"template": "three", "params": {"shell": True}, "cwd": "/"}
    assert jsonschema.Draft202012Validator(tool("proc.exec").params_schema).is_valid(args)
    assert tool("proc.exec").bus(args) == "exec"


def test_an_agent_is_told_the_programs_and_what_their_parameters_may_be():
    one = tool("proc.exec")
    assert "greet (Greet somebody); three;" in one.description
    told = orjson.dumps(one.params_schema).decode()
    assert "whom: matches the regular expression [a-z]+" in told
    assert PYTHON not in told


def test_without_a_template_there_is_nothing_to_run():
    one = process_tools()[1]
    assert one.description.endswith("Programs: none.")
    assert not jsonschema.Draft202012Validator(one.params_schema).is_valid({"template": "greet"})


def test_a_plain_argv_is_a_template_without_parameters():
    one = process_tools(exec_templates={"true": ["/bin/true"]})[1]
    assert one.bus({"template": "true"}) == "exec"
    with pytest.raises(ConfigError, match="absolute path"):
        process_tools(exec_templates={"true": ["true"]})


class Guard:
    """A path guard that allows one path for reading."""

    def check(self, path, access):
        if (path, access) != ("/srv/a", "read"):
            raise PermissionDenied(data={"path": path})


async def test_a_parameter_that_is_a_path_is_shown_to_the_path_guard_at_submit_and_at_use(programs):
    one = process_tools(exec_templates={"show": SHOW})[1]
    step = Step(programs)
    step.paths = Guard()
    good, bad = ({"template": "show", "params": {"file": path, "word": "/x"}} for path in ("/srv/a", "/etc/shadow"))
    assert one.paths(good) == [PathUse("/srv/a", "read")]
    assert (await one.run(step, good))["stdout"]["text"] == "/srv/a /x\n"
    with pytest.raises(PermissionDenied):
        await one.run(step, bad)


# --- proc.signal -------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper():
    with subprocess.Popen([PYTHON, "-I", "-S", "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


async def test_a_signal_is_sent_through_the_tool(sleeper):
    step = Step(signal_executables=(Path(PYTHON),))
    result = await run("proc.signal", {"pid": sleeper.pid, "signal": "SIGTERM"}, step)
    assert (result["pid"], result["signal"]) == (sleeper.pid, "SIGTERM")
    assert sleeper.wait(60) == -signal.SIGTERM


async def test_a_process_that_is_not_listed_is_refused():
    with pytest.raises(PermissionDenied):
        await run("proc.signal", {"pid": os.getppid(), "signal": "SIGTERM"})


@pytest.mark.parametrize(
    "args",
    [
        {"pid": 5},
        {"pid": 0, "signal": "SIGTERM"},
        {"pid": -1, "signal": "SIGKILL"},
        {"pid": 5, "signal": "SIGSTOP"},
        {"pid": 5, "signal": 9},
        {"pid": "5", "signal": "SIGTERM"},
    ],
)
def test_groups_and_other_signals_are_refused_by_the_schema(args):
    assert not jsonschema.Draft202012Validator(tool("proc.signal").params_schema).is_valid(args)
