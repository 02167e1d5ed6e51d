"""What a capability is: its declaration (L3), its safety, and the plan that carries it out.

Values only; `hearth.hcp.library` reads them from TOML. An `Expression` in them has been compiled and checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from hearth.hcp.values import write_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from hearth.hcp.envelope import SafetyEnvelope
    from hearth.hcp.expressions import Expression
    from hearth.hcp.planning import Plan
    from hearth.hcp.values import Classification, Risk
    from hearth.schema import Validator


@frozen(kw_only=True)
class Escalation:
    """Inputs for which `when` holds raise the risk to this level (L3, Risk Assessment Process)."""

    when: Expression
    risk: Risk
    because: str


@frozen(kw_only=True)
class Safety:
    """L3, Safety Declaration Fields. `risk_floor` is ours: the risk that is assessed before any escalation."""

    risk_ceiling: Risk
    risk_floor: Risk
    requires_human_approval: bool
    involves_physical_resources: bool
    resource_types: tuple[str, ...] = ()
    hazard_categories: tuple[str, ...] = ()
    escalate: tuple[Escalation, ...] = ()


@frozen(kw_only=True)
class Capability:
    """One capability that this daemon offers (L3, Capability Declaration Fields)."""

    name: str
    version: str
    """Semver."""
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any]
    safety: Safety
    envelope: SafetyEnvelope
    plan: Plan
    planner: str
    place: str
    """Its file, for messages."""
    inputs: Validator = field(repr=False, eq=False)
    outputs: Validator = field(repr=False, eq=False)
    max_duration: timedelta
    concurrent_limit: int = 1
    data_classification: Classification = "T2"
    """The most sensitive data it may be given."""
    formats: tuple[str, ...] = ()

    def declaration(self) -> dict[str, Any]:
        """The Capability Declaration, as L3's schema has it."""
        safety: dict[str, Any] = {
            "risk_ceiling": self.safety.risk_ceiling,
            "requires_human_approval": self.safety.requires_human_approval,
            "involves_physical_resources": self.safety.involves_physical_resources,
        }
        for name in ("resource_types", "hazard_categories"):
            if found := getattr(self.safety, name):
                safety[name] = list(found)
        return {
            "capability": {
                "name": self.name,
                "version": self.version,
                "description": self.description,
                "input_schema": dict(self.input_schema),
                "output_schema": dict(self.output_schema),
                "safety": safety,
                "constraints": {
                    "max_duration": write_duration(self.max_duration),
                    "concurrent_limit": self.concurrent_limit,
                },
            }
        }


class CapabilitySet(Mapping[str, Capability]):
    """The capabilities of this process, by name and in the order of their names; fixed once made."""

    def __init__(self, capabilities: Sequence[Capability] = (), notes: Sequence[str] = ()) -> None:
        self._by_name = {one.name: one for one in sorted(capabilities, key=lambda one: one.name)}
        self._notes = tuple(notes)
        self._load: Callable[[], CapabilitySet] | None = None

    @classmethod
    def later(cls, load: Callable[[], CapabilitySet]) -> CapabilitySet:
        """What `load` gives, once somebody looks: a start does not spend the tenth of a second that it takes."""
        late = cls()
        late._load = load
        return late

    def loaded(self) -> CapabilitySet:
        """Itself, with everything there. Two threads may both load; they load the same."""
        if (load := self._load) is not None:
            found = load()
            self._by_name, self._notes, self._load = found._by_name, found._notes, None
        return self

    @property
    def notes(self) -> tuple[str, ...]:
        """For a person, a sentence each: what is left out or stands back, and why."""
        return self.loaded()._notes

    def __getitem__(self, name: str) -> Capability:
        return self.loaded()._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaded()._by_name)

    def __len__(self) -> int:
        return len(self.loaded()._by_name)
