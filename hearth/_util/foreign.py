"""The one way to call code of authors and of other packages, which may raise anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
T = TypeVar("T")


class Raised(Exception):
    """An exception of code that is not hearth's, in `error`; its text is one line with the class and the message."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}".partition("\n")[0])
        self.error = error


def called(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns. Raises Raised for every exception of it, and for its SystemExit."""
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise Raised(error) from error


async def awaited(result: Awaitable[T]) -> T:
    """Return what an awaitable returns. Raises Raised as `called`; a cancellation passes."""
    try:
        return await result
    except (Exception, SystemExit) as error:
        raise Raised(error) from error


def usable(call: Callable[[], T], what: str) -> T:
    """Return what a package's function returns. Raises ConfigError, which says that `what` cannot be used and why."""
    try:
        return called(call)
    except Raised as raised:
        raise ConfigError(f"{what} cannot be used: {raised}") from raised.error
