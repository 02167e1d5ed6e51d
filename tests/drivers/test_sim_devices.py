"""The simulated chips against their data sheets."""

import pytest
from hypothesis import given, strategies as st

from hearth.drivers.i2c.chips import decode_tmp102
from hearth.drivers.i2c.sim import Eeprom, Mcp3221, SlowTemperature, Tmp102, encode_tmp102


def word(value):
    return value.to_bytes(2, "big")


def exchange(device, written=b"", length=0):
    """One transaction as the bus does it; what was read, or None where the device did not acknowledge."""
    try:
        if (written or not length) and not device.start(reading=False):
            return None
        for byte in written:
            assert device.write(byte)
        if length and not device.start(reading=True):
            return None
        return bytes(device.read() for _ in range(length))
    finally:
        device.stop()


@pytest.mark.parametrize(
    ("celsius", "register"),
    [(25, 0x1900), (0.25, 0x0040), (0, 0x0000), (-0.25, 0xFFC0), (-25, 0xE700), (-55, 0xC900), (127.9375, 0x7FF0)],
)
def test_temperatures_have_the_registers_of_the_data_sheet(celsius, register):
    assert encode_tmp102(celsius) == register
    assert decode_tmp102(word(register)) == celsius


@given(st.floats(-55, 127.9))
def test_a_temperature_survives_the_register_to_half_a_step(celsius):
    assert abs(decode_tmp102(word(encode_tmp102(celsius))) - celsius) <= 1 / 32


@given(st.floats(-55, 150))
def test_so_it_does_in_extended_mode_with_a_wider_range(celsius):
    register = encode_tmp102(celsius, extended=True)
    assert register & 1
    assert abs(decode_tmp102(word(register)) - celsius) <= 1 / 32


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.booleans())
def test_a_temperature_out_of_range_saturates_and_never_wraps(celsius, extended):
    top = 255.9375 if extended else 127.9375
    expected = min(max(round(celsius * 16) / 16, -top - 1 / 16), top)
    assert decode_tmp102(word(encode_tmp102(celsius, extended=extended))) == expected


@given(st.integers(0, 2**31), st.floats(0, 1e7))
def test_the_room_is_a_plausible_one_and_the_same_for_the_same_seed(seed, at):
    def measure():
        now = [3.0]
        room = SlowTemperature(seed, lambda: now[0])
        first = room()
        now[0] += at
        return first, room()

    assert measure() == measure()
    assert all(18 < celsius < 25 for celsius in measure())


def test_the_room_changes_slowly():
    now = [0.0]
    room = SlowTemperature(5, lambda: now[0])
    before = room()
    now[0] = 1.0
    assert 0 < abs(room() - before) < 0.1


@pytest.fixture
def sensor():
    chip = Tmp102(lambda: 25.0)
    chip.room = lambda celsius: setattr(chip, "temperature", lambda: celsius)
    return chip


def test_the_pointer_selects_the_register_and_stays(sensor):
    assert exchange(sensor, b"\x00", 2) == b"\x19\x00"
    assert exchange(sensor, b"\x03", 2) == b"\x50\x00"
    assert exchange(sensor, b"", 2) == b"\x50\x00"
    assert exchange(sensor, b"\x02", 4) == b"\x4b\x00\x4b\x00"
    assert exchange(sensor, b"\x01", 2) == b"\x60\xa0"


def test_limits_are_written_high_byte_first_and_the_temperature_cannot_be(sensor):
    exchange(sensor, b"\x03\x1e\x00\xee")
    assert exchange(sensor, b"\x03", 2) == b"\x1e\x00"
    exchange(sensor, b"\x00\x55\x55")
    assert exchange(sensor, b"\x00", 2) == b"\x19\x00"


def test_the_read_only_bits_of_the_configuration_stay(sensor):
    exchange(sensor, b"\x01\x00\x00")
    assert exchange(sensor, b"\x01", 2) == b"\x60\x20"


def test_shut_down_it_keeps_the_last_conversion_until_it_is_asked_for_one(sensor):
    exchange(sensor, b"\x01\x61\xa0")
    sensor.room(30.0)
    assert exchange(sensor, b"\x00", 2) == b"\x19\x00"
    exchange(sensor, b"\x01\xe1\xa0")
    assert exchange(sensor, b"\x00", 2) == word(encode_tmp102(30.0))
    exchange(sensor, b"\x01\x60\xa0")
    sensor.room(31.0)
    assert exchange(sensor, b"\x00", 2) == word(encode_tmp102(31.0))


def test_extended_mode_reaches_150_degrees(sensor):
    sensor.room(150.0)
    assert decode_tmp102(exchange(sensor, b"\x00", 2)) == 127.9375
    exchange(sensor, b"\x01\x60\xb0")
    assert decode_tmp102(exchange(sensor, b"\x00", 2)) == 150.0


@pytest.mark.parametrize(("config", "quiet"), [(b"\x60\xa0", 0x20), (b"\x64\xa0", 0x00)], ids=["low", "high"])
def test_the_alert_sets_in_at_the_upper_limit_and_ends_below_the_lower(sensor, config, quiet):
    exchange(sensor, b"\x01" + config)

    def flag(celsius):
        sensor.room(celsius)
        exchange(sensor, b"\x00", 2)
        return exchange(sensor, b"\x01", 2)[1] & 0x20

    alerting = quiet ^ 0x20
    readings = [flag(celsius) for celsius in (79.0, 80.0, 76.0, 74.9, 79.0)]
    assert readings == [quiet, alerting, alerting, quiet, quiet]


PAGE = 8
writes = st.tuples(st.just("write"), st.integers(0, 255), st.binary(max_size=20))
reads = st.tuples(st.just("read"), st.integers(0, 255), st.integers(1, 300))
goes_on = st.tuples(st.just("go on"), st.just(0), st.integers(1, 20))


@pytest.mark.slow
@given(st.lists(st.one_of(writes, reads, goes_on), max_size=20))
def test_the_eeprom_is_a_memory_with_pages_and_a_pointer(steps):
    chip = Eeprom(lambda: 0.0)
    memory, pointer = bytearray(b"\xff" * 256), 0
    for kind, at, what in steps:
        if kind == "write":
            exchange(chip, bytes([at]) + what)
            pointer = at
            for byte in what:
                memory[pointer] = byte
                pointer = pointer // PAGE * PAGE + (pointer + 1) % PAGE
            continue
        if kind == "read":
            pointer = at
        expected = bytes(memory[(pointer + n) % 256] for n in range(what))
        assert exchange(chip, bytes([at]) if kind == "read" else b"", what) == expected
        pointer = (pointer + what) % 256
    assert chip.memory == memory


def test_while_it_stores_it_does_not_acknowledge():
    now = [0.0]
    chip = Eeprom(lambda: now[0], write_cycle_s=0.005)
    assert exchange(chip, b"\x00", 1) == b"\xff"
    exchange(chip, b"\x00A")
    assert exchange(chip, b"\x00", 1) is None
    now[0] = 0.005
    assert exchange(chip, b"\x00", 1) == b"A"


def test_setting_the_pointer_alone_stores_nothing():
    chip = Eeprom(lambda: 0.0, write_cycle_s=1.0)
    exchange(chip, b"\x07")
    assert exchange(chip, b"", 1) == b"\xff"


def test_bytes_reach_the_memory_at_stop_only():
    chip = Eeprom(lambda: 0.0)
    chip.start(reading=False)
    for byte in b"\x00AB":
        chip.write(byte)
    assert chip.memory[:2] == b"\xff\xff"
    chip.stop()
    assert chip.memory[:2] == b"AB"


@pytest.mark.parametrize(("percent", "code"), [(0, 0), (50, 0x800), (99.99, 0xFFF), (200, 0xFFF), (-1, 0)])
def test_a_converter_gives_its_input_in_12_bits_and_saturates(percent, code):
    assert exchange(Mcp3221(lambda: percent), length=2) == word(code)


def test_a_converter_measures_again_for_each_two_bytes_of_one_read():
    level = iter([25.0, 75.0])
    assert exchange(Mcp3221(lambda: next(level)), length=4) == word(0x400) + word(0xC00)


def test_a_converter_without_registers_acknowledges_its_address_and_no_byte():
    chip = Mcp3221(lambda: 0.0)
    assert chip.start(reading=False)
    assert not chip.write(0)
