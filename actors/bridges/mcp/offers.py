"""What hearth offers over MCP, whichever way its client comes: the providers, in the order in which they are listed.

The one place that knows them all. Tasks come first, because whoever stands first is the outermost round a tool's call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.actors.bridges.mcp.cards import AgentCards
from hearth.actors.bridges.mcp.plan import Plan
from hearth.actors.bridges.mcp.progress import BEAT
from hearth.actors.bridges.mcp.resources import Resources
from hearth.actors.bridges.mcp.tasks import Tasks
from hearth.actors.bridges.mcp.tasks_call import LEASE
from hearth.actors.bridges.mcp.tools import HacpTools
from hearth.actors.memory_budget import unlimited
from hearth.actors.roots import CARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from hearth.actors.bridges.mcp.providers import Ask, Provider
    from hearth.actors.memory_budget import Account



def all_offers(
    state: Path,
    *,
    principal: Callable[[Ask], str],
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
        Plan(beat=beat),
        resources,
        AgentCards(state / CARDS, principal=principal, own_card=own_card, account=account),
    ]
