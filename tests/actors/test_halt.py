"""The halt: its latch, inputs, stop sequence and heartbeat, and the refusals while it lasts (docs/safety.md)."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.waiting import passes
from support.world import World, running

from hearth.actors.build import build_parts
from hearth.actors.embedded import EMBEDDED_POLICY
from hearth.config.model import AuditConfig, Config
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.errors import Halted

PATIENCE = 60
PAGE = (Path(__file__).parents[2] / "docs/safety.md").read_text("utf-8")

BENCH = {
    "name": "bench",
    "description": "A bench with an emergency stop.",
    "gpio": [
        {
            "label": "a",
            "driver": "sim",
            "names": ["ESTOP", "MOTOR", "BRAKE", "LAMP", "ALIVE", "PLC_ALIVE", "DOOR"],
            "lines": {
                "ESTOP": {"direction": "input", "pull": "up"},
                "MOTOR": {"safe": 0},
                "BRAKE": {"safe": 1},
                "LAMP": {"safe": 0, "hold": "keep"},
                "ALIVE": {"safe": 0},
                "PLC_ALIVE": {"direction": "input"},
                "DOOR": {"direction": "input"},
            },
            "contacts": {"ESTOP": 0},
        },
        {"label": "b", "driver": "sim", "names": ["PUMP", "FAN"], "lines": {"PUMP": {"safe": 0}, "FAN": {"safe": 0}}},
    ],
    "i2c": [{"bus": 1, "driver": "sim", "device": [{"addr": 0x48, "kind": "tmp102"}]}],
}
ESTOP, MOTOR, BRAKE, LAMP, ALIVE, PLC_ALIVE, DOOR = range(7)


@asynccontextmanager
async def a_bench(directory, *, style=Style.ASYNC, prepare=lambda _board: None, lines=None, **halt):
    """A world on that bench, with this `[halt]`; its latch is in the directory."""
    content = {**BENCH, "halt": halt} if halt else BENCH
    board = open_board(parse_profile(content, "bench"), style=style)
    prepare(board)
    parts = build_parts(
        Config(audit=AuditConfig(path=directory / "audit.log")), default_policy=EMBEDDED_POLICY, board=board
    )
    notes = parts.open_records()
    world = World(parts)
    world.notes = notes
    world.chips = {name: board.drivers[f"gpio:{name}"] for name in "ab"}
    with trio.fail_after(PATIENCE):
        async with running(world):
            yield world


def latch_file(directory):
    return directory / "audit.log.halt"


@pytest.mark.parametrize("style", [Style.INLINE, Style.THREAD])
async def test_a_halt_is_on_the_disk_before_it_is_acknowledged_and_outlives_the_daemon(tmp_path, style):
    async with a_bench(tmp_path, style=style) as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        assert not latch_file(tmp_path).exists()
        await session.halt("smoke")
        assert json.loads(latch_file(tmp_path).read_text())["reason"] == "smoke"
        assert latch_file(tmp_path).stat().st_mode & 0o777 == 0o600
    async with a_bench(tmp_path, style=style) as world, world.sessions().open_session() as session:
        assert world.notes[-1].startswith("starting halted, since ")
        assert ": smoke; `hearth halt --reset` ends it" in world.notes[-1]
        assert (await session.halt_status()).latched is True
        with pytest.raises(Halted, match="smoke"):
            await session.gpio.set("MOTOR", 1)
        assert await session.gpio.get("MOTOR") == 0
        await session.reset_halt()
        assert not latch_file(tmp_path).exists()
        await session.gpio.set("MOTOR", 1)
    (halted,) = world.records("halt")
    (reset,) = world.records("halt.reset")
    assert (halted["reason"], halted["principal"]) == ("smoke", reset["principal"])


async def test_a_halt_input_halts_and_has_to_be_clear_before_a_reset(tmp_path):
    async with a_bench(tmp_path, inputs=["ESTOP"]) as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        world.chips["a"].push(ESTOP, 1)
        await passes(lambda: world.chips["a"].state(MOTOR) == 0)
        status = await session.halt_status()
        assert (status.by, status.inputs) == ("input ESTOP", {"ESTOP": "is at its stop level"})
        with pytest.raises(Halted, match=r"halt inputs are not clear \(ESTOP: is at its stop level\)"):
            await session.reset_halt()
        world.chips["a"].push(ESTOP, 0)
        await session.reset_halt()
        await session.gpio.set("MOTOR", 1)


async def test_the_profiles_on_the_page_are_good_ones():
    content = {**BENCH}
    for block in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for key, value in tomllib.loads(block)["halt"].items():
            content["halt"] = {**content.get("halt", {}), key: value}
    halt = parse_profile(content, "bench").halt
    assert [(one.name, one.stop, one.timeout_ms) for one in halt.inputs] == [
        ("ESTOP", 1, None), ("DOOR", 0, None), ("PLC_ALIVE", 1, 500),
    ]  # fmt: skip
    assert [(one.name, one.value, one.after_ms) for one in halt.sequence] == [("BRAKE", 1, 0), ("MOTOR", 0, 200)]
    assert (halt.heartbeat.name, halt.heartbeat.hz) == ("ALIVE", 10)
