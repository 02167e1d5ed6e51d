"""A stop sequence brings a signal of any kind to the level that it says, at its turn, seen on the simulated device."""

from __future__ import annotations

import os
import struct
from collections import deque
from contextlib import suppress

import pytest
import trio
from attrs import evolve, frozen
from kinds.board import DBC, NEW, Raw, call, content
from kinds.cases import CASES, drive
from support.waiting import passes
from support.world import embedded

from hearth.drivers.boards.profile import load_profile, parse_profile
from hearth.drivers.can import dbc as can_dbc
from hearth.drivers.modbus.sim import SimModbusDevice
from hearth.errors import ConfigError
from hearth.policy.rules import Match, PolicyEntry

LONG = 100
"""Seconds after which each sequence of this file has ended."""
UART = [{"port": "uart0", "driver": "sim", "peer": "none", "safe_text": "STOP\n"}]


# --- the table --------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class Stop:
    """An output with a safe state, by its full name: the value that a sequence gives it, and its levels by then.

    `before` is its level while the sequence has not come to it, `then` the one that `value` means, and `safe` its last.
    """

    signal: str
    value: object
    before: object
    then: object
    safe: object
    level: object
    drive: object
    grain: float = 1e-6

    @property
    def kind(self):
        return self.signal.partition(":")[0]

    def is_at(self, world, expected):
        level = self.level(world)
        if isinstance(level, str) or isinstance(expected, (str, bytes)):
            return level == expected or (expected == 0 and level == "off")
        return abs(level - expected) <= self.grain


def _stop(name, signal, value, then):
    """The output of a case of the other suites."""
    case = next(one for one in CASES if one.id == name)

    async def driven(session, world):
        await drive(session, world, case, "tool")

    return Stop(signal, value, case.level, then, case.safe, case.output.level, driven, case.output.grain)


def _raw(raw):
    async def driven(session, world):
        await call(session, world, raw)

    return driven


def _received(world):
    """The bytes that the far end of the serial port has got last."""
    far = world.drivers["uart:uart0"]._far
    with suppress(BlockingIOError):
        world.received = os.read(far, 4096).splitlines(keepends=True)[-1]
    return world.received


_WRITE = Raw("uart:uart0", "write", (b"RUN\n",), {"timeout_s": 1.0})
STOPS = [
    _stop("gpio-RELAY", "gpio:sim:RELAY", "input", "input"),
    _stop("gpio-BRAKE", "gpio:sim:BRAKE", "input", "input"),
    _stop("pwm-FAN", "pwm:sim:FAN", 0.9, 0.9),
    _stop("pwm-ARM", "pwm:sim:ARM", 90, 90),
    _stop("dac-VALVE", "dac:sim:VALVE", 2.5, 2.5),
    _stop("i2c-speed", "i2c:1:speed", 20, 20),
    _stop("i2c-torque", "i2c:1:0x50.torque", -30, -30),
    _stop("i2c-brake", "i2c:1:brake", "safe", 1),
    _stop("spi-SPEED", "spi:MOTOR:SPEED", 100, 100),
    _stop("can-FAN_COMMAND.Speed", "can:can0:FAN_COMMAND.Speed", 50.5, 50.5),
    _stop("can-WINCH_COMMAND.Speed", "can:can0:WINCH_COMMAND.Speed", "safe", 0),
    _stop("modbus-run", "modbus:plant:FAN.run", False, 0),
    _stop("modbus-power", "modbus:plant:HEATER.power", 10, 10),
    _stop("modbus-speed", "modbus:plant:FAN.speed", "safe", 0),
    Stop("uart:uart0:data", "53 4c 4f 57 0a", b"RUN\n", b"SLOW\n", b"STOP\n", _received, _raw(_WRITE)),
    _stop("lamp-WHITE", "lamp:sim:WHITE", 5, 5),
]
assert {one.kind for one in STOPS} == {"gpio", "pwm", "dac", "i2c", "spi", "can", "modbus", "uart", "lamp"}


def entry(signal, value, after_s=1):
    return {"signal": signal, "value": value, "after_ms": after_s * 1_000}


def board(open_world, sequence, **more):
    """A world whose profile has this sequence, and all that the table drives."""
    tables = {"halt": {"sequence": sequence}, "uart": UART}
    return open_world(new=NEW, tables=tables, **more)


async def halted(world):
    """Halt as a person does; return the time."""
    world.runtime.halt.halt("a test", "a person")
    return trio.current_time()


async def ended(world, began):
    await trio.sleep_until(began + LONG)
    await passes(lambda: not world.runtime.halt.status()["stopping"])


# --- levels, order, delays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", STOPS, ids=lambda one: one.signal)
async def test_a_signal_goes_to_the_level_of_its_entry_and_to_safe_by_name(open_world, promise, stop):
    promise(stop.kind, "a stop sequence brings it to the level that it says, and to its safe state")
    steps = [entry(stop.signal, stop.value), entry(stop.signal, "safe"), entry("gpio:sim:LAMP", "safe", 2)]
    async with board(open_world, steps) as world, embedded(world) as session:
        await stop.drive(session, world)
        began = await halted(world)
        for after, expected in ((0.9, stop.before), (1.5, stop.then), (2.5, stop.safe), (LONG, stop.safe)):
            await trio.sleep_until(began + after)
            assert stop.is_at(world, expected), after
        status = world.runtime.halt.status()
        assert not status.get("unsafe")
        assert not status.get("left")


@pytest.mark.parametrize("order", [STOPS, STOPS[::-1]], ids=["one way", "the other way"])
async def test_signals_of_all_kinds_follow_in_their_order_each_at_its_time(open_world, order):
    async with board(open_world, [entry(one.signal, one.value) for one in order]) as world, embedded(world) as session:
        for one in order:
            await one.drive(session, world)
        await session.run("modbus.write", device="FAN", name="level", value=20)
        began = await halted(world)
        for turn in range(len(order) + 1):
            await trio.sleep_until(began + turn + 0.7)
            assert world.drivers["modbus:plant"].port.devices[3].memory["holding", 101] == 0, "no part of it: safe"
            if turn < len(order):
                for place, one in enumerate(order):
                    assert one.is_at(world, one.then if place < turn else one.before), (turn, one.signal)
        assert all(one.is_at(world, one.safe) for one in order), "every output is safe at its end"
        said = [record for record in world.records("outputs.safe") if "state" in record["safe"][0]]
        assert [(one["bus"], one["reason"]) for one in said] == [
            (one.signal.rpartition(":")[0], "a halt") for one in order
        ]
        assert all({"name", "state"} <= one["safe"][0].keys() for one in said)


async def test_the_record_of_an_entry_names_its_output_as_that_of_a_safe_state_does(open_world):
    steps = [entry("modbus:plant:FAN.speed", 20), entry("uart:uart0:data", "4f 4b"), entry("gpio:sim:RELAY", 1)]
    async with board(open_world, steps) as world:
        await ended(world, await halted(world))
        said = {one["bus"]: one for one in world.records("outputs.safe") if "state" in one["safe"][0]}
        fan = {"unit": 3, "device": "FAN", "table": "holding", "register": 100, "name": "speed", "state": 20}
        assert said["modbus:plant"]["safe"] == [fan]
        assert [*said["modbus:plant"]["outputs"][0]] == [3, "holding", 100]
        assert said["uart:uart0"]["safe"] == [{"name": "uart:uart0:data", "port": "uart0", "state": "4f4b"}]
        assert said["gpio:sim"]["safe"] == [{"line": 2, "name": "RELAY", "state": 1}]
        names = {one["bus"]: one["names"] for one in world.runtime.halt.status()["safe"]}
        assert names == {"modbus:plant": ["FAN.speed"], "uart:uart0": ["uart0"], "gpio:sim": ["RELAY"]}


@pytest.mark.parametrize("stop", STOPS, ids=lambda one: one.signal)
async def test_what_only_the_sequence_has_driven_is_safe_at_its_end_and_holds_up_no_reset(open_world, stop):
    async with board(open_world, [entry(stop.signal, stop.value)]) as world:
        await ended(world, await halted(world))
        assert stop.is_at(world, stop.safe)
        await world.runtime.halt.reset("a person", world.runtime.halt.flag.count)
        assert not world.runtime.halt.flag.halted


async def test_an_observer_sees_the_stop_sequence_as_the_role_of_an_output(open_world):
    policy = (PolicyEntry(name="all", match=Match(uid=1001), rights=["observe"]),)
    async with board(open_world, [entry("dac:sim:VALVE", 2.5)], policy=policy) as world, embedded(world) as session:
        began = await halted(world)
        await trio.sleep(0.5)
        [valve] = [one for one in (await session.observe_state())["signals"] if one["name"] == "VALVE"]
        assert valve["role"] == "stop sequence"
        await ended(world, began)


async def test_the_other_signals_of_a_can_message_are_as_they_were_sent_or_idle(open_world, dbc):
    signals = {"STEPPER_COMMAND.Position": {"safe": 0}, "STEPPER_COMMAND.Hold": {"idle": 1}}
    can = [{"bus": "can0", "driver": "sim", "dbc": str(dbc), "signals": signals}]
    steps = [entry("can:can0:STEPPER_COMMAND.Position", 300)]
    tables = {"halt": {"sequence": steps}, "can": can}
    async with open_world(tables=tables) as world:
        await ended(world, await halted(world))
        sent = [struct.unpack("<hB", one.data) for one in world.drivers["can:can0"].wire]
        assert sent == [(300, 1), (0, 1)]


# --- what fails -------------------------------------------------------------------------------------------------------


class Silent(SimModbusDevice):
    """A device that is switched off."""

    def answer(self, pdu):
        return b""


async def test_a_device_that_does_not_answer_holds_up_no_other_bus_and_is_unsafe_and_on_record(open_world):
    steps = [entry("modbus:plant:FAN.speed", 20, 0), entry("spi:MOTOR:SPEED", 100, 0)]
    async with board(open_world, [*steps, entry("modbus:plant:HEATER.power", 10)]) as world, embedded(world) as session:
        await session.run("modbus.write", device="FAN", name="speed", value=100)
        await session.run("modbus.write", device="HEATER", name="power", value=30)
        devices = world.drivers["modbus:plant"].port.devices
        gone = devices[3]
        devices[3] = Silent(gone.memory, faults=deque(["lost"] * 100))
        began = await halted(world)
        await trio.sleep_until(began + 0.1)
        cells, memory = world.drivers["spi:MOTOR"].chip.cells, devices[5].memory
        assert int.from_bytes(cells[0x10:0x12], "big") == 100
        await trio.sleep_until(began + 10)
        assert (memory["holding", 100], gone.memory["holding", 100]) == (0, 100)
        written = [one.args[3] for one in world.recorder.operations if one.op == "write" and one.args[0] == 5]
        assert written[:3] == [(30,), (10,), (0,)]
        (failed,) = [one for one in world.records("outputs.safe") if "error" in one]
        assert (failed["bus"], failed["outputs"]) == ("modbus:plant", [(3, "holding", 100)])
        assert "FAN.speed" in world.runtime.halt.status()["unsafe"][0]["names"]
        devices[3] = gone
        await ended(world, began)
        assert gone.memory["holding", 100] == 0
        assert not world.runtime.halt.status().get("unsafe")


async def test_a_bus_that_this_machine_does_not_have_holds_up_no_entry(open_world):
    def without(world):
        drivers = {bus: driver for bus, driver in world.parts.drivers.items() if bus != "spi:MOTOR"}
        world.parts = evolve(world.parts, drivers=drivers)

    steps = [entry("spi:MOTOR:SPEED", 100), entry("gpio:sim:RELAY", 1), entry("gpio:sim:LAMP", "safe")]
    async with board(open_world, steps, before=without) as world:
        began = await halted(world)
        await trio.sleep_until(began + 2.5)
        assert world.drivers["gpio:sim"].state(2) == 1
        await ended(world, began)
        assert world.drivers["gpio:sim"].state(2) == 0


# --- the profile ------------------------------------------------------------------------------------------------------

FAULTS = {
    "an unknown bus": ({"signal": "modbus:plnt:FAN.speed"}, "signal", "did you mean 'modbus:plant'?"),
    "no full name": ({"signal": "FAN.speed"}, "signal", "which has the form KIND:BUS:NAME; there are gpio:sim, i2c:1"),
    "an unknown signal": ({"signal": "modbus:plant:FAN.sped"}, "signal", "did you mean 'FAN.speed'?"),
    "an unknown signal of CAN": ({"signal": "can:can0:FAN_COMMAND.Sped"}, "signal", "did you mean 'FAN_COMMAND.Speed'"),
    "a kind that only reads": ({"signal": "iio:sim:vibration"}, "signal", "no bus of the profile begins"),
    "what is only read": ({"signal": "i2c:1:status"}, "signal", '"i2c:1:status" is only read: name an output'),
    "an input": ({"signal": "gpio:sim:DOOR"}, "signal", '"gpio:sim:DOOR" is only read: name an output'),
    "no safe": ({"signal": "i2c:1:position"}, "signal", '"i2c:1:position" has no `safe`, to which the end of the'),
    "two of a name": ({"signal": "i2c:1:gain"}, "signal", 'named "gain"; i2c:1 has 0x52.gain, 0x53.gain'),
    "a line too": ({"signal": "gpio:sim:RELAY", "line": "RELAY"}, "line", "unknown key; expected after_ms, signal,"),
    "no value": ({"value": None}, "value", 'missing; it takes a value in the unit of the signal, or "safe"'),
    "beyond": ({"value": 120}, "value", "120 is beyond what it may be driven to, 0 to 100 percent"),
    "no number": ({"value": "fast"}, "value", 'expected a number, got "fast"'),
    "not finite": ({"value": float("nan")}, "value", "expected a number, got nan"),
    "a coil": ({"signal": "modbus:plant:FAN.run"}, "value", "expected true or false, got 1"),
    "beyond its bits": ({"signal": "spi:MOTOR:SPEED", "value": 1e300}, "value", "1e+300 is beyond what it may be driv"),
    "a negative one": (
        {"signal": "i2c:1:speed", "value": -1},
        "value",
        "-1 is beyond what it may be driven to, 0 to 200",
    ),
    "beyond the DBC": ({"signal": "can:can0:FAN_COMMAND.Speed", "value": 101}, "value", "is outside of 0 to 100 perce"),
    "no choice": ({"signal": "can:can0:FAN_COMMAND.Speed", "value": "x"}, "value", "Speed has no choice 'x'"),
    "no bytes": ({"signal": "uart:uart0:data", "value": "RUN"}, "value", "expected bytes in hexadecimal, such as"),
    "modem lines": ({"signal": "uart:uart0:lines", "value": 1}, "value", 'go to their levels at the opening, "safe"'),
    "a level": ({"signal": "gpio:sim:RELAY", "value": 2}, "value", 'expected 0, 1 or "input", got 2'),
    "a duty": ({"signal": "pwm:sim:FAN", "value": 2}, "value", "2 is beyond the channel's limits: its limits are 0 to"),
    "an unknown channel": ({"signal": None, "channel": "VALVES"}, "channel", "no channel is named"),
    "off, which it has not": (
        {"signal": None, "channel": "VALVE", "value": "off"},
        "value",
        'it has no "off", unless its `safe` is',
    ),
    "a level of a line": (
        {"signal": None, "channel": "VALVE", "value": "input"},
        "value",
        "expected a number in the u",
    ),
    "a value beyond a channel's bounds": (
        {"signal": None, "channel": "VALVE", "value": 11},
        "value",
        "11 is beyond the channel's limits",
    ),
    "a reserved channel": ({"signal": None, "channel": "BIAS"}, "channel", '"BIAS" is reserved: the amplifier'),
    "a package's": ({"signal": "lamp:sim:UV", "value": 81}, "value", "81 is beyond the channel's limits: its limits"),
}


def profile_of(dbc, given):
    """The content of a profile with one entry in its sequence, and two I2C devices with a register of one name."""
    one = {"signal": "modbus:plant:FAN.speed", "value": 1, **given}
    made = content(dbc, new=NEW, uart=UART)
    register = {"reg": 1, "name": "gain", "safe": 0}
    devices = [{"addr": addr, "reg_width": 8, "registers": [register]} for addr in (0x52, 0x53)]
    if one.get("channel") == "BIAS":
        made["dac"][0]["channel"]["BIAS"]["reserved"] = "the amplifier's"
    made["i2c"][0]["device"] += [{**device, "kind": "24c02"} for device in devices]
    return {**made, "halt": {"sequence": [{key: value for key, value in one.items() if value is not None}]}}


@pytest.mark.parametrize("name", FAULTS)
def test_an_entry_that_could_not_be_driven_is_a_fault_with_place_and_cure(dbc, name):
    given, key, expected = FAULTS[name]
    with pytest.raises(ConfigError) as caught:
        parse_profile(profile_of(dbc, given), "p")
    assert str(caught.value).startswith(f"p: halt.sequence[0].{key}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "name", "signal"), [
    ("channel", "FAN", "pwm:sim:FAN"), ("channel", "VALVE", "dac:sim:VALVE"), ("line", "RELAY", "gpio:sim:RELAY"),
])  # fmt: skip
def test_a_line_or_a_channel_by_its_name_alone_is_the_same_entry(dbc, key, name, signal):
    (short,) = parse_profile(profile_of(dbc, {"signal": None, key: name}), "p").halt.sequence
    (full,) = parse_profile(profile_of(dbc, {"signal": signal}), "p").halt.sequence
    assert (short.bus, short.output, short.value) == (full.bus, full.output, full.value)
    with pytest.raises(ConfigError, match=r"halt.sequence.0..line: an entry names a line or a"):
        parse_profile(profile_of(dbc, {"signal": None, "channel": "VALVE", "line": "RELAY"}), "p")


def test_a_dbc_file_is_read_once_however_many_entries_name_its_signals(dbc, monkeypatch):
    reads = []
    monkeypatch.setattr(
        can_dbc, "read_messages", lambda *file, read=can_dbc.read_messages: reads.append(file) or read(*file)
    )
    made = profile_of(dbc, {"signal": "can:can0:FAN_COMMAND.Speed"})
    made["halt"]["sequence"] *= 3
    assert len(parse_profile(made, "p").halt.sequence) == 3
    assert len(reads) == 1


def test_a_name_that_two_devices_have_goes_by_the_address_too(dbc):
    (stop,) = parse_profile(profile_of(dbc, {"signal": "i2c:1:0x53.gain"}), "p").halt.sequence
    assert (stop.bus, stop.output, stop.value) == ("i2c:1", (0x53, 1), 1)


def test_a_reserved_line_is_no_part_of_a_sequence_under_its_full_name_either(dbc):
    made = profile_of(dbc, {"signal": "gpio:sim:LAMP"})
    made["gpio"][0]["lines"]["LAMP"] = {"reserved": "burnt"}
    with pytest.raises(ConfigError, match=r'sequence.0..signal: "gpio:sim:LAMP" is reserved: burnt'):
        parse_profile(made, "p")


def test_the_heartbeat_is_no_part_of_a_sequence_under_its_full_name_either(dbc):
    made = profile_of(dbc, {"signal": "gpio:sim:RELAY"})
    made["halt"]["heartbeat"] = {"line": "RELAY"}
    with pytest.raises(ConfigError, match=r'halt.heartbeat.line: "RELAY" is a line of \[\[halt.sequence\]\] already'):
        parse_profile(made, "p")


def test_a_sequence_does_not_drive_a_line_to_what_an_interlock_guards_under_its_full_name_either(dbc):
    made = profile_of(dbc, {"signal": "gpio:sim:RELAY"})
    made["interlock"] = [{"drives": "RELAY", "value": 1, "requires": [{"line": "DOOR", "value": 0}]}]
    with pytest.raises(ConfigError, match=r'interlock.0..value: halt.sequence.0. drives signal "RELAY" to it'):
        parse_profile(made, "p")


def test_nor_a_channel_to_a_value_that_an_interlock_guards(dbc):
    lock = {"drives": "VALVE", "above": 4, "requires": [{"line": "DOOR", "value": 0}]}
    made = profile_of(dbc, {"signal": None, "channel": "VALVE", "value": 5}) | {"interlock": [lock]}
    with pytest.raises(ConfigError, match=r"interlock.0..above: halt.sequence.0. drives channel .VALVE. to it"):
        parse_profile(made, "p")
    made["halt"]["sequence"][0]["value"] = 4
    parse_profile(made, "p")


def test_a_signal_of_a_dbc_file_beside_the_profile_is_found(tmp_path):
    (tmp_path / "car.dbc").write_text(DBC)
    path = tmp_path / "car.toml"
    path.write_text(
        """name = "car"
description = "d"
[[can]]
bus = "can0"
driver = "sim"
dbc = "car.dbc"
signals."FAN_COMMAND.Speed".safe = 20
[[halt.sequence]]
signal = "can:can0:FAN_COMMAND.Speed"
value = 80
"""
    )
    (stop,) = load_profile(str(path)).halt.sequence
    assert (stop.bus, stop.output, stop.value) == ("can:can0", "FAN_COMMAND.Speed", 80)
    (tmp_path / "car.dbc").unlink()
    with pytest.raises(ConfigError, match=r"halt.sequence.0..signal: can can0: dbc: .* cannot be read"):
        load_profile(str(path))
