"""A pulse and a rollback give an output back; the end of its holder brings it to its safe state (design §4, §12)."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
import trio
from support.doubles import BenchDriver, Observer, Op, device_error
from support.waiting import passes

import hearth
from hearth import step
from hearth.actors.bus.actor import Bus
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.actors.bus.queue import GiveBack, Requester, Ticket
from hearth.actors.supervisor import keep_open
from hearth.config.model import AuditConfig, Config, FilesConfig
from hearth.drivers.base import Style
from hearth.errors import DeviceError, ResourceBusy

LINE = 17
KEPT = 31


class Cell:
    """A runtime over the simulated board, its chip, and sessions that end when the test says so."""

    def __init__(self, runtime, gpio, nursery, outputs) -> None:
        self.runtime = runtime
        self.gpio = gpio
        self._nursery = nursery
        self._outputs = outputs
        self._ends = {}

    @property
    def level(self):
        return self.gpio.state(LINE)

    @property
    def written(self):
        """The outputs that a run after a crash would bring to their safe state."""
        return json.loads(self._outputs.read_bytes())["outputs"] if self._outputs.exists() else {}

    async def open(self, **opening):
        async def live(task_status=trio.TASK_STATUS_IGNORED):
            with trio.CancelScope() as scope:
                async with self.runtime.open_session(**opening) as session:
                    ended = trio.Event()
                    self._ends[session] = scope, ended
                    task_status.started(session)
                    await trio.sleep_forever()
            ended.set()

        return await self._nursery.start(live)

    async def end(self, session):
        scope, ended = self._ends[session]
        scope.cancel()
        await ended.wait()

    async def set(self, session, value, line=LINE):
        await session.run("gpio.set", line=line, value=value)

    async def begin_pulse(self, session, value, line=LINE):
        """A pulse that goes on until its task is cancelled."""
        task = await session.submit("pulse", [step("gpio.pulse", line=line, value=value, duration_ms=60_000)])
        await passes(lambda: self.gpio.state(line) == value)
        return task

    async def rolled_back(self, session, value, between=None):
        """The result of a task that sets the line, waits while `between` runs, fails, and is rolled back."""
        steps = [step("gpio.set", line=LINE, value=value)]
        if between is not None:
            steps.append(step("gpio.watch", line=4, timeout_ms=60_000))
        steps.append(step("file.read", path=str(self.missing)))
        task = await session.submit("fails", steps, rollback_on_failure=True)
        if between is not None:
            await passes(lambda: self.gpio.state(LINE) == value)
            await between()
            await passes(lambda: self.gpio._lines[4].watches)
            self.gpio.push(4, 1)
        return await task.wait()


@pytest.fixture
async def cell(tmp_path):
    async with a_cell(tmp_path) as made:
        yield made


@asynccontextmanager
async def a_cell(tmp_path):
    config = Config(
        audit=AuditConfig(path=tmp_path / "audit.log", key=tmp_path / "key"),
        files=FilesConfig(read=(tmp_path / "files",)),
    )
    (tmp_path / "files").mkdir()
    with trio.fail_after(30):
        async with hearth.open_runtime(config=config) as runtime, trio.open_nursery() as nursery:
            made = Cell(runtime, runtime.board.drivers["gpio:sim"], nursery, tmp_path / "audit.log.outputs")
            made.missing = tmp_path / "files" / "missing"
            yield made
            nursery.cancel_scope.cancel()


async def test_a_pulse_gives_the_line_back_to_the_session_that_holds_it(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 1)
    result = await b.run("gpio.pulse", line=LINE, value=0, duration_ms=1)
    assert (result["restored"], cell.level) == (True, 1)
    await cell.end(a)
    assert cell.level == 0, "the session that set it has ended, the one that pulsed it lives"
    assert cell.written == {}


async def test_a_rolled_back_task_gives_the_line_back_to_the_session_that_holds_it(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 1)
    result = await cell.rolled_back(b, 0)
    assert (result.status, result.steps[0].rolled_back, cell.level) == ("FAILED", True, 1)
    await cell.end(a)
    assert cell.level == 0


async def test_a_line_whose_holder_ends_during_a_pulse_is_safe_at_once_and_after_the_pulse(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 1)
    before = cell.runtime.health()["buses"]["gpio:sim"]["transactions"]
    task = await b.submit("pulse", [step("gpio.pulse", line=LINE, value=1, duration_ms=60_000)])
    await passes(lambda: cell.runtime.health()["buses"]["gpio:sim"]["transactions"] == before + 1)
    await cell.end(a)
    assert cell.level == 0
    await task.cancel()
    await task.wait()
    assert cell.level == 0
    assert cell.written == {}


async def test_a_line_whose_holder_has_ended_is_rolled_back_to_its_safe_state(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 1)
    result = await cell.rolled_back(b, 1, between=lambda: cell.end(a))
    assert (result.steps[0].rolled_back, cell.level) == (True, 0)
    assert cell.written == {}


@pytest.mark.parametrize("how", ["the heartbeat", "the other session"])
async def test_a_line_that_another_session_sets_is_safe_when_the_session_with_a_deadman_goes(cell, how):
    a, b = await cell.open(heartbeat_ms=60_000), await cell.open()
    await cell.set(a, 1)
    await cell.set(b, 1)
    await cell.end(a if how == "the heartbeat" else b)
    assert cell.level == 0
    assert cell.written == {}


async def test_a_deadman_outlives_the_rollback_of_a_later_set_of_its_session(cell):
    a, b = await cell.open(heartbeat_ms=60_000), await cell.open()
    for _ in range(3):
        await cell.set(a, 1)
        await cell.set(b, 1)
    result = await cell.rolled_back(a, 0)
    assert (result.steps[0].rolled_back, cell.level) == (True, 1)
    await cell.end(a)
    assert cell.level == 0
    assert cell.written == {}


@pytest.mark.slow
async def test_a_deadman_that_fires_makes_the_line_safe_that_another_session_has_set_since(cell):
    a, b = await cell.open(heartbeat_ms=50), await cell.open()
    await cell.set(a, 1)
    await cell.set(b, 1)
    await passes(lambda: cell.level == 0)
    await cell.set(b, 1)
    assert cell.level == 1, "a set after the end is the other session's alone"
    await cell.end(b)
    assert cell.level == 0


async def test_without_a_deadman_a_line_is_left_to_the_session_that_set_it_last(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 1)
    await cell.set(b, 1)
    await cell.end(a)
    assert cell.level == 1
    assert cell.written == {"gpio:sim": [LINE]}
    await cell.end(b)
    assert cell.level == 0
    assert cell.written == {}


async def test_a_rollback_leaves_a_line_alone_that_another_session_has_set_since(cell):
    b, c = await cell.open(), await cell.open()

    async def stop():
        await cell.set(c, 0)
        await cell.set(c, 1)

    await cell.set(b, 0)
    result = await cell.rolled_back(b, 1, between=stop)
    assert (result.steps[0].rolled_back, cell.level) == (False, 1)
    await cell.end(c)
    assert cell.level == 0


async def test_rolling_back_one_of_two_sets_leaves_the_line_to_the_session_that_did_the_other(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 0)
    await cell.set(b, 1)
    assert (await cell.rolled_back(b, 0)).steps[0].rolled_back is True
    assert cell.level == 1
    await cell.end(b)
    assert cell.level == 0, "the level was set by the session that ended"


async def test_a_line_that_no_session_holds_is_the_pulsing_sessions_until_it_ends(cell):
    b = await cell.open()
    await b.run("gpio.pulse", line=LINE, value=1, duration_ms=1)
    assert cell.level == "input"
    await cell.end(b)
    assert cell.level == 0, "its safe state"


async def test_the_level_of_a_kept_line_outlives_its_session_and_is_restored_after_a_pulse(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 1, KEPT)
    pulse = await cell.begin_pulse(b, 0, KEPT)
    await cell.end(a)
    await pulse.cancel()
    result = await pulse.wait()
    assert result.status == "CANCELLED"
    assert cell.gpio.state(KEPT) == 1
    assert cell.written == {}


async def test_the_line_of_a_pulse_whose_end_fails_is_safe_when_its_session_has_ended(cell):
    a, b = await cell.open(), await cell.open()
    await cell.set(a, 0)
    pulse = await cell.begin_pulse(b, 1)
    cell.gpio.fail(1)
    await pulse.cancel()
    await pulse.wait()
    assert cell.level == 1, "the chip has refused to bring it back"
    await cell.end(b)
    assert cell.level == 0


# --- the bus, in every style --------------------------------------------------------------------------------------

A = Requester("a", "task of a", "me")
B = Requester("b", "task of b", "me")


class Bench:
    """A supervised bus over a bench driver."""

    def __init__(self, style) -> None:
        self.driver = BenchDriver("bench", Observer(), style=style)
        self.audited = []
        self.bus = Bus("bench", self.driver, audit=self.audit)

    def audit(self, event, **fields):
        self.audited.append((event, fields))

    async def do(self, value, requester, *, line=1, **more):
        def do(driver):
            driver.levels[line] = value
            return value

        ticket = self.bus.request(Ticket(Op("do", do=do), requester, limit=60, **more))
        try:
            return await ticket.get()
        finally:
            self.held = ticket.held_by

    async def end(self, requester):
        ticket = self.bus.make_safe(requester.session_id)
        return None if ticket is None else await ticket.get()

    async def give_back(self, requester, held, value=7, **more):
        back = GiveBack(1, requester.session_id, held, **more)
        return await self.do(value, requester, gives_back=back, must_run=True)


@pytest.fixture(params=list(Style))
async def bench(request, nursery):
    with trio.fail_after(60):
        made = Bench(request.param)
        started = trio.Event()
        nursery.start_soon(keep_open, made.bus, made.audit, started.set)
        await started.wait()
        yield made
        nursery.cancel_scope.cancel()


async def test_an_output_is_given_back_while_its_holder_lives(bench):
    await bench.do(1, A, drives=1)
    await bench.do(2, B, drives=1)
    assert bench.held == "a"
    assert await bench.give_back(B, {1: "a"}) == 7
    assert await bench.end(B) is None
    assert bench.driver.levels == {1: 7}
    assert await bench.end(A) == [{"line": 1, "safe": 0}]


@pytest.mark.parametrize("borrowed", [True, False])
async def test_an_output_whose_holder_has_ended_goes_to_its_safe_state_instead_and_that_is_on_record(bench, borrowed):
    await bench.do(1, A, drives=1)
    await bench.do(2, B, drives=1, borrows=borrowed)
    await bench.end(A)
    assert bench.driver.levels == {1: 0 if borrowed else 2}
    called = []
    assert await bench.give_back(B, {1: "a"}, borrowed=borrowed, instead=lambda: called.append(1)) is None
    assert (bench.driver.levels, called) == ({1: 0}, [1])
    reason = "the session that held it has ended"
    told = {"bus": "bench", "outputs": [1], "safe": [{"line": 1, "safe": 0}], "reason": reason}
    assert ("outputs.safe", told) in bench.audited
    assert await bench.end(B) is None


async def test_an_output_that_the_profile_keeps_is_restored_though_its_holder_has_ended(bench):
    bench.driver.keep = (1,)
    await bench.do(1, A, drives=1)
    await bench.do(2, B, drives=1, borrows=True)
    await bench.end(A)
    assert await bench.give_back(B, {1: "a"}, borrowed=True) == 7
    assert bench.driver.levels == {1: 7}


async def test_an_output_that_does_not_become_safe_is_asked_for_again_at_the_end_of_the_session(bench):
    await bench.do(1, A, drives=1)
    await bench.do(2, B, drives=1)
    await bench.end(A)
    bench.driver.safe_raises = device_error("the chip says no", effect="none")
    with pytest.raises(DeviceError):
        await bench.give_back(B, {1: "a"})
    bench.driver.safe_raises = None
    assert await bench.end(B) == [{"line": 1, "safe": 0}]


async def test_an_output_that_reports_an_error_in_place_of_going_back_is_told_to_who_asked(bench):
    await bench.do(1, A, drives=1)
    await bench.do(2, B, drives=1)
    await bench.end(A)
    make_safe = bench.driver.make_safe
    failed = Op("safe", do=lambda _driver: [{"line": 1, "error": "the chip says no"}])
    bench.driver.make_safe = lambda _outputs: bench.driver.perform(failed)
    with pytest.raises(DeviceError, match="the chip says no") as caught:
        await bench.give_back(B, {1: "a"})
    assert caught.value.data["effect"] == "unknown"
    bench.driver.make_safe = make_safe
    assert await bench.end(B) == [{"line": 1, "safe": 0}]


async def test_an_output_that_was_set_since_is_left_to_the_session_that_set_it(bench):
    await bench.do(1, A, drives=1)
    await bench.do(2, B, drives=1)
    await bench.do(3, A, drives=1)
    with pytest.raises(ResourceBusy, match="set by another session since") as caught:
        await bench.give_back(B, {1: "a"})
    assert (bench.driver.levels, caught.value.data["effect"]) == ({1: 3}, "none")
    assert await bench.end(B) is None
    assert await bench.end(A) == [{"line": 1, "safe": 0}]


async def test_a_session_that_ends_in_good_order_hands_over_what_others_have_set_since(bench):
    deadman = Requester("c", "task of c", "me", deadman=True)
    for hands_over, levels in ((True, {1: 2, 2: 0}), (False, {1: 0, 2: 0})):
        await bench.do(1, deadman, drives=1)
        await bench.do(1, deadman, drives=2, line=2)
        await bench.do(2, B, drives=1)
        await bench.bus.make_safe("c", hands_over=hands_over).get()
        assert bench.driver.levels == levels


@pytest.mark.parametrize("bench", [Style.THREAD, Style.ASYNC], indirect=True)
async def test_a_holder_that_ends_while_its_output_is_given_back_makes_it_safe(bench):
    await bench.do(1, A, drives=1)
    await bench.do(2, B, drives=1)
    gate = bench.driver.gate()

    def do(driver):
        driver.levels[1] = 1

    back = GiveBack(1, "b", {1: "a"})
    ticket = Ticket(Op("undo", do=do, gate=gate), B, limit=60, gives_back=back, must_run=True)
    bench.bus.request(ticket)
    await gate.reached()
    safe = bench.bus.make_safe("a")
    gate.open()
    await ticket.get()
    assert await safe.get() == [{"line": 1, "safe": 0}]
    assert bench.driver.levels == {1: 0}


@pytest.mark.slow
async def test_a_session_whose_safe_state_crashed_the_driver_counts_as_ended(bench):
    await bench.do(1, A, drives=1)
    bench.driver.safe_raises = RuntimeError("a bug")
    with pytest.raises(hearth.errors.InternalError):
        await bench.end(A)
    bench.driver.safe_raises = None
    await passes(lambda: "bus.reopened" in dict(bench.audited))
    await bench.do(2, B, drives=1, borrows=True)
    assert bench.held == "b", "there is no live session to give it back to"
    assert await bench.end(B) == [{"line": 1, "safe": 0}]


def test_the_outputs_file_is_written_when_an_output_is_first_held_and_when_it_is_safe(tmp_path):
    outputs_file = OutputsFile(tmp_path / "outputs")
    bus = Bus("bench", BenchDriver("bench", Observer(), style=Style.INLINE), outputs_file=outputs_file)
    driven = bus._driven
    assert driven.claim(1, A, insist=False) == "a"
    assert driven.borrow(1, B, insist=False) == "a"
    assert driven.claim(1, B, insist=False) == "a"
    before = (tmp_path / "outputs").stat()
    assert driven.claim(1, A, insist=False) == "b"
    assert (tmp_path / "outputs").stat().st_ino == before.st_ino
    driven.is_safe([1], [{"line": 1}])
    assert not (tmp_path / "outputs").exists()
