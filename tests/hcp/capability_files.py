"""A capability file in Python that is right, a plan file that is right, and the tools that both are held against."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.tools import build_tools
from hearth.tools import ToolRegistry

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = '''\
from typing import Annotated

from annotated_types import Ge, Le

from hearth import Job, capability


@capability(
    "line-blink",
    version="1.2.0",
    tools=["gpio.set"],
    risk_ceiling="R3",
    max_duration="PT10M",
    requires_human_approval=True,
)
async def blink(job: Job, *, line: Annotated[int, Ge(0)] = 17, times: Annotated[int, Ge(1), Le(100)] = 3) -> None:
    """Drive a line high and low again, some times."""
    for _ in range(times):
        await job.run("gpio.set", line=line, value=1)
        await job.run("gpio.set", line=line, value=0)
'''
PLAN = """\
[capability]
name = "line-blink"
version = "1.2.0"
description = "Drives a line high and low again."
formats = ["blink-report"]

[capability.input_schema]
type = "object"
properties.line = { type = "integer", minimum = 0, default = 17 }
additionalProperties = false

[capability.safety]
risk_ceiling = "R3"
requires_human_approval = true
hazard_categories = ["moving_parts"]

[capability.constraints]
max_duration = "PT10M"
concurrent_limit = 2
data_classification = "T3"

[[steps]]
tool = "gpio.set"
args = { line = "{line}", value = 1 }

[[steps]]
tool = "gpio.set"
args = { line = "{line}", value = 0 }
"""


@functools.cache
def registry() -> ToolRegistry:
    """The tools of the simulated board."""
    return ToolRegistry(build_tools(open_board(load_profile("sim"))))


def named(directory: Path, name: str, text: str = RIGHT, *, suffix: str = "") -> Path:
    """A file of this name with the capability of this name: Python, or a plan file where the text is TOML."""
    file = directory / f"{name}{suffix or ('.toml' if text.startswith('[') else '.py')}"
    file.write_text(text.replace('"line-blink"', f'"{name}"'), encoding="utf-8")
    return file
