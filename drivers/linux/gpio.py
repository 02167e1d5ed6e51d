"""A GPIO chip of the kernel's, through its character device (gpiod 2).

It owns one open chip: its lines, each with a request that is held until the bus closes, and its watches. `gpio_lines`
requests a line, `gpio_edges` receives edges, `gpio_chips` finds the device. Names, sessions and policy are not known
here.

**A level after its holder has ended.** A line keeps its level as long as its request lives: until this driver closes it
or its process ends, in whatever way. For the time after that the character device promises nothing. The kernel frees
the line, and the pin controller's driver decides: an output may stay as it is, or become an input. So `hold = "keep"`
means that hearth leaves a line alone when a session ends; it cannot keep the level after the daemon's end.
docs/decisions/0031 lists the kernel's behaviour, case by case.

Operations come from one caller at a time, the bus, in whatever thread; `pump` runs in the Trio thread beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hearth.drivers.base import BaseDriver, Style
from hearth.drivers.gpio import EdgeKind, Level, LineSpec, LineState, Watch, bring_to_safe
from hearth.drivers.linux.device_users import shared_device
from hearth.drivers.linux.gpio_chips import cannot_open, entry_of, find_chip, open_chip, style_of
from hearth.drivers.linux.gpio_edges import KERNEL_BUFFER, EdgePump, Edges
from hearth.errors import DeviceError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    import gpiod

    from hearth.drivers.linux.gpio_chips import ChipNode
    from hearth.drivers.linux.gpio_lines import KernelLine


_STATES = frozenset({0, 1, "input"})


class _Cell:
    """A line and its edges."""

    __slots__ = ("edges", "line")

    def __init__(self, line: KernelLine) -> None:
        self.line = line
        self.edges = Edges()


class LinuxGpio(BaseDriver):
    """A `GpioDriver` over /dev/gpiochip*.

    The chip is found by `label` when it is opened, or by `path`; it offers those of `lines` that it has. Without
    `blocking` the driver derives the style from the chip's parent devices (see `gpio_chips.style_of`); a chip that is
    not there yet counts as one that may sleep. `event_buffer` is the number of edges that the kernel keeps per line
    until they are read.
    """

    def __init__(
        self,
        label: str,
        lines: Sequence[LineSpec],
        *,
        path: str | None = None,
        blocking: bool | None = None,
        event_buffer: int = KERNEL_BUFFER,
    ) -> None:
        self.label = label
        self._wanted_path = path
        self._specs = {spec.offset: spec for spec in lines}
        self._buffer = event_buffer
        self._place = f"gpio chip {label}"
        self._found: ChipNode | None = None
        self._chip: gpiod.Chip | None = None
        self._pump: EdgePump | None = None
        self._cells: dict[int, _Cell] = {}
        self.style = self._find_style() if blocking is None else Style.THREAD if blocking else Style.INLINE

    def _find_style(self) -> Style:
        try:
            return style_of(find_chip(self.label, self._wanted_path).name)
        except DeviceError:
            return Style.THREAD

    # --- the device ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the chip and open it; drive the lines that have an `initial` level, if not halted, and touch no other.

        Raises DeviceError (not there, ambiguous, not permitted) and ResourceBusy (another process holds such a line).
        """
        from hearth.drivers.linux.gpio_lines import KernelLine

        chip, found = open_chip(self.label, self._wanted_path)
        self._chip, self._found = chip, found
        self.shares = shared_device(entry_of(found.name))
        try:
            self._pump = EdgePump(chip.fd)
            self._cells = {
                offset: _Cell(KernelLine(self._place, chip, spec, event_buffer=self._buffer))
                for offset, spec in self._specs.items()
                if 0 <= offset < found.lines
            }
            for offset, spec in self._specs.items():
                if spec.initial is not None and not self.halted:
                    self.set(offset, spec.initial)
        except (DeviceError, ResourceBusy):
            self.close()
            raise
        except OSError as error:
            self.close()
            raise cannot_open(self.label, found.path, error.errno or 0) from error

    def close(self) -> None:
        """Release every line and the chip, end the watches, and let a running pump return; idempotent."""
        pump, self._pump = self._pump, None
        cells, self._cells = self._cells, {}
        chip, self._chip = self._chip, None
        if pump is not None:
            pump.end(f"{self._place} was closed")
            pump.close()
        for cell in cells.values():
            cell.line.release()
        if chip is not None:
            chip.close()

    async def pump(self) -> None:
        """Feed the watches until the chip is closed. Raises DeviceError once it has been unplugged."""
        pump, found = self._pump, self._found
        if pump is not None and found is not None and await pump.run():
            gone = f"{self._place} ({found.path}) was unplugged"
            pump.end(gone)
            raise DeviceError(gone, effect="none", data={"chip": self.label, "path": found.path, "errno": "ENODEV"})

    def describe(self) -> Mapping[str, Any]:
        """Return the chip and its place; `path` and `kernel_label` are null until it has been opened once."""
        found = self._found
        return {
            "kind": "gpio",
            "driver": "gpiod",
            "chip": self.label,
            "path": found.path if found is not None else self._wanted_path,
            "kernel_label": found.label if found is not None else None,
            "lines": found.lines if found is not None else len(self._specs),
            "style": self.style.value,
        }

    # --- transactions -------------------------------------------------------------------------------------------

    def get(self, line: int) -> Level:
        """See `GpioDriver.get`."""
        cell = self._cells.get(line) or self._refuse(line)
        try:
            if cell.line.request is None:
                self._claim(cell)
            return cell.line.read()
        except DeviceError as error:
            raise self._noted(error) from error.__cause__

    def set(self, line: int, state: LineState) -> LineState:
        """See `GpioDriver.set`. On a line that is an output already this is one system call."""
        cell = self._cells.get(line) or self._refuse(line)
        if state not in _STATES:
            raise DeviceError(f"{self._place}: no such state: {state!r}", effect="none", data={"line": line})
        kernel = cell.line
        former = kernel.driven
        try:
            if former is None or cell.edges.watches or state == "input":
                return self._turn(cell, state)
            kernel.drive(state)
        except DeviceError as error:
            raise self._noted(error) from error.__cause__
        return former

    def _turn(self, cell: _Cell, state: LineState) -> LineState:
        """Bring a line to `state` the slow way: it is not ours yet, changes its direction, or is watched."""
        kernel, edges = cell.line, cell.edges
        former = kernel.state if kernel.request is not None else self._claim(cell, state)
        if kernel.state == state and state in (kernel.driven, "input"):
            return former
        if not edges.watches:
            self._change(cell, state)
            return former
        # The kernel reports no edges of an output, nor the effect of a change of direction on the level.
        pump, fd = self._watched(cell)
        with kernel.refusals("read", "none"):
            pump.before_change(edges, fd)
        before = kernel.read()
        self._change(cell, state)
        try:
            after = kernel.read() if state == "input" or kernel.open_ended else state
            with kernel.refusals("watched", "none"):
                pump.after_change(edges, fd, before, after)
        except DeviceError as error:
            # The change is done; the pump reports the end of the watches.
            self._noted(error)
        return former

    def _change(self, cell: _Cell, state: LineState) -> None:
        if state != "input":
            cell.line.drive(state)
            cell.edges.asked = None
            return
        wanted = cell.edges.wanted()
        try:
            self._listen(cell, wanted)
        except DeviceError:
            if wanted is None:
                raise
            # A chip that cannot report edges can still release a line, which matters more.
            self._listen(cell, None)

    def watch(self, line: int, edge: EdgeKind) -> Watch:
        """See `GpioDriver.watch`."""
        cell = self._cells.get(line) or self._refuse(line)
        watch = Watch(line, edge)
        try:
            if cell.line.request is None:
                self._claim(cell, edge=edge)
            pump, fd = self._watched(cell)
            with cell.line.refusals("watched", "none"):
                pump.add(cell.edges, fd, watch)
            self._detect(cell)
        except DeviceError as error:
            self.unwatch(watch)
            raise self._noted(error) from error.__cause__
        return watch

    def unwatch(self, watch: Watch) -> None:
        """End a watch, see `GpioDriver.unwatch`. Edges that the kernel has noted by now still reach the watch."""
        cell = self._cells.get(watch.line)
        if cell is not None and watch in cell.edges.watches:
            pump, fd = self._watched(cell)
            try:
                with cell.line.refusals("watched", "none"):
                    pump.remove(cell.edges, fd, watch)
                self._detect(cell)
            except DeviceError as error:
                # The watch has ended all the same; the pump reports that the chip is gone.
                self._noted(error)
        watch.close("it was ended by its owner")

    def make_safe(self, outputs: Iterable[Hashable], *, kept: bool = False) -> list[dict[str, Any]]:
        """Bring lines to their safe state (see `bring_to_safe`); those that become inputs are given back."""
        done = bring_to_safe(self, self._specs, outputs, kept=kept)
        for report in done:
            cell = self._cells.get(report["line"])
            if report.get("safe") == "input" and "error" not in report and cell is not None and not cell.edges.watches:
                cell.line.release()
        return done

    def halt(self, outputs: Iterable[Hashable]) -> list[dict[str, Any]]:
        """Bring lines to their safe state, whatever their `hold` is."""
        return self.make_safe(outputs, kept=True)

    # --- lines --------------------------------------------------------------------------------------------------

    def _refuse(self, line: int) -> NoReturn:
        """Raise the error for a line that `_cells` does not have: the slow path."""
        if self._chip is None:
            raise DeviceError(f"{self._place}: the chip is not open", effect="none", data={"line": line})
        if line in self._specs and self._found is not None:
            has = f"the chip has 0 to {self._found.lines - 1}; is this the right profile for it?"
        else:
            has = f"the board lists {', '.join(map(str, sorted(self._specs))) or 'none'}"
        raise DeviceError(
            f"{self._place}: no line {line!r}; {has}", effect="none", data={"line": line, "errno": "EINVAL"}
        )

    def _claim(self, cell: _Cell, target: LineState | None = None, edge: EdgeKind | None = None) -> LineState:
        former = cell.line.claim(target, edge)
        cell.edges.restart(edge if cell.line.listens else None)
        return former

    def _watched(self, cell: _Cell) -> tuple[EdgePump, int]:
        assert self._pump is not None, "the chip is open"
        assert cell.line.request is not None, "claimed before it is watched"
        return self._pump, cell.line.request.fd

    def _detect(self, cell: _Cell) -> None:
        """Let the kernel report the edges that the watches want, as far as it can."""
        wanted = cell.edges.wanted()
        if cell.line.listens and cell.edges.asked != wanted:
            self._listen(cell, wanted)

    def _listen(self, cell: _Cell, edge: EdgeKind | None) -> None:
        cell.line.listen(edge)
        cell.edges.asked = edge

    def _noted(self, error: DeviceError) -> DeviceError:
        """Make the pump check for a removed chip after a refused operation; return the error unchanged."""
        if (error.data or {}).get("errno") == "ENODEV" and self._pump is not None:
            self._pump.ring()
        return error
