"""The directory of a socket: nobody but us and root can exchange what lies in it, there or on the way to it."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.users import NOBODY, ordinary_user

from hearth._util import files
from hearth._util.files import MOST_LINKS, ownership_fault
from hearth.actors.listeners import unix
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of ours that everybody can reach, beneath /tmp, which is sticky and writable by every user."""
    with tempfile.TemporaryDirectory(prefix="hearth-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(params=["as we are", "as an ordinary user"])
def somebody(request: pytest.FixtureRequest, place: Path) -> Iterator[int]:
    """The uid that the rest of the test runs as; the place is that user's."""
    if request.param == "as we are":
        yield os.geteuid()
        return
    if os.geteuid() != 0:
        pytest.skip("we are an ordinary user; run as root to be two")
    os.chown(place, NOBODY, NOBODY)
    with ordinary_user():
        yield NOBODY


def refusal(directory: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        unix.bind(directory / "s").close()
    assert not (directory / "s").exists()
    said = str(raised.value)
    assert said.startswith("[server] socket: ")
    assert "\n" not in said
    return said


def accepts(directory: Path) -> bool:
    with contextlib.closing(unix.bind(directory / "s")):
        return (directory / "s").is_socket()


def makes(directory: Path, mode: int) -> Path:
    directory.mkdir()
    directory.chmod(mode)
    return directory


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755, 0o1755])
def test_a_directory_that_only_we_can_write_to_is_accepted(place, mode) -> None:
    assert accepts(makes(place / "ours", mode))


@pytest.mark.usefixtures("somebody")
def test_a_directory_that_everybody_can_write_to_is_refused_with_the_command_that_mends_it(place) -> None:
    everybodys = makes(place / "open", 0o757)
    command = refusal(everybodys).partition("`")[2].rstrip("`")
    subprocess.run(command.split(), check=True)
    assert accepts(everybodys)


@pytest.mark.usefixtures("somebody")
def test_a_sticky_directory_is_no_place_for_a_socket_but_a_directory_of_ours_in_it_is(place) -> None:
    sticky = makes(place / "sticky", 0o1777)
    assert "could create the file first; choose a directory of its own" in refusal(sticky)
    assert accepts(makes(sticky / "hearth", 0o755))


@pytest.mark.usefixtures("somebody")
def test_what_others_can_exchange_on_the_way_is_refused(place) -> None:
    above = makes(place / "above", 0o777)
    makes(above / "between", 0o755)
    below = makes(above / "between" / "below", 0o755)
    assert refusal(below).endswith(f"{above} is writable by every user; `chmod o-w {above}`")
    above.chmod(0o755)
    assert accepts(below)


@pytest.mark.usefixtures("somebody")
def test_a_link_on_the_way_that_others_could_have_turned_is_refused(place) -> None:
    real = makes(place / "real", 0o755)
    makes(real / "in", 0o755)
    turned = makes(place / "turned", 0o777)
    (turned / "link").symlink_to("../real")
    (place / "link").symlink_to(turned / "link")
    assert f"{turned} is writable by every user" in refusal(place / "link" / "in")
    (place / "straight").symlink_to(real)
    assert accepts(place / "straight" / "in"), "one that nobody else can turn is as good as a directory"


def test_links_that_lead_nowhere_end(place) -> None:
    (place / "round").symlink_to("round")
    with pytest.raises(OSError, match="Too many levels"):
        (place / "round" / "s").stat()
    for number in range(MOST_LINKS + 1):
        (place / f"link{number}").symlink_to(f"link{number + 1}" if number < MOST_LINKS else ".")
    ours = {os.geteuid()}
    said = ownership_fault(place / "link0", ours)
    assert said is not None
    assert f"leads through more than {MOST_LINKS} links" in said
    with pytest.raises(FileNotFoundError):
        ownership_fault(place / "nothing" / "here", ours)


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1755])
def test_a_directory_on_the_way_that_is_another_users_is_refused(place, mode) -> None:
    theirs = makes(place / "theirs", mode)
    below = makes(theirs / "below", 0o755)
    os.chown(theirs, NOBODY, NOBODY)
    assert f"{theirs} belongs to {pwd.getpwuid(NOBODY).pw_name}" in refusal(below)
    with contextlib.closing(unix.bind(below / "s", user=NOBODY)):
        assert (below / "s").exists(), "it is ours, once we are that user"


@as_root
def test_in_a_sticky_directory_on_the_way_what_is_another_servers_is_refused(place) -> None:
    sticky = makes(place / "sticky", 0o1777)
    theirs = makes(sticky / "theirs", 0o755)
    (sticky / "link").symlink_to(makes(place / "ours", 0o755))
    makes(place / "ours" / "in", 0o755)
    os.chown(theirs, NOBODY, NOBODY)
    os.lchown(sticky / "link", NOBODY, NOBODY)
    assert "belongs to uid" in refusal(theirs)
    assert f"{sticky / 'link'} belongs to" in refusal(sticky / "link" / "in")


@as_root
def test_a_directory_that_a_group_of_others_can_write_to_is_refused(place) -> None:
    shared = makes(place / "shared", 0o775)
    group = next(entry for entry in grp.getgrall() if entry.gr_gid and not entry.gr_mem and _has_users(entry.gr_gid))
    os.chown(shared, 0, group.gr_gid)
    assert refusal(shared).endswith(f"writable by the members of the group {group.gr_name}; `chmod g-w {shared}`")
    shared.chmod(0o755)
    assert accepts(shared)


def _has_users(gid: int) -> bool:
    return any(entry.pw_gid == gid and entry.pw_uid for entry in pwd.getpwall())


@as_root
def test_a_group_that_only_we_are_in_is_ours_and_one_that_a_list_widens_is_not(place) -> None:
    ours = makes(place / "ours", 0o775)
    # Roots own group on a fresh system, and each user's on many.
    assert {entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == 0} == {0}
    assert accepts(ours)
    os.chown(ours, 0, 4_000_000)
    assert accepts(ours), "a group that is nobody's"
    rwx, none = 7, 0xFFFFFFFF
    # As `setfacl -m u:nobody:rwx` does: the owner, that user, the group, the mask, and all others.
    widened = [(1, rwx, none), (2, rwx, NOBODY), (4, 5, none), (16, rwx, none), (32, 5, none)]
    os.setxattr(
        ours, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in widened)
    )
    (ours / "s").unlink()
    assert "writable by the members of group 4000000" in refusal(ours)


def test_what_a_user_namespace_cannot_name_is_the_systems(place, monkeypatch) -> None:
    below = makes(place / "below", 0o755)
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    texts = {
        "/proc/sys/kernel/overflowuid": f"{place.stat().st_uid}\n",
        "/proc/self/uid_map": "         0          0 4294967295\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path, _encoding: texts[str(path)])

    def fault() -> str | None:
        files._overflow_uid.cache_clear()
        return ownership_fault(below, ())

    assert "belongs to" in str(fault())
    texts["/proc/self/uid_map"] = f"{below.stat().st_uid} 100000 65536\n"
    if os.geteuid() == 0:
        assert fault() is None
    texts["/proc/sys/kernel/overflowuid"] = "1\n"
    assert "belongs to" in str(fault()), "somebody else is somebody else"
    files._overflow_uid.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("passed", [False, True], ids=["bound by hearthd", "passed by a service manager"])
def test_hearthd_itself_refuses_it_in_one_line_and_exits_with_2(place, passed) -> None:
    everybodys = makes(place / "open", 0o757)
    config = place / "hearth.toml"
    config.write_text(f'[server]\nsocket = "{everybodys}/s"\n[audit]\npath = "{place}/audit.log"\n')
    hearthd = [sys.executable, "-m", "hearth.actors.daemon", "--config", str(config)]
    with socket.socket(socket.AF_UNIX) as listening:
        if passed:
            listening.bind(f"{everybodys}/passed")
            listening.listen()
            take = f'exec 3<&{listening.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
            hearthd = ["bash", "-c", take, "bash", *hearthd]
        done = subprocess.run(
            hearthd, pass_fds=[listening.fileno()], capture_output=True, text=True, timeout=60, check=False
        )
    mend = f"{everybodys} is writable by every user; `chmod o-w {everybodys}`"
    assert (done.returncode, done.stderr) == (2, f"hearthd: [server] socket: {mend}\n")
    assert not (place / "audit.log").exists()
