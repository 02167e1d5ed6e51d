"""Halts by several holders: people without a session, the fleet, and those who reset them, also while the disk hangs.

In some worlds, and not one of the faults that are counted. Each thing that is done here is done alone
(`World.halting`), so that the tape has halts and resets in their order. What must hold of them is `invariants.halts`'.
"""

from __future__ import annotations

import random
from contextlib import suppress

import trio

from hearth.errors import RpcError

from .calm import Person
from .terms import KEEPER, PRINCIPALS

FLEET = "the fleet"
BRIEF = (0.0, 0.001, 0.005, 0.02)
"""Seconds between a reset and a halt that comes while it is under way."""


async def run(scenario, nursery) -> None:
    """Halt and reset, in some worlds."""
    rng = random.Random(f"{scenario.seed}/stops")
    if rng.random() > 0.2:
        return
    world = scenario.world
    person = Person(scenario, nursery, rng.choice([*PRINCIPALS]), "who halts")
    keeper = Person(scenario, nursery, KEEPER, "who resets")
    for _ in range(rng.choice([2, 4, 6])):
        await trio.sleep(rng.random() * rng.choice([0.05, 0.5, 3]))
        what = rng.choice([_person, _person, _fleet, _fleet_resets, _reset, _race])
        hangs = rng.random() < 0.4
        async with world.halting:
            if world.daemon is None or world.mute or not world.up.is_set():
                continue
            before, life = world.machine.slow, world.daemon
            if hangs:
                world.tell("fault", what="disk.slow")
                # Longer than the answer to a halt may take, shorter than a silence for which the log counts as failed.
                world.machine.slow = 4.0
            await what(world, person, keeper, rng)
            if hangs:
                world.machine.slow = before
                world.tell("fault", what="disk.heals")
            if world.daemon is not life:
                world.tell("fault", what="unclear")
    for one in (person, keeper):
        one.go("close")


async def _person(world, person, _keeper, _rng) -> bool:
    """Halt on the wire, without a session."""
    answer = await person.ask("halt", reason="a person")
    world.tell("fault", what="unclear" if answer is None else "halt", source="person")
    if answer is not None and answer.get("latched"):
        world.tell("fault", what="latched")
    return answer is not None


async def _fleet(world, _person, _keeper, _rng) -> None:
    world.daemon.runtime().halt.halt("the operator", FLEET, source="fleet")
    world.tell("fault", what="halt", source="fleet")


async def _fleet_resets(world, _person, _keeper, _rng) -> None:
    halt = world.daemon.runtime().halt
    if not halt.flag.halted:
        return
    with trio.move_on_after(10), suppress(RpcError):
        await halt.reset(FLEET, halt.flag.count, source="fleet")
    if not halt.flag.halted:
        world.tell("fault", what="reset", source="fleet")


async def _reset(world, _person, keeper, _rng) -> None:
    await keeper.ask("halt.reset", session_id=await keeper.session_id())
    await _see(world, keeper)


async def _see(world, keeper) -> None:
    """Look whether the daemon is still halted."""
    status = await keeper.ask("halt.status", session_id=await keeper.session_id())
    if status is None:
        world.tell("fault", what="unclear")
    elif not status["halted"]:
        world.tell("fault", what="reset", source="person")


async def _race(world, person, keeper, rng) -> None:
    """Halt, and halt again while the reset of the first is under way: the daemon is halted at the end."""
    if not await _person(world, person, keeper, rng):
        return
    await trio.sleep(rng.choice([0.1, 1.5]))
    session_id = await keeper.session_id()
    again = []

    async def halt() -> None:
        await trio.sleep(rng.choice(BRIEF))
        again.append(await person.ask("halt", reason="a person, again"))

    # Between the reset and the halt that comes after it the daemon is not halted, if the reset is the faster one.
    world.tell("fault", what="unclear")
    async with trio.open_nursery() as both:
        both.start_soon(halt)
        await keeper.ask("halt.reset", session_id=session_id)
    status = await keeper.ask("halt.status", session_id=session_id)
    if status is None or again == [None]:
        world.tell("fault", what="unclear")
    else:
        world.tell("fault", what="raced", halted=status["halted"])
        if status["halted"]:
            world.tell("fault", what="halt", source="person")
