"""hearth's own client under load, against raw sockets that send the same submissions to the same daemon.

`session.run` submits, follows and returns a result, as a user's program does. A raw socket sends what was encoded
beforehand and looks only for the mark of the end: what is between the two is the cost of the client.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import trio
from attrs import frozen

import hearth
from benchmarks import load
from benchmarks.load import PATIENCE, SWITCHED, Round
from benchmarks.rates import Base, Rate, Side, by_turns

if TYPE_CHECKING:
    from benchmarks.rates import Effort, MakeLoad
    from benchmarks.servers import Servers

RAW = Base("raw", "raw sockets", load.tasks)


class ClientLoad:
    """Connections of hearth's client, each with a session, in one Trio loop in a thread of this process."""

    def __init__(self, address: str, count: int) -> None:
        self._address = address
        self._count = count
        self._asked: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._rounds: queue.SimpleQueue[Round | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._drive, name="client-load")
        self._thread.start()

    def run(self, seconds: float) -> Round:
        """Keep every session busy for so long, one call at a time each."""
        self._asked.put(seconds)
        done = self._rounds.get(timeout=seconds + PATIENCE)
        if isinstance(done, Round):
            return done
        raise RuntimeError(f"the client failed: {done!r}") from done

    def close(self) -> None:
        """Close the sessions and hang up."""
        self._asked.put(None)
        self._thread.join()

    def _drive(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001  raised again in `run`
            self._rounds.put(error)

    async def _main(self) -> None:
        async with AsyncExitStack() as stack:
            sessions = []
            for _ in range(self._count):
                client = await stack.enter_async_context(hearth.connect(self._address))
                sessions.append(await stack.enter_async_context(client.open_session(client_name="bench")))
            while (seconds := await trio.to_thread.run_sync(self._asked.get)) is not None:
                latencies: list[float] = []
                gc.collect()
                gc.disable()
                begun = time.perf_counter()
                try:
                    async with trio.open_nursery() as nursery:
                        for index, session in enumerate(sessions):
                            line = SWITCHED[index % len(SWITCHED)]
                            nursery.start_soon(_loop, session, line, begun + seconds, latencies)
                finally:
                    gc.enable()
                self._rounds.put(Round(time.perf_counter() - begun, latencies))


async def _loop(session: hearth.Session, line: int, until: float, latencies: list[float]) -> None:
    # What `load.tasks` sends: reading and driving by turns.
    calls = [("gpio.set", {"value": 1}), ("gpio.get", {}), ("gpio.set", {"value": 0}), ("gpio.get", {})]
    now = time.perf_counter()
    number = 0
    while now < until:
        tool, args = calls[number & 3]
        result = await session.run(tool, line=line, **args)
        if result["value"] != (number & 3 < 2):
            raise RuntimeError(f"{tool} of line {line} returned {result}")
        number += 1
        then = time.perf_counter()
        latencies.append(then - now)
        now = then


@frozen
class ClientRate(Rate):
    """hearth's client, against raw sockets with the same daemon."""

    load: MakeLoad = ClientLoad
    base: Base = RAW

    def sides(self, servers: Servers, effort: Effort) -> tuple[Side, Side, float]:
        """See Rate."""
        server = self.server(servers)
        raw = Side(server, self.connect(server, self.base.load))
        try:
            client = Side(server, self.connect(server, self.load))
        except BaseException:
            raw.load.close()
            raise
        return raw, client, by_turns([raw, client], effort)


CLIENT = [
    ClientRate("client-1", "session.run of hearth's client, 1 connection", 1, 0.7),
    ClientRate("client-16", "session.run of hearth's client, 16 connections", 16, 0.7),
]
