"""The actor that reads the machine's energy meters now and then, so that the card can say what a call costs.

Owns when they are read. It reads through the sensors' driver, in a thread, and past the bus: a reading keeps nothing
and changes nothing, and must not wait behind a client's. What the readings mean, `hearth.agentcard.build` says.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio

from hearth.agentcard.build import PERIOD_S, EnergyPerInvocation, Sensor, choose_meters
from hearth.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hearth.agentcard.build import Measured
    from hearth.drivers.linux.sensors import KernelSensors

log = logging.getLogger("hearth.energymeter")

MAX_SENSORS = 1000
MOST_FAILURES = 5
"""Readings in a row that fail before a meter is given up: it was unplugged, or its permission withdrawn."""


class EnergyMeter:
    """Reads as long as `run` does; without a driver or meters that ends at once, and `measured` stays None."""

    def __init__(
        self,
        driver: KernelSensors | None,
        invocations: Callable[[], int],
        *,
        clock: Callable[[], float] = trio.current_time,
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._driver = driver
        self._invocations = invocations
        self._clock = clock
        self._pause = pause
        self._energy = EnergyPerInvocation(())

    def measured(self) -> Measured | None:
        """The newest figure."""
        return self._energy.measured

    async def run(self) -> None:
        """Find the meters and read them every PERIOD_S, until cancelled or there is nothing more to be read."""
        driver = self._driver
        if driver is None:
            return
        await self._pause(PERIOD_S)  # a daemon that starts has better things to do, and one that ends soon needs none
        try:
            sensors = await _in_thread(lambda: [_known(each) for each in driver.scan(MAX_SENSORS)])
        except (DeviceError, OSError) as error:
            log.warning("energy is not measured: the sensors cannot be listed: %s", error)
            return
        self._energy = EnergyPerInvocation(choose_meters(sensors))
        failures = 0
        while self._energy.meters:
            try:
                values = await _in_thread(lambda: self._read(driver))
            except (DeviceError, OSError) as error:
                failures += 1
                self._energy.broken()
                if failures >= MOST_FAILURES:
                    log.warning("energy is no longer measured: %s", error)
                    return
            else:
                failures = 0
                self._energy.reading(self._clock(), values, self._invocations())
            await self._pause(PERIOD_S)

    def _read(self, driver: KernelSensors) -> dict[str, float]:
        return {meter.sensor: float(driver.read(meter.sensor).value) for meter in self._energy.meters}


async def _in_thread(work: Callable[[], Any]) -> Any:
    # Left behind at the end of the daemon: a chip behind a slow wire may hold a read for seconds, and nobody waits.
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def _known(sensor: Any) -> Sensor:
    return Sensor(sensor.name, sensor.kind, sensor.unit, sensor.limits.get("max"), readable=sensor.problem is None)
