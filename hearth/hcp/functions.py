"""The functions that expressions have beyond JMESPath's own: arithmetic, statistics, units, bytes.

Each takes JSON values and gives one, of a size that its arguments bound; what has no answer (a quotient by zero, a root
of a negative) raises. An aggregate of too few numbers is null, as JMESPath's own `avg` has it.
"""

from __future__ import annotations

import base64
import math
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from jmespath import exceptions, functions

from hearth.hcp.units import convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Numbers = list[float]

MOST_DIGITS: Final = 15
MOST_RANGE: Final = 10_000
_LARGEST: Final = 2**63

# As JMESPath's own are declared; the stubs keep the class of these tables to themselves.
_NUMBER: Final[Any] = {"types": ["number"]}
_NUMBERS: Final[Any] = {"types": ["array-number"]}
_MORE_NUMBERS: Final[Any] = {"types": ["number"], "variadic": True}
_ARRAY: Final[Any] = {"types": ["array"]}
_OBJECT: Final[Any] = {"types": ["object"]}
_TEXT: Final[Any] = {"types": ["string"]}
_MEASURED: Final[Any] = {"types": ["number", "array", "null"]}
_ANY: Final[Any] = {"types": []}


class Functions(functions.Functions):
    """JMESPath's functions and ours, for one evaluation."""

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def call_function(self, function_name: str, resolved_args: Iterable[Any]) -> Any:
        """A function's value; a number beyond what JSON can carry is an error where it arises."""
        value = super().call_function(function_name, resolved_args)
        if type(value) is float and not math.isfinite(value):
            raise ValueError(f"{function_name}() gives no finite number")
        if type(value) is int and not -_LARGEST <= value < _LARGEST:
            raise ValueError(f"{function_name}() gives an integer of more than 64 bits")
        return value

    # --- arithmetic -------------------------------------------------------------------------------------------------

    @functions.signature(_NUMBER, _MORE_NUMBERS)
    def _func_add(self, *terms: float) -> float:
        return sum(terms)

    @functions.signature(_NUMBER, _NUMBER)
    def _func_sub(self, one: float, other: float) -> float:
        return one - other

    @functions.signature(_NUMBER, _MORE_NUMBERS)
    def _func_mul(self, *factors: float) -> float:
        return math.prod(factors)

    @functions.signature(_NUMBER, _NUMBER)
    def _func_div(self, one: float, other: float) -> float:
        return one / other

    @functions.signature(_NUMBER, _NUMBER)
    def _func_mod(self, one: float, other: float) -> float:
        return one % other

    @functions.signature(_NUMBER, _NUMBER)
    def _func_pow(self, base: float, exponent: float) -> float:
        return math.pow(base, exponent)

    @functions.signature(_NUMBER)
    def _func_sqrt(self, value: float) -> float:
        return math.sqrt(value)

    @functions.signature(_MORE_NUMBERS)
    def _func_round(self, value: float, *digits: Any) -> float:
        if not digits:
            return round(value)
        places = digits[0]
        if len(digits) > 1 or type(places) not in (int, float) or not float(places).is_integer():
            raise ValueError("round() takes a number and, if any, a whole number of digits")
        if abs(places) > MOST_DIGITS:
            raise ValueError(f"round() takes at most {MOST_DIGITS} digits")
        return round(value, int(places))

    @functions.signature(_NUMBER, _NUMBER, _NUMBER)
    def _func_clamp(self, value: float, low: float, high: float) -> float:
        return max(low, min(value, high))

    # --- statistics -------------------------------------------------------------------------------------------------

    @functions.signature(_NUMBERS)
    def _func_median(self, values: Numbers) -> float | None:
        return statistics.median(values) if values else None

    @functions.signature(_NUMBERS)
    def _func_stddev(self, values: Numbers) -> float | None:
        return statistics.stdev(values) if len(values) > 1 else None

    @functions.signature(_NUMBERS, _NUMBER)
    def _func_percentile(self, values: Numbers, percent: float) -> float | None:
        """Between the two nearest ranks it is in proportion (the "inclusive" method)."""
        if not 0 <= percent <= 100:
            raise ValueError("percentile() takes a percentage from 0 to 100")
        if not values:
            return None
        ordered = sorted(values)
        rank = percent / 100 * (len(ordered) - 1)
        below = ordered[math.floor(rank)]
        return below + (ordered[math.ceil(rank)] - below) * (rank - math.floor(rank))

    @functions.signature(_NUMBERS, _NUMBERS)
    def _func_slope(self, xs: Numbers, ys: Numbers) -> float | None:
        """Of the straight line that fits best by least squares."""
        if len(xs) != len(ys):
            raise ValueError(f"slope() takes as many ys as xs, got {len(ys)} and {len(xs)}")
        return statistics.linear_regression(xs, ys).slope if len(set(xs)) > 1 else None

    @functions.signature(_NUMBERS)
    def _func_deltas(self, values: Numbers) -> Numbers:
        return [after - before for before, after in pairwise(values)]

    # --- arrays, units, bytes ---------------------------------------------------------------------------------------

    @functions.signature(_NUMBER)
    def _func_range(self, count: float) -> list[int]:
        if not 0 <= count <= MOST_RANGE or not float(count).is_integer():
            raise ValueError(f"range() takes a whole number from 0 to {MOST_RANGE}")
        return list(range(int(count)))

    @functions.signature(_ARRAY, _ARRAY)
    def _func_difference(self, ours: list[Any], theirs: list[Any]) -> list[Any]:
        """What is in the first array and not in the second. As in JMESPath's ==, true is not 1."""
        gone = {_identity(item) for item in theirs}
        return [item for item in ours if _identity(item) not in gone]

    @functions.signature(_ARRAY)
    def _func_unique(self, items: list[Any]) -> list[Any]:
        """What is in an array, each once, in the order of its first place. As in JMESPath's ==, true is not 1."""
        found: dict[Any, Any] = {}
        for item in items:
            found.setdefault(_identity(item), item)
        return list(found.values())

    @functions.signature(_ARRAY, _OBJECT)
    def _func_each(self, items: list[Any], more: dict[str, Any]) -> list[Any]:
        """Every object of an array with these members added: inside `[?…]` nothing else is in sight."""
        return [{**item, **more} if isinstance(item, dict) else item for item in items]

    @functions.signature(_MEASURED, _TEXT, _TEXT)
    def _func_convert(self, value: Any, source: str, target: str) -> Any:
        return converted(value, source, target)

    @functions.signature(_NUMBERS)
    def _func_to_base64(self, values: Numbers) -> str:
        if any(type(value) is not int or not 0 <= value <= 255 for value in values):
            raise ValueError("to_base64() takes an array of bytes, 0 to 255 each")
        return base64.b64encode(bytes(int(value) for value in values)).decode("ascii")

    @functions.signature()
    def _func_root(self) -> Any:
        return self._scope

    @functions.signature(_ANY, _ANY, _ANY)
    def _func_if(self, condition: Any, then: Any, otherwise: Any) -> Any:
        """Listed for its name and arity; the interpreter looks at the chosen branch alone."""
        raise NotImplementedError


def converted(value: Any, source: str, target: str) -> Any:
    """A number, or each of an array, in another unit; null stays null. Raises UnitError, ValueError."""
    if value is None:
        return None
    if isinstance(value, list):
        return [converted(one, source, target) for one in value]
    if type(value) not in (int, float):
        raise ValueError(f"expected numbers of {source}, got {str(value)[:60]!r}")
    return convert(value, source, target)


def _identity(value: Any) -> Any:
    """Equal for equal JSON values, and hashable."""
    if isinstance(value, dict):
        return ("object", frozenset((key, _identity(member)) for key, member in value.items()))
    if isinstance(value, list):
        return ("array", tuple(_identity(member) for member in value))
    return (isinstance(value, bool), value)


TABLE: Final[Mapping[str, Any]] = Functions.FUNCTION_TABLE
"""Every function: `signature` is the kinds of its arguments."""

GIVES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("abs", "add", "avg", "ceil", "clamp", "div", "floor", "length", "median", "mod", "mul", "percentile", "pow",
         "round", "slope", "sqrt", "stddev", "sub", "sum", "to_number"),
        "number",
    ),
    **dict.fromkeys(("join", "to_base64", "to_string", "type"), "string"),
    **dict.fromkeys(("contains", "ends_with", "starts_with"), "boolean"),
    **dict.fromkeys(
        ("deltas", "difference", "each", "keys", "map", "range", "sort_by", "to_array", "unique", "values"),
        "array",
    ),
    "merge": "object",
}  # fmt: skip
"""What kind of value a function gives, where that does not depend on its arguments; null apart."""

ERRORS: Final = (
    exceptions.JMESPathError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError,
)  # fmt: skip
"""All that an evaluation can raise for the values that it met."""
