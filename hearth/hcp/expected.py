"""The outputs that a caller expects (L4, Expected Output), checked before anything runs.

An expectation that the capability can never meet is refused now instead of after all the work. One that is merely not
promised becomes a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth._util.text import nearest
from hearth.hcp.messages import (
    Rejection,
    listed,
    one_of,
    quoted,
)
from hearth.hcp.schemas import SchemaRefused, read_caller_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.hcp.capability import Capability
    from hearth.hcp.messages import TaskSubmit
    from hearth.hcp.schemas import CallerSchema

_AT = "/payload/expected_output"


def check_expected(submit: TaskSubmit, capability: Capability) -> tuple[CallerSchema | None, list[str]]:
    """Return the caller's schema compiled, and warnings. Raises Rejection for an expectation that can never be met."""
    expected = submit.expected_output
    warnings = _check_format(expected.format, capability) if expected.format is not None else []
    warnings += _check_promised(f"{_AT}/required_fields", expected.required_fields, capability)
    schema = None
    if expected.schema is not None:
        try:
            schema = read_caller_schema(expected.schema)
        except SchemaRefused as error:
            reason = f"{_AT}/schema{error.pointer}: {error.reason}"
            raise Rejection("invalid_input", reason, suggestion=error.cure) from None
        warnings += _check_promised(f"{_AT}/schema/required", schema.required, capability)
    if submit.constraints.confidence_threshold is not None and "confidence" not in _declared(capability):
        reason = f"/payload/constraints/confidence_threshold: {capability.name} states no confidence to hold against it"
        raise Rejection("invalid_input", reason, suggestion="Leave confidence_threshold out for this capability")
    return schema, warnings


def _check_format(name: str, capability: Capability) -> list[str]:
    at = f"{_AT}/format"
    if not capability.formats:
        return [f"{at}: {capability.name} declares no formats, so {quoted(name)} changes nothing"]
    if name not in capability.formats:
        near = nearest(name[:100], capability.formats, 1)
        cure = f"Use {one_of(near or capability.formats)}, or leave format out"
        raise Rejection("invalid_input", f"{at}: {capability.name} has no format {quoted(name)}", suggestion=cure)
    return []


def _check_promised(at: str, names: Iterable[str], capability: Capability) -> list[str]:
    """Return warnings for fields that may be absent. Raises Rejection for one that the output_schema excludes."""
    declared = _declared(capability)
    unknown_members = [name for name in dict.fromkeys(names) if name not in declared]
    if not unknown_members:
        return []
    if _is_closed(capability.output_schema):
        near = nearest(unknown_members[0][:100], declared, 1)
        cure = f"Write {quoted(near[0])} there" if near else f"Ask for some of {listed(declared)}, or leave it out"
        reason = f"{at}: {quoted(unknown_members[0])} is not among the outputs of {capability.name}"
        raise Rejection("invalid_input", reason, suggestion=cure)
    shown = listed(map(quoted, unknown_members))
    return [f"{at}: {capability.name} does not promise {shown}; the task will fail if that is not among its outputs"]


def _declared(capability: Capability) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = capability.output_schema.get("properties", {})
    return properties


def _is_closed(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema
