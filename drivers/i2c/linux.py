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
from hearth.drivers.i2c.smbus import I2C, QUICK, RECEIVE, TEN_BIT, able, call_for, functions_of
from hearth.drivers.linux.device_users import shared_device
from hearth.drivers.linux.node import NodeDriver, Presence, claim_node
from hearth.drivers.registers import Message, Read, Write
from hearth.errors import DeviceError, Effect, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from smbus2 import SMBus

    from hearth.drivers.i2c.driver import Addresses


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
