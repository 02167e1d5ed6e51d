"""Sockets that a service manager opened for us, and telling it how we are (sd_listen_fds(3), sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from hearth.actors.daemon.process import Notifier

_TAKE = """
import os
from hearth.actors.daemon.process import activated_sockets
from hearth.errors import ConfigError
try:
    found = [taken for taken in activated_sockets(os.environ) if taken is not None]
    print([(taken.getsockname(), taken.get_inheritable(), taken.getblocking()) for taken in found])
except ConfigError as error:
    print(f"ConfigError: {error}")
print(sorted(name for name in os.environ if name.startswith("LISTEN_")))
"""


def take(
    passed: socket.socket | None, count: str = "1", pid: str = "$$", also: socket.socket | None = None
) -> list[str]:
    """What a program that was started with this socket, or with these two, makes of them."""
    redirect = "exec 3<&-" if passed is None else f"exec 3<&{passed.fileno()}"
    if also is not None:
        redirect += f"; exec 4<&{also.fileno()}"
    command = f'{redirect}; LISTEN_PID={pid} LISTEN_FDS={count} LISTEN_FDNAMES=hearth exec "$@"'
    done = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-c", _TAKE],
        pass_fds=[one.fileno() for one in (passed, also) if one is not None],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert not done.stderr, done.stderr
    answer, left = done.stdout.splitlines()
    assert left == "[]", "programs that we start must not take the socket for theirs"
    return answer


@pytest.fixture
def listening(tmp_path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        yield made


@pytest.mark.slow
def test_a_listening_socket_is_taken_and_closed_to_our_children(listening, tmp_path) -> None:
    assert take(listening) == f"[('{tmp_path / 's'}', False, False)]"


@pytest.mark.slow
def test_a_halt_socket_beside_it_is_taken_too_in_whichever_order_they_come(listening, tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as halting:
        halting.bind(str(tmp_path / "s.halt"))
        halting.listen()
        both = f"[('{tmp_path / 's'}', False, False), ('{tmp_path / 's.halt'}', False, False)]"
        assert take(listening, "2", also=halting) == take(halting, "2", also=listening) == both


@pytest.mark.slow
def test_a_socket_that_was_meant_for_another_process_is_left_alone(listening) -> None:
    assert take(listening, pid="1") == "[]"
    assert take(listening, count="0") == "[]"
    assert take(listening, count="many") == "[]"


@pytest.mark.slow
def test_another_second_socket_or_a_third_is_refused_with_a_cure(listening, tmp_path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other"))
        other.listen()
        for count in ("2", "3"):
            said = take(listening, count, also=other)
            assert f"keep one ListenStream= in the .socket unit, and one for {tmp_path / 's.halt'}" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda path: socket.socket(socket.AF_UNIX),
        lambda path: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        lambda path: socket.create_server(("127.0.0.1", 0)),
    ],
    ids=["not listening", "datagrams", "TCP"],
)
def test_another_kind_of_socket_is_refused(tmp_path, make) -> None:
    with make(tmp_path) as other:
        assert "not a listening Unix stream socket" in take(other)


@pytest.mark.slow
def test_a_socket_without_a_path_is_refused_because_it_has_no_mode() -> None:
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0hearth-test-{os.getpid()}")
        abstract.listen()
        assert "no path in the file system" in take(abstract)


@pytest.mark.slow
def test_a_descriptor_that_is_no_socket_is_refused(tmp_path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert "descriptor 3 is not a socket" in take(file)
    assert "descriptor 3 is not a socket" in take(None)


def notify(environ: dict[str, str], state: str) -> None:
    with contextlib.closing(Notifier(environ)) as notifier:
        notifier.notify(state)


@pytest.mark.parametrize("abstract", [False, True])
def test_a_state_is_told_to_the_manager(tmp_path, abstract: bool) -> None:
    address = f"@hearth-notify-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        manager.bind("\0" + address[1:] if abstract else address)
        notify({"NOTIFY_SOCKET": address}, "READY=1")
        assert manager.recv(100) == b"READY=1"


@pytest.mark.slow
def test_a_manager_that_has_gone_or_does_not_read_is_not_our_trouble(tmp_path) -> None:
    notify({}, "READY=1")
    notify({"NOTIFY_SOCKET": ""}, "READY=1")
    notify({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, "READY=1")
    notify({"NOTIFY_SOCKET": "/" + "x" * 200}, "READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "full"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filling:
            filling.setblocking(False)
            filling.connect(str(tmp_path / "full"))
            with contextlib.suppress(BlockingIOError):
                while True:
                    filling.send(b"x")
            notify({"NOTIFY_SOCKET": str(tmp_path / "full")}, "READY=1")
