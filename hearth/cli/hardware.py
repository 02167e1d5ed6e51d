"""The doctor's checks of the machine's hardware: what is there, what a user lacks, what somebody else holds.

Owns which finding is good or bad, and its words. The looking is the drivers' business: they stand above this package
and are called by name, when a doctor is asked for and not before, so that no other command imports them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hearth.cli.checks import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOOKING = "hearth.drivers.boards.findings"

MOST_USED = 6
"""Lines in use that are named; the rest are counted. --json has all."""


def look(board: str | None) -> dict[str, Any]:
    """What is on this machine, and whether the profile `board` fits. Raises ConfigError for a bad profile."""
    found: dict[str, Any] = import_module(_LOOKING).look(board)
    return found


def checks(found: Mapping[str, Any]) -> Iterator[Check]:
    """The findings as checks.

    What a profile wants and does not get fails. Without a profile everything is of interest, so a lacking permission
    is a warning; with one, only what the profile needs is, and it says so itself.
    """
    profile = found.get("profile")
    for kind, tell in (("chip", _chip), ("adapter", _adapter), ("port", _port)):
        for entry in found[f"{kind}s"]:
            yield _device(kind, f"{entry['node']} {tell(entry)}", entry, told_apart=profile is None)
    yield Check("OK", "sensors", f"{found['sensors']} kernel sensors (hwmon, IIO, thermal, power)")
    if not found["everybody_seen"] and found["ports"]:
        yield Check("OK", "holders", "of other users' processes it cannot be seen what they hold; as root it can")
    if profile is not None:
        yield from _fit(profile)


def _device(kind: str, told: str, entry: Mapping[str, Any], *, told_apart: bool) -> Check:
    if entry["not_driven"] is not None:
        told += f"; generic-linux does not drive it: {entry['not_driven']['reason']}"
    elif entry["lack"] is not None:
        told += f"; {entry['lack']['reason']}"
        if told_apart:
            return Check("WARN", kind, told, entry["lack"]["cure"])
    elif entry.get("error") is not None:
        return Check("WARN", kind, told, "the kernel's log may say why: `sudo dmesg`")
    return Check("OK", kind, told)


def _chip(chip: Mapping[str, Any]) -> str:
    if chip["lines"] is None:
        return f"({chip['driver'] or 'GPIO chip'}), not opened: {chip['error']}"
    told = f'"{chip["label"]}" ({chip["driver"]}): {chip["lines"]} lines'
    used = [_line(line) for line in chip["used"]]
    more = f" and {len(used) - MOST_USED} more" if len(used) > MOST_USED else ""
    return told + (f", {len(used)} in use: {', '.join(used[:MOST_USED])}{more}" if used else ", none in use")


def _line(line: Mapping[str, Any]) -> str:
    name = f"{line['line']} ({line['name']})" if line["name"] else str(line["line"])
    by = f", {_processes(line['by'])}" if line["by"] else ""
    return f"{name} by {line['consumer'] or 'the kernel'}{by}"


def _adapter(adapter: Mapping[str, Any]) -> str:
    return f'"{adapter["name"]}"{_able(adapter["functionality"])}{_open_in(adapter)}'


def _able(abilities: list[str] | None) -> str:
    if abilities is None:
        return ""
    if "i2c" in abilities:
        return ": raw I2C" + (", 10-bit addresses" if "10bit" in abilities else "")
    return f": SMBus only ({', '.join(abilities) or 'nothing'})"


def _port(port: Mapping[str, Any]) -> str:
    return f"({port['driver'] or 'serial port'}){_open_in(port)}"


def _open_in(entry: Mapping[str, Any]) -> str:
    return f", open in {_processes(entry['open_in'])}" if entry["open_in"] else ""


def _processes(holders: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{holder['name']} (pid {holder['pid']})" for holder in holders)


def _fit(profile: Mapping[str, Any]) -> Iterator[Check]:
    if not profile["wants"]:
        yield Check("OK", "profile", f"{profile['name']} needs nothing of this machine")
    elif not profile["problems"]:
        yield Check("OK", "profile", f"{profile['name']} fits this machine")
    for problem in profile["problems"]:
        told = f"{profile['name']}: {problem['key']}: {problem['problem']}"
        yield Check("FAIL" if problem["severity"] == "fail" else "WARN", "profile", told, problem["cure"])
