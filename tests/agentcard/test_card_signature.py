"""The signature of a card: made once more here from the published texts, and what is wrong with a forged one."""

import base64
import contextlib
import copy
import hashlib
import json

import pytest
import rfc8785
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from support.cards import card

from hearth.agentcard.document import Finding
from hearth.agentcard.signature import CardSignature, did_of, examine_signature, signed
from hearth.agentcard.validate import validate
from hearth.audit.keys import Signer
from hearth.cli.card import card as command
from hearth.config.agentcard import CardConfig

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
OURS, OTHER = (Signer(Ed25519PrivateKey.generate()) for _ in range(2))


def base58(text):
    """The bytes of a base58 text, by repeated multiplication in a list of bytes."""
    number = 0
    for letter in text:
        number = number * 58 + ALPHABET.index(letter)
    found = []
    while number:
        number, byte = divmod(number, 256)
        found.insert(0, byte)
    return bytes(len(text) - len(text.lstrip("1"))) + bytes(found)


def jcs(document):
    """RFC 8785 for what our cards have: keys of ASCII, and floats that Python writes as ECMAScript does."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    with contextlib.suppress(rfc8785.CanonicalizationError):  # it takes no integer from 2 ** 53 on, which schemas have
        assert text == rfc8785.dumps(document)
    return text


def independent(document):
    """Check a card as a verifier of eddsa-jcs-2022 does, with the proof where Data Integrity has it."""
    document = copy.deepcopy(document)
    proof = document["metadata"].pop("proof")
    assert proof["type"] == "DataIntegrityProof"
    assert proof["cryptosuite"] == "eddsa-jcs-2022"
    did, fragment = proof["verificationMethod"].split("#")
    assert did == document["metadata"]["did"] == f"did:key:{fragment}"
    signature = base58(proof.pop("proofValue")[1:])
    key = base58(fragment[1:])
    assert key[:2] == b"\xed\x01"
    hashed = hashlib.sha256(jcs(proof)).digest() + hashlib.sha256(jcs(document)).digest()
    Ed25519PublicKey.from_public_bytes(key[2:]).verify(signature, hashed)
    return did


def test_a_did_is_that_of_the_did_key_method():
    raw = bytes.fromhex("2e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6")
    assert did_of(raw) == "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"


@pytest.mark.spec(
    "card 6.3",
    "SHOULD",
    "Implementors requiring cryptographic agent identity SHOULD embed a DID reference in the AgentCard metadata field "
    "and sign the AgentCard using the DID's verification method.",
)
def test_a_signed_card_is_valid_and_its_signature_is_accepted_by_foreign_code():
    made = signed(card(), OURS)
    assert validate(made) == []
    assert independent(made) == did_of(OURS.raw)
    assert examine_signature(made) == CardSignature(did_of(OURS.raw), OURS.key_id)
    assert examine_signature(json.loads(json.dumps(made))) == examine_signature(made)
    # Signed again by another key, it is that one's.
    assert independent(signed(made, OTHER)) == did_of(OTHER.raw)


def test_a_card_without_a_proof_is_not_signed():
    assert examine_signature(card()) is None
    assert examine_signature({**card(), "metadata": {"did": did_of(OURS.raw)}}) is None


def forged(**changes):
    made = signed(card(), OURS)
    return {**made, "metadata": {**made["metadata"], **changes}}


def with_proof(**changes):
    return forged(proof={**signed(card(), OURS)["metadata"]["proof"], **changes})


OTHERS = did_of(OTHER.raw)
FORGERIES = {
    "another member": ({**forged(), "name": "Another"}, "is not the signature of"),
    "another piece of metadata": (forged(more=1), "is not the signature of"),
    "a signature by another key under our DID": (
        with_proof(proofValue=signed(card(), OTHER)["metadata"]["proof"]["proofValue"]),
        "is not the signature of",
    ),
    "no signature": (with_proof(proofValue=None), "is not the signature of"),
    "a signature that is not base58": (with_proof(proofValue="z0OIl"), "is not the signature of"),
    "a signature that begins with no z": (with_proof(proofValue="abc"), "is not the signature of"),
    "a signature that is too long": (with_proof(proofValue="z" + "1" * 200), "is not the signature of"),
    "a proof option that was not signed": (with_proof(created="2026-01-01T00:00:00Z"), "is not the signature of"),
    "another DID": (forged(did=OTHERS), "names another key than the card's DID"),
    "no DID": (forged(did=None), "is no did:key"),
    "a DID of another method": (forged(did="did:web:example.com"), "is no did:key"),
    "a DID of another kind of key": (forged(did="did:key:z111"), "is no did:key"),
    "a proof of another suite": (with_proof(cryptosuite="ecdsa-jcs-2019"), "is no Data Integrity proof"),
    "a proof that is none": (forged(proof="x"), "is no Data Integrity proof"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_signature_is_found(what):
    made, problem = FORGERIES[what]
    finding = examine_signature(made)
    assert isinstance(finding, Finding)
    assert (finding.pointer, finding.rule) == ("/metadata/proof", "§6.3")
    assert problem in finding.problem


def run(made, *options):
    return CliRunner().invoke(command, ["validate", "-", *options], input=json.dumps(made))


def test_the_command_says_whose_a_signature_is():
    shown = run(signed(card(), OURS))
    assert shown.exit_code == 0
    assert shown.output.splitlines()[1] == f"signed by {did_of(OURS.raw)} ({OURS.key_id})"
    found = json.loads(run(signed(card(), OURS), "--json").stdout)
    assert found["signature"] == {"did": did_of(OURS.raw), "key": OURS.key_id}
    assert run(card()).output.splitlines()[1] == "not signed"
    assert json.loads(run(card(), "--json").stdout)["signature"] is None


def test_the_command_refuses_a_wrong_signature():
    shown = run(FORGERIES["another member"][0])
    assert shown.exit_code == 1
    assert "/metadata/proof: is not the signature of" in shown.output
    found = json.loads(run(FORGERIES["another member"][0], "--json").stdout)
    assert (found["valid"], found["findings"][0]["rule"]) == (False, "§6.3")


# --- the daemon's own card --------------------------------------------------------------------------------------------


def test_the_daemons_card_is_signed_once_the_key_is_loaded_and_its_version_does_not_change_by_it(keeper, tmp_path):
    loaded = [None]
    published = keeper(signer=lambda: loaded[0])
    published.open(0.0)
    before = published.card()
    assert "proof" not in before["metadata"]
    loaded[0] = OURS
    after = published.card()
    assert independent(after) == did_of(OURS.raw)
    assert after["version"] == before["version"] == "1.0.0"
    assert published.card() is after
    again = keeper(signer=lambda: OURS)
    again.open(0.0)
    assert again.card() == after


def test_a_card_with_a_did_of_the_operators_own_is_not_signed(keeper):
    published = keeper(signer=lambda: OURS, card=CardConfig(metadata={"did": "did:web:example.com"}))
    published.open(0.0)
    assert published.card()["metadata"]["did"] == "did:web:example.com"
    assert "proof" not in published.card()["metadata"]


def test_signatures_are_64_bytes_in_base58():
    value = signed(card(), OURS)["metadata"]["proof"]["proofValue"]
    assert len(base58(value[1:])) == 64
    assert base64.b64encode(base58(value[1:]))
