"""A Modbus line over a serial port or a TCP connection: the transactions, their timing, and which answer is whose.

It owns the order of bytes on one line; `codec` has the frames. Both kinds of port are an `FdUart`: a descriptor
that is polled, whose pump moves received bytes into a bounded buffer.

Theory of operation. A transaction is one request and its answer, in the bus's task; nothing comes in between, whatever
happens to the caller. An answer to another request must never be taken for this one's:

    TCP   Each request has a transaction number, which the answer repeats. Others are skipped.
    RTU   An answer has no number, and two reads of one size look alike. So the line remembers that an answer is owed.
          The next request waits until that answer has come or `late_s` have passed. This costs nothing after an answer
          in time. An answer that is later still is not told apart: `late_s` says how late the slowest device may be.
          Only the whole answer pays that debt. A server whose answers have no number of their own is handled alike.

Two doubts remain without numbers. Another master may ask the same unit: the line listens before its request for one
that has no answer yet, and a request that is heard later makes two answers come, of which neither is taken. And a frame
may be a second copy of the last one: if it is byte by byte the answer to the former, different, request. In doubt a
read is sent once more, after a silence longer than the answers of this line take; a write is never sent twice.

Before each request a serial line has to be silent for 3.5 characters, which is what separates two frames. A line that
does not become silent is refused, with nothing sent. The end of an answer is known from its length, not from a silence:
a USB adapter passes bytes on in portions with pauses between them.

A server may end a connection at any time. The next request makes another one, before it is sent; a read whose
connection ends under it is sent once more. A connection on which nothing came in time is ended too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, Final

import trio

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.modbus.codec import (
    EXCEPTIONS,
    LOOPBACK,
    WITHOUT_EFFECT,
    BadAnswer,
    BadStream,
    ModbusFraming,
    RtuFraming,
    TcpFraming,
    Tid,
    read_request,
    read_values,
    write_request,
)
from hearth.drivers.modbus.driver import BROADCAST, ModbusDevice, device_of
from hearth.drivers.modbus.network import TcpPort
from hearth.drivers.serial_port.settings import write_timeout_s
from hearth.errors import DeviceError, Effect, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.modbus.codec import ModbusRequest, ModbusTable
    from hearth.drivers.serial_port.fd import FdUart

_READER: Final = "modbus"
_LARGEST: Final = 256
"""Bytes of the largest frame on a serial line."""
_BITS_PER_CHARACTER: Final = 11
_FASTEST_S: Final = 0.00175
"""The silence between two frames above 19200 baud."""
_COPY_S: Final = 0.02
"""The least silence after which no second copy of an answer is on its way."""
_ENDING_S: Final = 0.005
NOISE_S: Final = 1.0
"""Seconds that a line may take to become silent."""


def frame_gap_s(baud: int) -> float:
    """Return the silence that separates two frames: 3.5 characters, and not less than above 19200 baud."""
    return max(_FASTEST_S, 3.5 * _BITS_PER_CHARACTER / baud)


class ModbusLine(BaseDriver):
    """One line of Modbus devices: its operations are coroutine functions (Style.ASYNC).

    `devices` are the declared ones by their units. `late_s` and `turnaround_s` (after a broadcast) are for answers
    without a number. `delay_s` is the pause after a connection is made, `pause_s` the one before each request.
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
        delay_s: float = 0.0,
        pause_s: float = 0.0,
        rtu: bool = False,
        loopback: bool = False,
        tid: Tid = "same",
        reconnect: bool = True,
    ) -> None:
        self.line = line
        self.port = port
        self.devices = {device.unit: device for device in devices}
        self.opens_in_thread = port.opens_in_thread
        self.simulated = port.simulated
        self._tcp = port if isinstance(port, TcpPort) else None
        self._rtu = rtu or self._tcp is None
        self._timeout_s, self._late_s, self._turnaround_s = timeout_s, late_s, turnaround_s
        self._delay_s, self._pause_s = delay_s, pause_s
        rs485 = port.settings.rs485
        self._loopback = loopback or (rs485 is not None and rs485.loopback)
        self._tid: Tid = tid
        self._reconnect = reconnect
        self._numbered = not self._rtu and tid in ("same", "next")
        self._multiple: set[int] = set()
        """Units that have refused a write of one register, and taken the function for several."""
        self._advice: dict[tuple[str, str], tuple[str, str]] = {}
        self._framing: ModbusFraming
        self._begin()

    def _begin(self) -> None:
        """Expect nothing, on a port that was just opened."""
        if self._rtu:
            self._framing = RtuFraming(loopback=self._loopback)
        else:
            # Not from 0: the server may still answer requests of an earlier connection, of which it knows the number.
            self._framing = TcpFraming(int.from_bytes(os.urandom(2), "big"), tid=self._tid)
        self._owed_until = self._used_at = 0.0
        """The times until which the answer to the last request is waited for, and at which the line was last used."""
        self._request: ModbusRequest | None = None
        self._answered: tuple[bytes, ModbusRequest | None, float] = b"", None, -inf
        """The last answer, the request that it is of, and when it came."""
        self._slowest_s = 0.0
        """The time of the slowest of the last answers."""
        self._fresh = True

    def open(self) -> None:
        """Open the port. Raises DeviceError and ResourceBusy, both with effect "none"."""
        self.port.open()
        self._begin()

    def close(self) -> None:
        """Close the port."""
        self.port.close()

    async def pump(self) -> None:
        """Receive until the port is closed. Raises DeviceError when it is gone."""
        await self.port.pump()

    def describe(self) -> Mapping[str, Any]:
        """Return the line and its port."""
        return {**self.port.describe(), "kind": "modbus", "line": self.line}

    @property
    def advice(self) -> Sequence[tuple[str, str]]:
        """See BaseDriver: what the devices were seen to need, each once."""
        return [*self._advice.values()]

    def _advise(self, who: str, finding: str, cure: str) -> None:
        self._advice[who, cure] = f"{who}: {finding}", cure

    def limit_ms(self, requests: int = 1) -> float:
        """Return the milliseconds after which a transaction of so many requests counts as wedged."""
        sending = write_timeout_s(_LARGEST, self.port.settings.baud)
        # A read may be sent twice, and another master's answer be waited for before each.
        each = 2 * (3 * self._timeout_s + 2 * self._late_s + self._pause_s + NOISE_S + 2 * sending) + self._turnaround_s
        connecting = 0.0 if self._tcp is None else self._tcp.connect_s
        return 1000 * (requests * (each + 2 * (connecting + self._delay_s)) + 1)

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
        written = tuple(values)
        multiple = len(written) > 1 or device.write == "multiple" or unit in self._multiple
        try:
            await self._exchange(device, write_request(unit, table, reg, written, multiple=multiple), "unknown")
        except DeviceError as error:
            refused = error.data or {}
            if multiple or refused.get("exception") != 1 or refused.get("effect") != "none":
                raise
            # It has refused, so nothing is written yet: some devices know only the functions for several registers.
            await self._exchange(device, write_request(unit, table, reg, written, multiple=True), "unknown")
            self._multiple.add(unit)
            self._advise(device.name, "it refuses functions 5 and 6, and takes 15 and 16", 'give it write = "multiple"')

    async def _exchange(self, device: ModbusDevice, request: ModbusRequest, lost: Effect) -> bytes:
        """Send a request and return the answer's PDU; `lost` is the effect where the answer is missing."""
        with self.port.transaction():
            try:
                pdu = await self._ask(device, request, lost, again=lost == "none")
                if pdu is None:
                    pdu = await self._ask(device, request, lost, again=False)
                assert pdu is not None, "only the first try may be in doubt"
            except DeviceError as error:
                # The port does not know what its bytes mean: a request for a value has no effect.
                effect = {"effect": lost} if lost == "none" else {}
                error.data = {**(error.data or {}), **self._place(device), **effect}
                raise
            finally:
                self._used_at = trio.current_time()
                if isinstance(self._framing, RtuFraming):
                    self._look(self._framing)
        return pdu

    def _look(self, framing: RtuFraming) -> None:
        """Note what the line itself was seen to need."""
        if framing.echoed and not self._loopback:
            self._advise(self.line, "the port receives what it sends", LOOPBACK)
        if framing.others:
            units = ", ".join(str(unit) for unit in sorted({one.unit for one in framing.others}))
            cure = "let one master ask: beside another one reads take longer, and some of them fail"
            self._advise(self.line, f"another master asks on it (unit {units})", cure)

    async def _ask(self, device: ModbusDevice, request: ModbusRequest, lost: Effect, *, again: bool) -> bytes | None:
        """Send a request and return the answer's PDU; with `again` None where it must be sent once more."""
        self._framing.any_unit = device.unit_reply == "any"
        broadcast = self._rtu and request.unit == BROADCAST
        while True:
            await self._ready(device, request, lost)
            frame = self._framing.begin(request)
            sending_s = write_timeout_s(len(frame), self.port.settings.baud)
            try:
                await self.port.write(frame, timeout_s=sending_s, drain=broadcast and self._tcp is None, reader=_READER)
                break
            except DeviceError:
                if self._tcp is None or not self._tcp.untouched():
                    raise
        if broadcast:
            await trio.sleep(self._turnaround_s)
            return b""
        return await self._answer(device, request, lost, len(frame), again=again)

    async def _ready(self, device: ModbusDevice, request: ModbusRequest, lost: Effect) -> None:
        """Make the line ready for a request. Raises DeviceError."""
        if self._tcp is not None and await self._tcp.renewed(write=lost != "none"):
            self._framing.restart()
            self._fresh = True
        if self._fresh and self._delay_s:
            await trio.sleep(self._delay_s)
        self._fresh = False
        if self._pause_s:
            await trio.sleep_until(self._used_at + self._pause_s)
        if not self._numbered:
            await self._settle(device, request)

    async def _answer(
        self, device: ModbusDevice, request: ModbusRequest, lost: Effect, sent: int, *, again: bool
    ) -> bytes | None:
        wire_s = (sent + request.size + 3) * _BITS_PER_CHARACTER / self.port.settings.baud if self._tcp is None else 0.0
        began = trio.current_time()
        deadline = began + self._timeout_s + wire_s
        # Until the answer is there it is owed, whatever ends this wait.
        self._request, self._owed_until = request, deadline + self._late_s
        try:
            pdu = await self._first(deadline)
            if pdu is not None and self._framing.crossed and lost == "none":
                # The unit answers more than once, and which answer is whose is not known.
                if not await self._all(deadline) or not again:
                    raise BadAnswer("another master asks the same unit, so it is not known whose answer came")
                return None
        except (BadAnswer, DeviceError) as error:
            if again and self._tcp is not None and isinstance(error, DeviceError):
                return None
            raise self._failed(device, error, lost) from None
        if pdu is None:
            raise self._no_answer(device, lost)
        took_s = trio.current_time() - began
        copied, crossed = self._is_copy(request, began), self._framing.crossed
        self._paid()
        if copied and again:
            await self._silent(max(_COPY_S, 2 * self._slowest_s))
            return None
        self._slowest_s = max(took_s, 0.9 * self._slowest_s)
        if len(pdu) == 2:
            raise self._exception(device, pdu[1], lost, sure=not crossed)
        return pdu

    async def _first(self, deadline: float) -> bytes | None:
        """Return the PDU of the next frame that may be the answer; None if none comes. Raises BadAnswer."""
        pdu = self._framing.feed(b"")
        while pdu is None and (data := await self._receive(deadline)):
            pdu = self._framing.feed(data, self.port.inbox.fed_at)
            if trio.current_time() > deadline:  # on a line that is never silent there is always more
                break
        return pdu

    async def _all(self, deadline: float) -> bool:
        """Drop the answers to the last request and to others that look alike; return False if not all came."""
        while self._framing.found < 1 + self._framing.crossed:
            try:
                if await self._first(deadline) is None:
                    return False
            except BadAnswer:
                return False
        self._paid()
        return True

    def _is_copy(self, request: ModbusRequest, began: float) -> bool:
        """Return True if the answer to a request that was sent then may be a second one to the former request."""
        frame, former, at = self._answered
        fresh = began < at + self._late_s
        return not self._numbered and fresh and frame == self._framing.frame and former != request

    def _paid(self) -> None:
        self._answered = self._framing.frame, self._request, trio.current_time()
        self._owed_until = 0.0
        self._framing.end()

    async def _silent(self, seconds: float) -> None:
        """Drop what comes until nothing has come for so long, not longer than an answer may take."""
        latest = trio.current_time() + self._timeout_s
        while trio.current_time() < latest and await self._receive(trio.current_time() + seconds):
            pass

    async def _receive(self, deadline: float) -> bytes:
        """Return what has come, at the latest at `deadline`; nothing if nothing has."""
        with trio.move_on_at(deadline):
            await self.port.inbox.wait(None, None, reader=_READER)
        # A gap, of any length, makes the port fetch what the kernel has.
        taken = await self.port.take(None, None, gap_s=0.0, partial=True, reader=_READER)
        return taken.data

    async def _settle(self, device: ModbusDevice, request: ModbusRequest) -> None:
        """Wait until no answer is owed and the line is silent; drop what is received. Raises DeviceError."""
        if trio.current_time() < self._owed_until:
            await self._all(self._owed_until)
        self._owed_until = 0.0
        self._framing.end()
        self._note(b"")
        latest = trio.current_time() + NOISE_S
        silence, patience = frame_gap_s(self.port.settings.baud), self._timeout_s + self._late_s
        while True:
            # What came while nothing was awaited counts from when it came.
            quiet_at = max(self._used_at, self.port.inbox.fed_at) + silence
            # Until another master has its answer, or would give it up.
            asked_at = self._framing.asked(request, trio.current_time() - patience)
            if asked_at is not None:
                quiet_at = max(quiet_at, asked_at + patience)
                latest = max(latest, quiet_at + silence)
            data = await self._receive(quiet_at)
            if not data and trio.current_time() >= quiet_at:
                return
            self._note(data)
            if trio.current_time() > latest:
                raise DeviceError(
                    f"{self._where(device)}: the line is never silent: a device sends without being asked, or the "
                    "wiring picks up noise; nothing was sent",
                    effect="none",
                    data=self._place(device),
                )

    def _note(self, data: bytes) -> None:
        """Let the framing see bytes that are no answer to a request of this line."""
        with suppress(BadAnswer):
            pdu = self._framing.feed(data, self.port.inbox.fed_at)
            while pdu is not None:
                pdu = self._framing.feed(b"")

    def _where(self, device: ModbusDevice) -> str:
        return f"modbus line {self.line}, device {device.name} (unit {device.unit})"

    def _place(self, device: ModbusDevice) -> dict[str, Any]:
        return {"line": self.line, "device": device.name, "unit": device.unit}

    def _failed(self, device: ModbusDevice, error: BadAnswer | DeviceError, lost: Effect) -> DeviceError:
        if isinstance(error, DeviceError):  # the port is gone, after it has sent the request
            error.data = {**(error.data or {}), "effect": lost}
            return error
        if isinstance(error, BadStream):
            assert self._tcp is not None, "only TcpFraming raises it"
            self._tcp.hang_up()
        return self._bad_answer(device, error, lost)

    def _bad_answer(self, device: ModbusDevice, error: BadAnswer, lost: Effect) -> DeviceError:
        self._note_key(device, str(error))
        text = f"{self._where(device)}: what came is not the answer: {error}{_doubt(lost)}"
        return DeviceError(text, effect=lost, data={**self._place(device), "errno": "EBADMSG", "reason": str(error)})

    def _no_answer(self, device: ModbusDevice, lost: Effect) -> DeviceError:
        why = self._framing.fault()
        if why is not None and self._rtu:
            return self._bad_answer(device, BadAnswer(why), lost)
        if why is None and self._tcp is not None and self._reconnect:
            self._tcp.drop()
        self._note_key(device, why or "")
        asked = "is it on, and are its number and the line's settings right?" if why is None else why
        text = f"{self._where(device)}: no answer within {self._timeout_s:g} s; {asked}{_doubt(lost)}"
        return TimedOut(text, effect=lost, data=self._place(device) | ({} if why is None else {"reason": why}))

    def _note_key(self, device: ModbusDevice, why: str) -> None:
        """Note the cure in the words for a missing answer, if they have one."""
        finding, _, cure = why.partition("; ")
        if cure:
            self._advise(self.line if cure == LOOPBACK else device.name, finding, cure)

    def _exception(self, device: ModbusDevice, code: int, lost: Effect, *, sure: bool) -> DeviceError:
        effect: Effect = "none" if code in WITHOUT_EFFECT and sure else lost
        what = EXCEPTIONS.get(code, "an exception that the standard does not have")
        data = {**self._place(device), "exception": code, "reason": what}
        return DeviceError(
            f"{self._where(device)}: it answers with exception {code}, {what}{_doubt(effect)}", effect=effect, data=data
        )


def _doubt(effect: Effect) -> str:
    return "; whether it was written is not known: read it back" if effect == "unknown" else ""
