"""The observer: a runtime as one snapshot and one ordered stream, for those with the right `observe`.

It owns the history of `observe.event` notifications, the sampling of what no record reports, and the state that a
snapshot shows. It decides nothing and moves nothing: a line is read only where the daemon holds it already, and only
where that disturbs no transaction. Nothing of a task's or a plan's payload is here: of arguments what their tool has
declared (`Tool.logged`), of results numbers alone; a plan's content is `plan.get`'s, for those who may decide.

Theory of operation. The stream has three sources:

- audit records, as they are posted (`record`, called by the journal), in the order of the log;
- numbers in the results of steps (`reading`, called by the task);
- samples, ten times a second: lines and signals of all kinds with their holders, buses, halt and approvals, and health
  once a second. Of these, only changes become events. So a pulse shorter than a sample shows in the records of its
  task, and not in the line.

The records and the readings since the last sample become one event each: what an observer and its browser pay for is
messages, and a busy cell has thousands of records a second.

One history is shared by all observers (see `events`, `send_queue`): each has a cursor, and an event is encoded once.
The history is bounded. A cursor that asks for an event that is no longer kept gets a snapshot in its place, which says
how many events it replaces, and goes on behind it: an observer may miss events, and never without being told.

    asleep ----> awake ----> asleep        awake while there are readers, and KEEP_S longer

Asleep it keeps and counts nothing, so a runtime without observers pays one comparison a record. Each time it wakes it
begins another stream, with an id of its own: numbers of an earlier one, or of an earlier run, lead to a snapshot.

A snapshot is made of the present state, and events that follow it may report what it shows already: applying them once
more changes nothing (`hearth.client.observing` applies them). A task is left out as soon as its end has been posted.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import define, field

from hearth._util.ids import new_id
from hearth._version import __version__
from hearth.audit.record import timestamp
from hearth.drivers.named import present
from hearth.errors import AuditUnavailable, PermissionDenied
from hearth.policy.memory import FEED_BYTES
from hearth.protocol.methods import ObserveAudit, ObserveState, ObserveSubscribe
from hearth.tools import KnownOutputs, OutputState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping
    from pathlib import Path

    from hearth.actors.bus.actor import Bus
    from hearth.actors.bus.halt import Halt
    from hearth.actors.events import Reader
    from hearth.actors.messages import EventSink, Request
    from hearth.actors.metrics import Metrics
    from hearth.drivers.boards import Board
    from hearth.drivers.named import NamedSignal
    from hearth.drivers.profile import HaltSpec
    from hearth.policy.memory import Account
    from hearth.protocol.methods import ObserveParams

SAMPLE_S: Final = 0.1
HEALTH_S: Final = 1.0
KEEP_S: Final = 300.0
"""Seconds for which the history goes on without a reader: a client that reconnects resumes in it."""
MOST_KEPT: Final = 8192
MOST_KEPT_BYTES: Final = 4 << 20
MOST_READINGS: Final = 64
"""Readings that a snapshot has: the last one of each tool with its arguments."""
MOST_GATHERED: Final = 256
"""Records, or readings, of one event; a sample that comes late has several."""
MOST_VALUES: Final = 32
"""Numbers of one result that a reading has."""

_UNKNOWN: Final = OutputState()
_GONE: Final = KnownOutputs("its bus is not there")

_HEAD: Final = b'{"jsonrpc":"2.0","method":"observe.event","params":'
_TAIL: Final = b"}\n"


class ObserverLog:
    """The events of one observer, numbered from 1. Implements `events.History`; it never ends."""

    metrics: Metrics | None = None
    ended = False

    def __init__(
        self, state: Callable[[], Mapping[str, Any]], clock: Callable[[], float], attached: Callable[[], None]
    ) -> None:
        """`attached` is called for each reader: one of this process may come some time after its subscription."""
        self._state = state
        self._clock = clock
        self._attached = attached
        self.stream = ""
        self.last_seq = 0
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self.readers: dict[Reader, None] = {}
        self._snapshot: tuple[int, int, bytes] | None = None
        """Number of its last event, number that was asked for, and line of the last snapshot."""

    def begin(self) -> None:
        """Begin another stream, without events."""
        self.stream, self.last_seq, self._snapshot = new_id(), 0, None
        self._lines.clear()
        self._bytes = 0

    def publish(self, kind: str, members: Mapping[str, Any]) -> None:
        """Add an event, drop the oldest ones if there is no room, and notify the readers."""
        seq = self.last_seq + 1
        line = self._line(seq, kind, members)
        self.last_seq = seq
        self._lines.append(line)
        self._bytes += len(line)
        while len(self._lines) > MOST_KEPT or (self._bytes > MOST_KEPT_BYTES and len(self._lines) > 1):
            self._bytes -= len(self._lines.popleft())
        for reader in self.readers:
            if not reader.gone:
                reader.notify()

    def _line(self, seq: int, kind: str, members: Mapping[str, Any]) -> bytes:
        ts = timestamp(self._clock())
        params = {"stream": self.stream, "seq": seq, "ts": ts, "kind": kind, **members}
        # A record may hold what a driver put into it.
        return _HEAD + orjson.dumps(params, default=str) + _TAIL

    def attach(self, reader: Reader) -> None:
        """See History. A reader is always notified: a snapshot may be due to it."""
        self.readers[reader] = None
        self._attached()
        reader.notify()

    def detach(self, reader: Reader) -> None:
        """See History."""
        self.readers.pop(reader, None)

    def hold(self) -> None:
        """Do nothing: the history is the runtime's, and charged to no principal. See History."""

    def let_go(self) -> None:
        """Do nothing. See History."""

    def lines(self, from_seq: int, most: int) -> tuple[list[bytes], int]:
        """Return the events from a number on, or a snapshot in place of those that are no longer kept; see History."""
        oldest = self.last_seq - len(self._lines) + 1
        if from_seq > 0 and oldest <= from_seq <= self.last_seq + 1:
            start = from_seq - oldest
            # A deque is slow in its middle; a reader that follows is at its end.
            found = [self._lines[index] for index in range(start, min(start + most, len(self._lines)))]
            return found, from_seq + len(found)
        if self._snapshot is None or self._snapshot[:2] != (self.last_seq, from_seq):
            missed = self.last_seq - from_seq + 1 if 0 < from_seq <= self.last_seq else None
            line = self._line(self.last_seq, "snapshot", {"missed": missed, "state": self._state()})
            self._snapshot = self.last_seq, from_seq, line
        return [self._snapshot[2]], self.last_seq + 1


@define(eq=False)
class Observer:
    """The observer of one runtime; `run` serves it. Everything else is synchronous, in the Trio thread.

    `approvals` returns the open questions, `overview` the open sessions and the live tasks, each as a snapshot shows
    them; `health` the runtime's health.
    """

    _board: Board
    _halt_spec: HaltSpec
    _buses: Mapping[str, Bus]
    _halt: Halt
    _approvals: Callable[[], list[dict[str, Any]]]
    _clock: Callable[[], float]
    _overview: Callable[[], dict[str, Any]]
    _health: Callable[[], Mapping[str, Any]]
    _policy: Callable[[], Mapping[str, Any]]
    _owner: Callable[[str], str | None]
    """Returns the principal of a session, by its id."""
    log: ObserverLog = field(init=False)
    awake: bool = field(default=False, init=False)
    _woken: trio.Event = field(factory=trio.Event, init=False)
    _lines: dict[tuple[str, int], dict[str, Any]] = field(factory=dict, init=False)
    """By bus and offset: what a snapshot shows of a line."""
    _signals: dict[tuple[str, int], dict[str, Any]] = field(factory=dict, init=False)
    """By bus and channel: what a snapshot shows of an output that takes a number."""
    _named: list[tuple[NamedSignal, dict[str, Any]]] = field(factory=list, init=False)
    """Each signal of the board with its row."""
    _seen: list[object] = field(factory=list, init=False)
    """By the place of a signal in `_named`: what its row was made of."""
    _inputs: dict[bytes, str] = field(factory=dict, init=False)
    """By the key of the reading that shows it: the full name of a signal that no bus knows, such as of a sensor.

    The key is that of the step, or of the step's tool with the name and the bus in a result of signal.read.
    """
    _read: dict[str, dict[str, Any]] = field(factory=dict, init=False)
    """By the full name of such a signal: its last reading, as members of its row."""
    _sampled: dict[str, Any] = field(factory=dict, init=False)
    """By kind: what was published last."""
    _readings: dict[bytes, dict[str, Any]] = field(factory=dict, init=False)
    _gathered: dict[str, list[dict[str, Any]]] = field(factory=lambda: {"records": [], "readings": []}, init=False)
    """By kind: what the next event has."""

    def __attrs_post_init__(self) -> None:
        self.log = ObserverLog(self.state, self._clock, self._wake)
        roles: dict[tuple[str, Hashable], str]
        roles = {(one.bus, one.offset): "halt input" for one in self._halt_spec.inputs}
        roles |= {(one.bus, one.output): "stop sequence" for one in self._halt_spec.sequence}
        if (beat := self._halt_spec.heartbeat) is not None:
            roles[beat.bus, beat.offset] = "heartbeat"
        for label, chip in getattr(self._board, "chips", {}).items():
            for line in chip.lines:
                place = f"gpio:{label}", line.offset
                self._lines[place] = {
                    "bus": place[0],
                    "line": line.offset,
                    "name": line.name,
                    "aliases": [alias for alias, offset in chip.aliases.items() if offset == line.offset],
                    "value": None,
                    "owner": None,
                    "direction": line.direction,
                    "safe": line.safe,
                    "hold": line.hold,
                    "active_low": line.active_low,
                    "limit": None if line.limit is None else line.limit.to_json(),
                    "reserved": line.reserved,
                    "role": roles.get(place),
                }
        for chip in getattr(self._board.profile, "signal_chips", ()):
            for channel in chip.channels if chip.bus in self._buses else ():
                signal = channel.signal
                self._signals[chip.bus, channel.number] = {
                    "bus": chip.bus,
                    "channel": channel.number,
                    "name": channel.name,
                    "unit": signal.unit,
                    "value": None,
                    "owner": None,
                    "safe": channel.safe,
                    "hold": channel.hold,
                    "limit": signal.limit.to_json(),
                    "reserved": channel.reserved,
                    "role": roles.get((chip.bus, channel.number)),
                }

        for one in getattr(self._board, "signals", ()):
            row = self._board.signals.row(one, KnownOutputs(), _rules(self._board), "")
            self._named.append((one, row))
            self._seen.append((None, None, None))
            if one.signal is None and "r" in one.access:
                step = one.read()
                self._inputs[_key(step.tool, step.args)] = one.full
                self._inputs[_key(step.tool, {"name": row["name"], "bus": one.bus})] = one.full

    # --- sources --------------------------------------------------------------------------------------------------

    def record(self, record: Mapping[str, Any]) -> None:
        """Take an audit record, which is being posted. Never raises."""
        if self.awake:
            self._gather("records", {"ts": timestamp(self._clock()), **record})

    def reading(self, tool: str, args: Mapping[str, Any], result: bytes, ids: Mapping[str, Any]) -> None:
        """Take the numbers of a step's result, which is JSON; `ids` name the step."""
        if not self.awake:
            return
        loaded, key, ts = orjson.loads(result), _key(tool, args), timestamp(self._clock())
        by_name = _key(tool, {name: loaded.get(name) for name in ("name", "bus")})
        if "value" in loaded and (full := self._inputs.get(by_name) or self._inputs.get(key)) is not None:
            value, why = loaded["value"], loaded.get("why")
            quality = "none" if value is None else "stale"
            self._read[full] = {"value": value, "quality": quality, "why": why, "at": ts}
        values = numbers(loaded)
        if values:
            reading = {"ts": ts, "tool": tool, "args": args, "values": values, **ids}
            self._readings.pop(key, None)
            self._readings[key] = reading
            if len(self._readings) > MOST_READINGS:
                del self._readings[next(iter(self._readings))]
            self._gather("readings", reading)

    def _gather(self, kind: str, one: dict[str, Any]) -> None:
        gathered = self._gathered[kind]
        gathered.append(one)
        if len(gathered) >= MOST_GATHERED:
            self._publish_gathered(kind)

    def _publish_gathered(self, kind: str) -> None:
        if gathered := self._gathered[kind]:
            self._gathered[kind] = []
            self.log.publish(kind, {kind: gathered})

    def sample(self) -> None:
        """Publish what has happened and what has changed since the last sample."""
        for kind in self._gathered:
            self._publish_gathered(kind)
        known = {bus_id: bus.known(self._told_owner) for bus_id, bus in self._buses.items()}
        for kind, key, outputs in (("lines", "line", self._lines), ("signals", "channel", self._signals)):
            if changed := _changed_outputs(key, outputs, known):
                self.log.publish(kind, {kind: changed})
        if changed := self._changed_named(known):
            self.log.publish("named", {"named": changed})
        before = self._sampled.get("buses", {})
        buses = {bus_id: bus.health() for bus_id, bus in self._buses.items()}
        if news := {bus_id: health for bus_id, health in buses.items() if health != before.get(bus_id)}:
            self._sampled["buses"] = buses
            self.log.publish("buses", {"buses": news})
        self._publish_changed("halt", self._halt.status())
        self._publish_changed("approvals", self._approvals())

    def _changed_named(self, known: Mapping[str, KnownOutputs]) -> list[dict[str, Any]]:
        """Bring the rows of signals up to date; return what has changed, as an event has it."""
        changed, now = [], timestamp(self._clock())
        for index, (one, row) in enumerate(self._named):
            of_bus, read = known.get(one.bus, _GONE), self._read.get(one.full)
            state = None if one.signal is None else of_bus.outputs.get(one.signal.output)
            if (seen := (of_bus.failed, state, read)) != self._seen[index]:
                # Each sample asks for a "good" value: its row has the time of the first sample with this value.
                self._seen[index] = seen
                news = present(one, of_bus, now)
                if read is not None and news["quality"] == "none":
                    news |= read
                row.update(news)
                changed.append({"bus": one.bus, "name": row["name"], **news})
        return changed

    def _told_owner(self, session_id: str) -> dict[str, Any]:
        return {"session_id": session_id, "principal": self._owner(session_id)}

    def _sample_health(self) -> None:
        self._publish_changed("health", self._told_health())

    def _publish_changed(self, kind: str, value: Any) -> None:
        if value != self._sampled.get(kind):
            self._sampled[kind] = value
            self.log.publish(kind, {kind: value})

    def _told_health(self) -> dict[str, Any]:
        return {name: value for name, value in self._health().items() if name not in ("buses", "halt")}

    # --- readers --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state that a snapshot shows."""
        board = self._board
        return {
            "stream": self.log.stream,
            "seq": self.log.last_seq,
            "ts": timestamp(self._clock()),
            "version": __version__,
            "board": {"name": board.name, "description": board.profile.description},
            "lines": list(self._lines.values()),
            "signals": list(self._signals.values()),
            "named": [row for _, row in self._named],
            "buses": {bus_id: bus.health() for bus_id, bus in self._buses.items()},
            "readings": list(self._readings.values()),
            **self._overview(),
            "approvals": self._approvals(),
            "halt": self._halt.status(),
            "health": self._told_health(),
            "policy": self._policy(),
        }

    def begin(self, stream: str | None, from_seq: int | None) -> int:
        """Wake up, and return the number to follow `log` from: 0 if a snapshot comes first."""
        if not self.awake:
            self.awake = True
            self.log.begin()
        if not self.log.readers:
            # Nothing was sampled for a while.
            self.sample()
            self._wake()
        known = stream == self.log.stream and from_seq is not None and 1 <= from_seq <= self.log.last_seq + 1
        return from_seq if known and from_seq is not None else 0

    def _wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Sample while there are readers, until cancelled."""
        while True:
            await self._woken.wait()
            await self._watch()
            self.awake = False
            self._readings.clear()
            self._read.clear()
            self._gathered = {kind: [] for kind in self._gathered}
            self.log.begin()

    async def _watch(self) -> None:
        """Sample until there has been no reader for KEEP_S."""
        read_at = health_at = trio.current_time()
        while (now := trio.current_time()) < read_at + KEEP_S:
            if self.log.readers:
                read_at = now
                began = time.perf_counter()
                self.sample()
                if now >= health_at:
                    health_at = now + HEALTH_S
                    self._sample_health()
                # A large board on a small machine is sampled less often, so that it takes a twentieth of the time.
                await trio.sleep(max(SAMPLE_S, 20 * (time.perf_counter() - began)))
            else:
                self._woken = trio.Event()
                with trio.move_on_after(KEEP_S):
                    await self._woken.wait()


def _rules(board: Board) -> list[dict[str, Any]]:
    """Return the interlocks of a board without what their conditions read now, which changes all the time."""
    return [
        {"drives": one.name, "bus": one.bus, "requires": [condition.to_json() for condition in one.requires]}
        for one in board.profile.interlocks
    ]


def _key(tool: str, args: Mapping[str, Any]) -> bytes:
    return orjson.dumps([tool, args], option=orjson.OPT_SORT_KEYS)


def _changed_outputs(
    key: str, outputs: Mapping[tuple[str, int], dict[str, Any]], known: Mapping[str, KnownOutputs]
) -> list[dict[str, Any]]:
    """Bring lines or channels up to date; return what has changed, as an event has it."""
    changed = []
    for (bus_id, number), output in outputs.items():
        if bus_id in known:
            state = known[bus_id].outputs.get(number, _UNKNOWN)
            if state.level != output["value"] or state.owner != output["owner"]:
                output["value"], output["owner"] = state.level, state.owner
                changed.append({"bus": bus_id, key: number, "value": state.level, "owner": state.owner})
    return changed


# --- the requests of a session ----------------------------------------------------------------------------------------

_AUDIT_READS: Final = trio.CapacityLimiter(2)
"""A limiter of its own: the threads of the shared limiter may all hang on a disk."""


@define(eq=False)
class ObserveRequests:
    """The observe.* methods of one session, and the connections to which it sends the runtime's events.

    `wait_beside` is the session's: it runs a wait beside the session's turn, and then, in its turn, what that returns.
    """

    _observer: Observer
    _audit_path: Path
    _account: Account
    _wait_beside: Callable[[Request, Callable[[], Awaitable[Callable[[], None]]]], None]
    _followers: list[EventSink] = field(factory=list, init=False)

    @property
    def listening(self) -> bool:
        """True while a connection gets the runtime's events."""
        return any(not follower.gone for follower in self._followers)

    def handle(self, request: Request, params: ObserveParams, you: Mapping[str, Any]) -> None:
        """Execute one request; `you` is what its answer says of the session. Raises RpcError."""
        observer = self._observer
        if isinstance(params, ObserveState):
            observer.begin(None, None)
            observer.sample()
            request.result({**observer.state(), "you": you})
        elif isinstance(params, ObserveSubscribe):
            follower = request.follower
            if follower is None:
                raise PermissionDenied("this carrier takes no notifications")
            # Before the answer, after which nothing may fail. The answer before the events: see `send_queue`, Order.
            self._account.require(FEED_BYTES)
            from_seq = observer.begin(params.stream, params.from_seq)
            request.result({"ok": True, "stream": observer.log.stream, "last_seq": observer.log.last_seq, "you": you})
            self.forget(follower)
            self._followers.append(follower)
            follower.follow(observer.log, from_seq)
        elif isinstance(params, ObserveAudit):
            self._wait_beside(request, partial(self._read, request, params))
        else:
            if (follower := request.follower) is not None:
                follower.unfollow(observer.log)
                self.forget(follower)
            request.result({"ok": True})

    async def _read(self, request: Request, params: ObserveAudit) -> Callable[[], None]:
        # Imported here: few ask for records.
        from hearth.audit.verify import page

        read = partial(page, self._audit_path, params.from_seq, params.limit)
        try:
            found = await trio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=_AUDIT_READS)
        except OSError as error:
            reason = f"the audit log cannot be read: {error.strerror}"
            raise AuditUnavailable(reason, data={"reason": reason, "effect": "none"}) from None
        return partial(request.result, found)

    def forget(self, follower: EventSink) -> bool:
        """Remove a follower, and those that have gone; return True if it was one."""
        known = any(other is follower for other in self._followers)
        self._followers = [other for other in self._followers if other is not follower and not other.gone]
        return known

    def close(self) -> None:
        """Send no more events, because the session ends or may observe no longer."""
        for follower in self._followers:
            follower.unfollow(self._observer.log)
        self._followers.clear()


# --- numbers of results -----------------------------------------------------------------------------------------------


def numbers(result: Any) -> dict[str, float | bool]:
    """Return the numbers and truth values among the members of a result, and of the objects in it."""
    found: dict[str, float | bool] = {}
    _numbers(result, "", found)
    return found


def _numbers(value: Any, name: str, found: dict[str, float | bool]) -> None:
    if isinstance(value, dict):
        for member, inner in value.items():
            if len(found) >= MOST_VALUES:
                return
            _numbers(inner, f"{name}.{member}" if name else str(member), found)
    elif isinstance(value, (int, float)):
        found[name[:128]] = value
