"""The rows of `benchmarks.can` on a virtual bus of the guest's kernel: real CAN sockets, on both sides.

A system call takes many times as long in the guest as on the machine itself, in hearthd as in the bare program. So the
share of a core has no goal here, only its ratio to the bare program's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import trio
from attrs import frozen
from support.can_bus import virtual

from benchmarks.can import RATE, CanWire, board, rows
from benchmarks.servers import hearthd_command, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.hil.bench import Effort
    from benchmarks.report import Row

INTERFACE = "vcan7"

CONFIG = """
[server]
socket = "{folder}/can.sock"
[board]
profile = "{folder}/can.toml"
[audit]
path = "{folder}/can/audit.log"
"""


@frozen
class GuestCanLoad:
    """hearthd's processor time for the frames that a client gets with one tool, over the bare program's."""

    name: str
    what: str
    tool: str

    def __call__(self, folder: Path, effort: Effort) -> Iterator[Row]:
        """Measure."""
        (folder / "can.toml").write_text(board(INTERFACE))
        (folder / "can.conf").write_text(CONFIG.format(folder=folder))
        (folder / "can").mkdir(exist_ok=True)
        count = int(max(effort.idle, 2.0) * RATE)
        bare = [sys.executable, "-m", "benchmarks.can_program", "bare", INTERFACE]
        with (
            virtual(INTERFACE),
            started([*hearthd_command(), "--config", str(folder / "can.conf")], str(folder / "can.sock")) as daemon,
            started(bare, "") as floor,
        ):
            wire = CanWire(daemon, floor, [INTERFACE])
            turns = [trio.run(wire.turn, self.tool, count) for _ in range(min(effort.rounds, 3))]
        yield from rows(self.name, self.what, turns, goal=None, others=None)


LOADS = [
    GuestCanLoad("can-read", "CAN at 1,000 frames/s, can.read of all", "can.read"),
    GuestCanLoad("can-watch", "CAN at 1,000 frames/s, can.watch of all", "can.watch"),
]
