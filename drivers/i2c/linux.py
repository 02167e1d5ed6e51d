"""An I2C adapter of the kernel's, through /dev/i2c-N (smbus2).

It owns one open handle per adapter: raw I2C_RDWR where the adapter has it, else the SMBus call that does the same; the
kernel's timeout and retries, which are the adapter's and not the handle's; and the detection of an unplugged adapter.
`linux_adapter` finds the node and translates errnos. This driver never splits an exchange, and touches no address that
a driver of the kernel's has for itself: raw I2C would reach that, since the kernel checks it for SMBus calls only.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from fcntl import ioctl
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.drivers.i2c.driver import EVERY_ADDRESS, I2cDriver, Kind, Scan, check_transfer, not_open, owned, plan
from hearth.drivers.i2c.linux_adapter import (
    DEV,
    SYS,
    cannot_open,
    failed,
    find_adapter,
    gone,
    in_words,
    owner_of,
)
from hearth.drivers.linux.device_users import shared_device
from hearth.drivers.linux.node import NodeDriver, Presence, claim_node
from hearth.drivers.registers import Message, Read, Write
from hearth.errors import DeviceError, Effect, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from smbus2 import SMBus

    from hearth.drivers.i2c.driver import Addresses

# --- i2c smbus --------------------------------------------------------------------------------------------------------
#
# Exchanges on an adapter without raw I2C: each as the one SMBus call that puts the same bytes on the wire. This is the
# table of those calls and the choice among them by the adapter's functionality bits. An exchange is never split into
# two: between them another program could move the device's pointer, and the device would see a STOP that was not
# requested.

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


# --- i2c --------------------------------------------------------------------------------------------------------------

_I2C_RETRIES, _I2C_TIMEOUT, _I2C_SLAVE = 0x0701, 0x0702, 0x0703
_TIMEOUT_UNIT_MS = 10
_TEN_BIT_FLAG = 0x0010

_NOT_ACKNOWLEDGED = (errno.ENXIO, errno.EREMOTEIO, errno.EIO, errno.ENODEV)
"""Errnos for an address that did not acknowledge a probe, which is nothing but an address."""


class LinuxI2c(NodeDriver, I2cDriver):
    """An adapter over /dev/i2c-<bus>, or over the adapter that the kernel calls `adapter`, whatever its number.

    `timeout_ms` (in steps of 10) and `retries` (of a lost arbitration) are set in the kernel when the bus is opened;
    they hold for all users of the adapter, and stay when it is closed. `speed_hz` is the board's speed of the wire: it
    cannot be set from here, and counts for the time limit only.
    """

    def __init__(
        self,
        bus: int,
        *,
        adapter: str | None = None,
        timeout_ms: int = 1000,
        retries: int = 0,
        speed_hz: int = 100_000,
        addresses: Addresses = EVERY_ADDRESS,
    ) -> None:
        NodeDriver.__init__(self)
        I2cDriver.__init__(self, bus, speed_hz, addresses)
        self.timeout_ms = timeout_ms
        self.retries = retries
        self._adapter = adapter
        self._number = bus
        self._name: str | None = None
        self._functionality = 0
        self._handle: SMBus | None = None

    # --- opening and closing -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the adapter, for this hearthd alone.

        Raises DeviceError with effect "none" (not there, no permission, not an adapter), and ResourceBusy where another
        hearthd has it.
        """
        from smbus2 import SMBus

        self._gone_report.forget()
        handle = SMBus()
        try:
            self._number = find_adapter(self.bus, self._adapter)
            handle.open(self._path)  # not by its constructor, which would leave a node that is no adapter open
            assert handle.fd is not None
            # Before anything is set: the kernel's timeout is the adapter's, and so the other hearthd's too.
            claim_node(handle.fd, f"i2c bus {self.bus}", self._path, bus=self.bus)
            # The driver's steps are coarse; rounding down could make it 0, which allows no time at all.
            ioctl(handle.fd, _I2C_TIMEOUT, -(-self.timeout_ms // _TIMEOUT_UNIT_MS))
            ioctl(handle.fd, _I2C_RETRIES, self.retries)
            self._presence = Presence(handle.fd, self._entry, self._path)
        except OSError as error:
            handle.close()
            raise cannot_open(self.bus, self._path, error) from None
        except ResourceBusy:
            handle.close()
            raise
        with suppress(OSError):  # no descriptor is left to read it with
            self._name = (self._entry / "name").read_text(encoding="utf-8").strip()
        self.shares = shared_device(self._entry)
        self._functionality = int(handle.funcs)
        self._handle = handle

    def close(self) -> None:
        """See `NodeDriver.close`."""
        super().close()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    @property
    def _path(self) -> str:
        return str(DEV / f"i2c-{self._number}")

    @property
    def _entry(self) -> Path:
        return SYS / f"class/i2c-dev/i2c-{self._number}"

    def _gone(self, effect: Effect) -> DeviceError:
        return gone(self.bus, self._path, effect=effect)

    def describe(self) -> Mapping[str, Any]:
        """Return the adapter and its settings; `functionality` and `mode` are known once it has been open."""
        described: dict[str, Any] = {
            "kind": "i2c",
            "driver": "i2c-dev",
            "bus": self.bus,
            "speed_hz": self.speed_hz,
            "timeout_ms": self.timeout_ms,
            "retries": self.retries,
        }
        name = self._name or self._adapter
        if name is not None:
            described["adapter"] = name
        if self._adapter is None or self._functionality:
            described["path"] = self._path
        if self._functionality:
            described["mode"] = "raw" if self._functionality & I2C else "smbus"
            described["functionality"] = functions_of(self._functionality)
        return described

    # --- transactions --------------------------------------------------------------------------------------------

    def transfer(self, addr: int, messages: Sequence[Message], *, ten_bit: bool = False) -> bytes:
        """See `I2cDriver.transfer`."""
        handle = self._ready()
        check_transfer(self.bus, addr, messages, self.addresses, ten_bit=ten_bit)
        ten_bit = ten_bit or addr > 0x7F
        if self._functionality & I2C:
            if ten_bit and not self._functionality & TEN_BIT:
                raise self._unable(addr, "10-bit addresses")
            self._claim(handle, addr, ten_bit=ten_bit)
            try:
                return _raw(handle, addr, messages, _TEN_BIT_FLAG if ten_bit else 0)
            except OSError as error:
                raise self._failure(error, addr, messages, ten_bit=ten_bit) from None
        if ten_bit:
            raise self._unable(addr, "10-bit addresses: it has no raw I2C")
        found = call_for(messages, self._functionality)
        if found is None:
            raise self._unable(addr, f"{in_words(messages)} as one exchange{able(self._functionality)}")
        call, data, length = found
        self._claim(handle, addr, ten_bit=False)
        try:
            answer = call.run(handle, addr, data, length) or b""
        except OSError as error:
            raise self._failure(error, addr, messages) from None
        if len(answer) != length:
            raise DeviceError(
                f"i2c bus {self.bus}, address {addr:#04x}: asked for {length} bytes, got {len(answer)}",
                effect="done",
                data={"bus": self.bus, "addr": addr, "errno": "EPROTO"},
            )
        return answer

    def scan(self, include: Collection[int] = ()) -> Scan:
        """See `I2cDriver.scan`."""
        handle = self._ready()
        planned = plan(
            include,
            quick=bool(self._functionality & QUICK),
            receive=bool(self._functionality & RECEIVE),
            addresses=self.addresses,
        )
        found: list[int] = []
        owners: dict[int, str] = {}
        for addr, kind in planned.probes.items():
            owner = owner_of(self._number, addr, ten_bit=False)
            if owner is not None:
                owners[addr] = owner
            elif self._answers(handle, addr, kind):
                found.append(addr)
        return Scan(tuple(found), owners, planned.skipped)

    def _answers(self, handle: SMBus, addr: int, kind: Kind) -> bool:
        self._claim(handle, addr, ten_bit=False)
        try:
            if kind == "quick":
                self._touch(handle, addr)
            else:
                handle.read_byte(addr)
        except OSError as error:
            if error.errno in _NOT_ACKNOWLEDGED and not self._is_gone():
                return False
            raise self._failure(error, addr, [Read(1)] if kind == "receive" else [Write(b"")]) from None
        return True

    def _touch(self, handle: SMBus, addr: int) -> None:
        """Do a quick write: the address and nothing after it.

        With raw I2C it is an empty message, to which the kernel translates a quick write. But some drivers translate it
        otherwise: that of the MCP2221 sends a zero byte, which turns a port expander's outputs off.
        """
        if self._functionality & I2C:
            try:
                _raw(handle, addr, [Write(b"")], 0)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
            else:
                return
        handle.write_quick(addr)

    def _ready(self) -> SMBus:
        if self._handle is None or self._presence is None:
            raise not_open(self.bus)
        if self._presence.unlinked():
            # Not checked at all: an adapter that is gone may take seconds to answer.
            raise self._report_gone("none")
        return self._handle

    def _claim(self, handle: SMBus, addr: int, *, ten_bit: bool) -> None:
        """Check that no driver of the kernel's has this address. Raises ResourceBusy naming it."""
        if ten_bit:
            owner = owner_of(self._number, addr, ten_bit=True)
            if owner is not None:
                raise owned(self.bus, addr, owner)
            return
        assert handle.fd is not None
        try:
            # The kernel's own check, which also knows multiplexers. Never from the cache of smbus2: a driver may have
            # been loaded since. From here on SMBus calls of this handle go to this address.
            ioctl(handle.fd, _I2C_SLAVE, addr)
        except OSError as error:
            if error.errno == errno.EBUSY:
                owner = owner_of(self._number, addr, ten_bit=False) or "of a multiplexer on the way"
                raise owned(self.bus, addr, owner) from None
            raise self._failure(error, addr, [Read(1)]) from None

    def _failure(self, error: OSError, addr: int, messages: Sequence[Message], *, ten_bit: bool = False) -> DeviceError:
        if self._is_gone():
            return self._report_gone("unknown")
        width = self.addresses.reg_width(addr, ten_bit=ten_bit)
        return failed(error, self.bus, addr, messages, width, able=able(self._functionality), retries=self.retries)

    def _is_gone(self) -> bool:
        return self._presence is None or self._presence.gone()

    def _unable(self, addr: int, what: str) -> DeviceError:
        return DeviceError(
            f"i2c bus {self.bus}: the adapter {self._name or self._path} cannot do {what}",
            effect="none",
            data={
                "bus": self.bus,
                "addr": addr,
                "errno": "EOPNOTSUPP",
                "functionality": functions_of(self._functionality),
            },
        )


def _raw(handle: SMBus, addr: int, messages: Sequence[Message], flags: int) -> bytes:
    from smbus2 import i2c_msg

    sent = []
    for message in messages:
        entry = i2c_msg.write(addr, message.data) if isinstance(message, Write) else i2c_msg.read(addr, message.length)
        entry.flags |= flags
        sent.append(entry)
    handle.i2c_rdwr(*sent)
    # i2c_rdwr passes copies of these to the kernel; the buffers that they point to are the same ones.
    return b"".join(bytes(entry) for entry, message in zip(sent, messages, strict=True) if isinstance(message, Read))
