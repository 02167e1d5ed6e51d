"""`hearth connect`: a pipe between stdin, stdout and the daemon, so that `ssh pi hearth connect` is a carrier.

The pipe ends when stdin has ended and every request is answered, or when the daemon closes the connection. The content
is examined only if the carrier cannot be closed in one direction: then the pipe counts the unanswered requests.
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

IDLE_TIMEOUT = 10.0
"""Seconds without data after which the pipe ends, although answers are missing, once stdin has ended."""
PIECE = 1 << 16
"""Limit of the bytes in transit in each direction; a sender of more waits for the reader."""


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
        # Python saw a closed stream at its start; another file may have its descriptor by now.
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
    """Return stdin and stdout as streams; at the end, restore the blocking mode of both.

    Trio needs non-blocking files, but the mode belongs to the open file, which other processes share, often the shell
    on the same terminal. stdin and stdout may also be one file: so read both modes before changing either.
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

    def __init__(self, stdin: trio.abc.ReceiveStream, stdout: trio.abc.SendStream, daemon: trio.abc.Stream) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._daemon = daemon
        self._unanswered = None if isinstance(daemon, trio.abc.HalfCloseableStream) else UnansweredRequests()
        self._ended = False
        """True when stdin is at its end."""
        self._all_answered = False

    async def run(self) -> None:
        """Carry data until the end. Raises CarrierError if the daemon ends it, BrokenPipeError if stdout is closed."""
        async with unwrapped() as body, trio.open_nursery() as nursery, body.watched():
            nursery.start_soon(self._carry_up, nursery.cancel_scope)
            await self._carry_down()
            nursery.cancel_scope.cancel()
        if self._unanswered is not None and not self._all_answered and self._ended:
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
                # The last line may lack its end, as in `printf`. A line that was cut in its middle is not JSON anyway.
                await self._send(b"\n")
            self._ended = True
            if isinstance(self._daemon, trio.abc.HalfCloseableStream):
                await self._daemon.send_eof()
            elif self._unanswered is not None:
                await self._unanswered.wait()
                self._all_answered = True
                both.cancel()
        except trio.BrokenResourceError:
            # The daemon may have sent the reason: the other direction will read it.
            return

    async def _send(self, data: bytes) -> None:
        if self._unanswered is not None:
            self._unanswered.sent(data)
        await self._daemon.send_all(data)

    async def _carry_down(self) -> None:
        try:
            while data := bytes(await self._daemon.receive_some(PIECE)):
                await self.say(data)
                if self._unanswered is not None:
                    self._unanswered.received(data)
        except trio.BrokenResourceError as error:
            raise CarrierError(f"connection lost: {error}") from None
        if not self._ended:
            raise CarrierError("the daemon closed the connection")


class UnansweredRequests:
    """The ids of the unanswered requests; they show the end if one direction cannot be closed alone."""

    def __init__(self) -> None:
        self._ids: Counter[str] = Counter()
        self._sent, self._received = bytearray(), bytearray()
        self._less = trio.Event()

    async def wait(self) -> None:
        """Wait until every request is answered. Raises CarrierError after IDLE_TIMEOUT seconds without data."""
        while self._ids.total():
            self._less = trio.Event()
            with trio.move_on_after(IDLE_TIMEOUT) as waiting:
                await self._less.wait()
            if waiting.cancelled_caught:
                missing = f"{self._ids.total()} requests are not answered"
                raise CarrierError(f"{missing}, and for {IDLE_TIMEOUT:g} s nothing came")

    def sent(self, data: bytes) -> None:
        """Note the requests in bytes that are about to be sent to the daemon."""
        for document in _documents(self._sent, data):
            requests = document if isinstance(document, list) and document else [document]
            for request in requests:
                id_ = request.get("id") if isinstance(request, dict) else None
                if isinstance(id_, (str, int)) and not isinstance(id_, bool):
                    self._ids[_key(id_)] += 1
                # A notification is never answered; a document that is no request is answered with id null (draft §2).
                elif not isinstance(request, dict) or id_ is not None or "method" not in request:
                    self._ids[_key(None)] += 1

    def received(self, data: bytes) -> None:
        """Note the answers in bytes that the daemon sent and that were written to stdout."""
        for document in _documents(self._received, data):
            for answer in document if isinstance(document, list) else [document]:
                if isinstance(answer, dict) and "method" not in answer and self._ids[_key(answer.get("id"))] > 0:
                    self._ids[_key(answer.get("id"))] -= 1
        self._less.set()


def _key(id_: Any) -> str:
    # repr, because 1, 1.0 and True would be one key of a dict.
    return repr(id_)


def _documents(pending: bytearray, data: bytes) -> list[Any]:
    """Return the documents that `data` completes, None for a line that is not JSON; `pending` keeps the rest."""
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
