"""`hearth demo --hcp`: another agent submits a job, and gets outputs, a file, and an account of the job.

This module owns the scenes of that demo. As in `hearth demo`, hearthd and the client are real, the board is simulated,
and every claim is checked.
"""

from __future__ import annotations

import csv
import hashlib
import io
import statistics
from typing import TYPE_CHECKING, Any

import orjson
import trio

from hearth import connect
from hearth.audit.verify import verify
from hearth.cli import hcp_account, hcp_view
from hearth.cli.audit import record_line
from hearth.cli.demo.daemon import SCENE_LIMIT, run_daemon
from hearth.client.job_stream import closes
from hearth.errors import JobRejected
from hearth.hcp import require
from hearth.hcp.messages import Event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth import Client
    from hearth.cli.demo.daemon import DemoFolder
    from hearth.cli.demo.stage import Stage
    from hearth.hcp.api import JobResult

CAPABILITY = "bench-climate-survey"
MESSAGE_ID = "5d3c1c5e-6f0e-4b3c-9a57-0d1f2b6f4a10"
INTENT = "Find out how warm the bench is, and whether it holds still"
SAMPLES = 20
ORDER: Mapping[str, Any] = {
    "capability_version": "2.x",
    "caller_id": "harness-alpha-001",
    "max_duration": "PT1M",
    "confidence_threshold": 0.5,
    "data_classification": "T2",
    "expected_output": {"format": "climate-survey", "required_fields": ["mean", "stddev", "confidence"]},
    "message_id": MESSAGE_ID,
}
INPUTS: Mapping[str, Any] = {"sensor": "temperature", "samples": SAMPLES, "interval_s": 0.1, "unit": "kelvin"}
_WIDTH = 92
"""Columns of a shown line."""
_MANY, _FEW = ("progress", "checkpoint_created"), 2
"""Types of frequent events, and the number of each that is shown."""
_RECORD_ORDER = ("hcp.submit", "hcp.accept", "task.step.start", "task.step.finish", "hcp.artifact", "hcp.finish")
_TIME_OF_DAY = slice(11, 23)
_LONG = ("session_id", "task_id", "payload_hash", "inputs_hash", "args_hash", "principal", "hcp_session", "message_id")


async def play(stage: Stage, place: DemoFolder) -> None:
    """Run all scenes. Raises DemoFailed with the first claim that does not hold, and ConfigError without the extra."""
    require("hearth demo --hcp")
    stage.scene("A board that takes orders")
    await stage.say(
        "Beside its tools, a hearthd offers capabilities: whole jobs that another agent may hand over by HCP, each "
        "with schemas for what goes in and what comes out, and a risk."
    )
    async with run_daemon(place) as daemon:
        async with connect(place.socket) as client:
            with trio.fail_after(SCENE_LIMIT):
                await _what_there_is(stage, client)
                result = await _a_job(stage, client)
                rows = await _its_artifact(stage, client, result)
                await _handed_over_again(stage, client, result)
                await _not_like_this(stage, client)
                await _the_account(stage, client, result)
        await _the_record(stage, place, result, rows, await daemon.stop())


async def _what_there_is(stage: Stage, client: Client) -> None:
    offered = {one["capability"]["name"]: one["capability"] for one in await client.capabilities()}
    for name, one in offered.items():
        what = f"{name} {one['version']}".ljust(28)
        stage.happened(f"{what} {one['safety']['risk_ceiling']}  {_brief(' '.join(one['description'].split()), 58)}")
    stage.claim(
        f"{CAPABILITY} is among them: it drives nothing, and needs no person's approval",
        CAPABILITY in offered
        and not offered[CAPABILITY]["safety"]["involves_physical_resources"]
        and not offered[CAPABILITY]["safety"]["requires_human_approval"],
        "its inputs: " + ", ".join(offered.get(CAPABILITY, {}).get("input_schema", {}).get("properties", ())),
    )
    await stage.pause()


def _brief(text: str, most: int = _WIDTH) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


async def _a_job(stage: Stage, client: Client) -> JobResult:
    """Submit the job, and show its events as they come."""
    stage.scene("One message, and the rest is hearth's")
    await stage.say(
        f"An agent sends a task_submit: {SAMPLES} readings of the thermometer, results in kelvin, and a confidence of "
        "at least one half or it is not done. hearth works out the steps. These are its messages, as they come:"
    )
    job = await client.delegate(CAPABILITY, INTENT, INPUTS, **ORDER)
    events: list[Event] = []
    async for message in job.messages():
        event = message.payload
        if not isinstance(event, Event):
            stage.happened(_brief(hcp_view.message_line(message)))
            continue
        if event.event_type not in _MANY or sum(one.event_type == event.event_type for one in events) < _FEW:
            stage.happened(_brief(hcp_view.message_line(message)))
        events.append(event)
    result = await job.wait()
    outputs, summary = result.outputs, result.summary
    stage.claim(
        "the gate took it for what it is: reading alone, risk R1",
        job.accepted is not None and job.accepted.risk_level == "R1",
    )
    stage.claim(
        "it completed, and says how sure it is",
        result.completed and outputs["confidence"] >= ORDER["confidence_threshold"],
        "{mean} ± {stddev} {unit}, confidence {confidence}".format_map(outputs) if result.completed else "",
    )
    stage.claim(
        "its events are numbered without a hole, and the last one closes the session",
        [event.sequence for event in events] == list(range(1, len(events) + 1))
        and events[-1].event_type == "session_closed",
        f"{len(events)} events",
    )
    made = sum(event.event_type == "checkpoint_created" for event in events)
    stage.claim(
        "each reading was a step of its own, and left a checkpoint to go on from",
        summary is not None and summary.steps_executed == summary.checkpoints_created == made == SAMPLES,
        f"{made} checkpoints",
    )
    async with client.open_session(client_name="hearth demo") as session:
        celsius = (await session.run("hw.sensor.read", sensor="temperature"))["value"]
    stage.claim(
        "the mean is what the thermometer says, in kelvin",
        abs(outputs["mean"] - celsius - 273.15) < 1,
        f"hw.sensor.read: {celsius:.2f} °C",
    )
    return result


async def _its_artifact(stage: Stage, client: Client, result: JobResult) -> int:
    """Fetch the file and check it; return the number of its readings."""
    stage.scene("What it leaves behind is a file that can be checked")
    (artifact,) = result.artifacts
    await stage.say(f"The readings themselves are an artifact, {artifact.uri}. Its first lines:")
    content = await client.artifact(artifact.uri)
    for line in content.decode("utf-8").splitlines()[:4]:
        stage.happened(line)
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    stage.claim(
        "its size and its SHA-256 are those that the job has told",
        (checksum, len(content)) == (artifact.checksum, artifact.size_bytes),
        f"{len(content)} bytes, {checksum[:23]}…",
    )
    rows = list(csv.DictReader(io.StringIO(content.decode("utf-8"))))
    mean = statistics.fmean(float(row["value"]) for row in rows) + 273.15
    stage.claim(
        f"the mean of its {len(rows)} rows is the mean that was reported",
        len(rows) == result.outputs["samples"] == SAMPLES and abs(mean - result.outputs["mean"]) < 0.01,
        f"{mean:.3f} K, computed from the file",
    )
    await stage.pause()
    return len(rows)


async def _handed_over_again(stage: Stage, client: Client, result: JobResult) -> None:
    """Send the same message again, and check that it gets the same job, not another one."""
    stage.scene("The same message twice is still one job")
    await stage.say("An agent that does not know whether its message arrived sends it again; this one, much too late:")
    again = await client.delegate(CAPABILITY, INTENT, INPUTS, **ORDER)
    told = await again.wait()
    stage.claim(
        "it gets the first answer, and the outcome of the job that was done",
        again.session_id == result.session_id and told.outputs == result.outputs,
        f"session {again.session_id}",
    )
    await stage.pause()


async def _not_like_this(stage: Stage, client: Client) -> None:
    """Submit an impossible job, and show the reason and the suggested change."""
    stage.scene("What cannot be done is refused, with the cure")
    refused = None
    try:
        await client.delegate(CAPABILITY, INTENT, {**INPUTS, "samples": 0})
    except JobRejected as error:
        refused = error
        stage.happened(f"task_rejected  {error.reason_code}: {error.message}")
        stage.happened(f"suggestion     {error.suggestion}")
    stage.claim(
        "a survey of no readings is rejected before anything runs, with a suggestion what to send instead",
        refused is not None and refused.reason_code == "invalid_input" and bool(refused.suggestion),
    )
    await stage.pause()


async def _the_account(stage: Stage, client: Client, result: JobResult) -> None:
    """Show the output of `hearth hcp account`: the request, the decision, the events and the outcome."""
    stage.scene("The account of the job, for later questions")
    await stage.say("This is hearth hcp account SESSION, of a job that any program of the same user may ask about:")
    job = await client.attach_job(result.session_id)
    messages = [message async for message in job.messages()]
    told = io.StringIO()
    hcp_account.show(job.entry, messages, await job.wait(), file=told, width=_WIDTH)
    for line in told.getvalue().splitlines():
        if "checkpoint" not in line or "-000001" in line or "checkpoints" in line:
            stage.happened(line.rstrip())
    stage.claim(
        "it has every message of the job, from the acceptance to the last event",
        [message.type for message in messages][:1] == ["task_accepted"] and closes(messages[-1]),
        f"{len(messages)} messages",
    )
    await stage.pause()


async def _the_record(stage: Stage, place: DemoFolder, result: JobResult, rows: int, code: int) -> None:
    """Check the job's records in the audit log of the daemon, which has ended."""
    stage.scene("The job in the audit log, which shows if it is changed")
    await stage.say("The daemon has ended. This is the job in its audit log (of the steps, the first and the last):")
    records = [orjson.loads(line) for line in place.log.read_bytes().splitlines()]
    of_job = _records_of(records, result.session_id)
    for record in _telling(of_job):
        told = {name: value for name, value in record.items() if name not in _LONG}
        stage.happened(_brief(record_line({**told, "ts": record["ts"][_TIME_OF_DAY]})))
    events = [record["event"] for record in of_job]
    stage.claim("SIGTERM: the daemon ended in good order", code == 0, f"exit status {code}")
    stage.claim(
        "submit, the gate's yes, the steps, the file, the outcome: in this order",
        [events.index(event) for event in _RECORD_ORDER] == sorted(events.index(event) for event in _RECORD_ORDER),
        f"{len(of_job)} records",
    )
    starts, finishes = events.count("task.step.start"), events.count("task.step.finish")
    stage.claim(
        "every reading of the file is a step there, begun and finished, and none was done twice",
        starts == finishes == rows,
        f"{starts} steps",
    )
    kept = [record for record in of_job if record["event"] == "hcp.artifact"]
    stage.claim(
        "the file is there with its checksum",
        [(one["uri"], one["checksum"]) for one in kept] == [(one.uri, one.checksum) for one in result.artifacts],
    )
    report = verify(place.log, place.public_key)
    stage.claim(
        "hearth audit verify: unbroken from the first record to the last",
        report.ok and report.records == len(records),
        f"{report.records} records",
    )


def _records_of(records: Sequence[dict[str, Any]], job: str) -> list[dict[str, Any]]:
    """Return a job's records: those that name it, its submission, and those of its HACP session."""
    accepted = next((one for one in records if one["event"] == "hcp.accept" and one["hcp_session"] == job), {})
    session = accepted.get("session_id")
    return [
        record
        for record in records
        if record.get("hcp_session") == job
        or (session is not None and record.get("session_id") == session)
        or (record["event"] == "hcp.submit" and record.get("message_id") == MESSAGE_ID)
    ]


def _telling(of_job: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all records of a job, but only the first and the last of its steps."""
    steps = [record for record in of_job if record["event"].startswith("task.")]
    few = {id(record) for record in [*steps[:4], *steps[-3:]]}
    return [record for record in of_job if not record["event"].startswith("task.") or id(record) in few]
