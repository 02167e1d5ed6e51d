"""Modbus servers that do not keep to the standard: each is read and written with its key, and doctor names the key.

Seen at: number 0, github.com/pymodbus-dev/pymodbus pull 2844; number one ahead, github.com/kellerza/sunsynk issue 680;
functions 15 and 16 alone, github.com/favalex/modbus-cli issue 22; RTU over TCP, github.com/home-assistant/core issue
93023; one answer for each connection, the same issue 101982; deaf behind a connection and `delay`, the documentation of
that project's Modbus integration; another unit, github.com/emelianov/modbus-esp8266 issue 109.
"""

from __future__ import annotations

import pytest
import trio
from attrs import evolve
from support.modbus_server import Quirky

import hearth
from hearth.cli.doctor.answers import board_checks
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.modbus.codec import checked
from hearth.drivers.modbus.driver import ModbusDevice, ModbusRegister
from hearth.drivers.modbus.machine import quirks
from hearth.drivers.modbus.spec import ModbusSpec
from hearth.drivers.serial_port.settings import UartSettings
from hearth.errors import DeviceError

BOUND = 60
REGISTERS = (ModbusRegister(289, name="t", access="r"), ModbusRegister(10, name="sp"))
NUMBER_0, AHEAD, ELSE = ({"number": of} for of in (lambda _: 0, lambda number: number + 1, lambda number: number + 7))
CASES = {
    "number 0": (NUMBER_0, {"tid": "zero"}, {}, 'tid = "zero"'),
    "number one ahead": (AHEAD, {"tid": "next"}, {}, 'tid = "next"'),
    "any number": (ELSE, {"tid": "any"}, {}, "has the number"),
    "RTU over TCP": ({"rtu": True}, {"framing": "rtu"}, {}, "no answer within"),
    "unit 0 in the answer": ({"unit": lambda _: 0}, {}, {"unit_reply": "any"}, 'unit_reply = "any"'),
    "unit 0 in an RTU answer": (
        {"unit": lambda _: 0, "rtu": True}, {"framing": "rtu"}, {"unit_reply": "any"}, 'unit_reply = "any"',
    ),
    "deaf behind a connection": ({"deaf_s": 0.8}, {"delay_ms": 1200}, {}, "no answer within"),
    "function 16 alone": ({"functions": (3, 16)}, {}, {"write": "multiple"}, None),
    "function 16 alone, without the key": ({"functions": (3, 16)}, {}, {}, None),
    "one answer for each connection": ({"answers": 1}, {}, {}, None),
    "two answers for each connection": ({"answers": 2}, {}, {}, None),
}  # fmt: skip


def spec_of(port, line=(), device=(), timeout_ms=400):
    devices = (ModbusDevice(4, "D", REGISTERS, **dict(device)),)
    return ModbusSpec("m", "tcp", host="127.0.0.1", tcp_port=port, timeout_ms=timeout_ms, devices=devices, **dict(line))


async def used(spec, operation):
    """Run `operation(line)` on an open line."""
    line = spec.make_driver(None)
    with trio.fail_after(BOUND):
        await trio.to_thread.run_sync(line.open)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.pump)
            failed, value = None, None
            try:
                value = await operation(line)
            except DeviceError as error:
                failed = error
            line.close()
            nursery.cancel_scope.cancel()
    # Outside of the nursery, which would wrap it.
    if failed is not None:
        raise failed
    return value


async def all_of(line):
    """Read, write and read back, with nothing between them."""
    assert await line.read(4, "holding", 289, 1) == (215,)
    for value in (9, 11):
        assert len(await line.read(4, "holding", 10, 1)) == 1
        await line.write(4, "holding", 10, (value,))
        assert await line.read(4, "holding", 10, 1) == (value,)
        assert await line.read(4, "holding", 289, 1) == (215,)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_each_server_is_read_and_written_with_its_key_and_each_write_arrives_once(case):
    quirk, line, device, said = CASES[case]
    server = Quirky(**quirk)
    with server.serving() as port:
        # Long enough for a machine that is busy: an answer must come at all.
        await used(spec_of(port, line, device, timeout_ms=20_000 if "delay_ms" not in line else 5_000), all_of)
        assert [values for _, reg, values in server.writes if reg == 10] == [(9,), (11,)]
        if said is not None:
            plain = spec_of(port, {"framing": "rtu"} if "RTU answer" in case else {})
            with pytest.raises(DeviceError) as caught:
                await used(plain, lambda line: line.read(4, "holding", 289, 1))
            assert said in str(caught.value)


async def test_a_server_with_numbers_of_its_own_is_not_taken_for_another_kind():
    for quirk, tid in ((AHEAD, "zero"), (NUMBER_0, "next"), (NUMBER_0, "same")):
        with Quirky(**quirk).serving() as port, pytest.raises(DeviceError, match="has the number"):
            await used(spec_of(port, {"tid": tid}), lambda line: line.read(4, "holding", 289, 1))


async def test_an_exception_with_a_wrong_length_is_an_exception_at_once_and_the_connection_goes_on():
    server = Quirky(functions=(3,), length=6)
    with server.serving() as port:

        async def ask(line):
            with pytest.raises(DeviceError, match="exception 1, illegal function") as caught:
                await line.write(4, "holding", 10, (9,))
            assert caught.value.data["effect"] == "none"
            assert await line.read(4, "holding", 289, 1) == (215,)

        await used(spec_of(port, timeout_ms=20_000), ask)
    assert server.connections == 1


async def test_a_connection_on_which_nothing_came_is_made_again_unless_the_line_says_otherwise():
    for reconnect in (True, False):
        server = Quirky(deaf_s=BOUND)
        with server.serving() as port:

            async def ask(line):
                for _ in range(2):
                    with pytest.raises(DeviceError, match="no answer within"):
                        await line.read(4, "holding", 289, 1)

            await used(spec_of(port, {"reconnect_after_timeout": reconnect}, timeout_ms=50), ask)
        assert server.connections == 1 + reconnect


async def test_a_server_that_is_gone_is_an_error_without_effect_and_ends_the_pump():
    server = Quirky(answers=1)
    with server.serving() as port:
        line = spec_of(port, timeout_ms=20_000).make_driver(None)
        await trio.to_thread.run_sync(line.open)
        ended = trio.Event()

        async def pump():
            with pytest.raises(DeviceError, match="no connection to"):
                await line.pump()
            ended.set()

        async def ask():
            assert await line.read(4, "holding", 289, 1) == (215,)
            server.stop()
            with pytest.raises(DeviceError, match="no connection to") as caught:
                await line.write(4, "holding", 10, (9,))
            assert caught.value.data["effect"] == "none"
            await ended.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump)
            with trio.fail_after(BOUND):
                await ask()
    line.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quirk", "key", "said"),
    [
        ({}, None, None),
        (NUMBER_0, "modbus[0]", 'give the line tid = "zero"'),
        (AHEAD, "modbus[0]", 'give the line tid = "next"'),
        ({"unit": lambda _: 0}, "modbus[0]", 'give it unit_reply = "any"'),
        ({"rtu": True}, "modbus[0].framing", 'give the line framing = "rtu"'),
        ({"deaf_s": 1.5}, "modbus[0].delay_ms", "give the line delay_ms = 2000"),
        ({"deaf_s": BOUND}, "modbus[0]", "is it on, and is its unit right?"),
        ({"functions": ()}, None, None),
    ],
)
def test_doctor_names_the_key_that_a_server_needs(quirk, key, said, tmp_path):
    server = Quirky(**quirk)
    with server.serving() as port:
        found = list(quirks([spec_of(port)], tmp_path))
    assert [one.key for one in found] == ([] if key is None else [key])
    assert said is None or said in str(found[0].cure)
    assert server.writes == []


MASTER = checked(bytes.fromhex("090300000001"))
"""Another master asks unit 9."""
LOOP, ALONE = "give the line loopback = true", "let one master ask"


@pytest.mark.parametrize(
    ("quirk", "port", "key", "said"),
    [
        ({}, {}, None, None),
        ({}, {"echo": True}, "modbus[0]", LOOP),
        ({"functions": ()}, {"echo": True}, "modbus[0]", LOOP),
        ({}, {"before": MASTER}, "modbus[0]", ALONE),
        ({"unit": lambda _: 0}, {}, "modbus[0]", 'give it unit_reply = "any"'),
        ({}, {"baud": 9_600}, "modbus[0].baud", 'give the line baud = 9600, parity = "none"'),
        ({"functions": ()}, {"before": b":0403020100F6\r\n"}, "modbus[0]", "set the device to RTU"),
        ({"functions": ()}, {}, "modbus[0]", "is it on, set to RTU, and is its unit right?"),
        ({"functions": (6,)}, {}, None, None),
    ],
)
def test_doctor_names_the_key_that_a_serial_line_needs(quirk, port, key, said, tmp_path):
    server = Quirky(**quirk, rtu=True)
    settings = UartSettings(baud=19_200, parity="none")
    with server.on_a_port(**port) as path:
        spec = evolve(spec_of(1), driver="rtu", host=None, framing="rtu", path=path, settings=settings)
        found = list(quirks([spec], tmp_path))
    assert [one.key for one in found] == ([] if key is None else [key])
    assert said is None or said in str(found[0].cure)
    assert server.writes == []


async def test_a_daemon_tells_doctor_the_keys_that_it_has_seen_to_be_needed():
    server = Quirky(functions=(3, 16))
    with server.serving() as port:
        register = {"name": "sp", "reg": 10}
        device = {"unit": 4, "name": "D", "registers": [register]}
        line = {"line": "m", "driver": "tcp", "host": "127.0.0.1", "tcp_port": port, "device": [device]}
        board = open_board(parse_profile({"name": "b", "description": "b", "modbus": [line]}, "profile"))
        async with hearth.open_runtime(board=board) as runtime, runtime.open_session(client_name="c") as session:
            before = await session.run("hw.board")
            await session.run("modbus.write", device="D", name="sp", value=9)
            after = await session.run("hw.board")
    warned = [[one for one in board_checks(told) if one.state == "WARN"] for told in (before, after)]
    assert warned[0] == []
    (one,) = warned[1]
    assert (one.finding, one.cure) == (
        "modbus:m: D: it refuses functions 5 and 6, and takes 15 and 16",
        'give it write = "multiple"',
    )


def test_doctor_asks_no_device_without_a_register_that_can_be_read(tmp_path):
    spec = spec_of(1)
    bare = evolve(spec, devices=(ModbusDevice(4, "D", (ModbusRegister(1, access="w"),)),))
    assert list(quirks([bare, spec, ModbusSpec("s", "rtu", path="/dev/null")], tmp_path)) == []
