"""The values that HCP messages are made of: instants, durations, risk levels, data classes, priorities (L1, L3, L4).

One way in and one way out for each. It refuses to guess: what is not exactly of its kind is a ValueError that says
what was expected.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias, cast, get_args
from uuid import uuid4

HCP_VERSION: Final = "1.0"
"""The version we speak (L1, Envelope Fields)."""

Risk: TypeAlias = Literal["R1", "R2", "R3", "R4", "R5"]
"""Minimal, low, moderate, high, critical (L3, Risk Classification)."""
Classification: TypeAlias = Literal["T1", "T2", "T3", "T4"]
"""Public, internal, confidential, restricted (L3, Data Classification)."""
Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]
State: TypeAlias = Literal["PENDING", "REJECTED", "RUNNING", "PAUSED", "ABORTING", "ABORTED", "COMPLETED", "FAILED"]
"""Of an HCP session (L2, State Definitions)."""
EventType: TypeAlias = Literal[
    "session_created", "state_changed", "progress", "intermediate_result", "log", "warning", "error",
    "checkpoint_created", "session_closed",
]  # fmt: skip
"""What an event says (L2, Standard Event Types)."""
ErrorCode: TypeAlias = Literal[
    "execution_error", "timeout", "safety_violation", "resource_unavailable", "internal_error", "input_error"
]
"""Why a task failed (L4, Standard Error Codes)."""

RISKS: Final[tuple[Risk, ...]] = get_args(Risk)
CLASSIFICATIONS: Final[tuple[Classification, ...]] = get_args(Classification)

NEEDED_RISK_LEVEL: Final[dict[Risk, int]] = {"R1": 0, "R2": 1, "R3": 2, "R4": 2, "R5": 3}
"""The HACP risk level (draft §3.3) that a caller's policy must allow for a task of this risk."""
LEAST_RISK: Final[dict[int, Risk]] = {0: "R1", 1: "R2", 2: "R3", 3: "R5"}
"""The least risk that a capability may declare which uses a tool of this HACP risk level."""


_LEAST: Final = timedelta(microseconds=1)
# What the two libraries are given at all: they take a line feed at the end, any character for the T, "PT", and more.
_INSTANT: Final = re.compile(r"[0-9W-]{7,10}T[0-9:.,]{2,40}(Z|[+-]00(:?00)?)")
_PART: Final = r"[0-9]{1,12}([.,][0-9]{1,12})?"
_DURATION: Final = re.compile(f"P(?=.)({_PART}[YMWD])*(T({_PART}[HMS])+)?")


def new_id() -> str:
    """A fresh UUID v4, for a message or a session (L1, Envelope Fields)."""
    return str(uuid4())


def write_instant(instant: float | datetime) -> str:
    """Epoch seconds, or a datetime in UTC, as ISO 8601 with milliseconds; a datetime that has finer ones keeps them."""
    if not isinstance(instant, datetime):
        return write_instant(whole_milliseconds(instant))
    precision = "microseconds" if instant.microsecond % 1000 else "milliseconds"
    return instant.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def whole_milliseconds(epoch_s: float) -> datetime:
    """Epoch seconds as a datetime that `write_instant` says exactly."""
    return datetime.fromtimestamp(math.floor(epoch_s * 1000) / 1000, UTC)


def read_instant(text: str) -> datetime:
    """An ISO 8601 date and time in UTC, in any of the standard's forms. Raises ValueError."""
    try:
        instant = datetime.fromisoformat(text) if _INSTANT.fullmatch(text) else None
    except ValueError:
        instant = None
    if instant is None:
        raise ValueError(f'expected an instant in UTC such as "2025-01-15T08:30:00.000Z", got {ascii(text)[:60]}')
    return instant


def read_duration(text: str, *, least: timedelta = _LEAST) -> timedelta:
    """An ISO 8601 duration of a fixed length (no years, no months), by default more than nothing. Raises ValueError."""
    import isodate  # 30 ms, and most who import this module never see a duration

    try:
        duration = isodate.parse_duration(text) if _DURATION.fullmatch(text) else None
    except (isodate.ISO8601Error, ArithmeticError):
        duration = None
    if type(duration) is not timedelta:
        shown = ascii(text)[:60]
        raise ValueError(f'expected an ISO 8601 duration such as "PT10M", without years and months, got {shown}')
    if duration < least:
        raise ValueError(f"expected a duration that is more than nothing, got {ascii(text)[:60]}")
    return duration


def write_duration(duration: timedelta) -> str:
    """A duration as ISO 8601, in the form of the pages' examples: PT2H15M, PT0.25S, and PT0S for none."""
    import isodate

    return cast("str", isodate.duration_isoformat(duration)) if duration else "PT0S"
