"""[card]: what the daemon's AgentCard says that the daemon cannot know by itself (draft-aevum-agentcard-00).

This module owns the section and its kinds of value. What is written there is held to the card's own rules when the file
is read, so that no daemon serves a card that its readers must reject.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
from collections.abc import Mapping
from typing import Annotated, Any

from attrs import field, frozen

from hearth.config_kinds import Choice, Fields, Flag, Kind, ListOf, Mismatch, Number, Text, checked
from hearth.config_toml import dump_key, show
from hearth.errors import ConfigError

_WELL_FORMED: Mapping[str, Any] = {
    "agent_id": "0" * 26,
    "name": "hearth",
    "version": "1.0.0",
    "capabilities": [{"id": "tool.hw.board"}],
    "endpoint": {"protocol": "stdio", "url": "stdio:hearth"},
}
"""A card with nothing wrong: what is, with a part of the section put into it, is the part's."""


class _Goal(Fields):
    """A goal that the agent has subscribed to (§2.8): `goal_id` must be there."""

    def __init__(self) -> None:
        super().__init__(goal_id=Text(), description=Text(), priority=Number(ge=0, le=1))
        self.expected = "a table with goal_id, and perhaps description and priority"

    def read(self, raw: object) -> dict[str, object]:
        """The goal's fields. Raises Mismatch."""
        goal = super().read(raw)
        if "goal_id" not in goal:
            raise Mismatch([("", "goal_id is missing; name the goal")])
        return goal


class _Annotations(Kind):
    """A table of annotations: strings, numbers, truth values, arrays and tables of them, as JSON can hold them."""

    expected = "a table"

    def read(self, raw: object) -> dict[str, object]:
        """The table, copied. Raises Mismatch for what JSON cannot hold, such as a date or nan."""
        if not isinstance(raw, Mapping):
            raise self.wrong(raw)
        for key in raw:
            Text().read(key)
            if key.startswith("hearth:"):
                why = "hearth: is for what the daemon says itself; take another prefix"
                raise Mismatch([(f" key {show(key)}", why)])
        plain = _plain(raw, "")
        assert isinstance(plain, dict)
        return plain


def _plain(value: object, where: str) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(member, f"{where}.{dump_key(str(key))}") for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member, f"{where}[{index}]") for index, member in enumerate(value)]
    if isinstance(value, (str, bool, int)) or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    raise Mismatch([(where, f"expected what JSON can hold, got {show(value)}; write it as a string")])


@frozen(field_transformer=checked)
class CardConfig:
    """[card]: all optional. `url` and `protocol` go together; without them the listeners tell."""

    name: Annotated[str | None, Text("a name of at most 128 characters", limit=128)] = None
    """What the agent is for, in a few words, and nobody's name: the card is for anybody."""
    protocol: Annotated[str | None, Choice("http", "https", "grpc", "stdio", "mcp")] = None
    url: Annotated[str | None, Text()] = None
    """Where other agents reach this one, if that is not where it listens: behind a proxy, or by its public name."""
    auth: Annotated[str | None, Choice("none", "bearer", "api_key", "oauth2", "mtls")] = None
    base_cost_joules: Annotated[float | None, Number(ge=0)] = None
    per_token_joules: Annotated[float | None, Number(ge=0)] = None
    measure_energy: Annotated[bool, Flag()] = True
    """Whether energy is measured for the price where base_cost_joules is not set and the machine has a meter."""
    goal_subscriptions: Annotated[tuple[Mapping[str, Any], ...], ListOf(_Goal())] = ()
    metadata: Annotated[Mapping[str, Any], _Annotations()] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if (self.protocol is None) != (self.url is None):
            there, lacking = ("url", "protocol") if self.protocol is None else ("protocol", "url")
            raise ConfigError(f"{lacking} not set: {there} alone is no endpoint; set {lacking}, or take {there} out")
        given: dict[str, Any] = {}
        if self.url is not None:
            given["endpoint"] = {"protocol": self.protocol, "url": self.url}
        if self.base_cost_joules is not None:
            given["pricing"] = {"base_cost_joules": self.base_cost_joules}
        if self.metadata:
            given["metadata"] = self.metadata
        if given:
            # Only now: a configuration without such a section loads no validator.
            from hearth.agentcard.validate import validate

            wrong = [
                f"{_key(found.pointer)}: {found.problem}; {found.cure}" for found in validate({**_WELL_FORMED, **given})
            ]
            if wrong:
                raise ConfigError("\n".join(wrong))


def _key(pointer: str) -> str:
    """The section's key for a place in the card."""
    first, _, rest = pointer.removeprefix("/").partition("/")
    return f"{first} {rest}" if first == "metadata" else rest
