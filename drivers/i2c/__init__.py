"""I2C: adapters, the devices on them, and sensors that one transaction reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.drivers.kind import BusKind, Caution, Opening, Specs, late

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.drivers.base import Driver
    from hearth.drivers.i2c.spec import I2cSpec
    from hearth.drivers.kind import Specs
    from hearth.drivers.sensor import Sensor
    from hearth.fields import Table


def _sensors(specs: Specs) -> Iterable[Sensor]:
    return [spec.sensor() for spec in specs.get("sensors", ())]


def _check(top: Table, specs: Specs, _discover: Mapping[str, tuple[str, ...]]) -> None:
    for sensor in specs.get("sensors", ()):
        sensor.check(top, specs.get("i2c", ()))


def _open(spec: I2cSpec, opening: Opening) -> Driver:
    from hearth.drivers.base import Style

    if spec.driver == "i2c-dev":
        from hearth.drivers.i2c.linux import LinuxI2c

        kernel: Any = {"adapter": spec.adapter, "timeout_ms": spec.timeout_ms, "retries": spec.retries}
        return LinuxI2c(spec.bus, speed_hz=spec.speed_hz, addresses=spec.addresses, **kernel)
    from hearth.drivers.i2c.sim import Device, Eeprom, Mcp3221, SimI2c, SlowTemperature, Tmp102
    from hearth.drivers.simulated import clock_for

    style = opening.style or Style.THREAD
    clock = clock_for(style)
    devices: dict[int, Device] = {}
    for device in spec.devices:
        if device.kind == "tmp102":
            devices[device.addr] = Tmp102(SlowTemperature(opening.seed + device.addr, clock))
        elif device.kind == "mcp3221":
            devices[device.addr] = Mcp3221(lambda: 0.0)
        else:
            devices[device.addr] = Eeprom(clock, write_cycle_s=device.write_cycle_ms / 1000)
    return SimI2c(spec.bus, devices, style=style, speed_hz=spec.speed_hz, addresses=spec.addresses)


def _lean(specs: Specs, users: Mapping[str, str]) -> Specs:
    from hearth.drivers.i2c.spec import lean_on

    return {"i2c": lean_on(specs.get("i2c", ()), specs.get("sensors", ()), users)}


def _cautions(specs: Specs) -> Iterable[Caution]:
    from hearth.drivers.i2c.spec import only_read

    return [Caution(key, "note", problem, cure) for key, problem, cure in only_read(specs.get("i2c", ()))]


KIND: Final = BusKind(
    name="i2c",
    key="bus",
    discover="i2c",
    named={"sensors": late("i2c.spec:parse_sensor")},
    open=_open,
    sensors=_sensors,
    check=_check,
    outputs=late("i2c.outputs:I2cOutputs", 1),
    lean=_lean,
    cautions=_cautions,
)
