"""How often a daemon with nothing to do wakes up, and what it computes, beside a Trio program that sleeps.

The daemon is hearthd with a board of GPIO, I2C and UART, all of it open. The kernel counts the times that each of its
threads gave up a CPU or was made to (/proc/PID/task/*/status); one that sleeps does neither.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen
from support.gpio_sim import GpioSim

from benchmarks.report import Row
from benchmarks.servers import hearthd_command, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.hil.bench import Effort
    from benchmarks.servers import Server

BARE = """
import sys, trio

async def main():
    print("bare: ready on nothing", file=sys.stderr, flush=True)
    await trio.sleep_forever()

trio.run(main)
"""

BOARD = """
name = "full"
description = "one of each"
[[gpio]]
label = "idle"
driver = "gpiod"
names = ["relay", "button"]
[[i2c]]
bus = 1
driver = "i2c-dev"
adapter = "{adapter}"
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

CONFIG = """
[server]
socket = "{folder}/idle.sock"
[board]
profile = "{folder}/idle.toml"
[audit]
path = "{folder}/idle/audit.log"
"""

DEVICES = ("/dev/gpiochip", "/dev/i2c-", "/dev/ttyS1", "/dev/ttyS3")
"""What the daemon must have open, or it idles too easily."""


@frozen
class Idle:
    """Wake-ups of the daemon while it idles, less those of the bare program meanwhile."""

    name: str
    what: str

    def __call__(self, folder: Path, effort: Effort) -> Iterator[Row]:
        """Measure."""
        adapter = stub_adapter()
        (folder / "idle.toml").write_text(BOARD.format(adapter=adapter))
        (folder / "idle.conf").write_text(CONFIG.format(folder=folder))
        (folder / "idle").mkdir(exist_ok=True)
        chip = GpioSim("idle", ["relay", "button"])
        try:
            with (
                started([*hearthd_command(), "--config", str(folder / "idle.conf")], "") as daemon,
                started([sys.executable, "-c", BARE], "") as bare,
            ):
                time.sleep(effort.settle)
                _check_open(daemon)
                woken, cpu = _counted([daemon, bare], effort.idle)
        finally:
            chip.close()
        yield Row(
            self.name,
            self.what,
            float(woken[0] - woken[1]),
            "more than bare",
            0,
            "at most",
            note=(
                f"in {effort.idle:g} s: {woken[0]} of the daemon, {woken[1]} of the bare program; "
                f"CPU {cpu[0] * 1000:.2f} ms and {cpu[1] * 1000:.2f} ms"
            ),
            detail={"seconds": effort.idle, "wakeups": woken, "cpu_seconds": cpu},
        )


def _counted(servers: list[Server], seconds: float) -> tuple[list[int], list[float]]:
    before = [(wakeups(server.pid), server.cpu_seconds()) for server in servers]
    time.sleep(seconds)
    after = [(wakeups(server.pid), server.cpu_seconds()) for server in servers]
    changes = [(now[0] - then[0], now[1] - then[1]) for then, now in zip(before, after, strict=True)]
    return [woken for woken, _ in changes], [cpu for _, cpu in changes]


def _check_open(daemon: Server) -> None:
    """Raises RuntimeError naming the devices that the daemon does not have open."""
    files = [str(link.readlink()) for link in Path(f"/proc/{daemon.pid}/fd").iterdir()]
    closed = [device for device in DEVICES if not any(file.startswith(device) for file in files)]
    if closed:
        raise RuntimeError(f"hearthd has not opened {', '.join(closed)}")


def wakeups(pid: int) -> int:
    """How often the threads of a process have given up a CPU, or were made to."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if "voluntary_ctxt_switches" in line:
                count += int(line.split()[1])
    return count


def stub_adapter() -> str:
    """The name of the adapter that the guest has from its boot."""
    names = [(path / "name").read_text().strip() for path in Path("/sys/class/i2c-dev").iterdir()]
    return next(name for name in names if "stub" in name)


IDLES = [Idle("idle", "wake-ups of an idle daemon, a full board")]
