"""Exchanges on an adapter that has no raw I2C: each as the one SMBus call that puts the same bytes on the wire.

Owns the table of those calls and the choice among them by the adapter's functionality bits. It refuses to split an
exchange into two: between them somebody else could move the device's pointer, and a device sees a STOP that nobody
asked for.
"""

from __future__ import annotations

from fcntl import ioctl
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.i2c import Message, Read, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smbus2 import SMBus

BLOCK_MAX = 32

I2C, TEN_BIT = 0x00000001, 0x00000002
QUICK, RECEIVE = 0x00010000, 0x00020000

_SEND, _READ_BYTE, _WRITE_BYTE, _READ_WORD, _WRITE_WORD = 0x00040000, 0x00080000, 0x00100000, 0x00200000, 0x00400000
_PROCESS, _READ_BLOCK, _WRITE_BLOCK = 0x00800000, 0x04000000, 0x08000000

FUNCTIONS: dict[str, int] = {
    "i2c": I2C,
    "10bit": TEN_BIT,
    "quick": QUICK,
    "receive-byte": RECEIVE,
    "send-byte": _SEND,
    "read-byte-data": _READ_BYTE,
    "write-byte-data": _WRITE_BYTE,
    "read-word-data": _READ_WORD,
    "write-word-data": _WRITE_WORD,
    "process-call": _PROCESS,
    "read-i2c-block": _READ_BLOCK,
    "write-i2c-block": _WRITE_BLOCK,
}
"""The functionality bits that matter here, by name (linux/i2c.h)."""


@frozen
class Call:
    """One SMBus call: how many bytes it writes (the register's number included) and how many it then reads."""

    name: str
    needs: int
    writes: range
    reads: range
    run: Callable[[SMBus, int, bytes, int], bytes]
    """Make the call: the handle (set to the address already), the address, what is written, how much is read."""

    def told(self) -> str:
        """Its shape in words."""
        parts = [_span("write", self.writes), _span("read", self.reads)]
        return f"{self.name} ({', '.join(part for part in parts if part)})"


def _span(what: str, span: range) -> str:
    if span[-1] == 0:
        return ""
    return f"{what} {span[0]}" if len(span) == 1 else f"{what} {span[0]} to {span[-1]}"


def _exactly(count: int) -> range:
    return range(count, count + 1)


def _send(bus: SMBus, addr: int, data: bytes, _length: int) -> bytes:
    bus.write_byte(addr, data[0])
    return b""


def _receive(bus: SMBus, addr: int, _data: bytes, _length: int) -> bytes:
    return bytes([bus.read_byte(addr)])


def _write_byte(bus: SMBus, addr: int, data: bytes, _length: int) -> bytes:
    bus.write_byte_data(addr, data[0], data[1])
    return b""


def _read_byte(bus: SMBus, addr: int, data: bytes, _length: int) -> bytes:
    return bytes([bus.read_byte_data(addr, data[0])])


def _write_word(bus: SMBus, addr: int, data: bytes, _length: int) -> bytes:
    bus.write_word_data(addr, data[0], int.from_bytes(data[1:], "little"))
    return b""


def _read_word(bus: SMBus, addr: int, data: bytes, _length: int) -> bytes:
    return bus.read_word_data(addr, data[0]).to_bytes(2, "little")


def _process(bus: SMBus, addr: int, data: bytes, _length: int) -> bytes:
    answer: int = bus.process_call(addr, data[0], int.from_bytes(data[1:], "little"))
    return answer.to_bytes(2, "little")


def _write_block(bus: SMBus, addr: int, data: bytes, _length: int) -> bytes:
    bus.write_i2c_block_data(addr, data[0], list(data[1:]))
    return b""


def _read_block(bus: SMBus, addr: int, data: bytes, length: int) -> bytes:
    # Not by the library's own call, which returns `length` bytes whatever the kernel says that it got.
    from smbus2.smbus2 import I2C_SMBUS, I2C_SMBUS_I2C_BLOCK_DATA, I2C_SMBUS_READ, i2c_smbus_ioctl_data

    assert bus.fd is not None
    call = i2c_smbus_ioctl_data.create(I2C_SMBUS_READ, data[0], I2C_SMBUS_I2C_BLOCK_DATA)
    call.data.contents.block[0] = length
    ioctl(bus.fd, I2C_SMBUS, call)
    count = call.data.contents.block[0]
    return bytes(call.data.contents.block[1 : min(count, BLOCK_MAX) + 1])


_NONE, _ONE, _TWO, _THREE = (_exactly(count) for count in range(4))

CALLS = (
    Call("send byte", _SEND, _ONE, _NONE, _send),
    Call("receive byte", RECEIVE, _NONE, _ONE, _receive),
    Call("write byte data", _WRITE_BYTE, _TWO, _NONE, _write_byte),
    Call("read byte data", _READ_BYTE, _ONE, _ONE, _read_byte),
    Call("write word data", _WRITE_WORD, _THREE, _NONE, _write_word),
    Call("read word data", _READ_WORD, _ONE, _TWO, _read_word),
    Call("process call", _PROCESS, _THREE, _TWO, _process),
    Call("write I2C block", _WRITE_BLOCK, range(2, BLOCK_MAX + 2), _NONE, _write_block),
    Call("read I2C block", _READ_BLOCK, _ONE, range(1, BLOCK_MAX + 1), _read_block),
)
"""The smallest call that fits comes first: a register of one byte or of two is what most adapters can do.

Words go over the wire low byte first, so that the bytes of a message keep their order.
"""


def call_for(messages: Sequence[Message], functionality: int) -> tuple[Call, bytes, int] | None:
    """The call that does `messages` as one exchange, with what it writes and how much it reads; None: there is none."""
    match messages:
        case [Write(data)]:
            length = 0
        case [Read(length)]:
            data = b""
        case [Write(data), Read(length)]:
            pass
        case _:
            return None
    for call in CALLS:
        if functionality & call.needs and len(data) in call.writes and length in call.reads:
            return call, data, length
    return None


def functions_of(functionality: int) -> list[str]:
    """The names of an adapter's functionality bits."""
    return [name for name, bit in FUNCTIONS.items() if functionality & bit]


def able(functionality: int) -> str:
    """What an adapter can do in one exchange, in words, for an error message."""
    if functionality & I2C:
        return "; it takes raw messages, but not such a list of them: fewer at a time, or shorter ones"
    calls = [call.told() for call in CALLS if functionality & call.needs]
    return f"; it is an SMBus adapter, and in one exchange it can {', '.join(calls) or 'do nothing'}"
