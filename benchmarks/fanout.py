"""One task's events to many WebSocket subscribers, against a broadcast loop on bare trio-websocket; one that stalls.

The loop is the fastest of three ways to write one (`python -m benchmarks "floor-*"` has the others beside it).
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks import subscribers
from benchmarks.load import PATIENCE
from benchmarks.quiet import quietest
from benchmarks.rates import Base, Side, WebSocketRate
from benchmarks.report import Row
from benchmarks.websocket import WebSocketClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.load import Round
    from benchmarks.rates import Effort, MakeLoad
    from benchmarks.servers import Servers

LOOP = Base("loop", "loop", subscribers.of_floor)

RESOLUTION = 0.001
"""Seconds: what an event's time stamp tells apart. No lag counts as less."""
SEND_TIMEOUT = 3
"""Seconds: the bound of the daemon that has a subscriber who stalls."""
SMALL_BUFFER = 4096
ENOUGH = 1000
"""Long answers, of which the kernel takes a part on behalf of somebody who reads nothing."""
STILL, LOOK = 0.1, 0.01
"""Seconds without a change after which the kernel takes nothing more, and between two looks."""
ESTABLISHED = "01"


@frozen
class FanOut(WebSocketRate):
    """One measure with two figures: messages told per second, and p99 of how late they come."""

    load: MakeLoad = subscribers.of_hearth
    base: Base = LOOP

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        floor, side, others = self.sides(servers, effort)
        yield self.row(floor, side, others)
        pairs = zip(side.rounds, floor.rounds, strict=True)
        found = [_lag(one) / _lag(other) for one, other in pairs]
        yield Row(
            f"{self.name}-lag",
            f"p99 of their lag, {self.connections:,} subscribers",
            median(found),
            f"x {self.base.short}",
            None if self.goal is None else 1 / self.goal,
            "at most",
            spread=(min(found), max(found)),
            others=others,
            note="; ".join(
                f"{name}p50 {one.percentile_us(50) / 1000:.1f} ms, p99 {one.percentile_us(99) / 1000:.1f} ms"
                for name, one in (("", side), (f"{self.base.short} ", floor))
            ),
            detail={"ratios": found},
        )


def _lag(one: Round) -> float:
    return max(RESOLUTION, one.percentile(99))


@frozen
class Stalled:
    """The rate of the others beside a subscriber who has stopped reading, and when the server gives it up."""

    name: str
    what: str
    subscribers: int
    goal: float

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        server = servers.hearthd("stalled", websocket=True, limits=f"send_timeout_s = {SEND_TIMEOUT}")
        others = subscribers.of_hearth(server.over_websocket(), self.subscribers)
        side = Side(server, others)

        def beside() -> tuple[tuple[Round, float], float]:
            stalled = WebSocketClient(server.over_websocket(), receive_buffer=SMALL_BUFFER)
            try:
                stalled.call("task.events.subscribe", session_id=others.session_id)
                stopped = _stop_reading(stalled, others.session_id)
                done = side.run(effort.seconds)
                if _held(stalled) is None:
                    raise RuntimeError("a subscriber who reads nothing was cut before its time")
                return done, _await_cut(stalled) - stopped
            finally:
                stalled.close()

        def turn(number: int) -> tuple[tuple[Round, float], tuple[Round, float], float]:
            without = side.run(effort.seconds) if number % 2 == 0 else None
            done, cut = beside()
            return done, without or side.run(effort.seconds), cut

        try:
            others.run(min(0.5, effort.seconds))
            turns = quietest(turn, effort.rounds, [server], repeats=effort.repeats)
        finally:
            others.close()
        found = [done.rate / without.rate for (done, _), (without, _), _ in turns.kept]
        (rate, cpu), (rate_without, cpu_without) = (
            (median(one.rate for one, _ in rounds), median(cpu for _, cpu in rounds) * 1e6)
            for rounds in ([kept[0] for kept in turns.kept], [kept[1] for kept in turns.kept])
        )
        cuts = [kept[2] for kept in turns.kept]
        yield Row(
            self.name,
            self.what,
            median(found),
            "x without",
            self.goal,
            spread=(min(found), max(found)),
            others=turns.others,
            note=f"{rate:,.0f}/s, {cpu:.1f} us CPU each; without {rate_without:,.0f}/s, {cpu_without:.1f} us",
            detail={"ratios": found},
        )
        yield Row(
            f"{self.name}-cut",
            "how long until it is cut",
            median(cuts),
            "s",
            SEND_TIMEOUT + 1,
            "at most",
            spread=(min(cuts), max(cuts)),
            others=turns.others,
            note=f"send_timeout_s = {SEND_TIMEOUT}",
        )


def _stop_reading(stalled: WebSocketClient, session_id: str) -> float:
    """Ask for much, read nothing; returns when (by perf_counter) the kernel took the last of it from the server."""
    stalled.socket.sendall(stalled.request("tool.list", {"session_id": session_id}) * ENOUGH)
    begun = last = time.perf_counter()
    taken = 0
    while (now := time.perf_counter()) - last < STILL or not taken:
        if now - begun > PATIENCE:
            raise RuntimeError(f"a subscriber who reads nothing is sent more and more, {taken} bytes so far")
        held = _held(stalled)
        if held is None:
            raise RuntimeError("a subscriber who reads nothing was cut at once")
        if held != taken:
            taken, last = held, now
        time.sleep(LOOK)
    return last


def _await_cut(stalled: WebSocketClient) -> float:
    """Wait until the server has closed a connection; returns when."""
    begun = time.perf_counter()
    while _held(stalled) is not None:
        if time.perf_counter() - begun > PATIENCE:
            raise RuntimeError(f"a subscriber who reads nothing is still there after {PATIENCE} s")
        time.sleep(LOOK)
    return time.perf_counter()


def _held(stalled: WebSocketClient) -> int | None:
    """How many bytes the kernel holds for somebody who takes none; None: the server has closed that connection."""
    ours, theirs = stalled.ports
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, queues, *_ = line.split()
        if local.endswith(f":{theirs:04X}") and remote.endswith(f":{ours:04X}"):
            return int(queues.split(":")[0], 16) if state == ESTABLISHED else None
    return None


BROADCASTS = [("floor-nursery", "a task per send", "nursery"), ("floor-senders", "a task per subscriber", "senders")]

FANOUT: list[FanOut | Stalled] = [
    *(
        FanOut(name, f"broadcast to 100, {how}", 100, None, load=subscribers.of_floor, floor=floor)
        for name, how, floor in BROADCASTS
    ),
    FanOut("fanout-100", "a task's events to 100 subscribers", 100, 0.7),
    FanOut("fanout-1000", "a task's events to 1,000 subscribers", 1000, 0.7),
    Stalled("fanout-stalled", "events to 100 subscribers beside one who reads nothing", 100, 0.9),
]
