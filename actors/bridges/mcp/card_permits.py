"""What a client may use of the AgentCard tools: its session says, by policy and rate, and records each use first.

The tools are the bridge's own and no tasks of the session; without this they would pass the policy by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.errors import CarrierError, MethodNotFound, SessionInvalid
from hearth.mcp.card_permits import policy_name
from hearth.mcp.names import CARD_TOOLS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from hearth.actors.bridges.mcp.providers import Ask


class SessionPermits:
    """Asks the client's HACP session what may be used. Both methods raise RpcError, and CarrierError.

    A server that does not know the methods has no policy for these tools, which then run for their user alone.
    """

    async def usable(self, ask: Ask) -> Collection[str]:
        """The tools that the client is to be shown."""
        try:
            said = await _ask(ask, "mcp.info")
        except MethodNotFound:
            return CARD_TOOLS
        found: Collection[str] = said.get("card_tools", CARD_TOOLS)
        return found

    async def use(self, ask: Ask, tool: str) -> None:
        """Returns once one use of this tool is permitted and on record."""
        try:
            await _ask(ask, "mcp.use", tool=policy_name(tool))
        except MethodNotFound:
            return


async def _ask(ask: Ask, method: str, **params: Any) -> Mapping[str, Any]:
    session = await ask.client.session()
    try:
        return await session.call(method, **params)
    except (SessionInvalid, CarrierError) as error:
        # It had ended before it was asked: once more, in a new one.
        ask.client.forget(session, error)
        return await (await ask.client.session()).call(method, **params)
