"""What Linux's terminal layer is asked about a serial port, and told, beside what pyserial does.

It owns the ioctls and the meaning of their bits; it knows no port, no bus and no policy. Every function takes a
descriptor, returns at once (a USB device may take its time over modem lines and breaks), and raises OSError.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.uart import ModemLines

if TYPE_CHECKING:
    from hearth.drivers.uart import UartSettings

_PTY_MAJORS = range(136, 144)
_TCGETS2 = 0x802C542A
_TIOCGICOUNT = 0x545D
_TIOCGRS485 = 0x542E
_TIOCSERGETLSR = 0x5459
_TIOCSER_TEMT = 0x01
_TIOCSBRK, _TIOCCBRK = 0x5427, 0x5428
_CMSPAR = 0o10000000000
_RS485_ENABLED = 0x01
_TERMIOS2 = struct.Struct("=IIII20sII")
_ICOUNT = struct.Struct("=20i")
_SIZES = {5: termios.CS5, 6: termios.CS6, 7: termios.CS7, 8: termios.CS8}
_PARITIES = {
    "none": 0,
    "even": termios.PARENB,
    "odd": termios.PARENB | termios.PARODD,
    "mark": termios.PARENB | _CMSPAR | termios.PARODD,
    "space": termios.PARENB | _CMSPAR,
}
_PARITY_MASK = termios.PARENB | termios.PARODD | _CMSPAR
_RATE_TOLERANCE = 0.03
"""What a receiver still understands: ten bits drift by a third of one."""


def may_be_tty(device: int) -> bool:
    """False if the kernel says that this device number is something else: to open that may have an effect."""
    major, minor = os.major(device), os.minor(device)
    subsystem = Path(f"/sys/dev/char/{major}:{minor}/subsystem")
    return major in _PTY_MAJORS or not subsystem.exists() or subsystem.resolve().name == "tty"


@frozen
class Refusal:
    """A setting that a device did not take, and what it does instead."""

    setting: str
    wanted: object
    found: object


def refusals(fd: int, settings: UartSettings) -> list[Refusal]:
    """What of `settings` the device did not take. The kernel says so only by what can be read back."""
    _, _, cflag, _, _, _, rate = _TERMIOS2.unpack(fcntl.ioctl(fd, _TCGETS2, bytes(_TERMIOS2.size)))
    found: list[Refusal] = []
    if abs(rate - settings.baud) > settings.baud * _RATE_TOLERANCE:
        found.append(Refusal("baud", settings.baud, rate))
    size = cflag & termios.CSIZE
    if size != _SIZES[settings.bits]:
        found.append(Refusal("bits", settings.bits, next(bits for bits, flag in _SIZES.items() if flag == size)))
    parity = cflag & _PARITY_MASK
    if parity != _PARITIES[settings.parity] and (settings.parity != "none" or parity & termios.PARENB):
        names = {flag: name for name, flag in _PARITIES.items()}
        found.append(Refusal("parity", settings.parity, names.get(parity, "none")))
    if bool(cflag & termios.CSTOPB) != (settings.stop_bits > 1):
        found.append(Refusal("stop_bits", settings.stop_bits, 1 if settings.stop_bits > 1 else 2))
    if bool(cflag & termios.CRTSCTS) != (settings.flow == "rtscts"):
        found.append(Refusal("flow", settings.flow, "none" if settings.flow == "rtscts" else "rtscts"))
    return found


def rs485_is_on(fd: int) -> bool:
    """True if the driver switches the transceiver; a driver may take the setting and leave it off."""
    (flags,) = struct.unpack_from("=I", fcntl.ioctl(fd, _TIOCGRS485, bytes(32)))
    return bool(flags & _RS485_ENABLED)


def settle(fd: int, *, hangup: bool) -> None:
    """What pyserial leaves as it finds it, or sets for its own way of reading.

    A break must not flush the input; `hangup` is what becomes of RTS and DTR at the last close; and reading nothing
    must not look like the end of the device: with VMIN 0 both return no bytes, with VMIN 1 one is EAGAIN.
    """
    attributes = termios.tcgetattr(fd)
    attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
    attributes[0] &= ~(termios.BRKINT | termios.IGNPAR)
    attributes[2] = attributes[2] | termios.HUPCL if hangup else attributes[2] & ~termios.HUPCL
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


def claim(fd: int) -> None:
    """Let nobody else open the device (but root), whether or not they look at its lock."""
    fcntl.ioctl(fd, termios.TIOCEXCL)


def disclaim(fd: int) -> None:
    """Take `claim` back: where somebody else has the device open it would outlive the descriptor."""
    fcntl.ioctl(fd, termios.TIOCNXCL)


def unsent(fd: int) -> int:
    """How many bytes have not left: 0 when the transmitter is empty, where the driver can tell, else the buffer."""
    (waiting,) = struct.unpack("=i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))
    if waiting:
        return int(waiting)
    try:
        (status,) = struct.unpack("=I", fcntl.ioctl(fd, _TIOCSERGETLSR, bytes(4)))
    except OSError:
        return 0
    return 0 if status & _TIOCSER_TEMT else 1


def modem_lines(fd: int) -> ModemLines:
    """The levels of the lines, all of them None where the device has none. A CDC-ACM device always shows CTS."""
    try:
        (bits,) = struct.unpack("=I", fcntl.ioctl(fd, termios.TIOCMGET, bytes(4)))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL):
            return ModemLines()
        raise
    return ModemLines(
        rts=bool(bits & termios.TIOCM_RTS),
        dtr=bool(bits & termios.TIOCM_DTR),
        cts=bool(bits & termios.TIOCM_CTS),
        dsr=bool(bits & termios.TIOCM_DSR),
        ri=bool(bits & termios.TIOCM_RI),
        cd=bool(bits & termios.TIOCM_CD),
    )


def set_modem_lines(fd: int, *, rts: bool | None, dtr: bool | None) -> None:
    """Raise or lower RTS and DTR; None leaves a line alone."""
    for level, line in ((rts, termios.TIOCM_RTS), (dtr, termios.TIOCM_DTR)):
        if level is not None:
            fcntl.ioctl(fd, termios.TIOCMBIS if level else termios.TIOCMBIC, struct.pack("=I", line))


def set_break(fd: int, on: bool) -> None:
    """Begin or end the break state. The kernel waits for earlier output before it begins one, for ever."""
    fcntl.ioctl(fd, _TIOCSBRK if on else _TIOCCBRK)


@frozen
class LineErrors:
    """What a driver has counted since the device appeared: characters lost, and characters received damaged."""

    overrun: int
    frame: int
    parity: int
    breaks: int

    @property
    def any(self) -> bool:
        """True if there is anything to report."""
        return bool(self.overrun or self.frame or self.parity or self.breaks)


def line_errors(fd: int) -> LineErrors | None:
    """The driver's counters, None where it has none."""
    try:
        counts = _ICOUNT.unpack(fcntl.ioctl(fd, _TIOCGICOUNT, bytes(_ICOUNT.size)))
    except OSError:
        return None
    _cts, _dsr, _rng, _dcd, _rx, _tx, frame, overrun, parity, breaks, buffer_overrun = counts[:11]
    return LineErrors(overrun + buffer_overrun, frame, parity, breaks)
