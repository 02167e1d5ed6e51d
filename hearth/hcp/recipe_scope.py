"""What the expressions of a recipe see while it runs: the names of the reference, as plain JSON values.

It holds the results of a course and nothing else; everything in it follows from the order and the outcomes told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from hearth.hcp.values import write_instant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.planning import Order, Outcome

Scope = dict[str, Any]


class State:
    """The results of one course, and where in them its steps are."""

    def __init__(self, order: Order) -> None:
        self.results: dict[str, Any] = {}
        self.elapsed_s = 0.0
        """When the newest outcome was there: on record, so that it is the same when the course is brought back."""
        self._started_at = order.started_at
        self._inputs = plain(order.inputs)
        self._here: list[dict[str, Any]] = [self.results]
        self._loops: list[dict[str, Any]] = [{}]
        self._job = {
            "session_id": order.session_id,
            "started_at": write_instant(order.started_at),
            "intent": order.intent,
        }

    @property
    def here(self) -> dict[str, Any]:
        """The results of this round of the innermost group."""
        return self._here[-1]

    def scope(self, **more: Any) -> Scope:
        """What an expression sees at this moment."""
        return {
            "inputs": self._inputs,
            "results": self.results,
            "here": self.here,
            "job": {**self._job, "elapsed_s": self.elapsed_s},
            **self._loops[-1],
            **more,
        }

    def bind(self, bound: Mapping[str, Any]) -> None:
        """A round of a loop begins; `unbind` ends it."""
        self._loops.append({**self._loops[-1], **bound})

    def unbind(self) -> None:
        """The round of the innermost loop is over."""
        self._loops.pop()

    def enter(self, round_of_group: dict[str, Any]) -> None:
        """Results go here now; `leave` ends it."""
        self._here.append(round_of_group)

    def leave(self) -> None:
        """Results go where they went before."""
        self._here.pop()

    def stamps(self) -> dict[str, Any]:
        """When the newest outcome was there."""
        return {"at": write_instant(self._started_at + self.elapsed_s), "at_s": self.elapsed_s}

    def note(self, outcome: Outcome) -> None:
        """Take the time of an outcome; it never goes back."""
        self.elapsed_s = max(self.elapsed_s, outcome.elapsed_s)


def plain(value: Any) -> Any:
    """A value as JSON has it, which is what a record of it would give back. Raises TypeError where it is none."""
    return orjson.loads(orjson.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if hasattr(value, "keys"):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
