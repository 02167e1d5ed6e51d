"""The audit log of a delegated job shows it whole: submit, gate decision, steps, artifacts, outcome."""

from __future__ import annotations

import json

import pytest
from support.hcp import LOOK_TWICE, offering

from hearth import open_runtime
from hearth.audit.verify import verify
from hearth.errors import JobRejected


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


def records(config):
    return [json.loads(line) for line in config.audit.path.read_text().splitlines()]


async def test_the_audit_log_of_a_delegated_job_shows_it_whole(tmp_path):
    config = offering(tmp_path, LOOK_TWICE)
    async with open_runtime(config=config) as runtime:
        job = await runtime.delegate(
            "look-twice", "look", {"samples": 2}, data_classification="T2", message_id="m-1", caller_id="harness-1"
        )
        done = await job.wait()
        await runtime.artifact(done.artifacts[0].uri)
    log = records(config)
    (accept,) = [one for one in log if one["event"] == "hcp.accept"]
    session_id, hcp_session = accept["session_id"], accept["hcp_session"]
    assert hcp_session == job.session_id
    of_this_job = {"session_id": session_id, "hcp_session": hcp_session, "message_id": "m-1"}
    message_log = [one for one in log if any(one.get(name) == value for name, value in of_this_job.items())]
    step = ["task.submit", "task.step.start", "task.step.finish", "task.finish"]
    assert [one["event"] for one in message_log] == [
        "hcp.submit",
        "session.open",
        "hcp.accept",
        *step,
        *step,
        "session.close",
        "hcp.artifact",
        "hcp.finish",
        "hcp.artifact.read",
    ]
    assert {one["principal"] for one in message_log} == {"embedded"}
    submit, artifact, finish = (
        next(one for one in message_log if one["event"] == event)
        for event in ("hcp.submit", "hcp.artifact", "hcp.finish")
    )
    assert (submit["capability"], submit["caller_id"]) == ("look-twice", "harness-1")
    assert submit["payload_hash"].startswith("sha256:")
    assert (accept["capability"], accept["version"], accept["risk"]) == ("look-twice", "1.2.0", "R1")
    assert accept["data_classification"] == artifact["data_classification"] == "T2"
    assert artifact["checksum"] == done.artifacts[0].checksum
    assert artifact["size"] == done.artifacts[0].size_bytes
    assert (finish["state"], finish["steps"], finish["checkpoints"]) == ("COMPLETED", 2, 2)
    assert "error_code" not in finish
    assert verify(config.audit.path).ok


async def test_what_a_caller_handed_in_is_in_the_log_as_a_hash_only(tmp_path):
    config = offering(tmp_path, LOOK_TWICE.replace("job: Job, *, ", "job: Job, *, secret: str, "))
    async with open_runtime(config=config) as runtime:
        job = await runtime.delegate("look-twice", "look", {"samples": 1, "secret": "swordfish"})
        await job.wait()
    assert "swordfish" not in config.audit.path.read_text()


async def test_a_refused_job_is_in_the_log_with_its_reason(tmp_path):
    config = offering(tmp_path, LOOK_TWICE)
    async with open_runtime(config=config) as runtime:
        with pytest.raises(JobRejected):
            await runtime.delegate("look-twice", "look", {"samples": 1000}, message_id="m-2")
    message_log = [one for one in records(config) if one.get("message_id") == "m-2"]
    assert [one["event"] for one in message_log] == ["hcp.submit", "hcp.reject"]
    assert message_log[1]["reason_code"] == "invalid_input"
    assert "hcp_session" not in message_log[1]
