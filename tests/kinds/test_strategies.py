"""Every kind has strategies, and what they generate are calls and steps that the board knows."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from kinds.board import OPERATIONS, OUTPUTS, VENDOR_BUS
from kinds.strategies import STRATEGIES

from hearth.drivers.kinds import OWN

_AROUND = {"sensors", "board"}
"""Buses and words of `[discover]` that are no kind of hardware."""


def kinds(board):
    """The kinds that this release has, and those of a board's buses."""
    named = {bus.partition(":")[0] for bus in board.drivers if bus != VENDOR_BUS}
    return (named | {kind.name for kind in OWN}) - _AROUND


async def test_every_kind_of_the_board_has_strategies_and_every_output_a_kind(open_world):
    async with open_world() as world:
        assert kinds(world.parts.board) <= STRATEGIES.keys(), "a kind without strategies is not tested at all"
        assert kinds(world.parts.board) | {VENDOR_BUS} <= OPERATIONS.keys(), "its operations are not recorded"
        assert {one.kind for one in OUTPUTS} <= STRATEGIES.keys()
        for one in OUTPUTS:
            one.level(world)


@pytest.mark.parametrize("kind", STRATEGIES)
async def test_generated_calls_are_operations_of_a_driver_and_generated_steps_fit_their_tools(open_world, kind):
    async with open_world() as world:

        @settings(
            max_examples=40,
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(STRATEGIES[kind].raw, STRATEGIES[kind].steps)
        def look(raw, step):
            driver = world.drivers[raw.bus]
            assert callable(getattr(driver, raw.op))
            assert raw.op in OPERATIONS[raw.bus.partition(":")[0]]
            tool, args = step
            jsonschema.validate(args, world.parts.registry[tool].params_schema)

        look()
        for raw in STRATEGIES[kind].reads:
            assert callable(getattr(world.drivers[raw.bus], raw.op))
