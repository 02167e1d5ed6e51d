"""IIO: the sensors that the kernel drives itself, and devices with a buffer for captures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.drivers.kind import BusKind, Opening, Specs, late
from hearth.fields import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.drivers.base import Driver
    from hearth.drivers.iio.spec import IioSpec
    from hearth.fields import Table


def _open(spec: IioSpec, opening: Opening) -> Driver | None:
    from hearth.drivers.iio.spec import iio_driver

    # The kernel's devices are read on the bus of all its sensors.
    return iio_driver(spec, opening.style) if spec.driver == "sim" else None


def _check(top: Table, specs: Specs, discover: Mapping[str, tuple[str, ...]]) -> None:
    for index, spec in enumerate(specs.get("iio", ())):
        if spec.driver == "iio" and "sensors" not in discover:
            reason = "the kernel's sensors are not offered; add sensors = true under [discover]"
            top.faults.append(Fault(f"iio[{index}].driver", reason))


KIND: Final = BusKind(
    name="iio",
    key="label",
    scope="i2c",
    discover="sensors",
    patterns=False,
    open=_open,
    tools=late("iio.tools:sensor_tools"),
    sensors=lambda specs: [sensor for spec in specs.get("iio", ()) for sensor in spec.sensors()],
    check=_check,
)
