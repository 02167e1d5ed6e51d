"""Expressions over a job's inputs and results: JMESPath, read and checked once, evaluated within bounds.

An expression is the operator's, the values that it meets are anybody's: whatever they are, it gives a JSON value or
raises ExpressionError, after a bounded number of steps. It has no clock, no randomness and no way out.
What names there are, and what each can be, is `hearth.hcp.names`'s to check.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import jmespath
from attrs import field, frozen
from jmespath import exceptions, visitor

from hearth.errors import HearthError
from hearth.hcp.functions import ERRORS, Functions
from hearth.hcp.names import NameFault, Names, look_up, roots_of
from hearth.hcp.units import UnitError

if TYPE_CHECKING:
    from collections.abc import Mapping

Json: TypeAlias = Any

__all__ = ["Expression", "ExpressionError", "Names", "compile_expression", "truthy"]

MOST_CHARACTERS: Final = 4_000
MOST_VISITS = 500_000
"""Nodes that one evaluation may visit: a second's worth on a small machine."""
MOST_VALUES: Final = 1_000_000
"""JSON values in what an expression gives."""
MOST_DEPTH: Final = 100
MOST_TEXT: Final = 16 << 20
_LARGEST: Final = 2**63
_QUOTED: Final = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`(?P<literal>(?:\\.|[^`\\])*)`""", re.DOTALL)


class ExpressionError(HearthError):
    """An expression that is none, or that has no value for what it met."""


@frozen
class Expression:
    """One expression, compiled."""

    text: str
    roots: frozenset[str]
    """The names that it begins from: inputs, results, …"""
    shape: Mapping[str, Any] = field(repr=False, eq=False)
    """What its value is, as far as that is known: a JSON Schema, null apart."""
    _tree: Any = field(repr=False, eq=False)

    def value(self, scope: Mapping[str, Json]) -> Json:
        """Its value over plain JSON values; what it gives shares their parts. Raises ExpressionError."""
        plain = dict(scope)
        return self.value_over(plain, plain)

    def value_over(self, row: Json, scope: Mapping[str, Json]) -> Json:
        """Its value over a row; `scope` is what `root()` gives. Raises ExpressionError."""
        try:
            found = _Interpreter(scope).visit(self._tree, row)
            _check_json(found)
        except ERRORS as error:
            raise ExpressionError(f"`{self.text}` has no value: {_reason(error)}") from None
        except UnitError as error:
            raise ExpressionError(f"`{self.text}` has no value: {error}") from None
        return found


def compile_expression(text: str, *, names: Names | None = None) -> Expression:
    """Read an expression, and check what it names against what there is. Raises ExpressionError."""
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(f"an expression has at most {MOST_CHARACTERS} characters, this one {len(text)}")
    try:
        _check_literals(text)
        tree = jmespath.compile(text).parsed
    except (exceptions.JMESPathError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ExpressionError(f"`{text}` is no JMESPath expression: {_reason(error)}") from None
    except RecursionError:
        raise ExpressionError(f"`{text[:60]}…` is nested too deeply") from None
    try:
        shape = look_up(tree, names) if names is not None else {}
        return Expression(text, roots_of(tree), shape, tree)
    except NameFault as fault:
        raise ExpressionError(f"`{text}`: {fault}") from None
    except RecursionError:
        raise ExpressionError(f"`{text[:60]}…` is nested too deeply") from None


def _check_literals(text: str) -> None:
    """Refuse `foo` in backticks: JMESPath warns, once, and takes it for a string. Raises ExpressionError."""
    for found in _QUOTED.finditer(text):
        literal = found["literal"]
        try:
            if literal is not None:
                json.loads(literal.replace("\\`", "`"))
        except ValueError:
            raise ExpressionError(f"`{text}`: write a string as 'text', and JSON in backticks") from None


def truthy(value: Json) -> bool:
    """JMESPath's truth: all but null, false, "", [] and {}; 0 is true."""
    return not (value is None or value is False or value == "" or value == [] or value == {})


class _Interpreter(visitor.TreeInterpreter):
    """JMESPath's own, with a bound on its visits, and an `if` that looks at one branch."""

    def __init__(self, scope: Mapping[str, Json]) -> None:
        super().__init__(visitor.Options(custom_functions=Functions(scope)))
        self._visits = 0

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        """As it has it, up to the bound."""
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise ValueError("it takes too many steps for these values")
        return super().visit(node, *args, **kwargs)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        """As it has it, except for `if`."""
        children = node["children"]
        if node["value"] == "if" and len(children) == 3:
            chosen = children[1] if truthy(self.visit(children[0], value)) else children[2]
            return self.visit(chosen, value)
        return super().visit_function_expression(node, value)


def _check_json(value: Json) -> None:
    """Refuse what JSON has no notation for, or what is too much. Raises ValueError.

    Level by level, each counted before it is made: parts may be shared, so that the whole is larger than memory.
    """
    left = MOST_VALUES
    level = [value]
    for _ in range(MOST_DEPTH):
        within: list[Json] = []
        for one in level:
            if type(one) is dict or type(one) is list:
                left -= len(one)
                if left < 0:
                    raise ValueError("its value is too large")
                within.extend(one.values() if type(one) is dict else one)
            else:
                _check_scalar(one)
        if not within:
            return
        level = within
    raise ValueError("its value is nested too deeply")


def _check_scalar(value: Json) -> None:
    kind = type(value)
    if kind is str:
        if len(value) > MOST_TEXT:
            raise ValueError("its text is too long")
    elif kind is float:
        if not math.isfinite(value):
            raise ValueError("its value holds no finite number")
    elif kind is int:
        if not -_LARGEST <= value < 2 * _LARGEST:
            raise ValueError("its value holds an integer of more than 64 bits")
    elif value is not None and kind is not bool:
        raise ValueError("its value is no JSON")


def _reason(error: BaseException) -> str:
    if isinstance(error, ZeroDivisionError):
        return "a division by zero"
    if isinstance(error, RecursionError):
        return "the values are nested too deeply"
    if isinstance(error, OverflowError):
        return "a number becomes too large"
    said = " ".join(str(error).split())
    return said[:300] or type(error).__name__
