"""The daemon's Ed25519 key: made, kept private, and used to sign checkpoints; its public half is written beside it.

A checkpoint's signature covers the bytes of `checkpoint_message`, so that `openssl pkeyutl` can check it as well.
`cryptography` takes 70 ms to import: it is loaded when a key is made, read or used, and never before the daemon is
ready. `inspect` checks without it if a key file can be used.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING

from hearth._util.files import write_new
from hearth.audit.writer import sync_names
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
"""The beginning of an unencrypted PKCS #8 Ed25519 key (RFC 8410 §7); the 32 bytes of the key follow."""
_PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")
"""The same for a SubjectPublicKeyInfo (RFC 8410 §4)."""
_RAW_BYTES = 32
_DRAFT = re.compile(r"\.([0-9]{1,9})\.new")
_PEM = re.compile(r"-----BEGIN (PRIVATE|PUBLIC) KEY-----\s+([A-Za-z0-9+/=\s]+?)\s*-----END \1 KEY-----")


def checkpoint_message(seq: int, head: str, ts: str) -> bytes:
    """Return the bytes that a checkpoint signs: a fixed line, the head's seq and hash, and the checkpoint's own ts."""
    return f"hearth audit checkpoint\n{seq}\n{head}\n{ts}\n".encode()


def public_path(key: Path) -> Path:
    """Return the path of the public half of `key`: `<key>.pub`."""
    return key.with_name(key.name + ".pub")


class Signer:
    """A private key that is ready to sign. `key_id` names it in checkpoints."""

    __slots__ = ("_private", "key_id", "raw")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.raw = private.public_key().public_bytes_raw()
        """The 32 bytes of the public half."""
        self.key_id = _key_id(self.raw)

    def sign_bytes(self, message: bytes) -> bytes:
        """Return the 64 bytes of the signature; takes about 60 µs."""
        return self._private.sign(message)

    def sign(self, message: bytes) -> str:
        """Return the signature in base64."""
        return base64.b64encode(self.sign_bytes(message)).decode("ascii")

    @property
    def public_pem(self) -> str:
        """Return the public half, as the PEM block that openssl reads."""
        return public_pem(self.raw)


class PublicKeys:
    """The keys that checkpoints are verified with, by their id."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = dict(keys)

    def __contains__(self, key_id: object) -> bool:
        return isinstance(key_id, str) and key_id in self._keys

    def raw(self) -> dict[str, bytes]:
        """Return the 32 bytes of each key, by its id."""
        return {key_id: key.public_bytes_raw() for key_id, key in self._keys.items()}

    def verify(self, key_id: str, message: bytes, signature: str) -> bool:
        """True if `signature` (base64) over `message` was made with the key of that id."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._keys[key_id].verify(base64.b64decode(signature, validate=True), message)
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


def inspect(path: Path) -> bool:
    """Return True if there is a key at `path`; costs no import.

    Raises ConfigError if there is one that others can read or that is no Ed25519 key.
    """
    try:
        _read_private(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"audit key {path}: {error.strerror}; see [audit] key") from error
    return True


def load_or_create(path: Path) -> Signer:
    """Read the key at `path`, or make it (0600, its directory 0700); make sure that `<path>.pub` holds its public half.

    Both are on the disk with their names when it returns: a signature whose key a power cut takes away proves nothing.
    Blocking. Raises ConfigError for a key that cannot be used and OSError where a file cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    _sweep(path)
    if not inspect(path):
        _create(path, Ed25519PrivateKey.generate().private_bytes_raw())
    signer = Signer(Ed25519PrivateKey.from_private_bytes(_read_private(path)))
    _publish(public_path(path), signer.public_pem)
    sync_names(path, path.parent)
    return signer


def load_public(path: Path) -> PublicKeys:
    """Read every public key in the PEM file at `path`. Raises ConfigError if there is none."""
    try:
        text = path.read_text("ascii", "replace")  # between the keys there may be what a power cut left
    except OSError as error:
        raise ConfigError(f"public key {path}: {error}") from error
    return parse_public(text, str(path))


def parse_public(text: str, source: str) -> PublicKeys:
    """Return every public key in PEM text; `source` names it in the error. Raises ConfigError if there is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    keys = {}
    for match in _PEM.finditer(text):
        raw = _unwrap(match, "PUBLIC", _PUBLIC_DER)
        if raw is not None:
            keys[_key_id(raw)] = Ed25519PublicKey.from_public_bytes(raw)
    if not keys:
        raise ConfigError(f"public key {source}: no Ed25519 public key in PEM form; give the file <[audit] key>.pub")
    return PublicKeys(keys)


def public_pem(raw: bytes) -> str:
    """Return a public key of 32 bytes as the PEM block that openssl reads."""
    return _pem("PUBLIC", _PUBLIC_DER + raw)


def _key_id(raw: bytes) -> str:
    return "ed25519:" + hashlib.sha256(raw).hexdigest()[:16]


def _pem(kind: str, der: bytes) -> str:
    return f"-----BEGIN {kind} KEY-----\n{base64.b64encode(der).decode('ascii')}\n-----END {kind} KEY-----\n"


def _unwrap(match: re.Match[str], kind: str, prefix: bytes) -> bytes | None:
    """Return the 32 bytes of a key in a PEM block, or None for another kind of block."""
    try:
        der = base64.b64decode("".join(match[2].split()), validate=True)
    except binascii.Error:
        return None
    if match[1] != kind or not der.startswith(prefix) or len(der) != len(prefix) + _RAW_BYTES:
        return None
    return der[len(prefix) :]


def _read_private(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"audit key {path}: not a regular file; name another one in [audit] key")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(f"audit key {path}: mode {mode:04o} lets others use the key; chmod 600 {path}")
        if status.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"audit key {path}: belongs to uid {status.st_uid}; chown it to uid {os.geteuid()}")
        text = os.read(descriptor, 4096).decode("ascii", "replace")
    finally:
        os.close(descriptor)
    match = _PEM.search(text)
    raw = _unwrap(match, "PRIVATE", _PRIVATE_DER) if match else None
    if raw is None:
        raise ConfigError(
            f"audit key {path}: not an unencrypted Ed25519 private key in PEM form; move it away and a new one is made"
        )
    return raw


def _sweep(path: Path) -> None:
    """Remove drafts of the key whose writers have died."""
    with contextlib.suppress(OSError):
        for file in path.parent.iterdir():
            match = _DRAFT.fullmatch(file.name.removeprefix(path.name))
            if match is not None and not _is_at_work(int(match[1])):
                file.unlink(missing_ok=True)


def _is_at_work(pid: int) -> bool:
    """Return True if this process may be writing a draft; our own process has none before it begins."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _create(path: Path, raw: bytes) -> None:
    """Write a new key so that a crash leaves it whole or absent, and never over an existing one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        write_new(draft, _pem("PRIVATE", _PRIVATE_DER + raw).encode(), 0o600)
        with contextlib.suppress(FileExistsError):  # another process of ours was faster: its key is as good
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _publish(path: Path, pem: str) -> None:
    """Add a public key to the file, which thus lists every key this daemon has signed with."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as file:
            if pem in file.read():
                os.fsync(file.fileno())  # an earlier life wrote it, and may not have come to this
                return
    except FileNotFoundError:
        write_new(path, pem.encode(), 0o644)
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
