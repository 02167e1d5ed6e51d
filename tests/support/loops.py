"""What tests of control loops share: a clock that a test moves, a chip that knows its callers, a runtime around it."""

from __future__ import annotations

import json
import threading
from contextlib import asynccontextmanager

import trio
from attrs import evolve

from hearth.actors.build import build_parts
from hearth.actors.embedded import EMBEDDED_POLICY, open_all, serve_parts
from hearth.actors.journal import Journal
from hearth.config.model import AuditConfig, Config
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.gpio.sim import SimGpio

PUMP, DOOR, VALVE, LAMP, LATCH = range(5)
BUS = "gpio:cell"
CHIP = {
    "label": "cell",
    "driver": "sim",
    "names": ["PUMP", "DOOR", "VALVE", "LAMP", "LATCH", "STOP"],
    "lines": {
        "PUMP": {"safe": 0},
        "DOOR": {"direction": "input", "pull": "down"},
        "VALVE": {"safe": 1},
        "LAMP": {"safe": 0},
        "LATCH": {"safe": 0, "hold": "keep"},
        "STOP": {"direction": "input", "pull": "down"},
    },
}
BOARD = {"name": "cell", "description": "a pump behind a door", "gpio": [CHIP]}
PATIENCE_S = 30
"""Seconds after which a gate that a failed test left closed opens by itself."""


class VirtualClock:
    """A clock on which waiting takes no time; the loop's function says how long it takes (`spend`)."""

    def __init__(self):
        self.time = 1_000_000_000

    def now(self):
        return self.time

    def wait(self, until, ended):
        self.time = max(self.time, until)

    def spend(self, seconds):
        self.time += round(seconds * 1e9)


class WatchedGpio(SimGpio):
    """A simulated chip that notes who calls it, and whether two calls overlap; `hold` lets a `set` hang."""

    def __init__(self, label, lines, *, style):
        super().__init__(label, lines, style=style)
        self.callers = set()
        self.sets = []
        self.overlaps = 0
        self._inside = 0
        self.held = threading.Event()
        self.held.set()
        self.hanging = threading.Event()

    def _called(self, call, *args):
        self.callers.add(threading.current_thread().name)
        self._inside += 1
        self.overlaps += self._inside > 1
        try:
            return call(*args)
        finally:
            self._inside -= 1

    def get(self, line):
        return self._called(super().get, line)

    def set(self, line, state):
        return self._called(self._set, line, state)

    def _set(self, line, state):
        if not self.held.is_set():
            self.hanging.set()
            self.held.wait(PATIENCE_S)
        self.sets.append((line, state))
        return super().set(line, state)


class Cell:
    """A runtime over one watched chip."""

    def __init__(self, runtime, gpio, path):
        self.runtime = runtime
        self.gpio = gpio
        self.loop = runtime.loop
        self.path = path

    def records(self, event=None):
        every = [json.loads(line) for line in self.path.read_bytes().splitlines()]
        return [record for record in every if event in (None, record["event"])]


@asynccontextmanager
async def cell(tmp_path, *, style=Style.INLINE, board=BOARD, policy=EMBEDDED_POLICY, disk=None, **more):
    """A running cell. Its chip opens whatever a failed test has left closed."""
    config = Config(audit=AuditConfig(path=tmp_path / "audit.log", key=tmp_path / "key", reserve_bytes=0), **more)
    made = open_board(parse_profile(board, "test"), style=style)
    gpio = made.drivers[BUS] = WatchedGpio("cell", made.chips["cell"].lines, style=style)
    parts = build_parts(config, default_policy=policy, board=made)
    if disk is not None:
        journal = Journal(parts.journal.settings, disk=disk)
        parts = evolve(parts, journal=journal, audit_head=lambda: journal.head)
    try:
        with trio.fail_after(60):
            async with serve_parts(open_all(parts)) as runtime:
                yield Cell(runtime, gpio, tmp_path / "audit.log")
    finally:
        gpio.held.set()
