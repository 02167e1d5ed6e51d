"""The sources of a daemon's capabilities: which files are read, whose name holds, and what stops the start."""

import sys

import pytest
from hcp.capability_files import PLAN, RIGHT, named, registry
from support.users import NOBODY, ordinary_user

from hearth.errors import ConfigError
from hearth.hcp.library import SHIPPED, load_capabilities
from hearth.tools import ToolRegistry

NONE = ToolRegistry([])


def load(*paths, shipped=(), tools=None, package=SHIPPED):
    tools = registry() if tools is None else tools
    return load_capabilities([str(path) for path in paths], shipped=shipped, registry=tools, package=package)


def refused(*paths, **more):
    """The lines of the refusal."""
    with pytest.raises(ConfigError) as caught:
        load(*paths, **more)
    return str(caught.value).splitlines()


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """A package in the place of the one that comes with hearth, with two capabilities."""
    directory = tmp_path / "ours_for_test"
    directory.mkdir()
    (directory / "__init__.py").touch()
    (directory / "_helper.py").write_text("raise AssertionError('no capability is in it')")
    for name in ("bench-a", "bench-b"):
        module = directory / f"{name.replace('-', '_')}.py"
        module.write_text(RIGHT.replace('"line-blink"', f'"{name}"'))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield directory.name
    for name in [name for name in sys.modules if name.startswith(directory.name)]:
        del sys.modules[name]


def test_of_a_directory_every_python_file_and_plan_file_is_read_that_is_not_hidden(tmp_path):
    named(tmp_path, "b", PLAN)
    named(tmp_path, "a")
    (tmp_path / "notes.txt").write_text("not a capability")
    (tmp_path / ".#a.toml").symlink_to("an-editor-has-it-open")
    (tmp_path / ".a.py").write_text("raise AssertionError")
    found = load(tmp_path)
    assert [found[name].place for name in found] == [f"{tmp_path}/a.py:8", f"{tmp_path}/b.toml"]
    assert found.notes == ()


def test_a_file_with_several_capabilities_offers_them_all(tmp_path):
    file = tmp_path / "both.py"
    more = RIGHT.partition("\n\n\n")[2].replace('"line-blink"', '"again"').replace("def blink", "def again")
    file.write_text(f"{RIGHT}\n\n{more}")
    assert list(load(file)) == ["again", "line-blink"]


def test_links_are_followed_and_a_file_that_is_named_twice_is_read_once(tmp_path):
    file = named(tmp_path, "a")
    (tmp_path / "z.py").symlink_to(file)
    assert load(file, tmp_path, file)["a"].place == f"{file}:8"


def test_a_directory_without_a_capability_is_pointed_out(tmp_path):
    assert load(tmp_path).notes == (f"{tmp_path} has no capability in it: there is no *.py and no *.toml",)


def test_two_capabilities_of_the_operators_may_not_have_one_name(tmp_path):
    first, second = named(tmp_path, "a"), tmp_path / "b.py"
    second.write_text(first.read_text())
    cure = "give one of them another name"
    assert refused(tmp_path) == [f'{second}:8: name: "a" is taken by {first}:8; {cure}']
    plan = named(tmp_path, "a", PLAN)
    second.unlink()
    assert refused(tmp_path) == [f'{plan}: name: "a" is taken by {first}:8; {cure}']


def test_every_fault_of_every_source_is_told_with_its_place(tmp_path):
    named(tmp_path, "a", RIGHT.replace("1.2.0", "1").replace('"gpio.set"', '"gpio.sett"', 1))
    named(tmp_path, "b", PLAN.replace("risk_ceiling", "risk_celing").replace('"gpio.set"', '"gpio.sett"', 1))
    (tmp_path / "c.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "d.toml").write_text("[capability\n")
    told = [line.removeprefix(f"{tmp_path}/") for line in refused(tmp_path)]
    assert [line.split(" ")[:2] for line in told] == [
        ["a.py:8:", "version:"],
        ["a.py:8:", "tools:"],
        ["b.toml:", "capability.safety.risk_celing:"],
        ["b.toml:", "steps[0].tool:"],
        ["b.toml:", "capability.safety.risk_ceiling:"],
        ["c.py:1:", "ModuleNotFoundError:"],
        ["d.toml:", "line"],
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("input_schema={1: 2}", "input_schema: expected a key that JSON can hold, got 1; write it as a string"),
        ("output_schema={'type': object()}", "output_schema.type: expected what JSON can hold, got "),
        ("escalate=[5]", "escalate[0]: expected an Escalation("),
        ("clean_up=[[]]", "clean_up[0]: expected a non-empty string, got []"),
        ("nope=1", "TypeError: capability() got an unexpected keyword argument 'nope'"),
    ],
)
def test_an_argument_that_makes_no_sense_is_a_fault_as_any_other(tmp_path, said, told):
    file = named(tmp_path, "a", RIGHT.replace('risk_ceiling="R3"', f'risk_ceiling="R3", {said}'))
    assert refused(file)[0].startswith(f"{file}:8: {told}")


def test_what_is_not_there_is_refused(tmp_path):
    cure = "create it, or take it out of [hcp] capabilities"
    assert refused(tmp_path / "none") == [f"{tmp_path}/none: cannot be read: No such file or directory; {cure}"]
    (tmp_path / "a.toml").symlink_to("nowhere")
    assert refused(tmp_path)[0].startswith(f"{tmp_path}/a.toml: cannot be read: No such file or directory")


def test_what_may_not_be_read_says_by_whom(reachable):
    registry()  # made by us: what it looks at is nothing to nobody
    (file := named(reachable, "a", PLAN)).chmod(0)
    with ordinary_user():
        assert refused(file) == [f"{file}: cannot be read: Permission denied; let uid {NOBODY} read it"]
    (closed := reachable / "closed").mkdir(0o311)
    with ordinary_user():
        assert refused(closed) == [f"{closed}: cannot be read: Permission denied; let uid {NOBODY} read it"]


def test_a_directory_that_everybody_may_write_is_refused(tmp_path):
    named(tmp_path, "a", PLAN)
    tmp_path.chmod(0o777)
    (line,) = refused(tmp_path)
    assert line.endswith(f"{tmp_path} is writable by every user; `chmod o-w {tmp_path}`")


def test_the_operators_capability_takes_the_place_of_the_shipped_one_of_its_name(tmp_path, ours):
    mine = named(tmp_path, "mine", RIGHT.replace("line-blink", "bench-a"))
    found = load(mine, shipped=["*"], package=ours)
    assert {name: found[name].place for name in found} == {
        "bench-a": f"{mine}:8",
        "bench-b": f"{tmp_path}/{ours}/bench_b.py:8",
    }
    assert found.notes == (f"capability bench-a: the one of {mine}:8 is offered, not hearth's",)


def test_shipped_capabilities_are_offered_by_name_or_pattern_and_the_others_are_not_even_imported(ours):
    assert list(load(shipped=["bench-b"], package=ours)) == ["bench-b"]
    assert f"{ours}.bench_a" not in sys.modules
    assert list(load(shipped=["*"], package=ours)) == ["bench-a", "bench-b"]
    assert list(load(shipped=[], package=ours)) == []
    assert refused(shipped=["bench-c", "x"], package=ours) == [
        '[hcp] shipped: "bench-c" fits no capability that comes with hearth; did you mean bench-b?',
        '[hcp] shipped: "x" fits no capability that comes with hearth; there are bench-a, bench-b',
    ]


def test_a_shipped_capability_is_left_out_where_its_tools_are_not_there(ours):
    found = load(shipped=["*"], package=ours, tools=NONE)
    assert list(found) == []
    first, _ = found.notes
    assert first.startswith("capability bench-a is left out, since this machine cannot carry it out: ")
    assert "tools: this daemon has no tool 'gpio.set'" in first


@pytest.mark.parametrize("text", [RIGHT, PLAN], ids=["python", "plan"])
def test_the_operators_own_stops_the_start_where_its_tools_are_not_there(tmp_path, text):
    file = named(tmp_path, "a", text)
    assert all(line.startswith(str(file)) and "no tool 'gpio.set'" in line for line in refused(file, tools=NONE))


def test_a_shipped_capability_that_is_wrong_in_itself_is_an_error(ours, tmp_path):
    file = tmp_path / ours / "bench_b.py"
    file.write_text(file.read_text().replace("1.2.0", "1"))
    (line,) = refused(shipped=["*"], package=ours)
    assert line.startswith(f"{file}:8: version: ")


def test_a_warning_about_the_source_is_a_note(tmp_path):
    file = named(tmp_path, "a", RIGHT.replace("    for _ in", "    import time\n\n    time.sleep(1)\n    for _ in"))
    (note,) = load(file).notes
    assert note.startswith(f"{file}:")


def test_what_comes_with_hearth_is_right_on_the_simulated_board():
    found = load(shipped=["*"])
    assert set(found) == {"bench-climate-survey", "gpio-self-test", "host-health-report"}
    assert found.notes == ()
