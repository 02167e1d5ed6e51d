"""What is measured here stands on this: a simulated GPIO chip, an embedded hearth on it, and the same chip bare.

One line is hearth's and one the bare program's, so that both hold their requests while they take turns.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import gpiod
from attrs import frozen
from gpiod.line import Direction, Edge
from support.gpio_sim import GpioSim

import hearth
from hearth.config.model import Config, PolicyConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hearth.actors.embedded import EmbeddedRuntime
    from hearth.api import Session

CONFIG = Config(policy=(PolicyConfig("bench", {"any": True}, rate={"*": "999999/s"}),))
"""All that guards a runtime is on; only the rate is out of the way."""
LABEL = "bench"
LINES = ("ours", "bare", "heard", "bare-heard")


@frozen
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float
    edges: int
    """Edges per round."""
    settle: float
    """Seconds to let a daemon come to rest."""
    idle: float
    """Seconds to count its wake-ups for."""


@frozen
class Bench:
    """The chip, a session of a runtime on it, and requests of the same chip's lines without hearth."""

    chip: GpioSim
    runtime: EmbeddedRuntime
    session: Session
    output: gpiod.LineRequest
    """The line "bare", an output."""
    input: gpiod.LineRequest
    """The line "bare-heard", with both edges."""


def profile(*, blocking: bool) -> str:
    """The board: the chip, driven in place or in a thread."""
    return f"""
name = "bench"
description = "a simulated chip"
[[gpio]]
label = "{LABEL}"
driver = "gpiod"
blocking = {str(blocking).lower()}
names = {[*LINES]}
""".replace("'", '"')


@asynccontextmanager
async def open_bench(folder: Path, *, blocking: bool) -> AsyncIterator[Bench]:
    """Everything, ready to be measured; the audit log and all else that guards a runtime is on."""
    board = folder / f"bench-{blocking}.toml"
    board.write_text(profile(blocking=blocking))
    chip = GpioSim(LABEL, LINES)
    try:
        settings = {
            "bare": gpiod.LineSettings(direction=Direction.OUTPUT),
            "bare-heard": gpiod.LineSettings(direction=Direction.INPUT, edge_detection=Edge.BOTH),
        }
        output, heard = (
            gpiod.request_lines(chip.path, consumer="bare", config={name: wanted}) for name, wanted in settings.items()
        )
        with output, heard:
            async with (
                hearth.open_runtime(board=str(board), config=CONFIG) as runtime,
                runtime.open_session(client_name="bench") as session,
            ):
                yield Bench(chip, runtime, session, output, heard)
    finally:
        chip.close()
