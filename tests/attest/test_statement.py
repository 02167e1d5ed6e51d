"""A true statement is accepted, and each forgery refused by its name: by hearth, and by foreign code."""

import base64
import contextlib
import json
import shutil
import struct
import subprocess
from pathlib import Path

import jsonschema
import pytest
from attest import forge
from attest.forge import EARLIER, FORGERIES, NONCE, NOW, answer, enrolment
from hypothesis import given, settings, strategies as st

from hearth.attest.statement import MOST_NONCES, Enrolment, Quote, enrolled, statement_of, verify
from hearth.audit.notes import Checkpoint, NotAccepted, read_witness_request

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "verify-attest.sh"
SCHEMA = json.loads((ROOT / "docs" / "reference" / "attestation.schema.json").read_text("utf-8"))
VECTORS = json.loads(forge.VECTORS.read_text("utf-8"))
needs_tools = pytest.mark.skipif(
    shutil.which("openssl") is None or shutil.which("tpm2_checkquote") is None,
    reason="openssl and tpm2-tools look at the answers: apt-get install openssl tpm2-tools",
)


def test_a_true_answer_is_accepted_and_the_enrolment_remembers_log_and_nonce():
    kept = verify(answer(), enrolment(), NONCE, NOW)
    assert Checkpoint.parse(kept.checkpoint).size == 12
    assert list(kept.nonces) == [EARLIER, NONCE]
    assert Enrolment.load(kept.save()) == Enrolment.load(Enrolment.load(kept.save()).save())
    with pytest.raises(NotAccepted, match="replayed-nonce"):
        verify(answer(), kept, NONCE, NOW)
    verify(answer(forge.LATER, size=20, old=12), kept, forge.LATER, NOW)


def test_an_answer_without_a_tpm_is_accepted_where_none_was_enrolled():
    kept = verify(forge.PLAIN, enrolment(ak=None, ak_name=None, pcr=None), NONCE, NOW)
    assert kept.ak is None


def test_an_enrolment_remembers_so_many_nonces_and_no_more():
    many = [f"{n:064x}" for n in range(MOST_NONCES)]
    kept = verify(answer(), enrolment(nonces=many), NONCE, NOW)
    assert len(kept.nonces) == MOST_NONCES
    assert kept.nonces[-1] == NONCE


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forgery_is_refused_by_name(what):
    refused, forged, *more = FORGERIES[what]
    other = {**more[0]} if more else {}
    nonce = other.pop("nonce", NONCE)
    with pytest.raises(NotAccepted) as caught:
        verify(forged, enrolment(**other), nonce, NOW)
    assert caught.value.name == refused
    assert len({name for name, *_ in FORGERIES.values()}) >= 20


def test_an_enrolment_is_made_of_answers_that_agree():
    key = {"public": forge.OURS.signer.public_pem, "tpm": {"public": forge.OURS.ak_pem, "name": "000b", "pcr": 23}}
    made = enrolled(answer(), key, NONCE, NOW + 1)
    assert (made.measured, made.pcr, made.ak_name) == (forge.MEASURED, 23, "000b")
    assert made.nonces == (NONCE,)
    for wrong in (
        {"public": forge.OTHERS.signer.public_pem},
        {"public": key["public"], "tpm": {"public": forge.OTHERS.ak_pem, "name": "000b", "pcr": 23}},
        {"public": key["public"], "tpm": {"public": "no key", "name": "000b", "pcr": 23}},
    ):
        with pytest.raises(NotAccepted, match=r"unknown-key|other-tpm"):
            enrolled(answer(), wrong, NONCE, NOW + 1)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format":"hearth-attestation/1"}', b'{"format":"other"}'])
def test_a_file_of_another_kind_is_no_enrolment(content):
    with pytest.raises(NotAccepted, match="not-an-enrolment"):
        Enrolment.load(content)


@pytest.mark.parametrize("payload", [None, "", "!", "bnVsbA==", "W10=", "e30="])
def test_what_is_no_statement_is_refused(payload):
    with pytest.raises(NotAccepted, match="not-a-statement"):
        statement_of({"payload": payload})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just("AAAA"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


def places(value, at=()):
    """Every place in a JSON value."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*at, name))


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_whatever_a_daemon_answers_is_accepted_or_refused_by_name(data):
    made = answer()
    statement = statement_of(made)
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from([place for place in places(statement) if place]))
        made = forge.resigned(made, **forge.changed(statement, *place, to=data.draw(JSON)))
        payload = base64.b64decode(made["payload"])
        made["tpm"] = forge.quote(forge.OURS, payload, 23, forge.extended(bytes(32), [bytes(32)]))
    else:
        place = data.draw(st.sampled_from([place for place in places(made) if place]))
        made = forge.changed(made, *place, to=data.draw(JSON))
    with contextlib.suppress(NotAccepted):
        verify(made, enrolment(), NONCE, NOW)


@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda tail: b"\xffTCG\x80\x18" + tail))
def test_whatever_bytes_are_quoted_they_are_read_or_refused(data):
    with contextlib.suppress(ValueError, struct.error):
        Quote.parse(data)
    made = answer()
    with pytest.raises(NotAccepted):
        verify({**made, "tpm": {**made["tpm"], "quote": forge.b64(data)}}, enrolment(), NONCE, NOW)


@given(st.text(max_size=300) | st.text("\n\u2014 a1A=+/", max_size=200))
def test_whatever_text_is_a_checkpoint_or_refused(text):
    with contextlib.suppress(NotAccepted):
        Checkpoint.parse(text)
    with contextlib.suppress(NotAccepted):
        read_witness_request(text)


# --- the schema and the vectors ---------------------------------------------------------------------------------------


def test_statements_are_as_the_schema_says():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    judge = jsonschema.Draft202012Validator(SCHEMA)
    for made in (answer(), forge.PLAIN):
        judge.validate(statement_of(made))
    for name in SCHEMA["required"]:
        assert not judge.is_valid({key: value for key, value in statement_of(answer()).items() if key != name})


def test_the_vectors_are_all_kinds_of_forgery_and_the_true_ones():
    assert [each["what"] for each in VECTORS["vectors"]][2:] == [*FORGERIES]
    assert [each["refused"] for each in VECTORS["vectors"]] == [None, None, *(one[0] for one in FORGERIES.values())]


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=[each["what"] for each in VECTORS["vectors"]])
def test_a_vector_is_judged_as_it_says(vector):
    known = Enrolment.load(json.dumps(VECTORS["enrolment"]).encode())
    if vector.get("without_tpm"):
        known = Enrolment.load(json.dumps({**VECTORS["enrolment"], "ak": None, "ak_name": None, "pcr": None}).encode())
    late = known.expires + 1 if vector.get("late") else VECTORS["now"]
    name = None
    try:
        verify(vector["answer"], known, vector["nonce"], late)
    except NotAccepted as refused:
        name = refused.name
    assert name == vector["refused"]


# --- foreign code -----------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path):
    """The shell script of the documentation over an answer: its exit code, and what it prints first."""
    (tmp_path / "key.pem").write_text(forge.OURS.signer.public_pem)
    (tmp_path / "ak.pem").write_text(forge.OURS.ak_pem)

    def run(made, nonce=NONCE, *, tpm=True, shell="sh"):
        (tmp_path / "answer.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")
        keys = ["key.pem", "ak.pem"] if tpm else ["key.pem"]
        command = [*shell.split(), str(SCRIPT), "answer.json", nonce, *keys]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout.split(":")[0], done.stdout + done.stderr

    return run


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("shell", [name for name in ("sh", "bash", "busybox sh") if shutil.which(name.split()[0])])
def test_foreign_code_accepts_what_is_true(script, shell):
    code, first, output = script(answer(), shell=shell)
    assert (code, first) == (0, "ok"), output
    assert f"policy:{forge.MEASURED['policy']}" in output
    assert script(forge.PLAIN, tpm=False, shell=shell)[:2] == (0, "ok")


FOREIGN = {
    "the answer to another question": "other-nonce",
    "signed by another key": "bad-signature",
    "another key under our key's name": "bad-signature",
    "a changed byte of the statement": "bad-signature",
    "a changed signature": "bad-signature",
    "no signature": "bad-signature",
    "a payload of another type": "bad-signature",
    "a statement of another format": "not-a-statement",
    "no quote": "no-tpm",
    "a quote by another TPM": "other-quote",
    "a changed quote": "other-quote",
    "the quote of another answer": "other-quote",
    "a quote of another register": "wrong-pcr",
    "a register with another value": "wrong-pcr",
    "a register that other software had extended": "wrong-pcr",
    "a register that was extended with other measurements": "wrong-pcr",
    "a register that was extended with nothing": "wrong-pcr",
    "bytes that are no quote": "other-quote",
}
"""What openssl and tpm2-tools can find without an enrolment, and how the script names it."""


@needs_tools
@pytest.mark.slow
@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_code_refuses_forgeries(script, what):
    code, first, output = script(FORGERIES[what][1])
    assert (code, first) == (1, FOREIGN[what]), output


def test_the_signature_covers_the_dsse_encoding():
    made = answer()
    payload = base64.b64decode(made["payload"])
    kind = made["payloadType"].encode()
    message = b"DSSEv1 " + b" ".join([str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])
    forge.OURS.signer._private.public_key().verify(base64.b64decode(made["signatures"][0]["sig"]), message)
