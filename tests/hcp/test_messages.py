"""Every field of every table of HCP's pages: there and right, there and wrong, and not there at all.

A few values show which type a field has; all that a type accepts and refuses is in tests/test_fields.py.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hcp.examples import GONE, at, changed, example

from hearth.hcp.codec import dump, read_declaration, read_message, write_message
from hearth.hcp.messages import MessageError
from hearth.protocol.jsonrpc import load

NO_STRING: list[Any] = [5, ["a"]]
NO_OBJECT: list[Any] = ["{}", []]
NO_NUMBER: list[Any] = ["5", True]
NO_STRINGS: list[Any] = ["a", [5], ["a", None]]
NOT_1_TO_5: list[Any] = ["R0", "R6", "r1", 1]


class Kind(NamedTuple):
    """What a column "Type" means: values that are of it, as they are read, and values that are not."""

    right: list[tuple[Any, Any]]
    wrong: list[Any]


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


KINDS = {
    "version": Kind(
        same("1.0", "1.1", "1.999"), [1.0, 1, "1", "v1.0", "1.0.0", "01.0", "1.x", "", "1.0\n", "١.0", True, ["1.0"]]
    ),
    "id": Kind(same("550e8400-e29b-41d4-a716-446655440000", "..."), ["", "x" * 201, "a\nb", *NO_STRING]),
    "instant": Kind(
        [("2025-01-15T08:30:00.000Z", datetime(2025, 1, 15, 8, 30, tzinfo=UTC)), ("...", None)],
        ["2025-01-15T08:30:00", "....", *NO_STRING],
    ),
    "type": Kind(
        same("task_submit"), ["Task_Submit", "task_submitted", "", *NO_STRING]
    ),
    "string": Kind(same("x", "ü𝔘 \n", "5", "null"), ["", *NO_STRING]),
    "string, even empty": Kind(same("", "x", "ü𝔘 \n"), NO_STRING),
    "string[]": Kind([(["a"], ("a",)), (["a", "b"], ("a", "b")), ([], ())], NO_STRINGS),
    "object": Kind(same({}, {"a": {"b": [1, None]}}), NO_OBJECT),
    "JSON Schema": Kind(same({}, {"type": "object", "required": ["a"]}), NO_OBJECT),
    "JSON Schema or boolean": Kind(
        [*same({}, {"type": "object", "required": ["a"]}), (True, {}), (False, {"not": {}})],
        NO_OBJECT,
    ),
    "boolean": Kind(same(True, False), [0, "true"]),
    "integer": Kind([*same(0, 2**53 - 1), (2.0, 2)], [-1, 1.5, 2**53, *NO_NUMBER]),
    "integer from 1": Kind([*same(1), (1.0, 1)], [0, 0.0, *NO_NUMBER]),
    "number 0 to 1": Kind(same(0, 1, 0.95), [-0.01, 1.01, *NO_NUMBER]),
    "percent": Kind(same(0, 100), [-1, 100.1, *NO_NUMBER]),
    "number": Kind(same(0, -5, 1e308), NO_NUMBER),
    "duration": Kind([("PT10M", timedelta(minutes=10))], ["PT0S", "P1Y", *NO_STRING]),
    "measured duration": Kind(
        [("PT2H15M", timedelta(hours=2, minutes=15)), ("PT0S", timedelta(0))], ["-PT1S", "P1Y", *NO_STRING]
    ),
    "R1–R5": Kind(same("R1", "R2", "R3", "R4", "R5"), [*NOT_1_TO_5, *NO_STRING]),
    "T1–T4": Kind(same("T1", "T2", "T3", "T4"), ["T0", "T5", "t1", "secret", 1, *NO_STRING]),
    "low/normal/high/urgent": Kind(
        same("low", "normal", "high", "urgent"), ["High", "URGENT", "medium", "", 1, *NO_STRING]
    ),
    "error code": Kind(
        same(
            "execution_error", "timeout", "safety_violation", "resource_unavailable", "internal_error", "input_error"
        ),
        ["Timeout", "banana", "", -32000, *NO_STRING],
    ),
    "event type": Kind(same("progress"), ["Progress", "tool_start", "", *NO_STRING]),
    "state": Kind(
        same("PENDING", "REJECTED", "RUNNING", "PAUSED", "ABORTING", "ABORTED", "COMPLETED", "FAILED"),
        ["running", "DONE", "", *NO_STRING],
    ),
    "final state": Kind(same("REJECTED", "ABORTED", "COMPLETED", "FAILED"), ["RUNNING", "ABORTING", "", *NO_STRING]),
    "level": Kind(same("info", "warn", "error"), ["warning", "INFO", "", *NO_STRING]),
    "anything": Kind(same(5, "a", [1], {"a": None}, False), []),
    "artifacts": Kind([([], ())], [{}, "a", 5, True, ["a"], [[]], [5]]),
}  # fmt: skip
"""The words of the column Type -> what they take."""


class Row(NamedTuple):
    """A row of a table: where it is in a message of the pages, and whether it must be there."""

    table: str
    message: str
    """The page's example, to which the row is added."""
    pointer: str
    kind: str
    required: bool
    absent: Any = None
    """What is read where it is optional and not there."""


def rows(table: str, message: str, base: str, text: str) -> list[Row]:
    found = []
    for line in text.strip().splitlines():
        name, kind, required, *absent = (cell.strip() for cell in line.split("|"))
        found.append(
            Row(table, message, f"{base}/{name}", kind, required == "Yes", eval(absent[0]) if absent else None)
        )
    return found


ARTIFACT = """
name | string | Yes
type | string | Yes
uri | string | Yes
size_bytes | integer | No
checksum | string | No
"""
SUMMARY = """
duration | measured duration | Yes
steps_executed | integer | Yes
checkpoints_created | integer | No | 0
risk_events | string[] | No | ()
warnings | string[] | No | ()
"""

ROWS = [
    *rows(
        "L1 Envelope Fields",
        "l4-task-submit",
        "",
        """
        hcp_version | version | Yes
        message_id | id | Yes
        timestamp | instant | Yes
        type | type | Yes
        payload | object | Yes
        """,
    ),
    *rows("L1 Envelope Fields", "l4-task-completed", "", "session_id | id | Yes"),
    *rows("L1 Envelope Fields", "l3-task-rejected", "", "session_id | id | No"),
    *rows(
        "L2 Event Envelope",
        "l2-event",
        "/payload",
        """
        event_type | event type | Yes
        sequence | integer | Yes
        data | object | No | {}
        """,
    ),
    *rows(
        "L3 TaskAccepted Response",
        "l3-task-accepted",
        "/payload",
        """
        session_token | string | Yes
        risk_level | R1–R5 | Yes
        data_classification | T1–T4 | Yes
        safety_envelope | object | No | {}
        constraints/max_duration | duration | Yes
        constraints/abort_timeout | measured duration | Yes
        in_reply_to | id | No
        """,
    ),
    *rows(
        "L3 TaskRejected Response",
        "l3-task-rejected",
        "/payload",
        """
        reason_code | string | Yes
        reason_message | string | Yes
        assessed_risk_level | R1–R5 | No
        suggestion | string | No
        in_reply_to | id | No
        """,
    ),
    *rows(
        "L4 TaskSubmit Fields",
        "l4-task-submit",
        "/payload",
        """
        capability | string | Yes
        capability_version | string, even empty | No
        caller_id | string | Yes
        intent | string | Yes
        inputs | object | Yes
        context | object | No | {}
        """,
    ),
    *rows(
        "L4 Constraints",
        "l4-task-submit",
        "/payload/constraints",
        """
        max_duration | duration | No
        confidence_threshold | number 0 to 1 | No
        data_classification | T1–T4 | No
        priority | low/normal/high/urgent | No
        """,
    ),
    *rows(
        "L4 Expected Output",
        "l4-task-submit",
        "/payload/expected_output",
        """
        format | string | No
        required_fields | string[] | No | ()
        schema | JSON Schema or boolean | No
        """,
    ),
    *rows(
        "L4 TaskCompleted Fields",
        "l4-task-completed",
        "/payload",
        """
        outputs | object | Yes
        artifacts | artifacts | No | ()
        """,
    ),
    *rows("L4 Artifacts", "l4-task-completed", "/payload/artifacts/0", ARTIFACT),
    *rows("L4 Artifacts", "l4-task-failed", "/payload/artifacts/0", ARTIFACT),
    *rows("L4 execution_summary", "l4-task-completed", "/payload/execution_summary", SUMMARY),
    *rows("L4 execution_summary", "l4-task-failed", "/payload/execution_summary", SUMMARY),
    *rows(
        "L4 Task Failure",
        "l4-task-failed",
        "/payload",
        """
        error_code | error code | Yes
        error_message | string | Yes
        partial_outputs | object | No | {}
        artifacts | artifacts | No | ()
        """,
    ),
    *rows(
        "L4 error_details",
        "l4-task-failed",
        "/payload/error_details",
        """
        phase | string, even empty | No
        step | integer | No
        last_checkpoint | string | No
        recoverable | boolean | No | False
        reason | string, even empty | No
        """,
    ),
    *rows(
        "L2 Abort Protocol",
        "abort",
        "/payload",
        """
        reason | string, even empty | No
        session_token | string | No
        """,
    ),
]
WHOLE = ["constraints", "expected_output"]
"""Members of a task_submit that are tables of their own."""

EVENT_DATA = """
session_created: state = state, risk_level = R1–R5, session_token = string
state_changed: from_state = state, to_state = state, reason = string, even empty
progress: stage = string, even empty; percent = percent; message = string, even empty; remaining = measured duration
intermediate_result: result_type = string; data = anything; is_partial = boolean
log: level = level; message = string, even empty; details = anything
warning: code = string; message = string, even empty; details = anything
error: code = string; message = string, even empty; recoverable = boolean
checkpoint_created: checkpoint_id = string; description = string, even empty; resumable = boolean; created_at = instant
session_closed: final_state = final state; reason = string, even empty
"""


def message(name: str) -> dict[str, Any]:
    if name == "abort":
        return {**example("l2-event"), "type": "abort", "payload": {"reason": "enough", "session_token": "a.b"}}
    document = example(name)
    if name == "l3-task-accepted":
        document["payload"]["in_reply_to"] = "msg-001"
    return document


def read_at(document: dict[str, Any], pointer: str) -> Any:
    """The attribute of the read message that a pointer into its document means."""
    value: Any = read_message(document)
    for name in pointer.split("/")[1:]:
        value = value[int(name)] if isinstance(value, tuple) else getattr(value, name)
    return value


def refused(document: dict[str, Any]) -> MessageError:
    with pytest.raises(MessageError) as raised:
        read_message(document)
    assert raised.value.reason.startswith("expected ")
    assert raised.value.suggestion
    return raised.value


each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.table}, {row.message}{row.pointer}")


@each_row
def test_a_field_is_read_as_what_its_table_says_and_written_back_as_it_was(row) -> None:
    for given, meant in KINDS[row.kind].right:
        if row.pointer == "/payload":
            continue  # the other rows are about it
        document = changed(message(row.message), row.pointer, given)
        assert read_at(document, row.pointer) == meant
        read = read_message(document)
        assert read_message(write_message(read)) == read
        assert read_message(load(dump(read))) == read


@pytest.mark.spec("hcp L1 Envelope Fields")
@pytest.mark.spec("hcp L2 Event Envelope")
@pytest.mark.spec("hcp L3 TaskAccepted Response")
@pytest.mark.spec("hcp L3 TaskRejected Response")
@pytest.mark.spec("hcp L4 TaskSubmit Fields")
@pytest.mark.spec("hcp L4 Constraints")
@pytest.mark.spec("hcp L4 Expected Output")
@pytest.mark.spec("hcp L4 TaskCompleted Fields")
@pytest.mark.spec("hcp L4 Artifacts")
@pytest.mark.spec("hcp L4 TaskFailed Schema")
@pytest.mark.spec("hcp L4 Standard Error Codes")
@each_row
def test_a_field_that_is_not_of_its_type_is_refused_with_its_place_and_the_cure(row) -> None:
    for given in KINDS[row.kind].wrong:
        error = refused(changed(message(row.message), row.pointer, given))
        assert error.pointer == row.pointer or error.pointer.startswith(f"{row.pointer}/"), given
        assert "got" in error.reason


@each_row
def test_a_required_field_that_is_missing_is_named_and_an_optional_one_may_be(row) -> None:
    document = changed(message(row.message), row.pointer, row.absent)
    document = changed(document, row.pointer, GONE)
    name = row.pointer.rpartition("/")[2]
    if row.required:
        error = refused(document)
        assert error.pointer == row.pointer
        assert error.reason.endswith("but there is no such member")
        assert error.suggestion is not None
        assert f'"{name}"' in error.suggestion
    else:
        assert read_at(document, row.pointer) == row.absent
        assert read_at(changed(message(row.message), row.pointer, None), row.pointer) == row.absent


@each_row
def test_null_is_no_value_of_a_required_field(row) -> None:
    if row.required:
        error = refused(changed(message(row.message), row.pointer, None))
        assert error.pointer == row.pointer
        assert error.reason.endswith("got null")


@pytest.mark.parametrize("name", WHOLE)
def test_the_tables_within_a_task_submit_are_objects_and_may_be_missing(name) -> None:
    document = message("l4-task-submit")
    pointer = f"/payload/{name}"
    for given in KINDS["object"].wrong:
        assert refused(changed(document, pointer, given)).pointer == pointer
    empty = read_at(changed(document, pointer, {}), pointer)
    assert empty == read_at(changed(document, pointer, GONE), pointer)
    assert empty != read_at(document, pointer)
    assert name not in write_message(read_message(changed(document, pointer, {})))["payload"]


@pytest.mark.parametrize("name", ["error_details", "execution_summary"])
def test_the_tables_within_a_task_failed_are_objects_and_may_be_missing(name) -> None:
    document = message("l4-task-failed")
    pointer = f"/payload/{name}"
    for given in KINDS["object"].wrong:
        assert refused(changed(document, pointer, given)).pointer == pointer
    read = read_message(changed(document, pointer, GONE))
    # That it is not known to be recoverable is said; what was not measured is not.
    assert write_message(read)["payload"].get(name) == {"error_details": {"recoverable": False}}.get(name)
    assert read_message(write_message(read)) == read


@pytest.mark.parametrize("name", ["constraints"])
def test_what_holds_for_a_session_is_said_when_it_is_accepted(name) -> None:
    document = message("l3-task-accepted")
    for given in KINDS["object"].wrong:
        assert refused(changed(document, f"/payload/{name}", given)).pointer == f"/payload/{name}"
    assert refused(changed(document, f"/payload/{name}", GONE)).pointer == f"/payload/{name}"


@pytest.mark.spec("hcp L4 Context")
@pytest.mark.parametrize("field", ["purpose", "references", "notes"])
@pytest.mark.parametrize("given", ["a", ["doi:10.1021/nl903868w"], 5, None, {"a": [1]}, True])
def test_the_context_is_validated_against_nothing(field, given) -> None:
    document = changed(message("l4-task-submit"), f"/payload/context/{field}", given)
    assert read_message(document).payload.context[field] == given
    assert read_message(changed(document, "/payload/context", {})).payload.context == {}


def data_rows() -> list[Any]:
    found = []
    for line in EVENT_DATA.strip().splitlines():
        event_type, _, fields = line.partition(": ")
        for part in fields.replace(", even empty", "~").replace(", ", "; ").split("; "):
            name, _, kind = part.partition(" = ")
            found.append(pytest.param(event_type, name, kind.replace("~", ", even empty"), id=f"{event_type}.{name}"))
    return found


@pytest.mark.spec("hcp L2 Standard Event Types")
@pytest.mark.parametrize(("event_type", "name", "kind"), data_rows())
def test_the_data_of_an_event_are_of_the_types_of_its_row_and_handed_on_as_they_are(event_type, name, kind) -> None:
    event = changed(example("l2-event"), "/payload/event_type", event_type)
    for given, _ in KINDS[kind].right:
        read = read_message(changed(event, f"/payload/data/{name}", given))
        assert read.payload.data == {name: given}
        assert read_message(load(dump(read))) == read
    for given in KINDS[kind].wrong:
        assert refused(changed(event, f"/payload/data/{name}", given)).pointer == f"/payload/data/{name}"
    for absent in ({}, {name: None}, {"something": "else"}):
        assert read_message(changed(event, "/payload/data", absent)).payload.data == absent


@pytest.mark.parametrize("parameter", ["min", "max"])
def test_a_limit_of_a_safety_envelope_is_a_number(parameter) -> None:
    document = changed(
        message("l3-task-accepted"), "/payload/safety_envelope", example("l3-safety-envelope")["safety_envelope"]
    )
    pointer = f"/payload/safety_envelope/parameters/temperature/{parameter}"
    for given, _ in KINDS["number"].right:
        read = read_message(changed(document, pointer, given))
        assert read.payload.safety_envelope["parameters"]["temperature"][parameter] == given
    for given in KINDS["number"].wrong:
        assert refused(changed(document, pointer, given)).pointer == pointer


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("parameters", "object"),
        ("parameters/temperature", "object"),
        ("parameters/temperature/unit", "string"),
        ("parameters/temperature/hard_limit", "boolean"),
        ("prohibited_actions", "string[]"),
        ("emergency_procedures", "object"),
        ("emergency_procedures/over_temperature", "string"),
    ],
)
def test_a_safety_envelope_has_the_members_of_its_example_and_is_handed_on_as_it_is(field, kind) -> None:
    envelope = {**example("l3-safety-envelope")["safety_envelope"], "ours": 1}
    document = changed(message("l3-task-accepted"), "/payload/safety_envelope", envelope)
    assert read_message(document).payload.safety_envelope == envelope
    pointer = f"/payload/safety_envelope/{field}"
    for given in KINDS[kind].wrong:
        error = refused(changed(document, pointer, given))
        assert error.pointer == pointer or error.pointer.startswith(f"{pointer}/")


DECLARATION = [
    *rows(
        "L3 Capability Declaration Fields",
        "l3-capability-declaration",
        "/capability",
        """
        name | string | Yes
        version | string | Yes
        description | string | Yes
        input_schema | JSON Schema | Yes
        output_schema | JSON Schema | Yes
        safety | object | Yes
        constraints | object | No
        constraints/max_duration | duration | No
        constraints/concurrent_limit | integer from 1 | No
        """,
    ),
    *rows(
        "L3 Safety Declaration Fields",
        "l3-capability-declaration",
        "/capability/safety",
        """
        risk_ceiling | R1–R5 | Yes
        requires_human_approval | boolean | Yes
        involves_physical_resources | boolean | Yes
        resource_types | string[] | No
        hazard_categories | string[] | No
        """,
    ),
]


@pytest.mark.spec("hcp L3 Capability Declaration Fields")
@pytest.mark.spec("hcp L3 Safety Declaration Fields")
@pytest.mark.parametrize("row", DECLARATION, ids=lambda row: row.pointer)
def test_a_capability_declaration_has_the_fields_of_its_tables(row) -> None:
    document = example(row.message)
    if row.pointer != "/capability/safety":
        for given, _ in KINDS[row.kind].right:
            assert at(read_declaration(changed(document, row.pointer, given)), row.pointer) == given
    for given in KINDS[row.kind].wrong:
        with pytest.raises(MessageError) as raised:
            read_declaration(changed(document, row.pointer, given))
        assert raised.value.pointer == row.pointer or raised.value.pointer.startswith(f"{row.pointer}/")
    missing = changed(document, row.pointer, GONE)
    if row.required:
        with pytest.raises(MessageError, match="there is no such member"):
            read_declaration(missing)
    else:
        assert read_declaration(missing) == missing


@pytest.mark.parametrize(
    ("given", "said"),
    [("P1M", "of a fixed length"), ("P1Y2M", "of a fixed length"), ("P0.5M", "of a fixed length"), ("1M", "ISO 8601")],
)
def test_a_duration_is_refused_for_its_own_reason(given, said) -> None:
    """ISO 8601: P1M is a duration, a month, and not a wrong text."""
    error = refused(changed(message("l4-task-submit"), "/payload/constraints/max_duration", given))
    assert said in error.reason
    assert given in error.reason
