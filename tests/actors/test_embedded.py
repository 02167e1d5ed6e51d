"""The embedded face: a runtime inside a program, over the simulated board and a real audit log (design §2)."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.waiting import passes

import hearth
from hearth import step
from hearth.config.model import AuditConfig, Config, FilesConfig, LimitsConfig, PolicyConfig
from hearth.drivers.base import Style
from hearth.errors import (
    ConfigError,
    DeviceError,
    InvalidParams,
    PermissionDenied,
    QueueFull,
    RateLimited,
    SessionInvalid,
)
from hearth.protocol.jsonrpc import MAX_DEPTH


def config(tmp_path, **more):
    return Config(audit=AuditConfig(path=tmp_path / "audit.log", key=tmp_path / "key"), **more)


@asynccontextmanager
async def one_session(tmp_path, style=None, **more):
    opened = hearth.open_runtime(config=config(tmp_path, **more), style=style)
    async with opened as runtime, runtime.open_session() as session:
        yield runtime, session


def events(tmp_path):
    return [json.loads(line) for line in (tmp_path / "audit.log").read_bytes().splitlines()]


async def test_the_five_lines_of_the_readme_work(tmp_path):
    async with hearth.open_runtime(board="sim", config=config(tmp_path)) as runtime:
        async with runtime.open_session(client_name="arm") as session:
            task = await session.submit("blink", [step("gpio.set", line=17, value=1)], max_duration_ms=500)
            phases = [event.phase async for event in task.events()]
            result = await task.wait()
        assert runtime.audit_path == tmp_path / "audit.log"
        assert runtime.health()["ok"] is True
    assert phases == ["start", "finish", "task_finish"]
    assert result.steps[0].result == {"line": 17, "value": 1}


async def test_outputs_are_safe_when_the_session_ends_and_the_board_is_a_test_bench(tmp_path):
    async with hearth.open_runtime(config=config(tmp_path)) as runtime:
        gpio = runtime.board.drivers["gpio:sim"]
        async with runtime.open_session() as session:
            for line in (17, 31):
                await session.run("gpio.set", line=line, value=1)
            assert (await session.run("gpio.get", line=27))["value"] == 1, "17 is wired to 27"
        assert (gpio.state(17), gpio.state(31)) == (0, 1)


@pytest.mark.slow
async def test_a_pulse_that_outlasts_another_sessions_leaves_its_line_safe_when_its_own_has_ended(tmp_path):
    async with hearth.open_runtime(config=config(tmp_path)) as runtime:
        gpio = runtime.board.drivers["gpio:sim"]
        async with runtime.open_session() as longer:
            pulse = await longer.submit("on", [step("gpio.pulse", line=5, value=1, duration_ms=150)])
            async with runtime.open_session() as shorter:
                await shorter.run("gpio.pulse", line=5, value=1, duration_ms=1)
            assert gpio.state(5) == 1, "the session that has ended had only borrowed it"
            await pulse.wait()
            assert gpio.state(5) == "input", "as it was before both"
        assert gpio.state(5) == 0


@pytest.mark.parametrize("style", [None, *Style])
async def test_every_style_of_the_simulated_board_works(tmp_path, style):
    async with one_session(tmp_path, style=style) as (_runtime, session):
        assert (await session.run("i2c.read", bus=1, addr="0x48", reg=0, len=2))["data"]
        with pytest.raises(DeviceError) as failed:
            await session.run("i2c.read", bus=1, addr="0x23", len=1)
        assert failed.value.data["effect"] in ("none", "unknown")


@pytest.mark.slow
async def test_an_exception_of_the_body_comes_out_as_it_is(tmp_path):
    boards = []

    async def program(raised):
        async with one_session(tmp_path) as (runtime, session):
            boards.append(runtime.board)
            await session.run("gpio.set", line=17, value=1)
            if raised is DeviceError:
                await session.run("i2c.read", bus=1, addr="0x23", len=1)
            raise raised

    for raised in (ZeroDivisionError, DeviceError, KeyboardInterrupt):
        with pytest.raises(raised):
            await program(raised)
        assert boards[-1].drivers["gpio:sim"].state(17) == 0
    assert [record["event"] for record in events(tmp_path)][-2:] == ["daemon.stop", "audit.checkpoint"]


async def test_a_program_that_is_cancelled_leaves_its_outputs_safe_and_its_audit_whole(tmp_path):
    with trio.CancelScope() as program:
        async with hearth.open_runtime(config=config(tmp_path)) as runtime:
            gpio = runtime.board.drivers["gpio:sim"]
            async with runtime.open_session() as session:
                await session.run("gpio.set", line=17, value=1)
                await session.submit("x", [step("gpio.watch", line=4, timeout_ms=60_000)], rollback_on_failure=True)
                assert gpio.state(17) == 1
                program.cancel()
                await trio.sleep_forever()
    assert program.cancelled_caught
    assert gpio.state(17) == 0
    own = [record["event"] for record in events(tmp_path) if record["event"] != "audit.checkpoint"]
    assert own[-3:] == ["task.finish", "session.close", "daemon.stop"]


async def test_a_session_that_a_forgotten_task_left_open_ends_with_the_runtime(tmp_path):
    async with trio.open_nursery() as nursery:
        opened, ended = trio.Event(), []

        async def background(runtime):
            async with runtime.open_session() as session:
                await session.run("gpio.set", line=17, value=1)
                opened.set()
                try:
                    while True:
                        await session.tools()
                        await trio.sleep(0.001)
                except SessionInvalid:
                    ended.append("here")

        async with hearth.open_runtime(config=config(tmp_path)) as runtime:
            nursery.start_soon(background, runtime)
            await opened.wait()
    assert ended == ["here"]
    assert runtime.board.drivers["gpio:sim"].state(17) == 0


async def test_without_a_policy_a_program_may_use_risk_two_and_three_if_a_task_asks_for_it(tmp_path):
    (tmp_path / "dir").mkdir()
    files = FilesConfig(read=(tmp_path / "dir",), write=(tmp_path / "dir",))
    async with one_session(tmp_path, files=files) as (_runtime, session):
        path = str(tmp_path / "dir" / "x")
        await session.run("file.write", path=path, data="aGk=")
        with pytest.raises(PermissionDenied):
            await session.run("file.delete", path=path)
        task = await session.submit("x", [step("file.delete", path=path)], max_risk_level=3)
        assert (await task.wait()).status == "SUCCESS"
        with pytest.raises(PermissionDenied):
            await session.run("file.read", path="/etc/passwd")


async def test_a_policy_of_the_configuration_holds_for_the_program_too(tmp_path):
    reader = PolicyConfig(name="reader", match={"any": True}, max_risk=0)
    async with one_session(tmp_path, policy=(reader,)) as (_runtime, session):
        with pytest.raises(PermissionDenied, match="max_risk_level=0 < tool=2"):
            await session.run("gpio.set", line=17, value=1)
        assert "CAP_GPIO_RW" not in session.capabilities


async def test_limits_hold_for_the_program_too(tmp_path):
    limits = LimitsConfig(max_sessions_per_principal=1)
    async with hearth.open_runtime(config=config(tmp_path, limits=limits)) as runtime:
        async with runtime.open_session():
            with pytest.raises(QueueFull):
                async with runtime.open_session():
                    raise AssertionError
        async with runtime.open_session() as session:
            assert await session.tools()


@pytest.mark.parametrize("members", [{"heartbeat_ms": 1}, {"heartbeat_ms": "soon"}, {"client_name": 7}])
async def test_opening_a_session_wrongly_is_refused_as_on_a_wire(tmp_path, members):
    async with hearth.open_runtime(config=config(tmp_path)) as runtime:
        with pytest.raises(InvalidParams):
            async with runtime.open_session(**members):
                raise AssertionError


@pytest.mark.parametrize("around", [lambda value: [value], lambda value: (value,), lambda value: {"a": value}])
async def test_args_that_are_nested_too_deeply_are_refused_as_on_a_wire(tmp_path, around):
    deep = []
    for _ in range(MAX_DEPTH):
        deep = around(deep)
    async with hearth.open_runtime(config=config(tmp_path)) as runtime, runtime.open_session() as session:
        with pytest.raises(InvalidParams) as refused:
            await session.submit("deep", [hearth.step("gpio.get", line=deep)])
        assert refused.value.data == {"reason": f"arrays and objects are nested more than {MAX_DEPTH} deep"}
        assert await session.tools()


async def test_a_board_that_does_not_exist_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError):
        async with hearth.open_runtime(board="no-such-board", config=config(tmp_path)):
            raise AssertionError
    assert not (tmp_path / "audit.log").exists()


async def test_a_board_of_another_type_is_refused_and_is_not_the_simulated_one(tmp_path):
    from hearth.drivers.boards import load_profile

    with pytest.raises(TypeError, match=r"board: expected a profile's name or path, or a Board .* got Profile"):
        async with hearth.open_runtime(board=load_profile("sim"), config=config(tmp_path)):
            pass


async def test_a_board_may_be_the_path_of_its_profile(tmp_path, monkeypatch):
    chip = '[[gpio]]\nlabel = "acme"\ndriver = "sim"\nnames = ["A", "B"]\n'
    (tmp_path / "plant.toml").write_text(f'name = "plant"\ndescription = "a plant"\n{chip}')
    monkeypatch.chdir(tmp_path)
    async with hearth.open_runtime(board=Path("plant.toml"), config=config(tmp_path)) as runtime:
        assert runtime.board.name == "plant"


async def test_a_program_without_a_policy_sets_its_own_pace(tmp_path):
    async with hearth.open_runtime(config=config(tmp_path)) as runtime, runtime.open_session() as session:
        for count in range(1_001):  # beyond every rate of a risk level
            await session.run("gpio.set", line="LED", value=count % 2)
        scans = [hearth.step("i2c.scan", bus=1)] * 6
        with pytest.raises(RateLimited):  # a tool's own rate is its device's, and stays
            await session.submit("scan", scans)


async def test_a_board_that_was_opened_by_the_program_is_used_as_it_is(tmp_path):
    from hearth.drivers.boards import load_profile, open_board

    board = open_board(load_profile("sim"), style=Style.INLINE)
    async with hearth.open_runtime(board=board, config=config(tmp_path)) as runtime:
        assert runtime.board is board


async def test_without_an_audit_path_a_fresh_file_is_written():
    async with hearth.open_runtime() as one:
        first = one.audit_path
    async with hearth.open_runtime() as other:
        assert other.audit_path != first
    assert b"daemon.stop" in first.read_bytes()


async def test_two_runtimes_do_not_write_one_log(tmp_path):
    async with hearth.open_runtime(config=config(tmp_path)):
        with pytest.raises(ConfigError):
            async with hearth.open_runtime(config=config(tmp_path)):
                raise AssertionError
    async with hearth.open_runtime(config=config(tmp_path)) as again:
        assert again.health()["ok"]


async def test_a_request_that_is_cancelled_is_still_executed_and_harms_no_other(tmp_path):
    async with hearth.open_runtime(config=config(tmp_path)) as runtime, runtime.open_session() as session:
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.submit("x", [step("gpio.set", line=17, value=1)])
        assert scope.cancelled_caught
        await passes(lambda: any(record["event"] == "task.finish" for record in events(tmp_path)))
        assert runtime.board.drivers["gpio:sim"].state(17) == 1
