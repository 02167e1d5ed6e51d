"""What a Modbus device answers: any bytes are the answer to this request, not yet the whole of it, or refused.

An input's first byte chooses the framing and the request, the second how the rest is cut; the rest is what the device
sends. The oracle has a parser of its own, which sees all bytes at once and knows only the standard.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from hearth.drivers.modbus.codec import (
    MOST_STRAYS,
    BadAnswer,
    ModbusFraming,
    ModbusRequest,
    RtuFraming,
    TcpFraming,
    read_request,
    write_request,
)

from ..mutation import bytes_of

if TYPE_CHECKING:
    import random

UNIT: Final = 17
REQUESTS: Final = (
    read_request(UNIT, "coil", 3, 10),
    read_request(UNIT, "discrete", 0, 2000),
    read_request(UNIT, "holding", 100, 1),
    read_request(UNIT, "input", 0, 125),
    write_request(UNIT, "coil", 5, (1,)),
    write_request(UNIT, "holding", 6, (0x1234,)),
    write_request(UNIT, "coil", 7, (1, 0, 1, 1)),
    write_request(UNIT, "holding", 8, (1, 2, 3)),
)
TRANSACTION: Final = 0x0101
DICTIONARY = (b"\x11", b"\x01\x01\x00\x00", b"\x00\x05", b"\x03\x02", b"\x83\x02")


def _crc(data: bytes) -> bytes:
    """The checksum, bit by bit."""
    crc = 0xFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return struct.pack("<H", crc)


def _fits(request: ModbusRequest, pdu: bytes) -> bool:
    """Return True if a PDU answers a request by the standard."""
    function, first, second = struct.unpack_from(">BHH", request.pdu)
    if pdu[:1] == bytes((function | 0x80,)):
        return len(pdu) == 2
    if function in (1, 2):
        return pdu[:2] == bytes((function, -(-second // 8))) and len(pdu) == 2 + pdu[1]
    if function in (3, 4):
        return pdu[:2] == bytes((function, 2 * second)) and len(pdu) == 2 + pdu[1]
    return pdu == struct.pack(">BHH", function, first, second)


def _serial(request: ModbusRequest, stream: bytes) -> bytes | None:
    """Return the answer that ends first in a stream; None if there is none, behind a request of another master too."""
    function, _, count = struct.unpack_from(">BHH", request.pdu)
    begin = bytes((UNIT,)) + request.answer
    answers = {1: 5 + -(-count // 8), 2: 5 + -(-count // 8), 3: 5 + 2 * count, 4: 5 + 2 * count}.get(function, 8)
    own = bytes((UNIT,)) + request.pdu
    own += _crc(own)
    first = 0
    for end in range(1, len(stream) + 1):
        if function < 5 and end - first >= len(own) and stream[:end].endswith(own):
            first = end  # it came back
            continue
        for size in (answers, 5, 6, 7, 8):
            frame = stream[end - size : end] if end - first >= size else b""
            if frame[:1] != bytes((UNIT,)) or _crc(frame[:-2]) != frame[-2:]:
                continue
            if size == answers and _fits(request, frame[1:-2]):
                return frame[1:-2]
            within = stream.find(begin, max(first, end + 1 - answers), end - size) >= 0
            if frame[1] == function | 0x80 and size <= 8 and not within:
                return frame[1:3]
        frame = stream[max(0, end - 8) : end]
        if len(frame) == 8 and frame[:2] == bytes((UNIT, function)) and _crc(frame[:-2]) == frame[-2:]:
            first = end
    return None


def _connection(request: ModbusRequest, stream: bytes) -> bytes | None:
    for _ in range(MOST_STRAYS + 1):
        if len(stream) < 7:
            return None
        transaction, protocol, length = struct.unpack_from(">HHH", stream)
        exception = stream[6:8] == bytes((UNIT, request.pdu[0] | 0x80)) and transaction == TRANSACTION
        if exception and not protocol:
            return stream[7:9] if len(stream) >= 9 else None
        frame, stream = stream[6 : 6 + length], stream[6 + length :]
        if protocol or not 3 <= length <= 254 or len(frame) < length:
            return None
        if transaction == TRANSACTION:
            return frame[1:] if frame[0] == UNIT and _fits(request, frame[1:]) else None
    return None


def _outcome(framing: ModbusFraming, request: ModbusRequest, parts: list[bytes]) -> bytes | str | None:
    framing.begin(request)
    for part in parts:
        try:
            pdu = framing.feed(part)
        except BadAnswer as refusal:
            why = str(refusal)
            if not why.isprintable():
                raise AssertionError(f"a refusal that is not for a terminal: {why!r}") from refusal
            return "refused"
        if pdu is not None:
            return pdu
    return None


def check(data: bytes) -> None:
    """See the package."""
    if len(data) < 2:
        return
    request, stream = REQUESTS[data[0] >> 1 & 7], data[2:]
    serial, step = not data[0] & 1, 1 + data[1]

    def new() -> ModbusFraming:
        return RtuFraming() if serial else TcpFraming(TRANSACTION - 1)

    whole = _outcome(new(), request, [stream])
    cut = _outcome(new(), request, [stream[at : at + step] for at in range(0, len(stream), step)])
    single = _outcome(new(), request, [stream[at : at + 1] for at in range(len(stream))])
    assert whole == cut == single, "it depends on how the bytes come"
    expected = (_serial if serial else _connection)(request, stream)
    assert (whole if isinstance(whole, bytes) else None) == expected, "another answer than by the standard"


def seeds() -> list[bytes]:
    """The answers to each request in both framings, exceptions, and a late one before the right one."""
    found = []
    for number, request in enumerate(REQUESTS):
        good = request.answer.ljust(request.size, b"\x5a")
        for pdu in (good, bytes((request.pdu[0] | 0x80, 2))):
            frame = bytes((UNIT,)) + pdu
            stream = struct.pack(">HHH", TRANSACTION, 0, len(frame)) + frame
            late = struct.pack(">HHH", TRANSACTION - 1, 0, len(frame)) + frame
            found += [bytes((number << 1, 3)) + before + frame + _crc(frame) for before in (b"", b"\0", b"\x11\x03")]
            found += [bytes((number << 1 | 1, 3)) + one for one in (stream, late + stream)]
    return found


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change bytes; half of the time give a serial frame the checksum that it then must have."""
    changed = bytes_of(data, rng)
    if len(changed) > 4 and not changed[0] & 1 and rng.random() < 0.5:
        return changed[:-2] + _crc(changed[2:-2])
    return changed
