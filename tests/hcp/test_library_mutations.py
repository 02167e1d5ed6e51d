"""Capability files that somebody has spoilt: each is a capability or a list of faults, and never a traceback."""

import copy
import tomllib
from pathlib import Path
from random import Random

import pytest
from hcp.capability_files import PLAN, RIGHT, registry

from hearth._util.toml import dump_key, dump_value
from hearth.errors import ConfigError
from hearth.hcp.library import load_capabilities

WILD = [
    True, 0, -1, 1.5, 2**60, "", "x", "{", "{line}", "{nope}", "{{}}", "é" * 300, [], [[]], [1, "a"], ["{line}"], {},
    {"a": 1}, {"a": "{line}"}, {"type": "string"}, {"$ref": "#"}, {"$ref": "http://x"}, {"type": ["object", "null"]},
]  # fmt: skip
KEYS = ["x", "a b", "", "$ref", "type", "allOf", "properties", "required", "default", "steps", "tool", "args"]


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
                table[key] = text[:where] + random.choice(["", "[", "{", "}", ".", "\n", "é", "'"]) + text[where + 1 :]
    return document


def outcome(file: Path) -> bool:
    """Whether it is a capability; every line of a refusal has the file and a reason."""
    try:
        load_capabilities([str(file)], registry=registry(), shipped=[])
    except ConfigError as error:
        for line in str(error).splitlines():
            assert line.startswith(f"{file}:"), line
            assert len(line) > len(f"{file}: x")
        return False
    return True


@pytest.mark.proof
def test_a_spoilt_plan_is_a_capability_or_says_what_is_wrong_and_where(tmp_path):
    random, file = Random(20261122), tmp_path / "spoilt.toml"
    refused = 0
    for _ in range(300):
        document = spoilt(random, tomllib.loads(PLAN))
        file.write_text("".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in document.items()))
        refused += not outcome(file)
    assert refused > 100, "a mutation that changes nothing is none"


@pytest.mark.slow
@pytest.mark.parametrize(("text", "suffix"), [(RIGHT, "py"), (PLAN, "toml")])
def test_a_file_with_spoilt_bytes_is_a_capability_or_says_what_is_wrong(tmp_path, text, suffix):
    random, file = Random(20261123), tmp_path / f"spoilt.{suffix}"
    refused = 0
    for _ in range(150):
        data = bytearray(text.encode())
        for _ in range(random.choice((1, 1, 2, 4, 8))):
            place = random.randrange(len(data))
            match random.randrange(3):
                case 0:
                    data[place] = random.randrange(256)
                case 1:
                    del data[place : place + random.choice((1, 2, 20))]
                case _:
                    data[place:place] = random.choice((b"\0", b"\xff", b"(" * 300, b"9" * 400, b"\n", b'"'))
        file.write_bytes(bytes(data))
        refused += not outcome(file)
    assert refused > 50
