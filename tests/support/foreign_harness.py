"""A foreign HCP harness that follows L1: a caller over bare pamqp and a blocking socket. It shares no code with hearth.

It declares what L1 has a caller declare, publishes with the properties that L1 names, consumes with manual ACK, and
keeps every message that it has processed. `user_id` is not of L1: hearth's policy needs it, and the broker checks it.
"""

from __future__ import annotations

import json
import socket
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pamqp import body, commands, constants, frame, header

if TYPE_CHECKING:
    import ssl

BOUND = 60
"""Seconds after which a wait for a frame is a failure."""
_CHANNEL = 1


class Refused(Exception):
    """The broker closed the channel or the connection, with this code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class AmqpWire:
    """A connection and one channel: frames out, frames in."""

    def __init__(
        self, port: int, user: str, password: str, vhost: str = "/", tls: ssl.SSLContext | None = None
    ) -> None:
        self.socket: Any = socket.create_connection(("127.0.0.1", port), BOUND)
        # Or an acknowledgement holds back what is published after it, for 40 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.user = user
        self.pending = b""
        self.arrived: list[Any] = []
        """Deliveries: (Basic.Deliver, properties, body)."""
        try:
            self._open(user, password, vhost, external=tls is not None)
        except BaseException:
            self.socket.close()
            raise

    def _open(self, user: str, password: str, vhost: str, *, external: bool) -> None:
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.expect(commands.Connection.Start)
        mechanism, response = ("EXTERNAL", "") if external else ("PLAIN", f"\0{user}\0{password}")
        self.send(commands.Connection.StartOk({}, mechanism, response, "en_US"), channel=0)
        tune = self.expect(commands.Connection.Tune)
        self.send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), channel=0)
        self.send(commands.Connection.Open(vhost), channel=0)
        self.expect(commands.Connection.OpenOk)
        self.call(commands.Channel.Open(), commands.Channel.OpenOk)

    def send(self, command: Any, *, channel: int = _CHANNEL) -> None:
        self.socket.sendall(frame.marshal(command, channel))

    def read(self) -> Any:
        """The next frame."""
        while True:
            if len(self.pending) >= 7:
                size = int.from_bytes(self.pending[3:7], "big") + 8
                if len(self.pending) >= size:
                    raw, self.pending = self.pending[:size], self.pending[size:]
                    if raw[0] == constants.FRAME_HEARTBEAT:
                        continue
                    _, _, value = frame.unmarshal(raw)
                    return value
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self.pending += data

    def next(self) -> Any:
        """The next command that is no delivery; deliveries are kept."""
        while True:
            value = self.read()
            if isinstance(value, (commands.Channel.Close, commands.Connection.Close)):
                raise Refused(value.reply_code or 0, value.reply_text)
            if not isinstance(value, commands.Basic.Deliver):
                return value
            head = self.read()
            assert isinstance(head, header.ContentHeader)
            content = b""
            while len(content) < head.body_size:
                part = self.read()
                assert isinstance(part, body.ContentBody)
                content += part.value
            self.arrived.append((value, head.properties, content))
            return value

    def expect(self, kind: type) -> Any:
        """Wait for a command of this class."""
        while not isinstance(value := self.next(), kind):
            pass
        return value

    def call(self, command: Any, answer: type) -> Any:
        self.send(command)
        return self.expect(answer)

    def publish(self, exchange: str, key: str, content: bytes, properties: commands.Basic.Properties) -> None:
        """Publish, and wait for the confirmation if the channel is in confirm mode."""
        self.socket.sendall(
            frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=key), _CHANNEL)
            + frame.marshal(header.ContentHeader(0, len(content), properties), _CHANNEL)
            + frame.marshal(body.ContentBody(content), _CHANNEL)
        )

    def close(self) -> None:
        self.socket.close()


class ForeignHarness:
    """A caller. Everything that it has processed is in `messages`."""

    def __init__(self, port: int, caller: str, password: str, **more: Any) -> None:
        self.caller = caller
        self.wire = AmqpWire(port, caller, password, **more)
        self.messages: list[dict[str, Any]] = []
        self.properties: list[Any] = []
        self.keys: list[str] = []
        queue = f"hcp.evt.{caller}"
        quorum: Any = {"x-queue-type": "quorum"}
        call = self.wire.call
        for name, kind in (("hcp.commands", "direct"), ("hcp.events", "topic")):
            call(
                commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=True), commands.Exchange.DeclareOk
            )
        call(commands.Queue.Declare(queue=queue, durable=True, arguments=quorum), commands.Queue.DeclareOk)
        call(commands.Queue.Bind(queue=queue, exchange="hcp.events", routing_key=f"{caller}.#"), commands.Queue.BindOk)
        call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        call(commands.Basic.Qos(prefetch_count=10), commands.Basic.QosOk)
        call(commands.Basic.Consume(queue=queue, no_ack=False, exclusive=False), commands.Basic.ConsumeOk)

    def submission(self, capability: str, inputs: dict[str, Any], **payload: Any) -> dict[str, Any]:
        """A task_submit."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "hcp_version": "1.0",
            "message_id": str(uuid.uuid4()),
            "timestamp": now,
            "session_id": None,
            "type": "task_submit",
            "payload": {
                "capability": capability, "caller_id": self.caller, "intent": "see whether L1 is enough",
                "inputs": inputs, **payload,
            },
        }  # fmt: skip

    def command(self, callee: str, document: dict[str, Any], **properties: Any) -> None:
        """Publish a command, and wait for the broker's confirmation."""
        given = {
            "message_id": document["message_id"],
            "timestamp": datetime.fromisoformat(document["timestamp"]),
            "correlation_id": document["session_id"],
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "delivery_mode": 2,
            "message_type": document["type"],
            "user_id": self.caller,
            **properties,
        }
        given = {name: value for name, value in given.items() if value is not None}
        properties_ = commands.Basic.Properties(**given)
        self.wire.publish("hcp.commands", callee, json.dumps(document).encode(), properties_)
        self.wire.expect(commands.Basic.Ack)

    def receive(self) -> dict[str, Any]:
        """Process one message: keep it, then acknowledge it."""
        while not self.wire.arrived:
            self.wire.next()
        deliver, properties, content = self.wire.arrived.pop(0)
        self.messages.append(json.loads(content))
        self.properties.append(properties)
        self.keys.append(deliver.routing_key)
        self.wire.send(commands.Basic.Ack(deliver.delivery_tag))
        return self.messages[-1]

    def until(self, wanted: Any) -> dict[str, Any]:
        """Receive until a message is wanted; return that."""
        while not wanted(message := self.receive()):
            pass
        return message

    def closed(self) -> dict[str, Any]:
        """Receive until a session is closed; return that event's payload."""
        ended = self.until(lambda one: one["payload"].get("event_type") == "session_closed")
        payload: dict[str, Any] = ended["payload"]
        return payload

    def have_closed(self, count: int) -> None:
        """Receive until this many sessions are closed, in all: one that ended among other messages counts too."""
        while sum(one["payload"].get("event_type") == "session_closed" for one in self.messages) < count:
            self.receive()

    def close(self) -> None:
        self.wire.close()
