"""The demo's daemon: a real hearthd process on a simulated board, in a directory of its own that vanishes with it.

It owns the board and the configuration that the demo runs on, and the life of the process. It asks it nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from attrs import frozen

from hearth.cli.demo_stage import DemoFailed
from hearth.groups import unwrapped
from hearth.interpreter import python_module

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

START_PATIENCE = 30.0
STOP_PATIENCE = 20.0
_LONGEST_SOCKET = 100
"""Bytes: the kernel takes 107, and a TMPDIR may be long."""

CHECKPOINT_EVERY = 25
SAFE_LINE, WIRED_TO = 17, 27
EEPROM, PAGE = 0x50, 8

BOARD = """\
name = "demo"
description = "The sim board, with the clock of its I2C bus slowed down so that a person can see a write under way"

[[gpio]]
label = "sim"
driver = "sim"
names = [
    "GPIO0", "GPIO1", "GPIO2", "GPIO3", "GPIO4", "GPIO5", "GPIO6", "GPIO7",
    "GPIO8", "GPIO9", "GPIO10", "GPIO11", "GPIO12", "GPIO13", "GPIO14", "GPIO15",
    "GPIO16", "GPIO17", "GPIO18", "GPIO19", "GPIO20", "GPIO21", "GPIO22", "GPIO23",
    "GPIO24", "GPIO25", "GPIO26", "GPIO27",
]
wires = [["GPIO17", "GPIO27"]]

[gpio.lines.GPIO17]
safe = 0
note = "an output; wired to GPIO27, where one can see what it does"

[[i2c]]
bus = 1
driver = "sim"
speed_hz = 1_000

[[i2c.device]]
addr = 0x48
kind = "tmp102"

[[i2c.device]]
addr = 0x50
kind = "24c02"

[sensors.temperature]
kind = "tmp102"
bus = 1
addr = 0x48
"""


@frozen
class Place:
    """Where everything of one demo is."""

    folder: Path

    @property
    def socket(self) -> Path:
        """Where the daemon listens."""
        return self.folder / "hearth.sock"

    @property
    def log(self) -> Path:
        """The audit log."""
        return self.folder / "audit.log"

    @property
    def public_key(self) -> Path:
        """The public half of the key that signs the log's checkpoints."""
        return self.folder / "audit.log.key.pub"

    @property
    def shared(self) -> Path:
        """The one directory beneath which files may be read and written."""
        return self.folder / "shared"

    @property
    def secret(self) -> Path:
        """A file outside of it."""
        return self.folder / "secret.txt"

    def config(self) -> str:
        """The daemon's hearth.toml. A JSON string is a TOML string too."""
        quoted = {name: json.dumps(str(path)) for name, path in (("socket", self.socket), ("log", self.log))}
        board, shared = json.dumps(str(self.folder / "board.toml")), json.dumps(str(self.shared))
        return (
            f"[server]\nsocket = {quoted['socket']}\n"
            f"[board]\nprofile = {board}\n"
            f"[audit]\npath = {quoted['log']}\ncheckpoint_every = {CHECKPOINT_EVERY}\n"
            f"[files]\nread = [{shared}]\nwrite = [{shared}]\n"
        )


@contextmanager
def make_place() -> Iterator[Place]:
    """A fresh directory with board, configuration, and files to read and not to read; removed in the end."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _LONGEST_SOCKET - len("/hearth-demo-12345678/hearth.sock"):
        base = "/tmp"  # mkdtemp makes a directory in it that is ours alone
    with tempfile.TemporaryDirectory(prefix="hearth-demo-", dir=base) as folder:
        place = Place(Path(folder).resolve())
        place.shared.mkdir()
        place.secret.write_text("nobody was meant to read this\n", encoding="utf-8")
        (place.shared / "escape").symlink_to("../secret.txt")
        (place.folder / "board.toml").write_text(BOARD, encoding="utf-8")
        (place.folder / "hearth.toml").write_text(place.config(), encoding="utf-8")
        yield place


class DaemonProcess:
    """A hearthd that has said it is ready."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def stop(self) -> int:
        """Send SIGTERM and wait; the exit code. Raises DemoFailed if it does not end."""
        self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_PATIENCE):
            return await self._process.wait()
        raise DemoFailed(f"hearthd (pid {self.pid}) has not ended {STOP_PATIENCE:g} s after SIGTERM")


@asynccontextmanager
async def run_daemon(place: Place) -> AsyncIterator[DaemonProcess]:
    """Start hearthd and wait until it is ready; it does not outlive this context. Raises DemoFailed."""
    ours = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "RUNTIME_DIRECTORY", "STATE_DIRECTORY")
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    command = python_module("hearth.actors.daemon", "--config", str(place.folder / "hearth.toml"))
    process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
    try:
        async with unwrapped() as body, trio.open_nursery() as nursery:
            said = _Said()
            nursery.start_soon(said.listen, process)
            with trio.move_on_after(START_PATIENCE):
                await said.heard.wait()
            if not said.is_ready:
                raise DemoFailed(f"hearthd did not become ready; it said: {said.text.strip() or 'nothing'}")
            async with body.watched():
                yield DaemonProcess(process)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.terminate()
                with trio.move_on_after(STOP_PATIENCE):
                    await process.wait()
            if process.poll() is None:
                process.kill()
                await process.wait()


class _Said:
    """What the daemon writes to its stderr."""

    def __init__(self) -> None:
        self.text = ""
        self.is_ready = False
        self.heard = trio.Event()
        """Set when it is ready, or will never be."""

    async def listen(self, process: trio.Process) -> None:
        assert process.stderr is not None
        async for chunk in process.stderr:
            self.text = (self.text + bytes(chunk).decode("utf-8", "replace"))[-4096:]
            if "hearthd: ready on " in self.text:
                self.is_ready = True
                self.heard.set()
        self.heard.set()
