"""Signed notes (c2sp.org/signed-note), checkpoints (c2sp.org/tlog-checkpoint), and what a witness signs.

A checkpoint is a note of three lines: the log's origin, the size of its tree, and the root hash. The log signs it with
the audit key, under its origin as the key's name. A witness (c2sp.org/tlog-witness) cosigns (c2sp.org/tlog-cosignature)
only checkpoints that continue the last one it cosigned, so that two readers of a log with the same witness see one log.

`Witness` owns the rules and the file of its memory; it reads no log and asks no daemon.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Final

import orjson
from attrs import define, frozen

from hearth._util.files import replace_file
from hearth._util.formats import check_format
from hearth.audit.tree import NotProven, check_consistency, check_inclusion, leaf_hash
from hearth.errors import ConfigError, HearthError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hearth.audit import keys

ED25519: Final = 1
COSIGNATURE: Final = 4
MOST_BYTES: Final = 65_536
"""Size of a note, or of a request to a witness, that is read."""
_SIGNATURE: Final = re.compile(r"\u2014 ([^\s+]+) ([A-Za-z0-9+/]+={0,2})")
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_FORMAT: Final = 1
"""The format of a witness's memory."""
_HASH: Final = 32
_PROOF: Final = "c2sp.org/tlog-proof@v1"
_PROOF_HEAD: Final = re.compile(rf"{re.escape(_PROOF)}\n(?:extra .*\n)?index ({_SIZE.pattern})((?:\n.*)*)")
"""`extra` is an application's, which the format permits."""


class NotAccepted(HearthError):
    """The error for a note, a checkpoint or a statement that is refused; `name` is the kind of the fault."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


def key_id(name: str, kind: int, raw: bytes) -> bytes:
    """Return the four bytes that identify a key in a signature line."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + raw).digest()[:4]


def verifier_key(name: str, kind: int, raw: bytes) -> str:
    """Return a public key as one line, as other implementations of the format read it (a vkey)."""
    return f"{name}+{key_id(name, kind, raw).hex()}+{_encode(bytes([kind]) + raw)}"


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    """Return what base64 encodes, in its one form (RFC 4648 §3.5). Raises binascii.Error."""
    data = base64.b64decode(text, validate=True)
    if _encode(data) != text:
        raise binascii.Error("bits after the last byte")
    return data


def decode_hashes(lines: Iterable[str]) -> list[bytes]:
    """Return the hashes of a proof, which come in base64. Raises NotAccepted."""
    try:
        hashes = [_decode(line) for line in lines]
    except (binascii.Error, ValueError):
        hashes = [b""]
    if any(len(each) != _HASH for each in hashes):
        raise NotAccepted("not-a-proof", "a line of the proof is no hash of 32 bytes in base64")
    return hashes


@frozen
class Checkpoint:
    """A checkpoint as read; nothing of it is verified. `text` is what the signatures cover."""

    origin: str
    size: int
    root: bytes
    text: str
    signatures: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(cls, origin: str, size: int, root: bytes) -> Checkpoint:
        """Return a checkpoint that has no signature yet."""
        return cls(origin, size, root, f"{origin}\n{size}\n{_encode(root)}\n")

    @classmethod
    def parse(cls, note: str) -> Checkpoint:
        """Return the checkpoint of a note. Raises NotAccepted for text that is none."""
        text, blank, below = note.rpartition("\n\n")
        lines = text.split("\n")
        signatures = [_SIGNATURE.fullmatch(line) for line in below.split("\n")[:-1]]
        if not blank or len(note) > MOST_BYTES or len(lines) < 3 or not below.endswith("\n") or not all(signatures):
            raise NotAccepted("not-a-checkpoint", "the text is no signed note of an origin, a size and a root hash")
        if not lines[0] or not _SIZE.fullmatch(lines[1]):
            raise NotAccepted("not-a-checkpoint", f"its second line is no size: {lines[1][:40]!r}")
        try:
            found = tuple((match[1], _decode(match[2])) for match in signatures if match)
        except binascii.Error:
            raise NotAccepted("not-a-checkpoint", "a signature is not in base64") from None
        return cls(lines[0], int(lines[1]), decode_hashes([lines[2]])[0], f"{text}\n", found)

    def signed(self, signer: keys.Signer) -> str:
        """Return the note, signed by the log itself."""
        made = key_id(self.origin, ED25519, signer.raw) + signer.sign_bytes(self.text.encode())
        return f"{self.text}\n\u2014 {self.origin} {_encode(made)}\n"

    def cosigned(self, signer: keys.Signer, name: str, now: int) -> str:
        """Return the line of a witness's cosignature; `now` in epoch seconds."""
        signature = signer.sign_bytes(f"cosignature/v1\ntime {now}\n{self.text}".encode())
        return f"\u2014 {name} {_encode(key_id(name, COSIGNATURE, signer.raw) + now.to_bytes(8, 'big') + signature)}\n"

    def signer_among(self, public: keys.PublicKeys) -> str:
        """Return the id of the key among `public` that signed this as the log. Raises NotAccepted if none did."""
        for name, signature in self.signatures:
            for known, raw in public.raw().items():
                if name == self.origin and signature[:4] == key_id(name, ED25519, raw):
                    if not public.verify(known, self.text.encode(), _encode(signature[4:])):
                        raise NotAccepted("bad-signature", f"the checkpoint's signature by {known} is wrong")
                    return known
        raise NotAccepted("unknown-key", "the checkpoint is signed by none of the known keys of this log")


def continues(old: Checkpoint, new: Checkpoint, proof: Sequence[bytes]) -> None:
    """Check that `new` is a later state of the log of `old`. Raises NotAccepted, with the kind of the fault."""
    if new.origin != old.origin:
        raise NotAccepted("other-log", f"it is of the log {new.origin[:80]!r}, and not of {old.origin!r}")
    if new.size < old.size:
        raise NotAccepted("rolled-back-log", f"the log has {new.size} records, and had {old.size} before")
    try:
        check_consistency(old.size, old.root, new.size, new.root, proof)
    except NotProven as error:
        reason = f"its {new.size} records do not begin with the {old.size} records that were there before: {error}"
        raise NotAccepted("forked-log", reason) from None


def witness_request(old: int, proof: Iterable[bytes], note: str) -> str:
    """Return the body of a request to a witness (add-checkpoint)."""
    return "".join([f"old {old}\n", *(f"{_encode(each)}\n" for each in proof), "\n", note])


def read_witness_request(body: str) -> tuple[int, list[bytes], str]:
    """Return the old size, the consistency proof and the note of such a request. Raises NotAccepted."""
    head, _, note = body.partition("\n\n")
    first, *proof = head.split("\n")
    word, _, size = first.partition(" ")
    if word != "old" or not _SIZE.fullmatch(size) or not note or len(body) > MOST_BYTES:
        raise NotAccepted("not-a-request", "it begins with no line `old SIZE`, or has no checkpoint behind the proof")
    return int(size), decode_hashes(proof), note


def inclusion_text(index: int, path: Iterable[bytes], note: str) -> str:
    """Return a proof of one record as c2sp.org/tlog-proof has it."""
    hashes = "".join(f"{_encode(each)}\n" for each in path)
    return f"{_PROOF}\nindex {index}\n{hashes}\n{note}"


def verify_inclusion(proof: str, record: bytes, known: keys.PublicKeys) -> tuple[int, Checkpoint, str]:
    """Verify such a proof of a record, a line of the log without its LF, with the log's public keys.

    Return the record's index, the checkpoint, and the id of the key that signed it. Raises NotAccepted.
    """
    head, _, note = proof.partition("\n\n")
    found = _PROOF_HEAD.fullmatch(head)
    if found is None or len(proof) > MOST_BYTES:
        raise NotAccepted("not-a-proof", f"it begins with no line `{_PROOF}`, or its second line is no index")
    index, hashes = int(found[1]), found[2].split("\n")[1:]
    checkpoint = Checkpoint.parse(note)
    signer = checkpoint.signer_among(known)
    try:
        check_inclusion(leaf_hash(record), index, checkpoint.size, decode_hashes(hashes), checkpoint.root)
    except NotProven as error:
        raise NotAccepted("not-in-log", str(error)) from None
    return index, checkpoint, signer


@define
class Witness:
    """The memory of a witness: the last checkpoint that it cosigned of each log, in the file at `path`.

    `known` are the keys whose checkpoints it takes. The caller holds a lock on the file.
    """

    path: Path
    name: str
    known: keys.PublicKeys
    signer: keys.Signer

    def last(self, origin: str) -> Checkpoint | None:
        """Return the last checkpoint of a log that was cosigned. Raises ConfigError for a damaged file."""
        note = self._read().get(origin)
        return None if note is None else Checkpoint.parse(note)

    def only(self) -> Checkpoint | None:
        """Return the last checkpoint of the one log that this witness knows, or None."""
        notes = self._read()
        return Checkpoint.parse(next(iter(notes.values()))) if len(notes) == 1 else None

    def cosign(self, old: int, proof: Sequence[bytes], note: str, now: int, *, new_log: bool = False) -> str:
        """Check a checkpoint, remember it on the disk, and return it with the cosignature. Raises NotAccepted.

        A key has one log: that of another origin is taken, in place of the one that is known, only as a `new_log`.
        """
        checkpoint = Checkpoint.parse(note)
        signer, remembered = checkpoint.signer_among(self.known), self._read()
        if (known := remembered.get(checkpoint.origin)) is not None:
            last = Checkpoint.parse(known)
            if checkpoint.size >= last.size and old != last.size:
                raise NotAccepted(
                    "other-size", f"the proof begins at {old} records; the last checkpoint has {last.size}"
                )
            continues(last, checkpoint, proof)
        elif old or proof:
            raise NotAccepted("other-size", f"the proof begins at {old} records; no checkpoint of this log is known")
        else:
            for origin in [origin for origin, one in remembered.items() if self._signer_of(one) == signer]:
                if not new_log:
                    why = f"its key has signed the log {origin}, and this is another one: {checkpoint.origin}"
                    raise NotAccepted("second-log", f"{why}; find out who began it anew, then take it with --new-log")
                del remembered[origin]
        memory = {"format": _FORMAT, **remembered, checkpoint.origin: note}
        replace_file(self.path, orjson.dumps(memory), 0o600, sync=True)
        return note + checkpoint.cosigned(self.signer, self.name, now)

    def _signer_of(self, note: str) -> str | None:
        """Return the known key that has signed a remembered checkpoint; None if it is of another one."""
        try:
            return Checkpoint.parse(note).signer_among(self.known)
        except NotAccepted:
            return None

    def _read(self) -> dict[str, str]:
        try:
            content = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, orjson.JSONDecodeError) as error:
            raise ConfigError(f"{self.path}: cannot be read: {error}; restore it from a copy") from None
        if isinstance(content, dict):
            check_format(f"memory of a witness {self.path}", content.pop("format", 1), _FORMAT, "name another file")
        if not isinstance(content, dict) or not all(isinstance(note, str) for note in content.values()):
            raise ConfigError(f"{self.path}: is no memory of a witness; name another file")
        return content
