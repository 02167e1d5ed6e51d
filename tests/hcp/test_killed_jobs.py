"""kill -9 at every write of the job store: each job ends COMPLETED with no step done twice, or names the unknown one.

A real hearthd (a fork of one that has everything imported) does a job and kills itself at the nth write, before it,
before its commit or after it. The next one ends the job; the caller hands it in again from the last checkpoint. What
was done is read from the audit log, which the next daemon goes on with.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import signal
from collections import Counter

import pytest
from crash.deployment import Life
from support.amounts import SHARE
from support.hearthd import Hearthd, Wire
from support.zygote import Zygote

from hearth.audit.record import args_hash
from hearth.audit.verify import verify

DRIVES = '''\
"""Drives outputs and makes files, each of them once."""

from hearth import Job, capability, step


@capability(
    "drives", version="1.0.0", tools=["gpio.set", "gpio.get", "gpio.pulse", "file.write"], risk_ceiling="R4",
    clean_up=["gpio.set"],
)  # fmt: skip
async def drives(job: Job, *, place: str) -> dict[str, float]:
    """Drive outputs and make files, alone, side by side and as one task."""
    await job.run("gpio.set", line=17, value=1)
    await job.run("gpio.get", line=27)
    await job.run("file.write", path=f"{place}/one", data="b25l", mode="create")
    await job.sleep(0.001)
    await job.gather(
        lambda: job.run("gpio.pulse", line=22, value=1, duration_ms=2),
        lambda: job.run("file.write", path=f"{place}/two", data="dHdv", mode="create"),
    )
    number = await job.random()
    await job.submit(
        [
            step("gpio.set", line=5, value=1),
            step("file.write", path=f"{place}/three", data="dGhyZWU=", mode="create"),
        ]
    )
    return {"number": number}
'''
RISKY = ("gpio.set", "gpio.pulse", "file.write")
INPUTS = {
    "drives": {"place": "PLACE"},
    "bench-climate-survey": {"samples": 3, "interval_s": 0.001},
    "gpio-self-test": {"wires": [{"out": 17, "in": 27}], "settle_s": 0},
    "host-health-report": {"samples": 2, "interval_s": 0.05},
}
MOMENTS = ("before", "middle", "after")
MOST = 200
"""Writes of one life, at most."""
STRIDE = 5 if SHARE < 1 else 1
"""Every kill is tried, or every fifth: of three moments and eight writes, all in turn."""


@pytest.fixture(scope="module")
def zygote(tmp_path_factory, unmeasured):
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), "hcp.killed_daemon:main")
    yield zygote
    zygote.close()


class Deployment:
    """A directory, one daemon after the other in it, and a caller that outlives them."""

    def __init__(self, directory, zygote, capability):
        self.directory, self.zygote, self.capability = directory, zygote, capability
        self.place, self.logs, self.tape = directory / "place", directory / "log", directory / "tape"
        for made in (directory, self.place, self.logs):
            made.mkdir()
        self.tape.touch()
        offered = directory / "drives.py"
        offered.write_text(DRIVES)
        offered.chmod(0o600)
        configured = Hearthd(
            directory,
            f'[board]\nprofile = "sim"\n[hcp]\ncapabilities = ["{offered}"]\n[files]\nwrite = ["{self.place}"]\n'
            '[[policy]]\nname = "test"\nmatch = { any = true }\nmax_risk = 2\nhcp = {}\n',
            logs=self.logs,
        )
        self.socket, self.config, self.audit = configured.socket, configured.config, configured.audit
        self.inputs = json.loads(json.dumps(INPUTS[capability]).replace("PLACE", str(self.place)))
        self.sent = 0
        self.document = self.submission()
        self.ends = []
        """Of each session: its state, and its task_failed's payload if it has one."""

    def submission(self, checkpoint=None):
        self.sent += 1
        more = {} if checkpoint is None else {"context": {"last_checkpoint": checkpoint}}
        payload = {"capability": self.capability, "caller_id": "test", "intent": "to the end", "inputs": self.inputs}
        return {
            "hcp_version": "1.0",
            "message_id": f"message-{self.sent}",
            "timestamp": "2026-04-19T22:48:01.000Z",
            "session_id": None,
            "type": "task_submit",
            "payload": payload | more,
        }

    @property
    def over(self):
        """Whether nothing more is to be done: all is done, or the caller must look for itself."""
        if not self.ends:
            return False
        state, failed = self.ends[-1]
        return state == "COMPLETED" or failed["error_details"].get("reason") == "outcome_unknown"

    def life(self, at=0, moment="after"):
        """One daemon; False if it was killed."""
        life = Life(self, at, moment)
        if life.ready():
            # It dies in the middle of what it says.
            with contextlib.suppress(OSError, AssertionError, ConnectionError):
                wire = Wire(self.socket)
                try:
                    while not self.over:
                        self._hand_in(wire)
                finally:
                    wire.close()
            if self.over:
                life.signal(signal.SIGTERM)
        status = life.end()
        assert status in (0, None), self.said
        return status == 0

    def _hand_in(self, wire):
        wire.send(json.dumps(self.document).encode() + b"\n")
        failed = None
        while (said := wire.line()) is not None:
            assert said["type"] != "task_rejected", said
            if said["type"] == "task_failed":
                failed = said["payload"]
            if (state := said["payload"].get("data", {}).get("final_state")) is not None:
                self.ends.append((state, failed))
                if not self.over:
                    assert failed is not None, self.ends
                    self.document = self.submission(failed["error_details"].get("last_checkpoint"))
                return
        raise ConnectionError

    @property
    def said(self):
        return (self.directory / "said").read_text()

    @property
    def writes(self):
        """Of the last life, which ended properly."""
        return json.loads(self.tape.read_text().splitlines()[-1])["writes"]

    # --- what was done

    def records(self, event):
        lines = self.audit.read_bytes().splitlines()
        return [record for record in map(json.loads, lines) if record["event"] == event]

    def starts(self):
        """How often each step that may have an effect was begun, by tool and args_hash."""
        started = self.records("task.step.start")
        return Counter((one["tool"], one["args_hash"]) for one in started if one["tool"] in RISKY)

    def unknown(self):
        """The steps that some daemon left without an outcome."""
        return [step for record in self.records("hcp.recover") for step in record.get("unknown", [])]

    def judge(self):
        """Every promise about the whole of it; "completed" or "unknown"."""
        report = verify([self.audit])
        assert report.ok, report
        starts, unknown = self.starts(), self.unknown()
        state, failed = self.ends[-1]
        if self.capability == "gpio-self-test":
            # It sets a line again by itself where it cannot know: no harm is in that. All else it does once.
            assert state == "COMPLETED", failed
            assert starts.total() <= 4 + len(unknown)
            return "handled" if unknown else "completed"
        assert all(count == 1 for count in starts.values()), (starts, unknown)
        for step in unknown:
            for tool, args in steps_of(step):
                assert starts[tool, args_hash(args)] <= 1, f"{step} was begun again"
        if state == "COMPLETED":
            assert not unknown
            if self.capability == "drives":
                assert sorted(file.name for file in self.place.iterdir()) == ["one", "three", "two"]
                assert starts.total() == 6
            return "completed"
        assert failed["error_code"] == "execution_error"
        assert any(step in failed["error_message"] for step in unknown), (failed["error_message"], unknown)
        return "unknown"


def steps_of(operation):
    """The tools and args in the name of an operation, unless it is shortened."""
    if operation.endswith("…"):
        return []
    found = re.fullmatch(r"(\S+) (\{.*\})", operation)
    return [(found[1], json.loads(found[2]))] if found else [tuple(one) for one in json.loads(operation)]


def worlds(directory, zygote, capability, kills):
    """Play one world for each list of kills; what came of each, and of how many kills."""
    ends, killed = Counter(), 0
    for number, each in enumerate(kills):
        deployment = Deployment(directory / str(number), zygote, capability)
        try:
            for at, moment in each:
                killed += not deployment.over and not deployment.life(at, moment)
            if not deployment.over:
                assert deployment.life(), deployment.said
            ends[deployment.judge()] += 1
        except AssertionError as broken:
            broken.add_note(f"killed at {each}; what it left is in {deployment.directory}")
            raise
        shutil.rmtree(deployment.directory)
    return ends, killed


def writes_of(directory, zygote, capability):
    """How many writes a job makes that nothing happens to."""
    deployment = Deployment(directory / "whole", zygote, capability)
    assert deployment.life()
    assert deployment.judge() == "completed"
    return deployment.writes


@pytest.mark.proof
@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("drives", {"completed", "unknown"}),
        ("bench-climate-survey", {"completed"}),
        ("gpio-self-test", {"completed", "handled"}),
        ("host-health-report", {"completed"}),
    ],
)
def test_a_daemon_that_is_killed_at_any_write_of_the_job_store_does_no_step_twice(
    tmp_path, zygote, capability, expected
):
    writes = writes_of(tmp_path, zygote, capability)
    assert 5 < writes < MOST
    # To what only reads, the moments are all one.
    moments = MOMENTS if len(expected) > 1 else ("before",)
    kills = [[kill] for kill in itertools.product(range(1, writes + 1), moments)][::STRIDE]
    ends, killed = worlds(tmp_path, zygote, capability, kills)
    assert set(ends) == expected, ends
    assert killed >= len(kills) - len(moments), "they were not killed"


@pytest.mark.proof
def test_a_daemon_that_is_killed_twice_also_while_it_recovers_does_no_step_twice(tmp_path, zygote):
    writes = writes_of(tmp_path, zygote, "drives")
    first = range(3, writes, 4)
    kills = [
        [(at, "after"), (again, moment)] for at in first for again, moment in zip(range(1, 9), itertools.cycle(MOMENTS))
    ][::STRIDE]
    ends, killed = worlds(tmp_path, zygote, "drives", kills)
    assert set(ends) == {"completed", "unknown"}
    assert killed > 1.3 * len(kills)
