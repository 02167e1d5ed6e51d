"""A stream with a background task while it is open, for example to answer pings or to read a child's stderr."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from hearth._util.exceptions import unwrapped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@asynccontextmanager
async def accompanied(stream: trio.abc.Stream, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` in the background until the body ends and the stream is closed; this closes the stream.

    An exception of the body passes unchanged.
    """
    async with unwrapped() as body, trio.open_nursery() as nursery:
        # Shielded: a body that is cancelled from outside may still send while it ends, which may need `work`.
        background = trio.CancelScope(shield=True)
        nursery.start_soon(_within, background, work)
        try:
            async with body.watched():
                yield
        finally:
            try:
                await stream.aclose()
            finally:
                background.cancel()


async def _within(scope: trio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()
