"""A bus with threads: a thread takes its next ticket itself, and the bus contract holds although it does."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from contextlib import asynccontextmanager

import pytest
import trio
from support.doubles import BenchDriver, Observer, Op, device_error
from support.waiting import passes, until

from hearth.actors.bus.actor import Bus
from hearth.actors.bus.queue import Requester, State, Ticket
from hearth.actors.bus.threads import AHEAD
from hearth.drivers.base import Style
from hearth.errors import Halted, HearthError, InternalError, ResourceBusy, TimedOut, effect_of

A = Requester("a", "task of a", "me")
B = Requester("b", "task of b", "me")


def ticket(op, requester=A, *, limit=60.0, **more):
    return Ticket(op, requester, limit=limit, **more)


class Steps(trio.abc.Instrument):
    """How often the task that answers the tickets of a bus has run."""

    def __init__(self):
        self.answering = 0

    def before_task_step(self, task):
        self.answering += task.name.endswith("ThreadLanes.attend")


class Bench:
    """One bus with threads, and a first transaction that holds it up until its gate is opened."""

    def __init__(self, width=1, ahead=None):
        self.observer = Observer()
        self.driver = BenchDriver("a", self.observer, style=Style.THREAD, width=width)
        self.audited = []
        self.crashes = []
        self.bus = Bus("a", self.driver, audit=lambda event, **fields: self.audited.append((event, fields)))
        if ahead is not None:
            self.bus._queue.ahead = ahead

    @property
    def ahead(self):
        return self.bus._queue.ahead

    @property
    def begun(self):
        return self.observer.labels("begin")

    async def hold_up(self, **more):
        """Let a transaction begin and stay; returns its ticket and the gate."""
        gate = self.driver.gate()
        first = self.bus.request(ticket(Op("first", gate=gate), **more))
        await gate.reached()
        return first, gate

    async def ask(self, *tickets):
        """Request tickets that come within reach of the thread, and wait until they are there."""
        for asked in tickets:
            self.bus.request(asked)
        await until(lambda: all(asked.state is State.HANDED for asked in tickets))

    async def run(self, *, task_status):
        try:
            await self.bus.run(task_status=task_status)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.crashes.append(error)


@asynccontextmanager
async def running(**more):
    bench = Bench(**more)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(bench.run)
            try:
                yield bench
            finally:
                bench.driver.open_gates()
                nursery.cancel_scope.cancel()
    bench.observer.assert_whole()


# --- one wake-up for many ------------------------------------------------------------------------------------------


async def test_a_thread_takes_its_next_ticket_while_trio_does_something_else():
    last = threading.Event()
    async with running() as bench:
        first, gate = await bench.hold_up()
        tickets = [ticket(Op(str(number))) for number in range(AHEAD - 1)]
        tickets.append(ticket(Op("last", do=lambda _driver: last.set())))
        await bench.ask(*tickets)
        gate.open()
        # The loop stands still here: it can neither pass tickets on nor answer them.
        assert last.wait(30)
        assert not first.filled
        for asked in (first, *tickets):
            await asked.wait()
    assert bench.begun == ["first", *map(str, range(AHEAD - 1)), "last"]


async def test_trio_is_woken_once_for_all_that_has_ended():
    last = threading.Event()
    async with running() as bench:
        first, gate = await bench.hold_up()
        tickets = [ticket(Op(str(number))) for number in range(AHEAD - 1)]
        await bench.ask(*tickets, ticket(Op("last", do=lambda _driver: last.set())))
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        gate.open()
        assert last.wait(30)
        for asked in (first, *tickets):
            await asked.wait()
        trio.lowlevel.remove_instrument(steps)
    # A second time if the last one ended while Trio took those before it.
    assert 1 <= steps.answering <= 2


async def test_a_requester_has_its_answer_although_the_next_transaction_does_not_return():
    async with running() as bench:
        first, gate = await bench.hold_up()
        stuck = bench.driver.gate()
        await bench.ask(ticket(Op("stuck", gate=stuck)))
        gate.open()
        assert await first.get() == "first"
        await stuck.reached()


async def test_no_more_tickets_come_within_reach_than_can_be_taken_back_cheaply():
    async with running() as bench:
        _, gate = await bench.hold_up()
        tickets = [ticket(Op(str(number))) for number in range(2 * AHEAD)]
        await bench.ask(*tickets[:AHEAD])
        for asked in tickets[AHEAD:]:
            bench.bus.request(asked)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.ahead) == AHEAD
        assert bench.bus.queued == 2 * AHEAD, "those within reach have not begun"
        gate.open()
        for asked in tickets:
            await asked.wait()
    assert bench.begun == ["first", *map(str, range(2 * AHEAD))]


# --- a cancelled ticket never begins, or finishes --------------------------------------------------------------------


class Choosing(deque):
    """The tickets within reach; a thread that takes one stays just `before` it has removed it, or just after."""

    def __init__(self, *, before):
        super().__init__()
        self._before = before
        self.armed = False
        self.chooses, self.go_on = threading.Event(), threading.Event()

    def _stay(self):
        self.armed = False
        self.chooses.set()
        assert self.go_on.wait(30)

    def popleft(self):
        if self.armed and self._before:
            self._stay()
        taken = super().popleft()
        if self.armed:
            self._stay()
        return taken


@pytest.mark.parametrize("before", [True, False])
async def test_a_ticket_that_is_cancelled_while_a_thread_takes_it_never_begins_or_finishes(before):
    ahead = Choosing(before=before)
    outcomes = []
    async with running(ahead=ahead) as bench, trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def ask():
            with scope:
                try:
                    outcomes.append(await bench.bus.request(ticket(Op("x"))).get())
                except trio.Cancelled:
                    outcomes.append("cancelled")
                    raise

        ahead.armed = True
        nursery.start_soon(ask)
        await passes(ahead.chooses.is_set)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        # Withdrawn at once, or its requester waits for the outcome.
        assert outcomes == (["cancelled"] if before else [])
        assert bench.bus.queued == 0
        ahead.go_on.set()
        assert await bench.bus.request(ticket(Op("y"))).get() == "y"
    assert outcomes == (["cancelled"] if before else ["x"])
    assert bench.begun == (["y"] if before else ["x", "y"])


@pytest.mark.parametrize("before", [True, False])
async def test_a_ticket_that_is_outranked_while_a_thread_takes_it_waits_or_was_first(before):
    ahead = Choosing(before=before)
    async with running(ahead=ahead) as bench:
        ahead.armed = True
        low = bench.bus.request(ticket(Op("low"), priority=0))
        await passes(ahead.chooses.is_set)
        high = bench.bus.request(ticket(Op("high"), priority=3))
        ahead.go_on.set()
        await low.get()
        await high.get()
    assert bench.begun == (["high", "low"] if before else ["low", "high"])


async def test_a_ticket_that_is_cancelled_within_reach_never_begins_and_leaves_the_others_there():
    async with running() as bench:
        _, gate = await bench.hold_up()
        tickets = [ticket(Op(str(number))) for number in range(3)]
        await bench.ask(*tickets)
        with trio.CancelScope() as scope:
            scope.cancel()
            await tickets[1].wait()
        assert tickets[1].state is State.WITHDRAWN
        assert list(bench.ahead) == [tickets[0], tickets[2]]
        assert bench.bus.queued == 2
        gate.open()
        await tickets[2].wait()
    assert bench.begun == ["first", "0", "2"]


async def test_tickets_that_are_asked_for_and_cancelled_behind_a_long_one_pile_up_nowhere():
    async with running() as bench:
        _, gate = await bench.hold_up()
        for _ in range(200):
            asked = ticket(Op("withdrawn"))
            await bench.ask(asked)
            assert asked.abort()
        threads = bench.bus._lanes._threads
        assert threads._bell.qsize() <= 1
        assert (len(bench.ahead), bench.bus.queued, len(bench.bus._current)) == (0, 0, 1)
        gate.open()
    assert bench.begun == ["first"]


class Crowd:
    """Requesters that ask for all kinds of tickets, some of which they give up soon."""

    def __init__(self, bench, seed):
        self.bench = bench
        self.outcomes = {}
        self._chance = random.Random(seed)

    async def requester(self, name):
        for number in range(25):
            await self._ask(f"{name}.{number}")
            if self._chance.random() < 0.1:
                self.bench.bus.make_safe(f"session {self._chance.randrange(4)}", unattended=True)

    async def _ask(self, label):
        asked = self._ticket(label)
        with trio.move_on_after(self._chance.choice([0, 0.0003, 30])):
            try:
                self.bench.bus.request(asked)
                self.outcomes[label] = await asked.get()
            except trio.Cancelled:
                self.outcomes[label] = "cancelled"
                raise
            except HearthError as failed:
                self.outcomes[label] = failed
            finally:
                if asked.op is None:
                    self.bench.bus.release(asked)

    def _ticket(self, label):
        chance = self._chance
        requester = Requester(f"session {chance.randrange(4)}", label, "me")
        kind = chance.random()
        if kind < 0.1:
            return ticket(None, requester)
        error = device_error(label, effect=chance.choice(["none", "unknown"])) if chance.random() < 0.1 else None
        drives = chance.choice([None, 1, 2, 3])
        return ticket(
            Op(label, raises=error), requester, priority=chance.randrange(4), must_run=kind < 0.2, drives=drives
        )


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_comes_and_goes_no_ticket_is_lost_run_twice_or_run_although_it_was_withdrawn(width, seed):
    async with running(width=width) as bench:
        crowd = Crowd(bench, seed)
        async with trio.open_nursery() as requesters:
            for name in range(12):
                requesters.start_soon(crowd.requester, name)
        while bench.bus._current:
            await bench.bus.settle()
        assert (bench.bus.queued, len(bench.ahead)) == (0, 0)
    begun = [label for label in bench.begun if not label.startswith("safe")]
    assert len(begun) == len(set(begun)), "one ran twice"
    assert len(crowd.outcomes) == 12 * 25
    for label, outcome in crowd.outcomes.items():
        if outcome == "cancelled":
            assert label not in begun, f"{label} was withdrawn, and ran"
        elif outcome is not None:
            assert str(outcome) == label
            assert label in begun


# --- order, outputs, halt ----------------------------------------------------------------------------------------


async def test_a_higher_priority_goes_before_tickets_within_reach():
    async with running() as bench:
        _, gate = await bench.hold_up()
        low = [ticket(Op(f"low {number}"), priority=0) for number in range(2)]
        await bench.ask(*low)
        high = ticket(Op("high"), priority=3)
        bench.bus.request(high)
        # At once, not in the bus's next turn: the thread might take the next one before.
        assert not bench.ahead
        gate.open()
        for asked in (*low, high):
            await asked.wait()
    assert bench.begun == ["first", "high", "low 0", "low 1"]


async def test_a_lease_is_granted_when_all_before_it_have_run_and_holds_up_those_after_it():
    async with running() as bench:
        _, gate = await bench.hold_up()
        before, lease, after = ticket(Op("before")), ticket(None, B, limit=0), ticket(Op("after"))
        await bench.ask(before)
        bench.bus.request(lease)
        bench.bus.request(after)
        await trio.testing.wait_all_tasks_blocked()
        assert list(bench.ahead) == [before]
        gate.open()
        await lease.get()
        mine = bench.bus.request(ticket(Op("mine"), B))
        assert await mine.get() == "mine"
        assert not after.filled
        bench.bus.release(lease)
        await after.get()
    assert bench.begun == ["first", "before", "mine", "after"]


async def test_tickets_of_a_leases_holder_that_are_taken_back_keep_their_order():
    async with running() as bench:
        lease = ticket(None, limit=0)
        await bench.bus.request(lease).get()
        _, gate = await bench.hold_up()
        mine = [ticket(Op(f"mine {number}")) for number in range(3)]
        await bench.ask(*mine)
        must = bench.bus.request(ticket(Op("must"), must_run=True))
        gate.open()
        for asked in (*mine, must):
            await asked.wait()
        bench.bus.release(lease)
    assert bench.begun == ["first", "must", "mine 0", "mine 1", "mine 2"]


async def test_tickets_that_drive_the_same_output_are_not_within_reach_together():
    async with running() as bench:
        await bench.bus.request(ticket(Op("set"), A, drives=1)).get()
        _, gate = await bench.hold_up()
        one, other, again = (ticket(Op(name), who, drives=1) for name, who in (("1", A), ("2", B), ("3", A)))
        for asked in (one, other, again):
            bench.bus.request(asked)
        await until(lambda: bench.ahead)
        await trio.testing.wait_all_tasks_blocked()
        assert list(bench.ahead) == [one]
        gate.open()
        for asked in (one, other, again):
            await asked.wait()
    assert (one.held_by, other.held_by, again.held_by) == ("a", "a", "b")


async def test_a_set_that_is_withdrawn_within_reach_leaves_its_output_to_the_session_that_holds_it():
    async with running() as bench:
        await bench.bus.request(ticket(Op("set"), A, drives=1)).get()
        _, gate = await bench.hold_up()
        asked = ticket(Op("never"), B, drives=1)
        await bench.ask(asked)
        assert asked.abort()
        assert bench.bus.known().outputs[1].owner == "a"
        assert (asked.held_by, asked.former_holders) == (None, None)
        gate.open()


async def test_the_end_of_a_session_makes_its_output_safe_although_another_ones_set_is_within_reach():
    async with running() as bench:
        await bench.bus.request(ticket(Op("set"), A, drives=1)).get()
        _, gate = await bench.hold_up()
        asked = ticket(Op("later"), B, drives=1)
        await bench.ask(asked)
        safe = bench.bus.make_safe("a")
        gate.open()
        assert await safe.get() == [{"line": 1, "safe": 0}]
        await asked.get()
        assert bench.bus.known().outputs[1].owner == "b"
    assert bench.begun == ["set", "first", "safe 1", "later"]


async def test_a_halt_goes_before_what_is_within_reach_and_nothing_with_an_effect_begins_after_it():
    async with running() as bench:
        await bench.bus.request(ticket(Op("set"), A, drives=1, risk=2)).get()
        _, gate = await bench.hold_up()
        write, read = ticket(Op("write"), B, drives=1, risk=2), ticket(Op("read"), B)
        await bench.ask(write, read)
        bench.bus._halt_flag.since, bench.bus._halt_flag.count = "now", 1
        bench.bus.halt()
        gate.open()
        with pytest.raises(Halted) as refused:
            await write.get()
        assert await read.get() == "read"
    assert effect_of(refused.value) == "none"
    assert bench.begun == ["set", "first", "safe 1", "read"]


async def test_a_halt_of_which_the_bus_has_not_heard_yet_stops_what_is_within_reach():
    async with running() as bench:
        await bench.bus.request(ticket(Op("set"), A, drives=1)).get()
        _, gate = await bench.hold_up()
        write = ticket(Op("write"), B, risk=2, drives=1)
        await bench.ask(write)
        bench.bus._halt_flag.since, bench.bus._halt_flag.count = "now", 1
        gate.open()
        with pytest.raises(Halted):
            await write.get()
        assert write.held_by is None
        assert bench.bus.known().outputs[1].owner == "a"
    assert bench.begun == ["set", "first"]


async def test_the_first_set_of_an_output_waits_for_a_free_thread_so_that_withdrawing_it_leaves_nothing_to_make_safe():
    async with running() as bench:
        _, gate = await bench.hold_up()
        asked = bench.bus.request(ticket(Op("never"), A, drives=1))
        await trio.testing.wait_all_tasks_blocked()
        assert (asked.state, len(bench.ahead)) == (State.QUEUED, 0)
        assert asked.abort()
        assert bench.bus.make_safe("a") is None
        gate.open()


async def test_what_was_clamped_is_said_of_the_transaction_that_was_clamped():
    last = threading.Event()

    def clamp(value):
        return lambda _driver: bench.bus.guard.clamped.append({"written": value})

    async with running() as bench:
        _, gate = await bench.hold_up()
        tickets = [ticket(Op(str(value), do=clamp(value))) for value in (1, 2)]
        tickets.append(ticket(Op("last", do=lambda _driver: last.set())))
        await bench.ask(*tickets)
        gate.open()
        assert last.wait(30)
        for asked in tickets:
            await asked.wait()
    assert [list(asked.clamped) for asked in tickets] == [[{"written": 1}], [{"written": 2}], []]
    assert [fields["clamped"] for event, fields in bench.audited if event == "limit.clamped"] == [
        [{"written": 1}],
        [{"written": 2}],
    ]


# --- limits, failures, ends ----------------------------------------------------------------------------------------


async def test_the_limit_of_a_transaction_counts_from_its_begin_and_not_from_when_it_came_within_reach():
    async with running() as bench:
        first, gate = await bench.hold_up()
        asked = ticket(Op("x"), limit=5.0)
        await bench.ask(asked)
        # Longer ago than its limit: what tells whether it is overdue must not look at this.
        asked.begun_at -= 10
        bench.bus._lanes._watch.deadline = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.bus.state == "ready"
        gate.open()
        assert (await first.get(), await asked.get()) == ("first", "x")
    assert bench.audited == []


async def test_a_transaction_that_a_thread_took_itself_is_watched_with_its_own_limit():
    async with running() as bench:
        first, gate = await bench.hold_up()
        stuck = bench.driver.gate()
        late, behind = ticket(Op("late", gate=stuck), limit=0.02), ticket(Op("behind"))
        await bench.ask(late, behind)
        gate.open()
        assert await first.get() == "first"
        await until(lambda: bench.bus.state == "wedged")
        with pytest.raises(ResourceBusy):
            await behind.get()
        stuck.open()
        with pytest.raises(TimedOut):
            await late.get()
        assert bench.bus.state == "ready"
    assert [event for event, _ in bench.audited] == ["bus.wedged", "bus.reopened"]
    assert bench.begun == ["first", "late"]


async def test_nothing_within_reach_begins_after_a_bug_in_the_driver():
    async with running() as bench:
        _, gate = await bench.hold_up()
        bug, after = ticket(Op("bug", raises=RuntimeError("a bug"))), ticket(Op("after"))
        await bench.ask(bug, after)
        gate.open()
        with pytest.raises(InternalError):
            await bug.get()
        with pytest.raises(HearthError) as refused:
            await after.get()
        await until(lambda: bench.crashes)
    assert effect_of(refused.value) == "none"
    assert bench.begun == ["first", "bug"]


async def test_a_bug_before_a_transaction_crashes_the_bus_and_answers_its_requester():
    async with running() as bench:

        def output():
            raise RuntimeError("a bug")

        asked = bench.bus.request(ticket(Op("x"), drives=output))
        with pytest.raises(InternalError):
            await asked.get()
        await until(lambda: bench.crashes)
    assert bench.begun == []


async def test_a_bus_that_ends_waits_for_what_has_begun_and_refuses_what_is_within_reach(nursery):
    bench = Bench()
    async with trio.open_nursery() as buses:
        await buses.start(bench.run)
        first, gate = await bench.hold_up()
        asked = ticket(Op("x"))
        await bench.ask(asked)
        buses.cancel_scope.cancel()
        nursery.start_soon(open_when_empty, bench, gate)
    assert await first.get() == "first"
    with pytest.raises(HearthError) as refused:
        await asked.get()
    assert effect_of(refused.value) == "none"
    assert bench.begun == ["first"]


async def open_when_empty(bench, gate):
    await until(lambda: not bench.ahead)
    gate.open()


async def test_a_transaction_that_ended_before_it_was_given_up_is_answered_with_its_outcome():
    ended = threading.Event()
    async with running() as bench:
        first, gate = await bench.hold_up()
        asked = ticket(Op("last", do=lambda _driver: ended.set()))
        await bench.ask(asked)
        gate.open()
        # Both have ended, and the loop has not had a turn since.
        assert ended.wait(30)
        patience = time.monotonic() + 30
        while bench.bus._lanes.running and time.monotonic() < patience:
            ended.wait(0)
        bench.bus.abandon()
        assert await first.get() == "first"
        assert await asked.get() is None
        # Nothing was in flight: what must run still does.
        assert await bench.bus.request(ticket(Op("must"), must_run=True)).get() == "must"
