"""`hearth admin attest`, `hearth audit prove` and `hearth audit witness`, against a daemon of their own."""

from __future__ import annotations

import fcntl
import json

import pytest
from support import transparency
from support.hearthd import eventually

from hearth.audit import keys
from hearth.audit.notes import COSIGNATURE, ED25519, verifier_key

pytestmark = pytest.mark.slow
NONCE = "0f" * 32


@pytest.fixture
def at(cli, own_daemon):
    """The command, with the socket of a daemon, which is its attribute; its log has a checkpoint."""
    daemon = own_daemon()
    eventually(lambda: b'"note":' in daemon.audit.read_bytes(), "the first checkpoint")

    def run(*arguments, **more):
        return cli("--socket", daemon.socket, *arguments, **more)

    run.daemon = daemon
    return run


def test_what_was_enrolled_is_verified_and_remembered(at, tmp_path):
    file = tmp_path / "bench.json"
    enrolled = at("admin", "attest", "enroll", file, "--json").json
    assert enrolled["key"].startswith("ed25519:")
    assert enrolled["tpm_key"] is None
    assert file.stat().st_mode & 0o777 == 0o600
    before = json.loads(file.read_text())
    shown = at("admin", "attest", "verify", file)
    assert shown.code == 0
    assert shown.out.splitlines()[0] == "OK   signed by the audit key, for this nonce"
    after = json.loads(file.read_text())
    assert int(after["checkpoint"].split("\n")[1]) > int(before["checkpoint"].split("\n")[1])
    assert len(after["nonces"]) == 2
    assert at("admin", "attest", "verify", file, "--json").json["statement"]["measured"] == before["measured"]


def test_an_enrolment_is_replaced_only_when_that_is_asked_for(at, tmp_path):
    file = tmp_path / "bench.json"
    assert at("admin", "attest", "enroll", file, "--days", "1").code == 0
    again = at("admin", "attest", "enroll", file)
    assert again.code == 2
    assert "give --renew" in again.err
    assert at("admin", "attest", "enroll", file, "--renew").code == 0


def test_a_refusal_has_its_name_and_the_exit_code_1(at, tmp_path):
    file = tmp_path / "bench.json"
    at("admin", "attest", "enroll", file)
    known = json.loads(file.read_text())
    known["measured"]["policy"] = "sha256:" + "0" * 64
    file.write_text(json.dumps(known))
    refused = at("admin", "attest", "verify", file)
    assert refused.code == 1
    assert refused.out.startswith("REFUSED  changed-policy: it was sha256:000")
    assert at("admin", "attest", "verify", file, "--json").json["refused"] == "changed-policy"
    assert json.loads(file.read_text()) == known


def test_a_statement_is_shown_stored_and_verified_once(at, tmp_path):
    file, stored = tmp_path / "bench.json", tmp_path / "answer.json"
    at("admin", "attest", "enroll", file)
    shown = at("admin", "attest", "show")
    assert "boot_id" in shown.out
    stored.write_text(at("--json", "admin", "attest", "show", "--nonce", NONCE).out)
    # It has no proof that the log has only grown, since it was not asked for one.
    known = json.loads(file.read_text())
    known["checkpoint"] = json.loads(stored.read_text())["checkpoint"]
    file.write_text(json.dumps(known))
    assert at("admin", "attest", "verify", file, "--quote", stored, "--nonce", NONCE).code == 0
    again = at("admin", "attest", "verify", file, "--quote", stored, "--nonce", NONCE, "--json")
    assert (again.code, again.json["refused"]) == (1, "replayed-nonce")


def test_a_mistake_in_the_arguments_is_a_usage_error(at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    at("admin", "attest", "enroll", "bench.json")
    (tmp_path / "bad.json").write_text("no json")
    (tmp_path / "list.json").write_text("[]")
    for arguments, said in (
        (["--nonce", NONCE], "go together"),
        (["--quote", "none.json", "--nonce", NONCE], "No such file"),
        (["--quote", "bad.json", "--nonce", NONCE], "is no answer of attest.quote"),
        (["--quote", "list.json", "--nonce", NONCE], "is no answer of attest.quote"),
    ):
        answer = at("admin", "attest", "verify", "bench.json", *arguments)
        assert (answer.code, said in answer.err) == (2, True), answer


def test_a_missing_enrolment_and_one_that_cannot_be_written_say_what_to_do(at, tmp_path):
    missing = at("admin", "attest", "verify", tmp_path / "none")
    assert (missing.code, f"`hearth admin attest enroll {tmp_path / 'none'}` writes it" in missing.err) == (2, True)
    nowhere = at("admin", "attest", "enroll", tmp_path / "no" / "directory")
    assert (nowhere.code, "cannot be written" in nowhere.err) == (2, True)
    other = tmp_path / "other"
    other.write_text("{}")
    wrong = at("admin", "attest", "verify", other)
    assert (wrong.code, "not-an-enrolment" in wrong.err) == (1, True)


# --- proofs and the witness -------------------------------------------------------------------------------------------


def vkeys(daemon, origin, witness=None):
    (raw,) = keys.load_public(keys.public_path(daemon.audit.with_name("audit.log.key"))).raw().values()
    found = [verifier_key(origin, ED25519, raw)]
    if witness is not None:
        (mine,) = keys.load_public(keys.public_path(witness)).raw().values()
        found.append(verifier_key("w.example", COSIGNATURE, mine))
    return found


def test_a_record_is_proven_to_foreign_code(at):
    daemon = at.daemon
    for _ in range(6):
        assert at("run", "gpio.set", "line=17", "value=1").code == 0
    proof = at("audit", "prove", "3", daemon.audit).out
    head, _, note = proof.partition("\n\n")
    kind, index, *hashes = head.split("\n")
    assert (kind, index) == ("c2sp.org/tlog-proof@v1", "index 2")
    origin, size, root = transparency.read_checkpoint(note, *vkeys(daemon, note.split("\n")[0]))
    line = daemon.audit.read_bytes().split(b"\n")[2]
    decoded = [transparency.base64.b64decode(each) for each in hashes]
    assert transparency.rooted(line, 2, size, decoded) == root
    as_json = at("--json", "audit", "prove", "3", daemon.audit).json
    assert (as_json["line"], as_json["proof"], as_json["size"]) == (line.decode(), hashes, size)
    assert origin in as_json["checkpoint"]


def test_a_proof_is_verified_without_the_log(at, cli, tmp_path):
    daemon, key = at.daemon, at.daemon.audit.with_name("audit.log.key.pub")
    proof, record, other = tmp_path / "proof", tmp_path / "record", tmp_path / "other"
    proof.write_text(at("audit", "prove", "1", daemon.audit).out)
    lines = daemon.audit.read_bytes().splitlines(keepends=True)
    record.write_bytes(lines[0])

    def verify(*arguments, **more):
        return cli("audit", "verify-proof", *arguments, "--key", key, **more)

    good = verify(proof, record)
    assert (good.code, good.out.startswith("OK   record 1 of the log hearth-audit/")) == (0, True), good
    told = verify(proof, "-", "--json", stdin=lines[0].rstrip(b"\n")).json
    assert (told["ok"], told["index"]) == (True, 0)
    assert [told["key"]] == list(keys.load_public(key).raw())
    other.write_bytes(lines[0].replace(b'"seq":1', b'"seq":2'))
    forged = {
        "a changed record": (proof.read_text(), other, "not-in-log"),
        "another index": (proof.read_text().replace("index 0", "index 1", 1), record, "not-in-log"),
        "a changed checkpoint": (
            proof.read_text().replace("hearth-audit/", "hearth-audit/f", 1),
            record,
            "unknown-key",
        ),
        "no proof": ("c2sp.org/tlog-proof@v2\nindex 0\n\n", record, "not-a-proof"),
        "no index": ("c2sp.org/tlog-proof@v1", record, "not-a-proof"),
        "bytes that are no text": (b"\xff\xfe", record, "not-a-proof"),
    }
    for what, (text, line, refused) in forged.items():
        (tmp_path / "forged").write_bytes(text if isinstance(text, bytes) else text.encode())
        answer = verify(tmp_path / "forged", line, "--json")
        assert (answer.code, answer.json["refused"]) == (1, refused), what
    assert verify(tmp_path / "forged", record).out.startswith("REFUSED  not-a-proof: ")
    whole = verify(proof, daemon.audit)
    assert (whole.code, "expected one record" in whole.err) == (2, True)


def test_what_is_not_covered_by_a_checkpoint_is_not_proven(at, cli, tmp_path):
    late = at("audit", "prove", "100000", at.daemon.audit)
    assert (late.code, "is not among the" in late.err) == (1, True)
    empty = cli("audit", "prove", "1", tmp_path / "none")
    assert (empty.code, "there is no record" in empty.err) == (1, True)
    (tmp_path / "old.log").write_bytes(at.daemon.audit.read_bytes().split(b"\n")[0] + b"\n")
    old = cli("audit", "prove", "1", tmp_path / "old.log")
    assert (old.code, "no checkpoint with a signed note" in old.err) == (1, True)


def test_a_witness_cosigns_a_growing_log_and_refuses_another(at, tmp_path, own_daemon):
    daemon, state = at.daemon, tmp_path / "state"
    key = daemon.audit.with_name("audit.log.key.pub")
    options = ("--state", state, "--key", key, "--name", "w.example")
    for _ in range(3):
        cosigned = at("audit", "witness", *options)
        assert cosigned.code == 0, cosigned.err
        origin = cosigned.out.split("\n")[0]
        signers = transparency.open_note(cosigned.out, *vkeys(daemon, origin, tmp_path / "state.key"))[1]
        assert signers == [origin, "w.example"]
    told = at("--json", "audit", "witness", *options).json
    assert told["verifier_key"] == vkeys(daemon, origin, tmp_path / "state.key")[1]
    # The log is put back to its first checkpoint, as a request of foreign make.
    request = tmp_path / "request"
    request.write_text(at("audit", "prove", "0", daemon.audit, "--consistency").out)
    size = int(cosigned.out.split("\n")[1])
    if int(request.read_text().split("\n")[3]) < size:
        refused = at("--json", "audit", "witness", request, *options)
        assert (refused.code, refused.json["refused"]) == (1, "rolled-back-log")
    forged = at("audit", "witness", request, *options)
    assert (forged.code, "REFUSED  " in forged.out) == (1, True)


def test_two_witnesses_do_not_share_a_memory(at, tmp_path):
    key = at.daemon.audit.with_name("audit.log.key.pub")
    with (tmp_path / "state.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = at("audit", "witness", "--state", tmp_path / "state", "--key", key)
    assert (busy.code, "another witness uses it" in busy.err) == (2, True)
