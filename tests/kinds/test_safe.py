"""What was driven is safe after a session's end, a halt and a restart, or listed as left, however it was driven."""

from __future__ import annotations

import json
import struct

import orjson
import pytest
import trio
from kinds.board import (
    FAN_COMMAND,
    STEPPER_COMMAND,
    TORQUE_REQUEST,
    VENDOR_BUS,
    Op,
    Raw,
    call,
    frame,
)
from kinds.cases import CASES, WAYS, drive, every
from kinds.strategies import torque
from support.waiting import passes
from support.world import embedded

from hearth.actors.bus.queue import Requester, Ticket
from hearth.drivers.registers import Write
from hearth.errors import AuditUnavailable, Halted, RpcError


def halted(world):
    """Halt as a person does."""
    world.runtime.halt.halt("a test", "a person")


async def all_is_safe(world):
    """Wait until the halt has brought what it can to its safe state."""
    with trio.fail_after(60):
        await passes(lambda: not world.runtime.halt.status()["stopping"])
        await passes(lambda: not any(bus.unsafe for bus in world.runtime.buses.values()))
        for bus in world.runtime.buses.values():
            await bus.settle()


def names_left(world, bus):
    """The names that the halt lists as left of a bus."""
    status = orjson.loads(orjson.dumps(world.runtime.halt.status()))
    return [name for entry in status.get("left", ()) if entry["bus"] == bus for name in entry["names"]]


def is_named(name, listed):
    """Return True if a list names an output; a CAN signal that the profile does not name, by its message."""
    return any(name.partition(".")[0] in one for one in listed)


# --- safe states ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "way"), every(CASES, WAYS))
async def test_what_a_session_drove_is_safe_after_its_end(open_world, promise, case, way):
    promise(case.kind, f"safe after the end of a session, driven by {way}")
    async with open_world(new=case.keys) as world:
        async with embedded(world) as session:
            await drive(session, world, case, way)
            assert not case.is_safe(world)
        assert case.is_safe(world)


@pytest.mark.parametrize(("case", "way"), every(CASES, WAYS))
async def test_what_is_driven_is_safe_after_a_halt(open_world, promise, case, way):
    promise(case.kind, f"safe after a halt, driven by {way}")
    async with open_world(new=case.keys) as world, embedded(world) as session:
        await drive(session, world, case, way)
        halted(world)
        await all_is_safe(world)
        assert case.is_safe(world)
        assert case.output.name not in str(names_left(world, case.output.bus))


@pytest.mark.parametrize(("case", "way"), every(CASES, WAYS))
async def test_what_a_run_that_was_killed_drove_is_safe_after_the_next_start(open_world, promise, tmp_path, case, way):
    promise(case.kind, f"safe after a restart, driven by {way}")
    path = tmp_path / "audit.log.outputs"
    async with open_world(new=case.keys, outputs=path) as world, embedded(world) as session:
        await drive(session, world, case, way)
        assert path.exists(), "the outputs file does not list what is driven"
        of_killed = path.read_bytes()
    path.write_bytes(of_killed)

    async with open_world(new=case.keys, outputs=path, before=case.put) as world:
        with trio.fail_after(60):
            await passes(lambda: all(bus.state == "ready" for bus in world.runtime.buses.values()))
            for bus in world.runtime.buses.values():
                await bus.settle()
        assert case.is_safe(world)
        assert world.records("outputs.safe", bus=case.output.bus)


@pytest.mark.parametrize(("case", "way"), every(CASES, ["raw"]))
async def test_a_safe_level_passes_the_guard_while_halted_and_no_other_does(open_world, promise, case, way):
    promise(case.kind, "a safe level passes the guard while halted")
    del way
    async with open_world(new=case.keys) as world:
        halted(world)
        await all_is_safe(world)
        bus = world.runtime.buses[case.output.bus]

        async def transact(op):
            # As what takes an effect back: admission does not refuse it, so the guard has to.
            ticket = Ticket(op, Requester("s", "t", "p"), limit=30.0, must_run=True)
            return await bus.request(ticket).get()

        with pytest.raises(Halted) as caught:
            await transact(case.raw)
        assert caught.value.data["effect"] == "none"
        (make_safe,) = _safe_call(case)
        await transact(make_safe)
        assert case.is_safe(world)


def _safe_call(case):
    """The raw call that brings an output to its safe state, in the form in which the case drives it."""
    raw, safe = case.raw, case.safe
    match raw.op:
        case "set":
            yield Raw(raw.bus, "set", (raw.args[0], safe))
        case "transfer" if raw.bus.startswith("spi"):
            yield Raw(raw.bus, "transfer", (raw.args[0][:1] + bytes(len(raw.args[0]) - 1),))
        case "transfer":
            data = raw.args[1][0].data
            yield Raw(raw.bus, "transfer", (0x50, [Write(data[:1] + int(safe).to_bytes(len(data) - 1, "big"))]))
        case "send":
            yield frame(raw.args[0].key, bytes(len(raw.args[0].data)))
        case "write":
            yield Raw(raw.bus, "write", (*raw.args[:3], (int(safe),)))


async def test_a_transaction_that_drives_five_lines_without_saying_so_owns_all_five(open_world, promise):
    promise("gpio", "one call that drives many is safe after the end of a session")

    def op(driver):
        driver.set(0, 1), driver.set(1, 1), driver.set(2, 1), driver.set(3, 0), driver.set(4, 1)

    async with open_world() as world:
        async with embedded(world) as session:
            # The pump stays off for its least time.
            await trio.sleep(1)
            await session.run("com.acme.call", **world.step_of(Op("gpio:sim", op)))
        chip = world.drivers["gpio:sim"]
        assert [chip.state(line) for line in range(5)] == [0, 0, 0, 1, "input"]


async def test_modem_lines_that_were_driven_without_saying_so_go_back(open_world, promise):
    promise("uart", "safe after the end of a session, driven by raw")
    async with open_world() as world:
        port = world.drivers["uart:uart0"]
        async with embedded(world) as session:
            before = await port.control()
            await call(session, world, Raw("uart:uart0", "control", (), {"rts": not before.rts}))
            assert (await port.control()).rts is not before.rts
        assert (await port.control()).rts is before.rts


async def test_what_a_broadcast_drove_is_safe_after_the_end_of_its_session(open_world, promise):
    promise("modbus", "safe after the end of a session, driven by broadcast")
    async with open_world() as world:
        memory = world.drivers["modbus:plant"].port.devices[3].memory
        async with embedded(world) as session:
            await session.run("modbus.read", device="FAN", name="level")
            await call(session, world, Raw("modbus:plant", "write", (0, "holding", 101, (50,))))
            assert memory["holding", 101] == 50
        assert memory["holding", 101] == 0


async def test_a_vendors_output_that_its_tool_declares_is_made_safe_by_its_own_driver(open_world, promise):
    promise("vendor", "safe after the end of a session, driven by tool")
    async with open_world() as world:
        async with embedded(world) as session:
            await session.run("com.acme.led", led="red", percent=80)
            assert world.drivers[VENDOR_BUS].percent["red"] == 80
        assert world.drivers[VENDOR_BUS].percent["red"] == 0


async def test_an_undeclared_effect_does_not_begin_while_its_output_cannot_be_written_down(
    open_world, promise, tmp_path
):
    promise("gpio", "an output that cannot be listed is not driven")
    # There is no such directory: the file can be read (there is none), and never written.
    async with open_world(outputs=tmp_path / "gone" / "outputs") as world, embedded(world) as session:
        with pytest.raises(AuditUnavailable) as caught:
            await call(session, world, Raw("gpio:sim", "set", (2, 1)))
        assert caught.value.data["effect"] == "none"
        assert world.drivers["gpio:sim"].state(2) == "input"


async def test_a_declared_effect_does_not_begin_while_its_output_cannot_be_written_down(open_world, tmp_path):
    async with open_world(outputs=tmp_path / "gone" / "outputs") as world, embedded(world) as session:
        with pytest.raises(AuditUnavailable) as caught:
            await session.run("gpio.set", line="RELAY", value=1)
        assert caught.value.data["effect"] == "none"
        assert world.drivers["gpio:sim"].state(2) == "input"


async def test_a_session_that_takes_over_an_output_without_saying_so_keeps_it(open_world, promise):
    promise("gpio", "the last session to drive an output owns it")
    async with open_world() as world, embedded(world) as second:
        async with embedded(world) as first:
            await first.run("gpio.set", line="RELAY", value=0)
            await call(second, world, Raw("gpio:sim", "set", (2, 1)))
        assert world.drivers["gpio:sim"].state(2) == 1, "the end of the session that drove it before moves nothing"


# --- left -------------------------------------------------------------------------------------------------------------

LEFT = [case.without_safe() for case in CASES if case.new]


@pytest.mark.parametrize("when", ["while the session is open", "after its end"])
@pytest.mark.parametrize(("case", "way"), every(LEFT, WAYS))
async def test_what_a_halt_does_not_stop_it_says(open_world, promise, case, way, when):
    promise(case.kind, f"a halt lists as left what has no safe state, driven by {way}")
    async with open_world() as world:
        async with embedded(world) as session:
            await drive(session, world, case, way)
            if when == "while the session is open":
                halted(world)
                await all_is_safe(world)
        if when == "after its end":
            halted(world)
            await all_is_safe(world)
        assert abs(case.now(world) - case.level) <= case.output.grain, "a halt leaves it as it is"
        assert is_named(case.output.name, names_left(world, case.output.bus))


async def test_a_controller_that_dies_leaves_three_machines_running_and_the_halt_lists_all_three(open_world, promise):
    promise("all", "the record and the status of a halt list what is left")
    async with open_world() as world:
        async with embedded(world) as controller:
            await controller.run("spi.write", device="MOTOR", register="SPEED", value=3_000)
            await controller.run("modbus.write", device="FAN", name="speed", value=100)
            await controller.run("can.send", bus="can0", message="FAN_COMMAND", signals={"Speed": 100})
        halted(world)
        await all_is_safe(world)
        left = {entry["bus"]: entry for entry in orjson.loads(orjson.dumps(world.runtime.halt.status()))["left"]}
        for bus, name in (("spi:MOTOR", "SPEED"), ("modbus:plant", "speed"), ("can:can0", "FAN_COMMAND.Speed")):
            assert left[bus].keys() >= {"bus", "outputs", "names"}
            assert len(left[bus]["outputs"]) == len(left[bus]["names"])
            assert is_named(name, left[bus]["names"])
            said = [record for record in world.records("halt", "outputs.safe") if "left" in record]
            assert is_named(name, [json.dumps(record["left"]) for record in said])


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("i2c", Raw("i2c:1", "transfer", (0x51, [Write(b"\x10\x11")]))),
        ("spi", Raw("spi:LOOP", "transfer", (b"\x10\x11",))),
        ("can", frame(0x123, b"\x01")),
        ("modbus", Raw("modbus:plant", "write", (5, "holding", 102, (7,)))),
        ("uart", Raw("uart:uart0", "write", (b"RUN\n",), {"timeout_s": 1.0})),
        ("vendor", Raw(VENDOR_BUS, "set", ("red", 80))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_effect_on_no_declared_output_is_listed_as_left_too(open_world, promise, kind, raw):
    promise(kind, "a halt lists an effect on no declared output as left")
    async with open_world() as world:
        if kind == "modbus":
            world.drivers["modbus:plant"].port.devices[5].memory["holding", 102] = 0
        async with embedded(world) as session:
            await call(session, world, raw)
        halted(world)
        await all_is_safe(world)
        assert names_left(world, raw.bus)


@pytest.mark.parametrize(
    ("unit", "start", "values"),
    [(5, 99, (7, 30)), (5, 100, (30, 7)), (0, 112, (0, 5))],
    ids=["before", "behind", "a broadcast to a register of one unit"],
)
async def test_what_a_request_writes_beside_a_declared_register_is_listed_as_left(
    open_world, promise, unit, start, values
):
    promise("modbus", "a halt lists an effect on no declared output as left")
    async with open_world(new=["modbus"]) as world:
        for device in world.drivers["modbus:plant"].port.devices.values():
            device.memory = {**dict.fromkeys((("holding", at) for at in (99, 101, 112, 113)), 0), **device.memory}
        async with embedded(world) as session:
            await call(session, world, Raw("modbus:plant", "write", (unit, "holding", start, values)))
        halted(world)
        await all_is_safe(world)
        assert "raw" in names_left(world, "modbus:plant")


async def test_a_halt_lists_nothing_as_left_when_nothing_was_driven(open_world):
    async with open_world() as world:
        async with embedded(world) as session:
            await session.run("i2c.read", bus=1, addr=0x50, reg=0x10, len=1)
            await session.run("modbus.read", device="FAN", name="speed")
            await session.run("spi.read", device="MOTOR", register="SPEED")
        halted(world)
        await all_is_safe(world)
        assert not world.runtime.halt.status().get("left")


async def test_what_is_left_stays_listed_until_the_halt_ends_and_comes_again_with_the_next(open_world, promise):
    promise("all", "what is left stays listed")
    async with open_world() as world:
        async with embedded(world) as session:
            await session.run("spi.write", device="MOTOR", register="SPEED", value=3_000)
        for _ in range(2):
            halted(world)
            await all_is_safe(world)
            assert names_left(world, "spi:MOTOR")
            await world.runtime.halt.reset("a person", world.runtime.halt.flag.count)


# --- nothing with an effect passes a halt -----------------------------------------------------------------------------

EFFECTS = {
    "gpio": Raw("gpio:sim", "set", (2, 1)),
    "pwm": Raw("pwm:sim", "set", (0, 0.2)),
    "dac": Raw("dac:sim", "set", (1, 2.0)),
    "i2c": Raw("i2c:1", "transfer", (0x50, [Write(b"\x10\x11")])),
    "i2c unlisted": Raw("i2c:1", "transfer", (0x51, [Write(b"\x10\x11")])),
    "spi": Raw("spi:MOTOR", "transfer", (b"\x10\x00\x05",)),
    "spi unlisted": Raw("spi:LOOP", "transfer", (b"\x10",)),
    "spi read effect": Raw("spi:MOTOR", "transfer", (b"\xa0\x00",)),
    "uart": Raw("uart:uart0", "write", (b"RUN",), {"timeout_s": 1.0}),
    "uart exchange": Raw("uart:uart0", "exchange", (b"RUN",), {"length": 1, "until": None, "timeout_s": 0.1}),
    "uart lines": Raw("uart:uart0", "control", (), {"rts": True}),
    "can": frame(FAN_COMMAND, b"\x10"),
    "can stepped": frame(STEPPER_COMMAND, struct.pack("<hB", 5, 0)),
    "can other": frame(0x123, b"\x10"),
    "can torque": torque(8, TORQUE_REQUEST),
    "can isotp": Raw("can:can0", "isotp", (0x7E0, 0x7E8, b"\x01"), {"timeout_s": 0.1}),
    "can remote": frame(FAN_COMMAND, b"", remote=True),
    "modbus": Raw("modbus:plant", "write", (3, "holding", 100, (5,))),
    "modbus raw": Raw("modbus:plant", "write", (5, "holding", 102, (5,))),
    "modbus broadcast": Raw("modbus:plant", "write", (0, "holding", 100, (5,))),
    "lamp": Raw("lamp:sim", "set", (1, 50)),
    "vendor": Raw(VENDOR_BUS, "set", ("red", 5)),
}


@pytest.mark.parametrize("name", EFFECTS)
async def test_no_effect_passes_the_guard_while_halted(open_world, promise, name):
    raw = EFFECTS[name]
    promise(name.partition(" ")[0], "no effect passes the guard while halted")
    async with open_world() as world:
        halted(world)
        await all_is_safe(world)
        before = len(world.recorder.operations)
        ticket = Ticket(raw, Requester("s", "t", "p"), limit=30.0, must_run=True)
        with pytest.raises(Halted) as caught:
            await world.runtime.buses[raw.bus].request(ticket).get()
        assert caught.value.data["effect"] == "none"
        assert not world.recorder.since(before)


# --- steps of risk 0 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in EFFECTS if name != "vendor"])
async def test_a_step_of_risk_0_gets_a_driver_that_refuses_effects(open_world, promise, name):
    raw = EFFECTS[name]
    promise(name.partition(" ")[0], "a step of risk 0 cannot drive")
    async with open_world() as world, embedded(world) as session:
        before = len(world.recorder.operations)
        with pytest.raises(RpcError) as caught:
            await call(session, world, raw, tool="com.acme.peek")
        assert caught.value.data["effect"] == "none"
        assert not world.recorder.since(before)


@pytest.mark.parametrize(
    ("bus", "outputs"),
    [
        ("gpio:sim", [2]),
        ("pwm:sim", [0]),
        ("dac:sim", [1]),
        ("lamp:sim", [1]),
        ("modbus:plant", [(3, "coil", 0)]),
    ],
)
@pytest.mark.parametrize("op", ["make_safe", "halt"])
async def test_a_step_of_risk_0_cannot_make_outputs_safe_either(open_world, bus, outputs, op):
    async with open_world() as world, embedded(world) as session:
        before = len(world.recorder.operations)
        with pytest.raises(RpcError) as caught:
            await call(session, world, Raw(bus, op, (outputs,)), tool="com.acme.peek")
        assert caught.value.data["effect"] == "none"
        assert not world.recorder.since(before)
