"""What the tests of `hearth hcp` have done: quick, and with a person's approval only where they ask for it."""

from typing import Annotated

from annotated_types import Ge
from attrs import frozen

from hearth import Escalation, Job, Limit, capability


@frozen
class Outputs:
    value: Annotated[int, "as read"]


@capability(
    "line-check",
    version="1.2.0",
    tools=["gpio.get"],
    risk_floor="R2",
    risk_ceiling="R4",
    requires_human_approval=True,
    involves_physical_resources=True,
    hazard_categories=["noise"],
    concurrent_limit=4,
    escalate=[
        Escalation(lambda loud: loud, risk="R4", because="somebody may be startled", cure="leave out loud"),
    ],
    limits={"line": Limit(lambda line: line, min=0, max=90)},
    prohibited_actions=["driving two lines"],
)
async def check(
    job: Job,
    *,
    line: Annotated[int, "which line"],
    times: Annotated[int, Ge(1), "how often"] = 1,
    pause_s: Annotated[float, Ge(0)] = 0,
    loud: bool = False,
) -> Outputs:
    """Drive a line, and read it back. For tests."""
    value = 0
    rows = ["at_s,value"]
    try:
        async for _ in job.every(pause_s, times):
            value = (await job.run("gpio.get", line=line))["value"]
            rows.append(f"{job.elapsed_s},{value}")
    finally:
        job.artifact("levels.csv", "\r\n".join([*rows, ""]), media_type="text/csv")
    return Outputs(value)
