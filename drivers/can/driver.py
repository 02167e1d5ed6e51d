"""CAN: frames, filters, receive queues, and the driver that the simulated and the real buses share.

A driver here is one interface. Receiving never occupies the bus: a pump moves frames into a bounded `FrameQueue` as
they come; a reader waits beside the bus and takes them in one short transaction. Each session has a cursor of its own
in the queue, so that none takes what another one waits for, and learns how many frames it missed.

A frame counts as sent when it has been on the wire and another node has acknowledged it. `CanDriver.send` therefore
fails with effect "unknown" if the kernel took the frame and that did not happen in time. Before a frame goes out, its
rules are checked (`SendRules`), whatever tool it comes from.

Bus-off: a controller that has seen too many errors leaves the bus. The pump learns of it by an error frame, ends the
queue's readers and raises DeviceError; the bus goes down, and is opened again as soon as the interface is restarted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from attrs import define, field, frozen

from hearth.drivers.base import BaseDriver, Style, Wakeup
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.errors import Effect

EXTENDED = 0x8000_0000
"""The flag in a frame's key (and in the kernel's can_id) of an identifier of 29 bits."""
MAX_STANDARD, MAX_EXTENDED = 0x7FF, 0x1FFF_FFFF
FD_LENGTHS = (*range(9), 12, 16, 20, 24, 32, 48, 64)
"""The lengths that a CAN FD frame may have, in bytes; others have 0 to 8."""
MAX_ISOTP = 4095
"""Bytes of the longest ISO-TP message with a first frame of 12 bits (ISO 15765-2)."""
QUEUE = 4096
"""Frames that a bus keeps for its readers unless the profile says otherwise: four seconds at 1,000 a second."""
MOST_CURSORS = 1024
"""Readers whose cursor is kept. One more, and the cursor that was not used for the longest time is dropped."""

Scope: TypeAlias = Literal["any", "declared"]


def key_of(ident: int, *, extended: bool = False) -> int:
    """Return one number for an identifier: two of 11 and of 29 bits never have the same."""
    return ident | EXTENDED if extended or ident > MAX_STANDARD else ident


def key_name(key: int) -> str:
    """Return an identifier in hex: three digits for 11 bits ("0x123"), eight for 29 ("0x18feca00")."""
    return f"{key & MAX_EXTENDED:#010x}" if key & EXTENDED else f"{key:#05x}"


def group_of(key: int) -> int:
    """Return the J1939 parameter group number of an identifier of 29 bits; that of another one names no group.

    Priority and source address are no part of it, nor is the destination, which a PDU1 identifier has (SAE J1939-21).
    """
    number = key >> 8 & 0x3FFFF if key & EXTENDED else -1
    return number & 0x3FF00 if number >= 0 and is_to_one(number) else number


def is_to_one(group: int) -> bool:
    """Return True for a J1939 parameter group whose identifiers have a destination (PDU1)."""
    return (group >> 8 & 0xFF) < 240


@frozen
class Frame:
    """A frame, or a report of the interface about an error (`error` says which ones; it has no data then).

    `timestamp_us` is its reception in microseconds since 1970, 0 for one that is to be sent. `remote` asks another node
    for the frame of this identifier, with `asked` bytes. `fd` frames may have up to 64 bytes; `bitrate_switch` sends
    them faster. `parts` is the number of frames of a J1939 message that came in several, 0 for a frame; such a message
    has up to 1785 bytes.
    """

    key: int
    data: bytes = b""
    fd: bool = False
    bitrate_switch: bool = False
    remote: bool = False
    error: tuple[str, ...] = ()
    asked: int = 0
    parts: int = 0
    timestamp_us: int = field(default=0, eq=False)


@frozen
class IdFilter:
    """Frames whose identifier has the bits of `id` where `mask` has ones; 29 bits if `extended`, else 11."""

    id: int
    mask: int
    extended: bool = False

    def lets(self, key: int) -> bool:
        """Return True for a key that passes."""
        return bool(key & EXTENDED) == self.extended and (key ^ self.id) & self.mask & MAX_EXTENDED == 0


class SendRules(Protocol):
    """The rules for frames that leave this machine."""

    def check(self, frame: Frame) -> None:
        """Raise LimitViolated or PermissionDenied, with effect "none", for a frame that may not be sent."""

    def check_isotp(self, key: int) -> None:
        """Raise PermissionDenied for an identifier on which no ISO-TP message may be sent."""


class Assembly(Protocol):
    """What makes messages of several frames."""

    def feed(self, frame: Frame) -> Frame | None:
        """Take a frame that was received; return the message that is whole with it."""


class IsoTp(NamedTuple):
    """An exchange of ISO-TP messages: one with the key `tx`, and the answer with the key `rx`."""

    tx: int
    rx: int
    data: bytes
    timeout_s: float
    padding: int | None
    fd: bool
    reader: str


# --- the queue of received frames, with a cursor for each reader ------------------------------------------------------
#
# A cursor is the number of frames that came before it since the queue was made. The queue keeps the newest `capacity`
# frames; a cursor that they have passed has a gap, which its next read reports, as it does what the kernel has lost.
# What a session itself has sent is not shown to it.

Wanted: TypeAlias = "Callable[[int], bool] | None"
"""Returns True for the key of a frame that a reader wants; None: all of them."""


@define(eq=False)
class FrameCursor:
    """The place of one reader. `name` is the session whose own frames it skips."""

    at: int
    kernel_lost: int
    name: str = ""


@frozen(eq=False)
class TakenFrames:
    """The result of a read. `lost` counts frames since this reader's last read that it will never get."""

    frames: Sequence[Frame]
    complete: bool
    lost: int


@define(eq=False)
class FrameQueue:
    """Received frames in order of arrival, the newest `capacity` of them."""

    capacity: int = QUEUE
    received: int = field(default=0, init=False)
    """Frames since the queue was made."""
    kernel_lost: int = field(default=0, init=False)
    """Frames that the kernel dropped before this process could read them."""
    watched: bool = field(default=False, init=False)
    """True if there is or was a reader or a watch: a simulated node need not speak before."""
    readers: Wakeup = field(factory=Wakeup, init=False)
    """Woken when a reader comes."""
    _frames: deque[tuple[Frame, str]] = field(factory=deque, init=False)
    _cursors: OrderedDict[str, FrameCursor] = field(factory=OrderedDict, init=False)
    _closed: DeviceError | None = field(default=None, init=False)
    _wakeup: Wakeup = field(factory=Wakeup, init=False)

    def cursor(self, reader: str) -> FrameCursor:
        """Return the cursor of a reader, which begins at the next frame if it has none yet."""
        found = self._cursors.get(reader)
        if found is None:
            found = self._cursors[reader] = FrameCursor(self.received, self.kernel_lost, reader)
            if len(self._cursors) > MOST_CURSORS:
                self._cursors.popitem(last=False)
            self._attended()
        else:
            self._cursors.move_to_end(reader)
        return found

    def follow(self) -> FrameCursor:
        """Return a cursor that is no session's, and begins at the next frame."""
        self._attended()
        return FrameCursor(self.received, self.kernel_lost)

    def _attended(self) -> None:
        self.watched = True
        self.readers.wake()

    def forget(self, reader: str) -> None:
        """Drop a reader's cursor."""
        self._cursors.pop(reader, None)

    def feed(self, frame: Frame, sender: str = "") -> None:
        """Append a frame; `sender` is the session that sent it. Call `wake` after the last one that has come."""
        self._frames.append((frame, sender))
        self.received += 1
        if len(self._frames) > self.capacity:
            self._frames.popleft()

    def wake(self) -> None:
        """Let readers look at what was fed."""
        self._wakeup.wake()

    def close(self, error: DeviceError) -> None:
        """Wake the readers because nothing comes for now; only the first reason counts. Frames stay."""
        if self._closed is None:
            self._closed = error
        self._wakeup.wake()

    def reopen(self) -> None:
        """Let frames come again."""
        self._closed = None

    def _from(self, at: int, cursor: FrameCursor, wanted: Wanted, *, errors: bool) -> Iterator[tuple[int, Frame]]:
        """Yield the frames for a cursor from a place on, each with the place behind it."""
        start = self.received - len(self._frames)
        for place in range(max(at, start), self.received):
            frame, sender = self._frames[place - start]
            if frame.error:
                fits = errors
            else:
                fits = not (sender and sender == cursor.name) and (wanted is None or wanted(frame.key))
            if fits:
                yield place + 1, frame

    def take(
        self, cursor: FrameCursor, wanted: Wanted, most: int, *, partial: bool = False, errors: bool = False
    ) -> TakenFrames:
        """Read `most` wanted frames; if there are not so many: nothing, or with `partial` those that there are.

        The cursor moves behind the frames that were returned, past others that were not wanted.
        """
        frames: list[Frame] = []
        end = self.received
        for place, frame in self._from(cursor.at, cursor, wanted, errors=errors):
            frames.append(frame)
            if len(frames) == most:
                end = place
                break
        complete = len(frames) == most
        if not (complete or partial):
            return TakenFrames((), complete=False, lost=0)
        dropped = max(0, self.received - len(self._frames) - cursor.at)
        lost = dropped + self.kernel_lost - cursor.kernel_lost
        cursor.at, cursor.kernel_lost = end, self.kernel_lost
        return TakenFrames(frames, complete, lost)

    async def wait(self, cursor: FrameCursor, wanted: Wanted, count: int, *, errors: bool = False) -> None:
        """Wait until `take` would find `count` frames. Raises DeviceError when nothing comes any more."""
        found, at = 0, cursor.at
        while True:
            found += sum(1 for _ in self._from(at, cursor, wanted, errors=errors))
            at = self.received
            if found >= count:
                return
            if self._closed is not None:
                raise DeviceError(self._closed.message, data={**(self._closed.data or {}), "effect": "none"})
            await self._wakeup.until(lambda: self.received != at or self._closed is not None)  # noqa: B023  at once


# --- error frames -----------------------------------------------------------------------------------------------------
#
# linux/can/error.h: the class of an error is in the identifier, details are in the data.

BUS_OFF = 0x40
_CLASSES: Mapping[int, str] = {
    0x01: "transmit timeout",
    0x02: "arbitration lost",
    0x04: "controller",
    0x08: "protocol violation",
    0x10: "transceiver",
    0x20: "no acknowledgement",
    BUS_OFF: "bus off",
    0x80: "bus error",
    0x100: "restarted",
}
_CONTROLLER: Mapping[int, str] = {
    0x01: "receive buffer overflow",
    0x02: "transmit buffer overflow",
    0x04: "receive error warning",
    0x08: "transmit error warning",
    0x10: "receive error passive",
    0x20: "transmit error passive",
    0x40: "error active again",
}
STATES: Mapping[str, str] = {
    "receive error warning": "error-warning",
    "transmit error warning": "error-warning",
    "receive error passive": "error-passive",
    "transmit error passive": "error-passive",
    "error active again": "error-active",
    "restarted": "error-active",
    "bus off": "bus-off",
}
"""The state of the controller after an error."""


def errors_of(error_class: int, data: bytes) -> tuple[str, ...]:
    """Return the errors that an error frame reports, in words."""
    words = [word for bit, word in _CLASSES.items() if error_class & bit and bit != 0x04]
    if error_class & 0x04:
        words += [word for bit, word in _CONTROLLER.items() if data[1:2] and data[1] & bit] or [_CLASSES[0x04]]
    return tuple(words) or ("unspecified",)


# --- the driver ------------------------------------------------------------------------------------------------------


class CanDriver(BaseDriver, ABC):
    """One CAN interface: its operations are coroutine functions (Style.ASYNC).

    It owns the queue, the rules and the state of the controller; a subclass owns the wire.
    """

    style = Style.ASYNC

    def __init__(self, bus: str, *, queue: int = QUEUE, rules: SendRules | None = None) -> None:
        self.bus = bus
        self.queue = FrameQueue(queue)
        self.transport: Assembly | None = None
        self.state = "error-active"
        self.errors: dict[str, int] = {}
        """Error frames by what they report."""
        self.rules = rules

    async def send(self, frame: Frame, *, timeout_s: float, reader: str = "") -> None:
        """Send a frame and wait until another node has acknowledged it; `reader` will see all that comes after it.

        Raises LimitViolated or PermissionDenied (the rules), TimedOut (effect "none": the transmit queue stayed full;
        "unknown": no acknowledgement) and DeviceError.
        """
        self._check_open()
        if self.rules is not None:
            self.rules.check(frame)
        self.queue.cursor(reader)
        await self._send(frame, timeout_s, reader)

    @abstractmethod
    async def _send(self, frame: Frame, timeout_s: float, reader: str) -> None:
        """Send a frame that the rules permit."""

    async def isotp(
        self,
        tx: int,
        rx: int,
        data: bytes,
        *,
        timeout_s: float,
        padding: int | None = None,
        fd: bool = False,
        reader: str = "",
    ) -> bytes | None:
        """Send an ISO-TP message with the key `tx` and return the answer of key `rx`; None if none came in time.

        Frames are filled up with the byte `padding`. Raises PermissionDenied and DeviceError.
        """
        self._check_open()
        if self.rules is not None:
            self.rules.check_isotp(tx)
        self.queue.cursor(reader)
        return await self._isotp(IsoTp(tx, rx, data, timeout_s, padding, fd, reader))

    @abstractmethod
    async def _isotp(self, message: IsoTp) -> bytes | None:
        """Do an exchange that the rules permit."""

    async def take(
        self, wanted: Wanted, most: int, *, partial: bool = False, errors: bool = False, reader: str = ""
    ) -> TakenFrames:
        """Read frames at the cursor of `reader` (a session's id) without waiting, as `FrameQueue.take`."""
        return self.queue.take(self.queue.cursor(reader), wanted, most, partial=partial, errors=errors)

    async def follow(self) -> FrameCursor:
        """Return a cursor of its own, for a watch: it sees all frames from now on."""
        self._check_open()
        return self.queue.follow()

    def forget(self, session_id: str) -> None:
        """See `Driver.forget`."""
        self.queue.forget(session_id)

    def _error(self, what: str, *, effect: Effect = "none", errno_name: str = "EIO") -> DeviceError:
        return DeviceError(f"can {self.bus}: {what}", effect=effect, data={"bus": self.bus, "errno": errno_name})

    @abstractmethod
    def _check_open(self) -> None:
        """Raise DeviceError if the interface is not open."""

    def _received(self, frame: Frame, sender: str = "") -> None:
        """Append a frame to the queue, and the J1939 message that is whole with it."""
        self.queue.feed(frame, sender)
        if self.transport is not None and (whole := self.transport.feed(frame)) is not None:
            self.queue.feed(whole, sender)

    def _note_errors(self, words: tuple[str, ...], timestamp_us: int) -> DeviceError | None:
        """Count an error frame, and pass it to readers; return the error that takes the bus down, for bus-off."""
        for word in words:
            self.errors[word] = self.errors.get(word, 0) + 1
            self.state = STATES.get(word, self.state)
        self.queue.feed(Frame(0, error=words, timestamp_us=timestamp_us))
        if "bus off" not in words:
            return None
        return self._error(
            "bus off: the controller left the bus after too many errors; check wiring, termination and bit rate, then "
            f"{self._restart()}",
            errno_name="ENETDOWN",
        )

    def _restart(self) -> str:
        """Return the cure of bus-off."""
        return "restart the controller"

    def _described(self, **more: Any) -> dict[str, Any]:
        return {
            "kind": "can",
            "bus": self.bus,
            **more,
            "state": self.state,
            "errors": dict(self.errors),
            "received": self.queue.received,
            "lost_by_kernel": self.queue.kernel_lost,
        }
