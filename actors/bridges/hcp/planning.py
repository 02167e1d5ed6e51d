"""`job.plan`: a language model proposes steps for a job, within the tools that its capability declares.

It opens a conversation beside the job's session, for the same principal and the same tools, has the model read there,
and has its proposal prepared there, so that the daemon checks every step as it would check it when it runs. The plan is
then withdrawn: the function runs the steps, or some of them, as its own operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.ask import ModelError
from hearth.ask.backends import model_for
from hearth.ask.planner import Planner, Proposed
from hearth.ask.prompt import system_prompt
from hearth.ask.transcript import Transcript
from hearth.errors import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from hearth.api import Session, Step, TaskConstraints
    from hearth.config.ask import AskConfig

    OpenPlanning = Callable[[], AbstractAsyncContextManager[Session]]


async def propose(open_session: OpenPlanning, config: AskConfig, intent: str, max_risk: int) -> dict[str, Any]:
    """Return the `steps` that a model proposes, as JSON, their `risk`, and the model's `words`; [] if it proposes none.

    Raises ModelError, ConfigError for a model that is not configured, and RpcError if no session can be opened.
    """
    model = model_for(config)
    found: dict[str, Any] = {"steps": [], "risk": 0}
    async with open_session() as session:

        async def take(intent: str, steps: Sequence[Step], constraints: TaskConstraints) -> Proposed:
            constraints = {**constraints, "max_risk_level": max_risk}
            plan = await session.prepare(intent, steps, **constraints)
            await session.reject(plan)
            found.update(steps=[one.to_wire() for one in steps], risk=plan.effective_risk)
            return Proposed({"taken": True}, False)

        planner = Planner(session, model, Transcript(), take)
        planner.messages.append({"role": "system", "text": system_prompt(await session.tools())})
        try:
            found["words"] = await planner.answer(intent)
        except RpcError as error:
            raise ModelError(f"the conversation with the model ended: {error.message}") from None
    return found
