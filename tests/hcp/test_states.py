"""L2's state machine: every transition of its table, and none besides."""

from __future__ import annotations

import pytest

from hearth.hcp.messages import STATES, TERMINAL, TRANSITIONS, move

TABLE = {
    ("PENDING", "RUNNING"),
    ("PENDING", "REJECTED"),
    ("RUNNING", "PAUSED"),
    ("RUNNING", "ABORTING"),
    ("RUNNING", "COMPLETED"),
    ("RUNNING", "FAILED"),
    ("PAUSED", "RUNNING"),
    ("PAUSED", "ABORTING"),
    ("ABORTING", "ABORTED"),
}
"""L2, Valid State Transitions, row by row."""
PAIRS = [(state, to) for state in STATES for to in STATES]


def test_the_states_are_those_of_the_page() -> None:
    assert STATES == ("PENDING", "REJECTED", "RUNNING", "PAUSED", "ABORTING", "ABORTED", "COMPLETED", "FAILED")
    assert set(TRANSITIONS) == set(STATES)
    assert len(TABLE) == 9


@pytest.mark.spec("hcp L2 Valid State Transitions")
@pytest.mark.spec(
    "hcp L2 State Definitions",
    "is",
    "PAUSED | Execution temporarily suspended, session preserved | Callee decision or checkpoint",
)
@pytest.mark.parametrize(("state", "to"), [pair for pair in PAIRS if pair in TABLE])
def test_a_session_goes_the_ways_of_the_table(state, to) -> None:
    assert move(state, to) == to
    assert TRANSITIONS[state][to]


@pytest.mark.parametrize(("state", "to"), [pair for pair in PAIRS if pair not in TABLE])
def test_a_session_goes_no_way_that_the_table_does_not_have(state, to) -> None:
    with pytest.raises(ValueError, match=rf"goes from {state} to .*, not to {to}$"):
        move(state, to)


def test_four_states_are_terminal_and_lead_nowhere() -> None:
    assert {"REJECTED", "ABORTED", "COMPLETED", "FAILED"} == TERMINAL
    for state in TERMINAL:
        with pytest.raises(ValueError, match="to nowhere"):
            move(state, "RUNNING")


def test_every_state_but_the_first_is_reached() -> None:
    reached = {"PENDING"}
    for _ in STATES:
        reached |= {to for state in reached for to in TRANSITIONS[state]}
    assert reached == set(STATES)
