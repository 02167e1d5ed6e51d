"""No directory of [files] reaches what the daemon itself relies on: refused with place, reason and cure."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import hearth
from hearth.actors.build import build_parts
from hearth.config.model import load_config
from hearth.errors import ConfigError

BOARDS = Path(hearth.__file__).parent / "drivers/boards"


class Deployment:
    """A machine's directories: each thing of the daemon's own in one of its own, and places for others beside them."""

    def __init__(self, directory):
        self.directory = directory
        for name in (
            "etc",
            "board",
            "log",
            "keys",
            "run",
            "tls",
            "jobs",
            "share",
            "log/audit.log.hcp/x",
            "log/agentcards",
            "log/files",
        ):
            (directory / name).mkdir(parents=True)
        (directory / "board/own.toml").write_text((BOARDS / "sim.toml").read_text())
        # The profile names it, beside itself.
        (directory / "board/sim.dbc").write_bytes((BOARDS / "sim.dbc").read_bytes())
        (directory / "link").symlink_to(directory / "log")
        (directory / "elsewhere").symlink_to(directory / "keys")
        self.file = directory / "etc/hearth.toml"

    def build(self, access, *roots):
        place = self.directory
        listed = ", ".join(f'"{place / root}"' for root in roots)
        self.file.write_text(
            f'[board]\nprofile = "{place}/board/own.toml"\n[hcp]\nserve = false\ncapabilities = ["{place}/jobs"]\n'
            f'[audit]\npath = "{place}/log/audit.log"\nkey = "{place}/elsewhere/audit.key"\n'
            f'[http]\ncert = "{place}/tls/cert.pem"\nkey = "{place}/tls/key.pem"\n'
            f"[files]\n{access} = [{listed}]\n"
        )
        parts = build_parts(
            load_config(self.file), default_policy=(), config_file=self.file, socket=place / "run/hearth.sock"
        )
        parts.paths.close()


@pytest.fixture
def deployment(tmp_path):
    return Deployment(tmp_path)


@pytest.mark.parametrize("access", ["read", "write"])
@pytest.mark.parametrize(
    ("root", "reason"),
    [
        (".", "holds the audit log ("),
        ("log", "holds the audit log ("),
        ("log/../log/", "holds the audit log ("),
        ("link", "holds the audit log ("),
        ("keys", "holds the audit log's key ("),
        ("elsewhere", "holds the audit log's key ("),
        ("run", "holds the socket ("),
        ("etc", "holds the configuration ("),
        ("board", "holds the board's profile ("),
        ("tls", "holds [http] key ("),
        ("jobs", "holds capability files ("),
        ("log/agentcards", "holds agent cards ("),
        ("log/audit.log.hcp", "belongs to the audit log"),
        ("log/audit.log.hcp/x", "belongs to the audit log"),
    ],
)
def test_a_root_that_reaches_what_the_daemon_relies_on_is_refused_with_place_and_cure(deployment, access, root, reason):
    with pytest.raises(ConfigError) as refused:
        deployment.build(access, "share", root)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f'[files] {access}[1]: "{deployment.directory}')
    assert reason in line
    assert line.endswith("; name a directory that has nothing of hearth's in it")


def test_a_root_inside_a_directory_of_capability_files_is_refused(deployment):
    (deployment.directory / "jobs/more").mkdir()
    with pytest.raises(ConfigError, match=r"lies in .*/jobs, which holds capability files"):
        deployment.build("write", "jobs/more")


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_root_that_holds_what_a_link_among_capability_files_leads_to_is_refused(deployment, access):
    (deployment.directory / "share/survey.py").touch()
    (deployment.directory / "jobs/survey.py").symlink_to("../share/survey.py")
    with pytest.raises(ConfigError, match=r"holds capability files \(.*/jobs/survey.py\)"):
        deployment.build(access, "share")


def test_every_root_that_is_wrong_is_told_at_once(deployment):
    with pytest.raises(ConfigError) as refused:
        deployment.build("read", "etc", "share", "run")
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == ["[files] read[0]", "[files] read[2]"]


@pytest.mark.parametrize("root", ["share", "log/files"])
def test_a_root_beside_them_is_taken_even_in_the_state_directory(deployment, root):
    deployment.build("read", root)
    deployment.build("write", root)


def test_a_root_that_is_not_there_is_refused_for_that(deployment):
    with pytest.raises(ConfigError, match="cannot be opened"):
        deployment.build("read", "nowhere/at/all")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_mount_of_the_state_directory_elsewhere_does_not_hide_it(deployment):
    (deployment.directory / "mounted").mkdir()
    mount = ["mount", "--bind", str(deployment.directory / "log"), str(deployment.directory / "mounted")]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount")
    try:
        with pytest.raises(ConfigError, match=r"mounted.* holds the audit log"):
            deployment.build("read", "mounted")
    finally:
        subprocess.run(["umount", str(deployment.directory / "mounted")], check=True)


async def test_an_embedded_runtime_refuses_them_too(tmp_path):
    (tmp_path / "log").mkdir()
    config = hearth.config.model.Config(
        audit=hearth.config.model.AuditConfig(path=tmp_path / "log/audit.log"),
        files=hearth.config.model.FilesConfig(read=(tmp_path,)),
    )
    with pytest.raises(ConfigError, match="holds the audit log"):
        async with hearth.open_runtime(board="sim", config=config):
            pass
