"""Helpers that let a caller's own exception pass through hearth's nurseries unchanged.

A Trio nursery wraps each exception that passes through it in an exception group. Inside a library's context manager the
nursery is an internal detail: `except ResourceBusy` around `async with hearth.connect(...)` must catch ResourceBusy.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def sole(error: BaseException) -> BaseException:
    """Return the only exception inside nested groups, or `error` unchanged: a nursery wraps even a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class BodyOutcome:
    """A record of the exception that the body of a context manager raised; see `unwrapped`."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Record what the body raises; goes around the `yield` that runs it."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


@asynccontextmanager
async def unwrapped() -> AsyncIterator[BodyOutcome]:
    """Raise the body's exception without a group, if it is the only one, and rather than a cancellation.

    Goes around the nurseries.
    """
    body = BodyOutcome()
    try:
        yield body
    except trio.Cancelled as cancelled:
        raise _preferred(body, cancelled) from None
    except BaseExceptionGroup as group:
        if only_cancelled(group):
            raise _preferred(body, group) from None
        only = body.raised
        # A nursery may split and rebuild a group that the body raised, so compare the members, not the groups.
        if only is None or _leaves(only) != _leaves(group):
            only = sole(group)
            if only is group or not _ours(only):
                raise
        context, suppressed = only.__context__, only.__suppress_context__
        try:
            raise only
        finally:
            only.__context__, only.__suppress_context__ = context, suppressed


def _preferred(body: BodyOutcome, cancelled: BaseException) -> BaseException:
    """Return the body's exception: closing a stream in a cancelled scope raises a cancellation in its place."""
    return body.raised if isinstance(body.raised, Exception) else cancelled


def only_cancelled(error: BaseException) -> bool:
    """Return True for a Trio cancellation, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(only_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)


def _leaves(error: BaseException) -> set[int]:
    if isinstance(error, BaseExceptionGroup):
        return set().union(*map(_leaves, error.exceptions))
    return {id(error)}


def _ours(error: BaseException) -> bool:
    from hearth.errors import HearthError

    return isinstance(error, HearthError)
