"""Becoming another user and giving up powers, each in a fork of its own."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from support.confinement import as_root, needs_filters
from support.forked import answer_of, forked

from hearth.drivers.sandbox.identity import (
    CAPABILITIES,
    ProcessIdentity,
    become,
    bound_capabilities,
    find_user,
    in_words,
    keep_capabilities,
    make_over,
    no_new_privs,
)
from hearth.drivers.sandbox.seccomp import Filter, Rule

NOBODY = ProcessIdentity("nobody", 65534, 65534, (65534,))


def status():
    """The lines of /proc/self/status that are about who this is."""
    lines = (line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    wanted = ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs")
    return {key: value.strip() for key, value in lines if key in wanted}


def test_a_user_is_found_with_its_groups():
    who = find_user("nobody")
    assert (who.name, who.uid) == ("nobody", 65534)
    assert who.gid in who.groups
    assert in_words(who).startswith("nobody (")
    assert in_words(ProcessIdentity("x", 1, 1, (2**31,))) == "x (no group)"


@as_root
def test_root_becomes_a_user_for_good():
    def change():
        become(NOBODY)
        return status(), answer_of(lambda: os.setresuid(0, 0, 0)), answer_of(lambda: os.setgroups([0]))

    now, back, groups = forked(change)
    assert now["Uid"].split() == now["Gid"].split() == ["65534"] * 4
    assert now["Groups"] == "65534"
    assert (back, groups) == ("EPERM", "EPERM")
    assert int(now["CapEff"], 16) == int(now["CapPrm"], 16) == 0


@as_root
def test_root_keeps_the_powers_that_it_is_left_and_gets_no_others_back():
    def give_up():
        keep_capabilities(["CHOWN", "KILL"])
        again = answer_of(lambda: keep_capabilities(["CHOWN", "SETUID"]))
        return status(), again

    now, again = forked(give_up)
    left = 1 << CAPABILITIES["CHOWN"]
    assert int(now["CapBnd"], 16) == left | 1 << CAPABILITIES["KILL"]
    assert int(now["CapPrm"], 16) == int(now["CapEff"], 16) == left, "of what was asked for the second time"
    assert int(now["CapInh"], 16) == int(now["CapAmb"], 16) == 0
    assert again == "done"


@as_root
def test_programs_get_no_more_of_roots_powers():
    def run():
        keep_capabilities(["CHOWN"])
        done = subprocess.run(["grep", "CapPrm", "/proc/self/status"], capture_output=True, text=True, check=True)
        return int(done.stdout.split()[1], 16)

    assert forked(run) == 1 << CAPABILITIES["CHOWN"]


def test_an_ordinary_user_has_nothing_to_give_up():
    def give_up():
        if os.geteuid() == 0:
            become(NOBODY)
        keep_capabilities(())
        return int(status()["CapPrm"], 16)

    assert forked(give_up) == 0


@as_root
def test_who_becomes_a_user_has_bounded_what_its_programs_may_get():
    def change():
        bound_capabilities(())
        become(NOBODY)
        keep_capabilities(())
        return status()

    now = forked(change)
    assert {int(now[name], 16) for name in ("CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}


@needs_filters
@needs_filters
def test_where_nothing_is_left_to_give_up_no_person_is_asked():
    def give_up():
        if os.geteuid() == 0:
            become(NOBODY)
        no_new_privs()
        Filter([Rule("capset", errno.EPERM)]).enforce()
        return answer_of(lambda: keep_capabilities(()))

    assert forked(give_up) == "done"


def test_no_new_privileges_holds_for_good():
    def hold():
        no_new_privs()
        return status()["NoNewPrivs"]

    assert forked(hold) == "1"


@as_root
def test_what_is_roots_is_made_over_and_nothing_else(tmp_path):
    store = tmp_path / "store"
    (store / "inner").mkdir(parents=True)
    (store / "inner/file").touch()
    (store / "foreign").touch()
    os.chown(store / "foreign", 1, 1)
    (tmp_path / "elsewhere").touch()
    (store / "link").symlink_to(tmp_path / "elsewhere")
    (store / "second-name").hardlink_to(tmp_path / "elsewhere")
    os.mkfifo(store / "fifo")
    make_over([store, tmp_path / "nowhere"], NOBODY)
    owners = {str(path.relative_to(tmp_path)): path.lstat().st_uid for path in tmp_path.rglob("*")}
    assert owners == {
        "store": 65534, "store/inner": 65534, "store/inner/file": 65534,
        "store/foreign": 1, "store/link": 0, "store/second-name": 0, "store/fifo": 0, "elsewhere": 0,
    }  # fmt: skip


def test_who_cannot_become_a_user_is_told_so():
    def attempt():
        if os.geteuid() == 0:
            become(NOBODY)
        return answer_of(lambda: become(ProcessIdentity("root", 0, 0, (0,))))

    assert forked(attempt) == "EPERM"


@pytest.mark.parametrize("name", sorted(CAPABILITIES))
def test_the_names_of_capabilities_are_the_kernels(name):
    header = Path("/usr/include/linux/capability.h")
    if not header.exists():
        pytest.skip("no kernel headers: apt-get install linux-libc-dev")
    assert f"#define CAP_{name} " in header.read_text().replace("\t", " ")
