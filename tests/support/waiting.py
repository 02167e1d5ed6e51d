"""Waiting for what a test can only see by looking; the bound is the `fail_after` around it."""

from __future__ import annotations

import trio


async def until(ready):
    """Look again after every turn of the others; for what takes no time: a virtual clock stands still meanwhile."""
    while not ready():
        await trio.lowlevel.checkpoint()


async def passes(ready):
    """Look again as time passes, real or virtual."""
    while not ready():  # noqa: ASYNC110 - what is looked at has no event of its own
        await trio.sleep(0.01)
