"""A CAN interface of the machine, through SocketCAN's own sockets: no library, no thread.

Two raw sockets. The receiving one has the profile's filters, and gets error frames. The sending one hears nothing but
the frame that it is about to send: the kernel hands that back (MSG_CONFIRM) when the controller has sent it and another
node has acknowledged it. hearth sets no bit rate and brings no interface up: that takes CAP_NET_ADMIN, and a wrong rate
disturbs the whole bus. Source: Documentation/networking/can.rst of the kernel.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from hearth.drivers.can.driver import (
    EXTENDED,
    MAX_EXTENDED,
    MAX_ISOTP,
    QUEUE,
    CanDriver,
    Frame,
    IdFilter,
    IsoTp,
    errors_of,
)
from hearth.errors import DeviceError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.can.driver import SendRules
    from hearth.errors import Effect

_REMOTE, _ERROR = 0x4000_0000, 0x2000_0000
_CLASSIC = struct.Struct("=IB3x8s")
_FD = struct.Struct("=IBBxx64s")
_BITRATE_SWITCH = 0x01
_FILTER = struct.Struct("=II")
_WORD = struct.Struct("=I")
_ERR_FILTER = 2
"""CAN_RAW_ERR_FILTER, which Python's module has not on every system."""
_SO_TIMESTAMP, _SO_MEMINFO = 29, 55
_MEMINFO = struct.Struct("=32xI")
"""The last of its nine numbers: datagrams that the socket had no room for (linux/sock_diag.h)."""
_TIMEVAL = struct.Struct("@ll")
_SIOCGIFFLAGS, _SIOCGIFMTU = 0x8913, 0x8921
_IFF_UP = 0x01
_IFREQ = struct.Struct("16si20x")
_RECEIVE_BUFFER = 1 << 20
"""Bytes that are asked for; the kernel gives net.core.rmem_max of them, which is 470 frames unless it was raised."""
_BATCH = 64
"""Frames after which the other tasks get a turn."""
_BUSY_S, _GROUP_S = 0.02, 0.01
"""A bus is busy when frames come less than so many seconds apart; they are then read in groups of so many seconds."""
_FULL_PAUSE = 0.002
"""Seconds between two tries on a full transmit queue, whose end of fullness cannot be polled (ENOBUFS)."""
_SOL_CAN_ISOTP, _ISOTP_OPTS, _ISOTP_LL_OPTS = 106, 1, 5
_ISOTP_TX_PADDING = 0x04


class LinuxCan(CanDriver):
    """A `CanDriver` over an interface of the kernel, which may go and come back at any time."""

    def __init__(
        self,
        bus: str,
        interface: str,
        *,
        fd: bool = False,
        filters: Sequence[IdFilter] = (),
        queue: int = QUEUE,
        bitrate: int | None = None,
        rules: SendRules | None = None,
    ) -> None:
        super().__init__(bus, queue=queue, rules=rules)
        self.interface = interface
        self._fd = fd
        self._filters = filters
        self._bitrate = bitrate
        self._rx: socket.socket | None = None
        self._tx: socket.socket | None = None
        self._sent: deque[tuple[bytes, str]] = deque(maxlen=64)
        """Frames of sessions that the receiving socket has not seen yet."""
        self._lost_before = 0
        """What the kernel had lost when the sockets were opened; their own count begins at 0."""

    # --- opening --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open and bind both sockets. Raises DeviceError: no such interface, down, bus off, no CAN FD, no CAN."""
        self._rx, self._tx = self.open_sockets()
        self._sent.clear()
        self._lost_before = self.queue.kernel_lost
        self.state = "error-active"
        self.queue.reopen()

    def open_sockets(self) -> tuple[socket.socket, socket.socket]:
        """Return a socket to receive with, and one to send with. Raises DeviceError, as `open`."""
        with ExitStack() as undo:
            rx = undo.enter_context(self._socket(socket.SOCK_RAW, socket.CAN_RAW))
            self._check_interface(rx)
            prepare(rx)
            rx.setsockopt(socket.SOL_CAN_RAW, _ERR_FILTER, MAX_EXTENDED)
            if self._filters:
                rx.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FILTER, b"".join(map(_kernel_filter, self._filters)))
            self._bind(rx)
            tx = undo.enter_context(self._socket(socket.SOCK_RAW, socket.CAN_RAW))
            tx.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FILTER, b"")
            tx.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_RECV_OWN_MSGS, 1)
            self._bind(tx)
            undo.pop_all()
        return rx, tx

    def _socket(self, kind: int, protocol: int) -> socket.socket:
        try:
            made = socket.socket(socket.AF_CAN, kind, protocol)
        except OSError as error:
            module = "can-isotp" if protocol == socket.CAN_ISOTP else "can-raw"
            cure = f"`sudo modprobe {module}` loads it"
            if error.errno in (errno.EPERM, errno.EACCES):
                cure = 'the daemon\'s confinement denies it: has the board a [[can]] with driver = "socketcan"?'
            raise self._failure(error, f"no CAN socket ({error.strerror}); {cure}") from error
        made.setblocking(False)
        return made

    def _bind(self, made: socket.socket) -> None:
        try:
            if self._fd:
                made.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FD_FRAMES, 1)
            made.bind((self.interface,))
        except OSError as error:
            raise self._failure(error) from error

    def _check_interface(self, made: socket.socket) -> None:
        try:
            flags = self._ask(made, _SIOCGIFFLAGS) & 0xFFFF
            mtu = self._ask(made, _SIOCGIFMTU)
        except OSError as error:
            raise self._failure(error) from error
        if not flags & _IFF_UP:
            raise self._failure(OSError(errno.ENETDOWN, "down"))
        # Without a carrier the controller is off the bus. The sysfs attribute changes at once, IFF_RUNNING later.
        with suppress(OSError):
            if Path(f"/sys/class/net/{self.interface}/carrier").read_text("ascii").strip() == "0":
                raise self._error(f"bus off: {self._restart()}", errno_name="ENETDOWN")
        if self._fd and mtu < _FD.size:
            raise self._error(
                f"{self.interface} does no CAN FD: take `fd` out of the profile, or set it up with `fd on`",
                errno_name="EINVAL",
            )

    def _ask(self, made: socket.socket, request: int) -> int:
        answer = fcntl.ioctl(made.fileno(), request, _IFREQ.pack(self.interface.encode(), 0))
        number: int = _IFREQ.unpack(answer)[1]
        return number

    def _failure(self, error: OSError, what: str | None = None, *, effect: Effect = "none") -> DeviceError:
        up = f"`{up_command(self.interface, self._bitrate, fd=self._fd)}`"
        known = {
            errno.ENODEV: f"there is no interface {self.interface}: is the adapter plugged in? `ip -br link` lists all",
            errno.ENETDOWN: f"the interface {self.interface} is down; {up} brings it up",
        }
        what = what or known.get(error.errno or 0) or f"{self.interface}: {error.strerror}"
        return self._error(what, effect=effect, errno_name=errno.errorcode.get(error.errno or errno.EIO, "EIO"))

    def _restart(self) -> str:
        name = self.interface
        return f"`sudo ip link set {name} type can restart`, or `sudo ip link set {name} down` and up, brings it back"

    def close(self) -> None:
        """Close both sockets; readers off the bus get a DeviceError."""
        self.queue.close(self._error("the interface was closed"))
        for made in (self._rx, self._tx):
            if made is not None:
                if trio.lowlevel.in_trio_run():
                    trio.lowlevel.notify_closing(made)
                made.close()
        self._rx = self._tx = None

    def _check_open(self) -> None:
        self._open_tx()

    def _open_tx(self) -> socket.socket:
        if self._tx is None:
            raise self._error("the interface is not open", errno_name="EBADF")
        return self._tx

    # --- receiving ------------------------------------------------------------------------------------------------

    async def pump(self) -> None:
        """Move received frames into the queue. Raises DeviceError when the interface goes, or is off the bus."""
        rx = self._rx
        if rx is None:
            return
        before = -_BUSY_S
        while self._rx is rx:
            try:
                await trio.lowlevel.wait_readable(rx)
                if trio.current_time() - before < _BUSY_S:
                    # A busy bus is read in groups: waking up for each frame costs more than the frame.
                    await trio.sleep(_GROUP_S)
                    if self._rx is not rx:
                        return
                before = trio.current_time()
                failure = self._receive(rx)
            except trio.ClosedResourceError:
                return
            except OSError as error:
                failure = self._failure(error)
            self.queue.wake()
            if failure is not None:
                self.queue.close(failure)
                raise failure

    def _receive(self, rx: socket.socket) -> DeviceError | None:
        """Fetch the frames that the kernel has by now, some at a time; return the error of a bus-off."""
        queue = self.queue
        for _ in range(_BATCH):
            try:
                wire, ancillary, flags, _ = rx.recvmsg(_FD.size, 128)
            except BlockingIOError:
                break
            timestamp_us = 0
            for _, kind, value in ancillary:
                if kind == _SO_TIMESTAMP:
                    seconds, micros = _TIMEVAL.unpack(value)
                    timestamp_us = seconds * 1_000_000 + micros
            key: int = _WORD.unpack_from(wire)[0]
            if key & _ERROR:
                failure = self._note_errors(errors_of(key & MAX_EXTENDED, wire[8:]), timestamp_us)
                if failure is not None:
                    return failure
                continue
            sender = self._sender(wire) if flags & socket.MSG_DONTROUTE and self._sent else ""
            self._received(_unpack(key, wire, timestamp_us), sender)
        # Asked of the socket, not of a frame (SO_RXQ_OVFL): after the end of a burst there may be no further frame.
        queue.kernel_lost = self._lost_before + _MEMINFO.unpack(rx.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))[0]
        return None

    def _sender(self, wire: bytes) -> str:
        """Return the session that sent a frame of this machine, if it was one."""
        for sent in self._sent:
            if sent[0] == _content(wire):
                self._sent.remove(sent)
                return sent[1]
        return ""

    # --- sending --------------------------------------------------------------------------------------------------

    async def _send(self, frame: Frame, timeout_s: float, reader: str) -> None:
        tx = self._open_tx()
        wire, taken = _pack(frame), False
        mine = (_content(wire), reader)
        try:
            tx.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FILTER, _FILTER.pack(frame.key, EXTENDED | MAX_EXTENDED))
            with suppress(BlockingIOError):  # confirmations of frames that were given up
                while True:
                    tx.recv(_FD.size)
            if not self._filters or any(one.lets(frame.key) for one in self._filters):
                self._sent.append(mine)
            with trio.move_on_after(timeout_s):
                await self._hand_over(tx, wire)
                taken = True
                await self._confirmed(tx, wire)
                return
        except OSError as error:
            raise self._failure(error, effect="unknown" if taken else "none") from error
        except trio.ClosedResourceError:
            raise self._error("the interface was closed", effect="unknown" if taken else "none") from None
        finally:
            if not taken:
                with suppress(ValueError):
                    self._sent.remove(mine)
            if self._tx is tx:
                with suppress(OSError):
                    tx.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FILTER, b"")
        raise self._late(timeout_s, taken=taken)

    def _late(self, timeout_s: float, *, taken: bool) -> TimedOut:
        what = "no other node has acknowledged the frame" if taken else "the transmit queue is full"
        cure = "is another node on the bus, with the same bit rate?"
        data = {"bus": self.bus}
        text = f"can {self.bus}: {what} after {timeout_s:g} s; {cure}"
        return TimedOut(text, effect="unknown" if taken else "none", data=data)

    @staticmethod
    async def _hand_over(tx: socket.socket, wire: bytes) -> None:
        while True:
            try:
                tx.send(wire)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(tx)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                await trio.sleep(_FULL_PAUSE)
            else:
                return

    @staticmethod
    async def _confirmed(tx: socket.socket, wire: bytes) -> None:
        while True:
            try:
                back, _, flags, _ = tx.recvmsg(_FD.size)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(tx)
                continue
            if flags & socket.MSG_CONFIRM and _content(back) == _content(wire):
                return

    async def _isotp(self, message: IsoTp) -> bytes | None:
        """Use the kernel's ISO-TP socket, one for each exchange."""
        if message.fd and not self._fd:
            raise self._error("its profile allows classic frames only; `fd = true` in its [[can]] allows CAN FD")
        made, sent = self._socket(socket.SOCK_DGRAM, socket.CAN_ISOTP), False
        try:
            if message.padding is not None:
                options = struct.pack("=IIBBBB", _ISOTP_TX_PADDING, 0, 0, message.padding, 0, 0)
                made.setsockopt(_SOL_CAN_ISOTP, _ISOTP_OPTS, options)
            if message.fd:
                made.setsockopt(_SOL_CAN_ISOTP, _ISOTP_LL_OPTS, struct.pack("=BBB", _FD.size, 64, _BITRATE_SWITCH))
            made.bind((self.interface, message.rx, message.tx))
            with trio.move_on_after(message.timeout_s):
                made.send(message.data)
                sent = True
                await trio.lowlevel.wait_readable(made)
                return made.recv(MAX_ISOTP)
        except OSError as error:
            what = "the receiver sent no flow control" if error.errno == errno.ECOMM else None
            raise self._failure(error, what, effect="unknown" if sent else "none") from error
        finally:
            trio.lowlevel.notify_closing(made)
            made.close()
        return None

    def describe(self) -> Mapping[str, Any]:
        """Return the interface, its state, and its counts of errors and of frames."""
        return self._described(driver="socketcan", interface=self.interface, fd=self._fd)


def prepare(rx: socket.socket) -> None:
    """Give a socket room for frames, and let it say when each has come."""
    rx.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    rx.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMP, 1)


def up_command(interface: str, bitrate: int | None, *, fd: bool) -> str:
    """Return the command that brings an interface up; virtual ones have no bit rate."""
    if interface.startswith(("vcan", "vxcan")):
        return f"sudo ip link set {interface} up"
    rates = f"bitrate {bitrate or 'RATE'}{' dbitrate RATE fd on' if fd else ''}"
    return f"sudo ip link set {interface} up type can {rates} restart-ms 100"


def _kernel_filter(one: IdFilter) -> bytes:
    flag = EXTENDED if one.extended else 0
    return _FILTER.pack(one.id | flag, one.mask | EXTENDED)


def _content(wire: bytes) -> bytes:
    """Return a frame without its flags: newer kernels hand an FD frame back with CANFD_FDF set."""
    return wire[:5] + wire[8:]


def _pack(frame: Frame) -> bytes:
    if frame.fd:
        flags = _BITRATE_SWITCH if frame.bitrate_switch else 0
        return _FD.pack(frame.key, len(frame.data), flags, frame.data)
    return _CLASSIC.pack(frame.key | (_REMOTE if frame.remote else 0), len(frame.data), frame.data)


def _unpack(key: int, wire: bytes, timestamp_us: int) -> Frame:
    data = wire[8 : 8 + wire[4]]
    if len(wire) == _FD.size:
        return Frame(key, data, fd=True, bitrate_switch=bool(wire[5] & _BITRATE_SWITCH), timestamp_us=timestamp_us)
    if key & _REMOTE:
        return Frame(key & ~_REMOTE, remote=True, asked=wire[4], timestamp_us=timestamp_us)
    return Frame(key, data, timestamp_us=timestamp_us)
