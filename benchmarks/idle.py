"""Many idle WebSocket connections at the same time: what each costs, and what one that is not idle notices of them."""

from __future__ import annotations

import select
from statistics import median
from typing import TYPE_CHECKING

from attrs import define, frozen

from benchmarks import websocket
from benchmarks.load import RECEIVE_SIZE, Client, ClientT, connected, to_keep
from benchmarks.rates import Side, by_turns, ratios
from benchmarks.report import Row
from benchmarks.websocket import WebSocketClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.load import Load, Round
    from benchmarks.rates import Effort
    from benchmarks.servers import Server, Servers


GROUP = 200
"""Connections that are made before pings are answered again: all of them may take longer than a peer may be silent."""


class IdleClients:
    """Idle WebSocket connections. They stay if `answer` is called more often than a peer may be silent (40 s)."""

    def __init__(self) -> None:
        self.answered = 0
        self._by_number: dict[int, WebSocketClient] = {}
        self._epoll = select.epoll()

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, address: str, number: int) -> None:
        """Make more of them, each of which has had an answer."""
        for start in range(0, number, GROUP):
            for client in _greeted(WebSocketClient, address, min(GROUP, number - start)):
                self._by_number[client.socket.fileno()] = client
                self._epoll.register(client.socket.fileno(), select.EPOLLIN)
            self.answer()

    def answer(self) -> None:
        """Answer the pings that have come. Raises RuntimeError for anything else that has come."""
        while ready := self._epoll.poll(0):
            for number, _ in ready:
                client = self._by_number[number]
                data = client.socket.recv(RECEIVE_SIZE)
                if not data:
                    raise RuntimeError("the server hung up on an idle connection")
                messages, _, pings = websocket.frames(data)
                if messages:
                    raise RuntimeError(f"an idle connection was sent {messages[0]!r}")
                for ping in pings:
                    client.pong(ping)
                    self.answered += 1

    def close(self) -> None:
        """Hang up."""
        self._epoll.close()
        for client in self._by_number.values():
            client.close()


@define
class Beside:
    """A load beside idle connections, whose pings are answered between its rounds."""

    load: Load
    idle: IdleClients

    def run(self, seconds: float) -> Round:
        """See Load."""
        self.idle.answer()
        return self.load.run(seconds)

    def close(self) -> None:
        """Hang up; the idle ones stay."""
        self.load.close()


@frozen
class Idle:
    """KiB of an idle WebSocket connection and a Unix connection's beside it; then how one that is not idle fares."""

    name: str
    what: str
    goal: float

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        # All of them are of one principal, which may not retain as much as a daemon for thousands of them needs.
        full = servers.hearthd(self.name, websocket=True, limits=f"max_retained_bytes = {1 << 30}")
        few = max(1, effort.idle // 10)
        lines: list[Client] = []
        idle = IdleClients()
        try:
            lines += _greeted(Client, full.address, few)
            before = full.memory()
            lines += _greeted(Client, full.address, few)
            unix = (full.memory() - before) / few
            bare = _bare(servers.floor("echo"), few)
            empty = servers.hearthd("os-ws", websocket=True)
            idle.add(full.over_websocket(), few)
            before = full.memory()
            idle.add(full.over_websocket(), effort.idle)
            yield Row(
                self.name,
                self.what,
                (full.memory() - before) / effort.idle / 1024,
                "KiB",
                self.goal,
                "at most",
                note=f"{effort.idle:,} of them at a time; a Unix connection to the same daemon {unix / 1024:.1f} KiB, "
                f"bare trio-websocket {bare / 1024:.1f} KiB",
            )
            yield self._beside(idle, full, empty, effort)
        finally:
            idle.close()
            for client in lines:
                client.close()

    def _beside(self, idle: IdleClients, full: Server, empty: Server, effort: Effort) -> Row:
        busy = Side(full, Beside(websocket.answers(full.over_websocket(), 1), idle))
        quiet = Side(empty, websocket.answers(empty.over_websocket(), 1))
        others = by_turns([quiet, busy], effort)
        found = ratios(busy, quiet)
        return Row(
            f"{self.name}-get",
            f"task.get over WebSocket beside {len(idle):,} idle ones",
            median(found),
            "x none",
            spread=(min(found), max(found)),
            others=others,
            note=f"{busy.rate:,.0f}/s, p99 {busy.percentile_us(99):,.0f} us; "
            f"with none {quiet.rate:,.0f}/s, p99 {quiet.percentile_us(99):,.0f} us",
            detail={"ratios": found},
        )


def _bare(floor: Server, number: int) -> float:
    """Bytes of an idle connection to a floor."""
    clients = _greeted(WebSocketClient, floor.over_websocket(), number)
    try:
        before = floor.memory()
        clients += _greeted(WebSocketClient, floor.over_websocket(), number)
        return (floor.memory() - before) / number
    finally:
        for client in clients:
            client.close()


def _greeted(connect: type[ClientT], address: str, number: int) -> list[ClientT]:
    """Connections, of each of which the server has read a request and answered it."""
    clients = connected(connect, address, number)
    with to_keep(*clients):
        for client in clients:
            client.socket.sendall(client.request("nothing", {}))
            client.lines(1)
    return clients


IDLE = [Idle("ws-idle", "an idle WebSocket connection", 24)]
