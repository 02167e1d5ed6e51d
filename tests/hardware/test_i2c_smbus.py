"""SMBus-only adapters: each exchange is one SMBus call that puts the same bytes on the wire, or it is refused."""

import fcntl

import pytest
from smbus2 import SMBus
from smbus2.smbus2 import I2C_SLAVE
from support.i2c_stub import stub_bus
from support.tiny_usb import TinyUsb

from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.i2c.smbus import CALLS, FUNCTIONS, able, call_for
from hearth.drivers.registers import Read, Write
from hearth.errors import DeviceError

CHIP = 0x50


@pytest.fixture
def driver():
    driver = LinuxI2c(stub_bus())
    driver.open()
    yield driver
    driver.close()


@pytest.fixture
def other(driver):
    """Another user of the adapter, who sees what the chip holds."""
    with SMBus(driver.bus) as other:
        yield other


def test_a_byte_alone_sets_the_pointer_and_a_byte_is_received_from_it(driver, other):
    other.write_byte_data(CHIP, 0x21, 0xA5)
    driver.transfer(CHIP, [Write(b"\x21")])
    assert driver.transfer(CHIP, [Read(1)]) == b"\xa5"


def test_a_register_of_one_byte_is_byte_data(driver, other):
    driver.transfer(CHIP, [Write(b"\x05\x5a")])
    assert other.read_byte_data(CHIP, 0x05) == 0x5A
    assert driver.transfer(CHIP, [Write(b"\x05"), Read(1)]) == b"\x5a"


def test_a_register_of_two_bytes_is_a_word_and_its_bytes_keep_their_order(driver, other):
    driver.transfer(CHIP, [Write(b"\x06\x12\x34")])
    assert other.read_word_data(CHIP, 0x06) == 0x3412  # SMBus words go low byte first
    assert driver.transfer(CHIP, [Write(b"\x06"), Read(2)]) == b"\x12\x34"


@pytest.mark.parametrize("size", [3, 17, 32])
def test_more_bytes_are_a_block(driver, other, size):
    data = bytes(range(1, size + 1))
    driver.transfer(CHIP, [Write(b"\x40" + data)])
    assert bytes(other.read_i2c_block_data(CHIP, 0x40, size)) == data
    assert driver.transfer(CHIP, [Write(b"\x40"), Read(size)]) == data


@pytest.mark.parametrize(
    "messages",
    [
        [Write(bytes(34))],
        [Write(b"\x00"), Read(33)],
        [Read(2)],
        [Write(b"\x00\x01"), Read(1)],
        [Write(b"\x00\x01\x02"), Read(2)],
        [Write(b"\x00"), Write(b"\x01")],
        [Read(1), Write(b"\x01")],
        [Write(b"\x00"), Read(1), Read(1)],
    ],
    ids=["34 bytes", "33 back", "two from the pointer", "16-bit register", "process call", "writes", "read first", "3"],
)
def test_what_is_not_one_call_is_refused_whole_saying_what_the_adapter_can_do(driver, other, messages):
    other.write_byte_data(CHIP, 0, 0x77)
    other.write_byte(CHIP, 0)
    with pytest.raises(DeviceError) as caught:
        driver.transfer(CHIP, messages)
    data = caught.value.data
    assert (data["effect"], data["errno"], data["addr"]) == ("none", "EOPNOTSUPP", CHIP)
    assert "write-i2c-block" in data["functionality"]
    assert "SMBus stub driver" in caught.value.message
    assert "in one exchange it can send byte (write 1), receive byte (read 1)" in caught.value.message
    # Not even the pointer has moved.
    assert other.read_byte(CHIP) == 0x77


def test_an_answer_that_is_shorter_than_asked_is_an_error_and_not_filled_up(driver):
    # The simulator's registers end at 0xff, and it says how many it could read.
    with pytest.raises(DeviceError, match="asked for 5 bytes, got 2") as caught:
        driver.transfer(CHIP, [Write(b"\xfe"), Read(5)])
    assert (caught.value.data["errno"], caught.value.data["effect"]) == ("EPROTO", "done")


def test_each_call_puts_the_bytes_on_the_wire_that_raw_messages_would():
    with TinyUsb([CHIP]) as adapter, SMBus(adapter.bus) as handle:
        driver = LinuxI2c(adapter.bus)
        driver.open()
        for call in CALLS:
            # On an adapter that has only raw messages the kernel makes the calls of those.
            data, length = bytes(range(0x41, 0x41 + call.writes[-1])), call.reads[-1]
            messages = [*([Write(data)] if data else []), *([Read(length)] if length else [])]
            raw = driver.transfer(CHIP, messages)
            wanted = adapter.exchange()
            assert sum(way == "write" for way, _ in wanted.messages) == bool(data)
            fcntl.ioctl(handle.fd, I2C_SLAVE, CHIP)
            made = call.run(handle, CHIP, data, length)
            again = adapter.exchange()
            if data:  # both began at the same register, so they read the same
                assert (made or b"", again) == (raw, wanted), call.name
            else:
                assert [(way, len(got)) for way, got in again.messages] == [("read", 1)], call.name
        driver.close()


def test_ten_bit_addresses_need_raw_i2c(driver):
    with pytest.raises(DeviceError, match="10-bit addresses") as caught:
        driver.transfer(0x150, [Read(1)])
    assert caught.value.data["effect"] == "none"


def test_which_call_is_made_follows_from_the_functionality_bits():
    word, block = FUNCTIONS["read-word-data"], FUNCTIONS["read-i2c-block"]
    messages = [Write(b"\x00"), Read(2)]

    def chosen(bits):
        found = call_for(messages, bits)
        return found and found[0].name

    assert chosen(word | block) == "read word data"
    assert chosen(block) == "read I2C block"
    assert chosen(word) == "read word data"
    assert chosen(FUNCTIONS["read-byte-data"]) is None


def test_every_call_needs_its_own_bit_and_says_its_shape():
    assert sum(call.needs for call in CALLS) == sum({call.needs for call in CALLS})
    assert able(FUNCTIONS["process-call"]).endswith("it can process call (write 3, read 2)")
    assert able(FUNCTIONS["quick"]).endswith("it can do nothing")
    assert able(FUNCTIONS["write-i2c-block"]).endswith("it can write I2C block (write 2 to 33)")
