"""`hearth connect` as the process that it is behind ssh: pipes, files and terminals, and its ends; and `--to`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading

import orjson
import pytest
import trio
import trio.testing

from hearth.cli import connect
from hearth.cli.connect import UnansweredRequests
from hearth.errors import CarrierError

pytestmark = pytest.mark.slow

PATIENCE = 60
COMMAND = [sys.executable, "-m", "hearth.cli.main", "connect"]


def request(id_, method="session.open") -> bytes:
    """One line; a session ends with the connection."""
    params = {"on_disconnect": "close"}
    return orjson.dumps({"jsonrpc": "2.0", "id": id_, "method": method, "params": params}) + b"\n"


def carry(*args, said=b"", **options):
    """Run `hearth connect ARGS…` from beginning to end."""
    return subprocess.run(
        [*COMMAND, *map(str, args)], input=said, capture_output=True, timeout=PATIENCE, check=False, **options
    )


@contextlib.contextmanager
def carrying(*args, **options):
    """`hearth connect ARGS…` as a process, which does not outlive the test."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*COMMAND, *map(str, args)], **{**pipes, **options}) as running:
        try:
            yield running
        finally:
            running.kill()


def answers(out: bytes) -> list:
    return [orjson.loads(line) for line in out.splitlines() if line]


class Daemon:
    """A socket in a daemon's place: what it does with the one connection is `serve`'s business, in a thread."""

    def __init__(self, path, serve):
        self.path = path
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._run, args=[serve])

    def _run(self, serve):
        connected, _ = self._listening.accept()
        with connected:
            connected.settimeout(PATIENCE)
            serve(connected)

    def __enter__(self):
        self._thread.start()
        return self

    def finished(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def __exit__(self, *_):
        self._listening.close()
        self.finished()


# --- from stdin to the daemon and back ------------------------------------------------------------------------------


@pytest.mark.proof
def test_what_comes_on_stdin_is_answered_on_stdout_and_the_end_of_stdin_ends_it(daemon) -> None:
    done = carry("--socket", daemon.socket, said=request(1) + request(2, "nonsense"))
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = sorted(answers(done.stdout), key=lambda answer: answer["id"])
    assert first["result"]["session_id"]
    assert second["error"]["code"] == -32601


@pytest.mark.slow
def test_the_last_line_needs_no_line_end(daemon) -> None:
    done = carry("--to", f"unix:{daemon.socket}", said=request(1).rstrip())
    assert [answer["id"] for answer in answers(done.stdout)] == [1]


@pytest.mark.proof
def test_ready_is_an_empty_line_once_it_is_connected(daemon, tmp_path) -> None:
    assert carry("--socket", daemon.socket, "--ready").stdout == b"\n"
    assert carry("--socket", daemon.socket).stdout == b""
    assert carry("--socket", tmp_path / "none", "--ready").stdout == b""


@pytest.mark.slow
def test_files_do_for_pipes(daemon, tmp_path) -> None:
    (tmp_path / "in").write_bytes(b"".join(map(request, range(30))))
    with (
        (tmp_path / "in").open("rb") as stdin,
        (tmp_path / "out").open("wb") as stdout,
        carrying("--socket", daemon.socket, stdin=stdin, stdout=stdout) as running,
    ):
        assert running.wait(PATIENCE) == 0
    assert {answer["id"] for answer in answers((tmp_path / "out").read_bytes())} == set(range(30))


@pytest.mark.slow
@pytest.mark.slow
def test_much_goes_both_ways_at_once(tmp_path) -> None:
    much = b'"' + b"x" * (1 << 16) + b'"\n'

    def echo(connected):
        while data := connected.recv(1 << 16):
            connected.sendall(data)

    with Daemon(tmp_path / "echo", echo) as daemon:
        done = carry("--socket", daemon.path, said=much * 500)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == much * 500


@pytest.mark.slow
@pytest.mark.slow
def test_who_does_not_read_is_waited_for_and_not_remembered(tmp_path) -> None:
    taken = []

    def flood(connected):
        connected.setblocking(False)
        sent = 0
        # It is full when nothing more is taken for a second.
        while select.select([], [connected], [], 1)[1]:
            sent += connected.send(b"x" * (1 << 16))
        taken.append(sent)

    with Daemon(tmp_path / "flood", flood) as daemon, carrying("--socket", daemon.path) as running:
        daemon.finished()
        assert taken[0] < 2 << 20
        assert len(running.stdout.read(taken[0])) == taken[0]


# --- how it ends ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_daemon_is_exit_code_3_with_the_cure(tmp_path) -> None:
    done = carry("--socket", tmp_path / "none")
    assert done.returncode == 3
    assert f"hearth: no daemon at {tmp_path}/none: there is no such socket; start" in done.stderr.decode()


@pytest.mark.slow
def test_a_daemon_that_closes_is_exit_code_3_after_all_that_it_said(tmp_path) -> None:
    words = b'{"last":"words"}\n'
    with (
        Daemon(tmp_path / "brief", lambda connected: connected.sendall(words)) as daemon,
        carrying("--socket", daemon.path) as running,
    ):
        assert running.stdout.read() == words
        assert running.wait(PATIENCE) == 3
        assert running.stderr.read() == b"hearth: the daemon closed the connection\n"


@pytest.mark.slow
def test_a_daemon_that_vanishes_while_it_is_sent_to_is_exit_code_3(tmp_path) -> None:
    def vanish(connected):
        connected.recv(1)

    with Daemon(tmp_path / "gone", vanish) as daemon:
        done = carry("--socket", daemon.path, said=b"x" * (1 << 24))
    assert done.returncode == 3
    assert done.stderr.startswith((b"hearth: connection lost", b"hearth: the daemon closed"))


@pytest.mark.slow
def test_a_reader_that_has_gone_ends_it_quietly(daemon) -> None:
    with carrying("--socket", daemon.socket) as running:
        running.stdout.close()
        running.stdin.write(request(1))
        running.stdin.flush()
        assert running.wait(PATIENCE) == 141
        assert running.stderr.read() == b""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
@pytest.mark.slow
def test_a_signal_ends_it(daemon, number, code) -> None:
    with carrying("--socket", daemon.socket, "--ready") as running:
        assert running.stdout.read(1) == b"\n"
        running.send_signal(number)
        assert running.wait(PATIENCE) == code
        assert running.stderr.read() == b""


@pytest.mark.slow
def test_a_closed_stdin_is_a_usage_error_and_not_another_programs_file(daemon) -> None:
    closed = 'exec "$@" <&- >&-'
    done = subprocess.run(
        ["/bin/sh", "-c", closed, "sh", *COMMAND, "--socket", str(daemon.socket)],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert b"stdin or stdout is closed" in done.stderr


def blocks(fd) -> bool:
    return not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
@pytest.mark.slow
def test_the_terminal_it_shares_with_a_shell_blocks_again_when_it_has_ended(daemon, number) -> None:
    """stdin and stdout are one open file then: whoever looks at one after changing the other is misled."""
    controller, terminal = pty.openpty()
    try:
        with carrying("--socket", daemon.socket, "--ready", stdin=terminal, stdout=terminal) as running:
            assert os.read(controller, 2) == b"\r\n"
            assert not blocks(terminal)
            if number is None:
                os.write(controller, b"\x04")  # Ctrl-D
            else:
                running.send_signal(number)
            running.wait(PATIENCE)
        assert blocks(terminal)
    finally:
        os.close(controller)
        os.close(terminal)


# --- carriers that have no end in one direction ---------------------------------------------------------------------


@pytest.fixture
def websocket(own_daemon, cli):
    """A daemon's WebSocket."""
    daemon = own_daemon('[websocket]\nlisten = "127.0.0.1:0"\n')
    board = cli("--socket", daemon.socket, "run", "hw.board", "--json").json
    return next(address for address in board["health"]["listeners"] if address.startswith("ws://"))


@pytest.mark.proof
def test_over_a_websocket_it_ends_when_everything_is_answered(websocket) -> None:
    batch = orjson.dumps([orjson.loads(request(id_)) for id_ in ("a", "b")]) + b"\n"
    notification = orjson.dumps({"jsonrpc": "2.0", "method": "tool.list"}) + b"\n"
    said = [*map(request, range(20)), b"no JSON\n", notification, batch]
    done = carry("--to", websocket, "--ready", said=b"".join(said))
    assert (done.returncode, done.stderr) == (0, b"")
    single = [answer for answer in answers(done.stdout) if isinstance(answer, dict)]
    assert {answer["id"] for answer in single} == {*range(20), None}
    (both,) = [answer for answer in answers(done.stdout) if isinstance(answer, list)]
    assert {answer["id"] for answer in both} == {"a", "b"}


@pytest.mark.proof
def test_every_command_goes_over_a_websocket(websocket, cli, monkeypatch) -> None:
    assert cli("--to", websocket, "run", "gpio.get", "line=4", "--json").json == {"line": 4, "value": 0}
    assert cli("run", "gpio.get", "line=4", "--to", websocket).code == 0
    monkeypatch.setenv("HEARTH_ADDRESS", websocket)
    assert cli("tools").code == 0
    told = cli("doctor")
    assert f"OK    address  {websocket} (from HEARTH_ADDRESS)" in told.out
    assert f"OK    daemon   answers on {websocket}" in told.out


async def test_what_is_owed_is_what_has_an_id_and_no_answer(monkeypatch) -> None:
    monkeypatch.setattr(connect, "IDLE_TIMEOUT", 0.01)
    unanswered = UnansweredRequests()
    await unanswered.wait()
    unanswered.sent(request(1)[:10])
    await unanswered.wait()
    unanswered.sent(request(1)[10:] + request("1") + b'\n{"method":"tell"}\n')
    unanswered.received(b'{"id":1,"resu')
    unanswered.received(b'lt":{}}\n{"method":"task.event","id":"1"}\n')
    with pytest.raises(CarrierError, match=r"1 requests are not answered, and for 0\.01 s nothing came"):
        await unanswered.wait()
    unanswered.received(b'[{"id":"1","error":{}}]\n')
    await unanswered.wait()


@pytest.mark.parametrize("line", [b"nonsense", b"7", b"[]", b'{"id":null}', b'{"id":1.5,"method":"x"}', b'{"id":true}'])
async def test_what_is_no_request_is_not_answered(line) -> None:
    unanswered = UnansweredRequests()
    unanswered.sent(line + b"\n")
    assert unanswered._ids.total() == 1
    unanswered.received(b'{"jsonrpc":"2.0","id":null,"error":{}}\n{"id":5}\n"x"\n')
    await unanswered.wait()


class OnlyWhole(trio.abc.Stream):
    """A stream that cannot be closed in one direction."""

    def __init__(self, stream):
        self.send_all, self.receive_some, self.aclose = stream.send_all, stream.receive_some, stream.aclose
        self.wait_send_all_might_not_block = stream.wait_send_all_might_not_block

    send_all = receive_some = aclose = wait_send_all_might_not_block = None  # not abstract any more


@pytest.mark.parametrize("answer", [b'{"id":1,"result":{}}\n', b""])
async def test_a_daemon_that_closes_before_it_has_answered_everything_is_an_error(answer) -> None:
    keyboard, stdin = trio.testing.memory_stream_one_way_pair()
    stdout, screen = trio.testing.memory_stream_one_way_pair()
    here, daemon = trio.testing.memory_stream_pair()
    await keyboard.send_all(request(1) + request(2))
    await keyboard.aclose()

    async def answer_one():
        asked = b""
        while asked.count(b"\n") < 2:
            asked += await daemon.receive_some()
        await daemon.send_all(answer)
        await trio.testing.wait_all_tasks_blocked()
        await daemon.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_one)
        with pytest.raises(CarrierError, match="closed the connection before everything was answered"):
            await connect.Pipe(stdin, stdout, OnlyWhole(here)).run()
    await stdout.aclose()
    assert await screen.receive_some() == answer


# --- --to -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_to_and_socket_may_both_be_given_if_they_agree(cli, daemon) -> None:
    assert cli("--to", f"unix:{daemon.socket}", "tools", "--socket", daemon.socket).code == 0
    both = cli("--to", "ssh://pi", "tools", "--socket", daemon.socket)
    assert both.code == 2
    assert "--to and --socket name two daemons" in both.err
    assert cli("tools", "--to", "nonsense://", "--socket", daemon.socket).code == 2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--to", "pi:7117"], "--to: address 'pi:7117': which carrier?"),
        (["--to", "tls://arm?key=x"], "cert and key go together"),
        (["--to", "tls://arm?ca=/none.pem"], "ca /none.pem: No such file or directory"),
        (["--socket", "tls://arm"], "--socket takes the path of a socket; tls://arm:7117 goes with --to"),
    ],
)
def test_an_address_that_is_none_is_a_usage_error_with_the_cure(cli, args, told) -> None:
    answer = cli(*args, "tools")
    assert answer.code == 2
    assert told in answer.err
    assert told in cli("tools", *args, "--json").json["error"]["message"]


def test_the_environments_address_goes_before_its_socket_and_behind_options(cli, daemon, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HEARTH_SOCKET", str(tmp_path / "none"))
    monkeypatch.setenv("HEARTH_ADDRESS", f"unix:{daemon.socket}")
    assert cli("tools").code == 0
    monkeypatch.setenv("HEARTH_ADDRESS", f"unix:{tmp_path}/none")
    assert cli("tools").code == 3
    assert cli("tools", "--socket", daemon.socket).code == 0
    assert cli("tools", "--to", daemon.socket).code == 0


def test_a_wrong_address_in_the_environment_is_nothing_to_who_needs_no_daemon(cli, daemon, monkeypatch) -> None:
    monkeypatch.setenv("HEARTH_ADDRESS", "nonsense://")
    assert cli("audit", "verify", daemon.audit).code == 0
    assert re.match("hearth: HEARTH_ADDRESS: .*nonsense:// is no carrier", cli("tools").err)


def test_a_daemon_that_is_not_reached_is_exit_code_3(cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        answer = cli("--to", address, "tools")
        told = cli("--to", address, "doctor")
    assert answer.code == 3
    assert f"cannot connect to {address}: no process listens on that port" in answer.err
    assert told.code == 3
    assert f"OK    address  {address} (from --to)" in told.out
    assert "FAIL  daemon   cannot connect to" in told.out


@pytest.mark.slow
def test_doctor_warns_of_a_way_that_anybody_can_listen_on(cli) -> None:
    told = cli("--to", "ws://nobody.invalid", "doctor")
    assert told.code == 3
    assert "WARN  address  ws://nobody.invalid:80 (from --to) is not encrypted" in told.out
    assert "wss://" in told.out
