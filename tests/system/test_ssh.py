"""ssh://: a real sshd on this machine, the system's ssh, `hearth connect` at its far end, and a hearthd behind it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import trio
from support.hearthd import BOUND, Hearthd, eventually
from support.ports import free_port

import hearth
from hearth import CarrierError, step

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
pytestmark = [
    pytest.mark.usefixtures("unmeasured"),
    pytest.mark.slow,
    pytest.mark.skipif(
        SSHD is None or shutil.which("ssh") is None,
        reason="no sshd here: apt-get install openssh-server openssh-client",
    ),
]
HEARTH = Path(sys.executable).with_name("hearth")


class Bench(NamedTuple):
    """A machine that is reached by ssh: this one, through a port of its own."""

    address: str
    ssh: str
    """The program and its options, for HEARTH_SSH."""
    known_hosts: Path
    daemon: Hearthd
    sshd: subprocess.Popen


def key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=BOUND)
    return path


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=BOUND) as peer:
        return peer.recv(4) == b"SSH-"
    return False


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ssh")
    mine, host, port = key(folder / "id"), key(folder / "host_key"), free_port()
    (folder / "authorized_keys").write_text((folder / "id.pub").read_text())
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {host}\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile {folder}/sshd.pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        "KbdInteractiveAuthentication no\nMaxStartups 100\n"
    )
    client = f"ssh -F none -i {mine} -o IdentitiesOnly=yes -o UserKnownHostsFile={folder}/known_hosts -o BatchMode=yes"
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd confines itself, which the package's unit makes
    daemon = Hearthd(folder).start()
    with (folder / "sshd.log").open("w") as log:
        sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        eventually(lambda: sshd.poll() is not None or answers(port), "sshd")
        assert sshd.poll() is None, (folder / "sshd.log").read_text()
        address = f"ssh://{getpass.getuser()}@127.0.0.1:{port}{daemon.socket}?hearth={HEARTH}"
        yield Bench(address, client, folder / "known_hosts", daemon, sshd)
    finally:
        sshd.terminate()
        sshd.wait(BOUND)
        daemon.end()


@pytest.fixture(autouse=True)
def by_ssh(bench, monkeypatch):
    monkeypatch.setenv("HEARTH_SSH", bench.ssh)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(autouse=True)
async def bounded():
    with trio.fail_after(2 * BOUND):
        yield


def our_ssh() -> list[psutil.Process]:
    """The ssh clients that this process has started and that are still there, zombies included."""
    return [child for child in psutil.Process().children() if child.name() == "ssh"]


def far_ends(daemon: Hearthd) -> list[int]:
    """The `hearth connect`s that lead to it."""
    found = []
    for each in psutil.process_iter(["cmdline"]):
        words = each.info["cmdline"] or []
        if "connect" in words and str(daemon.socket) in words:
            found.append(each.pid)
    return found


async def test_a_session_a_task_its_events_and_a_cancel_go_by_ssh(bench) -> None:
    async with hearth.connect(bench.address) as client, client.open_session(client_name="far") as session:
        assert (await session.run("gpio.get", line=4))["line"] == 4
        task = await session.submit("wait", [step("gpio.watch", line=9, timeout_ms=60_000)])
        phases = []
        async with aclosing(task.events()) as events:
            async for event in events:
                phases.append(event.phase)
                if event.phase == "start":
                    await task.cancel()
        assert phases == ["start", "finish", "task_finish"]
        assert (await task.wait()).status == "CANCELLED"
    assert not our_ssh()
    closed = bench.daemon.recorded(event="session.close", session_id=session.session_id)
    assert closed["reason"] == "closed by the client"
    eventually(lambda: not far_ends(bench.daemon), "the end of the remote `hearth connect`")


async def test_the_daemon_sees_the_user_whom_ssh_let_in(bench) -> None:
    async with hearth.connect(bench.address) as client, client.open_session() as session:
        opened = bench.daemon.recorded(event="session.open", session_id=session.session_id)
    assert f"uid:{os.getuid()}" in str(opened["principal"])


async def test_an_alias_of_the_ssh_configuration_is_a_host_and_what_else_is_there_is_no_hindrance(
    bench, monkeypatch, tmp_path
) -> None:
    words = bench.ssh.split()
    port = bench.address.rpartition(":")[2].partition("/")[0]
    (tmp_path / "config").write_text(
        f"Host arm\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" RemoteCommand tmux attach\n RequestTTY yes\n ForwardAgent yes\n LocalForward {port} 127.0.0.1:1\n"
        " ExitOnForwardFailure yes\n"
    )
    words[words.index("none")] = str(tmp_path / "config")
    monkeypatch.setenv("HEARTH_SSH", " ".join(words))
    assert await board(f"ssh://arm{bench.daemon.socket}?hearth={HEARTH}") == "sim"


async def board(address):
    async with hearth.connect(address) as client, client.open_session() as session:
        return (await session.run("hw.board"))["name"]


async def test_a_killed_ssh_is_an_error_that_says_so_and_its_session_is_closed(bench) -> None:
    with pytest.raises(CarrierError, match=r"ssh was ended by SIGKILL"):  # noqa: PT012  where it is raised is open
        async with hearth.connect(bench.address) as client, client.open_session() as session:
            task = await session.submit("drive", [step("gpio.pulse", line=17, value=1, duration_ms=60_000)])
            async with aclosing(task.events()) as events:
                async for event in events:
                    if event.phase == "start":
                        for ssh in our_ssh():
                            ssh.kill()
    closed = bench.daemon.recorded(event="session.close", session_id=session.session_id)
    assert closed["reason"] != "closed by the client"
    assert not our_ssh()
    async with hearth.connect(bench.daemon.socket) as client, client.open_session() as witness:
        assert (await witness.run("gpio.get", line=17))["value"] == 0


@pytest.mark.proof
async def test_much_goes_both_ways_at_once_and_all_of_it_arrives(bench) -> None:
    async with hearth.connect(bench.address) as client, client.open_session() as session:
        answers = []

        async def ask():
            # Unknown members are ignored: what is asked is much longer than what it asks for, and the answer is long.
            much = {"session_id": session.session_id, "padding": "x" * 500_000}
            answers.append((await client.call("tool.list", much))["tools"])

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(ask)
        assert len(answers) == 40
        assert all(answer == answers[0] for answer in answers)


async def test_cancelling_while_it_connects_leaves_no_process(bench) -> None:
    for seconds in (0, 0.01, 0.05, 0.2):
        with trio.move_on_after(seconds):
            async with hearth.connect(bench.address):
                pass
        assert not our_ssh()
    eventually(lambda: not far_ends(bench.daemon), "the end of the remote `hearth connect`")


async def test_an_unknown_host_key_is_told_with_the_cure(bench, monkeypatch, tmp_path) -> None:
    (tmp_path / "none").touch()
    monkeypatch.setenv("HEARTH_SSH", bench.ssh.replace(str(bench.known_hosts), str(tmp_path / "none")))
    with pytest.raises(CarrierError, match=r"Host key verification failed.*shows the host's key"):
        async with hearth.connect(bench.address):
            pass


async def test_a_key_that_is_not_let_in_is_told_with_the_cure(bench, monkeypatch, tmp_path) -> None:
    other = key(tmp_path / "other")
    words = bench.ssh.split()
    words[words.index("-i") + 1] = str(other)
    monkeypatch.setenv("HEARTH_SSH", " ".join(words))
    with pytest.raises(CarrierError, match=r"Permission denied.*ssh-copy-id"):
        async with hearth.connect(bench.address):
            pass


async def test_no_sshd_at_the_port_is_told(bench) -> None:
    with pytest.raises(CarrierError, match=r"Connection refused.*is sshd running there"):
        async with hearth.connect(f"ssh://127.0.0.1:{free_port()}"):
            pass


async def test_a_command_that_is_not_there_is_told_with_the_cure(bench) -> None:
    with pytest.raises(CarrierError, match=r"there is no command hearth-of-nobody.*\?hearth=/path/to/hearth"):
        async with hearth.connect(f"{bench.address.partition('?')[0]}?hearth=hearth-of-nobody"):
            pass


async def test_no_daemon_on_the_other_machine_is_told_in_its_words(bench, tmp_path) -> None:
    where = bench.address.replace(str(bench.daemon.socket), str(tmp_path / "no one's.sock"))
    with pytest.raises(CarrierError, match=r"no daemon at .*no one's\.sock: there is no such socket"):
        async with hearth.connect(where):
            pass


async def test_the_daemon_ending_is_told(bench, tmp_path) -> None:
    other = Hearthd(tmp_path).start()
    try:
        address = bench.address.replace(str(bench.daemon.socket), str(other.socket))
        with pytest.raises(CarrierError, match="the daemon closed the connection"):  # noqa: PT012
            async with hearth.connect(address) as client, client.open_session() as session:
                other.kill()
                await session.tools()
    finally:
        other.end()


async def test_the_commands_go_by_ssh_too(bench) -> None:
    command = [str(HEARTH), "--to", bench.address, "run", "gpio.get", "line=4", "--json"]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode, done.stdout) == (0, b'{"line":4,"value":0}\n'), done.stderr


async def test_ctrl_c_reaches_ssh_as_well_and_the_session_is_closed_all_the_same(bench) -> None:
    command = [str(HEARTH), "--to", bench.address, "run", "gpio.set", "line=17", "value=1", "--hold", "inf"]
    # In a process group of its own, as a shell does it: the terminal's Ctrl-C is for the whole group.
    with subprocess.Popen(  # noqa: ASYNC220  it is back at once
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            assert "held" in await trio.to_thread.run_sync(running.stderr.readline)
            os.killpg(running.pid, signal.SIGINT)
            _, said = await trio.to_thread.run_sync(lambda: running.communicate(timeout=BOUND))
        finally:
            running.kill()
    assert (running.returncode, said) == (130, "")
    assert bench.daemon.records(event="session.close")[-1]["reason"] == "closed by the client"
