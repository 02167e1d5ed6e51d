"""How an artifact is called: `hcp://SESSION/artifacts/FILE`, and which names SESSION and FILE may be.

Both become names in a directory, so what could mean anything else there (a separator, a leading dot) is no name.
"""

from __future__ import annotations

import re

from attrs import frozen

_SESSION = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FILE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_IS_SESSION = re.compile(_SESSION)
_IS_FILE = re.compile(_FILE)
_IS_URI = re.compile(rf"hcp://({_SESSION})/artifacts/({_FILE})")


@frozen
class ArtifactUri:
    """The two names in it."""

    session_id: str
    file: str


def is_session(name: str) -> bool:
    """Whether this is an id that a session of ours may have: a UUID in lower case."""
    return _IS_SESSION.fullmatch(name) is not None


def is_file(name: str) -> bool:
    """Whether an artifact's file may be called so: letters, digits, '.', '_' and '-', 64 at most, no sign first."""
    return _IS_FILE.fullmatch(name) is not None


def write_uri(session_id: str, file: str) -> str:
    """The URI of a session's file."""
    return f"hcp://{session_id}/artifacts/{file}"


def parse_uri(uri: str) -> ArtifactUri:
    """The names in a URI. Raises ValueError."""
    match = _IS_URI.fullmatch(uri)
    if match is None:
        raise ValueError(f"expected hcp://SESSION/artifacts/FILE, got {uri[:120]!r}")
    return ArtifactUri(match[1], match[2])
