"""True answers of attest.quote and forged ones, made with keys of the test's own.

The TPM's part is made in software: its key is an ordinary P-256 key, and the TPMS_ATTEST is packed here by the
specification (TPM 2.0 Library, Part 2). What a TPM really makes is for test_attest_daemon.py.

    python -m attest.forge      # from tests/: write docs/reference/attestation-vectors.json again, with new keys
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support import transparency

from hearth.attest.measure import sha256_of
from hearth.attest.statement import FORMAT, Enrolment, make
from hearth.audit.keys import Signer
from hearth.audit.notes import Checkpoint

VECTORS = Path(__file__).parents[2] / "docs" / "reference" / "attestation-vectors.json"
NOW = 1_776_638_881.234
NONCE, EARLIER, LATER = "0f" * 32, "01" * 32, "02" * 32
ORIGIN = "hearth-audit/" + "ab" * 16
LINES = [b"record %d" % n for n in range(20)]
FORKED = [*LINES[:3], b"another", *LINES[4:]]
HASHES = ("hearth", "dependencies", "bytecode", "files", "configuration", "policy", "tools", "limits")
MEASURED = {"version": "0.1.0", "python": "3.11.2", **{name: sha256_of(name) for name in HASHES}}


def b64(data):
    return base64.b64encode(data).decode()


class Keys:
    """The keys of one machine."""

    def __init__(self):
        self.signer = Signer(Ed25519PrivateKey.generate())
        self.ak = ec.generate_private_key(ec.SECP256R1())

    @property
    def ak_pem(self):
        return self.ak.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


OURS, OTHERS = Keys(), Keys()


def extended(before, events):
    for event in events:
        before = hashlib.sha256(before + event).digest()
    return before


def quote(keys, payload, pcr, value):
    """A TPMS_ATTEST of one PCR and its TPMT_SIGNATURE, in base64."""
    name, extra = b"\x00\x0b" + bytes(32), hashlib.sha256(payload).digest()
    selected = (1 << pcr).to_bytes(3, "little")
    data = b"\xffTCG\x80\x18" + struct.pack(">H", len(name)) + name + struct.pack(">H", len(extra)) + extra
    data += bytes(17) + bytes(8) + struct.pack(">IHB", 1, 0x000B, 3) + selected
    data += struct.pack(">H", 32) + hashlib.sha256(value).digest()
    r, s = utils.decode_dss_signature(keys.ak.sign(data, ec.ECDSA(SHA256())))
    signature = struct.pack(">HH", 0x0018, 0x000B)
    for number in (r, s):
        signature += struct.pack(">H", 32) + number.to_bytes(32, "big")
    return {"quote": b64(data), "signature": b64(signature)}


def answer(
    nonce=NONCE, *, keys=OURS, ak=None, lines=LINES, size=12, old=5, tpm=True, pcr=23, before=bytes(32),
    quoted_pcr=None, value=None, events=None, origin=ORIGIN, quoted=None, note=None, **measured
):  # fmt: skip
    """An answer of a machine with these keys, as it is or with one thing forged."""
    found = {**MEASURED, **measured}
    root = transparency.root(lines[:size])
    statement = {
        "format": FORMAT,
        "nonce": nonce,
        "time": "2026-04-19T22:48:01.234Z",
        "started": "2026-04-19T20:00:00.000Z",
        "boot_id": "89c567ab-6777-4f2c-ae8d-6038c6b4bd8b",
        "measured": found,
        "audit": {"seq": size, "hash": sha256_of(size), "origin": origin, "size": size, "root": b64(root)},
    }
    extensions = [bytes.fromhex(sha256_of(found)[7:])] if events is None else events
    if tpm:
        statement["tpm"] = {"pcr": pcr, "before": before.hex(), "events": [each.hex() for each in extensions]}
    made = make(statement, keys.signer)
    made["checkpoint"] = note or Checkpoint.of(origin, size, root).signed(keys.signer)
    if old is not None:
        made["consistency"] = [b64(each) for each in transparency.proof(old, lines[:size])] if 0 < old <= size else []
    if tpm:
        payload = base64.b64decode(made["payload"]) if quoted is None else quoted
        register = extended(before, extensions) if value is None else value
        made["tpm"] = quote(ak or keys, payload, pcr if quoted_pcr is None else quoted_pcr, register)
    return made


def enrolment(**changes):
    """What the verifier has kept of the machine with OURS: 5 records of its log."""
    known = {
        "public": OURS.signer.public_pem,
        "measured": MEASURED,
        "checkpoint": Checkpoint.of(ORIGIN, 5, transparency.root(LINES[:5])).signed(OURS.signer),
        "expires": NOW + 86_400,
        "ak": OURS.ak_pem,
        "ak_name": "000b" + "00" * 32,
        "pcr": 23,
        "nonces": [EARLIER],
    }
    return Enrolment(**{**known, **changes})


def changed(made, *place, to):
    made = copy.deepcopy(made)
    inner = made
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = to(inner[place[-1]]) if callable(to) else to
    return made


def resigned(made, keys=OURS, **members):
    """The answer with other members of its statement, signed again."""
    statement = {**json.loads(base64.b64decode(made["payload"])), **members}
    return {**made, **make(statement, keys.signer)}


def flipped(text):
    data = bytearray(base64.b64decode(text))
    data[len(data) // 2] ^= 1
    return b64(bytes(data))


def ending_in_x(text):
    return b64(base64.b64decode(text)[:-1] + b"x")


OTHER = sha256_of("other")
PLAIN = answer(tpm=False)
QUOTED = base64.b64decode(answer()["payload"])
FORGERIES = {
    "the answer to another question": ("other-nonce", answer(LATER)),
    "the answer to an earlier question": ("replayed-nonce", answer(EARLIER)),
    "a question that was asked before": ("replayed-nonce", answer(EARLIER), {"nonce": EARLIER}),
    "signed by another key": ("unknown-key", answer(keys=OTHERS)),
    "another key under our key's name": (
        "bad-signature",
        changed(answer(keys=OTHERS), "signatures", 0, "keyid", to=OURS.signer.key_id),
    ),
    "a changed byte of the statement": (
        "bad-signature",
        changed(answer(), "payload", to=lambda text: b64(base64.b64decode(text).replace(b"2026-04-19", b"2026-04-20"))),
    ),
    "a changed signature": ("bad-signature", changed(answer(), "signatures", 0, "sig", to=flipped)),
    "no signature": ("unknown-key", changed(answer(), "signatures", to=[])),
    "an enrolment whose time is over": ("expired-key", answer(), {"expires": NOW - 1}),
    "a payload of another type": ("not-a-statement", changed(answer(), "payloadType", to="text/plain")),
    "a statement of another format": ("not-a-statement", resigned(answer(), format="hearth-attestation/2")),
    "no statement": ("not-a-statement", changed(answer(), "payload", to="!")),
    **{f"another {name}": (f"changed-{name}", answer(**{name: OTHER})) for name in MEASURED},
    "a measurement that is new": ("changed-firmware", answer(firmware=OTHER)),
    "a checkpoint of another size than the statement": (
        "other-checkpoint",
        answer(note=Checkpoint.of(ORIGIN, 13, transparency.root(LINES[:13])).signed(OURS.signer)),
    ),
    "a checkpoint by another key": (
        "unknown-key",
        answer(note=Checkpoint.of(ORIGIN, 12, transparency.root(LINES[:12])).signed(OTHERS.signer)),
    ),
    "no checkpoint": ("not-a-checkpoint", changed(answer(), "checkpoint", to="")),
    "a log that was cut": ("rolled-back-log", answer(size=4, old=None)),
    "a log that was written again": ("forked-log", answer(lines=FORKED)),
    "a log that was written again, to the same size": ("forked-log", answer(lines=FORKED, size=5)),
    "a log without the proof": ("forked-log", answer(old=None)),
    "a log with the proof for another size": ("forked-log", answer(old=4)),
    "another log": ("other-log", answer(origin="hearth-audit/" + "cd" * 16)),
    "a proof that is none": ("not-a-proof", changed(answer(), "consistency", to=["AAAA"])),
    "no quote": ("no-tpm", answer(tpm=False)),
    "a quote by another TPM": ("other-tpm", answer(ak=OTHERS)),
    "a changed quote": ("other-tpm", changed(answer(), "tpm", "quote", to=ending_in_x)),
    "the quote of another answer": ("other-quote", answer(quoted=base64.b64decode(answer(LATER)["payload"]))),
    "a quote of another register": ("wrong-pcr", answer(quoted_pcr=16)),
    "another register than was enrolled": ("wrong-pcr", answer(pcr=16)),
    "a register with another value": ("wrong-pcr", answer(value=bytes(32))),
    "a register that other software had extended": ("wrong-pcr", answer(before=b"x" * 32)),
    "a register that was extended with other measurements": ("wrong-pcr", answer(events=[bytes(32)])),
    "a register that was extended with nothing": ("wrong-pcr", answer(events=[])),
    "bytes that are no quote": ("not-a-quote", changed(answer(), "tpm", "quote", to=b64(b"\xffTCG\x80\x18\x00\x02"))),
    "a quote with a byte too many": (
        "not-a-quote",
        changed(answer(), "tpm", "quote", to=lambda text: b64(base64.b64decode(text) + b"x")),
    ),
    "a signature of another kind": ("not-a-quote", changed(answer(), "tpm", "signature", to=b64(bytes(72)))),
    "a signature with a byte too many": (
        "not-a-quote",
        changed(answer(), "tpm", "signature", to=lambda text: b64(base64.b64decode(text) + b"x")),
    ),
}  # fmt: skip
"""What was forged: the name of the refusal, the answer, and what else differs: the nonce, or the enrolment."""


def vectors():
    """The answers to accept and to refuse, as JSON."""
    found = [
        {"what": "a true answer", "refused": None, "answer": answer(), "nonce": NONCE},
        {"what": "a true answer without a TPM", "refused": None, "answer": PLAIN, "nonce": NONCE, "without_tpm": True},
    ]
    for what, (refused, forged, *more) in FORGERIES.items():
        other = more[0] if more else {}
        nonce, late = other.get("nonce", NONCE), "expires" in other
        found.append({"what": what, "refused": refused, "answer": forged, "nonce": nonce, "late": late})
    enrolled = json.loads(enrolment().save())
    return {"format": FORMAT, "now": NOW, "enrolment": enrolled, "vectors": found}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n", "utf-8")
