"""The driven outputs of a bus that are not yet in their safe state, the sessions that hold them, and the outputs file.

`DrivenOutputs` owns that fact for one bus, in memory. It remembers each session whose outputs must still be made safe
until that has succeeded, and it records the outcome when no task waits for it. Only drivers know what an output is and
which level is safe; the bus decides when to make outputs safe.

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

Theory of operation. Each driven output has a list of holders: the live sessions that set it, in the order of their last
set. The last one set the level that is there now.

- A *set* puts its session at the end of the list (`claim`). One with a deadman that is in the list stays there too.
- A *borrow* (a pulse) leaves the list alone where the output has a holder; an output that has none is claimed.
- What was set or borrowed is *given back* to the session that held it before (`may_give_back`, `give_back`), if that
  session is still in the list. If it has left the list, the level to restore belongs to no live session, and the output
  goes to its safe state instead. If another session has set the output since, that level stays: nothing is done.
- When a session ends, the outputs that it set last go to their safe state, and with a deadman also those that other
  sessions have set since: a controller that dies leaves a robot that stops. A safe output has no holders. A session
  may end in good order and hand those others over.

So no ended session is the last holder of a level, except of one that the device refused to make safe: `_ended` has it.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import define, field, frozen

from hearth._util.files import replace_file
from hearth._util.formats import check_format
from hearth._util.threads import Helper
from hearth.actors.bus.queue import GiveBack, Requester
from hearth.audit.record import timestamp
from hearth.errors import AuditUnavailable, InternalError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from pathlib import Path

    from hearth._util.threads import Call
    from hearth.errors import RpcError

log = logging.getLogger("hearth.outputs")

EARLIER_RUN: Final = "an earlier run"
"""Used in place of a session id for outputs that an earlier run drove; the audit log names the sessions."""
HALT: Final = "a halt"
"""Used in place of a session id for outputs that a halt brings to their safe state."""

LIST_LIMIT_S: Final = 2.0
"""Seconds that a set of an output waits until the outputs file lists it."""
LEVELS_S: Final = 1.0
"""Seconds by which the levels in the outputs file may be late, at most."""
END_LIMIT_S: Final = 1.0
"""Seconds that the end of the runtime waits for the last write of the outputs file."""


class NotListedYet(AuditUnavailable):
    """An output is not in the file yet: nothing was driven. A requester that can wait does so (`Bus.list_output`)."""


class DrivenOutputs:
    """The driven outputs of one bus: the holders of each, and the sessions whose safe state is still pending.

    `audit(event, **fields)` records an outcome for which no task waits. `kept` has the outputs that the profile keeps.
    """

    __slots__ = ("_audit", "_bus", "_ended", "_holders", "_kept", "_outputs_file", "pending")

    def __init__(
        self, bus: str, outputs_file: OutputsFile, audit: Callable[..., None], kept: Iterable[Hashable] = ()
    ) -> None:
        self._audit = audit
        self._bus = bus
        self._outputs_file = outputs_file
        # The outputs of an earlier run have a holder that has ended already: the first opening of the bus makes them
        # safe. If that fails, a session that sets one takes it over.
        earlier = Requester(EARLIER_RUN, "", "")
        self._holders: dict[Hashable, list[Requester]] = {
            output: [earlier] for output in outputs_file.found.outputs.get(bus, ())
        }
        # An earlier run may have left any of them driven: no file lists those.
        self._kept: set[Hashable] = set(kept)
        """Outputs that may be at the level at which a session has left them, because the profile keeps them."""
        self.pending: set[str] = {EARLIER_RUN} if self._holders else set()
        """Ids of sessions that have ended, and whose outputs are to be made safe when the bus can do it."""
        self._ended: set[str] = {*self.pending}
        """Ids of sessions that have ended and still hold an output: pending, or given up after a driver's bug."""

    # --- driving --------------------------------------------------------------------------------------------------

    def claim(self, output: Hashable, requester: Requester, *, insist: bool) -> str:
        """Enter a session as the one that sets an output; return the session that an undo gives the output back to.

        That is the session that set it before, or this session if none did. Raises AuditUnavailable, with effect
        "none", if the outputs file cannot be written; with `insist` it does not.
        """
        holders = self._holders.get(output)
        if holders is None:
            # Written down before the output is driven, and before the holder is entered: if that fails, nothing has
            # changed.
            self._outputs_file.add(self._bus, output, insist=insist)
            self._holders[output] = [requester]
            return requester.session_id
        former = holders[-1].session_id
        if former != requester.session_id:
            # Ended holders leave the list here, because the level that they left is about to be replaced.
            kept: list[Requester] = []
            for holder in holders:
                mine = holder.session_id == requester.session_id
                # With a deadman its first place stays: it outlives the rollback of this set.
                replaced = mine and (not requester.deadman or _holds(requester.session_id, kept))
                if holder.session_id not in self._ended and not replaced:
                    kept.append(holder)
            self._holders[output] = [*kept, requester]
        return former

    async def announce(self, output: Hashable) -> bool:
        """Have an output in the file, and keep it there until `retract`; return False if it is held, and so is there.

        Raises AuditUnavailable, with effect "none", if it is not written within LIST_LIMIT_S.
        """
        if output in self._holders:
            return False
        await self._outputs_file.announce(self._bus, output)
        return True

    def retract(self, output: Hashable) -> None:
        """End what `announce` began."""
        self._outputs_file.retract(self._bus, output)

    def holders(self, output: Hashable) -> tuple[Requester, ...]:
        """Return the holders of an output, for `unclaim`."""
        return tuple(self._holders.get(output, ()))

    def unclaim(self, output: Hashable, requester: Requester, former: Sequence[Requester]) -> None:
        """Return an output to its `former` holders: what was to drive it had no effect.

        It stays with the requester if the session that had set it has gone since: the level must have a holder. An
        output that no session held is held by none again, or the next undo would give it back to one that never set it.
        """
        holders = self._holders.get(output, [])
        if not holders or holders[-1].session_id != requester.session_id:
            # Made safe or halted since.
            return
        if not former and requester.session_id not in self._ended:
            del self._holders[output]
            self._outputs_file.strike(self._bus, [output])
            return

        def stays(holder: Requester) -> bool:
            ended = holder.session_id in self._ended
            return holder in holders or ended != (holder.session_id == requester.session_id)

        if former and stays(former[-1]):
            holders[:] = filter(stays, former)

    def borrow(self, output: Hashable, requester: Requester, *, insist: bool) -> str:
        """Note that a session drives an output for a while; return the session to give it back to."""
        holders = self._live_holders(output)
        if holders:
            # The list stays as it is: when the borrow ends, this session still holds the level that is restored.
            return holders[-1].session_id
        self.claim(output, requester, insist=insist)
        return requester.session_id

    def may_give_back(self, output: Hashable, back: GiveBack) -> bool:
        """Return True if an output may have its former level back; False if it must go to its safe state.

        Raises ResourceBusy, with effect "none", if another session has set the output since.
        """
        holders = self._live_holders(output)
        if holders and holders[-1].session_id != back.taken_by(output):
            text = f"output {output} of bus {self._bus} has been set by another session since: it is left as it is"
            raise ResourceBusy(text, data={"bus": self._bus, "reason": "set since", "effect": "none"})
        return _holds(back.held_by(output), holders)

    def give_back(self, output: Hashable, back: GiveBack) -> None:
        """Remove the session that had set an output from its holders: its former level is about to be restored.

        Called before the transaction: should the former holder end while it runs, that end makes the output safe. A
        transaction that fails claims the output again.
        """
        if back.taken_by(output) != back.held_by(output):
            holders = self._holders[output]
            places = [place for place, holder in enumerate(holders) if holder.session_id == back.taken_by(output)]
            # Only its last place: with a deadman it may have set the output before, which still counts.
            del holders[places[-1]]

    def holder(self, output: Hashable) -> str | None:
        """Return the session that has set an output last and has not ended; None if there is none."""
        holders = self._live_holders(output)
        return holders[-1].session_id if holders else None

    def _live_holders(self, output: Hashable) -> list[Requester]:
        return [holder for holder in self._holders.get(output, ()) if holder.session_id not in self._ended]

    # --- halt -----------------------------------------------------------------------------------------------------

    def halt(self, also: Iterable[Hashable]) -> bool:
        """Take all outputs, and those of `also`, from the sessions that hold them; return True if there are any."""
        requester = Requester(HALT, "", "")
        for output in (*also, *self._kept):
            self.claim(output, requester, insist=True)
        self._kept.clear()
        for holders in self._holders.values():
            holders[:] = [requester]
        if self._holders:
            self.pending.add(HALT)
            self._ended.add(HALT)
        return bool(self._holders)

    # --- safe states ----------------------------------------------------------------------------------------------

    def leave(self, session_id: str, *, hands_over: bool = False) -> bool:
        """Note that a session has ended; return True if outputs of it must be made safe.

        Outputs that another session has set since are left to that session. A session that `hands_over` has ended in
        good order, and its deadman does not apply.
        """
        due = False
        for holders in self._holders.values():
            if holders[-1].session_id == session_id or (not hands_over and _answers_for(session_id, holders)):
                # It stays in the list until the output is safe: `of` finds the output by it.
                due = True
            else:
                holders[:] = [holder for holder in holders if holder.session_id != session_id]
        if due:
            # In both: `pending` until the safe state was reached or given up, `_ended` as long as it holds an output.
            self.pending.add(session_id)
            self._ended.add(session_id)
        else:
            self._clear(session_id)
        return due

    def _clear(self, session_id: str) -> None:
        self.pending.discard(session_id)
        self._ended.discard(session_id)

    def of(self, session_id: str) -> list[Hashable]:
        """Return the outputs that go to their safe state when a session ends."""
        return [output for output, holders in self._holders.items() if _answers_for(session_id, holders)]

    def is_safe(self, outputs: list[Hashable], reports: Any) -> None:
        """Forget outputs that have reached their safe state, or are kept as they are by the profile.

        A kept output has no report of the driver. Only a halt brings it to its safe state, so it is noted for that.
        """
        named = {reported_output(report) for report in reports or () if isinstance(report, Mapping)}
        self._kept.update(output for output in outputs if output in self._holders and output not in named)
        known = [output for output in outputs if self._holders.pop(output, None) is not None]
        self._outputs_file.strike(self._bus, known)

    def settle(
        self, session_id: str, outputs: list[Hashable], reports: Any, error: RpcError | None, *, report: bool
    ) -> None:
        """Note the outcome of making a session's outputs safe: the driver's `reports`, or `error`.

        Forgets the outputs that are safe, or kept by the profile. With `report` no task waits for the outcome: it is
        written to the audit log and to the operator's log here.
        """
        if error is None and not has_error(reports):
            # Only what the session still holds: an output that another session has set by now is no longer its to
            # forget.
            self.is_safe([output for output in outputs if _holds(session_id, self._holders.get(output, ()))], reports)
            self._clear(session_id)
        elif isinstance(error, InternalError):
            # A bug in the driver: a retry at each opening would crash the bus for ever. The next run tries again.
            self.pending.discard(session_id)
        # Any other error leaves the session pending: the next opening of the bus tries again.
        if report:
            self._report(session_id, outputs or self.of(session_id), reports, error)

    def _report(self, session_id: str, outputs: list[Hashable], reports: Any, error: RpcError | None) -> None:
        if not outputs:
            return
        whose = {"reason": HALT} if session_id == HALT else {"session_id": session_id}
        if session_id == EARLIER_RUN:
            whose = {}
        outcome = {"safe": reports} if error is None else {"error": error.message}
        self._audit("outputs.safe", bus=self._bus, **whose, outputs=outputs, **outcome)
        holder = f"session {session_id}" if "session_id" in whose else session_id
        safe = "; ".join(map(_words, reports or ()))
        log.warning(
            "bus %s: %soutputs %s%s %s",
            self._bus,
            "halted: " if session_id == HALT else "",
            ", ".join(map(str, outputs)),
            "" if session_id == HALT else f", driven by {holder},",
            f"were brought to their safe state: {safe}" if error is None else f"are not safe: {error.message}",
            extra={"bus": self._bus, **({"session": session_id} if "session_id" in whose else {})},
        )


def _words(report: Any) -> str:
    """Return a report of `make_safe` for a person: a mapping as `name=value` words."""
    if not isinstance(report, Mapping):
        return str(report)
    return " ".join(f"{name}={value}" for name, value in report.items())


def _holds(session_id: str, holders: Iterable[Requester]) -> bool:
    return any(holder.session_id == session_id for holder in holders)


def _answers_for(session_id: str, holders: list[Requester]) -> bool:
    """Return True if the end of a session brings an output with these holders to its safe state."""
    last = holders[-1]
    return last.session_id == session_id or any(h.deadman and h.session_id == session_id for h in holders)


def reported_output(report: Mapping[str, Any]) -> Any:
    """Return the output that a report of `make_safe` is about; a vendor's names a line or a channel, if anything."""
    output = getattr(report, "output", None)
    return report.get("line", report.get("channel")) if output is None else output


def has_error(reports: Any) -> bool:
    """Return True if `make_safe` reports an output that is not safe."""
    return any(isinstance(report, Mapping) and "error" in report for report in reports or ())


_VERSION = 2
"""Of a file with levels; without any it is written as version 1, which has none."""
MOST_BYTES = 1 << 20
"""Of the file: the next run reads no more, so no more is written. A profile has far fewer outputs."""


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
        self._writing: Call[None] | None = None
        self._stale = False
        """True if the list has changed since the write under way began."""
        self._fresh = float("-inf")
        """The time at which a level was last written for its own sake."""
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
            raise OSError(
                errno.EFBIG, f"it would have {len(content)} bytes, of which the next start reads {MOST_BYTES}"
            )
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
