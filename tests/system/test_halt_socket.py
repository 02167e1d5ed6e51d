"""A halt gets in where nothing else does: real daemons, whose connections and descriptors others use up."""

from __future__ import annotations

import os
import signal
import stat

import pytest
from support.hearthd import Hearthd, Wire, as_nobody, eventually, request, unix_socket
from support.users import NOBODY, ordinary_user

from hearth.config.model import halt_socket

pytestmark = pytest.mark.slow

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
ONLY_OWN = f'[[policy]]\nname = "own"\nmatch = {{ uid = {os.geteuid()} }}\nrights = ["reset_halt", "admin"]\n'
ONLY_TOKEN = f'[[policy]]\nname = "page"\nmatch = {{ token_sha256 = "{"a" * 64}" }}\n'


@pytest.fixture
def started(open_place):
    """`started(config, **more)`: a daemon that is ended with the test."""
    daemons = []

    def start(config="", *, prefix=(), **more):
        daemons.append(Hearthd(open_place, config, **more))
        return daemons[-1].start(prefix=prefix)

    yield start
    for daemon in daemons:
        daemon.end()


def halts(daemon, path):
    """One raw line into a socket; returns the answer."""
    client = Wire(path)
    client.send(request("stop", "halt", {"reason": "smoke"}))
    answer = client.line()
    client.close()
    return answer


def test_the_halt_socket_has_the_mode_of_the_other_and_goes_with_it(started):
    daemon = started(server='socket_mode = "0600"')
    path = halt_socket(daemon.socket)
    for place in (daemon.socket, path):
        assert stat.S_IMODE(place.lstat().st_mode) == 0o600
        assert place.lstat().st_uid == os.geteuid()
    assert halts(daemon, path)["result"]["halted"]
    assert daemon.stop() == 0
    assert not path.exists()


def test_the_daemons_own_user_halts_where_the_policy_names_only_others(started):
    daemon = started(ONLY_TOKEN)
    peer = daemon.peer()
    assert peer.call("session.open")["error"]["code"] == -32003
    assert peer.call("halt")["result"]["halted"]
    assert peer.call("halt.status")["result"]["halted"]


@as_root
def test_strangers_hold_no_places_and_a_reload_lets_in_those_that_it_names(started):
    daemon = started(ONLY_OWN, server='socket_mode = "0666"')
    for path in (daemon.socket, halt_socket(daemon.socket)):
        with ordinary_user():
            stranger = daemon.peer(unix_socket(path))
        [refusal] = stranger.rest()
        assert (refusal["id"], refusal["error"]["code"]) == (None, -32003)
    assert daemon.recorded(event="session.reject", principal=f"uid:{NOBODY}")
    daemon.config.write_text(daemon.config.read_text() + f'[[policy]]\nname = "guest"\nmatch = {{ uid = {NOBODY} }}\n')
    daemon.signal(signal.SIGHUP)
    daemon.recorded(event="policy.reload")
    assert as_nobody(daemon.socket, request(1, "halt"))[0]["result"]["halted"]


def test_a_halt_gets_in_where_ones_own_connections_have_used_up_the_descriptors(started):
    daemon = started(prefix=("prlimit", "--nofile=200:200"))
    assert "only 200 descriptors are allowed: max_connections is 88, not 1024 as in [limits]" in daemon.said
    crowd = [unix_socket(daemon.socket) for _ in range(200)]
    crowd[-1].settimeout(60)
    refusal = crowd[-1].recv(4096)
    assert b"descriptors the others are in use" in refusal
    assert halts(daemon, halt_socket(daemon.socket))["result"]["halted"]
    for one in crowd:
        one.close()
    eventually(lambda: "result" in halts(daemon, daemon.socket), "a place on the main socket")


@as_root
def test_a_crowd_of_other_users_does_not_keep_out_the_daemons_own(started):
    daemon = started(
        f'{ONLY_OWN}[[policy]]\nname = "guest"\nmatch = {{ uid = {NOBODY} }}\n[limits]\nmax_connections = 10\n',
        server='socket_mode = "0666"',
    )
    with ordinary_user():
        crowd = [unix_socket(daemon.socket) for _ in range(30)]
        crowd[-1].settimeout(60)
    assert b"connections are open" in crowd[-1].recv(4096)
    for path in (daemon.socket, halt_socket(daemon.socket)):
        assert halts(daemon, path)["result"]["halted"]
    for one in crowd:
        one.close()


def test_a_socket_whose_halt_socket_would_have_too_long_a_path_serves_without_it(started, tmp_path):
    directory = tmp_path / ("d" * (104 - len(os.fsencode(tmp_path)) - len("/hearth.sock") - 1))
    directory.mkdir()
    daemon = Hearthd(directory).start()
    try:
        assert "there is no halt socket" in daemon.said
        assert not halt_socket(daemon.socket).exists()
        assert halts(daemon, daemon.socket)["result"]["halted"]
    finally:
        daemon.end()


def test_a_program_that_stands_in_the_way_of_the_halt_socket_keeps_the_daemon_from_starting(tmp_path):
    halt_socket(tmp_path / "hearth.sock").write_text("")
    with pytest.raises(AssertionError, match="exists and is not a socket; remove it or choose another path"):
        Hearthd(tmp_path).start()
    assert not (tmp_path / "hearth.sock").exists()
