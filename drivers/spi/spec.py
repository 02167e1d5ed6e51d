"""The tables `[[spi]]` of a board profile: an SPI device, its node, the wire's settings, and its registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from hearth.drivers.registers import RegisterMap, check_registers, parse_register
from hearth.drivers.spi.driver import RegisterFrame, Registers, SpiRegister, SpiSettings
from hearth.fields import Choice, Text

if TYPE_CHECKING:
    from hearth.drivers.base import Driver
    from hearth.drivers.kind import Opening
    from hearth.drivers.registers import Increment
    from hearth.tables import Table

_TEXT: Final = Text()
_NAME: Final = Text('a name of letters, digits and _.-, such as "FLASH"', r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DRIVER: Final = Choice("sim", "spidev")
_SIM_KIND: Final = Choice("loopback", "registers")


@frozen
class SpiSpec:
    """An SPI device: the name that callers use, its node, the wire's settings, and its registers.

    `kind` is the simulated chip, on a real board any text. A device that declares registers takes transfers that begin
    with their commands alone; `increment` says which one follows in a longer write.
    """

    name: str
    driver: str
    path: str | None = None
    kind: str | None = None
    note: str | None = None
    increment: Increment = "none"
    settings: SpiSettings = field(factory=SpiSettings)
    declared: Registers | None = None

    @property
    def bus(self) -> str:
        """Return the id of its bus."""
        return f"spi:{self.name}"

    def make_driver(self, opening: Opening) -> Driver:
        """Return its driver, not opened."""
        if self.path is not None:
            from hearth.drivers.spi.linux import LinuxSpi

            return LinuxSpi(self.name, self.path, self.settings)
        from hearth.drivers.base import Style
        from hearth.drivers.spi.sim import Loopback, RegisterChip, SimSpi

        chip: Loopback | RegisterChip = Loopback()
        if self.kind == "registers":
            registers = () if self.declared is None else self.declared.registers
            cleared = {one.reg + at for one in registers if one.read_effect for at in range(one.size)}
            chip = RegisterChip(None if self.declared is None else self.declared.frame, cleared=cleared)
        return SimSpi(self.name, chip, self.settings, style=opening.style or Style.THREAD)

    def as_device(self) -> RegisterMap:
        """Return its registers, for the limits of its bus; it has no address."""
        assert self.declared is not None
        width, registers = self.declared.frame.reg_width, self.declared.registers
        return RegisterMap(registers, width, self.increment)

    def to_json(self) -> dict[str, Any]:
        """Return the members of hw.spi.list that the profile has."""
        optional: dict[str, Any] = {"chip": self.kind, "note": self.note}
        if self.declared is not None:
            optional["increment"] = self.increment
            optional["registers"] = [register.to_json() for register in self.declared.registers]
        return {key: value for key, value in optional.items() if value is not None}


def parse_spi(table: Table) -> SpiSpec:
    """Read one `[[spi]]`; only where the table is `ok` is every value of its type."""
    name, driver = table.take("name", _NAME), table.take("driver", _DRIVER)
    simulated = driver == "sim"
    path = table.take("path", _TEXT) if driver == "spidev" else table.take("path", _TEXT, None)
    if simulated and path is not None:
        table.fault("path", "a simulated device has no node; leave it out")
    kind = table.take("kind", _SIM_KIND) if simulated else table.take("kind", _TEXT, None)
    rest = table.given({"note": _TEXT, "increment": Choice("none", "byte", "register")})
    settings, frame = table.given(SpiSettings), table.given(RegisterFrame)
    entries = list(table.tables("registers"))
    registers = tuple([parse_register(entry, SpiRegister) for entry in entries])
    table.done()
    spec = SpiSpec(name, driver, path, kind, **rest)
    if not table.ok:
        return spec
    declared = Registers(RegisterFrame(**frame), registers) if registers else None
    spec = SpiSpec(name, driver, path, kind, settings=SpiSettings(**settings), declared=declared, **rest)
    if declared is not None:
        check_registers(table, spec.as_device(), entries)
        _check_frame(table, spec, entries)
    else:
        for key in frame:
            table.fault(key, "it is for a device with `registers`; list them, or leave it out")
        if spec.increment != "none":
            table.fault("increment", "it is for a device with `registers`; list them, or leave it out")
    return spec


def _check_frame(table: Table, spec: SpiSpec, entries: list[Table]) -> None:
    """Refuse masks and registers for which a read could not be told from a write."""
    assert spec.declared is not None
    frame, names = spec.declared.frame, set[str]()
    mask, most = frame.read_mask | frame.write_mask, (1 << frame.reg_width) - 1
    if frame.read_mask == frame.write_mask:
        table.fault("read_mask", f"it is also write_mask ({mask:#04x}): a read could not be told from a write")
    elif mask > most:
        key = "read_mask" if frame.read_mask > most else "write_mask"
        table.fault(key, f"{mask:#06x} has more than 8 bits; give the device reg_width = 16")
    for register, entry in zip(spec.declared.registers, entries, strict=True):
        length = frame.size + register.size
        if register.reg & mask:
            entry.fault("reg", f"{register.reg:#04x} has bits of the masks ({mask:#04x}), which say read or write")
        elif (length % spec.settings.word or frame.dummy % spec.settings.word) and spec.settings.word > 1:
            whole = f"{length} bytes, and {frame.dummy} of `dummy`, are no whole words of {spec.settings.bits} bits"
            entry.fault("width", f"{whole}; correct reg_width, width, dummy or bits")
        if register.name is not None and register.name in names:
            entry.fault("name", f'"{register.name}" is there twice')
        names.add(register.name or "")
