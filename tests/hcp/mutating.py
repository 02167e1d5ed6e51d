"""Messages that somebody got wrong: seeded changes to good ones, in their values and in their bytes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

DEEP: Any = []
for _ in range(90):
    DEEP = [DEEP]

NASTY: list[Any] = [
    None, True, False, 0, 1, -1, 5.0, 0.95, 1e308, -0.0, 2**53, -(2**63), 2**64 - 1, "", " ", "5", "true", "null",
    "...", "\x00", "\u202e", "é" * 300, "x" * 5000, "R9", "r1", "T5", "$ref", "{{7*7}}", "../../etc/passwd", "%s%n",
    "PT10M", "PT0S", "P1Y", "-PT1S", "PT" + "9" * 300 + "H", "' OR 1=1 --", "\ufeff", "\ud7ff\ue000", "𝔘𝔫𝔦",
    "2025-01-15T08:30:00.000Z", "2025-01-15T08:30:00+02:00", "9999-99-99T99:99:99Z", "0000-00-00T00:00Z", "1.0", "2.0",
    "999999999999.1", "1.", "task_submit", "abort", "task_completed", "event",
    [], {}, [[]], [{}], {"": {}}, {"a/b~c": [None]}, [1, "1", None], DEEP, list(range(500)), {"$ref": "#"},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
]  # fmt: skip
"""What stands where something else should."""
STRAY = (b"\\ud800", b"1e999", b"-", b'"', b"\xff", b"[" * 200, b"9" * 400, b"\n")
"""What has got in between."""


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside another."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*way, key)
        yield from places(member, (*way, key))


def mutant(document: dict[str, Any], random: Random) -> dict[str, Any]:
    """A copy with one to three changes."""
    document = copy.deepcopy(document)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        ways = list(places(document))
        if not ways:
            break
        way = random.choice(ways)
        parent: Any = document
        for key in way[:-1]:
            parent = parent[key]
        match random.randrange(6):
            case 0:
                del parent[way[-1]]
            case 1 if isinstance(parent, dict):
                parent[str(way[-1]) + random.choice(("", "s", "_", " ", "\u0301"))] = parent.pop(way[-1])
            case 2:
                other: Any = document
                for key in random.choice(ways)[:-1]:
                    other = other[key]
                parent[way[-1]] = copy.deepcopy(other)
            case 3:
                parent[way[-1]] = [parent[way[-1]]]
            case _:
                parent[way[-1]] = copy.deepcopy(random.choice(NASTY))
    return document


def mangled(document: dict[str, Any], random: Random) -> bytes:
    """Its bytes, of which some are others, missing or twice there."""
    data = bytearray(orjson.dumps(document))
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        place = random.randrange(len(data))
        match random.randrange(4):
            case 0:
                data[place] = random.randrange(256)
            case 1:
                del data[place : place + random.choice((1, 2, 20))]
            case 2:
                data[place:place] = data[place : place + random.choice((1, 5, 50))]
            case _:
                data[place:place] = random.choice(STRAY)
        if not data:
            break
    return bytes(data)
