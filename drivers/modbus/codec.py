"""Modbus without I/O: the frames of requests, and readers that find the answer to one request in received bytes.

It owns the bytes of the application protocol (Modbus Application Protocol V1.1b3) and of its two framings, RTU (Modbus
over Serial Line V1.02) and TCP (Messaging on TCP/IP V1.0b). It knows no clock, no port and no meaning of a register.
Values are those of the wire: 0 and 1 for coils and discrete inputs, 0 to 65535 for the 16-bit registers.

Theory of operation. A framing has one request at a time: `begin` returns its frame, then `feed` takes bytes as they
come, in any pieces, and returns the answer's PDU, or None while it is not whole. Before that it has compared all that
an answer repeats of its request: the unit, the function, the number of bytes of a read, address and value or count of a
write. A frame that differs in one of them is not the answer:

    RTU   A frame has no mark at its beginning, so the answer is looked for at each byte where it could end, with its
          checksum; stray bytes, echoes and frames of other units before it are passed over. Requests of another master
          are remembered until their answers have come, in `others`: an answer to one of them may look like this one's,
          so `feed` returns as many more frames as `crossed` says. `fault` says why the bytes so far are not the answer.
    TCP   skips a frame of another transaction, a late answer, and goes on behind it. A header that is none, or too many
          such frames, raise BadStream: the connection cannot be used any more. With `tid` "zero" or "any" an answer has
          no number of its own, and is told by unit, function and size as on a serial line.

Neither keeps more bytes than one `feed` and two frames have.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

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
    """The received bytes are not the answer."""


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


def write_request(
    unit: int, table: ModbusTable, reg: int, values: tuple[int, ...], *, multiple: bool = False
) -> ModbusRequest:
    """Return the request to write bits or registers from `reg` on, a single one by function 5 or 6.

    With `multiple` a single one is written by function 15 or 16 too.
    """
    if len(values) == 1 and not multiple:
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

    frame: bytes
    """The unit and the PDU of the frame that `feed` has returned last."""
    found: int
    """Frames that `feed` has returned since the request began."""
    any_unit: bool

    @property
    def crossed(self) -> int:
        """Return how many requests of another master have answers that look like the frame returned last."""
        ...

    def begin(self, request: ModbusRequest) -> bytes:
        """Return the request's frame, and expect its answer from now on."""
        ...

    def feed(self, data: bytes, at: float = 0.0) -> bytes | None:
        """Take bytes that were received at a time; return the answer's PDU once it is whole. Raises BadAnswer."""
        ...

    def end(self) -> None:
        """Expect no answer any more, neither to the last request nor to those of another master that look like it."""
        ...

    def asked(self, request: ModbusRequest, since: float) -> float | None:
        """Return when another master last asked for what would look like the answer to a read; None if it is answered.

        Requests before `since` are forgotten.
        """
        ...

    def restart(self) -> None:
        """Forget the bytes so far, and expect the answer still: those that follow are of another connection."""
        ...

    def fault(self) -> str | None:
        """Return why the bytes so far are not the answer; None if none have come."""
        ...


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


_KEPT: Final = 2 * 260
_FIRST: Final = 6
"""Bytes by which an answer is told from others."""
_EXCEPTIONS_SIZE: Final = range(5, 9)
"""Bytes of an exception's frame: 5, and up to three more from devices that fill it up."""


class _Other(NamedTuple):
    """A request of another master that was heard: its unit and function, the bytes of its answer, and when."""

    unit: int
    function: int
    size: int
    at: float


_MOST_OTHERS: Final = 16


class RtuFraming:
    """Modbus RTU: unit, PDU and CRC. With `loopback` the port receives what it sends, and that must come first.

    A port that is seen to receive a read is taken to receive the next write too, which the echo would confirm. With
    `any_unit` the answer's unit is not compared.
    """

    def __init__(self, *, loopback: bool = False, any_unit: bool = False) -> None:
        self.frame, self.found = b"", 0
        self.loopback, self.any_unit = loopback, any_unit
        self.echoed = False
        """True if the last request came back."""
        self.others: list[_Other] = []
        self._request = ModbusRequest(0, b"", b"\0", 0)
        self._awaits = False
        self._own = b""
        self._data = bytearray()
        self._seen = self._from = self._end = 0
        """The bytes in which no more frames end; those before the answer; those before any further frame."""
        self._skip_own = loopback
        self._first = b""
        self._damaged = False
        self._of_zero = False
        """True if a frame came that would be the answer, but for its unit 0, which no device has."""

    def begin(self, request: ModbusRequest) -> bytes:
        """See ModbusFraming."""
        self._request, self._own = request, checked(bytes((request.unit,)) + request.pdu)
        self._skip_own = self.loopback or self.echoed or request.pdu[0] in READS.values()
        self.echoed, self._damaged, self._awaits = False, False, True
        self.found, self._first, self._of_zero = 0, b"", False
        self._seen = self._from = len(self._data)
        return self._own

    def end(self) -> None:
        """See ModbusFraming."""
        self._awaits = False
        self.others = [one for one in self.others if not self._alike(one)]

    def restart(self) -> None:
        """See ModbusFraming."""
        self._data.clear()
        self._seen = self._from = self._end = 0

    def feed(self, data: bytes, at: float = 0.0) -> bytes | None:
        """See ModbusFraming; bytes behind the answer are looked at by the next call."""
        self._data += data
        if len(self._first) < _FIRST:
            self._first = bytes(self._data[self._from : self._from + _FIRST])
        while self._seen < len(self._data):
            self._seen += 1
            pdu = self._ending(at)
            if pdu is not None:
                if self.loopback and not self.echoed:
                    raise BadAnswer(_NO_ECHO)
                return pdu
        cut = max(0, len(self._data) - _KEPT)
        del self._data[:cut]
        self._seen -= cut
        self._from, self._end = max(0, self._from - cut), max(0, self._end - cut)
        return None

    def _ending(self, at: float) -> bytes | None:
        """Return the PDU of the answer that ends behind the bytes seen; note the other frames that end there."""
        write = len(self._request.answer) > 2
        own = self._skip_own and not (self.echoed and write) and self._tail(len(self._own)) == self._own
        if own and self._own:
            self.echoed, self._from, self._end = True, self._seen, self._seen
            return None
        pdu = self._answer() if self._awaits else None
        if pdu is None:
            self._foreign(at)
        return pdu

    def _answer(self) -> bytes | None:
        request = self._request
        frame = self._tail(request_size(request))
        if frame[1 : 1 + len(request.answer)] == request.answer:
            sound, ours = checked(frame[:-2]) == frame, self._is_of(frame[:1])
            if sound and ours:
                return self._take(frame)
            self._damaged = self._damaged or ours
            self._of_zero = self._of_zero or (sound and not frame[0])
        for size in _EXCEPTIONS_SIZE:
            frame = self._tail(size)
            failed = frame[1:2] == bytes((request.answer[0] | FAILED,)) and self._is_of(frame[:1])
            if failed and not self._within(size) and checked(frame[:-2]) == frame:
                return self._take(frame)[:2]
        return None

    def _foreign(self, at: float) -> None:
        """Note a request of another master that ends behind the bytes seen, or that its answer has come."""
        for one in self.others:
            length = bytes((one.size - 5,)) if one.function in READS.values() else b""
            for size, begin in ((one.size, bytes((one.function,)) + length), (5, bytes((one.function | FAILED,)))):
                frame = self._tail(size, self._end)
                if frame.startswith(bytes((one.unit,)) + begin) and checked(frame[:-2]) == frame:
                    self.others.remove(one)
                    self._end = self._seen
                    return
        frame = self._tail(8, self._end)
        asks = frame and 1 <= frame[1] <= 6 and frame[0] and frame[:-2] != self.frame
        if asks and checked(frame[:-2]) == frame:
            self.others = self.others[1 - _MOST_OTHERS :]
            self.others.append(_Other(frame[0], frame[1], 3 + _answer_size(frame[1:-2]), at))
            self._end = self._seen

    def _tail(self, size: int, since: int | None = None) -> bytes:
        """Return the last bytes that are seen, nothing if so many have not come since the request, or since a place."""
        first = self._from if since is None else since
        return bytes(self._data[self._seen - size : self._seen]) if self._seen - size >= first else b""

    def _is_of(self, unit: bytes) -> bool:
        return self.any_unit or unit == bytes((self._request.unit,))

    def _within(self, size: int) -> bool:
        """Return True if the last bytes lie in what may become the answer: they are then its data."""
        begin = bytes((self._request.unit,)) + self._request.answer
        at = self._data.find(begin, max(self._from, self._seen + 1 - request_size(self._request)), self._seen - size)
        return at >= 0

    def _take(self, frame: bytes) -> bytes:
        self.frame, self._from, self._end = frame[:-2], self._seen, self._seen
        self.found += 1
        return frame[1:-2]

    def _alike(self, other: _Other) -> bool:
        """Return True if the answer to another master's request may look like the frame that was returned last."""
        failed = len(self.frame) > 1 and self.frame[1] & FAILED
        same = bytes((other.function,)) == self._request.pdu[:1]
        return self._is_of(bytes((other.unit,))) and same and bool(failed or other.size == request_size(self._request))

    @property
    def crossed(self) -> int:
        """See ModbusFraming."""
        return sum(map(self._alike, self.others))

    def asked(self, request: ModbusRequest, since: float) -> float | None:
        """See ModbusFraming."""
        self.others = [one for one in self.others if one.at >= since]
        if request.pdu[0] not in READS.values():
            return None
        of = (one for one in self.others if one.function == request.pdu[0])
        return max((one.at for one in of if self.any_unit or one.unit == request.unit), default=None)

    def fault(self) -> str | None:
        """See ModbusFraming."""
        if self.loopback and not self.echoed and self._first:
            return _NO_ECHO
        if self._damaged:
            return "its checksum is wrong"
        if self.echoed and not self.loopback:
            return f"only the request itself came back; {LOOPBACK}"
        if not self._first or self.echoed:
            return None
        begin = bytes((self._request.unit,)) + self._request.answer
        if begin.startswith(self._first[: len(begin)]):
            return None  # its end is missing
        if self._first[:1] == b":" and self._first[1:].isalnum():
            return "it is Modbus ASCII; set the device to RTU, which hearth speaks"
        if self._of_zero:
            return _of_unit(0)
        if self._first[:1] != begin[:1]:
            return f"a frame of unit {self._first[0]}, or noise"
        return "it begins like the answer to another request"


LOOPBACK: Final = "if the port receives what it sends, give the line loopback = true"
_NO_ECHO: Final = "the port does not receive what it sends, as its loopback says"


def _of_unit(unit: int) -> str:
    return f'it is of unit {unit}; if the device always says so, give it unit_reply = "any"'


def _answer_size(pdu: bytes) -> int:
    """Return the bytes of the PDU that answers a request of eight bytes."""
    count = int.from_bytes(pdu[3:5], "big")
    size = (count + 7) // 8 if pdu[0] < 3 else 2 * count
    return 2 + size % 256 if pdu[0] in READS.values() else 5


def request_size(request: ModbusRequest) -> int:
    """Return the bytes of the RTU frame that answers a request."""
    return 1 + request.size + 2


Tid: TypeAlias = Literal["same", "next", "zero", "any"]
_HEADER: Final = struct.Struct(">HHHB")
_EXCEPTION_SIZE: Final = 9
"""Bytes of an exception: the header, the function and the code."""
MOST_STRAYS: Final = 64
"""Frames of other transactions that are skipped in the search for one answer: more are no late answers."""


class TcpFraming:
    """Modbus TCP: transaction, protocol (0), length and unit before the PDU.

    `tid` is the number that the server gives its answers: the request's ("same"), the one after it ("next"), 0
    ("zero"), or any number. With `any_unit` the answer's unit is not compared.
    """

    crossed = 0

    def __init__(self, transaction: int = 0, *, tid: Tid = "same", any_unit: bool = False) -> None:
        self.frame, self.found = b"", 0
        self.any_unit = any_unit
        self._tid = tid
        self._transaction = transaction
        self._request = ModbusRequest(0, b"", b"\0", 0)
        self._data = bytearray()
        self._strays = 0
        self._other: int | None = None
        """The number of an answer that was skipped."""

    @property
    def numbered(self) -> bool:
        """True if an answer's number tells whose it is."""
        return self._tid in ("same", "next")

    def begin(self, request: ModbusRequest) -> bytes:
        """See ModbusFraming. Each request has the number after the last one's."""
        self._transaction = self._transaction + 1 & 0xFFFF
        self._request, self._strays, self._other, self.found = request, 0, None, 0
        return _HEADER.pack(self._transaction, 0, 1 + len(request.pdu), request.unit) + request.pdu

    def feed(self, data: bytes, at: float = 0.0) -> bytes | None:
        """See ModbusFraming; bytes behind the answer are kept, because they begin the next frame."""
        del at
        self._data += data
        while len(self._data) > _HEADER.size:
            transaction, protocol, length, unit = _HEADER.unpack_from(self._data)
            mine = self._mine(transaction)
            if mine and not protocol and self._failing(unit):
                if len(self._data) < _EXCEPTION_SIZE:
                    return None
                # Some devices give another length than they send: the code is behind the function in any case.
                return self._found(unit, bytes(self._data[_HEADER.size : _EXCEPTION_SIZE]), 6 + length)
            if protocol or not 3 <= length <= 254:
                raise BadStream("this is no Modbus TCP")
            if len(self._data) < 6 + length:
                return None
            pdu = bytes(self._data[_HEADER.size : 6 + length])
            fault = self._fault_of(unit, pdu)
            if mine and (fault is None or self.numbered):
                pdu = self._found(unit, pdu, 6 + length)
                if fault is not None:
                    raise BadAnswer(fault)
                return pdu
            self._skip(6 + length, None if mine else transaction)
        return None

    def _failing(self, unit: int) -> bool:
        """Return True if the function behind the header is that of an exception."""
        ours = self.any_unit or unit == self._request.unit
        return ours and self._data[_HEADER.size] == self._request.answer[0] | FAILED

    def _skip(self, size: int, number: int | None) -> None:
        """Pass a frame over. Raises BadStream for too many of them."""
        del self._data[:size]
        self._strays, self._other = self._strays + 1, number
        if self._strays > MOST_STRAYS:
            raise BadStream(f"more than {MOST_STRAYS} answers to other requests")

    def end(self) -> None:
        """See ModbusFraming."""

    def asked(self, request: ModbusRequest, since: float) -> None:
        """See ModbusFraming."""

    def restart(self) -> None:
        """See ModbusFraming."""
        self._data.clear()

    def _mine(self, transaction: int) -> bool:
        wanted = {"same": self._transaction, "next": self._transaction + 1 & 0xFFFF, "zero": 0, "any": transaction}
        return transaction == wanted[self._tid]

    def _found(self, unit: int, pdu: bytes, size: int) -> bytes:
        del self._data[: max(size, _EXCEPTION_SIZE)]
        self.frame = bytes((unit,)) + pdu
        self.found += 1
        return pdu

    def _fault_of(self, unit: int, pdu: bytes) -> str | None:
        request = self._request
        if unit != request.unit and not self.any_unit:
            return _of_unit(unit)
        return None if len(pdu) == request.size and pdu.startswith(request.answer) else "it does not fit the request"

    def fault(self) -> str | None:
        """See ModbusFraming; answers to earlier requests are none."""
        if self._other is None or self._tid == "any":
            return None
        cure = {0: "zero", self._transaction + 1 & 0xFFFF: "next"}.get(self._other)
        told = f"an answer has the number {self._other} in place of {self._transaction}"
        return told if cure is None else f'{told}; if it always does, give the line tid = "{cure}"'
