"""The one way to call code of authors and of other packages, which may raise anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")


class Raised(Exception):
    """An exception of code that is not hearth's, in `error`; its text is one line with the class and the message."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}".partition("\n")[0])
        self.error = error


class EndAsked(SystemExit):
    """Raised by the handler of a signal that ends the process: it is not of the code that happens to run."""


def called(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns. Raises Raised for every exception of it, and for its SystemExit."""
    try:
        return function(*args, **kwargs)
    except EndAsked:
        raise
    except (Exception, SystemExit) as error:
        raise Raised(error) from error


async def awaited(result: Awaitable[T]) -> T:
    """Return what an awaitable returns. Raises Raised as `called`; a cancellation passes."""
    try:
        return await result
    except EndAsked:
        raise
    except (Exception, SystemExit) as error:
        raise Raised(error) from error


def driven(steps: Generator[Q, Any, T], perform: Callable[[Q], Any]) -> T:
    """Run steps to their answer: each gets what `perform` returns for its request, or the exception that it raised."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = perform(asked)
            except BaseException as error:  # noqa: BLE001  the steps raise it again, when they have noted it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def driven_later(steps: Generator[Q, Any, T], perform: Callable[[Q], Awaitable[Any]]) -> T:
    """Run steps as `driven`, with requests that are awaited: a cancellation too goes to the steps."""
    try:
        asked = next(steps)
        while True:
            try:
                answer = await perform(asked)
            except BaseException as error:  # noqa: BLE001  the steps raise it again, when they have noted it
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def usable(call: Callable[[], T], what: str) -> T:
    """Return what a package's function returns. Raises ConfigError: its own, or that `what` cannot be used and why."""
    try:
        return called(call)
    except Raised as raised:
        if isinstance(raised.error, ConfigError):
            raise raised.error from None
        raise ConfigError(f"{what} cannot be used: {raised}") from raised.error
