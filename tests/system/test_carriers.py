"""A real daemon on every carrier at once: one session from all of them, and an end that each of them hears of."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from support.carriers import BIN, Papers, ssh_to_here
from support.dialing import Messages, OpenHearthd, tcp
from support.hearthd import BOUND, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

KINDS = ("unix", "stdio", "tls", "ws")
WATCH = ("gpio.watch", {"line": 4, "timeout_ms": 60_000})


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def daemon(tmp_path, papers):
    """`daemon(config, secure=…)`: makes one, and ends it."""
    made = []

    def make(config: str = "", **more) -> OpenHearthd:
        made.append(OpenHearthd(tmp_path, papers, config, **more))
        return made[-1].start()

    yield make
    for running in made:
        running.end()


def test_it_says_where_it_listens_before_it_says_that_it_is_ready(daemon) -> None:
    running = daemon()
    before, ready, _ = running.said.partition(f"hearthd: ready on {running.socket}\n")
    assert ready
    assert [line.rpartition(":")[0] for line in before.splitlines() if "listening" in line] == [
        "hearthd: listening on tls://127.0.0.1",
        "hearthd: listening on ws://127.0.0.1",
    ]
    assert running.over("ws").health()["listeners"] == [
        f"unix:{running.socket}",
        running.listening["tls"],
        running.listening["ws"],
    ]


@pytest.mark.parametrize("secure", [False, True], ids=["ws", "wss"])
def test_a_task_runs_over_every_carrier_for_the_principal_it_proved(daemon, papers, secure: bool) -> None:
    running = daemon(secure=secure)
    web = "wss" if secure else "ws"
    expected = {
        ("unix", "uid"): "uid:0",
        ("stdio", "uid"): "uid:0",
        (web, "uid"): "uid:0",
        (web, "token:alice"): "token:",
        ("tls", "cert:arm-7"): "cert:CN=arm-7,O=Acme;DNS:arm-7.local",
    }
    if secure:
        expected["wss", "cert:arm-8"] = "cert:CN=arm-8,O=Acme;DNS:arm-8.local"
    for (kind, proof), key in expected.items():
        peer = running.over(kind, proof)
        session = peer.open()
        assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS", (kind, proof)
        opened = running.recorded(event="session.open", session_id=session)
        assert opened["principal"].startswith(key.replace("uid:0", "uid:")), (kind, proof)


@pytest.mark.proof
def test_every_command_takes_the_address_of_any_carrier(daemon, tmp_path) -> None:
    running = daemon()
    env = {**os.environ, "HEARTH_SSH": str(ssh_to_here(tmp_path))}
    for kind, proof in [*((kind, None) for kind in KINDS), ("ws", "token:bob")]:
        address = running.address(kind, proof)
        for command, variables in (
            (["--to", address, "run", "gpio.get", "line=4", "--json"], env),
            (["run", "gpio.get", "line=4", "--json"], {**env, "HEARTH_ADDRESS": address}),
        ):
            done = subprocess.run(
                [BIN / "hearth", *command], env=variables, capture_output=True, text=True, timeout=BOUND, check=False
            )
            assert (done.returncode, done.stderr) == (0, ""), address
            assert json.loads(done.stdout) == {"line": 4, "value": 0}


def test_one_session_is_used_from_every_carrier_by_which_its_principal_can_come(daemon) -> None:
    running = daemon()
    opening, watching, cancelling = running.over("ws"), running.over("unix"), running.over("stdio")
    session = opening.open(on_disconnect="keep")
    assert watching.call("task.events.subscribe", {"session_id": session})["result"] == {"ok": True}
    task = opening.submit(session, WATCH)
    assert watching.line()["params"]["phase"] == "start"
    here = {"session_id": session, "task_id": task}
    assert cancelling.call("task.cancel", here)["result"]["status"] == "CANCELLING"
    assert [watching.line()["params"]["phase"] for _ in range(2)] == ["finish", "task_finish"]
    for kind, proof in (("tls", "cert:arm-7"), ("ws", "token:alice")):
        assert running.over(kind, proof).refusal("task.get", here)["code"] == -32000


@pytest.mark.proof
@pytest.mark.parametrize("secure", [False, True], ids=["ws", "wss"])
def test_sigterm_ends_it_within_its_bound_and_every_client_sees_a_clean_end(daemon, secure: bool) -> None:
    running = daemon("[limits]\nshutdown_grace_s = 60\n", secure=secure)
    web = "wss" if secure else "ws"
    peers = {kind: running.over(kind) for kind in ("unix", "stdio", "tls", web)}
    idle = [running.over(kind) for kind in ("tls", web) for _ in range(20)]
    tasks = {}
    for kind, peer in peers.items():
        session = peer.open()
        assert peer.call("task.events.subscribe", {"session_id": session})["result"]
        tasks[kind] = peer.submit(session, WATCH)
        assert peer.line()["params"]["phase"] == "start"
    running.signal(signal.SIGTERM)
    for kind, peer in peers.items():
        said = []
        # A link that breaks raises here; it is to be told apart from a daemon that ends.
        while (document := peer.line()) is not None:
            said.append(document["params"])
        assert [(event["task_id"], event["phase"]) for event in said] == [
            (tasks[kind], "finish"),
            (tasks[kind], "task_finish"),
        ]
        assert said[-1]["status"] == "CANCELLED"
        if isinstance(peer.socket, Messages):
            assert peer.socket.close_code in (1000, 1001)
    for peer in idle:
        assert peer.line() is None
    assert running.wait() == 0
    assert "crashed" not in running.said


@pytest.mark.proof
def test_clients_that_do_not_answer_its_goodbye_do_not_keep_it_nor_those_who_never_say_who_they_are(daemon) -> None:
    """A WebSocket and TLS each have a goodbye that a peer is to answer."""
    running = daemon()
    for kind in ("ws", "tls"):
        for _ in range(5):
            running.over(kind).open()
            running.peer(tcp(running.listening[kind]))
    assert running.stop() == 0
    assert "crashed" not in running.said


@pytest.mark.proof
def test_a_client_that_reads_nothing_is_cut_off_on_every_carrier_while_the_others_go_on(daemon, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(b"x" * 262_144)
    running = daemon(f'[files]\nread = ["{tmp_path}/data"]\n[limits]\nsend_timeout_s = 1\n')
    others = {kind: running.over(kind) for kind in KINDS}
    sessions = {kind: peer.open() for kind, peer in others.items()}
    read = ("file.read", {"path": str(tmp_path / "data" / "x")})
    before = running.descriptors()
    for kind, peer in others.items():
        session = sessions[kind]
        task = peer.submit(session, read, read, read, read)
        assert peer.wait(session, task)["status"] == "SUCCESS"
        deaf = running.over(kind)
        # What the kernel and the carrier keep for it is some megabytes; this is more.
        for _ in range(40):
            deaf.start("task.get", {"session_id": session, "task_id": task})
    for kind, peer in others.items():
        assert peer.run(sessions[kind], "gpio.get", line=4)["status"] == "SUCCESS"
    eventually(lambda: running.descriptors() <= before, "the end of those that do not read")
    for kind, peer in others.items():
        assert peer.run(sessions[kind], "gpio.get", line=4)["status"] == "SUCCESS"
