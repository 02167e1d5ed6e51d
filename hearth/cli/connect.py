"""`hearth connect`: stdin and stdout become a connection to the daemon, so that `ssh pi hearth connect` is a carrier.

It owns when the pipe ends: after what comes on stdin has ended and all of it is answered, or when the daemon closes.
What is carried is not looked at, but where a carrier cannot be closed in one direction alone.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
import orjson
import trio

from hearth._util.exceptions import unwrapped
from hearth.cli.common import DONE, Options, interruptible, standard
from hearth.errors import CarrierError, ConfigError
from hearth.transport import open_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SILENCE = 10.0
"""Seconds for which a daemon may say nothing while it still owes an answer and nothing more will be sent."""
PIECE = 1 << 16
"""Bytes that are on their way in each direction; who sends more waits for who reads."""


@click.command()
@click.option("--ready", is_flag=True, help="Print an empty line, which the protocol ignores, when it is connected.")
@standard
def connect(options: Options, ready: bool) -> int:
    """Carry HACP between stdin and stdout here and the daemon, one JSON document a line.

    It is what runs on the other machine for hearth.connect("ssh://…"), and `--to` leads to a daemon anywhere. The end
    of stdin ends the connection once everything that was sent is answered. Exits with 3 if there is no daemon, or if
    it closes the connection.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:
        # Python has seen it at the start; by now its descriptor may be some other file's.
        raise ConfigError("stdin or stdout is closed; `hearth connect` carries the protocol between them")
    return interruptible(lambda: _carry(options, ready=ready))


async def _carry(options: Options, *, ready: bool) -> int:
    async with standard_streams() as (stdin, stdout), open_stream(options.address) as daemon:
        pipe = Pipe(stdin, stdout, daemon)
        if ready:
            await pipe.say(b"\n")
        await pipe.run()
    return DONE


@asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]]:
    """Our stdin and stdout as streams; on the way out both block again, if they did.

    To wait for them, they must not block, and that is so for everybody who has the same file open: often the shell that
    started us, on the same terminal for both. So both are looked at before either is changed.
    """
    blocked = [(fd, os.get_blocking(fd)) for fd in (0, 1)]
    try:
        async with AsyncExitStack() as stack:
            stdin = await stack.enter_async_context(trio.lowlevel.FdStream(os.dup(0)))
            stdout = await stack.enter_async_context(trio.lowlevel.FdStream(os.dup(1)))
            yield stdin, stdout
    finally:
        for fd, blocking in blocked:
            os.set_blocking(fd, blocking)


class Pipe:
    """Both directions of one connection."""

    def __init__(
        self, stdin: trio.abc.ReceiveStream, stdout: trio.abc.SendStream, daemon: trio.abc.Stream
    ) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._daemon = daemon
        self._owed = None if isinstance(daemon, trio.abc.HalfCloseableStream) else Owed()
        self._ended = False
        """True when stdin is at its end."""
        self._all_answered = False

    async def run(self) -> None:
        """Carry until the end. Raises CarrierError when the daemon ends it, BrokenPipeError when nobody reads us."""
        async with unwrapped() as body, trio.open_nursery() as nursery, body.watched():
            nursery.start_soon(self._carry_up, nursery.cancel_scope)
            await self._carry_down()
            nursery.cancel_scope.cancel()
        if self._owed is not None and not self._all_answered and self._ended:
            raise CarrierError("the daemon closed the connection before everything was answered")

    async def say(self, data: bytes) -> None:
        """Write to stdout."""
        try:
            await self._stdout.send_all(data)
        except trio.BrokenResourceError:
            raise BrokenPipeError from None

    async def _carry_up(self, both: trio.CancelScope) -> None:
        last = b"\n"
        try:
            while data := bytes(await self._stdin.receive_some(PIECE)):
                last = data
                await self._send(data)
            if not last.endswith(b"\n"):
                # The last line of what somebody typed or printed; what was cut off in its middle is no JSON.
                await self._send(b"\n")
            self._ended = True
            if isinstance(self._daemon, trio.abc.HalfCloseableStream):
                await self._daemon.send_eof()
            elif self._owed is not None:
                await self._owed.wait()
                self._all_answered = True
                both.cancel()
        except trio.BrokenResourceError:
            # It may have said why: the other direction is about to find out.
            return

    async def _send(self, data: bytes) -> None:
        if self._owed is not None:
            self._owed.sent(data)
        await self._daemon.send_all(data)

    async def _carry_down(self) -> None:
        try:
            while data := bytes(await self._daemon.receive_some(PIECE)):
                await self.say(data)
                if self._owed is not None:
                    self._owed.received(data)
        except trio.BrokenResourceError as error:
            raise CarrierError(f"connection lost: {error}") from None
        if not self._ended:
            raise CarrierError("the daemon closed the connection")


class Owed:
    """Which requests have not been answered, by their ids: where one direction cannot be closed, that tells the end."""

    def __init__(self) -> None:
        self._ids: Counter[str] = Counter()
        self._sent, self._received = bytearray(), bytearray()
        self._less = trio.Event()

    async def wait(self) -> None:
        """Until nothing is owed any more. Raises CarrierError when nothing comes any more."""
        while self._ids.total():
            self._less = trio.Event()
            with trio.move_on_after(SILENCE) as patience:
                await self._less.wait()
            if patience.cancelled_caught:
                raise CarrierError(f"{self._ids.total()} requests are not answered, and for {SILENCE:g} s nothing came")

    def sent(self, data: bytes) -> None:
        """Bytes that are on their way to the daemon."""
        for document in _documents(self._sent, data):
            requests = document if isinstance(document, list) and document else [document]
            for request in requests:
                id_ = request.get("id") if isinstance(request, dict) else None
                if isinstance(id_, (str, int)) and not isinstance(id_, bool):
                    self._ids[_key(id_)] += 1
                # A notification is never answered; what is no request at all is answered with the id null (draft §2).
                elif not isinstance(request, dict) or id_ is not None or "method" not in request:
                    self._ids[_key(None)] += 1

    def received(self, data: bytes) -> None:
        """Bytes that the daemon sent, and that are written."""
        for document in _documents(self._received, data):
            for answer in document if isinstance(document, list) else [document]:
                if isinstance(answer, dict) and "method" not in answer and self._ids[_key(answer.get("id"))] > 0:
                    self._ids[_key(answer.get("id"))] -= 1
        self._less.set()


def _key(id_: Any) -> str:
    # 1, 1.0 and true would be one key of a dict.
    return repr(id_)


def _documents(pending: bytearray, data: bytes) -> list[Any]:
    """The documents that `data` completes; None for what is no JSON. `pending` keeps the rest."""
    head, newline, tail = data.rpartition(b"\n")
    if not newline:
        pending += tail
        return []
    lines = (bytes(pending) + head).split(b"\n")
    pending[:] = tail
    return [_read(line) for line in lines if line.strip()]


def _read(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
