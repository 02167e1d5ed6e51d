"""The schemas of a capability, and the schema that a caller sends as `expected_output.schema`.

A capability's schemas are the operator's, and `hearth.schema` runs them. This module checks that they are schemas of an
object, refer to nothing elsewhere (a validator would fetch it), and accept their own defaults.

A caller's schema is untrusted and runs in the daemon. It may use the part of 2020-12 whose cost is known before it
runs: no reference that leaves the schema or leads back to itself, only patterns that run in linear time, and a bound on
the amount of work. Only jsonschema-rs runs it; Python's `re` never sees one of its patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

import orjson
from attrs import field, frozen

from hearth._util.toml import show
from hearth.errors import ConfigError, HearthError
from hearth.fields import Fault
from hearth.hcp.inputs import DATA, misplaced
from hearth.protocol.jsonrpc import is_deeper
from hearth.schema import Validator, check_schema, escaped, shortened
from hearth.tables import join

_REFERENCES = ("$ref", "$dynamicRef")
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema_faults(schema: Mapping[str, Any], key: str) -> Iterator[Fault]:
    """Yield the faults of a capability's input_schema or output_schema; `key` is its path."""
    if schema.get("type") != "object":
        there = f"; got {show(schema['type'])}" if "type" in schema else ""
        yield Fault(join(key, "type"), f'expected type = "object": inputs and outputs are objects{there}')
        return
    for place in misplaced(schema, key):
        yield Fault(place, "is looked at only where `properties` and `items` alone lead to it; move it there")
    elsewhere = list(_elsewhere(schema, key))
    yield from elsewhere
    if elsewhere:
        return
    try:
        check_schema(schema, key)
        Validator(schema)
    except ConfigError as error:
        yield Fault(key, str(error).removeprefix(f"{key}: "))
    except ValueError as error:  # a $ref to nothing, which the check above cannot know
        yield Fault(key, f"cannot be used: {_first_line(error)}")
    else:
        yield from _default_faults(schema, key)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _elsewhere(value: object, path: str) -> Iterator[Fault]:
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from _elsewhere(member, f"{path}[{index}]")
    if not isinstance(value, Mapping):
        return
    for name, member in value.items():
        at = join(path, name)
        if name in _REFERENCES and isinstance(member, str) and not member.startswith("#"):
            yield Fault(at, f"leads out of the file, and nothing is fetched: {show(member)}; put it under $defs")
        elif name == "$schema" and isinstance(member, str) and member.rstrip("#") != _DRAFT:
            yield Fault(at, f"only JSON Schema 2020-12 is known, not {show(member)}; take it out")
        elif name not in DATA:
            yield from _elsewhere(member, at)


def _default_faults(schema: Mapping[str, Any], key: str) -> Iterator[Fault]:
    """Yield the faults of defaults of top-level properties: they are filled in, so each must be valid."""
    properties = schema.get("properties", {})
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    alone = {**definitions, "properties": properties}
    validator = None
    for name, property_ in properties.items():
        if isinstance(property_, Mapping) and "default" in property_:
            validator = validator or Validator(alone)
            if not validator.accepts({name: property_["default"]}):
                _, why = validator.explain({name: property_["default"]})
                yield Fault(f"{join(join(key, 'properties'), name)}.default", f"its own schema refuses it: {why}")


try:
    import jsonschema_rs as _fast
except ImportError:  # pragma: no cover - a platform without a wheel
    _rs: Any = None
else:
    _rs = _fast

MOST_BYTES: Final = 64 * 1024
"""Size of a schema in bytes, as JSON without blanks."""
MOST_DEPTH: Final = 32
"""Objects and arrays within each other; the compiler itself gives up at some hundreds."""
MOST_COST: Final = 2_000
"""Schemas, and values to compare with. Each $ref counts as its target, unevaluated… as the schemas beneath, again."""
MOST_PATTERN_BYTES: Final = 64 * 1024
"""Size of a compiled pattern. Running one takes time in proportion to this, for each byte of text."""
MOST_PATTERNS: Final = 32
"""Patterns in a schema. Compiling one takes up to 0.3 ms, in which nothing else runs."""
UNIQUE_COST: Final = 20
"""Cost of uniqueItems, in schemas."""
PATTERN_COST: Final = 1_000
"""Cost of a pattern, in schemas, for each byte of text: the worst that was measured within that size."""
MOST_WORK: Final = 5_000_000
"""Cost times bytes of outputs. The worst case took 15 ms on a laptop, in which nothing else runs."""

_ONE = frozenset({
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAP = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
_DEFINITIONS = ("$defs", "definitions")
_MOVING = ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary")
"""Keywords that give a schema another name or another base. With them the target of a $ref would not be evident."""


class SchemaRefused(HearthError):
    """A schema that is refused. `pointer` leads into it, `reason` is a sentence's end, `cure` says what to change."""

    def __init__(self, pointer: str, reason: str, cure: str) -> None:
        super().__init__(f"{pointer or 'the schema'}: {reason}")
        self.pointer = pointer
        self.reason = reason
        self.cure = cure


@frozen
class SchemaMismatch:
    """The place and cause of a mismatch: a JSON pointer into the value, and a sentence."""

    pointer: str
    reason: str
    too_much: bool = False
    """True if the value was not checked, because it is too large for such a schema."""


@frozen
class CallerSchema:
    """A caller's schema, compiled."""

    cost: int
    """Number of schemas and values to compare a value with, patterns apart."""
    patterns: int
    required: tuple[str, ...]
    """The members that the schema requires of the outputs as a whole."""
    _compiled: Any = field(repr=False, eq=False)

    def mismatch_of(self, value: Any) -> SchemaMismatch | None:
        """Return the first mismatch of `value`, which is plain JSON, or None. Its time is bounded by MOST_WORK."""
        size = len(orjson.dumps(value))
        text = _text_bytes(value) if self.patterns else 0
        if self.cost * size + self.patterns * PATTERN_COST * text > MOST_WORK:
            patterns = f" and {self.patterns} patterns" if self.patterns else ""
            reason = f"{size} bytes are too many to hold against a schema that comes to {self.cost}{patterns}"
            return SchemaMismatch("", reason, too_much=True)
        try:
            self._compiled.validate(value)
        except _rs.ValidationError as error:
            return SchemaMismatch(_pointer(error), shortened(error.message))
        return None


def read_caller_schema(schema: Mapping[str, Any]) -> CallerSchema:
    """Check a caller's schema and compile it. Raises SchemaRefused."""
    if _rs is None:  # pragma: no cover - a platform without a wheel
        raise SchemaRefused("", "cannot be run safely here: jsonschema-rs is missing", "Leave schema out")
    if is_deeper(schema, MOST_DEPTH):
        raise SchemaRefused("", f"more than {MOST_DEPTH} levels deep", "Describe the outputs with fewer levels")
    try:
        size = len(orjson.dumps(schema))
    except TypeError as error:
        raise SchemaRefused("", f"is not plain JSON: {error}", "Give it as JSON has it") from None
    if size > MOST_BYTES:
        raise SchemaRefused("", f"{size} bytes; at most {MOST_BYTES} are run", "Describe less of the outputs")
    cost = _Cost(schema)
    total, patterns = cost.of(schema, "")
    if max(total, cost.of_definitions()) > MOST_COST:
        reason = f"comes to more than {MOST_COST} schemas and values, each $ref counted as what it leads to"
        raise SchemaRefused("", reason, "Describe less of the outputs, or refer to large definitions less often")
    if cost.patterns > MOST_PATTERNS:
        raise SchemaRefused("", f"has more than {MOST_PATTERNS} patterns", "Use fewer patterns")
    return CallerSchema(total, patterns, _names(schema.get("required")), _compile(schema))


def explain(schema: Mapping[str, Any], value: Any) -> SchemaMismatch:
    """Return the mismatch of a value that an operator's schema refuses."""
    return SchemaMismatch(*Validator(schema).explain(value))


def _pointer(error: Any) -> str:
    return "".join(f"/{escaped(str(part))}" for part in error.instance_path)


def _compile(schema: Mapping[str, Any]) -> Any:
    options = _rs.RegexOptions(size_limit=MOST_PATTERN_BYTES, dfa_size_limit=1 << 20)
    try:
        return _rs.Draft202012Validator(dict(schema), pattern_options=options, retriever=_fetch_nothing)
    except _rs.ValidationError as error:
        pointer, message = _pointer(error), shortened(error.message)
        if message.endswith('is not a "regex"'):
            reason = f"{message} that runs in linear time within {MOST_PATTERN_BYTES // 1024} KiB"
            cure = "Use no look-around and no back-reference, repeat less (maxLength bounds a length), or leave it out"
            raise SchemaRefused(pointer, reason, cure) from None
        raise SchemaRefused(pointer, message, "Correct it as JSON Schema 2020-12 has it") from None


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"nothing is fetched: {uri}")


class _Cost:
    """The cost of a schema: a walk of all schemas in it, by the keywords that hold schemas."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, tuple[int, int]] = {}
        self._open: set[str] = set()
        self.patterns = 0
        """Number of compiled patterns; each counts once, however many references lead to it."""

    def of(self, schema: Any, at: str) -> tuple[int, int]:
        """Return the cost of a schema and of its patterns. Raises SchemaRefused."""
        if not isinstance(schema, Mapping):
            return 1, 0  # true and false; what is neither, the compiler refuses
        _check_keywords(schema, at)
        count = 1 + _values(schema) + (UNIQUE_COST if "uniqueItems" in schema else 0)
        patterns = int("pattern" in schema)
        if isinstance(properties := schema.get("patternProperties"), Mapping):
            patterns += len(properties)
        self.patterns += patterns
        if "$ref" in schema:
            more, further = self._referred(schema["$ref"], f"{at}/$ref")
            count, patterns = count + more, patterns + further
        for inner, place in _within(schema, at):
            more, further = self.of(inner, place)
            count, patterns = count + more, patterns + further
        if "unevaluatedItems" in schema or "unevaluatedProperties" in schema:
            # The schemas beneath run once more, to find the members that they have evaluated.
            count, patterns = 2 * count, 2 * patterns
        return count, patterns

    def of_definitions(self) -> int:
        """Return the cost of the costliest definition; one without references to it is compiled all the same."""
        return max(
            (
                self._referred(f"#/{keyword}/{escaped(name)}", f"/{keyword}")[0]
                for keyword in _DEFINITIONS
                if isinstance(definitions := self._root.get(keyword), Mapping)
                for name in definitions
            ),
            default=0,
        )

    def _referred(self, ref: Any, at: str) -> tuple[int, int]:
        if not isinstance(ref, str) or (found := self._find(ref)) is None:
            shown = repr(ref) if len(repr(ref)) <= 80 else f"{repr(ref)[:80]}…"
            cure = 'Refer to what the same schema has at its root, as "#/$defs/NAME", or write it out here'
            raise SchemaRefused(at, f"refers to {shown}, and nothing outside of the schema's $defs is followed", cure)
        if ref in self._open:
            raise SchemaRefused(at, f"leads back to {ref!r} itself", "Write out as many levels as you expect")
        if len(self._open) == MOST_DEPTH:
            raise SchemaRefused(at, f"is more than {MOST_DEPTH} references deep", "Refer to definitions directly")
        if ref not in self._known:
            self._open.add(ref)
            self._known[ref] = self.of(found, ref.removeprefix("#"))
            self._open.remove(ref)
        return self._known[ref]

    def _find(self, ref: str) -> Any:
        parts = ref.split("/")
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
            return None
        definitions = self._root.get(parts[1])
        name = parts[2].replace("~1", "/").replace("~0", "~")
        return definitions.get(name) if isinstance(definitions, Mapping) else None


def _check_keywords(schema: Mapping[str, Any], at: str) -> None:
    for keyword in _MOVING:
        if keyword in schema:
            raise SchemaRefused(f"{at}/{keyword}", "is not taken from a caller", f"Leave {keyword} out")
    dialect = schema.get("$schema", _DRAFT)
    if not isinstance(dialect, str) or dialect.removesuffix("#") != _DRAFT:
        raise SchemaRefused(f"{at}/$schema", "is not JSON Schema 2020-12", f'Leave $schema out, or say "{_DRAFT}"')
    for keyword in _DEFINITIONS:
        if at and keyword in schema:
            raise SchemaRefused(f"{at}/{keyword}", "stands within", f"Move {keyword} to the root of the schema")


def _within(schema: Mapping[str, Any], at: str) -> Iterator[tuple[Any, str]]:
    """Yield the schemas directly within one, definitions apart, each with its place."""
    for keyword, held in schema.items():
        place = f"{at}/{keyword}"
        if keyword in _ONE:
            yield held, place
        elif keyword in _LIST and isinstance(held, (list, tuple)):
            yield from ((inner, f"{place}/{index}") for index, inner in enumerate(held))
        elif keyword in _MAP and keyword not in _DEFINITIONS and isinstance(held, Mapping):
            yield from ((inner, f"{place}/{escaped(str(name))}") for name, inner in held.items())


def _values(schema: Mapping[str, Any]) -> int:
    """Return the number of values to compare: those of enum, const, required and the like."""
    left = [held for keyword, held in schema.items() if keyword not in _ONE | _LIST | _MAP]
    total = 0
    while left:
        inner = list(_items(left.pop()))
        total += len(inner)
        left += inner
    return total


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _text_bytes(value: Any) -> int:
    """Return an upper bound of the text that patterns run over: all strings, and the names of members."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            total += _utf8(one)
        elif isinstance(one, Mapping):
            total += sum(map(_utf8, one))
        left.extend(_items(one))
    return total


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


def _names(required: Any) -> tuple[str, ...]:
    return tuple(name for name in required if isinstance(name, str)) if isinstance(required, (list, tuple)) else ()
