"""gpio.get, gpio.set, gpio.watch and gpio.pulse on the simulated board."""

import pytest
import trio
import trio.testing

from hearth.errors import DeviceError, InvalidParams, PermissionDenied, TimedOut


def late(context):
    """A context whose first transaction is done, and reported as having taken longer than its limit."""
    real = context.transact

    async def transact(op, **more):
        value = await real(op, **more)
        if len(context.limits) == 1:
            raise TimedOut("too late", effect="done")
        return value

    context.transact = transact
    return context


@pytest.fixture
def chip(bench):
    return bench.driver("gpio:sim")


async def test_set_drives_the_line_and_get_reads_it_at_the_far_end_of_the_wire(bench):
    assert await bench.run("gpio.set", line=17, value=1) == {"line": 17, "value": 1}
    assert await bench.run("gpio.get", line=27) == {"line": 27, "value": 1}
    assert await bench.run("gpio.set", line="LED", value=0) == {"line": "LED", "value": 0}
    assert await bench.run("gpio.get", line="GPIO27", chip="sim") == {"line": "GPIO27", "value": 0, "chip": "sim"}


async def test_whole_numbers_written_as_floats_mean_the_same(bench):
    assert repr(await bench.run("gpio.set", line=17.0, value=1.0)) == "{'line': 17, 'value': 1}"


async def test_set_names_the_line_it_drives_so_that_it_can_be_brought_to_its_safe_state(bench, make_context, chip):
    context = make_context(chip)
    await bench.run("gpio.set", context=context, line="LED", value=1)
    await bench.run("gpio.get", context=context, line=17)
    assert context.drives == [17]


@pytest.mark.parametrize("before", ["input", 0, 1])
async def test_the_undo_of_a_set_restores_what_the_line_was(bench, chip, transact, before):
    chip.set(17, before)
    done = await bench.done("gpio.set", line=17, value=1)
    assert chip.state(17) == 1
    assert done.undo.describe == f"gpio line 17 of sim back to {'an input' if before == 'input' else before}"
    await transact(chip, done.undo.op)
    assert chip.state(17) == before


@pytest.mark.parametrize("tool", ["gpio.get", "gpio.set", "gpio.pulse", "gpio.watch"])
async def test_a_line_or_chip_that_is_not_there_is_refused_before_anything_runs(bench, tool):
    bus = bench.tools[tool].bus
    assert bus({"line": 17}) == bus({"line": "LED", "chip": "sim"}) == "gpio:sim"
    for args in ({"line": 99}, {"line": "X"}, {"line": 17, "chip": "gpiochip0"}):
        with pytest.raises(InvalidParams):
            bus(args)


@pytest.fixture
def strict_bench(make_board_bench):
    names = {"names": ["EYE", "WATCHDOG", "FREE"]}
    lines = {"EYE": {"direction": "input"}, "WATCHDOG": {"reserved": "the watchdog"}}
    chip = {"label": "strict", "driver": "sim", "lines": lines, **names}
    return make_board_bench({"name": "strict", "description": "strict", "gpio": [chip]})


def test_an_input_and_a_reserved_line_are_denied(strict_bench):
    tools = strict_bench.tools
    assert tools["gpio.get"].bus({"line": "EYE"}) == tools["gpio.set"].bus({"line": "FREE"}) == "gpio:strict"
    for tool, line in (("gpio.set", "EYE"), ("gpio.pulse", 0), ("gpio.set", 1), ("gpio.get", 1), ("gpio.watch", 1)):
        with pytest.raises(PermissionDenied):
            tools[tool].bus({"line": line})


async def test_a_pulse_is_as_long_as_asked_and_leaves_the_line_as_it_was(bench, chip, autojump_clock):
    start = trio.current_time()
    result = await bench.run("gpio.pulse", line="LED", value=1, duration_ms=250)
    assert result == {"line": "LED", "value": 1, "duration_ms": 250, "restored": True}
    assert trio.current_time() - start == pytest.approx(0.25)
    assert chip.state(17) == "input"


@pytest.mark.parametrize("before", ["input", 0, 1])
async def test_a_pulse_that_is_cancelled_brings_the_line_back_at_once(bench, chip, make_context, before):
    chip.set(17, before)
    context = make_context(chip)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.run("gpio.pulse", context=context, line=17, value=1, duration_ms=60_000))
        await trio.testing.wait_all_tasks_blocked()
        assert chip.state(17) == 1
        nursery.cancel_scope.cancel()
    assert chip.state(17) == before
    assert context.must_runs == 1
    assert (context.borrows, context.gives_back, context.drives) == ([17], [17], [])


async def test_a_pulse_cancelled_while_it_waits_for_its_turn_never_begins(bench, chip, make_context):
    context = make_context(chip)
    async with trio.open_nursery() as nursery:
        await context.lock.acquire()
        nursery.start_soon(lambda: bench.run("gpio.pulse", context=context, line=17, value=1, duration_ms=1))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    context.lock.release()
    assert chip.state(17) == "input"
    assert context.must_runs == 0


async def test_overlapping_pulses_leave_the_line_as_it_was_before_the_first(bench, chip, autojump_clock):
    results = []

    async def pulse(delay, value, duration_ms):
        await trio.sleep(delay)
        results.append(await bench.run("gpio.pulse", line=17, value=value, duration_ms=duration_ms))

    levels = []

    async def look(at):
        await trio.sleep(at)
        levels.append(chip.state(17))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulse, 0.0, 1, 100)
        nursery.start_soon(pulse, 0.05, 1, 100)
        nursery.start_soon(pulse, 0.07, 1, 10)
        for at in (0.06, 0.09, 0.12, 0.16):
            nursery.start_soon(look, at)
    assert levels == [1, 1, 1, "input"]
    assert [result["restored"] for result in results] == [False, False, True]


@pytest.mark.parametrize("value", [0, 1])
async def test_a_line_that_is_set_during_a_pulse_stays_as_it_was_set(bench, chip, autojump_clock, value):
    async with trio.open_nursery() as nursery:

        async def pulse():
            result = await bench.run("gpio.pulse", line=17, value=1, duration_ms=100)
            assert not result["restored"]

        nursery.start_soon(pulse)
        await trio.sleep(0.05)
        await bench.run("gpio.set", line=17, value=value)
    assert chip.state(17) == value


async def test_taking_a_set_back_names_the_line_it_drives(bench, chip):
    # Its session may have ended, with the line in its safe state already: then it must be brought there once more.
    done = await bench.done("gpio.set", line=17, value=1)
    assert done.undo.drives == 17
    assert chip.state(17) == 1


async def test_undoing_a_set_made_during_a_pulse_does_not_bring_the_pulse_back(bench, chip, transact, autojump_clock):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.run("gpio.pulse", line=17, value=1, duration_ms=100))
        await trio.sleep(0.05)
        done = await bench.done("gpio.set", line=17, value=1)
    await transact(chip, done.undo.op)
    assert chip.state(17) == "input"


async def test_a_pulse_after_one_that_was_overridden_counts_for_itself(bench, chip, autojump_clock):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.run("gpio.pulse", line=17, value=1, duration_ms=100))
        await trio.sleep(0.05)
        await bench.run("gpio.set", line=17, value=0)
        nursery.start_soon(lambda: bench.run("gpio.pulse", line=17, value=1, duration_ms=100))
        await trio.sleep(0.07)
        assert chip.state(17) == 1  # the first has ended and left it alone
    assert chip.state(17) == 0


async def test_a_line_that_is_set_during_a_pulse_on_another_is_none_of_its_business(bench, chip, autojump_clock):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.run("gpio.pulse", line=17, value=1, duration_ms=100))
        await trio.sleep(0.05)
        for _ in range(3):
            done = await bench.done("gpio.set", line=18, value=1)
            chip.set(18, 0)
        assert done.undo.describe.endswith("back to 0")
    assert (chip.state(17), chip.state(18)) == ("input", 0)


async def test_a_pulse_that_cannot_begin_changes_nothing(bench, chip):
    chip.fail(1)
    with pytest.raises(DeviceError):
        await bench.run("gpio.pulse", line=17, value=1, duration_ms=1)
    assert chip.state(17) == "input"


async def test_a_pulse_whose_beginning_took_too_long_is_ended_at_once(bench, chip, make_context):
    context = late(make_context(chip))
    with pytest.raises(TimedOut):
        await bench.run("gpio.pulse", context=context, line=17, value=1, duration_ms=60_000)
    assert (chip.state(17), context.must_runs) == ("input", 1)


async def test_a_watch_whose_beginning_took_too_long_is_ended_at_once(bench, chip, make_context):
    context = late(make_context(chip))
    with pytest.raises(TimedOut):
        await bench.run("gpio.watch", context=context, line=17)
    assert not chip._all[17].watches


async def test_a_watch_that_cannot_begin_leaves_nothing_to_end(bench, chip, make_context):
    context = make_context(chip)
    chip.fail(1)
    with pytest.raises(DeviceError):
        await bench.run("gpio.watch", context=context, line=17)
    assert context.must_runs == 0


async def test_a_pulse_that_cannot_restore_says_so_and_the_next_one_still_knows_the_state(bench, chip, autojump_clock):
    async with trio.open_nursery() as nursery:

        async def pulse():
            with pytest.raises(DeviceError):
                await bench.run("gpio.pulse", line=17, value=1, duration_ms=100)

        nursery.start_soon(pulse)
        await trio.sleep(0.05)
        chip.fail(1)
    assert chip.state(17) == 1
    await bench.run("gpio.pulse", line=17, value=1, duration_ms=1)
    assert chip.state(17) == "input"


async def test_a_watch_returns_its_edges_and_publishes_each_as_it_comes(bench, chip, make_context):
    context, results = make_context(chip), []

    async def watch():
        results.append(
            await bench.run("gpio.watch", context=context, line="GPIO27", edge="both", count=3, timeout_ms=60_000)
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        for n, value in enumerate((1, 0, 1)):
            assert len(context.published) == n
            await bench.run("gpio.set", line=17, value=value)
            await trio.testing.wait_all_tasks_blocked()
    (result,) = results
    assert (result["line"], result["chip"], result["timed_out"], result["dropped"]) == ("GPIO27", "sim", False, 0)
    assert [(edge["value"], edge["edge"], edge["seq"]) for edge in result["edges"]] == [
        (1, "rising", 1),
        (0, "falling", 2),
        (1, "rising", 3),
    ]
    assert context.published == [{"line": "GPIO27", **edge} for edge in result["edges"]]


async def test_a_watch_does_not_occupy_the_bus(bench, chip, make_context):
    context = make_context(chip)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.run("gpio.watch", context=context, line=27, timeout_ms=60_000))
        await trio.testing.wait_all_tasks_blocked()
        assert not context.lock.locked()
        await bench.run("gpio.set", line=17, value=1)


async def test_a_watch_ends_at_its_timeout_with_what_it_has(bench, autojump_clock):
    start = trio.current_time()
    result = await bench.run("gpio.watch", line=27, edge="rising", count=2, timeout_ms=1500)
    assert trio.current_time() - start == pytest.approx(1.5)
    assert (result["edges"], result["timed_out"]) == ([], True)


async def test_the_defaults_of_a_watch_are_one_edge_of_any_kind_within_ten_seconds(bench, autojump_clock):
    start = trio.current_time()
    assert (await bench.run("gpio.watch", line=27))["timed_out"]
    assert trio.current_time() - start == pytest.approx(10)


async def test_a_watch_reports_what_was_dropped(bench, chip, make_context, monkeypatch):
    real = chip.watch

    def small(line, edge):
        watch = real(line, edge)
        watch._capacity = 2
        for n in range(5):
            chip.push(line, 1 - n % 2)
        return watch

    monkeypatch.setattr(chip, "watch", small)
    result = await bench.run("gpio.watch", line=3, edge="both", count=2, timeout_ms=60_000)
    assert [edge["seq"] for edge in result["edges"]] == [4, 5]
    assert result["dropped"] == 3


@pytest.mark.parametrize("how", ["cancelled", "timed out", "done"])
async def test_a_watch_is_ended_on_the_chip_however_its_step_ends(bench, chip, how):
    async with trio.open_nursery() as nursery:
        timeout = 1 if how == "timed out" else 60_000
        nursery.start_soon(lambda: bench.run("gpio.watch", line=27, timeout_ms=timeout))
        await trio.testing.wait_all_tasks_blocked()
        assert chip._all[27].watches or how == "timed out"
        if how == "cancelled":
            nursery.cancel_scope.cancel()
        chip.push(17, 1)
    assert not chip._all[27].watches


async def test_a_watch_whose_chip_is_closed_fails_with_a_device_error(bench, chip, make_context):
    context = make_context(chip)
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(DeviceError, match="closed")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bench.run("gpio.watch", context=context, line=27, timeout_ms=60_000))
            await trio.testing.wait_all_tasks_blocked()
            chip.close()
    assert context.must_runs == 0, "there is nothing left to end, and its turn would come when the chip is back"


async def test_the_tools_speak_of_a_line_that_is_active_low_as_its_logic_has_it(make_board_bench):
    lines = {"VALVE": {"active_low": True, "safe": 0}}
    content = {"label": "c", "driver": "sim", "names": ["VALVE"], "lines": lines}
    bench = make_board_bench({"name": "logic", "description": "logic", "gpio": [content]})
    chip = bench.driver("gpio:c")
    chip.open()
    chip.push(0, 1)
    assert (await bench.run("gpio.get", line="VALVE"))["value"] == 0
    chip.let_go(0)
    done = await bench.done("gpio.set", line="VALVE", value=0)
    assert chip.level(0) == 1
    async with trio.open_nursery() as nursery:

        async def pulse():
            await bench.run("gpio.pulse", line="VALVE", value=1, duration_ms=1)

        edges = []

        async def watch():
            edges.extend((await bench.run("gpio.watch", line="VALVE", count=2))["edges"])

        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(pulse)
    assert [edge["edge"] for edge in edges] == ["rising", "falling"]
    done.undo.op(chip)
    assert chip.state(0) == "input"
    chip.close()
