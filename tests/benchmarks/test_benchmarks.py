"""The benchmarks run and produce every row. No figure is judged here: that is for a quiet machine and a person."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import websocket
from benchmarks.servers import Servers

ROOT = Path(__file__).resolve().parents[2]
BOUND = 300
"""Seconds after which a run counts as hung, not as slow."""

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BOUND)


def listed() -> list[str]:
    return [line.split()[0] for line in benchmarks("--list").stdout.splitlines()]


SEVERAL = ("longest-turn", "fairness")
"""Measures with no row of their own name."""


def test_a_tiny_run_produces_every_row_with_a_figure(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    done = benchmarks("--quick", "--rounds", "1", "--repeats", "1", "--seconds", "0.05", "--json", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(target.read_text())
    names = [row["name"] for row in written["rows"]]
    assert len(names) == len(set(names)) >= 20
    # Some measures have more figures than one, in rows that are named after them.
    measured = listed()
    assert [name for name in names if name in measured] == [name for name in measured if name not in SEVERAL]
    assert all(name in measured or name.startswith(tuple(f"{one}-" for one in measured)) for name in names)
    assert sum(name.startswith("longest-turn-") for name in names) > 40
    for row in written["rows"]:
        if row["name"] != "attest-steps":  # a difference, of either sign
            assert row["figure"] == 0 if row["name"].endswith("-lost") else row["figure"] > 0, row
        assert (row["goal"] is None) == (row["met"] is None), row
        assert row["what"] in done.stdout
    assert written["machine"]["trio"]
    assert str(target) in done.stdout


def test_a_prefix_and_a_pattern_choose_measures() -> None:
    chosen = [line.split()[0] for line in benchmarks("--list", "get", "start-*").stdout.splitlines()]
    assert chosen == ["get-1", "get-16", "start-hearthd", "start-config", "start-cli"]


def test_a_measure_that_does_not_exist_is_refused_with_those_that_do() -> None:
    done = benchmarks("--quick", "no-such")
    assert done.returncode != 0
    assert "no-such" in done.stderr
    assert all(name in done.stderr for name in listed())


def test_the_echo_floor_answers_in_as_many_bytes_as_hearth() -> None:
    with Servers() as servers:
        driven = websocket.answers(servers.hearthd("os-ws", websocket=True).websocket, 1)
        floor = websocket.floor(servers.floor("echo").websocket, 1)
        try:
            answers = []
            for load in (driven, floor):
                client = load.clients[0]
                answers.append(client.exchange(load.requests[0][0], b"result"))
        finally:
            driven.close()
            floor.close()
    # The number of the request and the time that the step took have more digits or fewer.
    assert abs(len(answers[0]) - len(answers[1])) <= 6


@pytest.mark.parametrize(
    ("name", "how", "shows"),
    [
        ("task-1", "sample", "actors/session.py"),
        ("task-1", "cprofile", "session.py"),
        ("task-1", "steps", "turns of the event loop"),
        ("ws-get-1", "sample", "carrier: the WebSocket library"),
        ("fanout-100", "sample", "actors/send_queue.py"),
    ],
)
def test_a_profile_shows_where_the_time_goes(name: str, how: str, shows: str) -> None:
    done = benchmarks("--profile", name, "--seconds", "0.5", "--top", "200", "--how", how)
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout
    assert "saved as" in done.stdout
