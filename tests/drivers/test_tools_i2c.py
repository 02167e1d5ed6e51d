"""i2c.* and hw.* on the simulated board."""

import base64

import pytest
import trio
from support.mcp2221_chip import Memory

from hearth.drivers.i2c.chips import decode_tmp102
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.registers import Read, Write
from hearth.errors import DeviceError, InvalidParams
from hearth.schema import Validator, authority


def limit_ms(messages, **settings):
    return LinuxI2c(1, **settings).limit_ms(messages)


def b64(data):
    return base64.b64encode(data).decode()


def shown(text):
    """The members of a result that show short, printable bytes."""
    return {"data": b64(text), "hex": text.hex(), "text": text.decode()}


@pytest.fixture
def i2c(bench):
    return bench.driver("i2c:1")


@pytest.mark.parametrize(("addr", "reg"), [(0x50, 0x10), ("0x50", "0x10"), ("0X50", "0X10"), (80.0, 16.0)])
async def test_what_is_written_is_read_back_however_the_numbers_are_written(bench, i2c, addr, reg, autojump_clock):
    assert await bench.run("i2c.write", bus=1, addr=addr, reg=reg, data=b64(b"hello")) == {"written": 5}
    assert i2c.devices[0x50].memory[0x10:0x15] == b"hello"
    assert await bench.run("i2c.read", bus=1, addr=addr, reg=reg, len=5) == shown(b"hello")
    assert len(i2c.log) == 2  # one transaction each: the register and the bytes


async def test_without_a_register_the_bytes_are_all_there_is(bench, i2c, autojump_clock):
    await bench.run("i2c.write", bus=1, addr=0x50, data=b64(b"\x20AB"))
    await bench.run("i2c.write", bus=1, addr=0x50, data=b64(b"\x20"))
    assert await bench.run("i2c.read", bus=1, addr=0x50, len=2) == shown(b"AB")


async def test_a_transfer_writes_and_then_reads_in_one_transaction(bench, i2c, autojump_clock):
    await bench.run("i2c.transfer", bus=1, addr=0x50, write=b64(b"\x05XY"), read_len=0)
    assert await bench.run("i2c.transfer", bus=1, addr=0x50, write=b64(b"\x05"), read_len=2) == shown(b"XY")
    assert await bench.run("i2c.transfer", bus=1, addr=0x50, write=b64(b"\x05")) == shown(b"")
    assert len(i2c.log) == 3


async def test_a_scan_lists_the_addresses_as_numbers_and_as_text(bench, autojump_clock):
    scan = await bench.run("i2c.scan", bus=1)
    assert (scan["bus"], scan["owned"]) == (1, [])
    assert (scan["addresses"], scan["hex"]) == ([72, 77, 80], ["0x48", "0x4d", "0x50"])


async def test_a_scan_says_what_it_left_alone_and_why(bench, i2c, autojump_clock):
    i2c.owners[0x48] = "lm75"
    scan = await bench.run("i2c.scan", bus=1)
    assert scan["addresses"] == [0x4D, 0x50]
    assert scan["owned"] == [{"addr": 0x48, "hex": "0x48", "driver": "lm75"}]
    assert [entry["hex"] for entry in scan["skipped"]] == ["0x08", "0x09", "0x0b", "0x0c", "0x61", "0x69"]
    assert "alert" in scan["skipped"][3]["reason"]


async def test_a_scan_asks_where_it_may_do_harm_if_it_is_told_to(bench, i2c, autojump_clock):
    i2c.devices[0x69] = i2c.devices[0x50]
    scan = await bench.run("i2c.scan", bus=1, include=["0x69", 12])
    assert scan["addresses"] == [0x48, 0x4D, 0x50, 0x69]
    assert [entry["addr"] for entry in scan["skipped"]] == [0x08, 0x09, 0x0B, 0x61]


async def test_no_device_at_the_address_is_a_device_error_without_effect(bench, autojump_clock):
    with pytest.raises(DeviceError) as caught:
        await bench.run("i2c.read", bus=1, addr="0x23", reg=0, len=1)
    assert caught.value.data == {"effect": "none", "bus": 1, "addr": 0x23, "errno": "ENXIO"}


@pytest.mark.parametrize("reg", [0x1234, "0x1234"])
async def test_a_register_of_sixteen_bits_goes_high_byte_first(bench, i2c, reg, autojump_clock):
    i2c.devices[0x51] = memory = Memory(65536, pointer_bytes=2)
    where = {"bus": 1, "addr": 0x51, "reg": reg, "reg_width": 16}
    assert await bench.run("i2c.write", **where, data=b64(b"abc")) == {"written": 3}
    assert memory.cells[0x1234:0x1237] == b"abc"
    assert await bench.run("i2c.read", **where, len=3) == shown(b"abc")
    assert bytes(i2c.log[-1].written) == b"\x12\x34"


async def test_a_small_register_of_sixteen_bits_still_takes_two_bytes(bench, i2c, autojump_clock):
    await bench.run("i2c.read", bus=1, addr=0x50, reg=5, reg_width=16, len=1)
    assert bytes(i2c.log[-1].written) == b"\x00\x05"


async def test_any_list_of_messages_is_one_transaction(bench, i2c, autojump_clock):
    await bench.run("i2c.write", bus=1, addr=0x50, reg=0x10, data=b64(b"ABCDEFGH"))
    messages = [{"write": b64(b"\x10")}, {"read": 2}, {"write": b64(b"\x14")}, {"read": 3.0}]
    result = await bench.run("i2c.transfer", bus=1, addr=0x50, messages=messages)
    assert result == {**shown(b"ABEFG"), "reads": [b64(b"AB"), b64(b"EFG")]}
    assert len(i2c.log) == 2


@pytest.mark.parametrize(
    "messages",
    [[{"read": 4096}, {"read": 1}], [{"write": b64(b"x" * 4096)}, {"write": b64(b"x")}]],
    ids=["read", "write"],
)
async def test_messages_that_move_too_much_together_are_refused_before_they_are_sent(bench, i2c, messages):
    with pytest.raises(InvalidParams, match="at most 4096 of each"):
        await bench.run("i2c.transfer", bus=1, addr=0x50, messages=messages)
    assert not i2c.log


async def test_a_ten_bit_address_must_be_said_to_be_one(bench, i2c, autojump_clock):
    i2c.devices[0x150] = Memory()
    await bench.run("i2c.write", bus=1, addr="0x150", ten_bit=True, reg=3, data=b64(b"x"))
    assert await bench.run("i2c.read", bus=1, addr=0x150, ten_bit=True, reg=3, len=1) == shown(b"x")
    with pytest.raises(DeviceError):  # nobody at the ten bits of a number that somebody has in seven
        await bench.run("i2c.read", bus=1, addr=0x50, ten_bit=True, reg=3, len=1)


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("i2c.read", {"addr": 0x400, "ten_bit": True, "len": 1}),
        ("i2c.read", {"addr": "0x400", "ten_bit": True, "len": 1}),
        ("i2c.read", {"addr": 0x50, "reg": 0x10000, "reg_width": 16, "len": 1}),
        ("i2c.read", {"addr": 0x50, "reg": 1, "reg_width": 32, "len": 1}),
        ("i2c.transfer", {"addr": 0x50, "messages": []}),
        ("i2c.transfer", {"addr": 0x50, "messages": [{"read": 1}] * 43}),
        ("i2c.transfer", {"addr": 0x50, "messages": [{"read": 0}]}),
        ("i2c.scan", {"include": [0x78]}),
    ],
)
async def test_what_cannot_be_meant_does_not_fit_the_schema(bench, tool, args):
    schema = bench.tools[tool].params_schema
    for valid in (Validator(schema).accepts, authority(schema).is_valid):
        assert not valid({"bus": 1, **args})


@pytest.mark.parametrize(
    ("tool", "args", "path", "reason"),
    [
        ("i2c.read", {"addr": 0x150, "len": 1}, "/addr", "from 0x08 to 0x77, got 0x150; a ten-bit address needs `ten_"),
        ("i2c.read", {"addr": "0x150", "len": 1}, "/addr", "from 0x08 to 0x77"),
        ("i2c.read", {"addr": 0x150, "ten_bit": False, "len": 1}, "/addr", "from 0x08 to 0x77"),
        ("i2c.read", {"addr": 0x07, "len": 1}, "/addr", "from 0x08 to 0x77, got 0x07"),
        ("i2c.read", {"addr": "0x78", "len": 1}, "/addr", "from 0x08 to 0x77, got 0x78"),
        ("i2c.read", {"addr": 0x50, "reg": 256, "len": 1}, "/reg", "a wider number needs `reg_width` 16"),
        ("i2c.read", {"addr": 0x50, "reg": "0x100", "reg_width": 8, "len": 1}, "/reg", "from 0 to 255"),
        ("i2c.write", {"addr": 0x50}, "", "give exactly one of data, text and hex; there is none"),
        ("i2c.write", {"addr": 0x50, "data": "AA==", "hex": "00"}, "/hex", "exactly one .* there is data and hex"),
        ("i2c.write", {"addr": 0x50, "hex": "0"}, "/hex", 'expected two hexadecimal digits .* "48 65 6c"'),
        ("i2c.write", {"addr": 0x50, "hex": "0x10"}, "/hex", "two hexadecimal digits"),
        ("i2c.write", {"addr": 0x50, "hex": "  "}, "/hex", "expected 1 to 4096 bytes in one step, got 0"),
        ("i2c.write", {"addr": 0x50, "text": "°" * 4096}, "/text", "expected 1 to 4096 bytes in one step, got 8192"),
        ("i2c.write", {"addr": 0x50, "text": "\ud800"}, "/text", "text that UTF-8 can encode"),
        ("i2c.transfer", {"addr": 0x50}, "", "exactly one of write, text, hex and messages; there is none"),
        ("i2c.transfer", {"addr": 0x50, "write": "AA==", "messages": [{"read": 1}]}, "/messages", "exactly one of"),
        ("i2c.transfer", {"addr": 0x50, "read_len": 1, "messages": [{"read": 1}]}, "/read_len", "leave it out"),
        ("i2c.transfer", {"addr": 0x50, "messages": [{"read": 1}, {"read": 1, "hex": "0"}]}, "/messages/1/read", "hex"),
        ("i2c.transfer", {"addr": 0x50, "messages": [{}]}, "/messages/0", "write, text, hex and read; there is none"),
        ("i2c.transfer", {"addr": 0x50, "messages": [{"hex": "x"}]}, "/messages/0/hex", "two hexadecimal digits"),
    ],
)
async def test_what_a_flat_schema_cannot_refuse_is_refused_after_it_and_before_anything_runs(
    bench, tool, args, path, reason
):
    with pytest.raises(InvalidParams, match=reason) as refused:
        bench.tools[tool].bus({"bus": 1, **args})
    assert refused.value.data["path"] == path
    assert refused.value.message == f"{path or 'args'}: {refused.value.data['reason']}"


async def test_bytes_may_be_given_as_text_or_hex(bench, i2c, autojump_clock):
    memory = i2c.devices[0x50].memory
    where = {"bus": 1, "addr": 0x50}
    assert await bench.run("i2c.write", **where, reg=0x10, text="hé") == {"written": 3}
    assert await bench.run("i2c.write", **where, reg=0x13, hex="00 FF7f") == {"written": 3}
    assert memory[0x10:0x16] == b"h\xc3\xa9\x00\xff\x7f"
    assert await bench.run("i2c.transfer", **where, hex="10", read_len=3) == shown("hé".encode())
    messages = [{"hex": "20"}, {"read": 1}, {"text": "\x10"}, {"read": 1}]
    assert (await bench.run("i2c.transfer", **where, messages=messages))["hex"] == memory[0x20:0x21].hex() + "68"


async def test_what_is_read_is_shown_in_hex_where_it_is_short_and_as_text_where_it_can_be_printed(
    bench, i2c, autojump_clock
):
    i2c.devices[0x51] = memory = Memory(65536, pointer_bytes=2)
    where = {"bus": 1, "addr": 0x51, "reg": 0, "reg_width": 16}
    memory.cells[:300] = b"\xff" * 300
    assert await bench.run("i2c.read", **where, len=256) == {"data": b64(b"\xff" * 256), "hex": "ff" * 256}
    assert await bench.run("i2c.read", **where, len=257) == {"data": b64(b"\xff" * 257)}
    memory.cells[:300] = b"\ttab\r\n".ljust(300)
    assert (await bench.run("i2c.read", **where, len=257))["text"] == "\ttab\r\n".ljust(257)
    for unprintable in (b"\x1b[31m", b"a\0", b"\x7f", "\x85".encode(), b"\xc3"):
        memory.cells[: len(unprintable)] = unprintable
        assert "text" not in await bench.run("i2c.read", **where, len=len(unprintable))


@pytest.mark.parametrize("tool", ["i2c.read", "i2c.write", "i2c.transfer", "i2c.scan"])
async def test_a_bus_that_is_not_there_is_refused_before_anything_runs(bench, tool):
    assert bench.tools[tool].bus({"bus": 1, "addr": 0x50, "hex": "00", "len": 1}) == "i2c:1"
    with pytest.raises(InvalidParams, match="it has: 1"):
        bench.tools[tool].bus({"bus": 7, "addr": 0x50, "hex": "00", "len": 1})


async def test_the_limit_of_a_transaction_comes_from_its_length(bench, i2c, make_context, autojump_clock):
    context = make_context(i2c)
    i2c.speed_hz = 20_000  # what it counts with; the bytes go as fast as before
    await bench.run("i2c.read", context=context, bus=1, addr=0x50, reg=0, len=100)
    await bench.run("i2c.write", context=context, bus=1, addr=0x50, data=b64(b"\0" * 7))
    await bench.run("hw.sensor.read", context=context, sensor="temperature")
    wanted = [[Write(b"\0"), Read(100)], [Write(b"\0" * 7)], [Write(b"\0"), Read(2)]]
    limits = [limit_ms(messages, speed_hz=i2c.speed_hz) for messages in wanted]
    # A thermometer is read in two exchanges of one transaction: its value, and its configuration, of as many bytes.
    assert context.limits == [*limits[:2], 2 * limits[2]]


async def test_the_longest_read_and_write_fit_their_schemas(bench, autojump_clock):
    bench.driver("i2c:1")._byte_s = 0.0  # thousands of naps in virtual time take a second of ours
    data = await bench.run("i2c.read", bus=1, addr=0x50, reg=0, len=4096)
    await bench.run("i2c.write", bus=1, addr=0x50, data=data["data"])


async def test_a_byte_too_many_that_the_schema_cannot_see_is_refused_before_it_is_sent(bench, i2c):
    with pytest.raises(InvalidParams, match="expected 1 to 4096 bytes in one step, got 4097"):
        await bench.run("i2c.write", bus=1, addr=0x50, data=b64(b"x" * 4097))
    assert not i2c.log


async def test_a_write_under_way_is_not_torn_by_a_cancel(bench, i2c):
    i2c.faults.wedge(after=3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.run("i2c.write", bus=1, addr=0x50, reg=0, data=b64(b"WHOLE")))
        await i2c.faults.wait_held()
        nursery.cancel_scope.cancel()
        i2c.faults.release()
    assert i2c.log[-1].complete
    assert i2c.devices[0x50].memory[:5] == b"WHOLE"


async def test_a_sensor_is_read_by_its_name_with_a_unit(bench, autojump_clock):
    result = await bench.run("hw.sensor.read", sensor="temperature")
    assert result["unit"] == "celsius"
    assert 15 < result["value"] < 30
    raw = await bench.run("i2c.read", bus=1, addr="0x48", reg="0x00", len=2)
    assert decode_tmp102(base64.b64decode(raw["data"])) == pytest.approx(result["value"], abs=0.125)
    assert bench.tools["hw.sensor.read"].bus({"sensor": "temperature"}) == "i2c:1"
    with pytest.raises(InvalidParams, match="it has: temperature"):
        bench.tools["hw.sensor.read"].bus({"sensor": "humidity"})


async def test_the_board_tells_what_it_has_without_touching_it(bench, i2c):
    board = await bench.run("hw.board")
    assert board["name"] == "sim"
    buses = [
        "gpio:sim",
        "i2c:1",
        "uart:uart0",
        "pwm:sim",
        "dac:sim",
        "can:can0",
        "spi:LOOP",
        "spi:MOTOR",
        "modbus:plant",
        "iio:sim",
    ]
    assert [bus["id"] for bus in board["buses"]] == buses
    assert board["health"] == {"audit": "ok"}
    (chip,) = (await bench.run("hw.gpio.list"))["chips"]
    lines = {line["line"]: line for line in chip["lines"]}
    assert (chip["chip"], len(lines)) == ("sim", 32)
    assert lines[17] == {
        "line": 17,
        "name": "GPIO17",
        "direction": "any",
        "safe": 0,
        "hold": "release",
        "aliases": ["LED"],
        "note": "a LED; wired to GPIO27",
    }
    (bus,) = (await bench.run("hw.i2c.list"))["buses"]
    devices = [(device["hex"], device["kind"]) for device in bus["devices"]]
    assert devices == [("0x48", "tmp102"), ("0x50", "24c02"), ("0x4d", "mcp3221")]
    assert "reg_width" not in bus["devices"][2]
    (port,) = (await bench.run("hw.uart.list"))["ports"]
    assert port["port"] == "uart0"
    assert port["path"] is None  # in virtual time the far end is no terminal that could be attached to
    assert (await bench.run("hw.sensor.list"))["sensors"] == [
        {
            "sensor": "temperature",
            "kind": "tmp102",
            "unit": "celsius",
            "bus": "i2c:1",
            "description": "room temperature",
        },
        {"sensor": "tank", "kind": "mcp3221", "unit": "percent", "bus": "i2c:1", "description": "level of the tank"},
        {"sensor": "fan_current", "kind": "modbus", "unit": "ampere", "bus": "modbus:plant"},
        {
            "sensor": "vibration",
            "kind": "iio",
            "unit": "metre_per_second_squared",
            "bus": "iio:sim",
            "description": "simulated: 12 Hz",
            "capture": True,
        },
        {
            "sensor": "strain",
            "kind": "iio",
            "unit": "volt",
            "bus": "iio:sim",
            "description": "simulated: 3 Hz",
            "capture": True,
        },
    ]
    assert not i2c.log


async def test_what_is_reserved_is_listed_with_the_reason_and_what_is_not_known_is_left_out(make_board_bench):
    bench = make_board_bench(
        {
            "name": "mixed",
            "description": "mixed",
            "gpio": [{"label": "a", "driver": "sim", "names": ["X"], "lines": {"X": {"reserved": "not yours"}}}],
            "i2c": [{"bus": 1, "driver": "sim", "device": [{"addr": 80, "kind": "24c02"}]}],
            "sensors": {"t": {"kind": "tmp102", "bus": 1, "addr": 0x48}},
        }
    )
    assert (await bench.run("hw.gpio.list"))["chips"][0]["lines"][0]["reserved"] == "not yours"
    assert "note" not in (await bench.run("hw.i2c.list"))["buses"][0]["devices"][0]
    assert "description" not in (await bench.run("hw.sensor.list"))["sensors"][0]
    assert (await bench.run("hw.uart.list"))["ports"] == []
