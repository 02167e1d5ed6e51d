"""The watch example as a person starts it, and a link that can be cut: for the tests that look at its page.

Owns the process of watch_serve.py, and a relay between the page and the daemon. It asks neither anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

WATCH = Path(__file__).parents[2] / "examples" / "watch"
COMMAND = (sys.executable, str(Path(__file__).parents[1] / "examples" / "watch_serve.py"))
BOUND = 60.0
"""Seconds after which any wait here is a failure."""


class Serving:
    """A serve.py that has said where to look."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.said = ""
        self._more = trio.Event()

    async def listen(self) -> None:
        """Take what it prints."""
        assert self.process.stdout is not None
        async for chunk in self.process.stdout:
            self.said += bytes(chunk).decode()
            self._more.set()
            self._more = trio.Event()
        self._more.set()

    async def says(self, pattern: str) -> str:
        """Wait until it has said something; what the pattern's group caught, the last time it was said."""
        with trio.fail_after(BOUND):
            while not (found := re.findall(pattern, self.said)):
                await self._more.wait()
        return str(found[-1])

    @property
    def url(self) -> str:
        """What to open, token and all."""
        return str(re.findall(r"http://\S+", self.said)[0])

    @property
    def origin(self) -> str:
        """Where the page comes from."""
        return self.url.split("/#")[0]

    @property
    def daemon_address(self) -> str:
        """The daemon's listener: ws://127.0.0.1:PORT."""
        return str(re.findall(r"url=(ws://[^&]+)", self.url)[0])

    @property
    def token(self) -> str:
        """The page's."""
        return self.url.partition("&token=")[2]

    @property
    def daemon_pid(self) -> int:
        """The daemon that runs now."""
        return int(re.findall(r"\(pid (\d+)\)", self.said)[-1])

    def url_by(self, port: int) -> str:
        """What to open so that the page talks to another port than the daemon's."""
        return self.url.replace(self.daemon_address, f"ws://127.0.0.1:{port}")

    def kill_daemon(self) -> None:
        """Take the daemon away without a word; serve.py starts another one at its place."""
        os.kill(self.daemon_pid, signal.SIGKILL)

    async def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """As Ctrl-C does; the exit code."""
        self.process.send_signal(how)
        with trio.fail_after(BOUND):
            return await self.process.wait()


@asynccontextmanager
async def serving(*arguments: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Serving]:
    """Run watch_serve.py; it, and its daemon, do not outlive this context."""
    process = await trio.lowlevel.open_process(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    run = Serving(process)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.listen)
            await run.says("(Ctrl-C)")
            yield run
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                await run.stop()


class Relay:
    """A link to the daemon that can be cut and mended: bytes go to and fro while it holds."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._links: set[trio.CancelScope] = set()
        self._holds = True
        self.port = 0
        self.refused = 0
        """Connections that came while the link was cut."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept for ever."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._accept, listeners)

    def cut(self) -> None:
        """All links break at once, and new ones come to nothing."""
        self._holds = False
        for scope in self._links:
            scope.cancel()

    def mend(self) -> None:
        """New links hold again."""
        self._holds = True

    async def _accept(self, near: trio.SocketStream) -> None:
        if not self._holds:
            self.refused += 1
            return
        with trio.CancelScope() as scope:
            self._links.add(scope)
            try:
                async with await trio.open_tcp_stream("127.0.0.1", self._target) as far, trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, near, far, scope)
                    nursery.start_soon(self._pump, far, near, scope)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # either side has gone: so has the link
            finally:
                self._links.discard(scope)

    async def _pump(self, from_: trio.SocketStream, to: trio.SocketStream, scope: trio.CancelScope) -> None:
        async for data in from_:
            await to.send_all(data)
        scope.cancel()
