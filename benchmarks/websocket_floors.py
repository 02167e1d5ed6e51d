"""The WebSocket floors: bare trio-websocket. `python -m benchmarks.websocket_floors NAME`.

`echo` parses each message with orjson and answers with orjson, in as many bytes as task.get answers. `loop`, `nursery`
and `senders` are three ways to write a broadcast: whoever connects to /watch is told of all events, and a message from
whoever connects to anything else makes so many steps of events happen. They share no line of code with hearth.
"""

from __future__ import annotations

import gc
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Handler: TypeAlias = Callable[[WebSocketRequest], Awaitable[None]]
    Tell: TypeAlias = Callable[[set[WebSocketConnection], Iterator[str]], Awaitable[None]]

TASK_ID = "01M80X5EWRGKHJM34E1TG6EEAT"
TASK = {
    "task_id": TASK_ID,
    "status": "SUCCESS",
    "intent": "benchmark",
    "steps": [
        {"tool": "gpio.get", "status": "SUCCESS", "result": {"line": 17, "value": 0}, "latency_ms": 0.301},
    ],
}
"""What hearth's task.get shows of a task of one step."""


async def echo(request: WebSocketRequest) -> None:
    """Parse and answer, nothing between."""
    async with await request.accept() as connection:
        while True:
            asked = orjson.loads(await connection.get_message())
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": TASK}
            await connection.send_message(orjson.dumps(answer).decode())


class Broadcast:
    """A hall of listeners, and a way to tell them."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._listening: set[WebSocketConnection] = set()

    async def __call__(self, request: WebSocketRequest) -> None:
        """Serve a listener, or somebody who makes things happen."""
        async with await request.accept() as connection:
            listens = request.path == "/watch"
            if listens:
                self._listening.add(connection)
            try:
                while True:
                    asked = orjson.loads(await connection.get_message())
                    if not listens:
                        await self._tell(self._listening, events(asked["params"]["steps"]))
                    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {}}
                    await connection.send_message(orjson.dumps(answer).decode())
            finally:
                self._listening.discard(connection)


async def one_by_one(listeners: set[WebSocketConnection], messages: Iterator[str]) -> None:
    """One message after the other, to one listener after the other."""
    for message in messages:
        for listener in list(listeners):
            await send(listener, message)


async def side_by_side(listeners: set[WebSocketConnection], messages: Iterator[str]) -> None:
    """One message after the other, to all listeners at once: each send is a task."""
    for message in messages:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(send, listener, message)


async def each_its_own(listeners: set[WebSocketConnection], messages: Iterator[str]) -> None:
    """A sender for each listener, with a queue of its own."""
    async with trio.open_nursery() as nursery:
        queues = []
        for listener in listeners:
            to_sender, queue = trio.open_memory_channel[str](64)
            queues.append(to_sender)
            nursery.start_soon(send_all, listener, queue)
        for message in messages:
            for to_sender in queues:
                await to_sender.send(message)
        for to_sender in queues:
            to_sender.close()


async def send_all(listener: WebSocketConnection, queue: trio.MemoryReceiveChannel[str]) -> None:
    """Send what comes out of a queue."""
    async for message in queue:
        await send(listener, message)


async def send(listener: WebSocketConnection, message: str) -> None:
    """Send, unless the listener has gone."""
    try:
        await listener.send_message(message)
    except ConnectionClosed:
        return


def events(steps: int) -> Iterator[str]:
    """What hearth tells of a task of so many steps: the start and the finish of each, and the end."""
    seq = 0
    finish = {"status": "SUCCESS", "result": {"line": 17, "value": 0}, "latency_ms": 0.094}
    for index in range(steps):
        of_step = {"step_index": index, "tool": "gpio.get"}
        yield event(seq + 1, "start", of_step)
        yield event(seq + 2, "finish", {**of_step, **finish})
        seq += 2
    yield event(seq + 1, "task_finish", {"status": "SUCCESS"})


def event(seq: int, phase: str, members: dict[str, Any]) -> str:
    """An event that happens now."""
    seconds, milliseconds = divmod(round(time.time() * 1000), 1000)
    ts = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(seconds)) + f"{milliseconds:03d}Z"
    params = {"task_id": TASK_ID, "seq": seq, "phase": phase, "ts": ts, **members}
    return orjson.dumps({"jsonrpc": "2.0", "method": "task.event", "params": params}).decode()


FLOORS: dict[str, Handler] = {
    "echo": echo,
    "loop": Broadcast(one_by_one),
    "nursery": Broadcast(side_by_side),
    "senders": Broadcast(each_its_own),
}


async def serve(handler: Handler) -> None:
    """Serve until killed."""

    async def until_closed(request: WebSocketRequest) -> None:
        try:
            await handler(request)
        except* ConnectionClosed:
            pass

    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve_websocket, until_closed, "127.0.0.1", 0, ssl_context=None))
        gc.collect()
        gc.freeze()
        sys.stderr.write(f"floor: listening on ws://127.0.0.1:{server.port}\nfloor: ready on it\n")
        sys.stderr.flush()


if __name__ == "__main__":
    trio.run(serve, FLOORS[sys.argv[1]])
