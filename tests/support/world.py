"""The world builder: a runtime in this process with a board, a policy, limits, jobs, and every way to reach it.

- `BenchWorld(...)` has drivers, journal and path guard from `support.doubles`, and lives under whatever clock there is.
- `simulated(directory, ...)` has what hearthd would make of a configuration: the simulated board, and files.
- `running(world)` serves a world. `world.client()`, `world.connect()` and `world.sessions()` reach it without a socket;
  `listening(world, directory)` opens hearthd's listeners over it: see `support.carriers` and `support.http`.

`support.hearthd.Hearthd` is the same as a process. tests/simulation has a world of its own, because there the disk,
the threads and the devices follow one virtual clock too.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import trio
from attrs import evolve
from support.doubles import (
    AllowedPaths,
    BenchDriver,
    Gate,
    MemoryCarrier,
    MemoryJournal,
    MemoryStream,
    Observer,
    Op,
    Pipe,
)

from hearth._util.exceptions import unwrapped
from hearth.actors.build import build_parts
from hearth.actors.bus.outputs_file import FoundOutputs, OutputsFile
from hearth.actors.connection import Connection
from hearth.actors.daemon import open_listeners
from hearth.actors.embedded import EMBEDDED_POLICY, EmbeddedRuntime
from hearth.actors.listeners import unix
from hearth.actors.listeners.accept import ConnectionLimiter
from hearth.actors.runtime import Runtime, RuntimeParts
from hearth.actors.transport import PeerGone
from hearth.client.connection import Client
from hearth.config.model import AuditConfig, Config, LimitsConfig, TasksConfig
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.tools import build_tools
from hearth.errors import DeviceError, InvalidParams, from_wire
from hearth.policy.principal import Principal
from hearth.policy.rules import Match, PolicyEntry
from hearth.tools import Done, PathUse, Preview, Tool, ToolRegistry, Undo

ALICE = Principal(kind="unix", uid=1001, gid=1001)
BOB = Principal(kind="unix", uid=1002, gid=1002)
OPEN = PolicyEntry(name="bench", match=Match(any=True), max_risk=2, max_risk_ceiling=3)
NOON = 1_776_638_881.0

_ANY = {"type": "object"}
_ARGS = {
    "type": "object",
    "properties": {
        "bus": {"type": "string"},
        "tag": {"type": "string"},
        "ms": {"type": "number"},
        "limit_ms": {"type": "number"},
        "effect": {"enum": ["none", "done", "unknown"]},
        "gate": {"type": "string"},
        "line": {"type": "integer"},
        "value": {"type": "integer", "minimum": 0, "maximum": 1},
        "n": {"type": "integer"},
    },
}


class BenchTools:
    """Small tools that make a bench driver do something worth watching."""

    def __init__(self, world):
        self._world = world

    def _bus(self, args):
        bus = args.get("bus", next(iter(self._world.drivers)))
        if bus not in self._world.drivers:
            raise InvalidParams(f"there is no bus {bus!r}", data={"path": "/bus", "reason": "no such bus"})
        return bus

    def _op(self, args, label, **more):
        gate = self._world.gate(args["gate"]) if "gate" in args else None
        return Op(args.get("tag", label), seconds=args.get("ms", 0) / 1000, gate=gate, **more)

    async def read(self, ctx, args):
        tag = await ctx.transact(self._op(args, "read"), limit_ms=args.get("limit_ms"))
        return {"tag": tag}

    async def level(self, ctx, args):
        level = await ctx.transact(self._op(args, "level", do=lambda driver: driver.levels.get(args["line"])))
        return {"line": args["line"], "value": level}

    def preview_set(self, args):
        read = {name: args[name] for name in ("bus", "line") if name in args}
        return Preview("bench.level", read, ("value",), {"value": args["value"]})

    async def set(self, ctx, args):
        line, value = args["line"], args["value"]

        def do(driver):
            former = driver.levels.get(line)
            driver.levels[line] = value
            return former

        former = await ctx.transact(self._op(args, "set", do=do), limit_ms=args.get("limit_ms"), drives=line)

        def undo(driver):
            driver.levels[line] = former

        back = Op(f"undo {args.get('tag', 'set')}", do=undo)
        return Done({"line": line, "value": value}, Undo(back, f"line {line} back to {former}", drives=line))

    async def fail(self, ctx, args):
        error = DeviceError("the device said no", effect=args.get("effect", "none"))
        await ctx.transact(self._op(args, "fail", raises=error))
        raise AssertionError

    async def crash(self, ctx, args):
        await ctx.transact(self._op(args, "crash", raises=RuntimeError("a bug in the driver")))
        raise AssertionError

    async def bug(self, _ctx, _args):
        await trio.lowlevel.checkpoint()
        return {}["a bug in the tool"]

    async def wait(self, _ctx, args):
        event = self._world.event(args.get("tag", "wait"))
        await event.wait()
        return {"waited": True}

    async def nap(self, _ctx, args):
        await trio.sleep(args.get("ms", 0) / 1000)
        return {"napped": True}

    async def children(self, _ctx, _args):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
        raise AssertionError

    async def big(self, ctx, args):
        await ctx.transact(self._op(args, "big"))
        return {"data": "x" * args["n"]}

    async def many(self, ctx, args):
        count = 0
        while count < args["n"]:
            await ctx.transact(self._op({**args, "tag": f"{args.get('tag', 'many')}.{count}"}, ""))
            count += 1
        return {"count": count}

    async def progress(self, ctx, args):
        for number in range(args.get("n", 1)):
            ctx.progress({"number": number})
        if "tag" in args:
            await self._world.event(args["tag"]).wait()
        return {"published": args.get("n", 1)}

    async def unsayable(self, ctx, args):
        """Says things that JSON cannot, the way that `tag` names."""
        await trio.lowlevel.checkpoint()
        if args["tag"] == "result":
            return {"value": object()}
        if args["tag"] == "progress":
            ctx.progress({"value": object()})
        if args["tag"] == "surrogate":
            raise DeviceError("no file \udcff", effect="none", data={"path": "\udcff"})
        raise DeviceError("bytes", effect="done", data={"value": b"\xff", "big": 1 << 70})

    def all(self):
        def tool(name, run, risk=0, **more):
            return Tool(
                **{
                    "name": f"bench.{name}",
                    "risk_level": risk,
                    "timeout_ms": 1000,
                    "description": f"bench.{name}",
                    "params_schema": _ARGS,
                    "result_schema": _ANY,
                    "capability": "CAP_GPIO_READ" if risk == 0 else "CAP_GPIO_RW",
                    "bus": self._bus,
                    "run": run,
                    **more,
                }
            )

        line = {**_ARGS, "required": ["line", "value"]}
        path = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        return [
            tool("read", self.read),
            tool("level", self.level),
            tool("set", self.set, 2, params_schema=line, supports_rollback=True, preview=self.preview_set),
            tool("arm", self.set, 3, params_schema=line, default_rate="100/s", preview=self.preview_set),
            tool("fail", self.fail, 1),
            tool("crash", self.crash, 1),
            tool("bug", self.bug),
            tool("wait", self.wait),
            tool("nap", self.nap),
            tool("children", self.children),
            tool("many", self.many),
            tool("big", self.big, 1),
            tool("progress", self.progress),
            tool("unsayable", self.unsayable),
            tool("danger", self.read, 3, default_rate="100/s"),
            tool("secret", self.read, discloses=True),
            tool("limited", self.read, default_rate="2/m"),
            tool("rates", self.read, 1, default_rate="1/m"),
            tool("file", self.read, params_schema=path, paths=lambda args: [PathUse(args["path"], "read")]),
            tool("riskyfile", self.read, 3, params_schema=path, paths=lambda args: [PathUse(args["path"], "read")]),
            tool("badbus", self.read, bus=lambda args: {}["a bug in the tool's bus"]),
        ]


class World:
    """A runtime from these parts, and the connections to it. Use `async with running(world)`."""

    def __init__(self, parts, config=None):
        self.parts = parts
        self.config = config or Config(limits=parts.limits)
        self.limits = parts.limits
        self.journal = parts.journal
        self.runtime = None
        self.nursery = None
        self.carriers = []
        """Of the connections in memory, the server's ends."""
        self.connections = set()
        """Connections that are served."""

    def govern(self, *policy):
        """Let these entries decide about every session that is opened from now on."""
        self.runtime.parts = evolve(self.runtime.parts, policy=policy)

    def release(self):
        """Let go what a test held back, so that the world can end."""

    def level(self, line):
        """What a line of the simulated board is driven to, past every actor."""
        return self.parts.board.drivers["gpio:sim"].level(line)

    def _records(self):
        return map(json.loads, self.journal.settings.path.read_text().splitlines())

    def records(self, *events, **like):
        """The audit records of these events with these members, in their order; all where none is named."""
        found = [record for record in self._records() if not events or record["event"] in events]
        return [record for record in found if like.items() <= record.items()]

    def sessions(self, principal=ALICE, nursery=None):
        """What opens sessions for a principal without a connection."""
        return EmbeddedRuntime(self.runtime, principal, nursery)

    def connection(self, carrier, principal, **more):
        """A connection's actor, with the limits of this world."""
        limits = self.limits
        return Connection(
            carrier,
            principal,
            self.runtime,
            max_outstanding=limits.max_outstanding,
            max_document_bytes=limits.max_document_bytes,
            max_batch=limits.max_batch,
            max_values=limits.max_values,
            metrics=self.journal.metrics,
            account=self.runtime.memory.for_principal(principal.key),
            **more,
        )

    async def serve(self, connection, scheme):
        """Run a connection, counted as hearthd counts it."""
        self.connections.add(connection)
        try:
            with self.journal.metrics.connection(scheme):
                await connection.run()
        finally:
            self.connections.discard(connection)

    def pipes(self, principal=ALICE, *, room=float("inf"), send_timeout=30.0):
        """A connection in memory: start its actor, and return the client's stream."""
        to_server, to_client = Pipe(), Pipe(room)
        carrier = MemoryCarrier(to_server, to_client, PeerGone, send_timeout)
        carrier.connection = self.connection(carrier, principal)
        self.carriers.append(carrier)
        self.nursery.start_soon(self.serve, carrier.connection, "memory")
        return MemoryStream(to_server, to_client)

    def connect(self, principal=ALICE, **more):
        """A raw client with a reader of its own."""
        client = RawClient(self.pipes(principal, **more))
        self.nursery.start_soon(client.run)
        return client

    @asynccontextmanager
    async def client(self, principal=ALICE, **more):
        """The real client over a memory connection."""
        async with unwrapped() as body, trio.open_nursery() as nursery:
            client = Client(self.pipes(principal, **more))
            nursery.start_soon(client._write)
            nursery.start_soon(client._read)
            async with body.watched():
                yield client
            await client._settle()
            nursery.cancel_scope.cancel()


class BenchWorld(World):
    """A world over bench drivers, without threads and files."""

    def __init__(
        self,
        *,
        buses=None,
        widths=None,
        policy=(OPEN,),
        durability="os",
        keep=(),
        extra_tools=(),
        max_keys=1000,
        **limits,
    ):
        self.observer = Observer()
        self.drivers = {
            name: BenchDriver(name, self.observer, style=style, width=(widths or {}).get(name, 1), keep=keep)
            for name, style in (buses or {"a": Style.ASYNC, "b": Style.ASYNC}).items()
        }
        self.paths = AllowedPaths()
        self._gates = {}
        self._events = {}
        super().__init__(
            RuntimeParts(
                board=SimpleNamespace(
                    name="bench",
                    outputs={},
                    signals=(),
                    profile=SimpleNamespace(interlocks=(), discover={}, description="a bench"),
                    line_name=lambda line, chip: line,
                    port_name=lambda port: port,
                ),
                drivers=self.drivers,
                registry=ToolRegistry([*BenchTools(self).all(), *extra_tools]),
                policy=policy,
                paths=self.paths,
                journal=MemoryJournal(self.observer, durability=durability),
                limits=evolve(LimitsConfig(), **limits),
                tasks=TasksConfig(max_idempotency_keys=max_keys),
                clock=lambda: NOON + trio.current_time(),
                uptime=trio.current_time,
            )
        )

    def gate(self, name):
        """The gate of this name; made at its first use."""
        if name not in self._gates:
            self._gates[name] = Gate()
        return self._gates[name]

    def event(self, name):
        return self._events.setdefault(name, trio.Event())

    def release(self):
        for gate in self._gates.values():
            gate.open()
        for driver in self.drivers.values():
            driver.open_gates()
        for event in self._events.values():
            event.set()
        self.paths.spin_up()
        self.journal.release()

    def _records(self):
        return self.journal.records

    @property
    def driver(self):
        return next(iter(self.drivers.values()))

    @property
    def bus(self):
        return next(iter(self.runtime.buses.values()))


def configured(directory, *, limits=None, audit=None, **sections):
    """A configuration that keeps its audit log in this directory; sections and limits as given."""
    audit = AuditConfig(path=directory / "audit.log", **(audit or {}))
    return Config(audit=audit, limits=evolve(LimitsConfig(), **(limits or {})), **sections)


class BoardWorld(World):
    """A world over the simulated board of a profile (its content), in virtual time: without threads and files."""

    def __init__(self, profile, *, policy=(OPEN,), style=Style.ASYNC, left=None, **limits):
        """`left` are the outputs that an earlier run left driven, by bus."""
        self.observer = Observer()
        board = open_board(parse_profile(profile, "test profile"), style=style)
        outputs = OutputsFile()
        outputs.found = FoundOutputs({bus: tuple(found) for bus, found in (left or {}).items()})
        super().__init__(
            RuntimeParts(
                board=board,
                halt=board.profile.halt,
                drivers=board.drivers,
                registry=ToolRegistry(build_tools(board, enable=(), disable=("file.*", "sys.*", "proc.*"))),
                policy=policy,
                paths=AllowedPaths(),
                journal=MemoryJournal(self.observer),
                limits=evolve(LimitsConfig(), **limits),
                clock=lambda: NOON + trio.current_time(),
                uptime=trio.current_time,
                **({"outputs_file": outputs} if left else {}),
            )
        )

    def _records(self):
        return self.journal.records

    @property
    def gpio(self):
        return next(driver for bus, driver in self.parts.drivers.items() if bus.startswith("gpio:"))


def simulated(directory, *, default_policy=EMBEDDED_POLICY, kind=World, **more):
    """A world on the simulated board, with its files in this directory; `more` is for `configured`."""
    config = configured(directory, **more)
    parts = build_parts(config, default_policy=default_policy)
    parts.open_records()
    return kind(parts, config)


@asynccontextmanager
async def embedded(world, principal=ALICE, **opening):
    """A session of the world's own process."""
    async with world.sessions(principal).open_session(**opening) as session:
        yield session


@asynccontextmanager
async def over_the_wire(world, **opening):
    """A session through the protocol."""
    async with world.client() as client, client.open_session(**opening) as session:
        yield session


async def reset_halt(runtime):
    """End a halt as a person does, once its stop sequence is over."""
    while runtime.halt.status()["stopping"]:
        await trio.lowlevel.checkpoint()
    await runtime.halt.reset("a person", runtime.halt.flag.count)


@asynccontextmanager
async def running(world, *, release_at_end=True):
    """Run a world; on the way out every gate is opened, so that what a failed test left behind can end."""
    async with Runtime(world.parts).serve() as runtime:
        world.runtime = runtime
        async with trio.open_nursery() as nursery:
            world.nursery = nursery
            try:
                yield world
            finally:
                if release_at_end:
                    world.release()
                nursery.cancel_scope.cancel()


class Listening:
    """hearthd's listeners over a world; made by `listening`."""

    def __init__(self, world, directory, accepting, connections):
        self.world = world
        self.directory = directory
        self.limiter = ConnectionLimiter(world.limits.max_connections)
        self.refused = []
        """(carrier, peer, reason) of every peer that failed to authenticate."""
        self.opened = []
        self.cut = None
        """Whether a connection was cut off at the end."""
        self._accepting = accepting
        self._connections = connections

    @property
    def runtime(self):
        return self.world.runtime

    def open(self, config, *, policy=None, name="hearth"):
        """Open the listeners of a configuration, behind a Unix socket of this name; return the last one."""
        path = self.directory / f"{name}.sock"
        policy = self.world.parts.policy if policy is None else policy
        opened = open_listeners(config, policy, unix.bind(path), path, self._refuse, lambda: self.runtime)
        for listener in opened:
            self._accepting.start_soon(self._accept, listener)
        self.opened += opened
        self.runtime.listeners = [listener.address for listener in self.opened]
        return opened[-1]

    def _refuse(self, *refusal):
        self.refused.append(refusal)
        self.runtime.refused(*refusal)

    async def _accept(self, listener):
        scheme = listener.address.partition(":")[0]

        async def serve(carrier, principal, *, halts_only=None):
            await self.world.serve(self.world.connection(carrier, principal, halts_only=halts_only), scheme)

        await listener.accept_all(self._connections, self.limiter, serve)


FLUSH = 20
"""Seconds that connections have to take what is due to them, before they are cut off."""


@asynccontextmanager
async def listening(world, directory, kind=Listening):
    """Listeners while the body runs: a `kind` of Listening. They end as hearthd's do, and connections with them."""
    async with unwrapped() as body, trio.open_nursery() as connections:
        try:
            async with trio.open_nursery() as accepting:
                here = kind(world, directory, accepting, connections)
                async with body.watched():
                    yield here
                accepting.cancel_scope.cancel()
            world.release()
            await world.runtime.end_sessions()
            for connection in world.connections:
                connection.finish()
            for listener in here.opened:
                listener.finish()
            connections.cancel_scope.deadline = trio.current_time() + FLUSH
        except BaseException:
            connections.cancel_scope.cancel()
            raise
        finally:
            for listener in here.opened:
                listener.close()
    here.cut = connections.cancel_scope.cancelled_caught


class RawClient:
    """JSON-RPC lines over a stream: what is sent is exactly what is given, what comes is kept in its order."""

    def __init__(self, stream):
        self.stream = stream
        self.documents = []
        self.ended = False
        self._ids = 0
        self._changed = trio.Event()

    async def run(self):
        rest = b""
        try:
            while data := await self.stream.receive_some():
                *lines, rest = (rest + data).split(b"\n")
                self.documents += [json.loads(line) for line in lines if line]
                self._wake()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.ended = True
        self._wake()

    def _wake(self):
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, ready):
        """Wait until `ready()` is true; it is looked at after everything that comes."""
        while not ready():
            if self.ended:
                raise EOFError(f"the connection ended; it said {self.documents}")
            await self._changed.wait()

    async def until_ended(self):
        while not self.ended:
            await self._changed.wait()

    async def send(self, *documents):
        """Send documents as one piece of bytes: lists are batches, bytes go as they are."""
        lines = [document if isinstance(document, bytes) else json.dumps(document).encode() for document in documents]
        await self.stream.send_all(b"".join(line + b"\n" for line in lines))

    def request(self, method, params, id_=None):
        if id_ is None:
            self._ids += 1
            id_ = self._ids
        return {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}

    def answers(self, id_):
        flat = [one for document in self.documents for one in (document if isinstance(document, list) else [document])]
        return [one for one in flat if "method" not in one and one.get("id") == id_]

    async def ask(self, method, params):
        """Send a request; return its answer, result or error."""
        request = self.request(method, params)
        await self.send(request)
        await self.until(lambda: self.answers(request["id"]))
        return self.answers(request["id"])[0]

    async def call(self, method, **params):
        """Send a request; return its result, or raise the error it was answered with."""
        answer = await self.ask(method, params)
        if "error" in answer:
            raise from_wire(answer["error"])
        return answer["result"]

    @property
    def events(self):
        """The params of every task.event so far."""
        single = [document for document in self.documents if isinstance(document, dict)]
        return [document["params"] for document in single if "method" in document]

    def events_of(self, task_id):
        return [event for event in self.events if event["task_id"] == task_id]

    async def finished(self, task_id):
        """Wait for a task's task_finish event; return all events of the task."""
        await self.until(lambda: any(event["phase"] == "task_finish" for event in self.events_of(task_id)))
        return self.events_of(task_id)

    async def open(self, **params):
        """session.open; returns a RawSession."""
        return RawSession(self, (await self.call("session.open", **params))["session_id"])

    async def close(self):
        await self.stream.aclose()


class RawSession:
    """One session of a raw client."""

    def __init__(self, client, session_id):
        self.client = client
        self.session_id = session_id

    async def call(self, method, **params):
        return await self.client.call(method, session_id=self.session_id, **params)

    def submission(self, steps, *, intent="test", key=None, subscribe=None, **constraints):
        task = {"intent": intent, "steps": [{"tool": f"bench.{tool}", "args": args} for tool, args in steps]}
        if constraints:
            task["constraints"] = constraints
        if key is not None:
            task["idempotency_key"] = key
        params = {"session_id": self.session_id, "task": task}
        if subscribe is not None:
            params["subscribe"] = subscribe
        return params

    async def submit(self, *steps, **more):
        """Submit steps such as ("read", {"tag": "x"}); returns the answer's result."""
        return await self.client.call("task.submit", **self.submission(steps, **more))

    async def start(self, *steps, **more):
        """Submit; returns the task_id."""
        return (await self.submit(*steps, **more))["task_id"]

    async def get(self, task_id):
        return await self.call("task.get", task_id=task_id)

    async def cancel(self, task_id):
        return (await self.call("task.cancel", task_id=task_id))["status"]

    async def subscribe(self, task_id=None, **more):
        params = more if task_id is None else {"task_id": task_id, **more}
        return await self.call("task.events.subscribe", **params)

    async def wait(self, task_id):
        """Follow the task to its end; return it as task.get shows it."""
        await self.subscribe(task_id)
        await self.client.finished(task_id)
        return await self.get(task_id)

    async def run(self, *steps, **more):
        """Submit and wait."""
        return await self.wait(await self.start(*steps, **more))

    async def close(self):
        return await self.call("session.close")
