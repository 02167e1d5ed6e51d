"""What clients said and heard: lines to requests, answers and events, each with its place on the tape.

It reads JSON-RPC as the specification and the design page have it: which line is a request, which a notification, which
is answered with a null id. Answers are matched to requests by their ids, in the order in which those were sent.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

FOR_EVER = 1 << 62


class Request:
    """One call by a client. `answer` is None for as long as none came."""

    __slots__ = ("answer", "at", "batch", "client", "id", "method", "number", "params", "reused")

    def __init__(self, client, entry, id_, method, params, batch, reused):
        self.client: int = client
        self.number: int = entry.number
        self.at: float = entry.at
        self.id = id_
        self.method: str = method
        self.params: dict[str, Any] = _meant(params) if type(params) is dict else {}
        self.batch = batch
        """The number of the line it shared with others, or None."""
        self.reused = reused
        """Its id was that of a request without an answer, as far as the client knew."""
        self.answer: Answer | None = None

    @property
    def result(self) -> dict[str, Any] | None:
        """The result it was answered with, if it was."""
        return None if self.answer is None else self.answer.result

    @property
    def code(self) -> int | None:
        """The code of the error it was answered with, if it was."""
        return None if self.answer is None or self.answer.error is None else self.answer.error.get("code")


class Answer:
    """One response."""

    __slots__ = ("at", "batch", "error", "id", "number", "request", "result")

    def __init__(self, entry, value, batch):
        self.number: int = entry.number
        self.at: float = entry.at
        self.id = value.get("id")
        result = value.get("result")
        self.result: dict[str, Any] | None = result if type(result) is dict else None if "error" in value else {}
        self.error: dict[str, Any] | None = value.get("error")
        self.batch = batch
        self.request: Request | None = None


def _meant(params):
    """Params whose steps on signals are the steps of their kind, by the judge's own reading of names."""
    task = params.get("task")
    if type(task) is not dict or type(task.get("steps")) is not list:
        return params
    return {**params, "task": {**task, "steps": [_meant_step(step) for step in task["steps"]]}}


def _meant_step(step):
    if type(step) is not dict or step.get("tool") not in ("signal.read", "signal.set"):
        return step
    args = {**step["args"]}
    name = args.pop("name")
    if name.startswith("GPIO"):
        args |= {"chip": "sim", "line": int(name[4:])}
        tool = "gpio.pulse" if "duration_ms" in args else "gpio.set"
        return {**step, "tool": "gpio.get" if step["tool"] == "signal.read" else tool, "args": args}
    return {**step, "tool": "hw.sensor.read", "args": {**args, "sensor": name}}


class Event:
    """One task.event, or observe.event, that a client was sent."""

    __slots__ = ("at", "client", "number", "params")

    def __init__(self, client, entry, params):
        self.client: int = client
        self.number: int = entry.number
        self.at: float = entry.at
        self.params: dict[str, Any] = params

    @property
    def phase(self) -> str:
        return self.params.get("phase", "")


class Client:
    """One connection, as whoever was at its other end had it."""

    def __init__(self, number, principal, entry):
        self.number: int = number
        self.principal: str = principal
        self.opened: int = entry.number
        self.opened_at: float = entry.at
        self.left = FOR_EVER
        """The entry by which the connection had ended for the client, or had been given up."""
        self.left_at = float("inf")
        self.requests: list[Request] = []
        """With an id: those that are owed an answer."""
        self.notifications: list[Request] = []
        self.answers: list[Answer] = []
        self.events: list[Event] = []
        self.observed: list[Event] = []
        """The observe.event notifications."""
        self.bad: list[int] = []
        """Lines, and members of batches, that are no requests: they are answered with an id of null or their own."""
        self.oversized = False
        """A line was sent past which the connection need not answer."""
        self.strays: list[Answer] = []
        """Answers to nothing that was asked."""
        self.unreadable: list[int] = []
        self.batches: dict[int, list[Request]] = {}
        self.torn = False
        self._open: dict[Any, deque[Request]] = {}

    def sends(self, entry, line, limits):
        if len(line) > limits.get("max_document_bytes", FOR_EVER):
            self.bad.append(entry.number)
            self.oversized = True
            return
        if not line.strip():
            return
        try:
            value = json.loads(line, parse_constant=_refuse)
        except ValueError:
            self.bad.append(entry.number)
            return
        if type(value) is list:
            if not 0 < len(value) <= limits.get("max_batch", FOR_EVER):
                self.bad.append(entry.number)
                return
            for member in value:
                self._call(entry, member, entry.number)
        elif type(value) is not dict or "hcp_version" not in value:
            self._call(entry, value, None)

    def _call(self, entry, value, batch):
        well = type(value) is dict and value.get("jsonrpc") == "2.0" and type(value.get("method")) is str
        id_ = value.get("id") if type(value) is dict else None
        if id_ is not None and type(id_) is not str and (type(id_) is not int or abs(id_) >= 1 << 63):
            well, id_ = False, None
        if not well and id_ is None:
            self.bad.append(entry.number)
            return
        method = value.get("method") if well else ""
        waiting = self._open.setdefault(id_, deque())
        request = Request(self.number, entry, id_, method, value.get("params"), batch, bool(waiting))
        if batch is not None:
            self.batches.setdefault(batch, []).append(request)
        if id_ is None:
            self.notifications.append(request)
            return
        self.requests.append(request)
        waiting.append(request)

    def receives(self, entry, line):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if type(value) is list and value:
            for member in value:
                self._heard(entry, member, entry.number)
        else:
            self._heard(entry, value, None)

    def _heard(self, entry, value, batch):
        if type(value) is not dict:
            self.unreadable.append(entry.number)
        elif "method" in value:
            params = value.get("params")
            if value["method"] == "task.event" and type(params) is dict and "id" not in value:
                self.events.append(Event(self.number, entry, params))
            elif value["method"] == "observe.event" and type(params) is dict and "id" not in value:
                self.observed.append(Event(self.number, entry, params))
            elif "id" in value:
                self.unreadable.append(entry.number)
        else:
            answer = Answer(entry, value, batch)
            self.answers.append(answer)
            if answer.id is None:
                return
            waiting = self._open.get(answer.id)
            if not waiting:
                self.strays.append(answer)
                return
            answer.request = waiting.popleft()
            answer.request.answer = answer


def _refuse(name):
    raise ValueError(name)
