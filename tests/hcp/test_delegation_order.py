"""One reader's place in a session's messages (L2, Integration with L1 Stream Continuity)."""

import logging

import pytest
from hypothesis import given, strategies as st

from hearth.client.job_stream import EARLY_KEPT, ReorderBuffer
from hearth.hcp.messages import Event, Message, TaskCompleted

SESSION = "6a1b3f9e-9f0e-4a57-8f5c-2d7c0a5b1e42"


def event(sequence, kind="progress"):
    payload = Event(event_type=kind, sequence=sequence)
    return Message(message_id=f"m{sequence}", timestamp=None, session_id=SESSION, type="event", payload=payload)


def outcome(message_id="end"):
    payload = TaskCompleted(outputs={})
    return Message(message_id=message_id, timestamp=None, session_id=SESSION, type="task_completed", payload=payload)


def given_out(order, messages):
    return [due.payload.sequence for message in messages for due in order.take(message)]


@st.composite
def arrivals(draw):
    """Events 1 to n: some of them more than once, none so early that it is not waited for."""
    count = draw(st.integers(1, 40))
    sequences = [sequence for sequence in range(1, count + 1) for _ in range(draw(st.integers(1, 3)))]
    return count, draw(st.permutations(sequences))


@pytest.mark.slow
@given(arrivals())
@pytest.mark.spec("hcp L2 Event Ordering", "MUST", "Consumers MUST process events in sequence order.")
@pytest.mark.spec(
    "hcp L2 Event Ordering",
    "SHOULD",
    "If events arrive out of order (due to transport characteristics), the consumer SHOULD buffer and reorder.",
)
@pytest.mark.spec(
    "hcp L2 Event Ordering",
    "is",
    "the caller checks event.sequence <= last_processed_sequence — if true, the event has already been "
    "processed and is skipped",
)
@pytest.mark.spec("hcp L1 Delivery Guarantees", "SHOULD", "Consumers SHOULD deduplicate on message_id.")
def test_however_events_arrive_each_is_given_out_once_and_in_order(arrived):
    count, sequences = arrived
    order = ReorderBuffer()
    assert given_out(order, map(event, sequences)) == list(range(1, count + 1))
    assert order.last_processed_sequence == count


@pytest.mark.spec(
    "hcp L2 Event Ordering",
    "MUST",
    "The caller MUST maintain a last_processed_sequence value for each active session.",
)
def test_an_event_that_was_processed_before_a_restart_is_not_given_out_again():
    order = ReorderBuffer(from_sequence=3)
    assert order.last_processed_sequence == 2
    assert given_out(order, [event(1), event(2), event(3)]) == [3]


@pytest.mark.spec(
    "hcp L2 Event Ordering",
    "SHOULD",
    "On gap detection, the caller SHOULD log a warning and continue processing (the missing event may arrive "
    "via redelivery).",
)
def test_a_gap_is_told_in_the_log_when_it_shows(caplog):
    order = ReorderBuffer()
    with caplog.at_level(logging.WARNING, "hearth.client.jobs"):
        assert given_out(order, [event(2), event(3)]) == []
    assert [record.getMessage() for record in caplog.records] == [
        f"HCP session {SESSION}: event 2 has come, and 1 has not"
    ]


def test_a_gap_that_nothing_fills_is_passed_over_when_too_many_events_wait():
    order = ReorderBuffer()
    early = range(2, EARLY_KEPT + 2)
    assert given_out(order, map(event, early)) == []
    assert given_out(order, [event(EARLY_KEPT + 2)]) == [*early, EARLY_KEPT + 2]
    assert given_out(order, [event(1)]) == []


def test_a_gap_that_nothing_fills_is_passed_over_when_the_session_is_closed():
    order = ReorderBuffer()
    assert given_out(order, [event(5), event(2)]) == []
    assert given_out(order, [event(9, "session_closed")]) == [2, 5, 9]


def test_what_runs_ahead_while_all_of_it_is_on_its_way_is_left_to_come_again(caplog):
    order = ReorderBuffer(catching_up=True)
    assert given_out(order, [event(7), event(8)]) == []
    assert order.take(outcome()) == []
    assert given_out(order, map(event, range(1, 9))) == list(range(1, 9))
    assert len(order.take(outcome())) == 1
    assert not caplog.records


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_message_without_a_sequence_is_given_out_once(times):
    order = ReorderBuffer()
    assert sum(len(order.take(outcome())) for _ in range(times)) == 1
    assert len(order.take(outcome("another"))) == 0, "a session has one outcome, whatever its callee sends after it"
