"""Whether a value fits a JSON Schema 2020-12, fast, and why not, exactly.

Two validators share the work: jsonschema-rs says yes or no on the path of every step; jsonschema, the authority,
explains a refusal and takes over where there is no wheel of the other. A test holds the two to the same verdicts.
Neither knows tools.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jsonschema.exceptions import ValidationError

try:
    import jsonschema_rs as _fast
except ImportError:  # pragma: no cover - a platform without a wheel
    _rs: Any = None
else:
    _rs = _fast


LONGEST_REASON = 300
"""Characters of a reason: it may quote the refused value, which may be a megabyte."""


class Validator:
    """One schema, compiled once."""

    __slots__ = ("_authority", "_schema", "accepts")

    accepts: Callable[[Any], bool]
    """True when a value fits."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._authority: Any = None
        if _rs is not None:
            self.accepts = _rs.Draft202012Validator(dict(schema)).is_valid
        else:
            self.accepts = self._exact().is_valid

    def _exact(self) -> Any:
        if self._authority is None:
            # 200 ms to import: paid by the first refusal, not by every start.
            self._authority = authority(self._schema)
        return self._authority

    def explain(self, value: Any) -> tuple[str, str]:
        """Where and why a refused value does not fit: a JSON pointer and a sentence."""
        from jsonschema.exceptions import best_match

        try:
            error = best_match(self._exact().iter_errors(value))
        except RecursionError:  # a schema that leads back to itself, and a value as deep as a caller likes
            return "", "the value does not fit the schema, and is nested too deeply to say where"
        if error is None:
            return "", "the value does not fit the schema"
        pointer = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.absolute_path)
        return pointer, error.message if len(error.message) <= LONGEST_REASON else f"{error.message[:LONGEST_REASON]} …"


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
