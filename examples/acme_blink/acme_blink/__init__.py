"""A vendor's tool for hearth: com.acme.blink.

An entry point is a callable that takes the board and returns tools. A tool touches hardware only through
`ctx.transact`, so policy, arbitration, audit and cancellation apply to it as to the shipped ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.drivers.boards import Board
    from hearth.tools import Args, StepContext


def tools(board: Board) -> Iterable[Tool]:
    """The tools of this package for a board."""

    async def blink(ctx: StepContext, args: Args) -> dict[str, Any]:
        line = board.line(None, args["line"], drive=True)
        former = await ctx.transact(lambda gpio: gpio.set(line, 0), drives=line)
        try:
            for number in range(args["times"]):
                for level in (1, 0):
                    # Each switching is one transaction; the pauses are outside the bus, so others can use it.
                    await ctx.transact(lambda gpio, level=level: gpio.set(line, level), drives=line)
                    await trio.sleep(args.get("period_ms", 100) / 2000)
                ctx.progress({"blinked": number + 1})
        finally:
            # However this ends, the line is given back as it was found.
            with trio.CancelScope(shield=True):
                await ctx.transact(lambda gpio: gpio.set(line, former), drives=line, must_run=True)
        return {"line": args["line"], "blinked": args["times"]}

    yield Tool(
        name="com.acme.blink",
        risk_level=2,
        timeout_ms=1_000,
        description="Blink a GPIO line `times` times, one blink in `period_ms` milliseconds, then leave it as it was.",
        params_schema={
            "type": "object",
            "properties": {
                "line": {"type": ["integer", "string"], "description": "offset or name of the line"},
                "times": {"type": "integer", "minimum": 1, "maximum": 100},
                "period_ms": {"type": "integer", "minimum": 10, "maximum": 10_000, "default": 100},
            },
            "required": ["line", "times"],
        },
        result_schema={
            "type": "object",
            "properties": {"line": {"type": ["integer", "string"]}, "blinked": {"type": "integer"}},
            "required": ["line", "blinked"],
        },
        capability="CAP_GPIO_RW",
        bus=lambda _args: board.gpio_bus(None),
        run=blink,
    )
