"""A server that is not ours, on a Unix socket: it keeps every byte it gets, and answers from a newer protocol."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NEW = {"x-new": {"deep": [1, None, {"a": 1.5}]}, "trace": "t"}
"""Members that no release of ours knows."""
TOOL = {
    "name": "gpio.set",
    "version": 1,
    "risk_level": 2,
    "timeout_ms": 1000,
    "supports_rollback": True,
    "description": "Set a line.",
    "params_schema": {"type": "object"},
    "x-vendor": {"certified": ["a", {"b": None}], "max_current_ma": 16.5},
}
STEP = {"tool": "gpio.set", "status": "SUCCESS", "result": {"line": 17, "value": 1, **NEW}, "latency_ms": 1, **NEW}
TASK = {"task_id": "T", "status": "SUCCESS", "intent": "i", "steps": [STEP], **NEW}
EVENTS = [
    {"task_id": "T", "seq": 1, "phase": "start", "ts": "2026-04-19T22:48:01.234Z", "step_index": 0, **NEW},
    {"task_id": "T", "seq": 2, "phase": "finish", "ts": "2026-04-19T22:48:01.235Z", "step_index": 0, **NEW},
    {"task_id": "T", "seq": 3, "phase": "task_finish", "ts": "2026-04-19T22:48:01.235Z", "status": "SUCCESS", **NEW},
]
CAPABILITIES = ["CAP_GPIO_RW", "CAP_STREAMING_TASK_EVENTS", "CAP_X"]
RESULTS: dict[str, Any] = {
    "session.open": {"session_id": "S", "capabilities": CAPABILITIES, "protocol_version": "0.9.0", **NEW},
    "session.close": {"ok": True, **NEW},
    "tool.list": {"tools": [TOOL], **NEW},
    "task.submit": {"task_id": "T", "status": "QUEUED", **NEW},
    "task.get": TASK,
    "task.cancel": {"task_id": "T", "status": "CANCELLING", **NEW},
    "task.events.subscribe": {"ok": True, "task_id": "T", "last_seq": 3, **NEW},
    "task.events.unsubscribe": {"ok": True, **NEW},
}


class FakeServer:
    """What it has got, on all connections together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received = b""

    @property
    def lines(self) -> list[bytes]:
        """What was received, cut after each LF."""
        return self.received.splitlines(keepends=True)

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def params(self, method: str) -> dict[str, Any]:
        """The params of the first request of a method."""
        return next(request["params"] for request in self.requests if request["method"] == method)

    async def serve(self, stream: trio.SocketStream) -> None:
        pending = b""
        async for data in stream:
            self.received += data
            *documents, pending = (pending + data).split(b"\n")
            for document in documents:
                request = json.loads(document)
                if request.get("id") is None:
                    continue
                answer = {"jsonrpc": "2.0", "id": request["id"], "result": RESULTS[request["method"]], **NEW}
                await self.say(stream, answer)
                if request["method"] == "task.events.subscribe":
                    await self.say(stream, {"jsonrpc": "2.0", "method": "x.new", "params": {}})
                    for event in EVENTS:
                        await self.say(stream, {"jsonrpc": "2.0", "method": "task.event", "params": event, **NEW})

    async def say(self, stream: trio.SocketStream, value: Any) -> None:
        await stream.send_all(json.dumps(value).encode() + b"\n")


@asynccontextmanager
async def fake_server(path: Path) -> AsyncIterator[FakeServer]:
    server = FakeServer(path)
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(path))
    listening.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, server.serve, [trio.SocketListener(listening)]))
        with trio.fail_after(30):
            yield server
        nursery.cancel_scope.cancel()
