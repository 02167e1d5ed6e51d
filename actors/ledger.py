"""The file of driven outputs, which a run that is killed leaves to the next one.

Owns `<audit log>.outputs`: the outputs of all buses that have been driven and are not yet safe, each written down
before it is first driven. It refuses to know whose they are and what is safe for them.

The file is replaced whole, never synced: it must outlive the process, and a power cut resets the pins anyway. It is
written when the set of driven outputs changes, and not while the same outputs are driven again and again. Whoever holds
the audit log's lock owns it.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING, Any

import orjson
from attrs import field, frozen

from hearth._util.files import replace_file
from hearth.audit.record import timestamp
from hearth.errors import AuditUnavailable

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping
    from pathlib import Path

log = logging.getLogger("hearth.ledger")

_VERSION = 1
_MOST_BYTES = 1 << 20


@frozen
class Found:
    """What an earlier run left: `outputs` by bus id; or why its file could not be read, and where it is now."""

    outputs: Mapping[str, tuple[Hashable, ...]] = field(factory=dict)
    trouble: str | None = None
    aside: Path | None = None

    def notes(self) -> list[str]:
        """For a person, one line each."""
        if self.trouble is not None:
            kept = f"; it is now {self.aside}" if self.aside else ""
            return [f"{self.trouble}{kept}: which outputs the last run left driven is not known, look at the hardware"]
        return [
            f"bus {bus}: the last run left outputs driven: {', '.join(map(str, outputs))}"
            for bus, outputs in self.outputs.items()
        ]


class Ledger:
    """The file. Without a path it remembers nothing beyond the process: for tests, and for who wants no file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.found = Found()
        self.failure: str | None = None
        """Why the file does not say what is so, or None."""
        self._driven: dict[str, dict[Hashable, None]] = {}

    def open(self, now: float) -> list[str]:
        """Read what an earlier run left into `found`; notes for a person. Call it with the audit log locked.

        Blocking, and never raises: a file that cannot be read is moved aside, and said to be. `now` in epoch seconds.
        """
        if self.path is not None:
            self.found = self._read(self.path, now)
            self._driven = {bus: dict.fromkeys(outputs) for bus, outputs in self.found.outputs.items()}
        return self.found.notes()

    def _read(self, path: Path, now: float) -> Found:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return Found()
        except OSError as error:
            return self._moved_aside(path, str(error.strerror), now)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return self._moved_aside(path, "not a regular file", now)
            return Found(_parse(os.read(fd, _MOST_BYTES)))
        except (OSError, ValueError) as error:
            return self._moved_aside(path, str(error), now)
        finally:
            os.close(fd)

    def _moved_aside(self, path: Path, why: str, now: float) -> Found:
        stamp = timestamp(now).replace("-", "").replace(":", "")
        aside = path.with_name(f"{path.name}.found-{stamp}")
        trouble = f"driven outputs {path}: cannot be read: {why}"
        try:
            path.rename(aside)
        except OSError as error:
            self.failure = f"{trouble}, nor moved away: {error.strerror}"
            return Found(trouble=self.failure)
        return Found(trouble=trouble, aside=aside)

    def add(self, bus: str, output: Hashable, *, insist: bool) -> None:
        """Write down that an output is about to be driven.

        Raises AuditUnavailable, with effect "none", if it cannot be written; unless it is driven all the same
        (`insist`), because that takes back what was done before.
        """
        outputs = self._driven.setdefault(bus, {})
        if output in outputs:
            return
        outputs[output] = None
        if self._write() or insist:
            return
        del outputs[output]
        raise AuditUnavailable(
            f"the record of driven outputs cannot be written: {self.failure}",
            data={"reason": self.failure, "effect": "none"},
        )

    def strike(self, bus: str, outputs: Iterable[Hashable]) -> None:
        """Write down that outputs are safe, or nobody's: kept as they are by the profile. Never raises."""
        driven = self._driven.get(bus, {})
        known = [output for output in outputs if output in driven]
        for output in known:
            del driven[output]
        if known:
            self._write()

    def flush(self) -> None:
        """Try once more to write what could not be written; for the end."""
        if self.failure is not None:
            self._write()

    def _write(self) -> bool:
        """Replace the file by what is so now; False, with `failure` set, if that cannot be done.

        A few hundred bytes to the page cache: microseconds, and in the event loop, since what follows depends on it.
        """
        if self.path is None:
            return True
        try:
            _replace(self.path, {bus: list(outputs) for bus, outputs in self._driven.items() if outputs})
        except (OSError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            former, self.failure = self.failure, f"driven outputs {self.path}: {why}"
            if former is None:
                log.error("%s; until it can be written no further output is driven", self.failure)
            return False
        if self.failure is not None:
            log.warning("driven outputs %s: is written again", self.path)
            self.failure = None
        return True


def _replace(path: Path, outputs: Mapping[str, list[Hashable]]) -> None:
    """Put a new file in the place of the old one, or none where there is nothing to say."""
    if not outputs:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, orjson.dumps({"version": _VERSION, "outputs": outputs}), 0o600, sync=False)


def _parse(content: bytes) -> dict[str, tuple[Hashable, ...]]:
    """The outputs in a file's content. Raises ValueError."""
    document: Any = orjson.loads(content)
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError("not a list of driven outputs that this release knows")
    outputs = document.get("outputs")
    if not isinstance(outputs, dict) or not all(isinstance(listed, list) for listed in outputs.values()):
        raise ValueError("no outputs by bus in it")
    return {bus: tuple(_hashable(output) for output in listed) for bus, listed in outputs.items()}


def _hashable(output: Any) -> Hashable:
    if isinstance(output, list):
        return tuple(_hashable(part) for part in output)
    if isinstance(output, (str, int)):
        return output
    raise ValueError(f"no output: {output!r}")
