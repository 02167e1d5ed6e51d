"""Has a plot drawn: by `hearth.hcp.plotting` in a process of its own, within bounds of time and size (decision 0079).

It owns how long that process may run and how much it may say, and nothing of what is drawn. However it is left, by a
picture, an error or a cancel, the process has ended and what it wrote beside it is gone. Where it runs is a `Start`:
`here` starts it as a child of this process, `by` asks the drawer of a confined hearthd to (decision 0089).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import trio

from hearth.actors.bridges.hcp.drawer import COMMAND, environment
from hearth.errors import HearthError
from hearth.groups import unwrapped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from hearth.actors.bridges.hcp.drawer import Drawer

TIME_LIMIT = 20.0
"""Seconds that a drawing may take; a Raspberry Pi 4 needs about five."""
MOST_BYTES = 8 << 20
"""Of a picture."""
MOST_WORDS = 4096
"""Bytes that are kept of what the process says on stderr: the last of them."""
AT_ONCE = trio.CapacityLimiter(1)
"""One drawing at a time: there are more urgent things for a small machine's processor."""
GONE = "the plot was not drawn: the process that starts the drawing program has ended: restart hearthd"
NOTHING_TO_DRAW_WITH = (
    "the plot was not drawn: there was no matplotlib to draw with when hearthd started: pip install 'hearth[plot]', "
    "and restart it"
)
STOP_PATIENCE = 5.0
"""Seconds that the end of a process that is being stopped is waited for, where it is another's child."""


class DrawingError(HearthError):
    """A plot that was not drawn, and why, with the cure where there is one."""


class Running(Protocol):
    """A process that draws."""

    @property
    def stdin(self) -> trio.abc.SendStream | None:
        """Takes the request."""
        ...

    @property
    def stdout(self) -> trio.abc.ReceiveStream | None:
        """Gives the picture."""
        ...

    @property
    def stderr(self) -> trio.abc.ReceiveStream | None:
        """Says what is wrong."""
        ...

    async def wait(self) -> int:
        """Wait for its end; its exit code. Raises DrawingError where it could not be started."""
        ...


if TYPE_CHECKING:
    Start = Callable[[], AbstractAsyncContextManager[Running]]


@asynccontextmanager
async def here() -> AsyncIterator[Running]:
    """Start it as a child of this process. Killed, if it has not ended by then: it holds nothing to put in order."""
    folder = await trio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="hearth-plot-"))
    pipe = subprocess.PIPE
    try:
        try:
            process = await trio.lowlevel.open_process(
                COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, env=environment(os.environ, folder)
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
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


@asynccontextmanager
async def by(drawer: Drawer) -> AsyncIterator[Running]:
    """Have it started by the drawer; stopped, if it has not ended by then."""
    if not drawer.can_draw:
        raise DrawingError(NOTHING_TO_DRAW_WITH)
    try:
        process = _Anothers(drawer, drawer.draw())
    except OSError:
        raise DrawingError(GONE) from None
    try:
        await process.begin()
        yield process
    finally:
        await process.stop()


class _Anothers:
    """A process that the drawer has started."""

    def __init__(self, drawer: Drawer, number: int) -> None:
        self._drawer, self._number = drawer, number
        self._streams: list[trio.lowlevel.FdStream] = []
        self._outcome: str | None = None

    async def begin(self) -> None:
        """Wait until it has its pipes. Raises DrawingError where it could not be started."""
        while not self._streams and self._outcome is None:
            await self._hear()
        if self._outcome is not None:
            await self.wait()

    @property
    def stdin(self) -> trio.abc.SendStream:
        """See Running."""
        return self._streams[0]

    @property
    def stdout(self) -> trio.abc.ReceiveStream:
        """See Running."""
        return self._streams[1]

    @property
    def stderr(self) -> trio.abc.ReceiveStream:
        """See Running."""
        return self._streams[2]

    async def wait(self) -> int:
        """See Running."""
        await self._until_told()
        assert self._outcome is not None
        if self._outcome.startswith("! "):
            raise DrawingError(f"the plot was not drawn: {self._outcome[2:]}")
        return int(self._outcome)

    async def _until_told(self) -> None:
        while self._outcome is None:
            await self._hear()

    async def _hear(self) -> None:
        """Wait for one message of the drawer."""
        await trio.lowlevel.wait_readable(self._drawer.fileno())
        try:
            number, outcome, descriptors = self._drawer.told()
        except BlockingIOError:
            return
        except EOFError:
            raise DrawingError(GONE) from None
        if number != self._number:
            # Of drawings whose end was not waited for.
            for descriptor in descriptors:
                os.close(descriptor)
        elif outcome == "pipes":
            self._streams = [trio.lowlevel.FdStream(descriptor) for descriptor in descriptors]
        else:
            self._outcome = outcome

    async def stop(self) -> None:
        """Have it ended, if it has not, and let go of its pipes."""
        with trio.CancelScope(shield=True):
            if self._outcome is None:
                self._drawer.stop(self._number)
                with trio.move_on_after(STOP_PATIENCE), suppress(DrawingError):
                    await self._until_told()
            for stream in self._streams:
                await stream.aclose()


async def draw(plot: Mapping[str, Any], start: Start = here) -> bytes:
    """The PNG of a request that `hearth.hcp.plotting` describes. Raises DrawingError."""
    try:
        request = orjson.dumps(plot)
    except TypeError as error:
        raise DrawingError(f"the plot was not drawn: {error}") from None
    async with AT_ONCE:
        try:
            async with unwrapped(), start() as process:
                with trio.fail_after(TIME_LIMIT):
                    picture, words, code = await _converse(process, request)
        except trio.TooSlowError:
            raise DrawingError(f"the plot was not drawn within {TIME_LIMIT:g} s") from None
    if code:
        said = words.decode("utf-8", "replace").strip().splitlines()
        raise DrawingError(f"the plot was not drawn: {said[-1][:500] if said else f'exit code {code}'}")
    return picture


async def _converse(process: Running, request: bytes) -> tuple[bytes, bytes, int]:
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
