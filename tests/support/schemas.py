"""Schemas that permit nothing beside what they declare."""

from __future__ import annotations


def closed(schema):
    """The schema with no properties allowed but those it declares."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        inner["additionalProperties"] = False
    return inner
