"""What README.md promises is what tests prove: each row of its table names tests that exist."""

from __future__ import annotations

import re
from functools import cache

import pytest
from docs.player import ROOT

PROVED_BY = {
    "A bus transaction that has begun is never interrupted": [
        "test_a_transaction_that_has_begun_is_never_interrupted_by",
        "test_sigterm_a_transaction_that_has_begun_is_never_interrupted",
        "test_3_6_an_i2c_write_in_flight_is_never_cut_short",
    ],
    "A request that is cancelled before it began never begins": [
        "test_a_queued_request_whose_asker_is_cancelled_never_begins",
        "test_a_queued_step_never_begins_once_its_task_is_ended_by",
    ],
    "Two transactions on one bus never overlap": [
        "test_two_transactions_on_one_bus_never_overlap",
        "test_a_full_queue_answers_resource_busy_at_once",
    ],
    "No hardware effect without a record": [
        "test_a_step_begins_only_after_its_start_is_on_record",
        "test_after_kill_9_no_acknowledged_task_is_missing_and_nothing_ran_unrecorded",
    ],
    "No event is lost": [
        "test_nothing_is_lost_between_submit_and_subscribe",
        "test_any_reader_at_any_pace_sees_everything_that_must_not_be_lost",
    ],
    "A controller that dies leaves a robot that stops": [
        "test_with_on_disconnect_close_a_controller_that_dies_leaves_a_robot_that_stops",
        "test_5_an_idle_session_is_reaped_with_all_that_closing_means",
    ],
    "Every connection is authenticated, on any carrier": [
        "test_12_over_a_network_every_peer_proves_who_it_is",
        "test_12_no_network_listener_starts_without_a_proof_of_who_calls_and_encryption",
        "test_10_1_a_user_in_the_group_gets_a_session_and_another_not_even_a_connection",
    ],
    "An agent can do what its policy says and nothing else": [
        "test_12_the_tools_are_those_of_the_configuration_and_no_others_can_be_called",
        "test_12_no_tool_above_the_sessions_maximum_is_executed",
        "test_12_rates_hold_for_each_session_and_tool_and_for_a_principals_sessions_together",
        "test_12_every_tool_that_accepts_a_path_refuses_one_outside_the_allowlist",
    ],
    "No output leaves the limits and interlocks of the board profile": [
        "test_whatever_is_asked_on_every_path_no_line_and_no_register_leaves_its_limits",
        "test_an_observer_sees_no_driven_level_while_a_required_condition_is_open",
        "test_a_sensor_that_fails_counts_as_an_open_interlock",
    ],
    "A halt stops everything, and only a person ends it": [
        "test_from_a_halt_on_nothing_with_an_effect_is_accepted_also_as_a_dry_run_and_reads_go_on",
        "test_killed_at_any_change_of_the_latch_it_comes_back_halted_or_had_not_acknowledged",
        "test_a_reset_ends_the_halt_and_starts_nothing",
    ],
    "A retry does not act twice": [
        "test_whatever_answer_is_lost_and_whenever_the_daemon_is_killed_a_repeated_submission_acts_once",
    ],
    "What a person approves is exactly what runs, once": [
        "test_what_is_shown_is_what_is_hashed_and_what_runs",
        "test_a_plan_that_is_not_what_it_was_when_it_was_shown_does_not_run",
        "test_of_two_that_execute_one_plan_at_once_one_does",
    ],
}


def promises() -> list[str]:
    """The first column of the table under "What it promises"."""
    section = (ROOT / "README.md").read_text("utf-8").partition("## What it promises\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    return [row for row in rows if row not in ("promise", "---")]


@cache
def names_of_tests() -> set[str]:
    """The names of all tests."""
    sources = (file.read_text("utf-8") for file in (ROOT / "tests").rglob("*.py"))
    return {name for source in sources for name in re.findall(r"^ *(?:async )?def (test_\w+)", source, re.MULTILINE)}


def test_every_promise_is_one_that_we_know() -> None:
    assert len(promises()) == len(PROVED_BY)
    for promise, known in zip(promises(), PROVED_BY, strict=True):
        assert promise.startswith(known)


@pytest.mark.parametrize("promise", PROVED_BY)
def test_every_promise_has_its_tests(promise: str) -> None:
    assert set(PROVED_BY[promise]) <= names_of_tests()
