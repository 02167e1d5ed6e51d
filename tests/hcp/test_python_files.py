"""Capability files in Python: who may have written one, and how it is run.

Who can write a capability file can run code as hearthd. So each way to be that user has a row here.
"""

import inspect
import linecache
import os
import socket
import subprocess
import sys
import traceback

import pytest
from hcp.capability_files import PLAN, RIGHT, named, registry
from support.users import NOBODY, ordinary_user

from hearth._util import files
from hearth.errors import ConfigError
from hearth.hcp.capability_files import LARGEST, read_source, run_code
from hearth.hcp.library import load_capabilities

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def load(file):
    return load_capabilities([str(file)], registry=registry(), shipped=[])


def refusal(file):
    """The one line that says why a file is not read."""
    with pytest.raises(ConfigError) as caught:
        load(file)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{file}: "), line
    return line.removeprefix(f"{file}: ")


def directory(place, mode):
    place.mkdir()
    place.chmod(mode)
    return place


# --- who may have written it ----------------------------------------------------------------------------------------


def writable_by_everybody(place):
    file = named(place, "a")
    file.chmod(0o646)
    return file, f"{file} is writable by every user; `chmod o-w {file}`"


def writable_by_a_group(place):
    file = named(place, "a")
    os.chown(file, -1, NOBODY)
    file.chmod(0o664)
    return file, "`chmod g-w "


def of_another_user(place):
    file = named(place, "a")
    os.chown(file, NOBODY, -1)
    return file, f"{file} belongs to nobody, who could change it; `chown root {file}`"


def in_a_directory_that_everybody_can_write_to(place):
    file = named(directory(place / "open", 0o777), "a")
    return file, f"{file.parent} is writable by every user; `chmod o-w {file.parent}`"


def beneath_a_directory_that_everybody_can_write_to(place):
    above = directory(place / "above", 0o777)
    return named(directory(above / "within", 0o755), "a"), f"{above} is writable by every user; `chmod o-w {above}`"


def beneath_a_directory_of_another_user(place):
    above = directory(place / "above", 0o755)
    file = named(directory(above / "within", 0o755), "a")
    os.chown(above, NOBODY, -1)
    return file, f"{above} belongs to "


def through_a_link_that_everybody_can_turn(place):
    file = named(directory(place / "real", 0o755), "a")
    turned = directory(place / "turned", 0o777)
    (turned / "a.py").symlink_to(file)
    return turned / "a.py", f"{turned} is writable by every user"


def through_a_link_of_another_user_in_a_sticky_directory(place):
    file = named(directory(place / "real", 0o755), "a")
    link = directory(place / "sticky", 0o1777) / "a.py"
    link.symlink_to(file)
    os.chown(link, NOBODY, -1, follow_symlinks=False)
    return link, f"{link} belongs to "


def linked_to_what_another_user_wrote(place):
    theirs = named(directory(place / "theirs", 0o755), "b")
    os.chown(theirs, NOBODY, -1)
    link = place / "a.py"
    link.symlink_to(theirs)
    return link, "belongs to nobody, who could change it; `chown root "


@as_root
@pytest.mark.parametrize(
    "make",
    [
        writable_by_everybody,
        writable_by_a_group,
        of_another_user,
        in_a_directory_that_everybody_can_write_to,
        beneath_a_directory_that_everybody_can_write_to,
        beneath_a_directory_of_another_user,
        through_a_link_that_everybody_can_turn,
        through_a_link_of_another_user_in_a_sticky_directory,
        linked_to_what_another_user_wrote,
    ],
)
def test_a_file_that_another_user_can_have_written_is_not_run(tmp_path, make):
    file, reason = make(tmp_path)
    file.write_text("raise AssertionError('it was run')")
    said = refusal(file)
    assert said.startswith("hearthd cannot run it as uid 0: ")
    assert reason in said


@as_root
@pytest.mark.parametrize("make", [writable_by_everybody, in_a_directory_that_everybody_can_write_to])
def test_the_command_in_the_refusal_mends_it(tmp_path, make):
    file, _ = make(tmp_path)
    subprocess.run(refusal(file).partition("`")[2].rstrip("`").split(), check=True)
    assert list(load(file)) == ["a"]


def test_a_file_of_ours_in_a_sticky_directory_is_accepted(tmp_path):
    assert list(load(named(directory(tmp_path / "sticky", 0o1777), "a"))) == ["a"]


@as_root
def test_a_file_of_roots_is_accepted_by_another_user_and_that_users_own_too(reachable):
    registry()
    file, own = named(reachable, "a"), named(reachable, "own")
    os.chown(own, NOBODY, -1)
    with ordinary_user():
        assert list(load(file)) == ["a"]
        assert list(load(own)) == ["own"]
    assert "belongs to" in refusal(own), "root does not run what another user wrote"


def test_a_file_that_is_replaced_while_it_is_looked_at_is_not_run(tmp_path, monkeypatch):
    file = named(tmp_path, "a")

    def replace(path, trusted):
        (tmp_path / "new").write_text("raise AssertionError('it was run')")
        (tmp_path / "new").rename(path)

    monkeypatch.setattr(files, "ownership_fault", replace)
    assert refusal(file).endswith(f"{file} was replaced while it was read; try again")


def test_the_bytes_that_were_checked_are_run_whatever_the_file_says_by_then(tmp_path):
    file = named(tmp_path, "a")
    data = read_source(file)
    file.write_text("raise AssertionError('it was run')")
    (source,) = run_code(file, data)
    assert source.values["name"] == "a"
    assert inspect.getsource(source.function).startswith('@capability(\n    "a",')


# --- what it may be -------------------------------------------------------------------------------------------------


def fifo(file):
    os.mkfifo(file)


def unix_socket(file):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(file))


@pytest.mark.parametrize("suffix", [".py", ".toml"])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fifo, "is not a regular file; name another one"),
        (unix_socket, "cannot be read: No such device or address"),
        (lambda file: file.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda file: file.symlink_to(file), "cannot be read: "),
        (lambda file: file.write_text("#" * (LARGEST + 1)), f"has more than {LARGEST} bytes"),
    ],
    ids=["fifo", "socket", "endless", "round", "large"],
)
def test_what_is_no_file_of_a_fair_size_is_refused_at_once(tmp_path, suffix, make, reason):
    file = tmp_path / f"a{suffix}"
    make(file)
    assert reason in refusal(file)


def test_a_plan_file_has_the_same_owners_as_code(tmp_path):
    file = named(tmp_path, "a", PLAN)
    file.chmod(0o666)
    assert refusal(file).endswith(f"{file} is writable by every user; `chmod o-w {file}`")
    file.chmod(0o664)
    assert read_source(file) == file.read_bytes()


# --- how it is run --------------------------------------------------------------------------------------------------

HEAD = "from hearth import Job, capability\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("x = (", 1, "'(' was never closed"),
        ("\n\ndef x(:\n", 3, "invalid syntax"),
        ("x = '\\0'\n\0", None, "null bytes"),
        (b"\nx = '\xff'\n", None, "'utf-8' codec can't decode byte 0xff"),
        (b"# coding: klingon\n", None, "klingon"),
        ("x = " + "(" * 5000, None, "nested"),
        ("x = " + "-" * 100_000 + "1", None, "nested"),
        ("import nothing_of_this_name", 1, "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("from . import sibling", 1, "ImportError: attempted relative import with no known parent package"),
        ("import beside", 1, "ModuleNotFoundError: No module named 'beside'"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", 2, "ZeroDivisionError: division by zero"),
        ("import json\n\njson.loads('')\n", 3, "JSONDecodeError: "),
        ("import sys\n\nsys.exit('no')\n", 3, "SystemExit: no"),
        ("def f():\n    f()\n\n\nf()\n", 2, "RecursionError: "),
        ("raise ValueError('one\\ntwo')", 1, "ValueError: one"),
        (HEAD, None, "declares no capability; put @capability(…) above an async function, or move it away"),
        ("from hearth.hcp.capabilities.gpio_self_test import *", None, "declares no capability; "),
    ],
)
def test_what_cannot_be_run_is_one_line_with_its_place(tmp_path, text, line, said):
    (tmp_path / "beside.py").write_text("raise AssertionError('nothing beside it is imported')")
    file = tmp_path / "a.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = [name for name in sys.modules if name.startswith("hearth_capability_file_")]
    with pytest.raises(ConfigError) as caught:
        load(file)
    (told,) = str(caught.value).splitlines()
    assert told.startswith(f"{file}:" if line is None else f"{file}:{line}: {said}")
    assert said in told
    assert [name for name in sys.modules if name.startswith("hearth_capability_file_")] == before


def test_a_file_is_a_module_that_nothing_else_imports_and_leaves_nothing_beside_it(tmp_path):
    file = named(tmp_path, "a", "import __future__\n\nassert __name__ != 'a'\n" + RIGHT)
    before = list(sys.path)
    function = load(file)["a"].function
    assert sys.path == before
    assert "a" not in sys.modules
    assert sys.modules[function.__module__].__file__ == str(file)
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_two_files_of_one_name_are_two_modules(tmp_path):
    modules = set()
    for name in ("one", "two"):
        directory(tmp_path / name, 0o755)
        (file := tmp_path / name / "a.py").write_text(RIGHT.replace("line-blink", name))
        modules.add(load(file)[name].function.__module__)
    assert len(modules) == 2


def test_classes_of_a_file_whose_annotations_are_strings_are_understood(tmp_path):
    text = (
        RIGHT.replace(
            "from typing",
            "from __future__ import annotations\n\nfrom attrs import frozen\nfrom typing",
        )
        .replace("\n\n@cap", "\n\n@frozen\nclass Blinks:\n    times: int\n\n\n@cap")
        .replace(") -> None", ") -> Blinks")
    )
    capability = load(named(tmp_path, "a", text))["a"]
    assert capability.output_schema["properties"] == {"times": {"type": "integer"}}


def test_tracebacks_show_the_lines_that_run(tmp_path):
    file = named(tmp_path, "a", RIGHT + "\n\ndef fail():\n    raise LookupError\n")
    module = sys.modules[load(file)["a"].function.__module__]
    file.write_text("# something else by now\n" * 50)
    linecache.checkcache()
    with pytest.raises(LookupError) as caught:
        module.fail()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "raise LookupError"


def test_only_functions_of_the_file_itself_are_its_capabilities_each_once(tmp_path):
    text = (
        "from hearth.hcp.capabilities import gpio_self_test\n"
        "from hearth.hcp.capabilities.host_health_report import *\n"
        f"{RIGHT}\n\nalias = blink\n"
    )
    assert list(load(named(tmp_path, "a", text))) == ["a"]
