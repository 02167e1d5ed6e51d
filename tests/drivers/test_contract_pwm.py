"""The contract of every PWM driver; `pwm_bench` gives one implementation after the other."""

import pytest
from support import guarded

from hearth.drivers.pwm.driver import Wave
from hearth.errors import LimitViolated

PLAIN, SERVO, PULSE, KEPT, INVERSED = range(5)
PERIOD_US = 20_000


def near(bench, pulse_us):
    """The pulse that was asked for, or the next shorter one that the chip has."""
    return pytest.approx(pulse_us - bench.step_us / 2, abs=bench.step_us / 2 + 0.6)


async def test_a_channel_gives_out_its_share_of_the_period_and_set_returns_the_former_one(pwm_bench, transact):
    driver = pwm_bench.driver
    former = await transact(driver, lambda d: d.set(PLAIN, 0.25))
    assert former.value in ("off", 0)
    assert pwm_bench.pulse_us(PLAIN) == near(pwm_bench, 5_000)
    assert await transact(driver, lambda d: d.set(PLAIN, 0.5)) == Wave(0.25, PERIOD_US)
    assert pwm_bench.pulse_us(PLAIN) == near(pwm_bench, 10_000)
    assert await transact(driver, lambda d: d.set(PLAIN, 0)) == Wave(0.5, PERIOD_US)
    assert pwm_bench.pulse_us(PLAIN) == 0


async def test_an_angle_becomes_the_pulse_of_the_servo(pwm_bench, transact):
    driver = pwm_bench.driver
    for angle, pulse_us in ((-90, 500), (0, 1_500), (45, 2_000), (90, 2_500)):
        await transact(driver, lambda d, angle=angle: d.set(SERVO, angle))
        assert pwm_bench.pulse_us(SERVO) == near(pwm_bench, pulse_us)
        assert await transact(driver, lambda d: d.value(SERVO)) == pytest.approx(
            angle, abs=pwm_bench.step_us * 0.09 + 0.1
        )


async def test_a_channel_in_microseconds_takes_the_pulse_itself(pwm_bench, transact):
    await transact(pwm_bench.driver, lambda d: d.set(PULSE, 1_250))
    assert pwm_bench.pulse_us(PULSE) == near(pwm_bench, 1_250)


async def test_off_gives_out_nothing_and_back_is_what_it_was(pwm_bench, transact):
    driver = pwm_bench.driver
    await transact(driver, lambda d: d.set(SERVO, 30))
    former = await transact(driver, lambda d: d.set(SERVO, "off"))
    assert former == Wave(30, PERIOD_US)
    assert pwm_bench.pulse_us(SERVO) == 0
    assert await transact(driver, lambda d: d.value(SERVO)) == "off"
    await transact(driver, lambda d: d.set(SERVO, former.value, former.period_us))
    assert pwm_bench.pulse_us(SERVO) == near(pwm_bench, 500 + 2_000 * 120 / 180)


async def test_get_reads_what_a_channel_gives_out(pwm_bench, transact):
    driver = pwm_bench.driver
    await transact(driver, lambda d: d.set(PLAIN, 0.25))
    pulses = await transact(driver, lambda d: d.get(PLAIN))
    assert pulses.enabled
    assert pulses.period_ns == pytest.approx(PERIOD_US * 1000, rel=0.01)
    assert pulses.length_ns / 1000 == near(pwm_bench, 5_000)


async def test_a_read_changes_nothing(pwm_bench, transact):
    driver = pwm_bench.driver
    await transact(driver, lambda d: d.set(PLAIN, 0.25))
    before = pwm_bench.pulse_us(PLAIN), pwm_bench.pulse_us(PULSE)
    for channel in (PLAIN, PULSE):
        await transact(driver, lambda d, channel=channel: d.get(channel))
    assert (pwm_bench.pulse_us(PLAIN), pwm_bench.pulse_us(PULSE)) == before


async def test_an_inversed_channel_is_low_for_its_pulse(pwm_bench, transact):
    driver = pwm_bench.driver
    await transact(driver, lambda d: d.set(INVERSED, 0.25))
    assert pwm_bench.pulse_us(INVERSED) == pytest.approx(15_000, rel=0.01)
    await transact(driver, lambda d: d.set(INVERSED, 0.75))
    assert pwm_bench.pulse_us(INVERSED) == pytest.approx(5_000, rel=0.01)
    pulses = await transact(driver, lambda d: d.get(INVERSED))
    assert pulses.length_ns == pytest.approx(15_000_000, rel=0.01)


async def test_off_gives_the_load_of_an_inversed_channel_nothing_and_is_read_as_off(pwm_bench, transact):
    driver = pwm_bench.driver
    for value in (0.25, "off", 1, 0, 0.5, "off"):
        await transact(driver, lambda d, value=value: d.set(INVERSED, value))
        share = 0 if value == "off" else value
        assert pwm_bench.pulse_us(INVERSED) == pytest.approx(PERIOD_US * (1 - share), rel=0.01, abs=10)
    assert await transact(driver, lambda d: d.value(INVERSED)) == "off"
    await transact(driver, lambda d: d.set(INVERSED, 0.75))
    [report] = await transact(driver, lambda d: guarded.channels(d).make_safe([INVERSED]))
    assert report["safe"] == "off"
    assert pwm_bench.pulse_us(INVERSED) == pytest.approx(PERIOD_US, rel=0.01)


async def test_an_inversed_channel_that_is_off_stays_so_when_the_chip_is_closed_and_reopened(pwm_bench, transact):
    driver = pwm_bench.driver
    for value in (0.5, "off"):
        await transact(driver, lambda d, value=value: d.set(INVERSED, value))
    for reopen in (driver.close, driver.open):
        reopen()
        assert pwm_bench.pulse_us(INVERSED) == pytest.approx(PERIOD_US, rel=0.01)
    assert await transact(driver, lambda d: d.value(INVERSED)) == "off"
    assert pwm_bench.pulse_us(INVERSED) == pytest.approx(PERIOD_US, rel=0.01)


async def test_an_inversed_channel_that_was_never_set_is_read_with_what_its_load_gets(pwm_bench, transact):
    assert pwm_bench.pulse_us(INVERSED) == 0
    assert await transact(pwm_bench.driver, lambda d: d.value(INVERSED)) == 1


async def test_the_period_changes_with_the_share(pwm_bench, transact):
    driver = pwm_bench.driver
    for period_us, share in ((10_000, 0.5), (40_000, 0.1), (20_000, 0.9)):
        await transact(driver, lambda d, period=period_us, share=share: d.set(PLAIN, share, period))
        pulses = await transact(driver, lambda d: d.get(PLAIN))
        assert pulses.period_ns == pytest.approx(period_us * 1000, rel=0.01)
        assert pulses.length_ns / pulses.period_ns == pytest.approx(share, abs=0.002)


async def test_a_period_beyond_those_of_the_profile_is_refused_without_effect(pwm_bench, transact):
    driver = pwm_bench.driver
    await transact(driver, lambda d: d.set(PLAIN, 0.25))
    for channel, period_us in ((PLAIN, 4_000), (PLAIN, 50_000), (PULSE, 10_000)):
        with pytest.raises(LimitViolated) as caught:
            await transact(driver, lambda d, channel=channel, period=period_us: d.set(channel, 0, period))
        assert caught.value.data["effect"] == "none"
    assert pwm_bench.pulse_us(PLAIN) == near(pwm_bench, 5_000)


async def test_a_pulse_longer_than_its_period_is_refused_without_effect(pwm_bench, transact):
    with pytest.raises(LimitViolated, match="does not fit") as caught:
        await transact(pwm_bench.driver, lambda d: d.set(PULSE, 20_001))
    assert caught.value.data["effect"] == "none"


async def test_a_chip_works_again_when_it_is_reopened_and_its_channels_stayed_as_they_were(pwm_bench, transact):
    driver = pwm_bench.driver
    await transact(driver, lambda d: d.set(PLAIN, 0.25))
    driver.close()
    assert pwm_bench.pulse_us(PLAIN) == near(pwm_bench, 5_000)
    driver.open()
    former = await transact(driver, lambda d: d.set(PLAIN, 0.5))
    assert former.value == pytest.approx(0.25, abs=0.001)
    assert pwm_bench.pulse_us(PLAIN) == near(pwm_bench, 10_000)


async def test_make_safe_brings_channels_to_the_profiles_state_and_leaves_those_that_are_kept(pwm_bench, transact):
    driver = pwm_bench.driver
    for channel, value in ((PLAIN, 0.5), (SERVO, 60), (PULSE, 1_800), (KEPT, 0.5)):
        await transact(driver, lambda d, channel=channel, value=value: d.set(channel, value))
    done = await transact(driver, lambda d: guarded.channels(d).make_safe([PLAIN, SERVO, PULSE, KEPT]))
    assert [(entry["channel"], entry["safe"]) for entry in done] == [(PLAIN, "off"), (SERVO, 0), (PULSE, 1_000)]
    assert pwm_bench.pulse_us(PLAIN) == 0
    assert pwm_bench.pulse_us(SERVO) == near(pwm_bench, 1_500)
    assert pwm_bench.pulse_us(PULSE) == near(pwm_bench, 1_000)
    assert pwm_bench.pulse_us(KEPT) == near(pwm_bench, 10_000)


async def test_a_halt_brings_kept_channels_to_their_safe_state_too(pwm_bench, transact):
    driver = pwm_bench.driver
    await transact(driver, lambda d: d.set(KEPT, 0.5))
    [report] = await transact(driver, lambda d: guarded.channels(d).halt([KEPT]))
    assert report == {"channel": KEPT, "name": "KEPT", "safe": "off"}
    assert pwm_bench.pulse_us(KEPT) == 0


async def test_make_safe_leaves_what_it_does_not_know_alone(pwm_bench, transact):
    done = await transact(pwm_bench.driver, lambda d: guarded.channels(d).make_safe([5, 77, "x"]))
    assert [entry["note"] for entry in done] == [
        "left alone: reserved: the fan of the power supply",
        "left alone: not in this board's profile",
        "left alone: not in this board's profile",
    ]
