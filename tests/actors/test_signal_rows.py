"""The rows of signals: one shape in signal.list, in the lists of all kinds and for observers; quality, time, policy."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
import trio
from support.waiting import passes
from support.world import ALICE, OPEN, BoardWorld, running

import hearth
from hearth.actors.build import unused_hardware
from hearth.actors.bus.actor import Bus
from hearth.client import observing
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.can.tools import MessageSignal
from hearth.drivers.gpio.sim import SimGpio
from hearth.drivers.tools import build_tools
from hearth.drivers.units import same_unit
from hearth.errors import InvalidParams
from hearth.policy.rules import Match, PolicyEntry

SHAPE = {
    *("name", "kind", "bus", "unit", "access", "value", "quality", "why", "at"),
    *("safe", "limit", "interlocks", "owner", "reserved", "left"),
}
LISTS = ("gpio", "pwm", "dac", "i2c", "spi", "can", "modbus", "uart", "sensor")
PROFILE = {
    "name": "cell",
    "description": "A cell.",
    "gpio": [{"label": "sim", "driver": "sim", "names": ["LED", "PUMP"], "lines": {"LED": {"safe": 0}}}],
    "pwm": [{"label": "sim", "driver": "sim", "channels": ["FAN"], "channel": {"FAN": {"period_us": 40}}}],
    "i2c": [
        {
            "bus": 1,
            "driver": "sim",
            "device": [{"addr": 0x48, "kind": "tmp102", "registers": [{"reg": 1, "width": 16, "name": "CONFIG"}]}],
        }
    ],
    "sensors": {"temperature": {"kind": "tmp102", "bus": 1, "addr": 0x48}},
}


def by_name(rows):
    return {row["name"]: row for row in rows}


async def test_every_list_of_hardware_has_the_rows_of_its_signals_in_the_shape_of_signal_list() -> None:
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        everything = by_name((await session.run("signal.list"))["signals"])
        assert all(set(row) == SHAPE for row in everything.values())
        found = {}
        for kind in LISTS:
            answer = await session.run(f"hw.{kind}.list")
            assert len(answer) > 1, "the old members stay"
            found |= by_name(answer["signals"])
        assert found.keys() == everything.keys()
        assert {name: set(row) for name, row in found.items()} == dict.fromkeys(everything, SHAPE)
        state = await session.observe_state()
        assert {row["name"]: set(row) for row in state["named"]} == dict.fromkeys(everything, SHAPE)


async def test_a_level_is_good_if_the_driver_was_asked_for_it_and_stale_if_it_is_remembered() -> None:
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        before = by_name((await session.run("signal.list"))["signals"])
        assert (before["FAN"]["value"], before["FAN"]["quality"]) == (None, "none")
        assert before["FAN"]["why"] == "not known without asking the hardware"
        await session.run("gpio.set", line="LED", value=1)
        await session.run("pwm.set", channel="FAN", duty=0.25)
        await session.run("modbus.read", device="FAN", name="speed")
        rows = by_name((await session.run("signal.list"))["signals"])
        led, fan, speed = rows["LED"], rows["FAN"], rows["FAN.speed"]
        assert (led["value"], led["quality"], led["owner"]) == (1, "good", session.session_id)
        assert led["at"] is not None
        assert (fan["value"], fan["quality"], fan["at"], fan["unit"]) == (0.25, "stale", None, "duty")
        assert (speed["value"], speed["quality"], speed["owner"]) == (0, "stale", None)
        async with runtime.open_session(client_name="other") as other:
            assert by_name((await other.run("signal.list"))["signals"])["LED"]["owner"] == "another session"


async def test_a_channel_that_is_off_reads_off() -> None:
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        await session.run("pwm.off", channel="FAN")
        read = await session.run("signal.read", name="FAN")
        assert (read["value"], read["quality"]) == ("off", "good")


async def test_a_signal_on_a_bus_that_is_not_open_has_failed_and_says_why() -> None:
    bus = Bus("gpio:sim", SimGpio("sim", []))
    assert bus.known().failed == "bus gpio:sim is opening: not open yet"
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        await session.run("pwm.set", channel="FAN", duty=0.25)
        closed = runtime._runtime.buses["pwm:sim"]
        closed.state, closed.reason = "down", "its device has gone"
        try:
            fan = by_name((await session.run("signal.list", name="FAN"))["signals"])["FAN"]
            named = by_name((await session.observe_state())["named"])["FAN"]
        finally:
            closed.state = "ready"
        assert (fan["value"], fan["quality"]) == (None, "failed")
        assert fan["why"] == named["why"] == "bus pwm:sim is down: its device has gone"


async def test_rows_are_of_the_hardware_that_the_policy_permits_also_where_no_tool_reads_them(tmp_path) -> None:
    few = PolicyEntry(name="few", match=Match(uid=1001), lines=["LED"], i2c=[], pwm=[])
    world = BoardWorld(PROFILE, policy=(few, OPEN))
    async with running(world), world.client(ALICE) as client, client.open_session() as session:
        assert [row["name"] for row in (await session.run("signal.list"))["signals"]] == ["LED"]
        assert [row["name"] for row in (await session.run("hw.gpio.list"))["signals"]] == ["LED"]
        for kind in ("pwm", "i2c", "sensor"):
            assert (await session.run(f"hw.{kind}.list"))["signals"] == []


async def test_an_observer_follows_signals_of_all_kinds_with_what_was_read_of_a_sensor() -> None:
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        state: dict = {}
        events = session.observe()
        observing.apply(state, await anext(events))
        assert by_name(state["named"])["temperature"]["quality"] == "none"
        await session.run("modbus.write", device="FAN", name="speed", value=10)
        reading = await session.run("signal.read", name="temperature")
        with trio.fail_after(10):
            while (row := by_name(state["named"])["temperature"])["value"] is None:
                observing.apply(state, await anext(events))
        assert (row["value"], row["quality"], row["unit"]) == (reading["value"], "stale", "celsius")
        assert row["at"] is not None
        with trio.fail_after(10):
            while (row := by_name(state["named"])["FAN.speed"])["value"] != 10:
                observing.apply(state, await anext(events))
        assert (row["quality"], row["left"]) == ("stale", True)
        await session.run("gpio.set", line="LED", value=1)
        with trio.fail_after(10):
            while (row := by_name(state["named"])["LED"])["value"] != 1:
                observing.apply(state, await anext(events))
        assert row["owner"] == {"session_id": session.session_id, "principal": "embedded"}
        fresh = await session.observe_state()
        assert {name: row["value"] for name, row in by_name(fresh["named"]).items()} == {
            name: row["value"] for name, row in by_name(state["named"]).items()
        }


async def test_the_time_of_an_edge_is_that_of_the_edge_not_of_the_read() -> None:
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        (button,) = [one.signal.output for one in runtime.board.signals if one.name == "BUTTON"]
        bench = runtime.board.drivers["gpio:sim"]
        watch = await session.submit("watch", [hearth.step("signal.watch", name="BUTTON", count=2)])
        await passes(lambda: bench._lines[button].watches)
        began = time.time()
        bench.push(button, 1)
        bench.push(button, 0)
        ended = time.time()
        first, second = (await watch.wait()).steps[0].result["changes"]
    assert (first["value"], second["value"]) == (1, 0)
    assert began - 0.1 <= datetime.fromisoformat(first["at"]).timestamp() <= ended + 0.1


async def test_the_time_of_a_signal_of_a_frame_is_that_of_the_frame() -> None:
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        (spec,) = runtime.board.of("can")
        named = MessageSignal(bus=f"can:{spec.bus}", name="ENGINE_DATA.Speed", access="r", others={})
        frames = await session.run(named.read().tool, **named.read().args)
        stamp = frames["latest"][-1]["timestamp_us"]
        assert named.measured_at(frames) == stamp / 1e6
        assert named.measured_at({"latest": []}) is None
        assert named.value(frames, {}) is not None


def test_a_policy_that_still_has_a_name_which_the_profile_has_changed_is_named_with_the_nearest_names() -> None:
    board = open_board(load_profile("sim"))
    build_tools(board)
    entry = PolicyEntry(
        name="few",
        match=Match(any=True),
        lines=["PUMPS", "17", "sim:PU*", "*"],
        modbus=["FAN:raw", "plant:3", "FUN"],
        i2c=["1:0x20"],
        uart=["nothing"],
        dac=[],
        signals=["PUMP", "gpio:sim:*", "PUMPE"],
    )
    assert unused_hardware([entry, OPEN], board) == [
        "policy 'few': lines: 'pumps' fits nothing that the board's profile names; did you mean PUMP, sim:PUMP?",
        "policy 'few': modbus: 'fun' fits nothing that the board's profile names; did you mean FAN?",
        "policy 'few': uart: 'nothing' fits nothing that the board's profile names",
        "policy 'few': signals: 'pumpe' fits nothing that the board's profile names; did you mean PUMP?",
    ]


async def test_a_unit_is_the_signals_in_whatever_spelling_and_another_one_is_refused() -> None:
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="arm") as session:
        assert (await session.run("signal.set", name="VALVE", value="0.5 V"))["unit"] == "volt"
        assert (await session.run("signal.set", name="FAN.speed", value="10 Hz"))["value"] == 10
        with pytest.raises(InvalidParams, match=r"expected a value in volt, got '3\.3 A'"):
            await session.run("signal.set", name="VALVE", value="3.3 A")
    assert same_unit("m/s²", "metre_per_second_squared")
    assert same_unit("h", "hours")
