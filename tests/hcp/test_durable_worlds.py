"""Random functions over a runtime in memory, with faults and deaths: what is promised of durable jobs holds in each.

A world that fails says its seed: `HEARTH_DURABLE_SEED=17 pytest tests/hcp/test_durable_worlds.py -k one_seed` plays it.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from attrs import evolve
from hcp.durable_worlds import Broken, play
from support.amounts import amount

from hearth.actors.bridges.hcp.execution import Execution
from hearth.actors.bridges.hcp.job import RunningJob
from hearth.actors.bridges.hcp.store import JobStore
from hearth.actors.session import Session
from hearth.hcp.durable import ReplayHistory

QUICK, BLOCK = 120, 500
WORLDS = amount("HEARTH_JOB_WORLDS", 2000, least=BLOCK)


def played(seeds):
    """What happened in these worlds."""
    figures = Counter()
    for seed in seeds:
        figures += play(seed)
    return figures


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured_here")
def test_some_worlds_keep_every_promise():
    figures = played(range(QUICK))
    assert figures["effects"] > 2 * QUICK
    assert figures["resumed"] > QUICK / 2


@pytest.mark.proof
@pytest.mark.parametrize("block", range(WORLDS // BLOCK))
def test_many_more_worlds_keep_every_promise(block):
    figures = played(range(block * BLOCK, (block + 1) * BLOCK))
    # Everything that can go wrong goes wrong in each block, and jobs come to their end in spite of it.
    for what in (
        "ended: write", "ended: act", "ended: time", "ended: stop", "store failed", "audit log failed", "aborts",
        "HACP sessions ended", "refused", "COMPLETED", "FAILED", "ABORTED", "FAILED: outcome_unknown",
        "FAILED: halted", "FAILED: timeout", "FAILED: daemon_ended", "FAILED: book_unavailable",
        "FAILED: hacp_session_ended", "halts", "reloads", "answers", "yes replayed", "resumptions refused",
    ):  # fmt: skip
        assert figures[what], (what, figures)


@pytest.mark.skipif("HEARTH_DURABLE_SEED" not in os.environ, reason="plays the world of HEARTH_DURABLE_SEED")
def test_one_seed():
    play(int(os.environ["HEARTH_DURABLE_SEED"]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3645, 8352, 9988])
def test_a_world_that_once_found_a_fault_keeps_every_promise(seed):
    """A question that was asked again beside other parts; a pause, and a warning, that could not be stored."""
    play(seed)


@pytest.mark.slow
def test_the_same_seed_is_the_same_world_again():
    first = [play(seed) for seed in range(5)]
    assert [play(seed) for seed in reversed(range(5))] == first[::-1]


# --- the promises catch what they are for ----------------------------------------------------------------------------


def outcomes_are_written_late(monkeypatch):
    keep, late = Execution._keep, []

    async def keep_the_one_before(self, recorded):
        late.append((self, recorded))
        if len(late) > 1 and late[0][0] is self:
            await keep(*late.pop(0))

    monkeypatch.setattr(Execution, "_keep", keep_the_one_before)


def beginnings_are_not_noted(monkeypatch):
    async def note(*_):
        return False

    monkeypatch.setattr(Execution, "_note", note)


def replay_ignores_the_record(monkeypatch):
    monkeypatch.setattr(ReplayHistory, "take", lambda *_: None)


def a_step_that_was_under_way_is_taken_for_none(monkeypatch):
    async def begun(*_):
        return []

    monkeypatch.setattr(JobStore, "begun", begun)


def a_job_outlives_a_halt(monkeypatch):
    heard = Session._heard

    def newer(self, request):
        heard(self, request)
        request.halts = self._services.tasks.halt_flag.count

    monkeypatch.setattr(Session, "_heard", newer)
    monkeypatch.setattr(RunningJob, "halt", lambda *_: None)


def an_answer_is_replayed_whatever_has_changed(monkeypatch):
    monkeypatch.setattr(Execution, "_expired", lambda *_: False)


def a_job_that_completed_is_resumed(monkeypatch):
    session = JobStore.session

    async def failed(self, session_id):
        found = await session(self, session_id)
        return found and evolve(found, state="FAILED" if found.state == "COMPLETED" else found.state)

    monkeypatch.setattr(JobStore, "session", failed)


def a_job_is_resumed_as_often_as_it_is_asked_for(monkeypatch):
    session = JobStore.session

    async def not_yet(self, session_id):
        found = await session(self, session_id)
        return found and evolve(found, resumed_by=None)

    monkeypatch.setattr(JobStore, "session", not_yet)


BUGS = {
    an_answer_is_replayed_whatever_has_changed: "is replayed, and what it may rest on has changed|is replayed after",
    a_job_that_completed_is_resumed: "is resumed again, or is of a job that has completed",
    a_job_is_resumed_as_often_as_it_is_asked_for: "is resumed again, or is of a job that has completed",
    a_job_outlives_a_halt: "began after a halt that came after that job",
    outcomes_are_written_late: "was seen as|had an effect",
    beginnings_are_not_noted: "began twice|nothing is on record",
    replay_ignores_the_record: "began twice|is on record as|two records",
    a_step_that_was_under_way_is_taken_for_none: "began twice|nothing is on record",
}


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(Broken, match=BUGS[plant]) as broken:
        played(range(QUICK))
    assert "again: seed" in broken.value.__notes__[0]
