"""Off is off for the load: for each kind of output and polarity, after each end, the pin gives the load nothing.

A row has a wired load: what the profile says about its output, the level of the pin at which the load gets power, and
the greatest share of it that is permitted at rest. The simulator's wires say that, and never the driver.
"""

from __future__ import annotations

import pytest
from attrs import frozen
from support.world import BoardWorld, running

from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.diagnose import safety_gaps
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.dac.machine import FoundDac
from hearth.drivers.linux.device_users import NO_HOLDERS
from hearth.drivers.linux.machine import DeviceOrigin
from hearth.drivers.pwm.driver import ChannelSpec, Pulses, ServoSpec
from hearth.drivers.pwm.machine import FoundPwm
from hearth.drivers.pwm.sim import SimPwm

LOAD = 0
"""The number of the output in every row."""


@frozen
class Row:
    """A load at an output. `table` is the profile's of the output, `on` the step that gives the load power."""

    kind: str
    table: dict
    on: tuple
    off: tuple | None = None
    powered_at: int = 1
    """The level of the pin at which the load has power."""
    rest: float = 0.0
    """The share of its power that the load may have at rest: 0 for "off", else that of `safe`."""


def line(powered_at=1, value=1, **table):
    on, off = (("gpio.set", {"line": "LOAD", "value": level}) for level in (value, 1 - value))
    return Row("gpio", table, on, off, powered_at)


def pwm(powered_at=1, rest=0.0, **table):
    on = ("pwm.set", {"channel": "LOAD", "pulse_us" if table.get("unit") == "us" else "duty": 0.5})
    return Row("pwm", {"period_us": 1_000, **table}, on, ("pwm.off", {"channel": "LOAD"}), powered_at, rest)


def servo(powered_at=1, rest=0.0, **table):
    table = {"servo": {"min_us": 1_000, "max_us": 2_000}, **table}
    on = ("servo.move", {"servo": "LOAD", "angle": 90})
    return Row("pwm", table, on, ("pwm.off", {"channel": "LOAD"}), powered_at, rest)


def dac(**table):
    return Row("dac", {"min": 0.5, "max": 2.5, **table}, ("dac.set", {"channel": "LOAD", "value": 2}))


INVERSED = {"polarity": "inversed"}
ROWS = {
    "gpio": line(safe=0),
    "gpio released, pulled down": line(safe="input", pull="down"),
    "gpio active low": line(0, active_low=True, safe=0),
    "gpio active low, released, pulled up": line(0, active_low=True, safe="input", pull="up"),
    "gpio normally closed": line(0, value=0, safe=1),
    "gpio normally closed, active low": line(1, value=0, active_low=True, safe=1),
    "gpio open drain": line(drive="open-drain", pull="up", safe=0),
    "gpio open drain, active low": line(0, drive="open-drain", pull="up", active_low=True, safe=0),
    "gpio open drain, active low, released": line(0, drive="open-drain", pull="up", active_low=True, safe="input"),
    "gpio open source": line(drive="open-source", pull="down", safe=0),
    "gpio open source, released": line(drive="open-source", pull="down", safe="input"),
    "gpio open source, active low": line(0, drive="open-source", pull="down", active_low=True, safe=0),
    "pwm": pwm(),
    "pwm with a least value": pwm(limit={"min": 0.2, "max": 0.8}),
    "pwm with a safe value": pwm(rest=0.1, safe=0.1),
    "pwm in microseconds": pwm(unit="us"),
    "pwm inversed": pwm(0, **INVERSED),
    "pwm inversed with a least value": pwm(0, limit={"min": 0.2, "max": 0.8}, **INVERSED),
    "pwm inversed with a safe value": pwm(0, rest=0.1, safe=0.1, **INVERSED),
    "pwm inversed in microseconds": pwm(0, unit="us", **INVERSED),
    "servo": servo(),
    "servo inversed": servo(0, **INVERSED),
    "servo inversed with a safe angle": servo(0, rest=0.05, safe=0, **INVERSED),
    "dac": dac(safe=0.5),
    "dac off": dac(safe="off"),
}


class Bench(BoardWorld):
    """A runtime over a board with one load, and a meter at its pin.

    With `level` an earlier run was killed while the load had it.
    """

    def __init__(self, row, *, level=None):
        self.row = row
        super().__init__(profile_of(row), left=None if level is None else {f"{row.kind}:bench": [LOAD]})
        self.bus = f"{row.kind}:bench"
        if level is not None:
            driver = self.parts.drivers[self.bus]
            driver.open()
            driver.set(LOAD, level)
            # Nothing else comes of a killed process: a pin keeps its level, as most chips do it.
            driver.close()

    @property
    def power(self):
        return power(self.row, self.parts.drivers[self.bus])


def profile_of(row):
    names = {"gpio": ("names", "lines"), "pwm": ("channels", "channel"), "dac": ("channels", "channel")}
    listed, details = names[row.kind]
    chip = {"label": "bench", "driver": "sim", listed: ["LOAD"], details: {"LOAD": row.table}}
    return {"name": "bench", "description": "a load", row.kind: [chip]}


def board_of(row):
    return open_board(parse_profile(profile_of(row), "bench"), style=Style.ASYNC)


def power(row, driver):
    """Return the share of its power that the load has: by the wire, not by what the driver believes."""
    if row.kind == "gpio":
        return float(driver.level(LOAD) == row.powered_at)
    if row.kind == "pwm":
        high = driver.high(LOAD)
        return high if row.powered_at else 1 - high
    volts = driver.volts(LOAD)
    return volts / 2.5 if volts > 0.5 else 0.0


async def off(bench, session):
    tool, args = bench.row.off
    await session.run(tool, **args)
    assert bench.power == 0
    return 0.0


async def session_end(_bench, session):
    await session.close()


async def halt(_bench, session):
    await session.halt("a test")


ENDS = {"off": off, "the end of the session": session_end, "a halt": halt}


WAYS = [(row, end) for row, found in ROWS.items() for end in ENDS if end != "off" or found.off is not None]


@pytest.mark.parametrize(("row", "end"), WAYS)
async def test_the_load_gets_no_more_than_its_rest_after(autojump_clock, row, end):
    row = ROWS[row]
    async with running(Bench(row)) as bench, bench.sessions().open_session() as session:
        tool, args = row.on
        await session.run(tool, **args)
        assert bench.power > row.rest, "the row does not show anything"
        allowed = await ENDS[end](bench, session)
        assert bench.power <= (row.rest if allowed is None else allowed) + 1e-9


@pytest.mark.parametrize("row", ROWS)
async def test_the_load_gets_no_more_than_its_rest_after_kill_9_and_the_next_start(autojump_clock, row):
    row = ROWS[row]
    level = next(given for name, given in row.on[1].items() if name not in ("line", "channel", "servo"))
    bench = Bench(row, level=level)
    assert bench.power > row.rest
    async with running(bench):
        assert bench.power <= row.rest + 1e-9


@pytest.mark.parametrize("row", [row for row, found in ROWS.items() if found.kind == "pwm"])
async def test_a_channel_that_is_off_is_shown_as_off_and_stays_so_when_the_chip_is_closed(autojump_clock, row):
    row = ROWS[row]
    async with running(Bench(row)) as bench, bench.sessions().open_session() as session:
        for tool, args in (row.on, row.off):
            await session.run(tool, **args)
        shown = await session.run("pwm.get", channel="LOAD")
        assert (shown["on"], shown["duty"], shown["pulse_us"]) == (False, 0, 0)
        chip = bench.parts.drivers[bench.bus]
        assert chip.value(LOAD) == "off"
    chip.open()
    assert bench.power <= row.rest + 1e-9


# --- what a channel gives that is not enabled -------------------------------------------------------------------------


def chip_of(**channel):
    chip = SimPwm("bench", [ChannelSpec(0, "LOAD", **channel)])
    chip.open()
    return chip


def test_an_inversed_channel_that_was_never_set_is_shown_with_the_full_power_that_its_load_gets():
    chip = chip_of(polarity="inversed")
    assert chip.high(0) == 0, "a chip holds a channel that is not enabled low"
    assert chip.value(0) == 1
    assert chip.get(0) == Pulses(20_000_000, 20_000_000)
    chip.set(0, "off")
    assert (chip.high(0), chip.value(0)) == (1, "off")


def test_an_inversed_channel_in_microseconds_that_was_never_set_gives_its_whole_period():
    assert chip_of(polarity="inversed", unit="us").value(0) == 20_000


def test_an_inversed_servo_that_was_never_set_has_no_angle():
    chip = chip_of(polarity="inversed", servo=ServoSpec(1_000, 2_000))
    assert chip.value(0) == "off"


def test_a_channel_that_was_never_set_is_off():
    chip = chip_of()
    assert (chip.high(0), chip.value(0), chip.get(0).enabled) == (0, "off", False)


def test_an_inversed_channel_goes_from_off_to_a_value_and_back_with_its_former_value():
    chip = chip_of(polarity="inversed")
    assert chip.set(0, 0.25).value == "off", "an undo does not give it full power"
    assert chip.set(0, "off").value == 0.25
    assert chip.set(0, 0.5).value == "off"
    assert chip.high(0) == 0.5


# --- what doctor says of outputs that give power at rest --------------------------------------------------------------


def gaps(**tables):
    found = {
        "pwm": (
            FoundPwm("pwmchip0", "/dev/pwmchip0", DeviceOrigin(driver="pca9685-pwm"), "a", 16),
            FoundPwm("pwmchip1", "/dev/pwmchip1", DeviceOrigin(driver="acme-pwm"), "b", 16),
            FoundPwm("pwmchip2", "/dev/pwmchip2", DeviceOrigin(driver="pwm-gpio"), "c", 16),
        ),
        "dac": tuple(FoundDac("iio:device0", str(path), DeviceOrigin(), "d") for path in tables.pop("paths", ())),
    }
    profile = parse_profile({"name": "bench", "description": "loads", **tables}, "bench")
    gaps = safety_gaps(profile, found, NO_HOLDERS)
    return [(gap.key, gap.severity, gap.problem) for gap in gaps if "limit" not in gap.key and "halt" not in gap.key]


def chip_table(label="a", driver="pwm", **channel):
    return {"label": label, "driver": driver, "channels": ["LAMP"], "channel": {"LAMP": {"period_us": 1, **channel}}}


def test_an_inversed_channel_that_its_chip_holds_low_is_named():
    told = "chip a: inversed, so full power until hearth first drives it: LAMP; the chip rests low"
    assert gaps(pwm=[chip_table(**INVERSED)]) == [("pwm[0].polarity", "warn", told)]


@pytest.mark.parametrize("channel", [{}, INVERSED])
def test_a_chip_of_which_it_is_not_known_how_it_rests_is_named(channel):
    told = "chip b: nothing is known of the level at which acme-pwm leaves a channel that is off"
    assert gaps(pwm=[chip_table("b", **channel)]) == [("pwm[0].label", "warn", told)]


def test_chips_that_rest_without_power_and_chips_that_are_not_there_are_no_gap():
    assert gaps(pwm=[chip_table()]) == []
    assert gaps(pwm=[chip_table("c", **INVERSED)]) == []
    assert gaps(pwm=[chip_table("absent", **INVERSED)]) == []


def test_a_converter_whose_off_leaves_its_output_open_is_named(tmp_path):
    dac = {"label": "d", "driver": "iio", "channels": ["V"], "channel": {"V": {"min": 0, "max": 1, "safe": "off"}}}
    mode = tmp_path / "out_voltage0_powerdown_mode"
    for text, shown in (("three_state\n", "three_state"), (None, "unknown"), ("1kohm_to_gnd\n", None)):
        mode.unlink(missing_ok=True)
        if text is not None:
            mode.write_text(text)
        found = gaps(dac=[dac], paths=[tmp_path / "out_voltage0_raw"])
        assert [(key, f"powerdown_mode {shown}" in told) for key, _, told in found] == (
            [("dac[0].channel.V.safe", True)] if shown else []
        )


HELD_AT_1 = {
    "released, pulled up": {"direction": "output", "safe": "input", "pull": "up"},
    "released, active low, pulled down": {
        "direction": "output",
        "safe": "input",
        "pull": "down",
        "active_low": True,
    },
    "open source, pulled up": {"drive": "open-source", "safe": 0, "pull": "up"},
    "open drain, active low, pulled down": {"drive": "open-drain", "safe": 0, "pull": "down", "active_low": True},
}


@pytest.mark.parametrize("how", HELD_AT_1)
def test_an_output_that_its_pull_holds_at_1_in_its_safe_state_is_named_and_the_load_has_power_then(how):
    table = HELD_AT_1[how]
    chip = {"label": "bench", "driver": "sim", "names": ["LOAD"], "lines": {"LOAD": table}}
    told = "chip bench: in the safe state nothing drives it, and its pull holds it at 1: LOAD"
    assert ("gpio[0].pull", "note", told) in gaps(gpio=[chip])
    powered_at = 0 if table.get("active_low") else 1
    row = Row("gpio", table, (), powered_at=powered_at)
    driver = board_of(row).drivers["gpio:bench"]
    driver.open()
    driver.set(LOAD, table["safe"])
    assert power(row, driver) == 1


@pytest.mark.parametrize("row", [name for name, found in ROWS.items() if found.kind == "gpio"])
def test_an_output_whose_load_has_no_power_in_its_safe_state_is_not_named(row):
    chip = {"label": "bench", "driver": "sim", "names": ["LOAD"], "lines": {"LOAD": ROWS[row].table}}
    assert "gpio[0].pull" not in [key for key, _, _ in gaps(gpio=[chip])]
