"""Units of measure, by pint, which is loaded when a file that converts something is read, and not before.

Owns what counts as a unit here: a name such as `celsius`, or names multiplied and divided, `mm/s**2`. A caller may hand
one in, so anything that pint would evaluate (numbers, powers of powers) is refused before it sees it.
"""

from __future__ import annotations

import math
import re
from functools import cache, lru_cache
from typing import Any, Final

from hearth.errors import HearthError

_LONGEST: Final = 64
# Superscripts are powers to pint, and have no end; so not every letter is one here.
_NAME = r"[A-Za-z_°%µμΩΩÅΔ][A-Za-z0-9_°%µμΩΩÅΔ]*"
_ERRORS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, SyntaxError, TypeError, ValueError)
"""What pint raises besides its own errors, for products of units that it has not thought of."""
_UNIT = re.compile(rf"(?:1/)?{_NAME}(?:(?:\*\*|\^)-?[1-9])?(?:[*/]{_NAME}(?:(?:\*\*|\^)-?[1-9])?)*")


class UnitError(HearthError):
    """Not a unit, or units of different things; the message says which."""


@cache
def _registry() -> Any:
    # Half a second: paid only where units are converted.
    import pint

    return pint.UnitRegistry()


@lru_cache(maxsize=256)
def _unit(text: str) -> Any:
    import pint

    try:
        return _registry().parse_units(text)
    except (pint.PintError, *_ERRORS) as error:
        raise UnitError(f"{text!r} is not a unit that is known here ({error})") from None


def _checked(text: Any) -> str:
    """What has the form of a unit, which is all that pint is ever given. Raises UnitError."""
    if not isinstance(text, str) or len(text) > _LONGEST or not _UNIT.fullmatch(text):
        raise UnitError(f'expected a unit such as "celsius" or "mm/s**2", got {str(text)[:_LONGEST]!r}')
    return text


def load() -> None:
    """Load the library now, so that no job has to wait for it, nor anything that runs beside one."""
    _registry()


def check_unit(text: str) -> None:
    """Whether it is a unit that is known. Raises UnitError."""
    _unit(_checked(text))


def check_units(source: str, target: str) -> None:
    """Whether one can be converted to the other. Raises UnitError."""
    convert(1.0, source, target)


def convert(value: float, source: str, target: str) -> float:
    """A value in another unit. Raises UnitError."""
    return value if source == target else _converted(float(value), _checked(source), _checked(target))


@lru_cache(maxsize=1 << 14)
def _converted(value: float, source: str, target: str) -> float:
    # Cached, since an output after the other converts the same readings, at 30 µs each.
    import pint

    ours, theirs = _unit(source), _unit(target)
    try:
        found = float(_registry().Quantity(value, ours).m_as(theirs))
    except pint.DimensionalityError as error:
        raise UnitError(f"{source!r} cannot be converted to {target!r}: {error}") from None
    except (pint.PintError, *_ERRORS) as error:
        raise UnitError(f"{value!r} in {source!r} cannot be converted to {target!r}: {error}") from None
    if not math.isfinite(found):
        raise UnitError(f"{value!r} in {source!r} is no finite number of {target!r}")
    return found
