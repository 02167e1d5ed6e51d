"""A daemon that is killed in the middle of a job, and a caller that is: whoever comes back finds out, and can go on."""

from __future__ import annotations

import json

import pytest
from support.hcp import sequences
from support.hearthd import Hearthd, Wire

from hearth.audit.record import args_hash
from hearth.audit.verify import verify

CAPABILITY = '''\
"""Writes files, waits until a person says yes, and writes as many again."""

from __future__ import annotations

from attrs import frozen

from hearth import Job, capability


@frozen
class Written:
    """The outputs."""

    written: list[str]


@capability("two-halves", version="1.0.0", tools=["file.write", "file.read"], risk_ceiling="R2")
async def two_halves(job: Job, *, place: str, each: int = 3) -> Written:
    """Writes files, waits until a person says yes, and writes as many again."""
    written = []
    for half in ("first", "second"):
        if half == "second":
            job.phase = "ask"
            async for _ in job.every(0.01):
                if (await job.run("file.read", path=f"{place}/answer", replay=True))["data"] == "eWVz":
                    break
        job.phase = half
        for number in range(each):
            result = await job.run("file.write", path=f"{place}/{half}-{number}", data="b25jZQ==", mode="create")
            written.append(result["path"])
    return Written(written)
'''
"""Its files can only be created: a step that were done twice would fail."""
EACH = 3
BOTH_HALVES = sorted(f"{half}-{number}" for half in ("first", "second") for number in range(EACH))


class Caller(Wire):
    """A caller that is not ours: it knows the pages, and lines on a socket."""

    def submit(self, message_id, place, **payload):
        self.document(
            "task_submit",
            message_id,
            capability="two-halves",
            caller_id="harness-alpha-001",
            intent="write both halves",
            inputs={"place": str(place)},
            **payload,
        )

    def document(self, type_, message_id, **payload):
        document = {
            "hcp_version": "1.0",
            "message_id": message_id,
            "timestamp": "2026-04-19T22:48:01.000Z",
            "session_id": None,
            "type": type_,
            "payload": payload,
        }
        self.send(json.dumps(document).encode() + b"\n")

    def until(self, *, checkpoint=None):
        """The lines that come, up to the one that tells of this checkpoint or a later one, or to the last of all."""
        lines = []
        while True:
            lines.append(self.raw())
            assert lines[-1], f"the daemon closed after {lines[-2:]}"
            data = json.loads(lines[-1])["payload"].get("data", {})
            made = int(data.get("checkpoint_id", "0")[-6:])
            if "final_state" in data or (checkpoint and made >= checkpoint):
                return lines


class Deployment:
    """A daemon that offers the capability, the place that its jobs write to, and the answer that they wait for."""

    def __init__(self, directory):
        self.place = directory / "place"
        self.place.mkdir()
        self.answer("no")
        offered = directory / "two_halves.py"
        offered.write_text(CAPABILITY)
        offered.chmod(0o600)
        self.daemon = Hearthd(
            directory,
            f'[hcp]\ncapabilities = ["{offered}"]\n[files]\nread = ["{self.place}"]\nwrite = ["{self.place}"]\n'
            '[board]\nprofile = "sim"\n',
        )
        self.daemon.start()

    def answer(self, said):
        draft = self.place / "draft"
        draft.write_text(said)
        draft.rename(self.place / "answer")

    def caller(self):
        caller = Caller(self.daemon.socket)
        self.daemon.peers.append(caller)
        return caller

    def kill(self):
        """Kill the daemon where it stands, and start it again; returns a caller."""
        self.daemon.kill()
        self.daemon.hang_up()
        self.daemon.start()
        return self.caller()

    def written(self):
        return sorted(path.name for path in self.place.iterdir() if path.name != "answer")

    def done(self):
        """How often the audit log says that each of the files was begun to be written, and was written."""
        told = {}
        for name in BOTH_HALVES:
            args = {"path": str(self.place / name), "data": "b25jZQ==", "mode": "create"}
            about = {"tool": "file.write", "args_hash": args_hash(args)}
            starts = self.daemon.records(event="task.step.start", **about)
            finishes = self.daemon.records(event="task.step.finish", status="SUCCESS", **about)
            told[name] = (len(starts), len(finishes))
        return told

    def tale(self, **like):
        """What the audit log tells of jobs, in short."""
        told = ("hcp.submit", "hcp.accept", "hcp.reject", "hcp.recover", "hcp.finish")
        return [record["event"] for record in self.daemon.records(**like) if record["event"] in told]


@pytest.fixture
def deployment(tmp_path, unmeasured):
    deployment = Deployment(tmp_path)
    yield deployment
    deployment.daemon.end()


def read(lines):
    return [json.loads(line) for line in lines]


@pytest.mark.proof
@pytest.mark.spec(
    "hcp L4 Partial Results",
    "is",
    "error_details.last_checkpoint: The last checkpoint ID, enabling the caller to potentially resubmit with "
    "recovery context",
)
def test_a_job_whose_daemon_is_killed_fails_with_its_last_checkpoint_and_goes_on_from_there_each_time(deployment):
    caller = deployment.caller()
    caller.submit("the first", deployment.place)
    heard = caller.until(checkpoint=EACH + 2)

    caller = deployment.kill()
    caller.submit("the first", deployment.place)
    message_log = caller.until()
    assert message_log[: len(heard)] == heard, "a repeated submission is told what was told, from the first answer on"
    messages = read(message_log)
    session = messages[0]["session_id"]
    assert sequences(messages) == list(range(1, len(sequences(messages)) + 1))
    failed = messages[-2]["payload"]
    assert (messages[-2]["type"], failed["error_code"]) == ("task_failed", "internal_error")
    details = failed["error_details"]
    data = [one["payload"]["data"] for one in messages if one["type"] == "event"]
    told = [one["checkpoint_id"] for one in data if "checkpoint_id" in one][-1]
    last = details["last_checkpoint"]
    # An outcome that no event announces is a checkpoint too, and may have been stored before the kill.
    assert int(last[-6:]) >= int(told[-6:])
    assert last.startswith(f"ckpt-{session}-")
    assert (details["recoverable"], details["reason"], details["phase"]) == (True, "daemon_ended", "ask")
    assert messages[-1]["payload"]["data"]["final_state"] == "FAILED"
    assert deployment.written() == BOTH_HALVES[:EACH]

    caller.submit("the second", deployment.place, context={"last_checkpoint": last})
    number = int(last[-6:])
    again = read(caller.until(checkpoint=number + 2))
    reasons = [one["payload"]["data"].get("reason") for one in again if one["type"] == "event"]
    assert "recovered_from_checkpoint" in reasons

    caller = deployment.kill()
    caller.submit("the second", deployment.place, context={"last_checkpoint": last})
    failed = read(caller.until())[-2]["payload"]
    caller.submit("the first", deployment.place)
    assert caller.until() == message_log, "what has ended is told to the letter, however often"
    newest = failed["error_details"]["last_checkpoint"]
    assert int(newest[-6:]) >= number + 2
    deployment.answer("yes")
    caller.submit("the third", deployment.place, context={"last_checkpoint": newest})
    completed = read(caller.until())[-2]
    assert completed["type"] == "task_completed"
    assert completed["payload"]["outputs"] == {"written": [str(deployment.place / name) for name in BOTH_HALVES]}
    assert deployment.written() == BOTH_HALVES

    deployment.daemon.hang_up()
    assert deployment.daemon.stop() == 0
    report = verify([deployment.daemon.audit])
    assert report.ok, report
    assert deployment.done() == dict.fromkeys(BOTH_HALVES, (1, 1)), "no step was done twice"
    killed = ["hcp.submit", "hcp.accept", "hcp.recover", "hcp.finish"]
    assert deployment.tale() == [*killed, *killed, "hcp.submit", "hcp.accept", "hcp.finish"]
    assert deployment.tale(hcp_session=session) == killed[1:]


@pytest.mark.slow
@pytest.mark.spec(
    "hcp L1 Stream Continuity",
    "is",
    "A core requirement of HCP is that the event stream between callee and caller remains stable and lossless "
    "even when the caller crashes, restarts, or experiences network interruption.",
)
def test_a_caller_that_dies_in_the_middle_of_its_job_comes_back_and_finds_the_outcome(deployment):
    caller = deployment.caller()
    caller.submit("mine", deployment.place)
    heard = caller.until(checkpoint=EACH + 1)
    caller.close()
    deployment.answer("yes")

    deployment.daemon.until(lambda: len(deployment.written()) == len(BOTH_HALVES))
    caller = deployment.caller()
    caller.submit("mine", deployment.place)
    message_log = caller.until()
    assert message_log[: len(heard)] == heard
    messages = read(message_log)
    assert sequences(messages) == list(range(1, len(sequences(messages)) + 1))
    assert messages[-2]["type"] == "task_completed"

    seen = sequences(messages)[-2]
    caller.start("hcp.attach", {"session_id": messages[0]["session_id"], "from_sequence": seen + 1})
    assert caller.line()["result"]["state"] == "COMPLETED"
    assert caller.until() == message_log[-2:], "the outcome is between the last event that it has seen and the next"
    caller.submit("mine", deployment.place / "elsewhere")
    refusal = caller.line()
    assert (refusal["type"], refusal["payload"]["reason_code"]) == ("task_rejected", "message_id_reused")
    assert deployment.done() == dict.fromkeys(BOTH_HALVES, (1, 1))
    assert deployment.tale().count("hcp.accept") == 1
