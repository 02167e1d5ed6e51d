"""The gpio tools over a real kernel chip, through a whole runtime: what a client does and what the wire shows."""

import pytest
import trio
from gpiod.line import Edge
from support.gpio_sim import gpio_sim
from support.waiting import passes

import hearth
from hearth import step
from hearth.errors import PermissionDenied, ResourceBusy

LINES = ["relay", "brake", "latch", "button", "valve", "lamp"]
PROFILE = """
name = "cell"
description = "one chip of the kernel's"
[[gpio]]
label = "cell"
driver = "gpiod"
names = ["relay", "brake", "latch", "button", "valve", "lamp"]
{more}
[gpio.lines.relay]
safe = 0
[gpio.lines.brake]
safe = 1
[gpio.lines.latch]
hold = "keep"
[gpio.lines.button]
direction = "input"
pull = "up"
[gpio.lines.valve]
active_low = true
safe = 0
"""


def watched(chip, line):
    return chip.info(line).edge_detection is not Edge.NONE


@pytest.fixture
def chip():
    with gpio_sim("cell", LINES) as chip:
        yield chip


@pytest.fixture(params=["inline", "thread"])
def profile(request, tmp_path):
    path = tmp_path / "cell.toml"
    path.write_text(PROFILE.format(more="blocking = true" if request.param == "thread" else ""))
    return str(path)


async def test_a_line_is_driven_and_read_by_its_name_and_by_its_offset(chip, profile):
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        for line, name in (("relay", "relay"), (0, "relay"), ("valve", "valve")):
            for value in (1, 0):
                assert await session.run("gpio.set", line=line, value=value) == {"line": line, "value": value}
                wire = 1 - value if name == "valve" else value
                assert chip.value(name) == wire
                assert (await session.run("gpio.get", line=line))["value"] == value


async def test_a_sessions_outputs_go_to_their_safe_state_on_the_wire_when_it_ends(chip, profile):
    async with hearth.open_runtime(board=profile) as runtime:
        async with runtime.open_session() as session:
            for line, value in (("relay", 1), ("brake", 0), ("latch", 1), ("valve", 1), ("lamp", 1)):
                await session.run("gpio.set", line=line, value=value)
            assert [chip.value(line) for line in LINES if line != "button"] == [1, 0, 1, 0, 1]
        assert [chip.value(line) for line in LINES if line != "button"] == [0, 1, 1, 1, 0]


async def test_a_pulse_drives_the_line_for_its_duration_and_brings_it_back(chip, profile):
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        await session.run("gpio.set", line="brake", value=1)
        task = await session.submit("blink", [step("gpio.pulse", line="brake", value=0, duration_ms=300)])
        await passes(lambda: chip.value("brake") == 0)
        result = await task.wait()
        assert result.steps[0].result["restored"] is True
        assert chip.value("brake") == 1


async def test_a_pulse_on_an_input_ends_as_an_input_also_when_it_is_cancelled(chip, profile):
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        task = await session.submit("blink", [step("gpio.pulse", line="lamp", value=1, duration_ms=60_000)])
        await passes(lambda: chip.value("lamp") == 1)
        await task.cancel()
        await task.wait()
        # An input follows its pull; an output would not.
        chip.pull("lamp", 1)
        chip.pull("lamp", 0)
        assert chip.value("lamp") == 0


async def test_edges_arrive_as_progress_while_the_step_runs_and_in_its_result(chip, profile):
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        watch = step("gpio.watch", line="button", count=3, timeout_ms=20_000)
        task = await session.submit("watch", [watch])
        await passes(lambda: watched(chip, "button"))
        chip.push("button", 0)
        told = []
        async for event in task.events():
            if event.phase == "progress":
                told.append(event.data["data"]["edge"])
                if len(told) < 3:
                    chip.push("button", len(told) % 2)
        result = (await task.wait()).steps[0].result
        assert told == ["falling", "rising", "falling"]
        assert [edge["seq"] for edge in result["edges"]] == [1, 2, 3]
        assert (result["timed_out"], result["dropped"]) == (False, 0)
        stamps = [edge["timestamp_ns"] for edge in result["edges"]]
        assert stamps == sorted(stamps)


async def test_a_failed_task_with_rollback_leaves_the_wire_as_it_was(profile):
    with gpio_sim("cell", LINES, hogs={5: ("status-led", "output-high")}) as chip, trio.fail_after(30):
        async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
            await session.run("gpio.set", line="brake", value=1)
            plan = {"brake": 0, "relay": 1, "lamp": 0}
            steps = [step("gpio.set", line=line, value=value) for line, value in plan.items()]
            task = await session.submit("all or nothing", steps, rollback_on_failure=True)
            result = await task.wait()
            assert [each.rolled_back for each in result.steps[:2]] == [True, True]
            assert chip.value("brake") == 1
            # The relay was an input, and is one again: it follows its pull.
            chip.pull("relay", 0)
            assert chip.value("relay") == 0


async def test_a_line_that_the_profile_calls_an_input_is_never_driven(chip, profile):
    async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
        assert (await session.run("gpio.get", line="button"))["value"] == 1
        assert chip.pulled("button") == 1
        with pytest.raises(PermissionDenied, match="never driven"):
            await session.run("gpio.set", line="button", value=0)


async def test_a_line_that_the_kernel_holds_is_resource_busy_for_the_client_and_names_the_holder(profile):
    with gpio_sim("cell", LINES, hogs={5: ("status-led", "output-high")}), trio.fail_after(30):
        async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
            with pytest.raises(ResourceBusy, match="held by 'status-led'") as caught:
                await session.run("gpio.set", line="lamp", value=0)
            assert caught.value.data["consumer"] == "status-led"
            assert caught.value.data["effect"] == "none"
            await session.run("gpio.set", line="relay", value=1)
