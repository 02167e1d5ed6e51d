"""What the simulated chip adds to the contract: electricity, faults, and a world outside."""

import os

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from support import guarded

from hearth.drivers.gpio.driver import Watch
from hearth.drivers.gpio.sim import SimGpio
from hearth.drivers.gpio.spec import LineSpec
from hearth.drivers.simulated import Tank
from hearth.errors import DeviceError


@pytest.fixture
def make_chip():
    chips = []

    def make(*specs, wires=(), **more):
        lines = specs or [LineSpec(n, f"GPIO{n}") for n in range(6)]
        chip = SimGpio("sim", lines, wires=wires, **more)
        chip.open()
        chips.append(chip)
        return chip

    yield make
    for chip in chips:
        chip.close()


def test_what_is_driven_on_one_end_of_a_wire_is_seen_on_the_other(make_chip):
    chip = make_chip(wires=[(1, 2)])
    chip.set(1, 1)
    assert (chip.get(2), chip.get(3)) == (1, 0)
    chip.set(1, 0)
    assert chip.get(2) == 0


def test_wires_join_into_one_net(make_chip):
    chip = make_chip(wires=[(0, 1), (2, 3), (1, 2), (0, 3)])
    chip.set(3, 1)
    assert [chip.get(line) for line in range(5)] == [1, 1, 1, 1, 0]
    assert chip.describe()["wires"] == [[0, 1, 2, 3]]


async def test_an_edge_is_seen_at_the_far_end_of_a_wire_with_the_clock_it_was_given(make_chip):
    chip = make_chip(wires=[(1, 2)], clock_ns=lambda: 12345)
    watch = chip.watch(2, "both")
    chip.set(1, 1)
    edge = await watch.receive()
    assert (edge.line, edge.value, edge.timestamp_ns) == (2, 1, 12345)


def test_wires_carry_voltages_and_lines_read_them_as_their_logic_has_it(make_chip):
    chip = make_chip(LineSpec(0, "A"), LineSpec(1, "B", active_low=True), wires=[(0, 1)])
    chip.set(0, 1)
    assert (chip.get(0), chip.get(1), chip.level(1)) == (1, 0, 1)
    chip.set(0, "input")
    chip.set(1, 1)
    assert (chip.get(0), chip.get(1), chip.state(1)) == (0, 1, 1)


def test_open_drain_outputs_share_a_wire_without_a_short(make_chip):
    lines = [LineSpec(n, name, drive="open-drain", pull="up") for n, name in enumerate("AB")]
    chip = make_chip(*lines, wires=[(0, 1)])
    assert [(chip.set(0, a), chip.set(1, b), chip.get(0)) for a, b in ((1, 1), (1, 0), (0, 0), (0, 1), (1, 1))] == [
        ("input", "input", 1),
        (1, 1, 0),
        (1, 0, 0),
        (0, 0, 0),
        (0, 1, 1),
    ]
    assert chip.shorts == 0


def test_an_open_drain_line_that_is_let_go_reads_what_the_world_makes_of_it(make_chip):
    chip = make_chip(LineSpec(0, "A", drive="open-drain", pull="up"))
    chip.set(0, 1)
    chip.push(0, 0)
    assert (chip.get(0), chip.state(0), chip.shorts) == (0, 1, 0)
    chip.let_go(0)
    assert chip.get(0) == 1


def test_an_open_source_line_drives_high_only(make_chip):
    chip = make_chip(LineSpec(0, "A", drive="open-source"))
    chip.set(0, 1)
    assert chip.get(0) == 1
    chip.set(0, 0)
    chip.push(0, 1)
    assert (chip.get(0), chip.shorts) == (1, 0)


def test_low_wins_over_high_and_is_counted_as_a_short(make_chip):
    chip = make_chip(wires=[(1, 2)])
    chip.set(1, 1)
    assert chip.shorts == 0
    chip.set(2, 0)
    assert (chip.get(1), chip.shorts) == (0, 1)
    chip.set(2, "input")
    assert (chip.get(1), chip.shorts) == (1, 1)


def test_a_pull_decides_only_where_nothing_drives(make_chip):
    chip = make_chip(LineSpec(0, "A", pull="up"), LineSpec(1, "B", pull="down"), LineSpec(2, "C"), wires=[(1, 2)])
    assert [chip.get(line) for line in range(3)] == [1, 0, 0]
    chip.set(0, 0)
    chip.push(1, 1)
    assert [chip.get(line) for line in range(3)] == [0, 1, 1]
    chip.set(0, "input")
    chip.let_go(1)
    assert [chip.get(line) for line in range(3)] == [1, 0, 0]


def test_pulls_against_each_other_read_low(make_chip):
    chip = make_chip(LineSpec(0, "A", pull="up"), LineSpec(1, "B", pull="down"), wires=[(0, 1)])
    assert chip.get(0) == 0


async def test_a_button_is_pushed_from_outside(make_chip):
    chip = make_chip(LineSpec(4, "BUTTON", pull="up"))
    watch = chip.watch(4, "falling")
    chip.push(4, 0)
    chip.push(4, 0)
    chip.let_go(4)
    chip.push(4, 0)
    assert [(await watch.receive()).seq for _ in range(2)] == [1, 2]


def test_a_contact_holds_its_line_from_the_beginning_until_it_opens(make_chip):
    chip = make_chip(LineSpec(0, "DOOR", pull="up"), contacts={0: 0})
    assert chip.get(0) == 0
    chip.let_go(0)
    assert chip.get(0) == 1


def test_a_load_follows_the_level_of_its_line_whatever_drives_it(make_chip):
    chip = make_chip(wires=[(1, 2)])
    seen = []
    chip.attach(2, seen.append)
    chip.set(1, 1)
    chip.set(1, 1)
    chip.push(2, 0)
    chip.let_go(2)
    chip.set(1, "input")
    assert seen == [1, 0, 1, 0]


@pytest.fixture
def panel(tmp_path):
    os.mkfifo(tmp_path / "panel")
    return str(tmp_path / "panel")


NAMES = {"DOOR": 0, "GPIO1": 1}


async def test_a_person_opens_and_closes_contacts_through_the_panel(make_chip, panel, nursery):
    chip = make_chip(LineSpec(0, "DOOR", pull="up"), LineSpec(1, "GPIO1"), contacts={0: 0}, panel=panel, names=NAMES)
    door, other = chip.watch(0, "both"), chip.watch(1, "both")
    nursery.start_soon(chip.pump)
    for order, watch, value in (("DOOR open\n", door, 1), ("DOOR  0\nGPIO1 1\n", door, 0), ("", other, 1)):
        # Open and closed again for each order, as by a shell's `echo`.
        await trio.Path(panel).write_text(order)
        assert (await watch.receive()).value == value


async def test_an_order_in_two_parts_is_one_and_a_wrong_one_is_logged_with_the_cure(make_chip, panel, nursery, caplog):
    chip = make_chip(panel=panel, names=NAMES)
    watch = chip.watch(1, "both")
    nursery.start_soon(chip.pump)
    for part in (b"DOR 1\n\xff\n\nDOOR 2\nGPI", b"O1 1\n"):
        await trio.Path(panel).write_bytes(part)
        await trio.testing.wait_all_tasks_blocked()
    assert (await watch.receive()).value == 1
    assert [record.args[1] for record in caplog.records] == ["DOR 1", "\ufffd", "", "DOOR 2"]
    assert "write a line's name and 0, 1 or open" in caplog.text


@pytest.mark.parametrize("kind", ["missing", "a file"])
def test_a_panel_that_is_no_named_pipe_is_refused_with_the_command_that_makes_one(tmp_path, kind):
    path = tmp_path / "panel"
    if kind == "a file":
        path.write_bytes(b"")
    chip = SimGpio("sim", [LineSpec(0, "DOOR")], panel=str(path), names=NAMES)
    with pytest.raises(DeviceError, match=f"gpio chip sim: panel {path}: .*; make it with `mkfifo {path}`"):
        chip.open()
    chip.close()


class Tub(Tank):
    """A tank whose time is set by hand."""

    def __init__(self, **given):
        self.now = 1000.0
        super().__init__(lambda: self.now, **{"start": 40.0, "fill": 5.0, "drain": 0.5, **given})

    def after(self, seconds):
        self.now += seconds
        return self()


def test_a_tank_fills_while_its_pump_runs_and_drains_all_the_time():
    tank = Tub()
    assert tank() == 40.0
    assert tank.after(10) == 35.0
    tank.pump(1)
    assert tank.after(10) == 80.0
    tank.pump(0)
    assert tank.after(2) == 79.0


def test_a_tank_overflows_when_full_and_does_not_go_below_empty():
    tank = Tub(drain=1.0)
    tank.pump(1)
    assert tank.after(1000) == 100.0
    tank.pump(0)
    assert tank.after(10) == 90.0
    assert tank.after(1000) == 0.0
    tank.put(7.0)
    assert tank.after(3) == 4.0


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([0, 1])), max_size=20))
def test_the_level_is_the_same_however_often_it_is_read(moments):
    watched, unwatched = Tub(), Tub()
    assert watched() == unwatched()
    for seconds, running in moments:
        for _ in range(4):
            watched.after(seconds / 4)
        unwatched.now += seconds
        watched.pump(running)
        unwatched.pump(running)
    assert watched() == pytest.approx(unwatched())


def test_setting_the_same_value_again_is_no_edge(make_chip):
    chip = make_chip()
    watch = chip.watch(1, "both")
    for value in (1, 1, 0, "input"):
        chip.set(1, value)
    assert [edge.value for edge in watch._edges] == [1, 0]


async def test_a_slow_watcher_loses_the_oldest_edges_and_is_told_how_many():
    watch = Watch(7, "both", capacity=3)
    for n in range(5):
        watch.feed(1 - n % 2, n)
    assert watch.dropped == 2
    assert [(await watch.receive()).seq for _ in range(3)] == [3, 4, 5]


async def test_edges_that_the_kernel_dropped_show_as_a_gap():
    watch = Watch(7, "both")
    watch.lost(4)
    watch.feed(1, 0)
    assert (await watch.receive()).seq == 5
    assert watch.dropped == 4


def test_a_closed_watch_keeps_its_first_reason_and_takes_no_more_edges():
    watch = Watch(7, "both")
    watch.close("first")
    watch.close("second")
    watch.feed(1, 0)
    assert watch._closed == "first"
    assert not watch._edges


def test_outputs_keep_their_level_while_the_chip_is_closed(make_chip):
    chip = make_chip()
    chip.set(1, 1)
    chip.close()
    assert (chip.level(1), chip.state(1)) == (1, 1)
    chip.open()
    assert chip.get(1) == 1


def test_a_state_that_does_not_exist_is_refused(make_chip):
    chip = make_chip()
    with pytest.raises(DeviceError, match="no such state"):
        chip.set(1, 2)
    assert chip.state(1) == "input"


@pytest.mark.parametrize("op", [lambda c: c.get(1), lambda c: c.set(1, 1), lambda c: c.watch(1, "both")])
def test_injected_faults_hit_as_often_as_asked_and_change_nothing(make_chip, op):
    chip = make_chip()
    chip.fail(2)
    for _ in range(2):
        with pytest.raises(DeviceError, match="injected") as caught:
            op(chip)
        assert caught.value.data["effect"] == "none"
    assert chip.state(1) == "input"
    op(chip)


def test_one_line_that_fails_does_not_keep_the_others_from_their_safe_state(make_chip):
    specs = [LineSpec(0, "A", safe=0), LineSpec(1, "B", safe=0)]
    chip = make_chip(*specs)
    chip.set(0, 1)
    chip.set(1, 1)
    chip.fail(1)
    reports = guarded.lines(chip, specs).make_safe([0, 1, "no line", 77])
    assert "injected" in reports[0]["error"]
    assert reports[1] == {"line": 1, "name": "B", "safe": 0}
    assert (chip.state(0), chip.state(1)) == (1, 0)


def test_ending_a_watch_of_another_chip_is_harmless(make_chip):
    watch = Watch(99, "both")
    make_chip().unwatch(watch)
    assert watch._closed is not None
