"""What the words of a command line become: JSON values, references, plans."""

from __future__ import annotations

import click
import orjson
import pytest
from hypothesis import given, strategies as st

from hearth.cli.run import _error, parse_pairs, parse_value, run
from hearth.cli.submit import read_plan
from hearth.cli.tasks import Reference, ReferenceType
from hearth.errors import PermissionDenied, TaskFailed, TimedOut


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", 17),
        ("-1", -1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("[1,2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ('"17"', "17"),
        ("0x48", "0x48"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("/etc/hosts", "/etc/hosts"),
        ("True", "True"),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_what_is_json_is_taken_as_json_and_anything_else_is_a_string(text, value):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["9007199254740993", "-9007199254740993", "123456789012345678901234567890"])
def test_a_number_that_a_double_cannot_hold_stays_as_it_was_typed(text):
    assert parse_value(text) == text


@given(st.text())
def test_any_string_can_be_said_by_quoting_it_as_json(text):
    assert parse_value(orjson.dumps(text).decode()) == text


@given(st.text())
def test_no_text_makes_reading_a_value_fail(text):
    parse_value(text)


def test_pairs_keep_their_order_and_split_at_the_first_equals():
    pairs = parse_pairs(["line=17", "name=a=b", "empty="])
    assert list(pairs.items()) == [("line", 17), ("name", "a=b"), ("empty", "")]


@pytest.mark.parametrize("word", ["line", "=1", ""])
def test_a_word_that_is_no_pair_is_a_usage_error_with_an_example(word):
    with pytest.raises(click.UsageError, match=r"expected KEY=VALUE, got .*; for example line=17"):
        parse_pairs([word])


def test_a_key_that_is_there_twice_is_a_usage_error():
    with pytest.raises(click.UsageError, match="line is given twice"):
        parse_pairs(["line=1", "line=2"])


def test_a_reference_reads_back_what_it_prints():
    reference = Reference("01S", "01T")
    assert ReferenceType().convert(str(reference), None, None) == reference
    assert reference.params == {"session_id": "01S", "task_id": "01T"}


@pytest.mark.parametrize("text", ["", "01S", "/01T", "01S/", "a/b/c", "\x1b[31m"])
def test_what_is_no_reference_is_a_usage_error_that_shows_no_control_characters(text):
    with pytest.raises(click.BadParameter, match="is not SESSION/TASK") as refused:
        ReferenceType().convert(text, None, None)
    assert "\x1b" not in refused.value.message


PLAN = {"intent": "x", "steps": [{"tool": "gpio.get", "args": {"line": 1}}]}


def test_a_plan_is_read_from_a_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(orjson.dumps(PLAN))
    assert read_plan(str(path)) == PLAN


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", 'a plan is an object such as {"intent"'),
        (b"{}", "a plan is an object"),
        (b'{"steps": {}}', "a plan is an object"),
        (orjson.dumps({"session_id": "x", "task": PLAN}), 'keep what is under "task"'),
        (b'\xff{"steps": []}', "not JSON"),
    ],
)
def test_what_is_no_plan_is_a_usage_error_that_says_what_one_is(tmp_path, content, reason):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(click.UsageError) as refused:
        read_plan(str(path))
    assert refused.value.message.startswith(f"{path}: ")
    assert reason in refused.value.message


def test_a_plan_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(click.UsageError, match=r"nothing\.json: No such file or directory"):
        read_plan(str(tmp_path / "nothing.json"))


def test_a_task_that_succeeded_is_no_error():
    assert _error({"status": "SUCCESS", "steps": [{"status": "SUCCESS", "result": {}}]}) is None


def test_a_failed_step_is_the_error_it_failed_with():
    step = {"status": "FAILED", "error": "no", "error_code": -32003, "error_data": {"reason": "r"}}
    error = _error({"status": "FAILED", "steps": [step]})
    assert isinstance(error, PermissionDenied)
    assert (error.message, error.data) == ("no", {"reason": "r"})


def test_a_task_that_ran_out_of_time_is_that_error_and_not_its_steps():
    done = {"status": "FAILED", "error": "late", "error_code": -32010, "steps": [{"status": "CANCELLED"}]}
    assert isinstance(_error(done), TimedOut)


@pytest.mark.parametrize("steps", [{}, {"steps": []}, {"steps": [{"status": "CANCELLED"}]}])
def test_a_cancelled_task_is_an_error_without_a_code(steps):
    error = _error({"status": "CANCELLED", **steps})
    assert isinstance(error, TaskFailed)
    assert str(error) == "the task ended CANCELLED: no reason given"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"constraints": {"dryrun": True}}, "/constraints/dryrun: unknown key; did you mean dry_run?"),
        ({"constraint": {"dry_run": True}}, "/constraint: unknown key; did you mean constraints?"),
        (
            {"steps": [{"tool": "gpio.get"}, {"tool": "gpio.get", "arg": {}}]},
            "/steps/1/arg: unknown key; did you mean args?",
        ),
    ],
)
def test_a_plan_with_an_unknown_member_is_refused_before_anything_is_sent(tmp_path, plan, said):
    path = tmp_path / "plan.json"
    path.write_bytes(orjson.dumps({"intent": "x", "steps": [{"tool": "gpio.get"}], **plan}))
    with pytest.raises(click.UsageError) as refused:
        read_plan(str(path))
    assert refused.value.message == f"{path}: {said}"


def test_an_unknown_constraint_is_refused_before_anything_is_sent():
    with pytest.raises(click.UsageError) as refused:
        run.main(["gpio.set", "line=1", "value=1", "-c", "dryrun=true"], standalone_mode=False)
    assert refused.value.message == "-c dryrun: unknown key; did you mean dry_run?"
