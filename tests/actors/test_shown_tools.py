"""What a person is shown of the shipped tools before they act, on the simulated board."""

from __future__ import annotations

import re
from functools import partial

import pytest
import trio

from hearth import open_runtime, step
from hearth.config.model import Config, FilesConfig
from hearth.errors import InvalidParams

LOOKS = {"i2c.scan", "uart.read", "can.read", "can.watch", "hw.sensor.capture"}
"""Tools of risk 1 that drive nothing: they take time, or what they read."""
ARGS = {
    "gpio.set": {"line": "LED", "value": 1},
    "gpio.pulse": {"line": "RELAY", "value": 1, "duration_ms": 8000},
    "i2c.read": {"bus": 1, "addr": 0x30, "len": 1},
    "i2c.write": {"bus": 1, "addr": 0x50, "reg": 0, "text": "ab"},
    "i2c.transfer": {"bus": 1, "addr": 0x50, "messages": [{"write": "aGk="}]},
    "uart.write": {"port": "uart0", "data": "aGk="},
    "uart.exchange": {"port": "uart0", "text": "hi", "len": 1},
    "uart.control": {"port": "uart0", "rts": True},
    "pwm.set": {"channel": "LAMP", "duty": 0.5, "period_us": 1000},
    "pwm.off": {"channel": "LAMP"},
    "servo.move": {"servo": "ARM", "angle": 10},
    "dac.set": {"channel": "VALVE", "value": 1},
    "can.send": {"bus": "can0", "id": 0x555, "data": "aGk="},
    "can.isotp": {"bus": "can0", "tx": 0x556, "rx": 0x557, "data": "aGk="},
    "spi.transfer": {"device": "LOOP", "write": "aGk="},
    "spi.read": {"device": "MOTOR", "register": "FAULTS"},
    "spi.write": {"device": "MOTOR", "register": "SPEED", "value": 1},
    "modbus.write": {"device": "FAN", "name": "run", "value": 1},
    "file.write": {"path": "DIR/a", "data": "aGk="},
    "file.delete": {"path": "DIR/b"},
}


def on_board(tmp_path, work):
    (tmp_path / "b").write_text("x")
    config = Config(files=FilesConfig(read=(tmp_path,), write=(tmp_path,)))

    async def main():
        async with open_runtime(board="sim", config=config) as runtime, runtime.open_session() as session:
            await work(session)

    trio.run(main)


def args_of(tool, tmp_path):
    return {name: one.replace("DIR", str(tmp_path)) if name == "path" else one for name, one in ARGS[tool].items()}


def test_every_shipped_tool_that_acts_is_in_this_table(tmp_path):
    async def work(session):
        acts = {tool["name"] for tool in await session.tools() if tool["risk_level"]}
        # A signal is shown as the step that setting it means.
        assert acts - LOOKS - {"signal.set"} == ARGS.keys()

    on_board(tmp_path, work)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["once", "when it is so already"])
def test_no_step_that_acts_is_shown_as_no_change_without_the_reason(tmp_path, again):
    async def work(session):
        seen = 0
        for tool in ARGS:
            args = args_of(tool, tmp_path)
            plan = await session.prepare(
                tool, [step(tool, **args)] * (2 if again and tool != "file.delete" else 1), max_risk_level=3
            )
            await session.reject(plan)
            rows = "".join(row.removeprefix("     | ") if row[:7] == "     | " else f"\n{row}" for row in plan.shown)
            shown = re.search(rf"\n{len(plan.steps) - 1}\. {re.escape(tool)} [^\n]*\n   (.*)", rows)[1]
            if plan.steps[0].before is None:
                assert shown.startswith(("what it changes cannot be read beforehand", "[risk 0, safe]")), shown
                continue
            seen += 1
            done = plan.steps[-1]
            between = (done.during or {"members": done.before})["members"]
            same = done.before == done.after == {**done.before, **between}
            assert shown.split("  [risk")[0].endswith(" (it is so already)") == same, shown
            assert same or not again or tool == "gpio.pulse", shown
            if tool == "gpio.pulse":
                assert shown.startswith("value: 0 -> 1 for 8 s -> 0  ")
        assert seen >= 8

    on_board(tmp_path, work)


@pytest.mark.slow
def test_no_shipped_tool_is_prepared_with_an_argument_that_it_does_not_know(tmp_path):
    async def refused(session, tool, args):
        task = {"intent": "x", "steps": [{"tool": tool, "args": args}], "constraints": {"max_risk_level": 3}}
        with pytest.raises(InvalidParams, match="unknown key"):
            # As a client of another make sends it, which does not ask for `strict`.
            await session._link.call("plan.prepare", {"session_id": session.session_id, "task": task})

    async def work(session):
        for tool in ARGS:
            await refused(session, tool, {**args_of(tool, tmp_path), "dry_run": "yes"})
        nested = {"write": "aGk=", "dry_run": "yes"}
        await partial(refused, session)("i2c.transfer", {"bus": 1, "addr": 0x50, "messages": [nested]})

    on_board(tmp_path, work)
