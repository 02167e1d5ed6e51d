"""A sensor of a board: a named quantity that one transaction of its bus reads, as a number with a unit.

Each kind of bus has a subclass that knows the transaction. A sensor keeps no state and needs no second transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from hearth.drivers.registers import Outcome
    from hearth.tools import Use

SENSORS_BUS = "sensors"
"""The bus of the sensors that the kernel drives itself, on boards whose profile offers them."""


class SensorDriver(Protocol):
    """The driver of the bus "sensors", as a reader of the kernel's sensors knows it."""

    def scan(self, most: int = ...) -> list[Any]:
        """Return the sensors that there are now, each with its name in `sensor`."""
        ...

    def read(self, name: str) -> Any:
        """Return a reading, with its number in `value`. Raises DeviceError."""
        ...


@frozen(eq=False)
class Sensor(ABC):
    """One sensor of a board. `bus` is a bus id ("i2c:1")."""

    name: str
    kind: str
    bus: str
    addr: int
    unit: str
    description: str | None = None

    @property
    def checked(self) -> bool:
        """True if the profile says which of its numbers are not measurements (`none`, `valid`)."""
        source = getattr(self, "register", self)
        return bool(getattr(source, "none", ()) or getattr(source, "valid", None))

    def to_json(self) -> dict[str, Any]:
        """Return the sensor for hw.sensor.list."""
        entry = {"sensor": self.name, "kind": self.kind, "unit": self.unit, "bus": self.bus}
        return entry if self.description is None else {**entry, "description": self.description}

    @abstractmethod
    def uses(self) -> Use:
        """Return the device that it is read from."""

    @abstractmethod
    def limit_ms(self, driver: Any) -> float:
        """Return the milliseconds after which reading it with the driver of its bus counts as wedged."""

    @abstractmethod
    def read(self, driver: Any) -> Outcome[Any]:
        """Return the transaction that reads it; `value` decodes its result."""

    @abstractmethod
    def value(self, raw: Any) -> float:
        """Return the number of `raw`. Raises DeviceError."""
