"""Capability files that somebody has spoilt: each is a capability or a list of faults, and never a traceback."""

import copy
import tomllib
from random import Random

import pytest
from hcp.capability_files import RIGHT, registry

from hearth.hcp.declaration import declare
from hearth.hcp.library import SHIPPED
from hearth.hcp.planners import load_planners

FILES = [RIGHT, *(file.read_text("utf-8") for file in sorted(SHIPPED.glob("*.toml")))]
WILD = [
    True, 0, -1, 1.5, 2**60, "", "x", "inputs.", "inputs.nope", "results.a[0].b", "sum(`1`)", "@", "`{}`", "\0",
    "é" * 300, [], [[]], [1, "a"], {}, {"a": 1}, {"a": True}, {"expr": "inputs.nope"}, {"expr": 5}, {"type": "string"},
    {"$ref": "#"}, {"$ref": "http://x"}, {"type": ["object", "null"]},
]  # fmt: skip
KEYS = ["x", "a b", "", "$ref", "type", "allOf", "properties", "when", "repeat", "steps"]


def ways(value, way=()):
    """The way to every value of a document."""
    if way:
        yield way
    if isinstance(value, dict):
        for key in value:
            yield from ways(value[key], (*way, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from ways(member, (*way, index))


def at(document, way):
    for key in way:
        document = document[key]
    return document


def spoilt(random, document):
    """The document with something taken out, put in, put elsewhere, or misspelt, once or more."""
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        every = list(ways(document))
        way, other = random.choice(every), random.choice(every)
        table, key = at(document, way[:-1]), way[-1]
        match random.randrange(5):
            case 0:
                del table[key]
            case 1:
                table[key] = copy.deepcopy(random.choice(WILD))
            case 2 if isinstance(table, dict):
                table[random.choice(KEYS)] = copy.deepcopy(random.choice(WILD))
            case 3:
                table[key] = copy.deepcopy(at(document, other))
            case _ if isinstance(text := table[key], str) and text:
                where = random.randrange(len(text))
                table[key] = text[:where] + random.choice(["", "[", "`", "(", ".", "\n", "é", "'"]) + text[where + 1 :]
    return document


@pytest.mark.parametrize("text", FILES, ids=["right", *(file.stem for file in sorted(SHIPPED.glob("*.toml")))])
def test_a_spoilt_file_is_a_capability_or_says_what_is_wrong_and_where(text):
    planners = load_planners()
    random = Random(20261122)
    refused = 0
    for _ in range(60):
        declared = declare(spoilt(random, tomllib.loads(text)), "spoilt.toml", registry(), planners)
        assert (declared.capability is None) == bool(declared.faults)
        for fault in declared.faults:
            assert fault.reason
            assert fault.key.split(".")[0].split("[")[0]
        refused += declared.capability is None
    assert refused > 20, "a mutation that changes nothing is none"
