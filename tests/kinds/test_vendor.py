"""A vendor's kind has all that hearth's own have: the lamps of `examples/acme_lamp`, found by their entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.world import BOB, OPEN, BoardWorld, embedded

from hearth.drivers.boards.diagnose import look, told
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.linux.machine import Machine
from hearth.drivers.sandbox.plan import devices_of
from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.rules import Match, PolicyEntry


async def test_its_outputs_are_signals_that_are_listed_read_and_set_by_name(open_world):
    async with open_world() as world, embedded(world) as session:
        done = await session.run("signal.set", name="WHITE", value="40 %")
        assert done.items() >= {"name": "WHITE", "bus": "lamp:sim", "value": 40, "unit": "percent"}.items()
        assert (await session.run("signal.read", name="lamp:sim:WHITE"))["value"] == 40
        rows = {row["name"]: row for row in (await session.run("signal.list", kind="lamp"))["signals"]}
        assert rows["WHITE"].items() >= {"unit": "percent", "value": 40, "safe": 30, "access": "rw"}.items()
        assert rows["UV"]["limit"] == {"min": 0, "max": 80, "slew_per_s": 20}


async def test_the_dashboard_has_a_row_of_each_output(open_world):
    policy = (PolicyEntry(name="watchers", match=Match(uid=1002), rights=["observe"]), OPEN)
    async with open_world(policy=policy) as world, world.client(BOB) as other, other.open_session() as watcher:
        rows = [row["name"] for row in (await watcher.observe_state())["named"] if row["bus"] == "lamp:sim"]
        assert rows == ["UV", "WHITE"]


async def test_the_record_of_a_set_by_name_is_about_its_own_step(open_world):
    async with open_world() as world, embedded(world) as session:
        await session.run("signal.set", name="WHITE", value=40)
        (record,) = world.records("task.submit")
        assert [(one["tool"], one["asked"]) for one in record["steps"]] == [("lamp.set", "signal.set")]


@pytest.mark.parametrize("word", ["lamp", "signals"])
async def test_a_policy_entry_permits_some_of_its_outputs(open_world, word):
    entry = PolicyEntry(name="white", match=Match(any=True), max_risk=2, **{word: ["WHITE"]})
    async with open_world(policy=[entry]) as world, embedded(world, BOB) as session:
        await session.run("lamp.set", channel="WHITE", value=40)
        await session.run("signal.set", name="WHITE", value=50)
        for tool, args in (("lamp.set", {"channel": "UV"}), ("signal.set", {"name": "UV"})):
            with pytest.raises(PermissionDenied):
                await session.run(tool, **args, value=1)
        assert [one["name"] for one in (await session.run("signal.list", kind="lamp"))["signals"]] == ["WHITE"]
        (cabinet,) = (await session.run("hw.lamp.list"))["cabinets"]
        assert [lamp["channel"] for lamp in cabinet["channels"]] == (["WHITE"] if word == "lamp" else ["UV", "WHITE"])
        assert world.drivers["lamp:sim"].percent == {0: 0, 1: 50}


async def test_a_policy_entry_that_permits_its_tools_permits_it_by_name(open_world):
    entry = PolicyEntry(name="lamps", match=Match(any=True), max_risk=2, tools=["lamp.set", "signal.list"])
    async with open_world(policy=[entry]) as world, embedded(world) as session:
        await session.run("signal.set", name="WHITE", value=40)
        with pytest.raises(PermissionDenied):
            await session.run("signal.set", name="RELAY", value=1)
        assert [one["name"] for one in (await session.run("signal.list"))["signals"]] == ["UV", "WHITE"]


async def test_a_tool_by_name_is_as_risky_as_its_own_where_a_board_has_nothing_else():
    lamp = {"label": "sim", "driver": "sim", "channels": ["UV"]}
    registry = BoardWorld({"name": "x", "description": "y", "lamp": [lamp]}).parts.registry
    assert registry["signal.set"].resolves_to == {"lamp.set"}
    assert registry["signal.set"].risk_level == registry["lamp.set"].risk_level == 2


# --- the machine ------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    """A machine with two LEDs."""
    for name in ("uv", "white"):
        led = tmp_path / "sys/class/leds" / name
        led.mkdir(parents=True)
        (led / "max_brightness").write_text("255")
        (led / "brightness").write_text("0")
    return Machine(tmp_path / "sys", tmp_path / "dev", tmp_path / "proc")


def cabinet(machine, **leds):
    """The content of a profile with a cabinet of these lamps."""
    channel = {name: {"led": str(machine.sys / "class/leds" / led)} for name, led in leds.items()}
    lamp = {"label": "cabinet", "driver": "leds", "channels": list(leds), "channel": channel}
    return {"name": "x", "description": "y", "lamp": [lamp]}


def test_the_doctor_finds_its_devices_and_compares_a_profile_with_them(machine, tmp_path):
    file = tmp_path / "board.toml"
    leds = machine.sys / "class/leds"
    file.write_text(
        'name = "x"\ndescription = "y"\n[[lamp]]\nlabel = "cabinet"\ndriver = "leds"\nchannels = ["UV", "RED"]\n'
        f'channel.UV.led = "{leds}/uv"\nchannel.RED.led = "{leds}/red"\n'
    )
    seen = look(str(file), machine=machine)
    assert [entry["node"] for entry in seen["lamp"]] == ["uv", "white"]
    assert ("lamp", f"uv ({leds}/uv/brightness)") in [(word, text) for word, text, _ in told(seen)]
    (problem,) = seen["profile"]["problems"]
    assert problem["key"] == "lamp[0].channel.RED.led"
    assert problem["problem"] == f"the LED {leds}/red is not there; there is uv, white"
    assert any(gap["key"] == "halt.inputs" for gap in seen["profile"]["safety"])


def test_the_sandbox_leaves_its_files_open_and_no_others(machine):
    grants = devices_of(parse_profile(cabinet(machine, UV="uv"), "p"), None, sys=machine.sys).grants
    assert [path for path, _, what in grants if what == "lamp UV"] == [machine.sys.resolve() / "class/leds/uv"]
    assert not [path for path, _, _ in grants if path.name == "white"]


def test_two_names_for_one_led_are_refused_with_both_places(machine):
    with pytest.raises(ConfigError, match=r"lamp\[0\]\.channel\.B\.led: .* is taken by lamp\[0\]\.channel\.A\.led"):
        parse_profile(cabinet(machine, A="uv", B="uv"), "p")


def test_its_real_driver_has_the_operations_of_its_simulator(machine):
    from acme_lamp.driver import Leds, SimLamps
    from acme_lamp.spec import Lamp

    lamps = (Lamp(0, "UV", str(machine.sys / "class/leds/uv")),)
    for driver in (Leds("x", lamps), SimLamps("x", lamps)):
        driver.open()
        assert driver.set(0, 50.0) == 0
        assert driver.value(0) == pytest.approx(50, abs=0.5)
        driver.close()
    assert Path(lamps[0].led, "brightness").read_text() == "127"
