"""The one way to call code of other packages, which may raise anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def usable(call: Callable[[], T], what: str) -> T:
    """Return what a package's function returns. Raises ConfigError, which says that `what` cannot be used and why."""
    try:
        return call()
    except Exception as error:
        raise ConfigError(f"{what} cannot be used: {type(error).__name__}: {error}") from error
