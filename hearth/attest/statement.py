"""What `attest.quote` answers, and its verification.

The answer is a DSSE envelope (github.com/secure-systems-lab/dsse) around a statement, a JSON object in its RFC 8785
form, signed with the audit key; with a signed checkpoint of the audit log, the proof that it continues an earlier one,
and, with a TPM, a quote (TPMS_ATTEST) whose qualifying data is the SHA-256 of the statement's bytes.

`verify` compares it with an `Enrolment`: what the caller knows of the daemon since it trusted it first. Each fault has
a name, see `NotAccepted`. The parser of TPM structures reads only what `TPM2_Quote` makes (TPM 2.0 Library, Part 2).
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import asdict, define, evolve, frozen

from hearth.attest.measure import sha256_of
from hearth.audit import keys
from hearth.audit.notes import Checkpoint, NotAccepted, continues, decode_hashes
from hearth.audit.record import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT: Final = "hearth-attestation/1"
PAYLOAD_TYPE: Final = "application/vnd.hearth.attestation+json"
MOST_NONCES: Final = 1000
"""Nonces that an enrolment remembers."""
_ECDSA_SHA256: Final = (0x0018, 0x000B)
_QUOTE: Final = b"\xffTCG\x80\x18"


def signed_bytes(payload: bytes) -> bytes:
    """Return what the signature of a statement covers: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def make(statement: Mapping[str, Any], signer: keys.Signer) -> dict[str, Any]:
    """Return the envelope of a statement."""
    payload = canonical(statement)
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": signer.key_id, "sig": signer.sign(signed_bytes(payload))}],
    }


def extended(before: bytes, events: Sequence[bytes]) -> bytes:
    """Return the value of a PCR that had the value `before` and was extended with these digests."""
    value = before
    for event in events:
        value = hashlib.sha256(value + event).digest()
    return value


@frozen(kw_only=True)
class Enrolment:
    """What a caller knows of one daemon. `save` and `load` it as JSON.

    `public` are its keys in PEM, `ak` the public attestation key of its TPM in PEM (None: it had none), `pcr` the
    register that is quoted. `measured` is what it ran with, `checkpoint` the last one seen of its log. `expires`, in
    epoch seconds, is when the keys are no longer accepted.
    """

    public: str
    measured: Mapping[str, str]
    checkpoint: str
    expires: float
    ak: str | None = None
    ak_name: str | None = None
    pcr: int | None = None
    nonces: Sequence[str] = ()

    def save(self) -> bytes:
        """Return the enrolment as JSON."""
        return orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_INDENT_2)

    @classmethod
    def load(cls, content: bytes) -> Enrolment:
        """Return the enrolment of such JSON. Raises NotAccepted for another file."""
        try:
            read = orjson.loads(content)
            if read.pop("format") == FORMAT:
                return cls(**read)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            pass
        raise NotAccepted("not-an-enrolment", "the file was not written by `hearth admin attest enroll`")


@define
class _ParsedAnswer:
    """The parts of an answer, read."""

    payload: bytes
    statement: Mapping[str, Any]
    checkpoint: Checkpoint
    proof: list[bytes] | None


def verify(answer: Mapping[str, Any], enrolment: Enrolment, nonce: str, now: float) -> Enrolment:
    """Check an answer of `attest.quote`; return the enrolment as it is to be kept then. Raises NotAccepted."""
    if nonce in enrolment.nonces:
        raise NotAccepted("replayed-nonce", "this nonce was used before: make a new one for each question")
    public = keys.parse_public(enrolment.public, "enrolment")
    if now > enrolment.expires:
        raise NotAccepted("expired-key", "the enrolment has expired: enrol the daemon again where you trust the way")
    read = _read(answer, public)
    statement = read.statement
    if statement["nonce"] != nonce:
        name = "replayed-nonce" if statement["nonce"] in enrolment.nonces else "other-nonce"
        raise NotAccepted(name, f"the statement is for the nonce {statement['nonce'][:128]!r}, not for {nonce!r}")
    audit = statement["audit"]
    read.checkpoint.signer_among(public)
    if (audit["origin"], audit["size"], audit["root"]) != _named(read.checkpoint):
        raise NotAccepted("other-checkpoint", "the checkpoint is not that of the statement")
    if enrolment.ak is not None:
        _verify_tpm(answer, read, enrolment)
    for name in sorted({*enrolment.measured, *statement["measured"]}):
        was, now_is = enrolment.measured.get(name), statement["measured"].get(name)
        if was != now_is:
            raise NotAccepted(f"changed-{name}", f"it was {was}, and is {now_is}: enrol again if you changed it")
    _continues(Checkpoint.parse(enrolment.checkpoint), read)
    kept = (*enrolment.nonces, nonce)[-MOST_NONCES:]
    return evolve(enrolment, checkpoint=str(answer["checkpoint"]), nonces=kept)


def enrolled(answer: Mapping[str, Any], key: Mapping[str, Any], nonce: str, expires: float) -> Enrolment:
    """Return the enrolment of a daemon that is trusted now, by its answers to attest.quote and attest.key.

    Raises NotAccepted if they contradict each other.
    """
    tpm = key.get("tpm") or {}
    first = Enrolment(
        public=str(key.get("public")),
        measured=statement_of(answer)["measured"],
        checkpoint=str(answer.get("checkpoint")),
        expires=expires,
        ak=tpm.get("public"),
        ak_name=tpm.get("name"),
        pcr=tpm.get("pcr"),
    )
    return verify({**answer, "consistency": []}, first, nonce, 0.0)


def statement_of(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the statement of an answer, of which nothing is verified. Raises NotAccepted."""
    try:
        statement = orjson.loads(base64.b64decode(str(answer["payload"]), validate=True))
        measured, audit = statement["measured"], statement["audit"]
        texts = [statement["nonce"], *measured.values(), audit["origin"], audit["root"]]
        known = statement["format"] == FORMAT and type(audit["size"]) is int
        if known and all(isinstance(each, str) for each in texts):
            return statement  # type: ignore[no-any-return]
    except (KeyError, TypeError, AttributeError, ValueError):
        pass
    raise NotAccepted("not-a-statement", f"the answer has no statement of the format {FORMAT}")


def _named(checkpoint: Checkpoint) -> tuple[str, int, str]:
    return checkpoint.origin, checkpoint.size, base64.b64encode(checkpoint.root).decode()


def _read(answer: Mapping[str, Any], public: keys.PublicKeys) -> _ParsedAnswer:
    """Return the parts of an answer whose signature is that of a known key. Raises NotAccepted."""
    statement = statement_of(answer)
    payload = base64.b64decode(answer["payload"])
    if answer.get("payloadType") != PAYLOAD_TYPE:
        raise NotAccepted("not-a-statement", f"the payload's type is {str(answer.get('payloadType'))[:80]!r}")
    signatures = answer.get("signatures")
    listed = signatures if isinstance(signatures, list) else []
    known = [each for each in listed if isinstance(each, dict) and each.get("keyid") in public]
    if not known:
        raise NotAccepted("unknown-key", "the statement is signed by none of the enrolled keys")
    if not public.verify(known[0]["keyid"], signed_bytes(payload), str(known[0].get("sig"))):
        raise NotAccepted("bad-signature", f"the statement's signature by {known[0]['keyid']} is wrong")
    proof = answer.get("consistency")
    return _ParsedAnswer(
        payload,
        statement,
        Checkpoint.parse(str(answer.get("checkpoint"))),
        decode_hashes(map(str, proof)) if isinstance(proof, list) else None,
    )


def _continues(last: Checkpoint, read: _ParsedAnswer) -> None:
    if read.proof is None and read.checkpoint.origin == last.origin and read.checkpoint.size > last.size:
        raise NotAccepted("forked-log", f"no proof that the log still begins with its first {last.size} records")
    continues(last, read.checkpoint, read.proof or [])


def _verify_tpm(answer: Mapping[str, Any], read: _ParsedAnswer, enrolment: Enrolment) -> None:
    tpm, told = answer.get("tpm"), read.statement.get("tpm")
    if not isinstance(tpm, dict) or not isinstance(told, dict):
        raise NotAccepted("no-tpm", "the daemon was enrolled with a TPM, and answers without one")
    try:
        quote, signature = (base64.b64decode(str(tpm[name]), validate=True) for name in ("quote", "signature"))
        before, events = bytes.fromhex(told["before"]), [bytes.fromhex(each) for each in told["events"]]
        found = Quote.parse(quote)
        ecdsa = _ecdsa(signature)
    except (KeyError, TypeError, ValueError, struct.error):
        raise NotAccepted("not-a-quote", "the TPM's quote cannot be read") from None
    if not _signed_by(str(enrolment.ak), ecdsa, quote):
        raise NotAccepted("other-tpm", "the quote is not signed by the enrolled attestation key")
    if found.qualifying != hashlib.sha256(read.payload).digest():
        raise NotAccepted("other-quote", "the TPM's quote is for another statement")
    if (found.pcr, told.get("pcr")) != (enrolment.pcr, enrolment.pcr):
        raise NotAccepted("wrong-pcr", f"PCR {found.pcr} is quoted, and PCR {enrolment.pcr} was enrolled")
    if found.digest != hashlib.sha256(extended(before, events)).digest():
        raise NotAccepted("wrong-pcr", "the events of the statement do not lead to the quoted value")
    if before.strip(b"\0"):
        raise NotAccepted("wrong-pcr", "another program extended the PCR before the daemon did")
    if not events or events[-1].hex() != sha256_of(read.statement["measured"]).removeprefix("sha256:"):
        raise NotAccepted("wrong-pcr", "the PCR was extended with other measurements than the statement has")


@frozen
class Quote:
    """A TPMS_ATTEST of one PCR in the SHA-256 bank."""

    qualifying: bytes
    pcr: int
    digest: bytes
    name: bytes
    """The qualified name of the key that signed."""

    @classmethod
    def parse(cls, data: bytes) -> Quote:
        """Return a quote. Raises ValueError or struct.error for other bytes."""
        if not data.startswith(_QUOTE):
            raise ValueError("no TPMS_ATTEST of a quote")
        at = len(_QUOTE)
        name, at = _sized(data, at)
        qualifying, at = _sized(data, at)
        at += 17 + 8  # clockInfo, firmwareVersion
        count, bank, size = struct.unpack_from(">IHB", data, at)
        selected = int.from_bytes(data[at + 7 : at + 7 + size], "little")
        digest, end = _sized(data, at + 7 + size)
        if count != 1 or bank != 0x000B or selected.bit_count() != 1 or end != len(data):
            raise ValueError("not one PCR of the SHA-256 bank")
        return cls(qualifying, selected.bit_length() - 1, digest, name)


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    size = struct.unpack_from(">H", data, at)[0]
    value = data[at + 2 : at + 2 + size]
    if len(value) != size:
        raise ValueError("it ends early")
    return value, at + 2 + size


def _ecdsa(signature: bytes) -> tuple[int, int]:
    """Return r and s of a TPMT_SIGNATURE. Raises ValueError or struct.error."""
    if struct.unpack_from(">HH", signature) != _ECDSA_SHA256:
        raise ValueError("no ECDSA signature with SHA-256")
    r, at = _sized(signature, 4)
    s, end = _sized(signature, at)
    if end != len(signature):
        raise ValueError("bytes after the signature")
    return int.from_bytes(r, "big"), int.from_bytes(s, "big")


def _signed_by(pem: str, numbers: tuple[int, int], data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(utils.encode_dss_signature(*numbers), data, ec.ECDSA(SHA256()))
            return True
    except (ValueError, InvalidSignature):
        pass
    return False
