"""The contract of every GPIO driver; `gpio_bench` gives one implementation after the other."""

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


async def test_get_reads_the_level_of_the_line_with_any_driver(gpio_bench, transact):
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
    assert (await one.receive()).value == (await other.receive()).value == 1
    await transact(driver, lambda d: d.unwatch(one))
    gpio_bench.push(line, 0)
    gpio_bench.push(line, 1)
    assert (await other.receive()).seq == 2


async def test_a_watch_on_a_line_that_is_driven_reports_the_changes(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    await transact(driver, lambda d: d.set(line, 1))
    await transact(driver, lambda d: d.set(line, 0))
    assert [(await watch.receive()).value for _ in range(2)] == [1, 0]


async def test_a_receiver_wakes_for_an_edge_that_comes_while_it_waits(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    seen = []

    async def receive():
        seen.append(await watch.receive())

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
    with trio.fail_after(60), pytest.raises(DeviceError, match="ended"):
        await watch.receive()


async def test_closing_the_chip_ends_its_watches_and_says_that_nothing_was_done(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    driver.close()
    with trio.fail_after(60), pytest.raises(DeviceError) as caught:
        await watch.receive()
    assert caught.value.data["effect"] == "none"
    await transact(driver, lambda d: d.unwatch(watch))


async def test_make_safe_brings_lines_to_the_profiles_state_and_leaves_those_that_are_kept(gpio_bench, transact):
    driver = gpio_bench.driver
    for line, value in ((gpio_bench.line, 1), (gpio_bench.other, 0), (6, 1)):
        await transact(driver, lambda d, line=line, value=value: d.set(line, value))
    lines = [gpio_bench.line, gpio_bench.other, 6]
    done = await transact(driver, lambda d: gpio_bench.guarded(d).make_safe(lines))
    assert [(entry["line"], entry["safe"]) for entry in done] == [(gpio_bench.line, "input"), (gpio_bench.other, 1)]
    assert gpio_bench.seen(gpio_bench.other) == 1
    assert gpio_bench.seen(6) == 1
    gpio_bench.push(gpio_bench.line, 0)
    assert gpio_bench.seen(gpio_bench.line) == 0


async def test_the_pump_returns_when_the_chip_is_closed(gpio_bench):
    driver = gpio_bench.driver
    driver.close()
    # The bench's own pump goes first: a descriptor has one waiter.
    await trio.testing.wait_all_tasks_blocked()
    driver.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.pump)
        await trio.testing.wait_all_tasks_blocked()
        driver.close()


# --- what the kernel's own lines taught -------------------------------------------------------------------------------

ACTIVE_LOW, DEBOUNCED, PULLED_UP, INITIAL = 7, 8, 9, 10


async def test_a_line_that_is_active_low_is_low_when_it_is_set_to_one(gpio_bench, transact):
    driver = gpio_bench.driver
    assert await transact(driver, lambda d: d.set(ACTIVE_LOW, 1)) == "input"
    assert gpio_bench.seen(ACTIVE_LOW) == 0
    assert await transact(driver, lambda d: d.get(ACTIVE_LOW)) == 1
    assert await transact(driver, lambda d: d.set(ACTIVE_LOW, 0)) == 1
    assert gpio_bench.seen(ACTIVE_LOW) == 1
    assert await transact(driver, lambda d: d.get(ACTIVE_LOW)) == 0


async def test_an_input_that_is_active_low_reads_one_when_it_is_low_and_its_edges_agree(gpio_bench, transact):
    driver = gpio_bench.driver
    gpio_bench.push(ACTIVE_LOW, 1)
    assert await transact(driver, lambda d: d.get(ACTIVE_LOW)) == 0
    rising = await transact(driver, lambda d: d.watch(ACTIVE_LOW, "rising"))
    both = await transact(driver, lambda d: d.watch(ACTIVE_LOW, "both"))
    gpio_bench.push(ACTIVE_LOW, 0)
    assert await transact(driver, lambda d: d.get(ACTIVE_LOW)) == 1
    gpio_bench.push(ACTIVE_LOW, 1)
    gpio_bench.push(ACTIVE_LOW, 0)
    assert [(await both.receive()).edge for _ in range(3)] == ["rising", "falling", "rising"]
    assert [(await rising.receive()).value for _ in range(2)] == [1, 1]


async def test_driving_a_watched_line_that_is_active_low_reports_logical_edges(gpio_bench, transact):
    driver = gpio_bench.driver
    gpio_bench.push(ACTIVE_LOW, 1)
    watch = await transact(driver, lambda d: d.watch(ACTIVE_LOW, "both"))
    for level in (1, 0):
        await transact(driver, lambda d, level=level: d.set(ACTIVE_LOW, level))
    assert [(await watch.receive()).edge for _ in range(2)] == ["rising", "falling"]


async def test_a_debounced_line_reports_a_contact_that_stays(gpio_bench, transact):
    driver = gpio_bench.driver
    watch = await transact(driver, lambda d: d.watch(DEBOUNCED, "both"))
    for level in (1, 0):
        gpio_bench.push(DEBOUNCED, level)
        assert (await watch.receive()).value == level
        assert await transact(driver, lambda d: d.get(DEBOUNCED)) == level
    assert watch.dropped == 0


async def test_a_pull_is_what_an_input_reads_while_nothing_drives_it(gpio_bench, transact):
    assert await transact(gpio_bench.driver, lambda d: d.get(PULLED_UP)) == 1
    gpio_bench.push(PULLED_UP, 0)
    assert await transact(gpio_bench.driver, lambda d: d.get(PULLED_UP)) == 0


async def test_a_line_with_an_initial_level_is_driven_from_the_moment_the_chip_opens(gpio_bench, transact):
    driver = gpio_bench.driver
    assert gpio_bench.seen(INITIAL) == 1
    assert await transact(driver, lambda d: d.set(INITIAL, 0)) == 1
    driver.close()
    driver.open()
    assert gpio_bench.seen(INITIAL) == 1


async def test_opening_a_chip_touches_no_line_that_has_no_initial_level(gpio_bench, transact):
    gpio_bench.driver.close()
    gpio_bench.push(gpio_bench.line, 1)
    gpio_bench.driver.open()
    assert gpio_bench.seen(gpio_bench.line) == 1
    assert await transact(gpio_bench.driver, lambda d: d.set(gpio_bench.line, "input")) == "input"


async def test_the_former_state_goes_back_what_was_an_input_and_what_was_an_output(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    await transact(driver, lambda d: d.get(line))
    former = await transact(driver, lambda d: d.set(line, 1))
    assert former == "input"
    assert await transact(driver, lambda d: d.set(line, former)) == 1
    assert await transact(driver, lambda d: d.set(line, 0)) == "input"
    assert await transact(driver, lambda d: d.set(line, 1)) == 0


async def test_a_state_that_is_none_is_refused_without_effect(gpio_bench, transact):
    await transact(gpio_bench.driver, lambda d: d.set(gpio_bench.line, 1))
    for state in (2, "output", None):
        with pytest.raises(DeviceError, match="no such state") as caught:
            await transact(gpio_bench.driver, lambda d, state=state: d.set(gpio_bench.line, state))
        assert caught.value.data["effect"] == "none"
    assert gpio_bench.seen(gpio_bench.line) == 1


async def test_a_watch_outlives_the_line_being_driven_and_let_go(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    gpio_bench.push(line, 1)
    assert (await watch.receive()).value == 1
    gpio_bench.push(line, None)
    assert (await watch.receive()).value == 0
    await transact(driver, lambda d: d.set(line, 1))
    assert (await watch.receive()).value == 1
    await transact(driver, lambda d: d.set(line, 0))
    await transact(driver, lambda d: d.set(line, "input"))
    assert (await watch.receive()).value == 0
    gpio_bench.push(line, 1)
    assert [(edge := await watch.receive()).value, edge.seq] == [1, 5]


async def test_a_watch_on_a_line_that_is_already_driven_reports_the_changes(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    await transact(driver, lambda d: d.set(line, 1))
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    for level in (1, 0, 0, 1):
        await transact(driver, lambda d, level=level: d.set(line, level))
    assert [(await watch.receive()).value for _ in range(2)] == [0, 1]
    await transact(driver, lambda d: d.unwatch(watch))
    with trio.fail_after(60), pytest.raises(DeviceError, match="ended"):
        await watch.receive()


async def test_a_new_watch_is_not_told_of_edges_that_came_before_it(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    first = await transact(driver, lambda d: d.watch(line, "both"))
    gpio_bench.push(line, 1)
    second = await transact(driver, lambda d: d.watch(line, "both"))
    gpio_bench.push(line, 0)
    assert [(await first.receive()).value for _ in range(2)] == [1, 0]
    assert [(edge := await second.receive()).value, edge.seq] == [0, 1]


async def test_a_line_that_is_made_safe_while_it_is_watched_goes_on_being_watched(gpio_bench, transact):
    driver, line = gpio_bench.driver, gpio_bench.line
    watch = await transact(driver, lambda d: d.watch(line, "both"))
    await transact(driver, lambda d: d.set(line, 1))
    await transact(driver, lambda d: gpio_bench.guarded(d).make_safe([line]))
    gpio_bench.push(line, 1)
    gpio_bench.push(line, 0)
    gpio_bench.push(line, 1)
    values = [(await watch.receive()).value]
    while len(values) < 3 or values[-2:] != [0, 1]:
        values.append((await watch.receive()).value)
    assert values[0] == 1
