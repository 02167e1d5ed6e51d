"""A way to a daemon: from an address to one stream of bytes in which lines are found, whatever carries it.

What opens and closes each carrier is its own module's, imported when such an address is used; this one knows only
which. Nothing here knows what the lines say. A stream raises trio.BrokenResourceError when its connection is lost, and
the message says why; what goes wrong before there is a connection is a CarrierError, or a ConfigError where a file or
an address is at fault, naming the place and the cure.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hearth.address import SshAddress, TlsAddress, UnixAddress
from hearth.dial.unix import open_unix
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    import trio

    from hearth.address import Address


@asynccontextmanager
async def open_stream(address: Address, *, token: str | None = None) -> AsyncIterator[trio.abc.Stream]:
    """A connection to the daemon at `address`, closed on the way out; nothing of it is left behind then.

    The stream takes and gives lines of JSON, each ended by LF. It is a trio.abc.HalfCloseableStream where the carrier
    can say that no more will be sent (unix, ssh), else only a Stream. `token` is a bearer token for ws:// and wss://.
    Raises CarrierError, and ConfigError for credentials that cannot be used.
    """
    async with _opener(address, token) as stream:
        yield stream


def _opener(address: Address, token: str | None) -> AbstractAsyncContextManager[trio.abc.Stream]:
    if token is not None and isinstance(address, (UnixAddress, TlsAddress, SshAddress)):
        raise ConfigError(f"{address.place}: a token is for ws:// and wss:// addresses; this one needs none")
    if isinstance(address, UnixAddress):
        return open_unix(address)
    if isinstance(address, TlsAddress):
        from hearth.dial.tls import open_tls

        return open_tls(address)
    if isinstance(address, SshAddress):
        from hearth.dial.ssh import open_ssh

        return open_ssh(address)
    from hearth.dial.websocket import open_websocket

    return open_websocket(address, token)
