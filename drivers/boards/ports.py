"""A serial port as a board profile describes it: the name that callers use, the device, and how it is set up.

Owns the shape of `[[uart]]`; refuses to look at the machine. What a setting means, and which go together, is
`UartSettings`' to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from attrs import field, frozen

from hearth.drivers.uart import Flow, Parity, Rs485, UartSettings

if TYPE_CHECKING:
    from hearth.drivers.boards.strict import Table

UART_DRIVERS = ("sim", "serial")
MAX_BAUD = 20_000_000
MAX_DELAY_MS = 1000


@frozen
class UartSpec:
    """A serial port: the name that callers use, and the device it stands for."""

    port: str
    driver: str
    path: str | None = None
    settings: UartSettings = field(factory=UartSettings)
    peer: Literal["echo", "none"] = "echo"

    @property
    def baud(self) -> int:
        """The rate in bits a second."""
        return self.settings.baud


def parse_port(table: Table) -> UartSpec:
    """One `[[uart]]`. Raises ConfigError with the key path."""
    port = table.text("port")
    driver = table.choice("driver", UART_DRIVERS)
    path = table.text("path", None) if driver == "sim" else table.text("path")
    if driver == "sim" and path is not None:
        table.refuse("path", "a simulated port has none: the pseudo-terminal's is in hw.uart.list")
    if driver != "sim" and table.has("peer"):
        table.refuse("peer", 'only a simulated port (driver = "sim") has one')
    spec = UartSpec(
        port,
        driver,
        path=path,
        settings=_settings(table),
        peer=cast('Literal["echo", "none"]', table.choice("peer", ("echo", "none"), "echo")),
    )
    table.done()
    return spec


def _settings(table: Table) -> UartSettings:
    values: dict[str, Any] = {
        "baud": table.integer("baud", 50, MAX_BAUD, 115_200),
        "bits": table.choice("bits", (5, 6, 7, 8), 8),
        "parity": cast("Parity", table.choice("parity", ("none", "even", "odd", "mark", "space"), "none")),
        "stop_bits": table.choice("stop_bits", (1, 1.5, 2), 1),
        "flow": cast("Flow", table.choice("flow", ("none", "rtscts", "xonxoff"), "none")),
        "rs485": _rs485(table),
        "inbox_bytes": table.integer("inbox_bytes", 4096, 16_777_216, 65_536),
        "rts": table.flag("rts", True),
        "dtr": table.flag("dtr", True),
        "hangup": table.flag("hangup", True),
    }
    try:
        return UartSettings(**values)
    except ValueError as error:
        # The value's own check names the key first: "stop_bits: …".
        key, _, why = str(error).partition(": ")
        table.refuse(key, why)


def _rs485(table: Table) -> Rs485 | None:
    """`rs485 = true`, or a table of its details."""
    if not table.is_table("rs485"):
        return Rs485() if table.flag("rs485", False) else None
    details = table.table("rs485")
    rs485 = Rs485(
        rts_on_send=details.flag("rts_on_send", True),
        loopback=details.flag("loopback", False),
        before_ms=details.integer("before_ms", 0, MAX_DELAY_MS, 0),
        after_ms=details.integer("after_ms", 0, MAX_DELAY_MS, 0),
    )
    details.done()
    return rs485
