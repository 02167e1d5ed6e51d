"""The outputs file: the outputs that have been driven and are not yet safe, written down for the next run.

`OutputsFile` owns the file `<audit log>.outputs`, which a run that is killed leaves to the next one. It lists the
outputs of all buses that have been driven and are not yet safe; each is written down before it is first driven. The
file does not say which session drove them or which level is safe. It is replaced whole and never synced: it must
outlive the process, and a power cut resets the pins anyway. It is written when the set of driven outputs changes, and
not while the same outputs are driven again. The process that holds the audit log's lock owns it.

It also has the last levels of the outputs of which no read could tell the next run (`Limit.remembered`), a second old
after a kill at most: without them a servo or a register that is only written would begin again without its steps.

The file is written in the thread of a helper, one write at a time; changes that come during a write share the next one,
which has the newest list. Nothing but the requester of a *set* waits for it: before its ticket is queued it has the
output listed (`announce`), and waits until the write that has it has ended, for at most `LIST_LIMIT_S`. Safe states, a
halt and what takes an effect back are never held up: their outputs are listed when the disk answers. An output that is
not known before the transaction begins must be written at once, or the transaction is refused.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import define, field, frozen

from hearth._util.files import replace_file
from hearth._util.formats import check_format
from hearth._util.threads import Helper
from hearth.audit.record import timestamp
from hearth.errors import AuditUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping
    from pathlib import Path

    from hearth._util.threads import HelperCall

log = logging.getLogger("hearth.outputs")

LIST_LIMIT_S: Final = 2.0
"""Seconds that a set of an output waits until the outputs file lists it."""
LEVELS_S: Final = 1.0
"""Seconds by which the levels in the outputs file may be late, at most."""
END_LIMIT_S: Final = 1.0
"""Seconds that the end of the runtime waits for the last write of the outputs file."""
_VERSION = 2
"""Of a file with levels; without any it is written as version 1, which has none."""
MOST_BYTES = 1 << 20
"""Of the file: the next run reads no more, so no more is written. A profile has far fewer outputs."""


class NotListedYet(AuditUnavailable):
    """An output is not in the file yet: nothing was driven. A requester that can wait does so (`Bus.list_output`)."""


@frozen
class FoundOutputs:
    """The file of an earlier run: `outputs` and `levels` by bus; or the `problem` of reading it, and its new path."""

    outputs: Mapping[str, tuple[Hashable, ...]] = field(factory=dict)
    levels: Mapping[str, tuple[tuple[Hashable, float], ...]] = field(factory=dict)
    problem: str | None = None
    aside: Path | None = None

    def notes(self) -> list[str]:
        """Return the findings for a person, one line each."""
        if self.problem is not None:
            kept = f"; it is now {self.aside}" if self.aside else ""
            return [f"{self.problem}{kept}: the last run may have left outputs driven; look at the hardware"]
        return [
            f"bus {bus}: the last run left outputs driven: {', '.join(map(str, outputs))}"
            for bus, outputs in self.outputs.items()
        ]


@define(eq=False)
class _Entry:
    """One output of the list."""

    since: int
    """The number of the first write that has it."""
    driven: bool = True
    announced: int = 0
    """The requesters that are about to drive it."""


class OutputsFile:
    """The file of driven outputs. Without a path it keeps nothing beyond the process. Used in the Trio thread."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.found = FoundOutputs()
        self.failure: str | None = None
        """The reason why the file is out of date, or None."""
        self.levels: Callable[[], dict[str, list[tuple[Hashable, float]]]] = dict
        """Returns the levels to keep, by bus id."""
        self._listed: dict[tuple[str, Hashable], _Entry] = {}
        self._helper = Helper("hearth-outputs")
        self._begun = self._ended = self._written = 0
        """The numbers of the last write that has begun, that has ended, and that has succeeded."""
        self._writing: HelperCall[None] | None = None
        self._stale = False
        """True if the list has changed since the write under way began."""
        self._fresh = float("-inf")
        """The time at which a level was last written for its own sake."""
        self._late = False
        """True if a level has changed since, and `touch_at` has been asked for the time when it may be written."""
        self.touch_at: Callable[[float], None] = lambda _when: None
        """Has `touch_again` called at a time of Trio's clock."""
        self._wrote = trio.Event()
        """Set, and replaced, when a write has ended."""

    def open(self, now: float) -> list[str]:
        """Read the file of an earlier run into `found`; return notes for a person. The audit log must be locked.

        Blocking. A file that cannot be read is moved aside, and a note says so. `now` in epoch seconds. Raises
        ConfigError for the file of a newer release.
        """
        if self.path is not None:
            self.found = self._read(self.path, now)
            self._listed = {(bus, output): _Entry(0) for bus, found in self.found.outputs.items() for output in found}
        return self.found.notes()

    def _read(self, path: Path, now: float) -> FoundOutputs:
        try:
            # O_NOFOLLOW: a link could lead to another program's file. O_NONBLOCK: a FIFO must not block the start.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return FoundOutputs()
        except OSError as error:
            return self._moved_aside(path, str(error.strerror), now)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return self._moved_aside(path, "not a regular file", now)
            # One read is enough: a file that is longer than that is cut, is no JSON, and so is moved aside.
            return _parse(os.read(fd, MOST_BYTES), path)
        # RecursionError: lists in lists.
        except (OSError, ValueError, RecursionError) as error:
            return self._moved_aside(path, str(error), now)
        finally:
            os.close(fd)

    def _moved_aside(self, path: Path, why: str, now: float) -> FoundOutputs:
        stamp = timestamp(now).replace("-", "").replace(":", "")
        aside = path.with_name(f"{path.name}.found-{stamp}")
        problem = f"driven outputs {path}: cannot be read: {why}"
        try:
            path.rename(aside)
        except OSError as error:
            self.failure = f"{problem}, nor moved away: {error.strerror}"
            return FoundOutputs(problem=self.failure)
        return FoundOutputs(problem=problem, aside=aside)

    async def announce(self, bus: str, output: Hashable) -> None:
        """Write down an output that a requester is about to drive; it stays in the list until `retract`.

        Raises AuditUnavailable, with effect "none", if that takes longer than LIST_LIMIT_S, or fails.
        """
        entry = self._enter(bus, output, driven=False)
        entry.announced += 1
        try:
            with trio.move_on_after(LIST_LIMIT_S):
                while self._ended < entry.since:
                    await self._wrote.wait()
            if self._written < entry.since:
                raise self._unwritten(AuditUnavailable)
        except BaseException:
            self.retract(bus, output)
            raise

    def retract(self, bus: str, output: Hashable) -> None:
        """End what `announce` began."""
        entry = self._listed[bus, output]
        entry.announced -= 1
        self._drop([(bus, output)])

    def add(self, bus: str, output: Hashable, *, insist: bool) -> None:
        """Write down that an output is driven from now on.

        Raises AuditUnavailable, with effect "none", if it cannot be written at once, unless it is announced. With
        `insist` it does not: the output is driven in any case, because that takes back an earlier effect. Raises
        NotListedYet if the disk has not answered at once.
        """
        entry = self._enter(bus, output, driven=True)
        if insist or self._written >= entry.since:
            return
        entry.driven = False
        error = self._unwritten(AuditUnavailable if self._ended >= entry.since else NotListedYet)
        self._drop([(bus, output)])
        raise error

    def strike(self, bus: str, outputs: Iterable[Hashable]) -> None:
        """Remove outputs that are safe, or that the profile keeps as they are. Never waits, never raises."""
        struck = [(bus, output) for output in outputs if (bus, output) in self._listed]
        for key in struck:
            self._listed[key].driven = False
        self._drop(struck)

    def flush(self) -> None:
        """Write the file once more if the last write failed. Never waits, never raises."""
        if self.failure is not None:
            self._write()

    def touch(self) -> None:
        """Note that a level has changed that is kept: the file has it LEVELS_S later at most. Never waits or raises."""
        now = trio.current_time()
        if now >= self._fresh + LEVELS_S:
            self._fresh = now
            self._write()
        elif not self._late:
            self._late = True
            self.touch_at(self._fresh + LEVELS_S)

    def touch_again(self) -> None:
        """Write the levels that changed too soon after others. Never waits or raises."""
        self._late = False
        self.touch()

    async def aclose(self) -> None:
        """Wait, within END_LIMIT_S, for the last write, and try it once more if it fails."""
        if self.path is not None and self.levels():
            self._write()
        self.flush()
        with trio.move_on_after(END_LIMIT_S, shield=True):
            while self._writing is not None:
                await self._wrote.wait()

    def _enter(self, bus: str, output: Hashable, *, driven: bool) -> _Entry:
        entry = self._listed.get((bus, output))
        if entry is None:
            # The next write to begin has it.
            entry = self._listed[bus, output] = _Entry(self._begun + 1, driven=driven)
            self._write()
        entry.driven |= driven
        return entry

    def _drop(self, keys: Iterable[tuple[str, Hashable]]) -> None:
        """Remove those outputs that are neither driven nor announced, and write the file if there are any."""
        gone = [key for key in keys if not (self._listed[key].driven or self._listed[key].announced)]
        for key in gone:
            del self._listed[key]
        if gone:
            self._write()

    def _unwritten(self, error: type[AuditUnavailable]) -> AuditUnavailable:
        why = self.failure or f"driven outputs {self.path}: the disk does not answer"
        return error(f"the record of driven outputs cannot be written: {why}", data={"reason": why, "effect": "none"})

    def _write(self) -> None:
        """Have the file replaced by the present list, after the write that is under way."""
        if self.path is None:
            self._begun = self._ended = self._written = self._begun + 1
            return
        self._stale = True
        if self._writing is None:
            self._begin()

    def _begin(self) -> None:
        assert self.path is not None
        self._stale = False
        self._begun += 1
        outputs: dict[str, list[Hashable]] = {}
        for bus, output in self._listed:
            outputs.setdefault(bus, []).append(output)
        self._writing = self._helper.call(partial(_replace, self.path, outputs, self.levels()))
        if self._writing.done:
            self._end()
        else:
            self._writing.then(self._end)

    def _end(self) -> None:
        """Note the outcome of the write that was under way; begin the next one if the list has changed since."""
        assert self._writing is not None
        writing, self._writing = self._writing, None
        self._ended = self._begun
        try:
            writing.get()
        # TypeError: a vendor's driver has an output that JSON cannot hold.
        except (OSError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            former, self.failure = self.failure, f"driven outputs {self.path}: {why}"
            # One line in the operator's log for each failure, not one for each output.
            if former is None:
                log.error("%s; until it can be written no further output is driven", self.failure)
        else:
            self._written = self._begun
            if self.failure is not None:
                log.warning("driven outputs %s: is written again", self.path)
                self.failure = None
        self._wrote.set()
        self._wrote = trio.Event()
        if self._stale:
            self._begin()


def _replace(
    path: Path, outputs: Mapping[str, list[Hashable]], levels: Mapping[str, list[tuple[Hashable, float]]]
) -> None:
    """Replace the file, or remove it if no output is driven and no level is kept."""
    kept = {"levels": levels} if levels else {}
    if not outputs and not levels:
        path.unlink(missing_ok=True)
    else:
        document = {"version": _VERSION if levels else 1, "outputs": outputs, **kept}
        content = orjson.dumps(document)
        if len(content) >= MOST_BYTES:
            what = f"it would have {len(content)} bytes, of which the next start reads {MOST_BYTES}"
            raise OSError(errno.EFBIG, what)
        replace_file(path, content, 0o600, sync=False)


def _parse(content: bytes, path: Path) -> FoundOutputs:
    """Parse a file's content. Raises ValueError, and ConfigError for a newer release's file."""
    document: Any = orjson.loads(content)
    if isinstance(document, dict):
        cure = "bring its outputs to their safe states by hand and move it away"
        check_format(f"driven outputs {path}", document.get("version"), _VERSION, cure)
    if not isinstance(document, dict) or document.get("version") not in (1, _VERSION):
        raise ValueError("not a list of driven outputs that this release can read")
    outputs = document.get("outputs")
    if not isinstance(outputs, dict) or not all(isinstance(listed, list) for listed in outputs.values()):
        raise ValueError("no outputs by bus in it")
    listed = {bus: tuple(_hashable(output) for output in ones) for bus, ones in outputs.items()}
    levels = document.get("levels", {})
    if not isinstance(levels, dict) or not all(isinstance(ones, list) for ones in levels.values()):
        raise ValueError("no levels by bus in it")
    return FoundOutputs(listed, {bus: tuple(map(_level, ones)) for bus, ones in levels.items()})


def _level(entry: Any) -> tuple[Hashable, float]:
    match entry:
        case [output, int() | float() as level] if not isinstance(level, bool):
            return _hashable(output), level
    raise ValueError(f"no level: {entry!r}")


def _hashable(output: Any) -> Hashable:
    if isinstance(output, list):
        return tuple(_hashable(part) for part in output)
    if isinstance(output, (str, int)):
        return output
    raise ValueError(f"no output: {output!r}")
