"""The halt: stops all effects at once, and lasts until every hold of it has been removed.

It owns the holds, the stop sequence and the heartbeat output of the board's `[halt]`. It refuses nothing itself: buses
and admission ask its `flag` (`bus.queue.HaltFlag`). The latch (`bus.latch`) keeps the holds; `bus.halt_inputs` watches
the halt inputs.

Theory of operation. A halt comes from a person (any client), from an input, also one that cannot be read, from an
interlock that demands it, or from the fleet. Each principal has a hold of its own (`bus.latch.Hold`), so no reset ends
the halt of another by accident:

    running --- halt ---> halted, stopping --- end of the sequence ---> halted
       ^                        |                                         |
       +------------------------+--------- reset of the last hold --------+

1. `halt` sets the flag within one turn of the loop: from that moment no transaction with an effect begins. In the same
   turn the tasks are told to stop, and each bus gets the transaction that makes its outputs safe.
2. One task (`_keep_latch`) writes the holds to the latch, in a thread. The request is answered when that is done, and
   after ANSWER_S in any case. Nothing else waits for the disk. A latch that cannot be written is tried again until it
   is, or until a reset.
3. With a `[[halt.sequence]]` its outputs stay as they are until their turn (stop category 1); all others are made safe
   at once (category 0). At the end of the sequence its outputs go to their safe states too.

A halt while halted adds a hold, or renews the one of its principal: last time and reason, count and generation. A new
hold is recorded and latched at once, renewed ones once in REPEAT_S, all together. Holds of more than MOST_HOLDS
principals share one for each source.

A reset removes holds by their generation, of those that were there when it was asked for (`flag.count` at that time):
first from the latch, then here. A hold that was renewed or added since stays, and so does that of an input that is not
clear, or of an interlock that is open. The flag is cleared with the last hold. A reset that has been refused never acts
later: one that the disk keeps waiting is withdrawn. A reset starts nothing: no work that was accepted before the halt
ever runs (`HaltFlag.refusal`).
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import trio
from attrs import asdict, define, evolve, field

from hearth.actors.bus.halt_inputs import HaltInputs, holder
from hearth.actors.bus.latch import MOST_TEXT, Hold, Latch
from hearth.actors.bus.outputs import HALT
from hearth.actors.bus.queue import HaltFlag, Requester
from hearth.actors.mailbox import Slot
from hearth.audit.record import timestamp
from hearth.errors import AuditUnavailable, Halted, PermissionDenied, RpcError, ShuttingDown
from hearth.shown import prose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping

    from hearth.actors.bus.actor import Bus
    from hearth.actors.bus.queue import Ticket
    from hearth.drivers.profile import HaltSpec, Heartbeat, StopEntry
    from hearth.drivers.signals import Level

log = logging.getLogger("hearth.halt")

RETRY_S: Final = 1.0
"""Seconds until a latch that could not be written, or outputs that could not be made safe, are tried again."""
LONGEST_RETRY_S: Final = 60.0
"""The longest pause, in seconds, until an output that could not be made safe is tried again."""
ANSWER_S: Final = 1.0
"""Seconds that the answer to a halt waits for the latch; the halt itself does not wait."""
END_LIMIT_S: Final = 5.0
"""Seconds that the end of the runtime, or a reset, waits for the latch."""
REPEAT_S: Final = 1.0
"""Seconds between two records, and two writes of the latch, of holds that are renewed."""
MOST_HOLDS: Final = 64
_OF_THE_BOARD: Final = ("input", "interlock")
"""Sources whose number the board profile limits: none of them shares a hold."""
OTHERS: Final = "others"
"""Used in place of a principal for the hold that all principals share which come when there are MOST_HOLDS."""
HEARTBEAT: Final = "the heartbeat"
"""Used in place of a session id for the heartbeat output."""
_HALT: Final = Requester(HALT, "", "")


def _recorded(hold: Hold) -> dict[str, Any]:
    """Return a hold as records and refusals show it."""
    return {
        "source": hold.source,
        "principal": hold.by,
        "reason": hold.last_reason,
        "count": hold.count,
        "generation": hold.generation,
    }


@define(eq=False)
class _Reset:
    """A reset, for the task that keeps the latch: of holds of these `generations`.

    It was asked for at `flag.count` = `asked`, and found the inputs not clear, and the interlocks open, that `blocked`
    has, by source and principal.
    """

    generations: Collection[int]
    asked: int
    blocked: Mapping[tuple[str, str], str]
    members: Mapping[str, Any]
    """Of its audit record."""
    answer: Slot[None] = field(factory=Slot[None], init=False)
    withdrawn: bool = field(default=False, init=False)
    """True once it has been refused because the disk did not answer."""


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
    _open_interlocks: Callable[[], Awaitable[Mapping[tuple[str, str], str]]] | None = field(
        default=None, kw_only=True, alias="open_interlocks"
    )
    """Returns the open interlocks that halt, by source and principal, each with its reading in words."""
    _holds: dict[tuple[str, str], Hold] = field(factory=dict, init=False)
    """By source and principal, oldest first."""
    _kept: Mapping[tuple[str, str], Hold | None] = field(factory=dict, init=False)
    """The holds that the latch has, with None where it does not tell which."""
    _problem: str | None = field(default=None, init=False)
    """Why the latch does not have all of the holds, or None."""
    _began: int = field(default=0, init=False)
    """The number of the halt with which the present one began; 0 while not halted."""
    _due: float = field(default=float("inf"), init=False)
    """When the latch is written next."""
    _written_at: float = field(default=float("-inf"), init=False)
    _renewed: dict[tuple[str, str], None] = field(factory=dict, init=False)
    """Holds that were renewed and are not recorded as such yet."""
    _resets: deque[_Reset] = field(factory=deque, init=False)
    _woken: trio.Event = field(factory=trio.Event, init=False)
    """Set when `_keep_latch` has something to do."""
    _tried: trio.Event = field(factory=trio.Event, init=False)
    """Set, and replaced, when the latch has been written, or could not be."""
    _stopped: dict[str, list[Hashable]] = field(factory=dict, init=False)
    """By bus: the outputs that the present halt brings to their safe states."""
    _stopping: bool = field(default=False, init=False)
    _asked: Callable[[Hashable, object], None] | None = field(default=None, init=False)
    """Asks for the halt on the bus of the heartbeat."""
    _inputs: HaltInputs = field(init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    changed: trio.Event = field(factory=trio.Event, init=False)
    """Set, and replaced, when a hold is added or removed, and by `tell`."""

    def __attrs_post_init__(self) -> None:
        self._inputs = HaltInputs(self._spec.inputs, self._buses, partial(self.halt, source="input"))
        if (line := self._spec.heartbeat) is not None:
            guard = self._buses[line.bus].guard
            self._asked, guard.halt = guard.halt, self._check_on_bus_of_heartbeat
        self._holds = {(one.source, one.by): one for one in self._latch.found}
        self._kept = dict(self._holds)
        # Numbers that were seen before a restart name no hold that came after it.
        self.flag.count = max([int(self._clock()), *(one.generation for one in self._latch.found)])
        self._describe()

    def _describe(self) -> None:
        """Take over in the flag what the holds are: halted by the oldest, or not halted."""
        first = next(iter(self._holds.values()), None)
        if first is None:
            ended, self.flag.since, self._began, self._problem = self.flag.halted, None, 0, None
            self._stopped.clear()
            for note in self.flag.on_reset if ended else ():
                note()
        else:
            self.flag.since, self.flag.reason = first.since, first.reason
            self._began = self._began or self.flag.count
        self.tell()

    def tell(self) -> None:
        """Wake what waits for `changed`."""
        self.changed.set()
        self.changed = trio.Event()

    def _check_on_bus_of_heartbeat(self, output: Hashable, level: object) -> None:
        """Refuse, for `BusGuard.halt`, to drive the heartbeat output: only `_beat` does, and it passes no guard."""
        line = self._spec.heartbeat
        if line is not None and output == line.offset:
            why = f"gpio line {line.offset} ({line.name}) is the heartbeat output: hearth itself drives it"
            raise PermissionDenied(why, data={"line": line.offset, "reason": "the heartbeat output", "effect": "none"})
        assert self._asked is not None, "a bus asks for the halt"
        self._asked(output, level)

    # --- called in the Trio thread ------------------------------------------------------------------------------------

    def halt(self, reason: str, by: str, *, source: str = "person", **members: Any) -> None:
        """Halt for the principal `by`; never waits, never raises.

        `source` is its kind: "person" (any client), "input", "interlock" or "fleet". `members` are added to the audit
        record.
        """
        began, now = not self.flag.halted, timestamp(self._clock())
        self.flag.count += 1
        reason = reason[:MOST_TEXT] or "no reason was given"
        key = (source, by[:MOST_TEXT])
        if key not in self._holds and len(self._holds) >= MOST_HOLDS and source not in _OF_THE_BOARD:
            key, reason = (source, OTHERS), f"{by}: {reason}"[:MOST_TEXT]
        count = self.flag.count
        if (hold := self._holds.get(key)) is not None:
            renewed = evolve(hold, last_reason=reason, last=now, count=hold.count + 1, generation=count)
            self._holds[key], self._renewed[key] = renewed, None
            self._write_at(self._written_at + REPEAT_S)
            return
        self._holds[key] = Hold(*key, reason, now, reason, now, 1, count)
        self._describe()
        if began:
            apart: dict[str, set[Hashable]] = {}
            for entry in self._spec.sequence:
                apart.setdefault(entry.bus, set()).add(entry.output)
            for bus_id, bus in self._buses.items():
                bus.halt(frozenset(apart.get(bus_id, ())), self._initial.get(bus_id, ()))
                self._stopped[bus_id] = list(dict.fromkeys([*bus.unsafe, *apart.get(bus_id, ())]))
            self._stop_tasks()
            self._stopping = True
            if self._nursery is not None:
                self._nursery.start_soon(self._stop)
        self._write_at(float("-inf"))
        left = {"left": self._named("left")} if any(bus.left for bus in self._buses.values()) else {}
        self._audit("halt", reason=reason, principal=by, source=source, generation=count, **left, **members)
        log.warning("halted by %s: %s", by, reason)

    def _write_at(self, when: float) -> None:
        self._due = min(self._due, when)
        self._woken.set()

    @property
    def _latched(self) -> bool:
        """True if the latch has a hold of each principal that holds."""
        return self._holds.keys() <= self._kept.keys()

    async def latched(self) -> bool:
        """Return True when the latch is on the disk, False if it cannot be written, or ANSWER_S have passed."""
        with trio.move_on_after(ANSWER_S) as patience:
            while not self._latched:
                await self._tried.wait()
                if self._problem is not None:
                    break
        if patience.cancelled_caught and self._problem is None:
            self._problem = f"the latch {self._latch.path} is not written yet: the disk does not answer"
        return self._latched

    async def reset(
        self, by: str, asked: int, *, holds: Collection[int] | None = None, source: str | None = None, **members: Any
    ) -> None:
        """Remove holds of those that were there when this was asked for, at `flag.count` = `asked`; start nothing.

        With `holds` only those of these generations, with `source` only those of this kind. Raises Halted if some
        remain, which says why, or if none could be removed; AuditUnavailable if the latch cannot be written.
        """
        if not self.flag.halted:
            return
        if self._nursery is None:
            # Not started yet, or ended already: no input can be read, and so none is known to be clear.
            raise ShuttingDown
        meant = [one for one in self._holds.values() if source in (None, one.source) and one.generation <= asked]
        meant = [one for one in meant if holds is None or one.generation in holds]
        blocked = await self._blocked(meant)
        self._check_stopped(blocked)
        generations = {one.generation for one in meant if (one.source, one.by) not in blocked}
        reset = _Reset(generations, asked, blocked, {"principal": by, **members})
        self._resets.append(reset)
        self._woken.set()
        with trio.move_on_after(END_LIMIT_S) as patience:
            await reset.answer.get()
        if patience.cancelled_caught:
            reset.withdrawn = True
            raise self._unremoved("the disk does not answer")

    async def _blocked(self, meant: Iterable[Hold]) -> dict[tuple[str, str], str]:
        """Return the inputs that are not clear, and the open interlocks if a hold that is meant is one's, as read now.

        By source and principal, each with its state in words. An input that is not clear and has no hold halts.
        """
        blocked = await self._inputs.blocked()
        for line in self._inputs.states:
            if holder(line) in blocked.keys() - self._holds.keys():
                self._inputs.demand(line)
        if self._open_interlocks is not None and any(one.source == "interlock" for one in meant):
            blocked |= await self._open_interlocks()
        return blocked

    def _check_stopped(self, blocked: Mapping[tuple[str, str], str]) -> None:
        """Raise Halted unless the stop sequence has ended and every output is in its safe state."""
        unsafe = [{"bus": bus.bus_id, "outputs": bus.unsafe} for bus in self._unsafe_buses()]
        if self._stopping:
            why = "the stop sequence has not ended"
        elif unsafe:
            why = f"outputs are not in their safe states: {unsafe}"
        else:
            return
        raise self._refused([why], blocked, **({"unsafe": unsafe} if unsafe else {}))

    def _unremoved(self, why: str) -> AuditUnavailable:
        why = f"the latch {self._latch.path} cannot be changed: {why}"
        return AuditUnavailable(f"still halted: {why}", data={"reason": why, "effect": "none"})

    def _refused(self, why: Iterable[str], blocked: Mapping[tuple[str, str], str], **members: Any) -> Halted:
        reason = {"reason": self.flag.reason, "quotes": ["reason", *(["holds"] if "holds" in members else [])]}
        data = {"since": self.flag.since, **reason, "effect": "none", **members}
        for source, words in (("interlock", "interlocks are open"), ("input", "halt inputs are not clear")):
            states = {by.removeprefix(f"{source} "): state for (kind, by), state in blocked.items() if kind == source}
            if states:
                data[f"{source}s"] = states
                why = [f"{words} ({', '.join(f'{name}: {state}' for name, state in states.items())})", *why]
        return Halted(f"still halted: {'; '.join(why)}", data=data)

    def status(self, *, by: bool | str = True) -> dict[str, Any]:
        """Return the halt for `halt.status` and health, as JSON; with `by` also its principal, or only that one."""
        status: dict[str, Any] = {"halted": self.flag.halted}
        if self.flag.halted:
            holds = [asdict(one) for one in self._holds.values()]
            for one in holds:
                if by is not True and one["by"] == OTHERS:
                    # Its reasons begin with the principals that share it.
                    one["reason"] = one["last_reason"] = "not shown"
                if by is not True and by != one["by"]:
                    del one["by"]
            status |= {name: holds[0][name] for name in ("since", "reason", "by") if name in holds[0]}
            status["holds"] = holds
            status |= {"latched": self._latched, "stopping": self._stopping}
            if self._problem is not None:
                status["problem"] = self._problem
            status |= {name: found for name in ("unsafe", "safe", "left") if (found := self._named(name))}
        if self._inputs.states:
            status["inputs"] = {line.name: state for line, state in self._inputs.states.items()}
        return status

    def _named(self, what: Literal["unsafe", "safe", "left"]) -> list[dict[str, Any]]:
        """Return the outputs that are not safe, that this halt has made safe, or that it leaves, by bus, with names."""
        found = []
        for bus_id, bus in self._buses.items():
            outputs = bus.left if what == "left" else bus.unsafe
            if what == "safe":
                outputs = [output for output in self._stopped.get(bus_id, ()) if output not in outputs]
            if outputs:
                names = [bus.guard.name(output) for output in outputs]
                found.append({"bus": bus_id, "outputs": outputs, "names": names})
        return found

    # --- the actor ----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the latch, watch the inputs and toggle the heartbeat, until `end`. The buses have been opened.

        Started when every input has been read once: nothing may be driven before.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._keep_latch)
            self._inputs.watch(nursery)
            if self._spec.heartbeat is not None:
                nursery.start_soon(self._beat, self._spec.heartbeat)
            if self._stopping:
                # A halt that came before this.
                nursery.start_soon(self._stop)
            elif self.flag.halted:
                nursery.start_soon(self._insist, self._began)
            await self._inputs.all_seen()
            task_status.started()

    async def end(self) -> None:
        """Wait, within a bound, until a halt is on the disk; then end `run`. The heartbeat goes to its safe state."""
        with trio.move_on_after(END_LIMIT_S):
            while not self._latched:
                await self._tried.wait()
        nursery, self._nursery = self._nursery, None
        self._inputs.forget()
        if nursery is not None:
            nursery.cancel_scope.cancel()
        if self._spec.heartbeat is not None:
            self._buses[self._spec.heartbeat.bus].make_safe(HEARTBEAT, unattended=True)

    async def _keep_latch(self) -> None:
        """Write the holds to the latch when that is due, and do resets, one after the other."""
        while True:
            self._woken = trio.Event()
            if self._resets:
                await self._remove(self._resets.popleft())
            elif self._due <= trio.current_time():
                await self._save()
            else:
                with trio.move_on_at(self._due):
                    await self._woken.wait()

    async def _save(self) -> None:
        """Write the latch if it is not as the holds are, and record the holds that were renewed."""
        self._due = float("inf")
        if renewed := [self._holds[key] for key in self._renewed if key in self._holds]:
            self._audit("halt.again", holds=[_recorded(one) for one in renewed])
        self._renewed.clear()
        if self._holds != self._kept:
            try:
                await self._write(dict(self._holds))
            except OSError as error:
                self._cannot(f"cannot be written: {error.strerror}")
        self._written_at = trio.current_time()
        self._tried.set()
        self._tried = trio.Event()

    async def _write(self, holds: Mapping[tuple[str, str], Hold]) -> None:
        """Bring the latch to these holds. Raises OSError."""
        # Before the wait: from here on the file may no longer have the others.
        self._kept = {key: hold for key, hold in self._kept.items() if key in holds}
        if not holds:
            await self._latch.remove()
        elif await self._latch.save(tuple(holds.values())):
            self._kept, self._problem = holds, None
        else:
            self._kept = dict.fromkeys(holds)
            self._cannot("is empty: the disk has no room for who holds the halt, and why")

    def _cannot(self, why: str) -> None:
        problem = f"the latch {self._latch.path} {why}"
        if self._problem != problem:
            log.error("%s; it is tried again every second", problem)
        self._problem = problem
        self._write_at(trio.current_time() + RETRY_S)

    async def _remove(self, reset: _Reset) -> None:
        """Remove the holds that a reset may remove, from the latch first, and answer it."""
        going = {key: one for key, one in self._holds.items() if one.generation in reset.generations}
        if going and not reset.withdrawn:
            try:
                await self._write({key: one for key, one in self._holds.items() if key not in going})
            except OSError as error:
                self._write_at(trio.current_time() + RETRY_S)
                reset.answer.fail(self._unremoved(str(error.strerror)))
                return
        # What was renewed in the meantime stays, and so does everything if the reset has been refused by now.
        gone = [one for key, one in going.items() if self._holds[key] is one and not reset.withdrawn]
        for one in gone:
            del self._holds[one.source, one.by]
        if self._holds != self._kept:
            self._write_at(float("-inf"))
        if gone:
            self._describe()
            self._record_reset(reset, gone)
        if self._holds:
            reset.answer.fail(self._remaining(reset))
        else:
            reset.answer.fill(None)

    def _record_reset(self, reset: _Reset, gone: Iterable[Hold]) -> None:
        self._audit("halt.reset", **reset.members, holds=[_recorded(one) for one in gone], halted=self.flag.halted)
        removed = "; ".join(f"{one.by}: {one.reason}" for one in gone)
        log.warning("%s has removed from the halt: %s", reset.members["principal"], removed)

    def _remaining(self, reset: _Reset) -> Halted:
        """Return the refusal of a reset after which holds remain, with the reason of each."""
        why = []
        others = [one for key, one in self._holds.items() if key not in reset.blocked]
        if any(one.generation > reset.asked for one in others):
            why.append("a halt has come since the reset was asked for; ask again")
        if older := [f"{one.by}: {prose(one.last_reason)}" for one in others if one.generation <= reset.asked]:
            why.append(f"this reset does not end the hold of {', '.join(older)}")
        holds = [_recorded(one) for one in self._holds.values()]
        return self._refused(why, reset.blocked, holds=holds)

    # --- the stop sequence --------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        """Run the stop sequence, by the clock: an entry whose bus is not ready does not hold up the next one."""
        began = self._began
        asked: dict[str, list[Hashable]] = {}
        for entry in self._spec.sequence:
            await trio.sleep(entry.after_ms / 1000)
            bus = self._buses.get(entry.bus)  # a chip whose overlay is not there has none
            if bus is not None and bus.state == "ready" and self._nursery is not None:
                asked.setdefault(entry.bus, []).append(entry.output)
                self._nursery.start_soon(self._recorded, entry, bus.drive(entry.output, entry.value, _HALT))
        if self._spec.sequence:
            for bus_id, bus in self._buses.items():
                # Also what no session has driven, and whose entry may not have begun yet.
                bus.halt(also=asked.get(bus_id, ()))
        self._stopping = False
        await self._insist(began)

    async def _insist(self, began: int) -> None:
        """Try again, as long as this halt lasts, to bring outputs to their safe states; the pauses grow."""
        pause = RETRY_S
        while self._began == began and any(bus.unsafe for bus in self._buses.values()):
            await trio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_S)
            for bus in self._unsafe_buses() if self._began == began else ():
                bus.halt()
            # Their transactions have run by then, on a bus that serves: if all is safe, this ends before a long pause.
            await trio.sleep(RETRY_S)

    def _unsafe_buses(self) -> list[Bus]:
        """Return the buses with outputs that are not safe although they could be: others wait for their opening."""
        return [bus for bus in self._buses.values() if bus.unsafe and bus.state == "ready"]

    async def _recorded(self, entry: StopEntry, ticket: Ticket) -> None:
        """Record the outcome of an entry of the stop sequence."""
        signal = self._buses[entry.bus].guard.signals[entry.output]
        report = {"name": entry.name, **signal.report, "state": signal.shown(entry.value)}
        outcome: dict[str, Any] = {"safe": [report]}
        try:
            await ticket.get()
        except RpcError as error:
            outcome = {"error": error.message}
            log.warning("stop sequence: %s %s of %s: %s", entry.key, entry.name, entry.bus, error)
        self._audit("outputs.safe", bus=entry.bus, reason=HALT, outputs=[entry.output], **outcome)

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
