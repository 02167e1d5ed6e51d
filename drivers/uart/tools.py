"""The tools hw.uart.list, uart.read, uart.write, uart.exchange and uart.control (docs/reference/boards.md).

A reader waits beside the bus, so that it can be cancelled and other steps can write at the same time. A session's
cursor in the stream moves only in a transaction, so a cancelled reader misses nothing. An exchange is one transaction,
wait included, and so is a break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Le, Len
from attrs import asdict

from hearth.drivers.declare import DEFAULT_MS, GRACE_MS, LIMIT_MS, Listing, Planned, receive
from hearth.drivers.schemas import Bytes, ShownBytes, given, shown_bytes
from hearth.drivers.serial_port.settings import MAX_TAKE, MODEM_LINES, ModemLines, write_timeout_s
from hearth.drivers.typed_tools import changes, offers, tools_of
from hearth.tools import Done, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hearth.drivers.board import Board
    from hearth.drivers.serial_port.fd import FdUart
    from hearth.drivers.serial_port.inbox import Taken
    from hearth.drivers.uart.spec import UartSpec

MAX_READ_MS = 600_000
MAX_EXCHANGE_MS = 60_000
MAX_GAP_MS = 60_000
MAX_BREAK_MS = 5_000
_SLOWEST_BAUD = 50
_LONGEST_WRITE_MS = int(write_timeout_s(MAX_TAKE, _SLOWEST_BAUD) * 1000)
_WHEN = (
    "It ends after `len` bytes, after the text `until`, or when the line was quiet for `gap_ms`, whichever is first "
    f"(with `until` or `gap_ms` alone: after {MAX_TAKE} bytes at the latest; with none of them: as soon as anything "
    "has come), or after `timeout_ms`. Running into the timeout is no failure: timed_out says so."
)
_RECEIVES = ("port", "len", "gap_ms", "timeout_ms")

Port: TypeAlias = Annotated[str, Len(1, 128), "the serial port's name, one of: {ports}"]
Data: TypeAlias = Annotated[bytes, Bytes("what to send", most=MAX_TAKE)]
Length: TypeAlias = Annotated[int, Ge(1), Le(MAX_TAKE), "end after this many bytes"]
Until: TypeAlias = Annotated[str, Len(1, 16), 'end after this text, which is part of the data: "\\n" for a line']
GapMs: TypeAlias = Annotated[
    int, Ge(1), Le(MAX_GAP_MS), "end when nothing has come for this many milliseconds after a byte"
]
Level: TypeAlias = Annotated[bool | None, "null where the port does not know it"]


class _BytesReceived(TypedDict):
    data: Annotated[bytes, ShownBytes("what was received", most=MAX_TAKE)]
    timed_out: Annotated[bool, "true if the time was over first: `data` is what had come until then"]
    overflow: NotRequired[Annotated[int, "bytes lost before these: this session read too late"]]
    overrun: NotRequired[Annotated[int, "characters that the device or the kernel lost before these"]]
    discarded: NotRequired[Annotated[int, "bytes of earlier input that an exchange skipped"]]


class _BytesSent(TypedDict):
    written: Annotated[int, Ge(1), Le(MAX_TAKE), "bytes sent"]


class _LineStates(TypedDict):
    port: Port
    rts: Level
    dtr: Level
    cts: Level
    dsr: Level
    ri: Level
    cd: Level


def _ends(length: int | None, until: str | None, gap_ms: int | None) -> dict[str, Any]:
    """Return the end of a read as the driver takes it: a number of bytes, a text, or a quiet line."""
    return {
        "length": length,
        "until": None if until is None else until.encode(),
        "gap_s": None if gap_ms is None else gap_ms / 1000,
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

    def _write_s(self, port: str, size: int = MAX_TAKE) -> float:
        """Return the seconds that `size` bytes may take to leave; by default a driver's buffer of earlier output."""
        return write_timeout_s(size, self._bauds.get(port, _SLOWEST_BAUD))

    def _plan(self, port: str, run: Callable[[StepContext], Awaitable[Mapping[str, Any] | Done]]) -> Planned[Any]:
        return Planned(self._board.bus("uart", "port", port), lambda: (Use("uart", (port,)),), run)

    @offers("uart.read", "CAP_UART_READ", 1, timeout_ms=MAX_READ_MS + GRACE_MS, logged=_RECEIVES)
    def read(
        self,
        port: Port,
        len_: Length | None = None,
        until: Until | None = None,
        gap_ms: GapMs | None = None,
        timeout_ms: Annotated[int, Ge(0), Le(MAX_READ_MS), "the longest wait in milliseconds"] = DEFAULT_MS,
    ) -> Planned[_BytesReceived]:
        """Read from a serial port what has come since this session's last read, and wait for more if need be.

        Each session reads at its own place: none takes what another one waits for. The first use of a port in a
        session begins at what no session has read. {_WHEN} Others can write to the port at the same time.
        """
        ends = _ends(len_, until, gap_ms)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            async def take(partial: bool) -> Taken:
                taken: Taken = await ctx.transact(
                    lambda driver: driver.take(**ends, partial=partial, reader=ctx.session_id), limit_ms=LIMIT_MS
                )
                return taken

            async def arrival(taken: Taken) -> None:
                assert taken.inbox is not None, "an incomplete read says where to wait"
                await taken.inbox.wait(**ends, reader=ctx.session_id)

            return _answer(await receive(timeout_ms / 1000, take, arrival))

        return self._plan(port, run)

    @changes("uart.write", "CAP_UART_RW", timeout_ms=2 * _LONGEST_WRITE_MS + GRACE_MS, logged=("port", "drain"))
    def write(
        self,
        port: Port,
        data: Data,
        drain: Annotated[bool, "wait until everything has left the system's buffer"] = False,
    ) -> Planned[_BytesSent]:
        """Send bytes (one of `data`, `text` and `hex`) over a serial port.

        It ends when the system has taken them all, in order; with `drain` when they have left it.
        """
        timeout_s = self._write_s(port, len(data)) + (self._write_s(port) if drain else 0)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            written = await ctx.transact(
                lambda driver: driver.write(data, timeout_s=timeout_s, drain=drain, reader=ctx.session_id),
                limit_ms=timeout_s * 1000 + LIMIT_MS,
            )
            return {"written": written}

        return self._plan(port, run)

    @changes(
        "uart.exchange", "CAP_UART_RW", timeout_ms=MAX_EXCHANGE_MS + _LONGEST_WRITE_MS + GRACE_MS, logged=_RECEIVES
    )
    def exchange(
        self,
        port: Port,
        data: Data,
        len_: Length | None = None,
        until: Until | None = None,
        gap_ms: GapMs | None = None,
        timeout_ms: Annotated[
            int, Ge(1), Le(MAX_EXCHANGE_MS), "the longest wait for the reply in milliseconds"
        ] = DEFAULT_MS,
    ) -> Planned[_BytesReceived]:
        """Send a command (one of `data`, `text` and `hex`) over a serial port and read the reply.

        No other transfer comes in between. Earlier input is skipped first, so the reply belongs to the command. {_WHEN}
        The port is taken for the whole time.
        """
        ends, timeout_s = _ends(len_, until, gap_ms), timeout_ms / 1000
        limit_ms = (timeout_s + self._write_s(port, len(data))) * 1000 + LIMIT_MS

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            def op(driver: FdUart) -> Any:
                return driver.exchange(data, **ends, timeout_s=timeout_s, reader=ctx.session_id)

            return _answer(await ctx.transact(op, limit_ms=limit_ms))

        return self._plan(port, run)

    @changes(
        "uart.control",
        "CAP_UART_RW",
        timeout_ms=_LONGEST_WRITE_MS + MAX_BREAK_MS + GRACE_MS,
        logged=("port", "rts", "dtr", "break_ms"),
        supports_rollback=True,
    )
    def control(
        self,
        port: Port,
        rts: Annotated[bool, "request to send"] | None = None,
        dtr: Annotated[bool, "data terminal ready"] | None = None,
        break_ms: Annotated[int, Ge(1), Le(MAX_BREAK_MS), "hold the line in the break state for so long"] | None = None,
    ) -> Planned[_LineStates]:
        """Drive a serial port's RTS and DTR, send a break, and return the levels of all its lines.

        true is asserted. Without any of them it only returns the levels. A break begins after earlier output has left.
        RTS and DTR go back to the port's settings when the session ends.
        """
        wanted = given(rts=rts, dtr=dtr)
        break_s = None if break_ms is None else break_ms / 1000

        async def op(driver: FdUart) -> tuple[ModemLines, ModemLines]:
            before = await driver.control() if wanted else ModemLines()
            return before, await driver.control(**wanted, break_s=break_s)

        async def run(ctx: StepContext) -> Done:
            before, lines = await ctx.transact(
                op,
                limit_ms=((break_s or 0.0) + self._write_s(port)) * 1000 + LIMIT_MS,
                drives=MODEM_LINES if wanted else None,
            )
            result = {"port": port, **asdict(lines)}
            if not wanted:
                return Done(result)
            former = given(**{name: getattr(before, name) for name in wanted})
            back = ", ".join(f"{name} {'on' if on else 'off'}" for name, on in former.items())
            text = f"uart.control port {port} back to {back}"
            return Done(result, Undo(lambda driver: driver.control(**former), text, drives=MODEM_LINES))

        return self._plan(port, run)


def _row(spec: UartSpec, described: Mapping[str, Any], _path: dict[str, Any]) -> dict[str, Any]:
    """Return a port for hw.uart.list; default values are left out, but for the numbers that every client needs."""
    shown = {name: getattr(spec.settings, name) for name in ("baud", "bits", "parity", "stop_bits", "flow")}
    rs485 = {} if spec.settings.rs485 is None else {"rs485": asdict(spec.settings.rs485)}
    return {"bus": f"uart:{spec.port}", "driven": True, **described, **shown, **rs485}


listed: Final = Listing("uart", "ports", _row, use=lambda _, row: Use("uart", (row["port"],)))


def uart_tools(board: Board) -> list[Tool]:
    """Return the uart tools for a board, in the default order."""
    return [
        listed.tool(
            "List the serial ports: name, settings, device path. Touches no hardware.",
            "the ports",
            "port, path, baud, bits, parity, …",
        ),
        *tools_of(_Uart(board), {"ports": ", ".join(spec.port for spec in board.of("uart")) or "none"}),
    ]
