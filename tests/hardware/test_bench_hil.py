"""The benchmarks run and produce every row. No figure is judged here: that is for a quiet machine and a person."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOUND = 300
"""Seconds after which a run counts as hung, not as slow."""


@pytest.mark.unmeasured
def test_a_quick_run_produces_every_row_with_a_figure(tmp_path):
    target = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.hil", "--quick", "--json", str(target)]
    env = {**os.environ, "PYTHONPATH": "tests"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=BOUND)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in json.loads(target.read_text())["rows"]}
    assert set(rows) == {
        *("set-steps", "set-tasks", "set-steps-thread", "set-tasks-thread"),
        *("edge-event", "edge-event-thread", "idle"),
        *("can-read", "can-read-bare", "can-read-lost", "can-watch", "can-watch-bare", "can-watch-lost"),
    }
    for name, row in rows.items():
        assert row["figure"] is not None
        assert row["figure"] > 0 or name == "idle" or name.endswith("-lost")
        assert (row["met"] is None) == (row["goal"] is None)
        assert row["what"] in done.stdout
