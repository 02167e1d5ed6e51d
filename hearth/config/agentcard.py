"""The section [card]: the parts of the AgentCard that the daemon cannot know itself (draft-aevum-agentcard-00).

They are checked by the card's own rules when the file is read, so that no daemon serves a card that its readers must
reject.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
from collections.abc import Mapping
from typing import Annotated, Any

from attrs import field, frozen

from hearth.agentcard.validate import validate
from hearth.errors import ConfigError
from hearth.extras import Section
from hearth.fields import Choice, Fields, Flag, JsonValue, ListOf, MapOf, Number, Text, checked

_WELL_FORMED: Mapping[str, Any] = {
    "agent_id": "0" * 26,
    "name": "hearth",
    "version": "1.0.0",
    "capabilities": [{"id": "tool.hw.board"}],
    "endpoint": {"protocol": "stdio", "url": "stdio:hearth"},
}
"""A valid card: a fault of this card with a part of the section in it is a fault of that part."""


class _Goal(Fields):
    """A goal that the agent has subscribed to (§2.8): `goal_id` is required."""

    def __init__(self) -> None:
        super().__init__(goal_id=Text(), description=Text(), priority=Number(ge=0, le=1))
        self.expected = "a table with goal_id, and perhaps description and priority"

    def read(self, raw: object) -> dict[str, object]:
        """Return the goal's fields. Raises FieldErrors."""
        goal = super().read(raw)
        if "goal_id" not in goal:
            raise self.wrong(raw, "goal_id is missing; name the goal")
        return goal


class _Annotations(MapOf):
    """A table of annotations: strings, numbers, truth values, arrays and tables of them, as JSON can hold them."""

    def __init__(self) -> None:
        super().__init__(JsonValue(), _AnnotationName())


class _AnnotationName(Text):
    """A name that is not one of the daemon's own."""

    def read(self, raw: object) -> str:
        """Return the name. Raises FieldErrors."""
        name = super().read(raw)
        if name.startswith("hearth:"):
            raise self.wrong(raw, "the prefix hearth: is reserved for the daemon; use another one")
        return name


@frozen(field_transformer=checked)
class CardConfig(Section):
    """[card]: all optional. `url` and `protocol` go together; without them the card has the listeners' addresses."""

    name: Annotated[str | None, Text("a name of at most 128 characters", limit=128)] = None
    """The purpose of the agent in a few words. The card is public, so do not put a person's name in it."""
    protocol: Annotated[str | None, Choice("http", "https", "grpc", "stdio", "mcp")] = None
    url: Annotated[str | None, Text()] = None
    """The URL for other agents, if it is not that of a listener: behind a proxy, or a public name."""
    auth: Annotated[str | None, Choice("none", "bearer", "api_key", "oauth2", "mtls")] = None
    base_cost_joules: Annotated[float | None, Number(ge=0)] = None
    per_token_joules: Annotated[float | None, Number(ge=0)] = None
    measure_energy: Annotated[bool, Flag()] = True
    """True to measure energy for the price, if base_cost_joules is not set and the machine has a meter."""
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
            wrong = [
                f"{_key(found.pointer)}: {found.problem}; {found.cure}" for found in validate({**_WELL_FORMED, **given})
            ]
            if wrong:
                raise ConfigError("\n".join(wrong))


def _key(pointer: str) -> str:
    """Return the section's key for a place in the card."""
    first, _, rest = pointer.removeprefix("/").partition("/")
    return f"{first} {rest}" if first == "metadata" else rest
