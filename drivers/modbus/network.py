"""TCP connections to a Modbus server, as a port: made again whenever a request needs one.

A server may end a connection at any time (Messaging on TCP/IP V1.0b, 4.2), and the end is no failure of the device: the
pump waits, and the next request makes another connection before it is sent. Where none can be made, or a connection
breaks without an end, the pump raises, and the bus is down until it can open the port again. A server that was seen to
end a connection behind its first answer gets another connection for each request, so that none is sent into the end.
It knows no frames.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import trio

from hearth.drivers.base import Wakeup
from hearth.drivers.serial_port.fd import FdUart
from hearth.drivers.serial_port.settings import UartSettings
from hearth.errors import DeviceError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.errors import Effect

_ENDING_S: Final = 0.005
"""Seconds in which a server that ends the connection behind its first answer does so, before a write is sent."""
_SOON_S: Final = 0.5
"""Seconds behind an answer within which an end is not that of an idle connection."""

_ENDS: Final = ("EIO", "ECONNRESET", "EPIPE")
"""Errors by which a server ends a connection, while it is there."""


class TcpPort(FdUart):
    """A server's connections, one after the other. Not more than a page of input is read before it is asked for."""

    opens_in_thread = True
    _SETTINGS: ClassVar = UartSettings(inbox_bytes=4096)

    def __init__(self, line: str, host: str, tcp_port: int, *, connect_s: float = 3.0) -> None:
        super().__init__(line, self._SETTINGS)
        self.address = (host, tcp_port)
        self.connect_s = connect_s
        self._socket: socket.socket | None = None
        self._gone: DeviceError | None = None
        self._open = self._given_up = False
        self._changed = Wakeup()
        self._once = False
        """True for a server that has ended a connection behind its first answer."""
        self._requests = self._taken = 0
        self._ended_at = 0.0

    @property
    def _family(self) -> int:
        return socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET

    def open(self) -> None:
        """Connect. Raises DeviceError."""
        connection = socket.socket(self._family)
        connection.settimeout(self.connect_s)
        try:
            connection.connect(self.address)
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from error
        self._gone, self._given_up, self._once = None, False, False
        self._adopt(connection)
        self._open = True

    def _unreachable(self, error: OSError) -> DeviceError:
        failure: DeviceError = self._error(f"no connection to {self}: {error.strerror or error}", number=error.errno)
        return failure

    def _adopt(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A server that is switched off says nothing: after half a minute of silence the kernel asks.
        for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket, self._requests = connection, 0
        self._attach(connection.fileno())

    async def renewed(self, *, write: bool) -> bool:
        """Make another connection where a request needs one; return whether it did. Raises DeviceError."""
        if write and self._requests == 1:
            await trio.sleep(_ENDING_S)
        if not (self._once and self._requests) and not self._ended():
            return False
        super().close()
        connection = trio.socket.socket(self._family)
        try:
            with trio.fail_after(self.connect_s):
                await connection.connect(self.address)
        except (OSError, trio.TooSlowError) as error:
            connection.close()
            number = (error.errno if isinstance(error, OSError) else None) or errno.ETIMEDOUT
            self._gone = self._unreachable(OSError(number, os.strerror(number)))
            self._changed.wake()
            raise self._gone from error
        self._adopt(socket.socket(self._family, fileno=connection.detach()))
        self._changed.wake()
        return True

    def _ended(self) -> bool:
        """Return True if the connection has ended; note whether it did so behind its first answer."""
        assert self._socket is not None, "the port is open"
        if not self._inbox.closed:
            self._pull(self._fd)
            try:
                if self._socket.recv(1, socket.MSG_PEEK):
                    return False
            except BlockingIOError:
                return False
            except OSError:  # it was reset
                pass
            self._ended_at = trio.current_time()
        self._once = self._once or (self._requests == 1 and self._ended_at < self._inbox.fed_at + _SOON_S)
        return True

    def untouched(self) -> bool:
        """Return True if a request that could not be sent may go by another connection: none of it was sent."""
        return self._taken == 0

    async def write(self, data: bytes, **more: Any) -> int:
        """See FdUart."""
        self._requests, self._taken = self._requests + 1, len(data)
        try:
            return await super().write(data, **more)
        except DeviceError as error:
            if not isinstance(error, TimedOut):
                self._taken = (error.data or {}).get("taken", 0)
                self._inbox.close(error)
            raise

    def drop(self) -> None:
        """End the connection: the next request makes another one."""
        if self._socket is not None:
            with suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; a running pump returns."""
        self._open = False
        super().close()
        self._changed.wake()

    async def pump(self) -> None:
        """Receive until the port is closed. Raises DeviceError when the server is not there any more."""
        while True:
            try:
                await super().pump()
            except DeviceError as error:
                if self._given_up or (error.data or {}).get("errno") not in _ENDS:
                    raise
                self._ended_at = trio.current_time()
            # The next request makes another connection.
            await self._changed.until(self._replaced)
            if self._gone is not None:
                raise self._gone
            if not self._open:
                return

    def _replaced(self) -> bool:
        return not self._open or self._gone is not None or (self._fd >= 0 and not self._inbox.closed)

    def _release(self, fd: int) -> None:
        del fd  # the socket's
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def hang_up(self) -> None:
        """End the connection for good: the pump sees that, and the bus opens the port again."""
        self._given_up = True
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
