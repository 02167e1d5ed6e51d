"""The floors: what a line server on Trio costs when it does next to nothing. `python -m benchmarks.floors a|b SOCKET`.

Floor A reads lines from a `trio.SocketStream`, parses each with orjson and answers it with orjson. Floor B does the
same, but each request goes through a memory channel to a worker task that validates it with jsonschema-rs, and the
answer comes back through another. Neither shares a line of code with hearth: they are what it is measured against.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Serve: TypeAlias = "Callable[[trio.SocketStream], Awaitable[None]]"

RECEIVE_SIZE = 1 << 16

PARAMS = {
    "type": "object",
    "properties": {"session_id": {"type": "string"}, "task_id": {"type": "string"}},
    "required": ["session_id", "task_id"],
}


async def floor_a(stream: trio.SocketStream) -> None:
    """Parse and answer, nothing between."""
    rest = b""
    while data := await stream.receive_some(RECEIVE_SIZE):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            request = orjson.loads(line)
            answer = {"jsonrpc": "2.0", "id": request["id"], "result": request["params"]}
            await stream.send_all(orjson.dumps(answer) + b"\n")


async def floor_b(stream: trio.SocketStream) -> None:
    """Floor A with one hop to a worker task, which validates and replies."""
    rest = b""
    async with trio.open_nursery() as nursery:
        to_worker, requests = trio.open_memory_channel[Any](16)
        answers, from_worker = trio.open_memory_channel[Any](16)
        nursery.start_soon(_worker, requests, answers)
        async with to_worker:
            while data := await stream.receive_some(RECEIVE_SIZE):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    await to_worker.send(orjson.loads(line))
                    await stream.send_all(orjson.dumps(await from_worker.receive()) + b"\n")


async def _worker(requests: trio.MemoryReceiveChannel[Any], answers: trio.MemorySendChannel[Any]) -> None:
    import jsonschema_rs

    valid = jsonschema_rs.Draft202012Validator(PARAMS).is_valid
    async for request in requests:
        params = request["params"]
        outcome = {"result": params} if valid(params) else {"error": {"code": -32602, "message": "Invalid params"}}
        await answers.send({"jsonrpc": "2.0", "id": request["id"], **outcome})


FLOORS: dict[str, Serve] = {"a": floor_a, "b": floor_b}


async def _serve(path: str, serve: Serve) -> None:
    with trio.socket.socket(trio.socket.AF_UNIX) as listening:
        await listening.bind(path)
        listening.listen(1024)
        async with trio.open_nursery() as nursery:
            # The daemon keeps what it starts with out of the collector's way; so do the floors.
            gc.collect()
            gc.freeze()
            sys.stderr.write(f"floor: ready on {path}\n")
            sys.stderr.flush()
            while True:
                connected, _ = await listening.accept()
                nursery.start_soon(_connection, connected, serve)


async def _connection(connected: trio.socket.SocketType, serve: Serve) -> None:
    async with trio.SocketStream(connected) as stream:
        try:
            await serve(stream)
        except* trio.BrokenResourceError:
            pass  # a client that hung up with an answer under way


if __name__ == "__main__":
    trio.run(_serve, sys.argv[2], FLOORS[sys.argv[1]])
