"""A policy entry with `signals`, and signals as another way to what it does not permit."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

import hearth
from hearth import step
from hearth.actors.build import policy_entries
from hearth.api import Expect
from hearth.config.model import load_config
from hearth.drivers.base import Style
from hearth.drivers.tools import build_tools
from hearth.errors import ApprovalRequired, InvalidParams, PermissionDenied, RateLimited, RpcError, ToolNotFound
from hearth.policy.change import compare
from hearth.policy.rules import Match, PolicyEntry

PERMITTED = 'max_risk = 3\nsignals = ["pump", "TANK*", "door", "modbus:plant:FAN.s*", "ARM", "spi:MOTOR:*", "VALVE"]'


@asynccontextmanager
async def world(path, policy=PERMITTED, more="", board="sim", **opened):
    file = path / "hearth.toml"
    file.write_text(
        f'[audit]\npath = "{path}/audit.log"\n{more}\n[[policy]]\nname = "test"\nmatch = {{ any = true }}\n{policy}\n'
    )
    with trio.fail_after(30):
        opening = hearth.open_runtime(board=board, config=load_config(file), style=Style.INLINE)
        async with opening as runtime, runtime.open_session(**opened) as session:
            session.board = runtime.board
            yield session


TWO = """
name = "two"
description = "two chips"
[[gpio]]
label = "a"
driver = "sim"
names = ["PUMP", "X"]
[[gpio]]
label = "b"
driver = "sim"
names = ["PUMP"]
"""


INSIDE = [
    step("signal.set", name="PUMP", value=1),
    step("gpio.set", line="PUMP", value=0),
    step("gpio.pulse", line=23, value=0, duration_ms=1),
    step("gpio.get", line="GPIO24"),
    step("signal.read", name="tank"),
    step("hw.sensor.read", sensor="tank"),
    step("signal.set", name="FAN.speed", value=1),
    step("modbus.write", device="FAN", name="speed", value=1),
    step("modbus.read", device="FAN", register=100),
    step("signal.set", name="ARM", value=91),
    step("servo.move", servo="ARM", angle=92),
    step("pwm.get", channel="ARM"),
    step("spi.write", device="MOTOR", register="SPEED", value=1),
    step("spi.read", device="MOTOR", register="SPEED"),
    step("dac.get", channel="VALVE"),
    step("signal.list"),
    step("hw.gpio.list"),
    step("hw.board"),
    step("sys.uptime"),
]
SEEN = Expect("signal.read", {"name": "LED"}, equals={"value": 1})
BY_NAME = [
    (step("signal.set", name="LED", value=1), "LED is not in `signals`"),
    (step("signal.read", name="gpio:sim:LED"), "LED is not in `signals`"),
    (step("signal.watch", name="LED", timeout_ms=1), "LED is not in `signals`"),
    (step("gpio.set", line=17, value=1), "LED is not in `signals`"),
    (step("gpio.pulse", line="GPIO17", value=1, duration_ms=1), "LED is not in `signals`"),
    (step("gpio.get", line="LED"), "LED is not in `signals`"),
    (step("gpio.watch", line="17", timeout_ms=1), "LED is not in `signals`"),
    (step("pwm.set", channel="FAN", duty=0.1), "FAN is not in `signals`"),
    (step("pwm.off", channel="LAMP"), "LAMP is not in `signals`"),
    (step("dac.set", channel="BIAS", value=1), "BIAS is not in `signals`"),
    (step("modbus.read", device="FAN", register=100, count=2), "FAN.ramp is not in `signals`"),
    (step("modbus.write", device="FAN", name="ramp", value=1), "FAN.ramp is not in `signals`"),
    (step("hw.sensor.read", sensor="temperature"), "temperature is not in `signals`"),
    (step("hw.sensor.capture", sensors=["vibration"], samples=1), "vibration is not in `signals`"),
    (evolve(step("gpio.set", line="PUMP", value=1), expect=SEEN), "LED is not in `signals`"),
    (step("can.watch", bus="can0", filter=["FAN_STATUS"], timeout_ms=1), r"FAN_STATUS\.\w+ is not in `signals`"),
]  # fmt: skip
PAST = [
    step("i2c.write", bus=1, addr=0x50, text="x"),
    step("i2c.write", bus=1, addr=0x48, reg=1, text="x"),
    step("i2c.read", bus=1, addr=0x48, reg=0, len=2),
    step("i2c.read", bus=1, addr=0x48, len=1),
    step("i2c.transfer", bus=1, addr=0x48, text="x", read_len=1),
    step("i2c.scan", bus=1),
    step("spi.transfer", device="MOTOR", hex="9000"),
    step("spi.transfer", device="LOOP", text="x"),
    step("uart.write", port="uart0", text="x"),
    step("uart.exchange", port="uart0", text="x", timeout_ms=1),
    step("uart.read", port="uart0", timeout_ms=1),
    step("can.send", bus="can0", id=0x300, hex=""),
    step("can.send", bus="can0", message="FAN_COMMAND", hex="00"),
    step("can.isotp", bus="can0", tx=0x300, rx=0x301, hex="00"),
    step("can.read", bus="can0", timeout_ms=1),
    step("can.read", bus="can0", filter=[0x7FF], timeout_ms=1),
]


async def test_steps_on_permitted_signals_run_by_any_name_of_them(tmp_path):
    async with world(tmp_path) as session:
        done = await (await session.submit("x", INSIDE)).wait()
        assert done.raise_for_status()


@pytest.mark.parametrize(("one", "reason"), BY_NAME, ids=[str(index) for index in range(len(BY_NAME))])
async def test_a_signal_that_the_entry_does_not_name_is_neither_driven_nor_read(tmp_path, one, reason):
    async with world(tmp_path) as session:
        for submit in (session.submit, session.prepare):
            with pytest.raises(PermissionDenied, match=reason) as refused:
                await submit("x", [step("sys.uptime"), one])
            assert refused.value.data["step_index"] == 1
        assert session.board.drivers["gpio:sim"].level(17) == 0


@pytest.mark.parametrize("one", PAST, ids=[str(index) for index in range(len(PAST))])
async def test_a_raw_call_that_could_reach_past_the_signals_is_refused_with_the_cure(tmp_path, one):
    async with world(tmp_path, 'max_risk = 3\nsignals = ["*"]') as session:
        with pytest.raises(PermissionDenied, match=r"permits only some signals, and .*may reach others; signal\.list"):
            await session.submit("x", [one])


async def test_the_list_has_only_the_signals_that_the_entry_permits(tmp_path):
    async with world(tmp_path) as session:
        names = {row["name"] for row in (await session.run("signal.list"))["signals"]}
        assert names == {"PUMP", "DOOR", "ARM", "tank", "FAN.speed", "SPEED", "CURRENT", "FAULTS", "VALVE"}


async def test_an_interlock_of_another_output_is_not_shown_with_what_it_reads(tmp_path):
    more = '[[interlock]]\ndrives = "{0}"\nvalue = 1\nrequires = [{{ line = "Z", value = 1 }}]\n'
    (tmp_path / "locks.toml").write_text(TWO.replace('"X"', '"X", "Y", "Z"') + more.format("X") + more.format("Y"))
    policy = 'signals = ["Y"]'
    async with world(tmp_path, policy.replace("Y", "*"), board=str(tmp_path / "locks.toml")) as session:
        assert [one["drives"] for one in (await session.run("hw.board"))["interlocks"]] == ["X", "Y"]
    async with world(tmp_path, policy, board=str(tmp_path / "locks.toml")) as session:
        for tool in ("hw.board", "hw.gpio.list"):
            assert [one["drives"] for one in (await session.run(tool))["interlocks"]] == ["Y"]


async def test_both_scopes_of_an_entry_must_permit_a_signal(tmp_path):
    async with world(tmp_path, 'lines = ["LED"]\nsignals = ["PUMP", "VALVE"]') as session:
        for name in ("LED", "PUMP"):
            with pytest.raises(PermissionDenied, match=r"is not in `(lines|signals)`"):
                await session.run("signal.set", name=name, value=1)
        await session.run("signal.set", name="VALVE", value=0.1)
        assert [row["name"] for row in (await session.run("signal.list"))["signals"]] == ["VALVE"]


def test_more_signals_are_more_rights_and_a_new_key_is_less():
    def entry(**more):
        return PolicyEntry(name="a", match=Match(any=True), **more)

    def told(former, new):
        return compare([former], [new], {}).allows

    assert told(entry(signals=["PUMP"]), entry(signals=["PUMP", "LED"])) == ("policy 'a': more of `signals`",)
    assert told(entry(signals=["PUMP"]), entry()) == ("policy 'a': more of `signals`",)
    assert told(entry(), entry(signals=["*"])) == ()
    assert told(entry(signals=["TANK*"]), entry(signals=["TANK1"])) == ()


# --- signal.* is never a second door ----------------------------------------------------------------------------------


async def test_a_tool_that_is_disabled_is_not_reached_by_the_name_of_its_signal(tmp_path):
    async with world(tmp_path, more='[tools]\ndisable = ["gpio.*"]') as session:
        for one in (step("signal.set", name="PUMP", value=1), step("signal.read", name="PUMP")):
            with pytest.raises(InvalidParams, match=r"gpio\.\w+, which is not offered here"):
                await session.submit("x", [one])
        await session.run("signal.set", name="ARM", value=91)


async def test_the_tools_for_signals_can_be_disabled_and_the_kinds_go_on(tmp_path):
    async with world(tmp_path, more='[tools]\ndisable = ["signal.*"]') as session:
        with pytest.raises(ToolNotFound):
            await session.run("signal.set", name="PUMP", value=1)
        await session.run("gpio.set", line="PUMP", value=1)


async def test_signal_tools_alone_permit_nothing(tmp_path):
    async with world(tmp_path, 'tools = ["signal.*"]') as session:
        for one in ("signal.set", "signal.read", "signal.list"):
            with pytest.raises(PermissionDenied, match="allowlist"):
                await session.submit("x", [step(one, **{} if one == "signal.list" else {"name": "PUMP", "value": 1})])


async def test_an_entry_for_lines_permits_the_signals_of_lines_and_no_others(tmp_path):
    async with world(tmp_path, 'tools = ["gpio.*"]') as session:
        await session.run("signal.set", name="PUMP", value=1)
        assert (await session.run("signal.read", name="PUMP"))["value"] == 1
        for name in ("ARM", "FAN.speed", "VALVE", "SPEED"):
            with pytest.raises(PermissionDenied, match="allowlist"):
                await session.run("signal.set", name=name, value=1)
        assert {row["kind"] for row in (await session.run("signal.list"))["signals"]} == {"gpio"}
    async with world(tmp_path, 'tools = ["gpio.get"]') as session:
        await session.run("signal.read", name="PUMP")
        with pytest.raises(PermissionDenied, match="allowlist"):
            await session.run("signal.set", name="PUMP", value=1)


async def test_a_watch_reads_no_more_often_than_the_kinds_tool_may_be_used(tmp_path, autojump_clock):
    async with world(tmp_path, 'rate = { "modbus.read" = "1/2s" }') as session:
        driver = session.board.drivers["modbus:plant"]
        reads, read = [], driver.read

        async def counted(*args):
            reads.append(trio.current_time())
            return await read(*args)

        driver.read = counted
        watched = await session.run("signal.watch", name="FAN.speed", timeout_ms=9_000)
        assert watched["timed_out"]
        assert len(reads) == 5, "at 0, 2, 4, 6 and 8 seconds"


async def test_a_rate_of_the_kinds_tool_counts_both_ways_together(tmp_path):
    async with world(tmp_path, 'rate = { "gpio.set" = "2/h", "signal.set" = "1/h" }') as session:
        await session.run("signal.set", name="PUMP", value=1)
        await session.run("gpio.set", line="LED", value=1)
        for one in (step("signal.set", name="LED", value=0), step("gpio.set", line="LED", value=0)):
            with pytest.raises(RateLimited) as refused:
                await session.submit("x", [one])
            assert refused.value.data["tool"] == "gpio.set"
        await session.run("signal.set", name="ARM", value=91)


async def test_the_risk_and_the_scope_of_hardware_are_those_of_the_resolved_step(tmp_path):
    async with world(tmp_path, "max_risk = 0") as session:
        with pytest.raises(PermissionDenied, match="max_risk_level=0 < tool=2"):
            await session.run("signal.set", name="PUMP", value=1)
        await session.run("signal.read", name="PUMP")
    async with world(tmp_path, 'max_risk = 3\nlines = ["LED"]\nmodbus = ["none"]') as session:
        for name, word in (("PUMP", "lines"), ("GPIO23", "lines"), ("FAN.speed", "modbus")):
            for submit in (session.submit, session.prepare):
                with pytest.raises(PermissionDenied, match=f"is not in `{word}`"):
                    await submit("x", [step("signal.set", name=name, value=1)])
        assert "PUMP" not in {row["name"] for row in (await session.run("signal.list"))["signals"]}


async def test_an_approval_is_for_the_step_of_the_kind_and_a_person_is_shown_that(tmp_path):
    policy = 'rights = ["approve"]\napproval = [{ from_risk = 2 }]'
    async with world(tmp_path, policy) as session:
        with pytest.raises(ApprovalRequired, match=r"step 0 \(gpio\.set\)"):
            await session.run("signal.set", name="PUMP", value=1)
        plan = await session.prepare("pump", [step("signal.set", name="PUMP", value=1)])
        (shown,) = plan.steps
        assert (shown.tool, shown.args) == ("gpio.set", {"chip": "sim", "line": 23, "value": 1})
        assert shown.after == {"value": 1}
        with pytest.raises(ApprovalRequired):
            await session.execute(plan)
        await session.approve(plan)
        done = await (await session.execute(plan)).wait()
        assert done.raise_for_status()
        assert session.board.drivers["gpio:sim"].level(23) == 1


async def test_a_conversation_reads_permitted_signals_and_is_tainted_by_the_tool_of_the_kind(tmp_path):
    async with world(tmp_path, conversation=True) as session:
        with pytest.raises(PermissionDenied, match="max_risk_level=0 < tool=2"):
            await session.run("signal.set", name="PUMP", value=1)
        await session.run("signal.read", name="DOOR")
        plan = await session.prepare("pump", [step("signal.set", name="PUMP", value=1)])
        assert (plan.state, plan.tainted_by) == ("ready", None)
        await session.run("signal.read", name="FAN.speed")
        plan = await session.prepare("pump", [step("signal.set", name="PUMP", value=1)])
        assert (plan.state, plan.tainted_by) == ("waiting", "modbus.read")
        with pytest.raises(PermissionDenied, match="LED is not in"):
            await session.run("signal.read", name="LED")


async def test_a_standing_approval_for_the_kinds_tool_holds_by_name_and_none_is_for_a_name(tmp_path):
    policy = 'rights = ["approve"]\napproval = [{ from_risk = 2 }]'
    bounds = {"chip": {"equals": "sim"}, "line": {"equals": 23}, "value": {"any": True}}
    async with world(tmp_path, policy) as session:
        by_name = {"name": {"equals": "PUMP"}, "value": {"any": True}}
        with pytest.raises(InvalidParams, match=r"no step is of signal\.set"):
            await session.grant_approval("signal.set", by_name, times=5, within_s=60)
        await session.grant_approval("gpio.set", bounds, times=1, within_s=60)
        with pytest.raises(ApprovalRequired):
            await session.submit("x", [step("signal.set", name="LED", value=1)])
        await session.run("signal.set", name="PUMP", value=1)
        with pytest.raises(ApprovalRequired):
            await session.submit("x", [step("signal.set", name="PUMP", value=0)])
        moves = {"servo": {"equals": "ARM"}, "angle": {"max": 95}}
        await session.grant_approval("servo.move", moves, times=2, within_s=60)
        await session.run("signal.set", name="ARM", value=92)
        with pytest.raises(ApprovalRequired):
            await session.submit("x", [step("signal.set", name="ARM", value=96)])


async def test_a_key_means_one_step_by_whatever_name_it_was_asked_for(tmp_path):
    async with world(tmp_path) as session:
        asked = [step("signal.set", name="PUMP", value=1)]
        first = await session.submit("x", asked, idempotency_key="k")
        await first.wait()
        again = await session.submit("x", asked, idempotency_key="k")
        assert again.task_id == first.task_id
        with pytest.raises(RpcError):
            await session.submit("x", [step("signal.set", name="ARM", value=91)], idempotency_key="k")


async def test_a_name_that_two_signals_have_is_refused_and_a_full_name_permits_one(tmp_path):
    (tmp_path / "two.toml").write_text(TWO)
    async with world(tmp_path, 'signals = ["gpio:a:*"]', board=str(tmp_path / "two.toml")) as session:
        with pytest.raises(InvalidParams, match="means 2 signals: give gpio:a:PUMP or gpio:b:PUMP"):
            await session.run("signal.set", name="PUMP", value=1)
        for one in (step("signal.set", name="gpio:b:PUMP", value=1), step("gpio.set", chip="b", line="PUMP", value=1)):
            with pytest.raises(PermissionDenied, match="PUMP is not in `signals`"):
                await session.submit("x", [one])
        await session.run("signal.set", name="gpio:a:PUMP", value=1)
        assert [row["name"] for row in (await session.run("signal.list"))["signals"]] == ["gpio:a:PUMP", "X"]


async def test_unknown_args_are_refused_or_named_as_they_were_asked(tmp_path):
    async with world(tmp_path) as session:
        asked = step("signal.set", name="PUMP", value=1, duraton_ms=5)
        with pytest.raises(RpcError, match="duraton_ms"):
            await session.submit("x", [asked])
        for wrong in ({"name": "PUMP"}, {"name": 5, "value": 1}, {"name": "PUMP", "value": {}}, {}):
            with pytest.raises(InvalidParams):
                await session.submit("x", [step("signal.set", **wrong)])
        with pytest.raises(InvalidParams, match="line"):
            await session.submit("x", [step("signal.set", line=23, chip="sim", value=1)])


async def test_a_pulse_is_only_where_the_kind_has_one(tmp_path):
    async with world(tmp_path) as session:
        await session.run("signal.set", name="PUMP", value=1, duration_ms=1)
        assert session.board.drivers["gpio:sim"].level(23) == 0
        for name in ("ARM", "FAN.speed", "VALVE", "SPEED"):
            with pytest.raises(InvalidParams, match="has no pulses"):
                await session.run("signal.set", name=name, value=1, duration_ms=1)
    async with world(tmp_path, 'tools = ["gpio.set", "gpio.get"]') as session:
        with pytest.raises(PermissionDenied, match="allowlist"):
            await session.run("signal.set", name="PUMP", value=1, duration_ms=1)


async def test_the_halt_and_the_limits_hold_for_a_signal(tmp_path):
    async with world(tmp_path, 'rights = ["reset_halt"]') as session:
        with pytest.raises(RpcError, match="Limit violated"):
            await session.run("signal.set", name="FAN.speed", value=99)
        await session.halt("test")
        with pytest.raises(RpcError, match="alted"):
            await session.run("signal.set", name="PUMP", value=1)
        assert (await session.run("signal.read", name="PUMP"))["value"] == 0


async def test_a_failed_task_rolls_a_signal_back_and_a_dry_run_drives_nothing(tmp_path):
    async with world(tmp_path) as session:
        gpio = session.board.drivers["gpio:sim"]
        await (await session.submit("x", [step("signal.set", name="PUMP", value=1)], dry_run=True)).wait()
        assert gpio.level(23) == 0
        steps = [step("signal.set", name="PUMP", value=1), step("signal.set", name="FAN.speed", value=45)]
        done = await (await session.submit("x", steps, rollback_on_failure=True)).wait()
        assert done.status != "COMPLETED"
        assert gpio.level(23) == 0


async def test_the_record_has_the_name_that_was_asked_for_beside_the_step(tmp_path):
    async with world(tmp_path) as session:
        await session.run("signal.set", name="PUMP", value=1)
    text = (tmp_path / "audit.log").read_text()
    (line,) = [line for line in text.splitlines() if '"task.submit"' in line]
    assert '"tool":"gpio.set"' in line
    assert '"asked":"signal.set"' in line


async def test_a_can_frame_needs_every_signal_of_its_message(tmp_path):
    sent = step("can.send", bus="can0", message="FAN_COMMAND", signals={"Speed": 1})
    async with world(tmp_path, 'signals = ["can:can0:FAN_COMMAND.*"]') as session:
        assert (await (await session.submit("x", [sent])).wait()).raise_for_status()
        await session.run("can.watch", bus="can0", filter=["FAN_COMMAND"], timeout_ms=1)
        with pytest.raises(PermissionDenied, match=r"ENGINE_DATA\.\w+ is not in `signals`"):
            await session.run("can.watch", bus="can0", filter=["FAN_COMMAND", "ENGINE_DATA"], timeout_ms=1)
    async with world(tmp_path, 'signals = ["FAN_COMMAND.Other"]') as session:
        with pytest.raises(PermissionDenied, match=r"FAN_COMMAND\.Speed is not in `signals`"):
            await session.submit("x", [sent])


async def test_each_signal_is_all_that_its_own_steps_reach(tmp_path):
    async with hearth.open_runtime(board="sim", config=None) as runtime:
        signals, tools = runtime.board.signals, {tool.name: tool for tool in build_tools(runtime.board)}
        for one in signals:
            steps = [one.read()] if "r" in one.access else []
            bounds = () if one.signal is None else one.signal.bounds.values()
            if "w" in one.access:
                steps.append(one.write(next(iter(bounds), 0)))
                steps += filter(None, [one.pulse(1, 5)])
            for made in steps:
                assert signals.uses(tools[made.tool], made.args) == [one.named_use], made


def test_the_key_is_read_from_a_file(tmp_path):
    file = tmp_path / "hearth.toml"
    file.write_text('[[policy]]\nname = "a"\nmatch = { any = true }\nsignals = ["Pump"]\n')
    (entry,) = policy_entries(load_config(file))
    assert entry.scope.patterns == {"signals": ("pump",)}
