"""The tables [[dac]] of a board profile, converters of a machine, and whether a profile fits them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support.machine import FilesMachine

from hearth.drivers.boards.diagnose import look, mismatches, safety_gaps
from hearth.drivers.boards.discover import find
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.dac.driver import DacChannelSpec, DacStep
from hearth.drivers.dac.machine import ACCESS
from hearth.drivers.linux import survey as access
from hearth.drivers.linux.device_users import NO_HOLDERS
from hearth.drivers.sandbox.plan import devices_of
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError

HEAD = {"name": "bench", "description": "a bench"}
DOOR = {"label": "cell", "driver": "sim", "names": ["DOOR"]}
LEVEL = {"min": 0, "max": 3, "safe": 0}


def dac(label="a", channels=("A",), driver="sim", **more):
    return {"label": label, "driver": driver, "channels": list(channels), "channel": {"A": LEVEL}, **more}


def profile(*dacs, **more):
    return parse_profile({**HEAD, "dac": list(dacs), **more}, "p")


def faults(*dacs, **more):
    with pytest.raises(ConfigError) as caught:
        profile(*dacs, **more)
    return str(caught.value).removeprefix("p: ").split("\np: ")


def test_channels_have_their_numbers_by_their_places() -> None:
    [found] = profile(dac(channels=["", "A", "LOOP"], channel={
        "A": LEVEL,
        "LOOP": {"quantity": "current", "min": 0.004, "max": 0.02, "safe": "off", "slew": 0.01},
    })).of("dac")  # fmt: skip
    assert found.bus == "dac:a"
    assert found.channels == (
        DacChannelSpec(1, "A", 0, 3, 0),
        DacChannelSpec(2, "LOOP", 0.004, 0.02, "off", quantity="current", slew=0.01),
    )
    assert [one.output for one in found.channels] == ["out_voltage1", "out_current2"]
    assert [one.signal.unit for one in found.channels] == ["volt", "ampere"]
    assert found.channels[1].signal.limit == SignalLimit(0.004, 0.02, 0.001, 0.01)


def test_a_channel_behind_an_amplifier_has_a_unit_and_a_step_of_its_own() -> None:
    [found] = profile(dac(channel={"A": {**LEVEL, "max": 100, "scale": -0.1, "offset": -1000, "unit": "percent"}})).of(
        "dac"
    )
    [channel] = found.channels
    assert channel.signal.unit == "percent"
    step = DacStep(channel.scale, channel.offset)
    assert [channel.count(value, step) for value in (0, 50, 100)] == [1000, 500, 0]
    assert [channel.level(count, step) for count in (1000, 500, 0)] == [0, 50, 100]


def test_a_bound_that_is_a_step_stays_one_in_floating_point() -> None:
    channel = DacChannelSpec(0, "A", 0, 3.3, 0)
    step = DacStep(0.001)
    assert channel.count(3.3, step) == 3300
    assert channel.level(3300, step) == 3.3
    assert channel.counts(DacStep(1.1)) == (0, 3)


def test_no_two_channels_of_a_board_have_one_name() -> None:
    fan = {"label": "f", "driver": "sim", "channels": ["A"], "channel": {"A": {"period_us": 40}}}
    assert faults(dac(), pwm=[fan]) == ['dac[0].channels: "A" is a channel of another chip already']
    assert faults(dac(), dac()) == [
        'dac[1].label: "a" is there twice',
        'dac[1].channels: "A" is a channel of another chip already',
    ]


def test_an_interlock_guards_a_part_of_a_channels_range() -> None:
    lock = {"drives": "A", "above": 1.5, "requires": [{"line": "DOOR", "value": 0}]}
    [found] = profile(dac(), gpio=[DOOR], interlock=[lock]).interlocks
    assert (found.bus, found.output, found.what) == ("dac:a", 0, "dac channel A")
    assert [found.guards(level) for level in (1.5, 1.6, "off")] == [False, True, False]


# --- of a machine -----------------------------------------------------------------------------------------------------

CHIP = "pci0000:00/0000:00:15.0/i2c-1/1-0060"
LABEL = "mcp4725-i2c-1-60"


@pytest.fixture
def files(tmp_path):
    files = FilesMachine(tmp_path)
    files.device("pci0000:00/0000:00:15.0", "pci", driver="i801", acpi="I801")
    files.device("pci0000:00/0000:00:15.0/i2c-1", "i2c")
    files.device(CHIP, "i2c", driver="mcp4725")
    return files


def iio(label=LABEL, **more):
    return profile(dac(label, driver="iio", **more))


def problems(given, files):
    return [(one.key, one.severity, one.problem) for one in mismatches(given, find(machine=files.machine), NO_HOLDERS)]


def test_devices_with_outputs_are_found_by_their_lasting_names(files) -> None:
    at = files.iio(3, CHIP, "mcp4725", {"out_voltage0_raw": "0", "out_voltage1_raw": "0", "out_voltage_scale": "0.8"})
    files.iio(1, "virtual/adc", "adc", {"in_voltage0_raw": "0"})
    [found] = find(machine=files.machine).get("dac", ())
    assert (found.node, found.label, found.outputs) == ("iio:device3", LABEL, ("out_voltage0", "out_voltage1"))
    assert Path(found.path) == at.resolve() / "out_voltage0_raw"
    assert found.origin.driver == "mcp4725"
    assert problems(iio(), files) == []
    [told] = look("sim", machine=files.machine)["dacs"]
    assert (told["label"], told["outputs"]) == (LABEL, ["out_voltage0", "out_voltage1"])
    assert "only a person knows" in told["not_driven"]["reason"]


def test_two_devices_of_one_name_are_told_apart_by_the_kernels_numbers(files) -> None:
    for number in (0, 4):
        files.iio(number, f"virtual/iio{number}", "dac", {"out_current0_raw": "0"})
    assert [one.label for one in find(machine=files.machine).get("dac", ())] == ["dac@iio:device0", "dac@iio:device4"]


def test_what_does_not_fit_is_named_with_what_there_is(files) -> None:
    files.iio(0, CHIP, "mcp4725", {"out_voltage0_raw": "0"})
    [(key, severity, told)] = problems(iio("mcp4725-i2c-1-61"), files)
    assert (key, severity) == ("dac[0].label", "fail")
    assert f"'mcp4725-i2c-1-61' with outputs is not there; there is '{LABEL}' (iio:device0)" in told
    [(key, severity, told)] = problems(iio(channels=["", "A"]), files)
    assert (key, told) == ("dac[0].channel.A", "the device has out_voltage0, and no out_voltage1")
    gaps = safety_gaps(iio(), find(machine=files.machine), NO_HOLDERS, files.machine)
    assert [(gap.key, gap.severity) for gap in gaps] == [("halt.inputs", "warn")]


def test_a_permission_that_lacks_is_given_by_a_rule_for_the_outputs(files, monkeypatch) -> None:
    at = files.iio(0, CHIP, "mcp4725", {"out_voltage0_raw": "0"})
    monkeypatch.setattr(access.os, "access", lambda path, mode, effective_ids: False)
    lack = ACCESS.lack_of(str(at / "out_voltage0_raw"))
    assert lack is not None
    assert 'SUBSYSTEM=="iio", KERNEL=="iio:device*"' in lack.cure
    assert "-name out_* -exec /bin/chgrp gpio {} +" in lack.cure
    assert "--subsystem-match=iio" in lack.cure


def test_the_sandbox_permits_the_hardwares_directory_and_all_where_it_is_not_there(files) -> None:
    files.iio(0, CHIP, "mcp4725", {"out_voltage0_raw": "0"})
    sys = files.machine.sys
    devices = devices_of(iio(), None, sys=sys)
    assert (sys.resolve() / "devices" / CHIP, "device", f"dac {LABEL}") in devices.grants
    assert devices.hotplug is None
    missing = devices_of(iio("mcp4725-i2c-1-61"), None, sys=sys)
    assert missing.hotplug == "dac mcp4725-i2c-1-61 is not there now"
    assert {Path("/dev"), sys / "devices"} <= {path for path, _, _ in missing.grants}
    assert devices_of(profile(dac()), None, sys=sys).hotplug is None


def test_the_sandbox_permits_all_where_a_converter_can_be_unplugged(files) -> None:
    files.device("usb1/1-1/i2c-9/9-0060", "i2c", driver="mcp4725")
    files.iio(0, "usb1/1-1/i2c-9/9-0060", "mcp4725", {"out_voltage0_raw": "0"})
    devices = devices_of(iio("mcp4725-i2c-9-60"), None, sys=files.machine.sys)
    assert devices.hotplug == "dac mcp4725-i2c-9-60 can be unplugged"


def test_the_tables_in_the_documentation_are_good_ones() -> None:
    page = Path(__file__).parents[2] / "docs/reference/boards.md"
    written = [block.partition("```")[0] for block in page.read_text("utf-8").split("```toml\n")[1:]]
    [table] = [tomllib.loads(block) for block in written if "[[dac]]" in block]
    found = parse_profile({**HEAD, **table}, "p")
    assert [channel.signal.unit for channel in found.of("dac")[0].channels] == ["volt", "percent"]
