"""A confined hearthd does all its work: as the user that started it, and as one that it became.

Files, outputs and their file, the log's rotation, certificates that are read again, whole jobs with a plot, a restart
after a kill; and what is configured to be allowed is allowed, and nothing besides.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.carriers import Papers
from support.confinement import as_root, needs_filters, needs_landlock
from support.dialing import OpenHearthd, tls
from support.hearthd import Hearthd, eventually, submission
from support.intruder import ATTACKS, install

import hearth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.hearthd import Peer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

NOBODY = "nobody"
ROOT = Path(__file__).parents[2]


@functools.cache
def python_for(user: str) -> tuple[str, str] | None:
    """An interpreter that this user can run hearth with, and its PYTHONPATH: ours may lie in somebody's home."""
    path = ":".join([str(ROOT), *(place for place in sys.path if place.endswith("-packages"))])
    major, minor = sys.version_info[:2]
    for python in (sys.executable, shutil.which(f"python{major}.{minor}", path="/usr/bin:/usr/local/bin")):
        probe = [python, "-c", "import hearth.actors.daemon, PIL, cryptography"]
        entry = pwd.getpwnam(user)
        try:
            done = subprocess.run(
                probe, env={"PYTHONPATH": path}, cwd="/", timeout=60, check=False,
                user=entry.pw_uid, group=entry.pw_gid, extra_groups=[], capture_output=True,
            )  # fmt: skip
        except (OSError, TypeError):
            continue
        if done.returncode == 0:
            return str(python), path
    return None


def environment(place: Path, python: str, path: str) -> str:
    """A virtual environment of this interpreter that imports from this path; its interpreter."""
    packages = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "path.pth").write_text(path.replace(":", "\n"))
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(python)
    (place / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
    return str(place / "bin" / "python")


@pytest.fixture(params=["the user that started it", pytest.param(NOBODY, marks=as_root)])
def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenHearthd]:
    """A confined daemon on every carrier, with files to read and write, that becomes this user, if it is one."""
    user = NOBODY if request.param == NOBODY else None
    with tempfile.TemporaryDirectory(prefix="hearth-test-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "papers").mkdir()
        (directory / "files").mkdir()
        (directory / "files" / "there").write_text("is there")
        install(directory / "site")
        papers = Papers(directory / "papers")
        become = "" if user is None else f'user = "{user}"'
        config = (
            f'[files]\nread = ["{directory}/files"]\nwrite = ["{directory}/files"]\n'
            f"[sandbox]\nrequire = true\n{become}\n"
            '[tools]\nenable = ["com.example"]\n'
        )
        daemon = OpenHearthd(directory, papers, config, secure=True)
        # What the daemon writes is apart from its configuration: that belongs to the user that starts it.
        state = directory / "state"
        state.mkdir()
        text = daemon.config.read_text().replace("checkpoint_every = 50", "rotate_bytes = 20_000")
        for place in (daemon.socket, daemon.audit):
            text = text.replace(f'"{place}"', f'"{state / place.name}"')
        daemon.config.write_text(text)
        daemon.socket, daemon.audit = state / daemon.socket.name, state / daemon.audit.name
        daemon.env["PYTHONPATH"] = ":".join([f"{directory}/site", *filter(None, [os.environ.get("PYTHONPATH")])])
        if user is not None:
            found = python_for(user)
            if found is None:
                pytest.skip(f"no interpreter of this version that {user} can run: apt-get install python3")
            # What hearthd starts is isolated from PYTHONPATH: it must find hearth without it.
            monkeypatch.setattr(sys, "executable", environment(directory / "env", *found))
            for path in (state, directory / "files", directory / "files" / "there"):
                shutil.chown(path, user)
            for pair in (papers.server_cert, papers.server_key):
                readable_for(user, pair)
        try:
            yield daemon.start()
        finally:
            daemon.end()


def readable_for(user: str, path: Path) -> None:
    """As the keys of a service are: root's, and readable for its group."""
    if os.geteuid() == 0:
        os.chown(path, 0, pwd.getpwnam(user).pw_gid)
        path.chmod(0o640)


def facts(daemon: Hearthd) -> dict[str, str]:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return {line.partition(":")[0]: line.partition(":")[2].strip() for line in status.splitlines()}


def value(peer: Peer, session: str, tool: str, **args: Any) -> Any:
    step = peer.run(session, tool, **args)
    assert step["status"] == "SUCCESS", step
    return step["result"]


def serial(daemon: OpenHearthd) -> str:
    papers = daemon.papers
    with tls(daemon.listening["tls"], papers.client_context(papers.clients["arm-7"])) as connected:
        return str(connected.getpeercert()["serialNumber"])


async def health_report(daemon: Hearthd) -> tuple[list[str], Any]:
    """A whole job, with a plot: the names of its artifacts, and its warnings."""
    with trio.fail_after(60):
        async with hearth.connect(str(daemon.socket)) as client:
            job = await client.delegate("host-health-report", "a test", {"samples": 2, "interval_s": 0.05})
            result = (await job.wait()).raise_for_state()
            return [artifact.name for artifact in result.artifacts], result.summary.warnings


@pytest.mark.proof
@needs_landlock(6)
@needs_filters
def test_a_confined_daemon_does_all_its_work_and_comes_back_after_a_kill(running: OpenHearthd) -> None:
    files = running.directory / "files"
    own = facts(running)
    assert (own["NoNewPrivs"], own["Seccomp"]) == ("1", "2")
    uid = running.audit.stat().st_uid
    assert own["Uid"].split() == 4 * [str(uid)]
    if uid != os.getuid():
        assert {own[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}

    peer = running.peer()
    session = peer.open()
    assert value(peer, session, "file.read", path=str(files / "there"))["size"] == 8
    value(peer, session, "file.write", path=str(files / "new"), data="aGk=")
    assert (files / "new").read_bytes() == b"hi"
    refused = peer.refusal("task.submit", submission(session, ("file.read", {"path": "/etc/passwd"})))
    assert refused["code"] == -32003
    value(peer, session, "gpio.set", line=17, value=1)
    value(peer, session, "i2c.read", bus=1, addr=0x48, len=2)
    value(peer, session, "uart.exchange", port="uart0", data="aGk=", len=2, timeout_ms=2000)
    for tool in ("cpuinfo", "memory", "thermal", "load", "disk", "network", "uptime"):
        value(peer, session, f"sys.{tool}")
    assert value(peer, session, "proc.list")["processes"]
    assert value(peer, session, "hw.sensor.list")

    for attack in ("setuid_back_to_root", "setgroups", "capset", "read_shadow", "execve", "socket_tcp", "unshare_user"):
        answered = value(peer, session, "com.example.intrude", attack=attack)
        assert set(answered.values()) == {ATTACKS[attack].expected}, attack

    before = serial(running)
    running.papers.server_cert, running.papers.server_key = running.papers.server("server")
    for path in (running.papers.server_cert, running.papers.server_key):
        readable_for(pwd.getpwuid(uid).pw_name, path)
    running.signal(signal.SIGHUP)
    eventually(lambda: "certificates have been read again" in running.said)
    assert serial(running) != before

    assert trio.run(health_report, running) == (["report", "plot"], ())

    while not list(running.audit.parent.glob("audit.log.0*")):
        value(peer, session, "hw.gpio.list")
    assert running.records(event="audit.rotate")

    value(peer, session, "gpio.set", line=27, value=1)
    running.hang_up()
    running.kill()
    running.start()
    assert running.records(event="daemon.recover")
    again = running.peer()
    assert value(again, again.open(), "gpio.get", line=27)["value"] == 0
    assert trio.run(health_report, running)[0] == ["report", "plot"]
    running.hang_up()
    assert running.stop() == 0
    assert not running.socket.exists()
    assert "crashed" not in running.said
    assert "ERROR" not in running.said
