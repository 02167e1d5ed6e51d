"""A vendor's tool with a bug in the part that runs in the session itself: the way to crash one from outside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.boards import Board
    from hearth.tools import Args, StepContext


def tools(_board: Board) -> Iterable[Tool]:
    """The entry point `com.example`."""

    async def nowhere(_ctx: StepContext, _args: Args) -> Mapping[str, Any]:
        """Runs on a bus that it cannot name."""
        raise AssertionError

    def bus(_args: Args) -> str:
        raise LookupError("a bug")

    yield Tool(
        name="com.example.nowhere",
        risk_level=0,
        timeout_ms=1000,
        description=str(nowhere.__doc__),
        params_schema={"type": "object"},
        result_schema={"type": "object"},
        capability="CAP_SYS_READ",
        bus=bus,
        run=nowhere,
    )


def install(site: Path) -> None:
    """Make a directory that, on PYTHONPATH, has this module installed as a distribution with its entry point."""
    (site / "hearth_saboteur.py").write_text(Path(__file__).read_text("utf-8"))
    info = site / "hearth_saboteur-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hearth-saboteur\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hearth.tools]\ncom.example = hearth_saboteur:tools\n")


def bug(session_id: str) -> dict[str, Any]:
    """The params of a task.submit that crashes the session."""
    step = {"tool": "com.example.nowhere", "args": {}}
    return {"session_id": session_id, "task": {"intent": "crash", "steps": [step]}}
