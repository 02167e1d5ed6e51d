"""Modbus without I/O: the frames of requests, and readers that find the answer to one request in received bytes.

It owns the bytes of the application protocol (Modbus Application Protocol V1.1b3) and of its two framings, RTU (Modbus
over Serial Line V1.02) and TCP (Messaging on TCP/IP V1.0b). It knows no clock, no port and no meaning of a register.
Values are those of the wire: 0 and 1 for coils and discrete inputs, 0 to 65535 for the 16-bit registers.

Theory of operation. A framing has one request at a time: `begin` returns its frame, then `feed` takes bytes as they
come, in any pieces, and returns the answer's PDU, or None while it is not whole. Before that it has compared all that
an answer repeats of its request: the unit, the function, the number of bytes of a read, address and value or count of a
write. A frame that differs in one of them is not the answer:

    RTU   raises BadAnswer. A frame has no beginning that could be found again, so no answer is looked for within other
          bytes. After a silence `restart` expects the answer to the same request once more.
    TCP   skips a frame of another transaction, a late answer, and goes on behind it. A header that is none, or too many
          such frames, raise BadStream: the connection cannot be used any more.

Neither keeps more bytes than one `feed` and one frame have.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, Protocol, TypeAlias

from attrs import frozen

ModbusTable: TypeAlias = Literal["coil", "discrete", "input", "holding"]

BITS: Final = ("coil", "discrete")
"""The tables of single bits."""
WRITABLE: Final = ("coil", "holding")
MOST_READ: Final = {"coil": 2000, "discrete": 2000, "input": 125, "holding": 125}
MOST_WRITTEN: Final = {"coil": 1968, "holding": 123}
"""Most bits or registers in one request."""

READS: Final[dict[str, int]] = {"coil": 1, "discrete": 2, "holding": 3, "input": 4}
"""The function that reads each table."""
WRITES_ONE: Final = {"coil": 5, "holding": 6}
WRITES_MANY: Final = {"coil": 15, "holding": 16}
COIL_ON: Final = 0xFF00
FAILED: Final = 0x80
"""Added to the function in an answer that is an exception."""

EXCEPTIONS: Final = {
    1: "illegal function: it does not know this kind of request",
    2: "illegal data address: it has no such register",
    3: "illegal data value",
    4: "device failure while it did this",
    5: "acknowledge: it has accepted this and needs more time",
    6: "busy: ask again later",
    8: "memory parity error",
    10: "the gateway has no path to it",
    11: "it did not answer the gateway",
}
WITHOUT_EFFECT: Final = (1, 2, 3, 6, 10)
"""Exceptions by which a device refuses a request before it has done anything."""


class BadAnswer(Exception):
    """The received bytes are not the answer. `begun`: they begin as it would, so no other one is to be expected."""

    def __init__(self, why: str, *, begun: bool = False) -> None:
        super().__init__(why)
        self.begun = begun


class BadStream(BadAnswer):
    """The received bytes are no Modbus TCP: where the next frame begins cannot be known."""


@frozen
class ModbusRequest:
    """A request to a unit. `answer` is the beginning of its answer's PDU, `size` the bytes of that PDU."""

    unit: int
    pdu: bytes
    answer: bytes
    size: int


def read_request(unit: int, table: ModbusTable, reg: int, count: int) -> ModbusRequest:
    """Return the request to read `count` bits or registers from `reg` on."""
    function, length = READS[table], (count + 7) // 8 if table in BITS else 2 * count
    return ModbusRequest(unit, struct.pack(">BHH", function, reg, count), bytes((function, length)), 2 + length)


def read_values(table: ModbusTable, count: int, pdu: bytes) -> tuple[int, ...]:
    """Return the values in the answer to a read of `count` bits or registers."""
    if table in BITS:
        return tuple(pdu[2 + index // 8] >> index % 8 & 1 for index in range(count))
    return struct.unpack_from(f">{count}H", pdu, 2)


def write_request(unit: int, table: ModbusTable, reg: int, values: tuple[int, ...]) -> ModbusRequest:
    """Return the request to write bits or registers from `reg` on; a single one has a function of its own."""
    if len(values) == 1:
        value = (COIL_ON if values[0] else 0) if table == "coil" else values[0]
        pdu = struct.pack(">BHH", WRITES_ONE[table], reg, value)
    else:
        data = pack_bits(values) if table == "coil" else struct.pack(f">{len(values)}H", *values)
        pdu = struct.pack(">BHHB", WRITES_MANY[table], reg, len(values), len(data)) + data
    return ModbusRequest(unit, pdu, pdu[:5], 5)


def pack_bits(values: tuple[int, ...]) -> bytes:
    """Return bits as bytes, the first one in the lowest bit of the first byte."""
    number = sum(1 << index for index, value in enumerate(values) if value)
    return number.to_bytes((len(values) + 7) // 8, "little")


class ModbusFraming(Protocol):
    """One of the two framings; see the head of this module."""

    def begin(self, request: ModbusRequest) -> bytes:
        """Return the request's frame, and expect its answer from now on."""
        ...

    def feed(self, data: bytes) -> bytes | None:
        """Take received bytes; return the answer's PDU once it is whole. Raises BadAnswer."""
        ...

    def restart(self) -> None:
        """Forget the bytes so far, and expect the answer still."""


def _crc_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0xA001 if byte & 1 else 0)
    return byte


_CRC: Final = tuple(map(_crc_entry, range(256)))


def checked(frame: bytes) -> bytes:
    """Return a frame with its CRC-16 (the reflected polynomial 0xA001, begun with 0xFFFF), low byte first."""
    crc = 0xFFFF
    for byte in frame:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return frame + crc.to_bytes(2, "little")


class RtuFraming:
    """Modbus RTU: unit, PDU and CRC. With `loopback` the port receives what it sends, which is compared and skipped."""

    def __init__(self, *, loopback: bool = False) -> None:
        self._loopback = loopback
        self._request = ModbusRequest(0, b"", b"", 0)
        self._own = b""
        self._data = bytearray()

    def begin(self, request: ModbusRequest) -> bytes:
        """See ModbusFraming."""
        frame = checked(bytes((request.unit,)) + request.pdu)
        self._request, self._own = request, frame if self._loopback else b""
        self._data.clear()
        return frame

    def restart(self) -> None:
        """See ModbusFraming."""
        self._own = b""
        self._data.clear()

    def feed(self, data: bytes) -> bytes | None:
        """See ModbusFraming; bytes behind the answer are dropped."""
        self._data += data
        own = len(self._own)
        if bytes(self._data[:own]) != self._own[: len(self._data)]:
            raise BadAnswer("the port does not receive what it sends, as its rs485.loopback says")
        frame, request = bytes(self._data[own : own + request_size(self._request)]), self._request
        if frame and frame[0] != request.unit:
            raise BadAnswer(f"a frame of unit {frame[0]}, or noise")
        failed = len(frame) > 1 and frame[1] == request.answer[0] | FAILED
        if not failed and frame[1 : 1 + len(request.answer)] != request.answer[: max(0, len(frame) - 1)]:
            raise BadAnswer("it begins like the answer to another request", begun=frame[1] == request.answer[0])
        size = 5 if failed else request_size(request)
        if len(frame) < size:
            return None
        if checked(frame[: size - 2]) != frame[:size]:
            raise BadAnswer("its checksum is wrong", begun=True)
        return frame[1 : size - 2]


def request_size(request: ModbusRequest) -> int:
    """Return the bytes of the RTU frame that answers a request."""
    return 1 + request.size + 2


_HEADER: Final = struct.Struct(">HHHB")
MOST_STRAYS: Final = 64
"""Frames of other transactions that are skipped in the search for one answer: more are no late answers."""


class TcpFraming:
    """Modbus TCP: transaction, protocol (0), length and unit before the PDU."""

    def __init__(self, transaction: int = 0) -> None:
        self._transaction = transaction
        self._request = ModbusRequest(0, b"", b"", 0)
        self._data = bytearray()
        self._strays = 0

    def begin(self, request: ModbusRequest) -> bytes:
        """See ModbusFraming. Each request has the number after the last one's."""
        self._transaction = self._transaction + 1 & 0xFFFF
        self._request, self._strays = request, 0
        return _HEADER.pack(self._transaction, 0, 1 + len(request.pdu), request.unit) + request.pdu

    def restart(self) -> None:
        """See ModbusFraming."""
        self._data.clear()

    def feed(self, data: bytes) -> bytes | None:
        """See ModbusFraming; bytes behind the answer are kept, because they begin the next frame."""
        self._data += data
        while len(self._data) >= _HEADER.size:
            transaction, protocol, length, unit = _HEADER.unpack_from(self._data)
            if protocol or not 3 <= length <= 254:
                raise BadStream("this is no Modbus TCP")
            if len(self._data) < 6 + length:
                return None
            pdu = bytes(self._data[_HEADER.size : 6 + length])
            del self._data[: 6 + length]
            if transaction == self._transaction:
                return self._answer(unit, pdu)
            self._strays += 1
            if self._strays > MOST_STRAYS:
                raise BadStream(f"more than {MOST_STRAYS} answers to other requests")
        return None

    def _answer(self, unit: int, pdu: bytes) -> bytes:
        request = self._request
        failed = len(pdu) == 2 and pdu[0] == request.answer[0] | FAILED
        if unit != request.unit:
            raise BadAnswer(f"it is of unit {unit}", begun=True)
        if not failed and not (len(pdu) == request.size and pdu.startswith(request.answer)):
            raise BadAnswer("it does not fit the request", begun=True)
        return pdu
