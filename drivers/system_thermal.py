"""How warm the machine is and what it does about it, from /sys: for `hearth.drivers.system`.

Owns zones, chips' temperatures, cooling devices and what slows the processor down. It sets nothing, and asks no chip
for an alarm that asking would clear. Single quantities by lasting names are `hearth.drivers.linux.sensors`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.drivers import system_sources as sources

if TYPE_CHECKING:
    from pathlib import Path

THROTTLES = ("undervoltage", "frequency-capped", "throttled", "soft-temperature-limit")
"""The firmware's flags of a Raspberry Pi, bits 0 to 3: true now. The same 16 bits further up: was true earlier."""


def thermal(sys: Path) -> dict[str, Any]:
    """Temperatures in °C, cooling and throttling; lists are empty and values null on a machine that has none."""
    zones = [_zone(at) for at in sources.numbered(sys / "class/thermal", "thermal_zone*")]
    chips = sources.numbered(sys / "class/hwmon", "hwmon*")
    sensors = [
        {
            "chip": sources.text(chip / "name"),
            "sensor": f"{chip.name}/{name}",
            "label": sources.text(chip / f"{name}_label"),
            "celsius": sources.celsius(chip / f"{name}_input"),
            "max_celsius": sources.celsius(chip / f"{name}_max"),
            "critical_celsius": sources.celsius(chip / f"{name}_crit"),
        }
        for chip in chips
        for name in (at.name.removesuffix("_input") for at in sources.numbered(chip, "temp*_input"))
    ]
    measured = [row["celsius"] for row in (*zones, *sensors) if row["celsius"] is not None]
    return {
        "zones": zones,
        "hwmon": sensors,
        "cooling": [_cooling(at) for at in sources.numbered(sys / "class/thermal", "cooling_device*")],
        "throttling": _throttling(sys, chips),
        "hottest_celsius": max(measured, default=None),
    }


def _zone(at: Path) -> dict[str, Any]:
    trips = []
    for kind in sources.numbered(at, "trip_point_*_type"):
        point = kind.name.removesuffix("_type")
        celsius = sources.celsius(at / f"{point}_temp")
        if celsius is not None and celsius > -273:  # a trip that is switched off lies beneath
            trips.append({"type": sources.text(kind), "celsius": celsius})
    critical = [trip["celsius"] for trip in trips if trip["type"] == "critical"]
    return {
        "zone": at.name,
        "type": sources.text(at / "type"),
        "celsius": sources.celsius(at / "temp"),
        "critical_celsius": critical[0] if critical else None,
        "trips": trips,
    }


def _cooling(at: Path) -> dict[str, Any]:
    return {
        "device": at.name,
        "type": sources.text(at / "type"),
        "state": sources.integer(at / "cur_state"),
        "max_state": sources.integer(at / "max_state"),
    }


def _throttling(sys: Path, chips: list[Path]) -> dict[str, Any]:
    flags = _firmware_flags(sys)
    now, earlier = (
        (None, None)
        if flags is None
        else ([name for bit, name in enumerate(THROTTLES) if flags >> base + bit & 1] for base in (0, 16))
    )
    for chip in chips:
        if sources.text(chip / "name") == "rpi_volt":
            low = sources.integer(chip / "in0_lcrit_alarm")
            if low is not None:
                now = sorted({*(now or ()), *(["undervoltage"] if low else ())}, key=THROTTLES.index)
    cores = sources.numbered(sys / "devices/system/cpu", "cpu[0-9]*")
    counts = (sources.integer(core / "thermal_throttle/core_throttle_count") for core in cores)
    events = [count for count in counts if count is not None]
    return {"now": now, "earlier": earlier, "events": sum(events) if events else None}


def _firmware_flags(sys: Path) -> int | None:
    """The flags of a Raspberry Pi's firmware, or None.

    Newer kernels log once that this attribute is outdated; three of its four flags they offer nowhere else.
    """
    for at in sources.numbered(sys / "devices/platform", "soc*/soc*firmware/get_throttled"):
        found = sources.text(at)
        try:
            return None if found is None else int(found, 16)
        except ValueError:
            return None
    return None
