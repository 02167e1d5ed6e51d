"""What any Python program reads of a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hearth
from hearth.drivers.sandbox.plan import interpreter, names_from_daemons, system_files


def is_beneath(path, places):
    return any(Path(path).resolve().is_relative_to(place) for place in places)


def test_what_this_python_consists_of_can_be_read():
    places = interpreter()
    for module in (os, pytest, json, hearth, sys.modules["hearth.drivers.sandbox.plan"]):
        assert is_beneath(module.__file__, places), module
    assert all(not one.is_relative_to(other) for one in places for other in places if one != other)


@pytest.mark.slow
def test_the_directory_that_it_was_started_in_is_not_among_it(tmp_path):
    program = (
        "import json; from hearth.drivers.sandbox.plan import interpreter; "
        "print(json.dumps(list(map(str, interpreter()))))"
    )
    (tmp_path / "runs.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "runs"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
    )  # fmt: skip
    assert str(tmp_path.resolve()) not in json.loads(done.stdout)
    at_the_root = subprocess.run(
        [sys.executable, "-c", program], cwd="/", capture_output=True, text=True, timeout=30, check=True
    )
    assert "/" not in json.loads(at_the_root.stdout)


def test_root_reads_of_etc_what_is_no_secret():
    named = {str(path) for path, _ in system_files(root=True)}
    assert "/etc/passwd" in named
    assert not {"/etc", "/etc/shadow", "/etc/ssl", "/etc/ssl/private"} & named
    assert "/etc" in {str(path) for path, _ in system_files(root=False)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("passwd: files systemd\ngroup: files [SUCCESS=merge] systemd\nhosts: files dns\n", None),
        ("# passwd: ldap\npasswd: compat # ldap\n", None),
        ("passwd: files sss\n", "passwd of {} names sss, which may be asked over a socket"),
        ("group:\tfiles [NOTFOUND=return] ldap\n", "group of {} names ldap, which may be asked over a socket"),
        ("", None),
    ],
)  # fmt: skip
def test_users_that_another_service_knows_are_asked_for_over_a_socket(tmp_path, text, found):
    file = tmp_path / "nsswitch.conf"
    file.write_text(text)
    assert names_from_daemons(file) == (found and found.format(file))


def test_a_machine_without_nsswitch_has_files(tmp_path):
    assert names_from_daemons(tmp_path / "nowhere") is None
