"""The official Python client, in a process of its own, runs a plan, sees its progress and cancels it.

What is written meanwhile is a page of an EEPROM that remembers a torn write: a transaction that somebody cut short
stores the bytes that came until then, which here are others than those that come last.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.hearthd import BOUND, Hearthd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]

CLIENT = Path(__file__).parent / "official_client.py"
RUNS = [("stdio", "legacy"), ("stdio", "auto"), ("http", "legacy"), ("http", "auto")]
"""The carrier, and how the client finds the era: by a handshake, or as new as the server has it."""

SLOW_BUS = """\
name = "slow"
description = "An EEPROM on a slow bus."

[[i2c]]
bus = 1
driver = "sim"
speed_hz = 1000

[[i2c.device]]
addr = 0x50
kind = "24c02"

[[gpio]]
label = "sim"
driver = "sim"
names = ["GPIO0"]
"""
"""A byte takes 9 ms there."""

PAGE = 8
STEPS = 40
"""Writes of the plan that is cancelled: more than there is time for."""
CANCELLED_AT = 2
"""The step at whose beginning the client cancels."""


def page_of(step: int) -> bytes:
    return bytes([step + 1]) * PAGE


def plan(intent: str, steps: int) -> dict[str, Any]:
    """Each step writes two pages' worth of zeros and then its own number, all into one page, in about 0.2 s."""
    writes = [
        {"bus": 1, "addr": 0x50, "reg": 0, "data": base64.b64encode(bytes(2 * PAGE) + page_of(step)).decode()}
        for step in range(steps)
    ]
    return {"intent": intent, "steps": [{"tool": "i2c_write", "args": args} for args in writes]}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hearthd]:
    folder = tmp_path_factory.mktemp("daemon")
    profile = folder / "slow.toml"
    profile.write_text(SLOW_BUS)
    hearthd = Hearthd(folder, f'[board]\nprofile = "{profile}"\n[http]\nlisten = "127.0.0.1:0"')
    try:
        yield hearthd.start()
    finally:
        hearthd.end()


class Told:
    """What the client told of one order."""

    def __init__(self, intent: str, lines: Iterator[str]) -> None:
        self.intent = intent
        self.said: list[dict[str, Any]] = []
        for line in lines:
            self.said.append(json.loads(line))
            if self.said[-1]["kind"] == "after":
                break
        assert self.said, "the client has ended; what it said of that is on stderr"
        assert self.said[-1]["kind"] == "after", self.said[-3:]
        whole = [one["kind"] for one in self.said].index("over") + 1
        self.whole, self.cut = self.said[:whole], self.said[whole:]
        self.page = b""


def page(daemon: Hearthd) -> bytes:
    """What is in the EEPROM, by a session of somebody else."""
    peer = daemon.peer()
    read = peer.run(peer.open(), "i2c.read", bus=1, addr=0x50, reg=0, len=PAGE)
    peer.close()
    return base64.b64decode(read["result"]["data"])


def order(daemon: Hearthd, carrier: str, mode: str) -> dict[str, Any]:
    """What the client is to do."""
    server: Any = [sys.executable, "-m", "hearth.cli.main", "mcp", "--to", f"unix:{daemon.socket}"]
    if carrier == "http":
        server = f"{daemon.listening['http']}/mcp"
    cut = plan(f"cut, {carrier}, {mode}", STEPS)
    return {"server": server, "mode": mode, "whole": plan("whole", 2), "cut": cut, "at": CANCELLED_AT}


@pytest.fixture(scope="module")
def all_told(daemon: Hearthd) -> dict[tuple[str, str], Told]:
    """One process does everything: importing the client takes longer than what it does."""
    everything = {}
    with subprocess.Popen(
        [sys.executable, "-P", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        killer = threading.Timer(4 * BOUND, client.kill)
        killer.start()
        try:
            assert client.stdin is not None
            assert client.stdout is not None
            for carrier, mode in RUNS:
                asked = order(daemon, carrier, mode)
                print(json.dumps(asked), file=client.stdin, flush=True)
                told = everything[carrier, mode] = Told(asked["cut"]["intent"], client.stdout)
                told.page = page(daemon)
            client.stdin.close()
            assert client.wait(BOUND) == 0
        finally:
            killer.cancel()
            client.kill()
    return everything


@pytest.fixture(params=RUNS, ids="-".join)
def told(all_told: dict[tuple[str, str], Told], request: pytest.FixtureRequest) -> Told:
    return all_told[request.param]


def kinds(told: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in told if one["kind"] == kind]


@pytest.mark.parametrize(("mode", "era"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
def test_a_client_finds_either_era_over_either_carrier(all_told, mode, era):
    assert [all_told[carrier, mode].whole[0]["version"] for carrier in ("stdio", "http")] == [era, era]


def test_a_client_sees_the_progress_of_its_plan_step_by_step_and_what_became_of_each(told):
    assert [(said["message"], said["total"]) for said in kinds(told.whole, "progress")] == [
        ("step 1 of 2 (i2c.write): begins", 2),
        ("step 2 of 2 (i2c.write): begins", 2),
    ]
    (result,) = kinds(told.whole, "result")
    assert not result["is_error"]
    assert result["structured"]["status"] == "SUCCESS"
    assert [step["status"] for step in result["structured"]["steps"]] == ["SUCCESS", "SUCCESS"]


def test_a_client_that_cancels_its_plan_leaves_the_write_under_way_whole_and_the_audit_says_so(daemon, told):
    assert kinds(told.cut, "over") == [{"kind": "over", "cancelled": True}]
    task = {"task_id": daemon.recorded(event="task.submit", intent=told.intent)["task_id"]}
    assert daemon.recorded(event="task.finish", **task)["status"] == "CANCELLED"
    started = [record["step_index"] for record in daemon.records(event="task.step.start", **task)]
    ended = [record["step_index"] for record in daemon.records(event="task.step.finish", **task)]
    assert CANCELLED_AT < len(started) < STEPS
    assert ended == started == list(range(len(started)))
    # Whole either way: the last step had begun, and its transaction may not have.
    assert told.page in (page_of(started[-1]), page_of(started[-2]))


def test_the_connection_is_as_good_as_before(told):
    assert kinds(told.cut, "after") == [{"kind": "after", "is_error": False, "board": "slow"}]
