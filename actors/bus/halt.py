"""The halt: stops all effects at once, latches in a file, and is reset by a person only.

It owns the latch (`<audit log>.halt`), the stop sequence, the halt inputs and the heartbeat output of the board's
`[halt]`. It refuses nothing itself: buses and admission ask its `flag` (`bus.queue.HaltFlag`).

Theory of operation. A halt comes from a request, from an input, or from an input that cannot be read:

    running --- halt ---> halted, stopping --- end of the sequence ---> halted
       ^                        |                                         |
       +------------------------+---------------- reset ------------------+

1. `halt` sets the flag within one turn of the loop: from that moment no transaction with an effect begins. In the same
   turn the tasks are told to stop, and each bus gets the transaction that makes its outputs safe.
2. The latch file is written, synced and its directory synced, in a thread. Only then is the request answered. Making
   outputs safe does not wait for the disk. A latch that cannot be written is tried again until it is, or until a reset.
3. With a `[[halt.sequence]]` its outputs stay as they are until their turn (stop category 1); all others are made safe
   at once (category 0). At the end of the sequence its outputs go to their safe states too.

A reset removes the latch durably, and then clears the flag. It counts only if no halt has come since it was asked for:
`flag.count` at the time of the request must still be the count when the latch has been removed. It starts nothing: no
work that was accepted before the halt ever runs (`HaltFlag.refusal`).

Order on the disk. One task (`_keep_latch`) makes all changes of the latch file, in the order in which they were asked
for. A halt that comes while the file is being removed is written after that, and is acknowledged after that.

An input is watched by edges, and its level is read when the watch begins and before a reset. Everything that can keep
a reading from coming is a halt: a bus that is not there, a read that takes too long, a watch that ends, lost edges.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import asdict, define, field, frozen

from hearth._util.files import replace_file
from hearth.actors.bus.outputs import HALT
from hearth.actors.bus.queue import HaltFlag, Requester, Ticket
from hearth.actors.mailbox import Mailbox, Slot
from hearth.audit.record import timestamp
from hearth.audit.writer import sync_directory
from hearth.errors import AuditUnavailable, DeviceError, Halted, PermissionDenied, RpcError, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from pathlib import Path

    from hearth.actors.bus.actor import Bus
    from hearth.drivers.gpio import Edge, GpioDriver, HaltInput, HaltSpec, Heartbeat, Level, StopEntry, Watch

log = logging.getLogger("hearth.halt")

RETRY_S: Final = 1.0
"""Seconds until a latch that could not be written, or an input that could not be read, is tried again."""
LONGEST_RETRY_S: Final = 60.0
"""The longest pause, in seconds, until an output that could not be made safe is tried again."""
READ_LIMIT_S: Final = 1.0
"""Seconds that reading an input may take; one that takes longer halts, or refuses a reset."""
END_LIMIT_S: Final = 5.0
"""Seconds that the end of the runtime waits for the latch to be written."""
MOST_REASON: Final = 256
MOST_BYTES: Final = 1 << 16
"""Bytes of a latch file that are read."""
HEARTBEAT: Final = "the heartbeat"
"""Used in place of a session id for the heartbeat output."""
_HALT: Final = Requester(HALT, "", "")
_STOP: Final = "is at its stop level"
_UNKNOWN: Final = "unknown"
"""The state of an input that has not been read yet."""


@frozen
class HaltRecord:
    """The content of the latch file: the time of the halt (UTC), its reason, and the principal or input behind it."""

    since: str
    reason: str
    by: str


class Latch:
    """The latch file. Without a path nothing is kept beyond the process."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.found: HaltRecord | None = None
        """The halt that an earlier run has left."""
        # A limiter of its own: threads of other components that hang on a disk must not delay the latch.
        self._limiter = trio.CapacityLimiter(1)

    def open(self, now: float) -> list[str]:
        """Read the file of an earlier run into `found`; return notes for a person. Blocking; never raises.

        A file that cannot be read is a halt too: only its absence says that there was none. `now` in epoch seconds.
        """
        if self.path is None:
            return []
        try:
            self.found = _read(self.path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "its content is damaged"
            self.found = HaltRecord(timestamp(now), f"the latch {self.path} cannot be read: {why}", "hearthd")
        found = self.found
        if found is None:
            return []
        cure = "`hearth halt --reset` ends it when the cause is gone"
        return [f"starting halted, since {found.since} by {found.by}: {found.reason}; {cure}"]

    async def save(self, record: HaltRecord) -> None:
        """Write the file durably. Raises OSError."""
        if self.path is not None:
            await trio.to_thread.run_sync(_save, self.path, record, abandon_on_cancel=True, limiter=self._limiter)

    async def remove(self) -> None:
        """Remove the file durably. Raises OSError."""
        if self.path is not None:
            await trio.to_thread.run_sync(_remove, self.path, abandon_on_cancel=True, limiter=self._limiter)


def _read(path: Path) -> HaltRecord | None:
    """Return the content of a latch file, or None if there is none.

    Raises OSError, also for what is no file, and ValueError, KeyError and TypeError for other content.
    """
    try:
        path.lstat()  # a link that leads nowhere is no absence
    except FileNotFoundError:
        return None
    # Without O_NONBLOCK a pipe would hold up the start for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        content: Any = orjson.loads(file.read(MOST_BYTES))
    members = [content[name] for name in ("since", "reason", "by")]
    if not all(isinstance(member, str) for member in members):
        raise TypeError("a member is no text")
    return HaltRecord(*(member[:MOST_REASON] for member in members))


def _save(path: Path, record: HaltRecord) -> None:
    replace_file(path, orjson.dumps({"version": 1, **asdict(record)}) + b"\n", 0o600, sync=True)
    sync_directory(path.parent)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


@frozen(eq=False)
class _Change:
    """A change of the latch file: written, or, for a reset that was asked for at the count `reset`, removed."""

    answer: Slot[None]
    reset: int | None = None
    members: Mapping[str, Any] = field(factory=dict)
    """For a reset: the members of its audit record."""


@define(eq=False)
class Halt:
    """The halt of one runtime; `run` serves it, and `halt` may be called from then on.

    `stop_tasks` asks every session to cancel the tasks that have effects. `healthy` tells whether the heartbeat may
    toggle. `initial` maps bus ids to the outputs that are driven from the opening of the bus.
    """

    _spec: HaltSpec
    _latch: Latch
    flag: HaltFlag
    _buses: Mapping[str, Bus]
    _initial: Mapping[str, list[Hashable]] = field(kw_only=True, alias="initial")
    _audit: Callable[..., None] = field(kw_only=True, alias="audit")
    _clock: Callable[[], float] = field(kw_only=True, alias="clock")
    _stop_tasks: Callable[[], None] = field(kw_only=True, alias="stop_tasks")
    _healthy: Callable[[], bool] = field(kw_only=True, alias="healthy")
    _record: HaltRecord | None = field(default=None, init=False)
    _latched: bool = field(default=False, init=False)
    _problem: str | None = field(default=None, init=False)
    """Why the latch could not be written, or None."""
    _stopping: bool = field(default=False, init=False)
    _inputs: dict[HaltInput, str] = field(factory=dict, init=False)
    """By input: "clear", or why it is not."""
    _reads: dict[HaltInput, trio.Event] = field(factory=dict, init=False)
    """The reads that resets wait for, each set when it has ended."""
    _read_once: trio.Event = field(factory=trio.Event, init=False)
    """Set when every input that halts by its level has been read, or could not be."""
    _changes: Mailbox[_Change] = field(factory=Mailbox, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    changed: trio.Event = field(factory=trio.Event, init=False)
    """Set, and replaced, when the halt begins and when it ends."""

    def __attrs_post_init__(self) -> None:
        self._inputs |= dict.fromkeys(self._spec.inputs, _UNKNOWN)
        if (line := self._spec.heartbeat) is not None:
            self._buses[line.bus].guard.halt = self._check_on_bus_of_heartbeat
        if self._latch.found is not None:
            self._set(self._latch.found)
            self._latched = True

    def _set(self, record: HaltRecord) -> None:
        self._record = record
        self.flag.count += 1
        self.flag.since, self.flag.reason = record.since, record.reason
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def _check_on_bus_of_heartbeat(self, output: Hashable, level: object) -> None:
        """Refuse, for `BusGuard.halt`, to drive the heartbeat output: only `_beat` does, and it passes no guard."""
        line = self._spec.heartbeat
        if line is not None and output == line.offset:
            why = f"gpio line {line.offset} ({line.name}) is the heartbeat output: hearth itself drives it"
            raise PermissionDenied(why, data={"line": line.offset, "reason": "the heartbeat output", "effect": "none"})
        self.flag.check(output, level)

    # --- called in the Trio thread ------------------------------------------------------------------------------------

    def halt(self, reason: str, by: str, **members: Any) -> None:
        """Halt; never waits, never raises. A repetition changes nothing, but no reset that was pending counts.

        `members` are added to the audit record.
        """
        if self.flag.halted:
            self.flag.count += 1
            return
        self._set(HaltRecord(timestamp(self._clock()), reason[:MOST_REASON] or "no reason was given", by))
        record = self._record
        assert record is not None
        apart: dict[str, set[Hashable]] = {}
        for entry in self._spec.sequence:
            apart.setdefault(entry.bus, set()).add(entry.output)
        for bus_id, bus in self._buses.items():
            bus.halt(frozenset(apart.get(bus_id, ())), self._initial.get(bus_id, ()))
        self._stop_tasks()
        self._latched, self._stopping = False, True
        self._changes.post(_Change(Slot()))
        self._audit("halt", reason=record.reason, principal=by, **members)
        log.warning("halted by %s: %s", by, record.reason)
        if self._nursery is not None:
            self._nursery.start_soon(self._stop)

    @property
    def by(self) -> str | None:
        """The principal or input that halted, or None."""
        return None if self._record is None else self._record.by

    async def latched(self) -> None:
        """Wait until the latch is on the disk, or could not be written; see `status`."""
        change = _Change(Slot())
        self._changes.post(change)
        await change.answer.get()

    async def reset(self, by: str, asked: int, **members: Any) -> None:
        """End the halt that was there when the reset was asked for, at `flag.count` = `asked`; nothing starts again.

        Raises Halted if an input is not clear or a halt has come since, and AuditUnavailable if the latch cannot be
        removed.
        """
        if not self.flag.halted:
            return
        if self._nursery is None:
            # Not started yet, or ended already: no input can be read, and so none is known to be clear.
            raise ShuttingDown
        await self._read_all()
        blocking = {line.name: state for line, state in self._inputs.items() if state != "clear"}
        if blocking:
            why = ", ".join(f"{name}: {state}" for name, state in blocking.items())
            raise self._refused(f"halt inputs are not clear ({why})", inputs=blocking)
        if self._stopping:
            raise self._refused("the stop sequence has not ended")
        if unsafe := self._unsafe_buses():
            outputs = [{"bus": bus.bus_id, "outputs": bus.unsafe} for bus in unsafe]
            raise self._refused(f"outputs are not in their safe states: {outputs}", unsafe=outputs)
        change = _Change(Slot(), asked, {"principal": by, **members})
        self._changes.post(change)
        await change.answer.get()

    def _refused(self, why: str, **members: Any) -> Halted:
        data = {"since": self.flag.since, "reason": self.flag.reason, "effect": "none", **members}
        return Halted(f"still halted: {why}", data=data)

    def status(self, *, by: bool = True) -> dict[str, Any]:
        """Return the halt for `halt.status` and health, as JSON; with `by` also who asked for it."""
        status: dict[str, Any] = {"halted": self.flag.halted}
        if (record := self._record) is not None and self.flag.halted:
            status |= {"since": record.since, "reason": record.reason}
            if by:
                status["by"] = record.by
            status |= {"latched": self._latched, "stopping": self._stopping}
            if self._problem is not None:
                status["problem"] = self._problem
            unsafe = [{"bus": bus_id, "outputs": bus.unsafe} for bus_id, bus in self._buses.items() if bus.unsafe]
            if unsafe:
                status["unsafe"] = unsafe
        if self._inputs:
            status["inputs"] = {line.name: state for line, state in self._inputs.items()}
        return status

    # --- the actor ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the latch, watch the inputs and toggle the heartbeat, until `end`. The buses have been opened.

        Started when every input has been read once: nothing may be driven before.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._keep_latch)
            for line in self._spec.inputs:
                nursery.start_soon(self._watch, line)
            if self._spec.heartbeat is not None:
                nursery.start_soon(self._beat, self._spec.heartbeat)
            if self.flag.halted:
                nursery.start_soon(self._insist, self._record)
            while _UNKNOWN in self._inputs.values():
                await self._read_once.wait()
            task_status.started()

    async def end(self) -> None:
        """Wait, within a bound, until a halt is on the disk; then end `run`. The heartbeat goes to its safe state."""
        with trio.move_on_after(END_LIMIT_S):
            if self.flag.halted and not self._latched:
                await self.latched()
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.cancel_scope.cancel()
        if self._spec.heartbeat is not None:
            self._buses[self._spec.heartbeat.bus].make_safe(HEARTBEAT, unattended=True)

    async def _keep_latch(self) -> None:
        """Change the latch file as asked, one change after the other; try again what could not be written."""
        while True:
            changes: list[_Change] = []
            unlatched = self.flag.halted and not self._latched
            with trio.move_on_after(RETRY_S if unlatched else float("inf")):
                changes = await self._changes.batch()
            if not changes:
                await self._save()
            for change in changes:
                if change.reset is None:
                    await self._save()
                    change.answer.fill(None)
                    continue
                try:
                    await self._remove(change.reset, change.members)
                except RpcError as error:
                    change.answer.fail(error)
                else:
                    change.answer.fill(None)

    async def _save(self) -> None:
        if self._latched or not self.flag.halted or self._record is None:
            return
        try:
            await self._latch.save(self._record)
        except OSError as error:
            problem = f"the latch {self._latch.path} cannot be written: {error.strerror}"
            if self._problem is None:
                log.error("%s; a restart would not come back halted", problem)
            self._problem = problem
        else:
            self._latched, self._problem = True, None

    async def _remove(self, asked: int, members: Mapping[str, Any]) -> None:
        """Remove the latch and clear the flag, for a reset asked for at that count. Raises Halted, AuditUnavailable."""
        if not self.flag.halted:
            return
        again = "a halt has come since the reset was asked for; ask again"
        if self.flag.count != asked:
            raise self._refused(again)
        # Before the wait: from here on the file no longer says that this halt was latched.
        self._latched = False
        try:
            await self._latch.remove()
        except OSError as error:
            why = f"the latch {self._latch.path} cannot be removed: {error.strerror}"
            raise AuditUnavailable(f"still halted: {why}", data={"reason": why, "effect": "none"}) from None
        if self.flag.count != asked:
            await self._save()
            raise self._refused(again)
        self.flag.since, self._record, self._problem = None, None, None
        self._tell()
        self._audit("halt.reset", **members)
        log.warning("the halt was reset by %s", members["principal"])

    # --- the stop sequence --------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Run the stop sequence, by the clock: an entry whose bus is not ready does not hold up the next one."""
        record = self._record
        for entry in self._spec.sequence:
            await trio.sleep(entry.after_ms / 1000)
            bus = self._buses[entry.bus]
            if bus.state == "ready" and self._nursery is not None:
                self._nursery.start_soon(self._recorded, entry, bus.drive(entry.output, entry.value, _HALT))
        if self._spec.sequence:
            for bus in self._buses.values():
                bus.halt()
        self._stopping = False
        await self._insist(record)

    async def _insist(self, record: HaltRecord | None) -> None:
        """Try again, as long as this halt lasts, to bring outputs to their safe states; the pauses grow."""
        pause = RETRY_S
        while self._record is record and any(bus.unsafe for bus in self._buses.values()):
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_S)
            for bus in self._unsafe_buses() if self._record is record else ():
                bus.halt()
            # Their transactions have run by then, on a bus that serves: if all is safe, this ends before a long pause.
            await trio.sleep(RETRY_S)

    def _unsafe_buses(self) -> list[Bus]:
        """Return the buses with outputs that are not safe although they could be: others wait for their opening."""
        return [bus for bus in self._buses.values() if bus.unsafe and bus.state == "ready"]

    async def _recorded(self, entry: StopEntry, ticket: Ticket) -> None:
        """Record the outcome of an entry of the stop sequence."""
        outcome: dict[str, Any] = {"safe": [{entry.key: entry.output, "name": entry.name, "state": entry.value}]}
        try:
            await ticket.get()
        except RpcError as error:
            outcome = {"error": error.message}
            log.warning("stop sequence: %s %s of %s: %s", entry.key, entry.name, entry.bus, error)
        self._audit("outputs.safe", bus=entry.bus, reason=HALT, outputs=[entry.output], **outcome)

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _see(self, line: HaltInput, state: str) -> None:
        """Note the state of an input, and halt unless it is clear."""
        self._inputs[line] = state
        self._read_once.set()
        self._read_once = trio.Event()
        if state != "clear":
            self.halt(f"input {line.name} {state}", f"input {line.name}")

    async def _watch(self, line: HaltInput) -> None:
        """Watch one input for ever: its edges, and with a timeout their absence."""
        while True:
            try:
                watch: Watch = await self._transact(line, lambda driver: driver.watch(line.offset, "both"))
                # After the watch has begun: no edge between the two is missed.
                if line.timeout_ms is None:
                    await self._read(line)
                elif self._inputs[line] == _UNKNOWN:
                    self._see(line, "clear")
                await self._follow(line, watch)
            except RpcError as error:
                self._see(line, f"cannot be read: {error.message}")
            await trio.sleep(RETRY_S)

    async def _follow(self, line: HaltInput, watch: Watch) -> None:
        """Take edges until the watch ends. Raises DeviceError."""
        limit = float("inf") if line.timeout_ms is None else line.timeout_ms / 1000
        while True:
            edge: Edge | None = None
            with trio.move_on_after(limit):
                edge = await watch.receive()
            if edge is None:
                self._see(line, f"no edge for {line.timeout_ms} ms")
            elif watch.dropped:
                await self._transact(line, lambda driver: driver.unwatch(watch))
                raise DeviceError("edges were lost", effect="none")
            else:
                self._see(line, _STOP if line.timeout_ms is None and edge.value == line.stop else "clear")

    async def _read_all(self) -> None:
        """Read all inputs that halt by their level, within READ_LIMIT_S; a bus may not answer for long."""
        assert self._nursery is not None
        for line in self._spec.inputs:
            if line.timeout_ms is None:
                self._inputs[line] = f"cannot be read: bus {line.bus} does not answer"
                if line not in self._reads:
                    # One read at a time: on a bus that is wedged, each would wait until it works again.
                    self._reads[line] = trio.Event()
                    self._nursery.start_soon(self._read, line)
        with trio.move_on_after(READ_LIMIT_S):
            for read in list(self._reads.values()):
                await read.wait()

    async def _read(self, line: HaltInput) -> None:
        """Read an input, and halt unless it is clear."""
        try:
            level = await self._transact(line, lambda driver: driver.get(line.offset))
        except RpcError as error:
            self._see(line, f"cannot be read: {error.message}")
        else:
            self._see(line, _STOP if level == line.stop else "clear")
        read = self._reads.pop(line, None)
        if read is not None:
            read.set()

    async def _transact(self, line: HaltInput, op: Callable[[GpioDriver], Any]) -> Any:
        """Run a transaction on the bus of an input; one that takes longer than READ_LIMIT_S halts in the meantime."""
        ticket = Ticket(op, Requester("", "", ""), limit=READ_LIMIT_S, must_run=True)
        self._buses[line.bus].request(ticket)
        if not ticket.filled and self._nursery is not None:
            self._nursery.start_soon(self._expect, line, ticket)
        return await ticket.get()

    async def _expect(self, line: HaltInput, ticket: Ticket) -> None:
        bus = self._buses[line.bus]
        if bus.state == "ready":
            await trio.sleep(READ_LIMIT_S)
        if not ticket.filled:
            self._see(line, f"cannot be read: bus {line.bus} does not answer ({bus.reason or bus.state})")

    # --- the heartbeat ------------------------------------------------------------------------------------------------

    async def _beat(self, line: Heartbeat) -> None:
        """Toggle the heartbeat output while the runtime is healthy and not halted."""
        bus = self._buses[line.bus]
        level: Level = 0
        while True:
            await trio.sleep(0.5 / line.hz)
            if self.flag.halted or not self._healthy():
                continue
            level = 0 if level else 1
            try:
                # With a risk: should a halt come before its turn, it is refused.
                await bus.drive(line.offset, level, Requester(HEARTBEAT, "", "", halts=self.flag.count), risk=2).get()
            except RpcError as error:
                log.debug("heartbeat %s: %s", line.name, error)
