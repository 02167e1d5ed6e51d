"""The examples of HCP's pages, letter by letter: each is read, fits what it is an answer to, and is written back."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hcp.examples import NAMES, PAGES, changed, example
from support.hcp import capability, hcp_world, scripted, step
from support.world import BOB

from hearth.hcp.codec import (
    dump,
    read_declaration,
    read_message,
    read_payload,
    read_submission,
    write_message,
    write_payload,
)
from hearth.hcp.messages import MessageError, read_duration
from hearth.policy.rules import Match, PolicyEntry
from hearth.protocol.jsonrpc import load
from hearth.schema import Validator, check_schema

MESSAGES = [name for name in NAMES if "hcp_version" in example(name) and name != "l1-envelope"]
NOW = 1_736_929_800.0


def holds(written: Any, given: Any, at: str = "") -> None:
    """Everything that was given is in what is written; a duration may be spelt otherwise."""
    if isinstance(given, dict):
        for name, value in given.items():
            holds(written[name], value, f"{at}/{name}")
    elif at.endswith("duration"):
        assert read_duration(written) == read_duration(given)
    else:
        assert written == given, at


def test_the_pages_have_twelve_examples() -> None:
    assert len(NAMES) == 12
    assert len(MESSAGES) == 8


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_of_the_pages_is_read_verbatim_and_written_back(name) -> None:
    document = load((PAGES / f"{name}.json").read_bytes())
    message = read_message(document)
    written = write_message(message)
    holds(written, document)
    assert read_message(written) == message
    line = dump(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"}\n")
    assert load(line) == written


def test_the_envelope_of_l1_is_one_but_for_the_payload_that_it_leaves_out() -> None:
    envelope = example("l1-envelope")
    with pytest.raises(MessageError) as raised:
        read_message(envelope)
    assert (raised.value.pointer, raised.value.message_id) == ("/payload/capability", envelope["message_id"])
    message = read_message({**envelope, "payload": example("l4-task-submit")["payload"]})
    assert message.message_id == "550e8400-e29b-41d4-a716-446655440000"
    assert message.session_id is None
    assert write_message(message)["timestamp"] == envelope["timestamp"]


def test_the_event_of_l2_leaves_its_data_out() -> None:
    payload = read_message(example("l2-event")).payload
    assert (payload.event_type, payload.sequence, payload.data) == ("progress", 42, {})


def test_the_checkpoint_event_of_l2_is_a_payload() -> None:
    example_ = example("l2-checkpoint-created")
    payload = read_payload("event", example_)
    assert (payload.event_type, payload.sequence) == ("checkpoint_created", 100)
    assert write_payload(payload) == example_


def test_the_capability_declaration_of_l3_is_one_and_its_schemas_are_schemas() -> None:
    declared = read_declaration(example("l3-capability-declaration"))["capability"]
    check_schema(declared["input_schema"], "input_schema", by_authority=True)
    check_schema(declared["output_schema"], "output_schema", by_authority=True)


def test_the_safety_envelope_of_l3_is_one_by_itself_and_in_a_task_accepted() -> None:
    envelope = example("l3-safety-envelope")
    declared = {**example("l3-capability-declaration"), **envelope}
    assert read_declaration(declared) == declared
    accepted = changed(example("l3-task-accepted"), "/payload/safety_envelope", envelope["safety_envelope"])
    assert read_message(accepted).payload.safety_envelope == envelope["safety_envelope"]


def test_the_inputs_of_l4s_task_fit_l3s_declaration_of_the_capability_it_names() -> None:
    declared = example("l3-capability-declaration")["capability"]
    submit = read_message(example("l4-task-submit")).payload
    assert submit.capability == declared["name"]
    assert Validator(declared["input_schema"]).accepts(submit.inputs)


@pytest.mark.parametrize(
    ("asked", "given"), [("l4-task-submit", "l4-task-completed"), ("l4-simple-task-submit", "l4-simple-task-completed")]
)
def test_the_outputs_of_l4s_completed_tasks_are_what_their_task_submits_expected(asked, given) -> None:
    expected = read_message(example(asked)).payload.expected_output
    outputs = read_message(example(given)).payload.outputs
    check_schema(expected.schema, "schema", by_authority=True)
    assert Validator(expected.schema).accepts(outputs)
    assert set(expected.required_fields) <= set(outputs)


@pytest.mark.parametrize("name", ["l4-task-submit", "l4-simple-task-submit"])
def test_a_task_submit_may_be_handed_in_whole_or_as_its_payload_alone(name) -> None:
    document = example(name)
    whole = read_submission(document, now=NOW)
    assert whole == read_message(document)
    bare = read_submission(document["payload"], now=NOW)
    assert bare.payload == whole.payload
    assert bare.message_id != whole.message_id
    assert write_message(bare)["timestamp"] == "2025-01-15T08:30:00.000Z"
    assert read_message(load(dump(bare))) == bare


def finding(outputs):
    """A function that looks at the bench and has found what a page has found."""
    return scripted(step("read", phase="material_growth", tag="x"), outputs=outputs)


def synthesis():
    """The capability of L3's declaration; its outputs are those of L4's task_completed."""
    declared = example("l3-capability-declaration")["capability"]
    return capability(
        declared["name"],
        finding(example("l4-task-completed")["payload"]["outputs"]),
        input_schema=declared["input_schema"],
        # The page's own has no place for what L4's task asks of it.
        output_schema={"type": "object", "properties": {"confidence": {"type": "number"}}},
        max_duration=read_duration(declared["constraints"]["max_duration"]),
        safety={"risk_ceiling": "R4", "risk_floor": "R4", "requires_human_approval": True},
        formats=("raman_spectrum_analysis",),
    )


def analysis():
    return capability(
        "document-analysis", finding(example("l4-simple-task-completed")["payload"]["outputs"]), output_schema={}
    )


ENTRY = PolicyEntry(name="bench", match=Match(any=True), max_risk=2, rights=["approve"])


async def test_the_pages_simple_task_is_done_as_it_stands_there(tmp_path) -> None:
    async with hcp_world(tmp_path / "hcp", analysis(), policy=(ENTRY,)) as world:
        caller = world.caller()
        await caller.send((PAGES / "l4-simple-task-submit.json").read_bytes().replace(b"\n", b" "))
        await caller.until(lambda: caller.replies("msg-001"))
        answer = caller.replies("msg-001")[0]
        assert answer["payload"]["data_classification"] == "T1"
        completed = await caller.outcome(answer["session_id"])
    page = example("l4-simple-task-completed")["payload"]
    assert completed["outputs"] == page["outputs"]
    assert set(page["execution_summary"]) <= set(completed["execution_summary"])


async def test_the_pages_synthesis_waits_for_a_person_and_is_done_as_it_stands_there(tmp_path) -> None:
    async with hcp_world(tmp_path / "hcp", synthesis(), policy=(ENTRY,)) as world:
        caller, person = world.caller(), world.caller(BOB)
        await caller.send((PAGES / "l4-task-submit.json").read_bytes().replace(b"\n", b" "))
        while not (waiting := (await person.call("hcp.pending"))["approvals"]):
            await trio.lowlevel.checkpoint()
        assert waiting[0]["inputs"] == example("l4-task-submit")["payload"]["inputs"]
        await person.call("hcp.decide", approval_id=waiting[0]["approval_id"], approve=True)
        await caller.until(lambda: caller.replies("..."))
        answer = caller.replies("...")[0]
        assert (answer["payload"]["risk_level"], answer["payload"]["data_classification"]) == ("R4", "T2")
        completed = await caller.outcome(answer["session_id"])
    page = example("l4-task-completed")["payload"]
    assert completed["outputs"] == page["outputs"]
    assert set(page["execution_summary"]) == set(completed["execution_summary"])
