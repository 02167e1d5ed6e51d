"""Edges of a real kernel chip: what the kernel notes reaches the watches, once, in order, and with its gaps."""

import os
import time
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from gpiod.line import Direction, Edge
from support.gpio_sim import gpio_sim

from hearth.drivers.gpio.linux import LinuxGpio
from hearth.drivers.gpio.spec import LineSpec
from hearth.errors import DeviceError


@pytest.fixture
def chip():
    with gpio_sim("buttons", 8) as chip:
        yield chip


def make(**more):
    return LinuxGpio("buttons", [LineSpec(n, f"L{n}", **more.pop("spec", {})) for n in range(8)], **more)


@asynccontextmanager
async def pumped(driver):
    driver.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pump)
        try:
            with trio.fail_after(60):
                yield driver
        finally:
            driver.close()


async def test_an_edge_carries_the_kernels_own_time_of_it(chip):
    async with pumped(make()) as driver:
        watch = driver.watch(2, "both")
        before = time.monotonic_ns()
        chip.push(2, 1)
        after = time.monotonic_ns()
        # Read much later than it happened: the stamp is the kernel's, not the reader's.
        await trio.sleep(0.05)
        edge = await watch.receive()
        assert before < edge.timestamp_ns < after
        assert chip.info(2).event_clock.name == "MONOTONIC"


async def test_edges_of_many_lines_reach_their_own_watches(chip):
    async with pumped(make()) as driver:
        watches = [driver.watch(line, "both") for line in range(8)]
        for line in range(8):
            chip.pull(line, 1)
        edges = [await watch.receive() for watch in watches]
        assert [(edge.line, edge.value, edge.seq) for edge in edges] == [(line, 1, 1) for line in range(8)]


async def test_the_kernel_reports_what_the_watches_want_and_nothing_without_them(chip):
    async with pumped(make()) as driver:
        asked = [chip.info(2).edge_detection]
        rising = driver.watch(2, "rising")
        asked.append(chip.info(2).edge_detection)
        again = driver.watch(2, "rising")
        asked.append(chip.info(2).edge_detection)
        falling = driver.watch(2, "falling")
        asked.append(chip.info(2).edge_detection)
        for watch in (rising, again, falling):
            driver.unwatch(watch)
            asked.append(chip.info(2).edge_detection)
        assert asked == [
            Edge.NONE,
            Edge.RISING,
            Edge.RISING,
            Edge.BOTH,
            Edge.BOTH,
            Edge.FALLING,
            Edge.NONE,
        ]
        driver.set(2, 1)
        both = driver.watch(2, "both")
        assert (chip.info(2).edge_detection, chip.info(2).direction) == (Edge.NONE, Direction.OUTPUT)
        driver.set(2, "input")
        assert (chip.info(2).edge_detection, chip.info(2).direction) == (Edge.BOTH, Direction.INPUT)
        driver.unwatch(both)
        assert chip.info(2).edge_detection is Edge.NONE


async def test_another_watch_costs_no_edge_of_those_that_are_there(chip):
    async with pumped(make()) as driver:
        first = driver.watch(2, "rising")
        for _ in range(3):
            chip.push(2, 1)
            other = driver.watch(2, "both")
            chip.push(2, 0)
            assert (await other.receive()).edge == "falling"
            driver.unwatch(other)
        assert [(await first.receive()).seq for _ in range(3)] == [1, 2, 3]
        assert first.dropped == 0


@pytest.mark.parametrize(("edge", "dropped", "first_seq"), [("both", 24, 25), ("rising", 12, 13), ("falling", 12, 13)])
async def test_edges_that_the_kernel_had_no_room_for_are_counted_where_they_are_missing(chip, edge, dropped, first_seq):
    """40 edges, 20 of each kind, into room for 16 while nobody reads."""
    driver = make(event_buffer=16)
    driver.open()
    watch = driver.watch(2, edge)
    other = driver.watch(2, "both")
    for n in range(40):
        chip.push(2, (n + 1) % 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pump)
        kept = 16 if edge == "both" else 8
        seen = [await watch.receive() for _ in range(kept)]
        assert [each.seq for each in seen] == list(range(first_seq, first_seq + kept))
        assert (watch.dropped, other.dropped) == (dropped, 24)
        driver.close()


async def test_a_watch_of_one_kind_alone_counts_the_edges_of_that_kind(chip):
    driver = make(event_buffer=16)
    driver.open()
    watch = driver.watch(2, "rising")
    for n in range(40):
        chip.push(2, (n + 1) % 2)
    driver.unwatch(watch)
    assert [(await watch.receive()).seq for _ in range(16)] == list(range(5, 21))
    assert watch.dropped == 4
    driver.close()


async def test_what_was_lost_before_a_watch_began_is_not_its_loss(chip):
    driver = make(event_buffer=16)
    driver.open()
    first = driver.watch(2, "both")
    for n in range(20):
        chip.push(2, (n + 1) % 2)
    second = driver.watch(2, "both")
    chip.push(2, 1)
    driver.unwatch(second)
    assert (await second.receive()).seq == 1
    assert (first.dropped, second.dropped) == (4, 0)
    driver.close()


async def test_the_pump_notices_lines_that_are_watched_while_it_waits_from_whatever_thread(chip):
    async with pumped(make(blocking=True)) as driver:
        for line in range(4):
            await trio.testing.wait_all_tasks_blocked()
            watch = await trio.to_thread.run_sync(driver.watch, line, "both")
            await trio.to_thread.run_sync(chip.push, line, 1)
            assert (await watch.receive()).value == 1
            await trio.to_thread.run_sync(driver.unwatch, watch)


async def test_watching_driving_and_reading_in_a_thread_meets_a_pump_that_is_busy(chip):
    """100 turns of everything that takes or gives back descriptors, while edges come on another line all the time."""
    async with pumped(make(blocking=True)) as driver:
        steady = await trio.to_thread.run_sync(driver.watch, 0, "both")

        def turns():
            for n in range(100):
                chip.push(0, (n + 1) % 2)
                watch = driver.watch(1, "both")
                driver.set(1, n % 2)
                driver.get(0)
                driver.set(1, "input")
                driver.unwatch(watch)
                driver.release(1)

        await trio.to_thread.run_sync(turns)
        driver.unwatch(steady)
        seen = [await steady.receive() for _ in range(100)]
        assert [(edge.seq, edge.value) for edge in seen] == [(n + 1, (n + 1) % 2) for n in range(100)]
        with pytest.raises(DeviceError, match="ended by its owner"):
            await steady.receive()


class Turns(trio.abc.Instrument):
    """Counts the turns that a task takes."""

    def __init__(self, name):
        self.name = name
        self.count = 0

    def before_task_step(self, task):
        self.count += self.name in task.name


async def test_a_pump_with_nothing_to_do_takes_no_turn(chip):
    async with pumped(make()) as driver:
        driver.watch(2, "both")
        driver.watch(3, "rising")
        await trio.testing.wait_all_tasks_blocked()
        turns = Turns("LinuxGpio.pump")
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(0.3)
        chip.push(5, 1)
        await trio.sleep(0.1)
        assert turns.count == 0
        chip.push(2, 1)
        await trio.sleep(0.1)
        assert turns.count == 1
        trio.lowlevel.remove_instrument(turns)


async def test_no_thread_is_parked_for_watches(chip):
    before = len(os.listdir("/proc/self/task"))
    async with pumped(make()) as driver:
        for line in range(8):
            driver.watch(line, "both")
        await trio.testing.wait_all_tasks_blocked()
        assert len(os.listdir("/proc/self/task")) == before


async def test_closing_the_chip_ends_the_pump_and_every_watch_with_its_last_edge(chip):
    async with pumped(make()) as driver:
        watch = driver.watch(2, "both")
        chip.push(2, 1)
        assert (await watch.receive()).value == 1
        driver.close()
        with pytest.raises(DeviceError, match="gpio chip buttons was closed"):
            await watch.receive()


async def test_a_chattering_line_keeps_no_other_task_from_running(chip):
    """A pump has no batch without a checkpoint: others run while a full buffer is read."""
    driver = make()
    driver.open()
    driver.watch(2, "both")
    for n in range(130):
        chip.push(2, (n + 1) % 2)
    turns = Turns("LinuxGpio.pump")
    async with trio.open_nursery() as nursery:
        trio.lowlevel.add_instrument(turns)
        nursery.start_soon(driver.pump)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(turns)
        # One to begin with, and one for each batch of 64.
        assert turns.count >= 4
        driver.close()
