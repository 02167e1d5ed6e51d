"""What hearth offers over MCP, whichever way its client comes: the providers, in the order in which they are listed.

The one place that knows them all. Tasks come first, because whoever stands first is the outermost round a tool's call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

from hearth.actors.bridges.mcp.calls import BEAT, TaskProvider
from hearth.actors.bridges.mcp.cards import AgentCards
from hearth.actors.bridges.mcp.consent import ConsentRequest, arguments_of
from hearth.actors.bridges.mcp.long_call import LEASE
from hearth.actors.bridges.mcp.resources import Resources
from hearth.actors.bridges.mcp.tasks import Tasks
from hearth.api import Step
from hearth.config.roots import CARDS
from hearth.mcp.names import PLAN, mcp_name, nearest
from hearth.mcp.tools import PLAN_DEFINITION, PLAN_INPUT
from hearth.policy.memory import unlimited
from hearth.schema import Validator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hearth.actors.bridges.mcp.provider import McpRequest, Provider
    from hearth.mcp.tools import ToolView
    from hearth.policy.memory import Account


def all_offers(
    state: Path,
    *,
    principal: Callable[[McpRequest], str],
    own_card: Callable[[], Mapping[str, Any] | None] = lambda: None,
    beat: float = BEAT,
    lease: float = LEASE,
    account: Callable[[str], Account] = lambda _key: unlimited(),
) -> list[Provider]:
    """Everything, with what must be kept in the directory `state`; `principal` says whose a request is.

    `account` gives the account to which what the principal of a key has declared is charged.

    Times in seconds: `beat` between two reports of progress, `lease` for which a long call that nobody asks for lives.
    """
    resources = Resources()
    return [
        Tasks(listen=resources.changes.listen, lease=lease),
        HacpTools(beat=beat),
        PlanTool(beat=beat),
        resources,
        AgentCards(state / CARDS, principal=principal, own_card=own_card, account=account),
    ]


# --- Every tool of the session as an MCP tool: tools/list is tool.list, tools/call a task of one step (draft §10.2)


class HacpTools(TaskProvider):
    """See the module."""

    async def tools(self, ask: McpRequest) -> Sequence[types.Tool]:
        """See Provider."""
        view = await ask.client.view()
        return [types.Tool.model_validate(definition) for definition in view.definitions()]

    async def job(self, ask: McpRequest, params: types.CallToolRequestParams) -> ConsentRequest | None:
        """See TaskProvider."""
        entry = (await ask.client.view()).find(params.name)
        if entry is None:
            return None
        name = entry["name"]
        return ConsentRequest(mcp_name(name), f"tools/call {name}", (Step(name, arguments_of(params)),), (entry,))


# --- `hacp_plan`: a whole task of ordered steps in one call, so that a model can plan and not just call
#
# It takes tools by either of their names, and says of each step what became of it. What a plan may do is HACP's
# business: the same checks, the same policy and the same audit as for any task (draft §3.4; design §4).

_VALIDATOR: Final = Validator(PLAN_INPUT)
_TOOL: Final = types.Tool.model_validate(PLAN_DEFINITION)


class PlanTool(TaskProvider):
    """See the module."""

    async def tools(self, ask: McpRequest) -> Sequence[types.Tool]:
        """See Provider."""
        del ask
        return (_TOOL,)

    async def job(self, ask: McpRequest, params: types.CallToolRequestParams) -> ConsentRequest | None:
        """See TaskProvider. Raises MCPError for a plan that cannot be read, or that names a tool there is not."""
        if params.name != PLAN:
            return None
        plan = arguments_of(params)
        if not _VALIDATOR.accepts(plan):
            raise _wrong(*_VALIDATOR.explain(plan))
        view = await ask.client.view()
        entries = [_entry(view, index, step["tool"]) for index, step in enumerate(plan["steps"])]
        steps = [Step(entry["name"], step.get("args", {})) for entry, step in zip(entries, plan["steps"], strict=True)]
        constraints = {name: value for name, value in plan.items() if name not in ("intent", "steps")}
        return ConsentRequest(PLAN, plan["intent"], steps, entries, constraints, plan=True)


def _entry(view: ToolView, index: int, name: str) -> Mapping[str, Any]:
    entry = view.find(name)
    if entry is None:
        near = nearest(name, view.names())
        raise _wrong(f"/steps/{index}/tool", f"there is no tool {name[:100]!r}{near} tools/list has those there are")
    return entry


def _wrong(pointer: str, reason: str) -> MCPError:
    return MCPError(
        code=types.INVALID_PARAMS,
        message=f"Invalid arguments for {PLAN}: {pointer or 'arguments'}: {reason}. Nothing has run.",
        data={"path": pointer, "reason": reason},
    )
