"""A session's messages: one history for any number of readers, found again by the sequence of an event."""

from __future__ import annotations

import pytest
from support.hcp_job_store import ACCEPTED, event, line

from hearth.actors.bridges.hcp.event_stream import MessageLog
from hearth.actors.bridges.hcp.store.queries import sequence_of
from hearth.actors.metrics import Metrics
from hearth.actors.send_queue import SendQueue

COMPLETED, FAILED = line("task_completed", outputs={}), line("task_failed", error_code="timeout")


class Listener:
    def __init__(self) -> None:
        self.gone = False
        self.notified = 0

    def notify(self) -> None:
        self.notified += 1


def test_lines_are_numbered_from_one_and_read_in_slices():
    message_log = MessageLog([ACCEPTED])
    message_log.append(event(1), event(2))
    assert message_log.last_seq == 3
    assert message_log.lines(1, 2) == ([ACCEPTED, event(1)], 3)
    assert message_log.lines(3, 2) == ([event(2)], 4)
    assert message_log.lines(4, 2) == ([], 4)
    assert message_log.lines(0, 1) == ([ACCEPTED], 2)


def test_a_reader_is_notified_for_what_is_there_for_what_comes_and_for_the_end():
    message_log, listener = MessageLog([ACCEPTED]), Listener()
    message_log.attach(listener)
    assert listener.notified == 1
    message_log.append(event(1))
    assert listener.notified == 2
    message_log.end()
    assert listener.notified == 3
    assert message_log.ended
    message_log.end()
    assert listener.notified == 3, "a message log ends once"


def test_a_reader_of_an_empty_message_log_is_notified_when_there_is_something():
    message_log, listener = MessageLog(), Listener()
    message_log.attach(listener)
    assert listener.notified == 0
    message_log.append(ACCEPTED)
    assert listener.notified == 1


def test_a_reader_that_is_gone_or_detached_is_left_alone():
    message_log, gone, detached = MessageLog(), Listener(), Listener()
    for listener in (gone, detached):
        message_log.attach(listener)
    gone.gone = True
    message_log.detach(detached)
    message_log.detach(detached)
    message_log.append(ACCEPTED)
    assert (gone.notified, detached.notified) == (0, 0)


def test_nothing_comes_after_the_end():
    message_log = MessageLog([ACCEPTED], ended=True)
    with pytest.raises(RuntimeError, match="ended"):
        message_log.append(event(1))
    assert message_log.last_seq == 1


def test_who_wants_the_events_from_one_on_is_sent_the_line_after_the_event_before_it():
    message_log = MessageLog([ACCEPTED, event(1), event(2), event(3), COMPLETED, event(4)])
    assert [message_log.index_of(sequence) for sequence in range(6)] == [1, 1, 3, 4, 5, 7]
    assert message_log.lines(message_log.index_of(4), 9)[0] == [COMPLETED, event(4)], (
        "the outcome is not missed between two events"
    )


def test_sequences_with_gaps_are_found_by_the_next_event_there_is():
    message_log = MessageLog([ACCEPTED, event(1), event(5), FAILED, event(9)])
    assert [message_log.index_of(sequence) for sequence in (1, 2, 5, 6, 9, 10, 99)] == [1, 3, 3, 4, 4, 6, 6]


def test_a_message_log_without_events_is_read_from_its_first_line():
    assert MessageLog([ACCEPTED]).index_of(7) == 1
    assert MessageLog([ACCEPTED]).index_of(1) == 1
    assert MessageLog().index_of(3) == 1


def test_only_events_have_a_sequence():
    assert sequence_of(event(12)) == 12
    assert sequence_of(COMPLETED) is None


def drained(queue: SendQueue) -> list[bytes]:
    return queue.take()


def test_connections_follow_a_message_log_each_from_its_own_place_until_it_ends():
    metrics = Metrics()
    message_log = MessageLog([ACCEPTED, event(1)], metrics=metrics)
    early, late = SendQueue(), SendQueue()
    early.follow(message_log, 1)
    assert drained(early) == [ACCEPTED, event(1)]
    message_log.append(event(2))
    late.follow(message_log, message_log.index_of(2))
    assert drained(late) == [event(2)]
    message_log.append(COMPLETED, event(3))
    message_log.end()
    assert drained(early) == [event(2), COMPLETED, event(3)]
    assert drained(late) == [COMPLETED, event(3)]
    assert (metrics.sent, metrics.skipped) == (8, 0)
    assert (early._feeds, late._feeds) == ({}, {}), "who has read it to its end follows it no longer"


def test_a_message_log_that_has_ended_is_sent_whole_to_a_later_reader():
    message_log, queue = MessageLog([ACCEPTED, event(1), FAILED, event(2)], ended=True), SendQueue()
    queue.follow(message_log, 1)
    assert drained(queue) == [ACCEPTED, event(1), FAILED, event(2)]
    assert queue._feeds == {}
