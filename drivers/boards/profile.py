"""Board profiles: what a board has, as TOML, and what hearth may do with it (design §5).

Owns the profile's shape and its checks; refuses to look at the machine. A profile is an allowlist: a line,
adapter or port that it does not list does not exist for anybody who asks through hearth.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from attrs import frozen

from hearth.drivers.boards.sensors import SENSOR_KINDS
from hearth.drivers.boards.strict import Table
from hearth.drivers.gpio import Direction, Hold, LineSpec, LineState, Pull
from hearth.drivers.i2c import FIRST_ADDR, LAST_ADDR
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind: TypeAlias = Literal["gpio", "i2c", "uart"]

GPIO_DRIVERS = ("sim", "gpiod")
I2C_DRIVERS = ("sim", "i2c-dev")
UART_DRIVERS = ("sim", "serial")
SIM_DEVICES = ("tmp102", "24c02")

_SHIPPED = Path(__file__).parent
_MAX_OFFSET = 1023


@frozen
class ChipSpec:
    """A GPIO chip, found by its label; `aliases` are further names of its lines, `wires` are for the simulator."""

    label: str
    driver: str
    lines: tuple[LineSpec, ...]
    aliases: Mapping[str, int]
    wires: tuple[tuple[int, int], ...] = ()


@frozen
class DeviceSpec:
    """What sits at an I2C address: made by the simulator, information on real boards."""

    addr: int
    kind: str
    note: str | None = None
    write_cycle_ms: float = 0.0


@frozen
class I2cSpec:
    """An I2C adapter, by the number in /dev/i2c-N."""

    bus: int
    driver: str
    speed_hz: int = 100_000
    devices: tuple[DeviceSpec, ...] = ()


@frozen
class UartSpec:
    """A serial port: the name that callers use, and the device it stands for."""

    port: str
    driver: str
    path: str | None = None
    baud: int = 115_200
    peer: Literal["echo", "none"] = "echo"


@frozen
class SensorSpec:
    """A named sensor: a kind this release can read, on an I2C bus."""

    name: str
    kind: str
    bus: int
    addr: int
    description: str | None = None


@frozen(eq=False)
class Profile:
    """A board, as its profile describes it. `tools` are the patterns of the tools that it allows."""

    name: str
    description: str
    source: str
    chips: tuple[ChipSpec, ...] = ()
    i2c: tuple[I2cSpec, ...] = ()
    uarts: tuple[UartSpec, ...] = ()
    sensors: tuple[SensorSpec, ...] = ()
    tools: tuple[str, ...] = ("*",)
    discover: tuple[Kind, ...] = ()
    """What to look for on the machine besides what is listed."""


def shipped_profiles() -> list[str]:
    """The names of the profiles that come with hearth."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def load_profile(name_or_path: str) -> Profile:
    """Read a profile: a shipped one by name, or a TOML file by path (with a "/" in it, or ending in .toml).

    Raises ConfigError naming the file, the key path and what is expected there.
    """
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        path = Path(name_or_path)
    else:
        path = _SHIPPED / f"{name_or_path}.toml"
        if name_or_path not in shipped_profiles():
            raise ConfigError(
                f"no board profile {name_or_path!r}; shipped are {', '.join(shipped_profiles())}, "
                "or give the path of a TOML file"
            )
    source = f"board profile {path.name if path.parent == _SHIPPED else path}"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{source}: is not TOML: {error}") from error
    return parse_profile(content, source)


def parse_profile(content: Mapping[str, object], source: str) -> Profile:
    """A profile from the content of its TOML file. Raises ConfigError."""
    top = Table(source, "", content)
    tools = top.table("tools")
    discover = top.table("discover")
    kinds: tuple[Kind, ...] = ("gpio", "i2c", "uart")
    profile = Profile(
        name=top.text("name"),
        description=top.text("description"),
        source=source,
        chips=tuple(_chip(table) for table in top.tables("gpio")),
        i2c=tuple(_i2c(table) for table in top.tables("i2c")),
        uarts=tuple(_uart(table) for table in top.tables("uart")),
        sensors=tuple(_sensor(name, table) for name, table in top.named("sensors")),
        tools=tools.texts("allow", ("*",)),
        discover=tuple(kind for kind in kinds if discover.flag(kind, False)),
    )
    tools.done()
    discover.done()
    top.done()
    _unique(top, "gpio", "label", [chip.label for chip in profile.chips])
    _unique(top, "i2c", "bus", [spec.bus for spec in profile.i2c])
    _unique(top, "uart", "port", [spec.port for spec in profile.uarts])
    buses = [spec.bus for spec in profile.i2c]
    for sensor in profile.sensors:
        if sensor.bus not in buses:
            top.refuse(f"sensors.{sensor.name}.bus", f"there is no [[i2c]] with bus = {sensor.bus}")
    return profile


def _unique(top: Table, key: str, what: str, values: list[str] | list[int]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            top.refuse(f"{key}[{index}].{what}", f"{value!r} is there twice")


def _chip(table: Table) -> ChipSpec:
    label = table.text("label")
    driver = table.choice("driver", GPIO_DRIVERS)
    offsets = _offsets(table)
    details = dict(table.named("lines"))
    for name in details:
        if name not in offsets:
            table.refuse(f"lines.{name}", "no such name under `names`")
    lines = tuple(_line(offset, name, details.get(name)) for name, offset in offsets.items())
    aliases: dict[str, int] = {}
    for alias, name in table.mapping("alias").items():
        if alias in offsets:
            table.refuse(f"alias.{alias}", "a line has this name already")
        aliases[alias] = _offset(table, f"alias.{alias}", name, offsets)
    wires = tuple(
        (_offset(table, "wires", one, offsets), _offset(table, "wires", other, offsets))
        for one, other in table.pairs("wires")
    )
    if wires and driver != "sim":
        table.refuse("wires", 'only a simulated chip (driver = "sim") has wires')
    table.done()
    return ChipSpec(label, driver, lines, aliases, wires)


def _offsets(table: Table) -> dict[str, int]:
    """Line names to offsets, from `names`, where the index is the offset and "" leaves a line out."""
    names = table.texts("names")
    offsets: dict[str, int] = {}
    for offset, name in enumerate(names):
        if name in offsets:
            table.refuse("names", f"{name!r} is there twice")
        if name:
            offsets[name] = offset
    if not offsets or len(names) > _MAX_OFFSET + 1:
        table.refuse("names", f'expected the names of up to {_MAX_OFFSET + 1} lines, by offset; "" leaves one out')
    return offsets


def _offset(table: Table, key: str, name: str, offsets: Mapping[str, int]) -> int:
    if name not in offsets:
        table.refuse(key, f"no line is named {name!r}")
    return offsets[name]


def _line(offset: int, name: str, table: Table | None) -> LineSpec:
    if table is None:
        return LineSpec(offset, name)
    spec = LineSpec(
        offset,
        name,
        safe=cast("LineState", table.choice("safe", (0, 1, "input"), "input")),
        hold=cast("Hold", table.choice("hold", ("release", "keep"), "release")),
        direction=cast("Direction", table.choice("direction", ("any", "input", "output"), "any")),
        pull=cast("Pull", table.choice("pull", ("none", "up", "down"), "none")),
        reserved=table.text("reserved", None),
        note=table.text("note", None),
    )
    if spec.direction == "input" and spec.safe != "input":
        table.refuse("safe", 'a line with direction = "input" is never driven, so it is safe as an input only')
    table.done()
    return spec


def _i2c(table: Table) -> I2cSpec:
    bus = table.integer("bus", 0, 255)
    driver = table.choice("driver", I2C_DRIVERS)
    speed = table.integer("speed_hz", 1_000, 3_400_000, 100_000)
    devices: list[DeviceSpec] = []
    for entry in table.tables("device"):
        addr = entry.integer("addr", FIRST_ADDR, LAST_ADDR)
        if any(addr == other.addr for other in devices):
            entry.refuse("addr", f"{addr:#04x} is taken on this bus")
        kind = entry.choice("kind", SIM_DEVICES) if driver == "sim" else entry.text("kind")
        devices.append(DeviceSpec(addr, kind, entry.text("note", None), entry.number("write_cycle_ms", 0, 1000, 0.0)))
        entry.done()
    table.done()
    return I2cSpec(bus, driver, speed, tuple(devices))


def _uart(table: Table) -> UartSpec:
    port = table.text("port")
    driver = table.choice("driver", UART_DRIVERS)
    spec = UartSpec(
        port,
        driver,
        path=table.text("path", None) if driver == "sim" else table.text("path"),
        baud=table.integer("baud", 50, 4_000_000, 115_200),
        peer=cast('Literal["echo", "none"]', table.choice("peer", ("echo", "none"), "echo")),
    )
    if driver == "sim" and spec.path is not None:
        table.refuse("path", "a simulated port has none: the pseudo-terminal's is in hw.uart.list")
    table.done()
    return spec


def _sensor(name: str, table: Table) -> SensorSpec:
    spec = SensorSpec(
        name,
        kind=table.choice("kind", tuple(SENSOR_KINDS)),
        bus=table.integer("bus", 0, 255),
        addr=table.integer("addr", FIRST_ADDR, LAST_ADDR),
        description=table.text("description", None),
    )
    table.done()
    return spec
