"""AgentCards over MCP: the tools and resources of the draft's [AGENTCARD-MCP], over the registry.

This module owns their answers, and adds this server's own card. `hearth.agentcard` owns the rules of a valid card, the
registry the stored cards and their owners. No code here touches hardware, so no call here is a task of a HACP session.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import trio
from mcp.shared.exceptions import MCPError

from hearth.actors.bridges.mcp.calls import checked
from hearth.actors.bridges.mcp.card_registry import MAX_NAMED, CardRefused, CardRegistry
from hearth.actors.bridges.mcp.provider import McpRequest, Provider, as_mcp, no_session
from hearth.agentcard.validate import AUTH_SCHEMES, LANDAUER_J, NAME_POINTS, PROTOCOLS, TRUST_TIERS, read_card
from hearth.errors import CarrierError, MethodNotFound, RpcError, SessionInvalid
from hearth.mcp.arguments import Arguments
from hearth.mcp.card_tools import CARD_DEFINITIONS, DECLARE, IDS_SHOWN, LIST, RESOLVE, VALIDATE, policy_name
from hearth.mcp.names import CARD_TOOLS, META
from hearth.policy.memory import unlimited

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from hearth.actors.bridges.mcp.card_registry import DeclaredCard
    from hearth.actors.bridges.mcp.provider import Outcome
    from hearth.agentcard.document import Finding
    from hearth.policy.memory import Account

# --- The JSON Schema of AgentCards, for `agentcard://schema`: draft-aevum-agentcard-00 §2 and §5 ----------------------
#
# It follows the draft and not the public project's file, which contradicts it (protocol names, a required description,
# no unknown fields). Its patterns mean the same in every dialect of regular expressions. A schema cannot check a URI
# exactly: `agentcard_validate` does, and its verdict counts.

_META: Final = "https://json-schema.org/draft/2020-12/schema"


def _scheme(name: str) -> dict[str, Any]:
    """Return the rule that an endpoint of this protocol has a URL of its scheme, in any case; "http" includes HTTPS."""
    letters = "".join(f"[{letter.upper()}{letter}]" for letter in name) + ("[Ss]?" if name == "http" else "")
    return {
        "if": {"properties": {"protocol": {"const": name}}, "required": ["protocol"]},
        "then": {"properties": {"url": {"pattern": f"^{letters}://[^/?#]"}}},
    }


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


_CAPABILITY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": _text("what it is called, with dots between the parts of the name", pattern=r"^[a-z0-9][a-z0-9._-]*$"),
        "description": _text("one to three sentences: what it does, takes and returns"),
        "input_schema": {"type": "object", "description": "JSON Schema 2020-12 of its parameters", "$ref": _META},
        "output_schema": {"type": "object", "description": "JSON Schema 2020-12 of its result", "$ref": _META},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "words to find it by"},
    },
}
_ENDPOINT: Final[dict[str, Any]] = {
    "type": "object",
    "description": "how the agent is reached",
    "required": ["protocol", "url"],
    "properties": {
        "protocol": {"type": "string", "enum": list(PROTOCOLS), "description": "what is spoken there"},
        "url": _text("a URI (RFC 3986) that fits the protocol", format="uri", pattern="^[A-Za-z][A-Za-z0-9+.-]*:"),
        "auth": {
            "type": "object",
            "description": "the authentication that is asked for there",
            "properties": {"scheme": {"type": "string", "enum": list(AUTH_SCHEMES), "default": "none"}},
        },
    },
    "allOf": [_scheme("http"), _scheme("https")],
}
_PRICING: Final[dict[str, Any]] = {
    "type": "object",
    "description": "what using the agent costs, in joules",
    "properties": {
        "base_cost_joules": {
            "type": "number",
            "description": "energy of an invocation: 0, or at least the Landauer limit at 300 K as the draft has it",
            "anyOf": [{"const": 0}, {"minimum": LANDAUER_J}],
        },
        "per_token_joules": {"type": "number", "description": "further energy for each output token", "minimum": 0},
    },
}
_GOAL: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["goal_id"],
    "properties": {
        "goal_id": _text("which goal"),
        "description": _text("what it is about"),
        "priority": {"type": "number", "description": "the agent's commitment to it", "minimum": 0, "maximum": 1},
    },
}

CARD_SCHEMA: Final[dict[str, Any]] = {
    "$schema": _META,
    "title": "AgentCard",
    "description": "What an agent says of itself (draft-aevum-agentcard-00). Unknown fields are ignored at all levels.",
    "type": "object",
    "required": ["agent_id", "name", "version", "capabilities", "endpoint"],
    "properties": {
        "agent_id": _text("a ULID: who the agent is, for ever", pattern="^[0-9A-HJKMNP-TV-Z]{26}$"),
        "name": _text("a display name, which others may have too", minLength=1, maxLength=NAME_POINTS),
        "version": _text(
            "the semantic version of the card",
            pattern=r"^(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)"
            r"(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?$",
        ),
        "capabilities": {
            "type": "array",
            "description": "what the agent can do, the most prominent first",
            "minItems": 1,
            "items": _CAPABILITY,
        },
        "endpoint": _ENDPOINT,
        "pricing": _PRICING,
        "metadata": {
            "type": "object",
            "description": "anything else",
            "properties": {
                "pacr:trust_tier": {
                    "type": "string",
                    "enum": list(TRUST_TIERS),
                    "description": "what the agent says of its own trustworthiness",
                },
            },
        },
        "goal_subscriptions": {"type": "array", "items": _GOAL, "description": "the goals that the agent works for"},
    },
}


SCHEMA_URI: Final = "agentcard://schema"
REGISTRY_URI: Final = "agentcard://registry"
META_DECLARED: Final = f"{META}/declared"
"""The key in `_meta` of the registry's contents: by agent_id, the declaring principal and the time."""

EXAMINERS: Final = 2
"""Cards that are validated at a time: some of 4 MiB take seconds, and other work needs threads too."""

_SCHEMA_TEXT: Final = json.dumps(CARD_SCHEMA, ensure_ascii=False, indent=2)

_TOOLS: Final = tuple(map(types.Tool.model_validate, CARD_DEFINITIONS))
_ARGUMENTS: Final = {definition["name"]: Arguments(definition["inputSchema"]) for definition in CARD_DEFINITIONS}


class AgentCards(Provider):
    """The cards declared in `directory`, and this server's own, which is always listed and cannot be declared.

    `own_card` is called for each use; None while there is none. `principal` returns the key of a request's principal,
    and `permits` checks and audits each use before it happens. Memory is charged to the `account` of that principal.
    """

    def __init__(
        self,
        directory: Path,
        *,
        principal: Callable[[McpRequest], str],
        own_card: Callable[[], Mapping[str, Any] | None] = lambda: None,
        permits: SessionPermits | None = None,
        account: Callable[[str], Account] = lambda _key: unlimited(),
    ) -> None:
        self._registry = CardRegistry(directory, account)
        self._principal = principal
        self._own_card = own_card
        self._permits = SessionPermits() if permits is None else permits
        self._examiners = trio.CapacityLimiter(EXAMINERS)

    # --- tools --------------------------------------------------------------------------------------------------

    async def tools(self, request: McpRequest) -> Sequence[types.Tool]:
        """See Provider."""
        try:
            usable = await self._permits.usable(request)
        except (RpcError, CarrierError) as error:
            raise as_mcp(error) from None
        return [tool for tool in _TOOLS if tool.name in usable]

    async def call(self, request: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """See Provider."""
        if params.name not in CARD_TOOLS:
            return None
        try:
            await self._permits.use(request, params.name)
        except (RpcError, CarrierError) as error:
            return no_session(error)
        arguments = checked(params, _ARGUMENTS[params.name], params.name)
        try:
            if params.name == DECLARE:
                return await self._declare(request, arguments["card_json"])
            if params.name == RESOLVE:
                return await self._resolve(arguments["query"])
            if params.name == VALIDATE:
                return await self._validate(arguments["card_json"])
            return await self._list()
        except CardRefused as error:
            return _failed(f"{str(error)[:1].upper()}{str(error)[1:]}.")

    async def _declare(self, request: McpRequest, document: object) -> types.CallToolResult:
        card, findings = await self._examined(document)
        if card is None or findings:
            faults = "\n".join(f"- {finding}" for finding in findings)
            return _failed(f"The card is not valid, and was not declared:\n{faults}")
        own = self._own_card()
        if own is not None and own["agent_id"] == card["agent_id"]:
            return _failed(
                f"agent_id {card['agent_id']} is that of this server itself, whose card cannot be declared; make an "
                "agent_id of your own (a new ULID)."
            )
        return _result(_summary(_entry(await self._registry.declare(card, self._principal(request)))))

    async def _resolve(self, query: str) -> types.CallToolResult:
        entries, _ = await self._known()
        matching = _matching(entries, query)
        if not matching:
            return _failed(f"No agent known here fits {query!r}; {LIST} tells those that are, {DECLARE} adds one.")
        if len(matching) == 1:
            return _result({"match": matching[0], "candidates": []})
        return _result({"match": None, "candidates": [_summary(entry) for entry in matching]})

    async def _validate(self, document: object) -> types.CallToolResult:
        _, findings = await self._examined(document)
        return _result({"valid": not findings, "findings": [finding.to_json() for finding in findings]})

    async def _list(self) -> types.CallToolResult:
        entries, skipped = await self._known()
        named = [{"file": name, "reason": reason} for name, reason in skipped.items()]
        return _result(
            {
                "agents": [_summary(entry) for entry in entries],
                "skipped": named[:MAX_NAMED],
                "skipped_more": max(0, len(named) - MAX_NAMED),
            }
        )

    async def _examined(self, document: object) -> tuple[Mapping[str, Any] | None, list[Finding]]:
        """Return the card in an argument, and its faults.

        In a thread: the caller's document decides how long it takes.
        """
        return await trio.to_thread.run_sync(read_card, document, abandon_on_cancel=True, limiter=self._examiners)

    async def _known(self) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        """Return all cards with their origin, this server's own first; and the registry's files that are not cards."""
        own = self._own_card()
        contents = await self._registry.contents()
        entries = [_entry(declared) for declared in contents.cards.values()]
        if own is None:
            return entries, contents.skipped
        others = [entry for entry in entries if entry["card"]["agent_id"] != own["agent_id"]]
        return [{"card": dict(own), "declared_by": None, "declared_at": None, "own": True}, *others], contents.skipped

    # --- resources ----------------------------------------------------------------------------------------------

    async def resources(self, request: McpRequest) -> Sequence[types.Resource]:
        """See Provider."""
        del request
        return (
            types.Resource(
                uri=SCHEMA_URI,
                name="agentcard_schema",
                title="Schema of AgentCards",
                description="JSON Schema of AgentCards, as draft-aevum-agentcard-00 has them",
                mime_type="application/schema+json",
                size=len(_SCHEMA_TEXT.encode()),
                annotations=types.Annotations(audience=["assistant"], priority=0.2),
            ),
            types.Resource(
                uri=REGISTRY_URI,
                name="agentcard_registry",
                title="AgentCards known here",
                description="Array of all cards: that of this server, then those declared, which are claims",
                mime_type="application/json",
                annotations=types.Annotations(audience=["assistant"], priority=0.3),
            ),
        )

    async def read(
        self, request: McpRequest, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | None:
        """See Provider."""
        if params.uri == SCHEMA_URI:
            return _contents(SCHEMA_URI, "application/schema+json", _SCHEMA_TEXT, None)
        if params.uri != REGISTRY_URI:
            return None
        try:
            # It discloses the same as the list.
            await self._permits.use(request, LIST)
            entries, _ = await self._known()
        except (RpcError, CarrierError) as error:
            raise as_mcp(error) from None
        except CardRefused as error:
            raise MCPError(types.INTERNAL_ERROR, f"{error}", data={"uri": REGISTRY_URI}) from None
        origin = {
            entry["card"]["agent_id"]: {"declared_by": entry["declared_by"], "declared_at": entry["declared_at"]}
            for entry in entries
            if not entry["own"]
        }
        cards = json.dumps([entry["card"] for entry in entries], ensure_ascii=False)
        return _contents(REGISTRY_URI, "application/json", cards, {META_DECLARED: origin})


def _contents(uri: str, mime_type: str, text: str, meta: dict[str, Any] | None) -> types.ReadResourceResult:
    return types.ReadResourceResult(
        contents=[types.TextResourceContents(uri=uri, mime_type=mime_type, text=text, _meta=meta)]
    )


def _matching(entries: Sequence[dict[str, Any]], query: str) -> list[dict[str, Any]]:
    """Return the agent with that id; else those with exactly that name; else those with the query in their name."""
    wanted = query.casefold()
    return (
        [entry for entry in entries if entry["card"]["agent_id"] == query.upper()]
        or [entry for entry in entries if entry["card"]["name"].casefold() == wanted]
        or [entry for entry in entries if wanted in entry["card"]["name"].casefold()]
    )


def _entry(declared: DeclaredCard) -> dict[str, Any]:
    return {
        "card": dict(declared.card),
        "declared_by": _shortened_key(declared.declared_by),
        "declared_at": declared.declared_at,
        "own": False,
    }


def _shortened_key(principal: str) -> str:
    """Return a principal's key as others may see it: a token's digest is shortened."""
    kind, _, digest = principal.partition(":")
    return f"token:{digest[:12]}" if kind == "token" else principal


def _summary(entry: Mapping[str, Any]) -> dict[str, Any]:
    card = entry["card"]
    return {
        "agent_id": card["agent_id"],
        "name": card["name"],
        "version": card["version"],
        "endpoint": card["endpoint"]["url"],
        "capabilities": len(card["capabilities"]),
        "capability_ids": [capability["id"] for capability in card["capabilities"][:IDS_SHOWN]],
        "declared_by": entry["declared_by"],
        "declared_at": entry["declared_at"],
        "own": entry["own"],
    }


def _result(result: dict[str, Any]) -> types.CallToolResult:
    text = json.dumps(result, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=result)


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


# --- Permission to use the AgentCard tools: the client's session applies policy and rate, and audits each use ---------
#
# The tools belong to the bridge and are not tasks of the session; without this they would bypass the policy.


class SessionPermits:
    """The permission checks, made by the client's HACP session. Both methods raise RpcError, CarrierError.

    A server that does not know the methods has no policy for these tools; then they run for their user alone.
    """

    async def usable(self, request: McpRequest) -> Collection[str]:
        """Return the tools that the client may see."""
        try:
            said = await ask_session(request, "mcp.info")
        except MethodNotFound:
            return CARD_TOOLS
        found: Collection[str] = said.get("card_tools", CARD_TOOLS)
        return found

    async def use(self, request: McpRequest, tool: str) -> None:
        """Wait until one use of this tool is permitted and audited."""
        try:
            await ask_session(request, "mcp.use", tool=policy_name(tool))
        except MethodNotFound:
            return


async def ask_session(request: McpRequest, method: str, **params: Any) -> Mapping[str, Any]:
    """Call a method of the client's HACP session; in a new one, if it has ended. Raises RpcError, CarrierError."""
    session = await request.client.session()
    try:
        return await session.call(method, **params)
    except (SessionInvalid, CarrierError) as error:
        # The session had ended before the request: try once more, in a new one.
        request.client.forget(session, error)
        return await (await request.client.session()).call(method, **params)
