"""The hcp.* methods: what may be asked about whole jobs, and by whom."""

from __future__ import annotations

import hashlib
from base64 import b64decode

import pytest
from support.hcp import Caller, capability, hcp_world, reading, step
from support.world import ALICE, BOB

from hearth.policy.principal import Principal
from hearth.policy.rules import Match, PolicyEntry

CAROL = Principal(kind="unix", uid=1003, gid=1003)
NOTE = b"it was fine\n" * 1000
POLICY = (
    PolicyEntry(name="carol", match=Match(uid=CAROL.uid), max_risk=1, hcp={"capabilities": ["other"]}),
    PolicyEntry(name="rest", match=Match(any=True), hcp={"max_data_classification": "T4"}),
)


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
async def world(tmp_path):
    async def notes(job):
        job.artifact("note.txt", NOTE, media_type="text/plain")
        return {}

    look = capability(function=notes, data_classification="T4")
    gated = capability("gated", reading(step("read", tag="first", gate="g")))
    async with hcp_world(tmp_path / "hcp", look, gated, policy=POLICY) as running:
        yield running


async def refused(caller, method, **params):
    return (await caller.ask(method, params))["error"]


async def test_capabilities_are_those_that_this_caller_may_use_as_declared(world):
    offered = (await world.caller(ALICE).call("hcp.capabilities"))["capabilities"]
    assert [one["capability"]["name"] for one in offered] == ["gated", "look"]
    assert offered[1]["capability"] == world.parts.extras["hcp"].capabilities["look"].declaration()["capability"]
    assert (await world.caller(CAROL).call("hcp.capabilities"))["capabilities"] == []


async def test_sessions_are_the_callers_own_the_newest_first(world):
    alice, bob = world.caller(ALICE), world.caller(BOB)
    first = await alice.accepted(message_id="m-1")
    await alice.closed(first)
    second = await alice.accepted("gated")
    await alice.told(second, "state_changed")
    listed = (await alice.call("hcp.sessions"))["sessions"]
    assert [one["session_id"] for one in listed] == [second, first]
    assert [one["state"] for one in listed] == ["RUNNING", "COMPLETED"]
    done = listed[1]
    assert done["message_id"] == "m-1"
    assert (done["capability"], done["capability_version"]) == ("look", "1.0.0")
    assert (done["risk_level"], done["data_classification"]) == ("R3", "T1")
    assert done["last_sequence"] == alice.events_in(first)[-1]["sequence"]
    assert (await bob.call("hcp.sessions"))["sessions"] == []


async def test_attach_sends_a_session_from_an_event_on_running_or_ended(world):
    alice = world.caller(ALICE)
    session_id = await alice.accepted("gated")
    await alice.told(session_id, "state_changed")
    again = world.caller(ALICE)
    entry = await again.call("hcp.attach", session_id=session_id, from_sequence=2)
    assert entry["state"] == "RUNNING"
    world.gate("g").open()
    message_log = await again.closed(session_id)
    assert message_log[0]["payload"]["sequence"] == 2
    whole = await alice.closed(session_id)
    assert message_log == whole[2:]
    last = whole[-1]["payload"]["sequence"]
    third = world.caller(ALICE)
    await third.call("hcp.attach", session_id=session_id, from_sequence=last)
    assert [one["type"] for one in await third.closed(session_id)] == ["task_completed", "event"]
    fourth = world.caller(ALICE)
    await fourth.call("hcp.attach", session_id=session_id, from_sequence=0)
    assert await fourth.closed(session_id) == whole


async def test_anothers_session_cannot_be_attached_to_and_is_not_told_apart_from_none(world):
    alice, bob = world.caller(ALICE), world.caller(BOB)
    session_id = await alice.accepted()
    await alice.closed(session_id)
    errors = [
        await refused(bob, "hcp.attach", session_id=which, from_sequence=0)
        for which in (session_id, "6b8f1f0e-0000-4000-8000-000000000000")
    ]
    assert errors[0] == errors[1]
    assert errors[0]["code"] == -32000


async def artifact_of(caller, **more):
    session_id = await caller.accepted(**more)
    (artifact,) = (await caller.outcome(session_id))["artifacts"]
    return artifact


async def test_an_artifact_is_read_in_parts_and_has_the_checksum_that_was_told(world):
    alice = world.caller(ALICE)
    artifact = await artifact_of(alice)
    content = b""
    while len(content) < artifact["size_bytes"]:
        part = await alice.call("hcp.artifact", uri=artifact["uri"], offset=len(content), len=5000)
        assert (part["name"], part["type"], part["offset"]) == ("note", "text/plain", len(content))
        content += b64decode(part["data"])
    assert content == NOTE
    assert artifact["checksum"] == part["checksum"] == "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("classification", "others", "recorded"), [("T1", 1, 0), ("T2", 1, 2), ("T3", 0, 1), ("T4", 0, 1)]
)
async def test_artifacts_of_t3_and_t4_are_readable_only_by_who_submitted_the_job(
    world, classification, others, recorded
):
    alice, bob, carol = world.caller(ALICE), world.caller(BOB), world.caller(CAROL)
    artifact = await artifact_of(alice, constraints={"data_classification": classification})
    assert "result" in await alice.ask("hcp.artifact", {"uri": artifact["uri"]})
    answer = await bob.ask("hcp.artifact", {"uri": artifact["uri"]})
    assert ("result" in answer) == bool(others)
    none = await refused(bob, "hcp.artifact", uri=artifact["uri"].replace("note", "nothing"))
    if not others:
        assert answer["error"] == none
    assert (await refused(carol, "hcp.artifact", uri=artifact["uri"])) == none
    await world.journal.post({"event": "test"}).get()
    assert len(world.records("hcp.artifact.read")) == recorded


@pytest.mark.parametrize(
    "uri", ["http://x/y", "hcp://../artifacts/x", "hcp://6b8f1f0e-0000-4000-8000-000000000000/artifacts/x"]
)
async def test_what_names_no_artifact_is_refused_with_its_place(world, uri):
    error = await refused(world.caller(ALICE), "hcp.artifact", uri=uri)
    assert error["code"] == -32602
    assert error["data"]["path"] == "/uri"


async def test_a_job_store_that_does_not_answer_is_an_internal_error_with_its_reason(world):
    alice = world.caller(ALICE)
    session_id = await alice.accepted()
    await alice.closed(session_id)
    await world.job_server.services.job_store.aclose()
    assert "closed" in (await refused(alice, "hcp.sessions"))["data"]["reason"]
    answer = await alice.rejected(Caller.submission())
    assert answer["reason_code"] == "resource_unavailable"
    answer = await alice.rejected(Caller.abortion(session_id))
    assert answer["reason_code"] == "resource_unavailable"
