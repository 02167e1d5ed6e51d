"""Worlds by their seeds: what the judge says of each, and that a seed is all there is to a world.

Replay one with `python -m tests.simulation --seed S --show`; more of them: `make simulate SEEDS=…`, or a large
`HEARTH_WORLDS` for `make proof`.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import trio
from simulation import runner
from simulation.disk import WorldDisk
from simulation.marks import MARKS, missed
from simulation.scenario import parts, play
from support.amounts import amount

import hearth._util.ids

ROOT = Path(__file__).parents[2]
FAST, FIRST, BLOCK = 30, 200, 500
WORLDS = amount("HEARTH_WORLDS", 10_000)
"""How many `make proof` plays, in blocks, each in a process of its own: this one has much in its memory."""


def digest(seed, **more):
    """What identifies a tape: every byte of it."""
    tape = play(seed, **more)
    return hashlib.sha256(repr([tuple(entry) for entry in tape.entries]).encode()).hexdigest()


def played(tmp_path, seeds, *more):
    """What happened in these worlds, as the command keeps it; none of them broke a promise."""
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds), "--state", tmp_path / "state", *more]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((tmp_path / "state").read_text().splitlines()[-1])
    assert kept["figures"]["seeds"] == kept["of"] == seeds
    return kept["figures"]


@pytest.fixture(autouse=True)
def nothing_left_of_other_tests():
    """Close what other tests of this process left: a world counts descriptors, and its tape would show them."""
    gc.collect()


@pytest.mark.slow
def test_some_worlds_keep_every_promise():
    figures = runner.Counter()
    for seed in range(FAST):
        mine, failure = runner.one(seed)
        assert failure is None, f"{failure[1]}\nreplay: python -m tests.simulation --seed {seed} --show"
        figures += mine
    assert figures["transactions"] > 4 * FAST
    assert figures["tasks"] > 3 * FAST


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured")
def test_the_first_200_worlds_keep_every_promise(tmp_path):
    # But for those above.
    everything_went_wrong(played(tmp_path, FIRST - FAST, "--from", str(FAST), "--jobs", "1"))


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("block", range(-(-WORLDS // BLOCK)))
def test_many_more_worlds_keep_every_promise(block, tmp_path, tmp_path_factory):
    figures = played(tmp_path, BLOCK, "--from", str(block * BLOCK), "--jobs", "1")
    everything_went_wrong(figures)
    # Whichever block ends last knows what all of them came to.
    shared = tmp_path_factory.getbasetemp().parent / f"blocks-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    shared.mkdir(exist_ok=True)
    (tmp_path / "figures").write_text(json.dumps(figures))
    (tmp_path / "figures").rename(shared / str(block))
    blocks = [json.loads(kept.read_text()) for kept in shared.iterdir()]
    if len(blocks) == -(-WORLDS // BLOCK):
        assert not missed(sum(map(Counter, blocks), Counter()))


def everything_went_wrong(figures):
    """The worlds are no idyll: each fault and each signal comes in each block."""
    devices = ("nack", "timeout", "latency", "wedge", "crash", "vanish", "bus-off", "lost")
    for fault in (*devices, "disk.full", "disk.fails", "tool.crash"):
        assert figures[f"fault: {fault}"], fault
    for signal in ("SIGTERM", "SIGINT", "SIGKILL"):
        assert figures[f"signal: {signal}"], signal


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured_here")
def test_the_same_seed_is_the_same_world_again_in_one_process():
    first = [digest(seed) for seed in range(12)]
    assert len(set(first)) == 12
    assert [digest(seed) for seed in reversed(range(12))] == first[::-1]


@pytest.mark.proof
def test_the_same_seed_is_the_same_world_in_processes_that_hash_differently():
    code = (
        "import sys; sys.path.insert(0, 'tests'); from simulation.test_simulation import digest; "
        "print(*(digest(seed) for seed in range(12)))"
    )
    said = set()
    for hashes in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, cwd=ROOT, env=environ, capture_output=True, timeout=300
        )
        assert done.returncode == 0, done.stderr.decode()
        said.add(done.stdout)
    assert len(said) == 1
    assert said == {" ".join(digest(seed) for seed in range(12)).encode() + b"\n"}


@pytest.mark.slow
def test_what_is_left_out_of_a_scenario_is_not_in_it():
    seed = next(seed for seed in range(100) if {"f0", "c2", "d0"} <= set(parts(seed)))
    whole = play(seed)
    actors = {entry.what["actor"] for entry in whole.of("client.opens")}
    assert actors > {"c2"}
    tape = play(seed, trims={"c2", *(part for part in parts(seed) if part[0] in "fd")})
    assert {entry.what["actor"] for entry in tape.of("client.opens")} == actors - {"c2"}
    # Doors, halts, also on a disk that hangs, and lines that stick are a world's own, and no parts of its scenario.
    own = {"door", "stuck", "freed", "halt", "latched", "reset", "raced", "unclear", "disk.slow", "disk.heals"}
    assert {entry.what["what"] for entry in tape.of("fault")} - own <= {"clear"}
    assert len(tape.of("daemon.starts")) == 1


@pytest.mark.slow
def test_a_world_starts_no_thread_and_leaves_everything_as_it_was():
    def state():
        return Path.cwd(), threading.active_count(), hearth._util.ids.time, trio.to_thread.run_sync, gc.get_threshold()

    before = state()
    play(3)
    assert state() == before


@pytest.mark.slow
def test_a_seed_that_does_not_end_has_failed(monkeypatch):
    def spin(_seed):
        while True:
            pass

    monkeypatch.setattr(runner, "PATIENCE_S", 1)
    monkeypatch.setattr("simulation.scenario.play", spin)
    _, failure = runner.one(0)
    assert failure == (None, "it did not end within 1 s of real time")


def test_a_full_disk_has_the_room_of_the_reserve_once_it_is_freed():
    disk = WorldDisk(lambda *_told, **_more: None)
    disk.allocate("reserve", 100)
    disk.room = 0
    disk.free("reserve")
    assert disk.room == 100
    disk.free("reserve")
    disk.room -= 1
    with pytest.raises(OSError, match="No space"):
        disk.allocate("reserve", 100)
    disk.room = None
    disk.allocate("reserve", 100)


def test_a_run_of_many_worlds_that_never_comes_to_a_rare_state_fails_and_names_it(capsys, monkeypatch):
    names = [mark.name for mark in MARKS]
    assert len(set(names)) == len(names) >= 15

    def play_one(seed):
        """Each world comes to one of the states, but never to the first."""
        return Counter({"seeds": 1, f"reached: {names[1 + seed % (len(names) - 1)]}": 1}), None

    monkeypatch.setattr("simulation.marks.WORLDS", 100)
    run = runner.Run(0, 100, 2, play_one=play_one)
    assert run.run() is False
    assert run.failed == [[None, None, f"no world came to this: {names[0]}"]]
    runner.tell_failures(run.failed, seconds=1.0)
    assert f"no world came to this: {names[0]}" in capsys.readouterr().out
    assert runner.Run(0, 50, 2, play_one=play_one).run() is True, "a small run only counts"


def test_a_failing_seed_is_told_with_the_command_that_replays_it(capsys):
    runner.tell_failures([[7, None, "it did not end"]], seconds=1.0)
    assert "python -m tests.simulation --seed 7 --show" in capsys.readouterr().out


@pytest.mark.proof
def test_the_command_runs_seeds_over_processes_and_keeps_figures(tmp_path):
    figures = played(tmp_path, 30, "--jobs", "2")
    assert figures["transactions"] > 60
