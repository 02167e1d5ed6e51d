"""A serial port of the machine, through pyserial: opened exclusively, set up, and watched through its descriptor.

It owns the opening of a port and the errors of one that fails: the process that holds it, the group it belongs to, the
setting it does not support. `FdUart` moves bytes; pyserial's own reading and writing are never used, since they would
block or spin.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import termios
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from attrs import asdict, frozen

from hearth.drivers.linux.device_users import Holder, group_name, holders, kept_by_sandbox, lets_group_in, user_name
from hearth.drivers.serial_port.fd import FdUart
from hearth.drivers.serial_port.settings import PORTS, ModemLines
from hearth.errors import DeviceError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.drivers.serial_port.settings import UartSettings

_HELD = (errno.EBUSY, errno.EAGAIN)
"""Opened exclusively by another process, or locked by one."""


class LinuxUart(FdUart):
    """A port over a device of the kernel.

    `path` may be a link that udev keeps, such as one in /dev/serial/by-id: it is followed at each opening, so that an
    adapter may come back under another number.

    Closing waits until written bytes have left the wire, as long as the kernel allows it (30 s for most devices whose
    other side has stopped the flow): `close` may block for that long, and so may an `open` at that time.
    """

    opens_in_thread = True

    def __init__(self, port: str, path: str, settings: UartSettings) -> None:
        super().__init__(port, settings)
        self.path = path
        self._device: Any = None
        self._resolved: str | None = None
        self._errors: LineErrors | None = None
        self._threads = trio.CapacityLimiter(1)

    def open(self) -> None:
        """Open and set up the port. Raises DeviceError and ResourceBusy, both with effect "none"."""
        self._check_path()
        others = [holder for holder in holders(self.path) if holder.pid != os.getpid()]
        if others:
            # Not every program takes the lock; opening the port under such a program would change its settings.
            raise self._held(others)
        device = self._serial()
        try:
            device.open()
        except (OSError, ValueError, termios.error) as error:
            raise self._explained(error) from error
        try:
            self._set_up(device.fd)
        except BaseException:
            with suppress(OSError):
                disclaim(device.fd)
            device.close()
            raise
        self._device = device
        self._resolved = os.path.realpath(self.path)
        self._attach(device.fd)
        self._errors = line_errors(device.fd)

    def _check_path(self) -> None:
        try:
            status = Path(self.path).stat()
        except FileNotFoundError as error:
            where = "/dev/serial/by-id" if self.path.startswith("/dev/serial/") else "/dev"
            text = f"there is no {self.path}: is the device plugged in? `ls {where}` shows what there is"
            raise self._error(text, number=errno.ENOENT) from error
        except OSError as error:
            raise self._error(f"{self.path} cannot be looked at: {error.strerror}", number=error.errno) from error
        if not stat.S_ISCHR(status.st_mode) or not may_be_tty(status.st_rdev):
            raise self._error(f"{self.path} is not a serial port", number=errno.ENOTTY)

    def _serial(self) -> Any:
        import serial
        from serial.rs485 import RS485Settings

        settings = self.settings
        device = serial.Serial(
            baudrate=settings.baud,
            bytesize=settings.bits,
            parity=settings.parity[0].upper(),
            stopbits=settings.stop_bits,
            rtscts=settings.flow == "rtscts",
            xonxoff=settings.flow == "xonxoff",
            timeout=0,
            exclusive=True,
        )
        device.port = self.path
        device.dtr = settings.dtr
        device.rts = settings.rts
        if settings.rs485 is not None:
            device.rs485_mode = RS485Settings(
                rts_level_for_tx=settings.rs485.rts_on_send,
                rts_level_for_rx=not settings.rs485.rts_on_send,
                loopback=settings.rs485.loopback,
                delay_before_tx=settings.rs485.before_ms / 1000,
                delay_before_rx=settings.rs485.after_ms / 1000,
            )
            # pyserial sets RTS last: any level but the one for receiving would switch the transmitter on.
            device.rts = not settings.rs485.rts_on_send
        return device

    def _set_up(self, fd: int) -> None:
        try:
            claim(fd)
            settle(fd, hangup=self.settings.hangup)
            self._check_taken(fd)
            if self.settings.rs485 is not None and not rs485_is_on(fd):
                raise self._no_rs485(errno.EOPNOTSUPP)
            if self.settings.low_latency and not lower_latency(fd):
                text = f"{self.path} has no low-latency mode: take low_latency out of the board profile"
                raise self._error(text, number=errno.EOPNOTSUPP)
        except (OSError, termios.error) as error:
            raise self._error(f"{self.path} cannot be set up: {error}", number=_number(error)) from error

    def _check_taken(self, fd: int) -> None:
        found = refusals(fd, self.settings)
        if found:
            listed = "; ".join(f"{one.setting} = {one.wanted} (it stays at {one.found})" for one in found)
            raise DeviceError(
                f"uart {self.port}: {self.path} does not do {listed}: change the port's settings in the board profile",
                effect="none",
                data={"port": self.port, "errno": "EINVAL", "refused": [asdict(one) for one in found]},
            )

    def _explained(self, error: BaseException) -> DeviceError | ResourceBusy:
        """Return the error, for the operator, of a port that pyserial could not open."""
        number = _number(error)
        if number in _HELD:
            return self._held(holders(self.path))
        if number in (errno.EACCES, errno.EPERM):
            kept = kept_by_sandbox(self.path)
            return self._error(kept or f"no permission to open {self.path}: {_cure(self.path)}", number=number)
        if "RS485" in str(error):
            return self._no_rs485(number)
        if number == errno.EINVAL or isinstance(error, ValueError):
            return self._settings_refused(error)
        if number == errno.ENOTTY:
            return self._error(f"{self.path} is not a serial port", number=number)
        if number in (errno.EIO, errno.ENXIO, errno.ENODEV):
            return self._error(f"{self.path} has no working device behind it ({os.strerror(number)})", number=number)
        return self._error(f"{self.path} cannot be opened: {error}", number=number)

    def _settings_refused(self, error: BaseException) -> DeviceError:
        """Return the error of a device that took none of the changes; they are found by reading the settings back."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                self._check_taken(fd)
            finally:
                os.close(fd)
        except DeviceError as refusal:
            return refusal
        except OSError:
            pass  # the first error says enough
        return self._error(f"{self.path} refuses its settings: {error}", number=errno.EINVAL)

    def _no_rs485(self, number: int | None) -> DeviceError:
        return self._error(
            f"{self.path} has no RS-485 mode: take rs485 out of the board profile where the adapter switches "
            "its transceiver by itself",
            number=number,
        )

    def _held(self, found: list[Holder]) -> ResourceBusy:
        who = ", ".join(str(holder) for holder in found) or "another process that this one may not see"
        cure = "`sudo systemctl stop serial-getty@…` frees a login console" if _is_console(found) else "end it first"
        data: dict[str, Any] = {"port": self.port, "path": self.path, "errno": "EBUSY", "effect": "none"}
        data["holders"] = [asdict(holder) for holder in found]
        return ResourceBusy(f"uart {self.port}: {self.path} is held by {who}; {cure}", data=data)

    def _release(self, fd: int) -> None:
        device, self._device = self._device, None
        with suppress(OSError):  # unplugged
            disclaim(fd)
        device.close()

    async def _apart(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a call that a USB device may delay in a thread; without callers there is no thread."""
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(lambda: call(*args, **kwargs), limiter=self._threads)

    async def _get_lines(self) -> ModemLines:
        try:
            lines: ModemLines = await self._apart(modem_lines, self._fd)
        except OSError as error:
            raise self._failed(error) from error
        return lines

    async def _set_lines(self, *, rts: bool | None, dtr: bool | None) -> None:
        await self._apart(set_modem_lines, self._fd, rts=rts, dtr=dtr)

    async def _set_break(self, on: bool) -> None:
        await self._apart(set_break, self._fd, on)

    def _unsent(self, fd: int) -> int:
        return unsent(fd)

    def _new_overruns(self) -> int:
        before = self._errors
        if before is None:
            return 0
        self._errors = line_errors(self._fd) or before
        return max(0, self._errors.overrun - before.overrun)

    def describe(self) -> Mapping[str, Any]:
        """Return the port, its settings, the device behind its path, and its driver's counts of damaged input."""
        settings = self.settings
        described: dict[str, Any] = {
            "kind": PORTS,
            "driver": "serial",
            "port": self.port,
            "path": self.path,
            "device": self._resolved,
            "baud": settings.baud,
            "bits": settings.bits,
            "parity": settings.parity,
            "stop_bits": settings.stop_bits,
            "flow": settings.flow,
            "rs485": settings.rs485 is not None,
        }
        errors = self._errors
        return described if errors is None else {**described, "errors": asdict(errors)}


def _number(error: BaseException | None) -> int | None:
    """Return the errno of an error that pyserial may have wrapped in one of its own."""
    while error is not None:
        number = error.args[0] if isinstance(error, (OSError, termios.error)) and error.args else None
        if isinstance(number, int):
            return number
        error = error.__context__
    return None


def _is_console(found: list[Holder]) -> bool:
    return any(holder.name in ("agetty", "getty", "login") for holder in found)


def _cure(path: str) -> str:
    """Return the command that gives this process's user the right to open `path`."""
    status, user = Path(path).stat(), user_name(os.getuid())
    if lets_group_in(status):
        group = group_name(status.st_gid)
        return f"it belongs to the group {group}: `sudo usermod -aG {group} {user}`, then log in again"
    return f'a udev rule must give it to a group (GROUP="dialout", MODE="0660"); `sudo usermod -aG dialout {user}`'


# Calls to Linux's terminal layer about a serial port, beside pyserial's: the ioctls and the meaning of their bits. It
# knows no port, no bus and no policy. Every function takes a descriptor, returns at once (a USB device may delay modem
# lines and breaks), and raises OSError.

_PTY_MAJORS = range(136, 144)
_TCGETS2 = 0x802C542A
_TIOCGICOUNT = 0x545D
_TIOCGSERIAL, _TIOCSSERIAL = 0x541E, 0x541F
_SERIAL_BYTES, _FLAGS_AT, _LOW_LATENCY = 128, 16, 1 << 13
"""Of struct serial_struct (linux/serial.h): at least its size, the place of `flags`, and ASYNC_LOW_LATENCY."""
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
"""The deviation that a receiver still understands: ten bits drift by a third of one."""


def may_be_tty(device: int) -> bool:
    """Return False if the kernel says that this device number is no terminal: opening it may have an effect."""
    major, minor = os.major(device), os.minor(device)
    subsystem = Path(f"/sys/dev/char/{major}:{minor}/subsystem")
    return major in _PTY_MAJORS or not subsystem.exists() or subsystem.resolve().name == "tty"


@frozen
class OpenRefused:
    """A setting that a device did not accept, and its actual one."""

    setting: str
    wanted: object
    found: object


def refusals(fd: int, settings: UartSettings) -> list[OpenRefused]:
    """Return the settings that the device did not accept. The kernel shows this only when they are read back."""
    _, _, cflag, _, _, _, rate = _TERMIOS2.unpack(fcntl.ioctl(fd, _TCGETS2, bytes(_TERMIOS2.size)))
    found: list[OpenRefused] = []
    if abs(rate - settings.baud) > settings.baud * _RATE_TOLERANCE:
        found.append(OpenRefused("baud", settings.baud, rate))
    size = cflag & termios.CSIZE
    if size != _SIZES[settings.bits]:
        found.append(OpenRefused("bits", settings.bits, next(bits for bits, flag in _SIZES.items() if flag == size)))
    parity = cflag & _PARITY_MASK
    if parity != _PARITIES[settings.parity] and (settings.parity != "none" or parity & termios.PARENB):
        names = {flag: name for name, flag in _PARITIES.items()}
        found.append(OpenRefused("parity", settings.parity, names.get(parity, "none")))
    if bool(cflag & termios.CSTOPB) != (settings.stop_bits > 1):
        found.append(OpenRefused("stop_bits", settings.stop_bits, 1 if settings.stop_bits > 1 else 2))
    if bool(cflag & termios.CRTSCTS) != (settings.flow == "rtscts"):
        found.append(OpenRefused("flow", settings.flow, "none" if settings.flow == "rtscts" else "rtscts"))
    return found


def rs485_is_on(fd: int) -> bool:
    """True if the driver switches the transceiver; a driver may take the setting and leave it off."""
    (flags,) = struct.unpack_from("=I", fcntl.ioctl(fd, _TIOCGRS485, bytes(32)))
    return bool(flags & _RS485_ENABLED)


def lower_latency(fd: int) -> bool:
    """Have the driver hand on each byte at once; return False if it cannot, or takes the setting and leaves it off."""
    try:
        info = bytearray(fcntl.ioctl(fd, _TIOCGSERIAL, bytes(_SERIAL_BYTES)))
        (flags,) = struct.unpack_from("=i", info, _FLAGS_AT)
        struct.pack_into("=i", info, _FLAGS_AT, flags | _LOW_LATENCY)
        fcntl.ioctl(fd, _TIOCSSERIAL, bytes(info))
        (flags,) = struct.unpack_from("=i", fcntl.ioctl(fd, _TIOCGSERIAL, bytes(_SERIAL_BYTES)), _FLAGS_AT)
    except OSError:
        return False
    return bool(flags & _LOW_LATENCY)


def settle(fd: int, *, hangup: bool) -> None:
    """Set the options that pyserial leaves alone, or sets for its own way of reading.

    A break must not flush the input; `hangup` decides the levels of RTS and DTR after the last close; and reading
    nothing must not look like the end of the device: with VMIN 0 both return no bytes, with VMIN 1 one is EAGAIN.
    """
    attributes = termios.tcgetattr(fd)
    attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
    attributes[0] &= ~(termios.BRKINT | termios.IGNPAR)
    attributes[2] = attributes[2] | termios.HUPCL if hangup else attributes[2] & ~termios.HUPCL
    termios.tcsetattr(fd, termios.TCSANOW, attributes)


def claim(fd: int) -> None:
    """Keep other processes (but root's) from opening the device, even if they do not check its lock."""
    fcntl.ioctl(fd, termios.TIOCEXCL)


def disclaim(fd: int) -> None:
    """Undo `claim`: while another process has the device open, the claim would outlive the descriptor."""
    fcntl.ioctl(fd, termios.TIOCNXCL)


def unsent(fd: int) -> int:
    """Return the bytes that have not left: 0 when the transmitter is empty, where the driver knows, else the buffer."""
    (waiting,) = struct.unpack("=i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))
    if waiting:
        return int(waiting)
    try:
        (status,) = struct.unpack("=I", fcntl.ioctl(fd, _TIOCSERGETLSR, bytes(4)))
    except OSError:
        return 0
    return 0 if status & _TIOCSER_TEMT else 1


def modem_lines(fd: int) -> ModemLines:
    """Return the levels of the lines, all of them None where the device has none. A CDC-ACM device always shows CTS."""
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
    """A driver's counts since the device appeared: characters lost, and characters received damaged."""

    overrun: int
    frame: int
    parity: int
    breaks: int

    @property
    def any(self) -> bool:
        """Return True if there is anything to report."""
        return bool(self.overrun or self.frame or self.parity or self.breaks)


def line_errors(fd: int) -> LineErrors | None:
    """Return the driver's counters, None where it has none."""
    try:
        counts = _ICOUNT.unpack(fcntl.ioctl(fd, _TIOCGICOUNT, bytes(_ICOUNT.size)))
    except OSError:
        return None
    _cts, _dsr, _rng, _dcd, _rx, _tx, frame, overrun, parity, breaks, buffer_overrun = counts[:11]
    return LineErrors(overrun + buffer_overrun, frame, parity, breaks)
