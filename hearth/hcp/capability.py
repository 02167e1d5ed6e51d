"""Capabilities: the decorator that marks a function as one, and the checked values that the gate and a job work with.

`@capability(...)` only keeps its arguments. `hearth.hcp.declaration` checks them when the daemon starts, so that
`hearthd --check` shows all mistakes of all files at once, and makes a `Capability` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import field, frozen

from hearth.hcp.values import write_duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from datetime import timedelta

    from hearth.hcp.envelope import SafetyEnvelope
    from hearth.hcp.values import Classification, Risk
    from hearth.schema import Validator

F = TypeVar("F", bound=Callable[..., Any])

MARK: Final = "__hearth_capability__"
"""The attribute of a decorated function that holds its `CapabilitySource`."""


@frozen
class Escalation:
    """Inputs for which `when` holds raise the risk to this level (L3, Risk Assessment Process).

    `when` gets the inputs that its parameters name. If it raises, it counts as holding.
    """

    when: Callable[..., Any]
    risk: Risk
    because: str
    """Continues the sentence "… raises it from R1 to R2"."""
    cure: str
    """Which input to change and how, for the caller: "keep /payload/inputs/samples at 500 or less"."""


@frozen
class Limit:
    """A hard boundary of one quantity (L3, Safety Envelope).

    `value` gets the inputs that its parameters name and returns a number, a list of numbers, or None for "unknown
    yet"; a job is refused if a number is out of bounds or `value` raises. A job can also call `job.watch(name, value)`
    for a quantity that it measures.
    """

    value: Callable[..., Any] | None = None
    min: float | None = field(default=None, kw_only=True)
    max: float | None = field(default=None, kw_only=True)
    unit: str | None = field(default=None, kw_only=True)
    """For messages and for the published envelope; nothing is converted."""


@frozen(kw_only=True)
class CapabilitySource:
    """A function and what its author declares about it; nothing in it has been checked."""

    function: Callable[..., Any]
    place: str
    """For messages: "survey.py:12", or the path of a plan file."""
    values: Mapping[str, Any]
    """Arguments of `capability`, by name. A plan file adds `description`; a function has its docstring."""
    keys: Mapping[str, str] = field(factory=dict)
    """Where messages say another key than the argument's name: {"risk_floor": "capability.safety.risk_floor"}."""


def capability(
    name: str,
    *,
    version: str,
    tools: Sequence[str],
    risk_ceiling: Risk,
    risk_floor: Risk | None = None,
    max_duration: str = "PT1H",
    concurrent_limit: int = 1,
    requires_human_approval: bool = False,
    involves_physical_resources: bool | None = None,
    resource_types: Sequence[str] = (),
    hazard_categories: Sequence[str] = (),
    data_classification: Classification = "T2",
    formats: Sequence[str] = (),
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    escalate: Sequence[Escalation] = (),
    limits: Mapping[str, Limit] | None = None,
    prohibited_actions: Sequence[str] = (),
    emergency_procedures: Mapping[str, str] | None = None,
    check: Callable[..., None] | None = None,
    clean_up: Sequence[str] = (),
    clean_up_duration: str = "PT2S",
) -> Callable[[F], F]:
    """Mark an async function `(job, *, inputs…)` as a capability; the function itself stays as it is.

    The docstring is the description, the annotated keyword-only parameters are the inputs, the returned attrs class or
    dict is the outputs. `docs/capabilities.md` explains each argument.
    """
    given = locals()
    values = {key: value for key, value in given.items() if value is not None}

    def mark(function: F) -> F:
        code = getattr(function, "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)
        setattr(function, MARK, CapabilitySource(function=function, place=place, values=values))
        return function

    return mark


@frozen(kw_only=True)
class Safety:
    """L3, Safety Declaration Fields. `risk_floor` is hearth's: the risk that is assessed before any escalation."""

    risk_ceiling: Risk
    risk_floor: Risk
    requires_human_approval: bool
    involves_physical_resources: bool
    resource_types: tuple[str, ...] = ()
    hazard_categories: tuple[str, ...] = ()
    escalate: tuple[Escalation, ...] = ()


def _as_given(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(inputs)


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
    tools: frozenset[str]
    """The only tools that a job of this capability may use."""
    function: Callable[..., Awaitable[Any]]
    """Called as `function(job, **structure(inputs))`."""
    place: str
    """Its file and line, for messages."""
    inputs: Validator = field(repr=False, eq=False)
    outputs: Validator = field(repr=False, eq=False)
    structure: Callable[[Mapping[str, Any]], dict[str, Any]] = field(default=_as_given, repr=False, eq=False)
    """From valid JSON inputs to keyword arguments. Raises InputRefused."""
    unstructure: Callable[[Any], Any] = field(default=lambda value: value, repr=False, eq=False)
    """From what the function returned to JSON. Raises NotJson."""
    check: Callable[[Mapping[str, Any]], None] = field(default=lambda _inputs: None, repr=False, eq=False)
    """The author's own check of valid JSON inputs. Raises InputRefused."""
    clean_up: frozenset[str] = frozenset()
    """Tools that `job.clean_up()` may use after a cancellation."""
    clean_up_s: float = 2.0
    max_duration: timedelta
    concurrent_limit: int = 1
    data_classification: Classification = "T2"
    """The most sensitive data it may be given."""
    formats: tuple[str, ...] = ()

    @property
    def source_warnings(self) -> tuple[str, ...]:
        """A sentence for each place in the source that a replay would not repeat, with the place and the cure.

        The file is parsed for it, which takes some milliseconds.
        """
        from hearth.hcp.source_check import source_warnings

        return tuple(source_warnings(self.function))

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
