"""Worlds of a fleet: devices and callers around a broker that loses, doubles, reorders and forgets, until all is over.

`play(seed)` has one to three devices and one or two callers. The shipped code runs: uplink, job server and job store
over files, client and order store over files, reconnecting. In place of sockets and AMQP is `sim_broker`, in place of
threads and clocks the world's. Connections are cut, the broker is killed, wiped or blocked, clocks are set, devices and
callers die before or after a commit, an acknowledgement, a publication or a step, and go on from their files.

Callers order jobs, and go on from the checkpoint of one that failed. In some worlds an operator halts the fleet and
resets it, persons and inputs halt their devices too, and disks refuse the latch. Every promise that does not hold is a
`Violated`, with its name: see `PROMISES`.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import random
import shutil
import sqlite3
import tempfile
import traceback
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch
from uuid import UUID

import orjson
import outcome
import trio
from attrs import define, evolve
from fleet.sim_broker import BrokerPeer, SimBroker
from support.hcp import capability, hcp_world, open_policy
from support.patience import be_patient
from support.steps import DoneAtOnce, seeded, within_real_seconds
from support.waiting import passes
from support.world import NOON, BenchTools
from trio.testing import MockClock

import hearth._util.ids
from hearth._util.exceptions import sole
from hearth.actors.bridges.amqp import connection as connection_module, halts as halts_module
from hearth.actors.bridges.amqp.connection import BrokerSettings
from hearth.actors.bridges.amqp.declare import declare_as_allowed
from hearth.actors.bridges.amqp.uplink import Uplink
from hearth.actors.bridges.hcp import capability_api, execution, store as store_module
from hearth.actors.bridges.hcp.store import JobStore
from hearth.actors.bridges.hcp.store.database import FILE, JobDatabase
from hearth.actors.bridges.hcp.store.queries import JobStoreError
from hearth.actors.bus.halt import Halt
from hearth.actors.bus.latch import Latch
from hearth.amqp.address import parse_broker
from hearth.amqp.errors import AmqpError, NoRoute
from hearth.config.amqp import AmqpConfig
from hearth.errors import RpcError
from hearth.fleet.client import FleetClient
from hearth.fleet.order_store import ENDED, OrderStore, OrderStoreError
from hearth.hcp import l1, messages as values
from hearth.hcp.messages import TaskSubmit
from hearth.tools import Done, Tool

PROMISES = (
    "an order is acknowledged only after it is stored and synced",
    "nothing is published before it is stored",
    "a message counts as published only after the broker has confirmed it",
    "no effect happens twice",
    "an order past its not_after never runs",
    "a step that a crash interrupted is unknown, and is not run again",
    "no order is lost",
    "a caller has all events of its orders, in order, each once",
    "while the fleet is halted, every device that takes orders is halted",
    "the fleet's reset never ends a hold of a person or an input",
    "a refused reset never acts later",
)
STORED, UNPUBLISHED, CONFIRMED, ONCE, IN_TIME, UNKNOWN, NONE_LOST, ALL_EVENTS, HALTED, LOCAL, DROPPED = PROMISES
HALTED_WORLDS = 0.3
"""The part of the worlds with an operator."""
FAULTS_S = 90.0
"""Virtual seconds within which things go wrong."""
LONGEST_S = 5000.0
"""Virtual seconds after which a world that has not ended never will."""
PATIENCE_S = 60
"""Real seconds."""
HALT_S = 30.0
"""From a halt that the broker has confirmed to its arrival at a device that takes orders: the longest delays."""
SLACK_S = 0.1
"""From the last check of an order's time to the first line of its function: the order is stored in between."""
QUICK = BrokerSettings(backoff_first=0.05, backoff_most=2.0)
ADDRESS = "amqp://{}@127.0.0.1/?password_file=none"


class Violated(AssertionError):
    """A promise that does not hold."""

    def __init__(self, promise, reason):
        super().__init__(f"{promise}: {reason}")
        self.promise = promise


@define
class Mortality:
    """How a life ends: at the nth event of a kind, before or after it; or at a time."""

    kind: str
    """ "commit", "ack", "publish", "act" (a device's), or "time"."""
    at: float
    after: bool = False

    @classmethod
    def drawn(cls, chance, hard):
        """One, or None for a life that does not end."""
        kind = chance.choice(("commit", "commit", "ack", "publish", "act", "time"))
        if chance.random() > 0.3 + 0.7 * hard:
            return None
        if kind == "time":
            return cls(kind, chance.uniform(0, FAULTS_S / 2))
        return cls(kind, chance.randint(1, 25 if kind == "commit" else 6), chance.random() < 0.5)


class MortalPeer(BrokerPeer):
    """One life of a process."""

    def __init__(self, world, mortality):
        self.world, self.mortality = world, mortality
        self.over = trio.Event()
        self.counts = Counter()
        self.dead = False

    def die(self):
        """From here on nothing that this life does reaches anything."""
        self.dead = True
        self.over.set()
        if self.mortality is not None:
            self.world.figures[f"died: {self.mortality.kind}"] += 1
        for connection in [one for one in self.world.broker.connections if one.peer is self]:
            self.world.broker.loses(connection)

    def passes(self, kind, *, after=False):
        """One more event of a kind, before or after it is done; dies if this is where it dies."""
        if not self.dead:
            self.counts[kind] += not after
            if self.mortality == Mortality(kind, self.counts[kind], after):
                self.die()

    def publishes(self, _message):
        """See BrokerPeer."""
        self.passes("publish")

    def acknowledges(self, _message):
        """See BrokerPeer."""
        self.passes("ack")

    def acknowledged(self):
        """See BrokerPeer."""
        self.passes("ack", after=True)

    async def until_over(self):
        """Wait for the end of this life."""
        timed = self.mortality is not None and self.mortality.kind == "time"
        with trio.move_on_after(self.mortality.at if timed else float("inf")):
            await self.over.wait()
        if not self.dead:
            self.die()


def tag_of(order):
    """What an order's effects are known by."""
    return order.document["payload"]["inputs"]["tag"]


# --- devices ----------------------------------------------------------------------------------------------------------


class DeviceLife(MortalPeer):
    """One life of a device; judges what leaves it."""

    def __init__(self, world, mortality, device):
        super().__init__(world, mortality)
        self.device = device
        self.file = None
        """Its job store's database."""
        self.refused = {}
        """By message id: the refusal that it has published."""

    def publishes(self, message):
        """See BrokerPeer."""
        super().publishes(message)
        session = message.correlation_id
        query = "SELECT 1 FROM lines JOIN sessions ON session = no WHERE session_id = ? AND line = ?"
        if not self.dead and session is not None and not self.device.stored(query, session, message.body + b"\n"):
            self.world.violated(UNPUBLISHED, f"{self.device.name} publishes {message.body.decode()}")
        if message.type == "task_rejected":
            self.refused[orjson.loads(message.body)["payload"]["in_reply_to"]] = message.body

    def acknowledges(self, message):
        """See BrokerPeer."""
        super().acknowledges(message)
        if self.dead or message.type != "task_submit":
            return
        # A refusal that may not hold later is not stored: it was told, and the broker has it.
        if self.refused.get(message.message_id) in self.world.broker.confirmed:
            return
        synced = self.device.stored("PRAGMA synchronous") == [(2,)]
        if not synced or not self.device.stored("SELECT 1 FROM answers WHERE message_id = ?", message.message_id):
            self.world.violated(STORED, f"{self.device.name} acknowledges the order {message.message_id}")


class MortalLatch(Latch):
    """The latch of one life of a device."""

    life = None

    async def save(self, holds):
        """See Latch."""
        self.life.passes("commit")
        self.life.device.disk()
        whole = not self.life.dead and await super().save(holds)
        self.life.passes("commit", after=True)
        if self.life.dead:
            raise OSError("switched off")
        return whole

    async def remove(self):
        """See Latch."""
        if self.life.dead:
            raise OSError("switched off")
        self.life.device.disk()
        await super().remove()


class WatchedUplink(Uplink):
    """Knows since when it takes orders, on the present connection, and when it asked for the halts that had waited."""

    played = None
    taking_since = math.inf
    asked_at = -math.inf

    def halted(self):
        """Whether its device is."""
        return self._runtime.halt.flag.halted

    async def _take_orders(self, *args):
        self.taking_since = trio.current_time()
        try:
            self.played.world.judge_halt(self.played)
            await super()._take_orders(*args)
        finally:
            self.taking_since = math.inf


class SimDevice:
    """A device: what outlives its process."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.chance = random.Random(f"{world.seed}/{name}")
        self.hand = random.Random(f"{world.seed}/{name}/hand")
        self.local = None
        """"person" or "input", while one holds this device halted."""
        self.refused = set()
        """The ids of resets that it has refused."""
        self.directory = world.place / name
        self.life = DeviceLife(world, None, self)
        self.boot = 0
        self.uplink = None
        self.offset = self.chance.choice((0.0, 0.0, -600.0, 600.0, 3.0))
        """Seconds by which its clock is wrong."""

    def clock(self):
        """Its wall clock."""
        return NOON + trio.current_time() + self.offset

    def tick(self):
        """Its uptime."""
        return l1.Tick(boot=f"{self.name}/{self.boot}", at_ms=int(1000 * trio.current_time()))

    def stored(self, query, *args):
        """What its job store has, committed."""
        database = self.life.file and self.life.file._connection
        if database is not None:
            return database.execute(query, args).fetchall()
        if not (path := self.directory / FILE).exists():
            return []
        with closing(sqlite3.connect(path)) as between_lives:
            return between_lives.execute(query, args).fetchall()

    async def run(self):
        """Its lives, until the world is over."""
        lives = [Mortality.drawn(self.chance, self.world.hard) for _ in range(2)]
        for mortality in (*lives, None):
            await self._live(mortality)
            if self.world.over:
                return
            self.boot += self.chance.random() < 0.5
            await trio.sleep(self.chance.choice((0.01, 1.0, 15.0)))

    async def _live(self, mortality):
        world = self.world
        life = self.life = world.broker.peers[f"hearthd {self.name}"] = DeviceLife(world, mortality, self)
        world.figures["lives of devices"] += 1
        if world.over:
            life.over.set()
        settings = {"approval_timeout_s": 2.0, "abort_timeout_s": 1.0}
        offered = (
            capability("act", self._act, tools=("act",)),
            capability("look", self._look, tools=("look",), safety={"risk_ceiling": "R1", "risk_floor": "R1"}),
        )
        latch = MortalLatch(self.directory / "halt")
        latch.life = life
        latch.open(self.clock())
        (anyone,) = open_policy()
        async with hcp_world(
            self.directory, *offered, settings=settings, policy=[evolve(anyone, rights=["reset_halt"])],
            extra_tools=self._tools(), durability="fsync", clock=self.clock, latch=latch, close_grace_s=2,
        ) as bench:  # fmt: skip
            life.file = bench.job_server.services.job_store._file
            config = AmqpConfig(url=ADDRESS.format(self.name), id=self.name, prefetch=self.chance.choice((1, 2, 32)))
            self.uplink = WatchedUplink(config, bench.runtime, bench.job_server, settings=QUICK, tick=self.tick)
            self.uplink.played = self
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.uplink.run)
                if self.world.operator is not None:
                    bench.runtime.halt._audit = functools.partial(self._audited, bench.runtime.halt._audit)
                    nursery.start_soon(self._halts, bench.runtime.halt)
                await life.until_over()
                nursery.cancel_scope.cancel()

    def write(self, real, file, operations):
        """Stands for `JobDatabase.write`."""
        life = self.life
        if isinstance(operations[0], functools.partial):
            return real(file, operations)  # while it is opened: one that dies there has not begun to serve
        life.passes("commit")
        if not life.dead:
            results = real(file, operations)
            life.passes("commit", after=True)
            if not life.dead:
                return results
        return [outcome.Error(JobStoreError("switched off")) for _ in operations]

    # --- its own halts

    def disk(self):
        """Fail now and then, where there are halts."""
        if self.world.operator is not None and trio.current_time() < FAULTS_S and self.hand.random() < 0.2:
            raise OSError(5, "the world")

    async def _halts(self, halt):
        """A person, or an input, halts this device, and ends that halt alone after a while."""
        # The life before may have ended when the latch had it, and the hand did not know.
        own = (one.source for one in halt._holds.values() if one.source in ("person", "input"))
        self.local = self.local or next(own, None)
        while trio.current_time() < FAULTS_S or self.local:
            await trio.sleep(0 if self.local else self.hand.expovariate(0.05))
            if self.local is None:
                source = self.hand.choice(("person", "input"))
                halt.halt("the world", f"{source} world", source=source)
                if not await halt.latched() or self.life.dead:
                    continue
                self.local = source
                self.world.figures[f"holds of its own: {source}"] += 1
            with trio.move_on_after(self.hand.choice((1.0, 10.0, 40.0))):
                while True:
                    if not halt.flag.halted and not self.life.dead:
                        self.world.violated(LOCAL, f"{self.name} is not halted, and has the hold of {self.local}")
                    await trio.sleep(0.5)
            source, self.local = self.local, None
            while any(one.source == source for one in halt._holds.values()):
                with suppress(RpcError):
                    await halt.reset("the world", halt.flag.count, source=source)
                await trio.sleep(1)

    def _audited(self, real, event, **members):
        """See the resets of the fleet."""
        if event == "halt.reset" and "message_id" in members and not self.life.dead:
            if ended := [one for one in members["holds"] if one["source"] != "fleet"]:
                self.world.violated(LOCAL, f"{self.name}: {ended} end by the fleet's reset {members['message_id']}")
            if members["message_id"] in self.refused:
                self.world.violated(DROPPED, f"{self.name}: {members['message_id']} acts, and was refused before")
        real(event, **members)

    # --- what its jobs do

    async def _act(self, job, *, tag, steps, pause):
        self.world.begins(self, job.session_id, tag)
        for number in range(steps):
            await job.run("bench.act", tag=f"{tag}.{number}", bus="a")
            await job.sleep(pause)
        return {}

    async def _look(self, job, *, tag, steps, pause):
        self.world.begins(self, job.session_id, tag)
        for _ in range(steps):
            await job.run("bench.look", bus="b")
            await job.sleep(pause)
        return {}

    def _tools(self):
        async def transaction(tag, _driver):
            life = self.life
            life.passes("act")
            if life.dead:
                return
            self.world.acts(tag)
            await trio.sleep(self.chance.choice((0.0, 0.01, 0.3)))
            life.passes("act", after=True)
            if not life.dead:
                self.world.acted.add(tag)

        async def act(ctx, args):
            await ctx.transact(functools.partial(transaction, args["tag"]))
            return Done({"tag": args["tag"]}, None)

        async def glance(_driver):
            await trio.lowlevel.checkpoint()

        async def look(ctx, _args):
            await ctx.transact(glance)
            return {"seen": True}

        more = {
            "timeout_ms": 1000, "description": "", "params_schema": {"type": "object"},
            "result_schema": {"type": "object"}, "bus": lambda args: args["bus"],
        }  # fmt: skip
        return [
            Tool(name="bench.act", risk_level=1, capability="CAP_GPIO_RW", run=act, **more),
            Tool(name="bench.look", risk_level=0, capability="CAP_GPIO_READ", run=look, **more),
        ]


# --- callers ----------------------------------------------------------------------------------------------------------


class MortalOrderStore(OrderStore):
    """The order store of one life of a caller, which dies at its commits."""

    life = None

    @contextmanager
    def _transaction(self):
        self.life.passes("commit")
        if self.life.dead:
            raise OrderStoreError("switched off")
        with super()._transaction():
            yield
        self.life.passes("commit", after=True)
        if self.life.dead:
            raise OrderStoreError("switched off")

    def add(self, orders):
        """See OrderStore."""
        orders = list(orders)
        for one in orders:
            self.life.world.limits[one.message_id] = (self.life.caller, one.not_after)
        super().add(orders)


class CallerLife(MortalPeer):
    """One life of a caller."""

    def __init__(self, world, mortality, caller):
        super().__init__(world, mortality)
        self.caller = caller


class SimCaller:
    """A caller: what outlives its process."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.chance = random.Random(f"{world.seed}/{name}")
        self.path = world.place / f"{name}.sqlite3"
        self.offset = self.chance.choice((0.0, 0.0, -600.0, 600.0))
        self.promised = {}
        """By message id: the tag of each order that `submit` has taken."""
        self.resumed = set()
        self.plan = [self._order(number) for number in range(self.chance.randint(1, 5))]

    def _order(self, number):
        chance = self.chance
        pause = chance.choice((0.0, 0.05, 1.0, 6.0))
        inputs = {"tag": f"{self.name}.{number}", "steps": chance.randint(1, 4), "pause": pause}
        kind = chance.choice(("act", "act", "act", "look"))
        within_s = None if kind == "look" else chance.choice((2.0, 10.0, 60.0, 600.0))
        return chance.choice((0.0, 0.0, 1.0, 8.0)), chance.choice(self.world.devices).name, kind, inputs, within_s

    def clock(self):
        """Its wall clock."""
        return NOON + trio.current_time() + self.offset

    def order_store_path(self):
        """The file of its order store."""
        return self.path

    async def run(self):
        """Its lives, until all its orders have ended."""
        lives = [Mortality.drawn(self.chance, self.world.hard) for _ in range(2)]
        for mortality in (*lives, None):
            if mortality is not None and mortality.kind == "act":
                mortality.kind = "commit"
            life = self.world.broker.peers[f"hearth fleet {self.name}"] = CallerLife(self.world, mortality, self)
            self.world.figures["lives of callers"] += 1
            if await self._live(life):
                return
            await trio.sleep(self.chance.choice((0.01, 1.0, 15.0)))

    async def _live(self, life):
        """One life; True once all is over."""
        order_store = MortalOrderStore(self.order_store_path())
        order_store.life = life
        client = FleetClient(
            parse_broker(ADDRESS.format(self.name)), self.name, order_store, clock=self.clock, settings=QUICK,
            prefetch=self.chance.choice((1, 3, 50)),
        )  # fmt: skip
        over = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                nursery.start_soon(self._cancel_when_over, life, nursery.cancel_scope)
                await self._submit_all(client)
                self.world.judge_caller(self, await self._ended(client), order_store)
                over = True
                nursery.cancel_scope.cancel()
        except* (OrderStoreError, AmqpError):
            # A dead process's order store and connection are gone.
            if not life.dead:
                raise
        finally:
            self.world.figures["duplicates dropped"] += client.duplicates
            order_store.close()
        return over

    async def _cancel_when_over(self, life, scope):
        await life.until_over()
        scope.cancel()

    async def _submit_all(self, client):
        known = {tag_of(one) for one in await client.orders()}
        for wait, device, kind, inputs, within_s in self.plan:
            if inputs["tag"] not in self.promised.values() and inputs["tag"] not in known:
                await trio.sleep(wait)
                await self._submit(client, device, kind, inputs, within_s)
        # Go on, once, from the checkpoint of what a crash interrupted.
        for order in await self._ended(client):
            details = (order.result or {}).get("error_details") or {}
            checkpoint = details.get("last_checkpoint")
            if order.state != "FAILED" or checkpoint is None or order.message_id in self.resumed:
                continue
            self.resumed.add(order.message_id)
            self.world.figures["resumed"] += 1
            payload = order.document["payload"]
            context = {"last_checkpoint": checkpoint}
            await self._submit(client, order.device, payload["capability"], payload["inputs"], 600.0, context=context)

    async def _ended(self, client):
        while True:
            orders = await client.orders()
            if all(one.state in ENDED for one in orders):
                return orders
            await client.changed()

    async def _submit(self, client, device, kind, inputs, within_s, **more):
        submit = TaskSubmit(capability=kind, caller_id=self.name, intent="a world", inputs=inputs, **more)
        (message_id,) = await client.submit([device], submit, within_s=within_s)
        self.promised[message_id] = inputs["tag"]
        self.world.figures["orders"] += 1


# --- an operator ------------------------------------------------------------------------------------------------------


class SimOperator:
    """Halts the fleet, and resets it, until nothing goes wrong any more."""

    def __init__(self, world):
        self.world = world
        self.chance = random.Random(f"{world.seed}/operator")

    async def run(self):
        """Until cancelled."""
        self.world.broker.peers["hearth fleet operator"] = BrokerPeer()
        with closing(OrderStore(self.world.place / "operator.sqlite3")) as order_store:
            address = parse_broker(ADDRESS.format("operator"))
            client = FleetClient(address, "operator", order_store, settings=QUICK)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                while trio.current_time() < FAULTS_S:
                    await trio.sleep(self.chance.uniform(0, 30))
                    if self.chance.random() < 0.5:
                        await self._until_one_is_away()
                    if await self._tell(client.halt, "the world"):
                        self.world.halts()
                        with trio.move_on_after(self.chance.choice((1.0, 10.0, 40.0))):
                            while True:
                                for device in self.world.devices:
                                    self.world.judge_halt(device)
                                await trio.sleep(0.1)
                        self.world.halted.clear()
                        while not await self._tell(client.reset):  # noqa: ASYNC110  after a wipe there may be no queue
                            await trio.sleep(1)

    async def _until_one_is_away(self):
        uplinks = [one.uplink for one in self.world.devices if one.uplink is not None]
        with trio.move_on_after(20):
            await passes(lambda: not all(one.status()["connected"] for one in uplinks))

    async def _tell(self, what, *args):
        """True where there was a device to tell."""
        try:
            await what(*args)
        except NoRoute:
            return False
        return True


# --- the world --------------------------------------------------------------------------------------------------------


class FleetWorld:
    """What outlives every process, and what has been seen."""

    def __init__(self, seed, place):
        self.seed, self.place = seed, place
        self.chance = random.Random(f"{seed}/world")
        self.hard = self.chance.random()
        """How much goes wrong, from 0 to 1."""
        self.figures = Counter(seeds=1)
        self.failure = None
        self.over = False
        self.until_over = trio.CancelScope()
        self.broker = None
        self.devices = []
        self.devices += [SimDevice(self, f"dev-{number}") for number in range(self.chance.randint(1, 3))]
        self.callers = [SimCaller(self, f"call-{number}") for number in range(self.chance.randint(1, 2))]
        self.operator = SimOperator(self) if random.Random(f"{seed}/halts").random() < HALTED_WORLDS else None
        self.halted = {}
        """By the name of a device: when the broker had confirmed the halt, for as long as it may not be reset."""
        self.limits = {}
        """By message id: the caller, and its not_after."""
        self.begun = Counter()
        self.acted = set()
        """Steps whose effect is known to have ended."""

    def violated(self, promise, reason):
        """Fail the world, from where exceptions are contained."""
        self.failure = self.failure or Violated(promise, reason)
        self.until_over.cancel()

    async def play(self):
        """Everything, to its end."""
        self.broker = SimBroker(random.Random(f"{self.seed}/broker"), self.hard)
        ended = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.broker.timetable.run)
                nursery.start_soon(self._faults)
                if self.operator is not None:
                    nursery.start_soon(self.operator.run)
                async with trio.open_nursery() as devices:
                    for device in self.devices:
                        devices.start_soon(device.run)
                    with trio.move_on_after(LONGEST_S) as self.until_over:
                        async with trio.open_nursery() as callers:
                            for caller in self.callers:
                                callers.start_soon(caller.run)
                    ended = not self.until_over.cancelled_caught
                    self.over = True
                    for device in self.devices:
                        device.life.over.set()
                nursery.cancel_scope.cancel()
        finally:
            self.figures.update(self.broker.figures)
            self.figures["virtual seconds"] += round(trio.current_time())
        if self.failure is not None:
            raise self.failure
        if not ended:
            self._judge_unended()

    async def _faults(self):
        """What goes wrong around the processes."""
        chance, broker = self.chance, self.broker
        while trio.current_time() < FAULTS_S:
            await trio.sleep(chance.expovariate(0.02 + 0.3 * self.hard))
            what = chance.choice(("cut", "cut", "cut", "kill", "kill", "wipe", "block", "clock"))
            self.figures[f"fault: {what}"] += 1
            if what == "cut" and broker.connections:
                broker.loses(chance.choice(broker.connections))
            elif what in ("kill", "wipe"):
                broker.kill(wiped=what == "wipe")
                if what == "wipe":
                    self.halted.clear()
                await trio.sleep(chance.choice((0.05, 2.0, 15.0)))
                broker.up = True
            elif what == "block":
                broker.block(blocked=True)
                await trio.sleep(chance.choice((0.1, 5.0, 40.0)))
                broker.block(blocked=False)
            elif what == "clock":
                chance.choice(self.devices).offset += chance.choice((-600.0, 600.0, 1.0))

    # --- what is judged at once

    def begins(self, device, session_id, tag):
        """A job's function begins, on a device."""
        if device.life.dead:
            return
        query = "SELECT message_id FROM sessions WHERE session_id = ?"
        ((message_id,),) = device.stored(query, session_id)
        caller, not_after = self.limits.get(message_id, (None, None))
        late = 0.0 if not_after is None else caller.clock() - not_after
        if late > SLACK_S:
            self.violated(IN_TIME, f"{tag} begins {late:.3f} s late")
        self.figures["jobs begun"] += 1

    def halts(self):
        """The broker has confirmed a halt of the fleet: it has it for each device that has its queue there."""
        queues = self.broker.routed[l1.FLEET, "halt"]
        told = [one.name for one in self.devices if l1.halt_queue(one.name) in queues]
        self.halted = dict.fromkeys(told, trio.current_time())
        self.figures["halts"] += 1

    def judge_halt(self, device):
        """The halt has arrived at a device that must have it."""
        halted, now, uplink = self.halted.get(device.name), trio.current_time(), device.uplink
        if halted is None or device.life.dead or uplink is None or uplink.halted() or uplink.taking_since == math.inf:
            return
        # It had waited for the device, or must have come by now.
        if halted < uplink.asked_at or now - max(halted, uplink.taking_since) > HALT_S:
            times = f"it asked at {uplink.asked_at}, and takes orders since {uplink.taking_since}"
            self.violated(HALTED, f"{device.name} is not halted at {now}; the fleet is since {halted}; {times}")

    def acts(self, tag):
        """A step has its effect."""
        self.figures["effects"] += 1
        self.begun[tag] += 1
        if self.begun[tag] > 1:
            self.violated(ONCE if tag in self.acted else UNKNOWN, f"{tag} happens again")

    def marks(self, lines):
        """A device counts messages as published."""
        for one in lines:
            if one.line.rstrip(b"\n") not in self.broker.confirmed:
                self.violated(CONFIRMED, f"{one.line.decode()} is marked")

    # --- what is judged at the end

    def judge_caller(self, caller, orders, order_store):
        """A caller's orders have all ended."""
        if missing := set(caller.promised) - {one.message_id for one in orders}:
            self.violated(NONE_LOST, f"the order store of {caller.name} does not have {missing}")
        for order in orders:
            self.figures[order.state] += 1
            self._judge_order(order, orders, order_store)

    def _judge_order(self, order, orders, order_store):
        tag, kind = tag_of(order), order.document["payload"]["capability"]
        steps = [f"{tag}.{number}" for number in range(order.document["payload"]["inputs"]["steps"])]
        device = next(one for one in self.devices if one.name == order.device)
        resumes = "context" in order.document["payload"]
        if order.state in ("REJECTED", "NOT SENT"):
            if not resumes and any(self.begun[step] for step in steps):
                self.violated(NONE_LOST, f"{tag} is {order.state} ({order.said}), and has had an effect")
            return
        events = order_store.events(order.session_id)
        query = "SELECT line FROM lines JOIN sessions ON session = no WHERE session_id = ? ORDER BY n"
        stored = [orjson.loads(line) for (line,) in device.stored(query, order.session_id)]
        if events != [one for one in stored if one["type"] == "event"]:
            self.violated(ALL_EVENTS, f"{tag} has the events {events}, and the device has {stored}")
        if events[-1]["payload"]["event_type"] != "session_closed":
            self.violated(ALL_EVENTS, f"{tag} ends with {events[-1]}")
        self.figures["events"] += len(events)
        if kind == "act" and order.state == "COMPLETED" and any(self.begun[step] != 1 for step in steps):
            self.violated(NONE_LOST, f"{tag} is COMPLETED with the steps {[self.begun[step] for step in steps]}")
        if order.state == "FAILED":
            interrupted = [step for step in steps if self.begun[step] and step not in self.acted]
            # A job may have begun it, or the one that went on from that job's checkpoint.
            told = [one.result["error_message"] for one in orders if one.state == "FAILED" and tag_of(one) == tag]
            self.figures["jobs with unknown steps"] += bool(interrupted)
            for step in interrupted:
                if not any(step in text for text in told):
                    self.violated(UNKNOWN, f"{step} is not named in {told}")

    def _judge_unended(self):
        """Name the promise that does not hold when callers wait for ever."""
        for caller in self.callers:
            with suppress(OrderStoreError):
                order_store = OrderStore(caller.order_store_path())
                waiting = [one for one in order_store.orders() if one.state not in ENDED]
                order_store.close()
                for order in waiting:
                    promise = NONE_LOST if order.session_id is None else ALL_EVENTS
                    what = f"{order.state}, event {order.sequence}, {order.said}"
                    raise Violated(promise, f"{caller.name} waits for {order.message_id} ({what}) of {order.device}")
        raise Violated(NONE_LOST, "the world does not end")


# --- a world without threads ------------------------------------------------------------------------------------------


def _write(file, world, real, operations):
    device = next(one for one in world.devices if one.directory == file.path.parent)
    return device.write(real, file, operations)


async def _outbox(job_store, world, real, most, each, confirmed=()):
    device = next(one for one in world.devices if one.directory == job_store._file.path.parent)
    if not device.life.dead:
        world.marks(confirmed)
    return await real(job_store, most, each, confirmed)


async def _declare(connection, topology):
    if topology == l1.halt_topology(connection.peer.device.name):
        connection.peer.device.uplink.asked_at = trio.current_time()
    return await declare_as_allowed(connection, topology)


async def _reset(halt, world, real, *args, message_id=None, **named):
    named |= {} if message_id is None else {"message_id": message_id}
    try:
        await real(halt, *args, **named)
    except RpcError:
        for device in world.devices:
            if message_id is not None and device.uplink is not None and device.uplink._runtime.halt is halt:
                device.refused.add(message_id)
                world.figures["resets refused"] += 1
        raise


@contextmanager
def _surroundings(world):
    """No thread, no chance but the seed's, and the world's hand on the disk and the network."""
    ids, delays = random.Random(f"{world.seed}/ids"), random.Random(f"{world.seed}/threads")

    async def run_sync(work, *args, **_more):
        await trio.sleep(delays.choice((0.0, 0.0, 0.001)))
        return work(*args)

    def open_connection(*args, **named):
        return world.broker.open_connection(*args, **named)

    with ExitStack() as stack:
        for place, name, stand_in in (
            (trio.to_thread, "run_sync", run_sync),
            (connection_module, "open_connection", open_connection),
            (halts_module, "declare_as_allowed", _declare),
            (Halt, "reset", functools.partialmethod(_reset, world, Halt.reset)),
            (store_module, "Background", DoneAtOnce),
            (execution.LimitWatch, "looking", lambda _watch: nullcontext()),
            (execution, "LONG_S", 3600.0),
            (capability_api, "random", ids),
            (values, "uuid4", lambda: UUID(int=ids.getrandbits(128), version=4)),
            (hearth._util.ids, "os", SimpleNamespace(urandom=ids.randbytes)),
            (BenchTools, "all", lambda _tools: []),
            (JobDatabase, "write", functools.partialmethod(_write, world, JobDatabase.write)),
            (JobStore, "outbox", functools.partialmethod(_outbox, world, JobStore.outbox)),
        ):
            stack.enter_context(patch.object(place, name, stand_in))
        yield


@contextmanager
def _quiet():
    level, state = logging.root.manager.disable, random.getstate()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        random.setstate(state)


def play(seed):
    """Play a world; its figures. Raises Violated, or what a world dies of, with the seed."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="hearth-fleet-", dir=memory if os.access(memory, os.W_OK) else None))
    world = FleetWorld(seed, place)
    try:
        with _quiet(), _surroundings(world), within_real_seconds(PATIENCE_S), seeded(f"{seed}/scheduling"):
            random.seed(f"{seed}/back-off")
            be_patient()
            trio.run(world.play, clock=MockClock(autojump_threshold=0))
    except (Violated, Exception, ExceptionGroup) as error:
        only = world.failure or sole(error)
        only.add_note(f"again: python -m tests.fleet --seed {seed}")
        raise only from error
    finally:
        shutil.rmtree(place)
    return world.figures


def one(seed):
    """Play a world; its figures, and why it failed (None, or (promise or None, text)): for `simulation.runner`."""
    try:
        return play(seed), None
    except Violated as violated:
        return Counter(seeds=1), (violated.promise, str(violated))
    except Exception:  # noqa: BLE001  whatever a world dies of is told with its seed
        return Counter(seeds=1), (None, traceback.format_exc())
