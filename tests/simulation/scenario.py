"""One scenario: a seed, and everything that follows from it, told to a tape.

`play(seed)` plays it whole; `trims` leaves parts of it out (`parts` names them all: "c3" a client, "c3.7" one of its
actions, "f2" a fault), which changes nothing else but what follows from them.

`Terms`: what the first entry's `config` holds, as plain values.

| member | |
| --- | --- |
| `buses` | by id: `width` (at once), `kind`, `lines` (offset: `safe` 0, 1 or "input"; `hold` "release" or "keep") |
| `tools` | by name: `risk`, `bus` or the `arg` that names it and the `prefix` before it, `undo` (it can be), `drives` |
| `policy` | by principal: `max_risk`, `ceiling`, `tools`, `rates` (tool: [count, period in seconds]), `max_sessions` |
| `limits` | as in `[limits]` of a hearth.toml |
| `durability` | "os", "fsync" or "relaxed" |
| `end_bound` | seconds from the first signal until the daemon has ended, at the most |

A client's number is a connection's; `actor` in `client.opens` says whose it is. Each step has a `mark` in its args, the
same one as its transactions (a repeated submission repeats it). What a transaction is to its step is in `what`: the
driver's operation, "undo" for a step that is taken back, "end" for an effect that is ended (a pulse, a watch), "safe"
for lines that go to their safe state.
"""

from __future__ import annotations

import random

import trio
from trio.testing import MockClock

from . import calm, clients, faults, machine, reloads, stops
from .tape import Tape
from .terms import HOT, make_terms
from .tools import MADE_ONCE
from .wide import is_wide
from .world import World, quiet

LONGEST = 3600.0
"""Virtual seconds after which a scenario that has not ended never will."""


def shape(seed):
    """How many clients, and how the lives of the daemon end."""
    rng = random.Random(f"{seed}/shape")
    count = rng.choice([2, 3, 3, 4, 6])
    lives = []
    while len(lives) < 2 and rng.random() < 0.35:
        how = rng.choice(["SIGTERM", "SIGTERM", "SIGINT", "SIGKILL", "cancel"])
        again = None if rng.random() < 0.7 or how in ("SIGKILL", "cancel") else rng.choice([0.0, 0.3, 1.5])
        lives.append((rng.choice([0.01, 0.1, 0.6, 3]) * rng.random(), how, again, rng.choice([0.0, 0.5, 5])))
    return count, lives


def parts(seed) -> list[str]:
    """All that can be left out."""
    count, lives = shape(seed)
    names = [f"c{number}" for number in range(count)]
    names += [f"c{number}.{at}" for number in range(count) for at in range(len(clients.plan(seed, number)))]
    names += [f"f{at}" for at in range(len(faults.plan(seed)))]
    return names + [f"d{at}" for at in range(len(lives))]


class Scenario:
    """A scenario while it is played."""

    def __init__(self, seed, trims, system) -> None:
        self.seed = seed
        self.trims = frozenset(trims)
        self.tape = Tape(trio.current_time)
        self.machine = system
        self.known: list[str] = []
        """Sessions of anybody, for who has no right to them."""
        self.opened: dict[str, str] = {}
        """The sessions of this life of the daemon, by their principals."""
        self.left_open: list[clients.Connection] = []
        self._connections = 0

    def next_connection(self) -> int:
        """A connection's number."""
        self._connections += 1
        return self._connections

    async def run(self) -> None:
        """Play it."""
        terms = make_terms(random.Random(f"{self.seed}/terms"), is_wide=is_wide(self.seed))
        self.tape.tell("world", seed=self.seed, config=terms)
        self.world = world = World(self.seed, self.tape, self.machine, terms)
        count, lives = shape(self.seed)
        before = world.counts(inside=False)
        self.ready, self.last = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            ended = trio.Event()
            nursery.start_soon(self._lives, lives, ended, before, nursery)
            await self.ready.wait()
            if world.hot:
                world.wires[HOT].base = random.Random(f"{self.seed}/latency").choice([0.005, 0.02])
            async with trio.open_nursery() as actors:
                actors.start_soon(faults.run, world, self.trims)
                actors.start_soon(stops.run, self, nursery)
                actors.start_soon(reloads.run, self, nursery)
                for number in range(count):
                    if f"c{number}" not in self.trims:
                        client = clients.Client(self, number)
                        actors.start_soon(client.run, nursery, self.trims)
            for connection in self.left_open:
                if not connection.over:
                    connection.leave("close")
            self.last.set()
            await ended.wait()
        self.tape.tell("baseline", when="before", counts=before)
        self.tape.tell("baseline", when="after", counts=world.counts(inside=False))

    async def _lives(self, lives, ended, before, people) -> None:
        world, trims = self.world, self.trims
        rng = random.Random(f"{self.seed}/lives")
        for at, (after, how, again, pause) in enumerate(lives):
            if f"d{at}" in trims:
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end, world.up, after, how, again)
                nursery.start_soon(self._open_when, world.up)
                await world.live()
                nursery.cancel_scope.cancel()
            self.opened.clear()
            await trio.sleep(pause)
        async with trio.open_nursery() as nursery:
            up = world.up
            nursery.start_soon(world.live)
            await up.wait()
            if not self.ready.is_set():
                # What is loaded once it is up is loaded by then.
                await trio.sleep(0.01)
            fresh = world.counts(inside=True)
            self.ready.set()
            await self.last.wait()
            stuck = rng.random() < 0.1
            if not stuck:
                faults.heal(world)
                if calm.is_calm(self.seed):
                    await calm.keep(self, people)
            if rng.random() < 0.5 and not stuck:
                # Everybody has left; what they left open falls asleep.
                await trio.sleep(self.world.terms["limits"]["idle_ttl_s"] + 40)
                if not set(range(len(lives))) - {int(trim[1:]) for trim in trims if trim[0] == "d"}:
                    self.tape.tell("baseline", when="before", counts=fresh)
                    self.tape.tell("baseline", when="after", counts=world.counts(inside=True))
            world.tell("daemon.told", signal="SIGTERM")
            world.signals.send("SIGTERM")
            if rng.random() < 0.2:
                await trio.sleep(rng.choice([0.0, 0.3, 2]))
                if world.daemon is not None:
                    world.tell("daemon.told", signal="SIGTERM")
                    world.signals.send("SIGTERM")
        ended.set()

    async def _open_when(self, up) -> None:
        await up.wait()
        self.ready.set()

    async def _end(self, up, after, how, again) -> None:
        world = self.world
        await up.wait()
        await trio.sleep(after)
        if how == "SIGKILL":
            world.kill()
            return
        world.tell("daemon.told", signal=how)
        if how == "cancel":
            # As a program does that has the daemon inside itself, and is cancelled.
            world.killed.cancel()
            return
        world.signals.send(how)
        if again is not None:
            await trio.sleep(again)
            world.tell("daemon.told", signal="SIGTERM")
            world.signals.send("SIGTERM")


def play(seed, *, trims=frozenset()) -> Tape:
    """Play a seed's scenario; its tape."""
    told: list[Tape] = []
    with quiet(), machine.own_directory(), machine.running(seed, MADE_ONCE) as system:

        async def main():
            scenario = Scenario(seed, trims, system)
            told.append(scenario.tape)
            with trio.fail_after(LONGEST):
                await scenario.run()

        trio.run(main, clock=MockClock(autojump_threshold=0))
    return told[0]
