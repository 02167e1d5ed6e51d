"""Typed namespaces: the same methods on every face, bytes in and out, on a simulated board."""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import trio
from attrs import evolve
from support.faces import AsyncioFace, BlockingFace, Loop

import hearth
from hearth import namespaces
from hearth.config.model import Config, FilesConfig
from hearth.errors import CarrierError, DeviceError, InvalidParams, LimitViolated

NAMES = ("gpio", "i2c", "uart", "pwm", "dac", "spi", "can", "modbus", "files", "sensors", "signals")


@pytest.fixture
def config(tmp_path):
    return evolve(Config(), files=FilesConfig(read=(tmp_path,), write=(tmp_path,)))


@pytest.fixture(params=["trio", "asyncio", "threads"])
async def session(request, config):
    """A session of each face; a result of a blocking face is not awaited, which `told` evens out."""
    if request.param == "trio":
        async with hearth.open_runtime(config=config) as runtime, runtime.open_session() as opened:
            yield opened
    elif request.param == "asyncio":
        async with Loop().running() as loop:
            opening = hearth.aio.open_runtime(config=config)
            runtime = await loop.run(opening.__aenter__)
            async with AsyncioFace(loop, runtime).open_session() as opened:
                yield opened
            await loop.run(opening.__aexit__, None, None, None)
    else:
        with hearth.sync.open_runtime(config=config) as runtime:
            async with BlockingFace(runtime).open_session() as opened:
                yield opened


async def test_gpio(session) -> None:
    assert await session.gpio.set("LED", 1) is None
    assert await session.gpio.get("LED") == 1
    await session.gpio.set("LED", value=False)
    assert await session.gpio.get("LED") == 0
    assert await session.gpio.pulse("RELAY", 1, 1) is None
    assert await session.gpio.watch("BUTTON", edge="rising", timeout_ms=1) == []


async def test_edges_that_a_watch_sees_are_values(session) -> None:
    seen = []

    async def watch():
        seen.extend(await session.gpio.watch("LED", edge="rising", count=2, timeout_ms=60_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        while len(seen) < 2:
            await session.gpio.set("LED", 1)
            await session.gpio.set("LED", 0)
    assert [(edge.value, edge.edge) for edge in seen] == [(1, "rising")] * 2
    assert seen[0].seq < seen[1].seq
    assert seen[0].timestamp_ns <= seen[1].timestamp_ns


@pytest.mark.slow
async def test_i2c_takes_and_returns_bytes(session) -> None:
    await session.i2c.write(1, 0x50, b"hearth", reg=0x10)
    assert await session.i2c.read(1, "0x50", reg=0x10, length=6) == b"hearth"
    assert await session.i2c.transfer(1, 0x50, bytearray([0x10]), length=3) == b"hea"
    assert 0x48 in await session.i2c.scan(1)
    with pytest.raises(DeviceError):
        await session.i2c.read(1, 0x23, length=1)


async def test_spi_takes_and_returns_bytes_and_the_values_of_registers(session) -> None:
    assert await session.spi.transfer("LOOP", b"hearth") == b"hearth"
    assert await session.spi.write("MOTOR", "SPEED", 1199.6) == 1200
    assert await session.spi.read("MOTOR", 0x10) == 1200.0
    assert await session.spi.write("MOTOR", "CURRENT", 2.4) == 2.0, "clamped"


async def test_can_sends_and_returns_frames_with_their_signals(session) -> None:
    sent = await session.can.send("can0", "FAN_COMMAND", {"Speed": 40})
    assert (sent.id, sent.data, sent.message, sent.timestamp_us) == ("0x200", b"\x50", "FAN_COMMAND", None)
    assert sent.signals == {"Speed": namespaces.CanSignal(40.0, "percent")}
    (status,) = answered = await session.can.read("can0", only=["FAN_STATUS"], timeout_ms=5000)
    assert (answered.timed_out, answered.lost) == (False, 0)
    assert float(status.signals["Rotation"]) == 1200
    assert status.timestamp_us > 0
    raw = await session.can.send("can0", ident=0x7F, data=bytearray(b"hearth"))
    assert (raw.id, raw.data, raw.message, raw.fd) == ("0x07f", b"hearth", None, False)
    fd = await session.can.send("can0", ident="0x18feca00", data=bytes(12))
    assert (fd.id, fd.fd, fd.bitrate_switch) == ("0x18feca00", True, True)
    with pytest.raises(LimitViolated, match="Speed = 140 is outside of 0 to 100"):
        await session.can.send("can0", "FAN_COMMAND", {"Speed": 140})
    nothing = await session.can.read("can0", only=[0x700], timeout_ms=1, errors=True)
    assert (list(nothing), nothing.timed_out) == ([], True)


async def test_a_can_watch_returns_the_newest_frame_of_each_identifier(session) -> None:
    watched = await session.can.watch("can0", only=["ENGINE_*"], count=2, timeout_ms=60_000)
    assert (watched.seen, watched.lost, watched.timed_out) == (2, 0, False)
    assert [(one.message, one.signals["Mode"].name) for one in watched.latest] == [("ENGINE_DATA", "running")]


async def test_isotp_takes_and_returns_bytes(session) -> None:
    answer = await session.can.isotp("can0", 0x7E0, "0x7e8", bytes(range(20)))
    assert (answer, answer.timed_out) == (bytes(range(20)), False)
    silence = await session.can.isotp("can0", 0x7E1, 0x7E9, b"?", timeout_ms=1)
    assert (silence, silence.timed_out) == (b"", True)


async def test_modbus_registers_have_their_types_and_units(session) -> None:
    assert await session.modbus.write("FAN", "run", value=True) is True
    assert await session.modbus.read("FAN", 0, table="coil") is True
    assert await session.modbus.write("FAN", 100, 12.34) == pytest.approx(12.3)
    assert await session.modbus.read_many("FAN", "speed", 2) == [
        namespaces.ModbusReading(100, pytest.approx(12.3), "speed", "hertz"),
        namespaces.ModbusReading(101, 0, "ramp", "hertz per second"),
    ]
    one = await session.modbus.read_many("FAN", "hours", 1, table="input")
    assert [(row.register, row.name, row.unit) for row in one] == [(10, "hours", "hour")]
    with pytest.raises(LimitViolated):
        await session.modbus.write("FAN", "speed", 51)


async def test_a_serial_port_takes_and_returns_bytes_and_tells_of_a_timeout(session) -> None:
    reply = await session.uart.exchange("uart0", b"*IDN?\n", until="\n", timeout_ms=2000)
    assert isinstance(reply, bytes)
    assert reply.endswith(b"\n")
    assert (reply.timed_out, reply.lost) == (False, 0)
    silence = await session.uart.read("uart0", length=64, timeout_ms=1)
    assert (silence, silence.timed_out) == (b"", True)
    assert await session.uart.write("uart0", memoryview(b"hello\n"), drain=True) is None


@pytest.mark.slow
async def test_files_take_and_return_bytes_of_any_length(session, tmp_path) -> None:
    whole = bytes(range(256)) * 2500
    path = tmp_path / "data.bin"
    assert await session.files.write(path, whole) == len(whole)
    assert await session.files.read(path) == whole
    assert await session.files.read(str(path), offset=1, length=3) == b"\x01\x02\x03"
    assert await session.files.read(path, offset=1, length=300_000) == whole[1:300_001]
    assert await session.files.read(path, length=0) == b""
    assert (await session.files.stat(path)).size == len(whole)
    assert [(entry.name, entry.type) for entry in await session.files.listdir(tmp_path)] == [("data.bin", "file")]
    with pytest.raises(DeviceError):
        await session.files.write(path, b"", mode="create")


async def test_sensors(session) -> None:
    assert await session.sensors.names() == ["temperature", "tank", "fan_current", "vibration", "strain"]
    reading = await session.sensors.read("temperature")
    assert reading.unit == "celsius"
    assert float(reading) == reading.value
    taken = await session.sensors.capture("vibration", "strain", samples=25, rate_hz=500, timestamps=True)
    assert taken.units == {"vibration": "metre_per_second_squared", "strain": "volt"}
    assert (taken.rate_hz, taken.timed_out) == (500, False)
    assert [len(values) for values in taken.samples.values()] == [25, 25]
    assert all(abs(value - 9.81) <= 2.5 for value in taken.samples["vibration"])
    assert len(set(taken.samples["vibration"])) > 20
    assert taken.timestamps_us[-1] - taken.timestamps_us[0] == 24 * 2_000
    short = await session.sensors.capture("strain", samples=1_000, rate_hz=10, timeout_ms=1)
    assert (short.samples, short.timestamps_us, short.timed_out) == ({"strain": []}, None, True)


async def test_pwm(session) -> None:
    assert await session.pwm.move("ARM", 45) == 45
    assert await session.pwm.get("ARM") == namespaces.PwmReading("ARM", True, 0.0625, 1_250, 20_000, 45)
    await session.pwm.set("LAMP", pulse_us=250, period_us=500)
    assert (await session.pwm.get("LAMP")).duty == 0.5
    await session.pwm.off("LAMP")
    assert await session.pwm.get("LAMP") == namespaces.PwmReading("LAMP", False, 0, 0, 1_000)


async def test_dac(session) -> None:
    assert await session.dac.set("BIAS", 1.5) == 1.5
    assert await session.dac.get("BIAS") == namespaces.DacReading("BIAS", 1.5, "volt")


@pytest.mark.parametrize(
    ("name", "value", "read", "unit"),
    [
        ("PUMP", 1, 1, None),
        ("BIAS", "0.75 V", 0.75, "volt"),
        ("FAN.speed", 12.5, 12.5, "hertz"),
        ("LAMP", "off", "off", "duty"),
    ],
)
async def test_an_output_of_any_kind_is_set_and_read_by_its_name(session, name, value, read, unit) -> None:
    assert await session.signals.set(name, value) == read
    now = await session.signals.read(name)
    assert (now.name, now.value, now.unit, now.quality) == (name, read, unit, "good")
    (row,) = await session.signals.list(name=name)
    assert (row.kind, row.access, row.unit) == (now.bus.partition(":")[0], "rw", unit)
    assert row.left if row.safe is None else row.owner == session.session_id
    assert (await session.signals.list(kind=row.kind, name="no such signal")) == ()


async def test_an_output_is_set_for_a_time_and_a_clamped_value_is_returned(session) -> None:
    assert await session.signals.set("RELAY", 1, duration_ms=1) == 1
    assert (await session.signals.read("RELAY")).value == 0
    assert await session.signals.set("CURRENT", 2.4) == 2.0


async def test_signals_are_refused_with_the_nearest_name_their_unit_and_their_bounds(session) -> None:
    with pytest.raises(InvalidParams, match="did you mean gpio:sim:PUMP"):
        await session.signals.set("PMUP", 1)
    with pytest.raises(InvalidParams, match=r"expected a value in volt, got '1\.5 A'"):
        await session.signals.set("BIAS", "1.5 A")
    with pytest.raises(LimitViolated, match=r"9 volt is beyond max = 2\.5 volt"):
        await session.signals.set("BIAS", 9)
    with pytest.raises(InvalidParams, match="BIAS has no pulses"):
        await session.signals.set("BIAS", 1, duration_ms=1)
    with pytest.raises(InvalidParams, match="DOOR: it cannot be set"):
        await session.signals.set("DOOR", 1)


async def test_changes_of_signals_are_waited_for(session) -> None:
    assert await session.signals.watch("DOOR", timeout_ms=1) == []
    seen = {}

    async def watch(name, **more):
        seen[name] = [one.value for one in await session.signals.watch(name, timeout_ms=60_000, **more)]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(watch, "LED", count=2))
        nursery.start_soon(partial(watch, "FAN.speed", min_change=5))
        speed = 0
        while len(seen) < 2:
            await session.signals.set("LED", 1)
            await session.signals.set("LED", 0)
            await session.signals.set("FAN.speed", speed := 10 - speed)
    assert (sorted(seen["LED"]), seen["FAN.speed"][0] in (0, 10)) == ([0, 1], True)


class Odd:
    """A session whose server answers as no schema allows."""

    def __init__(self, answer):
        self._answer = answer

    async def run(self, tool, /, **args):
        return self._answer


async def test_an_angle_that_is_no_number_is_a_carrier_error_that_names_it() -> None:
    with pytest.raises(CarrierError, match=r"answered servo.move without angle \(number\)"):
        await namespaces.PwmNamespace(Odd({"angle": "high"})).move("ARM", 1)


async def test_a_signal_may_have_no_unit_but_not_lack_its_value() -> None:
    answer = {"name": "PUMP", "bus": "gpio:sim", "value": None, "at": None, "quality": "failed", "why": "no answer"}
    assert (await namespaces.SignalsNamespace(Odd(answer)).read("PUMP")).unit is None
    del answer["value"]
    for made in (
        namespaces.SignalsNamespace(Odd(answer)).read("PUMP"),
        namespaces.SignalsNamespace(Odd({})).set("A", 1),
    ):
        with pytest.raises(CarrierError, match=r"answered signal\.(read|set) without (value|name)"):
            await made
    rows = await namespaces.SignalsNamespace(Odd({"signals": [], "truncated": True})).list()
    assert (rows, rows.truncated) == ((), True)


async def test_an_error_of_a_can_interface_is_a_frame_without_an_identifier() -> None:
    frames = {"frames": [{"error": ["bus off"], "timestamp_us": 7}], "timed_out": False, "lost": 3}
    read = await namespaces.CanNamespace(Odd(frames)).read("can0", errors=True)
    assert read == (namespaces.CanFrame(id="", error=["bus off"], timestamp_us=7),)
    assert read.lost == 3


async def test_a_signal_without_a_value_is_not_a_number() -> None:
    frame = {"id": "0x18f00403", "data": "", "signals": {"S": {"value": None, "none": "error"}}, "note": "short"}
    (read,) = await namespaces.CanNamespace(Odd({"frames": [frame], "timed_out": False, "lost": 0})).read("can0")
    assert (read.signals["S"].value, read.note) == (None, "short")
    with pytest.raises(ValueError, match="no value: error"):
        float(read.signals["S"])


@pytest.mark.parametrize("frame", [{}, {"id": 1, "data": ""}, {"id": "0x001"}], ids=repr)
async def test_a_frame_without_its_members_is_a_carrier_error(frame) -> None:
    with pytest.raises(CarrierError, match=r"answered can.read without (id|data) \(str\)"):
        await namespaces.CanNamespace(Odd({"frames": [frame], "timed_out": False, "lost": 0})).read("can0")


async def test_a_register_may_have_no_value_but_not_lack_it() -> None:
    assert await namespaces.ModbusNamespace(Odd({"value": None})).read("FAN", "current") is None
    for answer in ({}, {"value": "high"}):
        with pytest.raises(CarrierError, match=r"answered modbus.read without value \(number, boolean or null\)"):
            await namespaces.ModbusNamespace(Odd(answer)).read("FAN", "current")


@pytest.mark.parametrize("answer", [{}, {"value": "high"}, {"value": None}, None], ids=repr)
async def test_a_result_without_its_member_is_a_carrier_error_that_names_it(answer) -> None:
    with pytest.raises(CarrierError, match=r"answered gpio.get without value \(int\)"):
        await namespaces.GpioNamespace(Odd(answer)).get(17)


async def test_data_that_is_not_base64_is_a_carrier_error() -> None:
    with pytest.raises(CarrierError, match=r"answered i2c.read with data that is not base64"):
        await namespaces.I2cNamespace(Odd({"data": "?"})).read(1, 72, length=1)


@pytest.mark.parametrize("name", NAMES)
def test_the_blocking_namespaces_have_the_methods_of_the_others(name: str) -> None:
    asked = getattr(namespaces, f"{name.capitalize()}Namespace")
    blocking = getattr(hearth.sync, f"Blocking{name.capitalize()}")
    public = {key for key in vars(asked) if not key.startswith("_")}
    assert {key for key in vars(blocking) if not key.startswith("_")} == public
    for key in public:
        assert inspect.signature(getattr(blocking, key)) == inspect.signature(getattr(asked, key))
        assert getattr(blocking, key).__doc__ == getattr(asked, key).__doc__


@pytest.mark.parametrize("face", [hearth.aio.Session, hearth.sync.Session, hearth.client.session.ClientSession])
def test_every_session_has_all_of_the_interface(face) -> None:
    public = {key for key in vars(hearth.Session) if not key.startswith("_")}
    assert public - {"session_id", "capabilities"} <= set(dir(face))
    for key in ("submit", "run", "call", "tools", "task"):
        ours, theirs = (list(inspect.signature(getattr(one, key)).parameters) for one in (face, hearth.Session))
        assert ours == theirs
