"""A reload: policy, tokens and certificates are read again; only who has lost its policy entry is dropped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import trio
from cryptography.hazmat.primitives.serialization import Encoding
from support.carriers import BIN, TOKENS, Papers
from support.dialing import OpenHearthd, Refused, tls, web_socket
from support.hearthd import BOUND, Hearthd, Peer, eventually, submission

from hearth import open_runtime
from hearth.errors import PermissionDenied
from hearth.policy.principal import from_token

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

WATCH = ("gpio.watch", {"line": 4, "timeout_ms": 60_000})
DONE = "the policy has been read again"


@pytest.fixture
def papers(tmp_path):
    (tmp_path / "papers").mkdir()
    return Papers(tmp_path / "papers")


@pytest.fixture
def running(tmp_path, papers):
    """A daemon on tls and wss, whose files the test may change."""
    daemon = OpenHearthd(tmp_path, papers, secure=True)
    yield daemon.start()
    daemon.end()
    assert "crashed" not in daemon.said


def hang_up(running: Hearthd) -> None:
    """SIGHUP, and wait until it has been obeyed."""
    before = running.said.count(DONE)
    running.signal(signal.SIGHUP)
    eventually(lambda: running.said.count(DONE) > before, f"the word of {DONE!r}")


def serial(running: OpenHearthd, scheme: str) -> str:
    """The number of the certificate that a listener shows to a new connection."""
    papers = running.papers
    with tls(running.listening[scheme], papers.client_context(papers.clients["arm-7"])) as connected:
        return connected.getpeercert()["serialNumber"]


def new_server_certificate(papers: Papers) -> None:
    papers.server_cert, papers.server_key = papers.server("server")


def test_a_new_connection_sees_the_new_certificate_and_an_open_session_goes_on(running, papers) -> None:
    peers = {kind: running.over(kind) for kind in ("tls", "wss", "unix")}
    sessions = {kind: peer.open(on_disconnect="close") for kind, peer in peers.items()}
    tasks = {kind: peer.submit(sessions[kind], WATCH) for kind, peer in peers.items()}
    before = {scheme: serial(running, scheme) for scheme in ("tls", "wss")}
    new_server_certificate(papers)
    assert {scheme: serial(running, scheme) for scheme in before} == before, "not before it is told"
    hang_up(running)
    after = {scheme: serial(running, scheme) for scheme in before}
    assert after["tls"] == after["wss"] != before["tls"]
    for kind, peer in peers.items():
        here = {"session_id": sessions[kind], "task_id": tasks[kind]}
        assert peer.call("task.get", here)["result"]["status"] == "RUNNING"
        assert peer.run(sessions[kind], "gpio.get", line=4)["status"] == "SUCCESS"
    assert running.over("tls").open()
    assert running.over("wss").open()
    assert not running.records(event="session.close")


BROKEN = ["is gone", "is cut short", "is for everybody to read", "is another's"]


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_cannot_be_used_leaves_what_there_was_and_the_log_says_why(running, papers, how: str) -> None:
    peer = running.over("tls")
    session = peer.open()
    before = serial(running, "tls")
    kept = papers.server_key.read_bytes()
    if how == "is gone":
        papers.server_key.unlink()
    elif how == "is cut short":
        os.truncate(papers.server_key, len(kept) // 2)
    elif how == "is for everybody to read":
        papers.server_key.chmod(0o644)
    else:
        shutil.copyfile(papers.clients["arm-7"].key, papers.server_key)
    running.signal(signal.SIGHUP)
    for section in ("tls", "websocket"):
        reason = f"keeps the certificates it had: [{section}] key: "
        eventually(lambda reason=reason: reason in running.said, reason)
    assert str(papers.server_key) in running.said
    assert "PRIVATE KEY" not in running.said
    assert "Traceback" not in running.said
    assert serial(running, "tls") == serial(running, "wss") == before
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    # The operator mends it.
    new_server_certificate(papers)
    hang_up(running)
    assert serial(running, "tls") != before
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"


def test_a_peer_no_longer_certified_cannot_connect_again_and_a_connected_one_stays(running, papers) -> None:
    inside = running.over("tls")
    session = inside.open()
    former = running.papers.client_context(papers.clients["arm-7"])
    successor = papers.make_authority("ca", "another CA")
    hang_up(running)
    connected = tls(running.listening["tls"], former)
    with connected, pytest.raises(OSError, match="alert"):
        # With TLS 1.3 a client hears of it when it reads.
        connected.recv(1)
    assert inside.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    welcome = papers.client_context(papers.client("arm-9", authority=successor))
    welcome.load_verify_locations(cadata=papers.authority.cert.public_bytes(Encoding.PEM).decode())
    assert running.peer(tls(running.listening["tls"], welcome)).open()


@pytest.mark.proof
def test_a_signal_that_comes_again_and_again_costs_nothing(running, papers) -> None:
    peer = running.over("wss")
    session = peer.open()
    descriptors = running.descriptors()
    for number in range(50):
        running.signal(signal.SIGHUP)
        if number % 10 == 0:
            new_server_certificate(papers)
        # New connections come while certificates change: each sees one or the other, and is served.
        running.peer(web_socket(running.listening["wss"], papers.client_context(papers.clients["arm-7"]))).open()
        running.peers.pop().close()
    hang_up(running)
    assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
    eventually(lambda: running.descriptors() <= descriptors, "the end of those who came")


def test_without_a_terminal_and_without_certificates_it_is_no_end_either(tmp_path) -> None:
    running = Hearthd(tmp_path)
    try:
        running.start(prefix=["setsid"])
        peer = running.peer()
        session = peer.open()
        hang_up(running)
        assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
        assert running.stop() == 0
    finally:
        running.end()


def test_in_a_terminal_it_reloads_until_the_terminal_has_gone_and_then_ends_with_safe_states(tmp_path, papers) -> None:
    running = OpenHearthd(tmp_path, papers)
    ours, theirs = os.openpty()
    # A session of its own takes the first terminal that it opens for its own.
    command = [sys.executable, "-m", "hearth.actors.daemon", "--config", str(running.config)]
    process = subprocess.Popen(
        ["sh", "-c", f'exec 0<>{os.ttyname(theirs)} 1>&0 2>&0; exec "$@"', "sh", *command], start_new_session=True
    )
    said = b""

    def until(what: bytes) -> None:
        nonlocal said
        while what not in said:
            said += os.read(ours, 1000)

    try:
        until(b"ready on")
        os.close(theirs)
        peer = Peer(running.socket)
        session = peer.open()
        peer.run(session, "gpio.set", line=17, value=1)
        process.send_signal(signal.SIGHUP)
        until(DONE.encode())
        assert peer.run(session, "gpio.get", line=4)["status"] == "SUCCESS"
        os.close(ours)
        assert process.wait(BOUND) == 0
        peer.close()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    [closed] = running.records(event="session.close")
    assert closed["reason"] == "shutting down"
    assert closed["safe"]


# --- the policy -------------------------------------------------------------------------------------------------------


def entry(name: str, uid_or_token: str, more: str = "") -> str:
    return f'[[policy]]\nname = "{name}"\nmatch = {{ {uid_or_token} }}\n{more}\n'


def bearer(who: str) -> str:
    return f'token_sha256 = "{from_token(TOKENS[who]).token_sha256}"'


US = entry("us", f"uid = {os.geteuid()}", 'rights = ["admin", "observe"]')


class Ruled:
    """A daemon with a WebSocket listener, whose policy a test rewrites."""

    def __init__(self, directory) -> None:
        self.running = Hearthd(directory, '[websocket]\nlisten = "127.0.0.1:0"\n@POLICY@')
        self.template = self.running.config.read_text()

    def rule(self, *entries: str) -> None:
        """Replace the file as an editor does: by another one of the same name."""
        fresh = self.running.config.with_suffix(".new")
        fresh.write_text(self.template.replace("@POLICY@", "".join(entries)))
        fresh.replace(self.running.config)

    def over(self, who: str) -> Peer:
        return self.running.peer(web_socket(self.running.listening["ws"], token=TOKENS[who]))

    def reload(self, **params):
        """What policy.reload answers us."""
        peer = self.running.peer()
        return peer.call("policy.reload", {"session_id": peer.open(), **params})

    def refusal(self):
        """Why it is refused."""
        peer = self.running.peer()
        return peer.refusal("policy.reload", {"session_id": peer.open()})


@pytest.fixture
def ruled(tmp_path):
    made = Ruled(tmp_path)
    made.rule(US, entry("alice", bearer("alice"), "max_risk = 2"), entry("bob", bearer("bob")))
    made.running.start()
    yield made
    made.running.end()
    assert "Traceback" not in made.running.said


@pytest.mark.spec("design 14: reload")
@pytest.mark.parametrize("how", ["signal", "method"])
def test_a_policy_change_by_reload_never_drops_a_session_that_keeps_its_right(ruled, how: str) -> None:
    alice = ruled.over("alice")
    session = alice.open()
    watching = alice.submit(session, WATCH)
    assert alice.run(session, "gpio.set", line=17, value=1)["status"] == "SUCCESS"
    ruled.rule(US, entry("alice", bearer("alice"), "max_risk = 1"))
    if how == "signal":
        hang_up(ruled.running)
    else:
        answer = ruled.reload()["result"]
        assert answer == {
            "ok": True,
            "entries": ["us", "alice"],
            "closed": 0,
            "restart": [],
            "warnings": ['no [[policy]] entry has "reset_halt" in its rights: nobody could end a halt'],
        }
    # What was accepted goes on; what comes is judged by the new entry.
    assert alice.call("task.get", {"session_id": session, "task_id": watching})["result"]["status"] == "RUNNING"
    assert alice.run(session, "gpio.get", line=17)["result"]["value"] == 1
    refused = alice.refusal("task.submit", submission(session, ("gpio.set", {"line": 17, "value": 0})))
    assert refused["code"] == -32003
    assert not ruled.running.records(event="session.close", session_id=session)
    ruled.rule(US, entry("alice", bearer("alice"), "max_risk = 2"))
    assert "result" in ruled.reload(yes=True)
    assert alice.run(session, "gpio.set", line=17, value=0)["status"] == "SUCCESS"


@pytest.mark.spec("design 14: reload")
def test_a_reload_closes_the_session_that_lost_its_right(ruled) -> None:
    alice, bob = ruled.over("alice"), ruled.over("bob")
    mine, session = bob.open(), alice.open()
    alice.run(session, "gpio.set", line=17, value=1)
    ruled.rule(US, entry("bob", bearer("bob")))
    assert ruled.reload()["result"]["closed"] == 1
    closed = ruled.running.recorded(event="session.close", session_id=session)
    assert closed["reason"] == "its policy entry was removed"
    assert closed["safe"][0]["line"] == 17
    assert alice.refusal("task.get", {"session_id": session, "task_id": "0"})["code"] == -32000
    assert alice.refusal("session.open")["code"] == -32003
    with pytest.raises(Refused, match="401"):
        ruled.over("alice")
    assert bob.run(mine, "gpio.get", line=17)["result"]["value"] == 0
    assert ruled.running.records(event="policy.reload")[-1]["entries"] == ["us", "bob"]


def test_an_observer_that_loses_its_right_gets_nothing_more(ruled) -> None:
    ruled.rule(US, entry("alice", bearer("alice"), 'rights = ["observe"]'))
    assert "result" in ruled.reload(yes=True)
    alice = ruled.over("alice")
    session = alice.open()
    assert "result" in alice.call("observe.subscribe", {"session_id": session})
    ruled.rule(US, entry("alice", bearer("alice")))
    assert "result" in ruled.reload()
    assert alice.refusal("observe.state", {"session_id": session})["code"] == -32003
    alice.start("tool.list", {"session_id": session})
    while "result" not in (said := alice.line()):
        assert said["params"]["record"]["event"] in ("session.open", "policy.reload", "session.close")


@pytest.mark.parametrize("what", ["the configuration", "the directory of log and latch"])
def test_a_reload_trusts_only_what_no_other_user_can_change(ruled, what: str) -> None:
    path = ruled.running.config if what == "the configuration" else ruled.running.audit.parent
    path.chmod(path.stat().st_mode | 0o002)
    refused = ruled.refusal()
    assert f"{path} is writable by every user; `chmod o-w {path}`" in refused["data"]["reason"]
    path.chmod(path.stat().st_mode & ~0o002)
    assert "result" in ruled.reload()


# --- a reload never widens silently -----------------------------------------------------------------------------------

ASKING = "approval = [{ from_risk = 1 }]\nmax_risk = 2"


def test_a_reload_that_removes_something_and_allows_more_is_refused_until_it_is_meant(ruled) -> None:
    ruled.rule(US, entry("alice", bearer("alice"), ASKING), entry("bob", bearer("bob")))
    assert "result" in ruled.reload()
    alice = ruled.over("alice")
    session = alice.open()
    ruled.rule(US, entry("alice", bearer("alice")), entry("bob", bearer("bob")))
    refused = ruled.refusal()
    assert refused["code"] == -32602
    assert refused["data"]["removed"] == ["policy 'alice': approval"]
    assert refused["data"]["allows"] == ["policy 'alice': less or another approval from risk 1 on"]
    assert refused["message"].endswith("nothing has changed; if it is meant: `hearth admin reload --yes`")
    ruled.running.signal(signal.SIGHUP)
    eventually(
        lambda: "SIGHUP: the policy is not taken: policy 'alice': approval removed or changed" in ruled.running.said
    )
    eventually(lambda: ruled.running.said.count("`hearth admin reload --yes`") == 1)
    # The former policy stays in force.
    set_it = submission(session, ("gpio.set", {"line": 17, "value": 1}))
    assert alice.refusal("task.submit", set_it)["code"] == -32016
    assert len(ruled.running.records(event="policy.reload")) == 1
    assert "result" in ruled.reload(yes=True)
    assert alice.run(session, "gpio.set", line=17, value=1)["status"] == "SUCCESS"
    meant = ruled.running.records(event="policy.reload")[-1]
    assert (meant["removed"], meant["allows"]) == (refused["data"]["removed"], refused["data"]["allows"])


def test_entries_that_are_only_added_take_effect_and_the_record_lists_what_each_allows(ruled) -> None:
    ruled.rule(
        US, entry("alice", bearer("alice"), "max_risk = 2"), entry("bob", bearer("bob")), entry("new", "uid = 7")
    )
    (line,) = ruled.reload()["result"]["allows"]
    assert re.fullmatch(r"policy 'new': a session for whom no entry matched, [0-9]+ tools up to risk 2", line)
    assert ruled.running.recorded(event="policy.reload")["allows"] == [line]
    eventually(lambda: f"newly allowed: {line}" in ruled.running.said)


def test_an_empty_policy_does_not_bring_the_built_in_entry_back_silently(ruled) -> None:
    ruled.rule(entry("us", f"uid = {os.geteuid()}", 'rights = ["admin", "observe", "approve", "reset_halt"]'))
    assert "result" in ruled.reload(yes=True)
    ruled.rule()
    assert ruled.refusal()["data"]["allows"]
    assert ruled.reload(yes=True)["result"]["entries"] == ["default", "socket group"]


def test_a_policy_cut_short_while_it_is_written_is_not_taken(ruled) -> None:
    whole = "".join((US, entry("alice", bearer("alice"), ASKING)))
    ruled.rule(whole)
    assert "result" in ruled.reload()
    config = ruled.running.config.read_text()
    for end in [found.end() for found in re.finditer("\n|,", config) if found.end() > config.index('"alice"')]:
        # As an editor does that writes in place: the same file.
        ruled.running.config.write_text(config[:end])
        peer = ruled.running.peer()
        answer = peer.call("policy.reload", {"session_id": peer.open()})
        if "result" in answer:
            assert "allows" not in answer["result"], f"cut to {config[:end]!r}"
            ruled.running.config.write_text(config)
            assert "result" in ruled.reload(yes=True)
        peer.close()
    assert "Traceback" not in ruled.running.said


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("[[policy]]\nname = 'x'\n", "match"),
        ("[[policy]\n", "hearth.toml"),
        (entry("x", "uid = 1", "max_rsk = 2"), "max_rsk"),
        (entry("x", 'user = "no such account"'), "no such account"),
    ],
    ids=["no match", "no TOML", "unknown key", "unknown account"],
)
def test_a_file_with_a_fault_changes_nothing_and_the_fault_is_named(ruled, broken: str, named: str) -> None:
    alice = ruled.over("alice")
    session = alice.open()
    ruled.rule(broken)
    refused = ruled.refusal()
    assert refused["code"] == -32602
    assert named in refused["data"]["reason"]
    assert alice.run(session, "gpio.set", line=17, value=1)["status"] == "SUCCESS"
    ruled.running.signal(signal.SIGHUP)
    eventually(lambda: "SIGHUP: the configuration cannot be used, nothing has changed" in ruled.running.said)
    assert not ruled.running.records(event="policy.reload")
    assert ruled.over("bob").open()


def test_only_an_administrator_reloads_and_other_sections_are_named(ruled) -> None:
    alice = ruled.over("alice")
    assert alice.refusal("policy.reload", {"session_id": alice.open()})["code"] == -32003
    ruled.template = ruled.template.replace("[audit]", "[limits]\nidle_ttl_s = 10\n[audit]")
    ruled.rule(US)
    assert ruled.reload()["result"]["restart"] == ["limits"]
    eventually(lambda: "changes in [limits] take a restart" in ruled.running.said)


def test_hearth_reload_prints_the_outcome_and_fails_with_the_fault(ruled) -> None:
    def run(*arguments: str):
        command = [BIN / "hearth", "--socket", str(ruled.running.socket), "admin", "reload", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)

    done = run()
    assert done.returncode == 0
    assert done.stdout.startswith("policy entries: us, alice, bob; 0 sessions closed\n")
    assert json.loads(run("--json").stdout)["entries"] == ["us", "alice", "bob"]
    ruled.rule(US, entry("bob", bearer("bob"), "max_risk = 3"))
    refused = run()
    assert refused.returncode == 1
    assert "`hearth admin reload --yes`" in refused.stderr
    meant = run("--yes")
    assert meant.returncode == 0
    assert "newly allowed: policy 'bob': risk 3, raised by a task up to 3" in meant.stdout
    assert "warning: no [[policy]] entry has" in meant.stdout
    ruled.rule("[[policy]]\nname = 'x'\n")
    failed = run()
    assert failed.returncode == 1
    assert "nothing has changed" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_runtime_in_a_program_says_that_there_is_no_file_to_read(tmp_path) -> None:
    async def ask() -> None:
        with pytest.raises(PermissionDenied, match="given its policy by a program"):
            async with open_runtime() as runtime, runtime.open_session() as session:
                await session.call("policy.reload")

    trio.run(ask)
