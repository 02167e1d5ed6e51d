"""What a service manager wants of a daemon: readiness (sd_notify) and sockets it opened for us (socket activation).

Both are a few lines over environment variables and a datagram, defined by sd_notify(3) and sd_listen_fds(3).
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping

# --- watchdog ---------------------------------------------------------------------------------------------------------
# Tells the service manager that the daemon is alive, for as long as it is (systemd's WatchdogSec=).
#
# By sd_watchdog_enabled(3). It owns when a sign of life is due and what it stands for: this task ran, so the event loop
# turns, and the journal's actor answered, so records are still taken. It refuses to vouch for anything else: a wedged
# bus or a full disk is told by health, and starting the daemon anew would mend neither.

ALIVE: Final = "WATCHDOG=1"
SHARE: Final = 3
"""Signs of life in one of the manager's periods: one that comes late is not the last."""

log = logging.getLogger("hearth.watchdog")


def period(environ: Mapping[str, str], pid: int) -> float | None:
    """Seconds within which the service manager wants a sign of life of this process, or None if it wants none."""
    text = environ.get("WATCHDOG_USEC", "")
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid) or not environ.get("NOTIFY_SOCKET"):
        return None
    microseconds = int(text) if text.isascii() and text.isdecimal() else 0
    return microseconds / 1_000_000 or None


@asynccontextmanager
async def watched(
    environ: Mapping[str, str], notifier: Notifier, answers: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """While the body runs, tell the service manager so each time that `answers` returns, if it wants to be told."""
    seconds = period(environ, os.getpid())
    if seconds is None:
        yield
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell, notifier, seconds, answers)
        yield
        nursery.cancel_scope.cancel()


async def _tell(notifier: Notifier, seconds: float, answers: Callable[[], Awaitable[None]]) -> None:
    while True:
        with trio.move_on_after(seconds) as waiting:
            await answers()
        if waiting.cancelled_caught:
            log.error("the journal has not answered for %g s, so the service manager gets no sign of life", seconds)
            continue
        # One that does not receive it must not hold the event loop, and gets the next one.
        notifier.tell(ALIVE, patience=0)
        await trio.sleep(seconds / SHARE)


# --- service ----------------------------------------------------------------------------------------------------------

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
