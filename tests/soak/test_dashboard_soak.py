"""The long run of the dashboard, for half a minute: the page shows all that is measured, and its memory stays flat.

What it takes of a core is measured over an hour: `python -m tests.soak.dashboard`.
"""

from __future__ import annotations

import pytest
from soak.dashboard import SERIES, watch, words
from support.chromium import needs_chromium

pytestmark = [pytest.mark.proof, needs_chromium, pytest.mark.usefixtures("unmeasured")]


async def test_a_page_with_50_series_at_10_hz_shows_all_of_them_misses_nothing_and_stays_flat() -> None:
    found = await watch(0.6, sample_s=1.5, warm_up_s=40.0)
    assert (found.shown, found.missed) == (SERIES, None)
    assert {verdict.series for verdict in found.verdicts} == {"heap", "nodes"}
    assert all(verdict.flat for verdict in found.verdicts), words(found)
