"""A job by a recipe: what to do next, from the order and from what came of the steps so far, and from nothing else.

It drives a `Run` and gives an account of it. Neither has a clock but the numbers that are told, so a course that is
told the recorded outcomes of another is where that one was: its results, its rounds and its outputs are the same. Only
waits depend on the time of the moment.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hearth.hcp.planning import Do, Fail, Finish, Keepsake, Progress, Wait
from hearth.hcp.recipe_run import LONGEST_S, Run
from hearth.hcp.recipe_templates import fill_what_can

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.hcp.planning import Action, Order, Outcome
    from hearth.hcp.recipe_shape import Recipe


class RecipeCourse:
    """One job under way; see `hearth.hcp.planning.Course`."""

    def __init__(self, recipe: Recipe, order: Order) -> None:
        self._recipe = recipe
        self._run = Run(recipe, order)
        self._actions = self._run.actions()
        self._asked = False
        """A `Do` waits for its outcome."""
        self._waited = 0.0
        self._last: Fail | Finish | None = None

    @property
    def phase(self) -> str:
        """The phase of the step that it is at."""
        return self._run.phase

    async def next(self, outcome: Outcome | None, elapsed_s: float) -> Action:
        """What to do now. An end, once reached, is what it stays at."""
        if self._last is not None:
            return self._last
        if self._asked and outcome is None:
            raise ValueError(f"{self._run.at} has been given out, and nothing was told of what came of it")
        told = outcome if self._asked else None
        # A wait has passed, also where it is only told of what came after: so rhythms are brought back as they were.
        self._run.now = max(self._run.now + self._waited, elapsed_s, told.elapsed_s if told is not None else 0.0)
        # A generator that has begun is sent things; None begins it.
        action = self._actions.send(told)
        self._asked = isinstance(action, Do)
        self._waited = action.seconds if isinstance(action, Wait) else 0.0
        if isinstance(action, (Fail, Finish)):
            self._last = action
            self._actions.close()
        return action

    def progress(self) -> Progress:
        """How far it is."""
        left = None if self._last is not None else self._run.reckoning.left()
        done = self._run.reckoning.done
        total = done if isinstance(self._last, Finish) else None
        seconds = None
        if left is not None:
            total = done + left.calls
            seconds = self._run.reckoning.seconds(left)
        of = f" of {total}" if total is not None else ""
        return Progress(
            stage=self._run.phase,
            done=done,
            total=total,
            remaining=timedelta(seconds=min(round(seconds, 3), LONGEST_S)) if seconds is not None else None,
            message=f"{self._run.at}: {done}{of} steps done" if self._run.at else f"{done}{of} steps done",
        )

    def partial_outputs(self) -> Mapping[str, Any]:
        """Those outputs that have a value already."""
        return fill_what_can(self._recipe.outputs, self._run.state.scope())

    def keepsakes(self) -> Sequence[Keepsake]:
        """The artifacts that what has been done so far amounts to; those that cannot be made yet are left out."""
        if self._run.kept is not None:
            return self._run.kept
        made = (self._run.render(spec) for spec in self._recipe.artifacts)
        return [one for one in made if isinstance(one, Keepsake)]
