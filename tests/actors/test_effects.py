"""Verified effects: a step succeeds only if the effect that it must have was seen (`expect`)."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from attrs import evolve
from support.mcp import ERAS, mcp_client
from support.session_contract import event, finished
from support.waiting import passes
from support.world import BOB, OPEN, running, simulated

from hearth import Step, expect, step
from hearth.errors import EffectNotSeen, InvalidParams, PermissionDenied, RateLimited, ToolNotFound
from hearth.mcp.names import META_ERROR, META_EXPECT, META_TASK, PLAN
from hearth.policy.principal import Principal

RELAY, BUTTON = 5, 4
LONG = 60_000
"""Milliseconds that no test waits through."""
SHORT = 30
"""Milliseconds that a test waits through."""


@pytest.fixture(params=["embedded", "client"])
async def board(request, tmp_path):
    """A session on the simulated board, in the process and over a connection."""
    async with running(simulated(tmp_path, default_policy=(OPEN,))) as world:
        if request.param == "embedded":
            async with world.sessions(Principal(kind="embedded")).open_session() as session:
                yield Board(world, session)
        else:
            async with world.client() as client, client.open_session() as session:
                yield Board(world, session)


class Board:
    def __init__(self, world, session):
        self.world = world
        self.session = session
        self.gpio = world.runtime.buses["gpio:sim"].driver
        self.i2c = world.runtime.buses["i2c:1"].driver
        self.faults = self.i2c.faults

    async def run(self, *steps, **constraints):
        return await finished(await self.session.submit("an effect", steps, **constraints))

    def finish_record(self):
        return self.world.records("task.step.finish")[-1]


def lit(within_ms=SHORT, line="GPIO27"):
    return expect("gpio.get", line=line, equals={"value": 1}, within_ms=within_ms)


def stored(reg, text, **more):
    return expect("i2c.read", bus=1, addr=0x50, reg=reg, len=len(text), equals={"text": text}, **more)


# --- what is seen -----------------------------------------------------------------------------------------------------


async def test_a_step_whose_effect_is_seen_succeeds_and_shows_what_was_seen(board):
    done = await board.run(step("gpio.set", line="LED", value=1, expect=lit()))
    assert (done.status, done.steps[0].status, done.steps[0].seen) == ("SUCCESS", "SUCCESS", {"value": 1})
    assert done.steps[0].result == {"line": "LED", "value": 1}
    record = board.finish_record()
    assert record["expect"] == {
        "tool": "gpio.get",
        "bus": "gpio:sim",
        "args_hash": board.world.records("task.submit")[-1]["steps"][0]["expect"]["args_hash"],
        "seen": True,
    }


SEEN = {
    "a number within bounds": (
        step("gpio.set", line="LED", value=1),
        expect("hw.sensor.read", sensor="temperature", min={"value": -40}, max={"value": 125}),
    ),
    "bytes in a register": (step("i2c.write", bus=1, addr=0x50, reg=16, text="on"), stored(16, "on")),
    "a read's own repetition": (
        step("i2c.read", bus=1, addr=0x50, reg=0, len=1),
        expect("i2c.read", bus=1, addr=0x50, reg=0, len=1, equals={"hex": "ff"}),
    ),
}


@pytest.mark.parametrize("case", SEEN)
async def test_what_is_seen_is_a_success(board, case):
    told, expected = SEEN[case]
    done = await board.run(Step(told.tool, told.args, expected))
    assert done.raise_for_status().steps[0].seen.keys() == {*expected.equals, *expected.min}


# --- what is not seen -------------------------------------------------------------------------------------------------


def stuck_line(board):
    board.gpio.push(17, 0)


def dead_sensor(board):
    board.faults.nack(1_000_000, addr=0x48)


def lost_write(board):
    """The write reaches another register than the one that is read back."""


NOT_SEEN = {
    "stuck line": (stuck_line, step("gpio.set", line="LED", value=1), lit(), {"value": 0}),
    "wrong register": (
        lost_write,
        step("i2c.write", bus=1, addr=0x50, reg=17, text="on"),
        stored(32, "on", within_ms=SHORT),
        {},
    ),
    "dead sensor": (
        dead_sensor,
        step("gpio.set", line="RELAY", value=1),
        expect("hw.sensor.read", sensor="temperature", min={"value": -273}, within_ms=SHORT),
        None,
    ),
    "sensor out of bounds": (
        lost_write,
        step("gpio.set", line="RELAY", value=1),
        expect("hw.sensor.read", sensor="temperature", min={"value": 1000}, within_ms=SHORT),
        ...,
    ),
    "device dies after the write": (
        lambda board: board.faults.nack(1_000_000, addr=0x50, after=4),
        step("i2c.write", bus=1, addr=0x50, reg=16, text="on"),
        expect("i2c.read", bus=1, addr=0x50, reg=16, len=8, equals={"text": "on"}, within_ms=SHORT),
        ...,
    ),
    "slow actuator": (lost_write, step("gpio.set", line="RELAY", value=1), lit(line="BUTTON"), {"value": 0}),
}


@pytest.mark.spec("design 8: expect of a step")
@pytest.mark.parametrize("case", NOT_SEEN)
async def test_what_is_not_seen_is_a_failure_and_never_a_success(board, case):
    fault, told, expected, seen = NOT_SEEN[case]
    fault(board)
    done = await board.run(Step(told.tool, told.args, expected), step("gpio.get", line=1))
    if case == "slow actuator":
        # It moves only now.
        board.gpio.push(BUTTON, 1)
    assert (done.status, [one.status for one in done.steps]) == ("FAILED", ["FAILED", "CANCELLED"])
    failed = done.steps[0]
    assert failed.error_code == EffectNotSeen.code
    assert failed.error_data["effect"] == "done"
    assert failed.error_data["expected"] == {**expected.wanted(), "tool": expected.tool, "within_ms": SHORT}
    assert failed.error_data["seen"] == failed.seen
    if seen is not ...:
        assert failed.seen == seen
    record = board.finish_record()
    assert (record["status"], record["effect"], record["expect"]["seen"]) == ("FAILED", "done", False)
    assert record["error_code"] == EffectNotSeen.code


async def test_a_slow_actuator_that_moves_in_time_is_a_success(board):
    task = await board.session.submit("slow", [step("gpio.set", line="RELAY", value=1, expect=lit(LONG, "BUTTON"))])
    await passes(lambda: board.gpio.state(RELAY) == 1)
    assert (await task.get()).status == "RUNNING"
    board.gpio.push(BUTTON, 1)
    done = await finished(task)
    assert (done.status, done.steps[0].seen) == ("SUCCESS", {"value": 1})


async def test_a_reading_that_fails_is_one_that_does_not_show_it_and_the_next_one_may(board):
    board.faults.nack(3, addr=0x48)
    done = await board.run(
        step(
            "gpio.set",
            line="RELAY",
            value=1,
            expect=expect("hw.sensor.read", sensor="temperature", min={"value": -273}, within_ms=LONG),
        )
    )
    assert done.status == "SUCCESS"


async def test_an_effect_that_was_not_seen_is_rolled_back_as_any_failed_step_is(board):
    stuck_line(board)
    first = step("gpio.set", line="RELAY", value=1)
    done = await board.run(first, step("gpio.set", line="LED", value=1, expect=lit()), rollback_on_failure=True)
    assert [one.rolled_back for one in done.steps] == [True, True]
    assert (board.gpio.state(RELAY), board.gpio.state(17)) == ("input", "input")


async def test_without_abort_on_step_failure_the_task_goes_on(board):
    stuck_line(board)
    steps = [step("gpio.set", line="LED", value=1, expect=lit()), step("gpio.set", line="RELAY", value=1)]
    done = await board.run(*steps, abort_on_step_failure=False)
    assert (done.status, [one.status for one in done.steps]) == ("FAILED", ["FAILED", "SUCCESS"])


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_task_that_ends_between_effect_and_reading_tells_that_the_effect_has_happened(board, how):
    steps = [step("gpio.set", line="RELAY", value=1, expect=lit(LONG, "BUTTON"))]
    # Time enough for the effect on a busy machine; afterwards nobody need see it, before the rollback takes it back.
    limits = {"max_duration_ms": 500} if how == "deadline" else {}
    task = await board.session.submit("x", steps, rollback_on_failure=True, **limits)
    if how == "cancel":
        await passes(lambda: board.gpio.state(RELAY) == 1)
        await task.cancel()
    done = await finished(task)
    assert done.status == ("CANCELLED" if how == "cancel" else "FAILED")
    (only,) = done.steps
    assert (only.status, only.error_code) == ("FAILED", EffectNotSeen.code)
    assert (only.error_data["effect"], only.rolled_back) == ("done", True)
    assert board.gpio.state(RELAY) == "input"
    assert board.finish_record()["effect"] == "done"


async def test_a_task_that_is_cancelled_before_the_effect_is_cancelled(board):
    holder = await board.session.submit("hold", [step("gpio.watch", line=1, timeout_ms=LONG)], exclusive=True)
    await event(holder, "start", 0)
    task = await board.session.submit("x", [step("gpio.set", line="RELAY", value=1, expect=lit())])
    await event(task, "start", 0)
    await task.cancel()
    done = await finished(task)
    assert (done.status, done.steps[0].status, done.steps[0].error_code) == ("CANCELLED", "CANCELLED", None)
    assert board.gpio.state(RELAY) == "input"
    await holder.cancel()
    await finished(holder)


# --- one transaction --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def waiting_effect(board, **constraints):
    """A task whose relay is driven and whose effect is still looked for."""
    steps = [step("gpio.set", line="RELAY", value=1, expect=lit(LONG, "BUTTON"))]
    task = await board.session.submit("first", steps, **constraints)
    await passes(lambda: board.gpio.state(RELAY) == 1)
    yield task


@pytest.mark.spec("design 8: expect of a step")
@pytest.mark.parametrize("exclusive", [None, True])
async def test_another_task_cannot_write_between_the_effect_and_its_reading(board, exclusive):
    bus = board.world.runtime.buses["gpio:sim"]
    sessions = board.world.sessions(BOB)
    async with waiting_effect(board, exclusive=exclusive) as task, sessions.open_session() as other:
        meddling = await other.submit("second", [step("gpio.set", line="RELAY", value=0)])
        await passes(lambda: bus.queued == 1)
        assert board.gpio.state(RELAY) == 1
        board.gpio.push(BUTTON, 1)
        assert (await finished(task)).status == "SUCCESS"
        assert (await finished(meddling)).status == "SUCCESS"
        assert board.gpio.state(RELAY) == 0


async def test_the_bus_is_free_again_after_an_effect_that_was_not_seen(board):
    stuck_line(board)
    assert (await board.run(step("gpio.set", line="LED", value=1, expect=lit()))).status == "FAILED"
    assert "leased" not in board.world.runtime.buses["gpio:sim"].health()


async def test_on_busy_fail_does_not_wait_for_the_bus_and_nothing_happens(board):
    async with waiting_effect(board) as task:
        with pytest.raises(Exception, match="is leased"):
            await board.session.submit("y", [step("gpio.set", line="LED", value=1, expect=lit())], on_busy="fail")
        await task.cancel()
        await finished(task)


# --- refused at submit ------------------------------------------------------------------------------------------------


def looking(**members):
    return {"tool": "gpio.set", "args": {"line": "LED", "value": 1}, "expect": {**READ, **members}}


READ = {"tool": "gpio.get", "args": {"line": 27}, "equals": {"value": 1}}
REFUSED = {
    "no object": ({"expect": 1}, InvalidParams, "/task/steps/0/expect", "an object"),
    "misspelt condition": ({"maxx": {"value": 1}}, InvalidParams, "/task/steps/0/expect/maxx", "did you mean max"),
    "no tool": ({"tool": None}, InvalidParams, "/task/steps/0/expect/tool", "a string"),
    "args of another type": ({"args": []}, InvalidParams, "/task/steps/0/expect/args", "an object"),
    "no condition": ({"equals": None}, InvalidParams, "/task/steps/0/expect", "equals, min or max"),
    "an empty condition": ({"equals": {}}, InvalidParams, "/task/steps/0/expect/equals", "1 to 16 members"),
    "a bound that is no number": ({"min": {"value": "1"}}, InvalidParams, "/task/steps/0/expect/min/value", "number"),
    "a bound that is true": ({"min": {"value": True}}, InvalidParams, "/task/steps/0/expect/min/value", "number"),
    "crossed bounds": (
        {"min": {"value": 2}, "max": {"value": 1}},
        InvalidParams,
        "/task/steps/0/expect/min/value",
        "at most its max, which is 1",
    ),
    "no time": ({"within_ms": 0}, InvalidParams, "/task/steps/0/expect/within_ms", "1 to 600000"),
    "unknown tool": ({"tool": "gpio.gett"}, ToolNotFound, "/expect/tool", "did you mean gpio.get"),
    "a tool that changes something": (
        {"tool": "gpio.set", "args": {"line": 27, "value": 1}},
        InvalidParams,
        "/expect/tool",
        "a read of risk 0",
    ),
    "a read that may write": (
        {"tool": "i2c.read", "args": {"bus": 1, "addr": 9, "reg": 0, "len": 1}, "equals": {"hex": "00"}},
        InvalidParams,
        "/expect/tool",
        "with other args 0",
    ),
    "args that do not fit": ({"args": {"line": -1}}, InvalidParams, "/expect/args/line", "-1"),
    "an unknown arg": (
        {"args": {"line": 27, "chipp": "sim"}},
        InvalidParams,
        "/expect/args/chipp",
        "did you mean chip",
    ),
    "an unknown line": ({"args": {"line": 99}}, InvalidParams, ..., "99"),
    "a file outside": (
        {"tool": "file.stat", "args": {"path": "/etc/hostname"}, "equals": {"size": 1}},
        PermissionDenied,
        "/etc/hostname",
        "[files] read is empty",
    ),
    "an unknown member": ({"equals": {"valu": 1}}, InvalidParams, "/expect/equals/valu", "did you mean value"),
    "an unlike member": ({"min": {"zzz": 1}}, InvalidParams, "/expect/min/zzz", "it has line, chip, value"),
    "a bound of a text": (
        {"tool": "i2c.read", "args": {"bus": 1, "addr": 80, "len": 1}, "equals": None, "max": {"hex": 1}},
        InvalidParams,
        "/expect/max/hex",
        "no number",
    ),
    "a value that cannot be": ({"equals": {"value": 2}}, InvalidParams, "/expect/equals/value", "no value that"),
    "a value of another type": ({"equals": {"value": "1"}}, InvalidParams, "/expect/equals/value", "no value that"),
}


@pytest.mark.spec("design 8: expect of a step")
@pytest.mark.parametrize("case", REFUSED)
async def test_an_expectation_that_cannot_be_looked_for_is_refused_before_anything_moves(board, case):
    members, error, path, reason = REFUSED[case]
    bad = {**looking(), **members} if "expect" in members else looking(**members)
    with pytest.raises(error) as refused:
        await board.session.call("task.submit", task={"intent": "x", "steps": [bad]}, strict=False)
    data = refused.value.data
    if path is not ...:
        assert data["path"] == path
    assert data.get("step_index", 0) == 0
    assert reason in str(refused.value)
    assert board.gpio.state(17) == "input"


async def test_a_tool_that_the_policy_does_not_allow_is_not_allowed_as_a_reading(tmp_path):
    policy = (evolve(OPEN, tools=("gpio.set",)),)
    async with running(simulated(tmp_path, default_policy=policy)) as world, world.sessions().open_session() as session:
        with pytest.raises(PermissionDenied, match=r"gpio.get.*allowlist") as refused:
            await session.submit("x", [step("gpio.set", line=17, value=1, expect=lit())])
    assert refused.value.data["path"] == "/expect/tool"


async def test_a_reading_takes_a_token_of_its_tool_as_a_step_does(tmp_path):
    policy = (evolve(OPEN, rate={"gpio.get": "1/m"}),)
    async with running(simulated(tmp_path, default_policy=policy)) as world, world.sessions().open_session() as session:
        await finished(await session.submit("x", [step("gpio.set", line=17, value=1, expect=lit())]))
        with pytest.raises(RateLimited):
            await session.submit("x", [step("gpio.set", line=17, value=1, expect=lit())])


async def test_a_dry_run_names_the_reading_and_touches_nothing(board):
    done = await board.run(step("gpio.set", line="LED", value=1, expect=lit()), dry_run=True)
    assert done.steps[0].result["expect"] == {"tool": "gpio.get", "bus": "gpio:sim"}
    assert board.gpio.state(17) == "input"


# --- conditions -------------------------------------------------------------------------------------------------------

HOLDS = [
    ({"equals": {"a": 1}}, {"a": 1.0}, True),
    ({"equals": {"a": 1}}, {"a": True}, False),
    ({"equals": {"a": True}}, {"a": 1}, False),
    ({"equals": {"a": [1, {"b": None}]}}, {"a": [1, {"b": None}]}, True),
    ({"equals": {"a": [1]}}, {"a": [True]}, False),
    ({"equals": {"a": [1]}}, {"a": [1, 2]}, False),
    ({"equals": {"a": {"b": 1}}}, {"a": {"c": 1}}, False),
    ({"equals": {"a": None}}, {}, False),
    ({"min": {"a": 1}}, {"a": 1}, True),
    ({"min": {"a": 1}}, {"a": 0.5}, False),
    ({"min": {"a": 1}}, {"a": True}, False),
    ({"min": {"a": 1}}, {"a": "2"}, False),
    ({"min": {"a": 1}}, {}, False),
    ({"max": {"a": 1}}, {"a": 2}, False),
    ({"min": {"a": 1}, "max": {"a": 3}}, {"a": 2}, True),
    ({"min": {"a": 1}, "equals": {"b": "x"}}, {"a": 2, "b": "y"}, False),
]


@pytest.mark.parametrize(("conditions", "result", "holds"), HOLDS)
def test_all_conditions_must_hold_for_json_values_as_they_are(conditions, result, holds):
    assert expect("gpio.get", **conditions).holds(result) is holds


async def test_a_long_value_is_seen_by_its_beginning(board):
    read = expect("i2c.read", bus=1, addr=0x50, reg=0, len=256, equals={"data": "AA=="}, within_ms=250)
    done = await board.run(step("gpio.set", line="RELAY", value=1, expect=read))
    assert done.steps[0].seen["data"].endswith("…")
    assert len(done.steps[0].seen["data"]) < 200
    assert done.status == "FAILED"


# --- over MCP ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def over_mcp(directory, mode):
    async with (
        running(simulated(directory, default_policy=(OPEN,))) as world,
        mcp_client(world.sessions(), mode) as client,
    ):
        yield world, client


@pytest.mark.parametrize("mode", ERAS)
async def test_an_mcp_call_and_a_plan_take_the_effect_that_they_must_have(tmp_path, mode):
    async with (
        running(simulated(tmp_path, default_policy=(OPEN,))) as world,
        mcp_client(world.sessions(), mode) as client,
    ):
        board = Board(world, None)
        wanted = {"tool": "gpio_get", "args": {"line": 27}, "equals": {"value": 1}, "within_ms": SHORT}
        lamp = {"line": "LED", "value": 1}
        seen = await client.call_tool("gpio_set", lamp, meta={META_EXPECT: wanted})
        assert (seen.is_error, seen.meta[META_TASK]["seen"]) == (False, {"value": 1})
        stuck_line(board)
        unseen = await client.call_tool("gpio_set", lamp, meta={META_EXPECT: wanted})
        assert (unseen.is_error, unseen.meta[META_ERROR]["symbol"]) == (True, "EFFECT_NOT_SEEN")
        assert unseen.meta[META_ERROR]["effect"] == "done"
        plan = {"intent": "x", "steps": [{"tool": "gpio_set", "args": lamp, "expect": wanted}]}
        planned = await client.call_tool(PLAN, plan)
        step = planned.structured_content["steps"][0]
        assert (step["status"], step["error_code"], step["seen"]) == ("FAILED", EffectNotSeen.code, {"value": 0})


@pytest.mark.parametrize("mode", ERAS)
async def test_a_wrong_expectation_over_mcp_is_refused_with_its_place(tmp_path, mode):
    async with (
        running(simulated(tmp_path, default_policy=(OPEN,))) as world,
        mcp_client(world.sessions(), mode) as client,
    ):
        lamp = {"line": "LED", "value": 1}
        for wanted, place in (
            ({"tool": "gpio_get", "args": {"line": 27}}, "/expect"),
            ({"tool": "gpio_get", "args": {"line": 27}, "equals": {"valu": 1}}, "/expect/equals/valu"),
            ({"tool": "gpio_gett", "args": {"line": 27}, "equals": {"value": 1}}, None),
        ):
            call = await client.call_tool("gpio_set", lamp, meta={META_EXPECT: wanted})
            planned = await client.call_tool(
                PLAN, {"intent": "x", "steps": [{"tool": "gpio_set", "args": lamp, "expect": wanted}]}
            )
            assert call.is_error
            assert planned.is_error
            if place is not None:
                assert call.meta[META_ERROR]["path"] == place
                assert planned.meta[META_ERROR]["path"] == f"/steps/0{place}"
        assert world.level(17) == 0
