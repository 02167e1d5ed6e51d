"""The demo's daemon: a real hearthd process on a simulated board, in a directory that is removed with it."""

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

from hearth._util.exceptions import unwrapped
from hearth._util.python import python_module
from hearth.cli.demo.stage import DemoFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


SCENE_LIMIT = 40.0
"""Seconds after which a scene counts as failed; the longest takes three, and some more for reading."""
START_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0
_LONGEST_SOCKET = 100
"""Limit of the socket's path in bytes; the kernel's is 107, and TMPDIR may be long."""

CHECKPOINT_EVERY = 25
SAFE_LINE, WIRED_TO = 17, 27
EEPROM, PAGE = 0x50, 8

BOARD = """\
name = "demo"
description = "The sim board with a panel for its contacts, and a slow I2C bus, to see a write under way"

[[gpio]]
label = "sim"
driver = "sim"
names = [
    "GPIO0", "GPIO1", "GPIO2", "GPIO3", "GPIO4", "GPIO5", "GPIO6", "GPIO7",
    "GPIO8", "GPIO9", "GPIO10", "GPIO11", "GPIO12", "GPIO13", "GPIO14", "GPIO15",
    "GPIO16", "GPIO17", "GPIO18", "GPIO19", "GPIO20", "GPIO21", "GPIO22", "PUMP",
    "DOOR", "ESTOP", "HEATER", "GPIO27",
]
wires = [["GPIO17", "GPIO27"]]
contacts = { DOOR = 0, ESTOP = 0 }
panel = PANEL

[gpio.lines.GPIO17]
safe = 0
note = "an output; wired to GPIO27, where one can see what it does"

[gpio.lines.HEATER]
safe = 0
limit = { max_on_ms = 500, max_rate_hz = 0.1 }
note = "a heater for short bursts"

[gpio.lines.PUMP]
safe = 0
limit = { max_on_ms = 60_000 }
note = "the pump of the tank"

[gpio.lines.DOOR]
direction = "input"
pull = "up"
note = "the door's switch: 0 while it is closed"

[gpio.lines.ESTOP]
direction = "input"
pull = "up"
note = "the e-stop button: 1 while it is pressed"

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

[[i2c.device]]
addr = 0x4d
kind = "mcp3221"
tank = { pump = "PUMP", start = 40, fill = 5, drain = 0.5 }

[sensors.temperature]
kind = "tmp102"
bus = 1
addr = 0x48

[sensors.tank]
kind = "mcp3221"
bus = 1
addr = 0x4d

[[interlock]]
drives = "PUMP"
value = 1
requires = [{ line = "DOOR", value = 0 }, { sensor = "tank", max = 90 }]
max_age_ms = 2000
check_ms = 100

[halt]
inputs = ["ESTOP"]
"""
"""The board; PANEL stands for the path of its panel."""


@frozen
class DemoFolder:
    """The directory of one demo, with all its files."""

    folder: Path
    no_sandbox: bool = False
    """Whether its hearthd is not confined."""

    @property
    def socket(self) -> Path:
        """The daemon's socket."""
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
    def latch(self) -> Path:
        """The file that keeps a halt."""
        return self.folder / "audit.log.halt"

    @property
    def shared(self) -> Path:
        """The only directory beneath which tools may read and write files."""
        return self.folder / "shared"

    @property
    def secret(self) -> Path:
        """A file outside of `shared`."""
        return self.folder / "secret.txt"

    @property
    def panel(self) -> Path:
        """The named pipe through which a person opens and closes the contacts of the simulated board."""
        return self.folder / "panel"

    def press(self, order: str) -> None:
        """Open or close a contact, as a person does: "DOOR open", "DOOR 0". Raises OSError without a daemon."""
        pipe = os.open(self.panel, os.O_WRONLY | os.O_NONBLOCK)
        with os.fdopen(pipe, "w", encoding="ascii") as panel:
            panel.write(f"{order}\n")

    def config(self) -> str:
        """Return the daemon's hearth.toml. A JSON string is a TOML string too."""
        quoted = {name: json.dumps(str(path)) for name, path in (("socket", self.socket), ("log", self.log))}
        board, shared = json.dumps(str(self.folder / "board.toml")), json.dumps(str(self.shared))
        return (
            f"[server]\nsocket = {quoted['socket']}\n"
            f"[board]\nprofile = {board}\n"
            f"[audit]\npath = {quoted['log']}\ncheckpoint_every = {CHECKPOINT_EVERY}\n"
            f"[files]\nread = [{shared}]\nwrite = [{shared}]\n"
            f'[[policy]]\nname = "demo"\nmatch = {{ uid = {os.geteuid()} }}\nmax_risk = 2\nmax_risk_ceiling = 3\n'
            'rights = ["approve", "reset_halt"]\napproval = [{ from_risk = 3 }]\n'
        )


@contextmanager
def make_place(*, no_sandbox: bool = False) -> Iterator[DemoFolder]:
    """Make a directory with board, configuration, shared files and a secret; remove it at the end."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _LONGEST_SOCKET - len("/hearth-demo-12345678/hearth.sock"):
        base = "/tmp"  # mkdtemp makes a directory in it that only this user can access
    with tempfile.TemporaryDirectory(prefix="hearth-demo-", dir=base) as folder:
        place = DemoFolder(Path(folder).resolve(), no_sandbox=no_sandbox)
        place.shared.mkdir()
        place.secret.write_text("this file is secret\n", encoding="utf-8")
        (place.shared / "escape").symlink_to("../secret.txt")
        os.mkfifo(place.panel, 0o600)
        board = BOARD.replace("panel = PANEL", f"panel = {json.dumps(str(place.panel))}")
        (place.folder / "board.toml").write_text(board, encoding="utf-8")
        (place.folder / "hearth.toml").write_text(place.config(), encoding="utf-8")
        yield place


class DaemonProcess:
    """A hearthd that has reported that it is ready."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def stop(self) -> int:
        """Send SIGTERM, wait and return the exit code. Raises DemoFailed if the daemon does not end."""
        self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_TIMEOUT):
            return await self._process.wait()
        raise DemoFailed(f"hearthd (pid {self.pid}) has not ended {STOP_TIMEOUT:g} s after SIGTERM")


@asynccontextmanager
async def run_daemon(place: DemoFolder) -> AsyncIterator[DaemonProcess]:
    """Start hearthd and wait until it is ready; it ends with this context at the latest. Raises DemoFailed."""
    ours = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "RUNTIME_DIRECTORY", "STATE_DIRECTORY")
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    unconfined = ("--no-sandbox",) if place.no_sandbox else ()
    command = python_module("hearth.actors.daemon", "--config", str(place.folder / "hearth.toml"), *unconfined)
    process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
    try:
        async with unwrapped() as body, trio.open_nursery() as nursery:
            said = _Said()
            nursery.start_soon(said.listen, process)
            with trio.move_on_after(START_TIMEOUT):
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
                with trio.move_on_after(STOP_TIMEOUT):
                    await process.wait()
            if process.poll() is None:
                process.kill()
                await process.wait()


class _Said:
    """The daemon's output on stderr."""

    def __init__(self) -> None:
        self.text = ""
        self.is_ready = False
        self.heard = trio.Event()
        """Set when the daemon is ready, or has closed stderr."""

    async def listen(self, process: trio.Process) -> None:
        assert process.stderr is not None
        async for chunk in process.stderr:
            self.text = (self.text + bytes(chunk).decode("utf-8", "replace"))[-4096:]
            if "hearthd: ready on " in self.text:
                self.is_ready = True
                self.heard.set()
        self.heard.set()
