"""A simulated serial port: a real pseudo-terminal, with a peer at its other end that echoes lines.

It owns the pair of descriptors. hearth's end is the terminal's master. The slave (`/dev/pts/N`, in `describe`) is the
far end of the cable: the peer uses it or, with `peer="none"`, a person attaches a terminal program. For a virtual clock
the pair is one of sockets: a pseudo-terminal passes bytes on in a thread of the kernel's, which a clock that jumps
cannot wait for. Baud rates are not simulated: neither has any.
"""

from __future__ import annotations

import os
import socket
import tty
from typing import TYPE_CHECKING, Any, Literal

import trio

from hearth.drivers.serial_port.fd import FdUart
from hearth.drivers.serial_port.settings import PORTS, ModemLines, UartSettings
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

PeerKind = Literal["echo", "none"]

IDENTITY = b"HEARTH,SIM-UART,0,1\n"
_MAX_LINE = 4096
_MAX_DELAY_MS = 60_000
_MAX_BURST = 1_000_000


class EchoPeer:
    """The instrument at the other end. It reads lines (LF) and answers each:

    `*IDN?` → `HEARTH,SIM-UART,0,1` · `DELAY ms text` → text, so much later · `BURST n` → n digits without
    a line end · `QUIET` → nothing · any other line → itself.
    """  # noqa: D400

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.mute = False
        """Read everything and answer nothing, as an instrument that is switched off."""

    def close(self) -> None:
        """Answer nothing more: the descriptor is about to be closed."""
        self._fd = -1

    async def run(self) -> None:
        """Answer until the descriptor is closed."""
        buffer = bytearray()
        try:
            while (fd := self._fd) >= 0:
                await trio.lowlevel.wait_readable(fd)
                if self._fd != fd:
                    return
                buffer += os.read(fd, _MAX_LINE)
                while line := self._line(buffer):
                    if not self.mute:
                        await self._send(await self._answer(line))
        except trio.ClosedResourceError:
            return

    def _line(self, buffer: bytearray) -> bytes:
        end = buffer.find(b"\n") + 1 or (_MAX_LINE if len(buffer) >= _MAX_LINE else 0)
        line = bytes(buffer[:end])
        del buffer[:end]
        return line

    async def _answer(self, line: bytes) -> bytes:
        word, _, rest = line.rstrip(b"\r\n").partition(b" ")
        number, _, text = rest.partition(b" ")
        count = int(number) if number.isdigit() and len(number) <= 7 else 0
        if word == b"*IDN?":
            return IDENTITY
        if word == b"QUIET":
            return b""
        if word == b"DELAY" and text:
            await trio.sleep(min(count, _MAX_DELAY_MS) / 1000)
            return text + b"\n"
        if word == b"BURST" and count:
            return (b"0123456789" * (min(count, _MAX_BURST) // 10 + 1))[: min(count, _MAX_BURST)]
        return line

    async def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and (fd := self._fd) >= 0:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(fd)


class SimUart(FdUart):
    """A port over a pseudo-terminal, or over a pair of sockets.

    `peer` is there while the port is open, unless it is "none". It asserts CTS, DSR and CD. RTS, DTR and breaks have no
    receiver; tests can read them.
    """

    simulated = True

    def __init__(
        self, port: str, settings: UartSettings | None = None, *, peer: PeerKind = "echo", terminal: bool = True
    ) -> None:
        super().__init__(port, settings or UartSettings())
        self.peer: EchoPeer | None = None
        self.path: str | None = None
        self.breaks = 0
        """Count of breaks that were sent."""
        self.in_break = False
        self._peer_kind = peer
        self._terminal = terminal
        """False: a pair of sockets, to which nothing can be attached."""
        self._far = -1
        self._rts = self._dtr = False

    def open(self) -> None:
        """Make the pair. Raises DeviceError when the system has no pseudo-terminal left."""
        try:
            near, far = self._pair()
        except OSError as error:
            raise DeviceError(
                f"uart {self.port}: no pseudo-terminal to be had ({error.strerror}); is /dev/pts mounted?",
                effect="none",
                data={"port": self.port},
            ) from error
        os.set_blocking(near, False)
        os.set_blocking(far, False)
        # The far end stays open for as long as the port is: a person who detaches must not hang up the line.
        self._far = far
        self.path = os.ttyname(far) if self._terminal else None
        self.peer = self._new_peer(far)
        self._rts, self._dtr = self.settings.rts, self.settings.dtr
        self._attach(near)

    def _new_peer(self, far: int) -> EchoPeer | None:
        """Return the peer at the far end; a subclass may have another one."""
        return EchoPeer(far) if self._peer_kind == "echo" else None

    def _pair(self) -> tuple[int, int]:
        if not self._terminal:
            near, far = socket.socketpair()
            return near.detach(), far.detach()
        pair = os.openpty()
        tty.setraw(pair[1])
        return pair

    def close(self) -> None:
        """Close the pair."""
        super().close()
        if self.peer is not None:
            self.peer.close()
        far, self._far = self._far, -1
        self.path = self.peer = None
        if far >= 0:
            if trio.lowlevel.in_trio_run():
                trio.lowlevel.notify_closing(far)
            os.close(far)

    async def pump(self) -> None:
        """Feed the inbox, and run the peer beside it."""
        failure: DeviceError | None = None
        # The peer is another machine: when it ends, a command may still wait for its reply.
        powered = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            if self.peer is not None:
                nursery.start_soon(self._power, self.peer, powered)
            try:
                await super().pump()
            except DeviceError as error:
                failure = error
            finally:
                powered.cancel()
        # Outside the nursery, which would wrap it in an exception group.
        if failure is not None:
            raise failure

    @staticmethod
    async def _power(peer: EchoPeer, powered: trio.CancelScope) -> None:
        with powered:
            await peer.run()

    async def _get_lines(self) -> ModemLines:
        there = self.peer is not None
        return ModemLines(rts=self._rts, dtr=self._dtr, cts=there, dsr=there, ri=False, cd=there)

    async def _set_lines(self, *, rts: bool | None, dtr: bool | None) -> None:
        self._rts = self._rts if rts is None else rts
        self._dtr = self._dtr if dtr is None else dtr

    async def _set_break(self, on: bool) -> None:
        self.in_break = on
        self.breaks += on

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name, and where its far end can be attached to (null while it is closed)."""
        return {
            "kind": PORTS,
            "driver": "sim",
            "port": self.port,
            "baud": self.settings.baud,
            "path": self.path,
            "peer": self._peer_kind,
        }
