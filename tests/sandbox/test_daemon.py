"""hearthd confines itself, and tells: in the log, in the audit log, in health, and beforehand by `--check`."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.confinement import as_root, needs_filters, needs_landlock
from support.hearthd import Hearthd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

WITHOUT = """
import os, runpy, sys
from hearth.drivers.sandbox.identity import no_new_privs
from hearth.drivers.sandbox.seccomp import Filter, Rule
no_new_privs()
name, code = sys.argv[1:3]
Filter([Rule(name, int(code))]).enforce()
del sys.argv[1:3]
runpy.run_module("hearth.actors.daemon", run_name="__main__", alter_sys=True)
"""
"""hearthd on a machine whose kernel answers a system call with an errno, as one without the thing does."""


@pytest.fixture
def hearthd(tmp_path: Path) -> Iterator[Callable[..., Hearthd]]:
    daemons = []

    def make(config: str = "", **environ: str) -> Hearthd:
        daemons.append(Hearthd(tmp_path, config, environ))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.end()


def refusal(daemon: Hearthd, *arguments: str, program: tuple[str, ...] = ("-m", "hearth.actors.daemon")) -> str:
    """What it says when it does not start."""
    done = subprocess.run(
        [sys.executable, *program, "--config", str(daemon.config), *arguments],
        capture_output=True, text=True, timeout=60, check=False, env=daemon.env,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def told(daemon: Hearthd) -> Any:
    """What health and the audit log say, which is the same."""
    health = daemon.peer().health()["sandbox"]
    (start,) = daemon.records(event="daemon.start")
    assert start["sandbox"] == health
    return health


@needs_filters
@needs_landlock(6)
def test_it_is_confined_when_it_serves_and_says_so(hearthd: Callable[..., Hearthd]) -> None:
    daemon = hearthd().start()
    sandbox = told(daemon)
    assert sandbox["state"] == "in force"
    assert sandbox["in_force"] == [
        "capabilities", "no_new_privs", "files", "network", "devices", "scopes", "syscalls",
    ]  # fmt: skip
    assert "missing" not in sandbox
    assert "hearthd: INFO: sandbox: in force: " in daemon.said
    held = []
    for task in Path(f"/proc/{daemon.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            held.append((status["NoNewPrivs"], status["Seccomp"]))
    assert set(held) == {("1", "2")}, "every thread of it is held"


@needs_filters
def test_without_its_sandbox_it_says_so_everywhere(hearthd: Callable[..., Hearthd]) -> None:
    daemon = hearthd().start("--no-sandbox")
    assert told(daemon) == {"state": "off", "reason": "--no-sandbox"}
    assert "hearthd: WARNING: sandbox: off: --no-sandbox\n" in daemon.said


@needs_filters
def test_switched_off_by_the_configuration_it_says_that(hearthd: Callable[..., Hearthd]) -> None:
    daemon = hearthd("[sandbox]\nenable = false").start()
    assert told(daemon) == {"state": "off", "reason": "[sandbox] enable = false"}


@needs_filters
@needs_landlock()
def test_a_kernel_that_lacks_a_part_gets_the_rest_and_one_line_for_it(
    hearthd: Callable[..., Hearthd], tmp_path: Path
) -> None:
    launcher = tmp_path / "without.py"
    launcher.write_text(WITHOUT)
    daemon = hearthd().start(program=(str(launcher), "landlock_create_ruleset", str(errno.ENOSYS)))
    sandbox = told(daemon)
    assert sandbox["state"] == "in part"
    assert set(sandbox["missing"]) == {"files", "network", "devices", "scopes"}
    lines = [line for line in daemon.said.splitlines() if "not in force" in line]
    assert len(lines) == 1
    assert lines[0].startswith("hearthd: WARNING: sandbox: not in force: files, network, devices, scopes: this kernel")


@pytest.mark.proof
@needs_filters
def test_where_it_is_required_it_does_not_start_without_all_of_it(
    hearthd: Callable[..., Hearthd], tmp_path: Path
) -> None:
    launcher = tmp_path / "without.py"
    launcher.write_text(WITHOUT)
    daemon = hearthd("[sandbox]\nrequire = true")
    program = (str(launcher), "landlock_create_ruleset", str(errno.ENOSYS))
    said = refusal(daemon, program=program)
    assert "hearthd: [sandbox] require: not all of it can be put in force: files: this kernel has no Landlock;" in said
    assert not daemon.socket.exists()
    checked = refusal(daemon, "--check", program=program)
    assert "[sandbox] require: sandbox: would not be in force: files, network, devices, scopes: this" in checked
    assert "[sandbox] require: --no-sandbox contradicts it; remove one of them" in refusal(daemon, "--no-sandbox")


@needs_filters
@needs_landlock(6)
def test_where_it_is_required_it_starts_with_all_of_it(hearthd: Callable[..., Hearthd]) -> None:
    daemon = hearthd("[sandbox]\nrequire = true").start()
    assert told(daemon)["state"] == "in force"


def test_what_the_environment_adds_is_told(hearthd: Callable[..., Hearthd], tmp_path: Path) -> None:
    added = [*filter(None, [os.environ.get("HEARTH_SANDBOX_WRITE")]), str(tmp_path / "more")]
    daemon = hearthd(HEARTH_SANDBOX_WRITE=":".join(added)).start()
    assert told(daemon)["added"] == added
    assert f"the environment added to what may be written: {', '.join(added)}\n" in daemon.said


@pytest.mark.proof
def test_what_would_not_be_in_force_is_told_beforehand(hearthd: Callable[..., Hearthd]) -> None:
    daemon = hearthd("[sandbox]\nenable = false")
    done = subprocess.run(
        [sys.executable, "-m", "hearth.actors.daemon", "--config", str(daemon.config), "--check"],
        capture_output=True, text=True, timeout=60, check=True, env=daemon.env,
    )  # fmt: skip
    assert "hearthd: warning: sandbox: off: [sandbox] enable = false\n" in done.stdout
    daemon.config.write_text(daemon.config.read_text().replace("enable = false", 'user = "nosuchuser"'))
    assert "[sandbox] user: there is no user 'nosuchuser'" in refusal(daemon, "--check")


# --- becoming a user ------------------------------------------------------------------------------------------------


def elsewhere(program: list[str]) -> list[str]:
    """A command for a process to which the home of root, where this Python may lie, is open, as others' is."""
    home, python = os.path.expanduser("~root"), os.path.realpath(sys.base_prefix)
    if not python.startswith(f"{home}/"):
        return program
    top = f"{home}/{os.path.relpath(python, home).split('/')[0]}"
    script = (
        f'set -e; mount --bind "{top}" /mnt; mount -t tmpfs -o mode=755 none "{home}"; mkdir "{top}"; '
        f'mount --move /mnt "{top}"; exec "$@"'
    )
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *program]


@as_root
def test_started_as_root_it_becomes_the_user_it_is_told_and_all_it_makes_is_that_users(
    open_place: Path,
) -> None:
    state = open_place / "state"
    config = f'[sandbox]\nuser = "nobody"\n[files]\nwrite = ["{open_place}/files"]'
    (open_place / "files").mkdir()
    os.chown(open_place / "files", 65534, 65534)
    daemon = Hearthd(open_place, config)
    text = daemon.config.read_text().replace(str(daemon.audit), str(state / "audit.log"))
    daemon.socket = open_place / "run/hearth.sock"
    daemon.config.write_text(text.replace(str(open_place / "hearth.sock"), str(daemon.socket)))
    daemon.audit = state / "audit.log"
    try:
        daemon.start(prefix=elsewhere([]))
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        assert "Uid:\t65534\t65534\t65534\t65534" in status
        assert "CapPrm:\t0000000000000000" in status
        assert told(daemon)["user"] == "nobody"
        step = daemon.peer().run(daemon.peers[-1].open(), "file.write", path=f"{open_place}/files/x", data="aGk=")
        assert step["status"] == "SUCCESS", step
        assert daemon.stop() == 0
    finally:
        daemon.end()
    made = [path for place in (state, daemon.socket.parent) for path in (place, *place.rglob("*"))]
    assert {path.stat().st_uid for path in made} == {65534}
    assert not daemon.socket.exists(), "it could still take its socket away"


@as_root
def test_a_directory_of_the_callers_choice_is_not_given_away(open_place: Path) -> None:
    daemon = Hearthd(open_place, '[sandbox]\nuser = "nobody"')
    done = subprocess.run(
        [*elsewhere([sys.executable, "-m", "hearth.actors.daemon"]), "--config", str(daemon.config)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"nobody cannot write to {open_place}, where the audit log and its key are to be" in done.stderr
    assert f"`install -d -o nobody {open_place}`" in done.stderr
    assert open_place.stat().st_uid == 0


@as_root
@pytest.mark.skipif(not sys.base_prefix.startswith("/root/"), reason="this Python is where everybody can read")
def test_a_user_who_cannot_read_the_program_is_told_where_it_ought_to_be(open_place: Path) -> None:
    daemon = Hearthd(open_place, '[sandbox]\nuser = "nobody"')
    assert "[sandbox] user: nobody cannot read " in refusal(daemon)
