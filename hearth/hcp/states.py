"""The states of an HCP session and the ways between them (L2, Session State Machine): a table, and nothing that lives.

The page's table is whole: what it does not have is a bug of whoever tries it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from hearth.hcp.values import State

if TYPE_CHECKING:
    from collections.abc import Mapping

STATES: Final[tuple[State, ...]] = get_args(State)

TRANSITIONS: Final[Mapping[State, Mapping[State, str]]] = {
    "PENDING": {"RUNNING": "L3 safety check passed", "REJECTED": "L3 safety check failed"},
    "REJECTED": {},
    "RUNNING": {
        "PAUSED": "Callee pauses execution",
        "ABORTING": "Caller sends `abort`",
        "COMPLETED": "Task finishes successfully",
        "FAILED": "Unrecoverable error",
    },
    "PAUSED": {"RUNNING": "Callee resumes execution", "ABORTING": "Caller sends `abort` while paused"},
    "ABORTING": {"ABORTED": "Callee finishes cleanup"},
    "ABORTED": {},
    "COMPLETED": {},
    "FAILED": {},
}
"""From -> to -> what triggers it (L2, Valid State Transitions)."""

TERMINAL: Final[frozenset[State]] = frozenset(state for state, ways in TRANSITIONS.items() if not ways)
"""REJECTED, ABORTED, COMPLETED, FAILED: none leads on."""


def move(state: State, to: State) -> State:
    """The new state. Raises ValueError for a transition that the table does not have."""
    if to not in TRANSITIONS[state]:
        ways = " or ".join(TRANSITIONS[state]) or "nowhere"
        raise ValueError(f"an HCP session goes from {state} to {ways}, not to {to}")
    return to
