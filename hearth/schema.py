"""Validation of values against a JSON Schema 2020-12, with the place and reason of a fault, in bounded time.

Values come from callers, and everything here runs in the daemon's event loop, so every operation must be bounded.
jsonschema-rs gives the verdict. It also explains a refusal, but only from as much of the value as is cheap to quote. On
a platform without its wheel, jsonschema does both, for values of so few parts that its slowness is bounded. A test
holds the two to the same verdicts. This module knows no tools.

At start-up jsonschema-rs checks every tool's schemas. jsonschema, whose import takes 200 ms, checks them in the tests
and for `hearthd --check`. That is enough: the shipped schemas change only with a release, and jsonschema-rs refuses a
vendor's bad schema at every start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import orjson

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsonschema.exceptions import ValidationError

try:
    import jsonschema_rs as _fast
except ImportError:  # pragma: no cover - a platform without a wheel
    _rs: Any = None
else:
    _rs = _fast


LONGEST_REASON = 300
"""Limit of a reason, in characters: it may quote the refused value."""
EXPLAINED_BYTES = 16 * 1024
"""Limit, in bytes of JSON, up to which a whole value is validated again to explain a refusal. jsonschema-rs copies the
quoted value once for each alternative: that takes about 1 ms for this size, and 50 ms for a whole document."""
MOST_PARTS_SLOWLY = 500
"""Limit of nested values that jsonschema gets; it takes about 20 microseconds for each."""
_MOST_UNKNOWN = 16


class Validator:
    """One schema, compiled once."""

    __slots__ = ("_compiled", "_schema", "accepts")

    accepts: Callable[[Any], bool]
    """Return True if a value fits the schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        if _rs is not None:
            self._compiled: Any = _rs.Draft202012Validator(dict(schema))
            self.accepts = self._compiled.is_valid
        else:
            self._compiled = authority(schema)
            self.accepts = self._accepts_slowly

    def _accepts_slowly(self, value: Any) -> bool:
        if _has_more_parts(value, MOST_PARTS_SLOWLY):
            return False
        try:
            return bool(self._compiled.is_valid(value))
        except RecursionError:  # a recursive schema, and a value whose depth the caller chooses
            return False

    def explain(self, value: Any, *, within: int = EXPLAINED_BYTES) -> tuple[str, str]:
        """Return the place and the reason of a refusal: a JSON pointer and a sentence.

        A value longer than `within` bytes of JSON is examined member by member.
        """
        if _rs is None:
            return self._explain_slowly(value)
        if _size(value) <= within:
            return _fault(self._compiled, value) or ("", _SOMEHOW)
        if isinstance(value, Mapping):
            return self._explain_members(value)
        return "", f"{_kind(value)} does not fit the schema, and is too long to say why"

    def _explain_members(self, value: Mapping[str, Any]) -> tuple[str, str]:
        """Return the fault of a long object: in one of its long members, or in the rest of it."""
        properties = self._schema.get("properties", {})
        names = [name for name in properties if name in value]
        others = (name for name in value if name not in properties and len(name) <= LONGEST_REASON)
        names += islice(others, _MOST_UNKNOWN)
        share = EXPLAINED_BYTES // (_MOST_UNKNOWN + len(properties))
        long = [name for name in names if _size(value[name]) > share]
        for name in long:
            if (fault := self._explain_member(name, value[name], properties.get(name, True), share)) is not None:
                return fault
        rest = {**self._schema, "properties": {**properties, **dict.fromkeys(long, True)}}
        short = {name: None if name in long else value[name] for name in names}
        return _fault(_rs.Draft202012Validator(rest), short) or ("", f"{_SOMEHOW}, and is too long to say where")

    def _explain_member(self, name: str, value: Any, wanted: Any, share: int) -> tuple[str, str] | None:
        """Return the fault of a long member, from its first `share` bytes; None if it has none."""
        defined = {key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema}
        alone = _rs.Draft202012Validator({**defined, "properties": {name: wanted}})
        if alone.is_valid({name: value}):
            return None
        fault = _fault(alone, {name: _beginning(value, share)})
        # A fault inside a part of the member exists in the whole member too; a fault of the part as a whole may come
        # from the cut.
        return fault if fault and fault[0].count("/") > 1 else (f"/{escaped(name)}", _unfitting(value, wanted))

    def _explain_slowly(self, value: Any) -> tuple[str, str]:
        if _has_more_parts(value, MOST_PARTS_SLOWLY):
            return "", f"more than {MOST_PARTS_SLOWLY} values cannot be checked here: there is no jsonschema-rs"
        try:
            error = next(self._compiled.iter_errors(value), None)
        except RecursionError:
            return "", "the value does not fit the schema, and is nested too deeply to say where"
        return ("", _SOMEHOW) if error is None else (_pointer(error.absolute_path), shortened(error.message))


_SOMEHOW = "the value does not fit the schema"


def _fault(compiled: Any, value: Any) -> tuple[str, str] | None:
    """Return the place and reason of the first fault, of the closest alternative if the schema has several."""
    try:
        compiled.validate(value)
    except _rs.ValidationError as found:
        error = found
    else:
        return None
    while len(alternatives := getattr(error.kind, "context", ())) > 1:
        # The caller did not mean an alternative of another type.
        close = [faults[0] for faults in alternatives if faults and not _is_of_type(error, faults[0])]
        if len(close) != 1:
            break
        error = close[0]
    return _pointer(error.instance_path), shortened(error.message)


def _beginning(value: Any, most: int) -> Any:
    """Return the first parts of a long array or object, about `most` bytes of JSON; "" for a long string."""
    if isinstance(value, str):
        return ""
    parts = list(islice(value.items() if isinstance(value, Mapping) else value, most // 8))
    while parts and _size(parts) > most:
        del parts[len(parts) // 2 :]
    return dict(parts) if isinstance(value, Mapping) else parts


def _is_of_type(error: Any, fault: Any) -> bool:
    return fault.schema_path[-1] == "type" and len(fault.instance_path) == len(error.instance_path)


def _unfitting(value: Any, schema: Any) -> str:
    """Return the fault of a long value, as far as it is cheap to find."""
    for kind, keyword, what in _SIZES:
        most = schema.get(keyword) if isinstance(schema, Mapping) else None
        if isinstance(value, kind) and isinstance(most, int) and len(value) > most:
            return f"{_kind(value)} has more than {most} {what}"
    return f"{_kind(value)} does not fit the schema, and is too long to say why"


_SIZES: tuple[tuple[type[Sized], str, str], ...] = (
    (str, "maxLength", "characters"),
    (list, "maxItems", "items"),
    (dict, "maxProperties", "members"),
)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} members"
    return f"an array of {len(value)} items" if isinstance(value, list) else f"a {type(value).__name__}"


def _size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # built in Python, and not JSON
        return 0


def _pointer(path: Any) -> str:
    return "".join(f"/{escaped(str(part))}" for part in path)


def escaped(part: str) -> str:
    """Return a member's name as written in a JSON pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")


def shortened(message: str) -> str:
    """Return at most LONGEST_REASON characters: the beginning (the refused value) and the end (the reason)."""
    return message if len(message) <= LONGEST_REASON else f"{message[:80]} … {message[80 - LONGEST_REASON :]}"


def _has_more_parts(value: Any, most: int) -> bool:
    """Return True if a value contains more than `most` values; counting stops there."""
    level = [value]
    while level:
        most -= len(level)
        if most < 0:
            return True
        holding = [part for part in level if isinstance(part, (Mapping, list, tuple))]
        parts = chain.from_iterable(part.values() if isinstance(part, Mapping) else part for part in holding)
        level = [*islice(parts, most + 1)]
    return False


def authority(schema: Mapping[str, Any]) -> Any:
    r"""Return jsonschema's validator, with `$` in a pattern as JSON Schema defines it: only the very end of the string.

    JSON Schema's regular expressions are ECMA-262's; Python's `$` would accept "0x48\n" as an address.
    """
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import ValidationError

    extend: Any = validators.extend

    def pattern(_validator: Any, wanted: str, value: Any, _schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not re.search(_ends_at_the_end(wanted), value):
            yield ValidationError(f"{value!r} does not match {wanted!r}")

    return extend(Draft202012Validator, {"pattern": pattern})(schema)


_DOLLAR = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\$", re.DOTALL)


def _ends_at_the_end(pattern: str) -> str:
    r"""Return the pattern with Python's `\Z` for each `$` that means the end."""
    return _DOLLAR.sub(lambda found: r"\Z" if found[0] == "$" else found[0], pattern)


def check_schema(schema: Mapping[str, Any], where: str, *, by_authority: bool = False) -> None:
    """Raise ConfigError, naming `where`, unless `schema` is itself a valid JSON Schema 2020-12.

    Each start uses the fast validator; `hearthd --check` and the tests use the authority.
    """
    if _rs is not None and not by_authority:
        try:
            _rs.meta.validate({"$schema": _DRAFT, **schema})
        except _rs.ValidationError as error:
            raise ConfigError(f"{where}: not a JSON Schema 2020-12: {error.message}") from None
        return
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"{where}: not a JSON Schema 2020-12: {error.message}") from None


_DRAFT = "https://json-schema.org/draft/2020-12/schema"
