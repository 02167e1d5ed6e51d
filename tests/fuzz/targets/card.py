"""AgentCards: any bytes are a valid card, or there is a list of what is wrong, each with place, rule, problem and cure.

The oracle is a second reading of the rules (`support.card_rules`), over a second reading of the JSON; jsonschema and
jsonschema-rs must agree on what is a schema. The authority is slow: it is asked for every 32nd input, by its
checksum.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from typing import TYPE_CHECKING, Any

import orjson
from support.card_rules import META, top
from support.cards import EXAMPLE, GOOD, SMALLEST

import hearth.schema
from hearth.agentcard.document import MAX_FINDINGS
from hearth.agentcard.validate import read_card

from ..mutation import json_of, parts

if TYPE_CHECKING:
    import random

_FAST = hearth.schema.Validator(
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": META.META_SCHEMA["$id"]}
)
_LONE = re.compile("[\ud800-\udfff]")
_DEEPEST = 64
_RULE = re.compile(r"§[25](\.[0-9]+)*( rule ([1-9]|10))?|§3")
_FOREIGN: list[Any] = [
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"enum": [1, 1.0]}},
    "required": ["a", "a"]},
    {"$id": "https://a.example/s#", "$anchor": "a\n", "minLength": 1.0, "multipleOf": 0.1, "pattern": "(",
    "format": "uri"},
    "mcp://[2001:db8::7]:8443/a?b=%20#c", "stdio:hearth%20mcp", "http://u@h", "grpc://a", "https://[v1.a]/",
    2.853e-21, 2.855e-21,
]  # fmt: skip
_POOL = [*parts([*GOOD, *_FOREIGN]), *_FOREIGN]
DICTIONARY = (
    *(b'"%s":' % name.encode() for name in (*EXAMPLE, "input_schema", "output_schema", "tags", "auth", "scheme",
    "goal_id", "priority")),
    b'"$ref":"#"', b'"type":"object"', b'"$schema":"https://json-schema.org/draft/2020-12/schema"', b"2.854e-21",
    b'"\\ud800"',
)  # fmt: skip


def check(data: bytes) -> None:
    """See the package."""
    card, findings = read_card(data)
    assert len(findings) <= MAX_FINDINGS + 1
    for finding in findings:
        assert _RULE.fullmatch(finding.rule), finding.rule
        assert finding.problem
        assert finding.cure
        assert not finding.pointer or finding.pointer.startswith("/")
        orjson.dumps(finding.to_json())
        assert "\n" not in str(finding), "a finding is one line"
    try:
        document = _json(data)
        if type(document) is str:
            document = _json(document.encode("utf-8", "surrogatepass"), inner=True)
    except RecursionError:
        return
    except ValueError:
        assert card is None, "read as JSON, which it is not"
        assert len(findings) == 1
        return
    if type(document) is not dict:
        assert card is None
        assert findings
        return
    if card is None:
        assert "nested too deeply" in findings[0].problem, findings  # how deep is too deep depends on who reads
        return
    authority = zlib.crc32(data) & 31 == 0
    good = _good(document, authority=authority)
    assert (not findings) == good, f"a second reading of the rules says {good}: {list(map(str, findings))}"
    for finding in findings:
        _pointed(document, finding.pointer)


def _json(data: bytes, *, inner: bool = False) -> Any:
    text = data.decode("utf-8", "surrogatepass" if inner else "strict")
    if text.startswith("\ufeff"):
        raise ValueError("a byte order mark")
    return json.loads(
        text, parse_constant=_refused, parse_float=_number, parse_int=lambda d: int(d) if len(d) <= 400 else _number(d)
    )


def _refused(word: str) -> Any:
    raise ValueError(word)


def _number(text: str) -> float:
    most = sys.float_info.max
    return min(max(float(text), -most), most)


def _good(card: dict[str, Any], *, authority: bool) -> bool:
    def is_schema(schema: dict[str, Any]) -> bool:
        if _beyond(schema):
            return False
        fast = bool(_FAST.accepts(schema))
        # Python's $ takes a line feed at the end, which JSON Schema's does not: there the authority is too kind.
        if authority and '\\n"' not in json.dumps(schema):
            assert fast == META.is_valid(schema), f"jsonschema-rs says {fast}, jsonschema does not: {schema!r}"
        return fast

    endpoint = card.get("endpoint")
    url = endpoint.get("url") if type(endpoint) is dict else None
    if type(url) is str and not url.isascii():
        return False
    try:
        top(card, is_schema)
    except AssertionError as error:
        if "jsonschema-rs says" in str(error):
            raise
        return False
    return True


def _beyond(value: Any) -> bool:
    """Past the bounds within which a schema is looked at, or no Unicode text."""
    level = [value]
    for _ in range(_DEEPEST + 1):
        for one in level:
            if type(one) is dict and any(map(_LONE.search, one)):
                return True
            if type(one) is str and _LONE.search(one):
                return True
        level = [
            child
            for one in level
            if type(one) in (dict, list)
            for child in (one.values() if type(one) is dict else one)
        ]
        if not level:
            return False
    return True


def _pointed(value: Any, pointer: str) -> None:
    """A pointer leads to something that is there, or to the one member that is missing."""
    if "…" in pointer or "\\" in pointer:
        return
    *way, last = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]] or [""]
    for name in way:
        value = value[int(name) if type(value) is list else name]
    assert not pointer or type(value) is dict or int(last) < len(value)


def seeds() -> list[bytes]:
    """Good cards, bare and within a JSON string, and one with strange schemas."""
    strange = {**SMALLEST, "capabilities": [{"id": "a", "input_schema": schema} for schema in _FOREIGN[:2]]}
    return [*(orjson.dumps(card) for card in (*GOOD, strange)), orjson.dumps(orjson.dumps(SMALLEST).decode())]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The card's tree changed, also within a JSON string."""
    if data[:1] == b'"' and rng.random() < 0.9:
        try:
            inner = orjson.loads(data)
        except orjson.JSONDecodeError:
            inner = None
        if type(inner) is str:
            changed = json_of(inner.encode(), rng, _POOL)
            return orjson.dumps(changed.decode("utf-8", "replace"))
    made = json_of(data, rng, _POOL)
    return orjson.dumps(made.decode("utf-8", "replace")) if rng.random() < 0.02 else made
