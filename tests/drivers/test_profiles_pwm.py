"""The tables [[pwm]] of a board profile: what they mean, and the mistakes that are told with their place and cure."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hearth.drivers.boards import load_profile
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.pwm.driver import ChannelSpec, ServoSpec, Wave
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError

HEAD = {"name": "bench", "description": "a bench"}
DOOR = {"label": "cell", "driver": "sim", "names": ["DOOR"]}


def profile(*chips, **more):
    return parse_profile({**HEAD, "pwm": list(chips), **more}, "p")


def chip(label="a", channels=("A",), driver="sim", **more):
    return {"label": label, "driver": driver, "channels": list(channels), **more}


def faults(*chips, **more):
    with pytest.raises(ConfigError) as caught:
        profile(*chips, **more)
    return str(caught.value).removeprefix("p: ").split("\np: ")


def test_channels_have_their_numbers_by_their_places() -> None:
    [found] = profile(chip(channels=["", "FAN", "GRIP"], channel={
        "FAN": {"period_us": 40, "limit": {"max": 0.5}},
        "GRIP": {"servo": {"min_us": 500, "max_us": 2_500, "slew": 10}, "safe": 90},
    })).of("pwm")  # fmt: skip
    assert found.bus == "pwm:a"
    assert found.channels == (
        ChannelSpec(1, "FAN", 40, limit=SignalLimit(max=0.5)),
        ChannelSpec(2, "GRIP", safe=90, servo=ServoSpec(500, 2_500, slew=10)),
    )
    assert found.channels[0].signal.limit == SignalLimit(0, 0.5)
    assert found.channels[1].signal.limit == SignalLimit(0, 180, 1.0, 10)


def test_a_servo_may_turn_the_other_way() -> None:
    servo = ServoSpec(2_000, 1_000, -45, 45)
    assert [servo.pulse_us(angle) for angle in (-45, 0, 45)] == [2_000, 1_500, 1_000]
    assert servo.angle(1_250) == 22.5
    assert ChannelSpec(0, "S", servo=servo).pulses(Wave(45, 20_000)).length_ns == 1_000_000


FAULTS = {
    "a period is missing": (chip(), "pwm[0].channel.A.period_us: missing; a channel needs one, and only a servo"),
    "a channel twice": (chip(channels=["A", "A"], channel={"A": {"period_us": 1}}), 'channels: "A" is there twice'),
    "no channel": (
        chip(channels=[""]),
        'pwm[0].channels: expected the names of up to 64 channels, by number; "" leaves',
    ),
    "an unknown channel": (
        chip(channel={"A": {"period_us": 1}, "B": {"period_us": 1}}),
        "channel.B: no such name under",
    ),
    "an overlay of a simulated chip": (
        chip(overlay="x", channel={"A": {"period_us": 1}}),
        "pwm[0].overlay: a simulated chip has none",
    ),
    "a limit without one": (
        chip(channel={"A": {"period_us": 1, "limit": {}}}),
        "A.limit: no limit; give one of min, max",
    ),
    "limits the wrong way": (
        chip(channel={"A": {"period_us": 1, "limit": {"min": 0.5, "max": 0.2}}}),
        "A.limit.min: 0.5 is greater than max = 0.2; exchange them",
    ),
    "an impossible duty": (
        chip(channel={"A": {"period_us": 1, "limit": {"max": 2}}}),
        'A.limit.max: 2 is impossible: a channel with unit = "duty" has 0 to 1',
    ),
    "an impossible pulse": (
        chip(channel={"A": {"period_us": 10, "unit": "us", "limit": {"max": 11}}}),
        'A.limit.max: 11 is impossible: a channel with unit = "us" has 0 to 10',
    ),
    "a period without itself": (
        chip(channel={"A": {"period_us": 10, "min_period_us": 20, "max_period_us": 30}}),
        "A.min_period_us: 20 excludes period_us = 10",
    ),
    "a safe value beyond the limits": (
        chip(channel={"A": {"period_us": 10, "safe": 0.9, "limit": {"max": 0.5}}}),
        'A.safe: 0.9 is beyond the channel\'s limits: its limits are 0 to 0.5 duty; give one within them, or "off"',
    ),
    "a safe pulse beyond the period": (
        chip(channel={"A": {"period_us": 10, "max_period_us": 50, "unit": "us", "safe": 20}}),
        "A.safe: pwm channel A: a pulse of 20 us does not fit into a period of 10 us",
    ),
    "a safe state that is none": (
        chip(channel={"A": {"period_us": 10, "safe": "input"}}),
        "A.safe: expected a number in",
    ),
    "a truth value as a safe state": (
        chip(channel={"A": {"period_us": 10, "safe": True}}),
        "A.safe: expected a number in",
    ),
    "a servo with the limits of a channel": (
        chip(channel={"A": {"limit": {"max": 1}, "unit": "us", "servo": {"min_us": 1, "max_us": 2}}}),
        "A.unit: a servo has none: its `servo` table has its angles",
    ),
    "a servo of one pulse": (
        chip(channel={"A": {"servo": {"min_us": 2, "max_us": 2}}}),
        "A.servo.max_us: 2 is the same as min_us",
    ),
    "a servo of no angle": (
        chip(channel={"A": {"servo": {"min_us": 1, "max_us": 2, "min_angle": 9, "max_angle": 9}}}),
        "A.servo.min_angle: 9 is not below max_angle = 9",
    ),
    "a servo without an end": (
        chip(channel={"A": {"servo": {"min_us": 1}}}),
        "A.servo.max_us: missing; it takes a number",
    ),
    "a pulse longer than the period": (
        chip(channel={"A": {"period_us": 1_000, "servo": {"min_us": 1, "max_us": 2_000}}}),
        "A.period_us: 1000 is shorter than the servo's longest pulse, 2000",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_is_told_with_its_place_and_cure(name) -> None:
    content, expected = FAULTS[name]
    assert any(expected in fault for fault in faults(content)), faults(content)


def test_two_chips_share_neither_label_nor_channel_names() -> None:
    one = chip(channel={"A": {"period_us": 1}})
    assert faults(one, one) == [
        'pwm[1].label: "a" is there twice',
        'pwm[1].channels: "A" is a channel of another chip already',
    ]


# --- interlocks -------------------------------------------------------------------------------------------------------

FAN = chip(channels=["FAN"], channel={"FAN": {"period_us": 40, "safe": 0.1}})
CLOSED = [{"line": "DOOR", "value": 0}]


def test_an_interlock_guards_a_part_of_a_channels_range() -> None:
    [lock] = profile(
        FAN, gpio=[DOOR], interlock=[{"drives": "FAN", "above": 0.5, "below": 0.05, "requires": CLOSED}]
    ).interlocks
    assert [lock.guards(level) for level in (0.5, 0.51, 0.05, 0.04, "off", None)] == [
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    assert (lock.bus, lock.output, lock.region) == ("pwm:a", 0, "below 0.05 or above 0.5")


LOCKS = {
    "a value of a channel": (
        {"drives": "FAN", "above": 0.5, "value": 1},
        "interlock[0].value: a channel has no level; `above` and `below` say",
    ),
    "neither": ({"drives": "DOOR"}, "interlock[0].value: missing; it takes 0 or 1 for a line; a channel takes"),
    "a safe value that is guarded": (
        {"drives": "FAN", "above": 0.05},
        "interlock[0].above: 0.1 is also the channel's safe state, to which an open interlock must bring it",
    ),
    "an unknown channel": (
        {"drives": "FUN", "above": 0.5},
        "interlock[0].drives: no pwm or dac channel is named \"FUN\"; did you mean 'FAN'?; `above` and",
    ),
}


@pytest.mark.parametrize("name", LOCKS)
def test_an_interlock_that_could_not_hold_is_refused(name) -> None:
    lock, expected = LOCKS[name]
    found = faults(FAN, gpio=[DOOR], interlock=[{**lock, "requires": CLOSED}])
    assert any(expected in fault for fault in found), found


@pytest.mark.parametrize("how", ["hold", "reserved"])
def test_a_channel_that_is_kept_or_reserved_has_no_interlock(how) -> None:
    more = {"hold": {"hold": "keep"}, "reserved": {"reserved": "the power supply's fan"}}[how]
    content = chip(channels=["FAN"], channel={"FAN": {"period_us": 40, **more}})
    [fault] = faults(content, gpio=[DOOR], interlock=[{"drives": "FAN", "above": 0.5, "requires": CLOSED}])
    assert "interlock[0].drives: channel" in fault


# --- the page and what is shipped -------------------------------------------------------------------------------------


def test_the_raspberry_pis_have_the_channels_of_their_overlay() -> None:
    four, five = load_profile("rpi4"), load_profile("rpi5")
    assert [(spec.label, spec.overlay, len(spec.channels)) for spec in (*four.of("pwm"), *five.of("pwm"))] == [
        ("fe20c000.pwm", "pwm-2chan", 2),
        ("1f00098000.pwm", "pwm-2chan", 4),
    ]


def test_the_tables_in_the_documentation_are_good_ones() -> None:
    page = Path(__file__).parents[2] / "docs/reference/boards.md"
    written = [block.partition("```")[0] for block in page.read_text("utf-8").split("```toml\n")[1:]]
    pwm, lock = (tomllib.loads(block) for block in written if "[[pwm]]" in block or '"GRIP"\nabove' in block)
    found = parse_profile({**HEAD, "gpio": [DOOR], **pwm, **lock}, "p")
    assert [channel.name for channel in found.of("pwm")[0].channels] == ["FAN", "ESC", "GRIP"]
    assert [channel.signal.unit for channel in found.of("pwm")[0].channels] == ["duty", "us", "degree"]
    assert found.interlocks[0].region == "below 10 or above 60"
