"""Checks of the machine's own devices.

The drivers examine the hardware; this module rates their findings and words them. The drivers are above this package,
so they are imported by name, and only when this command runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from hearth.cli.doctor.check import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


BOARDS = "hearth.drivers.boards.diagnose"


def look_at_hardware(board: str | None) -> dict[str, Any]:
    """Return the hardware of this machine, and the fit of the profile `board`. Raises ConfigError for a bad profile."""
    found: dict[str, Any] = import_module(BOARDS).look(board)
    return found


def hardware_checks(found: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the findings as checks.

    A requirement of the profile that the machine does not meet is a FAIL. Without a profile, any missing permission is
    a WARN; with one, only the profile's own requirements count.
    """
    profile = found.get("profile")
    for word, told, entry in import_module(BOARDS).told(found):
        yield _device(word, told, entry, told_apart=profile is None)
    for hint in found["hints"]:
        yield Check("OK", hint["kind"], hint["hint"])
    yield Check("OK", "sensors", f"{found['sensors']} kernel sensors (hwmon, IIO, thermal, power)")
    if not found["everybody_seen"] and found["ports"]:
        yield Check("OK", "holders", "of other users' processes it cannot be seen what they hold; as root it can")
    if profile is not None:
        yield from _fit(profile)


def _device(kind: str, told: str, entry: Mapping[str, Any], *, told_apart: bool) -> Check:
    lack = entry.get("lack")
    if entry.get("not_driven") is not None:
        told += f"; generic-linux does not drive it: {entry['not_driven']['reason']}"
    elif lack is not None:
        told += f"; {lack['reason']}"
        if told_apart:
            return Check("WARN", kind, told, lack["cure"])
    elif entry.get("problem") is not None:
        return Check("WARN", kind, told, entry["cure"])
    elif entry.get("error") is not None:
        return Check("WARN", kind, told, "the kernel's log may say why: `sudo dmesg`")
    return Check("OK", kind, told)


_SEVERITIES: Mapping[str, Literal["OK", "WARN", "FAIL"]] = {"note": "OK", "warn": "WARN", "fail": "FAIL"}


def _fit(profile: Mapping[str, Any]) -> Iterator[Check]:
    if not profile["wants"]:
        yield Check("OK", "profile", f"{profile['name']} needs nothing of this machine")
    elif not profile["problems"]:
        yield Check("OK", "profile", f"{profile['name']} fits this machine")
    for name in ("problems", "safety"):
        for problem in profile[name]:
            told = f"{profile['name']}: {problem['key']}: {problem['problem']}"
            state = _SEVERITIES[problem["severity"]]
            cure = None if state == "OK" else problem["cure"]
            yield Check(state, "profile" if name == "problems" else name, told, cure)
    if not profile["safety"]:
        yield Check("OK", "safety", f"{profile['name']} has no gap that is checked here: outputs, interlocks, halt")
