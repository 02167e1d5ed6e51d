"""A vendor's tools that let a test make trouble from outside the process: com.example.*."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from hearth.drivers.registers import Read
from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.boards import Board
    from hearth.tools import Args, StepContext

_ARGS: dict[str, Any] = {"type": "object"}


def tools(board: Board) -> Iterable[Tool]:
    """The entry point `com.example`."""

    async def bug(_ctx: StepContext, _args: Args) -> Mapping[str, Any]:
        """Has a bug."""
        await trio.lowlevel.checkpoint()
        return {"never": 1 // 0}

    async def chatter(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """Publishes `count` progress events."""
        for number in range(args["count"]):
            ctx.progress({"number": number})
            await trio.lowlevel.checkpoint()
        return {"count": args["count"]}

    async def slow(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """Reads `len` bytes on the I2C bus, which takes longer than its timeout allows."""
        await ctx.transact(lambda driver: driver.transfer(0x48, [Read(args["len"])]))
        return {}

    def tool(name: str, run: Any, bus: str, *, risk: Any = 0, timeout_ms: int = 1000) -> Tool:
        return Tool(
            name=name,
            version=3,
            risk_level=risk,
            timeout_ms=timeout_ms,
            description=run.__doc__,
            params_schema=_ARGS,
            result_schema=_ARGS,
            capability="CAP_SYS_READ",
            bus=lambda _args: bus,
            run=run,
        )

    yield tool("com.example.bug", bug, "board")
    yield tool("com.example.chatter", chatter, "board")
    if board.has("i2c"):
        yield tool("com.example.slow", slow, "i2c:1", risk=1, timeout_ms=50)
        yield tool("com.example.slow.v2", slow, "i2c:1", risk=1, timeout_ms=5000)


def install(site: Path) -> None:
    """Make a directory that, on PYTHONPATH, has this module installed as a distribution with its entry point."""
    (site / "hearth_conformance_vendor.py").write_text(Path(__file__).read_text("utf-8"))
    info = site / "hearth_conformance_vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hearth-conformance-vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hearth.tools]\ncom.example = hearth_conformance_vendor:tools\n")
