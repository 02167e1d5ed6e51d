"""The Unix socket as a file: its mode at every moment, and what is in its way (draft §10.1; design §9)."""

from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import sys

import pytest
from support.users import NOBODY, ordinary_user

from hearth.actors.listeners import unix
from hearth.errors import ConfigError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def bind():
    """`unix.bind`, closing what it made."""
    made = []

    def do(*args, **more):
        made.append(unix.bind(*args, **more))
        return made[-1]

    yield do
    for listening in made:
        listening.close()


def mode_of(path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_socket_has_the_mode_asked_for_whatever_the_umask(bind, tmp_path, mode, umask) -> None:
    before = os.umask(umask)
    try:
        bind(tmp_path / "s", mode)
        assert os.umask(umask) == umask, "the process's umask is as it was"
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "s") == mode
    assert stat.S_ISSOCK((tmp_path / "s").lstat().st_mode)


_TRACED = """
import os, socket, stat, sys
from pathlib import Path
from hearth.actors.listeners import unix
path = Path(sys.argv[1])
os.umask(0)
modes = []
def look(event, _args):
    # After every system call that Python reports, and before the next one.
    try:
        modes.append(stat.S_IMODE(os.lstat(path).st_mode))
    except FileNotFoundError:
        pass
def trace(frame, event, _arg):
    look(event, None)
    return trace
sys.settrace(trace)
unix.bind(path, 0o660, sys.argv[2])
sys.settrace(None)
look("end", None)
print(sorted(set(modes)), modes[-1])
"""


@pytest.mark.slow
def test_at_no_moment_is_the_socket_open_to_more_than_its_mode(tmp_path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    done = subprocess.run(
        [sys.executable, "-c", _TRACED, str(tmp_path / "s"), group], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{[0o600, 0o660]} {0o660}\n"


@as_root
def test_the_socket_belongs_to_the_group_asked_for(bind, tmp_path) -> None:
    group = next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, os.getgid()))
    bind(tmp_path / "s", 0o660, group.gr_name)
    assert (tmp_path / "s").stat().st_gid == group.gr_gid
    assert unix.socket_gid(tmp_path / "s") == group.gr_gid


def test_a_group_that_is_not_there_is_named_with_a_cure(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no group 'nonesuch'; create it with `groupadd"):
        unix.bind(tmp_path / "s", 0o660, "nonesuch")
    assert not (tmp_path / "s").exists()


@as_root
def test_a_group_that_we_may_not_give_is_an_error_that_leaves_nothing(tmp_path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    with ordinary_user(), pytest.raises(ConfigError, match="cannot listen on"):
        unix.bind(tmp_path / "ours" / "s", 0o660, "root")


def test_what_is_not_a_socket_is_not_touched(tmp_path) -> None:
    for name, make in {
        "file": lambda path: path.write_text("precious"),
        "directory": lambda path: path.mkdir(),
        "link": lambda path: path.symlink_to(tmp_path / "elsewhere"),
        "fifo": os.mkfifo,
    }.items():
        path = tmp_path / name
        make(path)
        before = path.lstat()
        with pytest.raises(ConfigError, match="exists and is not a socket"):
            unix.bind(path)
        assert os.path.samestat(path.lstat(), before)


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(bind, tmp_path) -> None:
    path = tmp_path / "s"
    first = bind(path)
    with pytest.raises(ConfigError, match="another daemon listens on"):
        unix.bind(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert first.accept()[0].close() is None
    first.close()
    second = bind(path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        second.accept()[0].close()


def test_a_live_socket_with_a_full_backlog_is_not_taken_for_stale(tmp_path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        waiting = []
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(path))
        except BlockingIOError:
            pass
        with pytest.raises(ConfigError, match="another daemon listens on"):
            unix.bind(path)
        for client in waiting:
            client.close()


def test_a_socket_of_another_kind_is_named_as_what_it_is(tmp_path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(ConfigError, match=str(path)):
            unix.bind(path)
    assert path.exists()


def test_the_directory_is_made_if_it_is_missing_and_closed_to_writers(bind, tmp_path) -> None:
    before = os.umask(0)
    try:
        bind(tmp_path / "a" / "b" / "s")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "a" / "b") == 0o755
    assert mode_of(tmp_path / "a") & 0o022 == 0, "nor may anybody exchange what is above it"


def test_a_directory_that_everybody_may_write_is_refused_also_if_it_is_sticky(bind, tmp_path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(ConfigError, match=f"writable by every user; `chmod o-w {place}`"):
        unix.bind(place / "s")
    place.chmod(0o1777)
    with pytest.raises(ConfigError, match=f"create the file first; choose a directory of its own: {place}/hearth"):
        unix.bind(place / "s")
    assert not (place / "s").exists()
    bind(place / "hearth" / "s")


def test_a_directory_that_is_a_link_or_a_file_is_refused(tmp_path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="is not a directory"):
        unix.bind(tmp_path / "link" / "s")
    assert not (tmp_path / "real" / "s").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="directory"):
        unix.bind(tmp_path / "file" / "s")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="directory"):
        unix.bind(tmp_path / "dangling" / "s")


@as_root
def test_another_users_directory_is_refused(tmp_path) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"belongs to uid {NOBODY}, not to hearthd"):
        unix.bind(place / "s")


@as_root
def test_another_users_stale_socket_is_an_error_and_no_traceback(tmp_path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        path.chmod(0o666)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    with ordinary_user(), pytest.raises(ConfigError, match="of another user"):
        unix.bind(path)


def test_a_socket_that_is_not_ours_any_more_is_not_removed(bind, tmp_path) -> None:
    path = tmp_path / "s"
    first = bind(path)
    bound = path.lstat()
    first.close()
    bind(path)
    unix.remove(path, bound)
    assert path.exists(), "it is the successor's"
    unix.remove(path, path.lstat())
    assert not path.exists()
    unix.remove(path, bound)


def test_a_path_that_is_too_long_is_an_error_with_its_place(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"\[server\] socket"):
        unix.bind(tmp_path / ("x" * 120))
