"""The tools uart.read, uart.write and uart.exchange (design §4).

Owns how a reader waits: beside the bus, so that it can be cancelled and others can write meanwhile; bytes are
taken only in a transaction, so a reader that is cancelled takes none. An exchange is one transaction, wait
included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from hearth.drivers.tools import schemas
from hearth.drivers.tools.schemas import decode, encode
from hearth.drivers.uart import MAX_TAKE, Taken, write_timeout_s
from hearth.tools import Args, StepContext, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.boards import Board

MAX_READ_MS = 600_000
MAX_EXCHANGE_MS = 60_000
_LIMIT_MS = 1_000.0
_GRACE_MS = 5_000
_DEFAULT_MS = 1_000
_SLOWEST_BAUD = 50


def _wish(args: Args) -> tuple[int | None, bytes | None]:
    length, until = args.get("len"), args.get("until")
    return (None if length is None else int(length), None if until is None else until.encode())


def _answer(taken: Taken) -> dict[str, Any]:
    answer: dict[str, Any] = {"data": encode(taken.data), "timed_out": not taken.complete}
    if taken.overflow:
        answer["overflow"] = taken.overflow
    if taken.discarded:
        answer["discarded"] = taken.discarded
    return answer


async def read(ctx: StepContext, args: Args) -> Mapping[str, Any]:
    """uart.read."""
    length, until = _wish(args)
    deadline = trio.current_time() + args.get("timeout_ms", _DEFAULT_MS) / 1000

    async def take(*, partial: bool) -> Taken:
        taken: Taken = await ctx.transact(
            lambda driver: driver.take(length, until, partial=partial), limit_ms=_LIMIT_MS
        )
        return taken

    taken = await take(partial=False)
    while not taken.complete:
        assert taken.inbox is not None, "an incomplete read says where to wait"
        with trio.move_on_at(deadline) as waiting:
            await taken.inbox.wait(length, until)
        # Somebody else may have taken what came: then wait for more.
        taken = await take(partial=waiting.cancelled_caught)
        if waiting.cancelled_caught:
            break
    return _answer(taken)


class _Uart:
    """What needs the board: the ports and their speeds."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._bauds = {spec.port: spec.baud for spec in board.profile.uarts}

    def bus(self, args: Args) -> str:
        """The bus of a port."""
        return self._board.uart_bus(args["port"])

    def _write_s(self, args: Args, data: bytes) -> float:
        return write_timeout_s(len(data), self._bauds.get(args["port"], _SLOWEST_BAUD))

    async def write(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """uart.write."""
        data = decode(args["data"])
        timeout_s = self._write_s(args, data)
        written = await ctx.transact(
            lambda driver: driver.write(data, timeout_s=timeout_s), limit_ms=timeout_s * 1000 + _LIMIT_MS
        )
        return {"written": written}

    async def exchange(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """uart.exchange."""
        data = decode(args["data"])
        length, until = _wish(args)
        timeout_s = args.get("timeout_ms", _DEFAULT_MS) / 1000
        limit_ms = (timeout_s + self._write_s(args, data)) * 1000 + _LIMIT_MS
        return _answer(
            await ctx.transact(
                lambda driver: driver.exchange(data, length=length, until=until, timeout_s=timeout_s), limit_ms=limit_ms
            )
        )


def uart_tools(board: Board) -> list[Tool]:
    """The uart tools for a board, in the order of design §4."""
    uart = _Uart(board)
    ports = [spec.port for spec in board.profile.uarts if f"uart:{spec.port}" in board.drivers]
    port = schemas.text(f"the serial port's name, one of: {', '.join(ports) or 'none'}", most=128)
    length = schemas.integer("end after this many bytes", 1, MAX_TAKE)
    until = schemas.text('end after this text, which is part of the data: "\\n" for a line', most=16)
    data = schemas.base64_data("what to send", least=1)
    result = schemas.result(
        {
            "data": schemas.base64_data("what was received"),
            "timed_out": schemas.flag("true if the time was over first: `data` is what had come until then"),
            "overflow": {"type": "integer", "description": "bytes lost before these, because nobody read them in time"},
            "discarded": {"type": "integer", "description": "bytes of earlier input that an exchange dropped"},
        },
        optional=["overflow", "discarded"],
    )
    ends = (
        "It ends after `len` bytes or after the text `until`, whichever is first (with `until` alone: after "
        f"{MAX_TAKE} bytes at the latest; with neither: as soon as anything has come), or after `timeout_ms`."
    )
    return [
        Tool(
            name="uart.read",
            risk_level=0,
            timeout_ms=MAX_READ_MS + _GRACE_MS,
            description=(
                "Read from a serial port what has come since the last read, and wait for more if need be. "
                f"{ends} Running into the timeout is no failure: timed_out says so. Others can write to the "
                "port meanwhile."
            ),
            params_schema=schemas.args(
                {
                    "port": port,
                    "len": length,
                    "until": until,
                    "timeout_ms": schemas.integer(
                        "the longest wait in milliseconds", 0, MAX_READ_MS, default=_DEFAULT_MS
                    ),
                },
                required=["port"],
            ),
            result_schema=result,
            capability="CAP_UART_READ",
            bus=uart.bus,
            run=read,
        ),
        Tool(
            name="uart.write",
            risk_level=2,
            timeout_ms=int(write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000) + _GRACE_MS,
            description="Send bytes over a serial port. It ends when the system has taken them all, in order.",
            params_schema=schemas.args({"port": port, "data": data}, required=["port", "data"]),
            result_schema=schemas.result({"written": schemas.integer("bytes sent", 1, MAX_TAKE)}),
            capability="CAP_UART_RW",
            bus=uart.bus,
            run=uart.write,
        ),
        Tool(
            name="uart.exchange",
            risk_level=2,
            timeout_ms=MAX_EXCHANGE_MS + int(write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000) + _GRACE_MS,
            description=(
                "Send a command over a serial port and read the reply, with nobody else in between. Earlier "
                f"input is dropped first, so the reply belongs to the command. {ends} Running into the "
                "timeout is no failure: timed_out says so. The port is taken for the whole time."
            ),
            params_schema=schemas.args(
                {
                    "port": port,
                    "data": data,
                    "len": length,
                    "until": until,
                    "timeout_ms": schemas.integer(
                        "the longest wait for the reply in milliseconds", 1, MAX_EXCHANGE_MS, default=_DEFAULT_MS
                    ),
                },
                required=["port", "data"],
            ),
            result_schema=result,
            capability="CAP_UART_RW",
            bus=uart.bus,
            run=uart.exchange,
        ),
    ]
