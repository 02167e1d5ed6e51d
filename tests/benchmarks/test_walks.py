"""The calls of one request on each way through hearth, counted as `benchmarks.walks` says, do not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOUND = 300
"""Seconds after which counting has hung."""
ROOM = 1.05
REACHED = {
    "gpio-set": (247, 339, 13),
    "i2c-read": (340, 461, 13),
    "cancel": (151, 275, 7),
    "embedded": (235, 309, 13),
    "mcp-call": (343, 399, 15),
    "hcp-job": (2101, 3030, 55),
    "fleet-order": (2371, 3825, 55),
}
"""By walk: the calls of functions of hearth, of C functions, and the JSON encodings, with CPython 3.11."""


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "benchmarks.walks", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("walk", REACHED)
def test_a_request_takes_no_more_calls_than_were_reached(counts: dict[str, dict[str, int]], walk: str) -> None:
    hearth, c, encodings = REACHED[walk]
    assert counts[walk]["hearth"] <= ROOM * hearth
    assert counts[walk]["C"] <= ROOM * c
    assert counts[walk]["encodings"] <= encodings


def test_every_walk_is_held(counts: dict[str, dict[str, int]]) -> None:
    assert counts.keys() == REACHED.keys()
    assert all(figures["hearth"] > 100 for figures in counts.values()), "it counts nothing"
