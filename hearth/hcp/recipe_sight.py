"""What the expressions of a recipe can name at each place of it, by the time that they are looked at.

It is the counterpart of `hearth.hcp.recipe_scope`, which has the values, for checks before there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import field, frozen

from hearth.hcp.names import MISSING, Names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.schema_kinds import Shape

JOB: Final[Shape] = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string"},
        "started_at": {"type": "string"},
        "elapsed_s": {"type": "number"},
        "intent": {"type": "string"},
    },
}
FAILED: Final[dict[str, Shape]] = {
    "failed": {"type": "boolean"},
    "error": {"type": "string"},
    "error_code": {"type": "string"},
}
STAMPS: Final[dict[str, Shape]] = {"at": {"type": "string"}, "at_s": {"type": "number"}}
RESERVED: Final = frozenset((*FAILED, *STAMPS, "index", "item"))

Results: TypeAlias = "dict[str, Shape]"


@frozen(kw_only=True)
class Sight:
    """What can be named at a place: the results so far, those of this round of the group, and the loop's own names."""

    inputs: Shape
    results: Results
    here: Results
    loop: Mapping[str, Shape] = field(factory=dict)

    def names(self, **more: Shape) -> Names:
        """As names for expressions, with `more` of them."""
        return Names(
            {
                "inputs": self.inputs,
                "results": {"type": "object", "properties": self.results, MISSING: "no step that has run by then"},
                "here": {"type": "object", "properties": self.here, MISSING: "no step of this round that has run"},
                "job": JOB,
                **self.loop,
                **more,
            }
        )
