"""All buses of a runtime together: how they are started, and how they come to their end.

Owns the patience that a runtime has with its devices. One bus at a time is `bus`'s business, and opening it again after
a failure the supervisor's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from hearth.actors.busfront import SAFE_STATE_LIMIT
from hearth.actors.supervisor import keep_open

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.actors.bus import Bus
    from hearth.actors.ledger import Ledger

log = logging.getLogger("hearth.runtime")

OPEN_PATIENCE = 5.0
"""Seconds that the start waits for its buses, and for the safe states of what an earlier run left driven; a bus that
opens later serves from then on, and begins with those."""

REOPEN_PATIENCE = 1.0
"""Seconds that the end waits for a bus that is down and owes safe states. One that has crashed is back by then; a
device that is not there is not waited for: the next start knows what is owed."""


def disown_outputs(ledger: Ledger, buses: Mapping[str, Bus], board: str, audit: Callable[..., None]) -> None:
    """Put on record what an earlier run may have left driven and nobody here can bring to a safe state; forget it."""
    found = ledger.found
    if found.trouble is not None:
        moved = {"file": found.aside.name} if found.aside is not None else {}
        audit("outputs.unknown", reason=found.trouble, **moved)
    for bus_id, outputs in found.outputs.items():
        if bus_id not in buses:
            reason = f"board {board} has no such bus"
            log.warning("bus %s: %s: outputs %s are left as they are", bus_id, reason, list(outputs))
            audit("outputs.unknown", reason=reason, bus=bus_id, outputs=list(outputs))
            ledger.strike(bus_id, outputs)


async def start_buses(buses: Mapping[str, Bus], outer: trio.Nursery, audit: Callable[..., None]) -> None:
    """Open the buses, each in a task of `outer`; return when they serve, have failed once, or take too long."""
    opened = {bus_id: trio.Event() for bus_id in buses}
    for bus_id, bus in buses.items():
        outer.start_soon(keep_open, bus, audit, opened[bus_id].set)
    with trio.move_on_after(OPEN_PATIENCE):
        for event in opened.values():
            await event.wait()
        for bus in buses.values():
            if bus.state == "ready":
                await bus.settle()
    for bus_id, event in opened.items():
        if not event.is_set():
            log.warning("bus %s is not open after %g s; starting without it", bus_id, OPEN_PATIENCE)


async def settle_buses(buses: Mapping[str, Bus]) -> None:
    """Let what sessions no longer wait for come to its end: outputs on their way to their safe state."""
    with trio.move_on_after(SAFE_STATE_LIMIT):
        async with trio.open_nursery() as nursery:
            for bus in buses.values():
                nursery.start_soon(_settle, bus)
    for bus in buses.values():
        bus.abandon()


async def _settle(bus: Bus) -> None:
    with trio.move_on_after(REOPEN_PATIENCE):
        await bus.settle()
        return
    if bus.state != "down":
        await bus.settle()
