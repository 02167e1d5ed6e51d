"""The client's end of a connection: requests to bytes, bytes to replies and notifications. Sans-IO (draft §2, §8).

Theory of operation. `ClientProtocol` has two states, open and closed. It owns the ids of the outstanding requests:

    request ----> outstanding ----> Reply            exactly one, by its id
                       |
                       +----------> Broken           the connection is closed; nothing more is answered

- `receive` never raises. It returns events in the order of the bytes; after a `Broken` it ignores all bytes.
- A violation of the protocol (no JSON, no object, an unknown id, an answer that is none) is `Broken`: a peer whose
  answers cannot be matched to requests must not be trusted with hardware. Events before it are passed on, because they
  were in order.
- An error with a null id is `Broken` too: the server could not read one of our requests, and which one is unknown.
- What is well-formed but unknown (members, statuses, phases, error codes, notifications) is passed on or ignored, so
  that a newer server can be used (draft §2.5).

The values of `hearth.api` are read here too, because the meaning of a result's members is part of the wire. This module
knows no carrier, no clock and no session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, cast, get_args, get_origin, get_type_hints

import orjson
from attrs import NOTHING, AttrsInstance, fields, frozen

from hearth.api import (
    TERMINAL,
    HaltStatus,
    Phase,
    Plan,
    PlanStep,
    PlanSummary,
    Status,
    StepResult,
    TaskEvent,
    TaskResult,
)
from hearth.errors import CarrierError, InvalidParams, RpcError, from_wire
from hearth.protocol.framing import DocumentTooLong, LineFramer
from hearth.protocol.jsonrpc import dump_request, kind_of

T = TypeVar("T", bound=AttrsInstance)

MAX_ANSWER_BYTES = 64 << 20
"""The longest line a server may send. It is above the server's own limit for requests, because one answer may carry
the results of 256 steps, and 64 such answers may share a batch."""


class ProtocolViolation(CarrierError):
    """The server sent what the protocol does not allow: a bug there, or a carrier that mangles bytes."""


class RefusedByServer(CarrierError):
    """The server answered with an error whose id is null: it cannot read us, or accepts no more.

    `error` is the server's. The request it refers to is unknown, so no outstanding request can be waited for.
    """

    def __init__(self, error: RpcError) -> None:
        super().__init__(f"the server refused a message: {error.message}")
        self.error = error


@frozen(eq=False)
class Reply:
    """The answer to the request of this id: `error` if it failed, else `result` as received, unchecked."""

    id: int
    result: Any = None
    error: RpcError | None = None


@frozen(eq=False)
class TaskEventNotification:
    """A task.event of a subscription (draft §8)."""

    event: TaskEvent


@frozen(eq=False)
class Notification:
    """Any other notification, of a newer server. Ignoring it is always right (draft §2.5)."""

    method: str
    params: Any


@frozen(eq=False)
class Broken:
    """The last event: the connection is unusable, and no outstanding request will be answered."""

    error: CarrierError


@frozen(eq=False)
class HcpMessage:
    """An object with a version of HCP: the other protocol of a connection (decision 0067)."""

    value: Mapping[str, Any]


Event: TypeAlias = "Reply | TaskEventNotification | Notification | HcpMessage | Broken"


class ClientProtocol:
    """One connection. `receive` never raises for anything a peer can send."""

    __slots__ = ("_framer", "_last_id", "_max_document_bytes", "_outstanding", "closed")

    def __init__(self, *, max_document_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._framer = LineFramer(max_document_bytes)
        self._max_document_bytes = max_document_bytes
        self._outstanding: set[int] = set()
        self._last_id = 0
        self.closed = False
        """True after a Broken: further bytes are ignored."""

    @property
    def outstanding(self) -> frozenset[int]:
        """The ids of the requests that wait for their reply."""
        return frozenset(self._outstanding)

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return a fresh id, and the line to send.

        Raises InvalidParams for params that JSON cannot express, and CarrierError after a Broken: no answer would come.
        """
        if self.closed:
            raise CarrierError("the connection is broken; open another")
        id_ = self._last_id + 1
        # Before the id is taken: params that JSON cannot express leave no request outstanding.
        line = _dump(id_, method, params)
        self._last_id = id_
        self._outstanding.add(id_)
        return id_, line

    def notify(self, method: str, params: Mapping[str, Any]) -> bytes:
        """Return the line of a notification: executed, never answered. Raises InvalidParams for values without JSON."""
        return _dump(None, method, params)

    def receive(self, data: bytes) -> list[Event]:
        """Take received bytes; return the events they complete, in order. A Broken comes last, and after it nothing."""
        events: list[Event] = []
        if self.closed:
            return events
        try:
            documents = self._framer.feed(data)
        except DocumentTooLong as error:
            # Documents that were complete before the long one are in order.
            for document in error.documents:
                self._document(document, events)
            self._break(events, ProtocolViolation(f"the server sent an answer without end: {error}"))
            return events
        for document in documents:
            self._document(document, events)
        return events

    def receive_document(self, document: bytes) -> list[Event]:
        """Take one whole document from a carrier that frames by itself (draft §2.2); return events as `receive`."""
        events: list[Event] = []
        if self.closed:
            return events
        if len(document) > self._max_document_bytes:
            too_long = f"the server sent a document longer than {self._max_document_bytes} bytes"
            self._break(events, ProtocolViolation(too_long))
        else:
            self._document(document, events)
        return events

    def _document(self, document: bytes, events: list[Event]) -> None:
        # An earlier document of the same bytes has broken the connection.
        if self.closed:
            return
        try:
            value = orjson.loads(document)
            if type(value) is not list:
                self._object(value, events)
                return
            if not value:
                raise ProtocolViolation("the server sent an empty batch")
            # A member that is wrong ends the connection; the ones before it have been passed on.
            for member in value:
                self._object(member, events)
        except orjson.JSONDecodeError as error:
            self._break(events, ProtocolViolation(f"the server sent a line that is not JSON: {error}"))
        except CarrierError as error:
            self._break(events, error)

    def _break(self, events: list[Event], error: CarrierError) -> None:
        if not self.closed:
            self.closed = True
            events.append(Broken(error))

    def _object(self, value: Any, events: list[Event]) -> None:
        if type(value) is not dict:
            raise ProtocolViolation(f"the server sent {kind_of(value)} where an object was due")
        if "hcp_version" in value:
            events.append(HcpMessage(value))
            return
        if value.get("jsonrpc") != "2.0":
            raise ProtocolViolation('the server sent an object whose member "jsonrpc" is not "2.0"')
        if "method" in value:
            events.append(_notification(value))
            return
        # A null error counts as absent, and so does a null result beside an error: some servers write both members.
        error = value.get("error")
        if error is None:
            if "result" not in value:
                raise ProtocolViolation("the server sent an answer with neither a result nor an error")
            events.append(Reply(self._answered(value.get("id")), value["result"]))
            return
        if type(error) is not dict or type(error.get("code")) is not int:
            raise ProtocolViolation("the server sent an error that is not an object with an integer code")
        if value.get("result") is not None:
            raise ProtocolViolation("the server sent an answer with both a result and an error")
        if value.get("id") is None:
            raise RefusedByServer(from_wire(error))
        events.append(Reply(self._answered(value["id"]), error=from_wire(error)))

    def _answered(self, id_: Any) -> int:
        # Not isinstance: true is an int in Python, and would answer request 1.
        if type(id_) is not int or id_ not in self._outstanding:
            shown = repr(id_) if type(id_) in (int, str) else kind_of(id_)
            raise ProtocolViolation(f"the server answered a request that is not outstanding: id {shown[:60]}")
        self._outstanding.remove(id_)
        return id_


def _dump(id_: int | None, method: str, params: Mapping[str, Any]) -> bytes:
    try:
        return dump_request(id_, method, params if type(params) is dict else dict(params))
    except TypeError as error:
        raise InvalidParams(f"Invalid params: not JSON: {error}", data={"path": "", "reason": str(error)}) from None


def _notification(value: dict[str, Any]) -> Event:
    method = value["method"]
    if type(method) is not str:
        raise ProtocolViolation("the server sent a notification whose method is not a string")
    # With an id it expects an answer, which this client will never send: better to end here than to let it wait.
    if value.get("id") is not None:
        raise ProtocolViolation(f"the server sent a request ({method[:60]}), and clients serve none")
    params = value.get("params", {})
    if method == "task.event":
        return TaskEventNotification(read_event(params))
    return Notification(method, params)


def read_task(value: Any) -> TaskResult:
    """Return the result of task.get (draft §3.5). Unknown members are ignored, null is as good as absent.

    Raises ProtocolViolation, which names the place, for a known member of another type than the draft's.
    """
    task = _ObjectReader("task", value)
    steps = task.parts("steps", StepResult)
    return task.read(TaskResult, intent=task.optional("intent", str) or "", steps=steps)


def read_halt(value: Any) -> HaltStatus:
    """Return the result of halt, halt.status and halt.reset. Raises ProtocolViolation as `read_task` does."""
    halt = _ObjectReader("halt", value)
    return halt.read(HaltStatus, halted=bool(halt.optional("halted", bool)))


def read_plan(value: Any) -> Plan:
    """Return a plan of plan.prepare or plan.get. Raises ProtocolViolation as `read_task` does."""
    plan = _ObjectReader("plan", value)
    steps = plan.parts("steps", PlanStep, required=True)
    return _read_listed(plan, Plan, steps=steps, step_count=len(steps))


def read_plan_summary(value: Any) -> PlanSummary:
    """Return a plan of plan.list. Raises ProtocolViolation as `read_task` does."""
    return _read_listed(_ObjectReader("plan", value), PlanSummary)


def _read_listed(plan: _ObjectReader, cls: type[T], **given: Any) -> T:
    flags = {name: plan.members.get(name) is True for name in ("own", "may_approve")}
    return plan.read(cls, state=plan.text("state"), principal=plan.text("principal"), **flags, **given)


_OF_THE_DRAFT = frozenset(("task_id", "seq", "phase", "ts", "step_index"))


def read_event(value: Any) -> TaskEvent:
    """Return the params of a task.event (draft §8); members beyond the draft's are kept in `data`.

    `seq` is 0 from a server that does not count its events. Raises ProtocolViolation as `read_task` does.
    """
    if type(value) is dict:
        data = value.copy()
        task_id, seq, phase = data.pop("task_id", None), data.pop("seq", 0), data.pop("phase", None)
        ts, step_index = data.pop("ts", ""), data.pop("step_index", None)
        # The usual case first: this runs for every event.
        if type(task_id) is type(phase) is type(ts) is str and type(seq) is int and type(step_index) in _INDEX:
            return TaskEvent(task_id, seq, cast("Phase", phase), ts, step_index, data)
    event = _ObjectReader("task.event", value)
    return TaskEvent(
        event.text("task_id"),
        event.optional("seq", int) or 0,
        cast("Phase", event.text("phase")),
        event.optional("ts", str) or "",
        event.optional("step_index", int),
        {name: member for name, member in event.members.items() if name not in _OF_THE_DRAFT},
    )


_INDEX = (int, type(None))


_NO_ROLLBACK: Mapping[int | None, Any] = {}


class TaskOutcome:
    """The result of a task by its events: what task.get answers after `task_finish`, without the request.

    The events must be hearth's own: a `finish` has the step's members of task.get, and `task_finish` those of the task
    (docs/reference/methods.md#the-taskevent-notification). `progress` alone may be missing, which the numbers show.
    """

    __slots__ = ("_end", "_finished", "_last_seq", "_missed", "_rolled_back")

    def __init__(self) -> None:
        self._last_seq = 0
        self._missed = False
        self._finished: dict[int | None, Mapping[str, Any]] = {}
        self._rolled_back: Mapping[int | None, Any] = _NO_ROLLBACK
        self._end: Mapping[str, Any] | None = None

    def take(self, event: TaskEvent) -> None:
        """Take the next event."""
        self._last_seq += 1
        if event.seq != self._last_seq:
            self._missed, self._last_seq = True, event.seq
        if event.phase == "finish":
            self._finished[event.step_index] = event.data
        elif event.phase == "task_finish":
            self._end = event.data
        elif event.phase == "progress" and "rolled_back" in event.data:
            self._rolled_back = {**self._rolled_back, event.step_index: event.data["rolled_back"]}

    def result_of(self, tool: str) -> Mapping[str, Any] | None:
        """Return the result of the only step of a task that succeeded; None if there is more to say, or less."""
        end, step = self._end, self._finished.get(0)
        if end is None or step is None or len(self._finished) != 1 or end.get("status") != "SUCCESS":
            return None
        result = step.get("result")
        return result if step.get("status") == "SUCCESS" and step.get("tool") == tool and type(result) is dict else None

    def task(self, task_id: str, intent: str, tools: Sequence[str]) -> dict[str, Any] | None:
        """Return the members of task.get for a task that was submitted with these steps; unchecked, as received.

        None if the events do not suffice: only task.get knows then.
        """
        end = self._end
        if end is None or not _is_terminal(status := end.get("status")):
            return None
        if status != "SUCCESS" and self._missed:
            return None  # perhaps the report of a rollback
        steps: list[dict[str, Any]] = []
        for index, tool in enumerate(tools):
            step = self._finished.get(index)
            if step is None:
                if status == "SUCCESS":
                    return None
                # It has not begun: no event is about it.
                step = {"tool": tool, "status": "CANCELLED"}
            elif step.get("tool") != tool or not _is_terminal(step.get("status")):
                return None
            steps.append(dict(step))
        for at, rolled_back in self._rolled_back.items():
            if type(at) is not int or not 0 <= at < len(steps):
                return None
            steps[at]["rolled_back"] = rolled_back
        more = {name: end[name] for name in ("error", "error_code", "error_data") if name in end}
        return {"task_id": task_id, "status": status, "intent": intent, "steps": steps, **more}


def _is_terminal(status: Any) -> TypeGuard[Status]:
    return type(status) is str and status in TERMINAL


_KINDS: Mapping[Any, tuple[str, tuple[type, ...]]] = {
    str: ("a string", (str,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    bool: ("a boolean", (bool,)),
    Mapping: ("an object", (dict,)),
    Sequence: ("an array", (list,)),
    # A status or phase that this release does not know is passed on as it is.
    Literal: ("a string", (str,)),
}
"""By the annotation of an attribute: the JSON that it is read from, in words and as exact types."""


@cache
def _attributes_of(cls: type[AttrsInstance]) -> Sequence[tuple[str, Any, tuple[type, ...], bool]]:
    """Return each attribute's name, the kind of its value, the types of that, and whether it is required."""
    hints = get_type_hints(cls, localns={"Mapping": Mapping, "Sequence": Sequence})
    required = {name: get_args(hint)[0] if type(None) in get_args(hint) else hint for name, hint in hints.items()}
    kinds = {name: get_origin(hint) or hint for name, hint in required.items()}
    return [(one.name, kinds[one.name], _KINDS[kinds[one.name]][1], one.default is NOTHING) for one in fields(cls)]


class _ObjectReader:
    """An object at a known place, read member by member."""

    __slots__ = ("members", "place")

    def __init__(self, place: str, value: Any) -> None:
        if type(value) is not dict:
            raise ProtocolViolation(f"the server sent {kind_of(value)} for {place}, where an object was due")
        self.place = place
        self.members: Mapping[str, Any] = value

    def read(self, cls: type[T], **given: Any) -> T:
        """Return an object of an attrs class, of the members with its attributes' names; `given` are read already."""
        # HOT: for each result, and each of its steps. `optional` refuses.
        members = self.members
        for name, kind, types, required in _attributes_of(cls):
            if name not in given:
                value = members.get(name)
                if value is not None or required:
                    if type(value) not in types:
                        self.optional(name, kind, required=required)
                    given[name] = tuple(value) if type(value) is list else value
        return cls(**given)

    def parts(self, name: str, cls: type[T], *, required: bool = False) -> tuple[T, ...]:
        listed = self.optional(name, Sequence, required=required) or ()
        return tuple([_ObjectReader(f"{self.place}.{name}[{at}]", part).read(cls) for at, part in enumerate(listed)])

    def text(self, name: str) -> str:
        return cast("str", self.optional(name, str, required=True))

    def optional(self, name: str, kind: Any, *, required: bool = False) -> Any:
        # The exact type, so that a boolean does not pass for an integer. Null is as good as absent (draft §2.5).
        value = self.members.get(name)
        expected, types = _KINDS[kind]
        if (required or value is not None) and type(value) not in types:
            place = f"{self.place}.{name}"
            raise ProtocolViolation(f"the server sent {kind_of(value)} for {place}, where {expected} was due")
        return value
