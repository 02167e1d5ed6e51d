"""What the shipped capabilities make of their readings, function by function."""

import csv
import io
import statistics
from datetime import UTC, datetime

import pytest

from hearth import CapabilityFailed, OutcomeUnknown
from hearth.hcp.capabilities import (
    bench_climate_survey as climate,
    gpio_self_test as gpio,
    host_health_report as health,
)

# --- bench-climate-survey -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (20.5, "celsius", "celsius", 20.5),
        (0.0, "celsius", "kelvin", 273.15),
        (-40.0, "celsius", "fahrenheit", -40.0),
        (100.0, "celsius", "fahrenheit", 212.0),
        (273.15, "kelvin", "celsius", 0.0),
        (32.0, "fahrenheit", "kelvin", 273.15),
        (0.0, "kelvin", "fahrenheit", -459.67),
    ],
)
def test_a_temperature_is_the_same_in_every_unit(value, source, target, expected):
    assert climate.converted(value, source, target) == pytest.approx(expected)


def readings(*values, every_s=1.0, unit="celsius"):
    return [
        climate.Reading(f"2026-01-01T00:00:{number:02}.000Z", number * every_s, value, unit)
        for number, value in enumerate(values)
    ]


def test_the_statistics_are_those_of_the_readings():
    found = climate.summary(readings(20.0, 21.0, 22.0, 23.0, every_s=2.0), "bench", "kelvin", 10)
    assert (found.sensor, found.unit, found.samples) == ("bench", "kelvin", 4)
    assert (found.min, found.mean, found.max) == (293.15, 294.65, 296.15)
    assert found.stddev == round(statistics.stdev([20, 21, 22, 23]), 4)
    assert found.trend_per_hour == pytest.approx(1800), "half a kelvin in a second"
    assert found.confidence == pytest.approx(1 - found.stddev / 10, abs=1e-4)
    assert (found.first_at, found.last_at) == ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:03.000Z")
    assert found.duration_s == 6


@pytest.mark.parametrize(("tolerance", "confidence"), [(0.1, 0), (1000, 1)])
def test_the_confidence_stays_between_0_and_1(tolerance, confidence):
    found = climate.summary(readings(20.0, 21.0), "bench", "celsius", tolerance)
    assert found.confidence == pytest.approx(confidence, abs=1e-3)


def test_readings_of_one_instant_have_no_trend():
    assert climate.summary(readings(20.0, 21.0, every_s=0), "bench", "celsius", 2).trend_per_hour is None


def test_the_file_has_a_header_and_a_line_for_each_reading():
    text = climate.csv_file(readings(20.0, -3.5))
    assert text.endswith("\r\n"), "RFC 4180"
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [
        ["at", "at_s", "value", "unit"],
        ["2026-01-01T00:00:00.000Z", "0.0", "20.0", "celsius"],
        ["2026-01-01T00:00:01.000Z", "1.0", "-3.5", "celsius"],
    ]


class Volts:
    """A job in which every sensor measures a voltage."""

    async def retry(self, _part, **_more):
        return {"value": 3.3, "unit": "volt"}


async def test_a_sensor_that_measures_no_temperature_fails_the_job_at_its_first_reading():
    with pytest.raises(CapabilityFailed, match="supply measures volt, which is not a temperature"):
        await climate.read(Volts(), "supply")


@pytest.mark.parametrize("module", [climate, gpio, health])
def test_an_instant_is_written_to_the_millisecond_in_utc(module):
    assert module.iso(datetime(2026, 4, 19, 22, 48, 1, 7999, UTC)) == "2026-04-19T22:48:01.007Z"


# --- gpio-self-test -------------------------------------------------------------------------------------------------

WIRES = [gpio.TestedWire("A", "IN_A"), gpio.TestedWire("A", "IN_B"), gpio.TestedWire("C", "IN_C")]


def trial(low="000", high="000", *, wire=WIRES[0], errors=()):
    """A wire's test: the levels of IN_A, IN_B and IN_C; "x" is one that cannot be read, "-" one that was not."""

    def levels(text):
        return [
            gpio.Level(wire.in_, None if level == "x" else int(level), 0.5, f"no {wire.in_}" if level == "x" else None)
            for wire, level in zip(WIRES, text, strict=True)
            if level != "-"
        ]

    return gpio.Trial(wire, levels(low), levels(high), list(errors))


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        (trial(high="110"), {"passed": True, "seen_by": ["IN_A", "IN_B"]}),
        (trial(high="100"), {"passed": True, "seen_by": ["IN_A"]}),
        (trial(high="000"), {"passed": False}),
        (trial(high="010"), {"passed": False, "seen_by": ["IN_B"]}),
        (trial(high="111"), {"passed": False, "seen_by": ["IN_A", "IN_B", "IN_C"], "unexpected": ["IN_C"]}),
        (trial("100", "100"), {"passed": False, "high_before": ["IN_A"]}),
        (trial("001", "101"), {"passed": True, "seen_by": ["IN_A"], "high_before": ["IN_C"]}),
        (trial("00x", "10-"), {"passed": True, "seen_by": ["IN_A"], "error": "no IN_C"}),
        (trial("x00", "-00"), {"passed": False, "error": "no IN_A"}),
        (trial("---", "---", errors=["busy"]), {"passed": False, "driven": False, "error": "busy"}),
        (trial(high="100", errors=["stuck"]), {"passed": True, "seen_by": ["IN_A"], "driven": False, "error": "stuck"}),
    ],
    ids=[
        "both of its inputs", "its own input", "no input", "another of its inputs", "one that is not wired to it",
        "its own that was high before", "one that was high before", "one that cannot be read", "its own cannot be read",
        "not driven", "not released",
    ],
)  # fmt: skip
def test_a_wire_passes_if_its_input_rises_with_its_output_and_no_other_does(tried, expected):
    found = gpio.judged(tried, WIRES)
    nothing = {"passed": False, "driven": True, "seen_by": [], "unexpected": [], "high_before": [], "error": None}
    assert {name: getattr(found, name) for name in nothing} == {**nothing, **expected}
    assert (found.out, found.in_) == ("A", "IN_A")


def test_a_self_test_passes_if_all_of_its_wires_do():
    good, bad = trial(high="100"), trial(high="001", wire=WIRES[2])
    assert gpio.summary(WIRES, [good, bad]).passed is True
    found = gpio.summary(WIRES, [good, trial(wire=WIRES[2])])
    assert (found.passed, found.wires, found.failed) == (False, 2, 1)


@pytest.mark.parametrize(
    ("wires", "shared", "both"),
    [
        ([("A", "B"), ("C", "D")], 0, 0),
        ([("A", "B"), ("A", "C")], 0, 0),
        ([("A", "B"), ("C", "B"), ("D", "B")], 2, 0),
        ([("A", "B"), ("B", "C")], 0, 1),
        ([("A", "A")], 0, 1),
    ],
)
def test_wires_that_would_drive_lines_against_each_other_are_counted(wires, shared, both):
    given = [gpio.TestedWire(*wire) for wire in wires]
    assert (gpio.inputs_of_two_outputs(given), gpio.inputs_that_are_also_outputs(given)) == (shared, both)


class CrashedWhileDriving:
    """A job that goes on after a crash in the middle of its first step."""

    def __init__(self):
        self.asked = []

    async def run(self, tool, **args):
        self.asked.append((tool, args))
        if len(self.asked) == 1:
            raise OutcomeUnknown("gpio.set")
        return {}


async def test_an_output_is_driven_again_if_nothing_says_whether_it_was():
    job, errors = CrashedWhileDriving(), []
    assert await gpio.drive(job, "A", 1, errors) is True
    assert job.asked == [("gpio.set", {"line": "A", "value": 1})] * 2
    assert errors == []


# --- host-health-report ---------------------------------------------------------------------------------------------

LIMITS = {
    "max_cpu_percent": 90,
    "max_memory_percent": 80.5,
    "max_disk_percent": 70,
    "max_celsius": 60,
    "max_load_per_core": 1.5,
}


def look(cpu=10.0, memory=20.0, load=0.5, heat=()):
    sample = {"at_s": 0.0, "cpu_percent": cpu, "memory_percent": memory, "load_1m_per_core": load, "sensors": []}
    return health.Look(sample, list(heat))


def disk(mount, used_percent, *, local=True, read_only=False):
    return {"mount": mount, "used_percent": used_percent, "local": local, "read_only": read_only}


@pytest.mark.parametrize(
    ("looks", "disks", "expected"),
    [
        ([look(), look()], [disk("/", 70)], []),
        ([look(cpu=None, memory=None)], [disk("/net", None, local=False)], []),
        ([look(cpu=80.0), look(cpu=None), look(cpu=100.111)], [], ["processor, on average: 90.06 is above 90"]),
        ([look(memory=81), look(memory=80)], [], ["main memory: 81 is above 80.5"]),
        ([look(load=1.0), look(load=2.0)], [], ["load for each core: 2.0 is above 1.5"]),
        ([look()], [disk("/", 71), disk("/cd", 99, read_only=True), disk("/net", 99, local=False), disk("/a", 80)],
         ["/: 71 is above 70", "/a: 80 is above 70"]),
        ([look(heat=[(59.0, "cpu")]), look(heat=[(61.0, "nvme"), (65.04, "cpu")])], [], ["cpu: 65.04 is above 60"]),
    ],
    ids=["none", "nothing known", "processor", "memory", "load", "disks", "the hottest"],
)  # fmt: skip
def test_a_finding_is_a_quantity_above_its_limit(looks, disks, expected):
    assert [finding.message for finding in health.findings(looks, disks, LIMITS)] == expected


def test_looks_come_to_a_mean_and_the_extremes_of_what_is_known():
    looks = [look(cpu=10.0, heat=[(40.0, "a"), (50.0, "b")]), look(cpu=None), look(cpu=30.333, heat=[(45.0, "a")])]
    found = health.watched(looks)
    assert found["cpu_percent"] == health.Course(20.17, 10.0, 30.333)
    assert found["celsius"] == health.Course(47.5, 45.0, 50.0)
    assert health.watched([look(cpu=None)])["cpu_percent"] is None
    assert health.watched([look()])["celsius"] is None


@pytest.mark.parametrize(("seconds", "expected"), [(2.0, 100.0), (3.0, 66.7), (0.0, None)])
def test_a_rate_is_the_growth_of_all_counters_but_loopbacks(seconds, expected):
    def interfaces(*counters):
        names = ("eth0", "wlan0", "usb0")
        real = [{"name": name, "loopback": False, "rx": one} for name, one in zip(names, counters, strict=True)]
        return [*real, {"name": "lo", "loopback": True, "rx": 10**6 * sum(filter(None, counters))}]

    results = {
        "before": {"at_s": 1.0, "interfaces": interfaces(0, 1000, None)},
        "after": {"at_s": 1.0 + seconds, "interfaces": interfaces(150, 1050, None)},
    }
    assert health.rate(results, "interfaces", "rx") == expected
