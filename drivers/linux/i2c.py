"""An I2C adapter of the kernel's, through /dev/i2c-N (smbus2).

Owns one open handle per adapter: raw I2C_RDWR where the adapter has it, else the SMBus call that does the same; the
kernel's timeout and retries, which are the adapter's and not the handle's; and noticing that the adapter has been
unplugged. What an errno means is `i2c_errors`', which SMBus call fits `i2c_smbus`', where the node is `i2c_node`'. It
refuses to split an exchange, and to touch an address that a driver of the kernel's has for itself: raw I2C would reach
that, since the kernel checks it for SMBus calls only.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from fcntl import ioctl
from typing import TYPE_CHECKING, Any

import trio

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.i2c import Kind, Read, Scan, Write, check_transfer, limit_ms, not_open, owned, plan
from hearth.drivers.i2c_addresses import EVERY_ADDRESS
from hearth.drivers.linux.i2c_errors import failed, gone, told
from hearth.drivers.linux.i2c_node import (
    DEV,
    SYS,
    Presence,
    cannot_open,
    claim_node,
    find_adapter,
    name_of,
    owner_of,
)
from hearth.drivers.linux.i2c_smbus import I2C, QUICK, RECEIVE, TEN_BIT, able, call_for, functions_of
from hearth.drivers.linux.shared import shared_device
from hearth.drivers.wakeup import Departure
from hearth.errors import DeviceError, ResourceBusy
from hearth.groups import unwrapped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from smbus2 import SMBus

    from hearth.drivers.i2c import Message
    from hearth.drivers.i2c_addresses import Addresses

_I2C_RETRIES, _I2C_TIMEOUT, _I2C_SLAVE = 0x0701, 0x0702, 0x0703
_TIMEOUT_UNIT_MS = 10
_TEN_BIT_FLAG = 0x0010

_NOBODY = (errno.ENXIO, errno.EREMOTEIO, errno.EIO, errno.ENODEV)
"""How adapters say that an address was not acknowledged to a probe, which is nothing but an address."""


class LinuxI2c(BaseDriver):
    """An `I2cDriver` over /dev/i2c-<bus>, or over the adapter that the kernel calls `adapter`, whatever its number.

    `timeout_ms` (in steps of 10) and `retries` (of a lost arbitration) are set in the kernel when the bus is opened;
    they hold for all users of the adapter, and stay when it is closed. `speed_hz` is what the board says of the wire:
    it cannot be set from here, and counts for the time limit only.
    """

    style = Style.THREAD

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
        self.bus = bus
        self.timeout_ms = timeout_ms
        self.retries = retries
        self.speed_hz = speed_hz
        self.addresses = addresses
        self._adapter = adapter
        self._number = bus
        self._name: str | None = None
        self._functionality = 0
        self._handle: SMBus | None = None
        self._presence: Presence | None = None
        self._departure = Departure()

    # --- opening and closing -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the adapter, for this hearthd alone.

        Raises DeviceError with effect "none" (not there, no permission, not an adapter), and ResourceBusy where another
        hearthd has it.
        """
        from smbus2 import SMBus

        self._departure.forget()
        handle = SMBus()
        try:
            self._number = find_adapter(self.bus, self._adapter)
            handle.open(self._path)  # not by its constructor, which would leave a node that is no adapter open
            assert handle.fd is not None
            # Before anything is set: the kernel's timeout is the adapter's, and so the other one's too.
            claim_node(handle.fd, self.bus, self._path)
            # The driver's steps are coarse; rounding down could make it 0, which is no time at all.
            ioctl(handle.fd, _I2C_TIMEOUT, -(-self.timeout_ms // _TIMEOUT_UNIT_MS))
            ioctl(handle.fd, _I2C_RETRIES, self.retries)
            self._presence = Presence(handle.fd, self._number, self._path)
        except OSError as error:
            handle.close()
            raise cannot_open(self.bus, self._path, error) from None
        except ResourceBusy:
            handle.close()
            raise
        self._name = name_of(self._number)
        self.shares = shared_device(SYS / f"class/i2c-dev/i2c-{self._number}")
        self._functionality = int(handle.funcs)
        self._handle = handle

    def close(self) -> None:
        """Let the adapter go. From the Trio thread this may be done while `pump` waits: it ends."""
        presence, self._presence = self._presence, None
        if presence is not None:
            if presence.watch is not None and trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(presence.watch)
            presence.close()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    @property
    def _path(self) -> str:
        return str(DEV / f"i2c-{self._number}")

    async def pump(self) -> None:
        """Wait until the adapter goes, and raise DeviceError then; nothing else ends it but `close`."""
        presence = self._presence
        if presence is None:
            return
        async with unwrapped() as body, trio.open_nursery() as nursery:
            if presence.watch is not None:
                nursery.start_soon(self._watch, presence, nursery)
            async with body.watched():
                await self._departure.wait()

    async def _watch(self, presence: Presence, nursery: trio.Nursery) -> None:
        while presence.watch is not None:
            if presence.gone():
                self._departure.tell(gone(self.bus, self._path, effect="none"))
                return
            with suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_readable(presence.watch)
                presence.drain()
        nursery.cancel_scope.cancel()  # the driver was closed

    def describe(self) -> Mapping[str, Any]:
        """The adapter and how it is used; `functionality` and `mode` are known once it has been open."""
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

    def limit_ms(self, messages: Sequence[Message]) -> float:
        """See `I2cDriver.limit_ms`."""
        return limit_ms(messages, timeout_ms=self.timeout_ms, retries=self.retries, speed_hz=self.speed_hz)

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
                raise self._failure(error, addr, messages) from None
        if ten_bit:
            raise self._unable(addr, "10-bit addresses: it has no raw I2C")
        found = call_for(messages, self._functionality)
        if found is None:
            raise self._unable(addr, f"{told(messages)} as one exchange{able(self._functionality)}")
        call, data, length = found
        self._claim(handle, addr, ten_bit=False)
        try:
            answer = call.run(handle, addr, data, length)
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
            if error.errno in _NOBODY and not self._gone():
                return False
            raise self._failure(error, addr, [Read(1)] if kind == "receive" else [Write(b"")]) from None
        return True

    def _touch(self, handle: SMBus, addr: int) -> None:
        """A quick write: the address and nothing after it.

        Where there is raw I2C it is an empty message, which is what the kernel makes of a quick write. But some drivers
        make something else of it: that of the MCP2221 sends a zero byte, which turns a port expander's outputs off.
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
            # Not asked at all: an adapter that is gone may take seconds to say so.
            error = gone(self.bus, self._path, effect="none")
            self._departure.tell(error)
            raise error
        return self._handle

    def _claim(self, handle: SMBus, addr: int, *, ten_bit: bool) -> None:
        """Make sure that no driver of the kernel's has this address. Raises ResourceBusy naming it."""
        if ten_bit:
            owner = owner_of(self._number, addr, ten_bit=True)
            if owner is not None:
                raise owned(self.bus, addr, owner)
            return
        assert handle.fd is not None
        try:
            # The kernel's own check, which also knows multiplexers. Never from the cache of smbus2: a driver may have
            # come since. From here on SMBus calls of this handle go to this address.
            ioctl(handle.fd, _I2C_SLAVE, addr)
        except OSError as error:
            if error.errno == errno.EBUSY:
                owner = owner_of(self._number, addr, ten_bit=False) or "of a multiplexer on the way"
                raise owned(self.bus, addr, owner) from None
            raise self._failure(error, addr, [Read(1)]) from None

    def _failure(self, error: OSError, addr: int, messages: Sequence[Message]) -> DeviceError:
        if self._gone():
            departed = gone(self.bus, self._path, effect="unknown")
            self._departure.tell(departed)
            return departed
        return failed(error, self.bus, addr, messages, able=able(self._functionality), retries=self.retries)

    def _gone(self) -> bool:
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
