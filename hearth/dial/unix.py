"""A Unix domain socket. The kernel tells the daemon who calls, and us who listens: there is nothing to prove here."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from hearth.errors import CarrierError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hearth.address import UnixAddress

PATIENCE = 5.0
"""Seconds that a daemon may take to accept while too many others wait for it."""


@asynccontextmanager
async def open_unix(address: UnixAddress) -> AsyncIterator[trio.SocketStream]:
    """Raises CarrierError when nobody answers there."""
    path = address.path
    try:
        connected = await _connected(path)
    except FileNotFoundError:
        raise CarrierError(f"no daemon at {path}: there is no such socket; start one with `hearthd`") from None
    except ConnectionRefusedError:
        raise CarrierError(f"no daemon at {path}: nobody listens there any more; start one with `hearthd`") from None
    except PermissionError:
        raise CarrierError(f"no permission to connect to {path}; join the group that `ls -l {path}` shows") from None
    except OSError as error:
        raise CarrierError(f"cannot connect to {path}: {error.strerror or error}") from None
    async with trio.SocketStream(trio.socket.from_stdlib_socket(connected)) as stream:
        if address.guessed and (owner := _stranger(connected, path)) is not None:
            raise CarrierError(
                f"at {path} listens uid {owner}, which is neither you nor root, in a place where anybody could; "
                f"if you trust that user, say so with --to {address} or HEARTH_ADDRESS"
            )
        yield stream


def _stranger(connected: socket.socket, path: Path) -> int | None:
    """Who listens on the other end, if it may be somebody who only was there first.

    In a directory that everybody can write to, such as /tmp, whatever belongs to another user may be of that user's
    making; in /run nothing is.
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
        # It was there a moment ago: somebody moves it about.
        return uid
    return None


async def _connected(path: Path) -> socket.socket:
    """A connected socket. While too many connections wait to be accepted, the kernel refuses more: so we wait, too.

    (`trio.open_unix_socket` takes that refusal, EAGAIN, for a connection on its way, which then turns out to be none.)
    """
    pause = 0.005
    until = trio.current_time() + PATIENCE
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
