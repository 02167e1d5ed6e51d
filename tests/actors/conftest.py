"""What the actor tests share; the doubles themselves are in tests/support."""

from contextlib import asynccontextmanager

import pytest
import trio
from support.doubles import BenchDriver, Observer
from support.steps import within_real_seconds
from support.world import BenchWorld, running

from hearth.actors.bus.actor import Bus
from hearth.drivers.base import Style


@pytest.fixture(autouse=True)
def _no_test_hangs():
    """A virtual clock stands still in an endless loop, and no Trio scope can break one off."""
    with within_real_seconds(120):
        yield


class BusBench:
    """One bus over a bench driver, and what was audited about it."""

    def __init__(self, style, **more):
        queue_bound = more.pop("queue_bound", 128)
        self.observer = Observer()
        self.driver = BenchDriver("a", self.observer, style=style, **more)
        self.audited = []
        self.crashes = []
        self.bus = Bus("a", self.driver, queue_bound=queue_bound, audit=self.audit)

    def audit(self, event, **fields):
        self.audited.append({"event": event, **fields})
        self.observer.note("audit", event, fields)

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        """The bus without its supervisor: what it crashes with is kept."""
        try:
            await self.bus.run(task_status=task_status)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.crashes.append(error)


@asynccontextmanager
async def bus_bench(style, **more):
    """A bus that serves while the body runs; whatever gates a failing body left closed are opened after it."""
    bench = BusBench(style, **more)
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.run)
        try:
            yield bench
        finally:
            bench.driver.open_gates()
            nursery.cancel_scope.cancel()


@pytest.fixture(params=list(Style), ids=lambda style: style.value)
def style(request):
    return request.param


@pytest.fixture(params=[Style.THREAD, Style.ASYNC], ids=lambda style: style.value)
def slow_style(request):
    """The styles whose transactions take time."""
    return request.param


@pytest.fixture(name="bus_bench")
def bus_bench_fixture():
    return bus_bench


@pytest.fixture
async def world():
    """A running world with two buses, on the test's clock."""
    async with running(BenchWorld()) as running_world:
        yield running_world


@pytest.fixture
def make_world():
    """`async with make_world(...) as world`: a running world that is made to measure."""
    return lambda **more: running(BenchWorld(**more))
