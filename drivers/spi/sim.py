"""A simulated SPI device: a loopback, or a chip with registers, behind a wire that takes its time.

It owns the wire: the time of a byte, injected faults, and a log of the transfers, in which an overlapping one is
visible. `Faults` and the three styles are those of the simulated I2C adapter.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import trio
from attrs import define

from hearth.drivers.base import BaseDriver, Style, finish_now
from hearth.drivers.simulated import LOG_LENGTH, Faults, SimFault, clock_for
from hearth.drivers.spi.driver import RegisterFrame, SpiSettings, check_transfer, failure, limit_ms, not_open
from hearth.errors import TimedOut

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hearth.drivers.registers import Outcome


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


class SimSpi(BaseDriver):
    """An `SpiDriver` without hardware.

    THREAD blocks as a kernel does, ASYNC sleeps in Trio's time, INLINE takes no time.
    """

    simulated = True

    def __init__(
        self, device: str, chip: SpiChip, settings: SpiSettings | None = None, *, style: Style = Style.THREAD
    ) -> None:
        self.style = style
        self.device = device
        self.chip = chip
        self.settings = settings or SpiSettings()
        self.faults = SpiFaults(style)
        self.log: deque[Transfer] = deque(maxlen=LOG_LENGTH)
        self.overlaps = 0
        """Count of transfers that began while another was running: a bus must keep this at 0."""
        self._in_flight = 0
        self._opened = False
        self._byte_s = 0.0 if style is Style.INLINE else 8 / self.settings.speed_hz
        self._clock = clock_for(style)
        self._block = time.sleep

    def open(self) -> None:
        """Offer the device."""
        self._opened = True

    def close(self) -> None:
        """Stop offering the device."""
        self._opened = False

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name, the chip and the settings."""
        mine = self.settings
        described = {"kind": "spi", "driver": "sim", "device": self.device, "chip": self.chip.kind}
        return {**described, "mode": mine.mode, "speed_hz": mine.speed_hz, "bits": mine.bits}

    def limit_ms(self, length: int) -> float:
        """See `SpiDriver.limit_ms`."""
        return limit_ms(length, self.settings.speed_hz)

    def transfer(self, data: bytes) -> Outcome[bytes]:
        """See `SpiDriver.transfer`. A coroutine unless INLINE; one that never suspends unless ASYNC."""
        exchange = self._transfer(data)
        return finish_now(exchange) if self.style is Style.INLINE else exchange

    async def _transfer(self, data: bytes) -> bytes:
        if not self._opened:
            raise not_open(self.device)
        check_transfer(self.device, data, self.settings)
        self.overlaps += self._in_flight > 0
        self._in_flight += 1
        transfer, fault = Transfer(data, bytearray()), self.faults.pick(None)
        self.log.append(transfer)
        try:
            await self._delay(self.faults.latency_s)
            due = self._clock()
            self.chip.select()
            for byte in data:
                if fault is not None and len(transfer.read) >= fault.after:
                    failed, fault = fault, None
                    await self._go_wrong(failed)
                if self._byte_s:
                    # Against a schedule: the system's own delays do not add up over a long transfer.
                    due += self._byte_s
                    await self._delay(due - self._clock())
                transfer.read.append(self.chip.exchange(byte))
            transfer.complete = True
            return bytes(transfer.read)
        finally:
            self._in_flight -= 1

    async def _go_wrong(self, fault: SimFault) -> None:
        if fault.kind == "wedge":
            await self.faults.hold()
        elif fault.kind == "timeout":
            await self._delay(fault.seconds)
            why = "the transfer did not end in the controller's time (ETIMEDOUT)"
            raise failure(self.device, why, "ETIMEDOUT", sent=True, kind=TimedOut)
        else:
            why = "the controller reports that the transfer failed (EIO)"
            raise failure(self.device, why, "EIO", sent=True)

    async def _delay(self, seconds: float) -> None:
        if seconds > 0:
            if self.style is Style.ASYNC:
                await trio.sleep(seconds)
            elif self.style is Style.THREAD:
                self._block(seconds)
