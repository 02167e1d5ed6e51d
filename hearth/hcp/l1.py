"""HCP L1 over AMQP 0-9-1: names, topology, message properties, and the time after which an order must not begin.

Exchanges and queues of L1 are declared as L1 has them. hearth adds, and never requires: `hearth.fleet`, a topic
exchange with the keys `card.ID` (announcements of devices, kept in the stream `hearth.cards`) and `halt` (to the queue
`hearth.halt.ID` of each device, which keeps the newest one only). The operator may add the stream `hearth.history` with
all events. Queues for halts are classic ones: a quorum queue for each device takes 100 KiB more of the broker. While
the node of such a queue is down, or the broker believes that the device's last connection consumes it,
`hearth.halt.ID.live` stands in for it, which keeps nothing between connections.

**Late orders.** An order that moves something must not begin after `not_after`, a time of the caller's clock. The
device cannot compare it with its own clock, which may be wrong. So the caller first asks the device for a *tick*
(`hearth.clock`): the id of its boot and the time since then, which no setting of the wall clock changes. The order
carries the tick, and for how many milliseconds after it the order is valid. The order is younger than its tick, so the
device needs no other clock than the one that made the tick: it begins nothing later than that, however long the order
was in a queue or in a socket's buffer. After a reboot the tick means nothing, and the order is refused.

An order without a tick, of a harness that follows L1 alone, is judged by both wall clocks, and only if they agree: one
that comes from the future is refused. A clock that is behind by just as long as the order was under way would hide
that. So one that moves something is refused if it has waited: if it was in the queue before the device was there, or
was delivered before. What comes while the device is there is as old as its way through caller and broker.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import frozen

from hearth.amqp.messages import AmqpMessage
from hearth.amqp.topology import Binding, Exchange, Queue, Topology
from hearth.errors import InvalidRequest, ParseError
from hearth.hcp.messages import Rejection, read_instant, write_instant
from hearth.protocol.framing import MAX_VALUES, has_more_values
from hearth.protocol.jsonrpc import load

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final = "hcp.commands"
EVENTS: Final = "hcp.events"
FLEET: Final = "hearth.fleet"
CARDS: Final = "hearth.cards"
HISTORY: Final = "hearth.history"
CLOCK: Final = "hearth.clock"
"""The type of a message that asks a device for a tick, and of its answer."""
REPLAY: Final = "hearth.replay"
"""The type of a message that asks a device to publish a session's messages again, from a sequence on."""
HALT: Final = "hearth.halt"
"""The type of a message that halts each device of the fleet, or ends that halt."""
CARD: Final = "hearth.card"
"""The type of an announcement of a device."""
NOT_AFTER_S: Final = 60.0
"""Seconds after its timestamp within which an order that moves something begins, if its caller says nothing else."""
SKEW_S: Final = 5.0
"""Seconds by which an order's timestamp may be ahead of the device's clock."""
NO_SESSION: Final = "-"
"""The place of the session id in the routing key of a message without one."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_id(text: str) -> bool:
    """Return True for a valid id of a device or caller: a single word of a topic exchange's routing key."""
    return _ID.fullmatch(text) is not None


def command_queue(callee: str) -> str:
    """Return the name of a device's queue (L1, Queues)."""
    return f"hcp.cmd.{callee}"


def event_queue(caller: str) -> str:
    """Return the name of a caller's queue (L1, Queues)."""
    return f"hcp.evt.{caller}"


def halt_queue(callee: str) -> str:
    """Return the name of the queue that has the newest halt, or reset, for a device."""
    return f"hearth.halt.{callee}"


EXCHANGES: Final = (Exchange(COMMANDS, "direct"), Exchange(EVENTS, "topic"))
"""The exchanges of L1, which every harness declares."""
_QUORUM: Final = {"x-queue-type": "quorum"}
_STREAM: Final = {"x-queue-type": "stream"}


def callee_topology(callee: str, most_orders: int = 1000) -> Topology:
    """Return what L1 has a callee declare. A full queue refuses orders: then the caller's publish is not confirmed."""
    bounds = {"x-max-length": most_orders, "x-overflow": "reject-publish"}
    queue = Queue(command_queue(callee), arguments={**_QUORUM, **bounds})
    return Topology(EXCHANGES, (queue,), (Binding(queue.name, COMMANDS, callee),))


def caller_topology(caller: str, most_bytes: int = 256 << 20) -> Topology:
    """Return what L1 has a caller declare. A full queue loses its oldest events: the caller asks for them again."""
    bounds = {"x-max-length-bytes": most_bytes, "x-overflow": "drop-head"}
    queue = Queue(event_queue(caller), arguments={**_QUORUM, **bounds})
    return Topology(EXCHANGES, (queue,), (Binding(queue.name, EVENTS, f"{caller}.#"),))


def halt_topology(callee: str) -> Topology:
    """Return what a device declares to hear halts of the fleet."""
    queue = Queue(halt_queue(callee), arguments={"x-max-length": 1})
    return Topology((Exchange(FLEET, "topic"),), (queue,), (Binding(queue.name, FLEET, "halt"),))


def live_halt_topology(callee: str) -> Topology:
    """Return what a device declares while it cannot consume its halt queue: the same, for one connection."""
    queue = Queue(f"{halt_queue(callee)}.live", durable=False, exclusive=True, arguments={"x-max-length": 1})
    return Topology((), (queue,), (Binding(queue.name, FLEET, "halt"),))


def cards_topology() -> Topology:
    """Return the stream of announcements, which any harness with the permission declares."""
    cards = Queue(CARDS, arguments={**_STREAM, "x-max-age": "1D", "x-stream-max-segment-size-bytes": 8 << 20})
    return Topology((Exchange(FLEET, "topic"),), (cards,), (Binding(CARDS, FLEET, "card.#"),))


def history_topology() -> Topology:
    """Return the stream of all events, which the operator declares.

    From then on an event is confirmed only once the stream has it too: while a stream cannot be reached, events wait in
    the outboxes of the devices.
    """
    history = Queue(HISTORY, arguments={**_STREAM, "x-max-length-bytes": 4 << 30})
    return Topology((Exchange(EVENTS, "topic"),), (history,), (Binding(HISTORY, EVENTS, "#"),))


def _properties(body: bytes, document: Mapping[str, Any], user: str) -> dict[str, Any]:
    """Return body and properties of a message (L1, AMQP Message Properties Mapping); the broker checks `user`."""
    return {
        "body": body,
        "message_id": document["message_id"],
        "timestamp": datetime.fromisoformat(document["timestamp"]),
        "correlation_id": document["session_id"],
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "persistent": True,
        "type": document["type"],
        "user_id": user,
    }


def command_message(document: Mapping[str, Any], callee: str, user: str, **more: Any) -> AmqpMessage:
    """Return a command for a device, such as a task_submit; `more` are further properties."""
    properties = _properties(orjson.dumps(document), document, user)
    return AmqpMessage(exchange=COMMANDS, routing_key=callee, **properties, **more)


def event_message(line: bytes, caller: str, user: str) -> AmqpMessage:
    """Return a message of a device for a caller; `line` is the whole message, as the job store has it."""
    body = line.rstrip(b"\n")
    document = orjson.loads(body)
    key = f"{caller}.{document['session_id'] or NO_SESSION}.{document['type']}"
    return AmqpMessage(exchange=EVENTS, routing_key=key, **_properties(body, document, user))


def fleet_message(document: Mapping[str, Any], key: str, user: str) -> AmqpMessage:
    """Return a message for the whole fleet: an announcement, or a halt."""
    return AmqpMessage(exchange=FLEET, routing_key=key, **_properties(orjson.dumps(document), document, user))


def read_message(body: bytes) -> dict[str, Any]:
    """Return the document of a message. Raises ValueError."""
    if len(body) > MAX_VALUES and has_more_values(body, MAX_VALUES):
        raise ValueError(f"more than {MAX_VALUES} values")
    try:
        document = load(body)
    except (ParseError, InvalidRequest) as error:
        raise ValueError((error.data or {})["reason"]) from None
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004  as for any other text that is no message
    return document


def envelope(
    type_: str, payload: Mapping[str, Any], message_id: str, now: float, session_id: str | None = None
) -> dict[str, Any]:
    """Return a document in L1's envelope whose type is one of hearth's own; `now` in epoch seconds."""
    return {
        "hcp_version": "1.0",
        "message_id": message_id,
        "timestamp": write_instant(now),
        "session_id": session_id,
        "type": type_,
        "payload": dict(payload),
    }


@frozen(kw_only=True)
class Tick:
    """A moment of a device's own clock: the id of its boot, and milliseconds since then, suspended ones included."""

    boot: str
    at_ms: int

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"boot": self.boot, "at_ms": self.at_ms}


@frozen(kw_only=True)
class OrderTime:
    """The time within which an order begins, as it came with it; `sent` and `not_after` are of the caller's clock."""

    sent: datetime | None = None
    not_after: datetime | None = None
    tick: Tick | None = None
    valid_ms: int = 0
    """Milliseconds after the tick."""
    made_ms: int = 0
    """Milliseconds after the tick at which the order was made; negative for one that was made before."""
    waited: bool = False
    """Whether it was in the queue before the device was there."""

    @classmethod
    def of(cls, timestamp: Any, headers: Mapping[str, Any] | None, *, waited: bool = False) -> OrderTime:
        """Read the envelope's timestamp and the AMQP headers. Raises ValueError that names a header of another form."""
        given = headers or {}
        try:
            sent = read_instant(timestamp) if isinstance(timestamp, str) else None
        except ValueError:
            # The job server answers that, with the place.
            sent = None
        not_after = given.get("not_after")
        boot, at_ms, valid_ms = given.get("hearth_boot"), given.get("hearth_at_ms"), given.get("hearth_valid_ms")
        made_ms = given.get("hearth_made_ms", 0)
        if not_after is not None and not isinstance(not_after, str):
            raise ValueError("header not_after: expected an instant as text")
        tick, valid = None, 0
        if boot is not None:
            if not (isinstance(boot, str) and type(at_ms) is int and type(valid_ms) is int and type(made_ms) is int):
                names = "hearth_boot, hearth_at_ms, hearth_valid_ms, hearth_made_ms"
                raise ValueError(f"headers {names}: expected text and three integers, the last of which may be missing")
            tick, valid = Tick(boot=boot, at_ms=at_ms), valid_ms
        return cls(
            sent=sent,
            not_after=None if not_after is None else read_instant(not_after),
            tick=tick,
            valid_ms=valid,
            made_ms=0 if tick is None else made_ms,
            waited=waited,
        )

    def headers(self) -> dict[str, Any]:
        """Return the AMQP headers that `of` reads."""
        written: dict[str, Any] = {}
        if self.not_after is not None:
            written["not_after"] = write_instant(self.not_after)
        if self.tick is not None:
            written |= {
                "hearth_boot": self.tick.boot,
                "hearth_at_ms": self.tick.at_ms,
                "hearth_valid_ms": self.valid_ms,
                "hearth_made_ms": self.made_ms,
            }
        return written

    def _older_than(self, reset: Tick, now: datetime, tick: Tick) -> bool:
        """Return True if the order was made before a moment of the device; by both wall clocks where it has no tick."""
        if self.tick is not None:
            return self.tick.boot == reset.boot and self.tick.at_ms + self.made_ms < reset.at_ms
        return self.sent is not None and self.sent < now - timedelta(milliseconds=tick.at_ms - reset.at_ms)

    def check(self, now: datetime, tick: Tick, *, moves: bool, reset: Tick | None = None) -> None:
        """Raise Rejection if an order must not begin at the device's time `tick` (`now` on its wall clock).

        `moves`: the order may have an effect on hardware; any other is checked only if its caller gave a time. `reset`
        is when a person last ended a halt of the device: what moves and was made before that does not begin.
        """
        cure = "submit it again under a new message_id, if it is still wanted"
        if moves and reset is not None and self._older_than(reset, now, tick):
            reason = "the order was made before the halt of the device was reset"
            raise Rejection("expired", reason, suggestion=cure)
        if self.tick is not None:
            if self.tick.boot != tick.boot:
                raise Rejection("expired", "the device has started again since this order was made", suggestion=cure)
            if (late_ms := tick.at_ms - self.tick.at_ms - self.valid_ms) > 0:
                raise Rejection(
                    "expired", f"the order came {late_ms / 1000:.3f} s after its not_after", suggestion=cure
                )
            return
        if self.not_after is None and not moves:
            return
        if self.waited and moves:
            reason = "the order waited for the device, and without the device's tick its age is not known"
            raise Rejection(
                "expired", reason, suggestion=f"{cure}, with the answer to hearth.clock or once it is there"
            )
        if self.sent is None:
            raise Rejection("expired", "/timestamp: an order that moves something needs one", suggestion=cure)
        ahead = (self.sent - now).total_seconds()
        if ahead > SKEW_S:
            reason = f"/timestamp: {ahead:.0f} s ahead of the device's clock, so the age of this order is not known"
            raise Rejection(
                "expired", reason, suggestion="set the clocks of both machines, or ask for hearth.clock first"
            )
        until = self.not_after or self.sent + timedelta(seconds=NOT_AFTER_S)
        if now > until:
            late = (now - until).total_seconds()
            reason = f"the order came {late:.0f} s after its not_after, by the device's clock"
            raise Rejection("expired", reason, suggestion=f"{cure}; the device's clock is at {write_instant(now)}")
