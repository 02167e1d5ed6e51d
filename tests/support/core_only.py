"""Servers that implement the HACP Core and nothing else (draft §3, Table 1), on real sockets.

`relayed` stands before a real daemon or runtime and notes what it is asked. `core_only` is such a relay that lets the
six core methods pass, answers -32601 to any other, and removes what a server of the bare draft does not have.
`MinimalServer` is a server by itself, as small and as strict as the draft allows; `reply` may change what it says
within those bounds. All note every request.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial

import trio

CORE = ("session.open", "session.close", "tool.list", "task.submit", "task.get", "task.cancel")
STREAMING = "CAP_STREAMING_TASK_EVENTS"
PATIENCE = 60
BEYOND = {"task.submit": ["subscribe"]}
"""Params of the core methods that the draft does not know, and that only a server with the flag is to be sent."""


class Requests(list):
    """What a server was asked, in order: the requests as they came."""

    def methods(self):
        return [request["method"] for request in self]

    def beyond_the_core(self):
        """What a server without the flag should never have been asked."""
        return [
            request
            for request in self
            if request["method"] not in CORE
            or any(name in request["params"] for name in BEYOND.get(request["method"], ()))
        ]


class Lines:
    """The lines of a stream, until its other end has gone; `async for` reads them."""

    def __init__(self, stream):
        self._stream = stream
        self._pending = b""

    def __aiter__(self):
        return self

    async def __anext__(self):
        while b"\n" not in self._pending:
            try:
                data = await self._stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                raise StopAsyncIteration
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line


@asynccontextmanager
async def listening(path, handler):
    """Serve on a Unix socket while the body runs, which may take this long at most."""
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(str(path))
    sock.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, handler, [trio.SocketListener(sock)]))
        with trio.fail_after(PATIENCE):
            yield
        nursery.cancel_scope.cancel()


def not_found(id_):
    error = {"code": -32601, "message": "Method not found"}
    return json.dumps({"jsonrpc": "2.0", "id": id_, "error": error}).encode() + b"\n"


@asynccontextmanager
async def relayed(daemon, path, asked=lambda request: request, answered=lambda answer: answer):
    """A server at `path` that is the daemon at the Unix socket `daemon`; yields its `Requests`.

    `asked` may change a request, or return None for one whose method is not known here; `answered` may change a line
    of the daemon.
    """
    requests = Requests()

    async def serve(stream):
        async with await trio.open_unix_socket(str(daemon)) as behind, trio.open_nursery() as nursery:

            async def back():
                async for line in Lines(behind):
                    answer = answered(json.loads(line))
                    with trio.move_on_after(10):
                        await stream.send_all(json.dumps(answer).encode() + b"\n")
                nursery.cancel_scope.cancel()

            nursery.start_soon(back)
            async for line in Lines(stream):
                request = json.loads(line)
                requests.append(request)
                passed_on = asked(request)
                if passed_on is not None:
                    await behind.send_all(json.dumps(passed_on).encode() + b"\n")
                elif request.get("id") is not None:
                    await stream.send_all(not_found(request["id"]))
            nursery.cancel_scope.cancel()

    async with listening(path, serve):
        yield requests


def core_only(daemon, path):
    """A server of the Core only at `path` that is the daemon at the Unix socket `daemon` otherwise; see `relayed`."""

    def asked(request):
        if request["method"] not in CORE:
            return None
        beyond = BEYOND.get(request["method"], ())
        return {**request, "params": {name: one for name, one in request["params"].items() if name not in beyond}}

    def answered(answer):
        flags = (answer.get("result") or {}).get("capabilities")
        if flags is not None:
            flags.remove(STREAMING)
        return answer

    return relayed(daemon, path, asked, answered)


class MinimalServer:
    """A server of the Core: every member that the draft shows and none besides, strict about what it is sent.

    A step runs when `turn` lets the task go on: `advance` lets one task make one move (a step begins, a step ends, the
    task ends). With `by_itself` every task.get is such a move. `reply(method, result)` may change an answer: it
    returns another result, or `{"error": …}` in its place.
    """

    def __init__(self, path, *, by_itself=True, reply=None):
        self.path = path
        self.requests = Requests()
        self.by_itself = by_itself
        self.reply = reply or (lambda _method, result: result)
        self.sessions = {}
        self.answer_at = trio.Event()
        self.answer_at.set()
        """Unset, answers wait."""

    # --- the methods --------------------------------------------------------------------------------------------

    def session_open(self, _params):
        session_id = f"S{len(self.sessions) + 1}"
        self.sessions[session_id] = {}
        return {"session_id": session_id, "protocol_version": "0.1.0"}

    def session_close(self, params):
        self._session(params)
        del self.sessions[params["session_id"]]
        return {"ok": True}

    def tool_list(self, params):
        self._session(params)
        return {
            "tools": [
                {
                    "name": "gpio.set",
                    "version": 1,
                    "risk_level": 2,
                    "timeout_ms": 1000,
                    "supports_rollback": True,
                    "description": "Set a GPIO line to 0 or 1.",
                    "params_schema": {"type": "object"},
                }
            ]
        }

    def task_submit(self, params):
        tasks = self._session(params)
        task = params["task"]
        if unknown := [step["tool"] for step in task["steps"] if not step["tool"].startswith("gpio.")]:
            raise Refusal(-32602, f"no such tool: {unknown[0]}")
        task_id = f"T{len(tasks) + 1}"
        tasks[task_id] = {"status": "QUEUED", "intent": task["intent"], "asked": task["steps"], "steps": []}
        return {"task_id": task_id, "status": "QUEUED"}

    def task_get(self, params):
        task = self._task(params)
        if self.by_itself:
            self.advance(task)
        return {"task_id": params["task_id"], **{name: task[name] for name in ("status", "intent", "steps")}}

    def task_cancel(self, params):
        task = self._task(params)
        if task["status"] in ("QUEUED", "RUNNING"):
            if task["steps"] and task["steps"][-1]["status"] == "RUNNING":
                task["steps"][-1].update(status="CANCELLED", latency_ms=1)
            task["status"] = "CANCELLED"
        return {"task_id": params["task_id"], "status": "CANCELLING"}

    # --- how a task goes on -------------------------------------------------------------------------------------

    def advance(self, task):
        if task["status"] not in ("QUEUED", "RUNNING"):
            return
        task["status"] = "RUNNING"
        steps, asked = task["steps"], task["asked"]
        if steps and steps[-1]["status"] == "RUNNING":
            args = asked[len(steps) - 1].get("args", {})
            if args.get("fail"):
                steps[-1].update(status="FAILED", error="it did not work", latency_ms=1)
                task["status"] = "FAILED"
            else:
                steps[-1].update(status="SUCCESS", result=args, latency_ms=1)
        elif len(steps) < len(asked):
            steps.append({"tool": asked[len(steps)]["tool"], "status": "RUNNING"})
        else:
            task["status"] = "SUCCESS"

    def _session(self, params):
        if params.get("session_id") not in self.sessions:
            raise Refusal(-32000, "Session invalid")
        return self.sessions[params["session_id"]]

    def _task(self, params):
        tasks = self._session(params)
        if params.get("task_id") not in tasks:
            raise Refusal(-32001, "Task not found")
        return tasks[params["task_id"]]

    # --- the wire -----------------------------------------------------------------------------------------------

    async def serve(self, stream):
        async for line in Lines(stream):
            request = json.loads(line)
            self.requests.append(request)
            assert request["jsonrpc"] == "2.0"
            answer = self._answer(request)
            if request.get("id") is not None:
                await self.answer_at.wait()
                await stream.send_all(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}).encode() + b"\n")

    def _answer(self, request):
        method = request["method"]
        if method not in CORE:
            return {"error": {"code": -32601, "message": "Method not found"}}
        try:
            result = self.reply(method, getattr(self, method.replace(".", "_"))(request["params"]))
        except Refusal as refusal:
            return {"error": {"code": refusal.args[0], "message": refusal.args[1]}}
        return result if "error" in result and "task_id" not in result else {"result": result}


class Refusal(Exception):
    """code, message"""


@asynccontextmanager
async def minimal_server(path, **how):
    server = MinimalServer(path, **how)
    async with listening(path, server.serve):
        yield server


# --- answers that say less than they might: for `MinimalServer(reply=…)` -------------------------------------------


def tools_of_few_members(method, result):
    """Tools of which no more is told than what a call takes."""
    if method != "tool.list":
        return result
    return {"tools": [{"name": "gpio.set", "risk_level": 2, "params_schema": {"type": "object"}}]}


def no_more_than_a_status(method, result):
    """Steps without results and times, and a task without its intent."""
    if method != "task.get":
        return result
    steps = [{"tool": one["tool"], "status": one["status"]} for one in result["steps"]]
    return {"task_id": result["task_id"], "status": result["status"], "steps": steps}
