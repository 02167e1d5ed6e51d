"""A policy entry that permits only some hardware: nothing else is reached, by any tool, whatever its args call it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from support.world import ALICE, BenchWorld, running

import hearth
from hearth import Tool, step
from hearth.actors.build import policy_entries
from hearth.config.model import load_config
from hearth.drivers import kinds
from hearth.drivers.base import Style
from hearth.drivers.can.driver import Frame
from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.rules import Match, PolicyEntry
from hearth.tools import Use

SCOPED = (
    'max_risk = 3\nlines = ["GPIO2[23]"]\ni2c = ["1:0x48"]\nuart = ["none"]\ncan = ["can0:FAN_*", "can0:0x300"]\n'
    'spi = ["MOT*"]\nmodbus = ["none"]\npwm = ["fan", "A*"]\ndac = ["bi*"]'
)


@asynccontextmanager
async def session(path, policy=SCOPED):
    file = path / "hearth.toml"
    file.write_text(
        f'[audit]\npath = "{path}/audit.log"\n[[policy]]\nname = "test"\nmatch = {{ any = true }}\n{policy}\n'
    )
    with trio.fail_after(30):
        runtime = hearth.open_runtime(config=load_config(file), style=Style.INLINE)
        async with runtime as opened, opened.open_session() as session:
            session.board = opened.board
            yield session


INSIDE = [
    step("gpio.set", line="GPIO22", value=1),
    step("gpio.get", line=22),
    step("gpio.pulse", line="22", value=1, duration_ms=1),
    step("i2c.read", bus=1, addr="0x48", reg=0, len=2),
    step("i2c.read", bus=1, addr=72, len=1),
    step("can.send", bus="can0", message="FAN_COMMAND", signals={"Speed": 1}),
    step("can.send", bus="can0", id=0x300, hex=""),
    step("can.read", bus="can0", filter=["FAN_*", 0x201], timeout_ms=1),
    step("can.read", bus="can0", timeout_ms=1),
    step("spi.read", device="MOTOR", register="SPEED"),
    step("spi.write", device="MOTOR", register="SPEED", value=1),
    step("pwm.set", channel="FAN", duty=0.3),
    step("servo.move", servo="ARM", angle=3),
    step("dac.set", channel="BIAS", value=1),
    step("sys.uptime"),
    step("hw.board"),
]
OUTSIDE = [
    (step("gpio.set", line=17, value=1), "GPIO17 is not in `lines`"),
    (step("gpio.set", line="GPIO17", value=1), "GPIO17 is not in `lines`"),
    (step("gpio.get", line=17), "GPIO17 is not in `lines`"),
    (step("gpio.watch", line=17), "GPIO17 is not in `lines`"),
    (step("gpio.pulse", line="17", value=1, duration_ms=1), "GPIO17 is not in `lines`"),
    (step("i2c.read", bus=1, addr=0x50, reg=0, len=1), "1:0x50 is not in `i2c`"),
    (step("i2c.write", bus=1, addr="0x50", text="x"), "1:0x50 is not in `i2c`"),
    (step("i2c.transfer", bus=1, addr=80, text="x", read_len=1), "1:0x50 is not in `i2c`"),
    (step("i2c.scan", bus=1), r"1:\* is not in `i2c`"),
    (step("uart.write", port="uart0", text="x"), "uart0 is not in `uart`"),
    (step("uart.read", port="uart0", timeout_ms=1), "uart0 is not in `uart`"),
    (step("can.send", bus="can0", id=0x301, hex=""), "can0:0x301 is not in `can`"),
    (step("can.send", bus="can0", id=0x200, hex="00"), "can0:0x200 is not in `can`"),
    (step("can.read", bus="can0", filter=["ENGINE_DATA"], timeout_ms=1), "can0:ENGINE_DATA is not in `can`"),
    (step("can.watch", bus="can0", filter=[1], timeout_ms=1), "can0:0x001 is not in `can`"),
    (step("can.isotp", bus="can0", tx=0x300, rx=0x301, hex="00"), "can0:0x301 is not in `can`"),
    (step("spi.transfer", device="LOOP", text="x"), "LOOP is not in `spi`"),
    (step("modbus.read", device="FAN", name="speed"), "FAN is not in `modbus`"),
    (step("modbus.write", device="FAN", register=100, value=1), "FAN is not in `modbus`"),
    (step("pwm.set", channel="LAMP", duty=0.1), "LAMP is not in `pwm`"),
    (step("pwm.get", channel="LAMP"), "LAMP is not in `pwm`"),
    (step("pwm.off", channel="LAMP"), "LAMP is not in `pwm`"),
    (step("dac.set", channel="VALVE", value=1), "VALVE is not in `dac`"),
    (step("dac.get", channel="VALVE"), "VALVE is not in `dac`"),
    (step("hw.sensor.read", sensor="fan_current"), "FAN is not in `modbus`"),
]


async def test_what_is_in_the_scope_runs(tmp_path):
    async with session(tmp_path) as opened:
        done = await (await opened.submit("x", INSIDE)).wait()
        assert done.raise_for_status()


@pytest.mark.parametrize(("one", "reason"), OUTSIDE, ids=[str(index) for index in range(len(OUTSIDE))])
async def test_what_is_outside_of_the_scope_is_refused_at_submit_and_prepare_with_the_reason(tmp_path, one, reason):
    async with session(tmp_path) as opened:
        for submit in (opened.submit, opened.prepare):
            with pytest.raises(PermissionDenied, match=reason) as refused:
                await submit("x", [step("sys.uptime"), one])
            assert refused.value.data["step_index"] == 1
        assert opened.board.drivers["gpio:sim"].level(17) == 0


async def test_a_sensor_outside_of_the_scope_is_not_read_and_the_lists_show_only_what_is_inside(tmp_path):
    async with session(tmp_path) as opened:
        names = [one["sensor"] for one in (await opened.run("hw.sensor.list"))["sensors"]]
        assert names
        for name in names:
            await opened.run("hw.sensor.read", sensor=name)
        (chip,) = [one for one in (await opened.run("hw.gpio.list"))["chips"] if one["lines"]]
        assert {line["name"] for line in chip["lines"]} <= {"GPIO22", "GPIO23"}
        (bus,) = (await opened.run("hw.i2c.list"))["buses"]
        assert [device["hex"] for device in bus["devices"]] == ["0x48"]
        assert (await opened.run("hw.uart.list"))["ports"] == []
        (bus,) = (await opened.run("hw.can.list"))["buses"]
        assert [one["message"] for one in bus["messages"]] == ["FAN_COMMAND", "FAN_STATUS"]
        assert [device["device"] for device in (await opened.run("hw.spi.list"))["devices"]] == ["MOTOR"]
        (chip,), (device,) = (await opened.run("hw.pwm.list"))["chips"], (await opened.run("hw.dac.list"))["devices"]
        assert [one["channel"] for one in (*chip["channels"], *device["channels"])] == ["FAN", "ARM", "BIAS"]
        assert [line["devices"] for line in (await opened.run("hw.modbus.list"))["lines"]] == [[]]
    async with session(tmp_path, 'i2c = ["1:0x50"]\nmodbus = []') as opened:
        for name in names:
            with pytest.raises(PermissionDenied, match=r"is not in `i2c`"):
                await opened.run("hw.sensor.read", sensor=name)
        assert (await opened.run("hw.sensor.list"))["sensors"] == []
        assert len((await opened.run("hw.gpio.list"))["chips"][0]["lines"]) > 1, "a key that is left out bounds nothing"


async def test_a_tool_that_does_not_say_what_it_uses_is_refused_in_a_scope_unless_it_touches_no_bus():
    async def run(ctx, _args):
        await ctx.transact(lambda driver: None)
        return {}

    def tool(name, **more):
        schema = {"type": "object"}
        return Tool(
            name=name, risk_level=0, timeout_ms=100, description=name, params_schema=schema, result_schema=schema,
            capability="CAP_GPIO_READ", bus=lambda _args: "a", run=run, **more,
        )  # fmt: skip

    vendor = [
        tool("acme.silent"),
        tool("acme.open", uses=lambda _args: [Use("lines", ("LED",))]),
        tool("acme.other", uses=lambda _args: [Use("lines", ("PUMP", "4"))]),
        tool("acme.none", uses=lambda _args: ()),
    ]
    scoped = PolicyEntry(name="scoped", match=Match(any=True), lines=["LED"])
    scoped_world = BenchWorld(policy=(scoped,), extra_tools=vendor)
    async with running(scoped_world) as world, world.sessions(ALICE).open_session() as alice:
        await alice.run("acme.open")
        await alice.run("acme.none")
        with pytest.raises(PermissionDenied, match=r"acme.silent does not say what it uses on a"):
            await alice.run("acme.silent")
        with pytest.raises(PermissionDenied, match=r"PUMP is not in `lines`"):
            await alice.run("acme.other")


async def test_a_read_without_a_filter_leaves_out_what_the_scope_does_not_permit(tmp_path):
    async with session(tmp_path) as opened:
        bus = opened.board.drivers["can:can0"]
        await opened.run("can.read", bus="can0", timeout_ms=0)
        for key in (0x100, 0x201, 0x2FF, 0x300):
            bus.inject(Frame(key, bytes(8)))
        answer = await opened.run("can.read", bus="can0", count=2, timeout_ms=9000)
        assert [frame["id"] for frame in answer["frames"]] == ["0x201", "0x300"]


@pytest.mark.parametrize(
    ("word", "pattern", "form"),
    [
        *(("can", pattern, "BUS:MESSAGE or BUS:ID such as") for pattern in ("FAN_*", "can0", ":x", "can0:", "")),
        *(("i2c", text, 'BUS:ADDRESS such as "1:0x48"') for text in ("0x48", "1-0x48", "x:1", "1:", "")),
    ],
)
def test_a_scope_that_names_no_bus_or_nothing_on_it_is_a_configuration_error(tmp_path, word, pattern, form):
    file = tmp_path / "hearth.toml"
    file.write_text(f'[[policy]]\nname = "x"\nmatch = {{ any = true }}\n{word} = ["{pattern}"]\n')
    with pytest.raises(ConfigError, match=rf"{word}\[0\]: expected {form}"):
        load_config(file)
    with pytest.raises(ConfigError, match=form.partition(" ")[0]):
        PolicyEntry(name="x", match=Match(any=True), **{word: [pattern]})


def entry_of(tmp_path, line):
    file = tmp_path / "hearth.toml"
    file.write_text(f'[[policy]]\nname = "x"\nmatch = {{ any = true }}\n{line}\n')
    (entry,) = policy_entries(load_config(file))
    return entry


def test_the_word_of_a_packages_kind_is_a_key_of_an_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "vendor_entry_points", lambda _group: {"laser": None})
    entry = entry_of(tmp_path, 'laser = ["CUT*"]\nlines = ["LED"]')
    assert entry.scope == PolicyEntry(name="x", match=Match(any=True), laser=["cut*"], lines=["led"]).scope
    assert entry.scope.permits(Use("laser", ("CUTTER",)))
    assert not entry.scope.permits(Use("laser", ("MARKER",)))


@pytest.mark.parametrize(("word", "near"), [("liness", "lines"), ("tols", "tools"), ("modbuss", "modbus")])
def test_a_word_that_no_kind_has_is_refused_with_the_nearest(tmp_path, word, near):
    with pytest.raises(ConfigError, match=rf"policy 'x': {word}: unknown key, .*; did you mean {near}\?"):
        entry_of(tmp_path, f'{word} = ["LED"]')
