"""The errors that hearth raises cross a process as they are."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

import hearth
from hearth import errors
from hearth.amqp import errors as amqp_errors
from hearth.errors import HearthError
from hearth.hcp.durable import Outcome
from hearth.hcp.messages import MessageError

PUBLIC = sorted(
    {
        kind
        for kind in (
            *vars(errors).values(),
            *vars(amqp_errors).values(),
            *(getattr(hearth, name) for name in dir(hearth)),
            MessageError,
        )
        if isinstance(kind, type) and issubclass(kind, HearthError)
    },
    key=lambda kind: kind.__name__,
)
_VALUES = {
    "reason_code": "unsafe",
    "code": 404,
    "data": {"effect": "done", "at": [1]},
    "outcome": Outcome(status="failed", error="no", error_code=-32000, error_data={"effect": "done"}),
}


def made(kind: type[HearthError]) -> HearthError:
    """Return an error of this class, with a value of its own for each argument that its class takes."""
    if kind.__init__ is Exception.__init__:
        return kind("the message")
    values = {
        name: _VALUES.get(name, f"the {name}") for name in list(inspect.signature(kind).parameters) if name != "effect"
    }
    return kind(**values)


def told(error: HearthError) -> dict[str, object]:
    return {"class": type(error), "text": str(error), "args": error.args, **vars(error)}


def raised(kind: type[HearthError]) -> None:
    raise made(kind)


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("kind", PUBLIC)
def test_every_public_error_crosses_a_process_as_it_is(kind, pool) -> None:
    error = made(kind)
    error.add_note("said on the way")
    assert told(pool.submit(copy.copy, error).result()) == told(error) == told(copy.deepcopy(error))
    with pytest.raises(kind) as caught:
        pool.submit(raised, kind).result()
    assert {**told(caught.value), "__notes__": None} == {**told(made(kind)), "__notes__": None}
