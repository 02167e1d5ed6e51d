"""A capability file that is right, ways to make it wrong, and the tools and planners that it is held against."""

from __future__ import annotations

import copy
import functools
import tomllib
from typing import TYPE_CHECKING, Any

from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.tools import build_tools
from hearth.hcp.declaration import declare
from hearth.hcp.planners import load_planners
from hearth.tools import ToolRegistry

if TYPE_CHECKING:
    from hearth.hcp.capability import Capability

GONE = object()
"""For `changed`: the key is taken out."""

RIGHT = """
[capability]
name = "line-blink"
version = "1.2.0"
description = "Drives a line high and low again, some times."
formats = ["blink-report"]

[capability.input_schema]
type = "object"
properties.line = { type = "integer", minimum = 0, default = 17 }
properties.times = { type = "integer", minimum = 1, maximum = 100, default = 3 }
additionalProperties = false

[capability.output_schema]
type = "object"
required = ["times"]
properties.times = { type = "integer" }

[capability.safety]
risk_ceiling = "R4"
risk_floor = "R3"
requires_human_approval = true
involves_physical_resources = true
resource_types = ["gpio_line"]
hazard_categories = ["moving_parts"]

[[capability.safety.escalate]]
when = "inputs.times > `10`"
risk = "R4"
because = "whatever hangs on the line is moved for long"

[capability.constraints]
max_duration = "PT10M"
concurrent_limit = 2
data_classification = "T3"

[safety_envelope]
prohibited_actions = ["driving_a_line_that_is_not_wired"]

[safety_envelope.parameters.times]
value = "inputs.times"
max = 50

[[recipe.steps]]
name = "high"
tool = "gpio.set"
args = { line = { expr = "inputs.line" }, value = 1 }

[recipe.outputs]
times = "inputs.times"
"""


@functools.cache
def registry() -> ToolRegistry:
    """The tools of the simulated board."""
    return ToolRegistry(build_tools(open_board(load_profile("sim"))))


def changed(place: str = "", value: Any = GONE, text: str = RIGHT) -> dict[str, Any]:
    """The document with the value at a place ("capability.safety.escalate.0.risk") put in or taken out."""
    document = copy.deepcopy(tomllib.loads(text))
    if place:
        *way, last = place.split(".")
        table: Any = document
        for part in way:
            table = table[int(part)] if isinstance(table, list) else table.setdefault(part, {})
        if value is GONE:
            del table[last]
        else:
            table[last] = value
    return document


def declared(place: str = "", value: Any = GONE) -> Capability:
    """The capability of the file with this change, in which nothing may be wrong."""
    declared = declare(changed(place, value), "blink.toml", registry(), load_planners())
    assert declared.faults == ()
    assert declared.capability is not None
    return declared.capability


def faults_of(document: dict[str, Any]) -> list[str]:
    """What is wrong with a document, as the library tells it, without the file."""
    declared = declare(document, "blink.toml", registry(), load_planners())
    assert (declared.capability is None) == bool(declared.faults)
    return list(map(str, declared.faults))
