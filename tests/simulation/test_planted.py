"""Planted bugs: each fits the shipped source once, leaves it as it is, and is caught by what is named for it."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from simulation.invariants import ALL
from simulation.planted import Hung, in_time, plant
from simulation.planted_bugs import BUGS, BY_NAME, ROOT

NAMES = {invariant.name for invariant in ALL}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_the_shipped_source_exactly_once(bug):
    planted = bug.planted_in(bug.path.read_text())
    assert planted != bug.path.read_text()
    compile(planted, str(bug.path), "exec")
    assert bug.invariant in NAMES


def test_a_bug_whose_place_has_changed_is_named():
    bug = BUGS[0]
    with pytest.raises(LookupError, match=f"planted bug {bug.name}: its old text is 0 times in {bug.module}, not once"):
        bug.planted_in("nothing of the kind")
    with pytest.raises(LookupError, match="is 2 times"):
        bug.planted_in(bug.old * 2)


def test_there_are_at_least_ten_bugs_of_different_names_for_different_promises():
    assert len(BY_NAME) == len(BUGS) >= 10
    assert len({bug.invariant for bug in BUGS}) >= 10


def test_a_bug_is_planted_only_in_a_process_that_has_not_imported_its_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "hearth.actors.bus.queue", sys)
    with pytest.raises(RuntimeError, match="a bug is planted in a fresh process"):
        plant("stale-ticket")


@pytest.mark.slow
def test_a_scenario_that_spins_is_given_up():
    def spin():
        while True:
            pass

    with pytest.raises(Hung):
        in_time(spin, seconds=1)


@pytest.mark.proof
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught_by_the_invariant_that_is_named_for_it(bug, unmeasured):
    before = hashlib.sha256(bug.path.read_bytes()).hexdigest()
    command = [sys.executable, "-m", "tests.simulation", "--planted", bug.name, "--no-shrink"]
    command += ["--from", str(bug.seed), "--seeds", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"caught by “{bug.invariant}” in seed {bug.seed}" in ran.stdout
    assert hashlib.sha256(bug.path.read_bytes()).hexdigest() == before
