"""What the suite over all kinds shares: worlds on the board of every kind, and a table of what holds at the end."""

import inspect
from contextlib import asynccontextmanager

import pytest
import trio
from kinds.board import DBC, KindsWorld
from support.steps import within_real_seconds
from support.world import running
from trio.testing import MockClock

_WORDS = {"passed": "holds", "failed": "BROKEN"}


@pytest.fixture(autouse=True)
def _no_test_hangs():
    """A virtual clock stands still in an endless loop, and no Trio scope can break one off."""
    with within_real_seconds(120):
        yield


def in_virtual_time(main, *, clock=None, instruments=()):
    """Run a test of this directory: none waits, and none needs a clock among its arguments."""
    return trio.run(main, clock=clock or MockClock(autojump_threshold=0), instruments=instruments)


def pytest_itemcollected(item):
    """Give every coroutine test of this directory a virtual clock: a fixture that asks for one gives it none."""
    if inspect.iscoroutinefunction(getattr(item, "function", None)):
        item.add_marker(pytest.mark.trio(run=in_virtual_time))


@pytest.fixture(scope="session")
def dbc(tmp_path_factory):
    """The path of the board's DBC file."""
    path = tmp_path_factory.mktemp("kinds") / "kinds.dbc"
    path.write_text(DBC)
    return path


@pytest.fixture
def open_world(dbc):
    """`async with open_world(...) as world`: a running world on the board, in virtual time.

    `before(world)` is called before it starts.
    """

    @asynccontextmanager
    async def opened(*, before=lambda _world: None, **more):
        made = KindsWorld(dbc, **more)
        before(made)
        async with running(made) as world:
            yield world

    return opened


@pytest.fixture
def promise(record_property):
    """`promise(kind, words)`: what a test proves, for the table at the end."""

    def note(kind, words):
        record_property("promise", (kind, words))

    return note


def pytest_terminal_summary(terminalreporter):
    """Print a row for each kind and promise: holds, or broken."""
    rows = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            if getattr(report, "when", "call") != "call":
                continue
            for name, value in getattr(report, "user_properties", ()):
                if name == "promise":
                    kind, words = value
                    word = _WORDS.get(report.outcome, report.outcome)
                    rows.setdefault((words, kind), set()).add(word)
    if rows:
        terminalreporter.section("promises, by kind")
        for (words, kind), found in sorted(rows.items()):
            terminalreporter.write_line(f"{kind:14} {' and '.join(sorted(found)):16} {words}")
