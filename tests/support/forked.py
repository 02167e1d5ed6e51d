"""Doing what cannot be undone: in a fork of the test's process, whose answer comes back."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND = 30
"""Seconds after which a fork is killed."""


def forked(work: Callable[[], Any]) -> Any:
    """What `work` returns in a fork, which then ends; its exceptions fail the test with their traceback."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # A test's runner may have threads; the fork has one, and imports nothing that others might be importing.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.alarm(BOUND)
        try:
            told = pickle.dumps((work(), None))
        except BaseException:  # noqa: BLE001  whatever it is, it is told where somebody can do something about it
            told = pickle.dumps((None, traceback.format_exc()))
        os.write(writing, told)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert told, f"it ended by {signal.Signals(status & 0x7F).name if status & 0x7F else status} before it could tell"
    value, error = pickle.loads(told)
    assert error is None, error
    return value


def ending(work: Callable[[], Any]) -> int:
    """How a fork ends that does this: the number of the signal, or 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        signal.alarm(BOUND)
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1] & 0x7F


def answer_of(work: Callable[[], Any]) -> str:
    """ "done", or the errno's name with which the kernel refused it."""
    import errno

    try:
        work()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return "done"
