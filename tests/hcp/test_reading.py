"""Reading HCP documents: the envelope's rules, what a refusal says, and that nothing else comes of it."""

from __future__ import annotations

import math
import re
from random import Random
from typing import Any
from uuid import UUID

import orjson
import pytest
from hcp.examples import GONE, NAMES, at, changed, example
from hcp.mutating import mangled, mutant

from hearth.errors import InvalidRequest, ParseError
from hearth.hcp.codec import dump, message, read_declaration, read_message, read_submission, write_message
from hearth.hcp.messages import Abort, Event, Message, MessageError, TaskCompleted
from hearth.protocol.jsonrpc import load

NOW = 1_736_929_800.25
MESSAGES = [example(name) for name in NAMES if "hcp_version" in example(name)]
FULL = [
    *MESSAGES,
    {**example("l2-event"), "type": "abort", "payload": {"reason": "enough", "session_token": "a.b"}},
    {**example("l2-event"), "payload": example("l2-checkpoint-created")},
]


def submit() -> dict[str, Any]:
    return example("l4-task-submit")


def refused(document: Any) -> MessageError:
    with pytest.raises(MessageError) as raised:
        read_message(document)
    return raised.value


# --- what is taken, and what it becomes -----------------------------------------------------------------------------


def test_unknown_members_are_ignored_at_every_level() -> None:
    for document in FULL:
        if document["payload"] == {}:
            continue
        plain = read_message(document)
        strange = {**document, "x-trace": {"id": [1]}, "ttl": None}
        strange["payload"] = {**document["payload"], "weather": "fair"}
        for name in ("constraints", "expected_output", "execution_summary", "error_details"):
            if name in strange["payload"]:
                strange["payload"][name] = {**strange["payload"][name], "later": {"version": 2}}
        if "artifacts" in strange["payload"]:
            strange["payload"]["artifacts"] = [{**each, "mood": []} for each in strange["payload"]["artifacts"]]
        assert read_message(strange) == plain


def test_what_a_caller_put_into_its_own_objects_is_handed_on_as_it_is() -> None:
    free = {"a/b~c": [1, 1.5, None, {"ü": "\u0000"}], "": {"": []}}
    for pointer in ("/payload/inputs", "/payload/context", "/payload/expected_output/schema"):
        document = changed(submit(), pointer, free)
        assert at(write_message(read_message(document)), pointer) == free


@pytest.mark.spec(
    "hcp L1 Message Envelope",
    "MUST",
    "null only in the initial task_submit message. All subsequent messages MUST include a valid session ID",
)
def test_the_first_message_of_a_task_has_no_session_and_those_after_it_have_one() -> None:
    assert read_message(changed(submit(), "/session_id", GONE)).session_id is None
    error = refused(changed(submit(), "/session_id", "session-xyz"))
    assert (error.pointer, error.reason) == (
        "/session_id",
        'expected null in a task_submit, got a string ("session-xyz")',
    )
    assert "write null" in (error.suggestion or "")
    for document in FULL:
        if document["type"] in ("task_submit", "task_rejected"):
            continue
        assert refused(changed(document, "/session_id", None)).pointer == "/session_id"
        assert "no such member" in refused(changed(document, "/session_id", GONE)).reason
    rejected = example("l3-task-rejected")
    assert read_message(rejected).session_id is None
    assert read_message({**rejected, "session_id": "session-xyz"}).session_id == "session-xyz"


@pytest.mark.parametrize("version", ["0.9", "2.0", "10.0", "999999999.0"])
def test_a_version_of_another_major_is_told_apart_from_what_is_no_version(version) -> None:
    error = refused(changed(submit(), "/hcp_version", version))
    assert (error.code, error.pointer) == ("unsupported_version", "/hcp_version")
    assert error.suggestion == 'speak HCP "1.0"'


def test_a_later_minor_version_is_read_by_what_is_known_of_it() -> None:
    document = changed(submit(), "/hcp_version", "1.7")
    assert read_message({**document, "new_in_1_7": True}).hcp_version == "1.7"


def test_a_refusal_bears_the_message_id_wherever_one_could_be_read() -> None:
    document = {**submit(), "message_id": "msg-7"}
    for pointer in ("/hcp_version", "/timestamp", "/type", "/payload", "/payload/intent"):
        assert refused(changed(document, pointer, 5)).message_id == "msg-7"
        assert refused(changed(document, pointer, GONE)).message_id == "msg-7"
    assert refused({**document, "session_id": 5}).message_id == "msg-7"
    for bad in (5, None, "", "x" * 201, "a\nb"):
        assert refused({**document, "message_id": bad}).message_id is None


@pytest.mark.parametrize("document", [None, True, 5, "hello", [], [{"hcp_version": "1.0"}], {1, 2}, b"{}"])
def test_what_is_no_object_is_no_message(document) -> None:
    error = refused(document)
    assert (error.pointer, error.message_id, error.code) == ("", None, "invalid_message")


# --- what a refusal says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pointer", "value", "reason", "cure"),
    [
        ("/payload/intent", 5, "expected a string, got an integer (5)", "for example"),
        ("/payload/intent", GONE, "expected a string, but there is no such member", 'add "intent" to /payload'),
        (
            "/payload/expected_output/required_fields/1",
            None,
            "expected a string, got null",
            "/payload/expected_output/required_fields/1",
        ),
        ("/type", "Task_Submitted", None, 'did you mean "task_submit"'),
        ("/payload", [], "expected an object, got an array", '"capability"'),
        ("/payload/caller_id", ["\ud800"], "expected a string, got an array", "/payload/caller_id"),
        ("/hcp_version", "one", 'expected "MAJOR.MINOR", got a string ("one")', 'write "1.0"'),
    ],
)
def test_a_refusal_says_where_what_was_expected_what_was_there_and_what_to_do(pointer, value, reason, cure) -> None:
    error = refused(changed(submit(), pointer, value))
    assert error.pointer == pointer
    assert reason is None or error.reason == reason
    assert cure in (error.suggestion or "")
    assert str(error) == f"{pointer}: {error.reason}"


def test_a_misspelt_member_is_recognized() -> None:
    document = submit()
    document["payload"]["input"] = document["payload"].pop("inputs")
    error = refused(document)
    assert error.pointer == "/payload/inputs"
    assert error.suggestion == 'write "inputs" where /payload has "input"'
    document = submit()
    document["messageid"] = document.pop("message_id")
    assert refused(document).suggestion == 'write "message_id" where the message has "messageid"'


def test_a_name_in_a_pointer_is_escaped() -> None:
    document = changed(
        example("l3-task-accepted"), "/payload/safety_envelope", {"parameters": {"a/b~c": {"max": "much"}}}
    )
    error = refused(document)
    assert error.pointer == "/payload/safety_envelope/parameters/a~1b~0c/max"
    assert at(document, error.pointer) == "much"


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 10**5000, ("T1",), {1: 2}, object(), b"T1", "\ud800"],
    ids=lambda value: type(value).__name__,
)
def test_what_only_a_program_in_this_process_can_hand_over_is_refused_alike(value) -> None:
    for pointer in (
        "/message_id",
        "/timestamp",
        "/type",
        "/payload/constraints/confidence_threshold",
        "/payload/constraints/max_duration",
        "/payload/constraints/priority",
    ):
        assert refused(changed(submit(), pointer, value)).pointer == pointer


# --- our own messages -----------------------------------------------------------------------------------------------


def test_our_own_messages_have_a_fresh_uuid_v4_and_the_moment_in_utc() -> None:
    first = message(Abort(reason="enough"), session_id="s", now=NOW)
    second = message(Abort(reason="enough"), session_id="s", now=NOW)
    assert first.message_id != second.message_id
    assert UUID(first.message_id).version == 4
    written = write_message(first)
    assert written["hcp_version"] == "1.0"
    assert written["timestamp"] == "2025-01-15T08:30:00.250Z"
    assert written["type"] == "abort"
    assert list(written) == ["hcp_version", "message_id", "timestamp", "session_id", "type", "payload"]


def test_a_message_of_any_moment_reads_as_the_same_again() -> None:
    random = Random(6)
    for sequence in range(200):
        made = message(Event(event_type="log", sequence=sequence), session_id="s", now=random.uniform(0, 4e9))
        assert read_message(load(dump(made))) == made


def test_what_json_cannot_say_is_told_when_it_is_written() -> None:
    for value in (object(), "\ud800", 2**80):
        with pytest.raises(TypeError):
            dump(message(TaskCompleted(outputs={"value": value}), session_id="s", now=NOW))


def test_only_a_task_submit_can_be_submitted() -> None:
    with pytest.raises(MessageError) as raised:
        read_submission({**example("l4-task-completed"), "message_id": "msg-7"}, now=NOW)
    assert (raised.value.pointer, raised.value.message_id) == ("/type", "msg-7")
    for document, pointer in (
        ({}, "/capability"),
        ({"capability": 1}, "/capability"),
        ([], ""),
        ({"payload": {}}, "/message_id"),
    ):
        with pytest.raises(MessageError) as raised:
            read_submission(document, now=NOW)
        assert raised.value.pointer == pointer


def test_a_declaration_is_an_object_with_a_capability() -> None:
    for document, pointer in (({}, "/capability"), ([], ""), ({"capability": {"name": ""}}, "/capability/name")):
        with pytest.raises(MessageError) as raised:
            read_declaration(document)
        assert raised.value.pointer == pointer


# --- thousands of wrong ones ----------------------------------------------------------------------------------------


def verdict(document: Any) -> Message | MessageError:
    """What reading makes of it, held to what is promised of either."""
    read, error = None, None
    try:
        read = read_message(document)
    except MessageError as refusal:
        error = refusal
    if error is None:
        assert read is not None
        # Not by `load`: a mutant may be deeper than the wire reads.
        assert read_message(orjson.loads(dump(read))) == read
        return read
    assert error.reason.startswith("expected ")
    assert len(error.reason) < 300
    assert error.suggestion
    assert error.code in ("invalid_message", "unsupported_version")
    orjson.dumps([error.pointer, error.reason, error.suggestion])
    parent, _, name = error.pointer.rpartition("/")
    place = at(document, parent)
    missing = error.reason.endswith("but there is no such member")
    assert error.pointer == "" or isinstance(place, list) or missing != (name in place)
    return error


@pytest.mark.proof
def test_thousands_of_mutated_messages_are_read_or_refused_and_nothing_else() -> None:
    random = Random(2024)
    refusals: dict[str, int] = {}
    read = 0
    for number in range(6000):
        document = mutant(FULL[number % len(FULL)], random)
        outcome = verdict(document)
        if isinstance(outcome, MessageError):
            place = re.sub(r"/\d+", "/N", outcome.pointer)
            refusals[place] = refusals.get(place, 0) + 1
        else:
            read += 1
    # It is about both: mutations that do harm, at many places, and some that do none.
    assert read > 500
    assert sum(refusals.values()) > 2000
    assert len(refusals) > 50


@pytest.mark.slow
def test_thousands_of_mangled_lines_are_read_or_refused_and_nothing_else() -> None:
    random = Random(4202)
    parsed = 0
    for number in range(6000):
        data = mangled(FULL[number % len(FULL)], random)
        try:
            document = load(data)
        except (ParseError, InvalidRequest):
            continue
        parsed += 1
        verdict(document)
    assert parsed > 500


def test_numbers_and_texts_that_json_can_say_and_python_stumbles_over_are_refused_or_read() -> None:
    head = b'{"hcp_version":"1.0","message_id":"m","timestamp":"...","session_id":"s","type":"event","payload":'
    for number, reads in (
        (b"42", True),
        (b"9007199254740992", False),
        (b"9" * 400, None),
        (b"1e999", None),
        (b"-0", True),
    ):
        data = head + b'{"event_type":"log","sequence":' + number + b"}}"
        if reads is None:
            with pytest.raises(ParseError):
                load(data)
        elif reads:
            assert isinstance(verdict(load(data)), Message)
        else:
            assert verdict(load(data)).pointer == "/payload/sequence"
    for text in (rb"\ud800", b"\xff", rb"\udc00\ud800"):
        with pytest.raises(ParseError):
            load(head + b'{"event_type":"log","sequence":1,"data":{"message":"' + text + b'"}}}')
    with pytest.raises(ParseError):
        load(head + b"[" * 200 + b"]" * 200 + b"}")
