"""The tools hw.uart.list, uart.read, uart.write, uart.exchange and uart.control (docs/reference/boards.md).

A reader waits beside the bus, so that it can be cancelled and other steps can write at the same time. A session's
cursor in the stream moves only in a transaction, so a cancelled reader misses nothing. An exchange is one transaction,
wait included, and so is a break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import asdict

from hearth.drivers import schemas
from hearth.drivers.declare import DEFAULT_MS, GRACE_MS, LIMIT_MS, Listing, Planned, changing, receive, tool
from hearth.drivers.schemas import read_bytes, shown_bytes
from hearth.drivers.serial_port.settings import MAX_TAKE, MODEM_LINES, ModemLines, write_timeout_s
from hearth.tools import Args, Done, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.serial_port.fd import FdUart
    from hearth.drivers.serial_port.settings import Taken
    from hearth.drivers.uart.spec import UartSpec

MAX_READ_MS = 600_000
MAX_EXCHANGE_MS = 60_000
MAX_GAP_MS = 60_000
MAX_BREAK_MS = 5_000
_SLOWEST_BAUD = 50


def _ends(args: Args) -> dict[str, Any]:
    """Return the end of a read as the driver takes it: a number of bytes, a text, or a quiet line."""
    return {
        "length": int(args["len"]) if "len" in args else None,
        "until": args["until"].encode() if "until" in args else None,
        "gap_s": args["gap_ms"] / 1000 if "gap_ms" in args else None,
    }


def _answer(taken: Taken) -> dict[str, Any]:
    answer: dict[str, Any] = {**shown_bytes(taken.data), "timed_out": not taken.complete}
    for name in ("overflow", "overrun", "discarded"):
        if count := getattr(taken, name):
            answer[name] = count
    return answer


class _Uart:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._bauds = {spec.port: spec.settings.baud for spec in board.of("uart")}

    def _bus(self, args: Args) -> str:
        return self._board.bus("uart", "port", args["port"])

    def _write_s(self, args: Args, data: bytes) -> float:
        return write_timeout_s(len(data), self._bauds.get(args["port"], _SLOWEST_BAUD))

    def _backlog_s(self, args: Args) -> float:
        """Return the seconds that earlier output may still take to leave: a driver's buffer is a page."""
        return write_timeout_s(MAX_TAKE, self._bauds.get(args["port"], _SLOWEST_BAUD))

    def read(self, args: Args) -> Planned:
        """uart.read."""
        bus, ends = self._bus(args), _ends(args)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            async def take(partial: bool) -> Taken:
                taken: Taken = await ctx.transact(
                    lambda driver: driver.take(**ends, partial=partial, reader=ctx.session_id), limit_ms=LIMIT_MS
                )
                return taken

            async def arrival(taken: Taken) -> None:
                assert taken.inbox is not None, "an incomplete read says where to wait"
                await taken.inbox.wait(**ends, reader=ctx.session_id)

            return _answer(await receive(args.get("timeout_ms", DEFAULT_MS) / 1000, take, arrival))

        return Planned(bus, lambda: _uses(args), run)

    def write(self, args: Args) -> Planned:
        """uart.write."""
        bus, data = self._bus(args), read_bytes(args, most=MAX_TAKE)
        drain = bool(args.get("drain", False))
        timeout_s = self._write_s(args, data) + (self._backlog_s(args) if drain else 0)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            written = await ctx.transact(
                lambda driver: driver.write(data, timeout_s=timeout_s, drain=drain, reader=ctx.session_id),
                limit_ms=timeout_s * 1000 + LIMIT_MS,
            )
            return {"written": written}

        return Planned(bus, lambda: _uses(args), run)

    def exchange(self, args: Args) -> Planned:
        """uart.exchange."""
        bus, data, ends = self._bus(args), read_bytes(args, most=MAX_TAKE), _ends(args)
        timeout_s = args.get("timeout_ms", DEFAULT_MS) / 1000
        limit_ms = (timeout_s + self._write_s(args, data)) * 1000 + LIMIT_MS

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            def op(driver: FdUart) -> Any:
                return driver.exchange(data, **ends, timeout_s=timeout_s, reader=ctx.session_id)

            return _answer(await ctx.transact(op, limit_ms=limit_ms))

        return Planned(bus, lambda: _uses(args), run)

    def control(self, args: Args) -> Planned:
        """uart.control."""
        bus, wanted = self._bus(args), {"rts": args.get("rts"), "dtr": args.get("dtr")}
        break_s = args["break_ms"] / 1000 if "break_ms" in args else None
        drives = wanted != {"rts": None, "dtr": None}

        async def op(driver: FdUart) -> tuple[ModemLines, ModemLines]:
            before = await driver.control() if drives else ModemLines()
            return before, await driver.control(**wanted, break_s=break_s)

        async def run(ctx: StepContext) -> Done:
            before, lines = await ctx.transact(
                op,
                limit_ms=((break_s or 0.0) + self._backlog_s(args)) * 1000 + LIMIT_MS,
                drives=MODEM_LINES if drives else None,
            )
            result = {"port": args["port"], **asdict(lines)}
            if not drives:
                return Done(result)
            former = {name: None if level is None else getattr(before, name) for name, level in wanted.items()}
            back = ", ".join(
                f"{name} {'on' if level else 'off'}" for name, level in former.items() if level is not None
            )
            text = f"uart.control port {args['port']} back to {back}"
            return Done(result, Undo(lambda driver: driver.control(**former), text, drives=MODEM_LINES))

        return Planned(bus, lambda: _uses(args), run)


def _uses(args: Args) -> Sequence[Use]:
    return (Use("uart", (args["port"],)),)


def _row(spec: UartSpec, described: Mapping[str, Any], _path: dict[str, Any]) -> dict[str, Any]:
    """Return a port for hw.uart.list; default values are left out, but for the numbers that every client needs."""
    shown = {name: getattr(spec.settings, name) for name in ("baud", "bits", "parity", "stop_bits", "flow")}
    rs485 = {} if spec.settings.rs485 is None else {"rs485": asdict(spec.settings.rs485)}
    return {"bus": f"uart:{spec.port}", "driven": True, **described, **shown, **rs485}


listed: Final = Listing("uart", "ports", _row, use=lambda _, port: _uses(port)[0])


def uart_tools(board: Board) -> list[Tool]:
    """Return the uart tools for a board, in the default order."""
    uart = _Uart(board)
    ports = [spec.port for spec in board.of("uart")]
    port = schemas.text(f"the serial port's name, one of: {', '.join(ports) or 'none'}", most=128)
    data = schemas.bytes_args("data", "what to send", most=MAX_TAKE)
    ends = {
        "len?": schemas.integer("end after this many bytes", 1, MAX_TAKE),
        "until?": schemas.text('end after this text, which is part of the data: "\\n" for a line', most=16),
        "gap_ms?": schemas.integer("end when nothing has come for this many milliseconds after a byte", 1, MAX_GAP_MS),
    }
    received = {
        **schemas.bytes_result("what was received", most=MAX_TAKE),
        "timed_out": schemas.flag("true if the time was over first: `data` is what had come until then"),
        "overflow?": {"type": "integer", "description": "bytes lost before these: this session read too late"},
        "overrun?": {"type": "integer", "description": "characters that the device or the kernel lost before these"},
        "discarded?": {"type": "integer", "description": "bytes of earlier input that an exchange skipped"},
    }
    level = {"anyOf": [{"type": "boolean"}, {"type": "null"}], "description": "null where the port does not know it"}
    when = (
        "It ends after `len` bytes, after the text `until`, or when the line was quiet for `gap_ms`, whichever is "
        f"first (with `until` or `gap_ms` alone: after {MAX_TAKE} bytes at the latest; with none of them: as soon as "
        "anything has come), or after `timeout_ms`."
    )
    longest_write_ms = int(write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000)
    changes = changing("CAP_UART_RW")
    return [
        listed.tool(
            "List the serial ports: name, settings, device path. Touches no hardware.",
            "the ports",
            "port, path, baud, bits, parity, …",
        ),
        tool(
            "uart.read",
            "Read from a serial port what has come since this session's last read, and wait for more if need be. Each "
            "session reads at its own place: none takes what another one waits for. The first use of a port in a "
            f"session begins at what no session has read. {when} Running into the timeout is no failure: timed_out "
            "says so. Others can write to the port at the same time.",
            {
                "port": port,
                **ends,
                "timeout_ms?": schemas.integer("the longest wait in milliseconds", 0, MAX_READ_MS, default=DEFAULT_MS),
            },
            received,
            uart.read,
            capability="CAP_UART_READ",
            risk_level=1,
            timeout_ms=MAX_READ_MS + GRACE_MS,
            logged=("port", "len", "gap_ms", "timeout_ms"),
        ),
        changes(
            "uart.write",
            "Send bytes (one of `data`, `text` and `hex`) over a serial port. It ends when the system has taken "
            "them all, in order; with `drain` when they have left it.",
            {
                "port": port,
                **data,
                "drain?": schemas.flag("wait until everything has left the system's buffer", default=False),
            },
            {"written": schemas.integer("bytes sent", 1, MAX_TAKE)},
            uart.write,
            timeout_ms=int(2 * write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000) + GRACE_MS,
            logged=("port", "drain"),
        ),
        changes(
            "uart.exchange",
            "Send a command (one of `data`, `text` and `hex`) over a serial port and read the reply, with no other "
            f"transfer in between. Earlier input is skipped first, so the reply belongs to the command. {when} "
            "Running into the timeout is no failure: timed_out says so. The port is taken for the whole time.",
            {
                "port": port,
                **data,
                **ends,
                "timeout_ms?": schemas.integer(
                    "the longest wait for the reply in milliseconds", 1, MAX_EXCHANGE_MS, default=DEFAULT_MS
                ),
            },
            received,
            uart.exchange,
            timeout_ms=MAX_EXCHANGE_MS + longest_write_ms + GRACE_MS,
            logged=("port", "len", "gap_ms", "timeout_ms"),
        ),
        changes(
            "uart.control",
            "Drive a serial port's RTS and DTR, send a break (after what was written before has left), and return "
            "the levels of all its lines. true is asserted. Without any of them it only returns the levels. RTS "
            "and DTR go back to the port's settings when the session ends.",
            {
                "port": port,
                "rts?": schemas.flag("request to send"),
                "dtr?": schemas.flag("data terminal ready"),
                "break_ms?": schemas.integer("hold the line in the break state for so long", 1, MAX_BREAK_MS),
            },
            {"port": port, **dict.fromkeys(asdict(ModemLines()), level)},
            uart.control,
            timeout_ms=longest_write_ms + MAX_BREAK_MS + GRACE_MS,
            logged=("port", "rts", "dtr", "break_ms"),
            supports_rollback=True,
        ),
    ]
