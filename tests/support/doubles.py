"""Doubles for the actors' surroundings, and an observer that writes down what really happened to the hardware.

Nothing here imports an actor: what the tests conclude from an observer must not depend on the code under test.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from types import SimpleNamespace

import trio
from attrs import define, field, frozen

from hearth.actors.metrics import Metrics
from hearth.drivers.base import BaseDriver, Style
from hearth.errors import AuditUnavailable, CarrierError, DeviceError, PermissionDenied


@define(eq=False)
class Observer:
    """One list of everything that happened, in the order in which it happened."""

    seen: list[tuple] = field(factory=list)

    def note(self, *what):
        self.seen.append(what)

    def of(self, *kinds):
        return [what for what in self.seen if what[0] in kinds]

    def labels(self, kind, bus=None):
        """What `kind` of thing happened, on one bus or on all, by the labels of the transactions."""
        return [what[2] for what in self.seen if what[0] == kind and bus in (None, what[1])]

    def index(self, *what):
        return self.seen.index(what)

    def assert_whole(self):
        """No transaction overlapped with another, none was cut, and what began has ended."""
        running = {}
        for what in self.seen:
            if what[0] == "begin":
                _, bus, label, width = what
                inside = running.setdefault(bus, [])
                inside.append(label)
                assert len(inside) <= width, f"{bus}: {inside} at the same time"
            elif what[0] == "end":
                running[what[1]].remove(what[2])
            assert what[0] != "cut", f"{what[1]}: {what[2]} was cut"
        assert not any(running.values()), f"began and never ended: {running}"


class Gate:
    """Holds a transaction until the test opens it, in a thread or in a task; made in the Trio thread."""

    def __init__(self):
        self._token = trio.lowlevel.current_trio_token()
        self._reached = trio.Event()
        self._opened = trio.Event()
        self._thread_opened = threading.Event()

    async def reached(self):
        """Wait until a transaction stands here."""
        await self._reached.wait()

    @property
    def is_reached(self):
        return self._reached.is_set()

    def open(self):
        self._opened.set()
        self._thread_opened.set()

    async def stand(self):
        self._reached.set()
        await self._opened.wait()

    def stand_in_thread(self):
        self._token.run_sync_soon(self._reached.set)
        self._thread_opened.wait()


@frozen(eq=False)
class Op:
    """A transaction: does `do(driver)` after `seconds` and behind `gate`, or raises."""

    label: str
    seconds: float = 0.0
    gate: Gate | None = None
    raises: BaseException | None = None
    do: object = None

    def __call__(self, driver):
        return driver.perform(self)

    def outcome(self, driver):
        if self.raises is not None:
            raise self.raises
        return self.do(driver) if self.do is not None else self.label


class BenchDriver(BaseDriver):
    """Hands that tell an observer of everything they are made to do. Its outputs are numbers with a level each."""

    def __init__(self, name, observer, *, style=Style.ASYNC, width=1, safe=0, keep=()):
        self.name = name
        self.observer = observer
        self.style = style
        self.width = width
        self.safe = safe
        self.keep = frozenset(keep)
        self.levels = {}
        self.gates = []
        self.opened = 0
        self.is_open = False
        self.refuses = None
        """Raised by the next `open`s, while it is set."""
        self.slow_safe = 0.0
        self.safe_gate = None
        self.safe_raises = None
        self._pump_fails = None
        self._pump_error = None

    def gate(self):
        gate = Gate()
        self.gates.append(gate)
        return gate

    def open_gates(self):
        for gate in self.gates:
            gate.open()

    def open(self):
        if self.refuses is not None:
            raise self.refuses
        self.opened += 1
        self.is_open = True
        self.observer.note("open", self.name, self.opened)

    def close(self):
        self.is_open = False
        self.observer.note("close", self.name, self.opened)

    async def pump(self):
        self._pump_fails = trio.Event()
        await self._pump_fails.wait()
        raise self._pump_error or RuntimeError(f"{self.name}: the pump broke")

    def break_pump(self, error=None):
        self._pump_error = error
        self._pump_fails.set()

    def unplug(self):
        """The device is gone: the pump says so, and it cannot be opened until `plug_in`."""
        self.refuses = DeviceError(f"{self.name}: no such device", effect="none", data={"errno": "ENOENT"})
        self.break_pump(DeviceError(f"{self.name}: the device is gone", effect="unknown", data={"errno": "ENODEV"}))

    def plug_in(self):
        self.refuses = None

    def perform(self, op):
        if self.style is Style.ASYNC:
            return self._perform_async(op)
        self._begin(op)
        try:
            if op.gate is not None:
                op.gate.stand_in_thread()
            return op.outcome(self)
        finally:
            self.observer.note("end", self.name, op.label)

    def _begin(self, op):
        if not self.is_open:
            self.observer.note("closed", self.name, op.label)
        self.observer.note("begin", self.name, op.label, self.width)

    async def _perform_async(self, op):
        self._begin(op)
        try:
            await trio.sleep(op.seconds)
            if op.gate is not None:
                await op.gate.stand()
            return op.outcome(self)
        except trio.Cancelled:
            self.observer.note("cut", self.name, op.label)
            raise
        finally:
            self.observer.note("end", self.name, op.label)

    def halt(self, outputs):
        return self.make_safe(outputs, keep=())

    def make_safe(self, outputs, keep=None):
        lines = [line for line in outputs if line not in (self.keep if keep is None else keep)]

        def do(_driver):
            for line in lines:
                self.levels[line] = self.safe
            return [{"line": line, "safe": self.safe} for line in lines]

        label = "safe " + ",".join(map(str, sorted(lines)))
        op = Op(label, seconds=self.slow_safe, gate=self.safe_gate, raises=self.safe_raises, do=do)
        return self.perform(op)


class MemoryReceipt:
    """What `MemoryJournal.post` returns."""

    def __init__(self):
        self._event = trio.Event()
        self._error = None

    def settle(self, error=None):
        self._error = error
        self._event.set()

    async def get(self):
        if not self._event.is_set():
            await self._event.wait()
        if self._error is not None:
            raise self._error


class MemoryJournal:
    """An audit log in memory, with no thread in it, so that it lives under a virtual clock.

    `hold` keeps receipts back, as a slow disk does; `fail` refuses them, as a full one does.
    """

    def __init__(self, observer, *, durability="os"):
        self.settings = SimpleNamespace(durability=durability, path="memory")
        self.observer = None
        self.failure = None
        self.failures = 0
        self.warning = None
        self.metrics = Metrics()
        self.records = []
        self.lost = []
        self.ended = False
        self._observer = observer
        self._posted = deque()
        self._wake = trio.Event()
        self._go = trio.Event()
        self._go.set()

    def hold(self):
        self._go = trio.Event()

    def release(self):
        self._go.set()

    def fail(self, reason):
        self.failure = reason

    def heal(self):
        self.failure = None

    at_once = False
    """Its own task answers posts, so a task waits for each."""

    @property
    def lag(self):
        return sum(len(records) for records, _ in self._posted)

    def checkpoint(self):
        """Nothing here is signed."""

    def post(self, *records, minor=False):
        receipt = MemoryReceipt()
        self.metrics.count(records)
        for record in records:
            if self.observer is not None:
                self.observer.record(record)
        if self.ended:
            receipt.settle(AuditUnavailable("the log is closed"))
        elif self.settings.durability == "relaxed":
            self._write(records)
            receipt.settle()
        else:
            self._posted.append((records, receipt))
            self._wake.set()
        return receipt

    def _write(self, records):
        for record in records:
            self.records.append(record)
            self._observer.note("record", record["event"], record)

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        task_status.started()
        while True:
            if not self._posted:
                self._wake = trio.Event()
                await self._wake.wait()
            await self._go.wait()
            self._commit()

    def _commit(self):
        while self._posted:
            records, receipt = self._posted.popleft()
            if self.failure is not None and records:  # a post without any only waits for its turn
                self.lost += records
                receipt.settle(AuditUnavailable(f"the log cannot be written: {self.failure}"))
            else:
                self._write(records)
                receipt.settle()

    async def aclose(self):
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        self._commit()
        self.ended = True

    def of(self, *events, **fields):
        """The records of these events with these fields."""
        return [
            record
            for record in self.records
            if record["event"] in events and all(record.get(name) == value for name, value in fields.items())
        ]


def args_hash(args):
    """The audit's hash of args made of plain ASCII strings and small integers, worked out once more."""
    canonical = json.dumps(args, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


class AllowedPaths:
    """A path guard with one allowed root, for the order of checks; what a guard must keep out is tests/policy's.

    Paths with "slow" in them are on a disk that takes its time: until `spin_up`.
    """

    def __init__(self):
        self._spinning = threading.Event()
        self.looking = 0
        self.crashes = False

    def spin_up(self):
        self._spinning.set()

    def check(self, path, access):
        if "slow" in path:
            self.looking += 1
            self._spinning.wait()
            if self.crashes:
                raise RuntimeError("a bug in the guard")
        if not path.startswith("/allowed/"):
            raise PermissionDenied(data={"path": path, "access": access, "reason": "not beneath an allowed root"})

    def check_nowait(self, path, access):
        if "slow" in path:
            return False
        self.check(path, access)
        return True

    def close(self):
        """Nothing to close."""


class Pipe:
    """One direction of bytes. With a `room`, whoever writes waits until the other end has read."""

    def __init__(self, room=float("inf")):
        self.room = room
        self.data = bytearray()
        self.ended = False
        self._changed = trio.Event()

    def _change(self):
        self._changed.set()
        self._changed = trio.Event()

    async def write(self, data):
        rest = memoryview(bytes(data))
        while rest:
            if self.ended:
                raise trio.BrokenResourceError
            part = rest if self.room == float("inf") else rest[: int(self.room) - len(self.data)]
            if part:
                self.data += part
                rest = rest[len(part) :]
                self._change()
            else:
                await self._changed.wait()

    async def read(self):
        while not self.data:
            if self.ended:
                return b""
            await self._changed.wait()
        data = bytes(self.data)
        self.data.clear()
        self._change()
        return data

    def end(self):
        self.ended = True
        self._change()


class MemoryStream(trio.abc.HalfCloseableStream):
    """The client's end of a memory connection."""

    def __init__(self, to_server, to_client):
        self._out, self._in = to_server, to_client

    async def send_all(self, data):
        await trio.lowlevel.checkpoint()
        await self._out.write(data)

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        del max_bytes
        await trio.lowlevel.checkpoint()
        return await self._in.read()

    async def send_eof(self):
        await trio.lowlevel.checkpoint()
        self._out.end()

    async def aclose(self):
        self._out.end()
        self._in.end()
        await trio.lowlevel.checkpoint()


class MemoryCarrier:
    """The server's end of a memory connection: a `hearth.actors.transport.Carrier`.

    `send_timeout` and `PeerGone` as for the socket's carrier; `gone` is the class to raise.
    """

    def __init__(self, to_server, to_client, gone=CarrierError, send_timeout=30.0):
        self._in, self._out = to_server, to_client
        self._gone = gone
        self._send_timeout = send_timeout
        self.sent = []
        """What each send carried."""
        self.closed = False

    whole_documents = False

    async def receive(self):
        await trio.lowlevel.checkpoint()
        return await self._in.read() or None

    async def send(self, documents):
        data = b"".join(documents)
        self.sent.append(data)
        try:
            with trio.fail_after(self._send_timeout):
                await self._out.write(data)
        except trio.TooSlowError:
            raise self._gone(f"the peer has read nothing for {self._send_timeout:g} s") from None
        except trio.BrokenResourceError:
            raise self._gone("the peer has closed") from None

    async def aclose(self):
        self.closed = True
        self._in.end()
        self._out.end()
        await trio.lowlevel.checkpoint()


def device_error(message="the device said no", effect="none", **data):
    return DeviceError(message, effect=effect, data=data)
