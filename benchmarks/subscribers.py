"""One task's events to many: hearth's WebSocket subscribers against those of a broadcast loop on bare trio-websocket.

All subscribers belong to this process, which finds frames by their headers and looks into those of one subscriber only.
Something happens (a task of some steps), and when everybody has been told of all of it, the next thing does: a closed
loop, in which a message's lag is the time from its own `ts`, a millisecond's worth, to its arrival.
"""

from __future__ import annotations

import gc
import json
import select
import time
from calendar import timegm
from typing import TYPE_CHECKING

from attrs import define, field

from benchmarks.load import PATIENCE, RECEIVE_SIZE, Client, Round, connected, to_keep
from benchmarks.websocket import TEXT, WebSocketClient, frame_end, payload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MESSAGES = 25_000
"""Messages, to all subscribers together, of which a task should consist in a round of a second: what the floor does."""
MOST_STEPS, LEAST_STEPS = 256, 4
POLLED = 256


def steps_for(subscribers: int, seconds: float) -> int:
    """How many steps a task should have."""
    return min(MOST_STEPS, max(LEAST_STEPS, int(MESSAGES * seconds) // subscribers // 2))


@define
class Subscribers:
    """Subscribers and somebody who makes things happen: what `happen` returns is a request of his for so many steps.

    It is used like a `Load`; what it calls a latency is a message's lag.
    """

    clients: Sequence[WebSocketClient]
    actor: Client
    happen: Callable[[int], bytes]
    session_id: str = ""
    _parts: dict[int, bytes] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._parts = {client.socket.fileno(): b"" for client in self.clients}

    def run(self, seconds: float) -> Round:
        """Let things happen for so long, one after the other; the last one is told to its end."""
        steps = steps_for(len(self.clients), seconds)
        request = self.happen(steps)
        gc.collect()
        gc.disable()
        try:
            elapsed, lags = 0.0, []
            while elapsed < seconds:
                took, seen = self._once(request, self.messages(steps))
                elapsed += took
                lags += seen
            return Round(elapsed, lags)
        finally:
            gc.enable()

    def messages(self, steps: int) -> int:
        """How many messages a subscriber gets of a task of so many steps."""
        return 2 * steps + 1

    def _once(self, request: bytes, messages: int) -> tuple[float, list[float]]:
        """Let one thing happen; how long it took to tell everybody its `messages` events, and all their lags."""
        by_number = {client.socket.fileno(): client for client in self.clients}
        recvs = {number: client.socket.recv for number, client in by_number.items()}
        parts, clock, now = self._parts, time.perf_counter, time.time
        counts = dict.fromkeys(recvs, 0)
        arrivals: list[tuple[float, int, int]] = []
        watched = self.clients[0].socket.fileno()
        story = parts[watched]
        left = len(recvs)
        with select.epoll() as epoll:
            for number in recvs:
                epoll.register(number, select.EPOLLIN)
            begun = clock()
            self.actor.socket.sendall(request)
            while left:
                ready = epoll.poll(PATIENCE, POLLED)
                if not ready:
                    raise RuntimeError(f"{left} subscribers were not told of everything within {PATIENCE} s")
                for number, _ in ready:
                    data = recvs[number](RECEIVE_SIZE)
                    if not data:
                        raise RuntimeError(f"the server hung up on a subscriber after {counts[number]} messages")
                    at = now()
                    if number == watched:
                        story += data
                    found, parts[number] = count(parts[number] + data, by_number[number].pong)
                    if found:
                        before = counts[number]
                        counts[number] = before + found
                        arrivals.append((at, before, found))
                        left -= before < messages <= before + found
            took = clock() - begun
        self.actor.lines(1)
        made = self._made(story, messages)
        return took, [max(0.0, at - ts) for at, before, found in arrivals for ts in made[before : before + found]]

    def _made(self, story: bytes, messages: int) -> list[float]:
        """When the events of one subscriber's frames were made, by their own word. They must be those expected."""
        events = []
        at = 0
        while (end := frame_end(story, at)) is not None:
            if story[at] == TEXT:
                events.append(json.loads(payload(story[at:end]))["params"])
            at = end
        phases = [event["phase"] for event in events]
        if phases != ["start", "finish"] * (messages // 2) + ["task_finish"] or events[-1]["status"] != "SUCCESS":
            raise RuntimeError(f"not the events of one good task: {phases}, {events[-1:]}")
        return [epoch(event["ts"]) for event in events]

    def close(self) -> None:
        """Hang up."""
        self.actor.close()
        for client in self.clients:
            client.close()


def count(data: bytes, pong: Callable[[bytes], None]) -> tuple[int, bytes]:
    """How many text messages are whole in `data`, and what remains of it. Other frames are for `pong`."""
    at, size, found = 0, len(data), 0
    while size - at > 3:
        # Written out for the two lengths that messages have: this is all that the subscribers do.
        length = data[at + 1]
        end = at + 2 + length
        if length > 125:
            if length == 127:
                break
            end = at + 4 + (data[at + 2] << 8 | data[at + 3])
        if end > size:
            break
        if data[at] == TEXT:
            found += 1
        else:
            pong(data[at:end])
        at = end
    return found, data[at:]


def epoch(ts: str) -> float:
    """The seconds since 1970 of a time stamp with milliseconds in UTC."""
    return timegm(time.strptime(ts[:19], "%Y-%m-%dT%H:%M:%S")) + int(ts[20:23]) / 1000


def of_floor(address: str, subscribers: int) -> Subscribers:
    """Listeners of a broadcast floor."""
    clients = connected(WebSocketClient, f"{address}/watch", subscribers)
    with to_keep(*clients):
        for client in clients:
            client.call("hello")
        actor = WebSocketClient(address)
    return Subscribers(clients, actor, lambda steps: actor.request("happen", {"steps": steps}))


def of_hearth(address: str, subscribers: int) -> Subscribers:
    """WebSocket clients that follow all tasks of a session which another WebSocket client opened."""
    return _of_hearth(address, subscribers, Subscribers, "task.events.subscribe")


def _of_hearth(address: str, subscribers: int, kind: type[Subscribers], subscribe: str) -> Subscribers:
    actor, *clients = connected(WebSocketClient, address, 1 + subscribers)
    with to_keep(actor, *clients):
        session_id = actor.call("session.open", client_name="bench", on_disconnect="close")["session_id"]
        for client in clients:
            client.call(subscribe, session_id=session_id)

    def submit(steps: int) -> bytes:
        task = {"intent": "benchmark", "steps": [{"tool": "gpio.get", "args": {"line": 17}}] * steps}
        return actor.request("task.submit", {"session_id": session_id, "task": task})

    return kind(clients, actor, submit, session_id)
