"""Has a plot drawn: by `hearth.hcp.plotting` in a process of its own, within bounds of time and size (decision 0079).

It owns the life of that process and nothing of what is drawn. However it is left, by a picture, an error or a cancel,
the process has ended and what it wrote beside it is gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import trio

from hearth.errors import HearthError
from hearth.groups import unwrapped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

TIME_LIMIT = 20.0
"""Seconds that a drawing may take; a Raspberry Pi 4 needs about five."""
MOST_BYTES = 8 << 20
"""Of a picture."""
MOST_WORDS = 4096
"""Bytes that are kept of what the process says on stderr: the last of them."""
AT_ONCE = trio.CapacityLimiter(1)
"""One drawing at a time: there are more urgent things for a small machine's processor."""
COMMAND = (sys.executable, "-P", "-m", "hearth.hcp.plotting")
_OURS = ("MPLBACKEND", "MPLCONFIGDIR", "MATPLOTLIBRC", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")
"""What of our environment is not handed on: the preferences of whoever started us, and what was meant for us alone."""


class DrawingError(HearthError):
    """A plot that was not drawn, and why, with the cure where there is one."""


async def draw(plot: Mapping[str, Any]) -> bytes:
    """The PNG of a request that `hearth.hcp.plotting` describes. Raises DrawingError."""
    try:
        request = orjson.dumps(plot)
    except TypeError as error:
        raise DrawingError(f"the plot was not drawn: {error}") from None
    async with AT_ONCE, _scratch() as folder:
        try:
            async with unwrapped(), _process(folder) as process:
                with trio.fail_after(TIME_LIMIT):
                    picture, words, code = await _converse(process, request)
        except trio.TooSlowError:
            raise DrawingError(f"the plot was not drawn within {TIME_LIMIT:g} s") from None
    if code:
        said = words.decode("utf-8", "replace").strip().splitlines()
        raise DrawingError(f"the plot was not drawn: {said[-1][:500] if said else f'exit code {code}'}")
    return picture


@asynccontextmanager
async def _scratch() -> AsyncIterator[str]:
    """A directory for what matplotlib keeps beside its work: HOME may be nobody's, or not to be written to."""
    folder = await trio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="hearth-plot-"))
    try:
        yield folder
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


@asynccontextmanager
async def _process(folder: str) -> AsyncIterator[trio.Process]:
    """The process that draws. Killed, if it has not ended by then: it holds nothing that it must put in order."""
    environ = {name: value for name, value in os.environ.items() if name not in _OURS}
    pipe = subprocess.PIPE
    try:
        process = await trio.lowlevel.open_process(
            COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, env={**environ, "MPLCONFIGDIR": folder}
        )
    except OSError as error:
        raise DrawingError(f"the plot was not drawn: {COMMAND[0]} cannot be started: {error.strerror}") from None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _converse(process: trio.Process, request: bytes) -> tuple[bytes, bytes, int]:
    """Hand the request over; the picture, what was said on stderr, and the exit code."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    picture, words = bytearray(), bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over, process.stdin, request)
        nursery.start_soon(_listen, process.stderr, words)
        async with process.stdout:
            async for chunk in process.stdout:
                picture += chunk
                if len(picture) > MOST_BYTES:
                    raise DrawingError(f"the plot was not drawn: it would be larger than {MOST_BYTES >> 20} MiB")
    return bytes(picture), bytes(words), await process.wait()


async def _hand_over(stdin: trio.abc.SendStream, request: bytes) -> None:
    try:
        async with stdin:
            await stdin.send_all(request)
    except trio.BrokenResourceError:
        pass  # it has ended without reading everything; its exit code and its last words say why


async def _listen(stderr: trio.abc.ReceiveStream, words: bytearray) -> None:
    async with stderr:
        async for chunk in stderr:
            words += chunk
            del words[:-MOST_WORDS]
