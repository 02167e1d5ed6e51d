"""The contract of every converter's driver; `dac_bench` gives one implementation after the other."""

import pytest
from support import guarded

from hearth.errors import DeviceError

LEVEL = 0
STEP = 3.3 / 4096


def near(volts):
    """The voltage of the nearest step."""
    return pytest.approx(volts, abs=STEP / 2 + 1e-9)


async def test_a_channel_gives_out_the_step_nearest_to_a_value_and_set_returns_the_former_one(dac, dac_bench, transact):
    await transact(dac, lambda d: d.set(LEVEL, 1.5))
    assert dac_bench.volts() == near(1.5)
    assert await transact(dac, lambda d: d.set(LEVEL, 2.25)) == near(1.5)
    assert dac_bench.volts() == near(2.25)
    assert await transact(dac, lambda d: d.value(LEVEL)) == near(2.25)


async def test_a_value_never_becomes_a_step_beyond_the_bounds(dac, dac_bench, transact):
    for bound in (0.5, 3):
        await transact(dac, lambda d, bound=bound: d.set(LEVEL, bound))
        assert dac_bench.volts() == near(bound) or abs(dac_bench.volts() - bound) < STEP
        assert 0.5 <= dac_bench.volts() <= 3


async def test_a_value_that_was_read_can_be_set_and_changes_nothing(dac, dac_bench, transact):
    for volts in (0.5, 0.9999, 1.7, 3):
        await transact(dac, lambda d, volts=volts: d.set(LEVEL, volts))
        before, read = dac_bench.volts(), await transact(dac, lambda d: d.value(LEVEL))
        assert 0.5 <= read <= 3
        await transact(dac, lambda d, read=read: d.set(LEVEL, read))
        assert dac_bench.volts() == before


async def test_a_read_changes_nothing(dac, dac_bench, transact):
    await transact(dac, lambda d: d.set(LEVEL, 1.25))
    before = dac_bench.volts()
    await transact(dac, lambda d: d.value(LEVEL))
    assert dac_bench.volts() == before


async def test_off_gives_out_nothing_and_a_value_switches_it_on(dac, dac_bench, transact):
    await transact(dac, lambda d: d.set(LEVEL, 2))
    assert await transact(dac, lambda d: d.set(LEVEL, "off")) == near(2)
    assert dac_bench.volts() is None
    assert await transact(dac, lambda d: d.value(LEVEL)) == "off"
    assert await transact(dac, lambda d: d.set(LEVEL, 1)) == "off"
    assert dac_bench.volts() == near(1)


@pytest.mark.parametrize("safe", [0.75, "off"])
async def test_make_safe_brings_a_channel_to_the_profiles_state(dac_bench, transact, safe):
    driver = dac_bench.make(safe=safe)
    driver.open()
    await transact(driver, lambda d: d.set(LEVEL, 2))
    [report] = await transact(driver, lambda d: guarded.channels(d).make_safe([LEVEL]))
    assert report == {"channel": LEVEL, "name": "LEVEL", "safe": safe}
    assert dac_bench.volts() == (None if safe == "off" else near(0.75))
    driver.close()


async def test_a_kept_channel_goes_to_its_safe_state_at_a_halt_alone(dac_bench, transact):
    driver = dac_bench.make(hold="keep")
    driver.open()
    await transact(driver, lambda d: d.set(LEVEL, 2))
    assert await transact(driver, lambda d: guarded.channels(d).make_safe([LEVEL])) == []
    assert dac_bench.volts() == near(2)
    [report] = await transact(driver, lambda d: guarded.channels(d).halt([LEVEL]))
    assert report == {"channel": LEVEL, "name": "LEVEL", "safe": 0.75}
    assert dac_bench.volts() == near(0.75)
    driver.close()


async def test_a_device_works_again_when_it_is_reopened_and_its_channel_stayed_as_it_was(dac, dac_bench, transact):
    await transact(dac, lambda d: d.set(LEVEL, 1.5))
    dac.close()
    assert dac_bench.volts() == near(1.5)
    dac.open()
    assert dac_bench.volts() == near(1.5), "opening drives nothing"
    assert await transact(dac, lambda d: d.set(LEVEL, 2)) == near(1.5)


async def test_a_count_that_the_device_has_not_is_refused_without_effect(dac_bench, transact):
    driver = dac_bench.make(max=1_000)
    driver.open()
    await transact(driver, lambda d: d.set(LEVEL, 2))
    with pytest.raises(DeviceError) as caught:
        await transact(driver, lambda d: d.set(LEVEL, 999))
    assert (caught.value.data["errno"], caught.value.data["effect"]) == ("EINVAL", "none")
    assert dac_bench.volts() == near(2)
    driver.close()


async def test_bounds_between_two_steps_are_refused_at_the_opening(dac_bench):
    driver = dac_bench.make(min=STEP * 1000.2, max=STEP * 1000.8, safe=STEP * 1000.5)
    with pytest.raises(DeviceError, match=r"no step is within its bounds: one is 0\.000805664 volt"):
        driver.open()
    driver = dac_bench.make()
    driver.open()
    driver.close()
