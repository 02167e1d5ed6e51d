"""A check that no directory of `[files]` reaches the daemon's own files (draft §12.2).

This module owns the list of those files: the audit log and all files whose names begin with its name, its key, the
socket, the configuration, the board's profile, certificates and capability files. A client that could read the signing
key or write the configuration could bypass every other rule.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hearth.audit.files import real
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hearth.audit.log import AuditSettings
    from hearth.config.model import Config


CARDS: Final = "agentcards"
"""The directory of declared agent cards, beside the audit log."""


def check_roots(
    config: Config, audit: AuditSettings, *, profile: Path | None, config_file: Path | None, socket: Path | None
) -> None:
    """Raise ConfigError for roots that hold a file of the daemon, or lie in such a directory; a line for each root.

    Directories are compared by device and inode, so that neither a link nor a mount hides one.
    """
    own = list(_own(config, audit, profile=profile, config_file=config_file, socket=socket))
    wrong = []
    for access, roots in (("read", config.files.read), ("write", config.files.write)):
        for number, root in enumerate(roots):
            reached = _reached(root, own, real(audit.path))
            if reached is not None:
                where = f'[files] {access}[{number}]: "{root}"'
                wrong.append(f"{where} {reached}; name a directory that has nothing of hearth's in it")
    if wrong:
        raise ConfigError("\n".join(wrong))


def _own(
    config: Config, audit: AuditSettings, *, profile: Path | None, config_file: Path | None, socket: Path | None
) -> Iterator[tuple[str, Path]]:
    yield "the audit log", real(audit.path)
    yield "the audit log's key", audit.key
    if socket is not None:
        yield "the socket", socket
    if config_file is not None:
        yield "the configuration", config_file
    if profile is not None:
        yield "the board's profile", profile
    for name, section in (("tls", config.tls), ("websocket", config.websocket), ("http", config.http)):
        for key, path in (("key", section.key), ("cert", section.cert), ("client_ca", section.client_ca)):
            if path is not None:
                yield f"[{name}] {key}", path
    for path in config.hcp.capability_paths:
        yield "capability files", path
        with suppress(OSError):  # the loader of the files reports a directory that cannot be listed
            yield from (("capability files", file) for file in path.glob("*") if file.is_symlink())
    yield "agent cards", real(audit.path).parent / CARDS


def _reached(root: Path, own: list[tuple[str, Path]], log: Path) -> str | None:
    """Return the daemon's file that a root reaches, in words; None for a root that reaches none or does not exist."""
    above = _identities(root)
    if not above or above[0] is None:
        return None
    for what, path in own:
        identities = _identities(path)
        if above[0] in identities:
            return f"holds {what} ({path})"
        if identities[0] is not None and identities[0] in above:
            return f"lies in {path}, which holds {what}"
    beside = _identities(log.parent)[0]
    for place, parent in zip((root.resolve(), *root.resolve().parents), above[1:], strict=False):
        if parent is not None and parent == beside and place.name.startswith(log.name):
            return f"lies in {place}, which belongs to the audit log"
    return None


def _identities(path: Path) -> list[tuple[int, int] | None]:
    """Return device and inode of a path and of all directories above it; None for one that cannot be examined."""
    resolved = path.resolve()
    return [_identity(place) for place in (resolved, *resolved.parents)]


def _identity(place: Path) -> tuple[int, int] | None:
    try:
        status = place.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
