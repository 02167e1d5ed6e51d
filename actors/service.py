"""What a service manager wants of a daemon: readiness (sd_notify) and sockets it opened for us (socket activation).

Both are a few lines over environment variables and a datagram, defined by sd_notify(3) and sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

FIRST_FD = 3
NOTIFY_PATIENCE = 0.5
"""Seconds that a service manager may take to receive a state."""


class Notifier:
    """Tells the service manager states, if there is one that wants to be told (NOTIFY_SOCKET).

    Its socket is made and connected at once: a confined daemon makes no such socket, and sends to no address. A manager
    that has gone is not our trouble.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._socket: socket.socket | None = None
        address = environ.get("NOTIFY_SOCKET")
        if not address:
            return
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            made.connect("\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            made.close()
        else:
            self._socket = made

    def fileno(self) -> int | None:
        """The descriptor of the socket, if there is one."""
        return None if self._socket is None else self._socket.fileno()

    def tell(self, state: str, *, patience: float = NOTIFY_PATIENCE) -> None:
        """Send a state such as "READY=1". A manager that hangs must not take us along."""
        if self._socket is not None:
            self._socket.settimeout(patience)
            with suppress(OSError):
                self._socket.send(state.encode())

    def close(self) -> None:
        """Tell nothing any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def activated_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The listening Unix socket that the service manager passed, or None; the variables are taken out of `environ`.

    Raises ConfigError when what was passed is not one listening Unix stream socket.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        return None
    if count != "1":
        raise ConfigError(f"LISTEN_FDS={count}: hearthd takes one socket; keep one ListenStream= in the .socket unit")
    try:
        os.set_inheritable(FIRST_FD, False)
        passed = socket.socket(fileno=FIRST_FD)
        listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"LISTEN_FDS: descriptor 3 is not a socket: {error.strerror}") from None
    if not listening or passed.family != socket.AF_UNIX or passed.type != socket.SOCK_STREAM:
        raise ConfigError("LISTEN_FDS: descriptor 3 is not a listening Unix stream socket; use ListenStream=/path")
    name = passed.getsockname()
    if not isinstance(name, str) or not name.startswith("/"):
        # An abstract name has no file, so no mode and no group: everybody on the machine could connect.
        raise ConfigError("LISTEN_FDS: the socket has no path in the file system; use ListenStream=/path")
    passed.setblocking(False)
    return passed
