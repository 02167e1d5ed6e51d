"""The interlocks of a board: an output may be driven to a level only while conditions on lines and sensors hold.

It owns the readings that interlocks require, and the rule that an open interlock brings its output to its safe state.
The profile says what is required (`hearth.drivers.boards.profile`), the guard of each bus asks before the driver is
called (`bus.guard`), and the bus brings the output to its safe state and keeps the list of driven outputs true.

Theory of operation. A condition is met only by a reading that succeeded, is within the bounds, and is at most
`max_age_ms` old. Everything else (a failed read, a bus that is wedged or down, a sensor that is not there, an old
value) leaves the interlock open. So does a sensor with `stuck_after_ms` whose readings have all been the same for that
time: a chip that is shut down, or a wire that is cut, may go on answering. Such a sensor is read ten times in that time
also while no output needs it (`_sample`), so that switching the output does not begin the time again.

- *Before the driver* (`BusInterlocks.check`, within the transaction, in the bus's own thread where the driver blocks):
  lines of the same chip are read there and then, by the same driver. Readings of other chips and of sensors are only
  looked at: a bus never waits for another bus.
- *Before the ticket* (`want`): the requester has readings that are stale, or would refuse it, taken again, in its own
  task, and waits for at most `PATIENCE`. As long as its ticket waits in the queue, the readings are kept fresh. An
  output that is at the level already needs no wait: taking it back must not be held up.
- *While the output is at a guarded level* (`_watch`): all readings are taken every `check_ms`, and the conditions
  evaluated in a transaction of the output's bus. If one is not met, that transaction makes the output safe. The first
  time is at once if a condition is on another bus, and else after `check_ms`: the guard has just read the lines.
  An interlock with `halt` halts the daemon too; its hold is removed only while its conditions are met (`halting`).
  `BusInterlocks.note` tells the level after every operation of the driver, by a task, a pulse, a rollback or a safe
  state. An output that an earlier run left driven, or whose driving failed half-way, counts as at the level.

The monitor's transactions go before all others (`must_run`): a lease or a long queue must not leave an interlock
unread. Each source has one read under way at most. A read that hangs leaves the last reading, which then gets too old.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import trio
from attrs import define, field

from hearth.actors.bus.actor import SAFE_STATE_LIMIT
from hearth.actors.bus.queue import Requester, Ticket, WentSafe
from hearth.drivers.base import Wakeup
from hearth.drivers.sensor import SENSORS_BUS
from hearth.errors import InterlockOpen, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from hearth.actors.bus.actor import Bus
    from hearth.drivers.boards import Board
    from hearth.drivers.boards.profile import Condition, InterlockSpec
    from hearth.drivers.gpio.driver import GpioDriver
    from hearth.tools import Drive

log = logging.getLogger("hearth.interlocks")

PATIENCE = 1.0
"""Seconds that a requester waits at most for readings that are stale."""
_LINE_LIMIT = 1.0
_KERNEL_LIMIT = 5.0
"""Seconds after which reading a line, or a sensor of the kernel, marks its bus as wedged."""
_MONITOR = Requester("", "", "")


class LastReading(NamedTuple):
    """What a source read, or the `error` of reading it. `at` is the Trio time at which the read began."""

    value: float | None
    error: str | None
    at: float


@define(eq=False)
class RequiredSource:
    """A line or a sensor that interlocks require. `op` reads it in a transaction of its bus; `value` decodes that."""

    op: Callable[[Any], Any]
    value: Callable[[Any], float]
    limit: float
    reading: LastReading = field(factory=lambda: LastReading(None, "it has not been read yet", -math.inf), init=False)
    done: trio.Event | None = field(default=None, init=False)
    """Set when the read that is under way has ended; None if none is."""
    _value: float | None = field(default=None, init=False)
    _since: float = field(default=math.inf, init=False)
    """The last value, and the time since which no reading had another one."""

    def take(self, reading: LastReading) -> None:
        """Note a reading. One that failed does not begin the time of an unchanged value again."""
        if reading.value is not None and reading.value != self._value:
            self._value, self._since = reading.value, reading.at
        self.reading = reading

    @property
    def unchanged(self) -> float:
        """Return for how many seconds all readings have had the same value."""
        return self.reading.at - self._since

    def stuck(self, condition: Condition) -> bool:
        """Return True if the value has not changed for longer than a condition of this source permits."""
        return condition.stuck_after_ms is not None and self.unchanged * 1000 >= condition.stuck_after_ms

    def meets(self, condition: Condition) -> bool:
        """Return True if the last reading, however old it is, meets a condition of this source."""
        value = self.reading.value
        return value is not None and condition.holds(value) and not self.stuck(condition)


class Interlock:
    """One interlock, its sources, and the state of its output. Its attributes may be set from any thread."""

    def __init__(self, spec: InterlockSpec, sources: Iterable[RequiredSource], *, driven: bool) -> None:
        self.spec = spec
        self.conditions = tuple(zip(spec.requires, sources, strict=True))
        self.elsewhere = [(condition, source) for condition, source in self.conditions if condition.bus != spec.bus]
        """The conditions that the guard cannot read itself."""
        self.driven = driven
        """True while the output is, or may be, at a level that the interlock guards."""
        self.wanted = 0
        """The number of tickets that wait and may drive it to that level."""
        self.stirred = False
        """Set when the conditions are to be evaluated at once, as when a required line was driven."""
        self.parked = False
        """True while the monitor waits until the output is driven or wanted, and must be woken for that."""
        self.wakeup = Wakeup()
        self.failure: str | None = None
        """Why the output could not be brought to its safe state, for which the monitor then asks again."""

    def doubtful(self, now: float, *, unmet: bool) -> list[RequiredSource]:
        """Return the sources of other buses whose reading is too old, or, with `unmet`, does not meet its condition."""
        oldest = now - self.spec.max_age_ms / 1000
        return [
            source
            for condition, source in self.elsewhere
            if source.reading.at < oldest or (unmet and not source.meets(condition))
        ]

    def holds(self, now: float, driver: GpioDriver) -> bool:
        """Return True if every condition is met; within a transaction of the output's bus, whose lines are read now."""
        for condition, source in self.conditions:
            if condition.bus == self.spec.bus:
                # All of them, also after one that is not met: a refusal lists readings of the present.
                source.reading = _read_line(driver, condition, now)
        return self.met(now)

    def met(self, now: float) -> bool:
        """Return True if the last readings are not too old and meet every condition."""
        oldest = now - self.spec.max_age_ms / 1000
        for condition, source in self.conditions:
            if source.reading.at < oldest or not source.meets(condition):
                return False
        return True

    def read(self, now: float) -> list[dict[str, Any]]:
        """Return every condition with its last reading, as JSON; `holds` is true where it is met."""
        found: list[dict[str, Any]] = []
        for condition, source in self.conditions:
            value, error, at = source.reading
            entry = {**condition.to_json(), "read": value}
            if error is None:
                assert value is not None, "a reading has a value or an error"
                entry["age_ms"] = age = round((now - at) * 1000, 1)
                if at < now - self.spec.max_age_ms / 1000:
                    entry["error"] = f"the reading is {age:g} ms old, {self.spec.max_age_ms} are allowed"
                elif source.stuck(condition):
                    stays = f"the reading has not changed for {source.unchanged * 1000:.0f} ms"
                    entry["error"] = f"{stays}, {condition.stuck_after_ms} are allowed"
                entry["holds"] = "error" not in entry and condition.holds(value)
            else:
                entry |= {"error": error, "holds": False}
            found.append(entry)
        return found

    def unmet(self, now: float) -> list[dict[str, Any]]:
        """Return the conditions that are not met, with what was read; see `read`."""
        return [
            {key: value for key, value in entry.items() if key != "holds"}
            for entry in self.read(now)
            if not entry["holds"]
        ]

    def depends_on(self, changed: Collection[tuple[str, Hashable]]) -> bool:
        """Return True if driving these outputs may change what is read: a required line, or anything a sensor sees."""
        return bool(changed) and any(
            condition.line is None or (condition.bus, condition.line) in changed for condition in self.spec.requires
        )

    def refusal(self, unmet: list[dict[str, Any]]) -> InterlockOpen:
        """Return the refusal of driving the output while these conditions are not met."""
        spec = self.spec
        text = (
            f"{spec.what} of {spec.bus} may be {spec.region} only while "
            f"{' and '.join(map(str, spec.requires))}; {_said(unmet)}; nothing was driven; "
            "try again when the conditions hold"
        )
        data = {"bus": spec.bus, **spec.place, "requires": unmet, "effect": "none"}
        return InterlockOpen(text, data=data)

    def to_json(self, now: float) -> dict[str, Any]:
        """Return the interlock with its present state, for hw.board and the lists of outputs."""
        spec = self.spec
        requires = self.read(now)
        place = spec.place
        return {
            "drives": spec.name,
            "bus": spec.bus,
            **place,
            next(iter(place)): spec.output,
            "open": not all(entry["holds"] for entry in requires),
            "driven": self.driven,
            "requires": requires,
            "max_age_ms": spec.max_age_ms,
            "check_ms": spec.check_ms,
        }


def _read_line(driver: GpioDriver, condition: Condition, now: float) -> LastReading:
    try:
        return LastReading(driver.get(cast("int", condition.line)), None, now)
    except RpcError as error:
        return LastReading(None, error.message, now)


def _said(unmet: list[dict[str, Any]]) -> str:
    """Return what was read, in words."""
    return ", ".join(
        f"{entry.get('line', entry.get('sensor'))} "
        + (f"reads {entry['read']:g}" if "error" not in entry else f"counts as open ({entry['error']})")
        for entry in unmet
    )


class BusInterlocks:
    """The interlocks of one bus, as its guard asks them. Called within a transaction, in any thread."""

    def __init__(self, driver: GpioDriver, now: Callable[[], float]) -> None:
        self._driver = driver
        self._now = now
        self.drives: dict[Hashable, list[Interlock]] = {}
        """By output."""
        self.requires: dict[Hashable, list[Interlock]] = {}
        """By a line that they require."""

    def check(self, output: Hashable, level: object) -> None:
        """Raise InterlockOpen if an output may not be driven to a level now."""
        for lock in self.drives.get(output, ()):
            if lock.spec.guards(level) and not lock.holds(now := self._now(), self._driver):
                raise lock.refusal(lock.unmet(now))

    def note(self, output: Hashable, level: object, *, certain: bool = True) -> None:
        """Note that an output is at a level; without `certain` it may still be at its former one."""
        for lock in self.drives.get(output, ()):
            if lock.spec.guards(level):
                if not lock.driven:
                    # The readings of other buses that let it be driven are confirmed by new ones at once. Lines of this
                    # bus were read in the transaction that drives it: they are due again after a period.
                    lock.driven = True
                    lock.stirred = lock.stirred or bool(lock.elsewhere)
                    if lock.stirred or lock.parked:
                        lock.wakeup.wake()
            elif certain:
                lock.driven = False
        for lock in self.requires.get(output, ()):
            if lock.driven:
                lock.stirred = True
                lock.wakeup.wake()


class Interlocks:
    """The monitor: all interlocks of a board, and the actor that reads what they require.

    Put into place by `plug`, before the buses run. `now` is Trio's clock, in seconds, callable in any thread.
    """

    def __init__(self, locks: Iterable[Interlock], sources: Mapping[tuple[str, str], RequiredSource]) -> None:
        self._locks = list(locks)
        self._bus_of = {source: bus for (bus, _name), source in sources.items()}
        self._buses: Mapping[str, Bus] = {}
        self._audit: Callable[..., None] = lambda _event, **_fields: None
        self._halt: Callable[..., None] = lambda _reason, _by, **_fields: None
        self._nursery: trio.Nursery | None = None
        self._clock: trio.abc.Clock | None = None
        self._by_output: dict[tuple[str, Hashable], list[Interlock]] = {}
        self._awaited: dict[tuple[str, Hashable], list[Interlock]] = {}
        """Those of them that require anything of another bus."""

    @classmethod
    def of(cls, board: Board, found: Mapping[str, Collection[Hashable]]) -> Interlocks | None:
        """Return the interlocks of a board's profile, or None if it has none.

        `found` are the outputs that an earlier run left driven, by bus.
        """
        sources: dict[tuple[str, str], RequiredSource] = {}
        locks: list[Interlock] = []
        for spec in board.profile.interlocks:
            for condition in spec.requires:
                key = _key(condition)
                if key not in sources:
                    sources[key] = _source(condition, board)
            mine = [sources[_key(condition)] for condition in spec.requires]
            locks.append(Interlock(spec, mine, driven=spec.output in found.get(spec.bus, ())))
        return cls(locks, sources) if locks else None

    def plug(self, buses: Mapping[str, Bus], audit: Callable[..., None], halt: Callable[..., None]) -> None:
        """Put the interlocks into the guards of the buses; `audit(event, **fields)` records failures, `halt` halts."""
        self._buses = buses
        self._audit, self._halt = audit, halt
        asked: dict[str, BusInterlocks] = {}

        def at(bus: str) -> BusInterlocks:
            if bus not in asked:
                asked[bus] = BusInterlocks(cast("GpioDriver", buses[bus].driver), self.now)
                buses[bus].guard.interlocks = asked[bus]
            return asked[bus]

        for lock in self._locks:
            spec = lock.spec
            at(spec.bus).drives.setdefault(spec.output, []).append(lock)
            self._by_output.setdefault((spec.bus, spec.output), []).append(lock)
            if lock.elsewhere:
                self._awaited.setdefault((spec.bus, spec.output), []).append(lock)
            for condition in spec.requires:
                if condition.line is not None:
                    at(condition.bus).requires.setdefault(condition.line, []).append(lock)

    def now(self) -> float:
        """Return Trio's time, in any thread; before the monitor runs, a time at which every reading is too old."""
        return math.inf if self._clock is None else self._clock.current_time()

    # --- called by requesters -------------------------------------------------------------------------------------

    def concern(self, bus: str, output: Hashable) -> bool:
        """Return True if a ticket that drives this output has to `want` readings first."""
        awaited = self._awaited.get((bus, output))
        return awaited is not None and not all(lock.driven for lock in awaited)

    async def want(self, bus: str, outputs: Iterable[Hashable], *, lasting: bool = False) -> list[Interlock]:
        """Have readings taken again before a ticket that may drive these outputs; return what to give `leave`.

        Only those that are stale, or that would refuse it: the cause may be gone. From here on the readings are kept
        fresh. Waits for at most `PATIENCE`: what is stale then is open. `lasting`: for many writes, between which the
        output may leave the level that the interlock guards.
        """
        locks = [
            lock for output in outputs for lock in self._awaited.get((bus, output), ()) if lasting or not lock.driven
        ]
        if not locks:
            return locks
        for lock in locks:
            lock.wanted += 1
        try:
            await self._freshen(locks)
        except trio.Cancelled:
            self.leave(locks)
            raise
        return locks

    def leave(self, locks: Iterable[Interlock]) -> None:
        """Note that the ticket has been answered."""
        for lock in locks:
            lock.wanted -= 1

    def asked(self, drives: Iterable[Drive]) -> list[Interlock]:
        """Return the interlocks that will be asked when a step drives these outputs."""
        found: list[Interlock] = []
        for drive in drives:
            for lock in self._by_output.get((drive.bus, drive.output), ()):
                if lock.spec.guards(drive.level):
                    found.append(lock)  # noqa: PERF401 - HOT: once per submit
        return found

    async def verdicts(self, locks: Sequence[Interlock]) -> Mapping[Any, RpcError | None]:
        """Return the refusal of each interlock that is open now, or None; waits for at most `PATIENCE`."""
        await self._take({source for lock in locks for _, source in lock.conditions}, PATIENCE)
        now = self.now()
        return {lock: lock.refusal(unmet) if (unmet := lock.unmet(now)) else None for lock in locks}

    async def states(self) -> list[dict[str, Any]]:
        """Return all interlocks with their present state, as JSON; waits for at most `PATIENCE`."""
        await self._take({source for lock in self._locks for _, source in lock.conditions}, PATIENCE)
        now = self.now()
        return [lock.to_json(now) for lock in self._locks]

    async def halting(self) -> dict[tuple[str, str], str]:
        """Return the open interlocks that halt, by source and principal of their holds, each with what was read."""
        verdicts = await self.verdicts([lock for lock in self._locks if lock.spec.halt])
        now = self.now()
        return {_holder(lock): _said(lock.unmet(now)) for lock, refusal in verdicts.items() if refusal is not None}

    async def _freshen(self, locks: Collection[Interlock]) -> None:
        # The second time for a read that was under way already, and had begun too long ago.
        for unmet in (True, False):
            if sources := {source for lock in locks for source in lock.doubtful(self.now(), unmet=unmet)}:
                await self._take(sources, PATIENCE)
        for lock in locks:
            lock.wakeup.wake()

    # --- the actor ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch the interlocks until cancelled."""
        self._clock = trio.lowlevel.current_clock()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for lock in self._locks:
                nursery.start_soon(self._watch, lock)
                for condition, source in lock.conditions:
                    if condition.stuck_after_ms is not None:
                        nursery.start_soon(self._sample, source, condition.stuck_after_ms / 10_000)

    async def _watch(self, lock: Interlock) -> None:
        """Evaluate an interlock every `check_ms` while its output is driven; keep its readings fresh while wanted."""
        period = lock.spec.check_ms / 1000
        lock.stirred = lock.driven  # an earlier run left it so, and no guard has read anything
        while True:
            lock.parked = True
            await lock.wakeup.until(lambda: lock.driven or lock.wanted)
            lock.parked = False
            due = trio.current_time() + (0 if lock.elsewhere else period)
            while True:
                with trio.move_on_at(due):
                    await lock.wakeup.until(lambda: lock.stirred)
                if not (lock.driven or lock.wanted):
                    break
                due = trio.current_time() + period
                lock.stirred = False
                # No longer than a period: a reading that does not come must get too old in time.
                await self._take([source for _, source in lock.elsewhere], period)
                if lock.driven:
                    await self._enforce(lock)

    async def _sample(self, source: RequiredSource, period: float) -> None:
        """Read a sensor at times, for its value to be seen to change."""
        while True:
            await self._take([source], period)
            await trio.sleep(period)

    async def _take(self, sources: Collection[RequiredSource], patience: float) -> None:
        """Read sources, all at the same time; return when they are read, or after `patience` seconds."""
        if self._nursery is None:
            return
        for source in sources:
            if source.done is None:
                source.done = trio.Event()
                self._nursery.start_soon(self._read, source)
        with trio.move_on_after(patience):
            for source in sources:
                if source.done is not None:
                    await source.done.wait()

    async def _read(self, source: RequiredSource) -> None:
        at = trio.current_time()

        def op(driver: Any) -> Any:
            # The age of a value counts from here, not from the request: the ticket may have waited.
            nonlocal at
            at = self.now()
            return source.op(driver)

        bus = self._buses[self._bus_of[source]]
        try:
            if bus.state != "ready":
                # A ticket that must run would wait until it is.
                raise bus.unavailable(_MONITOR)
            raw = await bus.request(Ticket(op, _MONITOR, limit=source.limit, must_run=True)).get()
            value = source.value(raw)
            reading = LastReading(value, None, at) if value == value else LastReading(None, "it reads no number", at)
        except RpcError as error:
            reading = LastReading(None, error.message, at)
        if reading.at >= source.reading.at:
            # Else the bus of the output has read the line since.
            source.take(reading)
        done, source.done = source.done, None
        assert done is not None, "set by `_take`"
        done.set()

    async def _enforce(self, lock: Interlock) -> None:
        """Evaluate an interlock in a transaction of its output's bus; if it is open, bring the output to safety."""
        spec = lock.spec

        def op(driver: Any) -> Any:
            now = self.now()
            if not lock.driven or lock.holds(now, driver):
                return None
            unmet = lock.unmet(now)
            record = {**spec.place, "requires": unmet}
            return WentSafe(driver.make_safe([spec.output]), unmet, spec.output, "interlock.open", record)

        bus = self._buses[spec.bus]
        try:
            unmet = await bus.request(Ticket(op, _MONITOR, limit=SAFE_STATE_LIMIT, must_run=True)).get()
        except RpcError as error:
            if error.message != lock.failure and bus.state != "closed":
                lock.failure = error.message
                log.error("interlock: %s of %s is not safe: %s", spec.what, spec.bus, error.message)
                self._audit("interlock.open", bus=spec.bus, **spec.place, error=error.message)
                self._demand(lock, f"is not safe: {error.message}")
            return
        lock.failure = None
        if unmet:
            what = "interlock: %s of %s was brought to its safe state: %s"
            log.warning(what, spec.what, spec.bus, _said(unmet))
            self._demand(lock, _said(unmet))

    def _demand(self, lock: Interlock, why: str) -> None:
        if lock.spec.halt:
            source, by = _holder(lock)
            self._halt(f"{by}: {why}", by, source=source)


def _holder(lock: Interlock) -> tuple[str, str]:
    """Return source and principal of an interlock's hold of the halt."""
    return "interlock", f"interlock {lock.spec.bus} {lock.spec.name}"


def _key(condition: Condition) -> tuple[str, str]:
    """Return the bus of a condition, and what it reads there: two names of a line are one source."""
    return condition.bus, condition.name if condition.line is None else f"line {condition.line}"


def _source(condition: Condition, board: Board) -> RequiredSource:
    name, line = condition.name, condition.line
    if line is not None:
        return RequiredSource(lambda driver: driver.get(line), int, _LINE_LIMIT)
    if condition.bus == SENSORS_BUS:
        return RequiredSource(lambda driver: driver.read(name), lambda reading: float(reading.value), _KERNEL_LIMIT)
    sensor = board.sensors[name]
    return RequiredSource(sensor.read, sensor.value, sensor.limit_ms(board.drivers[sensor.bus]) / 1000)
