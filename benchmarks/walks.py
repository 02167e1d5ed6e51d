"""Counts the calls of one request on each way through hearth: `python -m benchmarks.walks [--calls] [NAME...]`.

A count does not depend on what else the machine does, so it is the measure of the cost of a request that a test can
hold. Each walk is warmed up, then counted COUNTED times; the most frequent count stands.

Counted, by `sys.setprofile`: all that the server does for one request, in all its threads. These are the calls of
Python functions of hearth, to which the goals apply, and of all Python functions (a coroutine counts each time that it
is resumed); the calls of C functions, and among these the SHA-256 hashes, the JSON encodings and the readings of a
clock; and the files whose functions were called. Not counted: the client's task, the run loop of Trio between two
tasks, the simulated devices, and the functions of `benchmarks/` and `tests/`. Garbage is not collected.

`embedded` and `mcp-call` have no client's side: the first counts the library's session too, the second begins at the
handler of tools/call, below the SDK. `fleet-order` has the simulated broker of the tests in place of AMQP. The board is
the simulated one, with durability "os".
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import socket
import sys
import tempfile
import threading
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from uuid import uuid4

import orjson
import trio
import trio.testing
from attrs import define, field, frozen
from trio._core._run import GLOBAL_RUN_CONTEXT

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fleet.sim_broker import BrokerPeer, SimBroker  # noqa: E402  the tests' folder is on the path from here on
from support.patience import be_patient  # noqa: E402

from hearth.actors import turns  # noqa: E402
from hearth.actors.bridges.amqp import connection as broker_connection  # noqa: E402
from hearth.actors.bridges.amqp.uplink import Uplink  # noqa: E402
from hearth.actors.bridges.mcp.provider import Client as McpClient  # noqa: E402
from hearth.actors.bridges.mcp.server import Offers, all_offers  # noqa: E402
from hearth.actors.bridges.mcp.stdio import OnlyClient  # noqa: E402
from hearth.actors.connection import Connection  # noqa: E402
from hearth.actors.embedded import EmbeddedRuntime, open_runtime  # noqa: E402
from hearth.actors.transport import SocketCarrier  # noqa: E402
from hearth.amqp.messages import AmqpMessage  # noqa: E402
from hearth.config.amqp import AmqpConfig  # noqa: E402
from hearth.config.hcp import HcpConfig  # noqa: E402
from hearth.config.model import AuditConfig, Config, PolicyConfig  # noqa: E402
from hearth.hcp import l1  # noqa: E402
from hearth.policy.principal import embedded  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from types import FrameType

    Walk = Callable[[], Awaitable[None]]

WARM: Final = 40
COUNTED: Final = 15
OURS: Final = (str(ROOT / "benchmarks"), str(ROOT / "tests"))
HEARTH: Final = (str(ROOT), "<attrs generated methods hearth.")
_SITE: Final = f"{os.sep}site-packages{os.sep}"
SIMULATED: Final = (f"{os.sep}sim.py", f"{os.sep}simulated.py")
"""What stands in the place of devices."""
CLOCKS: Final = frozenset(("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"))
LOOK_TWICE: Final = '''\
"""A capability of two readings."""

from typing import Any

from hearth import Job, capability


@capability("look-twice", version="1.0.0", tools=["hw.sensor.read"], risk_ceiling="R1", max_duration="PT1M")
async def look_twice(job: Job) -> dict[str, Any]:
    """Reads the room's temperature twice."""
    values = [(await job.run("hw.sensor.read", sensor="temperature"))["value"] for _ in range(2)]
    return {"mean": sum(values) / 2}
'''


# --- counting ---------------------------------------------------------------------------------------------------------


@define
class Tally:
    """The calls of one request."""

    hearth: int = 0
    python: int = 0
    c: int = 0
    sha256: int = 0
    encodings: int = 0
    clocks: int = 0
    functions: Counter[tuple[str, str]] = field(factory=Counter)
    """By file and name, each Python function that was called."""

    @property
    def files(self) -> int:
        """The files that have these functions."""
        return len({file for file, _ in self.functions})

    @property
    def figures(self) -> tuple[int, ...]:
        """The counts, in the order of `HEADS`."""
        return self.hearth, self.python, self.c, self.sha256, self.encodings, self.clocks, self.files


HEADS: Final = ("hearth", "python", "C", "SHA-256", "encodings", "clocks", "files")


class Counting:
    """Counts in all threads of this process that were started since it was made; one at a time."""

    def __init__(self) -> None:
        self.tally: Tally | None = None
        self.client: object = None
        """The Trio task that is not counted."""
        self._thread = threading.get_ident()
        # Its `task` is the one that runs now; `trio.lowlevel.current_task` would be counted itself.
        self._now: Any = GLOBAL_RUN_CONTEXT

    def begin(self, *, client: object) -> None:
        """Count from here on."""
        self.client, self.tally = client, Tally()

    def end(self) -> Tally:
        """Count no more; return what was counted."""
        tally, self.tally = self.tally, None
        assert tally is not None
        return tally

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Count a call; for `sys.setprofile`."""
        tally = self.tally
        if tally is None or event not in ("call", "c_call"):
            return
        if threading.get_ident() == self._thread:
            task = getattr(self._now, "task", None)
            if task is None or task is self.client:
                return
        file = frame.f_code.co_filename
        if file.startswith(OURS) or file.endswith(SIMULATED):
            return
        if event == "call":
            tally.python += 1
            tally.functions[file, frame.f_code.co_qualname] += 1
            tally.hearth += file.startswith(HEARTH) and _SITE not in file
            return
        tally.c += 1
        name, module = arg.__name__, arg.__module__
        tally.sha256 += name == "openssl_sha256"
        tally.encodings += name == "dumps" and module == "orjson"
        tally.clocks += (module == "time" and name in CLOCKS) or name == "clock_gettime_ns"


@contextmanager
def profiling(counting: Counting) -> Iterator[None]:
    """Profile this thread and those that begin within the block."""
    threading.setprofile(counting)
    sys.setprofile(counting)
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        if collected:
            gc.enable()


async def settled(tally: Callable[[], Tally | None]) -> None:
    """Wait until nothing more is counted: what follows an answer belongs to its request."""
    before = -1
    while (counted := tally()) is not None and counted.python != before:
        before = counted.python
        await trio.testing.wait_all_tasks_blocked(0.002)


async def counted(counting: Counting, walk: Walk, *, inside: bool) -> Tally:
    """Warm a walk up, count it, and return the least tally that came twice. `inside`: the caller counts too.

    On a busy machine a disk answers late, and its request takes a longer way.
    """
    task = trio.lowlevel.current_task()
    tallies: list[Tally] = []
    for number in range(WARM + COUNTED):
        if number >= WARM:
            counting.begin(client=None if inside else task)
        await walk()
        if number >= WARM:
            counting.client = task
            await settled(lambda: counting.tally)
            tallies.append(counting.end())
    times = Counter(one.hearth for one in tallies)
    hearth = min((calls for calls, seen in times.items() if seen > 1), default=min(times))
    return min((one for one in tallies if one.hearth == hearth), key=lambda one: one.python)


# --- the walks --------------------------------------------------------------------------------------------------------


class Wire:
    """A client of the runtime over a socket pair, as cheap as Python allows; its task is not counted."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._ids = itertools.count(1)
        self.session_id = ""

    async def exchange(self, document: bytes, mark: bytes) -> bytes:
        """Send a document and a line feed; return what comes until `mark` is in it and its line is complete."""
        self._socket.sendall(document + b"\n")
        answer = b""
        while mark not in answer or not answer.endswith(b"\n"):
            await trio.lowlevel.wait_readable(self._socket)
            answer += self._socket.recv(1 << 18)
            if b'"error' in answer:
                raise RuntimeError(f"{document!r} was answered {answer!r}")
        return answer

    def request(self, method: str, **params: Any) -> bytes:
        """Return the JSON of a request in the session."""
        wire = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        return orjson.dumps({**wire, "params": {"session_id": self.session_id, **params}})

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method; return its result."""
        return orjson.loads((await self.exchange(self.request(method, **params), b"\n")).splitlines()[0])["result"]

    async def task(self, tool: str, until: bytes = b'"phase":"task_finish"', **args: Any) -> bytes:
        """Submit a task of one step, subscribed to; return what comes until it has ended."""
        task = {"intent": "walk", "steps": [{"tool": tool, "args": args}]}
        return await self.exchange(self.request("task.submit", task=task, subscribe=True), until)


@asynccontextmanager
async def wire_to(runtime: EmbeddedRuntime) -> AsyncIterator[Wire]:
    """Connect to a runtime as over its Unix socket, and open a session."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    served = runtime._runtime
    principal, journal = embedded(), served.parts.journal
    account = served.memory.for_principal(principal.key)
    connection = Connection(SocketCarrier(theirs), principal, served, metrics=journal.metrics, account=account)
    with ours:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            wire = Wire(ours)
            wire.session_id = (await wire.call("session.open", client_name="walks"))["session_id"]
            yield wire
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def gpio_set(runtime: EmbeddedRuntime) -> AsyncIterator[Walk]:
    """One line, to the other level."""
    levels = itertools.cycle((0, 1))
    async with wire_to(runtime) as wire:

        async def walk() -> None:
            await wire.task("gpio.set", line=17, value=next(levels))

        yield walk


@asynccontextmanager
async def i2c_read(runtime: EmbeddedRuntime) -> AsyncIterator[Walk]:
    """Two bytes from a register of a sensor."""
    async with wire_to(runtime) as wire:

        async def walk() -> None:
            await wire.task("i2c.read", bus=1, addr="0x48", reg=0, len=2)

        yield walk


@asynccontextmanager
async def cancel(runtime: EmbeddedRuntime, counting: Counting) -> AsyncIterator[Walk]:
    """A task.cancel of a step that waits: its answer, and the end of the task."""
    async with wire_to(runtime) as wire:

        async def walk() -> None:
            tally, counting.tally = counting.tally, None
            answer = await wire.task("gpio.watch", b'"phase":"start"', line=27, timeout_ms=60_000)
            task_id = orjson.loads(answer.splitlines()[0])["result"]["task_id"]
            await trio.testing.wait_all_tasks_blocked(0.002)
            counting.tally = tally
            await wire.exchange(wire.request("task.cancel", task_id=task_id), b'"phase":"task_finish"')

        yield walk


@asynccontextmanager
async def in_process(runtime: EmbeddedRuntime) -> AsyncIterator[Walk]:
    """`session.run("gpio.set")` of a program that embeds the runtime."""
    levels = itertools.cycle((0, 1))
    async with runtime.open_session() as session:

        async def walk() -> None:
            await session.run("gpio.set", line=17, value=next(levels))

        yield walk


@asynccontextmanager
async def mcp_call(runtime: EmbeddedRuntime) -> AsyncIterator[Walk]:
    """tools/call of gpio_set, as hearth's handler of it gets it from the SDK."""
    import mcp_types as types

    levels = itertools.cycle((0, 1))
    with tempfile.TemporaryDirectory(prefix="hearth-walks-") as state:
        offers = Offers(all_offers(Path(state), principal=lambda _request: "walks"))
        (method,) = (one for one in offers.methods() if one.name == "tools/call")
        async with trio.open_nursery() as nursery:
            client = McpClient(runtime, nursery, name="walks")
            session = SimpleNamespace(client_params=None, client_capabilities=None)
            ctx: Any = SimpleNamespace(
                session=session, lifespan_context=OnlyClient(client), protocol_version="2026-07-28", meta=None,
                request_id=1, request=None,
            )  # fmt: skip

            async def walk() -> None:
                arguments = {"line": 17, "value": next(levels)}
                params = types.CallToolRequestParams(name="gpio_set", arguments=arguments)
                result = await offers.serve(method, ctx, params)
                assert isinstance(result, dict)
                assert not result.get("isError"), result

            yield walk
            client.close()
            nursery.cancel_scope.cancel()


def order() -> dict[str, Any]:
    """A task_submit of the two readings."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    payload = {"capability": "look-twice", "caller_id": "walks", "intent": "walk", "inputs": {}}
    return {
        "hcp_version": "1.0", "message_id": str(uuid4()), "timestamp": now, "session_id": None,
        "type": "task_submit", "payload": payload,
    }  # fmt: skip


@asynccontextmanager
async def hcp_job(runtime: EmbeddedRuntime) -> AsyncIterator[Walk]:
    """A job of two readings, from its order to its result."""
    async with wire_to(runtime) as wire:

        async def walk() -> None:
            answer = await wire.exchange(orjson.dumps(order()), b'"session_closed"')
            assert b'"mean"' in answer, answer

        yield walk


class StraightBroker(SimBroker):
    """A broker that does at once what it is asked, and nothing wrong."""

    ended = 0

    def __init__(self) -> None:
        super().__init__(chance=None, hard=0)
        self.peers["hearthd walks"] = BrokerPeer()

    def delay(self) -> float:
        """See SimBroker."""
        return 0.0

    def takes(self, channel: Any, number: int, message: AmqpMessage, *, mandatory: bool) -> None:
        """See SimBroker."""
        queues = self.routed[message.exchange, message.routing_key] = list(self._routes(message))
        assert queues or not mandatory
        if b'"session_closed"' in message.body:
            self.ended += 1
        self._confirm(channel, number, message, [])

    def orders(self, message: AmqpMessage) -> None:
        """Deliver an order."""
        from fleet.sim_broker import QueuedMessage

        queue = l1.command_queue("walks")
        self.queues[queue].append(QueuedMessage(message, float("inf")))
        self.pump(queue)


@asynccontextmanager
async def fleet_order(runtime: EmbeddedRuntime) -> AsyncIterator[Walk]:
    """The same job as an order over a broker, until all of its messages are confirmed."""
    broker = StraightBroker()
    password = runtime.audit_path.with_name("password")
    password.write_text("secret")
    job_server = await runtime._runtime.extras["hcp"].server.real()
    with patch.object(broker_connection, "open_connection", broker.open_connection):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.timetable.run)
            config = AmqpConfig(url=f"amqp://walks@127.0.0.1?password_file={password}", id="walks")
            uplink = Uplink(config, runtime._runtime, job_server)
            nursery.start_soon(uplink.run)
            while not uplink.status()["connected"]:  # noqa: ASYNC110  it has no event for this
                await trio.sleep(0.001)

            async def walk() -> None:
                document = order()
                message = AmqpMessage(
                    exchange="hcp.commands", routing_key="walks", body=orjson.dumps(document), user_id="walks",
                    message_id=document["message_id"],
                )  # fmt: skip
                before = broker.ended
                broker.orders(message)
                while broker.ended == before:  # noqa: ASYNC110  polling is not counted
                    await trio.sleep(0.001)

            yield walk
            nursery.cancel_scope.cancel()


@frozen
class OneWalk:
    """A walk, and the Python calls that it may take."""

    name: str
    what: str
    goal: int
    make: Callable[..., Any]
    inside: bool = False


WALKS: Final = [
    OneWalk("gpio-set", "gpio.set over a socket", 200, gpio_set),
    OneWalk("i2c-read", "i2c.read over a socket", 200, i2c_read),
    OneWalk("cancel", "task.cancel over a socket", 181, cancel),
    OneWalk("embedded", 'session.run("gpio.set"), embedded', 300, in_process, inside=True),
    OneWalk("mcp-call", "MCP tools/call of gpio_set", 250, mcp_call, inside=True),
    OneWalk("hcp-job", "HCP job of two readings", 1200, hcp_job),
    OneWalk("fleet-order", "the same as an order of the fleet", 1500, fleet_order),
]


async def _taken(walks: Sequence[OneWalk], place: Path) -> dict[str, Tally]:
    capability = place / "look_twice.py"
    capability.write_text(LOOK_TWICE)
    capability.chmod(0o644)
    config = Config(
        audit=AuditConfig(path=place / "audit.log", key=place / "key", reserve_bytes=0),
        hcp=HcpConfig(capabilities=(str(capability),), shipped=()),
        policy=(PolicyConfig(name="walks", match={"any": True}, max_risk=2, rate={"*": "999999/s"}),),
    )
    counting, found = Counting(), {}
    # A profiler is slow: no request may use up its principal's turn.
    with patch.object(turns, "TURN", 1e9), profiling(counting):
        async with open_runtime(config=config) as runtime:
            for one in walks:
                more = (counting,) if one.make is cancel else ()
                async with one.make(runtime, *more) as walk:
                    found[one.name] = await counted(counting, walk, inside=one.inside)
    return found


def taken(names: Sequence[str] = ()) -> dict[str, Tally]:
    """Count these walks, by their names; all without any."""
    be_patient()
    walks = [one for one in WALKS if not names or one.name in names]
    with tempfile.TemporaryDirectory(prefix="hearth-walks-") as place:
        Path(place).chmod(0o755)
        return trio.run(_taken, walks, Path(place))


def main(argv: Sequence[str] | None = None) -> int:
    """Count, and print a table; with `--calls` also each function and how often it was called."""
    parser = argparse.ArgumentParser("python -m benchmarks.walks", description="Count the calls of a request.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which: all without any")
    parser.add_argument("--calls", action="store_true", help="print which functions were called, and how often")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args(argv)
    found = taken(options.names)
    if options.json:
        print(json.dumps({name: dict(zip(HEADS, tally.figures, strict=True)) for name, tally in found.items()}))
        return 0
    print(f"{'walk':12} {'goal':>6}" + "".join(f"{head:>10}" for head in HEADS))
    for one in WALKS:
        if (tally := found.get(one.name)) is not None:
            print(f"{one.name:12} {one.goal:6}" + "".join(f"{figure:10}" for figure in tally.figures))
            if options.calls:
                for (file, name), times in tally.functions.most_common():
                    print(f"    {times:4} {file.removeprefix(f'{ROOT}/')}:{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
