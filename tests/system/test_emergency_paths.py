"""No emergency path waits silently: each says within seconds what stands between, and names the place and the cure.

The disk that hangs is in test_hung_disk.py, which has such a disk.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from support.hearthd import BOUND, eventually
from support.rabbitmq import killable as killable

from hearth.cli import common
from hearth.config.model import halt_socket

pytestmark = pytest.mark.slow


def start(*words, env=None):
    return subprocess.Popen(
        [sys.executable, "-m", "hearth.cli.main", *words],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_is_said_comes_within_five_seconds():
    assert common.NOTICE_S <= 4


# --- the fleet's broker -----------------------------------------------------------------------------------------------


def broker(directory, port):
    password = directory / "password"
    if not password.exists():
        password.write_text("secret\n")
        password.chmod(0o600)
    return {
        "HEARTH_BROKER": f"amqp://hearth@127.0.0.1:{port}?password_file={password}",
        "XDG_STATE_HOME": str(directory / "state"),
    }


def words(directory, command, within):
    """The words of a command; what it submits is a job that only reads, for a device that has never been there."""
    name, *more = command.split()
    if name == "submit":
        file = directory / "job.json"
        file.write_text('{"capability": "looks", "caller_id": "me", "intent": "look", "inputs": {}}')
        more = [str(file), "dev-1", *more]
    return [name, *more, "--within", within]


EACH = pytest.mark.parametrize("command", ["halt", "halt --reset", "list", "submit", "submit --detach"])


@EACH
def test_a_broker_that_is_gone_is_named_with_the_reason_and_the_command_ends_with_3(tmp_path, command):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with start("fleet", *words(tmp_path, command, "4s"), env=broker(tmp_path, port)) as ended:
            _, said = ended.communicate(timeout=BOUND)
    assert ended.returncode == 3
    assert f"127.0.0.1:{port}" in said
    assert "no process listens on that port" in said


@EACH
def test_a_broker_that_is_mute_is_named_while_the_command_waits_and_the_command_ends_with_3(tmp_path, command):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with start("fleet", *words(tmp_path, command, "4s"), env=broker(tmp_path, port)) as waits:
            first = waits.stderr.readline()
            _, said = waits.communicate(timeout=BOUND)
        assert first == f"amqp://127.0.0.1:{port} has not answered yet\n"
    assert waits.returncode == 3
    assert "within 4 s" in said


@pytest.mark.proof
@EACH
def test_a_broker_that_is_blocked_is_named_with_its_reason(killable, tmp_path, command):
    env = {**broker(killable.folder, killable.port), "XDG_STATE_HOME": str(tmp_path)}
    killable.set_alarm()
    with start("fleet", *words(tmp_path, command, "10s"), env=env) as one:
        _, said = one.communicate(timeout=BOUND)
    assert "it is blocked (low on memory)" in said
    assert one.returncode == 3, said


# --- this machine's daemon --------------------------------------------------------------------------------------------


def test_a_daemon_whose_socket_was_removed_is_named_by_the_command_and_says_so_in_health_and_log(hearthd):
    daemon = hearthd().start()
    peer = daemon.peer()
    assert daemon.process is not None
    for path in (daemon.socket, halt_socket(daemon.socket)):
        path.unlink()
    with start("halt", "smoke", "--to", f"unix:{daemon.socket}") as ended:
        _, said = ended.communicate(timeout=BOUND)
    assert ended.returncode == 3
    assert f"no daemon at {daemon.socket}: the socket was removed, and process {daemon.process.pid}" in said
    assert f"`kill {daemon.process.pid}` ends it, and makes its outputs safe" in said
    # In the connection that is still open, and in the log.
    eventually(lambda: "sockets" in peer.health())
    assert peer.health()["ok"], "what runs goes on, and so does the heartbeat"
    assert f"{daemon.socket} was removed" in peer.health()["sockets"]["reason"]
    assert f"{daemon.socket} was removed: nobody can connect there any more; restart hearthd" in daemon.said


def test_a_daemon_that_was_stopped_is_named_while_the_command_waits_and_the_halt_acts_when_it_goes_on(hearthd):
    daemon = hearthd().start()
    assert daemon.process is not None
    daemon.signal(signal.SIGSTOP)
    with start("halt", "smoke", "--to", f"unix:{daemon.socket}") as waits:
        line = waits.stderr.readline()
        daemon.signal(signal.SIGCONT)
        out, _ = waits.communicate(timeout=BOUND)
    assert f"process {daemon.process.pid}" in line
    assert "which is stopped, has not answered" in line
    assert f"`kill -CONT {daemon.process.pid}` lets it go on" in line
    assert (waits.returncode, "smoke" in out) == (0, True)


def test_a_process_that_listens_and_never_answers_is_named_while_the_command_waits(tmp_path):
    path = tmp_path / "hearthd.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        with start("halt", "smoke", "--to", f"unix:{path}") as waits:
            line = waits.stderr.readline()
            waits.send_signal(signal.SIGINT)
            waits.communicate(timeout=BOUND)
    assert f"process {os.getpid()}" in line
