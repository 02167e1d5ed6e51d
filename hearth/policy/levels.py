"""The levels of whole jobs that a policy entry bounds: risks and data classifications, lowest first (HCP L3)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

Risk: TypeAlias = Literal["R1", "R2", "R3", "R4", "R5"]
"""Minimal, low, moderate, high, critical (L3, Risk Classification)."""
Classification: TypeAlias = Literal["T1", "T2", "T3", "T4"]
"""Public, internal, confidential, restricted (L3, Data Classification)."""

RISKS: Final[tuple[Risk, ...]] = get_args(Risk)
CLASSIFICATIONS: Final[tuple[Classification, ...]] = get_args(Classification)
