"""Landlock on the kernel's own terms, each rule in a fork of its own."""

from __future__ import annotations

import errno
import os
import signal
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest
from support.confinement import landlock_abi, needs_filters, needs_landlock
from support.forked import answer_of, forked

from hearth.drivers.sandbox import landlock
from hearth.drivers.sandbox.enforce import RIGHTS
from hearth.drivers.sandbox.identity import no_new_privs
from hearth.drivers.sandbox.landlock import Fs, Ruleset
from hearth.drivers.sandbox.seccomp import Filter, Rule


def held(rules, work, *, abi=landlock.NEWEST, scopes=0, tcp=True):
    """What `work` returns in a process that these rules hold: (path, kind of access)."""

    def confined():
        no_new_privs()
        with Ruleset(min(landlock.version(), abi), scopes, tcp=tcp) as made:
            failed = made.allow_all((path, RIGHTS[access]) for path, access in rules)
            made.enforce()
        return failed or work()

    return forked(confined)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_text("in")
    (tmp_path / "in/sub").mkdir()
    (tmp_path / "out").write_text("out")
    return tmp_path


@needs_landlock()
def test_what_is_granted_can_be_read_and_nothing_else(place):
    def look():
        return (
            (place / "in/file").read_text(),
            os.listdir(place / "in/sub"),
            answer_of((place / "out").read_text),
            answer_of(lambda: os.listdir(place)),
            answer_of(lambda: (place / "in/file").write_text("x")),
            answer_of((place / "in/new").touch),
        )

    assert held([(place / "in", "read")], look) == ("in", [], "EACCES", "EACCES", "EACCES", "EACCES")


@needs_landlock(4)
def test_a_port_that_is_granted_can_be_connected_to_and_no_other():
    with socket.create_server(("127.0.0.1", 0)) as granted, socket.create_server(("127.0.0.1", 0)) as other:

        def confined():
            no_new_privs()
            with Ruleset(landlock.version()) as made:
                made.allow_connect(granted.getsockname()[1])
                made.enforce()
            return [
                answer_of(lambda one=one: socket.socket().connect(one.getsockname())) for one in (granted, other)
            ] + [answer_of(lambda: socket.create_server(("127.0.0.1", 0)))]

        assert forked(confined) == ["done", "EACCES", "EACCES"]


def test_where_tcp_is_not_covered_a_port_needs_no_rule():
    with Ruleset(min(landlock.version(), 3)) if landlock_abi() else nullcontext() as made:
        if made is not None:
            made.allow_connect(502)


@needs_landlock(3)
def test_a_directory_that_is_granted_for_writing_can_be_worked_in(place):
    def work():
        (place / "in/file").write_text("new")
        (place / "in/dir").mkdir()
        (place / "in/file").rename(place / "in/dir/file")
        (place / "in/sub").rmdir()
        return (
            (place / "in/dir/file").read_text(),
            answer_of(lambda: (place / "in/dir/file").rename(place / "moved")),
            answer_of(lambda: os.truncate(place / "out", 0)),
            answer_of(lambda: os.mkfifo(place / "in/fifo")),
            answer_of(lambda: (place / "in/link").symlink_to("x")),
        )

    assert held([(place / "in", "write")], work) == ("new", "EACCES", "EACCES", "EACCES", "EACCES")


@needs_landlock()
def test_a_rule_on_a_file_is_about_that_file(place):
    assert held([(place / "in/file", "write")], (place / "in/file").read_text) == "in"
    assert held([(place / "in/file", "list")], lambda: answer_of((place / "in/file").read_text)) == "EACCES"


@needs_landlock()
def test_names_may_be_listed_and_files_taken_away_without_being_read(place):
    def look():
        return (
            sorted(os.listdir(place / "in")),
            answer_of((place / "in/file").read_text),
            answer_of((place / "in/file").unlink),
        )

    assert held([(place / "in", "list"), (place / "in", "unlink")], look) == (["file", "sub"], "EACCES", "done")


@needs_landlock()
def test_programs_are_run_where_that_is_granted():
    def run(*granted):
        rules = [
            (Path(path), "read") for path in ("/usr", "/lib", "/lib64", "/etc", "/dev", "/bin") if os.path.exists(path)
        ]
        return held(
            [*rules, *((Path(path), "execute") for path in granted)],
            lambda: answer_of(lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)),
        )

    assert run() == "EACCES"
    assert run("/usr", "/lib", "/bin") == "done"


@needs_landlock(5)
def test_ioctl_takes_a_grant_of_its_own():
    import fcntl

    def ask(access):
        def look():
            with open("/dev/ptmx", "rb", buffering=0) as made:
                return answer_of(lambda: fcntl.ioctl(made, 0x80045430, bytes(4)))  # TIOCGPTN

        return held([(Path("/dev"), access)], look)

    assert ask("read") == "EACCES"
    assert ask("device") == "done"


@needs_landlock(4)
def test_no_tcp_is_bound_and_none_is_connected_unless_that_is_left_out():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def use():
            with socket.socket() as one, socket.socket() as two:
                return answer_of(lambda: one.bind(("127.0.0.1", 0))), answer_of(
                    lambda: two.connect(("127.0.0.1", port))
                )

        assert held([], use) == ("EACCES", "EACCES")
        assert held([], use, tcp=False) == ("done", "done")
        assert held([], use, abi=3) == ("done", "done"), "an older version knows nothing of it"


@needs_landlock(6)
def test_the_outside_is_neither_signalled_nor_reached_by_abstract_sockets():
    parent = os.getpid()
    with socket.socket(socket.AF_UNIX) as server:
        name = f"\0hearth-test-{parent}"
        server.bind(name)
        server.listen()

        def reach():
            with socket.socket(socket.AF_UNIX) as client:
                return answer_of(lambda: os.kill(parent, 0)), answer_of(lambda: client.connect(name))

        both = landlock.SIGNALS | landlock.ABSTRACT_UNIX_SOCKETS
        assert held([], reach, scopes=both) == ("EPERM", "EPERM")
        assert held([], reach) == ("done", "done")
        assert held([], reach, scopes=both, abi=5) == ("done", "done")


@needs_landlock(6)
def test_what_it_starts_may_be_signalled_and_is_held_as_well(place):
    def reach():
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, answer_of((place / "out").read_text).encode())
            signal.pause()
        told = os.read(reading, 100).decode()
        os.kill(child, signal.SIGKILL)
        return told, os.waitpid(child, 0)[1]

    assert held([], reach, scopes=landlock.SIGNALS) == ("EACCES", signal.SIGKILL)


@pytest.mark.parametrize(
    ("abi", "newest"),
    [(1, Fs.MAKE_SYM), (2, Fs.REFER), (3, Fs.TRUNCATE), (4, Fs.TRUNCATE), (5, Fs.IOCTL_DEV), (7, Fs.IOCTL_DEV)],
)
def test_each_version_knows_the_rights_up_to_one(abi, newest):
    rights = landlock.known_rights(abi)
    assert newest in rights
    assert rights < 2 * newest
    assert Fs.EXECUTE in rights


@needs_landlock()
@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6, 7])
def test_each_version_that_the_kernel_has_can_be_put_in_force(abi, place):
    if abi > landlock.version():
        pytest.skip(f"the kernel has Landlock {landlock.version()}")
    assert held([(place / "in", "read")], lambda: answer_of((place / "out").read_text), abi=abi) == "EACCES"


@needs_landlock()
def test_what_is_not_there_is_told_and_the_rest_holds(place):
    failed = held([(place / "none", "read")], lambda: None)
    assert failed == [(place / "none", "No such file or directory")]


@needs_filters
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            errno.ENOSYS,
            "this kernel has no Landlock; it takes Linux 5.13 or later, built with CONFIG_SECURITY_LANDLOCK",
        ),
        (errno.EOPNOTSUPP, "Landlock is switched off at boot; put landlock first in the kernel's parameter lsm="),
        (errno.EPERM, "the kernel refuses Landlock: Operation not permitted"),
    ],
)
def test_a_kernel_without_it_says_why(code, why):
    def ask():
        no_new_privs()
        Filter([Rule("landlock_create_ruleset", code)]).enforce()
        try:
            return landlock.version()
        except OSError as error:
            return landlock.why_not(error)

    assert forked(ask) == why
