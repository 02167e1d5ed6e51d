"""The signature of an AgentCard (draft-aevum-agentcard-00 §6.3): a DID in the metadata, and a proof by its key.

The DID is a did:key, which is the Ed25519 key itself, so that nothing has to be resolved. The proof is a Data Integrity
proof of the cryptosuite eddsa-jcs-2022 (www.w3.org/TR/vc-di-eddsa). It is in `metadata`, beside the DID, because
schemas of cards are open there alone; it covers the card without the proof. It has no time of its own: the same card
has the same proof.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.agentcard.document import Finding, shown
from hearth.audit.keys import PublicKeys, parse_public, public_pem
from hearth.audit.record import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.audit.keys import Signer

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ED25519: Final = b"\xed\x01"
"""The multicodec of an Ed25519 public key."""
_LONGEST: Final = 128
_OPTIONS: Final = {"type": "DataIntegrityProof", "cryptosuite": "eddsa-jcs-2022", "proofPurpose": "assertionMethod"}
_RULE: Final = "§6.3"
_CURE: Final = "take the card from its agent again, or take did and proof out to have one that is not signed"


@frozen
class CardSignature:
    """Whose signature a card has: the DID, and the id of its key as the audit log has it."""

    did: str
    key: str


def did_of(raw: bytes) -> str:
    """Return the did:key of an Ed25519 public key of 32 bytes."""
    return f"did:key:{_base58(_ED25519 + raw)}"


def signed(card: Mapping[str, Any], signer: Signer) -> dict[str, Any]:
    """Return the card with a DID and a proof, in place of those that it has."""
    did = did_of(signer.raw)
    options = {**_OPTIONS, "verificationMethod": f"{did}#{did.removeprefix('did:key:')}"}
    unsigned = unsigned_of({**card, "metadata": {**card.get("metadata", {}), "did": did}})
    proof = {**options, "proofValue": _base58(signer.sign_bytes(_hash_data(unsigned, options)))}
    return {**unsigned, "metadata": {**unsigned["metadata"], "proof": proof}}


def unsigned_of(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the card without its proof."""
    metadata = {name: value for name, value in card["metadata"].items() if name != "proof"}
    return {**card, "metadata": metadata}


def examine_signature(card: Mapping[str, Any]) -> CardSignature | Finding | None:
    """Return whose signature a valid card has, or what is wrong with it; None if it has none."""
    metadata = card.get("metadata")
    if not isinstance(metadata, dict) or "proof" not in metadata:
        return None
    proof, did = metadata["proof"], metadata.get("did")
    if not isinstance(proof, dict) or any(proof.get(name) != value for name, value in _OPTIONS.items()):
        return _wrong("is no Data Integrity proof of the cryptosuite eddsa-jcs-2022")
    if (key := _key_of(did)) is None:
        return _wrong(f"is by {shown(did)}, which is no did:key of an Ed25519 key")
    if proof.get("verificationMethod") != f"{did}#{str(did).removeprefix('did:key:')}":
        return _wrong("names another key than the card's DID")
    value = proof.get("proofValue")
    signature = _bytes(value) if isinstance(value, str) else None
    public = parse_public(public_pem(key), "did")
    options = {name: each for name, each in proof.items() if name != "proofValue"}
    if signature is None or not _verified(public, _hash_data(unsigned_of(card), options), signature):
        return _wrong(f"is not the signature of {shown(did)} over this card")
    (key_id,) = public.raw()
    return CardSignature(str(did), key_id)


def _key_of(did: Any) -> bytes | None:
    """Return the Ed25519 public key that a did:key is; None for anything else."""
    if not isinstance(did, str) or not did.startswith("did:key:"):
        return None
    coded = _bytes(did.removeprefix("did:key:")) or b""
    key = coded.removeprefix(_ED25519)
    return key if len(key) == 32 and key != coded else None


def _wrong(problem: str) -> Finding:
    return Finding("/metadata/proof", _RULE, problem, _CURE)


def _hash_data(card: Mapping[str, Any], options: Mapping[str, Any]) -> bytes:
    return sha256(canonical(options)).digest() + sha256(canonical(card)).digest()


def _verified(public: PublicKeys, message: bytes, signature: bytes) -> bool:
    import base64

    (key_id,) = public.raw()
    return public.verify(key_id, message, base64.b64encode(signature).decode())


def _base58(data: bytes) -> str:
    """Return bytes as multibase base58btc. None of ours begins with a zero."""
    number, digits = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        digits = _ALPHABET[digit] + digits
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "z" + _ALPHABET[0] * zeros + digits


def _bytes(text: str) -> bytes | None:
    """Return the bytes of such a text, or None."""
    digits = text[1:]
    if not text.startswith("z") or len(text) > _LONGEST or any(digit not in _ALPHABET for digit in digits):
        return None
    number = 0
    for digit in digits:
        number = number * 58 + _ALPHABET.index(digit)
    zeros = len(digits) - len(digits.lstrip(_ALPHABET[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
