"""What goes wrong in a world that no client has a hand in: devices, the disk, tools, and the end of the daemon.

Each fault has a name and a chance of its own, and is told as it is done. Those that last are ended before the scenario
is: but for some wedges, which an ending daemon must not wait for.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import trio

from hearth.errors import RpcError

from . import wide
from .terms import BUSES, HOT, INTERLOCKS, LINES


def _one_i2c(rng):
    return rng.choice(["i2c:1", HOT])


def _any(world, rng):
    """A bus; mostly the one on which most is done, where there is one."""
    return HOT if world.hot and rng.random() < 0.6 else rng.choice(BUSES)


async def _nack(world, rng):
    bus = _one_i2c(rng)
    world.tape.tell("fault", what="nack", bus=bus)
    world.drivers[bus].faults.nack(rng.randint(1, 3), after=rng.randint(0, 3))


async def _timeout(world, rng):
    bus = _one_i2c(rng)
    world.tape.tell("fault", what="timeout", bus=bus)
    seconds = rng.choice([0.025, 0.5])
    world.drivers[bus].faults.timeout(rng.randint(1, 2), after=rng.randint(0, 2), seconds=seconds)


async def _latency(world, rng):
    bus = rng.choice([bus for bus in BUSES if not bus.startswith("gpio")])
    world.tape.tell("fault", what="latency", bus=bus)
    world.wires[bus].slow = rng.choice([0.001, 0.02, 0.4])
    await trio.sleep(rng.choice([0.1, 2]))
    world.wires[bus].slow = 0.0
    world.tape.tell("fault", what="clear", bus=bus)


async def _wedge(world, rng):
    bus = HOT if world.hot else _one_i2c(rng)
    world.tape.tell("fault", what="wedge", bus=bus)
    world.drivers[bus].faults.wedge(after=rng.randint(0, 2))
    await trio.sleep(rng.choice([0.02, 1.5, 5, 12, 60]))
    world.drivers[bus].faults.release()
    world.tape.tell("fault", what="clear", bus=bus)


async def _crash(world, rng):
    bus = _any(world, rng)
    world.tape.tell("fault", what="crash", bus=bus)
    world.wires[bus].bugs = 1


async def _pump(world, rng):
    bus = _any(world, rng)
    world.tape.tell("fault", what="crash", bus=bus)
    world.wires[bus].broken.set()


async def _vanish(world, rng):
    await away(world, rng, _any(world, rng))


async def leased(world, seconds):
    """A bus that is leased; None if there is none for so long."""
    with trio.move_on_after(seconds):
        while True:
            if world.daemon is not None and world.up.is_set() and not world.mute:
                for bus, actor in world.daemon.runtime().buses.items():
                    if bus in world.wires and "leased" in actor.health():
                        return bus
            await trio.sleep(0.005)
    return None


async def away(world, rng, bus):
    """Take a device away, and bring it back after a while."""
    world.tape.tell("fault", what="vanish", bus=bus)
    world.wires[bus].vanish()
    await trio.sleep(rng.choice([0.05, 1, 10]))
    world.wires[bus].come_back()
    world.tape.tell("fault", what="return", bus=bus)


async def _disk_full(world, rng):
    world.disk.room = rng.choice([0, 40, 500, 3000])
    world.tape.tell("fault", what="disk.full", room=world.disk.room)
    if rng.random() < 0.2:
        world.disk.fails["truncate"] = errno.EIO
    await trio.sleep(rng.choice([0.02, 0.5, 3]))
    world.disk.room = None
    world.disk.fails.pop("truncate", None)
    world.tape.tell("fault", what="disk.free")


async def _disk_fails(world, rng):
    call = rng.choice(["write", "sync"])
    world.tape.tell("fault", what="disk.fails", call=call)
    world.disk.fails[call] = rng.choice([errno.EIO, errno.EROFS])
    await trio.sleep(rng.choice([0.01, 0.3, 2]))
    world.disk.fails.pop(call, None)
    world.tape.tell("fault", what="disk.heals")


async def _disk_slow(world, rng):
    world.tape.tell("fault", what="disk.slow")
    world.machine.slow = rng.choice([0.005, 0.2, 2, 8])
    await trio.sleep(rng.choice([0.1, 1]))
    world.machine.slow = 0.0
    world.tape.tell("fault", what="disk.heals")


async def _tool_crash(world, rng):
    tool = rng.choice(["gpio.set", "gpio.get", "i2c.read", "i2c.write", "uart.exchange", "file.write"])
    world.tape.tell("fault", what="tool.crash", tool=tool)
    world.bugs[tool] = rng.choice(["before", "after"])


async def _doors(world, rng) -> None:
    """Open and close the door that an interlock requires; not one of the faults that are counted."""
    lock = INTERLOCKS[0]
    for _ in range(rng.choice([0, 0, 1, 2, 5])):
        await trio.sleep(rng.random() * rng.choice([0.05, 0.5, 2]))
        for value in (1 - lock["closed"], lock["closed"]):
            if world.drivers is not None:
                world.tape.tell("fault", what="door", line=lock["door"], value=value)
                world.drivers[lock["bus"]].push(lock["door"], value)
                await trio.sleep(rng.choice([0.01, 0.3, 1.5]) * rng.random())


async def _sticks(world, rng) -> None:
    """Let lines stay at a level whatever drives them; not one of the faults that are counted."""
    for _ in range(rng.choice([0, 0, 1, 3])):
        await trio.sleep(rng.random() * rng.choice([0.02, 0.3, 2]))
        line, level = rng.choice([*LINES]), rng.randint(0, 1)
        if world.drivers is not None:
            stuck = world.drivers["gpio:sim"].stuck
            world.tape.tell("fault", what="stuck", line=line, value=level)
            stuck[line] = level
            await trio.sleep(rng.choice([0.02, 0.5, 3]))
            stuck.pop(line, None)
            world.tape.tell("fault", what="freed", line=line)


async def _halts(world, rng) -> None:
    """Halt the daemon, and reset the halt after a while; in some worlds, and not one of the faults that are counted."""
    if rng.random() > 0.25:
        return
    for _ in range(rng.choice([1, 1, 2, 4])):
        await trio.sleep(rng.random() * rng.choice([0.05, 0.5, 4]))
        daemon = world.daemon
        if daemon is None or world.mute or not world.up.is_set():
            continue
        halt = daemon.runtime().halt
        async with world.halting:
            world.tell("fault", what="halt")
            halt.halt("the world", "the world")
            with trio.move_on_after(rng.choice([0.1, 30])):
                await halt.latched()
                if halt.flag.halted and halt.status()["latched"]:
                    world.tell("fault", what="latched")
        await trio.sleep(rng.choice([0.0, 0.02, 0.5, 3]))
        if daemon is world.daemon and rng.random() < 0.8:
            async with world.halting:
                with trio.move_on_after(30), suppress(RpcError):
                    await halt.reset("the world", halt.flag.count)
                    world.tell("fault", what="reset")


FAULTS = {
    _nack: 3,
    _timeout: 2,
    _latency: 3,
    _wedge: 3.5,
    _crash: 2,
    _pump: 2.5,
    _vanish: 2,
    _disk_full: 2,
    _disk_fails: 2,
    _disk_slow: 2,
    _tool_crash: 2,
}
"""What goes wrong, and how often."""


def plan(seed):
    """The faults of a world: when, what."""
    rng = random.Random(f"{seed}/plan/faults")
    count = rng.choice([0, 0, 1, 2, 3, 5])
    kinds = rng.choices([*FAULTS], [*FAULTS.values()], k=count)
    return sorted(((rng.random() * rng.choice([0.05, 0.5, 4]), kind) for kind in kinds), key=lambda fault: fault[0])


async def run(world, trims) -> None:
    """Do the faults of the plan, but for what is trimmed."""
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_halts, world, random.Random(f"{world.seed}/halts"))
        nursery.start_soon(_doors, world, random.Random(f"{world.seed}/doors"))
        nursery.start_soon(_sticks, world, random.Random(f"{world.seed}/sticks"))
        if world.is_wide:
            nursery.start_soon(wide.run, world, random.Random(f"{world.seed}/wide/faults"))
        for at, (when, fault) in enumerate(plan(world.seed)):
            name = f"f{at}"
            await trio.sleep_until(start + when)
            if name not in trims and not world.mute and world.drivers is not None:
                nursery.start_soon(fault, world, random.Random(f"{world.seed}/{name}"))


def heal(world) -> None:
    """End everything that still lasts."""
    world.disk.room = None
    world.disk.fails.clear()
    world.machine.slow = 0.0
    world.bugs.clear()
    for bus, wire in world.wires.items():
        wire.slow, wire.bugs = 0.0, 0
        if wire.gone:
            wire.come_back()
            world.tape.tell("fault", what="return", bus=bus)
    for bus in ("i2c:1", "i2c:2"):
        world.drivers[bus].faults.clear()
        world.tape.tell("fault", what="clear", bus=bus)
    if world.is_wide:
        wide.heal(world)
