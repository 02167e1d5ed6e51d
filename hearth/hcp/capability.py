"""Capabilities: the decorator that marks a function as one, and the checked values that the safety gate and a job use.

`@capability(...)` only keeps its arguments. `hearth.hcp.declaration` checks them when the daemon starts, so that
`hearthd --check` shows all mistakes of all files at once, and makes a `Capability` of them.

The safety envelope of a capability (L3) is a set of hard boundaries that no caller can relax. A limit with a `value` is
checked on the inputs, before a job is accepted; `check_value` also serves a job that watches a quantity while it runs.
A boundary that cannot be evaluated is violated: a `value` that raises, or a result that is no finite number. None means
"not known yet" and violates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import field, frozen

from hearth._util.foreign import Raised, called

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from datetime import timedelta

    from hearth.policy.levels import Classification, Risk
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
    """The input to change and its new value, for the caller: "keep /payload/inputs/samples at 500 or less"."""


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
    """Keys that messages name instead of the argument: {"risk_floor": "capability.safety.risk_floor"}."""


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
    """From the function's return value to JSON. Raises NotJson."""
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

    def declaration(self) -> dict[str, Any]:
        """The Capability Declaration, as L3's schema has it."""
        from hearth.hcp.messages import write_duration

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
        """Return a set that calls `load` when it is first read, so a start does not spend the tenth of a second."""
        late = cls()
        late._load = load
        return late

    def loaded(self) -> CapabilitySet:
        """Return itself, loaded. Two threads may both load; they load the same."""
        if (load := self._load) is not None:
            found = load()
            self._by_name, self._notes, self._load = found._by_name, found._notes, None
        return self

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences for a person: each capability that is left out or replaced, and why."""
        return self.loaded()._notes

    def __getitem__(self, name: str) -> Capability:
        return self.loaded()._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaded()._by_name)

    def __len__(self) -> int:
        return len(self.loaded()._by_name)


@frozen(kw_only=True)
class Violation:
    """A boundary that does not hold."""

    parameter: str
    message: str
    cure: str
    places: tuple[str, ...] = ()
    """The inputs at fault, as JSON pointers into the task_submit; none for a measured value."""


@frozen(kw_only=True)
class SafetyEnvelope:
    """All boundaries of one capability."""

    parameters: Mapping[str, Limit] = field(factory=dict)
    prohibited_actions: tuple[str, ...] = ()
    emergency_procedures: Mapping[str, str] = field(factory=dict)

    def check_inputs(self, inputs: Mapping[str, Any]) -> Violation | None:
        """Return the first boundary that approved inputs (structured, defaults filled in) would violate, else None."""
        # Imported here and below: a runtime has the set of its capabilities from the start, and jobs perhaps never.
        from hearth.hcp.inputs import ask, places

        for name, limit in self.parameters.items():
            if limit.value is None:
                continue
            at = tuple(places(limit.value))
            try:
                found = called(ask, limit.value, inputs)
            except Raised as raised:
                return _violated(name, limit, f"it cannot be evaluated: {raised}", at)
            if (violation := self.check_value(name, found, at)) is not None:
                return violation
        return None

    def check_value(self, name: str, found: Any, at: tuple[str, ...] = ()) -> Violation | None:
        """Check a number, or a list of them, against the limit of this name. Raises LookupError if there is none."""
        if (limit := self.parameters.get(name)) is None:
            there = ", ".join(self.parameters) or "none"
            raise LookupError(f"there is no limit {name!r}, but {there}; declare it: limits={{{name!r}: Limit(max=…)}}")
        for value in found if isinstance(found, list | tuple) else [found]:
            if value is None:
                continue
            if type(value) not in (int, float) or not math.isfinite(value):
                return _violated(name, limit, f"{str(value)[:60]!r} is no number", at)
            if limit.min is not None and value < limit.min:
                least = _said(limit.min, limit.unit)
                return _violated(name, limit, f"{_said(value, limit.unit)} is below the least allowed, {least}", at)
            if limit.max is not None and value > limit.max:
                most = _said(limit.max, limit.unit)
                return _violated(name, limit, f"{_said(value, limit.unit)} is above the most allowed, {most}", at)
        return None

    def to_wire(self) -> dict[str, Any]:
        """Return the envelope by L3's schema; {} where nothing is bounded."""
        wire: dict[str, Any] = {}
        if self.parameters:
            wire["parameters"] = {name: _limit_to_wire(limit) for name, limit in self.parameters.items()}
        if self.prohibited_actions:
            wire["prohibited_actions"] = list(self.prohibited_actions)
        if self.emergency_procedures:
            wire["emergency_procedures"] = dict(self.emergency_procedures)
        return wire


def _limit_to_wire(limit: Limit) -> dict[str, Any]:
    bounds = {"min": limit.min, "max": limit.max, "unit": limit.unit}
    return {**{key: value for key, value in bounds.items() if value is not None}, "hard_limit": True}


def _violated(name: str, limit: Limit, message: str, at: tuple[str, ...]) -> Violation:
    if limit.min is None:
        bounds = f"at {_said(limit.max, limit.unit)} or less"
    elif limit.max is None:
        bounds = f"at {_said(limit.min, limit.unit)} or more"
    else:
        bounds = f"between {_said(limit.min, None)} and {_said(limit.max, limit.unit)}"
    return Violation(parameter=name, message=f"{name}: {message}", cure=f"Keep {name} {bounds}", places=at)


def _said(number: float | None, unit: str | None) -> str:
    text = str(int(number)) if isinstance(number, float) and number.is_integer() and abs(number) < 1e15 else str(number)
    return f"{text} {unit}" if unit else text
