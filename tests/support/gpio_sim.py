"""GPIO chips that the kernel simulates (gpio-sim), made and taken away through configfs; only in the guest.

It owns the world outside a chip: what pulls a line, what a voltmeter shows, who hogs a line, and the plug. All levels
here are those of the wire: a line that is active low is 1 here when its user reads 0. It refuses to know hearth.

Three things about the simulator shape what tests may ask of it:

- A line that somebody drives cannot be pushed: the pull waits until the line is an input again.
- A line that nobody holds shows its pull; one that becomes an input keeps its last level until the pull changes.
- Edges are raised from the kernel's next timer tick (10 ms), and pushes within one tick are one edge: `push` therefore
  returns only once the edge it made has been handled.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import gpiod

CONFIGFS = Path("/sys/kernel/config/gpio-sim")
PATIENCE_S = 10.0
"""How long anything here may take before it counts as broken; it usually takes less than a millisecond."""

HogDirection = Literal["input", "output-low", "output-high"]

_serial = count(1)


def wait_until(what: str, ready: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    """Look again and again until `ready()`; TimeoutError naming `what` after `patience_s`."""
    end = time.monotonic() + patience_s
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {patience_s:g} s: {what}")
        time.sleep(0.000_5)


class GpioSim:
    """One simulated chip. `lines` are their names, "" for one without; `hogs` maps offsets to (consumer, direction).

    It is plugged in when this returns. Several chips may have one `label`. Line arguments are offsets or names.
    """

    def __init__(
        self, label: str, lines: Sequence[str] | int, *, hogs: Mapping[int, tuple[str, HogDirection]] | None = None
    ) -> None:
        self.label = label
        self.lines = tuple(f"L{n}" for n in range(lines)) if isinstance(lines, int) else tuple(lines)
        self._dir = CONFIGFS / f"hearth-{next(_serial)}"
        self._bank = self._dir / "bank0"
        self._bank.mkdir(parents=True)
        (self._bank / "num_lines").write_text(str(len(self.lines)))
        (self._bank / "label").write_text(label)
        for offset, name in enumerate(self.lines):
            line = self._bank / f"line{offset}"
            line.mkdir()
            if name:
                (line / "name").write_text(name)
        for offset, (consumer, direction) in (hogs or {}).items():
            hog = self._bank / f"line{offset}" / "hog"
            hog.mkdir()
            (hog / "name").write_text(consumer)
            (hog / "direction").write_text(direction)
        self.name = ""
        """The kernel's name for the chip ("gpiochip3"); it may be another one after each `plug`."""
        self.plug()

    @property
    def path(self) -> str:
        """The character device; it is there while the chip is plugged in."""
        return f"/dev/{self.name}"

    @property
    def sysfs(self) -> Path:
        """The chip's directory below /sys/devices."""
        return Path("/sys/devices/platform") / (self._dir / "dev_name").read_text().strip() / self.name

    @property
    def plugged(self) -> bool:
        """Whether the chip is there."""
        return (self._dir / "live").read_text().strip() == "1"

    def plug(self) -> None:
        """Plug the chip in, and wait for its device node; nothing if it is plugged in."""
        if not self.plugged:
            (self._dir / "live").write_text("1")
            self.name = (self._bank / "chip_name").read_text().strip()
        wait_until(f"the device node {self.path}", Path(self.path).exists)

    def unplug(self) -> None:
        """Pull the chip out, whoever uses it, and wait until its device node is gone."""
        if self.plugged:
            (self._dir / "live").write_text("0")
        wait_until(f"{self.path} is gone", lambda: not Path(self.path).exists())

    def close(self) -> None:
        """Unplug the chip and forget it; idempotent."""
        if not self._dir.exists():
            return
        # Writing 0 a second time is refused, and a directory goes only after those in it.
        self.unplug()
        inner = (path for path in self._dir.rglob("*") if path.is_dir())
        for path in sorted(inner, key=lambda path: len(path.parts), reverse=True):
            path.rmdir()
        self._dir.rmdir()

    def offset(self, line: int | str) -> int:
        """The offset of a line given by offset or name."""
        return line if isinstance(line, int) else self.lines.index(line)

    def _attribute(self, line: int | str, name: str) -> Path:
        return self.sysfs / f"sim_gpio{self.offset(line)}" / name

    def value(self, line: int | str) -> Literal[0, 1]:
        """What a voltmeter on the line shows."""
        return 1 if self._attribute(line, "value").read_text().strip() == "1" else 0

    def pulled(self, line: int | str) -> Literal[0, 1]:
        """Which way the line is pulled: the world's `push`, or the bias that its user asked for."""
        return 1 if self._attribute(line, "pull").read_text().strip() == "pull-up" else 0

    def info(self, line: int | str) -> gpiod.LineInfo:
        """What the kernel tells everybody about a line: its user, its direction, its settings."""
        import gpiod

        with gpiod.Chip(self.path) as chip:
            return chip.get_line_info(self.offset(line))

    def pull(self, line: int | str, level: int) -> None:
        """Pull a line up (1) or down (0), and wait for nothing: a `push` soon after may take this edge for its own."""
        self._attribute(line, "pull").write_text("pull-up" if level else "pull-down")

    def push(self, line: int | str, level: int) -> None:
        """Pull a line up (1) or down (0); if somebody is to hear of it, wait until the kernel has noted the edge."""
        rises = bool(level) and not self.value(line)
        falls = not level and bool(self.value(line))
        heard = (rises or falls) and self._is_heard(line, rises)
        before = interrupts() if heard else 0
        self.pull(line, level)
        if heard:
            wait_until(f"the edge on line {line} of {self.label} is handled", lambda: interrupts() > before)

    def _is_heard(self, line: int | str, rises: bool) -> bool:
        """Whether the user of a line has asked for such an edge."""
        from gpiod.line import Direction, Edge

        info = self.info(line)
        if not info.used or info.direction is Direction.OUTPUT:
            return False
        if info.debounced:
            return True
        wanted = Edge.RISING if rises is not info.active_low else Edge.FALLING
        return info.edge_detection in (wanted, Edge.BOTH)


def interrupts() -> int:
    """How many interrupts simulated chips have raised since the kernel started."""
    rows = Path("/proc/interrupts").read_text().splitlines()
    return sum(int(row.split()[1]) for row in rows if "irq_sim" in row)


@contextmanager
def gpio_sim(
    label: str, lines: Sequence[str] | int, *, hogs: Mapping[int, tuple[str, HogDirection]] | None = None
) -> Iterator[GpioSim]:
    """A simulated chip for the length of a block."""
    chip = GpioSim(label, lines, hogs=hogs)
    try:
        yield chip
    finally:
        chip.close()
