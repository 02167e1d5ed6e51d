"""A Modbus line over a serial port or a TCP connection: the transactions, their timing, and which answer is whose.

It owns the order of bytes on one line; `codec` has the frames. Both kinds of port are an `FdUart`: a descriptor
that is polled, whose pump moves received bytes into a bounded buffer.

Theory of operation. A transaction is one request and its answer, in the bus's task; nothing comes in between, whatever
happens to the caller. An answer that comes after its request has timed out must never be taken for another one's:

    TCP   Each request has a transaction number, which the answer repeats. Others are skipped. A stream in which frames
          cannot be told apart is hung up; the bus goes down and connects again.
    RTU   An answer has no number, and two reads of one size look alike. So the line remembers that an answer is owed.
          The next request waits until that answer has come or `late_s` have passed. This costs nothing after an answer
          in time. An answer that is later still is not told apart: `late_s` says how late the slowest device may be.

Before each request a serial line has to be silent for 3.5 characters, which is what separates two frames; received
bytes are dropped until then. A line that does not become silent is refused, with nothing sent. The end of an answer is
known from its length, not from a silence: a USB adapter passes bytes on in portions with pauses between them.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, ClassVar, Final

import trio

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.modbus.codec import (
    EXCEPTIONS,
    WITHOUT_EFFECT,
    BadAnswer,
    BadStream,
    ModbusFraming,
    RtuFraming,
    TcpFraming,
    read_request,
    read_values,
    write_request,
)
from hearth.drivers.modbus.driver import BROADCAST, ModbusDevice, device_of
from hearth.drivers.serial_port.fd import FdUart
from hearth.drivers.serial_port.settings import UartSettings, write_timeout_s
from hearth.errors import DeviceError, Effect, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.modbus.codec import ModbusRequest, ModbusTable

_READER: Final = "modbus"
_LARGEST: Final = 256
"""Bytes of the largest frame on a serial line."""
_BITS_PER_CHARACTER: Final = 11
_FASTEST_S: Final = 0.00175
"""The silence between two frames above 19200 baud."""
NOISE_S: Final = 1.0
"""Seconds that a line may take to become silent."""


def frame_gap_s(baud: int) -> float:
    """Return the silence that separates two frames: 3.5 characters, and not less than above 19200 baud."""
    return max(_FASTEST_S, 3.5 * _BITS_PER_CHARACTER / baud)


class ModbusLine(BaseDriver):
    """One line of Modbus devices: its operations are coroutine functions (Style.ASYNC).

    `devices` are the declared ones by their units. `late_s` and `turnaround_s` (after a broadcast) are of a serial line
    alone.
    """

    style = Style.ASYNC

    def __init__(
        self,
        line: str,
        port: FdUart,
        devices: Sequence[ModbusDevice],
        *,
        timeout_s: float = 1.0,
        late_s: float = 1.0,
        turnaround_s: float = 0.1,
    ) -> None:
        self.line = line
        self.port = port
        self.devices = {device.unit: device for device in devices}
        self.opens_in_thread = port.opens_in_thread
        self.simulated = port.simulated
        self._tcp = port if isinstance(port, TcpPort) else None
        self._timeout_s, self._late_s, self._turnaround_s = timeout_s, late_s, turnaround_s
        self._framing: ModbusFraming = TcpFraming()
        self._owed_until = self._used_at = 0.0
        """The times until which the answer to the last request is waited for, and at which the line was last used."""

    # --- the device -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the port. Raises DeviceError and ResourceBusy, both with effect "none"."""
        self.port.open()
        rs485 = self.port.settings.rs485
        if self._tcp is None:
            self._framing = RtuFraming(loopback=rs485 is not None and rs485.loopback)
        else:
            # Not from 0: the server may still answer requests of an earlier connection, of which it knows the number.
            self._framing = TcpFraming(int.from_bytes(os.urandom(2), "big"))
        self._owed_until = self._used_at = 0.0

    def close(self) -> None:
        """Close the port."""
        self.port.close()

    async def pump(self) -> None:
        """Receive until the port is closed. Raises DeviceError when it is gone."""
        await self.port.pump()

    def describe(self) -> Mapping[str, Any]:
        """Return the line and its port."""
        return {**self.port.describe(), "kind": "modbus", "line": self.line}

    def limit_ms(self, requests: int = 1) -> float:
        """Return the milliseconds after which a transaction of so many requests counts as wedged."""
        sending = write_timeout_s(_LARGEST, self.port.settings.baud)
        each = self._timeout_s + self._late_s + self._turnaround_s + NOISE_S + 2 * sending
        return 1000 * (requests * each + 1)

    # --- transactions ---------------------------------------------------------------------------------------------

    async def read(self, unit: int, table: ModbusTable, reg: int, count: int) -> tuple[int, ...]:
        """Return the values at `count` addresses of a table from `reg` on, by one request.

        Raises the errors of `ModbusDevice.covered`; TimedOut when no answer came in time, and DeviceError for an
        exception of the device (`data.exception` is its code) and for an answer that is damaged, with effect "none".
        """
        device = device_of(self.devices, self.line, unit)
        device.covered(table, reg, count)
        return read_values(table, count, await self._exchange(device, read_request(unit, table, reg, count), "none"))

    async def write(self, unit: int, table: ModbusTable, reg: int, values: Sequence[int]) -> None:
        """Write values to addresses of a table from `reg` on, by one request.

        Raises as `read` does. The effect is "none" where the device has refused or the request was not sent, else
        "unknown": an answer that is lost says nothing. The end of a broadcast to unit 0 says only that it was sent.
        """
        device = device_of(self.devices, self.line, unit)
        device.covered(table, reg, len(values), write=True)
        await self._exchange(device, write_request(unit, table, reg, tuple(values)), "unknown")

    async def _exchange(self, device: ModbusDevice, request: ModbusRequest, lost: Effect) -> bytes:
        """Send a request and return the answer's PDU; `lost` is the effect where the answer is missing."""
        with self.port.transaction():
            if self._tcp is None:
                await self._settle(device)
            frame = self._framing.begin(request)
            sending_s = write_timeout_s(len(frame), self.port.settings.baud)
            broadcast = self._tcp is None and request.unit == BROADCAST
            try:
                await self.port.write(frame, timeout_s=sending_s, drain=broadcast, reader=_READER)
                if broadcast:
                    await trio.sleep(self._turnaround_s)
                    return b""
                return await self._answer(device, request, lost, len(frame))
            except DeviceError as error:
                # The port does not know what its bytes mean: a request for a value has no effect.
                effect = {"effect": lost} if lost == "none" else {}
                error.data = {**(error.data or {}), **self._place(device), **effect}
                raise
            finally:
                self._used_at = trio.current_time()

    async def _answer(self, device: ModbusDevice, request: ModbusRequest, lost: Effect, sent: int) -> bytes:
        wire_s = (sent + request.size + 3) * _BITS_PER_CHARACTER / self.port.settings.baud if self._tcp is None else 0.0
        deadline = trio.current_time() + self._timeout_s + wire_s
        # Until the answer is there it is owed, whatever ends this wait.
        self._owed_until = deadline + self._late_s
        pdu, data = None, b""
        try:
            while (pdu := self._framing.feed(data)) is None:
                try:
                    data = await self._receive(deadline)
                except DeviceError as error:  # the port is gone, after it has sent the request
                    error.data = {**(error.data or {}), "effect": lost}
                    raise
                if not data:
                    raise TimedOut(
                        f"{self._where(device)}: no answer within {self._timeout_s:g} s; is it on, and are its number "
                        f"and the line's settings right?{_doubt(lost)}",
                        effect=lost,
                        data=self._place(device),
                    )
        except BadStream as error:
            assert self._tcp is not None, "only TcpFraming raises it"
            self._tcp.hang_up()
            raise self._bad_answer(device, error, lost) from None
        except BadAnswer as error:
            self._framing.restart()
            if error.begun:
                self._owed_until = 0.0
            raise self._bad_answer(device, error, lost) from None
        self._owed_until = 0.0
        if len(pdu) == 2:
            raise self._exception(device, pdu[1], lost)
        return pdu

    async def _receive(self, deadline: float) -> bytes:
        """Return what has come, at the latest at `deadline`; nothing if nothing has."""
        with trio.move_on_at(deadline):
            await self.port.inbox.wait(None, None, reader=_READER)
        # A gap, of any length, makes the port fetch what the kernel has.
        taken = await self.port.take(None, None, gap_s=0.0, partial=True, reader=_READER)
        return taken.data

    async def _settle(self, device: ModbusDevice) -> None:
        """Wait until no answer is owed and the line is silent; drop what is received. Raises DeviceError."""
        while trio.current_time() < self._owed_until and (data := await self._receive(self._owed_until)):
            try:
                if self._framing.feed(data) is not None:
                    break
            except BadAnswer:
                self._framing.restart()
        self._owed_until = 0.0
        latest = trio.current_time() + NOISE_S
        silence = frame_gap_s(self.port.settings.baud)
        while True:
            # What came while nothing was awaited counts from when it came.
            quiet_at = max(self._used_at, self.port.inbox.fed_at) + silence
            self.port.inbox.skip(_READER)
            if not await self._receive(quiet_at) and trio.current_time() >= quiet_at:
                return
            if trio.current_time() > latest:
                raise DeviceError(
                    f"{self._where(device)}: the line is never silent: a device sends without being asked, or the "
                    "wiring picks up noise; nothing was sent",
                    effect="none",
                    data=self._place(device),
                )

    # --- errors ---------------------------------------------------------------------------------------------------

    def _where(self, device: ModbusDevice) -> str:
        return f"modbus line {self.line}, device {device.name} (unit {device.unit})"

    def _place(self, device: ModbusDevice) -> dict[str, Any]:
        return {"line": self.line, "device": device.name, "unit": device.unit}

    def _bad_answer(self, device: ModbusDevice, error: BadAnswer, lost: Effect) -> DeviceError:
        text = f"{self._where(device)}: what came is not the answer: {error}{_doubt(lost)}"
        return DeviceError(text, effect=lost, data={**self._place(device), "errno": "EBADMSG", "reason": str(error)})

    def _exception(self, device: ModbusDevice, code: int, lost: Effect) -> DeviceError:
        effect: Effect = "none" if code in WITHOUT_EFFECT else lost
        what = EXCEPTIONS.get(code, "an exception that the standard does not have")
        data = {**self._place(device), "exception": code, "reason": what}
        return DeviceError(
            f"{self._where(device)}: it answers with exception {code}, {what}{_doubt(effect)}", effect=effect, data=data
        )


def _doubt(effect: Effect) -> str:
    return "; whether it was written is not known: read it back" if effect == "unknown" else ""


class TcpPort(FdUart):
    """A TCP connection to a Modbus server, as a port. Not more than a page of input is read before it is asked for."""

    opens_in_thread = True
    _SETTINGS: ClassVar = UartSettings(inbox_bytes=4096)

    def __init__(self, line: str, host: str, tcp_port: int, *, connect_s: float = 3.0) -> None:
        super().__init__(line, self._SETTINGS)
        self.address = (host, tcp_port)
        self._connect_s = connect_s
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Connect. Raises DeviceError."""
        connection = socket.socket(socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET)
        connection.settimeout(self._connect_s)
        try:
            connection.connect(self.address)
        except OSError as error:
            connection.close()
            raise self._error(f"no connection to {self}: {error.strerror or error}", number=error.errno) from error
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A server that is switched off says nothing: after half a minute of silence the kernel asks.
        for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connection
        self._attach(connection.fileno())

    def _release(self, fd: int) -> None:
        del fd  # the socket's
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def hang_up(self) -> None:
        """End the connection: the pump sees that, and the bus connects again."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                if error.errno != errno.ENOTCONN:  # it has ended already
                    raise

    def _read_size(self, inbox: Any) -> int:
        return int(inbox.room) if not inbox.closed else self._SETTINGS.inbox_bytes

    def _error(self, what: str, *, taken: int | None = None, number: int | None = None, effect: Effect = "none") -> Any:
        error = super()._error(what, taken=taken, number=number, effect=effect)
        data = {"line": self.port, **{key: value for key, value in (error.data or {}).items() if key != "port"}}
        return DeviceError(f"modbus line {self.port}: {what}", effect=effect, data=data)

    def _failed(self, error: OSError, *, taken: int | None = None) -> DeviceError:
        what = f"the connection to {self} has ended: {error.strerror}"
        failure: DeviceError = self._error(what, taken=taken, number=error.errno, effect="unknown" if taken else "none")
        return failure

    def __str__(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def describe(self) -> Mapping[str, Any]:
        """Return the address."""
        return {"driver": "tcp", "host": self.address[0], "tcp_port": self.address[1]}
