"""A simulated CAN bus: nodes that publish, answer and echo, and the faults of a real one.

It owns the wire: frames of hearth reach the nodes, frames of the nodes reach the receive queue. Bit rates, arbitration
and the time of a frame on the wire are not simulated. A node publishes only once hearth has a reader, so that an idle
daemon stays idle. The nodes of the board `sim` are described by its DBC file, `sim.dbc`.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, Protocol

import trio
from attrs import evolve

from hearth.drivers.base import DeviceGone, Wakeup
from hearth.drivers.can.driver import QUEUE, CanDriver, Frame, IsoTp
from hearth.errors import DeviceError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hearth.drivers.can.driver import SendRules
    from hearth.errors import Effect

ENGINE_DATA, FAN_COMMAND, FAN_STATUS = 0x100, 0x200, 0x201
ECHO_REQUEST, ECHO_RESPONSE = 0x7E0, 0x7E8
_ENGINE, _FAN = struct.Struct("<HBB"), struct.Struct("<BH")
_AMBIENT, _HOT, _FAN_RPM = 20.0, 95.0, 3000
_FLOW_CONTROL_S = 1.0
"""Seconds that the kernel waits for flow control too (ISO 15765-2, N_Bs)."""


class SimNode(Protocol):
    """A simulated node. `period_s` is the time between two `publish`, 0 for a node that only answers."""

    period_s: float

    def publish(self) -> Iterable[Frame]:
        """Return the frames that it sends on its own."""
        ...

    def hear(self, frame: Frame) -> Iterable[Frame]:
        """Return the frames that it answers."""
        ...


class Plant:
    """An engine that publishes its speed and temperature, and a fan that cools it and confirms each command."""

    period_s = 0.1

    def __init__(self) -> None:
        self.fan = 0.0
        """Percent of its full speed."""
        self.temperature = 60.0
        """Of the engine, in degrees Celsius."""
        self.rpm = 1500.0

    def publish(self) -> Iterable[Frame]:
        """Return ENGINE_DATA; the temperature has moved on towards where the fan leads it."""
        target = _HOT - (_HOT - _AMBIENT) * self.fan / 200
        self.temperature += (target - self.temperature) * 0.02
        yield Frame(ENGINE_DATA, _ENGINE.pack(round(self.rpm / 0.25), round(self.temperature) + 40, 1) + bytes(4))

    def hear(self, frame: Frame) -> Iterable[Frame]:
        """Return FAN_STATUS for a FAN_COMMAND."""
        if frame.key == FAN_COMMAND and frame.data:
            self.fan = frame.data[0] / 2
            yield Frame(FAN_STATUS, _FAN.pack(frame.data[0], round(_FAN_RPM * self.fan / 100)))


def echo(data: bytes) -> bytes | None:
    """Return the ISO-TP message as it came."""
    return data


class SimCan(CanDriver):
    """A `CanDriver` without hardware.

    `isotp_peers` maps (request, response) keys to the functions that answer; None is silence. `wire` has the newest
    frames that hearth has sent.
    """

    simulated = True

    def __init__(
        self,
        bus: str,
        *,
        nodes: Sequence[SimNode] = (),
        queue: int = QUEUE,
        rules: SendRules | None = None,
        virtual: bool = False,
    ) -> None:
        super().__init__(bus, queue=queue, rules=rules)
        self.nodes = nodes
        self.isotp_peers: dict[tuple[int, int], Callable[[bytes], bytes | None]] = {}
        self.wire: list[Frame] = []
        self.acknowledged = True
        """Fault: False, and no node acknowledges a frame of hearth."""
        self.full = False
        """Fault: True, and the transmit queue takes no frame."""
        self.restarts = True
        """Fault: False, and a controller that is off the bus stays so, and cannot be opened."""
        self.plugged = True
        self._virtual = virtual
        self._open = False
        self._gone = DeviceGone()
        self._changed = Wakeup()

    # --- the outside ----------------------------------------------------------------------------------------------

    def inject(self, frame: Frame) -> None:
        """Let another node send a frame."""
        if self._open:
            self._feed(frame)

    def report(self, *errors: str) -> None:
        """Let the interface report errors, in the words of `.driver`; "bus off" takes the bus down."""
        failure = self._note_errors(errors, self._now_us())
        self.queue.wake()
        if failure is not None:
            self._leave(failure)

    def unplug(self) -> None:
        """Take the interface away, until `plugged` is set again."""
        self.plugged = False
        self._leave(self._missing())

    def _leave(self, failure: DeviceError) -> None:
        self.queue.close(failure)
        self._gone.report(failure)
        self._changed.wake()

    def _missing(self) -> DeviceError:
        return self._error("the interface is not there: is the adapter plugged in?", errno_name="ENODEV")

    def set_faults(self, **faults: bool) -> None:
        """Set `acknowledged`, `full` or `restarts` while a frame may wait for it."""
        for name, value in faults.items():
            setattr(self, name, value)
        self._changed.wake()

    # --- the driver -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect to the simulated bus. Raises DeviceError while it is unplugged, or off the bus for good."""
        if not self.plugged:
            raise self._missing()
        if self.state == "bus-off" and not self.restarts:
            raise self._error(f"bus off: {self._restart()}", errno_name="ENETDOWN")
        self._gone.forget()
        self.state = "error-active"
        self.queue.reopen()
        self._open = True

    def close(self) -> None:
        """Disconnect; readers off the bus get a DeviceError."""
        self._open = False
        self._leave(self._error("the interface was closed"))

    def _check_open(self) -> None:
        if not self._open:
            raise self._error("the interface is not open", errno_name="EBADF")

    async def pump(self) -> None:
        """Run the nodes until the interface goes, or is off the bus."""
        if not self._open:
            return
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                if node.period_s:
                    nursery.start_soon(self._publish, node)
            await self._changed.until(lambda: self._left)
            nursery.cancel_scope.cancel()
        # Outside the nursery, which would wrap it in an exception group. A close is no failure.
        if self._open:
            await self._gone.wait()

    async def _publish(self, node: SimNode) -> None:
        await self.queue.readers.until(lambda: self.queue.watched)
        while True:
            await trio.sleep(node.period_s)
            for frame in node.publish():
                self._feed(frame)

    def _now_us(self) -> int:
        return round((trio.current_time() if self._virtual else time.time()) * 1e6)

    def _feed(self, frame: Frame, sender: str = "") -> None:
        self._received(evolve(frame, timestamp_us=self._now_us()), sender)
        self.queue.wake()

    async def _send(self, frame: Frame, timeout_s: float, reader: str) -> None:
        with trio.move_on_after(timeout_s):
            await self._changed.until(lambda: self._left or not self.full)
            await self._changed.until(lambda: self._left or self.acknowledged)
        effect: Effect = "none" if self.full else "unknown"
        if self._left:
            raise self._error("the interface went while the frame was sent", effect=effect)
        if self.full or not self.acknowledged:
            what = "the transmit queue is full" if self.full else "no other node has acknowledged the frame"
            text = f"can {self.bus}: {what} after {timeout_s:g} s"
            raise TimedOut(text, effect=effect, data={"bus": self.bus})
        self._on_wire(frame, reader)

    @property
    def _left(self) -> bool:
        return not (self._open and self.plugged and self.state != "bus-off")

    def _on_wire(self, frame: Frame, reader: str) -> None:
        self.wire = [*self.wire[-99:], frame]
        self._feed(frame, reader)
        for node in self.nodes:
            for answer in node.hear(frame):
                self._feed(answer)

    async def _isotp(self, message: IsoTp) -> bytes | None:
        """Let readers see the frames of both messages, but for flow control."""
        tx, rx, data, timeout_s, padding, _, reader = message
        peer = self.isotp_peers.get((tx, rx))
        if peer is None and len(data) > 7:
            await trio.sleep(_FLOW_CONTROL_S)
            raise self._error("the receiver sent no flow control", effect="unknown", errno_name="ECOMM")
        for segment in segments(data, padding):
            self._on_wire(Frame(tx, segment), reader)
        answer = None if peer is None else peer(data)
        if answer is None:
            await trio.sleep(timeout_s)
            return None
        for segment in segments(answer, padding):
            self._feed(Frame(rx, segment))
        return answer

    def describe(self) -> Mapping[str, Any]:
        """Return the simulator's name, the state of the controller, and its counts of errors and of frames."""
        return self._described(driver="sim")


def segments(data: bytes, padding: int | None) -> Iterable[bytes]:
    """Yield the frames of an ISO-TP message (ISO 15765-2): one, or a first and consecutive ones."""
    fill = b"" if padding is None else bytes([padding]) * 8
    if len(data) <= 7:
        yield (bytes([len(data)]) + data + fill)[: 8 if fill else 1 + len(data)]
        return
    yield (0x1000 | len(data)).to_bytes(2, "big") + data[:6]
    for number, at in enumerate(range(6, len(data), 7), 1):
        part = bytes([0x20 | number & 0x0F]) + data[at : at + 7]
        yield (part + fill)[: 8 if fill else len(part)]


NODES: Mapping[str, Callable[[], SimNode]] = {"plant": Plant}
"""The nodes that a profile may name."""
