"""One GPIO line of the kernel's character device: one request, held from first use until the chip is closed.

It owns the request, its settings and its direction: the line's former state, the change to an input or an output
without a glitch, and the errors for the kernel's refusals. Watches, threads and safe states are not known here.

A line is requested as it is, or at once in its new state; never in a state between. Its direction changes by
reconfiguring the same request, in which the kernel sets level and direction in one step. See docs/decisions/0030.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import gpiod
from gpiod.line import Bias, Direction, Drive, Edge, Value

from hearth.errors import DeviceError, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpiod import LineRequest, LineSettings

    from hearth.drivers.gpio.driver import EdgeKind
    from hearth.drivers.gpio.spec import LineSpec
    from hearth.drivers.signals import Level, LineState
    from hearth.errors import Effect

CONSUMER = "hearth"
"""The owner of our lines that other programs see (`gpioinfo`)."""

_UNTOUCHED = frozenset(
    {errno.ENODEV, errno.ENXIO, errno.EBUSY, errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOMEM, errno.EMFILE}
)
"""Errors that the kernel returns before it accesses the chip; ENODEV: the chip has been unplugged."""

_BIAS = {"as-is": Bias.AS_IS, "none": Bias.DISABLED, "up": Bias.PULL_UP, "down": Bias.PULL_DOWN}
_DRIVE = {"push-pull": Drive.PUSH_PULL, "open-drain": Drive.OPEN_DRAIN, "open-source": Drive.OPEN_SOURCE}
_EDGE: Mapping[EdgeKind | None, Edge] = {
    None: Edge.NONE,
    "rising": Edge.RISING,
    "falling": Edge.FALLING,
    "both": Edge.BOTH,
}


class KernelLine:
    """One line of an open chip. `place` begins every error ("gpio chip pinctrl-rp1").

    Its methods are system calls, so they may sleep on a chip behind a bus. One caller at a time.
    """

    __slots__ = (
        "_as_is",
        "_buffer",
        "_chip",
        "_inputs",
        "_levels",
        "_outputs",
        "_place",
        "_was",
        "driven",
        "offset",
        "open_ended",
        "request",
        "spec",
    )

    def __init__(self, place: str, chip: gpiod.Chip, spec: LineSpec, *, event_buffer: int) -> None:
        self.spec = spec
        self.offset = spec.offset
        self.request: LineRequest | None = None
        self.driven: Level | None = None
        """The level that we drive; None while we do not."""
        self.open_ended = spec.drive != "push-pull"
        """True if others may drive the line at the same time: its level need not be the one that we set."""
        self._levels: Mapping[Level, dict[int | str, Value]] = {
            0: {spec.offset: Value.INACTIVE},
            1: {spec.offset: Value.ACTIVE},
        }
        # The arguments of a request's `set_values`, made once: a line is set thousands of times.
        self._place = place
        self._chip = chip
        self._buffer = event_buffer
        self._was: LineState = "input"
        self._as_is = gpiod.LineSettings(active_low=spec.active_low)
        self._inputs: dict[EdgeKind | None, LineSettings] = {}
        self._outputs: dict[LineState, LineSettings] = {}

    @property
    def state(self) -> LineState:
        """Return the state of a requested line: driven by us, found as an output, or an input."""
        return self._was if self.driven is None else self.driven

    @property
    def listens(self) -> bool:
        """True if the kernel can report this line's edges: it is ours, and an input."""
        return self.request is not None and self.state == "input"

    def claim(self, target: LineState | None = None, edge: EdgeKind | None = None) -> LineState:
        """Request the line, which is not ours yet, and return its former state; afterwards it may be read.

        A line that is an output is taken as it is, and keeps its level. One that is an input, or has to be one by the
        profile, becomes `target` at once if that is given, else an input with the profile's bias that reports `edge`.
        """
        driven: Level | None = None if target == "input" else target
        with self.refusals("requested", "none" if driven is None else "unknown"):
            info = self._chip.get_line_info(self.offset)
            if info.direction is not Direction.OUTPUT or self.spec.direction == "input":
                self.request = self._requested(self._input(edge) if driven is None else self._output(driven))
                self._was, self.driven = "input", driven
                return "input"
            self.request = self._requested(self._as_is)
        try:
            self._was = self.read()
        except DeviceError:
            self.release()
            raise
        return self._was

    def _requested(self, settings: LineSettings) -> LineRequest:
        request = self._chip.request_lines({self.offset: settings}, consumer=CONSUMER, event_buffer_size=self._buffer)
        # Reads until no edge is left, and never waits for one.
        os.set_blocking(request.fd, False)
        return request

    def read(self) -> Level:
        """Return the level on the line, whatever drives it; the line is ours."""
        assert self.request is not None, "claimed before it is read"
        try:
            return 1 if self.request.get_value(self.offset) is Value.ACTIVE else 0
        except OSError as error:
            raise self._failed(error, "read", "none") from error

    def drive(self, level: Level) -> None:
        """Drive the line, which is ours: one step from any state to an output at `level`."""
        assert self.request is not None, "claimed before it is driven"
        try:
            if self.driven is None:
                self.request.reconfigure_lines({self.offset: self._output(level)})
            else:
                self.request.set_values(self._levels[level])
        except OSError as error:
            raise self._failed(error, "driven", "unknown") from error
        self.driven = level

    def listen(self, edge: EdgeKind | None) -> None:
        """Make the line, which is ours, an input that reports `edge`."""
        assert self.request is not None, "claimed before it becomes an input"
        with self.refusals("made an input", "unknown"):
            self.request.reconfigure_lines({self.offset: self._input(edge)})
        self._was, self.driven = "input", None

    def release(self) -> None:
        """Give the line back to the kernel; idempotent."""
        request, self.request, self.driven = self.request, None, None
        if request is not None:
            request.release()

    def _input(self, edge: EdgeKind | None) -> LineSettings:
        settings = self._inputs.get(edge)
        if settings is None:
            settings = self._inputs[edge] = gpiod.LineSettings(
                direction=Direction.INPUT,
                edge_detection=_EDGE[edge],
                bias=_BIAS[self.spec.pull],
                active_low=self.spec.active_low,
                debounce_period=timedelta(microseconds=self.spec.debounce_us),
            )
        return settings

    def _output(self, level: Level) -> LineSettings:
        settings = self._outputs.get(level)
        if settings is None:
            settings = self._outputs[level] = gpiod.LineSettings(
                direction=Direction.OUTPUT,
                drive=_DRIVE[self.spec.drive],
                bias=_BIAS[self.spec.pull],
                active_low=self.spec.active_low,
                output_value=Value.ACTIVE if level else Value.INACTIVE,
            )
        return settings

    @contextmanager
    def refusals(self, what: str, effect: Effect) -> Iterator[None]:
        """Turn the OSError of a block into hearth's error (see `_failed`)."""
        try:
            yield
        except OSError as error:
            raise self._failed(error, what, effect) from error

    def _failed(self, error: OSError, what: str, effect: Effect) -> DeviceError | ResourceBusy:
        """Return the error for a refused system call: the line is held, the chip is gone, or another with its errno.

        `effect` is the effect if the kernel had already accessed the chip.
        """
        code = error.errno or 0
        name = f"line {self.offset} ({self.spec.name})" if self.spec.name else f"line {self.offset}"
        data = {"line": self.offset, "name": self.spec.name, "errno": errno.errorcode.get(code, "EIO")}
        if code == errno.EBUSY:
            return self._held(name, data)
        if code == errno.ENODEV:
            text = f"{self._place} is gone: {name} could not be {what}; is it still plugged in?"
        elif code == errno.ENXIO:
            text = f"{self._place}: {name} cannot report edges: the chip has no interrupt for it; read it instead"
        else:
            text = f"{self._place}: {name} could not be {what}: {os.strerror(code)}"
        return DeviceError(text, effect="none" if code in _UNTOUCHED else effect, data=data)

    def _held(self, name: str, data: dict[str, object]) -> ResourceBusy:
        try:
            consumer = self._chip.get_line_info(self.offset).consumer or "an unnamed consumer"
        except OSError:
            consumer = "a consumer that cannot be asked for"
        return ResourceBusy(
            f"{self._place}: {name} is held by {consumer!r}, another process or a kernel driver: end that one, or mark "
            f"the line `reserved` in the board profile; `hearth doctor` shows the holder of each line",
            data={**data, "reason": "held", "consumer": consumer, "effect": "none"},
        )
