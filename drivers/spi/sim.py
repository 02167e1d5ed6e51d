"""A simulated SPI device: a loopback, or a chip with registers, behind a wire that takes its time.

It owns the wire: the time of a byte, injected faults, and a log of the transfers, in which an overlapping one is
visible. `Faults` and the three styles are those of the simulated I2C adapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from attrs import define

from hearth.drivers.base import Style
from hearth.drivers.simulated import Faults, Progress, SimFault, SimWire
from hearth.drivers.spi.driver import RegisterFrame, SpiDriver, SpiSettings, check_transfer, failure, not_open

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hearth.drivers.registers import Outcome
    from hearth.errors import DeviceError


class SpiChip(Protocol):
    """The interface of a device to the wire."""

    kind: str

    def select(self) -> None:
        """Handle the begin of a transfer."""

    def exchange(self, byte: int) -> int:
        """Take a byte, and return the one that goes back at the same time."""
        ...


class Loopback:
    """A wire from the output to the input: what is sent comes back."""

    kind = "loopback"

    def select(self) -> None:
        """Do nothing: a wire has no state."""

    def exchange(self, byte: int) -> int:
        """Return the byte."""
        return byte


class RegisterChip:
    """A chip with registers of a byte, in the form of `frame`; further bytes go to the registers that follow.

    `cleared` are those that are 0 after they were read, as latched faults are.
    """

    kind = "registers"

    def __init__(self, frame: RegisterFrame | None = None, *, cleared: Collection[int] = ()) -> None:
        self.frame = frame or RegisterFrame()
        self.cells = bytearray(1 << self.frame.reg_width)
        self.cleared = frozenset(cleared)
        self._head = b""
        self._at = 0

    def select(self) -> None:
        """Expect a command."""
        self._head = b""

    def exchange(self, byte: int) -> int:
        """Take a byte of the command, or of a value; return a byte of the register that is read, else 0."""
        frame = self.frame
        mask = frame.read_mask | frame.write_mask
        command = int.from_bytes(self._head[: frame.size], "big")
        reading = command & mask == frame.read_mask
        if len(self._head) < (frame.header if reading and len(self._head) >= frame.size else frame.size):
            self._head += bytes((byte,))
            self._at = int.from_bytes(self._head[: frame.size], "big") & ~mask
            return 0
        at, self._at = self._at, (self._at + 1) % len(self.cells)
        if not reading:
            self.cells[at] = byte
            return 0
        answer = self.cells[at]
        if at in self.cleared:
            self.cells[at] = 0
        return answer


class SpiFaults(Faults):
    """The faults of a simulated device."""

    def fail(self, times: int = 1, *, after: int = 0) -> None:
        """The controller reports an error, after `after` bytes of the transfer."""
        self._plan(SimFault("error", times, None, after))


@define(eq=False)
class Transfer:
    """One transfer as a logic analyser would show it; `complete` is False while it runs, for ever if it failed."""

    sent: bytes
    read: bytearray
    complete: bool = False


class SimSpi(SimWire, SpiDriver):
    """A device without hardware."""

    faults: SpiFaults

    def __init__(
        self, device: str, chip: SpiChip, settings: SpiSettings | None = None, *, style: Style = Style.THREAD
    ) -> None:
        SpiDriver.__init__(self, device, settings)
        SimWire.__init__(self, style, SpiFaults(style), 8 / self.settings.speed_hz)
        self.chip = chip

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name, the chip and the settings."""
        return self._described(driver="sim", chip=self.chip.kind)

    def transfer(self, data: bytes) -> Outcome[bytes]:
        """See `SpiDriver.transfer`. A coroutine unless INLINE; one that never suspends unless ASYNC."""
        return self._outcome(self._transfer(data))

    async def _transfer(self, data: bytes) -> bytes:
        if not self._opened:
            raise not_open(self.device)
        check_transfer(self.device, data, self.settings)
        transfer, fault = Transfer(data, bytearray()), self.faults.pick(None)
        self.log.append(transfer)
        with self._transaction():
            await self._delay(self.faults.latency_s)
            progress = Progress(self._clock(), fault)
            self.chip.select()
            for byte in data:
                await self._tick(progress)
                transfer.read.append(self.chip.exchange(byte))
                progress.moved += 1
        transfer.complete = True
        return bytes(transfer.read)

    def _failure(self, fault: SimFault, progress: Progress) -> DeviceError:
        if fault.kind == "timeout":
            return self._late()
        why = "the controller reports that the transfer failed (EIO)"
        return failure(self.device, why, "EIO", sent=True)
