"""What a recipe is made of, once it has been read and found sound: steps, groups, rounds, templates, artifacts.

Values only: `hearth.hcp.recipe_reading` makes them, `hearth.hcp.recipe_run` does them. Whatever is an `Expression`
here has been checked against the names that are there at its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.decoding import Decoding
    from hearth.hcp.envelope import SafetyEnvelope
    from hearth.hcp.expressions import Expression
    from hearth.schema import Validator

Number: TypeAlias = "float | Expression"


@frozen
class Constant:
    """A value as written."""

    value: Any


@frozen(kw_only=True)
class Computed:
    """A value by an expression, in another unit if that is asked for."""

    expression: Expression
    source: str | None = None
    """The unit in which it comes."""
    unit_of: Expression | None = None
    """Or what says so."""
    unit: str | None = None
    """The unit that is wanted."""


@frozen
class Members:
    """An object of templates; what is null among those computed is left out."""

    members: Mapping[str, Template]
    nullable: frozenset[str] = frozenset()
    """Those that are kept when they are null."""


@frozen
class Items:
    """An array of templates."""

    items: tuple[Template, ...]


Template: TypeAlias = "Constant | Computed | Members | Items"


@frozen(kw_only=True)
class Rounds:
    """How often a step is done: `count` times, or once for each of `items`; ended early by `until`."""

    count: Number | None = None
    items: Expression | None = None
    every_s: Number | None = None
    until: Expression | None = None


@frozen(kw_only=True)
class Report:
    """What becomes an intermediate_result after each `every`th round."""

    expression: Expression
    type: str
    every: int = 1


@frozen(kw_only=True)
class Retry:
    """How often more a failed tool is asked, and after how long."""

    times: int
    after_s: float = 0


@frozen(kw_only=True)
class Call:
    """A tool and its args."""

    tool: str
    args: Template
    valid: Validator = field(repr=False, eq=False)
    decodings: tuple[Decoding, ...] = ()
    retry: Retry | None = None


@frozen(kw_only=True)
class Step:
    """One step: a call, or a group of steps."""

    name: str
    phase: str
    do: Call | tuple[Step, ...]
    when: Expression | None = None
    delay_s: Number | None = None
    rounds: Rounds | None = None
    on_failure: Literal["fail", "continue"] = "fail"
    report: Report | None = None


@frozen(kw_only=True)
class Rows:
    """An artifact of rows and columns: CSV."""

    rows: Expression
    columns: Mapping[str, Expression]


@frozen(kw_only=True)
class Content:
    """An artifact that is one value: JSON, or text."""

    content: Expression


@frozen(kw_only=True)
class Plot:
    """An artifact that is drawn."""

    title: str
    rows: Expression
    x: Expression
    series: Mapping[str, Expression]
    x_label: str
    y_label: str


@frozen(kw_only=True)
class ArtifactSpec:
    """One file that a job leaves behind."""

    name: str
    file: str
    type: str
    of: Rows | Content | Plot


@frozen(kw_only=True)
class Recipe:
    """A whole one."""

    steps: tuple[Step, ...]
    outputs: Members
    artifacts: tuple[ArtifactSpec, ...]
    envelope: SafetyEnvelope
