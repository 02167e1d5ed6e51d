"""Buffered capture on the host: the form of samples, a made-up device, the simulator, and the profile's table."""

import os
import struct
import threading
from fractions import Fraction

import pytest
import trio
import trio.testing
from support.confinement import needs_landlock
from support.forked import forked

from hearth.drivers.base import Style, finish_now
from hearth.drivers.boards import open_board
from hearth.drivers.boards.diagnose import mismatches, safety_gaps
from hearth.drivers.boards.discover import Machine, find
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.iio.driver import MAX_VALUES, CaptureRequest, ScanType, SimulatedWave, check_size, layout, scaled
from hearth.drivers.iio.kernel import KernelSensors
from hearth.drivers.iio.sim import SimIio
from hearth.drivers.linux.device_users import NO_HOLDERS
from hearth.drivers.sandbox import landlock
from hearth.drivers.sandbox.enforce import RIGHTS
from hearth.drivers.sandbox.identity import no_new_privs
from hearth.drivers.sandbox.landlock import Ruleset
from hearth.drivers.sandbox.plan import devices_of
from hearth.errors import ConfigError, DeviceError, InvalidParams, ResourceBusy

# --- the form of samples ----------------------------------------------------------------------------------------------

FORMS = [
    ("le:u8/8>>0", b"\xff", 255),
    ("le:s8/8>>0", b"\xff", -1),
    ("le:u16/16>>0", b"\x34\x12", 0x1234),
    ("be:u16/16>>0", b"\x12\x34", 0x1234),
    ("be:s16/16>>0", b"\xff\xfe", -2),
    ("le:s16/16>>0", b"\x00\x80", -0x8000),
    ("le:s12/16>>4", b"\xf0\xff", -1),
    ("le:s12/16>>4", b"\x0f\x80", -0x800),
    ("be:s12/16>>4", b"\x7f\xf3", 0x7FF),
    ("le:u12/16>>4", b"\xf7\xff", 0xFFF),
    ("le:u13/16>>0", b"\xff\xff", 0x1FFF),
    ("be:s24/32>>8", b"\x80\x00\x00\x99", -0x800000),
    ("be:u24/24>>0", b"\x01\x02\x03", 0x010203),
    ("le:s64/64>>0", struct.pack("<q", -5), -5),
    ("le:u64/64>>0", b"\xff" * 8, 2**64 - 1),
    ("le:f32/32>>0", struct.pack("<f", 1.5), 1.5),
    ("be:f64/64>>0", struct.pack(">d", -0.25), -0.25),
    ("le:u16/16X1>>0", b"\x01\x00", 1),
]


@pytest.mark.parametrize(("text", "raw", "value"), FORMS)
def test_a_number_is_decoded_by_its_type(text, raw, value):
    form = ScanType.parse(text)
    assert form.size == len(raw)
    assert form.decode(raw) == value


@pytest.mark.parametrize(
    "text",
    ["", "le:s12/16", "xe:s12/16>>0", "le:s0/16>>0", "le:s12/12>>0", "le:s14/16>>4", "le:s16/16X4>>0", "le:f24/32>>0"],
)
def test_a_type_that_cannot_be_decoded_is_none(text):
    assert ScanType.parse(text) is None


@pytest.mark.parametrize(
    ("types", "offsets", "size"),
    [
        (["le:u16/16>>0"], [0], 2),
        (["le:u16/16>>0", "le:s64/64>>0"], [0, 8], 16),
        (["le:u8/8>>0", "le:u16/16>>0", "le:u8/8>>0"], [0, 2, 4], 6),
        (["le:u32/32>>0", "le:u8/8>>0"], [0, 4], 8),
        (["be:u24/24>>0", "be:u24/24>>0"], [0, 3], 6),
    ],
)
def test_channels_are_aligned_to_their_size_and_samples_to_the_widest(types, offsets, size):
    assert layout([ScanType.parse(text) for text in types]) == (offsets, size)


def test_a_value_is_rounded_once():
    assert scaled(255, Fraction(0), Fraction(1, 10)) == 25.5
    assert scaled(73, Fraction(7), Fraction(1333, 10**9)) == float((73 + 7) * Fraction(1333, 10**9))
    assert scaled(1.5, Fraction(1, 2), Fraction(2)) == 4.0


def test_as_many_values_as_the_bound_says():
    check_size(MAX_VALUES // 2, 2)
    with pytest.raises(InvalidParams, match="ask for 8192 samples") as caught:
        check_size(MAX_VALUES // 2 + 1, 2)
    assert caught.value.data["maximum"] == 8192


# --- a made-up device -------------------------------------------------------------------------------------------------

FILES = {
    "name": "adc",
    "in_voltage0_raw": 1,
    "in_voltage_scale": "0.5",
    "in_voltage0_offset": 2,
    "in_temp_input": 21_000,
    "in_count0_raw": 3,
    "sampling_frequency": 10,
    "buffer/enable": 0,
    "buffer/length": 2,
    "scan_elements/in_voltage0_en": 0,
    "scan_elements/in_voltage0_index": 1,
    "scan_elements/in_voltage0_type": "be:s12/16>>4",
    "scan_elements/in_temp_en": 0,
    "scan_elements/in_temp_index": 0,
    "scan_elements/in_temp_type": "le:u8/8>>0",
    "scan_elements/in_count0_en": 1,
    "scan_elements/in_count0_index": 2,
    "scan_elements/in_count0_type": "le:s16/16X3>>0",
}


class Device:
    """A device with a buffer of its own, whose node is a FIFO that a test fills."""

    def __init__(self, root, **more):
        self.root, self.at, self.dev = root, root / "devices/iio:device0", root / "dev"
        self.dev.mkdir()
        for name, content in {**FILES, **{name.replace("__", "/"): value for name, value in more.items()}}.items():
            (self.at / name).parent.mkdir(parents=True, exist_ok=True)
            (self.at / name).write_text(f"{content}\n")
        (root / "bus/iio/devices").mkdir(parents=True)
        (root / "bus/iio/devices/iio:device0").symlink_to(self.at)
        (self.at / "subsystem").symlink_to(root / "bus/iio")
        self.node = self.dev / "iio:device0"
        os.mkfifo(self.node)
        self.sensors = KernelSensors(sys=root, dev=self.dev)

    def text(self, name):
        # An attribute of the kernel is replaced by a write; in this file the end of a longer one stays.
        return (self.at / name).read_text().partition("\n")[0]

    def capture(self, *names, samples=2, timeout_s=5.0, **more):
        return self.sensors.capture([f"iio/adc/{name}" for name in names], CaptureRequest(samples, timeout_s, **more))

    def failure(self, *names, error=DeviceError, **more):
        with pytest.raises(error) as caught:
            self.capture(*names, **more)
        assert self.text("buffer/enable") == "0"
        return caught.value


@pytest.fixture
def device(tmp_path):
    made = Device(tmp_path)
    made.writer = os.open(made.node, os.O_RDWR)
    yield made
    os.close(made.writer)


def test_a_device_with_a_buffer_of_its_own_is_captured_and_put_back(device):
    os.write(device.writer, b"\x15\x00\x00\x30" + b"\x16\x00\xff\xf0")
    before = {path: path.read_text() for path in device.at.rglob("*") if path.is_file()}
    taken = device.capture("voltage0", "temp")
    assert taken.samples == [[(3 + 2) * 0.5 / 1000, (-1 + 2) * 0.5 / 1000], [21, 22]]
    assert (taken.units, taken.rate_hz, taken.timed_out) == (["volt", "raw"], 10, False)
    assert {path: path.read_text() for path in device.at.rglob("*") if path.is_file()} == before


def test_a_timeout_and_a_stop_return_the_whole_samples_that_came(device):
    os.write(device.writer, b"\x00\x10" * 3 + b"\x00")
    taken = device.capture("voltage0", samples=9, timeout_s=0.01)
    assert (len(taken.samples[0]), taken.timed_out) == (3, True)
    taken = device.capture("voltage0", samples=9, timeout_s=60, stop=lambda: True)
    assert (taken.samples, taken.timed_out) == ([[]], False)


def test_the_devices_own_rate_is_set_for_the_capture(device):
    os.write(device.writer, b"\x00\x10")
    assert device.capture("voltage0", samples=1, rate_hz=12.5).rate_hz == 12.5
    assert device.text("sampling_frequency") == "10"


def test_a_node_without_a_program_behind_it_is_a_device_that_is_gone(device):
    device.node.unlink()
    os.mkfifo(device.node)
    assert device.failure("voltage0").data["errno"] == "ENODEV"


def test_what_the_device_has_not_is_named(device):
    assert "its samples have no timestamp" in str(device.failure("voltage0", timestamps=True))
    assert "this release cannot decode" in str(device.failure("count0"))
    assert "it takes no trigger" in str(device.failure("voltage0", trigger="t100"))
    (device.at / "in_voltage0_offset").write_text("much\n")
    assert device.failure("voltage0").data["errno"] == "EBADMSG"
    (device.at / "in_voltage0_offset").write_text("2\n")
    (device.at / "scan_elements/in_voltage0_index").write_text("first\n")
    assert device.failure("voltage0").data["errno"] == "EBADMSG"
    (device.at / "sampling_frequency").unlink()
    assert "its rate cannot be set" in str(device.failure("voltage0", rate_hz=5))
    (device.at / "scan_elements/in_voltage0_en").unlink()
    refused = device.failure("voltage0")
    assert refused.data["errno"] == "ENOTSUP"
    assert "hw.sensor.read reads it" in str(refused)


def test_a_watermark_that_the_device_fixes_stays(device):
    (device.at / "buffer/watermark").write_text("4\n")
    (device.at / "buffer/watermark").chmod(0o444)
    os.write(device.writer, b"\x00\x10")
    seen = []
    device.capture("voltage0", samples=2, timeout_s=0.01, stop=lambda: seen.append(device.text("buffer/watermark")))
    assert set(seen) == {"4"}


def test_a_rate_that_channels_do_not_share_is_set_for_each(device):
    (device.at / "in_voltage_sampling_frequency").write_text("10\n")
    os.write(device.writer, b"\x15\x00\x00\x30")
    rates = ("sampling_frequency", "in_voltage_sampling_frequency")
    seen = []
    device.capture(
        "temp", "voltage0", samples=9, timeout_s=0.01, rate_hz=20, stop=lambda: seen.extend(map(device.text, rates))
    )
    assert set(seen) == {"20"}
    assert [device.text(name) for name in rates] == ["10", "10"]


def test_a_buffer_that_a_killed_program_left_on_is_taken_over(device):
    (device.at / "buffer/enable").write_text("1\n")
    (device.at / "buffer/watermark").write_text("9\n")
    os.write(device.writer, b"\x00\x77")
    taken = device.capture("voltage0", samples=2, timeout_s=0.01)
    assert (taken.samples, taken.timed_out) == ([[]], True), "what was in the buffer is of another time"
    assert [device.text(f"buffer/{name}") for name in ("enable", "watermark", "length")] == ["0", "1", "2"]


def test_a_node_of_another_device_is_not_read(device):
    (device.at / "dev").write_text("254:7\n")
    refused = device.failure("voltage0")
    assert (refused.data["errno"], refused.data["path"]) == ("ENODEV", str(device.node))


def test_a_node_that_may_not_be_read_is_an_error_with_the_cure(device, monkeypatch):
    def refuse(_at, node):
        raise PermissionError(13, "denied", str(node))

    monkeypatch.setattr("hearth.drivers.iio.capture._opened", refuse)
    with pytest.raises(DeviceError, match=r"no permission to use .*60-hearth\.rules") as caught:
        device.capture("voltage0")
    assert caught.value.data["errno"] == "EACCES"


def test_a_setting_that_cannot_be_put_back_is_an_error_with_the_cure(device):
    os.write(device.writer, b"\x00\x10")
    length = device.at / "buffer/length"

    def replace():
        length.unlink()
        length.mkdir()
        return False

    with pytest.raises(DeviceError, match=r"could not be set back to '2' \(EISDIR\).*sudo tee") as caught:
        device.capture("voltage0", samples=9, timeout_s=0.01, stop=replace)
    assert caught.value.data["effect"] == "unknown"


def test_a_third_capture_is_busy_while_two_run(device):
    stop, started = threading.Event(), threading.Semaphore(0)

    def running():
        started.release()
        return stop.is_set()

    def run():
        device.capture("voltage0", samples=9, timeout_s=60, stop=running)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=20)
    with pytest.raises(ResourceBusy, match="2 captures are running"):
        device.capture("voltage0")
    stop.set()
    for thread in threads:
        thread.join(20)
    device.capture("voltage0", stop=lambda: True)


# --- the simulator ----------------------------------------------------------------------------------------------------


async def test_the_simulator_samples_a_wave_in_virtual_time(autojump_clock):
    driver = SimIio("sim", [SimulatedWave("w", "volt", amplitude=2, hz=1, offset=1)], 4, style=Style.ASYNC)
    taken = await driver.capture(["w"], CaptureRequest(8, 60, timestamps=True))
    assert max(taken.samples[0]) <= 3
    assert taken.samples[0][:4] == pytest.approx(taken.samples[0][4:], abs=1e-4)
    assert [after - before for before, after in zip(taken.timestamps_us, taken.timestamps_us[1:], strict=False)] == [
        250_000
    ] * 7
    begun = trio.current_time()
    short = await driver.capture(["w"], CaptureRequest(100, 2))
    assert (trio.current_time() - begun, len(short.samples[0]), short.timed_out) == (2, 8, True)
    with pytest.raises(DeviceError, match="it cannot sample at 1e"):
        await driver.capture(["w"], CaptureRequest(1, 1, rate_hz=1e6))
    assert driver.describe()["driver"] == "sim"


def test_the_simulator_ends_early_when_it_is_asked_to():
    driver = SimIio("sim", [SimulatedWave("w", "volt")], 1)
    taken = finish_now(driver.capture(["w"], CaptureRequest(100, 60, stop=lambda: True)))
    assert (taken.samples, taken.timed_out) == ([[]], False)


# --- the profile and the tool -----------------------------------------------------------------------------------------

WAVE = {"sensor": "w", "unit": "volt"}
SIM = {"label": "sim", "driver": "sim", "channels": [WAVE]}
KERNEL = {"label": "adc", "driver": "iio"}


def content(*iio, **more):
    return {"name": "x", "description": "x", "iio": list(iio), **more}


FAULTS = [
    (content({**SIM, "channels": []}), "iio[0].channels: a simulated device has channels"),
    (content({**SIM, "trigger": "t"}), 'iio[0].trigger: only a device with driver = "iio" has it'),
    (content({**KERNEL, "rate_hz": 5}), 'iio[0].rate_hz: only a device with driver = "sim" has it'),
    (content(KERNEL), "iio[0].driver: the kernel's sensors are not offered; add sensors = true under [discover]"),
    (content(SIM, SIM), 'iio[1].label: "sim" is there twice'),
    (content({**SIM, "channels": [WAVE, WAVE]}), 'iio[0].channels[1].sensor: there is another sensor "w"'),
    (content({**SIM, "channels": [{**WAVE, "hz": 0}]}), "iio[0].channels[0].hz: expected a number above 0"),
]


@pytest.mark.parametrize(("given", "fault"), FAULTS)
def test_a_table_with_a_fault_is_refused_at_its_place(given, fault):
    with pytest.raises(ConfigError) as caught:
        parse_profile(given, "x.toml")
    assert fault in str(caught.value)


def test_the_profiles_trigger_goes_to_the_driver_and_the_sandbox_gets_the_devices_files(device):
    profile = parse_profile(content({**KERNEL, "trigger": "t9"}, discover={"sensors": True}), "x.toml")
    (device.at / "trigger").mkdir()
    (device.at / "trigger/current_trigger").write_text("\n")
    trigger = device.root / "bus/iio/devices/trigger0"
    trigger.mkdir()
    (trigger / "name").write_text("t9\n")
    grants = {path: why for path, _access, why in devices_of(profile, False, sys=device.root).grants}
    assert grants[device.at] == "iio device adc"
    assert grants[trigger] == "the trigger of iio device adc"
    os.write(device.writer, b"\x00\x10")
    device.sensors = KernelSensors(sys=device.root, dev=device.dev, triggers={"adc": "t9"})
    assert device.capture("voltage0", samples=1).rate_hz is None
    assert device.text("trigger/current_trigger") == ""


@needs_landlock(3)
def test_the_sandbox_lets_a_device_of_the_profile_be_captured_and_no_other(device):
    os.write(device.writer, b"\x00\x10" * 2)
    profile = parse_profile(content(KERNEL, discover={"sensors": True}), "x.toml")
    grants = [(path, access) for path, access, _ in devices_of(profile, False, sys=device.root).grants]

    def confined(rules):
        no_new_privs()
        with Ruleset(landlock.version(), tcp=False) as made:
            # The FIFO stands for the node in /dev, and the rest for what is read anyway.
            made.allow_all((path, RIGHTS[access]) for path, access in [*rules, (device.root, "read")])
            made.enforce()
        try:
            return device.capture("voltage0", samples=2).samples
        except DeviceError as error:
            return str(error)

    refused = forked(lambda: confined([]))
    assert "the sandbox keeps hearthd from" in refused
    assert "[[iio]] in the board profile names a device" in refused
    assert len(forked(lambda: confined(grants))[0]) == 2


def test_the_doctor_names_what_keeps_a_device_from_being_captured(device):
    machine = Machine(sys=device.root, dev=device.dev)

    def told(**more):
        profile = parse_profile(content({**KERNEL, **more}, SIM, discover={"sensors": True}), "x.toml")
        found = mismatches(profile, find(machine=machine), NO_HOLDERS, machine)
        return [(one.key, one.severity, one.problem) for one in found]

    assert told() == []
    assert told(label="dac") == [("iio[0].label", "fail", "an IIO device 'dac' is not there; there is 'adc'")]
    assert told(trigger="t9") == [("iio[0].trigger", "fail", "there is no trigger 't9' now")]
    device.node.unlink()
    assert told() == [("iio[0].label", "fail", f"this user may not read {device.node}")]
    (device.at / "buffer/enable").unlink()
    assert told() == [("iio[0].label", "fail", "the kernel's driver of this device has no buffer")]


def test_an_interlock_on_a_simulated_channel_can_be_read(device):
    line = {"label": "sim", "driver": "sim", "names": ["PUMP"]}
    lock = {"drives": "PUMP", "value": 1, "requires": [{"sensor": "w", "max": 2}]}
    machine = Machine(sys=device.root, dev=device.dev)
    profile = parse_profile(content(SIM, gpio=[line], interlock=[lock]), "x.toml")
    assert profile.interlocks[0].requires[0].bus == "iio:sim"
    gaps = safety_gaps(profile, find(machine=machine), NO_HOLDERS, machine)
    assert [gap.key for gap in gaps if gap.key.startswith("interlock")] == []


@pytest.fixture
def tool():
    from hearth.drivers.iio.tools import sensor_tools

    given = content(
        SIM,
        {**SIM, "label": "two", "channels": [{**WAVE, "sensor": "v"}]},
        i2c=[{"bus": 1, "driver": "sim", "device": [{"addr": 0x48, "kind": "tmp102"}]}],
        sensors={"inlet": {"kind": "tmp102", "bus": 1, "addr": 0x48}},
    )
    return {one.name: one for one in sensor_tools(open_board(parse_profile(given, "x.toml")))}["hw.sensor.capture"]


@pytest.mark.parametrize(
    ("sensors", "samples", "fault"),
    [
        (["w", "w"], 1, "'w' is there twice"),
        (["inlet"], 1, "'inlet' has no buffer"),
        (["w", "v"], 1, "'v' is of another device than 'w'"),
        (["w", "nothing"], 1, "nothing"),
    ],
)
def test_sensors_that_do_not_go_together_are_refused_at_submit(tool, sensors, samples, fault):
    with pytest.raises(InvalidParams, match=fault):
        tool.bus({"sensors": sensors, "samples": samples})
    assert tool.bus({"sensors": ["w"], "samples": 1}) == "iio:sim"
    assert [use.names for use in tool.uses({"sensors": ["w"], "samples": 1})] == [("w",)]
