"""Small scenarios: what is left out, within which bounds, and how they are told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from simulation.observer import Verdict, Violation
from simulation.planted_bugs import BUGS, BY_NAME, ROOT
from simulation.shrink import shrink, tell
from simulation.tape import Tape

PARTS = ["c0", "c1", "c2", "c0.0", "c0.1", "c0.2", "c1.0", "c1.1", "c2.0", "f0", "f1", "d0"]
PROMISE = "a promise"


class Rehearsal:
    """A scenario that fails as long as some of its parts are in it, without a runtime."""

    def __init__(self, needs):
        self.needs = needs
        self.played = []

    def play(self, seed, *, trims=frozenset()):
        self.played.append(trims)
        left = {part for part in PARTS if part not in trims and part.partition(".")[0] not in trims}
        tape = Tape(lambda: 0.0)
        tape.tell("world", seed=seed, config={})
        tape.tell("fault", what="wedge" if left >= self.needs else "nothing", bus="i2c")
        return tape

    def judge(self, tape):
        broken = tape.entries[1].what["what"] == "wedge"
        return Verdict((Violation(PROMISE, (1,), "none", "one"),) if broken else (), {})

    def shrink(self, invariant=PROMISE, **bounds):
        return shrink(7, invariant, play=self.play, parts=lambda _seed: PARTS, judge=self.judge, **bounds)


@pytest.mark.parametrize("needs", [{"c1.1", "f0"}, {"c0.0", "c0.2", "c2.0"}, {"d0"}, set(), {"f0", "f1"}])
def test_only_what_the_failure_needs_is_left(needs):
    shrunk = Rehearsal(needs).shrink()
    left = {part for part in PARTS if part not in shrunk.trims and part.partition(".")[0] not in shrunk.trims}
    assert {part for part in left if "." in part or not part.startswith("c")} == needs
    assert shrunk.size == len(needs)
    assert shrunk.parts == 9
    assert shrunk.violation.invariant == PROMISE


def test_actions_of_a_client_that_is_left_out_are_not_named_besides():
    shrunk = Rehearsal({"f0"}).shrink()
    assert shrunk.trims == {"c0", "c1", "c2", "f1", "d0"}
    assert shrunk.command == "python -m tests.simulation --seed 7 --trim c0,c1,c2,d0,f1"


def test_replays_are_bounded_and_what_was_found_by_then_fails():
    scenario = Rehearsal({"c1.1", "f0"})
    shrunk = scenario.shrink(replays=4)
    assert len(scenario.played) == shrunk.replays == 4
    assert Rehearsal({"c1.1", "f0"}).play(7, trims=shrunk.trims).entries[1].what["what"] == "wedge"


def test_real_time_is_bounded_too():
    scenario = Rehearsal({"c1.1"})
    assert scenario.shrink(seconds=0).replays == 1


def test_another_promise_that_breaks_is_not_taken_for_the_one_that_is_looked_for():
    with pytest.raises(ValueError, match="seed 7 does not break “another promise”"):
        Rehearsal({"f0"}).shrink("another promise")


def test_a_printed_scenario_says_when_who_and_what_and_marks_the_violation():
    tape = Tape(lambda: 1.5)
    tape.tell("world", seed=1, config={})
    tape.tell("client.opens", client=3, principal="uid:1001")
    task = {"steps": [{"tool": "gpio.set", "args": {"mark": "c0.0.0"}}], "constraints": {"exclusive": True}}
    params = {"session_id": "01S", "task": task}
    submit = {"jsonrpc": "2.0", "id": 1, "method": "task.submit", "params": params}
    tape.tell("client.sends", client=3, line=json.dumps(submit).encode() + b"\n")
    tape.tell("disk.write", file="log", data=b'{"event":"task.submit","session_id":"01S","task_id":"01T"}\n')
    tape.tell(
        "client.receives", client=3, line=b'{"jsonrpc":"2.0","id":1,"result":{"task_id":"01T","status":"QUEUED"}}\n'
    )
    tape.tell("bus.begin", bus="gpio:sim", transaction=4, what="set", args={"mark": "c0.0.0"})
    tape.tell("bus.end", bus="gpio:sim", transaction=4, outcome="cut")
    told = tell(tape, Violation(PROMISE, (6,), "x", "y"))
    assert told == [
        "  #1        1.5000 s  client 3 connects as uid:1001",
        "  #2        1.5000 s  client 3 sends task.submit (id 1): session 1; steps gpio.set c0.0.0; exclusive True",
        "  #3        1.5000 s  log: task.submit of task 1",
        "  #4        1.5000 s  client 3 hears answer to 1: task 1, QUEUED",
        "  #5        1.5000 s  bus gpio:sim: set begins (transaction 4 for c0.0.0)",
        "> #6        1.5000 s  bus gpio:sim: transaction 4 ends: cut",
    ]


def test_of_a_long_scenario_what_is_near_the_violation_is_printed():
    tape = Tape(lambda: 0.0)
    for _ in range(500):
        tape.tell("fault", what="nack", bus="i2c:1")
    told = tell(tape, Violation(PROMISE, (400,), "x", "y"))
    assert told[0] == "(380 entries farther from the violation are left out)"
    assert len(told) == 121
    assert any(line.startswith("> #400 ") for line in told)


@pytest.mark.proof
def test_a_planted_bug_becomes_a_short_scenario_that_its_command_replays(unmeasured):
    bug = BY_NAME["lease-ignored"]
    assert bug in BUGS
    command = [sys.executable, "-m", "tests.simulation", "--planted", bug.name, "--from", str(bug.seed), "--seeds", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    left, of = (
        next(line for line in ran.stdout.splitlines() if "parts are left" in line).split(" parts")[0].split(" of ")
    )
    assert int(left) < int(of) / 2
    assert f"broken: {bug.invariant}" in ran.stdout
    replay = ran.stdout.rstrip().splitlines()[-1].strip().split()
    assert replay[:3] == ["python", "-m", "tests.simulation"]
    again = subprocess.run(
        [sys.executable, *replay[1:]], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert bug.invariant in again.stdout
