"""An SPI device of the kernel's, through /dev/spidevB.C.

It owns one open node: the device's mode, word and speed, which are set when it is opened; one ioctl for each transfer,
in which the kernel keeps the device selected and the controller's other devices waiting; and the detection of a
controller that is unplugged. The kernel makes a node only where the device tree, an overlay or a person has bound the
device to spidev, so a device with a driver of its own has none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from fcntl import ioctl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.drivers.linux.device_users import kept_by_sandbox, shared_device
from hearth.drivers.linux.node import NodeDriver, Presence, claim_node, errno_name, who_may
from hearth.drivers.spi.driver import SpiDriver, SpiSettings, check_transfer, failure, not_open
from hearth.errors import DeviceError, Effect, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Mapping

SYS = Path("/sys")

# linux/spi/spidev.h, on the architectures that number ioctls in the common way.
_WR_BITS, _WR_SPEED, _WR_MODE32, _MESSAGE = 0x40016B03, 0x40046B04, 0x40046B05, 0x40206B00
_TRANSFER = struct.Struct("=QQIIHBBBBBB")
"""struct spi_ioc_transfer: buffers out and in, length, Hz, delay, bits, and five options that stay 0."""
_CS_HIGH, _LSB_FIRST = 0x04, 0x08

_NO_NODE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)
_NEVER_BEGAN: Mapping[int, str] = {
    errno.EINVAL: "the controller does not take such a transfer",
    errno.EMSGSIZE: "it is longer than the kernel's buffer; spidev.bufsiz=4096 on the kernel's command line is enough",
    errno.ENOMEM: "the kernel has no memory for it",
}
"""Causes for which the kernel refuses a transfer before it passes it to the controller."""
_BROKEN: Mapping[int, str] = {
    errno.EIO: "the controller reports that the transfer failed",
    errno.ESHUTDOWN: "the controller is being shut down",
}


class LinuxSpi(NodeDriver, SpiDriver):
    """An SPI device over the node `path`."""

    def __init__(self, device: str, path: str, settings: SpiSettings | None = None) -> None:
        NodeDriver.__init__(self)
        SpiDriver.__init__(self, device, settings)
        self.path = path
        self._fd: int | None = None

    def open(self) -> None:
        """Open the device, for this hearthd alone, and set its mode, word and speed.

        Raises DeviceError with effect "none" (not there, no permission, no SPI device, settings that the controller
        does not have), and ResourceBusy where another hearthd has it.
        """
        self._gone_report.forget()
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise self._cannot_open(error) from None
        try:
            claim_node(fd, f"spi device {self.device!r}", self.path, device=self.device)
            self._set_up(fd)
            entry = SYS / "class/spidev" / Path(self.path).resolve().name
            self._presence = Presence(fd, entry, self.path)
        except OSError as error:
            os.close(fd)
            raise self._cannot_open(error) from None
        except (DeviceError, ResourceBusy):
            os.close(fd)
            raise
        self.shares = shared_device(entry)
        self._fd = fd

    def _set_up(self, fd: int) -> None:
        mode: int = self.settings.mode
        mode |= (_CS_HIGH if self.settings.cs_high else 0) | (_LSB_FIRST if self.settings.lsb_first else 0)
        steps = (
            (f"mode {self.settings.mode}, cs_high, lsb_first", _WR_MODE32, struct.pack("=I", mode)),
            (f"words of {self.settings.bits} bits", _WR_BITS, struct.pack("=B", self.settings.bits)),
            (f"{self.settings.speed_hz} Hz", _WR_SPEED, struct.pack("=I", self.settings.speed_hz)),
        )
        for what, request, value in steps:
            try:
                ioctl(fd, request, value)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                reason = f"the controller of {self.path} cannot do this ({what}); correct the board profile"
                raise failure(self.device, reason, "EINVAL", sent=False) from None

    def close(self) -> None:
        """See `NodeDriver.close`."""
        super().close()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def describe(self) -> Mapping[str, Any]:
        """Return the device and its settings."""
        return self._described(driver="spidev", path=self.path)

    def transfer(self, data: bytes) -> bytes:
        """See `SpiDriver.transfer`."""
        fd, presence = self._fd, self._presence
        if fd is None or presence is None:
            raise not_open(self.device)
        check_transfer(self.device, data, self.settings)
        if presence.unlinked():
            raise self._report_gone("none")
        out = ctypes.create_string_buffer(_words(data, self.settings.word), len(data))
        back = ctypes.create_string_buffer(len(data))
        addresses = ctypes.addressof(out), ctypes.addressof(back)
        settings = self.settings.speed_hz, 0, self.settings.bits
        try:
            ioctl(fd, _MESSAGE, _TRANSFER.pack(*addresses, len(data), *settings, 0, 0, 0, 0, 0))
        except OSError as error:
            raise self._failed(error, presence) from None
        return _words(back.raw, self.settings.word)

    def _failed(self, error: OSError, presence: Presence) -> DeviceError:
        if presence.gone():
            return self._report_gone("unknown")
        name = errno_name(error)
        if error.errno == errno.ETIMEDOUT:
            return self._late()
        refused = _NEVER_BEGAN.get(error.errno or 0)
        why = refused or _BROKEN.get(error.errno or 0) or error.strerror or "the transfer failed"
        return failure(self.device, f"{why} ({name})", name, sent=refused is None)

    def _gone(self, effect: Effect) -> DeviceError:
        why = f"{self.path} is gone; it is opened again when it returns"
        return failure(self.device, why, "ENODEV", sent=effect != "none")

    def _cannot_open(self, error: OSError) -> DeviceError:
        if error.errno in _NO_NODE:
            reason = f"{self.path} is not there; is it switched on? `hearth doctor` says how"
        elif error.errno in (errno.EACCES, errno.EPERM):
            reason = kept_by_sandbox(self.path) or f"no permission for {self.path}{who_may(self.path)}"
        elif error.errno == errno.ENOTTY:
            reason = f"{self.path} is no SPI device"
        else:
            reason = f"{self.path} cannot be opened: {error.strerror}"
        return failure(self.device, reason, errno_name(error), sent=False)


def _words(data: bytes, size: int) -> bytes:
    """Exchange the order of the wire (high byte first) and that of words in memory, where they differ."""
    if size == 1 or sys.byteorder == "big":
        return data
    return b"".join(data[at : at + size][::-1] for at in range(0, len(data), size))
