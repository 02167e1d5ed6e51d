"""hearthd as a process: readiness, signals, the socket, what it says when it cannot start (design §9)."""

from __future__ import annotations

import base64
import grp
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hearth.audit.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def daemon(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run hearthd to its end."""
    return subprocess.run(
        [sys.executable, "-m", "hearth.actors.daemon", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **(env or {})},
        check=False,
    )


def test_it_is_ready_when_it_says_so_and_the_socket_answers(hearthd) -> None:
    running = hearthd().start()
    assert running.said.splitlines()[-1] == f"hearthd: ready on {running.socket}"
    assert running.peer().call("session.open")["result"]["protocol_version"] == "0.1.0"


def test_the_socket_has_its_mode_and_group_and_is_gone_after_sigterm(hearthd) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    running = hearthd().start()
    status = running.socket.stat()
    assert stat.S_IMODE(status.st_mode) == 0o660
    assert stat.S_ISSOCK(status.st_mode)
    assert grp.getgrgid(status.st_gid).gr_name == group
    assert running.stop() == 0
    assert not running.socket.exists()


def test_sigterm_ends_it_gracefully_with_exit_0_and_a_verified_log(hearthd) -> None:
    running = hearthd().start()
    peer = running.peer()
    session = peer.open()
    peer.submit(session, ("gpio.set", {"line": 17, "value": 1}))
    assert running.stop() == 0
    events = [record["event"] for record in running.records()]
    assert events[-2:] == ["daemon.stop", "audit.checkpoint"]
    assert "session.close" in events
    assert verify([running.audit]).ok


def test_sigterm_a_transaction_that_has_begun_is_never_interrupted(hearthd) -> None:
    running = hearthd().start()
    peer = running.peer()
    session = peer.open()
    page = base64.b64encode(bytes(range(8))).decode()
    # 64 bytes to the EEPROM at 100 kHz: some 6 ms on the wire, and the page write cycles on top.
    peer.call(
        "task.submit",
        {
            "session_id": session,
            "subscribe": True,
            "task": {
                "intent": "write while the daemon is told to end",
                "steps": [{"tool": "i2c.write", "args": {"bus": 1, "addr": 0x50, "reg": 0, "data": page}}] * 20,
            },
        },
    )
    while (event := peer.line())["params"]["phase"] != "start":
        pass
    running.signal(signal.SIGTERM)
    phases = [event]
    while (event := peer.line()) is not None:
        phases.append(event)
    assert running.wait() == 0
    finish = [e["params"] for e in phases if e["params"]["phase"] == "finish"]
    assert finish, "the step that had begun was told to its end"
    assert all(f["status"] in ("SUCCESS", "CANCELLED") for f in finish)
    assert phases[-1]["params"]["phase"] == "task_finish"
    assert phases[-1]["params"]["status"] == "CANCELLED"
    started = sum(r["event"] == "task.step.start" for r in running.records())
    finished = sum(r["event"] == "task.step.finish" for r in running.records())
    assert started == finished


def test_sigint_is_as_good_as_sigterm(hearthd) -> None:
    running = hearthd().start()
    running.signal(signal.SIGINT)
    assert running.wait() == 0


def test_a_second_daemon_on_the_same_socket_is_refused_and_the_first_goes_on(hearthd, tmp_path: Path) -> None:
    running = hearthd().start()
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "other.toml"
    other.write_text(f'[server]\nsocket = "{running.socket}"\n[audit]\npath = "{tmp_path}/b/audit.log"\n')
    refused = daemon("--config", str(other))
    assert refused.returncode == 2
    assert "another daemon listens on" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert running.peer().open()


@pytest.mark.proof
def test_a_second_daemon_on_the_same_audit_log_is_refused(hearthd, tmp_path: Path) -> None:
    running = hearthd().start()
    other = tmp_path / "other.toml"
    other.write_text(f'[server]\nsocket = "{tmp_path}/other.sock"\n[audit]\npath = "{running.audit}"\n')
    refused = daemon("--config", str(other))
    assert refused.returncode == 2
    assert str(running.audit) in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "other.sock").exists()


@pytest.mark.proof
def test_a_stale_socket_is_replaced(hearthd) -> None:
    running = hearthd().start()
    running.kill()
    assert running.socket.exists()
    assert running.start().peer().open()


@pytest.mark.usefixtures("unmeasured_children")
@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[server]\nsocket_mode = 660\n", "socket_mode"),
        ("[sever]\n", "sever"),
        ("[board]\nprofile = 'nonesuch'\n", "nonesuch"),
        ("[server\n", "line 1"),
        ("[server]\nsocket_group = 'no-such-group'\n", "no-such-group"),
        ("[tools]\nenable = ['gpio.sett']\n", "gpio.sett"),
        ("[files]\nread = ['/no/such/place']\n", "/no/such/place"),
        ("[[policy]]\nname = 'x'\nmatch = {}\n", "policy"),
        ("[[policy]]\nname = 'x'\nmatch = { user = 'rooot' }\n", "no user 'rooot'; did you mean 'root'?"),
        ("[files]\nwrite = ['/tmp', '/']\n", '[files] write[1]: "/" holds'),
    ],
)
@pytest.mark.parametrize("how", [["--check"], []], ids=["check", "start"])
def test_a_configuration_that_cannot_be_used_names_the_place_and_exits_2(
    tmp_path: Path, content: str, place: str, how: list[str]
) -> None:
    config = tmp_path / "bad.toml"
    text = content if "[server" in content else f'[server]\nsocket = "{tmp_path}/s.sock"\n{content}'
    config.write_text(text + f'\n[audit]\npath = "{tmp_path}/audit.log"\n')
    if "socket_group" in content:
        config.write_text(config.read_text().replace("[server]\n", f'[server]\nsocket = "{tmp_path}/s.sock"\n'))
    done = daemon("--config", str(config), *how)
    assert done.returncode == 2, done.stderr
    assert place in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.proof
def test_check_says_what_it_found_and_touches_nothing(tmp_path: Path) -> None:
    config = tmp_path / "hearth.toml"
    config.write_text(f'[server]\nsocket = "{tmp_path}/s.sock"\n[audit]\npath = "{tmp_path}/audit.log"\n')
    done = daemon("--check", "--config", str(config))
    assert done.returncode == 0
    assert "configuration is good: board sim" in done.stdout
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.proof
def test_print_config_prints_what_loads_back(tmp_path: Path) -> None:
    printed = daemon("--print-config", "--board", "sim")
    assert printed.returncode == 0
    copy = tmp_path / "copy.toml"
    copy.write_text(printed.stdout)
    assert daemon("--print-config", "--config", str(copy)).stdout == printed.stdout


def test_it_tells_the_service_manager_when_it_is_ready_and_when_it_stops(hearthd, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        manager.bind(str(tmp_path / "notify"))
        running = hearthd(env={"NOTIFY_SOCKET": str(tmp_path / "notify")}).start()
        assert manager.recv(1000).startswith(b"READY=1\n")
        assert running.stop() == 0
        assert manager.recv(1000) == b"STOPPING=1"


def test_it_takes_its_socket_from_the_service_manager(tmp_path: Path) -> None:
    path = tmp_path / "activated.sock"
    config = tmp_path / "hearth.toml"
    config.write_text(f'[audit]\npath = "{tmp_path}/audit.log"\n')
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    # The shell puts its own pid where the manager would put the daemon's, which exec keeps.
    command = f'exec 3<&{listening.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", sys.executable, "-m", "hearth.actors.daemon", "--config", str(config)],
        pass_fds=[listening.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = list(iter(process.stderr.readline, f"hearthd: ready on {path}\n"))
        assert all(": sandbox: " in line or "there is no halt socket" in line for line in said), said
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(path))
            client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"session.open"}\n')
            assert json.loads(client.makefile().readline())["result"]["session_id"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stderr.close()
        listening.close()
    assert path.exists(), "the socket is the manager's, so it stays"


def test_a_wedged_transaction_does_not_keep_the_daemon_from_ending(hearthd) -> None:
    running = hearthd("[limits]\nshutdown_grace_s = 0.5\nclose_grace_s = 0.2\n").start()
    peer = running.peer()
    session = peer.open()
    # A read that waits for bytes which never come, indivisible because it is an exchange.
    peer.submit(session, ("uart.exchange", {"port": "uart0", "data": "aGk=", "len": 100, "timeout_ms": 60_000}))
    # The wait is bounded, and shorter than the exchange.
    assert running.stop() == 0


@pytest.mark.proof
def test_it_shows_the_service_manager_that_it_is_alive_until_it_has_ended(hearthd, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        manager.bind(str(tmp_path / "notify"))
        asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        running = hearthd(env=asked).start()
        said = [manager.recv(1000) for _ in range(4)]
        assert sum(state.startswith(b"READY=1\n") for state in said) == 1
        assert said.count(b"WATCHDOG=1") == 3
        running.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, running.pid, os.WSTOPPED)
        while select.select([manager], [], [], 0)[0]:
            manager.recv(1000)
        manager.settimeout(1)
        with pytest.raises(TimeoutError):
            manager.recv(1000)
        running.signal(signal.SIGCONT)
        manager.settimeout(60)
        assert manager.recv(1000) == b"WATCHDOG=1"
        assert running.stop() == 0


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_start_and_the_end_of_a_daemon_are_signed(hearthd, durability) -> None:
    running = hearthd()
    running.config.write_text(running.config.read_text().replace("[audit]", f'[audit]\ndurability = "{durability}"'))
    running.start()
    first = running.recorded(event="audit.checkpoint")
    assert first["head"]["seq"] >= running.records(event="daemon.start")[0]["seq"]
    running.peer().open()
    running.hang_up()
    assert running.stop() == 0
    report = verify(running.audit, running.audit.with_name("audit.log.key.pub"))
    assert report.ok, report.first_bad
    assert (report.checkpoints, report.unsigned) == (2, 0)
    assert running.records()[-2]["event"] == "daemon.stop"
