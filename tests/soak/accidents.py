"""A vendor's tools that make accidents in a daemon under soak: faults on the simulated buses, and leaks on purpose.

It is loaded by the daemon as any vendor's package is, and knows nothing of the soak. `look` says how many blocks
Python's allocator has given out, which tells of a leak long before the kernel's figures do.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.drivers.base import Style
from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.boards import Board
    from hearth.tools import Args, StepContext

LOOK, FAULT, HOARD = NAMES = ("org.example.soak.look", "org.example.soak.fault", "org.example.soak.hoard")
MOST_TYPES = 300
_INTEGER = {"type": "integer", "minimum": 0}


def tools(board: Board) -> Iterable[Tool]:
    """The entry point `org.example.soak`."""
    hoard: list[Any] = []

    async def look(_ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """Count the allocator's blocks; with `collect` what is left after a collection, and of which types it is."""
        if not args.get("collect"):
            return {"blocks": sys.getallocatedblocks()}
        gc.collect()
        types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
        return {"blocks": sys.getallocatedblocks(), "types": dict(types.most_common(MOST_TYPES))}

    async def fault(_ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """Let the I2C bus go wrong: NACKs, timeouts, latency, a wedge, or the end of all of it."""
        faults = board.drivers["i2c:1"].faults
        kind = args["kind"]
        if kind == "clear":
            faults.clear()
        elif kind == "latency":
            faults.latency_s = 0.002
        elif kind != "wedge":
            getattr(faults, kind)(args.get("times", 1))
        elif board.drivers["i2c:1"].style is not Style.INLINE:
            faults.wedge()
        return {}

    async def hold(_ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """Keep what nobody will ever ask for again."""
        hoard.append([os.urandom(64) for _ in range(args.get("bytes", 0) // 96)])
        hoard.extend(os.dup(0) for _ in range(args.get("descriptors", 0)))
        for _ in range(args.get("threads", 0)):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        return {}

    for name, run, args in (
        (LOOK, look, {"collect": {"type": "boolean"}}),
        (FAULT, fault, {"kind": {"enum": ["nack", "timeout", "wedge", "latency", "clear"]}, "times": _INTEGER}),
        (HOARD, hold, {"bytes": _INTEGER, "descriptors": _INTEGER, "threads": _INTEGER}),
    ):
        yield Tool(
            name=name,
            risk_level=0,
            timeout_ms=5000,
            description=str(run.__doc__),
            params_schema={"type": "object", "properties": args, "additionalProperties": False},
            result_schema={"type": "object"},
            capability="CAP_SYS_READ",
            bus=lambda _args: "system",
            run=run,
        )


def install(site: Path) -> None:
    """Make a directory that, on PYTHONPATH, has this module installed as a distribution with its entry point."""
    (site / "hearth_soak_accidents.py").write_text(Path(__file__).read_text("utf-8"), "utf-8")
    info = site / "hearth_soak_accidents-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hearth-soak-accidents\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hearth.tools]\norg.example.soak = hearth_soak_accidents:tools\n")
