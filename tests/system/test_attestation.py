"""Attestation by a real, confined hearthd, with a TPM in software and without; foreign code looks at the answers."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.swtpm import SoftwareTpm, needs_tpm, software_tpm

from hearth.attest.statement import Enrolment, enrolled, statement_of, verify
from hearth.audit.notes import Checkpoint, NotAccepted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.hearthd import Hearthd, Peer

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "docs" / "verify-attest.sh"


@pytest.fixture
def attested(hearthd: Callable[..., Hearthd], tmp_path: Path) -> Callable[..., Hearthd]:
    """Makes daemons whose bytecode is the same at each start: in a checkout any process may write some meanwhile."""
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "no-bytecode")}
    return partial(hearthd, env=env)


class Caller:
    """A caller of attest.* on one connection."""

    def __init__(self, daemon: Hearthd) -> None:
        self.peer: Peer = daemon.peer()
        opened = self.peer.call("session.open", {})["result"]
        assert "CAP_ATTEST" in opened["capabilities"]
        self.session = opened["session_id"]

    def quote(self, nonce: str, **params: Any) -> dict[str, Any]:
        answer = self.peer.call("attest.quote", {"session_id": self.session, "nonce": nonce, **params})
        assert "result" in answer, answer
        return dict(answer["result"])

    def enrol(self) -> Enrolment:
        nonce = secrets.token_hex(16)
        key = self.peer.call("attest.key", {"session_id": self.session})["result"]
        return enrolled(self.quote(nonce), key, nonce, time.time() + 60)

    def verify(self, known: Enrolment) -> Enrolment:
        nonce = secrets.token_hex(32)
        return verify(self.quote(nonce, since=Checkpoint.parse(known.checkpoint).size), known, nonce, time.time())

    def refusal(self, known: Enrolment) -> str:
        with pytest.raises(NotAccepted) as caught:
            self.verify(known)
        return caught.value.name


def foreign(directory: Path, answer: dict[str, Any], nonce: str, known: Enrolment) -> tuple[int, str]:
    """What the documentation's script says of an answer."""
    (directory / "key.pem").write_text(known.public)
    keys = ["key.pem"]
    if known.ak is not None:
        (directory / "ak.pem").write_text(known.ak)
        keys.append("ak.pem")
    (directory / "answer.json").write_text(json.dumps(answer, separators=(",", ":")) + "\n")
    command = ["sh", str(SCRIPT), "answer.json", nonce, *keys]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.split(":")[0]


@pytest.mark.spec("3", "MAY", "attest.* | MAY | Device or agent attestation (see Section 11)")
@pytest.mark.spec("design 18: attest.quote")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl looks at the answer: apt-get install openssl")
def test_without_a_tpm_the_audit_key_signs_and_openssl_accepts(
    attested: Callable[..., Hearthd], tmp_path: Path
) -> None:
    daemon = attested().start()
    caller, nonce = Caller(daemon), secrets.token_hex(32)
    known = caller.enrol()
    assert known.ak is None
    known = caller.verify(known)
    answer = caller.quote(nonce)
    assert foreign(tmp_path, answer, nonce, known) == (0, "ok")
    assert foreign(tmp_path, answer, secrets.token_hex(32), known) == (1, "other-nonce")
    statement = statement_of(answer)
    assert statement["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The question is on record, and the statement's log has it.
    (record,) = daemon.records(event="attest.quote", nonce=nonce)
    assert record["seq"] == statement["audit"]["seq"]
    assert daemon.stop() == 0


@pytest.mark.proof
def test_questions_have_a_form_and_a_rate(attested: Callable[..., Hearthd]) -> None:
    caller = Caller(attested().start())
    for nonce in ("", "0f" * 15, "0F" * 16, "0f" * 65, "x" * 32):
        params = {"session_id": caller.session, "nonce": nonce}
        assert caller.peer.refusal("attest.quote", params)["code"] == -32602
    limited = None
    for _ in range(30):
        answer = caller.peer.call("attest.quote", {"session_id": caller.session, "nonce": "0f" * 16})
        limited = limited or answer.get("error")
    assert limited is not None
    assert (limited["code"], limited["data"]["rate"]) == (-32006, "10/s")


POLICY = '[[policy]]\nname = "all"\nmatch = {{ any = true }}\nmax_risk = {}\n'


@pytest.mark.proof
def test_a_policy_that_is_reloaded_is_in_the_next_statement(attested: Callable[..., Hearthd]) -> None:
    daemon = attested(POLICY.format(2) + 'rights = ["admin"]\n').start()
    caller = Caller(daemon)
    known = caller.enrol()
    before = statement_of(caller.quote("0f" * 16))["measured"]
    daemon.config.write_text(daemon.config.read_text().replace("max_risk = 2", "max_risk = 1"))
    assert caller.peer.call("policy.reload", {"session_id": caller.session})["result"]["ok"]
    after = statement_of(caller.quote("0f" * 16))["measured"]
    assert {name for name in before if before[name] != after[name]} == {"policy"}
    assert caller.refusal(known) == "changed-policy"


@pytest.mark.proof
def test_other_settings_and_limits_are_refused_by_name(attested: Callable[..., Hearthd], tmp_path: Path) -> None:
    daemon = attested().start()
    known = Caller(daemon).enrol()
    config = daemon.config.read_text()
    for change, name in (
        ("# a remark\n", "changed-files"),
        ('\n[tools]\ndisable = ["gpio.pulse"]\n', "changed-configuration"),
        ("\n[limits]\nmax_steps = 7\n", "changed-configuration"),
    ):
        assert daemon.stop() == 0
        daemon.config.write_text(config + change)
        daemon.start()
        caller = Caller(daemon)
        assert caller.refusal(known) == name
        found = statement_of(caller.quote("0f" * 16))["measured"]
        changed = {each for each in found if found[each] != known.measured[each]}
        assert changed == {"changed-files": {"files"}}.get(name, changed)
        assert ("tools" in changed, "limits" in changed) == ("disable" in change, "max_steps" in change)
    daemon.config.write_text(config)


@pytest.mark.proof
@pytest.mark.parametrize("more", [0, 400])
def test_a_log_that_was_put_back_is_refused(attested: Callable[..., Hearthd], tmp_path: Path, more: int) -> None:
    daemon = attested().start()
    known = Caller(daemon).enrol()
    assert daemon.stop() == 0
    names = [path for path in daemon.audit.parent.glob(f"{daemon.audit.name}*") if path.is_file()]
    earlier = {path: path.read_bytes() for path in names}
    daemon.start()
    caller = Caller(daemon)
    for _ in range(20):
        caller.peer.wait(caller.session, caller.peer.submit(caller.session, ("gpio.set", {"line": 17, "value": 1})))
    known = caller.verify(known)
    assert daemon.stop() == 0
    for path, content in earlier.items():
        path.write_bytes(content)
    daemon.start()
    caller = Caller(daemon)
    for _ in range(more // 4):
        caller.peer.wait(caller.session, caller.peer.submit(caller.session, ("gpio.set", {"line": 17, "value": 1})))
    assert caller.refusal(known) == ("forked-log" if more else "rolled-back-log")


# --- with a TPM -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tpm() -> Iterator[SoftwareTpm]:
    with software_tpm() as made:
        yield made


def config_for(tpm: SoftwareTpm) -> str:
    return f'[attest]\ntpm = "{tpm.tcti}"\n'


@pytest.mark.proof
@needs_tpm
@pytest.mark.spec("design 18: the TPM")
def test_a_quote_of_a_tpm_is_accepted_and_forgeries_are_refused(
    attested: Callable[..., Hearthd], tpm: SoftwareTpm, tmp_path: Path
) -> None:
    daemon = attested(config_for(tpm)).start()
    assert "in force" in daemon.said
    caller, nonce = Caller(daemon), secrets.token_hex(32)
    known = caller.verify(caller.enrol())
    answer, other = caller.quote(nonce), caller.quote(secrets.token_hex(32))
    assert foreign(tmp_path, answer, nonce, known) == (0, "ok")
    assert foreign(tmp_path, {**answer, "tpm": other["tpm"]}, nonce, known) == (1, "other-quote")
    assert foreign(tmp_path, {**answer, "payload": other["payload"]}, nonce, known) == (1, "bad-signature")
    with software_tpm() as another:
        (tmp_path / "second").mkdir()
        second = attested(config_for(another), directory=tmp_path / "second")
        stranger = Caller(second.start())
        strange = stranger.enrol()
        # The same log's key, and another TPM: a copy of the disk in another machine.
        with pytest.raises(NotAccepted, match="other-tpm"):
            verify({**answer, "tpm": stranger.quote(nonce)["tpm"]}, known, nonce, time.time())
        assert strange.ak != known.ak
        assert second.stop() == 0
    quoted = base64.b64decode(answer["tpm"]["quote"])
    assert tpm.run("tpm2_pcrread", "sha256:23").strip()
    assert quoted.startswith(b"\xffTCG\x80\x18")


@needs_tpm
@pytest.mark.proof
def test_the_attestation_key_outlives_the_daemon_and_the_machine_and_not_the_owner(
    attested: Callable[..., Hearthd], tpm: SoftwareTpm
) -> None:
    daemon = attested(config_for(tpm)).start()
    known = Caller(daemon).enrol()
    assert daemon.stop() == 0
    daemon.start()
    known = Caller(daemon).verify(known)
    # What it ran with is the same, so the register was not extended again.
    assert len(statement_of(Caller(daemon).quote("0f" * 16))["tpm"]["events"]) == 1
    assert daemon.stop() == 0
    tpm.stop()
    tpm.start()
    daemon.start()
    known = Caller(daemon).verify(known)
    assert daemon.stop() == 0
    tpm.run("tpm2_clear")
    daemon.start()
    assert Caller(daemon).refusal(known) == "other-tpm"


@needs_tpm
@pytest.mark.proof
def test_each_change_extends_the_register_once(attested: Callable[..., Hearthd], tpm: SoftwareTpm) -> None:
    daemon = attested(POLICY.format(2) + 'rights = ["admin"]\n' + config_for(tpm)).start()
    caller = Caller(daemon)
    known = caller.enrol()
    daemon.config.write_text(daemon.config.read_text().replace("max_risk = 2", "max_risk = 1"))
    assert caller.peer.call("policy.reload", {"session_id": caller.session})["result"]["ok"]
    assert caller.refusal(known) == "changed-policy"
    again = caller.enrol()
    assert caller.verify(again).pcr == 23
    assert len(statement_of(caller.quote("0f" * 16))["tpm"]["events"]) == 2


@needs_tpm
@pytest.mark.proof
@pytest.mark.parametrize("when", ["before", "while", "reset"])
def test_a_register_that_other_software_has_changed_is_refused(
    attested: Callable[..., Hearthd], tpm: SoftwareTpm, when: str
) -> None:
    daemon = attested(config_for(tpm)).start()
    caller = Caller(daemon)
    known = caller.enrol()
    if when == "before":
        assert daemon.stop() == 0
    if when == "reset":
        tpm.run("tpm2_pcrreset", "23")
    else:
        tpm.run("tpm2_pcrextend", f"23:sha256={'ab' * 32}")
    if when == "before":
        daemon.start()
        assert "was extended by other software" in daemon.said
        caller = Caller(daemon)
    assert caller.refusal(known) == "wrong-pcr"


@needs_tpm
@pytest.mark.proof
def test_without_the_list_of_extensions_the_register_is_refused(
    attested: Callable[..., Hearthd], tpm: SoftwareTpm
) -> None:
    daemon = attested(config_for(tpm)).start()
    known = Caller(daemon).enrol()
    daemon.kill()
    Path(f"{daemon.audit}.attest").write_text("{}")
    daemon.start()
    assert Caller(daemon).refusal(known) == "wrong-pcr"


@needs_tpm
@pytest.mark.proof
def test_a_tpm_that_has_gone_is_an_error_of_the_device_and_nothing_else_stops(
    attested: Callable[..., Hearthd], tpm: SoftwareTpm
) -> None:
    daemon = attested(config_for(tpm)).start()
    caller = Caller(daemon)
    caller.enrol()
    tpm.stop()
    error = caller.peer.refusal("attest.quote", {"session_id": caller.session, "nonce": "0f" * 16})
    assert (error["code"], error["data"]["effect"]) == (-32009, "none")
    caller.peer.wait(caller.session, caller.peer.submit(caller.session, ("gpio.set", {"line": 17, "value": 1})))


@needs_tpm
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('tpm = "/dev/tpm-that-is-not-there"', "cannot be used"),
        ('tpm = "swtpm:path=/nowhere/s"', "cannot be used"),
    ],
)
def test_a_tpm_that_cannot_be_used_keeps_the_daemon_from_starting(
    attested: Callable[..., Hearthd], config: str, reason: str
) -> None:
    daemon = attested(f"[attest]\n{config}\n")
    with pytest.raises(AssertionError, match="did not start"):
        daemon.start()
    assert daemon.process is not None
    assert daemon.process.returncode == 2
    assert "[attest] tpm:" in daemon.said
    assert reason in daemon.said
