"""What all tests share: the assertions in `support` say what they compared, whoever imports it first."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import tempfile
from collections import Counter
from contextlib import contextmanager
from functools import wraps
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

pytest.register_assert_rewrite("support")

EXTRA = "HEARTH_SANDBOX_WRITE"
LONGEST_S = 300
"""Seconds that a coroutine test may take, a proof ten times as many: far more than any takes beside four busy loops."""
LONGEST_TMPDIR = 24
"""Bytes. The kernel takes 107 for a socket's path, and a test's own directory and name come on top."""

if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
    # What pytest makes the tests' directories in; it makes one of our own there.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/tmp")


def pytest_configure() -> None:
    """Make a test process what tests take it for, wherever it was started."""
    # What a shell ignores for its background jobs, or nohup does, the programs that tests start would ignore too.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # A test asserts no times: it is as right on a busy machine.
    import hypothesis
    from support.patience import be_patient

    be_patient()
    hypothesis.settings.register_profile("untimed", hypothesis.settings(), deadline=None)
    hypothesis.settings.load_profile("untimed")
    # Where coverage is measured, confined daemons may write what they have measured beside what we have.
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        from coverage import Coverage

        measuring = Coverage.current()
        if measuring is not None:
            os.environ[EXTRA] = os.path.dirname(os.path.abspath(str(measuring.get_option("run:data_file"))))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: what is collected stays, and looking through it again costs a third."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest modules first, so that no worker goes on long after the others; a slow test counts as thirty.

    Last of all plugins: only tests that were selected count.
    """
    weights = Counter[Path]()
    for item in items:
        weights[item.path] += 300 if any(item.iter_markers("proof")) else 30 if any(item.iter_markers("slow")) else 1
    items.sort(key=lambda item: (-weights[item.path], item.path))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Bound each coroutine test: a hang fails at the line that waits. A virtual clock would pass any bound."""
    test = getattr(item, "obj", None)
    if (
        inspect.iscoroutinefunction(test)
        and not hasattr(test, "hypothesis")
        and not any(item.iter_markers("virtual_time"))
    ):
        longest = 10 * LONGEST_S if any(item.iter_markers("proof")) else LONGEST_S
        item.obj = _bounded(test, longest)  # type: ignore[attr-defined]


def _bounded(test: Callable[..., Awaitable[None]], longest: float) -> Callable[..., Awaitable[None]]:
    import trio
    from trio.testing import MockClock

    @wraps(test)
    async def bounded(**fixtures: Any) -> None:
        virtual = isinstance(trio.lowlevel.current_clock(), MockClock)
        with trio.fail_after(inf if virtual else longest):
            await test(**fixtures)

    return bounded


@contextmanager
def _children_unmeasured() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COVERAGE_PROCESS_CONFIG", EXTRA):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
def unmeasured():
    """Processes that the module starts run without coverage: for tests about amounts, which take half as long then."""
    with _children_unmeasured():
        yield


@pytest.fixture
def unmeasured_children():
    """Processes that one test starts run without coverage."""
    with _children_unmeasured():
        yield


@pytest.fixture
def unmeasured_here():
    """For what plays a scenario over and over: a quicker test of the same has its lines measured."""
    from support import measuring

    with measuring.unmeasured_here():
        yield


@pytest.fixture(params=["embedded", "wire"])
def face(request):
    """How a test opens its session in a world."""
    from support import world

    return {"embedded": world.embedded, "wire": world.over_the_wire}[request.param]


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="hearth-open-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
