"""Many devices in one process: runtimes on simulated boards, each with its own job store and its own uplink.

`swarm.py CONFIG…` serves them until its standard input closes, and prints "ready" once all are connected.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from fleet.bench import count_pulses

from hearth.actors.bridges.amqp.connection import BrokerSettings
from hearth.actors.bridges.amqp.extra import AmqpService
from hearth.actors.bridges.amqp.uplink import Uplink
from hearth.actors.build import build_parts
from hearth.actors.embedded import job_sessions
from hearth.actors.runtime import Runtime
from hearth.config.model import load_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUICK = BrokerSettings(backoff_first=0.05, backoff_most=1.0)
"""A test does not wait half a minute for the next attempt."""


@asynccontextmanager
async def serving(
    config: Path, *, settings: BrokerSettings = QUICK, kept: bool = False, **parts: Any
) -> AsyncIterator[Uplink]:
    """A device of this configuration, as hearthd would serve it, without its listeners. `parts` as for build_parts."""
    loaded = load_config(config)
    made = build_parts(loaded, default_policy=(), config_file=config, **parts)
    count_pulses(made.board.drivers["gpio:sim"], config)
    made.open_records()
    runtime = Runtime(made)
    async with (
        runtime.serve(),
        runtime.serve_extras(job_sessions(runtime)),
        trio.open_nursery() as nursery,
    ):
        uplink = Uplink(loaded.amqp, runtime, await runtime.extras["hcp"].server.real(), settings=settings)
        runtime.extras["amqp"] = AmqpService(loaded, uplink=uplink)
        nursery.start_soon(uplink.keep if kept else uplink.run)
        yield uplink
        uplink.stop()
        nursery.cancel_scope.cancel()


async def connected(uplink: Uplink) -> None:
    """Wait until it has a connection."""
    while not uplink.status()["connected"]:  # noqa: ASYNC110  it has no event for this
        await trio.sleep(0.01)


async def main() -> None:
    """Serve all."""
    async with trio.open_nursery() as nursery:
        ready: list[trio.Event] = []

        async def one(path: str, up: trio.Event) -> None:
            async with serving(Path(path)) as uplink:
                await connected(uplink)
                up.set()
                await trio.sleep_forever()

        for path in sys.argv[1:]:
            ready.append(trio.Event())
            nursery.start_soon(one, path, ready[-1])
        for up in ready:
            await up.wait()
        print("ready", flush=True)
        stdin = trio.lowlevel.FdStream(0)
        await stdin.receive_some()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
