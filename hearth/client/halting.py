"""A halt by whichever way is answered first: the connection, or the halt socket beside the daemon's own.

A client asks on its connection. If that fails, or has no answer for PATIENCE seconds (the daemon is busy with it, or
takes no connections), it asks the halt socket too; the first answer counts. To halt twice does no harm. Only a Unix
socket has a halt socket beside it: over every other carrier the connection is the only way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from hearth.config.model import halt_socket
from hearth.errors import CarrierError, HearthError
from hearth.protocol.client import Broken, ClientProtocol, RefusedByServer, Reply
from hearth.transport import open_stream
from hearth.transport.address import UnixAddress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hearth.transport.address import Address

METHODS: Final = frozenset(("halt", "halt.status"))
PATIENCE: Final = 0.25
"""Seconds that the connection has for its answer before the halt socket is asked too."""


async def first_answer(
    ask: Callable[[], Awaitable[Mapping[str, Any]]], address: Address | None, method: str, params: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the answer of `ask`, or of the halt socket at `address`. Raises the error of `ask` if both fail."""
    if not isinstance(address, UnixAddress):
        return await ask()
    found: list[Mapping[str, Any]] = []
    errors: list[HearthError] = []
    failed = trio.Event()
    async with trio.open_nursery() as nursery:

        async def on_the_connection() -> None:
            try:
                found.append(await ask())
            except HearthError as error:
                errors.insert(0, error)
                failed.set()
            else:
                nursery.cancel_scope.cancel()

        nursery.start_soon(on_the_connection)
        with trio.move_on_after(PATIENCE):
            await failed.wait()
        try:
            found.append(await _at_halt_socket(address, method, params))
        except HearthError as error:
            errors.append(error)
        else:
            nursery.cancel_scope.cancel()
    if found:
        return found[0]
    raise errors[0]


async def _at_halt_socket(address: UnixAddress, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    place = UnixAddress(halt_socket(address.path), address.guessed)
    protocol = ClientProtocol()
    async with open_stream(place) as stream:
        try:
            await stream.send_all(protocol.request(method, params)[1])
            while data := await stream.receive_some():
                for event in protocol.receive(bytes(data)):
                    if isinstance(event, Broken):
                        raise event.error.error if isinstance(event.error, RefusedByServer) else event.error
                    if isinstance(event, Reply):
                        if event.error is not None:
                            raise event.error
                        return dict(event.result)
        except trio.BrokenResourceError as error:
            raise CarrierError(f"connection lost: {error}") from None
    raise CarrierError(f"{place.place}: the daemon closed the connection before it answered {method}")
