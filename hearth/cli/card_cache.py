"""Cards of other agents that were fetched before: kept until they expire, then asked for again (draft §4).

Owns the files of one directory, each the answer for one URL. Blocking, and never raises: what cannot be kept is fetched
again. A file holds what anybody may read; it is replaced whole.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any

import orjson

from hearth.transport.card import MAX_AGE_S, MAX_BYTES, Fetched

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_CARDS = 256
"""Files in the directory; the oldest go first."""

_FORMAT = 1


def default_directory(environ: Mapping[str, str]) -> Path | None:
    """$XDG_CACHE_HOME/hearth/cards, by default beneath ~/.cache; None for a user without a home."""
    from pathlib import Path

    base, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if base.startswith("/"):
        return Path(base) / "hearth/cards"
    return Path(home) / ".cache/hearth/cards" if home.startswith("/") else None


class CardCache:
    """The cards in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, url: str, now: float) -> tuple[Fetched, bool] | None:
        """What was kept for a URL, and whether it is still fresh; `now` in epoch seconds."""
        try:
            with self._file(url).open("rb") as file:
                kept = orjson.loads(file.read(2 * MAX_BYTES))
            return _read(kept, url, now)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, url: str, fetched: Fetched, now: float) -> None:
        """Keep an answer, or forget what there was if this one may not be kept."""
        file = self._file(url)
        with contextlib.suppress(OSError):
            if fetched.max_age is None:
                file.unlink(missing_ok=True)
                return
            document = {
                "format": _FORMAT,
                "asked": url,
                "url": fetched.url,
                "etag": fetched.etag,
                "at": now,
                "max_age": fetched.max_age,
                "body": base64.b64encode(fetched.body).decode("ascii"),
            }
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = file.with_name(f"{file.name}.{os.getpid()}.new")
            draft.write_bytes(orjson.dumps(document))
            draft.replace(file)
            self._prune()

    def _file(self, url: str) -> Path:
        return self._directory / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"

    def _prune(self) -> None:
        files = sorted(self._directory.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in files[:-MAX_CARDS]:
            file.unlink(missing_ok=True)


def _read(kept: Any, url: str, now: float) -> tuple[Fetched, bool]:
    """Raises ValueError, KeyError or TypeError for what this module did not write."""
    if kept["format"] != _FORMAT or kept["asked"] != url:
        raise ValueError("another format, or another URL's")
    at, max_age = float(kept["at"]), min(int(kept["max_age"]), MAX_AGE_S)
    etag = kept["etag"] if isinstance(kept["etag"], str) else None
    fetched = Fetched(str(kept["url"]), base64.b64decode(kept["body"], validate=True), etag, max_age)
    # A clock that was set back must not keep a card alive.
    return fetched, 0 <= now - at < max_age
