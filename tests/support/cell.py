"""A robot cell in the guest: the kernel's own devices, a board profile that names them, and daemons that serve them.

It owns the world outside of a hearthd: a gpio-sim chip, an MCP2221 adapter with four more lines and a memory on its
wires, a null modem's far end. What a daemon does with them, and when, is the tests' business.

Lines of both chips have the same four kinds of safe state, and every level tells what a line is going through: whether
a session drives it (`DRIVEN`), whether it was brought to its safe state (`SAFE`), or whether nobody holds it any more
(on gpio-sim: its pull, `RELEASED`; on the MCP2221 it stays as it was).
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import gpiod
from support.gpio_sim import GpioSim
from support.hearthd import Hearthd
from support.mcp2221 import ADAPTER, Mcp2221, Mcp2221Process
from support.mcp2221_chip import SET_GPIO, Chip, Memory

if TYPE_CHECKING:
    from pathlib import Path

    from support.hearthd import Peer

SIM, MCP = "cell", "mcp2221_gpio"
"""The labels of the two chips."""
CHIPS = (SIM, MCP)
KINDS = ("relay", "brake", "valve", "latch")
"""safe 0; safe 1; safe as an input; safe 0 with hold = "keep"."""

Level: TypeAlias = Literal[0, 1, "input"]

DRIVEN: dict[str, Level] = {"relay": 1, "brake": 0, "valve": 0, "latch": 1}
RELEASED: dict[str, Level] = {"relay": 1, "brake": 0, "valve": 1, "latch": 0}
SAFE: dict[str, dict[str, Level]] = {
    SIM: {"relay": 0, "brake": 1, "valve": 1, "latch": 1},
    MCP: {"relay": 0, "brake": 1, "valve": "input", "latch": 1},
}
PATIENCE_S = 20
"""Seconds after which what stands goes on by itself: its test has failed."""
MEMORY, THERMOMETER = 0x50, 0x48

_KINDS = """
[gpio.lines.relay]
safe = 0
[gpio.lines.brake]
safe = 1
[gpio.lines.valve]
safe = "input"
[gpio.lines.latch]
safe = 0
hold = "keep"
"""
_HEAD = """
name = "cell"
description = "a robot cell"
[discover]
sensors = true
"""
_SIM = f"""
[[gpio]]
label = "{SIM}"
driver = "gpiod"
names = {[*KINDS, "button", "lamp"]}
{_KINDS}
[gpio.lines.button]
direction = "input"
"""
_MCP = f"""
[[gpio]]
label = "{MCP}"
driver = "gpiod"
names = {list(KINDS)}
{_KINDS}
[[i2c]]
bus = 1
driver = "i2c-dev"
adapter = "{ADAPTER}"
[sensors.motor]
kind = "tmp102"
bus = 1
addr = {THERMOMETER}
"""
_UART = """
[[uart]]
port = "modem"
driver = "serial"
path = "/dev/ttyS1"
baud = 38_400
[[uart]]
port = "instrument"
driver = "serial"
path = "/dev/ttyS3"
baud = 38_400
"""


class Cell:
    """The devices and the daemons of one test. `adapter`, `uarts`: whether there is an MCP2221, and serial ports.

    With `apart` the adapter is played by a process of its own: a busy test must not keep it from answering in time.
    """

    def __init__(self, directory: Path, *, adapter: bool = False, apart: bool = False, uarts: bool = False) -> None:
        self.directory = directory
        self.profile = directory / "cell.toml"
        self.memory, self.thermometer = Memory(), Memory()
        self._daemons: list[Hearthd] = []
        parts = [_HEAD, _SIM, *[_MCP] * (adapter or apart), *[_UART] * uarts]
        self.profile.write_text("".join(parts))
        with contextlib.ExitStack() as stack:
            self.sim = GpioSim(SIM, [*KINDS, "button", "lamp"])
            stack.callback(self.sim.close)
            for line, level in RELEASED.items():
                self.sim.pull(line, level)
            self._adapter = stack.enter_context(self._plugged()) if adapter else None
            self._apart = stack.enter_context(Mcp2221Process([MEMORY, THERMOMETER])) if apart else None
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the daemons first: the kernel lets an adapter go only when nobody has it open."""
        with self._stack:
            if self._adapter is not None:
                self._adapter.chip.clear()
            if self._apart is not None:
                self._apart.clear()
            for daemon in self._daemons:
                daemon.end()

    def _plugged(self) -> Mcp2221:
        return Mcp2221({MEMORY: self.memory, THERMOMETER: self.thermometer})

    @property
    def adapter(self) -> Mcp2221:
        """The MCP2221 as something that is plugged in and unplugged."""
        assert self._adapter is not None
        return self._adapter

    @property
    def wire(self) -> Chip:
        """The MCP2221: what crossed its wires, and what goes wrong there."""
        assert self._adapter is not None
        return self._adapter.chip

    @property
    def apart(self) -> Mcp2221Process:
        """The same, where it is a process."""
        assert self._apart is not None
        return self._apart

    def daemon(self, config: str = "", *, audit: str = "", env: dict[str, str] | None = None) -> Hearthd:
        """A daemon on this cell's profile, not yet started; ended with the cell, whatever state it is in."""
        board = f'[board]\nprofile = "{self.profile}"\n'
        self._daemons.append(Hearthd(self.directory, board + config, env, audit=audit))
        return self._daemons[-1]

    def level(self, line: str, chip: str = SIM) -> Level:
        """What a voltmeter shows; "input" where the MCP2221 only listens."""
        if chip == SIM:
            return self.sim.value(line)
        level, is_input = self.wire.gpio[KINDS.index(line)]
        return "input" if is_input else 1 if level else 0

    def levels(self, chip: str = SIM) -> dict[str, Level]:
        """The lines that have a kind, as `DRIVEN`, `SAFE` and `RELEASED` have them."""
        return {line: self.level(line, chip) for line in KINDS}

    def user_of(self, line: str) -> gpiod.LineInfo:
        """What the kernel says of a line of the gpio-sim chip: who uses it, and as what."""
        with gpiod.Chip(self.sim.path) as chip:
            return chip.get_line_info(self.sim.offset(line))


class SlowLines:
    """Lets an MCP2221 stand, when it is told to, before it does what drives one of its lines; I2C is not concerned.

    (The kernel's driver of that adapter must not be asked for both at once: it prepares what it sends for a line in the
    buffer that a transfer on the wires is using, and what is sent is then neither.)
    """

    def __init__(self, chip: Chip) -> None:
        self.reached, self._go = threading.Event(), threading.Event()
        self._go.set()
        self._command = chip.command
        chip.command = self._stand  # type: ignore[method-assign]

    def _stand(self, report: bytes) -> bytes:
        if report[0] == SET_GPIO and not self._go.is_set():
            self.reached.set()
            self._go.wait(PATIENCE_S)
        return self._command(report)

    def hold(self) -> None:
        """The next one stands."""
        self.reached.clear()
        self._go.clear()

    def let_go(self) -> None:
        """It goes on."""
        self._go.set()


def drive(peer: Peer, session: str, chip: str) -> None:
    """Drive every line that has a kind to the level that `DRIVEN` gives it."""
    for line, level in DRIVEN.items():
        step = peer.run(session, "gpio.set", chip=chip, line=line, value=level)
        # One that took longer than its limit, since the machine had no time for it, has failed and is done.
        assert step["status"] == "SUCCESS" or step["error_data"]["effect"] == "done", step


def closes(daemon: Hearthd, session: str) -> list[dict[str, Any]]:
    """The records of a session's end: none while it lives."""
    return daemon.records(event="session.close", session_id=session)
