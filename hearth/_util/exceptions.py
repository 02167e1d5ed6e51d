"""Lets a caller's own exception pass through our nurseries unchanged.

A Trio nursery wraps whatever passes through it in an exception group. Inside a library's context manager that is a
detail of ours: who wrote `except ResourceBusy` around `async with hearth.connect(...)` must get ResourceBusy.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


def sole(error: BaseException) -> BaseException:
    """The one exception that groups are wrapped around, or `error` as it is: a nursery wraps even a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class Body:
    """Remembers what the body of a context manager raised; see `unwrapped`."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Around the `yield` that runs the body."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


@asynccontextmanager
async def unwrapped() -> AsyncIterator[Body]:
    """Around the nurseries: raises the body's exception as it is, if nothing else went wrong beside it."""
    body = Body()
    try:
        yield body
    except BaseExceptionGroup as group:
        only = body.raised
        # A group that the body raised is taken apart and put together again on its way: its members tell it.
        if only is None or _leaves(only) != _leaves(group):
            only = sole(group)
            if only is group or not _ours(only):
                raise
        context, suppressed = only.__context__, only.__suppress_context__
        try:
            raise only
        finally:
            only.__context__, only.__suppress_context__ = context, suppressed


def _leaves(error: BaseException) -> set[int]:
    if isinstance(error, BaseExceptionGroup):
        return set().union(*map(_leaves, error.exceptions))
    return {id(error)}


def _ours(error: BaseException) -> bool:
    from hearth.errors import HearthError

    return isinstance(error, HearthError)


# --- a stream that needs a task of its own for as long as it is open: to answer pings, or to hear what a child says ---


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
