"""The byte stream as frames, and methods as bytes: AMQP 0-9-1 §4.2, strictly.

A frame is type (1 byte), channel (2), size (4), payload and the octet 0xCE. `FrameReader` holds at most one incomplete
frame of the longest size, however the bytes arrive. The codec `pamqp` reads values that end early as shorter ones, and
fails on text that is not UTF-8; method names such as routing keys come from any publisher, so that neither may end a
connection or pass unseen: `decode_method` walks pamqp's tables of arguments itself, with every length checked.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pamqp import commands, decode

from hearth.amqp.errors import AmqpMisuse, AmqpProtocolError

if TYPE_CHECKING:
    from pamqp.base import Frame as Method

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
END: Final = 0xCE
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
OVERHEAD: Final = 8
"""Bytes of a frame beside its payload."""
LONGEST_METHOD: Final = 16_384
"""Bytes of a method's payload. The longest that RabbitMQ sends, connection.start, has about 500."""

_HEAD: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")
_UNFIT: Final = (ValueError, TypeError, struct.error, ArithmeticError, OSError, RecursionError)
"""What the codec raises for values and bytes that it cannot convert."""
_BASIC: Final = 60
"""The number of the class basic, the only one with content."""
_FIXED: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}
_PREFIX: Final = {"shortstr": 1, "longstr": 4, "table": 4}


class RawFrame(NamedTuple):
    """A whole frame."""

    type: int
    channel: int
    payload: bytes


class FrameReader:
    """Cuts what arrives into frames. `longest` bounds the payload and may be changed between two frames."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._buffer = bytearray()
        self._started = False

    def feed(self, data: bytes) -> None:
        """Take received bytes; take the frames out with `next_frame` before the next call."""
        self._buffer += data

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def next_frame(self) -> RawFrame | None:
        """Return the next whole frame, or None. Raises AmqpProtocolError as soon as the bytes cannot be a frame."""
        buffer = self._buffer
        if not buffer:
            return None
        if buffer[0] not in (METHOD, HEADER, BODY, HEARTBEAT):
            raise self._no_frame()
        if len(buffer) < _HEAD.size:
            return None
        kind, channel, size = _HEAD.unpack_from(buffer)
        if size > self.longest:
            raise AmqpProtocolError(f"a frame of {size} bytes came, where {self.longest} is the most")
        end = _HEAD.size + size
        if len(buffer) <= end:
            return None
        if buffer[end] != END:
            raise AmqpProtocolError(f"a frame ended with 0x{buffer[end]:02X} in place of 0xCE")
        frame = RawFrame(kind, channel, bytes(memoryview(buffer)[_HEAD.size : end]))
        del buffer[: end + 1]
        self._started = True
        return frame

    def _no_frame(self) -> AmqpProtocolError:
        if not self._started:
            if self._buffer.startswith(b"AMQP"):
                return AmqpProtocolError(
                    "the broker does not speak AMQP 0-9-1; enable it there (RabbitMQ always has it)"
                )
            return AmqpProtocolError("it is no AMQP broker that answers; is it the right port, and amqps where TLS is?")
        return AmqpProtocolError(f"a frame of the unknown type {self._buffer[0]} came")


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame."""
    return b"%b%b\xce" % (_HEAD.pack(kind, channel, len(payload)), payload)


def encode_method(channel: int, method: Method) -> bytes:
    """Return the frame of a method. Raises AmqpMisuse for arguments that cannot be encoded."""
    try:
        return encode_frame(METHOD, channel, method.index.to_bytes(4, "big") + method.marshal())
    except _UNFIT as error:
        raise AmqpMisuse(f"{method.name} cannot be sent: {error}") from None


def decode_method(payload: bytes) -> Method:
    """Return the method in a frame's payload. Raises AmqpProtocolError unless its arguments fill it exactly."""
    if len(payload) > LONGEST_METHOD:
        raise AmqpProtocolError(f"a method of {len(payload)} bytes came, where {LONGEST_METHOD} is the most")
    index = int.from_bytes(payload[:4], "big")
    if len(payload) < 4 or index not in commands.INDEX_MAPPING:
        raise AmqpProtocolError(f"the unknown method {index >> 16}.{index & 0xFFFF} came", 503)
    method: Method = commands.INDEX_MAPPING[index]()
    place, bits = 4, 0
    try:
        for name in method.attributes():
            kind = method.amqp_type(name)
            if kind == "bit":  # eight flags that follow each other share a byte
                value, place = (payload[place - 1], place) if bits % 8 else _read("octet", payload, place)
                setattr(method, name, bool(value >> (bits % 8) & 1))
                bits += 1
            else:
                bits = 0
                value, place = _read(kind, payload, place, "replace")
                setattr(method, name, value)
        if place != len(payload):
            raise ValueError(f"has {len(payload) - place} bytes too many")
    except ValueError as error:
        raise AmqpProtocolError(f"{method.name} {error}", 502) from None
    return method


def _read(kind: str, data: bytes, place: int, errors: str = "strict") -> tuple[Any, int]:
    """Return the value of an argument or property, and where it ends. Raises ValueError, which continues its name."""
    start = place + _PREFIX.get(kind, 0)
    end = start + (int.from_bytes(data[place:start], "big") if kind in _PREFIX else _FIXED[kind])
    if end > len(data) or start > len(data):
        raise ValueError("ends too early")
    try:
        if kind == "shortstr":
            return data[start:end].decode("utf-8", errors), end
        return decode.by_type(data[place:end], kind)[1], end
    except _UNFIT as error:
        raise ValueError(f"cannot be read: {error}") from None


def decode_content(payload: bytes) -> tuple[int, bytes]:
    """Return the body's size and the properties, still encoded, of a content header. Raises AmqpProtocolError."""
    if len(payload) < _CONTENT.size + 2:
        raise AmqpProtocolError("a content header ends too early", 502)
    number, _, size = _CONTENT.unpack_from(payload)
    if number != _BASIC:
        raise AmqpProtocolError(f"a content header came for class {number}, which has no content", 501)
    return size, payload[_CONTENT.size :]


def encode_content(channel: int, size: int, properties: bytes) -> bytes:
    """Return the frame of a content header."""
    return encode_frame(HEADER, channel, _CONTENT.pack(_BASIC, 0, size) + properties)


def encode_properties(properties: commands.Basic.Properties) -> bytes:
    """Return properties as a content header has them. Raises AmqpMisuse for those that cannot be encoded."""
    try:
        properties.validate()
        return properties.marshal()
    except _UNFIT as error:
        raise AmqpMisuse(f"the properties of a message cannot be sent: {error}") from None


def decode_properties(data: bytes) -> commands.Basic.Properties:
    """Return the properties in a content header. Raises ValueError, with the reason, for any that cannot be read.

    A publisher wrote them, and a broker passes on what it does not use: it is no fault of the connection.
    """
    flags = int.from_bytes(data[:2], "big")
    if flags & 1:
        raise ValueError("it has more property flags than AMQP 0-9-1 defines")
    properties = commands.Basic.Properties()
    place = 2
    for name in properties.attributes():
        if not flags & properties.flags[name]:
            continue
        try:
            value, place = _read(properties.amqp_type(name), data, place)
        except ValueError as error:
            raise ValueError(f"its property {name} {error}") from None
        setattr(properties, name, value)
    if place != len(data):
        raise ValueError(f"its properties have {len(data) - place} bytes too many")
    return properties
