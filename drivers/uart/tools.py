"""The tools hw.uart.list, uart.read, uart.write, uart.exchange and uart.control (docs/reference/boards.md).

A reader waits beside the bus, so that it can be cancelled and other steps can write at the same time. A session's
cursor in the stream moves only in a transaction, so a cancelled reader misses nothing. An exchange is one transaction,
wait included, and so is a break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from attrs import asdict, frozen

from hearth.drivers import schemas
from hearth.drivers.board import BoardDriver, list_tool, listing
from hearth.drivers.schemas import read_bytes, shown_bytes
from hearth.drivers.serial_port.settings import MAX_TAKE, MODEM_LINES, ModemLines, write_timeout_s
from hearth.tools import Args, Done, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.serial_port.fd import FdUart
    from hearth.drivers.serial_port.settings import Taken, UartSettings

MAX_READ_MS = 600_000
MAX_EXCHANGE_MS = 60_000
MAX_GAP_MS = 60_000
MAX_BREAK_MS = 5_000
_LIMIT_MS = 1_000.0
_GRACE_MS = 5_000
_DEFAULT_MS = 1_000
_SLOWEST_BAUD = 50


@frozen
class _ReadRequest:
    """The end of a read: a number of bytes, a text, or a quiet line."""

    length: int | None
    until: bytes | None
    gap_s: float | None

    @classmethod
    def of(cls, args: Args) -> _ReadRequest:
        length, until, gap_ms = args.get("len"), args.get("until"), args.get("gap_ms")
        return cls(
            None if length is None else int(length),
            None if until is None else until.encode(),
            None if gap_ms is None else gap_ms / 1000,
        )


def _answer(taken: Taken) -> dict[str, Any]:
    answer: dict[str, Any] = {**shown_bytes(taken.data), "timed_out": not taken.complete}
    for name in ("overflow", "overrun", "discarded"):
        if count := getattr(taken, name):
            answer[name] = count
    return answer


async def read(ctx: StepContext, args: Args) -> Mapping[str, Any]:
    """uart.read."""
    wanted = _ReadRequest.of(args)
    deadline = trio.current_time() + args.get("timeout_ms", _DEFAULT_MS) / 1000

    async def take(*, partial: bool) -> Taken:
        taken: Taken = await ctx.transact(
            lambda driver: driver.take(
                wanted.length, wanted.until, gap_s=wanted.gap_s, partial=partial, reader=ctx.session_id
            ),
            limit_ms=_LIMIT_MS,
        )
        return taken

    taken = await take(partial=False)
    while not taken.complete:
        assert taken.inbox is not None, "an incomplete read says where to wait"
        with trio.move_on_at(deadline) as waiting:
            await taken.inbox.wait(wanted.length, wanted.until, wanted.gap_s, ctx.session_id)
        # Another step of this session may have read the bytes: then wait for more.
        taken = await take(partial=waiting.cancelled_caught)
        if waiting.cancelled_caught:
            break
    return _answer(taken)


class _Uart:
    """The tools' functions that need the board: the ports and their speeds."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._bauds = {spec.port: spec.settings.baud for spec in board.of("uart")}

    def bus(self, args: Args) -> str:
        """Return the bus of a port."""
        return self._board.bus("uart", "port", args["port"])

    def sending_bus(self, args: Args) -> str:
        """Return the bus of a port. Raises InvalidParams for bytes to send that are not in exactly one form."""
        bus_id = self.bus(args)
        read_bytes(args, most=MAX_TAKE)
        return bus_id

    def _write_s(self, args: Args, data: bytes) -> float:
        return write_timeout_s(len(data), self._bauds.get(args["port"], _SLOWEST_BAUD))

    def _backlog_s(self, args: Args) -> float:
        """Return the seconds that earlier output may still take to leave: a driver's buffer is a page."""
        return write_timeout_s(MAX_TAKE, self._bauds.get(args["port"], _SLOWEST_BAUD))

    async def write(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """uart.write."""
        data = read_bytes(args, most=MAX_TAKE)
        drain = bool(args.get("drain", False))
        timeout_s = self._write_s(args, data)
        if drain:
            timeout_s += self._backlog_s(args)
        written = await ctx.transact(
            lambda driver: driver.write(data, timeout_s=timeout_s, drain=drain, reader=ctx.session_id),
            limit_ms=timeout_s * 1000 + _LIMIT_MS,
        )
        return {"written": written}

    async def exchange(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """uart.exchange."""
        data = read_bytes(args, most=MAX_TAKE)
        wanted = _ReadRequest.of(args)
        timeout_s = args.get("timeout_ms", _DEFAULT_MS) / 1000
        limit_ms = (timeout_s + self._write_s(args, data)) * 1000 + _LIMIT_MS

        def op(driver: FdUart) -> Any:
            return driver.exchange(
                data,
                length=wanted.length,
                until=wanted.until,
                gap_s=wanted.gap_s,
                timeout_s=timeout_s,
                reader=ctx.session_id,
            )

        return _answer(await ctx.transact(op, limit_ms=limit_ms))

    async def control(self, ctx: StepContext, args: Args) -> Done:
        """uart.control."""
        rts, dtr, break_ms = args.get("rts"), args.get("dtr"), args.get("break_ms")
        break_s = None if break_ms is None else break_ms / 1000
        drives = rts is not None or dtr is not None

        async def op(driver: FdUart) -> tuple[ModemLines, ModemLines]:
            before = await driver.control() if drives else ModemLines()
            return before, await driver.control(rts=rts, dtr=dtr, break_s=break_s)

        before, lines = await ctx.transact(
            op,
            limit_ms=((break_s or 0.0) + self._backlog_s(args)) * 1000 + _LIMIT_MS,
            drives=MODEM_LINES if drives else None,
        )
        result = {"port": args["port"], **asdict(lines)}
        if not drives:
            return Done(result)
        former = {"rts": None if rts is None else before.rts, "dtr": None if dtr is None else before.dtr}
        listed = ", ".join(f"{name} {'on' if level else 'off'}" for name, level in former.items() if level is not None)
        undo = Undo(
            lambda driver: driver.control(**former),
            f"uart.control port {args['port']} back to {listed}",
            drives=MODEM_LINES,
        )
        return Done(result, undo)


def _uses(args: Args) -> Sequence[Use]:
    return (Use("uart", (args["port"],)),)


def listed(board: BoardDriver) -> dict[str, Any]:
    """Return the result of hw.uart.list."""
    ports = [
        {"bus": f"uart:{spec.port}", "driven": True, **described, **_settings_json(spec.settings)}
        for spec, described, _ in board.of("uart")
    ]
    return {"ports": ports, "undriven": board.missing("uart")}


def _settings_json(settings: UartSettings) -> dict[str, Any]:
    """Return the port's settings; default values are left out, but for the four numbers that every client needs."""
    result: dict[str, Any] = {
        "baud": settings.baud,
        "bits": settings.bits,
        "parity": settings.parity,
        "stop_bits": settings.stop_bits,
        "flow": settings.flow,
    }
    if settings.rs485 is not None:
        result["rs485"] = asdict(settings.rs485)
    return result


def uart_tools(board: Board) -> list[Tool]:
    """Return the uart tools for a board, in the default order."""
    uart = _Uart(board)
    ports = [spec.port for spec in board.of("uart")]
    port = schemas.text(f"the serial port's name, one of: {', '.join(ports) or 'none'}", most=128)
    length = schemas.integer("end after this many bytes", 1, MAX_TAKE)
    until = schemas.text('end after this text, which is part of the data: "\\n" for a line', most=16)
    data = schemas.bytes_args("data", "what to send", most=MAX_TAKE)
    gap = schemas.integer("end when nothing has come for this many milliseconds after a byte", 1, MAX_GAP_MS)
    result = schemas.result(
        {
            **schemas.bytes_result("what was received", most=MAX_TAKE),
            "timed_out": schemas.flag("true if the time was over first: `data` is what had come until then"),
            "overflow": {"type": "integer", "description": "bytes lost before these: this session read too late"},
            "overrun": {"type": "integer", "description": "characters that the device or the kernel lost before these"},
            "discarded": {"type": "integer", "description": "bytes of earlier input that an exchange skipped"},
        },
        optional=[*schemas.SHOWN, "overflow", "overrun", "discarded"],
    )
    level = {"anyOf": [{"type": "boolean"}, {"type": "null"}], "description": "null where the port does not know it"}
    ends = (
        "It ends after `len` bytes, after the text `until`, or when the line was quiet for `gap_ms`, whichever is "
        f"first (with `until` or `gap_ms` alone: after {MAX_TAKE} bytes at the latest; with none of them: as soon as "
        "anything has come), or after `timeout_ms`."
    )
    return [
        list_tool(
            "hw.uart.list",
            "List the serial ports: name, settings, device path. Touches no hardware.",
            {
                "ports": schemas.listed("the ports", schemas.json_object("port, path, baud, bits, parity, …")),
                "undriven": schemas.UNDRIVEN,
            },
            listing(listed, "ports", "", lambda _, port: Use("uart", (port["port"],))),
        ),
        Tool(
            name="uart.read",
            logged=("port", "len", "gap_ms", "timeout_ms"),
            risk_level=1,
            timeout_ms=MAX_READ_MS + _GRACE_MS,
            description=(
                "Read from a serial port what has come since this session's last read, and wait for more if need be. "
                "Each session reads at its own place: none takes what another one waits for. The first use of a port "
                "in a session begins at what no session has read. "
                f"{ends} Running into the timeout is no failure: timed_out says so. Others can write to the "
                "port at the same time."
            ),
            params_schema=schemas.args(
                {
                    "port": port,
                    "len": length,
                    "until": until,
                    "gap_ms": gap,
                    "timeout_ms": schemas.integer(
                        "the longest wait in milliseconds", 0, MAX_READ_MS, default=_DEFAULT_MS
                    ),
                },
                required=["port"],
            ),
            result_schema=result,
            capability="CAP_UART_READ",
            bus=uart.bus,
            uses=_uses,
            run=read,
        ),
        Tool(
            name="uart.write",
            logged=("port", "drain"),
            risk_level=2,
            timeout_ms=int(2 * write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000) + _GRACE_MS,
            description=(
                "Send bytes (one of `data`, `text` and `hex`) over a serial port. It ends when the system has taken "
                "them all, in order; with `drain` when they have left it."
            ),
            params_schema=schemas.args(
                {
                    "port": port,
                    **data,
                    "drain": {**schemas.flag("wait until everything has left the system's buffer"), "default": False},
                },
                required=["port"],
            ),
            result_schema=schemas.result({"written": schemas.integer("bytes sent", 1, MAX_TAKE)}),
            capability="CAP_UART_RW",
            bus=uart.sending_bus,
            uses=_uses,
            run=uart.write,
        ),
        Tool(
            name="uart.exchange",
            logged=("port", "len", "gap_ms", "timeout_ms"),
            risk_level=2,
            timeout_ms=MAX_EXCHANGE_MS + int(write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000) + _GRACE_MS,
            description=(
                "Send a command (one of `data`, `text` and `hex`) over a serial port and read the reply, with no other "
                f"transfer in between. Earlier input is skipped first, so the reply belongs to the command. {ends} "
                "Running into the timeout is no failure: timed_out says so. The port is taken for the whole time."
            ),
            params_schema=schemas.args(
                {
                    "port": port,
                    **data,
                    "len": length,
                    "until": until,
                    "gap_ms": gap,
                    "timeout_ms": schemas.integer(
                        "the longest wait for the reply in milliseconds", 1, MAX_EXCHANGE_MS, default=_DEFAULT_MS
                    ),
                },
                required=["port"],
            ),
            result_schema=result,
            capability="CAP_UART_RW",
            bus=uart.sending_bus,
            uses=_uses,
            run=uart.exchange,
        ),
        Tool(
            name="uart.control",
            logged=("port", "rts", "dtr", "break_ms"),
            risk_level=2,
            timeout_ms=int(write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000) + MAX_BREAK_MS + _GRACE_MS,
            supports_rollback=True,
            description=(
                "Drive a serial port's RTS and DTR, send a break (after what was written before has left), and return "
                "the levels of all its lines. true is asserted. Without any of them it only returns the levels. RTS "
                "and DTR go back to the port's settings when the session ends."
            ),
            params_schema=schemas.args(
                {
                    "port": port,
                    "rts": schemas.flag("request to send"),
                    "dtr": schemas.flag("data terminal ready"),
                    "break_ms": schemas.integer("hold the line in the break state for so long", 1, MAX_BREAK_MS),
                },
                required=["port"],
            ),
            result_schema=schemas.result({"port": port, **dict.fromkeys(asdict(ModemLines()), level)}),
            capability="CAP_UART_RW",
            bus=uart.bus,
            uses=_uses,
            run=uart.control,
        ),
    ]
