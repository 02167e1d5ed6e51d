"""A simulated Modbus line: devices with memory at the far end of a simulated serial port, which speak RTU.

It owns the server's side of the protocol, and the faults that can be injected. A device has the registers that the
board profile declares, and those of `memory`; others are an illegal address. Nothing in it changes by itself.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import trio
from attrs import define, field

from hearth.drivers.modbus.codec import BITS, COIL_ON, FAILED, MOST_READ, READS, checked, pack_bits
from hearth.drivers.serial_port.pty import EchoPeer, SimUart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.modbus.codec import ModbusTable
    from hearth.drivers.modbus.driver import ModbusDevice
    from hearth.drivers.serial_port.settings import UartSettings

Fault: TypeAlias = Literal["lost", "damaged", "cut", "garbage", "foreign"] | int
"""What becomes of one answer: it is lost, has a wrong checksum, ends in the middle, has noise before it, is another
device's. A number: the device does nothing and answers with that exception."""

_TABLES: Final[Mapping[int, ModbusTable]] = {
    1: "coil", 2: "discrete", 3: "holding", 4: "input", 5: "coil", 6: "holding", 15: "coil", 16: "holding",
}  # fmt: skip
"""The table that each function is about."""
_NOISE: Final = b"\x00\xfe\x13"


@define(eq=False)
class SimModbusDevice:
    """One device: `memory` by table and address; `delay_s` before each answer; `faults` of the next answers."""

    memory: dict[tuple[ModbusTable, int], int] = field(factory=dict)
    delay_s: float = 0.0
    faults: deque[Fault] = field(factory=deque)
    requests: int = 0

    @classmethod
    def of(cls, spec: ModbusDevice) -> SimModbusDevice:
        """Return a device with the declared registers, at 0."""
        memory: dict[tuple[ModbusTable, int], int] = {}
        for one in spec.registers:
            memory |= {(one.table, at): 0 for at in range(one.reg, one.reg + one.size)}
        return cls(memory)

    def answer(self, pdu: bytes) -> bytes:
        """Do what a request asks for; return the answer's PDU."""
        function, (reg, count) = pdu[0], struct.unpack_from(">HH", pdu, 1)
        table: ModbusTable | None = _TABLES.get(function)
        if table is None:
            return bytes((function | FAILED, 1))
        single = function in (5, 6)
        places: list[tuple[ModbusTable, int]] = [(table, at) for at in range(reg, reg + (1 if single else count))]
        if not 1 <= len(places) <= MOST_READ[table]:
            return bytes((function | FAILED, 3))
        if any(place not in self.memory for place in places):
            return bytes((function | FAILED, 2))
        if function in READS.values():
            values = tuple(self.memory[place] for place in places)
            data = pack_bits(values) if table in BITS else struct.pack(f">{count}H", *values)
            return bytes((function, len(data))) + data
        if single:
            written: Iterable[int] = (int(count == COIL_ON) if table == "coil" else count,)
        elif table == "coil":
            written = (pdu[6 + index // 8] >> index % 8 & 1 for index in range(count))
        else:
            written = struct.unpack_from(f">{count}H", pdu, 6)
        self.memory.update(zip(places, written, strict=True))
        return pdu[:5]


class ModbusPeer(EchoPeer):
    """The devices at the far end of a serial line."""

    def __init__(self, fd: int, devices: Mapping[int, SimModbusDevice]) -> None:
        super().__init__(fd)
        self._devices = devices

    def _line(self, buffer: bytearray) -> bytes:
        """Take the next whole frame from what was received; nothing if there is none, and never a damaged one."""
        size = 8
        if len(buffer) > 6 and buffer[1] in (15, 16):
            size = 9 + buffer[6]
        if len(buffer) < size:
            return b""
        frame = bytes(buffer[:size])
        buffer.clear()
        return frame if checked(frame[:-2]) == frame else b""

    async def _answer(self, line: bytes) -> bytes:
        unit, pdu = line[0], line[1:-2]
        if unit == 0:
            for each in self._devices.values():
                each.answer(pdu)
            return b""
        device = self._devices.get(unit)
        if device is None:
            return b""
        device.requests += 1
        fault = device.faults.popleft() if device.faults else None
        answer = bytes((pdu[0] | FAILED, fault)) if isinstance(fault, int) else device.answer(pdu)
        frame = checked(bytes((unit + 1 if fault == "foreign" else unit,)) + answer)
        await trio.sleep(device.delay_s)
        match fault:
            case "lost":
                return b""
            case "damaged":
                return frame[:-1] + bytes((frame[-1] ^ 1,))
            case "cut":
                return frame[:3]
            case "garbage":
                return _NOISE + frame
            case _:
                return frame


class SimModbusPort(SimUart):
    """A simulated serial port with Modbus devices at its far end. It needs no pseudo-terminal."""

    def __init__(self, line: str, settings: UartSettings, devices: Iterable[ModbusDevice]) -> None:
        super().__init__(line, settings, peer="none", terminal=False)
        self.devices = {spec.unit: SimModbusDevice.of(spec) for spec in devices}

    def _new_peer(self, far: int) -> EchoPeer:
        return ModbusPeer(far, self.devices)
