"""The files of certificates and keys: written whole or not at all, with modes that let no other user read a key."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from hearth._util.files import write_new
from hearth.errors import ConfigError
from hearth.transport import certificates

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LARGEST = 1 << 20


def write_all(folder: Path, identities: Mapping[str, certificates.CertificateIdentity]) -> None:
    """Write NAME.pem and NAME.key of each identity, all or none; never overwrite a file. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        _check_folder(folder)
    contents = {}
    for name, identity in identities.items():
        # The key first: a certificate without its key would be noticed only at its use.
        contents[folder / f"{name}.key"] = (identity.key, 0o600)
        contents[folder / f"{name}.pem"] = (identity.cert, 0o644)
    there = [path for path in contents if os.path.lexists(path)]
    if there:
        raise ConfigError(
            f"{there[0]} is there already and is not overwritten; name another directory or client, or move it away"
        )
    with contextlib.ExitStack() as undo:
        for path, (content, mode) in contents.items():
            write_new(path, content, mode)
            undo.callback(path.unlink)
        undo.pop_all()


def _check_folder(folder: Path) -> None:
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{folder} is not a directory; name another one")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{folder} belongs to uid {status.st_uid}; name a directory of your own")
    if status.st_mode & 0o022:
        # A user who can write there can replace the CA by another one.
        raise ConfigError(f"others can write into {folder}; chmod 700 {folder}")


def replace(path: Path, content: bytes) -> None:
    """Put new content in the place of a file, which keeps its mode."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(content)
        draft.chmod(stat.S_IMODE(path.stat().st_mode))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> bytes:
    """Return the content of a file. Raises ConfigError if it is too large for a certificate, and OSError."""
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ConfigError("it is far too large for a certificate")
    return content


def authority_in(folder: Path, now: dt.datetime) -> certificates.CertificateIdentity:
    """Return the CA in a folder that `hearth admin tls init` has made. Raises ConfigError."""
    try:
        with about(folder / "ca.pem"):
            authority = certificates.CertificateIdentity(read(folder / "ca.pem"), read(folder / "ca.key"))
            certificates.check_authority(authority, now)
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename} is not there; `hearth admin tls init {folder}` makes a CA first") from None
    return authority


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Put the file's name in front of a ConfigError of the block."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
