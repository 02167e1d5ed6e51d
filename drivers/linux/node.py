"""The node in /dev of an open device that cannot be polled: its lock, and its removal.

It owns the lock by which one hearthd keeps a device from the others, and the descriptor that reports a removal. The
drivers of I2C adapters and SPI devices use it; they own the transfers.

Such a device has no descriptor that becomes readable when it is unplugged, and the kernel does not finish removing an
I2C adapter while it is held open: on USB that stops every other device from coming and going. But the node in /dev is
unlinked at once, and a watch on the node reports that without polling.
"""

from __future__ import annotations

import errno
import grp
import os
from abc import abstractmethod
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from attrs import asdict

from hearth._util.exceptions import unwrapped
from hearth._util.inotify import watch_file
from hearth.drivers.base import BaseDriver, DeviceGone, Style
from hearth.drivers.linux.device_users import holders
from hearth.errors import ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.errors import DeviceError, Effect

ENOTSUPP = 524
"""The kernel's own "not supported", which the C library does not know and some controllers return."""

_NAMES: Mapping[int, str] = {ENOTSUPP: "ENOTSUPP", errno.EOPNOTSUPP: "EOPNOTSUPP"}
"""Errnos for which the C library has no name, or two."""


def errno_name(error: OSError) -> str:
    """Return the errno's name; "EIO" for an error without a number."""
    number = error.errno or errno.EIO
    return _NAMES.get(number) or errno.errorcode.get(number, str(number))


def claim_node(fd: int, place: str, path: str, **data: object) -> None:
    """Take the lock by which one hearthd keeps a device from the others; closing the descriptor releases it.

    The kernel's drivers and programs that take no such lock are not kept out. `place` names the device in an error,
    with `data`. Raises ResourceBusy naming the processes that have the device open, and OSError.
    """
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        found = holders(path)
        found = [holder for holder in found if holder.pid != os.getpid()] or found
        who = ", ".join(map(str, found)) or "another process that this one may not see"
        cure = "stop that one, or take the device out of one of the two board profiles"
        raise ResourceBusy(
            f"{place}: {path} is in use by another hearthd ({who}), and only one may use it; {cure}",
            data={
                **data,
                "path": path,
                "errno": "EBUSY",
                "effect": "none",
                "holders": [asdict(holder) for holder in found],
            },
        ) from None


def who_may(path: str) -> str:
    """Return the owner of the node, and the command that gives a user access."""
    try:
        status = Path(path).stat()
        group = grp.getgrgid(status.st_gid).gr_name
    except (OSError, KeyError):
        return ""
    if group == "root" or not status.st_mode & 0o060:
        return "; a udev rule may give it to a group: hearth doctor shows one"
    return f"; it belongs to group {group!r}: usermod -aG {group} USER, then log in again"


class Presence:
    """The presence of an open device, whose entry under /sys is `entry`.

    `watch` is the descriptor that becomes readable when that may have changed. It is None where the kernel gives none
    (no more watches); then only a failed exchange shows it.
    """

    def __init__(self, handle: int, entry: Path, path: str) -> None:
        self._handle = handle
        self._entry = entry
        self._identity = self._identify()
        self.watch = watch_file(path)

    def _identify(self) -> int | None:
        try:
            return self._entry.stat().st_ino
        except OSError:
            return None

    def unlinked(self) -> bool:
        """Return True if the node is gone: cheap enough to check before each exchange."""
        return os.fstat(self._handle).st_nlink == 0

    def gone(self) -> bool:
        """Return True if the node or the kernel's entry is gone, or the entry is another device's by now."""
        return self.unlinked() or self._identify() != self._identity

    def drain(self) -> None:
        """Read the events of the watch."""
        assert self.watch is not None
        with suppress(BlockingIOError):
            while os.read(self.watch, 4096):
                pass

    async def pump(self, report: DeviceGone, error: DeviceError) -> None:
        """Wait until the device is gone, and raise then; nothing else ends it but `close`.

        It raises `error`, or what a transfer has reported before.
        """
        async with unwrapped() as body, trio.open_nursery() as nursery:
            if self.watch is not None:
                nursery.start_soon(self._look, report, error, nursery)
            async with body.watched():
                await report.wait()

    async def _look(self, report: DeviceGone, error: DeviceError, nursery: trio.Nursery) -> None:
        while self.watch is not None:
            if self.gone():
                report.report(error)
                return
            with suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_readable(self.watch)
                self.drain()
        nursery.cancel_scope.cancel()  # the driver was closed

    def close(self) -> None:
        """End the watch. From the Trio thread this may be done while `pump` waits: it ends."""
        watch, self.watch = self.watch, None
        if watch is not None:
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(watch)
            os.close(watch)


class NodeDriver(BaseDriver):
    """The part of a driver over one node that knows what becomes of the node."""

    style = Style.THREAD

    def __init__(self) -> None:
        self._presence: Presence | None = None
        self._gone_report = DeviceGone()

    def close(self) -> None:
        """Release the device. From the Trio thread this may be done while `pump` waits: it ends."""
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.close()

    async def pump(self) -> None:
        """Wait until the device is gone, and raise DeviceError then; nothing else ends it but `close`."""
        if self._presence is not None:
            await self._presence.pump(self._gone_report, self._gone("none"))

    @abstractmethod
    def _gone(self, effect: Effect) -> DeviceError:
        """Return the error of a device that is gone."""

    def _report_gone(self, effect: Effect) -> DeviceError:
        """Tell the pump that the device is gone, and return the error."""
        error = self._gone(effect)
        self._gone_report.report(error)
        return error
