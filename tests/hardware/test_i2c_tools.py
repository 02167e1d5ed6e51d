"""The i2c tools through the runtime, on the kernel's adapters: what an agent asks for is what crosses the wire."""

import base64
from contextlib import asynccontextmanager

import pytest
import trio
from support.i2c_stub import kernel_driver, stub_bus
from support.mcp2221 import ADAPTER, Mcp2221
from support.mcp2221_chip import Memory
from support.waiting import passes

import hearth
from hearth import step
from hearth.errors import DeviceError, InvalidParams, ResourceBusy

MEMORY, WIDE = 0x50, 0x51
PROFILE = """
name = "cell"
description = "two adapters of the kernel's"
[[i2c]]
bus = 1
driver = "i2c-dev"
adapter = "{adapter}"
timeout_ms = {timeout_ms}
[[i2c]]
bus = 2
driver = "i2c-dev"
adapter = "SMBus stub driver"
"""


def b64(data):
    return base64.b64encode(data).decode()


@pytest.fixture
def adapter():
    with Mcp2221({MEMORY: Memory(), WIDE: Memory(65536, pointer_bytes=2)}) as adapter:
        yield adapter
        assert not adapter.chip.strays


@pytest.fixture
def open_cell(adapter, tmp_path):
    stub_bus()
    profile = tmp_path / "cell.toml"

    @asynccontextmanager
    async def open_it(timeout_ms=10_000):
        """Open the board; the emulated machine may be slow, so a bus has a long time unless the test is about it."""
        profile.write_text(PROFILE.format(adapter=ADAPTER, timeout_ms=timeout_ms))
        with trio.fail_after(60):
            async with hearth.open_runtime(board=str(profile)) as runtime, runtime.open_session() as session:
                yield runtime, session

    return open_it


async def test_a_register_of_sixteen_bits_goes_over_the_wire_high_byte_first(open_cell, adapter):
    where = {"bus": 1, "addr": WIDE, "reg": "0x1234", "reg_width": 16}
    async with open_cell() as (_runtime, session):
        assert await session.run("i2c.write", **where, data=b64(b"abc")) == {"written": 3}
        assert await session.run("i2c.read", **where, len=3) == {"data": b64(b"abc"), "hex": "616263", "text": "abc"}
    assert [exchange.written for exchange in adapter.chip.log] == [b"\x12\x34abc", b"\x12\x34"]
    assert adapter.chip.log[1].read == b"abc"


async def test_messages_are_one_exchange_or_refused_without_effect(open_cell, adapter):
    messages = [{"write": b64(b"\x00")}, {"read": 2}]
    async with open_cell() as (_runtime, session):
        result = await session.run("i2c.transfer", bus=1, addr=MEMORY, messages=messages)
        assert result == {"data": b64(b"\0\0"), "hex": "0000", "reads": [b64(b"\0\0")]}
        assert len(adapter.chip.log) == 1
        for bus in (1, 2):
            with pytest.raises(DeviceError) as caught:
                await session.run("i2c.transfer", bus=bus, addr=MEMORY, messages=messages * 2)
            assert (caught.value.data["effect"], caught.value.data["errno"]) == ("none", "EOPNOTSUPP")
    assert len(adapter.chip.log) == 1


async def test_an_address_of_ten_bits_is_refused_by_its_schema_or_by_an_adapter_that_cannot(open_cell):
    async with open_cell() as (_runtime, session):
        with pytest.raises(InvalidParams):
            await session.run("i2c.read", bus=1, addr=0x150, len=1)
        with pytest.raises(DeviceError, match="cannot do 10-bit addresses"):
            await session.run("i2c.read", bus=1, addr=0x150, ten_bit=True, len=1)


async def test_a_scan_tells_what_acknowledges_what_the_kernel_owns_and_what_was_left_alone(open_cell, adapter):
    async with open_cell() as (_runtime, session):
        with kernel_driver(adapter.bus, MEMORY, "lm75"):
            scan = await session.run("i2c.scan", bus=1)
        assert (scan["addresses"], scan["hex"]) == ([WIDE], ["0x51"])
        assert scan["owned"] == [{"addr": MEMORY, "hex": "0x50", "driver": "lm75"}]
        assert {"addr": 0x0C, "hex": "0x0c"}.items() <= scan["skipped"][3].items()
        assert (await session.run("i2c.scan", bus=2))["addresses"] == [0x40, 0x48, 0x50]


async def test_an_address_of_the_kernels_own_is_resource_busy(open_cell, adapter):
    async with open_cell() as (_runtime, session):
        with kernel_driver(adapter.bus, MEMORY, "lm75"):
            with pytest.raises(ResourceBusy, match="'lm75'") as caught:
                await session.run("i2c.write", bus=1, addr=MEMORY, data=b64(b"\0"))
            assert (caught.value.data["errno"], caught.value.data["owner"]) == ("EBUSY", "lm75")


async def test_hw_i2c_list_tells_which_adapter_a_bus_is_and_what_it_can_do(open_cell, adapter):
    async with open_cell(timeout_ms=100) as (_runtime, session):
        raw, smbus = (await session.run("hw.i2c.list"))["buses"]
    assert (raw["bus"], raw["mode"], raw["path"]) == (1, "raw", f"/dev/i2c-{adapter.bus}")
    assert (smbus["bus"], smbus["mode"]) == (2, "smbus")
    assert raw["timeout_ms"] == 100


async def test_a_bus_is_wedged_when_its_own_limit_is_over_and_ready_when_the_kernel_gives_up(open_cell, adapter):
    async with open_cell(timeout_ms=500) as (runtime, session):
        adapter.chip.wedge(after=2)
        begun = trio.current_time()
        stuck = await session.submit("stuck", [step("i2c.write", bus=1, addr=MEMORY, data=b64(b"\x10abc"))])
        await passes(lambda: runtime.health()["buses"]["i2c:1"]["state"] == "wedged")
        # 500 ms, not the second of an adapter that the board says nothing about; the kernel's driver waits for 4 s.
        assert trio.current_time() - begun < 3
        with pytest.raises(ResourceBusy, match="wedged"):
            await session.run("i2c.read", bus=1, addr=MEMORY, len=1)
        assert (await session.run("i2c.read", bus=2, addr=MEMORY, reg=0, len=1))["data"]
        done = await stuck.wait()
        assert done.steps[0].error_data["effect"] == "unknown"
        assert runtime.health()["buses"]["i2c:1"]["state"] == "ready"
        adapter.chip.release()
        await session.run("i2c.write", bus=1, addr=MEMORY, data=b64(b"\x10abc"))
        assert (await session.run("i2c.read", bus=1, addr=MEMORY, reg=0x10, len=3))["data"] == b64(b"abc")
