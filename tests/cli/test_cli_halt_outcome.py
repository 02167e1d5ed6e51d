"""What `hearth halt` says in the end: it gives the stop sequence its time, and a second more, before "not safe"."""

from __future__ import annotations

import pytest
import trio

from hearth.api import HaltStatus
from hearth.cli.halt import SETTLE_S, outcome_lines, until_safe

PUMP = ({"bus": "gpio:sim", "outputs": [23], "names": ["PUMP"]},)
SEQUENCE_S = 30.0
NEXT = "next: when the cause is gone, `hearth halt reset`; `hearth halt status` shows who holds the halt"


@pytest.mark.parametrize(
    ("safe_after_s", "ends_at_s", "said"),
    [
        pytest.param(5, SEQUENCE_S, "every output that has a safe state is there: PUMP (gpio:sim)", id="in it"),
        pytest.param(30.5, 30.5, "every output that has a safe state is there: PUMP (gpio:sim)", id="just after it"),
        pytest.param(
            600, SEQUENCE_S + SETTLE_S,
            "NOT SAFE: PUMP (gpio:sim); hearth tries again, so look at them or cut their power", id="never",
        ),
    ],
)  # fmt: skip
async def test_an_output_counts_as_unsafe_a_second_after_the_stop_sequence(
    autojump_clock, safe_after_s, ends_at_s, said
):
    began = trio.current_time()

    async def look():
        passed = trio.current_time() - began
        places = {"safe": PUMP} if passed >= safe_after_s else {"unsafe": PUMP}
        return HaltStatus(halted=True, stopping=passed < SEQUENCE_S, **places)

    found = await until_safe(look, await look())
    assert trio.current_time() - began == pytest.approx(ends_at_s, abs=0.25)
    assert outcome_lines(found) == [said, NEXT]


def test_what_a_halt_leaves_is_named():
    (_, left, _) = outcome_lines(
        HaltStatus(halted=True, left=({"bus": "spi:MOTOR", "outputs": [16], "names": ["SPEED"]},))
    )
    assert left == "LEFT AS THEY ARE, without a safe state: SPEED (spi:MOTOR); look at them or cut their power"
