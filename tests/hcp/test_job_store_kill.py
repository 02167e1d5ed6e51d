"""kill -9 in the middle of heavy writing: what the job store has answered is there, and all of it is in one piece."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from support.hcp_job_store import ANN, line, look, running, session_id
from support.hcp_writer import STEPS

from hearth.actors.bridges.hcp.artifacts import ArtifactStore
from hearth.actors.bridges.hcp.store import JobStore
from hearth.actors.bridges.hcp.store.queries import sequence_of

ROUNDS = 20
TESTS = Path(__file__).parent.parent


@pytest.fixture
def writers(tmp_path, unmeasured):
    """Starts writers on a job store, and kills each after it has said so many things; what they said until then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.hcp_writer", tmp_path / "hcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=TESTS,
        text=True,
    )

    def kill_after(first, most):
        process.stdin.write(f"{first}\n")
        process.stdin.flush()
        said, pid = [], None
        while True:
            what, *of = json.loads(process.stdout.readline())
            if what == "over":
                return said
            if what == "begun":
                (pid,) = of
            else:
                said.append((what, *of))
            if pid is not None and len(said) >= most:
                # Once: what it had said by then is still to be read, and then there is no such process.
                os.kill(pid, signal.SIGKILL)
                pid = None

    with process:
        yield kill_after
        process.stdin.close()
        assert process.wait(30) == 0


async def check(place, said, first):
    """What a writer was answered is so; what it was not answered is so or is not, but never by halves."""
    job_store = JobStore(place)
    store = ArtifactStore(place, job_store, most_each=1 << 20, most_all=1 << 30)
    async with running(job_store):
        assert store.open() == []
        assert job_store.aside is None
        rows = {row.session_id: row for row in await job_store.sessions(ANN, 10_000)}
        last = max((of[0] for _, *of in said), default=first) + 8
        for number in range(first, last):
            claim = await job_store.claim(ANN, f"message-{number}", "digest")
            row = rows.get(session_id(number))
            assert (claim.kind == "answered") == (row is not None)
            if row is None:
                continue
            assert claim.answer == line("task_accepted", number)
            message_log = await job_store.message_log(row.session_id)
            sequences = [found for told in message_log if (found := sequence_of(told)) is not None]
            assert sequences == list(range(1, row.sequence + 1))
            assert len(message_log) == row.lines
            told = [json.loads(text)["payload"]["data"].get("step") for text in message_log if sequence_of(text)]
            assert [step for step in told if step] == list(range(1, row.checkpoints + 1))
            assert await job_store.outcomes(row.session_id, row.checkpoints) == [
                {"n": step} for step in range(1, row.checkpoints + 1)
            ]
            assert (row.state == "COMPLETED") == (row.ended_at is not None)
        for what, number, *of in said:
            row = rows[session_id(number)]
            if what == "recorded":
                assert row.checkpoints >= of[0]
            elif what == "kept":
                uri, checksum = of
                kept = await store.read(uri, 0, 1 << 20)
                assert kept.artifact.checksum == checksum
                assert len(kept.data) == kept.artifact.size_bytes
            elif what == "ended":
                assert (row.state, row.checkpoints) == ("COMPLETED", STEPS)
        assert {row.session_id for row in job_store.unfinished} == {
            key for key, row in rows.items() if row.ended_at is None
        }
        for row in job_store.unfinished:
            await job_store.end(
                row.session_id, "FAILED", [line("task_failed"), line("event", sequence=row.sequence + 1)]
            )
    assert look(place, "PRAGMA integrity_check") == [("ok",)]
    return last


@pytest.mark.proof
def test_a_kill_at_any_moment_loses_nothing_that_was_answered(tmp_path, writers):
    chance, first, said = random.Random(6), 1, []
    for _ in range(ROUNDS):
        now = writers(first, chance.randrange(100))
        first = trio.run(check, tmp_path / "hcp", now, first)
        said += now
    assert {what for what, *_ in said} == {"answered", "recorded", "kept", "ended"}
