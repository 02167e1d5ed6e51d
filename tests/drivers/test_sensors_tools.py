"""hw.sensor.list and hw.sensor.read on a board that offers the kernel's sensors, and on one that does not."""

import jsonschema
import pytest
from attrs import evolve

from hearth.drivers.iio.kernel import KernelSensors
from hearth.drivers.iio.tools import MAX_SENSORS, sensor_tools
from hearth.drivers.sensor import SENSORS_BUS
from hearth.errors import DeviceError, InvalidParams

CONTENT = {
    "name": "cell",
    "description": "a cell",
    "i2c": [{"bus": 1, "driver": "sim", "device": [{"addr": 0x48, "kind": "tmp102"}]}],
    "sensors": {
        "inlet": {"kind": "tmp102", "bus": 1, "addr": 0x48, "description": "air inlet"},
        "hwmon/mine": {"kind": "tmp102", "bus": 1, "addr": 0x48},
    },
}


@pytest.fixture
def chip(tmp_path):
    at = tmp_path / "class/hwmon/hwmon0"
    at.mkdir(parents=True)
    files = {"name": "chip", "temp1_input": 25500, "temp1_max": 80000, "temp1_alarm": 0, "temp1_label": "CPU"}
    for name, content in files.items():
        (at / name).write_text(f"{content}\n")
    return at


@pytest.fixture
def bench(make_board_bench, chip):
    made = make_board_bench(CONTENT)
    sensors = KernelSensors(sys=chip.parents[2])
    made.board = evolve(made.board, drivers={**made.board.drivers, SENSORS_BUS: sensors})
    made.tools |= {tool.name: tool for tool in sensor_tools(made.board)}
    made.driver("i2c:1").open()
    return made


async def test_the_profiles_sensors_come_first_and_the_kernels_after_them(bench, chip):
    inlet, mine, temp1 = (await bench.run("hw.sensor.list"))["sensors"]
    assert inlet == {"sensor": "inlet", "kind": "tmp102", "unit": "celsius", "bus": "i2c:1", "description": "air inlet"}
    assert mine["sensor"] == "hwmon/mine"
    assert temp1 == {
        "sensor": "hwmon/chip/temp1",
        "kind": "temperature",
        "unit": "celsius",
        "bus": "sensors",
        "kernel": "chip",
        "path": str(chip / "temp1_input"),
        "scale": 0.001,
        "label": "CPU",
        "limits": {"max": 80.0},
        "alarms": ["hwmon/chip/temp1_alarm"],
    }


@pytest.mark.slow
async def test_a_list_that_is_cut_says_so(bench, chip):
    assert (await bench.run("hw.sensor.list"))["truncated"] is False
    for number in range(2, MAX_SENSORS + 2):
        (chip / f"temp{number}_input").write_text("1\n")
    answer = await bench.run("hw.sensor.list")
    assert (len(answer["sensors"]), answer["truncated"]) == (2 + MAX_SENSORS, True)


async def test_the_bus_is_chosen_by_the_name_and_the_profiles_name_wins(bench):
    bus = bench.tools["hw.sensor.read"].bus
    assert [bus({"sensor": name}) for name in ("inlet", "hwmon/mine", "hwmon/chip/temp1")] == [
        "i2c:1",
        "i2c:1",
        "sensors",
    ]
    assert bench.tools["hw.sensor.list"].bus({}) == "sensors"


async def test_a_kernel_sensor_is_read_with_the_kernels_name_of_its_device(bench):
    name = "hwmon/chip/temp1"
    assert await bench.run("hw.sensor.read", sensor=name) == {
        "sensor": name,
        "value": 25.5,
        "unit": "celsius",
        "kernel": "chip",
    }


async def test_a_sensor_of_the_profile_is_read_on_its_own_wire(bench):
    result = await bench.run("hw.sensor.read", sensor="inlet")
    assert (result["unit"], "kernel" in result) == ("celsius", False)


async def test_an_alarm_is_read_like_a_sensor(bench):
    assert (await bench.run("hw.sensor.read", sensor="hwmon/chip/temp1_alarm"))["value"] == 0.0


async def test_a_sensor_that_went_since_it_was_listed_is_a_device_error(bench, chip):
    (chip / "temp1_input").unlink()
    with pytest.raises(DeviceError, match=r"hw\.sensor\.list"):
        await bench.run("hw.sensor.read", sensor="hwmon/chip/temp1")


def test_a_name_that_no_device_can_have_is_refused_at_submit(bench):
    with pytest.raises(InvalidParams, match=r"its profile names inlet, hwmon/mine, and hw\.sensor\.list") as caught:
        bench.tools["hw.sensor.read"].bus({"sensor": "temperature"})
    assert caught.value.data == {"sensor": "temperature", "known": ["inlet", "hwmon/mine"]}


def test_a_board_without_kernel_sensors_knows_only_its_own(make_board_bench):
    tools = make_board_bench(CONTENT).tools
    with pytest.raises(InvalidParams, match="it has: inlet, hwmon/mine"):
        tools["hw.sensor.read"].bus({"sensor": "hwmon/chip/temp1"})
    assert tools["hw.sensor.list"].bus({}) == "board"
    assert "Touches no hardware" in tools["hw.sensor.list"].description


def test_both_tools_have_sound_schemas_that_hold_the_longest_name(bench):
    for name in ("hw.sensor.list", "hw.sensor.read"):
        tool = bench.tools[name]
        for schema in (tool.params_schema, tool.result_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
        assert (tool.risk_level, tool.capability) == (0, "CAP_SYS_READ")
    jsonschema.validate({"sensor": "x" * 256}, bench.tools["hw.sensor.read"].params_schema)
