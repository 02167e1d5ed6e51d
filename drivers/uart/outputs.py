"""The outputs of a serial port: the bytes that it sends, and the levels of RTS and DTR."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from hearth._util.toml import show
from hearth.drivers.kind import Call, Outputs, Signal, undeclared
from hearth.drivers.serial_port.settings import MODEM_LINES, write_timeout_s

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from hearth.drivers.kind import Driven, Level
    from hearth.drivers.uart.spec import UartSpec

DATA: Final = "data"
"""The output that bytes go to."""


class UartOutputs(Outputs):
    """One port: `DATA` with bytes as its level, and MODEM_LINES with the levels of RTS and DTR."""

    plain: ClassVar[frozenset[str]] = frozenset({"describe", "port", "settings"})
    reading: ClassVar[frozenset[str]] = frozenset({"take"})

    def __init__(self, spec: UartSpec) -> None:
        self._bus = f"uart:{spec.port}"
        settings = spec.settings
        self._baud = settings.baud
        levels = {"rts": settings.rts, "dtr": settings.dtr}
        if settings.rs485 is not None or settings.flow == "rtscts":
            del levels["rts"]
        where = {"bus": f"uart:{spec.port}"}
        self.signals: Mapping[Hashable, Signal] = {
            DATA: Signal(
                DATA,
                spec.port,
                f"serial port {spec.port}",
                place=where,
                report={"port": spec.port},
                access="w",
                safe=spec.safe_bytes,
                wrote="sent",
                shown=_hex,
                number=_bytes,
                alias=DATA,
            ),
            MODEM_LINES: Signal(
                MODEM_LINES,
                f"{spec.port} lines",
                f"RTS and DTR of serial port {spec.port}",
                place=where,
                report={"port": spec.port},
                safe=levels,
                number=_no_level,
                alias="lines",
            ),
        }

    def driven(self, call: Call) -> Sequence[Driven]:
        """Return the bytes of a write, or the levels of a `control` that sets any."""
        if call.op in ("write", "exchange"):
            return ((DATA, call.args[0]),)
        if call.op != "control":
            raise undeclared(call, self._bus)
        return ((MODEM_LINES, call.kw),) if any(level is not None for level in call.kw.values()) else ()

    def read(self, signal: Signal) -> Call | None:
        """Return the call that reads the levels of the lines; sent bytes cannot be read."""
        return Call("control") if signal.output == MODEM_LINES else None

    def drive(self, wanted: Sequence[Driven], known: Mapping[Hashable, Level]) -> Sequence[Call]:
        """Return the calls that send bytes, and that give RTS and DTR their levels."""
        return [
            Call("control", (), level)
            if output == MODEM_LINES
            else Call("write", (level,), {"timeout_s": write_timeout_s(len(level), self._baud)})
            for output, level in wanted
        ]

    def asked(self, output: Hashable, level: Level) -> Call:
        """Return the write that a tool has declared."""
        return Call("write", (level,))


def _hex(level: bytes) -> str:
    return level.hex()


def _bytes(value: object) -> bytes:
    try:
        if isinstance(value, str) and (found := bytes.fromhex(value)):
            return found
    except ValueError:
        pass  # said below, with an example
    raise ValueError(f'expected bytes in hexadecimal, such as "53 54 4f 50 0d", got {show(value)}')


def _no_level(value: object) -> Level:
    raise ValueError(f'RTS and DTR go to their levels at the opening, "safe", and to no other; got {show(value)}')
