"""A client's connection to a broker as a state machine without I/O: AMQP 0-9-1 §2.2 and §4, in the manner of h11.

    start --start--> tune --tune--> opening --open-ok--> open --close()--> closing --close-ok--> closed
    any of them --connection.close, end of the stream, breach of the protocol--> closed

`receive` takes bytes, b"" at the end of the stream, and returns events; commands of the connection and of its channels
append to the output, which `data_to_send` takes. The machine has no clock and raises nothing in `receive`: whatever the
peer sends, the last event is `ConnectionEnded`, once, with the reason; every channel has then ended too.

- The log-in is SASL EXTERNAL (the TLS client certificate) or PLAIN. Whether a password may be sent at all is decided
  before: by `hearth.amqp.address`, and by the carrier, which knows the peer.
- Tune: the smaller of both sides' frame size, channel count and heartbeat holds; 0 is "no limit" to the protocol and
  never to this side. Frames are read up to twice the broker's size: properties of other publishers come in one frame.
- Memory: one incomplete frame, and for each channel one incomplete body of at most `AmqpLimits.body`. What this side
  answers by itself (a close, the rejection of a delivery) is bounded too: a peer that goes on sending and does not read
  breaks the protocol.
- A breach of the protocol is answered with connection.close and its reply code; the answer to that is not awaited.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from attrs import evolve, field, frozen
from pamqp import commands

from hearth._version import __version__
from hearth.amqp.channel import AmqpChannel, ChannelEnded, ChannelEvent
from hearth.amqp.errors import AmqpError, AmqpMisuse, AmqpProtocolError, BrokerConnectionLost, printable, refusal
from hearth.amqp.framing import (
    BODY,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    FrameReader,
    RawFrame,
    decode_method,
    encode_method,
)
from hearth.amqp.messages import AmqpLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from pamqp.base import Frame as Method
    from pamqp.common import FieldTable

MINIMUM_FRAME: Final = 4096
"""frame-min-size of the specification: no peer may ask for less."""
LONGEST_FRAME: Final = 1_048_576
"""Frames are never read beyond this size, whatever the broker proposes."""
_CAPABILITIES: Final = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


@frozen
class Login:
    """The mechanism and the response of a SASL log-in."""

    mechanism: str
    response: str = field(repr=False)

    @classmethod
    def external(cls) -> Login:
        """Log in as the owner of the TLS client certificate."""
        return cls("EXTERNAL", "")

    @classmethod
    def plain(cls, user: str, password: str) -> Login:
        """Log in with a password, in the clear."""
        return cls("PLAIN", f"\0{user}\0{password}")


@frozen
class ConnectionOpened:
    """The handshake is done; `heartbeat` is in seconds."""

    heartbeat: int
    frame_max: int
    channel_max: int


@frozen
class Blocked:
    """The broker takes no messages until Unblocked, for this reason."""

    reason: str


@frozen
class Unblocked:
    """The broker takes messages again."""


@frozen
class ConnectionEnded:
    """The last event; `error` is None after this side's `close`."""

    error: AmqpError | None


Event = ConnectionOpened | Blocked | Unblocked | ConnectionEnded | ChannelEvent


class ConnectionState(Enum):
    """See the module's text."""

    START = auto()
    TUNE = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


def _nothing() -> None:
    """Do nothing."""


class AmqpConnection:
    """A connection; `on_output` is called when there is something to send. `place` names the broker in messages."""

    def __init__(
        self,
        login: Login,
        *,
        vhost: str = "/",
        limits: AmqpLimits | None = None,
        heartbeat: int = 30,
        name: str = "hearth",
        place: str = "the broker",
        on_output: Callable[[], None] = _nothing,
    ) -> None:
        self.state = ConnectionState.START
        self.heartbeat = heartbeat
        self.limits = limits or AmqpLimits()
        self.frames = 0
        """Whole frames that have arrived: the peer's signs of life."""
        self.channels: dict[int, AmqpChannel] = {}
        self.on_output = on_output
        self._login = login
        self._vhost = vhost
        self._name = name
        self._place = place
        self._reader = FrameReader(2 * max(self.limits.frame, MINIMUM_FRAME))
        self._output = bytearray()
        # Publishers wait long before, so that only answers can come to so much.
        self._most_output = 2 * max(self.limits.body, LONGEST_FRAME)
        self._send(PROTOCOL_HEADER)

    @property
    def pending(self) -> int:
        """Bytes to send."""
        return len(self._output)

    @property
    def held(self) -> int:
        """Bytes of a frame that has not arrived whole."""
        return self._reader.held

    def data_to_send(self, most: int | None = None) -> bytes:
        """Return what is to be sent, up to `most` bytes, and forget it."""
        if most is None or most >= len(self._output):
            data = bytes(self._output)
            self._output.clear()
        else:
            data = bytes(memoryview(self._output)[:most])
            del self._output[:most]
        return data

    def _send(self, data: bytes) -> None:
        if self.state is not ConnectionState.CLOSED:
            self._output += data
            self.on_output()

    def send_heartbeat(self) -> None:
        """Send a heartbeat: the carrier does so when it has sent nothing for half an interval."""
        self._send(HEARTBEAT_FRAME)

    def open_channel(self) -> AmqpChannel:
        """Open a channel: Replied tells that it is. Raises AmqpMisuse."""
        if self.state is not ConnectionState.OPEN:
            raise AmqpMisuse(f"this connection is not open ({self.state.name.lower()})")
        number = next((n for n in range(1, self.limits.channels + 1) if n not in self.channels), None)
        if number is None:
            raise AmqpMisuse(f"all {self.limits.channels} channels of this connection are in use; close one")
        channel = AmqpChannel(number, self.limits, self._send, self._place)
        self.channels[number] = channel
        self._send(encode_method(number, commands.Channel.Open()))
        return channel

    def close(self) -> None:
        """Close the connection: ConnectionEnded follows when the broker has answered, or its stream ends."""
        if self.state not in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            self._send(encode_method(0, commands.Connection.Close(200, "", 0, 0)))
            self.state = ConnectionState.CLOSING

    def abandon(self) -> None:
        """Take the connection as ended, since its carrier is: every channel has ended, and nothing is to be sent."""
        self._output.clear()
        if self.state is not ConnectionState.CLOSED:
            self._end(None)

    def receive(self, data: bytes) -> list[Event]:
        """Take received bytes, b"" for the end of the stream, and return the events. Raises nothing."""
        if self.state is ConnectionState.CLOSED:
            return []
        if not data:
            if self.state is ConnectionState.CLOSING:
                return self._end(None)
            when = {ConnectionState.START: " before it said anything", ConnectionState.OPEN: ""}
            cut = when.get(self.state, " during the log-in")
            return self._end(BrokerConnectionLost(f"{self._place} ended the connection{cut}"))
        events: list[Event] = []
        self._reader.feed(data)
        try:
            while (frame := self._reader.next_frame()) is not None:
                self.frames += 1
                events += self._handle(frame)
                if len(self._output) > self._most_output:
                    raise AmqpProtocolError(f"it sends, and has read nothing of {len(self._output)} bytes for it", 506)
                if events and isinstance(events[-1], ConnectionEnded):
                    break
        except AmqpProtocolError as error:
            text = f"the peer breaks the protocol: {error}"[:200]
            if self.state is not ConnectionState.START:
                self._send(encode_method(0, commands.Connection.Close(error.code, text, 0, 0)))
            events += self._end(AmqpProtocolError(f"{self._place}: {error}", error.code))
        return events

    def _end(self, error: AmqpError | None) -> list[Event]:
        self.state = ConnectionState.CLOSED
        for channel in self.channels.values():
            channel.ended()
        self.channels.clear()
        return [ConnectionEnded(error)]

    def _handle(self, frame: RawFrame) -> list[Event]:
        if frame.type == HEARTBEAT:
            if frame.channel or frame.payload:
                raise AmqpProtocolError("a heartbeat came with a channel or a payload")
            return []
        if frame.channel == 0:
            if frame.type != METHOD:
                raise AmqpProtocolError("content came on channel 0, which has none", 503)
            return self._handle_method(decode_method(frame.payload))
        channel = self.channels.get(frame.channel)
        if self.state is ConnectionState.CLOSING:
            return []  # sent before the broker knew
        if channel is None:
            raise AmqpProtocolError(f"a frame came for channel {frame.channel}, which is not open", 504)
        events: list[Event] = []
        if frame.type == METHOD:
            events += channel.handle_method(decode_method(frame.payload))
        elif frame.type == HEADER:
            events += channel.handle_header(frame.payload)
        else:
            assert frame.type == BODY
            events += channel.handle_body(frame.payload)
        if any(isinstance(event, ChannelEnded) for event in events):
            del self.channels[frame.channel]
        return events

    def _handle_method(self, method: Method) -> list[Event]:
        if isinstance(method, commands.Connection.Close):
            self._send(encode_method(0, commands.Connection.CloseOk()))
            if self.state is ConnectionState.CLOSING:
                return self._end(None)
            return self._end(refusal(method.reply_code or 0, method.reply_text or "", self._place))
        if self.state is ConnectionState.CLOSING:
            return self._end(None) if isinstance(method, commands.Connection.CloseOk) else []
        match self.state, method:
            case ConnectionState.START, commands.Connection.Start():
                return self._start(method)
            case ConnectionState.TUNE, commands.Connection.Tune():
                return self._tune(method)
            case ConnectionState.OPENING, commands.Connection.OpenOk():
                self.state = ConnectionState.OPEN
                return [ConnectionOpened(self.heartbeat, self.limits.frame, self.limits.channels)]
            case ConnectionState.OPEN, commands.Connection.Blocked():
                return [Blocked(printable(method.reason or ""))]
            case ConnectionState.OPEN, commands.Connection.Unblocked():
                return [Unblocked()]
        raise AmqpProtocolError(f"{method.name} came in the state {self.state.name.lower()}", 503)

    def _start(self, method: commands.Connection.Start) -> list[Event]:
        offered = str(method.mechanisms)  # bytes if they are not UTF-8
        wanted = self._login.mechanism
        if wanted not in offered.split():
            cure = "enable the plugin rabbitmq_auth_mechanism_ssl" if wanted == "EXTERNAL" else "enable it"
            raise AmqpProtocolError(f"it offers the log-ins {offered[:100]!r} and not {wanted}; {cure} there", 530)
        properties: FieldTable = {
            "product": "hearth",
            "version": __version__,
            "connection_name": self._name,
            "capabilities": dict(_CAPABILITIES),
        }
        self._send(encode_method(0, commands.Connection.StartOk(properties, wanted, self._login.response, "en_US")))
        self.state = ConnectionState.TUNE
        return []

    def _tune(self, method: commands.Connection.Tune) -> list[Event]:
        proposed = method.frame_max or LONGEST_FRAME
        if proposed < MINIMUM_FRAME:
            raise AmqpProtocolError(f"it proposes frames of {proposed} bytes, where {MINIMUM_FRAME} is the least", 530)
        frame = min(proposed, self.limits.frame)
        channels = min(method.channel_max or self.limits.channels, self.limits.channels)
        self.limits = evolve(self.limits, frame=frame, channels=channels)
        self.heartbeat = min(method.heartbeat or self.heartbeat, self.heartbeat)
        self._reader.longest = min(2 * proposed, LONGEST_FRAME)
        self._send(encode_method(0, commands.Connection.TuneOk(channels, frame, self.heartbeat)))
        self._send(encode_method(0, commands.Connection.Open(self._vhost)))
        self.state = ConnectionState.OPENING
        return []
