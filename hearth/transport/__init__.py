"""Transports to a daemon: `open_stream` turns an address into one byte stream of lines, over any carrier.

The Unix socket is here. Every other carrier is an extra: its record says which schemes it connects to (`Extra.dials`),
and its module is imported when such an address is used. No transport knows the content of the lines. A stream raises
trio.BrokenResourceError when its connection is lost; the message says why. An error before there is a connection is a
CarrierError, or a ConfigError if a file or an address is wrong; both name the place and the cure.
"""

from __future__ import annotations

import math
import os
import socket
import stat
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from hearth import extras
from hearth.errors import CarrierError, ConfigError
from hearth.transport.address import UnixAddress
from hearth.transport.sockets import SocketTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from hearth.transport.address import Address


# --- a Unix domain socket -------------------------------------------------------------------------------------------
#
# The kernel gives each side the other's credentials, so no further authentication is needed.

ACCEPT_TIMEOUT = 5.0
"""Seconds that a daemon may take to accept while its queue of connections is full."""


@asynccontextmanager
async def open_unix(address: UnixAddress) -> AsyncIterator[SocketTransport]:
    """Connect to a Unix socket. Raises CarrierError."""
    path = address.path
    try:
        connected = await _connected(path)
    except FileNotFoundError:
        raise CarrierError(_nobody(path)) from None
    except ConnectionRefusedError:
        raise CarrierError(f"no daemon at {path}: no process listens there; start one with `hearthd`") from None
    except PermissionError:
        raise CarrierError(f"no permission to connect to {path}; join the group that `ls -l {path}` shows") from None
    except OSError as error:
        raise CarrierError(f"cannot connect to {path}: {error.strerror or error}") from None
    # Without a limit of time: a caller that must not wait for a busy daemon has a scope of its own.
    async with SocketTransport(connected, send_timeout=math.inf) as stream:
        if address.guessed and (owner := _foreign_owner(connected, path)) is not None:
            raise CarrierError(
                f"uid {owner} listens at {path}, which is neither you nor root, in a directory where any user could; "
                f"if you trust that user, name the address with --to {address} or HEARTH_ADDRESS"
            )
        yield stream


def _nobody(path: Path) -> str:
    """Return the error for a path without a socket; it names a daemon that listens there all the same."""
    # Imported here: only this error needs it.
    from hearth.transport.listener import listening_process

    found = listening_process(path)
    if found is None:
        return f"no daemon at {path}: there is no such socket; start one with `hearthd`"
    term = f"; `kill {found.pid}` ends it, and makes its outputs safe" if found.pid is not None else ""
    return f"no daemon at {path}: the socket was removed, and {found} still runs on it{term}; then start it again"


def _foreign_owner(connected: socket.socket, path: Path) -> int | None:
    """Return the uid of the listener if an untrusted user may have created the socket, else None.

    In a world-writable directory such as /tmp, any user could have created the socket before the daemon. In /run only
    root can. The caller and root are trusted.
    """
    uid: int = struct.unpack("=iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    trusted = (0, os.geteuid())
    if uid in trusted:
        return None
    try:
        for place in (path, *path.parents):
            if place.parent.stat().st_mode & stat.S_IWOTH and place.lstat().st_uid not in trusted:
                return uid
    except OSError:
        # The path existed at the connect: it is being changed now, so do not trust it.
        return uid
    return None


async def _connected(path: Path) -> socket.socket:
    """Return a connected socket. The kernel refuses a connection while the daemon's queue is full: try again then.

    (`trio.open_unix_socket` takes that refusal, EAGAIN, for a connection in progress, which then proves unconnected.)
    """
    pause = 0.005
    until = trio.current_time() + ACCEPT_TIMEOUT
    await trio.lowlevel.checkpoint()
    while True:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            connecting.connect(str(path))
        except BlockingIOError:
            connecting.close()
            if trio.current_time() > until:
                raise
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
        await trio.sleep(pause)
        pause = min(2 * pause, 0.25)


@asynccontextmanager
async def open_stream(address: Address, *, token: str | None = None) -> AsyncIterator[trio.abc.Stream]:
    """Connect to the daemon at `address`; the end of the block closes the connection and all that belongs to it.

    The stream sends and receives lines of JSON, each ended by LF. It is a trio.abc.HalfCloseableStream if the carrier
    can signal the end of sending (unix, ssh), else only a Stream. `token` is a bearer token for ws:// and wss://.
    Raises CarrierError, and ConfigError for credentials that cannot be used.
    """
    async with _opener(address, token) as stream:
        yield stream


def _opener(address: Address, token: str | None) -> AbstractAsyncContextManager[trio.abc.Stream]:
    if token is not None and not address.takes_token:
        raise ConfigError(f"{address.place}: a token is for ws:// and wss:// addresses; this one needs none")
    if isinstance(address, UnixAddress):
        return open_unix(address)
    dial = extras.load(extras.DIALS[address.scheme])
    opened: AbstractAsyncContextManager[trio.abc.Stream] = (
        dial(address, token) if address.takes_token else dial(address)
    )
    return opened
