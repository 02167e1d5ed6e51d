"""A whole plan put in force, and the report of what is: each in a fork of its own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from attrs import evolve
from support.confinement import as_root, landlock_abi, needs_filters, needs_landlock, needs_one_thread
from support.forked import answer_of, forked

from hearth.config.model import Config
from hearth.drivers.boards import load_profile
from hearth.drivers.sandbox.enforce import Layer, SandboxReport, available, confine
from hearth.drivers.sandbox.identity import ProcessIdentity, no_new_privs
from hearth.drivers.sandbox.plan import PathGrant, Places, SandboxPlan, make_plan
from hearth.drivers.sandbox.seccomp import Filter, Rule
from hearth.errors import ConfigError

LANDLOCKS = {"files", "network", "devices", "scopes"}
ALL = ["capabilities", "no_new_privs", "files", "network", "devices", "scopes", "syscalls"]
whole = (needs_filters, needs_landlock(6))


def with_whole(test):
    for mark in whole:
        test = mark(test)
    return test


@pytest.fixture
def plan(tmp_path):
    places = Places(audit=tmp_path / "audit.log", key=tmp_path / "key")
    environ = {name: os.environ[name] for name in ("HEARTH_SANDBOX_WRITE",) if name in os.environ}
    return make_plan(Config(), load_profile("sim"), places, tools=(), environ=environ, uid=os.geteuid())


def refusing(name, code):
    """A machine whose kernel answers a system call so."""
    no_new_privs()
    Filter([Rule(name, code)]).enforce()


@with_whole
def test_all_of_a_plan_is_put_in_force_where_the_kernel_has_all_of_it(plan, tmp_path):
    def work():
        report = confine(plan)
        (tmp_path / "audit.log").write_text("mine")
        return (
            report.state,
            [part.name for part in report.parts],
            answer_of(lambda: Path("/etc/shadow").read_bytes()),
            answer_of(lambda: os.posix_spawn("/bin/true", ["true"], {})),
            next(iter(report.lines())),
        )

    state, parts, shadow, spawn, (level, line) = forked(work)
    assert (state, parts, level) == ("in force", ALL, "info")
    assert (shadow, spawn) == ("EACCES", "EPERM")
    assert line.startswith("sandbox: in force: capabilities (")
    assert "syscalls (" in line


@needs_landlock()
def test_an_older_kernel_confines_in_part_and_says_what_it_takes(plan):
    report = forked(lambda: confine(plan, abi=1))
    assert report.state == "in part"
    assert report.missing["network"] == "Landlock 1 of this kernel does not know it; it takes Linux 6.7 or later"
    assert set(report.missing) >= {"network", "devices", "scopes"}
    assert "files" in report.to_json()["in_force"]


@needs_filters
def test_a_kernel_without_landlock_still_filters_system_calls(plan):
    def work():
        refusing("landlock_create_ruleset", errno.ENOSYS)
        return confine(plan), answer_of(lambda: os.posix_spawn("/bin/true", ["true"], {}))

    report, spawn = forked(work)
    assert (report.state, spawn, set(report.missing)) == ("in part", "EPERM", LANDLOCKS)
    told = [line for level, line in report.lines() if level == "warning" and "not in force" in line]
    assert len(told) == 1, "what has one cause is one line"
    assert told[0].startswith("sandbox: not in force: files, network, devices, scopes: this kernel has no Landlock;")


@needs_filters
@needs_landlock()
def test_a_kernel_without_filters_still_confines_to_files(plan):
    def work():
        refusing("seccomp", errno.EINVAL)
        return confine(plan), answer_of(lambda: Path("/etc/shadow").read_bytes())

    report, shadow = forked(work)
    assert (report.state, shadow) == ("in part", "EACCES")
    assert report.missing["syscalls"].startswith("this kernel has no seccomp filters;")


@needs_landlock()
def test_a_machine_without_libseccomp_still_confines_to_files(plan, tmp_path, monkeypatch):
    for name in ("seccomp", "pyseccomp"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    report = forked(lambda: confine(plan))
    assert report.missing["syscalls"].startswith("no module for libseccomp is installed; `pip install pyseccomp`")
    assert [part.detail for part in available() if part.name == "syscalls"] == [report.missing["syscalls"]]


@needs_filters
def test_what_the_kernel_refuses_is_told_and_the_rest_goes_on(plan):
    def work(name):
        refusing(name, errno.EPERM)
        return confine(plan)

    if os.geteuid() == 0:  # nobody else has any to give up
        assert forked(lambda: work("capset")).missing["capabilities"].startswith("the kernel keeps them: ")
    assert forked(lambda: work("prctl")).missing["no_new_privs"].startswith("the kernel refuses it: ")


@pytest.fixture
def with_a_thread(plan):
    """Returns what became of a plan in a process with another thread."""

    def work(user, off):
        gate = threading.Event()
        other = threading.Thread(target=gate.wait, name="escaping")
        other.start()
        try:
            return confine(evolve(plan, user=user), off=off).state
        except ConfigError as error:
            return str(error)
        finally:
            gate.set()
            other.join()

    return lambda user=None, off=None: forked(lambda: work(user, off))


def test_a_second_thread_would_escape_so_nothing_is_begun(with_a_thread):
    told = with_a_thread()
    assert told.startswith("[sandbox]: threads that run already would not be confined: escaping; take out what starts")
    assert told.endswith(" or start with --no-sandbox")


def test_threads_hinder_nothing_where_it_is_switched_off_as_that_message_advises(with_a_thread):
    assert with_a_thread(off="--no-sandbox") == "off"


def test_a_second_thread_would_keep_roots_rights_though_the_rest_is_switched_off(with_a_thread):
    told = with_a_thread(ProcessIdentity("nobody", 65534, 65534, (65534,)), "--no-sandbox")
    assert told.endswith(" or start with --no-sandbox and no user")


def test_switched_off_nothing_is_put_in_force_and_that_is_told(plan):
    def work():
        return confine(plan, off="--no-sandbox"), answer_of(lambda: os.stat("/etc/passwd"))

    report, _ = forked(work)
    assert report.to_json() == {"state": "off", "reason": "--no-sandbox"}
    assert list(report.lines()) == [("warning", "sandbox: off: --no-sandbox")]


@needs_one_thread
@as_root
def test_a_user_is_become_whether_or_not_the_rest_is_switched_off(plan):
    nobody = ProcessIdentity("nobody", 65534, 65534, (65534,))

    def work(off):
        report = confine(evolve(plan, user=nobody, capabilities=()), off=off)
        return os.getuid(), report.to_json()["user"], report.state

    assert forked(lambda: work(None))[:2] == (65534, "nobody")
    assert forked(lambda: work("--no-sandbox")) == (65534, "nobody", "off")


@needs_one_thread
@as_root
@needs_filters
def test_becoming_a_user_is_the_first_part_and_what_keeps_from_it_is_told(plan):
    root = ProcessIdentity("root", 0, 0, (0,))

    def work(refused):
        if refused:
            refusing("setgroups", errno.EPERM)
        try:
            return confine(evolve(plan, user=root)).parts[0]
        except ConfigError as error:
            return str(error)

    assert forked(lambda: work(False)) == Layer("user", True, "root (root)")
    assert forked(lambda: work(True)) == "[sandbox] user: cannot become root: Operation not permitted"


@needs_one_thread
def test_who_cannot_become_the_user_does_not_start(plan):
    def work():
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        try:
            confine(evolve(plan, user=ProcessIdentity("root", 0, 0, (0,))))
        except ConfigError as error:
            return str(error)
        return "in force"

    assert forked(work) == "[sandbox] user: cannot become root: Operation not permitted"


@needs_one_thread
def test_programs_that_look_into_other_processes_cannot_be_held_by_landlock(plan):
    report = forked(lambda: confine(evolve(plan, looks="proc.signal, to find out what a process runs")))
    assert set(report.missing) >= LANDLOCKS
    assert "looking into other processes (proc.signal" in report.missing["files"]


@with_whole
def test_what_is_allowed_on_purpose_is_said(plan):
    allowed = evolve(plan, signals="a tool", network="asked for", hotplug="usb")
    report = forked(lambda: confine(allowed))
    details = {part.name: part.detail for part in report.parts}
    assert details["network"] == "TCP is allowed: asked for"
    assert details["scopes"] == "no abstract sockets to the outside"
    told = forked(lambda: confine(evolve(plan, tcp={1502: "a line"})))
    assert "no TCP is bound, and connected only to port 1502 (a line)" in [part.detail for part in told.parts]
    assert report.to_json()["hotplug"] == "usb"
    assert ("info", "sandbox: all of /dev may be opened: usb") in list(report.lines())


@needs_landlock()
def test_what_can_be_put_in_force_is_known_without_doing_it():
    parts = {part.name: part for part in available()}
    assert set(parts) == {"no_new_privs", *LANDLOCKS, "syscalls"}
    assert parts["files"].in_force
    assert not {part.name: part for part in available(abi=3)}["network"].in_force
    assert Path("/etc/passwd").read_text()


@needs_filters
def test_that_is_known_of_a_kernel_without_filters_too():
    code = "from hearth.drivers.sandbox.enforce import available; print(*available(), sep='\\n')"

    def work():
        # libseccomp asks once in a process.
        refusing("seccomp", errno.ENOSYS)
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    done = forked(work)
    assert "name='syscalls', in_force=False, detail='this kernel has no seccomp filters; it takes" in done.stdout, done


@needs_filters
def test_that_is_known_of_a_kernel_without_landlock_too():
    def work():
        refusing("landlock_create_ruleset", errno.EOPNOTSUPP)
        return [part for part in available() if part.name in LANDLOCKS]

    assert [part.in_force for part in forked(work)] == [False] * 4


@needs_landlock()
def test_python_runs_on_what_it_is_granted():
    from hearth.drivers.sandbox import landlock
    from hearth.drivers.sandbox.enforce import RIGHTS
    from hearth.drivers.sandbox.plan import interpreter, interpreters_of, plain_nodes, system_files

    program = Path(sys.executable)
    granted = [
        *((path, RIGHTS["read"]) for path in interpreter()),
        *((path, RIGHTS["read"]) for path, _ in system_files(root=os.geteuid() == 0)),
        *((path, RIGHTS["device"]) for path in plain_nodes()),
        *((path, RIGHTS["execute"]) for path in (program, *interpreters_of(program))),
    ]

    def work():
        import subprocess

        no_new_privs()
        with landlock.Ruleset(landlock.version()) as rules:
            rules.allow_all(granted)
            rules.enforce()
        command = [sys.executable, "-c", "import ssl, json; print(1)"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environ)
        return done.stdout, done.stderr

    assert forked(work) == ("1\n", "")


def test_a_report_tells_what_was_added_and_what_is_missing():
    report = SandboxReport(
        parts=(Layer("files", True, "all"), Layer("syscalls", False, "why")),
        user="hearth", added=("/cov",), notes=("look out",),
    )  # fmt: skip
    assert report.to_json() == {
        "state": "in part", "in_force": ["files"], "missing": {"syscalls": "why"}, "user": "hearth",
        "added": ["/cov"], "notes": ["look out"],
    }  # fmt: skip
    assert [line for level, line in report.lines() if level == "warning"] == [
        "sandbox: not in force: syscalls: why",
        "sandbox: the environment added to what may be written: /cov",
        "sandbox: look out",
    ]
    assert next(iter(SandboxReport(parts=(Layer("files", False, "why"),)).lines())) == (
        "info",
        "sandbox: in force: nothing",
    )


def test_a_plan_of_nothing_allows_nothing():
    assert SandboxPlan().grants == ()
    assert not SandboxPlan().families
    assert PathGrant(Path("/a"), "read", "b").to_json() == {"path": "/a", "access": "read", "why": "b"}
    assert landlock_abi() >= 0
