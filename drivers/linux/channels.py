"""A chip with channels that the kernel drives: the errors of its files, and the report that it is gone.

No descriptor tells that such a chip is gone: the transaction that meets it reports it (`DeviceGone`).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, ClassVar

from hearth.drivers.base import DeviceGone, Style
from hearth.drivers.linux.device_users import kept_by_sandbox
from hearth.drivers.signals import ChannelT, SignalChip
from hearth.errors import DeviceError, Effect, ResourceBusy, RpcError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class LinuxChannels(SignalChip[ChannelT]):
    """The part of a driver that knows no values."""

    style = Style.THREAD
    absent: ClassVar[Collection[int]] = ()
    """Errnos of a chip that is gone."""
    untouched: ClassVar[Collection[int]] = ()
    """Errnos with which the kernel refuses values before the hardware has them."""
    user: ClassVar[str]
    """Who may have a channel that is busy."""
    busy_on: ClassVar[Collection[str]] = ("none",)
    """The effects of operations for which EBUSY means that another user has the channel."""

    def __init__(self, label: str, channels: Iterable[ChannelT]) -> None:
        super().__init__(label, channels)
        self._gone = DeviceGone()

    async def pump(self) -> None:
        """Wait until a transaction has found that the chip is gone. Raises DeviceError."""
        await self._gone.wait()

    def _failed(self, error: OSError, path: object, effect: Effect, spec: ChannelT | None = None) -> RpcError:
        """Return the error of a call that the kernel refused."""
        name = errno.errorcode.get(error.errno or 0, "EIO")
        channel = None if spec is None else spec.name
        if error.errno in self.absent:
            text = f"the {self.noun} is gone; it is opened again when it returns"
            self._gone.report(self._error(text, "ENODEV", channel=channel))
            # A copy: the bus adds to the data of the error that a transaction raises.
            return self._error(text, "ENODEV", effect, channel)
        if error.errno == errno.EBUSY and effect in self.busy_on:
            data = {self.noun: self.label, "channel": channel, "errno": "EBUSY", "effect": "none"}
            return ResourceBusy(f"{self.kind} {self.label}, channel {channel}: it is in use by {self.user}", data=data)
        if error.errno in (errno.EACCES, errno.EPERM):
            cure = "`hearth doctor` shows the rule that gives it to a group"
            why = kept_by_sandbox(str(path)) or f"no permission to write to {path}; {cure}"
            return self._error(why, name, "none", channel)
        return self._error(
            self._reason(error, name), name, "none" if error.errno in self.untouched else effect, channel
        )

    def _reason(self, error: OSError, name: str) -> str:
        return f"the kernel's driver refuses it: {error.strerror} ({name})"

    def _error(self, reason: str, name: str | None, effect: Effect = "none", channel: str | None = None) -> DeviceError:
        place = f"{self.kind} {self.label}{f', channel {channel}' if channel is not None else ''}"
        data = {self.noun: self.label, "channel": channel, "errno": name}
        data = {key: value for key, value in data.items() if value is not None}
        return DeviceError(f"{place}: {reason}", effect=effect, data=data)
