"""What a server offers comes from providers: each lists some tools, resources or prompts, and serves those.

The base class offers nothing, so a provider overrides what it has, and only what some provider has overridden is
offered by the server. This module knows no particular one; `server` puts them together in a fixed order, and refuses
two tools of one name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import mcp_types as types
from attrs import frozen
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hearth.actors.bridges.mcp.clients import Client, Context

Outcome: TypeAlias = "types.CallToolResult | types.InputRequiredResult | dict[str, Any]"
"""What a tools/call is answered with; a dict is as on the wire, with its `resultType`: an extension's, or for speed."""


@frozen
class Ask:
    """One request of one client."""

    ctx: Context
    client: Client

    @property
    def modern(self) -> bool:
        """True in the era of 2026-07-28, where every request stands alone and the server asks nothing by itself."""
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> types.ClientCapabilities:
        """What the client declared that it can do; nothing, where it declared nothing."""
        return self.ctx.session.client_capabilities or types.ClientCapabilities()

    @property
    def can_elicit(self) -> bool:
        """True if the client can put a form before a person: an empty declaration means forms."""
        elicitation = self.capabilities.elicitation
        return elicitation is not None and (elicitation.form is not None or elicitation.url is None)

    @property
    def wants_progress(self) -> bool:
        """True if the client gave a progress token."""
        return bool(self.ctx.meta and self.ctx.meta.get("progress_token") is not None)


CallNext: TypeAlias = Callable[[Ask, types.CallToolRequestParams], Awaitable[Outcome]]
"""The rest of a tools/call: later interceptors, and in the end the provider whose tool it is."""


@frozen
class Method:
    """A request method that the protocol itself does not have, such as an extension's."""

    name: str
    params: type[BaseModel]
    """What its params are validated against; a subclass of mcp_types.RequestParams."""
    handle: Callable[[Ask, Any], Awaitable[BaseModel | dict[str, Any] | None]]
    """Serves it. Raises MCPError."""
    versions: frozenset[str] | None = None
    """The protocol versions that have it; None for all. In others it is not found (-32601)."""


class Provider:
    """Something that a server offers."""

    # --- tools --------------------------------------------------------------------------------------------------

    async def tools(self, ask: Ask) -> Sequence[types.Tool]:
        """The tools this client may call, in a fixed order."""
        del ask
        return ()

    async def call(self, ask: Ask, params: types.CallToolRequestParams) -> Outcome | None:
        """Call a tool; None for one that is not this provider's. Raises MCPError for what is no execution failure."""
        del ask, params
        return None

    async def intercept(self, ask: Ask, params: types.CallToolRequestParams, call_next: CallNext) -> Outcome:
        """Be asked before any tool is called, whoever's it is; the first provider is the outermost."""
        return await call_next(ask, params)

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """The schema of a tool with parameters that HTTP clients mirror into headers (`x-mcp-header`), if it is ours.

        It is asked before it is known who calls.
        """
        del name
        return None

    # --- resources ----------------------------------------------------------------------------------------------

    async def resources(self, ask: Ask) -> Sequence[types.Resource]:
        """What can be read."""
        del ask
        return ()

    async def templates(self, ask: Ask) -> Sequence[types.ResourceTemplate]:
        """What can be read under a URI that somebody fills in."""
        del ask
        return ()

    async def read(
        self, ask: Ask, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult | None:
        """Read a resource; None for a URI that is not this provider's."""
        del ask, params
        return None

    async def subscribe(self, ask: Ask, params: types.SubscribeRequestParams) -> bool:
        """Begin to tell this client of changes (until 2025-11-25); False for a URI that is not this provider's."""
        del ask, params
        return False

    async def unsubscribe(self, ask: Ask, params: types.UnsubscribeRequestParams) -> bool:
        """Tell it no more; False for a URI that is not this provider's."""
        del ask, params
        return False

    async def listen(self, ask: Ask, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
        """Serve one stream of changes (from 2026-07-28 on), of whatever the server has.

        The first provider that has this serves it, and hands on to others what is theirs.
        """
        raise NotImplementedError

    # --- prompts, completion, logging ---------------------------------------------------------------------------

    async def prompts(self, ask: Ask) -> Sequence[types.Prompt]:
        """The prompts there are."""
        del ask
        return ()

    async def prompt(
        self, ask: Ask, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult | None:
        """A prompt, filled in; None for one that is not this provider's."""
        del ask, params
        return None

    async def complete(self, ask: Ask, params: types.CompleteRequestParams) -> types.CompleteResult | None:
        """What an argument may be completed to; None for a reference that is not this provider's."""
        del ask, params
        return None

    async def set_level(self, ask: Ask, params: types.SetLevelRequestParams) -> None:
        """The least level of log messages that this client wants (until 2025-11-25)."""
        del ask, params

    # --- extensions ---------------------------------------------------------------------------------------------

    def methods(self) -> Sequence[Method]:
        """Further request methods."""
        return ()

    def extensions(self) -> Mapping[str, dict[str, Any]]:
        """The protocol's extensions that this provider speaks, and their settings, as they are advertised."""
        return {}
