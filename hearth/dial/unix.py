"""A Unix domain socket. The kernel tells the daemon who calls; there is nothing to prove here."""

from __future__ import annotations

import socket
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
        yield stream


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
