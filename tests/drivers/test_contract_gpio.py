"""The contract of every GPIO driver; `gpio_bench` gives one implementation after the other."""

import json

import pytest
import trio
import trio.testing

from hearth.errors import DeviceError


async def test_an_output_is_driven_and_set_returns_the_former_state(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    assert await transact(driver, lambda d: d.set(line, 1)) == "input"
    assert gpio_bench.seen(line) == 1
    assert await transact(driver, lambda d: d.set(line, 0)) == 1
    assert gpio_bench.seen(line) == 0
    assert await transact(driver, lambda d: d.set(line, 0)) == 0


async def test_an_output_that_goes_back_to_input_is_released(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    await transact(driver, lambda d: d.set(line, 1))
    assert await transact(driver, lambda d: d.set(line, "input")) == 1
    gpio_bench.push(line, 0)
    assert gpio_bench.seen(line) == 0
    assert await transact(driver, lambda d: d.set(line, 0)) == "input"


async def test_get_reads_what_is_on_the_line_whoever_drives_it(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    for level in (1, 0, 1):
        gpio_bench.push(line, level)
        assert await transact(driver, lambda d: d.get(line)) == level
    gpio_bench.push(line, None)
    await transact(driver, lambda d: d.set(line, 1))
    assert await transact(driver, lambda d: d.get(line)) == 1


async def test_a_read_does_not_change_what_the_line_is(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    await transact(driver, lambda d: d.set(line, 1))
    await transact(driver, lambda d: d.get(line))
    assert gpio_bench.seen(line) == 1
    assert await transact(driver, lambda d: d.set(line, "input")) == 1


async def test_edges_arrive_in_order_with_rising_timestamps_and_no_gap_in_seq(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    for level in (1, 0, 1):
        gpio_bench.push(line, level)
    with trio.fail_after(10):
        edges = [await watch.receive() for _ in range(3)]
    assert [(edge.line, edge.value, edge.edge) for edge in edges] == [
        (line, 1, "rising"),
        (line, 0, "falling"),
        (line, 1, "rising"),
    ]
    assert [edge.seq for edge in edges] == [1, 2, 3]
    stamps = [edge.timestamp_ns for edge in edges]
    assert stamps == sorted(stamps)
    assert watch.dropped == 0
    await transact(driver, lambda d: d.unwatch(watch))


@pytest.mark.parametrize(("wanted", "values"), [("rising", [1, 1]), ("falling", [0, 0]), ("both", [1, 0, 1, 0])])
async def test_a_watch_reports_the_edges_it_asked_for_only(gpio_bench, transact, wanted, values):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, wanted))
    for level in (1, 0, 1, 0):
        gpio_bench.push(line, level)
    await transact(driver, lambda d: d.unwatch(watch))
    with trio.fail_after(10):
        seen = [await watch.receive() for _ in values]
        with pytest.raises(DeviceError, match="ended"):
            await watch.receive()
    assert [edge.value for edge in seen] == values
    assert [edge.seq for edge in seen] == list(range(1, len(values) + 1))


async def test_a_line_has_as_many_watches_as_it_is_asked_for(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    one = await transact(driver, lambda d: d.watch(line, "both"))
    other = await transact(driver, lambda d: d.watch(line, "rising"))
    gpio_bench.push(line, 1)
    with trio.fail_after(10):
        assert (await one.receive()).value == (await other.receive()).value == 1
    await transact(driver, lambda d: d.unwatch(one))
    gpio_bench.push(line, 0)
    gpio_bench.push(line, 1)
    with trio.fail_after(10):
        assert (await other.receive()).seq == 2


async def test_a_watch_on_a_line_that_is_driven_reports_the_changes(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    await transact(driver, lambda d: d.set(line, 1))
    await transact(driver, lambda d: d.set(line, 0))
    with trio.fail_after(10):
        assert [(await watch.receive()).value for _ in range(2)] == [1, 0]


async def test_a_receiver_wakes_for_an_edge_that_comes_while_it_waits(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    seen = []

    async def receive():
        seen.append(await watch.receive())

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            await transact(driver, lambda d: d.set(line, 1))
    assert [edge.value for edge in seen] == [1]


async def test_waiting_for_an_edge_can_be_cancelled(gpio_bench, transact):
    watch = await transact(gpio_bench.driver, lambda d: d.watch(gpio_bench.line, "both"))
    with trio.move_on_after(0) as scope:
        await watch.receive()
    assert scope.cancelled_caught


async def test_unwatch_is_idempotent_and_ends_the_receiver(gpio_bench, transact):
    driver = gpio_bench.driver
    watch = await transact(driver, lambda d: d.watch(gpio_bench.line, "both"))
    for _ in range(2):
        await transact(driver, lambda d: d.unwatch(watch))
    with trio.fail_after(10), pytest.raises(DeviceError, match="ended"):
        await watch.receive()


async def test_closing_the_chip_ends_its_watches_and_says_that_nothing_was_done(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    driver.close()
    with trio.fail_after(10), pytest.raises(DeviceError) as caught:
        await watch.receive()
    assert caught.value.data["effect"] == "none"
    await transact(driver, lambda d: d.unwatch(watch))


async def test_a_line_the_chip_does_not_have_is_refused_without_effect(gpio_bench, transact):
    for op in (
        lambda d: d.get(999),
        lambda d: d.set(999, 1),
        lambda d: d.watch(999, "both"),
        lambda d: d.set(-1, 1),
    ):
        with pytest.raises(DeviceError, match="no line") as caught:
            await transact(gpio_bench.driver, op)
        assert caught.value.data["effect"] == "none"


async def test_a_chip_that_is_not_open_is_refused_without_effect(gpio_bench, transact):
    driver = gpio_bench.driver
    for _ in range(2):
        driver.close()
    with pytest.raises(DeviceError, match="not open") as caught:
        await transact(driver, lambda d: d.set(gpio_bench.line, 1))
    assert caught.value.data["effect"] == "none"


async def test_a_chip_works_again_when_it_is_reopened(gpio_bench, transact):
    driver = gpio_bench.driver
    driver.close()
    driver.open()
    await transact(driver, lambda d: d.set(gpio_bench.line, 1))
    assert gpio_bench.seen(gpio_bench.line) == 1


async def test_make_safe_brings_lines_to_the_profiles_state_and_leaves_those_that_are_kept(gpio_bench, transact):
    driver = gpio_bench.driver
    for line, value in ((gpio_bench.line, 1), (gpio_bench.other, 0), (6, 1)):
        await transact(driver, lambda d, line=line, value=value: d.set(line, value))
    done = await transact(driver, lambda d: d.make_safe([gpio_bench.line, gpio_bench.other, 6]))
    assert [(entry["line"], entry["safe"]) for entry in done] == [(gpio_bench.line, "input"), (gpio_bench.other, 1)]
    assert gpio_bench.seen(gpio_bench.other) == 1
    assert gpio_bench.seen(6) == 1
    gpio_bench.push(gpio_bench.line, 0)
    assert gpio_bench.seen(gpio_bench.line) == 0


async def test_describe_is_json_whether_the_chip_is_open_or_not(gpio_bench):
    assert json.loads(json.dumps(gpio_bench.driver.describe()))["kind"] == "gpio"
    gpio_bench.driver.close()
    assert json.loads(json.dumps(gpio_bench.driver.describe()))["kind"] == "gpio"


async def test_the_pump_runs_beside_the_chip_and_ends_or_can_be_cancelled(gpio_bench):
    with trio.move_on_after(0):
        await gpio_bench.driver.pump()
