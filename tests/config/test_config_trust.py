"""Files that decide what the daemon does are trusted only if root and the daemon's user alone can change them."""

from __future__ import annotations

import os
import pwd
import subprocess
from typing import TYPE_CHECKING

import pytest
from support.carriers import Papers
from support.users import NOBODY

from hearth._util import files
from hearth._util.files import read_file
from hearth.actors.daemon import main
from hearth.config.model import load_config
from hearth.drivers.boards import load_profile
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

PROFILE = """
name = "bench"
description = "a simulated bus"

[[can]]
bus = "can0"
driver = "sim"
dbc = "bench.dbc"
"""
DBC = 'VERSION ""\n\nBU_: NODE\n\nBO_ 100 STATUS: 8 NODE\n SG_ Level : 0|8@1+ (1,0) [0|255] "" NODE\n'


class Installation:
    """A configuration with a file of each kind."""

    def __init__(self, place: Path) -> None:
        self.place = place
        papers = Papers(self.made("tls"))
        self.made("boards")
        (place / "boards" / "bench.dbc").write_text(DBC)
        (place / "boards" / "bench.toml").write_text(PROFILE)
        (place / "secret").write_text("sk-1")
        (place / "secret").chmod(0o600)
        (place / "hearth.toml").write_text(
            f"""
[server]
socket = "{self.made("run")}/hearth.sock"

[board]
profile = "{place}/boards/bench.toml"

[audit]
path = "{self.made("state")}/audit.log"
key = "{self.made("keys")}/audit.key"

[ask]
model = "m"
api_key_file = "{place}/secret"

[tls]
listen = "127.0.0.1:0"
cert = "{papers.server_cert}"
key = "{papers.server_key}"
client_ca = "{papers.ca}"
"""
        )
        self.papers = papers

    def made(self, name: str) -> Path:
        (self.place / name).mkdir(mode=0o755)
        return self.place / name

    def path(self, name: str) -> Path:
        named = {"cert": self.papers.server_cert, "ca": self.papers.ca, "": self.place}
        return named[name] if name in named else self.place / name


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Each test leaves it good: the command in a refusal mends it."""
    return Installation(tmp_path_factory.mktemp("device"))


def check(installation: Installation, capfd) -> str | None:
    """What `hearthd --check` says against the configuration; None if it is good."""
    codes = []
    try:
        main(["--config", str(installation.path("hearth.toml")), "--check"])
    except SystemExit as end:
        codes.append(end.code)
    out, err = capfd.readouterr()
    assert codes == ([] if "configuration is good" in out else [2])
    return err if codes else None


FILES = ["hearth.toml", "boards/bench.toml", "boards/bench.dbc", "cert", "ca"]
DIRECTORIES = ["", "boards", "tls", "state", "keys"]


@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES])
def test_a_file_that_others_can_write_is_refused_with_the_command_that_mends_it(installation, capfd, name) -> None:
    path = installation.path(name)
    path.chmod(path.stat().st_mode | 0o002)
    said = check(installation, capfd)
    assert said is not None
    assert f"{path} is writable by every user; `chmod o-w {path}`" in said
    assert "Traceback" not in said
    subprocess.run(said.partition("`")[2].partition("`")[0].split(), check=True)
    assert check(installation, capfd) is None


@as_root
@pytest.mark.parametrize("name", [*FILES, *DIRECTORIES, "secret"])
def test_a_file_of_another_user_is_refused_with_the_command_that_mends_it(installation, capfd, name) -> None:
    path = installation.path(name)
    os.chown(path, NOBODY, -1)
    said = check(installation, capfd)
    assert said is not None
    assert f"{path} belongs to {pwd.getpwuid(NOBODY).pw_name}, who could " in said
    subprocess.run(said.partition("`")[2].partition("`")[0].split(), check=True)
    assert check(installation, capfd) is None


@as_root
def test_a_umask_of_002_with_a_group_of_ones_own_goes_on_working_and_so_do_sticky_directories(
    installation, capfd
) -> None:
    changed = [path for path in installation.place.rglob("*") if path.stat().st_mode & 0o077]
    for path in changed:
        path.chmod(path.stat().st_mode | 0o020)
        os.chown(path, -1, 4_000_000)
    installation.place.chmod(0o1777)
    assert check(installation, capfd) is None
    for path in (*changed, installation.place):
        path.chmod(path.stat().st_mode & 0o6755)


def test_directories_that_the_daemon_is_about_to_make_need_not_exist(installation, capfd) -> None:
    for name in ("state", "keys"):
        installation.path(name).rmdir()
    assert check(installation, capfd) is None
    installation.place.chmod(0o777)
    assert "writable by every user" in str(check(installation, capfd))
    installation.place.chmod(0o755)


def test_what_is_read_is_what_was_examined(tmp_path, monkeypatch) -> None:
    """A file that takes the place of the examined one after the check is not read."""
    from hearth._util import files

    path = tmp_path / "hearth.toml"
    path.write_text("good")
    examine = files.ownership_fault

    def replaced(*given: object) -> str | None:
        fault = examine(*given)
        (tmp_path / "other").write_text("evil")
        (tmp_path / "other").replace(path)
        return fault

    monkeypatch.setattr(files, "ownership_fault", replaced)
    with pytest.raises(ConfigError, match="was replaced while it was read"):
        read_file(path, trusted={os.geteuid()})


@as_root
def test_a_command_that_only_shows_a_configuration_reads_that_of_another_user(tmp_path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text("[limits]\nidle_ttl_s = 7\n")
    os.chown(path, NOBODY, -1)
    assert load_config(path, any_owner=True).limits.idle_ttl_s == 7
    with pytest.raises(ConfigError, match="belongs to"):
        load_config(path)
    profile = tmp_path / "board.toml"
    profile.write_text('name = "b"\ndescription = "b"\n')
    os.chown(profile, NOBODY, -1)
    assert load_profile(str(profile), any_owner=True).name == "b"
    with pytest.raises(ConfigError, match="belongs to"):
        load_profile(str(profile))


def test_a_file_that_is_being_written_is_read_again_until_it_is_settled(tmp_path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text("a")
    texts = iter(["ab", "abc"])

    def write() -> None:
        if text := next(texts, None):
            path.write_text(text)

    assert files.read_settled(path, trusted=None, pause=write) == b"abc"
    assert next(texts, None) is None


def test_a_file_that_is_written_without_end_is_refused(tmp_path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text("")

    def grow() -> None:
        with path.open("a") as file:
            file.write("x")

    with pytest.raises(ConfigError, match="is being written; try again when that has ended"):
        files.read_settled(path, trusted=None, pause=grow)
    assert path.stat().st_size == files.READINGS


def test_a_file_that_another_one_with_the_same_content_replaces_is_read_again(tmp_path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text("a")
    replaced = []

    def replace() -> None:
        if not replaced:
            (tmp_path / "new").write_text("a")
            (tmp_path / "new").replace(path)
        replaced.append(path)

    assert files.read_settled(path, trusted=None, pause=replace) == b"a"
    assert len(replaced) == 2
