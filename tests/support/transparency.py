"""Signed notes, checkpoints and Merkle trees once more, from the published specifications alone.

Nothing of hearth is imported: RFC 6962 section 2.1 is followed literally, by recursion over all leaves, and notes are
read by the grammar of c2sp.org/signed-note. Slow, and short enough to be seen to be right.
"""

from __future__ import annotations

import base64
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def split(count):
    k = 1
    while k * 2 < count:
        k *= 2
    return k


def root(leaves):
    """MTH(D[n])."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    k = split(len(leaves))
    return sha256(b"\x01" + root(leaves[:k]) + root(leaves[k:])).digest()


def path(m, leaves):
    """PATH(m, D[n])."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    return [*path(m, leaves[:k]), root(leaves[k:])] if m < k else [*path(m - k, leaves[k:]), root(leaves[:k])]


def proof(m, leaves, whole=True):
    """PROOF(m, D[n])."""
    if m == len(leaves):
        return [] if whole else [root(leaves)]
    k = split(len(leaves))
    if m <= k:
        return [*proof(m, leaves[:k], whole), root(leaves[k:])]
    return [*proof(m - k, leaves[k:], False), root(leaves[:k])]


def rooted(leaf, index, size, hashes):
    """The root that an inclusion proof leads to, by recursion over the shape of the tree."""
    if size == 1:
        assert not hashes
        return sha256(b"\x00" + leaf).digest()
    *inner, last = hashes
    k = split(size)
    if index < k:
        return sha256(b"\x01" + rooted(leaf, index, k, inner) + last).digest()
    return sha256(b"\x01" + last + rooted(leaf, index - k, size - k, inner)).digest()


def open_note(note, *vkeys):
    """The text of a note, and the names whose keys signed it; ValueError if no known key did, or if one did wrongly."""
    at = note.rindex("\n\n")
    text, lines = note[: at + 1], note[at + 2 :].splitlines()
    known = {}
    for vkey in vkeys:
        name, id_, key = vkey.split("+", 2)
        raw = base64.b64decode(key)
        assert sha256(name.encode() + b"\n" + raw).digest()[:4].hex() == id_
        known[name, id_] = raw
    signed = []
    for line in lines:
        dash, name, value = line.split(" ")
        assert dash == "\u2014"
        blob = base64.b64decode(value, validate=True)
        raw = known.get((name, blob[:4].hex()))
        if raw is None:
            continue
        message, signature = text.encode(), blob[4:]
        if raw[0] == 4:
            time = int.from_bytes(signature[:8], "big")
            message, signature = f"cosignature/v1\ntime {time}\n{text}".encode(), signature[8:]
        try:
            Ed25519PublicKey.from_public_bytes(raw[1:]).verify(signature, message)
        except InvalidSignature:
            raise ValueError(f"the signature of {name} is wrong") from None
        signed.append(name)
    if not signed:
        raise ValueError("no known key has signed")
    return text, signed


def read_checkpoint(note, *vkeys):
    """Origin, size and root of a checkpoint that the log itself has signed."""
    text, signed = open_note(note, *vkeys)
    origin, size, hash_ = text.splitlines()[:3]
    assert origin in signed
    return origin, int(size), base64.b64decode(hash_, validate=True)
