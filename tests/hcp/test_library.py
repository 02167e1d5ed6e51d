"""The capability files of a daemon: which are read, whose name holds, and what stops the start."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hcp.capability_files import RIGHT, registry
from support.users import ordinary_user

from hearth.errors import ConfigError
from hearth.hcp.library import LARGEST, SHIPPED, load_capabilities
from hearth.hcp.planners import load_planners
from hearth.tools import ToolRegistry

NONE = ToolRegistry([])


def load(*paths, shipped=(), tools=None, ours=SHIPPED):
    return load_capabilities(
        paths,
        shipped=shipped,
        registry=registry() if tools is None else tools,
        planners=load_planners(),
        shipped_directory=ours,
    )


def refused(*paths, **more):
    """The lines of the refusal."""
    with pytest.raises(ConfigError) as caught:
        load(*paths, **more)
    return str(caught.value).splitlines()


def named(directory, name, text=RIGHT):
    """A file of this name with the capability of this name."""
    file = directory / f"{name}.toml"
    file.write_text(text.replace('name = "line-blink"', f'name = "{name}"'), encoding="utf-8")
    return file


@pytest.fixture
def ours(tmp_path):
    """What comes with hearth, for a test: two capabilities."""
    directory = tmp_path / "shipped"
    directory.mkdir()
    named(directory, "bench-a")
    named(directory, "bench-b")
    return directory


def test_of_a_directory_every_toml_file_that_is_not_hidden_is_read_in_the_order_of_names(tmp_path):
    for name in ("b", "a"):
        named(tmp_path, name)
    (tmp_path / "notes.txt").write_text("not a capability")
    (tmp_path / ".#a.toml").symlink_to("an-editor-has-it-open")
    found = load(tmp_path)
    assert list(found) == ["a", "b"]
    assert [found[name].place for name in found] == [str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]
    assert found.notes == ()


def test_a_file_is_read_whatever_its_ending_and_links_are_followed(tmp_path):
    file = named(tmp_path, "a").rename(tmp_path / "a.conf")
    link = tmp_path / "link"
    link.symlink_to(file)
    assert list(load(link)) == ["a"]


def test_a_file_that_is_named_twice_is_one_capability(tmp_path):
    file = named(tmp_path, "a")
    (tmp_path / "z.toml").symlink_to(file)
    assert load(file, tmp_path, file)["a"].place == str(file)


def test_a_directory_without_a_capability_is_pointed_out(tmp_path):
    assert load(tmp_path).notes == (f"{tmp_path} has no capability in it: there is no *.toml",)


def test_two_files_of_the_operators_may_not_have_one_name(tmp_path):
    first, second = named(tmp_path, "a"), tmp_path / "b.toml"
    second.write_text(first.read_text())
    assert refused(tmp_path) == [f'{second}: capability.name: "a" is taken by {first}; give one of them another name']


def test_every_fault_of_every_file_is_told_with_its_file(tmp_path):
    named(tmp_path, "a", RIGHT.replace("1.2.0", "1").replace("gpio.set", "gpio.sett"))
    named(tmp_path, "b", RIGHT.replace("risk_ceiling", "risk_celing"))
    (tmp_path / "c.toml").write_text("[capability\n")
    (tmp_path / "d.toml").write_bytes(b"[capability]\nname = '\xff'\n")
    (tmp_path / "e.toml").write_text("x = " + "[" * 5000 + "]" * 5000)
    (tmp_path / "f.toml").write_text("#" * (LARGEST + 1))
    told = [line.removeprefix(f"{tmp_path}/") for line in refused(tmp_path)]
    assert [line.partition(" ")[0] for line in told] == [
        "a.toml:", "a.toml:", "b.toml:", "b.toml:", "c.toml:", "d.toml:", "e.toml:", "f.toml:",
    ]  # fmt: skip
    assert "recipe.steps[0].tool" in told[1]
    assert told[2].startswith("b.toml: capability.safety.risk_ceiling: missing")
    assert told[4] == ("c.toml: is not TOML: Expected ']' at the end of a table declaration (at line 1, column 12)")
    assert told[5] == "d.toml: line 2: byte 0xff is not UTF-8; save it as UTF-8"
    assert told[6] == "e.toml: arrays or tables are nested too deeply; flatten them"
    assert told[7] == f"f.toml: has {LARGEST + 1} bytes; a capability file has at most {LARGEST}"


def test_what_is_not_there_is_refused(tmp_path):
    cure = "create it, or take it out of [hcp] capabilities"
    assert refused(tmp_path / "none") == [f"{tmp_path}/none: cannot be read: No such file or directory; {cure}"]
    (tmp_path / "a.toml").symlink_to("nowhere")
    assert refused(tmp_path)[0].startswith(f"{tmp_path}/a.toml: cannot be read: No such file or directory")


def test_a_fifo_in_the_place_of_a_file_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "a.toml")
    assert refused(tmp_path / "a.toml") == [f"{tmp_path}/a.toml: is not a regular file; name a TOML file"]


def test_what_may_not_be_read_says_by_whom(reachable):
    registry()  # made by us: what it looks at is nothing to nobody
    (file := named(reachable, "a")).chmod(0)
    with ordinary_user():
        cure = f"cannot be read: Permission denied; let uid {os.geteuid()} read it"
        assert refused(file) == [f"{file}: {cure}"]
    (closed := reachable / "closed").mkdir(0o311)
    with ordinary_user():
        assert refused(closed) == [f"{closed}: {cure}"]
        assert refused(closed / "b.toml")[0].startswith(f"{closed}/b.toml: cannot be read: No such file or directory")


@pytest.fixture
def reachable():
    """A directory that any user may enter: those of pytest are closed to all but their owner."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_what_everybody_may_write_is_refused(tmp_path):
    file = named(tmp_path, "a")
    file.chmod(0o666)
    assert refused(file) == [f"{file}: is writable by everybody; chmod o-w {file}"]
    file.chmod(0o664)
    assert list(load(file)) == ["a"]
    tmp_path.chmod(0o1777)
    assert refused(tmp_path) == [f"{tmp_path}: anybody may put a capability there; chmod o-w {tmp_path}"]


def test_the_operators_capability_takes_the_place_of_the_shipped_one_of_its_name(tmp_path, ours):
    mine = named(tmp_path, "mine", RIGHT.replace("line-blink", "bench-a"))
    found = load(mine, shipped=["*"], ours=ours)
    assert {name: found[name].place for name in found} == {"bench-a": str(mine), "bench-b": str(ours / "bench-b.toml")}
    assert found.notes == (f"capability bench-a: the one of {mine} is offered, not hearth's",)


def test_shipped_capabilities_are_offered_by_name_or_pattern(ours):
    assert list(load(shipped=["*"], ours=ours)) == ["bench-a", "bench-b"]
    assert list(load(shipped=["bench-b"], ours=ours)) == ["bench-b"]
    assert list(load(shipped=[], ours=ours)) == []
    assert refused(shipped=["bench-c", "x"], ours=ours) == [
        '[hcp] shipped: "bench-c" fits no capability that comes with hearth; did you mean bench-b?',
        '[hcp] shipped: "x" fits no capability that comes with hearth; there are bench-a, bench-b',
    ]


def test_a_shipped_capability_is_left_out_where_its_tools_are_not_there(ours):
    found = load(shipped=["*"], ours=ours, tools=NONE)
    assert list(found) == []
    assert len(found.notes) == 2
    assert found.notes[0].startswith("capability bench-a is left out, since this machine cannot carry it out: recipe.")
    assert "gpio.set" in found.notes[0]


def test_the_operators_own_stops_the_start_where_its_tools_are_not_there(tmp_path):
    file = named(tmp_path, "a")
    (line,) = refused(file, tools=NONE)
    assert line.startswith(f"{file}: recipe.")


def test_a_shipped_capability_that_is_wrong_in_itself_is_an_error(ours):
    named(ours, "bench-b", RIGHT.replace("1.2.0", "1"))
    (line,) = refused(shipped=["*"], ours=ours)
    assert line.startswith(f"{ours}/bench-b.toml: capability.version: ")


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.toml")), ids=lambda file: file.stem)
def test_every_capability_that_comes_with_hearth_is_right_on_the_simulated_board_and_named_as_its_file(file):
    assert list(load(file)) == [file.stem]


def test_there_are_shipped_capabilities():
    assert {"bench-climate-survey", "gpio-self-test", "host-health-report"} <= load(shipped=["*"]).keys()


def test_a_number_without_end_is_a_fault_as_any_other(tmp_path):
    (tmp_path / "a.toml").write_text("x = " + "9" * 5000)
    (tmp_path / "b.toml").write_text(RIGHT.replace("[capability]", "[capability]\ntoo_much = 0x" + "f" * 5000, 1))
    told = [line.removeprefix(f"{tmp_path}/") for line in refused(tmp_path)]
    assert told[0] == "a.toml: line 1: a number of more than 4300 digits; no key takes one"
    assert told[1].startswith("b.toml: capability.too_much: ")
    assert len(told) == 2
