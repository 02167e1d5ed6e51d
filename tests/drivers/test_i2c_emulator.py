"""The emulated MCP2221's wire: a record in which whatever is not whole can be seen, or no test with it proves much.

Reports are those that the kernel's driver sends; which it sends, the tests in the guest show.
"""

import json
import threading
import time

import pytest
from support.mcp2221_chip import CHUNK, Chip, Exchange, Memory

WRITE, WRITE_ON, READ, READ_AGAIN, GET, STATUS = 0x90, 0x94, 0x91, 0x93, 0x40, 0x10
MEMORY = 0x50


@pytest.fixture
def chip():
    return Chip({MEMORY: Memory(), 0x51: Memory(1024, pointer_bytes=2)})


def report(command, length, addr=MEMORY, data=b""):
    return bytes([command, length & 0xFF, length >> 8, addr << 1]) + data


def write(chip, data, addr=MEMORY, command=WRITE):
    for at in range(0, len(data), CHUNK):
        reply = chip.command(report(command, len(data), addr, data[at : at + CHUNK]))
    return reply


def cancel(chip):
    chip.command(bytes([STATUS, 0, 0x10]))


def ends(chip):
    return [exchange.end for exchange in chip.log]


def test_a_write_in_several_reports_is_one_exchange_with_a_time_for_each_byte(chip):
    data = b"\x00\x10" + bytes(range(150))
    before = time.monotonic()
    write(chip, data, 0x51)
    (exchange,) = chip.log
    assert (exchange.whole, exchange.written) == (True, data)
    (message,) = exchange.messages
    times = [before, exchange.began, *message.at, exchange.ended, time.monotonic()]
    assert len(message.at) == len(data)
    assert times == sorted(times)
    assert chip.targets[0x51].cells[0x10:0xA6] == data[2:]


def test_a_register_read_is_one_exchange_of_two_messages(chip):
    chip.targets[MEMORY].cells[5:8] = b"abc"
    write(chip, b"\x05", command=WRITE_ON)
    assert chip.log[0].end is None
    chip.command(report(READ_AGAIN, 3))
    reply = chip.command(bytes([GET]))
    assert (reply[2], reply[3], reply[4:7]) == (0x55, 3, b"abc")
    assert [(message.way, message.acked) for message in chip.log[0].messages] == [("write", True), ("read", True)]
    assert ends(chip) == ["stop"]


@pytest.mark.parametrize("addr", [0x51, MEMORY], ids=["elsewhere", "the same device"])
def test_a_write_that_another_one_comes_into_is_torn(chip, addr):
    chip.command(report(WRITE, 100, data=bytes(60)))
    chip.command(report(WRITE, 2, addr=addr, data=b"ab"))
    assert ends(chip) == ["torn", "stop"]
    assert [len(exchange.written) for exchange in chip.log] == [60, 2]
    assert chip.strays


def test_a_write_that_a_read_comes_into_is_torn(chip):
    chip.command(report(WRITE, 100, data=bytes(60)))
    chip.command(report(READ, 1))
    assert ends(chip) == ["torn", "stop"]
    assert chip.strays


def test_a_write_that_is_called_off_is_torn(chip):
    chip.command(report(WRITE, 100, data=bytes(60)))
    cancel(chip)
    assert ends(chip) == ["torn"]
    write(chip, b"\x00ab")
    assert ends(chip) == ["torn", "stop"]


def test_a_register_that_is_selected_and_never_read_is_torn(chip):
    write(chip, b"\x05", command=WRITE_ON)
    write(chip, b"\x06x")
    assert ends(chip) == ["torn", "stop"]


def test_a_read_that_was_not_begun_is_a_stray(chip):
    chip.command(report(READ_AGAIN, 1))
    assert chip.strays


def test_a_register_read_that_was_split_is_two_exchanges(chip):
    write(chip, b"\x05")
    chip.command(report(READ, 1))
    assert [len(exchange.messages) for exchange in chip.log] == [1, 1]


def test_no_device_at_an_address_shows_in_the_status_that_is_asked_for_next(chip):
    write(chip, b"\x00", addr=0x23)
    assert chip.command(bytes([STATUS]))[20] == 0x40
    cancel(chip)
    assert chip.command(bytes([STATUS]))[20] == 0
    assert (ends(chip), chip.log[0].messages[0].acked) == (["nack"], False)


@pytest.mark.parametrize(("fault", "end"), [("nack", "nack"), ("timeout", "timeout")])
def test_a_fault_after_some_bytes_ends_the_exchange_there_and_once(chip, fault, end):
    getattr(chip, fault)(after=3)
    write(chip, b"\x00abcd")
    cancel(chip)
    write(chip, b"\x00abcd")
    assert ends(chip) == [end, "stop"]
    assert chip.log[0].written == b"\x00ab"


def test_a_fault_for_one_address_spares_the_others(chip):
    chip.nack(addr=0x51)
    write(chip, b"\x00a")
    write(chip, b"\x00\x00a", addr=0x51)
    assert ends(chip) == ["stop", "nack"]


def test_a_busy_engine_puts_nothing_on_the_wire(chip):
    chip.busy()
    reply = write(chip, b"\x00a")
    assert (reply[1], reply[2], chip.log) == (1, 0x01, [])


def test_a_wedge_holds_the_wire_until_it_is_released(chip):
    chip.wedge(after=2)
    thread = threading.Thread(target=write, args=(chip, b"\x00abc"), daemon=True)
    thread.start()
    chip.wait_held()
    assert (ends(chip), chip.log[0].written) == ([None], b"\x00a")
    chip.release()
    thread.join(60)
    assert (ends(chip), chip.log[0].written) == (["stop"], b"\x00abc")


def test_waiting_for_what_does_not_come_ends(chip):
    for wait in (lambda: chip.wait_held(0.01), lambda: chip.wait_logged(1, 0.01)):
        with pytest.raises(TimeoutError):
            wait()


def test_bytes_are_paced_by_the_clock():
    chip = Chip({MEMORY: Memory()}, speed_hz=9000)
    begun = time.monotonic()
    write(chip, b"\x00" + bytes(19))
    assert time.monotonic() - begun >= 0.021


def test_the_record_survives_its_way_through_a_pipe(chip):
    write(chip, b"\x05", command=WRITE_ON)
    chip.command(report(READ_AGAIN, 3))
    copy = Exchange.from_json(json.loads(json.dumps(chip.log[0].to_json())))
    assert copy.to_json() == chip.log[0].to_json()
    assert (copy.whole, copy.written, copy.read) == (True, b"\x05", bytes(3))


def test_the_pins_are_set_and_read(chip):
    chip.command(bytes([0x50, 0, 1, 1, 1, 0]))
    assert chip.gpio[0] == [1, 0]
    assert chip.command(bytes([0x51]))[2:6] == bytes([1, 0, 0, 1])
