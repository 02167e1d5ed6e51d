"""Whether a value fits a JSON Schema 2020-12, and where and why it does not; both in bounded time.

Values come from callers, and everything here runs in the daemon's loop. jsonschema-rs gives the verdict and explains a
refusal, the latter on as much of the value as is cheap to quote. Where there is no wheel of it, jsonschema takes over,
for values of so few parts that its slowness is bounded. A test holds the two to the same verdicts. Neither knows tools.

At start-up jsonschema-rs checks every tool's schemas. jsonschema, whose import takes 200 ms, checks them in the tests
and for `hearthd --check`: the shipped schemas change only with a release, and jsonschema-rs refuses a bad schema of a
vendor at every start.
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
"""Characters of a reason: it may quote the refused value."""
EXPLAINED_BYTES = 16 * 1024
"""Of a value as JSON, up to which all of it is held against the schema to learn what is wrong. jsonschema-rs copies
what it quotes, once for each alternative: that takes about a millisecond for so much and 50 for a whole document."""
MOST_PARTS_SLOWLY = 500
"""Values within a value that jsonschema is given: it takes about 20 microseconds for each."""
_MOST_UNKNOWN = 16


class Validator:
    """One schema, compiled once."""

    __slots__ = ("_compiled", "_schema", "accepts")

    accepts: Callable[[Any], bool]
    """True when a value fits."""

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
        except RecursionError:  # a schema that leads back to itself, and a value that is as deep as a caller likes
            return False

    def explain(self, value: Any, *, within: int = EXPLAINED_BYTES) -> tuple[str, str]:
        """Where and why a refused value does not fit: a JSON pointer and a sentence.

        Of a value that is longer than `within` bytes of JSON, what is wrong is looked for member by member.
        """
        if _rs is None:
            return self._explain_slowly(value)
        if _size(value) <= within:
            return _fault(self._compiled, value) or ("", _SOMEHOW)
        if isinstance(value, Mapping):
            return self._explain_members(value)
        return "", f"{_kind(value)} does not fit the schema, and is too long to say why"

    def _explain_members(self, value: Mapping[str, Any]) -> tuple[str, str]:
        """What is wrong with a long object: one of its long members, or the rest of it."""
        properties = self._schema.get("properties", {})
        names = [name for name in properties if name in value]
        others = (name for name in value if name not in properties and len(name) <= LONGEST_REASON)
        names += islice(others, _MOST_UNKNOWN)
        share = EXPLAINED_BYTES // (_MOST_UNKNOWN + len(properties))
        long = [name for name in names if _size(value[name]) > share]
        beside = {name: self._schema[name] for name in ("$defs", "definitions") if name in self._schema}
        for name in long:
            wanted = properties.get(name, True)
            alone = _rs.Draft202012Validator({**beside, "properties": {name: wanted}})
            if not alone.is_valid({name: value[name]}):
                fault = _fault(alone, {name: _beginning(value[name], share)})
                # What is wrong with a part of it is wrong wherever the whole ends.
                if fault is not None and fault[0].count("/") > 1:
                    return fault
                return f"/{escaped(name)}", _unfitting(value[name], wanted)
        rest = {**self._schema, "properties": {**properties, **dict.fromkeys(long, True)}}
        short = {name: None if name in long else value[name] for name in names}
        return _fault(_rs.Draft202012Validator(rest), short) or ("", f"{_SOMEHOW}, and is too long to say where")

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
    """The place and the reason of the first thing that is wrong; of alternatives, the one that comes closest."""
    try:
        compiled.validate(value)
    except _rs.ValidationError as found:
        error = found
    else:
        return None
    while len(alternatives := getattr(error.kind, "context", ())) > 1:
        # An alternative that wants another type is not what was meant.
        close = [faults[0] for faults in alternatives if faults and not _is_of_type(error, faults[0])]
        if len(close) != 1:
            break
        error = close[0]
    return _pointer(error.instance_path), shortened(error.message)


def _beginning(value: Any, most: int) -> Any:
    """As much of a long array or object as is about so many bytes of JSON; of a long string nothing."""
    if isinstance(value, str):
        return ""
    parts = list(islice(value.items() if isinstance(value, Mapping) else value, most // 8))
    while parts and _size(parts) > most:
        del parts[len(parts) // 2 :]
    return dict(parts) if isinstance(value, Mapping) else parts


def _is_of_type(error: Any, fault: Any) -> bool:
    return fault.schema_path[-1] == "type" and len(fault.instance_path) == len(error.instance_path)


def _unfitting(value: Any, schema: Any) -> str:
    """What is wrong with a long value, as far as that is cheap to tell."""
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
    except TypeError:  # built in Python, and no JSON
        return 0


def _pointer(path: Any) -> str:
    return "".join(f"/{escaped(str(part))}" for part in path)


def escaped(part: str) -> str:
    """A member's name within a JSON pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")


def shortened(message: str) -> str:
    """It begins with the refused value, and ends with what is wrong with it."""
    return message if len(message) <= LONGEST_REASON else f"{message[:80]} … {message[80 - LONGEST_REASON :]}"


def _has_more_parts(value: Any, most: int) -> bool:
    """True when there are more than `most` values in a value, counted no further than that."""
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
    r"""Make jsonschema's validator, with `$` in a pattern as JSON Schema has it: the end, and no line end before it.

    JSON Schema's regular expressions are ECMA-262's; Python's `$` would take "0x48\n" for an address.
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
    r"""The pattern with Python's `\Z` for each `$` that stands for the end."""
    return _DOLLAR.sub(lambda found: r"\Z" if found[0] == "$" else found[0], pattern)


def check_schema(schema: Mapping[str, Any], where: str, *, by_authority: bool = False) -> None:
    """Refuse what is not itself a valid JSON Schema 2020-12. Raises ConfigError that names `where`.

    Each start asks the fast validator; `hearthd --check` and the tests ask the authority.
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
