"""Messages on a pair of pipes: one JSON document a line, as the SDK takes and gives them.

It owns the framing, its bounds, and what is answered to a line that is no message. Everything is read and written in
the task that wants it, where that is possible: each hop between two tasks costs a small call a tenth of its time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import mcp_types as types
import orjson
import trio
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from hearth.protocol.values import MAX_VALUES, TOO_MANY, has_more_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from mcp.shared._stream_protocols import ReadStream

MOST_LINE: Final = 4 << 20
"""Bytes of one message: HACP takes 1 MiB, and JSON may be written longer. A longer line is refused and passed over."""
MOST_WAITING: Final = 64 << 20
"""Bytes that may wait to be read by the client before it is given up."""
PIECE: Final = 1 << 16


class _Stream:
    """What the SDK wants of a stream beside its direction."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close."""


class Outgoing(_Stream):
    """What the server says, to stdout: at once where stdout takes it, else in its turn.

    A message is written whole, whatever becomes of who says it; who says one waits until it is written. A client that
    does not read is given up when too much has piled up for it.
    """

    def __init__(self, stdout: trio.abc.SendStream, all_of_it: trio.CancelScope) -> None:
        self._stdout = stdout
        self._descriptor = stdout.fileno() if isinstance(stdout, trio.lowlevel.FdStream) else None
        self._all_of_it = all_of_it
        self._waiting = bytearray()
        self._ended = False
        self._something, self._drained = trio.Event(), trio.Event()
        self.written = trio.Event()
        """Set when all is written that ever will be."""
        self.broken = False
        """True when nobody reads stdout any more."""

    async def send(self, item: SessionMessage) -> None:
        """Say it. Raises anyio.BrokenResourceError when nobody reads any more."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.broken:
            raise anyio.BrokenResourceError
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        rest = line if self._waiting else line[self._write_now(line) :]
        if rest:
            if not self._waiting:
                self._drained = trio.Event()
            self._waiting += rest
            if len(self._waiting) > MOST_WAITING:
                self._break()
            self._something.set()
            await self._drained.wait()

    def _write_now(self, line: bytes) -> int:
        if self._descriptor is None:
            return 0
        try:
            return os.write(self._descriptor, line)
        except BlockingIOError:
            return 0
        except OSError:
            self._break()
            raise anyio.BrokenResourceError from None

    def _break(self) -> None:
        self.broken = True
        self._all_of_it.cancel()

    async def run(self) -> None:
        """Write what stdout has not taken at once, until no more is said, or until nobody reads."""
        try:
            while True:
                while self._waiting:
                    piece = bytes(self._waiting[:PIECE])
                    await self._stdout.send_all(piece)
                    del self._waiting[: len(piece)]
                self._drained.set()
                if self._ended:
                    break
                self._something = trio.Event()
                await self._something.wait()
        except trio.BrokenResourceError:
            self._break()
        self.written.set()

    async def aclose(self) -> None:
        """No more will be said."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._ended = True
        self._something.set()


class Incoming(_Stream):
    """What the client says; what is no message is answered here, and passed over."""

    def __init__(self, stdin: trio.abc.ReceiveStream, outgoing: Outgoing) -> None:
        self._lines = lines(stdin)
        self._outgoing = outgoing

    def __aiter__(self) -> ReadStream[SessionMessage | Exception]:
        return self

    async def __anext__(self) -> SessionMessage:
        async for line in self._lines:
            if line is None:
                await self._refuse(None, types.INVALID_REQUEST, f"a message has at most {MOST_LINE} bytes")
                continue
            if has_more_values(line, MAX_VALUES):
                await self._refuse(None, types.INVALID_REQUEST, TOO_MANY.format(MAX_VALUES))
                continue
            try:
                message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                await self._refuse(*fault(line))
            else:
                return SessionMessage(message)
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage:
        """The next message. Raises anyio.EndOfStream after the last."""
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _refuse(self, id_: types.RequestId | None, code: int, reason: str) -> None:
        error = types.ErrorData(code=code, message=reason)
        await self._outgoing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id_, error=error)))


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes | None]:
    """The lines of a stream, blank ones left out, the last one whether or not it is ended; None for one too long."""
    pending = bytearray()
    passing_over = False
    while data := await _some(stream):
        *ended, rest = data.split(b"\n")
        for piece in ended:
            pending += piece
            if len(pending) > MOST_LINE and not passing_over:
                yield None
            elif pending.strip() and not passing_over:
                yield bytes(pending)
            pending.clear()
            passing_over = False
        pending += rest
        if len(pending) > MOST_LINE:
            pending.clear()
            if not passing_over:
                passing_over = True
                yield None
    if pending.strip() and not passing_over:
        yield bytes(pending)


async def _some(stream: trio.abc.ReceiveStream) -> bytes:
    """What has come, as soon as something has; nothing at the end."""
    if not isinstance(stream, trio.lowlevel.FdStream):
        return bytes(await stream.receive_some(PIECE))
    descriptor = stream.fileno()
    waited = False
    while True:
        try:
            data = os.read(descriptor, PIECE)
            break
        except BlockingIOError:
            # As the stream itself would, but for a turn that it gives to others before it looks.
            await trio.lowlevel.wait_readable(descriptor)
            waited = True
        except OSError:
            # A terminal that has gone is an end as well.
            return b""
    if not waited:
        await trio.lowlevel.checkpoint()
    return data


def fault(line: bytes) -> tuple[types.RequestId | None, int, str]:
    """What is wrong with a line that is no message: whose request it was, if that can be told, a code and a reason."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return None, types.PARSE_ERROR, f"Parse error: {error}"
    if not isinstance(value, dict):
        batch = (
            "MCP has no batches; send each message by itself" if isinstance(value, list) else "a message is an object"
        )
        return None, types.INVALID_REQUEST, f"Invalid Request: {batch}"
    id_ = value.get("id")
    known = id_ if isinstance(id_, (str, int)) and not isinstance(id_, bool) else None
    return known, types.INVALID_REQUEST, "Invalid Request: not a JSON-RPC 2.0 request, notification or response"
