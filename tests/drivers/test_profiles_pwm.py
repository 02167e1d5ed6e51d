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
