"""The daemon's own AgentCard, as a pure function of its tools, its configuration and its listeners.

This module owns the content: which tool is which capability, their order and texts, and the metadata. It does not know
the reader, the time, or earlier publications; `version` is given to it. A card holds nothing about people or the host,
because every agent may read it (draft §8.6).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import frozen

from hearth._version import __version__
from hearth.agentcard.validate import LANDAUER_J
from hearth.hcp.messages import HCP_VERSION
from hearth.mcp.names import COMMAND, PATH, PROTOCOL_VERSIONS, mcp_name
from hearth.protocol import PROTOCOL_VERSION
from hearth.tools import CARD_NAMESPACE, RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hearth.config.agentcard import CardConfig
    from hearth.config.listen import HttpConfig
    from hearth.tools import Tool

MOST_SENTENCES = 3
"""Sentences of a capability's description (§2.4.2)."""

_RANKS = {"hw": 1, "file": 2, "sys": 3, "proc": 4}
"""Prominence by the first part of a tool's name, the smallest first; 0 for all others.

Tools that move and sense the world, and a vendor's tools, are the reason to look for this agent. Board information
follows, then files, the machine and its processes, which other agents have as well.
"""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"])")


@frozen
class Measured:
    """Measured energy: `joules` an invocation, by which sensor, over how many seconds and invocations."""

    joules: float
    sensor: str
    seconds: float
    invocations: int

    def method(self) -> str:
        """Return the way of measuring, for the metadata."""
        return (
            f"all energy that {self.sensor} counted in {self.seconds:.0f} s, divided by the {self.invocations} "
            "invocations in that time; what the machine needs at rest is included"
        )


def build_card(
    tools: Iterable[Tool],
    config: CardConfig,
    place: CardEndpoint,
    *,
    agent_id: str,
    version: str,
    board: str,
    audit_key: str | None = None,
    measured: Measured | None = None,
    jobs: Collection[str] = (),
) -> dict[str, Any]:
    """Return the card. `board` is the profile's name, `audit_key` the public half of the audit log's key, in PEM.

    `jobs` names the jobs that may be delegated over HCP. They are metadata, because a card's capability is one that its
    endpoint offers, and HCP is spoken over the carriers of HACP.
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
        # The descriptions and schemas name the operator's programs, which other agents must not see.
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
    """Return the price in joules; the measured one only where the operator gives none, and then with its origin."""
    pricing: dict[str, float] = {}
    if config.base_cost_joules is not None:
        pricing["base_cost_joules"] = config.base_cost_joules
    elif measured is not None and measured.joules >= LANDAUER_J:
        pricing["base_cost_joules"] = measured.joules
        metadata["hearth:energy_measured"] = measured.method()
    if config.per_token_joules is not None:
        pricing["per_token_joules"] = config.per_token_joules
    return pricing


# --- the endpoint of the card (draft §2.5)
# The choice of an endpoint among the addresses where the daemon listens. Nothing is bound and no network is asked. A
# listener on all addresses has no address of its own, and a host's name is private (§8.6): only names that the operator
# wrote down are used.


@frozen
class CardEndpoint:
    """An endpoint: `protocol` and `auth` as the draft has them, `url` a URI."""

    protocol: str
    url: str
    auth: str

    def to_json(self) -> dict[str, Any]:
        """Return the card's endpoint."""
        return {"protocol": self.protocol, "url": self.url, "auth": {"scheme": self.auth}}


STDIO = CardEndpoint("stdio", f"stdio:{'%20'.join(COMMAND)}", "none")
"""Without an HTTP listener: the command that speaks MCP on its standard streams, wherever the daemon can be reached."""


def choose_place(
    card: CardConfig, http: HttpConfig, listeners: Iterable[str], *, mcp: bool, tokens: bool
) -> CardEndpoint:
    """Return the endpoint, from the `[card]` and `[http]` sections and the addresses of the listeners.

    Of `listeners` those that are HTTP URLs count; `mcp` says that they have /mcp, `tokens` that a `[[policy]]` entry
    names a token.
    """
    place = _listening(http, listeners, mcp=mcp, tokens=tokens)
    if card.protocol is not None and card.url is not None:
        place = CardEndpoint(card.protocol, card.url, place.auth if card.protocol != "stdio" else "none")
    return place if card.auth is None else CardEndpoint(place.protocol, place.url, card.auth)


def _listening(http: HttpConfig, listeners: Iterable[str], *, mcp: bool, tokens: bool) -> CardEndpoint:
    base = next((url for url in listeners if url.startswith(("http://", "https://"))), None)
    if base is None:
        return STDIO
    url = _reachable(base.rstrip("/"), http.hosts)
    auth = auth_scheme(http, tokens=tokens)
    # The draft's `mcp` names the protocol; the URL's scheme still names the carrier, which §8.5 compares.
    return CardEndpoint("mcp", url + PATH, auth) if mcp else CardEndpoint(url.partition(":")[0], f"{url}/", auth)


def auth_scheme(http: HttpConfig, *, tokens: bool) -> str:
    """Return the caller's authentication: on loopback by the kernel, elsewhere by a proof of its identity."""
    if http.listen is not None and http.listen.is_loopback and not http.plaintext:
        return "none"
    return "mtls" if http.client_ca is not None and not tokens else "bearer"


def _reachable(url: str, hosts: Sequence[str]) -> str:
    """Return a reachable URL: one of all addresses gets the first of the operator's names."""
    scheme, _, authority = url.partition("://")
    host, colon, port = authority.rpartition(":")
    if host not in _ALL_ADDRESSES:
        return url
    return f"{scheme}://{hosts[0] if hosts else 'localhost'}{colon}{port}"


_ALL_ADDRESSES = ("0.0.0.0", "[::]")


# --- energy per invocation
# From readings of the machine's meters and a count of invocations to a figure. Pure. It owns the choice of sensors that
# meter the whole machine, and the sums. A figure needs a window long enough and enough invocations; the time between
# two readings too far apart is not counted.

PERIOD_S = 30.0
"""Between two readings: RAPL's counters begin again after half an hour of full load at the earliest."""
LONGEST_GAP_S = 10 * PERIOD_S
"""A machine that slept longer begins a new window."""
LEAST_S = 600.0
LEAST_INVOCATIONS = 100
LONGEST_S = 6 * 3600.0
"""Longest window: it gives its figure and ends, because a price is about the present load."""

_SYSTEM = re.compile(r"powercap/[^/]*psys[^/]*/energy")
_PACKAGE = re.compile(r"powercap/[^/]*package-[0-9]+/energy")


@frozen
class EnergyCounter:
    """A sensor to read: an energy counter in joules that begins again at `top`, or, without one, power in watts."""

    sensor: str
    top: float | None = None


@frozen
class CardSensor:
    """A sensor as hw.sensor.list describes it."""

    name: str
    kind: str
    unit: str
    top: float | None = None
    readable: bool = True


def choose_meters(sensors: Iterable[CardSensor]) -> list[EnergyCounter]:
    """Return the machine's meters: RAPL's platform counter, else its packages' counters, else the one power sensor.

    None where there are several power sensors: it is unknown which of them is the machine's.
    """
    usable = [sensor for sensor in sensors if sensor.readable]
    for pattern in (_SYSTEM, _PACKAGE):
        counters = [s for s in usable if pattern.fullmatch(s.name) and s.unit == "joule" and s.top]
        if counters:
            return [EnergyCounter(sensor.name, sensor.top) for sensor in counters]
    powers = [sensor for sensor in usable if sensor.kind == "power" and sensor.unit == "watt"]
    return [EnergyCounter(powers[0].name)] if len(powers) == 1 else []


class EnergyPerInvocation:
    """The sum over a window that begins with the first reading; `measured` is the newest figure, or None."""

    def __init__(self, meters: Iterable[EnergyCounter]) -> None:
        self.meters = tuple(meters)
        self.measured: Measured | None = None
        self._begun: tuple[float, int] | None = None
        self._last: tuple[float, Mapping[str, float]] | None = None
        self._joules = 0.0

    def reading(self, at: float, values: Mapping[str, float], invocations: int) -> None:
        """Take one reading of all meters, at a monotonic time in seconds, with the invocations so far."""
        last, begun = self._last, self._begun
        self._last = (at, values)
        if last is None or begun is None or not 0 <= at - last[0] <= LONGEST_GAP_S:
            self._begin(at, invocations)
            return
        for meter in self.meters:
            self._joules += _between(meter, last[1][meter.sensor], values[meter.sensor], at - last[0])
        seconds, count = at - begun[0], invocations - begun[1]
        if seconds >= LEAST_S and count >= LEAST_INVOCATIONS:
            sensors = " and ".join(meter.sensor for meter in self.meters)
            self.measured = Measured(self._joules / count, sensors, seconds, count)
        if seconds >= LONGEST_S:
            self._begin(at, invocations)

    def broken(self) -> None:
        """Drop the time since the last reading: a reading failed."""
        self._last = None

    def _begin(self, at: float, invocations: int) -> None:
        self._begun = (at, invocations)
        self._joules = 0.0


def _between(meter: EnergyCounter, former: float, value: float, seconds: float) -> float:
    if meter.top is None:
        return (former + value) / 2 * seconds
    return value - former if value >= former else value + meter.top - former
