"""The table `[[uart]]` of a board profile: a serial port, its device and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import field, frozen

from hearth.drivers.serial_port.settings import UartSettings, parse_rs485
from hearth.fields import Choice, Text

if TYPE_CHECKING:
    from hearth.drivers.base import Driver
    from hearth.drivers.kind import Opening
    from hearth.tables import Table

_TEXT: Final = Text()
_UART_DRIVER: Final = Choice("sim", "serial")


_HEX: Final = Text('bytes in hexadecimal, such as "53 54 4f 50 0d"', r"(?:[0-9A-Fa-f]{2} ?){1,256}")
_PEER: Final = Choice("echo", "none")


@frozen
class UartSpec:
    """A serial port: the name that callers use, its device, and the bytes that bring what is connected to a safe state.

    `safe_text` is sent as UTF-8.
    """

    port: str
    driver: str
    path: str | None = None
    settings: UartSettings = field(factory=UartSettings)
    peer: Literal["echo", "none"] = "echo"
    safe_text: str | None = None
    safe_hex: str | None = None

    @property
    def safe_bytes(self) -> bytes | None:
        """Return the bytes that are sent when the session that wrote to it ends, and when the daemon is halted."""
        if self.safe_hex is not None:
            return bytes.fromhex(self.safe_hex)
        return None if self.safe_text is None else self.safe_text.encode()

    def make_driver(self, opening: Opening) -> Driver:
        """Return its driver, not opened."""
        if self.path is not None:
            from hearth.drivers.serial_port.tty import LinuxUart

            return LinuxUart(self.port, self.path, self.settings)
        from hearth.drivers.base import Style
        from hearth.drivers.serial_port.pty import SimUart

        return SimUart(self.port, self.settings, peer=self.peer, terminal=opening.style is not Style.ASYNC)

    @property
    def baud(self) -> int:
        """Return the rate in bits a second."""
        return self.settings.baud


def parse_uart(table: Table) -> UartSpec:
    """Read one `[[uart]]`; only where the table is `ok` is every value of its type."""
    port, driver = table.take("port", _TEXT), table.take("driver", _UART_DRIVER)
    path = table.take("path", _TEXT) if driver == "serial" else table.take("path", _TEXT, None)
    values = table.given({"peer": _PEER, "safe_text": Text(), "safe_hex": _HEX})
    if "safe_text" in values and "safe_hex" in values:
        table.fault("safe_hex", "the bytes of `safe_text` are sent already; give one of the two")
    if driver == "sim" and path is not None:
        table.fault("path", "a simulated port has none: the pseudo-terminal's is in hw.uart.list")
    if driver == "serial" and "peer" in values:
        table.fault("peer", 'only a simulated port (driver = "sim") has one')
    # As callers read it in hw.uart.list: 1, not the 1.0 of UartSettings.
    settings: dict[str, Any] = {"stop_bits": 1, **table.given(UartSettings), "rs485": parse_rs485(table)}
    table.done()
    if table.ok:
        try:
            values["settings"] = UartSettings(**settings)
        except ValueError as error:
            # The value's own check names the key first: "stop_bits: …".
            key, _, why = str(error).partition(": ")
            table.fault(key, why)
    return UartSpec(port, driver, path=path, **values)
