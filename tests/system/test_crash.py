"""A daemon that is killed at one of its writes, or at random: a slice of what `make crash` does."""

from __future__ import annotations

import json
import os
from hashlib import sha256

import pytest
from crash import plan
from crash.deployment import Deployment, hash_of
from crash.judge import Log, after_kill, agree, at_the_end
from support.zygote import Zygote

from hearth.audit.record import args_hash

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]

SLICE = 36


@pytest.fixture(scope="module")
def zygote(tmp_path_factory, unmeasured):
    running = Zygote(tmp_path_factory.mktemp("zygote"), "crash.child:main")
    yield running
    running.close()


def test_wherever_a_daemon_is_killed_nothing_that_was_told_or_done_is_missing_from_its_log(zygote, tmp_path):
    figures = plan.run(tmp_path, zygote, first=0, kills=SLICE)
    assert figures.kills >= SLICE
    assert figures.random >= 3
    assert figures.recoveries >= SLICE // 4
    assert {place.partition(" ")[0] for place in figures.at} >= {"create", "write"}
    assert {place.rpartition(" ")[2] for place in figures.at} == {"before", "middle", "after"}
    assert figures.torn
    assert figures.in_flight
    assert figures.unreached < SLICE // 4


def test_the_scripted_life_has_every_kind_of_point_and_each_is_in_the_plan(zygote, tmp_path):
    seen = set()
    for durability, points in plan.POINTS.items():
        deployment = Deployment(tmp_path / durability, zygote, durability)
        assert deployment.scripted_life() == 0, deployment.said()
        changes = [entry for entry in deployment.entries() if entry.get("op", "open") != "open"]
        deployment.close()
        # How many there are varies a little, with what happens to arrive together.
        assert 0.6 * points < len(changes) < 1.6 * points
        seen |= {entry["op"] for entry in changes}
        names = {entry[key] for entry in changes for key in ("path", "old", "new") if isinstance(entry.get(key), str)}
        kinds = {plan.kind_of_file(os.path.basename(name)) for name in names}
        assert kinds >= {"log", "rotated file", "next file", "key", "public key", "outputs", "card"}
    assert seen == {"mkdir", "create", "write", "truncate", "sync", "sync directory", "rename", "link", "unlink"}


@pytest.fixture
def killed(zygote, tmp_path):
    """A deployment after a kill in the middle of the scenario, with a last life behind it."""
    deployment = Deployment(tmp_path / "deployment", zygote)
    deployment.scripted_life(40, "middle")
    after_kill(deployment, shell=False)
    deployment.last_life()
    at_the_end(deployment, shell=False)
    yield deployment
    deployment.close()


def rewrite(deployment, change):
    """Change the records of the log, and chain them anew: what nobody but the judge can see."""
    log, prev = Log(deployment.log), "0" * 64
    for file in log.files:
        file.unlink()
    lines = []
    for record in change([record for record in log.records if record["event"] != "audit.checkpoint"]):
        line = json.dumps({**record, "seq": len(lines) + 1, "prev": f"sha256:{prev}"}, separators=(",", ":")).encode()
        prev = sha256(line).hexdigest()
        lines.append(line + b"\n")
    deployment.log.write_bytes(b"".join(lines))
    (deployment.logs / "audit.log.key.pub").unlink()


def without(event):
    """Lose the first record of this event."""

    def change(records):
        found = next(number for number, record in enumerate(records) if record["event"] == event)
        return records[:found] + records[found + 1 :]

    return change


@pytest.mark.parametrize(
    ("event", "breach"),
    [
        ("task.submit", "acknowledged task is missing"),
        ("task.step.start", "not in the log|no record says so"),
        # Told or not, by the moment of the kill: else it is a task in flight that no recovery names.
        ("task.finish", "an end that is not in the log|named by no recovery"),
        ("daemon.recover", "named by no recovery"),
        ("daemon.stop", "the last life ended with"),
    ],
)
def test_the_judge_misses_a_record_that_is_lost(killed, event, breach):
    rewrite(killed, without(event))
    with pytest.raises(AssertionError, match=breach):
        at_the_end(killed, shell=False)


def test_the_judge_hears_of_verifiers_that_disagree(killed, monkeypatch, tmp_path):
    agree(Log(killed.log), command=True)
    generous = tmp_path / "generous.sh"
    generous.write_text("echo ok: all is well")
    monkeypatch.setattr("crash.judge.SCRIPT", generous)
    with pytest.raises(AssertionError):
        agree(Log(killed.log))


def test_the_judges_hash_of_args_is_the_logs():
    for args in ({"line": 17, "value": 1}, {"path": "/a", "data": "aGk=", "mode": "create"}, {"reg": 0, "bus": 1}):
        assert hash_of(args) == args_hash(args)
