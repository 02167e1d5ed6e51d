"""What a call costs, by the machine's own meters."""

import pytest
import trio
from hypothesis import given, strategies as st

from hearth.actors.agentcard import MOST_FAILURES, EnergyMeter
from hearth.agentcard.build import (
    LEAST_INVOCATIONS,
    LEAST_S,
    LONGEST_GAP_S,
    LONGEST_S,
    PERIOD_S,
    CardSensor,
    EnergyCounter,
    EnergyPerInvocation,
    choose_meters,
)
from hearth.drivers.iio.kernel import KernelSensors

RAPL = EnergyCounter("powercap/intel-rapl-package-0/energy", 1000.0)
POWER = EnergyCounter("hwmon/ina226/power1")


def fed(meter, readings):
    """A sum after (seconds, value, invocations) readings."""
    energy = EnergyPerInvocation([meter])
    for at, value, count in readings:
        energy.reading(at, {meter.sensor: value}, count)
    return energy.measured


def every_period(until, value, count):
    return [(at, value(at), count(at)) for at in (PERIOD_S * n for n in range(int(until / PERIOD_S) + 1))]


def test_a_counters_joules_are_divided_by_the_invocations_in_the_same_time():
    measured = fed(RAPL, every_period(LEAST_S, lambda at: at * 2 % 1000, lambda at: 50 + int(at)))
    assert measured.joules == pytest.approx(2.0), "2 W and one invocation a second, over a counter that began again"
    assert (measured.seconds, measured.invocations) == (LEAST_S, int(LEAST_S))
    assert measured.sensor == RAPL.sensor


def test_power_is_summed_over_time():
    measured = fed(POWER, every_period(LEAST_S, lambda at: 4.0 + at / LEAST_S, int))
    assert measured.joules == pytest.approx(4.5)


def test_too_short_a_window_or_too_few_invocations_give_no_figure():
    assert fed(RAPL, every_period(LEAST_S - PERIOD_S, lambda at: at % 1000, int)) is None
    assert fed(RAPL, every_period(LEAST_S, lambda at: at % 1000, lambda at: LEAST_INVOCATIONS - 1)) is None
    assert fed(RAPL, every_period(10 * LEAST_S, lambda at: at % 1000, lambda _at: 7)) is None


def test_what_is_between_two_readings_too_far_apart_is_thrown_away():
    first = every_period(LEAST_S - PERIOD_S, lambda _at: 10.0, int)
    asleep = LONGEST_GAP_S + LEAST_S
    later = [(at + asleep, value, count + 1_000_000) for at, value, count in first]
    assert fed(POWER, [*first, *later]) is None
    again = [(at + asleep, value, count) for at, value, count in every_period(LEAST_S, lambda _at: 10.0, int)]
    assert fed(POWER, [*first, *again]).joules == pytest.approx(10.0)


def test_a_window_ends_and_its_figure_stays_until_the_next_has_one():
    busy = every_period(LONGEST_S, lambda _at: 10.0, lambda at: int(at * 10))
    energy = EnergyPerInvocation([POWER])
    for at, value, count in busy:
        energy.reading(at, {POWER.sensor: value}, count)
    assert energy.measured.joules == pytest.approx(1.0)
    for at, value, _ in every_period(LEAST_S, lambda _at: 20.0, lambda _at: 0)[1:]:
        energy.reading(LONGEST_S + at, {POWER.sensor: value}, int(LONGEST_S * 10 + at * 10))
    assert energy.measured.joules == pytest.approx(2.0, rel=0.05)


def test_a_reading_that_failed_begins_a_new_window():
    energy = EnergyPerInvocation([POWER])
    for at, value, count in every_period(LEAST_S - PERIOD_S, lambda _at: 10.0, int):
        energy.reading(at, {POWER.sensor: value}, count)
    energy.broken()
    energy.reading(LEAST_S, {POWER.sensor: 10.0}, 10_000)
    assert energy.measured is None


@pytest.mark.proof
@given(st.lists(st.floats(0, 999), min_size=25, max_size=60))
def test_no_reading_of_a_counter_makes_energy_negative(values):
    measured = fed(RAPL, [(PERIOD_S * n, value, n * 10) for n, value in enumerate(values)])
    assert measured is not None
    assert measured.joules >= 0


def sensor(name, kind="energy", unit="joule", top=1000.0, **more):
    return CardSensor(name, kind, unit, top, **more)


PACKAGES = [sensor(f"powercap/intel-rapl-package-{n}/energy") for n in (0, 1)]
PARTS = [sensor("powercap/intel-rapl-package-0-core/energy"), sensor("powercap/intel-rapl-package-0-dram/energy")]
INA = sensor("hwmon/ina226-i2c-1-40/power1", "power", "watt", None)


@pytest.mark.parametrize(
    ("sensors", "chosen"),
    [
        ([], []),
        ([*PARTS, *PACKAGES, INA], PACKAGES),
        ([*PACKAGES, sensor("powercap/intel-rapl-psys/energy")], [sensor("powercap/intel-rapl-psys/energy")]),
        ([INA], [INA]),
        ([*PARTS, INA], [INA]),
        ([INA, sensor("hwmon/gpu/power1", "power", "watt", None)], []),
        ([sensor("powercap/intel-rapl-package-0/energy", readable=False), INA], [INA]),
        ([sensor("powercap/intel-rapl-package-0/energy", top=None)], []),
        ([sensor("power_supply/BAT0/energy_now", top=None)], []),
    ],
)
def test_the_meters_of_the_whole_machine_are_chosen_or_none(sensors, chosen):
    assert choose_meters(sensors) == [EnergyCounter(each.name, each.top) for each in chosen]


@pytest.fixture
def counter(tmp_path):
    """A kernel's RAPL counter, as files."""
    domain = tmp_path / "class/powercap/intel-rapl:0"
    domain.mkdir(parents=True)
    (domain / "name").write_text("package-0\n")
    (domain / "max_energy_range_uj").write_text("262143328850\n")
    (domain / "energy_uj").write_text("0\n")
    return domain / "energy_uj"


async def test_the_kernels_counter_is_read_by_the_real_driver(tmp_path, counter):
    now = 0.0
    told = trio.Event()
    calls = 0

    async def on(_seconds):
        nonlocal now, calls
        now += PERIOD_S
        calls += 30
        counter.write_text(f"{int(now * 3 * 1_000_000)}\n")
        if meter.measured() is not None:
            told.set()
        await trio.lowlevel.checkpoint()

    meter = EnergyMeter(KernelSensors(sys=tmp_path), lambda: calls, clock=lambda: now, pause=on)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.run)
        await told.wait()
        nursery.cancel_scope.cancel()
    assert meter.measured().joules == pytest.approx(3.0)
    assert meter.measured().sensor == "powercap/intel-rapl-package-0/energy"


async def test_a_machine_without_meters_is_left_alone(tmp_path):
    paused = []

    async def on(seconds):
        paused.append(seconds)
        await trio.lowlevel.checkpoint()

    meter = EnergyMeter(KernelSensors(sys=tmp_path), lambda: 0, pause=on)
    await meter.run()
    await EnergyMeter(None, lambda: 0, pause=on).run()
    assert meter.measured() is None
    assert paused == [PERIOD_S], "it is looked for meters once, and not while the daemon starts"


async def test_a_meter_that_goes_away_is_given_up(tmp_path, counter, caplog):
    waits = 0

    async def on(_seconds):
        nonlocal waits
        waits += 1
        if waits == 2:
            counter.unlink()
        await trio.lowlevel.checkpoint()

    await EnergyMeter(KernelSensors(sys=tmp_path), lambda: 0, pause=on).run()
    assert waits == MOST_FAILURES + 1
    assert "energy is no longer measured" in caplog.text


async def test_sensors_that_cannot_be_listed_are_told_and_end_nothing(caplog):
    class Broken:
        def scan(self, most=None):
            raise OSError(5, f"Input/output error, most {most}")

        def read(self, name):
            raise AssertionError(name)

    async def on(_seconds):
        await trio.lowlevel.checkpoint()

    await EnergyMeter(Broken(), lambda: 0, pause=on).run()
    assert "the sensors cannot be listed" in caplog.text
