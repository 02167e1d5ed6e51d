"""Exchanges on an adapter without raw I2C: each as the one SMBus call that puts the same bytes on the wire.

This is the table of those calls and the choice among them by the adapter's functionality bits. An exchange is never
split into two: between them another program could move the device's pointer, and the device would see a STOP that was
not requested.
"""

from __future__ import annotations

from fcntl import ioctl
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.registers import Message, Read, Write

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
"""The functionality bits used here, by name (linux/i2c.h)."""


@frozen
class SmbusCall:
    """One SMBus call: the bytes it writes (the register's number included) and the bytes it then reads."""

    name: str
    needs: int
    writes: range
    reads: range
    run: Callable[[SMBus, int, bytes, int], bytes | None]
    """Make the call: the handle (set to the address already), the address, the bytes to write, the length to read."""

    def shape(self) -> str:
        """Return its shape in words."""
        parts = [_span("write", self.writes), _span("read", self.reads)]
        return f"{self.name} ({', '.join(part for part in parts if part)})"


def _span(what: str, span: range) -> str:
    if span[-1] == 0:
        return ""
    return f"{what} {span[0]}" if len(span) == 1 else f"{what} {span[0]} to {span[-1]}"


def _exactly(count: int) -> range:
    return range(count, count + 1)


def _read_block(bus: SMBus, addr: int, data: bytes, length: int) -> bytes:
    # Not by the library's own call, which returns `length` bytes however many the kernel got.
    from smbus2.smbus2 import I2C_SMBUS, I2C_SMBUS_I2C_BLOCK_DATA, I2C_SMBUS_READ, i2c_smbus_ioctl_data

    assert bus.fd is not None
    call = i2c_smbus_ioctl_data.create(I2C_SMBUS_READ, data[0], I2C_SMBUS_I2C_BLOCK_DATA)
    call.data.contents.block[0] = length
    ioctl(bus.fd, I2C_SMBUS, call)
    count = call.data.contents.block[0]
    return bytes(call.data.contents.block[1 : min(count, BLOCK_MAX) + 1])


_NONE, _ONE, _TWO, _THREE = (_exactly(count) for count in range(4))

CALLS = (
    SmbusCall("send byte", _SEND, _ONE, _NONE, lambda bus, addr, data, _: bus.write_byte(addr, data[0])),
    SmbusCall("receive byte", RECEIVE, _NONE, _ONE, lambda bus, addr, _, __: bytes([bus.read_byte(addr)])),
    SmbusCall(
        "write byte data", _WRITE_BYTE, _TWO, _NONE,
        lambda bus, addr, data, _: bus.write_byte_data(addr, data[0], data[1]),
    ),
    SmbusCall(
        "read byte data", _READ_BYTE, _ONE, _ONE, lambda bus, addr, data, _: bytes([bus.read_byte_data(addr, data[0])])
    ),
    SmbusCall(
        "write word data", _WRITE_WORD, _THREE, _NONE,
        lambda bus, addr, data, _: bus.write_word_data(addr, data[0], int.from_bytes(data[1:], "little")),
    ),
    SmbusCall(
        "read word data", _READ_WORD, _ONE, _TWO,
        lambda bus, addr, data, _: bus.read_word_data(addr, data[0]).to_bytes(2, "little"),
    ),
    SmbusCall(
        "process call", _PROCESS, _THREE, _TWO,
        lambda bus, addr, data, _: bus.process_call(addr, data[0], int.from_bytes(data[1:], "little")).to_bytes(
            2, "little"
        ),
    ),
    SmbusCall(
        "write I2C block", _WRITE_BLOCK, range(2, BLOCK_MAX + 2), _NONE,
        lambda bus, addr, data, _: bus.write_i2c_block_data(addr, data[0], list(data[1:])),
    ),
    SmbusCall("read I2C block", _READ_BLOCK, _ONE, range(1, BLOCK_MAX + 1), _read_block),
)  # fmt: skip
"""The calls, the smallest first: most adapters can read a register of one byte or of two.

Words go over the wire low byte first, so that the bytes of a message keep their order.
"""


def call_for(messages: Sequence[Message], functionality: int) -> tuple[SmbusCall, bytes, int] | None:
    """Return the call that does `messages` as one exchange, with its bytes to write and to read; else None."""
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
    """Return the names of an adapter's functionality bits."""
    return [name for name, bit in FUNCTIONS.items() if functionality & bit]


def able(functionality: int) -> str:
    """Return the exchanges that an adapter can do, in words, for an error message."""
    if functionality & I2C:
        return "; it takes raw messages, but not such a list of them: fewer at a time, or shorter ones"
    calls = [call.shape() for call in CALLS if functionality & call.needs]
    return f"; it is an SMBus adapter, and in one exchange it can {', '.join(calls) or 'do nothing'}"
