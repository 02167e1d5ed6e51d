"""The risk of a step is that of its args: what a tool computes, on every path to the hardware."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from support.waiting import until
from support.world import BenchWorld, running

import hearth
from hearth import step
from hearth.config.model import load_config
from hearth.drivers.base import Style
from hearth.errors import AuditUnavailable, ConfigError, PermissionDenied
from hearth.tools import Tool

THERMOMETER = {"bus": 1, "addr": "0x48", "reg": "0x00", "len": 2}
WRITING = {"bus": 1, "addr": 0x50, "reg": 0xBEEF, "reg_width": 16, "len": 1}
"""To an EEPROM with 8-bit register numbers these are an address and a byte for it."""


@asynccontextmanager
async def runtime(path, policy="max_risk = 0", more=""):
    file = path / "hearth.toml"
    file.write_text(
        f'[audit]\npath = "{path}/audit.log"\n{more}\n[[policy]]\nname = "test"\nmatch = {{ any = true }}\n{policy}\n'
    )
    with trio.fail_after(30):
        async with hearth.open_runtime(config=load_config(file), style=Style.INLINE) as opened:
            yield opened


def memory(opened):
    return opened.board.drivers["i2c:1"].devices[0x50].memory


async def test_a_read_that_would_write_is_refused_in_a_session_that_may_only_look(tmp_path):
    async with runtime(tmp_path) as opened, opened.open_session() as session:
        before = bytes(memory(opened))
        with pytest.raises(PermissionDenied) as caught:
            await session.run("i2c.read", **WRITING)
        assert bytes(memory(opened)) == before
    assert caught.value.data == {
        "step_index": 0, "tool": "i2c.read", "reason": "max_risk_level=0 < tool=2", "least_risk": 0,
    }  # fmt: skip
    assert caught.value.message.endswith("i2c.read has risk 0 with other args: see its description")


@pytest.mark.spec("3.3", "is", "0 | safe | Pure read; no side effects")
async def test_a_read_at_a_register_of_the_declared_width_is_risk_0(tmp_path):
    async with runtime(tmp_path) as opened, opened.open_session() as session:
        assert len((await session.run("i2c.read", **THERMOMETER))["data"]) == 4
        assert await session.run("i2c.read", bus=1, addr=0x50, len=1)
        task = await session.submit("look", [step("i2c.read", **THERMOMETER)], dry_run=True)
        assert (await task.wait()).steps[0].result["risk_level"] == 0
        shown = {entry["name"]: entry for entry in await session.tools()}
        assert "CAP_I2C_READ" in session.capabilities
    assert (shown["i2c.read"]["risk_level"], shown["i2c.read"]["least_risk"]) == (2, 0)
    assert "least_risk" not in shown["i2c.write"]


@pytest.mark.parametrize(
    "args",
    [
        {"addr": 0x50, "reg": 1, "reg_width": 16},
        {"addr": 0x48, "reg": 0, "reg_width": 16},
        {"addr": 0x23, "reg": 0},
        {"addr": 0x48, "ten_bit": True, "reg": 0},
    ],
    ids=["another width", "another width of a small register", "not declared", "another device on the wire"],
)
async def test_a_register_that_no_declaration_vouches_for_is_risk_2(tmp_path, args):
    async with runtime(tmp_path, "max_risk = 0\nmax_risk_ceiling = 2") as opened, opened.open_session() as session:
        for constraints in ({}, {"max_risk_level": 1}, {"dry_run": True}):
            with pytest.raises(PermissionDenied):
                await session.submit("look", [step("i2c.read", bus=1, len=1, **args)], **constraints)
        rehearsal = await session.submit("x", [step("i2c.read", bus=1, len=1, **args)], max_risk_level=2, dry_run=True)
        assert (await rehearsal.wait()).steps[0].result["risk_level"] == 2


@pytest.mark.spec("3.3", "is", "0 | safe | Pure read; no side effects")
async def test_what_waits_at_a_serial_port_is_not_for_sessions_of_risk_0(tmp_path):
    async with runtime(tmp_path) as opened, opened.open_session() as session:
        with pytest.raises(PermissionDenied):
            await session.run("uart.read", port="uart0", timeout_ms=0)
        assert "CAP_UART_READ" not in session.capabilities


def bench_tool(**more):
    """A tool that does nothing, of risk 2."""

    async def run(_ctx, _args):
        await trio.lowlevel.checkpoint()
        return {"value": 1}

    anything = {"type": "object"}
    return Tool(
        **{
            "name": "bench.extra",
            "risk_level": 2,
            "timeout_ms": 1000,
            "description": "bench.extra",
            "params_schema": anything,
            "result_schema": anything,
            "capability": "CAP_GPIO_RW",
            "bus": lambda _args: "a",
            "run": run,
            **more,
        }
    )


async def test_without_an_audit_log_steps_whose_args_only_look_go_on(autojump_clock):
    extra = bench_tool(effective_risk=lambda args: args["risk"])
    async with (
        running(BenchWorld(extra_tools=[extra])) as world,
        world.client() as client,
        client.open_session() as session,
    ):
        world.journal.fail("no space left")
        assert await session.run("bench.extra", risk=0) == {"value": 1}
        for risk in (1, 2):
            with pytest.raises(AuditUnavailable):
                await session.run("bench.extra", risk=risk)


async def test_a_session_that_ends_leaves_no_place_at_a_serial_port(tmp_path):
    async with runtime(tmp_path, "max_risk = 2") as opened:
        port = opened.board.drivers["uart:uart0"]
        async with opened.open_session() as first, opened.open_session() as second:
            for session in (first, second):
                await session.run("uart.write", port="uart0", data="YQo=")
            assert list(port._inbox._cursors) == [first.session_id, second.session_id]
            for session in (first, second):
                assert (await session.run("uart.read", port="uart0", until="\n", timeout_ms=20_000))["data"] == "YQo="
        await until(lambda: not port._inbox._cursors)


PROBE = '''
from typing import Literal

from hearth import Job, capability


@capability("probe", version="1.0.0", tools=["i2c.read"], risk_ceiling="R1", max_duration="PT10S")
async def probe(job: Job, *, width: Literal[8, 16] = 8) -> dict[str, str]:
    """Reads one byte."""
    result = await job.run("i2c.read", bus=1, addr="0x50", reg=5, reg_width=width, len=1)
    return {"data": result["data"]}
'''


@pytest.mark.parametrize("policy", ["max_risk = 0", "max_risk = 2"])
async def test_no_step_of_a_job_is_riskier_than_the_job_whatever_its_inputs_make_of_it(tmp_path, policy):
    file = tmp_path / "probe.py"
    file.write_text(PROBE)
    file.chmod(0o644)
    more = f'[hcp]\ncapabilities = ["{file}"]'
    async with runtime(tmp_path, f"{policy}\nhcp = {{ }}", more) as opened:
        before = bytes(memory(opened))
        assert (await (await opened.delegate("probe", "look", {})).wait()).outputs == {"data": "/w=="}
        failed = await (await opened.delegate("probe", "look", {"width": 16})).wait()
        assert bytes(memory(opened)) == before
    assert failed.state == "FAILED"
    assert "max_risk_level=0 < tool=2" in failed.error_message


# --- what a tool says of itself -------------------------------------------------------------------------------------


def test_a_tool_that_computes_more_than_it_declares_or_no_level_at_all_has_its_declared_risk():
    for computed in (3, -1, 0, True, "1", None):
        tool = bench_tool(risk_level=2, least_risk=1, effective_risk=lambda _args, told=computed: told)
        assert tool.risk_of({}) == 2
    assert bench_tool(risk_level=2, effective_risk=lambda args: args["x"]).risk_of({"x": 1}) == 1
    assert bench_tool(risk_level=1).risk_of({}) == 1


def test_the_least_risk_of_a_tool_is_what_it_may_compute():
    assert bench_tool(risk_level=2).least_risk == 2
    assert bench_tool(risk_level=2, effective_risk=lambda _args: 1).least_risk == 0
    with pytest.raises(ConfigError, match="least_risk is 0 and risk_level 2; give effective_risk too"):
        bench_tool(risk_level=2, least_risk=0)
    with pytest.raises(ConfigError, match="least_risk is 3 and risk_level 2; it is at most risk_level"):
        bench_tool(risk_level=2, least_risk=3, effective_risk=lambda _args: 1)


@pytest.mark.parametrize("risk_level", [-1, 4, "2"])
def test_a_risk_level_that_is_no_level_is_refused(risk_level):
    with pytest.raises(ConfigError, match=r"risk_level is .*; expected 0, 1, 2 or 3"):
        bench_tool(risk_level=risk_level)
