"""Board profiles: what a board has, as TOML, and what hearth may do with it (design §5).

Owns the profile's shape and its checks; refuses to look at the machine. A profile is an allowlist: a line,
adapter or port that it does not list does not exist for anybody who asks through hearth.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import field, frozen

from hearth.drivers.boards.adapters import (
    DeviceSpec as DeviceSpec,
    I2cSpec as I2cSpec,
    parse_adapter,
    parse_addr,
)
from hearth.drivers.boards.chips import ChipSpec as ChipSpec, parse_chip
from hearth.drivers.boards.ports import UartSpec as UartSpec, parse_port
from hearth.drivers.boards.sensors import SENSOR_KINDS
from hearth.drivers.boards.strict import Table
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind: TypeAlias = Literal["gpio", "i2c", "uart", "sensors"]

_SHIPPED = Path(__file__).parent


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
    discover: Mapping[Kind, tuple[str, ...]] = field(factory=dict)
    """What to look for on the machine besides what is listed: kind to patterns of nodes and names, ("*",) for all."""


def shipped_profiles() -> list[str]:
    """The names of the profiles that come with hearth."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def profile_file(name_or_path: str) -> Path | None:
    """The file of a profile that is given by its path; None for a shipped one."""
    return Path(name_or_path) if "/" in name_or_path or name_or_path.endswith(".toml") else None


def load_profile(name_or_path: str) -> Profile:
    """Read a profile: a shipped one by name, or a TOML file by path (with a "/" in it, or ending in .toml).

    Raises ConfigError naming the file, the key path and what is expected there.
    """
    path = profile_file(name_or_path)
    if path is None:
        path = _SHIPPED / f"{name_or_path}.toml"
        if name_or_path not in shipped_profiles():
            raise ConfigError(
                f"no board profile {name_or_path!r}; shipped are {', '.join(shipped_profiles())}, "
                "or give the path of a TOML file"
            )
    source = f"board profile {path.name if path.parent == _SHIPPED else path}"
    try:
        content = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{source}: is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{source}: arrays or tables are nested too deeply; flatten them") from None
    return parse_profile(content, source)


def parse_profile(content: Mapping[str, object], source: str) -> Profile:
    """A profile from the content of its TOML file. Raises ConfigError."""
    top = Table(source, "", content)
    tools = top.table("tools")
    discover = top.table("discover")
    kinds: tuple[Kind, ...] = ("gpio", "i2c", "uart", "sensors")
    profile = Profile(
        name=top.text("name"),
        description=top.text("description"),
        source=source,
        chips=tuple(parse_chip(table) for table in top.tables("gpio")),
        i2c=tuple(parse_adapter(table) for table in top.tables("i2c")),
        uarts=tuple(parse_port(table) for table in top.tables("uart")),
        sensors=tuple(_sensor(name, table) for name, table in top.named("sensors")),
        tools=tools.texts("allow", ("*",)),
        discover={kind: patterns for kind in kinds if (patterns := _patterns(discover, kind))},
    )
    tools.done()
    discover.done()
    top.done()
    _unique(top, "gpio", "label", [chip.label for chip in profile.chips])
    _unique(top, "i2c", "bus", [spec.bus for spec in profile.i2c])
    _unique(top, "uart", "port", [spec.port for spec in profile.uarts])
    adapters = {spec.bus: spec for spec in profile.i2c}
    for sensor in profile.sensors:
        if sensor.bus not in adapters:
            top.refuse(f"sensors.{sensor.name}.bus", f"there is no [[i2c]] with bus = {sensor.bus}")
        refused = adapters[sensor.bus].addresses.refusal(sensor.addr)
        if refused is not None:
            top.refuse(f"sensors.{sensor.name}.addr", f"{sensor.addr:#04x} may not be used: {refused}")
    return profile


def _unique(top: Table, key: str, what: str, values: list[str] | list[int]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            top.refuse(f"{key}[{index}].{what}", f"{value!r} is there twice")


def _patterns(table: Table, kind: str) -> tuple[str, ...]:
    """`true` for everything, or a list of patterns, which sensors do not have: reading one does no harm."""
    if kind != "sensors" and table.is_list(kind):
        return table.texts(kind)
    return ("*",) if table.flag(kind, False) else ()


def _sensor(name: str, table: Table) -> SensorSpec:
    spec = SensorSpec(
        name,
        kind=table.choice("kind", tuple(SENSOR_KINDS)),
        bus=table.integer("bus", 0, 255),
        addr=parse_addr(table),
        description=table.text("description", None),
    )
    table.done()
    return spec
