"""A stream that needs a task of its own for as long as it is open: to answer pings, or to hear what a child says."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from hearth.groups import unwrapped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@asynccontextmanager
async def accompanied(stream: trio.abc.Stream, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Do `work` while the body runs, and until the stream is closed, which it is on the way out.

    An exception of the body comes out as it is.
    """
    async with unwrapped() as body, trio.open_nursery() as nursery:
        # Shielded: when the body is cancelled from outside, it may still have something to say while it ends.
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
