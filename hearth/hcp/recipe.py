"""The planner that is shipped: a capability's [recipe], a list of HACP steps with expressions between them.

It has no language of its own: steps are tools and args, what is computed is JMESPath (`hearth.hcp.expressions`). A plan
is read and checked whole at start-up (`recipe_reading`). Each job is a course over it (`recipe_course`, `recipe_run`),
which is brought back from a checkpoint by telling a new one the outcomes on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth.hcp.recipe_course import RecipeCourse
from hearth.hcp.recipe_reading import read_recipe
from hearth.hcp.recipe_shape import Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.hcp.planning import Order
    from hearth.hcp.recipe_shape import Recipe, Step
    from hearth.tools import ToolRegistry


@frozen
class RecipePlan:
    """A recipe that has been found sound."""

    recipe: Recipe

    @property
    def tools(self) -> frozenset[str]:
        """Every tool that its steps name."""
        return frozenset(_tools(self.recipe.steps))

    @property
    def resumable(self) -> bool:
        """Always: a course follows from its order and its outcomes."""
        return True

    def begin(self, order: Order) -> RecipeCourse:
        """Start a job."""
        return RecipeCourse(self.recipe, order)


class RecipePlanner:
    """Reads [recipe]."""

    def prepare(self, document: Mapping[str, Any], registry: ToolRegistry) -> RecipePlan:
        """The plan of a capability file. Raises PlanError with all of its faults."""
        return RecipePlan(read_recipe(document, registry))


def _tools(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        if isinstance(step.do, Call):
            yield step.do.tool
        else:
            yield from _tools(step.do)
