"""`hearth demo --hcp`: a job from submission to account; no claim that is not so, and nothing left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hearth.cli.demo import hcp


@pytest.fixture
def temporary(monkeypatch):
    """A directory for temporary files that is short enough for a socket, and must be empty in the end."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.proof
def test_the_demo_of_a_job_plays_to_the_end_and_leaves_nothing_behind(cli, temporary, unmeasured):
    answer = cli("demo", "--hcp", "--fast")
    assert answer.code == 0, answer.out + answer.err
    assert "✗" not in answer.out
    assert answer.err == ""
    for said in (
        "bench-climate-survey 2.0.0",
        "accepted",
        "PENDING → RUNNING",
        "at,at_s,value,unit",
        "its size and its SHA-256 are those that the job has told",
        "it gets the first answer, and the outcome of the job that was done",
        "invalid_input: /payload/inputs/samples",
        "hcp.submit",
        "hcp.accept",
        "hcp.finish",
        "none was done twice",
        "unbroken from the first record to the last",
    ):
        assert said in answer.out
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_a_job_that_is_not_done_ends_the_demo_with_1(cli, monkeypatch, unmeasured):
    monkeypatch.setattr(hcp, "INPUTS", {**hcp.INPUTS, "sensor": "barometer"})
    answer = cli("demo", "--hcp", "--json")
    assert answer.code == 1
    transcript = answer.json
    assert transcript["ok"] is False
    assert transcript["error"].startswith("not so: it completed, and says how sure it is")
    assert transcript["scenes"][-1]["claims"][-1]["holds"] is False
