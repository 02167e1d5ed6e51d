"""Virtual time: what a day long does with the clock is over in a moment."""

import time

import pytest
import trio

pytestmark = pytest.mark.virtual_time


async def test_a_day_of_sleep_passes_on_every_clock_of_the_guest():
    wall, monotonic = time.time(), time.monotonic()
    await trio.sleep(86_400)
    assert 86_400 <= time.time() - wall < 86_500
    assert 86_400 <= time.monotonic() - monotonic < 86_500
