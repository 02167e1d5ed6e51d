"""The daemon's own AgentCard, as a pure function of what it offers, what its operator says, and where it listens.

This module owns the content: which tool is which capability, in which order and in what words, and what the metadata
say. It refuses to know who asks, when, and what was published before; `version` is given to it. Nothing in a card tells
of people or of the host: it is for anybody (draft §8.6).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth._version import __version__
from hearth.agentcard.validate import LANDAUER_J
from hearth.hcp.values import HCP_VERSION
from hearth.mcp.names import mcp_name
from hearth.mcp.protocol import PROTOCOL_VERSIONS
from hearth.protocol import PROTOCOL_VERSION
from hearth.tools import CARD_NAMESPACE, RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hearth.agentcard.place import Place
    from hearth.config_card import CardConfig
    from hearth.tools import Tool

MOST_SENTENCES = 3
"""Of a capability's description (§2.4.2)."""

_RANKS = {"hw": 1, "file": 2, "sys": 3, "proc": 4}
"""Prominence by the first part of a tool's name, the smallest first; 0 for all others.

What moves and senses the world, and what a vendor added, is why anybody looks for this agent; then what tells of the
board; then files, the machine and its processes, which other agents have as well.
"""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"])")


@frozen
class Measured:
    """Energy that was measured: `joules` an invocation, by which sensor, over how many seconds and invocations."""

    joules: float
    sensor: str
    seconds: float
    invocations: int

    def told(self) -> str:
        """How it was measured, for the metadata."""
        return (
            f"all energy that {self.sensor} counted in {self.seconds:.0f} s, divided by the {self.invocations} "
            "invocations in that time; what the machine needs at rest is included"
        )


def build_card(
    tools: Iterable[Tool],
    config: CardConfig,
    place: Place,
    *,
    agent_id: str,
    version: str,
    board: str,
    audit_key: str | None = None,
    measured: Measured | None = None,
    jobs: Collection[str] = (),
) -> dict[str, Any]:
    """The card. `board` is the profile's name, `audit_key` the public half of the audit log's key, in PEM.

    `jobs` names what may be delegated over HCP. That is metadata: a capability of the card is what its endpoint offers,
    and HCP is spoken over the carriers of HACP.
    """
    card: dict[str, Any] = {
        "agent_id": agent_id,
        "name": config.name or f"Hardware access by hearth ({board})"[:128],
        "version": version,
        "capabilities": [_capability(tool) for tool in sorted(tools, key=_rank)],
        "endpoint": place.to_json(),
    }
    metadata = _metadata(board, audit_key)
    if jobs:
        metadata |= {"hcp:version": HCP_VERSION, "hcp:capabilities": list(jobs)}
    pricing = _pricing(config, measured, metadata)
    if pricing:
        card["pricing"] = pricing
    card["metadata"] = {**metadata, **config.metadata}
    if config.goal_subscriptions:
        card["goal_subscriptions"] = [dict(goal) for goal in config.goal_subscriptions]
    return card


def _rank(tool: Tool) -> int:
    return _RANKS.get(tool.name.partition(".")[0], 0)  # the sort is stable: within a rank, the registry's order


def _capability(tool: Tool) -> dict[str, Any]:
    sentences = _SENTENCE_END.split(tool.description.strip())
    capability: dict[str, Any] = {"id": CARD_NAMESPACE + tool.name}
    if tool.opt_in:
        # The operator has written into their descriptions and schemas which programs there are: not for anybody.
        sentences = sentences[:1]
    else:
        capability["input_schema"] = dict(tool.params_schema)
        capability["output_schema"] = dict(tool.result_schema)
    capability["description"] = " ".join(sentences[:MOST_SENTENCES])
    tags = [tool.name.partition(".")[0], f"risk:{RISK_NAMES[tool.risk_level]}", f"mcp:{mcp_name(tool.name)}"]
    capability["tags"] = [*tags, "rollback"] if tool.supports_rollback else tags
    return {name: capability[name] for name in _CAPABILITY_ORDER if name in capability}


_CAPABILITY_ORDER = ("id", "description", "input_schema", "output_schema", "tags")


def _metadata(board: str, audit_key: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "framework": "hearth",
        "hearth:release": __version__,
        "hearth:board": board,
        "hacp:protocol_version": PROTOCOL_VERSION,
        "mcp:protocol_versions": list(PROTOCOL_VERSIONS),
    }
    if audit_key is not None:
        metadata["hearth:audit_public_key"] = audit_key
    return metadata


def _pricing(config: CardConfig, measured: Measured | None, metadata: dict[str, Any]) -> Mapping[str, float]:
    """The price in joules; what was measured only where the operator says nothing, and then with how it was."""
    pricing: dict[str, float] = {}
    if config.base_cost_joules is not None:
        pricing["base_cost_joules"] = config.base_cost_joules
    elif measured is not None and measured.joules >= LANDAUER_J:
        pricing["base_cost_joules"] = measured.joules
        metadata["hearth:energy_measured"] = measured.told()
    if config.per_token_joules is not None:
        pricing["per_token_joules"] = config.per_token_joules
    return pricing
